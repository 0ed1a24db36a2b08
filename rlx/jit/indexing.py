"""Indexing of traced arrays: ints, slices, None, Ellipsis, integer arrays and known masks."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from typing import Any, cast

import numpy as np

from rlx.jit import core
from rlx.jit.core import BOOL, INT64, Value
from rlx.jit.dims import Dim
from rlx.jit.sizes import Size, dim_of
from rlx.jit.trace import fail


def index(value: Value, key: object) -> Any:
    """
    Return `value[key]`.

    Raises IndexError as numpy does, RlxError for a mask whose true elements are not known.
    """
    given = list(cast("Sequence[object]", key)) if isinstance(key, tuple) else [key]
    items = _expanded(value, given)
    if any(isinstance(item, Value) for item in items):
        items = _with_numbers(value, items)
    value, items = _scalars_and_slices(value, items)
    places = [i for i, item in enumerate(items) if isinstance(item, Value)]
    return _gathered(value, items, places) if places else value


def _expanded(value: Value, items: list[object]) -> list[object]:
    """Return an index with one item for each axis, and None for each new one."""
    items = [_masked(i) if _is_array(i) else i for i in items]
    parts = [cast("tuple[object, ...]", i) if isinstance(i, tuple) else (i,) for i in items]
    items = [part for group in parts for part in group]
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    used = sum(item is not None and item is not Ellipsis for item in items)
    rank = len(value.dims)
    if used > rank:
        raise IndexError(
            f"too many indices for array: array is {rank}-dimensional, but {used} were indexed"
        )
    at = dots[0] if dots else len(items)
    rest = [slice(None)] * (rank - used)
    return [*items[:at], *rest, *items[at + 1 :]]


def _with_numbers(value: Value, items: Sequence[object]) -> list[object]:
    """Return an index whose ints are arrays, as they are for numpy beside an array."""
    axis, found = 0, list[object]()
    for item in items:
        if item is not None and not isinstance(item, Value | slice):
            place = _place(value, item, value.trace.dims.find(value.dims[axis]), axis)
            item = core.size_of(place)
        found.append(cast(object, item))
        axis += item is not None
    return found


def _is_array(item: object) -> bool:
    return isinstance(item, Value | np.ndarray | list | bool | np.bool_)


def _masked(item: object) -> Any:
    """Return an array index as one of integers; a mask as one for each of its axes."""
    if isinstance(item, Value):
        if item.dtype == BOOL:
            raise fail(
                "a mask of traced values would give an array whose size depends on them: use "
                "rlx.numpy.where, or multiply with the mask before a reduction"
            )
        if item.dtype.kind not in "iu":
            raise IndexError("arrays used as indices must be of integer (or boolean) type")
        return item
    array = np.asarray(item)
    if array.dtype == np.bool_:
        if not array.ndim:
            raise fail("an index of one bool: use rlx.numpy.where")
        return tuple(map(core.lift, np.nonzero(array)))
    if not array.size:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    return core.lift(array.astype(np.int64))


def _scalars_and_slices(value: Value, items: list[object]) -> tuple[Any, list[object]]:
    """Take ints and slices, add new axes; return what is left to gather, an item for each axis."""
    dims = value.trace.dims
    starts: list[Dim] = []
    steps: list[int] = []
    counts: list[Dim] = []
    flips: list[int] = []
    kept: list[Dim] = []
    rest: list[object] = []
    axis = 0
    for item in items:
        if item is None:
            kept.append(1)
            rest.append(slice(None))
            continue
        n = dims.find(value.dims[axis])
        start, step, count = 0, 1, n
        keep = True
        if isinstance(item, slice):
            start, step, count = _slice(value, cast(Any, item), n)
            if step < 0:
                flips.append(axis)
        elif not isinstance(item, Value):
            start, count = _place(value, item, n, axis), 1
            keep = False
        starts.append(start)
        steps.append(abs(step))
        counts.append(count)
        if keep:
            kept.append(count)
            rest.append(item if isinstance(item, Value) else slice(None))
        axis += 1
    result: Any = value
    for axis_ in flips:
        result = _reversed(result, axis_)
    result = _part(result, starts, steps, counts)
    return core.reshape(result, tuple(kept)), rest


def _reversed(value: Any, axis: int) -> Any:
    """Return the elements of an axis from the last to the first."""
    n = value.dims[axis]
    places = core.iota(value, (n,), 0)
    last = core.broadcast(core.size_of(n), (n,)) - 1
    return core.take(value, core.binary("sub", last, places), axis)


def _part(value: Any, starts: Sequence[Dim], steps: Sequence[int], counts: Sequence[Dim]) -> Any:
    """Take `counts` elements of each axis, from starts on: one slice of axes that are numbers."""
    dims = value.trace.dims
    ends = [(dims.find(n), dims.find(c)) for n, c in zip(value.dims, counts, strict=True)]
    known = [
        all(isinstance(d, int) for d in (*end, start))
        for end, start in zip(ends, starts, strict=True)
    ]
    firsts = [s if k else 0 for s, k in zip(starts, known, strict=True)]
    strides = [s if k else 1 for s, k in zip(steps, known, strict=True)]
    shape = tuple(c if k else n for (n, c), k in zip(ends, known, strict=True))
    if shape != tuple(n for n, _ in ends) or any(firsts) or any(s != 1 for s in strides):
        attributes = (tuple(firsts), tuple(strides))
        value = core.make(value, value.dtype, shape, "slice", attributes, value)
    for axis, (n, count) in enumerate(ends):
        start, step = dims.find(starts[axis]), steps[axis]
        if known[axis] or (start == 0 and step == 1 and count == n):
            continue
        shape = (*value.dims[:axis], count, *value.dims[axis + 1 :])
        value = core.make(value, value.dtype, shape, "narrow", (axis, start, step), value)
    return value


def _place(value: Value, item: object, n: Dim, axis: int) -> Dim:
    """Return where an int points to, checked against the size of its axis."""
    dims = value.trace.dims
    if isinstance(item, Size):
        place = dim_of(item, "an index")
        if not dims.decide("<", place, n):
            raise _out_of_bounds(dims.hint(place), axis, dims.hint(n))
        return place
    try:
        number = as_index(cast(int, item))
    except TypeError:
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or "
            "boolean arrays are valid indices"
        ) from None
    if number >= 0:
        if not dims.decide("<", number, n):
            raise _out_of_bounds(number, axis, dims.hint(n))
        return number
    if not dims.decide("<=", -number, n):
        raise _out_of_bounds(number, axis, dims.hint(n))
    return dims.derive("-", n, -number)


def _out_of_bounds(number: int, axis: int, size: int) -> IndexError:
    return IndexError(f"index {number} is out of bounds for axis {axis} with size {size}")


def _slice(value: Value, item: Any, n: Dim) -> tuple[Dim, int, Dim]:
    """
    Return the start, the step and the number of elements of a slice of an axis of size n.

    A negative step counts from the end of the axis: start and number are those in the axis
    reversed.
    """
    step = 1 if item.step is None else as_index(item.step)
    if step == 0:
        raise ValueError("slice step cannot be zero")
    start, stop = item.start, item.stop
    if step < 0:
        fix = value.trace.dims.fix
        start, stop = (None if b is None else -(fix(_bound(b)) + 1) for b in (start, stop))
    start = 0 if start is None else _bound(start)
    stop = n if stop is None else _bound(stop)
    first, count = _span(value, start, stop, n)
    return first, step, value.trace.dims.derive("ceildiv", count, abs(step))


def _bound(bound: object) -> Any:
    if isinstance(bound, Size):
        return dim_of(bound, "a slice")
    return as_index(cast(int, bound))


def _span(value: Value, start: Any, stop: Any, n: Dim) -> tuple[Dim, Dim]:
    """Return where the elements from start to stop begin, and how many there are."""
    dims = value.trace.dims
    if isinstance(n, int) and isinstance(start, int) and isinstance(stop, int):
        first, last, _ = slice(start, stop).indices(n)
        return first, max(last - first, 0)
    if isinstance(start, int) and start >= 0 and not (isinstance(stop, int) and stop < 0):
        # min(stop, n) - start
        end = n if stop == n else dims.derive("min", n, stop)
        return dims.derive("min", n, start), dims.derive("-", end, start)
    if isinstance(start, int) and isinstance(stop, int) and start >= 0:
        # n - (start + |stop|)
        return dims.derive("min", n, start), dims.derive("-", n, start - stop)
    if isinstance(start, int) and start < 0 and (stop == n or (isinstance(stop, int) and stop < 0)):
        first = dims.derive("-", n, -start)
        if stop == n:
            return first, dims.derive("min", n, -start)
        if stop <= start:
            return first, 0
        return first, dims.derive("min", dims.derive("-", n, -stop), stop - start)
    # Bounds that no derivation has: the numbers of this call.
    numbers = [dims.fix(d) if isinstance(d, str) else d for d in (start, stop, n)]
    return _span(value, *numbers)


def wrapped(value: Value, ids: Value, axis: int) -> Any:
    """Return indices of an axis as int64 where negative ones count from the end."""
    from rlx.jit import elementwise

    if ids.dtype.kind not in "iu":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    if not _may_wrap(value, ids, axis):
        return core.cast_to(ids, INT64)
    ids = core.cast_to(ids, INT64)
    size = core.size_of(value.dims[axis])
    return elementwise.where(elementwise.apply("less", ids, 0), ids + size, ids)


def _may_wrap(value: Value, ids: Value, axis: int) -> bool:
    """
    Return whether indices may be negative.

    Raises IndexError for known ones that are out of bounds; others are not looked at.
    """
    known = value.trace.known.get(ids.number)
    if known is None:
        return True
    dims, n = value.trace.dims, value.dims[axis]
    low, high = (int(known.min()), int(known.max())) if known.size else (0, -1)
    if not dims.decide("<", high, n):
        raise _out_of_bounds(high, axis, dims.hint(dims.find(n)))
    if low < 0 and not dims.decide("<=", -low, n):
        raise _out_of_bounds(low, axis, dims.hint(dims.find(n)))
    return low < 0


def _gathered(value: Any, items: Sequence[object], places: Sequence[int]) -> Any:
    """Take elements by arrays of indices of some axes; the axes of the arrays come for theirs."""
    if len(places) == 1:
        ids = cast(Value, items[places[0]])
        return core.take(value, wrapped(value, ids, places[0]), places[0])
    ids = [wrapped(value, cast(Value, items[p]), p) for p in places]
    shape = core.common_shape(*(i.dims for i in ids))
    ids = [core.broadcast(i, shape) for i in ids]
    rest = [i for i in range(len(value.dims)) if i not in places]
    together = places[-1] - places[0] + 1 == len(places)
    at = places[0] if together else 0
    moved = core.transpose(value, [*places, *rest])
    taken = gather_all(moved, ids)
    order = list(range(len(shape), len(shape) + len(rest)))
    order[at:at] = range(len(shape))
    return core.transpose(taken, order)


def gather_all(value: Value, ids: Sequence[Value]) -> Any:
    """Take elements by one array of indices for each of the leading axes; all of one shape."""
    dims = value.trace.dims
    count = len(ids)
    flat: Any = ids[0]
    for axis in range(1, count):
        size = core.broadcast(core.size_of(value.dims[axis]), flat.dims)
        high = core.binary("sub", size, core.full_like(size, 1))
        inner = core.binary("min", core.binary("max", ids[axis], core.full_like(size, 0)), high)
        flat = core.binary("add", core.binary("mul", flat, size), inner)
    total = dims.product(value.dims[:count])
    rows = core.reshape(value, (total, *value.dims[count:]))
    return core.take(rows, flat, 0)
