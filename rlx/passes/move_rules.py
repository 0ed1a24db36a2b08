"""
The rules that make moves of moves one, and that drop moves which move nothing.

Passes `simplify-algebra` and `eliminate-moves` both begin with them.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from rlx.dialects import mir
from rlx.dialects.common import dims_of
from rlx.dialects.ops import numbers
from rlx.dialects.writer import fill
from rlx.passes.matching import Replacement, Rule, ValueRule, is_number, splat_of


class DropIdentityMove(ValueRule[Operation]):
    """Replace a move that leaves every element where it is by its operand."""

    ops = (mir.ReshapeOp, mir.BroadcastOp, mir.TransposeOp, mir.SliceOp, mir.ConcatOp)

    def replacement(self, op: Operation) -> Replacement:
        if len(op.operands) != 1 or op.operands[0].type != op.results[0].type:
            return None
        if isinstance(op, mir.TransposeOp) and numbers(op.order) != sorted(numbers(op.order)):
            return None
        # A slice of the whole size can only begin at 0 with steps of 1; but for a size of 0 or 1.
        return op.operands[0]


class ComposeReshapes(ValueRule[mir.ReshapeOp]):
    """reshape(reshape x) --> reshape x."""

    ops = (mir.ReshapeOp,)

    def replacement(self, op: mir.ReshapeOp) -> Replacement:
        inner = op.input.owner
        if not isinstance(inner, mir.ReshapeOp):
            return None
        return [mir.ReshapeOp(inner.input, op.result.type)]


class ComposeBroadcasts(ValueRule[mir.BroadcastOp]):
    """broadcast(broadcast x) --> broadcast x; so too a reshape that only leads with ones."""

    ops = (mir.BroadcastOp,)

    def replacement(self, op: mir.BroadcastOp) -> Replacement:
        inner = op.input.owner
        if isinstance(inner, mir.ReshapeOp):
            dims, wider = dims_of(inner.input.type), dims_of(inner.result.type)
            leading = len(wider) - len(dims)
            if leading < 0 or wider != (*[1] * leading, *dims):
                return None
        elif not isinstance(inner, mir.BroadcastOp):
            return None
        return [mir.BroadcastOp(inner.input, op.result.type)]


class ComposeTransposes(ValueRule[mir.TransposeOp]):
    """transpose(transpose x) --> transpose x."""

    ops = (mir.TransposeOp,)

    def replacement(self, op: mir.TransposeOp) -> Replacement:
        inner = op.input.owner
        if not isinstance(inner, mir.TransposeOp):
            return None
        first = numbers(inner.order)
        return [mir.TransposeOp(inner.input, [first[axis] for axis in numbers(op.order)])]


class TransposeOfOnes(ValueRule[mir.TransposeOp]):
    """A transpose that moves dimensions of size 1 only --> reshape, which copies nothing."""

    ops = (mir.TransposeOp,)

    def replacement(self, op: mir.TransposeOp) -> Replacement:
        dims = dims_of(op.input.type)
        moved = [axis for axis in numbers(op.order) if dims[axis] != 1]
        if moved != sorted(moved):
            return None
        same = op.input.type == op.result.type
        return op.input if same else [mir.ReshapeOp(op.input, op.result.type)]


class ComposeSlices(ValueRule[mir.SliceOp]):
    """slice(slice x) --> slice x."""

    ops = (mir.SliceOp,)

    def replacement(self, op: mir.SliceOp) -> Replacement:
        inner = op.input.owner
        if not isinstance(inner, mir.SliceOp):
            return None
        dims = dims_of(op.result.type)
        if 0 in dims:
            return None  # an empty slice may begin beyond its tensor's end
        places = zip(*map(numbers, (inner.starts, inner.steps, op.starts, op.steps)), strict=True)
        starts, steps = list[int](), list[int]()
        for (start, step, then, by), size in zip(places, dims, strict=True):
            starts.append(start + step * then)
            steps.append(step * by if size != 1 else 1)
        return [mir.SliceOp(inner.input, starts, op.result.type, steps)]


class ComposePads(ValueRule[mir.PadOp]):
    """pad(pad x) --> pad x, of one value; a pad of nothing --> x."""

    ops = (mir.PadOp,)

    def replacement(self, op: mir.PadOp) -> Replacement:
        counts = [numbers(n) for n in (op.low, op.high, op.between)]
        if not any(map(any, counts)):
            return op.input
        inner = op.input.owner
        if not isinstance(inner, mir.PadOp) or inner.fill != op.fill or any(counts[2]):
            return None
        low, high = (
            [a + b for a, b in zip(numbers(first), then, strict=True)]
            for first, then in zip((inner.low, inner.high), counts[:2], strict=True)
        )
        between = numbers(inner.between)
        return [mir.PadOp(inner.input, op.fill, low, high, between, op.result.type)]


class WindowsSideBySide(ValueRule[mir.WindowOp]):
    """Windows that share no element and leave out none --> reshape."""

    ops = (mir.WindowOp,)

    def replacement(self, op: mir.WindowOp) -> Replacement:
        size, axis = op.size.value.data, op.axis.value.data
        count = dims_of(op.result.type)[axis]
        if count * size != dims_of(op.input.type)[axis] or (size > 1 and op.step.value.data > 1):
            return None
        if count != 1 and op.stride.value.data != size:
            return None
        return [mir.ReshapeOp(op.input, op.result.type)]


class ComposeReverses(ValueRule[mir.ReverseOp]):
    """reverse(reverse x) --> reverse x of the axes of one of them; of axes of size 1 --> x."""

    ops = (mir.ReverseOp,)

    def replacement(self, op: mir.ReverseOp) -> Replacement:
        dims, axes, source = dims_of(op.input.type), set(numbers(op.axes)), op.input
        if isinstance(source.owner, mir.ReverseOp):
            axes ^= set(numbers(source.owner.axes))
            source = source.owner.input
        kept = sorted(axis for axis in axes if dims[axis] != 1)
        if not kept:
            return source
        if source is op.input and len(kept) == len(axes):
            return None
        return [mir.ReverseOp(source, kept)]


class MoveOfFill(ValueRule[Operation]):
    """Move a tensor that is one number throughout --> that number in the moved shape."""

    ops = (mir.ReshapeOp, mir.TransposeOp, mir.SliceOp, mir.WindowOp, mir.ReverseOp, mir.PadOp)

    def replacement(self, op: Operation) -> Replacement:
        number = splat_of(op.operands[0])
        if number is None or (isinstance(op, mir.PadOp) and not is_number(op.fill, number)):
            return None
        return fill(number, op.results[0].type)


class MergeConcats(ValueRule[mir.ConcatOp]):
    """concat(concat(a, b), c) --> concat(a, b, c), along one axis."""

    ops = (mir.ConcatOp,)

    def replacement(self, op: mir.ConcatOp) -> Replacement:
        parts: list[SSAValue] = []
        for part in op.parts:
            inner = part.owner
            nested = isinstance(inner, mir.ConcatOp) and inner.axis == op.axis
            parts += inner.parts if isinstance(inner, mir.ConcatOp) and nested else [part]
        if len(parts) == len(op.parts):
            return None
        return [mir.ConcatOp(op.axis.value.data, parts, op.result.type)]


MOVE_RULES: Sequence[Rule] = (
    DropIdentityMove(),
    ComposeReshapes(),
    ComposeBroadcasts(),
    ComposeTransposes(),
    TransposeOfOnes(),
    ComposeSlices(),
    ComposePads(),
    WindowsSideBySide(),
    ComposeReverses(),
    MoveOfFill(),
    MergeConcats(),
)
