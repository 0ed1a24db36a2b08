"""What a program is called with: arrays and sizes, checked against its manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rlx.errors import RlxError
from rlx.flow.source import WeightInfo, WeightSource
from rlx.lowering.manifest import Io, Manifest
from rlx.runtime.calls import DTYPES

Array = NDArray[Any]


def inputs_of(
    manifest: Manifest, args: Sequence[Array], named: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the inputs by name, all of them, from those given in order and those by name."""
    wanted = [io.name for io in manifest.inputs]
    given = [*wanted[: len(args)], *named]
    if len(args) > len(wanted) or (given != wanted and sorted(given) != sorted(wanted)):
        got = ", ".join([*(f"array {i}" for i in range(len(args))), *named]) or "nothing"
        raise RlxError(
            f"{manifest.name}: expected the inputs {', '.join(wanted) or 'none'}, "
            f"in this order or by name, got {got}"
        )
    arrays = {**dict(zip(wanted, args, strict=False)), **named}
    for name, array in cast(dict[str, object], arrays).items():
        if not isinstance(array, np.ndarray):
            raise RlxError(
                f"input '{name}': expected a numpy array, got {type(array).__name__}: "
                "numpy.asarray makes one"
            )
    # A subclass may say of itself what it isn't, its extremes too.
    return {name: np.asarray(arrays[name]) for name in wanted}


def sizes_of(
    manifest: Manifest, inputs: Mapping[str, Array], dims: Mapping[str, int]
) -> dict[str, int]:
    """Return the size of every dimension, from the inputs' shapes and from `dims`."""
    if not isinstance(cast(object, dims), Mapping):
        raise RlxError(f"dims: expected sizes by name, got {dims!r:.80}")
    free = manifest.free
    for name in dims:
        if name not in free:
            raise RlxError(
                f"{manifest.name}: dims: expected sizes of {', '.join(free) or 'nothing'}, "
                f"got one of '{name}'"
            )
    try:
        sizes = {name: index(size) for name, size in dims.items()}
    except TypeError:
        raise RlxError(f"{manifest.name}: dims: expected integers, got {dims!r:.80}") from None
    source = dict.fromkeys(dims, "dims")
    for io in manifest.inputs:
        shape = inputs[io.name].shape
        if len(shape) != len(io.dims):
            raise RlxError(_unlike(f"input '{io.name}'", io, inputs[io.name]))
        for dim, size in zip(io.dims, shape, strict=True):
            if not isinstance(dim, str) or dim not in free:
                continue
            if sizes.setdefault(dim, size) != size:
                raise RlxError(
                    f"{manifest.name}: dimension '{dim}' is {sizes[dim]} in {source[dim]}, "
                    f"and {size} in input '{io.name}'"
                )
            source.setdefault(dim, f"input '{io.name}'")
    return manifest.bind(sizes)


def outs_of(
    manifest: Manifest,
    out: Sequence[Array],
    inputs: Sequence[Array],
    sizes: Mapping[str, int],
) -> tuple[Array, ...]:
    """Return the arrays of `out` as they lie in memory. Raises RlxError where one can't be used."""
    outputs = manifest.outputs
    if not isinstance(cast(object, out), list | tuple):
        raise RlxError(f"out: expected a list or tuple of arrays, got {type(out).__name__}")
    if len(out) != len(outputs):
        names = ", ".join(io.name for io in outputs)
        raise RlxError(f"out: expected {len(outputs)} arrays ({names}), got {len(out)}")
    taken: list[Array] = []
    for io, given in zip(outputs, out, strict=True):
        what = f"out '{io.name}'"
        if not isinstance(cast(object, given), np.ndarray):
            raise RlxError(f"{what}: expected a numpy array, got {type(given).__name__}")
        array = np.asarray(given)
        _check_array(what, io, array, sizes)
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned and flags.writeable):
            raise RlxError(f"{what}: expected a contiguous, aligned and writable array")
        if any(np.may_share_memory(array, other) for other in (*inputs, *taken)):
            raise RlxError(f"{what}: expected memory of its own, it is that of another array")
        taken.append(array)
    return tuple(taken)


def check_input(io: Io, array: Array, sizes: Mapping[str, int]) -> None:
    """Raise RlxError unless an array is as a program reads it, with indices that its table has."""
    _check_array(f"input '{io.name}'", io, array, sizes)
    wrong = outside(io, array) if io.index_bound else None
    if wrong is not None:
        raise RlxError(
            f"input '{io.name}': expected indices from 0 to {io.index_bound - 1}, got {wrong}"
        )


def outside(io: Io, array: Array) -> int | None:
    """Return an index of an array that is out of its table, None where all are in it."""
    if not array.size:
        return None
    low, high = int(np.minimum.reduce(array, None)), int(np.maximum.reduce(array, None))
    if low < 0:
        return low
    return high if high >= io.index_bound else None


def check_weights(manifest: Manifest, source: WeightSource) -> None:
    """Raise RlxError unless the source has every weight as the program declares it."""
    for weight in manifest.weights:
        wanted = WeightInfo(weight.shape, weight.format)
        for key in weight.keys():
            got = source.info(key)
            if (tuple(got.shape), got.format) != wanted:
                raise RlxError(f"weight '{key}': expected {_spell(*wanted)}, got {_spell(*got)}")


def _shape(io: Io, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[d] if isinstance(d, str) else d for d in io.dims)


def _spell(shape: Sequence[int | str], dtype: object) -> str:
    return f"[{', '.join(map(str, shape))}] {dtype}"


def _unlike(what: str, io: Io, array: Array, sizes: Mapping[str, int] | None = None) -> str:
    wanted = _spell(io.dims, DTYPES[io.dtype].__name__)
    if sizes is not None and any(isinstance(d, str) for d in io.dims):
        wanted += f", here {list(_shape(io, sizes))}"
    return f"{what}: expected {wanted}, got {_spell(array.shape, array.dtype)}"


def _check_array(what: str, io: Io, array: Array, sizes: Mapping[str, int]) -> None:
    if array.dtype != DTYPES[io.dtype]:
        raise RlxError(f"{_unlike(what, io, array)}: nothing is converted silently, use astype")
    if array.shape != _shape(io, sizes):
        raise RlxError(_unlike(what, io, array, sizes))
