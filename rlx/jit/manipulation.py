"""Moves of traced arrays: shapes, orders, joins and parts, as numpy defines them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import index as as_index
from typing import Any, cast

import numpy as np

from rlx.jit import core, elementwise
from rlx.jit.core import Value
from rlx.jit.dims import Dim
from rlx.jit.sizes import Size, dim_of
from rlx.jit.trace import fail


def _axis(axis: object, rank: int) -> int:
    from rlx.jit.reductions import one_axis

    return one_axis(axis, rank)


def shape_of(shape: object, what: str) -> tuple[Dim, ...]:
    """Return an int, a Size, or a sequence of them as dimensions."""
    if isinstance(shape, list | tuple):
        return tuple(dim_of(s, what) for s in cast("Sequence[object]", shape))
    return (dim_of(shape, what),)


def reshape(x: object, /, *shape: object, order: str = "C", copy: object = None) -> Any:
    """Return the same elements under another shape, of which -1 stands for what is left."""
    value = core.lift(x, what="reshape")
    if order != "C":
        raise fail(f"reshape: expected the order 'C', got {order!r}")
    given = shape[0] if len(shape) == 1 else shape
    wanted = list(shape_of(given, "reshape"))
    dims = value.trace.dims
    if wanted.count(-1) > 1:
        raise ValueError("can only specify one unknown dimension")
    if -1 in wanted:
        wanted[wanted.index(-1)] = _left(value, wanted)
    alike = _factors(value, value.dims) == _factors(value, wanted)
    if not alike and not dims.same(dims.product(value.dims), dims.product(wanted)):
        total = dims.hint(dims.find(dims.product(value.dims)))
        text = core.shape_text(tuple(wanted))
        raise ValueError(f"cannot reshape array of size {total} into shape {text}")
    return core.reshape(value, tuple(wanted))


def _left(value: Value, wanted: Sequence[Dim]) -> Dim:
    """Return the dimension that -1 stands for: the factors that the others do not have."""
    dims = value.trace.dims
    names, number = _factors(value, value.dims)
    known, divisor = _factors(value, [d for d in wanted if d != -1])
    for name in known:
        if name not in names:
            # Not by names: by the numbers of this call.
            return _left_number(value, wanted)
        names.remove(name)
    if divisor == 0 or number % divisor:
        return _left_number(value, wanted)
    return dims.product([*names, number // divisor])


def _factors(value: Value, shape: Sequence[Dim]) -> tuple[list[Dim], int]:
    """Return dimensions as names that are no products, and a number."""
    dims = value.trace.dims
    names: list[Dim] = []
    number = 1
    for dim in map(dims.find, shape):
        definition = dims.definition(dim) if isinstance(dim, str) else None
        if isinstance(dim, int):
            number *= dim
        elif definition is not None and definition[0] == "*":
            inner, factor = _factors(value, definition[1:])
            names += inner
            number *= factor
        else:
            names.append(dim)
    return sorted(names, key=str), number if number else 0


def _left_number(value: Value, wanted: Sequence[Dim]) -> int:
    dims = value.trace.dims
    total, known = 1, 1
    for dim in value.dims:
        total *= dims.fix(dim)
    for dim in wanted:
        known *= dims.fix(dim) if dim != -1 else 1
    if known == 0 or total % known:
        text = ",".join(str(d if isinstance(d, int) else dims.fix(d)) for d in wanted)
        text = f"({text},)" if len(wanted) == 1 else f"({text})"
        raise ValueError(f"cannot reshape array of size {total} into shape {text}")
    return total // known


def ravel(x: object, order: str = "C") -> Any:
    """Return all elements along one axis."""
    return reshape(x, -1, order=order)


flatten = ravel


def transpose(x: object, *axes: object) -> Any:
    """Return the array with its axes in another order, by default in reverse."""
    value = core.lift(x, what="transpose")
    given = axes[0] if len(axes) == 1 else axes or None
    rank = len(value.dims)
    if given is None:
        return core.transpose(value, range(rank)[::-1])
    items = cast("Sequence[object]", given) if isinstance(given, list | tuple) else [given]
    order = [_axis(a, rank) for a in items]
    if sorted(order) != list(range(rank)):
        raise ValueError("axes don't match array")
    return core.transpose(value, order)


def permute_dims(x: object, axes: Sequence[int]) -> Any:
    return transpose(x, tuple(axes))


def matrix_transpose(x: object) -> Any:
    """Return the array with its last two axes swapped."""
    return swapaxes(x, -1, -2)


def swapaxes(x: object, axis1: int, axis2: int) -> Any:
    value = core.lift(x, what="swapaxes")
    order = list(range(len(value.dims)))
    a, b = _axis(axis1, len(order)), _axis(axis2, len(order))
    order[a], order[b] = b, a
    return core.transpose(value, order)


def moveaxis(x: object, source: object, destination: object) -> Any:
    """Return the array with axes moved to other places; the rest keeps its order."""
    value = core.lift(x, what="moveaxis")
    rank = len(value.dims)
    sources, targets = (
        [_axis(a, rank) for a in (cast("Sequence[int]", s) if isinstance(s, list | tuple) else [s])]
        for s in (source, destination)
    )
    if len(sources) != len(targets):
        raise ValueError(
            "`source` and `destination` arguments must have the same number of elements"
        )
    for name, axes in (("source", sources), ("destination", targets)):
        if len(set(axes)) != len(axes):
            raise ValueError(f"repeated axis in `{name}` argument")
    order = [i for i in range(rank) if i not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return core.transpose(value, order)


def expand_dims(x: object, axis: object) -> Any:
    """Return the array with axes of size 1 at places of the result."""
    value = core.lift(x, what="expand_dims")
    items = cast("Sequence[object]", axis) if isinstance(axis, list | tuple) else [axis]
    rank = len(value.dims) + len(items)
    places = {_axis(a, rank) for a in items}
    rest = iter(value.dims)
    return core.reshape(value, tuple(1 if i in places else next(rest) for i in range(rank)))


def squeeze(x: object, axis: object = None) -> Any:
    """Return the array without axes of size 1: all that always are, or those given."""
    value = core.lift(x, what="squeeze")
    dims = value.trace.dims
    shape = [dims.find(d) for d in value.dims]
    if axis is None:
        gone = {i for i, d in enumerate(shape) if dims.decide("==", d, 1)}
    else:
        items = cast("Sequence[object]", axis) if isinstance(axis, list | tuple) else [axis]
        gone = {_axis(a, len(shape)) for a in items}
        if not all(dims.same(shape[i], 1) for i in gone):
            raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
    for i in gone:
        dims.same(shape[i], 1)
    return core.reshape(value, tuple(d for i, d in enumerate(shape) if i not in gone))


def broadcast_to(x: object, shape: object) -> Any:
    """Return the array repeated to a shape."""
    value = core.lift(x, what="broadcast_to")
    wanted = shape_of(shape, "broadcast_to")
    dims = value.trace.dims
    common = core.common_shape(value.dims, wanted)
    # A derived dimension may happen to be what is wanted.
    if len(common) != len(wanted) or not all(map(dims.same, common, wanted)):
        raise ValueError(
            "input operand has more dimensions than allowed by the axis remapping, or they don't "
            f"fit: {core.shape_text(value.dims)} to {core.shape_text(wanted)}"
        )
    return core.broadcast(value, wanted)


def broadcast_arrays(*arrays: object) -> tuple[Any, ...]:
    """Return arrays repeated to the one shape that they are broadcast to."""
    values = [core.lift(a, what="broadcast_arrays") for a in arrays]
    shape = core.common_shape(*(v.dims for v in values))
    return tuple(core.broadcast(v, shape) for v in values)


def atleast_1d(x: object) -> Any:
    value = core.lift(x, what="atleast_1d")
    return value if value.dims else core.reshape(value, (1,))


def atleast_2d(x: object) -> Any:
    value = core.lift(x, what="atleast_2d")
    return core.reshape(value, ((1, 1), (1, *value.dims), value.dims)[min(len(value.dims), 2)])


def concatenate(arrays: Sequence[object], axis: int | None = 0, dtype: object = None) -> Any:
    """Return arrays one after the other along an axis; None joins all elements."""
    if not isinstance(cast(object, arrays), list | tuple) or not arrays:
        raise fail("concatenate: expected a list or tuple of one array or more")
    wanted = elementwise.result_type(*arrays) if dtype is None else np.dtype(cast(Any, dtype))
    values = [core.lift(a, wanted, "concatenate") for a in arrays]
    if axis is None:
        values, axis = [ravel(v) for v in values], 0
    rank = len(values[0].dims)
    if not rank:
        raise ValueError("zero-dimensional arrays cannot be concatenated")
    if any(len(v.dims) != rank for v in values):
        raise ValueError(
            "all the input array dimensions except for the concatenation axis must match exactly, "
            f"but along dimension {0} the arrays have different numbers of dimensions"
        )
    place = _axis(axis, rank)
    dims = values[0].trace.dims
    shape = list(values[0].dims)
    for i, value in enumerate(values[1:], 1):
        for d in range(rank):
            if d != place and not dims.same(shape[d], value.dims[d]):
                a, b = (dims.hint(dims.find(v.dims[d])) for v in (values[0], value))
                raise ValueError(
                    "all the input array dimensions except for the concatenation axis must match "
                    f"exactly, but along dimension {d}, the array at index 0 has size {a} and the "
                    f"array at index {i} has size {b}"
                )
    if len(values) == 1:
        return values[0]
    total: Dim = 0
    for value in values:
        total = dims.derive("+", total, value.dims[place])
    shape[place] = total
    return core.concat(values, place, tuple(shape))


concat = concatenate


def stack(arrays: Sequence[object], axis: int = 0) -> Any:
    """Return arrays of one shape along a new axis."""
    wanted = elementwise.result_type(*arrays)
    values = [core.lift(a, wanted, "stack") for a in arrays]
    if any(len(v.dims) != len(values[0].dims) for v in values):
        raise ValueError("all input arrays must have the same shape")
    return concatenate([expand_dims(v, axis) for v in values], _axis(axis, len(values[0].dims) + 1))


def hstack(arrays: Sequence[object]) -> Any:
    values = [atleast_1d(a) for a in arrays]
    return concatenate(values, 0 if len(values[0].dims) == 1 else 1)


def vstack(arrays: Sequence[object]) -> Any:
    return concatenate([atleast_2d(a) for a in arrays], 0)


def column_stack(arrays: Sequence[object]) -> Any:
    values = [atleast_1d(a) for a in arrays]
    return concatenate([expand_dims(v, 1) if len(v.dims) == 1 else v for v in values], 1)


def unstack(x: object, axis: int = 0) -> tuple[Any, ...]:
    """Return the parts along an axis, whose size must be a number."""
    return tuple(moveaxis(x, axis, 0))


def split(x: object, sections: object, axis: int = 0) -> list[Any]:
    """Return an array in equal parts, or cut at the indices of a list."""
    value = core.lift(x, what="split")
    place = _axis(axis, len(value.dims))
    dims = value.trace.dims
    if isinstance(sections, list | tuple):
        cuts = [0, *(as_index(cast(int, s)) for s in cast("Sequence[object]", sections)), None]
    else:
        count = as_index(cast(int, sections))
        if not dims.decide("%", value.dims[place], count):
            raise ValueError("array split does not result in an equal division")
        part = dims.fix(value.dims[place]) // count
        cuts = [i * part for i in range(count + 1)]
    before = (slice(None),) * place
    pairs = pairwise(cuts)
    return [value[(*before, slice(a, b))] for a, b in pairs]


def flip(x: object, axis: object = None) -> Any:
    """Return the array with axes reversed, by default all."""
    from rlx.jit.reductions import axes_of

    value = core.lift(x, what="flip")
    axes = axes_of(axis, len(value.dims))
    return value[tuple(slice(None, None, -1 if i in axes else 1) for i in range(len(value.dims)))]


def roll(x: object, shift: object, axis: object = None) -> Any:
    """Return the array with elements moved along axes; those that leave at an end come back."""
    value = core.lift(x, what="roll")
    if axis is None:
        return reshape(roll(ravel(value), shift, 0), value.shape)
    axes = list(cast("Sequence[int]", axis)) if isinstance(axis, list | tuple) else [axis]
    shifts = list(cast("Sequence[int]", shift)) if isinstance(shift, list | tuple) else [shift]
    if len(shifts) == 1:
        shifts *= len(axes)
    for a, s in zip(axes, shifts, strict=True):
        value = _rolled(value, as_index(cast(int, s)), _axis(a, len(value.dims)))
    return value


def _rolled(value: Any, shift: int, place: int) -> Any:
    n = value.dims[place]
    places = elementwise.apply("subtract", core.iota(value, (n,), 0), shift)
    return core.take(value, elementwise.apply("remainder", places, core.size_of(n)), place)


def tile(x: object, reps: object) -> Any:
    """Return the array repeated as often as `reps` says for each axis."""
    value = core.lift(x, what="tile")
    counts = shape_of(reps, "tile")
    rank = max(len(counts), len(value.dims))
    counts = (1,) * (rank - len(counts)) + counts
    shape = (1,) * (rank - len(value.dims)) + value.dims
    apart = core.reshape(value, tuple(d for s in shape for d in (1, s)))
    wide = core.broadcast(apart, tuple(d for pair in zip(counts, shape, strict=True) for d in pair))
    dims = value.trace.dims
    pairs = zip(counts, shape, strict=True)
    return core.reshape(wide, tuple(dims.derive("*", s, c) for c, s in pairs))


def repeat(x: object, repeats: object, axis: int | None = None) -> Any:
    """Return each element several times, one after the other; one count for all."""
    if axis is None:
        return repeat(ravel(x), repeats, 0)
    value = atleast_1d(x)
    if isinstance(repeats, list | tuple | np.ndarray | Value):
        raise fail("repeat: expected one count for all elements, an int")
    count = dim_of(repeats, "repeat")
    place = _axis(axis, len(value.dims))
    before, n, after = value.dims[:place], value.dims[place], value.dims[place + 1 :]
    wide = core.broadcast(core.reshape(value, (*before, n, 1, *after)), (*before, n, count, *after))
    return core.reshape(wide, (*before, value.trace.dims.derive("*", n, count), *after))


def pad(x: object, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> Any:
    """Return the array with a number around it; `pad_width` is as numpy's, of ints."""
    value = core.lift(x, what="pad")
    if mode != "constant" or isinstance(constant_values, list | tuple):
        raise fail("pad: expected the mode 'constant' and one number")
    widths = np.broadcast_to(np.asarray(pad_width), (len(value.dims), 2)).tolist()
    fill = core.lift(constant_values, value.dtype, "pad")
    for place, (low, high) in enumerate(widths):

        def band(count: int, at: int = place) -> list[Any]:
            shape = (*value.dims[:at], count, *value.dims[at + 1 :])
            return [core.broadcast(fill, shape)] if count else []

        value = concatenate([*band(low), value, *band(high)], place)
    return value


