"""The parts of attention, as programs write it in primitives, and the operation made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

from xdsl.ir import Attribute, Operation, SSAValue

from rlx.dialects import mir
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind
from rlx.dialects.ops import numbers
from rlx.passes.attention_masks import is_causal_choice, mask_for
from rlx.passes.fuse_common import users
from rlx.passes.matching import splat_of


class Unfit(Exception):
    """Why operations that look like attention are not what `mir.sdpa` computes."""


@dataclass
class AttentionParts:
    """The parts of an attention, found from its softmax backwards."""

    softmax: mir.SoftmaxOp
    output: mir.DotOp
    ops: list[Operation] = field(default_factory=list[Operation])
    scale: float = 1.0
    mask: SSAValue | None = None
    causal: bool = False
    scores: mir.DotOp | None = None

    def check(self) -> None:
        """Raise Unfit unless what was found, from the scores to the output, is one block's own."""
        weights, output = self.softmax.result, self.output
        if len(users(weights)) > 1:
            raise Unfit("several consumers of mir.softmax")
        if output.lhs is not weights or output.lhs_t is not None:
            raise Unfit("the weights are not the left side of the product")
        self.walk(self.softmax.input)
        ops = [*self.ops, self.softmax, output]
        if len({op.parent for op in ops}) > 1:
            raise Unfit("they stand in different blocks")
        if len({op.attributes.get(mir.PHASE) for op in ops}) > 1:
            raise Unfit("they run in different phases")

    def walk(self, value: SSAValue) -> None:
        """Follow the scores from the softmax's input to their product; raises Unfit."""
        op = value.owner
        assert isinstance(op, Operation)
        if len(users(value)) > 1:
            raise Unfit(f"several consumers of {op.name}")
        self.ops.insert(0, op)
        if isinstance(op, mir.DotOp):
            self.scores = op
            return
        self.walk(self._step(op))

    def _step(self, op: Operation) -> SSAValue:
        """Take in what an operation does to the scores; return the scores before it."""
        m, n = dims_of(op.results[0].type)[-2:]
        if (scaled := _scaled(op)) is not None:
            value, factor = scaled
            self.scale *= factor
            return value
        if self.scale != 1.0:
            raise Unfit("the mask is scaled too")
        if self.causal or self.mask is not None:
            raise Unfit("two masks")
        scores, other = sorted(op.operands[-2:], key=lambda v: not leads_to_dot(v))
        if isinstance(op, mir.BinaryOp) and op.kind.data is not BinaryKind.ADD:
            raise Unfit(f"{op.kind.data} of the scores and a tensor")
        if isinstance(op, mir.SelectOp):
            if not is_causal_choice(op, scores, m, n):
                raise Unfit("a choice of scores that is not causal")
            self.causal = True
        elif isinstance(other.owner, Operation) and is_causal_choice(other.owner, 0.0, m, n):
            self.causal = True
        else:
            self.mask = other
        return scores


def _scaled(op: Operation) -> tuple[SSAValue, float] | None:
    """Return what an operation multiplies or divides by one number, and the factor."""
    if not isinstance(op, mir.BinaryOp):
        return None
    kind = op.kind.data
    for value, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        factor = splat_of(other)
        if factor is not None and kind is BinaryKind.MUL:
            return value, factor
        if factor and kind is BinaryKind.DIV and other is op.rhs:
            return value, 1.0 / factor
    return None


def leads_to_dot(value: SSAValue) -> bool:
    """Whether a value is a product of matrices, scaled or masked or not."""
    seen, todo = set[SSAValue](), [value]
    while todo:
        value = todo.pop()
        op = value.owner
        if isinstance(op, mir.DotOp):
            return True
        if value not in seen and isinstance(op, mir.SelectOp | mir.BinaryOp):
            seen.add(value)
            todo += op.operands[-2:]
    return False


def _repeats_heads(before: tuple[Dim, ...], after: tuple[Dim, ...]) -> bool:
    """Whether a broadcast repeats along the third axis from the last, and along no other."""
    return len(before) == len(after) >= 3 and before == (*after[:-3], 1, *after[-2:])


