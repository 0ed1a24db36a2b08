"""Random weights of any format, as a source for the compiler and for the reference."""

from __future__ import annotations

from collections.abc import Mapping

import gguf
import numpy as np

from rlx.contract.quant import GGML_TYPES_BY_NAME, WEIGHT_FORMATS
from rlx.flow.source import WeightInfo
from rlx.reference import Quantized
from rlx.tools.random_data import random_blocks

FORMATS = WEIGHT_FORMATS
PLAIN = ("f32", "f16", "bf16")
BLOCKED = tuple(name for name in FORMATS if name not in PLAIN)


def formats_of(k: int) -> list[str]:
    """Return the formats in which rows may have k elements."""
    return [name for name in FORMATS if k % GGML_TYPES_BY_NAME[name].elements == 0]


class Weights:
    """Weights by key, kept as bytes of their format."""

    def __init__(self, rng: np.random.Generator):
        self._rng = rng
        self._stored: dict[str, Quantized] = {}

    def add(self, key: str, shape: tuple[int, ...], format: str = "f32") -> None:
        """Add a weight of about N(0, 1/sqrt(k)), or near 1 for a vector."""
        if format in BLOCKED:
            self._stored[key] = Quantized(format, random_blocks(self._rng, shape, format), shape)
            return
        x = self._rng.standard_normal(shape).astype(np.float32)
        x = 1 + x / 8 if len(shape) == 1 else x / np.float32(shape[-1] ** 0.5)
        if format == "bf16":
            # To the nearest with few mantissa bits; the rounding does not matter here.
            data = (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            data = gguf.quants.quantize(x, gguf.GGMLQuantizationType[format.upper()])
        self._stored[key] = Quantized(format, data.reshape(-1).view(np.uint8), shape)

    def has(self, key: str) -> bool:
        return key in self._stored

    def info(self, key: str) -> WeightInfo:
        return WeightInfo(self._stored[key].shape, self._stored[key].format)

    def take(self, key: str, transpose: bool = False) -> tuple[np.ndarray, tuple[int, ...]]:
        raise NotImplementedError("compiled programs read the stored bytes")

    def raw(self, key: str) -> np.ndarray:
        return self._stored[key].data

    @property
    def stored(self) -> Mapping[str, Quantized]:
        return self._stored