def take(x: object, indices: object, axis: int | None = None) -> Any:
    """
    Return elements along an axis by their indices, of which negative ones count from the end.

    An index that is out of bounds gives the first or the last element: a compiled function does
    not look for it.
    """
    from rlx.jit.indexing import wrapped

    value = core.lift(x, what="take")
    if axis is None:
        value, axis = ravel(value), 0
    place = _axis(axis, len(value.dims))
    return core.take(value, wrapped(value, core.lift(indices, what="take"), place), place)


def take_along_axis(x: object, indices: object, axis: int | None = -1) -> Any:
    """Return elements along an axis, by an index for each place of the other axes."""
    from rlx.jit.indexing import gather_all, wrapped

    value, ids = core.lift(x, what="take_along_axis"), core.lift(indices, what="take_along_axis")
    if axis is None:
        value, axis = ravel(value), 0
    place = _axis(axis, len(value.dims))
    if len(ids.dims) != len(value.dims):
        raise ValueError("`indices` and `arr` must have the same number of dimensions")
    ids = wrapped(value, ids, place)
    rest = core.common_shape(*(
        (*v.dims[:place], 1, *v.dims[place + 1 :]) for v in (value, ids)))  # fmt: skip
    shape = (*rest[:place], ids.dims[place], *rest[place + 1 :])
    ids = core.broadcast(ids, shape)
    value = core.broadcast(value, (*rest[:place], value.dims[place], *rest[place + 1 :]))
    places = [ids if i == place else core.iota(ids, shape, i) for i in range(len(shape))]
    return gather_all(value, places)


