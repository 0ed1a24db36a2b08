"""Sorting of traced arrays, along any axis: NaN comes after all numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.jit import core, elementwise, manipulation, reductions
from rlx.jit.core import BOOL, FLOAT16, FLOAT32, INT64, Value
from rlx.jit.trace import fail


def _sorted(x: object, axis: int | None, descending: bool, name: str) -> tuple[Any, Any]:
    """Return the elements along an axis in stable order, and where each was."""
    value = core.lift(x, what=name)
    if axis is None:
        value, axis = manipulation.ravel(value), -1
    place = reductions.one_axis(axis, len(value.dims))
    moved = manipulation.moveaxis(_keys(value), place, -1)
    signature = ((moved.dtype, moved.dims), (INT64, moved.dims))
    attributes = ("indexing.sort_rows", (("descending", descending),))
    number = value.trace.add("named", attributes, [moved.here().number], *signature)
    both = [core.wrap(value.trace, number + i) for i in range(2)]
    values, places = (manipulation.moveaxis(v, -1, place) for v in both)
    return core.cast_to(values, value.dtype), places


def _keys(x: Value) -> Any:
    """Return what is compared: numbers of a dtype that the kernel sorts."""
    return core.cast_to(x, {BOOL: np.dtype(np.int8), FLOAT16: FLOAT32}.get(x.dtype, x.dtype))


def _check_kind(kind: object) -> None:
    """Take numpy's names of algorithms: the one that there is keeps what each of them promises."""
    if kind not in (None, "stable", "quicksort", "mergesort", "heapsort"):
        raise ValueError(
            f"expected the kind stable, quicksort, mergesort or heapsort of a sort, got {kind!r}"
        )


def sort(
    x: object, axis: int | None = -1, kind: str | None = None,
    *, descending: bool = False, stable: bool | None = True,
) -> Any:  # fmt: skip
    """Return the elements along an axis in order; None sorts all of them."""
    _check_kind(kind)
    return _sorted(x, axis, descending, "sort")[0]


def argsort(
    x: object, axis: int | None = -1, kind: str | None = None,
    *, descending: bool = False, stable: bool | None = True,
) -> Any:  # fmt: skip
    """Return the indices that sort an axis; equal elements stay in their order."""
    _check_kind(kind)
    return _sorted(x, axis, descending, "argsort")[1]


def top_k(x: object, k: int, axis: int = -1) -> tuple[Any, Any]:
    """Return the k largest elements along an axis, from the largest on, and their indices."""
    value = core.lift(x, what="top_k")
    place = reductions.one_axis(axis, len(value.dims))
    if not value.trace.dims.decide("<=", k, value.dims[place]):
        raise fail(f"top_k: expected at most as many as there are, got {k}")
    part = (*(slice(None),) * place, slice(k))
    values, places = _sorted(value, axis, True, "top_k")
    return values[part], places[part]


def median(x: object, axis: int | None = None, keepdims: bool = False) -> Any:
    """Return the middle element along an axis, the mean of two for an even number; NaN stays."""
    value = core.lift(x, what="median")
    if axis is None:
        result = median(manipulation.ravel(value), 0)
        return core.reshape(result, (1,) * len(value.dims)) if keepdims else result
    place = reductions.one_axis(axis, len(value.dims))
    n = value.shape[place]
    before = (slice(None),) * place
    ordered = sort(value, place)
    low, high = (ordered[(*before, i)] for i in ((n - 1) // 2, n // 2))
    middle = low * 0.5 + high * 0.5
    if keepdims:
        middle = manipulation.expand_dims(middle, place)
    if value.dtype.kind != "f":
        return middle
    last = reductions.max(value, place, keepdims=keepdims)
    return elementwise.where(elementwise.apply("isnan", last), last, middle)


def isin(x: object, values: object, *, invert: bool = False) -> Any:
    """Return for each element whether it is among the values, all of which it is compared with."""
    among = manipulation.ravel(values)
    same = elementwise.apply("equal", manipulation.expand_dims(x, -1), among)
    found = reductions.any(same, -1)
    return elementwise.apply("logical_not", found) if invert else found


def searchsorted(x: object, v: object, side: str = "left") -> Any:
    """Return where values would go in a sorted array: how many of its elements come before."""
    edges, values = core.lift(x, what="searchsorted"), core.lift(v, what="searchsorted")
    name = "less" if side == "left" else "less_equal"
    return reductions.sum(
        elementwise.apply(name, edges, manipulation.expand_dims(values, -1)), -1, dtype=INT64
    )
