"""Where a model's weights come from. Nothing here needs xDSL: the runtime reads weights too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rlx.errors import RlxError

LAYER = "{layer}"
"""What stands in a weight's key for the number of the layer."""


_HALVES = {"float16": "f16", "bfloat16": "bf16"}
"""The formats of arrays that aren't f32, by the names of their dtypes."""


class WeightInfo(NamedTuple):
    """A weight's row-major shape, outermost dimension first, and its format: `f32`, `q4_1`, ..."""

    shape: tuple[int, ...]
    format: str


@runtime_checkable
class WeightSource(Protocol):
    """Gives weights by key. Every method but `has` raises RlxError for a key that is missing."""

    def has(self, key: str) -> bool:
        """Return whether there is a weight of this key."""
        ...

    def info(self, key: str) -> WeightInfo:
        """Return what the weight is, without reading its data."""
        ...

    def take(
        self, key: str, transpose: bool = False
    ) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        """
        Return the weight's values as f32, dequantised if need be, and their shape.

        With `transpose`, `[n, k]` comes as `[k, n]`; raises RlxError unless it has two dimensions.
        """
        ...

    def raw(self, key: str) -> NDArray[np.uint8]:
        """Return the stored bytes `[nbytes]`, in the weight's own format."""
        ...


def transposed(key: str, data: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a matrix `[n, k]` as `[k, n]`, contiguous."""
    if data.ndim != 2:
        raise RlxError(
            f"weight {key!r}: expected two dimensions to transpose, got shape {data.shape}"
        )
    return np.ascontiguousarray(data.T)


class MapWeights:
    """
    Arrays in memory by key: float16 is f16, and bfloat16, a dtype that other packages add, bf16.

    All others are f32 to the program, converted if need be; so uint16 are numbers, not the bits of
    bf16.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]):
        self._arrays = arrays

    def has(self, key: str) -> bool:
        return key in self._arrays

    def info(self, key: str) -> WeightInfo:
        array = self._array(key)
        return WeightInfo(array.shape, _HALVES.get(array.dtype.name, "f32"))

    def take(
        self, key: str, transpose: bool = False
    ) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        data = np.ascontiguousarray(self._array(key), np.float32)
        data = transposed(key, data) if transpose else data
        return data, data.shape

    def raw(self, key: str) -> NDArray[np.uint8]:
        array = self._array(key)
        # In this machine's order of bytes, whatever the array's.
        dtype = array.dtype.newbyteorder("=") if array.dtype.name in _HALVES else np.float32
        return np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8)

    def _array(self, key: str) -> NDArray[Any]:
        if key not in self._arrays:
            some = ", ".join(list(self._arrays)[:10]) or "no weights"
            raise RlxError(f"expected a weight {key!r}, which is missing; there are: {some}")
        array = self._arrays[key]
        known = isinstance(cast(object, array), np.ndarray) and (
            array.dtype.kind in "fiub" or array.dtype.name in _HALVES
        )
        if not known:
            raise RlxError(f"weight {key!r}: expected an array of numbers, got {array!r:.80}")
        return array


class ChainWeights:
    """Several sources as one: a key is taken from the first that has it."""

    def __init__(self, sources: Sequence[WeightSource]):
        if not sources:
            raise RlxError("ChainWeights: expected at least one source")
        self._sources = sources

    def has(self, key: str) -> bool:
        return any(source.has(key) for source in self._sources)

    def info(self, key: str) -> WeightInfo:
        return self._of(key).info(key)

    def take(
        self, key: str, transpose: bool = False
    ) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        return self._of(key).take(key, transpose)

    def raw(self, key: str) -> NDArray[np.uint8]:
        return self._of(key).raw(key)

    def _of(self, key: str) -> WeightSource:
        found = (source for source in self._sources if source.has(key))
        # The last source says what is missing, and what is close to it.
        return next(found, self._sources[-1])