def astype(x: object, dtype: object, copy: bool = True) -> Any:
    """Return the elements as another dtype; floats become integers towards zero."""
    value = core.lift(x, what="astype")
    wanted = np.dtype(cast(Any, dtype))
    core.check_dtype(np.empty(0, wanted), "astype")
    return core.cast_to(value, wanted.newbyteorder("="))


def _band(x: object, k: int, kind: str) -> Any:
    value = core.lift(x, what=kind)
    if len(value.dims) == 1:
        value = broadcast_to(value, (value.shape[0], value.shape[0]))
    rows, columns = (core.iota(value, value.dims, len(value.dims) - i) for i in (2, 1))
    edge = core.binary("add", rows, core.full_like(rows, k))
    keep = core.compare("le" if kind == "tril" else "ge", columns, edge)
    return core.select(keep, value, core.full_like(value, 0))


def tril(x: object, k: int = 0) -> Any:
    """Return a matrix with 0 above its k-th diagonal."""
    return _band(x, k, "tril")


def triu(x: object, k: int = 0) -> Any:
    """Return a matrix with 0 below its k-th diagonal."""
    return _band(x, k, "triu")


def shape(x: object) -> tuple[int | Size, ...]:
    return core.lift(x, what="shape").shape


def ndim(x: object) -> int:
    return len(core.lift(x, what="ndim").dims)
