"""Random weights and inputs for trying programs: the same for a seed, in whatever order."""

from __future__ import annotations

from math import prod
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from rlx.contract.quant import GGML_TYPES_BY_NAME
from rlx.errors import RlxError
from rlx.flow.source import WeightInfo, transposed
from rlx.frontends.quants import BLOCKS, dequantize
from rlx.lowering.manifest import Io, Manifest

_SIZES = {
    "q4_0": (8, 0), "q4_1": (16, 1), "q5_0": (16, 0), "q5_1": (32, 1), "q8_0": (128, 0),
    "q2_k": (16 * 4, 16), "q3_k": (32 * 4, 0), "q4_k": (64 * 16, 64), "q5_k": (64 * 32, 64),
    "q6_k": (128 * 32, 0),
}  # fmt: skip
"""Format of blocks -> the size of what its scale multiplies, and of what its minimum does."""


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed & 0xFFFFFFFF, crc32(name.encode())])


class RandomWeights:
    """
    A source of the weights that a program declares, for the compiler and for the reference.

    A matrix `[n, k]` has values of about 1/sqrt(k), so that products keep their size, and a vector
    has values near 1.
    """

    def __init__(self, manifest: Manifest, seed: int):
        self._seed = seed
        self._infos = {
            key: WeightInfo(w.shape, w.format) for w in manifest.weights for key in w.keys()
        }

    def has(self, key: str) -> bool:
        return key in self._infos

    def info(self, key: str) -> WeightInfo:
        if key not in self._infos:
            raise RlxError(f"the program declares no weight {key!r}")
        return self._infos[key]

    def raw(self, key: str) -> NDArray[np.uint8]:
        shape, format_ = self.info(key)
        rng = _generator(self._seed, key)
        if format_ in _SIZES:
            return random_blocks(rng, shape, format_)
        x = rng.standard_normal(shape).astype(np.float32)
        x = 1 + x / 8 if len(shape) < 2 else x / np.float32(shape[-1] ** 0.5)
        match format_:
            case "f32":
                stored = x
            case "f16":
                stored = x.astype(np.float16)
            case "bf16":
                stored = (x.view(np.uint32) >> 16).astype(np.uint16)
            case _:
                known = ", ".join(["f32", "f16", "bf16", *_SIZES])
                raise RlxError(
                    f"weight {key!r}: expected a format that random weights come in ({known}), "
                    f"got {format_}"
                )
        return stored.reshape(-1).view(np.uint8)

    def array(self, key: str) -> NDArray[np.float32]:
        """Return the values of a weight, as the reference takes them."""
        shape, format_ = self.info(key)
        return dequantize(format_, self.raw(key), shape)

    def take(
        self, key: str, transpose: bool = False
    ) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        data = self.array(key)
        data = transposed(key, data) if transpose else data
        return data, data.shape


def random_blocks(
    rng: np.random.Generator, shape: tuple[int, ...], format_: str
) -> NDArray[np.uint8]:
    """Return random valid blocks of a matrix [n, k], whose values are of about 1/sqrt(k)."""
    count = prod(shape) // GGML_TYPES_BY_NAME[format_].elements
    data = rng.integers(0, 256, (count, BLOCKS[format_].itemsize), np.uint8)
    blocks = data.view(BLOCKS[format_])[:, 0]
    for field, size in zip("dm", _SIZES[format_], strict=True):
        if size:
            blocks[field] = rng.uniform(-1, 1, count) / (size * shape[-1] ** 0.5)
    return data.reshape(-1)


def dtype_of(io: Io) -> np.dtype[Any]:
    """Return the numpy dtype of an input or output: `f32` is `float32`, and `i1` is `bool`."""
    if io.dtype == "i1":
        return np.dtype(bool)
    name = io.dtype.replace("ui", "u")
    return np.dtype(f"{name[0]}{int(name[1:]) // 8}")


def random_input(io: Io, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Return an input: normal floats, truth values, indices in their range, other integers 0."""
    rng, dtype = _generator(seed, f"input {io.name}"), dtype_of(io)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.integers(0, max(io.index_bound, 1), shape, dtype)
