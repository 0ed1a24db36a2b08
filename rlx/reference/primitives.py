"""
What the tensor primitives of MIR mean, in numpy, and the folding of one.

`compute` gives the result of an operation for the shape that it has in a run; arrays stand for
tensors as `rlx.reference.elements` says. Constants are folded by it too, so that a folded program
can't differ from one that is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from math import prod
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, bf16, f16, f32, i1
from xdsl.ir import Attribute, Operation

from rlx.dialects import mir
from rlx.dialects.common import dims_of, element_of
from rlx.dialects.kinds import ReduceKind
from rlx.dialects.ops import numbers
from rlx.errors import RlxError
from rlx.reference import elements
from rlx.reference.elements import Array, Float
from rlx.reference.kernels import layer_norm, scaled_attention, softmax

Shape = tuple[int, ...]


@singledispatch
def compute(op: Operation, shape: Shape, precision: Float, *args: Array) -> Array:
    """Return the result of a primitive, of `shape`, on arrays whose f32 have `precision`."""
    raise RlxError(f"reference: expected a tensor primitive, got {op.name}")


@compute.register
def _(op: mir.ConstantOp, shape: Shape, precision: Float) -> Array:
    values = constant(cast(DenseIntOrFPElementsAttr[Any], op.value), precision)
    return np.broadcast_to(values, shape) if values.size == 1 else values


@compute.register
def _(op: mir.IotaOp, shape: Shape, precision: Float) -> Array:
    axis = op.axis.value.data
    places = np.arange(shape[axis]).reshape([-1] + [1] * (len(shape) - axis - 1))
    dtype = elements.dtype_of(element_of(op.result.type), precision)
    return np.broadcast_to(places, shape).astype(dtype)


@compute.register
def _(op: mir.UnaryOp, shape: Shape, precision: Float, x: Array) -> Array:
    return elements.UNARY[op.kind.data](x)


@compute.register
def _(op: mir.BinaryOp, shape: Shape, precision: Float, a: Array, b: Array) -> Array:
    return elements.BINARY[op.kind.data](a, b)


@compute.register
def _(op: mir.CompareOp, shape: Shape, precision: Float, a: Array, b: Array) -> Array:
    return elements.COMPARE[op.kind.data](a, b)


@compute.register
def _(op: mir.SelectOp, shape: Shape, precision: Float, c: Array, a: Array, b: Array) -> Array:
    return np.where(c, a, b)


@compute.register
def _(op: mir.CastOp, shape: Shape, precision: Float, x: Array) -> Array:
    return elements.cast(x, element_of(op.result.type), precision)


@compute.register
def _(op: mir.ReduceOp, shape: Shape, precision: Float, x: Array) -> Array:
    axes = tuple(numbers(op.axes))
    match op.kind.data:
        case ReduceKind.SUM:
            return x.sum(axis=axes, dtype=x.dtype)
        case ReduceKind.PROD:
            return x.prod(axis=axes, dtype=x.dtype)
        case ReduceKind.MEAN:
            return x.sum(axis=axes) / np.asarray(prod(x.shape[a] for a in axes), x.dtype)
        case ReduceKind.MAX:
            return np.maximum.reduce(x, axis=axes, initial=_limits(x)[0])
        case ReduceKind.MIN:
            return np.minimum.reduce(x, axis=axes, initial=_limits(x)[1])


def _limits(x: Array) -> tuple[Any, Any]:
    """Return the least and the greatest value of an array's dtype."""
    if x.dtype.kind == "f":
        return -np.inf, np.inf
    return (False, True) if x.dtype.kind == "b" else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)


@compute.register
def _(op: mir.SoftmaxOp, shape: Shape, precision: Float, x: Array) -> Array:
    return softmax(x)


@compute.register
def _(op: mir.LayerNormOp, shape: Shape, precision: Float, x: Array, w: Array, b: Array) -> Array:
    return layer_norm(x, w, b, op.eps.value.data)


@compute.register
def _(op: mir.DotOp, shape: Shape, precision: Float, a: Array, b: Array) -> Array:
    swaps = op.transposed
    if a.dtype.kind in "iu" and a.dtype.itemsize == 1:
        a, b = a.astype(np.int32), b.astype(np.int32)
    return (a.swapaxes(-1, -2) if swaps[0] else a) @ (b.swapaxes(-1, -2) if swaps[1] else b)


