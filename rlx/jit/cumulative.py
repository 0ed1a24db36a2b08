"""Cumulative sums, products and extremes of traced arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.jit import core, manipulation, reductions
from rlx.jit.core import BOOL, FLOAT16, FLOAT32, Value


def along(kind: str, value: Value, axis: int) -> Any:
    """Return what the first elements of an axis, up to each one, combine to."""
    attributes = ("cumulative.cumulate", (("kind", kind), ("axis", axis)))
    return core.make(value, value.dtype, value.dims, "named", attributes, value)


def _accumulated(kind: str, x: object, axis: int | None, dtype: object, name: str) -> Any:
    value, wanted = reductions.accumulated(x, dtype, name)
    if axis is None:
        value, axis = manipulation.ravel(value), 0
    place = reductions.one_axis(axis, len(value.dims))
    return core.cast_to(along(kind, value, place), wanted)


def cumsum(x: object, axis: int | None = None, dtype: object = None) -> Any:
    """Return the sums of the elements up to each one; None goes through all elements."""
    return _accumulated("sum", x, axis, dtype, "cumsum")


def cumprod(x: object, axis: int | None = None, dtype: object = None) -> Any:
    """Return the products of the elements up to each one; None goes through all elements."""
    return _accumulated("prod", x, axis, dtype, "cumprod")


def _standard(
    kind: str, x: object, axis: int | None, dtype: object, include_initial: bool, name: str
) -> Any:
    value = core.lift(x, what=name)
    if axis is None:
        if len(value.dims) != 1:
            raise ValueError(f"For arrays which have more than one dimension ``axis`` argument is "
                             f"required for {name}")  # fmt: skip
        axis = 0
    result = _accumulated(kind, value, axis, dtype, name)
    if not include_initial:
        return result
    place = reductions.one_axis(axis, len(value.dims))
    shape = (*result.dims[:place], 1, *result.dims[place + 1 :])
    first = core.full(1 if kind == "prod" else 0, result.dtype, shape)
    return manipulation.concatenate([first, result], place)


def cumulative_sum(
    x: object, axis: int | None = None, dtype: object = None, include_initial: bool = False
) -> Any:
    """Return the sums up to each element, after 0 where `include_initial`."""
    return _standard("sum", x, axis, dtype, include_initial, "cumulative_sum")


def cumulative_prod(
    x: object, axis: int | None = None, dtype: object = None, include_initial: bool = False
) -> Any:
    """Return the products up to each element, after 1 where `include_initial`."""
    return _standard("prod", x, axis, dtype, include_initial, "cumulative_prod")


def extreme(kind: str, x: object, axis: int) -> Any:
    """Return the largest or the least of the elements up to each one."""
    value = core.lift(x, what=f"{kind}imum.accumulate")
    place = reductions.one_axis(axis, len(value.dims))
    if value.dtype == BOOL:
        compared = core.cast_to(value, np.dtype(np.int8))
    else:
        compared = core.cast_to(value, FLOAT32) if value.dtype == FLOAT16 else value
    return core.cast_to(along(kind, compared, place), value.dtype)