def _ungrouped(value: SSAValue) -> SSAValue:
    """Return keys or values before each of their heads was repeated for a group of queries."""
    whole = value.owner
    repeated = whole.input.owner if isinstance(whole, mir.ReshapeOp) else whole
    if not isinstance(repeated, mir.BroadcastOp):
        return value
    before, after = dims_of(repeated.input.type), dims_of(repeated.result.type)
    if not _repeats_heads(before, after):
        return value
    if repeated is whole:
        # [.., 1, n, d] -> [.., heads, n, d]
        return repeated.input
    # [.., kv_heads, n, d] -> [.., kv_heads, 1, n, d] -> [.., kv_heads, group, n, d]
    # -> [.., heads, n, d]
    inner, heads = repeated.input.owner, (*before[:-3], *before[-2:])
    final = dims_of(value.type)
    same = len(final) == len(heads) >= 3 and (*final[:-3], *final[-2:]) == (
        *heads[:-3],
        *heads[-2:],
    )
    if same and isinstance(inner, mir.ReshapeOp) and dims_of(inner.input.type) == heads:
        return inner.input
    return value


@dataclass
class Builder:
    """The operations that stand for an attention, before they have a place."""

    made: list[Operation] = field(default_factory=list[Operation])

    def add(self, op: Operation) -> SSAValue:
        self.made.append(op)
        return op.results[0]

    def pruned(self) -> list[Operation]:
        """Return what was made and leads to the last; drop the rest."""
        for op in reversed(self.made[:-1]):
            if not op.results[0].uses:
                op.erase()
                self.made.remove(op)
        return self.made

    def swapped(self, value: SSAValue) -> SSAValue:
        """Return a value with its last two axes swapped: what it is a transpose of, if it is."""
        rank = len(dims_of(value.type))
        order = [*range(rank - 2), rank - 1, rank - 2]
        op = value.owner
        if isinstance(op, mir.TransposeOp) and numbers(op.order) == order:
            return op.input
        return self.add(mir.TransposeOp(value, order))

    def reshaped(self, value: SSAValue, type_: Attribute) -> SSAValue:
        return value if value.type == type_ else self.add(mir.ReshapeOp(value, type_))

    def with_heads(self, value: SSAValue) -> SSAValue:
        """Return matrices with an axis of heads."""
        dims = dims_of(value.type)
        return self.reshaped(
            value, tensor(dims if len(dims) > 2 else (1, *dims), element_of(value.type))
        )

    def attention(self, found: AttentionParts) -> SSAValue:
        """Build `mir.sdpa` for what was found; raises Unfit."""
        scores, output, scale = found.scores, found.output, found.scale
        assert scores is not None
        mask = None
        if found.mask is not None:
            made = mask_for(found.mask, scores.result)
            if isinstance(made, str):
                raise Unfit(made)
            self.made += made[0]
            mask = made[1]
        query = self.swapped(scores.lhs) if scores.lhs_t is not None else scores.lhs
        while isinstance(query.owner, Operation) and (scaled := _scaled(query.owner)) is not None:
            query, scale = scaled[0], scale * scaled[1]
        sides = ((scores.rhs, scores.rhs_t is None), (output.rhs, output.rhs_t is not None))
        keys, values = (self._ungrouped(value, swap) for value, swap in sides)
        if dims_of(keys.type)[:-2] != dims_of(values.type)[:-2]:
            keys, values = (self.swapped(v) if swap else v for v, swap in sides)
        query, keys, values = map(self.with_heads, (query, keys, values))
        if not isfinite(scale) or not isinstance(dims_of(query.type)[-3], int):
            raise Unfit("a scale that is not finite, or a number of heads that is not known")
        result = self.add(mir.SdpaOp(query, keys, values, scale, mask, found.causal))
        return self.reshaped(result, output.result.type)

    def _ungrouped(self, value: SSAValue, swap: bool) -> SSAValue:
        before = _ungrouped(value)
        return _ungrouped(self.swapped(before)) if swap else before
