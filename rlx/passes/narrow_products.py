"""
Products of many rows take bf16 or bytes in place of f32, where a module asks for it.

What is multiplied is rounded to bf16 once, where it is made: the casts of this pass are fused into
the kernels that make the values, which then store half as many bytes. Sums are f32. Bytes have a
step of their own for each row, so weights are rounded to them when they are packed, and the kernel
of a product rounds its rows. One row is left as it is: its product waits for weights, not for
arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, bf16, f32
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from rlx.dialects import lir, mir
from rlx.dialects.common import dims_of, element_of
from rlx.dialects.named import NamedOp
from rlx.errors import RlxError
from rlx.lowering.amx import DEPTH
from rlx.lowering.attention_stack import WIDEST

SEGMENTS = "transformer.segment_attention"


def _cast(value: SSAValue, operation: Operation, point: InsertPoint) -> SSAValue:
    """Return a value as bf16, or a bf16 value as f32, in the phase of the operation it is for."""
    op = mir.CastOp(value, f32 if element_of(value.type) == bf16 else bf16)
    if (phase := operation.attributes.get(mir.PHASE)) is not None:
        op.attributes[mir.PHASE] = phase
    Rewriter.insert_op(op, point)
    return op.result


def _has_many_rows(value: SSAValue) -> bool:
    return element_of(value.type) == f32 and dims_of(value.type)[0] != 1


def _narrow_segments(op: NamedOp) -> None:
    """Round the operands and the result of an attention of packed sequences, of whole tiles."""
    head_dim = op.option("head_dim")
    if head_dim % DEPTH or head_dim > WIDEST or not _has_many_rows(op.args[0]):
        return
    narrow = [_cast(x, op, InsertPoint.before(op)) for x in op.args[:3]]
    new = type(op)(*narrow, op.args[3], **op.chosen)
    new.attributes |= op.attributes
    Rewriter.insert_op(new, InsertPoint.before(op))
    Rewriter.replace_op(op, [], [_cast(new.res[0], new, InsertPoint.after(new))])


def _narrow_weight(pack: mir.PackOp) -> None:
    """Let a weight's panels be of bf16 where all that reads them rounds them to it."""
    narrow = mir.PackOp.narrowed(pack.input.type).get("bf16")
    users = [use.operation for use in pack.result.uses]
    if narrow is None or pack.result.type != mir.PackOp.packed(pack.input.type):
        return
    if all(isinstance(u, mir.MatmulOp) and element_of(u.input.type) == bf16 for u in users):
        new = mir.PackOp(pack.input, narrow)
        new.attributes |= pack.attributes
        Rewriter.replace_op(pack, new)


def _outside_kernels(module: ModuleOp) -> list[Operation]:
    return [op for op in module.walk() if not isinstance(op.parent_op(), mir.KernelOp)]


def _beside_attention(module: ModuleOp) -> set[Operation]:
    """Return the products that no other product parts from attention, which takes or gives them."""
    found: set[Operation] = set()
    todo: list[Operation] = [op for op in module.walk() if _is_attention(op)]
    seen: set[Operation] = set(todo)

    def go(to: Operation, onward: Callable[[Operation], Iterable[Operation]]) -> None:
        for op in onward(to):
            if isinstance(op, mir.MatmulOp):
                found.add(op)
            elif op not in seen:
                seen.add(op)
                go(op, onward)

    for op in todo:
        go(op, lambda op: [v.owner for v in op.operands if isinstance(v.owner, Operation)])
        go(op, lambda op: [use.operation for result in op.results for use in result.uses])
    return found


def _is_attention(op: Operation) -> bool:
    return isinstance(op, mir.AttentionOp) or (isinstance(op, NamedOp) and op.name == SEGMENTS)


_MOST_K = (2**31 - 1) // (255 * 127)
"""What a sum of products of bytes may be long, so that 32 bits hold it."""


def _take_bytes(op: mir.MatmulOp) -> None:
    """Let a product take a weight of bytes, where it may be packed as that."""
    pack, k = op.weight.owner, dims_of(op.input.type)[-1]
    if not isinstance(pack, mir.PackOp) or not isinstance(k, int) or k > _MOST_K:
        return
    narrow = mir.PackOp.narrowed(pack.input.type).get("i8")
    if narrow is None or not pack.panels:
        return
    new = mir.PackOp(pack.input, narrow)
    new.attributes |= pack.attributes
    Rewriter.insert_op(new, InsertPoint.before(op))
    op.operands[1] = new.result


@dataclass(frozen=True)
class NarrowProductsPass(ModulePass):
    """
    Round to bf16 what `mir.matmul` multiplies, the queries and results of `mir.attention`, and all
    of the attention of packed sequences.

    %y = mir.matmul %x, %w
        --> %0 = mir.cast %x -> bf16; %y = mir.matmul %0, %w

    It does so where the module's `rlx.products` is "bf16", and nothing where that is missing. With
    "bf16-weights" matrices of f32 and f16 are packed as bf16 too, where nothing else reads them;
    with "int8" products take panels of i8 of matrices of f32, f16 and bf16, but for those that
    attention takes or gives: what softmax makes of a small error is none. "int8-f32" does that
    alone, for a CPU on which products of bf16 are none faster.
    Operations that are in a kernel already, and those of one row, stay.
    """

    name = "narrow-products"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        wanted = op.attributes.get(lir.PRODUCTS)
        if wanted is None:
            return
        known = [StringAttr(name) for name in ("bf16", "bf16-weights", "int8", "int8-f32")]
        if wanted not in known:
            names = ", ".join(map(str, known))
            raise RlxError(f"{lir.PRODUCTS}: expected one of {names}, got {wanted}")
        if wanted in known[2:]:
            exempt = _beside_attention(op)
            for inner in _outside_kernels(op):
                if isinstance(inner, mir.MatmulOp) and _has_many_rows(inner.input):
                    if inner not in exempt:
                        _take_bytes(inner)
        if wanted == known[3]:
            return
        narrow: dict[SSAValue, SSAValue] = {}
        for inner in _outside_kernels(op):
            if isinstance(inner, mir.MatmulOp) and _has_many_rows(inner.input):
                if inner.input not in narrow:
                    narrow[inner.input] = _cast(inner.input, inner, InsertPoint.before(inner))
                inner.operands[0] = narrow[inner.input]
            elif isinstance(inner, mir.AttentionOp) and _has_many_rows(inner.query):
                query = _cast(inner.query, inner, InsertPoint.before(inner))
                head_dim, scale = inner.head_dim.value.data, inner.scale.value.data
                new = mir.AttentionOp(
                    query, inner.keys, inner.values, head_dim, scale, inner.places
                )
                new.attributes |= inner.attributes
                Rewriter.insert_op(new, InsertPoint.before(inner))
                Rewriter.replace_op(inner, [], [_cast(new.result, new, InsertPoint.after(new))])
            elif isinstance(inner, NamedOp) and inner.name == SEGMENTS:
                _narrow_segments(inner)
        if wanted != known[0]:
            for inner in list(op.walk()):
                if isinstance(inner, mir.PackOp):
                    _narrow_weight(inner)
