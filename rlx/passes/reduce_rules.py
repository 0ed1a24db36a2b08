"""The rules of `simplify-algebra` for reductions, each exact: no sum of floats is reordered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Attribute, Operation, SSAValue

from rlx.dialects import infer, mir
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, ReduceKind
from rlx.dialects.ops import numbers
from rlx.dialects.writer import fill
from rlx.passes.matching import Replacement, Rule, ValueRule, made_for

R = ReduceKind


class ReduceNothing(ValueRule[mir.ReduceOp]):
    """
    A reduction of no axes --> x; of axes of size 1 --> reshape.

    A sum or mean of floats stays, since it begins at 0.0 and makes that of -0.0.
    """

    ops = (mir.ReduceOp,)

    def replacement(self, op: mir.ReduceOp) -> Replacement:
        kind, dims = op.kind.data, dims_of(op.input.type)
        floats = element_of(op.input.type) in infer.FLOATS
        if (floats and kind in (R.SUM, R.MEAN)) or any(dims[a] != 1 for a in numbers(op.axes)):
            return None
        same = op.input.type == op.result.type
        return op.input if same else [mir.ReshapeOp(op.input, op.result.type)]


class ReduceTwice(ValueRule[mir.ReduceOp]):
    """A maximum of maxima, or of integers a sum of sums --> one reduction."""

    ops = (mir.ReduceOp,)

    def replacement(self, op: mir.ReduceOp) -> Replacement:
        inner, kind = made_for(op, op.input), op.kind.data
        if not isinstance(inner, mir.ReduceOp) or inner.kind != op.kind:
            return None
        if kind not in (R.MAX, R.MIN) and element_of(op.input.type) in infer.FLOATS:
            return None
        first = numbers(inner.axes)
        left = [a for a in range(len(dims_of(inner.input.type))) if a not in first]
        axes = sorted([*first, *(left[a] for a in numbers(op.axes))])
        return [mir.ReduceOp(kind, inner.input, axes)]


class ReduceBroadcast(ValueRule[mir.ReduceOp]):
    """The maximum of x along axes that it was repeated along --> x; of integers a sum --> x * n."""

    ops = (mir.ReduceOp,)

    def replacement(self, op: mir.ReduceOp) -> Replacement:
        inner, kind, axes = op.input.owner, op.kind.data, numbers(op.axes)
        if not isinstance(inner, mir.BroadcastOp):
            return None
        dims, wide = dims_of(inner.input.type), dims_of(op.input.type)
        padded = (*[1] * (len(wide) - len(dims)), *dims)
        count = 1
        for axis in axes:
            size = wide[axis]
            if padded[axis] != 1 or not isinstance(size, int) or size == 0:
                return None
            count *= size
        sums = kind is R.SUM and element_of(op.input.type) not in infer.FLOATS
        if kind not in (R.MAX, R.MIN) and not sums:
            return None
        made = self._spread(inner.input, op.result.type, axes, padded)
        if not sums:
            return made
        width = cast(IntegerType, element_of(op.input.type)).width.data
        least = 0 if infer.is_unsigned(element_of(op.input.type)) else -(2 ** (width - 1))
        times = fill((count - least) % 2**width + least, op.result.type)
        product = mir.BinaryOp(BinaryKind.MUL, made[-1].results[0], times[-1].results[0])
        return [*made, *times, product]

    def _spread(
        self, value: SSAValue, type_: Attribute, axes: Sequence[int], padded: Sequence[Dim]
    ) -> list[Operation]:
        """Return operations that give a value the shape of the reduction."""
        kept = [d for axis, d in enumerate(padded) if axis not in axes]
        shaped = mir.ReshapeOp(value, tensor(kept, element_of(type_)))
        return [shaped, mir.BroadcastOp(shaped.result, type_)]


REDUCE_RULES: Sequence[Rule] = (ReduceNothing(), ReduceTwice(), ReduceBroadcast())