@compute.register
def _(op: mir.SdpaOp, shape: Shape, precision: Float, *args: Array) -> Array:
    mask = args[3] if op.mask is not None else None
    causal = op.causal is not None
    return scaled_attention(*args[:3], scale=op.scale.value.data, mask=mask, causal=causal)


@compute.register
def _(op: mir.ReshapeOp, shape: Shape, precision: Float, x: Array) -> Array:
    return x.reshape(shape)


@compute.register
def _(op: mir.BroadcastOp, shape: Shape, precision: Float, x: Array) -> Array:
    return np.broadcast_to(x, shape)


@compute.register
def _(op: mir.TransposeOp, shape: Shape, precision: Float, x: Array) -> Array:
    return x.transpose(numbers(op.order))


@compute.register
def _(op: mir.SliceOp, shape: Shape, precision: Float, x: Array) -> Array:
    starts, steps = numbers(op.starts), numbers(op.steps)
    places = zip(starts, shape, steps, strict=True)
    return x[tuple(slice(start, start + n * step, step) for start, n, step in places)]


@compute.register
def _(op: mir.ConcatOp, shape: Shape, precision: Float, *parts: Array) -> Array:
    return np.concatenate(parts, axis=op.axis.value.data)


@compute.register
def _(op: mir.GatherOp, shape: Shape, precision: Float, x: Array, ids: Array) -> Array:
    axis = op.axis.value.data
    if not x.shape[axis]:
        return np.zeros(shape, x.dtype)
    return x.take(ids.clip(0, x.shape[axis] - 1), axis=axis)


@compute.register
def _(op: mir.PadOp, shape: Shape, precision: Float, x: Array, fill: Array) -> Array:
    result = np.full(shape, fill, x.dtype)
    places = zip(numbers(op.low), x.shape, numbers(op.between), strict=True)
    result[tuple(slice(a, a + n * (c + 1) - c if n else a, c + 1) for a, n, c in places)] = x
    return result


@compute.register
def _(op: mir.WindowOp, shape: Shape, precision: Float, x: Array) -> Array:
    axis, stride, step = (n.value.data for n in (op.axis, op.stride, op.step))
    windows = np.arange(shape[axis])[:, None] * stride
    return x.take(windows + np.arange(shape[axis + 1]) * step, axis=axis)


@compute.register
def _(op: mir.ReverseOp, shape: Shape, precision: Float, x: Array) -> Array:
    return np.flip(x, tuple(numbers(op.axes)))


# Constants


def constant(value: DenseIntOrFPElementsAttr[Any], precision: Float = np.float64) -> Array:
    """Return a constant's values in its shape, or the one value that fills it."""
    element = element_of(cast(Attribute, value.type))
    data = value.data.data
    if element == bf16:
        values = elements.bf16_values(np.frombuffer(data, np.uint16))
    else:
        # xDSL writes a true i1 as a byte of ones, which numpy would take for a bool of 255.
        narrow = {f16: np.float16, f32: np.float32, i1: np.uint8}.get(cast(Any, element))
        values = np.frombuffer(data, narrow or elements.dtype_of(element, precision))
    values = values.astype(elements.dtype_of(element, precision))
    return values.reshape(value.get_shape() if values.size == prod(value.get_shape()) else ())


def fold(op: Operation, arrays: Sequence[Array]) -> list[Array]:
    """
    Return the results of a primitive on the values of its operands, as its types hold them.

    Operands and results are float64 for all floats, with numbers of the type's own grid, numpy's
    dtype of the width for integers, and bool for i1. f32 and f64 are computed in float64 and f32
    is then rounded, which is exact for + - * / and sqrt. Raises RlxError for an operation that is
    no primitive, and for a result whose shape is not all numbers.
    """
    results: list[Array] = []
    for result in op.results:
        dims = dims_of(result.type)
        shape = tuple(d for d in dims if isinstance(d, int))
        if len(shape) < len(dims):
            raise RlxError(f"reference: fold: expected a shape of numbers, got {result.type}")
        with np.errstate(all="ignore"):
            value = np.asarray(compute(op, shape, np.float64, *arrays))
        results.append(elements.rounded(value, element_of(result.type)))
    return results


def dense(values: Array, type_: Attribute) -> DenseIntOrFPElementsAttr[Any]:
    """Return the constant of a tensor type of numbers whose values are those of an array."""
    flat: list[Any] = values.reshape(-1).tolist()
    return DenseIntOrFPElementsAttr.from_list(cast(Any, type_), flat)
