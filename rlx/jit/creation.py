"""New arrays in a traced function: numbers everywhere, ranges, grids."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from rlx.jit import core, elementwise, manipulation
from rlx.jit.core import FLOAT64, INT64, DType, Value
from rlx.jit.sizes import Size, SizeLike
from rlx.jit.trace import fail


def _dtype(dtype: object, default: DType) -> DType:
    return default if dtype is None else np.dtype(cast(Any, dtype))


def full(shape: object, fill_value: object, dtype: object = None) -> Any:
    """Return one value at every place of a shape."""
    value = core.lift(fill_value, what="full")
    value = core.cast_to(value, _dtype(dtype, value.dtype))
    return manipulation.broadcast_to(value, shape)


def zeros(shape: object, dtype: object = None) -> Any:
    return full(shape, 0, _dtype(dtype, FLOAT64))


def ones(shape: object, dtype: object = None) -> Any:
    return full(shape, 1, _dtype(dtype, FLOAT64))


empty = zeros


def full_like(x: object, fill_value: object, dtype: object = None) -> Any:
    value = core.lift(x, what="full_like")
    return full(value.shape, fill_value, _dtype(dtype, value.dtype))


def zeros_like(x: object, dtype: object = None) -> Any:
    return full_like(x, 0, dtype)


def ones_like(x: object, dtype: object = None) -> Any:
    return full_like(x, 1, dtype)


empty_like = zeros_like


def asarray(x: object, dtype: object = None, copy: object = None) -> Any:
    """Return an array, a number or a sequence of them as a traced array."""
    return core.lift(x, None if dtype is None else np.dtype(cast(Any, dtype)), "asarray")


array = asarray


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: object = None) -> Any:
    """Return a range of numbers; its length may be a size, with a start of 0 and a step of 1."""
    if stop is None:
        start, stop = 0, start
    if any(isinstance(v, Value) for v in (start, stop, step)):
        raise fail(
            "arange: expected numbers or sizes, whose values are known: name the argument in "
            "static_argnames"
        )
    if isinstance(stop, Size) or isinstance(start, Size):
        if step != 1:
            raise fail("arange: expected a step of 1 for a range up to a size")
        count = stop - start
        whole = _iota((count,), 0, _dtype(dtype, INT64))
        return whole if isinstance(start, int) and start == 0 else whole + start
    return core.lift(cast(Any, np.arange)(start, stop, step, dtype), what="arange")


def _iota(shape: tuple[SizeLike, ...], axis: int, dtype: DType) -> Any:
    like = core.lift(0)
    return core.iota(like, manipulation.shape_of(shape, "arange"), axis, dtype)


def linspace(
    start: object, stop: object, num: int = 50, endpoint: bool = True, dtype: object = None
) -> Any:
    """Return numbers at equal distances."""
    if isinstance(start, Value) or isinstance(stop, Value):
        first, last = core.lift(start), core.lift(stop)
        wanted = _dtype(dtype, elementwise.result_type(first, last, 0.0))
        places = np.arange(num) / max(num - endpoint, 1)
        return core.cast_to(first + (last - first) * places.astype(wanted), wanted)
    made = cast(Any, np.linspace)(start, stop, num, endpoint, dtype=dtype)
    return core.lift(made, what="linspace")


def tri(n: SizeLike, m: SizeLike | None = None, k: int = 0, dtype: object = None) -> Any:
    """Return a matrix of ones at and below its k-th diagonal, zeros above."""
    return manipulation.tril(ones((n, n if m is None else m), dtype), k)


def eye(n: SizeLike, m: SizeLike | None = None, k: int = 0, dtype: object = None) -> Any:
    """Return a matrix of ones on its k-th diagonal."""
    shape = (n, n if m is None else m)
    on = elementwise.apply("equal", _iota(shape, 0, INT64) + k, _iota(shape, 1, INT64))
    return core.cast_to(on, _dtype(dtype, FLOAT64))


def identity(n: SizeLike, dtype: object = None) -> Any:
    return eye(n, dtype=dtype)


def meshgrid(*arrays: object, indexing: str = "xy") -> list[Any]:
    """Return a grid of each array's values, along an axis of its own."""
    values = [manipulation.ravel(a) for a in arrays]
    rank = len(values)
    order = list(range(rank))
    if indexing == "xy" and rank > 1:
        order[:2] = 1, 0
    apart = [
        core.reshape(v, tuple(v.dims[0] if j == order[i] else 1 for j in range(rank)))
        for i, v in enumerate(values)
    ]
    return list(manipulation.broadcast_arrays(*apart))


def one_hot(x: object, count: SizeLike, dtype: object = None) -> Any:
    """Return, along a new last axis, 1 at the place that each integer names and 0 elsewhere."""
    ids = core.lift(x, what="one_hot")
    if ids.dtype.kind not in "iu":
        raise fail(f"one_hot: expected integers, got {ids.dtype}")
    places = _iota((count,), 0, INT64)
    on = elementwise.apply("equal", manipulation.expand_dims(ids, -1), places)
    return core.cast_to(on, _dtype(dtype, np.dtype(np.float32)))
