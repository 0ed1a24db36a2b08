"""What stages compose of the primitives: maps with what they broadcast, heads, columns."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, TensorType, bf16, f16, f32, i32
from xdsl.ir import Attribute

from rlx.dialects import mir
from rlx.dialects.common import Dim, element_of, spell, tensor
from rlx.dialects.kinds import BinaryKind, ReduceKind, UnaryKind
from rlx.errors import RlxError
from rlx.flow.context import FlowCtx
from rlx.flow.state import FlowValue, Shape


def broadcast(ctx: FlowCtx, x: FlowValue, shape: Shape) -> FlowValue:
    """Return x repeated along new leading dimensions and dimensions of 1."""
    if x.shape == shape:
        return x
    return ctx.insert(mir.BroadcastOp(x.id, tensor(shape, element_of(x.id.type))))


def unary(ctx: FlowCtx, kind: UnaryKind, x: FlowValue, hint: str | None = None) -> FlowValue:
    return ctx.insert(mir.UnaryOp(kind, x.id), hint)


def binary(
    ctx: FlowCtx, kind: BinaryKind, a: FlowValue, b: FlowValue | float, hint: str | None = None
) -> FlowValue:
    """Return a map of two values; `b`, which may be a number, is broadcast to the shape of `a`."""
    b = filled(ctx, b, a.shape) if isinstance(b, int | float) else broadcast(ctx, b, a.shape)
    return ctx.insert(mir.BinaryOp(kind, a.id, b.id), hint)


def filled(ctx: FlowCtx, number: float, shape: Shape) -> FlowValue:
    """Return an f32 tensor with one number in every element."""
    value = DenseIntOrFPElementsAttr.from_list(TensorType(f32, []), [float(number)])
    return broadcast(ctx, ctx.insert(mir.ConstantOp(value)), shape)


def softcap(ctx: FlowCtx, x: FlowValue, cap: float) -> FlowValue:
    """Return cap * tanh(x / cap)."""
    bounded = unary(ctx, UnaryKind.TANH, binary(ctx, BinaryKind.DIV, x, cap))
    return binary(ctx, BinaryKind.MUL, bounded, cap)


def indices(ctx: FlowCtx, numbers: Sequence[int]) -> FlowValue:
    """Return a constant `[n] i32`."""
    type_ = TensorType(i32, [len(numbers)])
    return ctx.insert(mir.ConstantOp(DenseIntOrFPElementsAttr.from_list(type_, list(numbers))))


def iota(ctx: FlowCtx, shape: Shape, axis: int, element: Attribute = i32) -> FlowValue:
    """Return a tensor whose elements are their own index along an axis."""
    return ctx.insert(mir.IotaOp(axis, tensor(shape, element)))


def vector(ctx: FlowCtx, key: str) -> FlowValue:
    """Return a weight for maps, as f32. Raises RlxError for one in blocks."""
    weight = ctx.load_weight(key)
    element = element_of(weight.id.type)
    if element == f32:
        return weight
    if element not in (f16, bf16):
        raise RlxError(
            f"weight {key!r}: expected f32, f16 or bf16 for maps, got {spell(weight.id.type)}"
        )
    return ctx.insert(mir.CastOp(weight.id, f32))


def reshape(ctx: FlowCtx, x: FlowValue, shape: Shape) -> FlowValue:
    if x.shape == shape:
        return x
    return ctx.insert(mir.ReshapeOp(x.id, tensor(shape, element_of(x.id.type))))


def transpose(ctx: FlowCtx, x: FlowValue, *order: int) -> FlowValue:
    """Return x with axis order[i] as axis i."""
    return ctx.insert(mir.TransposeOp(x.id, order))


def part(ctx: FlowCtx, x: FlowValue, axis: int, start: int, size: int) -> FlowValue:
    """Return `size` elements along an axis from `start`."""
    starts, shape = [0] * len(x.shape), list(x.shape)
    starts[axis], shape[axis] = start, size
    return ctx.insert(mir.SliceOp(x.id, starts, tensor(shape, element_of(x.id.type))))


def concat(ctx: FlowCtx, axis: int, parts: Sequence[FlowValue], size: Dim) -> FlowValue:
    """Return values of one shape but for an axis in a row; `size` is the result's along it."""
    shape = list(parts[0].shape)
    shape[axis] = size
    element = element_of(parts[0].id.type)
    return ctx.insert(mir.ConcatOp(axis, [p.id for p in parts], tensor(shape, element)))


def split_heads(ctx: FlowCtx, x: FlowValue, head_dim: int) -> FlowValue:
    """Return `[rows, heads * head_dim]` as `[rows, heads, head_dim]`."""
    rows, width = x.shape
    if not isinstance(width, int) or head_dim < 1 or width % head_dim:
        raise RlxError(f"expected rows of whole heads of {head_dim}, got {spell(x.id.type)}")
    return reshape(ctx, x, (rows, width // head_dim, head_dim))


def join_heads(ctx: FlowCtx, x: FlowValue) -> FlowValue:
    """Return `[rows, heads, head_dim]` as `[rows, heads * head_dim]`."""
    rows, heads, head_dim = x.shape
    assert isinstance(heads, int)
    assert isinstance(head_dim, int)
    return reshape(ctx, x, (rows, heads * head_dim))


def heads_first(ctx: FlowCtx, x: FlowValue, head_dim: int) -> FlowValue:
    """Return `[rows, heads * head_dim]` as `[heads, rows, head_dim]`, as attention takes it."""
    return transpose(ctx, split_heads(ctx, x, head_dim), 1, 0, 2)


def root_mean_square(ctx: FlowCtx, x: FlowValue, eps: float, mean: bool = True) -> FlowValue:
    """Return x / sqrt(mean(x^2) + eps) over the last dimension, or by the sum of the squares."""
    last = len(x.shape) - 1
    kind = ReduceKind.MEAN if mean else ReduceKind.SUM
    square = binary(ctx, BinaryKind.MUL, x, x)
    total = ctx.insert(mir.ReduceOp(kind, square.id, [last]))
    inverse = unary(ctx, UnaryKind.RSQRT, binary(ctx, BinaryKind.ADD, total, eps))
    return binary(ctx, BinaryKind.MUL, x, reshape(ctx, inverse, (*x.shape[:-1], 1)))
