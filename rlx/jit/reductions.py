"""Reductions of traced arrays, as numpy defines them: sums, means, extremes, and what they make."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.exceptions import AxisError

from rlx.jit import core, elementwise, manipulation
from rlx.jit.core import BOOL, FLOAT16, FLOAT32, FLOAT64, INT64, DType, Value
from rlx.jit.trace import fail

Axis: TypeAlias = "int | Sequence[int] | None"


def axes_of(axis: object, rank: int) -> tuple[int, ...]:
    """Return axes as numbers from 0; raises numpy's AxisError for one that isn't there."""
    if axis is None:
        return tuple(range(rank))
    if rank == 0 and axis in (0, -1):
        # As for numpy's reductions, a number has an axis.
        return ()
    given = tuple(cast("Sequence[int]", axis)) if isinstance(axis, tuple | list) else (axis,)
    axes = tuple(one_axis(a, rank) for a in given)
    if len(set(axes)) < len(axes):
        raise ValueError("duplicate value in 'axis'")
    return axes


def one_axis(axis: object, rank: int) -> int:
    number = operator.index(cast(int, axis))
    if not -rank <= number < rank:
        raise AxisError(number, rank)
    return number % rank


def _wide(x: Value) -> Any:
    """Return floats in the dtype that they are computed in."""
    return core.cast_to(x, FLOAT32) if x.dtype == FLOAT16 else x


def _finish(result: Value, x: Value, axes: Sequence[int], keepdims: bool, dtype: DType) -> Any:
    result = core.cast_to(result, dtype)
    if not keepdims:
        return result
    dims = tuple(1 if i in axes else d for i, d in enumerate(x.dims))
    return core.reshape(result, dims)


def accumulated(x: object, dtype: object, name: str) -> tuple[Any, DType]:
    """Return what is summed, and the dtype of the sum: that of integers is int64."""
    value = core.lift(x, what=name)
    if dtype is not None:
        value = core.cast_to(value, np.dtype(cast(Any, dtype)))
    elif value.dtype.kind in "biu":
        value = core.cast_to(value, INT64)
    return _wide(value), value.dtype


def sum(x: object, axis: Axis = None, dtype: object = None, keepdims: bool = False) -> Any:
    """Return the sum along axes; of bools and integers it is int64."""
    value, wanted = accumulated(x, dtype, "sum")
    axes = axes_of(axis, len(value.dims))
    return _finish(core.reduce("sum", value, axes), value, axes, keepdims, wanted)


def prod(x: object, axis: Axis = None, dtype: object = None, keepdims: bool = False) -> Any:
    """Return the product along axes; of bools and integers it is int64."""
    value, wanted = accumulated(x, dtype, "prod")
    axes = axes_of(axis, len(value.dims))
    return _finish(core.reduce("prod", value, axes), value, axes, keepdims, wanted)


def _as_float(x: object, dtype: object, name: str) -> tuple[Any, DType]:
    value = core.lift(x, what=name)
    wanted = np.dtype(cast(Any, dtype)) if dtype is not None else value.dtype
    if dtype is None and wanted.kind != "f":
        wanted = FLOAT64
    return _wide(core.cast_to(value, wanted)), wanted


def mean(x: object, axis: Axis = None, dtype: object = None, keepdims: bool = False) -> Any:
    """Return the mean along axes, NaN of nothing; of integers it is float64."""
    value, wanted = _as_float(x, dtype, "mean")
    axes = axes_of(axis, len(value.dims))
    return _finish(core.reduce("mean", value, axes), value, axes, keepdims, wanted)


def var(
    x: object, axis: Axis = None, dtype: object = None, ddof: float = 0, keepdims: bool = False,
    *, correction: float | None = None,
) -> Any:  # fmt: skip
    """Return the mean square distance from the mean; the divisor is the count less `ddof`."""
    value, wanted = _as_float(x, dtype, "var")
    axes = axes_of(axis, len(value.dims))
    less = ddof if correction is None else correction
    center = _finish(core.reduce("mean", value, axes), value, axes, True, value.dtype)
    off = core.binary("sub", value, core.broadcast(center, value.dims))
    square = core.binary("mul", off, off)
    if less == 0:
        return _finish(core.reduce("mean", square, axes), value, axes, keepdims, wanted)
    total = core.reduce("sum", square, axes)
    count = core.size_of(value.trace.dims.product(value.dims[a] for a in axes), value.dtype)
    divisor = elementwise.apply("maximum", count - less, 0)
    result = core.binary("div", total, core.broadcast(divisor, total.dims))
    return _finish(result, value, axes, keepdims, wanted)


def std(
    x: object, axis: Axis = None, dtype: object = None, ddof: float = 0, keepdims: bool = False,
    *, correction: float | None = None,
) -> Any:  # fmt: skip
    """Return the square root of the variance."""
    return elementwise.apply("sqrt", var(x, axis, dtype, ddof, keepdims, correction=correction))


def _refuse_empty(value: Value, axes: Sequence[int], message: str) -> None:
    """Raise ValueError where there is nothing along the axes, and results all the same."""
    dims = value.trace.dims
    if builtins.any(dims.decide("==", value.dims[a], 0) for a in axes):
        raise ValueError(message)


def _extreme(kind: str, x: object, axis: Axis, keepdims: bool, initial: object) -> Any:
    value = core.lift(x, what=kind)
    axes = axes_of(axis, len(value.dims))
    if initial is None:
        name = f"{kind}imum"
        _refuse_empty(value, axes, f"zero-size array to reduction operation {name} which has no "
                      "identity")  # fmt: skip
    result = _finish(core.reduce(kind, _wide(value), axes), value, axes, keepdims, value.dtype)
    return result if initial is None else elementwise.apply(f"{kind}imum", result, initial)


def max(x: object, axis: Axis = None, keepdims: bool = False, initial: object = None) -> Any:
    """Return the largest element along axes, NaN where there is one."""
    return _extreme("max", x, axis, keepdims, initial)


def min(x: object, axis: Axis = None, keepdims: bool = False, initial: object = None) -> Any:
    """Return the least element along axes, NaN where there is one."""
    return _extreme("min", x, axis, keepdims, initial)


def any(x: object, axis: Axis = None, keepdims: bool = False) -> Any:
    """Return whether an element along axes is not 0."""
    value = core.lift(x, BOOL, "any")
    axes = axes_of(axis, len(value.dims))
    return _finish(core.reduce("max", value, axes), value, axes, keepdims, BOOL)


def all(x: object, axis: Axis = None, keepdims: bool = False) -> Any:
    """Return whether no element along axes is 0."""
    value = core.lift(x, BOOL, "all")
    axes = axes_of(axis, len(value.dims))
    return _finish(core.reduce("min", value, axes), value, axes, keepdims, BOOL)


def count_nonzero(x: object, axis: Axis = None, keepdims: bool = False) -> Any:
    """Return how many elements along axes are not 0."""
    return sum(core.lift(x, BOOL, "count_nonzero"), axis, keepdims=keepdims)


def ptp(x: object, axis: Axis = None, keepdims: bool = False) -> Any:
    """Return the largest less the least element along axes."""
    return max(x, axis, keepdims) - min(x, axis, keepdims)


def _place(kind: str, x: object, axis: int | None, keepdims: bool) -> Any:
    """Return the first place of the extreme, or of NaN where there is one."""
    value = core.lift(x, what=f"arg{kind}")
    if axis is None or not value.dims:
        whole, rank = manipulation.reshape(value, -1), len(value.dims)
        result = _place(kind, whole, 0, False)
        return core.reshape(result, (1,) * rank) if keepdims else result
    where = one_axis(axis, len(value.dims))
    _refuse_empty(value, [where], f"attempt to get arg{kind} of an empty sequence")
    value = _wide(core.cast_to(value, np.dtype(np.int8)) if value.dtype == BOOL else value)
    attributes = ("cumulative.arg_reduce", (("kind", kind), ("axis", where)))
    dims = tuple(d for i, d in enumerate(value.dims) if i != where)
    index = core.make(value, INT64, dims, "named", attributes, value)
    return _finish(index, value, [where], keepdims, INT64)


def argmax(x: object, axis: int | None = None, keepdims: bool = False) -> Any:
    """Return the index of the largest element, the first of several; NaN counts as the largest."""
    return _place("max", x, axis, keepdims)


def argmin(x: object, axis: int | None = None, keepdims: bool = False) -> Any:
    """Return the index of the least element, the first of several; NaN counts as the least."""
    return _place("min", x, axis, keepdims)


def nansum(x: object, axis: Axis = None, dtype: object = None, keepdims: bool = False) -> Any:
    """Return the sum of what is not NaN."""
    value = core.lift(x, what="nansum")
    if value.dtype.kind == "f":
        value = elementwise.where(elementwise.apply("isnan", value), 0, value)
    return sum(value, axis, dtype, keepdims)


def average(x: object, axis: Axis = None, weights: object = None, keepdims: bool = False) -> Any:
    """Return the mean along axes, or that with weights of the shape of `x` or of its axis."""
    if weights is None:
        return mean(x, axis, keepdims=keepdims)
    value, given = core.lift(x, what="average"), core.lift(weights, what="average")
    axes = axes_of(axis, len(value.dims))
    if len(given.dims) < len(value.dims):
        if len(given.dims) != 1 or len(axes) != 1:
            raise fail("average: expected weights of the shape of the array, or of its one axis")
        given = core.reshape(given, tuple(given.dims[0] if i == axes[0] else 1
                                          for i in range(len(value.dims))))  # fmt: skip
    given = elementwise.apply("multiply", given, core.full_like(value, 1, given.dtype))
    return sum(value * given, axis, keepdims=keepdims) / sum(given, axis, keepdims=keepdims)


def logsumexp(x: object, axis: Axis = None, keepdims: bool = False) -> Any:
    """Return log(sum(exp(x))) along axes, by way of the largest element."""
    value, wanted = _as_float(x, None, "logsumexp")
    axes = axes_of(axis, len(value.dims))
    top = max(value, axes, keepdims=True)
    top = elementwise.where(elementwise.apply("isfinite", top), top, 0)
    total = sum(elementwise.apply("exp", value - top), axes, keepdims=True)
    result = elementwise.apply("log", total) + top
    if not keepdims:
        result = core.reshape(result, tuple(d for i, d in enumerate(value.dims) if i not in axes))
    return core.cast_to(result, wanted)
