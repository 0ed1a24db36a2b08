"""The rules of `eliminate-moves` that take a move through the maps beside it."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, Operation, SSAValue

from rlx.dialects import infer, mir
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.ops import numbers
from rlx.dialects.writer import fill
from rlx.passes.matching import Replacement, Rule, ValueRule, made_for, splat_of

_DEEPEST = 32
"""How many maps in a row a move is taken through."""

Turn = mir.TransposeOp | mir.ReshapeOp


class CancelThroughMaps(ValueRule[mir.TransposeOp | mir.ReshapeOp]):
    """transpose(exp(transpose x)) --> exp x, where each operand of the maps can be moved freely."""

    ops = (mir.TransposeOp, mir.ReshapeOp)

    def replacement(self, op: Turn) -> Replacement:
        owner = made_for(op, op.input)
        if not isinstance(owner, mir.MAPS) or not self._cancels(op, owner, _DEEPEST):
            return None
        made: list[Operation] = []
        self._rebuild(op, op.input, made)
        return made

    def _cancels(self, op: Turn, map: Operation, depth: int) -> bool:
        """Return whether a move has its opposite at a leaf below a map, and no other move."""
        found = False
        for value in map.operands:
            if self._opposite(op, value) is not None:
                found = True
            elif splat_of(value) is None:
                inner = made_for(map, value)
                maps = depth > 0 and isinstance(inner, mir.MAPS)
                if not maps or inner is None or not self._cancels(op, inner, depth - 1):
                    return False
                found = True
        return found

    def _opposite(self, op: Turn, value: SSAValue) -> SSAValue | None:
        """Return what a value is the opposite move of."""
        owner = value.owner
        if isinstance(op, mir.ReshapeOp):
            same = isinstance(owner, mir.ReshapeOp) and dims_of(owner.input.type) == dims_of(
                op.result.type
            )
            return owner.input if isinstance(owner, mir.ReshapeOp) and same else None
        if not isinstance(owner, mir.TransposeOp):
            return None
        first = numbers(owner.order)
        cancels = [first[axis] for axis in numbers(op.order)] == sorted(first)
        return owner.input if cancels else None

    def _rebuild(self, op: Turn, value: SSAValue, made: list[Operation]) -> SSAValue:
        """Make a value as it is after the move, without the move."""
        if (source := self._opposite(op, value)) is not None:
            return source
        type_ = self._moved(op, value.type)
        if (number := splat_of(value)) is not None:
            made += fill(number, type_)
            return made[-1].results[0]
        owner = value.owner
        assert isinstance(owner, mir.MAPS)
        operands = [self._rebuild(op, v, made) for v in owner.operands]
        made.append(_like(owner, operands, type_))
        return made[-1].results[0]

    def _moved(self, op: Turn, type_: Attribute) -> Attribute:
        if isinstance(op, mir.TransposeOp):
            return infer.transposed(op.name, type_, numbers(op.order))
        return tensor(dims_of(op.result.type), element_of(type_))


def _like(op: Operation, operands: Sequence[SSAValue], type_: Attribute) -> Operation:
    """Return a map as one of other operands."""
    return type(op).create(operands=operands, result_types=[type_], properties=op.properties.copy())


class BroadcastOnce(ValueRule[Operation]):
    """a map of broadcast x and broadcast y --> broadcast of the map of x and y."""

    ops = mir.MAPS

    def replacement(self, op: Operation) -> Replacement:
        wide = [v for v in dict.fromkeys(op.operands) if splat_of(v) is None]
        sources = [v.owner.input for v in wide if isinstance(v.owner, mir.BroadcastOp)]
        if not sources or len(sources) < len(wide) or len({dims_of(s.type) for s in sources}) > 1:
            return None
        result = op.results[0]
        again = result.has_one_use() and isinstance(
            next(iter(result.uses)).operation, mir.BroadcastOp
        )
        if len(sources) < 2 and not again:
            return None
        dims = dims_of(sources[0].type)
        made: list[Operation] = []
        operands: list[SSAValue] = []
        for value in op.operands:
            if (number := splat_of(value)) is not None:
                made += fill(number, tensor(dims, element_of(value.type)))
                operands.append(made[-1].results[0])
            else:
                operands.append(sources[wide.index(value)])
        made.append(_like(op, operands, tensor(dims, element_of(result.type))))
        return [*made, mir.BroadcastOp(made[-1].results[0], result.type)]


class TransposeBeforeBroadcast(ValueRule[mir.TransposeOp]):
    """transpose(broadcast x) --> broadcast(transpose x): x is smaller, and often but reshaped."""

    ops = (mir.TransposeOp,)

    def replacement(self, op: mir.TransposeOp) -> Replacement:
        inner = op.input.owner
        if not isinstance(inner, mir.BroadcastOp):
            return None
        dims = dims_of(inner.input.type)
        leading = len(dims_of(op.result.type)) - len(dims)
        element = element_of(op.result.type)
        padded = mir.ReshapeOp(inner.input, tensor([*[1] * leading, *dims], element))
        turned = mir.TransposeOp(padded.result, numbers(op.order))
        return [padded, turned, mir.BroadcastOp(turned.result, op.result.type)]


MAP_RULES: Sequence[Rule] = (CancelThroughMaps(), BroadcastOnce(), TransposeBeforeBroadcast())
