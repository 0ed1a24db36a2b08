"""The rules of `eliminate-moves` for what takes tensors apart and joins them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IntegerType
from xdsl.ir import Operation, SSAValue

from rlx.dialects import mir
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.ops import numbers
from rlx.passes.matching import Replacement, Rule, ValueRule


class JoinSlices(ValueRule[mir.ConcatOp]):
    """concat(slice x, slice x), where the one begins where the other ends --> slice x."""

    ops = (mir.ConcatOp,)

    def replacement(self, op: mir.ConcatOp) -> Replacement:
        axis = op.axis.value.data
        made: list[Operation] = []
        parts: list[SSAValue] = []
        for part in op.parts:
            joined = self._joined(parts[-1], part, axis) if parts else None
            if joined is None:
                parts.append(part)
                continue
            made.append(joined)
            parts[-1] = joined.result
        if not made:
            return None
        if len(parts) == 1:
            return made
        return [*made, mir.ConcatOp(axis, parts, op.result.type)]

    def _joined(self, first: SSAValue, second: SSAValue, axis: int) -> mir.SliceOp | None:
        """Return the slice that two adjacent ones of a tensor are, None for others."""
        a, b = first.owner, second.owner
        if not isinstance(a, mir.SliceOp) or not isinstance(b, mir.SliceOp):
            return None
        if a.input is not b.input or a.steps != b.steps:
            return None
        starts, then, steps = map(numbers, (a.starts, b.starts, a.steps))
        dims, more = list(dims_of(first.type)), dims_of(second.type)[axis]
        size = dims[axis]
        if not isinstance(size, int) or not isinstance(more, int):
            return None
        if then != [*starts[:axis], starts[axis] + size * steps[axis], *starts[axis + 1 :]]:
            return None
        dims[axis] = size + more
        return mir.SliceOp(a.input, starts, tensor(dims, element_of(first.type)), steps)


class SliceOfPart(ValueRule[mir.SliceOp]):
    """slice(concat(a, b)), all of it within b --> slice b."""

    ops = (mir.SliceOp,)

    def replacement(self, op: mir.SliceOp) -> Replacement:
        inner = op.input.owner
        if not isinstance(inner, mir.ConcatOp):
            return None
        axis = inner.axis.value.data
        starts, steps, size = numbers(op.starts), numbers(op.steps), dims_of(op.result.type)[axis]
        if not isinstance(size, int) or size == 0:
            return None
        first, last = starts[axis], starts[axis] + (size - 1) * steps[axis]
        begin = 0
        for part in inner.parts:
            length = dims_of(part.type)[axis]
            if not isinstance(length, int):
                return None
            if begin <= first and last < begin + length:
                starts[axis] = first - begin
                return [mir.SliceOp(part, starts, op.result.type, steps)]
            begin += length
        return None


class SliceOfBroadcast(ValueRule[mir.SliceOp]):
    """slice(broadcast x) --> broadcast(slice x), or broadcast x where x has none of the axes."""

    ops = (mir.SliceOp,)

    def replacement(self, op: mir.SliceOp) -> Replacement:
        inner = op.input.owner
        if not isinstance(inner, mir.BroadcastOp):
            return None
        dims, wanted = dims_of(inner.input.type), dims_of(op.result.type)
        places = list(zip(wanted, numbers(op.starts), numbers(op.steps), strict=True))
        places = places[len(wanted) - len(dims) :]
        kept = [(1, 0, 1) if dim == 1 else place for dim, place in zip(dims, places, strict=True)]
        type_ = tensor([size for size, _, _ in kept], element_of(op.result.type))
        starts, steps = [start for _, start, _ in kept], [step for _, _, step in kept]
        part = mir.SliceOp(inner.input, starts, type_, steps)
        return [part, mir.BroadcastOp(part.result, op.result.type)]


class GatherOfRange(ValueRule[mir.GatherOp]):
    """gather x at 3, 5, 7 --> slice x; at all indices in order --> x."""

    ops = (mir.GatherOp,)

    def replacement(self, op: mir.GatherOp) -> Replacement:
        axis = op.axis.value.data
        size, ids = dims_of(op.input.type)[axis], op.ids.owner
        ranked = len(dims_of(op.ids.type))
        if isinstance(ids, mir.IotaOp) and ranked == 1 and dims_of(op.ids.type)[0] == size:
            return op.input
        places = self._places(ids) if ranked <= 1 else None
        if not places or not isinstance(size, int) or not 0 <= places[0] <= places[-1] < size:
            return None
        steps = {b - a for a, b in pairwise(places)} or {1}
        if len(steps) > 1 or min(steps) < 1:
            return None
        dims = list(dims_of(op.input.type))
        starts, by = [0] * len(dims), [1] * len(dims)
        dims[axis], starts[axis], by[axis] = len(places), places[0], min(steps)
        taken = mir.SliceOp(op.input, starts, tensor(dims, element_of(op.result.type)), by)
        if ranked == 1:
            return [taken]
        return [taken, mir.ReshapeOp(taken.result, op.result.type)]

    def _places(self, ids: object) -> Sequence[int] | None:
        """Return the indices, where they are known."""
        if isinstance(ids, mir.ConstantOp):
            return cast(DenseIntOrFPElementsAttr[IntegerType], ids.value).get_values()
        size = dims_of(ids.result.type)[0] if isinstance(ids, mir.IotaOp) else None
        return range(size) if isinstance(size, int) else None


JOIN_RULES: Sequence[Rule] = (JoinSlices(), SliceOfPart(), SliceOfBroadcast(), GatherOfRange())
