"""
The feed-forward parts of BERT as they are before their matrices are rounded to bytes.

A matrix of bytes has a step for each row, and so has what it is multiplied with: a number that is
far larger than the rest takes the others' precision. Two changes that leave the function as it is
make rows even:
- What a norm gives is divided by the size of each feature, and the columns of the first matrix are
  multiplied by it; Xiao et al. (2023) do so with sizes that they measure, here they are the norm's.
- Columns of the second matrix that have large numbers become several, each with a part of them
  (Zhao et al., 2019). The first matrix gives what they are multiplied with as often, by rows that
  are the same, so no kernel knows of this. Where the numbers of a column are large, so are
  activations: these are divided, too, by the root of what the column is too large by.

MiniLM's second matrices have single numbers of 23 to 175 standard deviations. Of 266 texts of
random tokens the worst 1 - cosine is 2.4e-3 without all this.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlx.flow.source import WeightInfo, WeightSource, transposed
from rlx.models.bert import BertConfig

Array = NDArray[np.float32]


class FeedForward(NamedTuple):
    """
    The weights of a feed-forward part, [d] and [wide, d], [wide] and [wide], [d, wide].

    The inputs of both products are multiplied with factors.
    """

    up_factors: Array
    up: Array
    bias: Array
    down_factors: Array
    down: Array


FACTORS = "factors"
_NAMES = (
    f"intermediate.dense.{FACTORS}", "intermediate.dense.weight", "intermediate.dense.bias",
    f"output.dense.{FACTORS}", "output.dense.weight",
)  # fmt: skip
"""The names of these in a layer."""
_STEPS = 127
_SHARE, _STEP = 24, 16
"""A column is added for so many, but always so many at once: whole panels of the first matrix."""
_LARGE = 2
"""How often a column is too large from which on activations are divided."""


def _widened(ffn: int) -> int:
    return ffn + max(1, ffn // _SHARE // _STEP) * _STEP


def widened(config: BertConfig) -> BertConfig:
    """Return the configuration of the model whose weights `ByteWeights` gives."""
    return replace(config, ffn=_widened(config.ffn), factors=FACTORS)


class ByteWeights:
    """A model's weights, those of its feed-forward parts as this module makes them, in f32."""

    def __init__(self, source: WeightSource, config: BertConfig):
        self._source = source
        self._layers = f"{config.prefix}encoder.layer."
        d, wide = config.d, _widened(config.ffn)
        self._shapes = ((d,), (wide, d), (wide,), (wide,), (d, wide))
        # Those of a layer are asked for one after the other.
        self._part = lru_cache(maxsize=1)(self._made)

    def has(self, key: str) -> bool:
        return self._found(key) is not None or self._source.has(key)

    def info(self, key: str) -> WeightInfo:
        found = self._found(key)
        return WeightInfo(self._shapes[found[1]], "f32") if found else self._source.info(key)

    def take(self, key: str, transpose: bool = False) -> tuple[Array, tuple[int, ...]]:
        found = self._found(key)
        if found is None:
            return self._source.take(key, transpose)
        data = self._part(found[0])[found[1]]
        data = transposed(key, data) if transpose else data
        return data, data.shape

    def raw(self, key: str) -> NDArray[np.uint8]:
        if self._found(key) is None:
            return self._source.raw(key)
        return self.take(key)[0].reshape(-1).view(np.uint8)

    def _found(self, key: str) -> tuple[str, int] | None:
        """Return what the names of a weight's layer begin with, and its place in `FeedForward`."""
        layer, _, name = key.removeprefix(self._layers).partition(".")
        if not key.startswith(self._layers) or name not in _NAMES:
            return None
        return f"{self._layers}{layer}.", _NAMES.index(name)

    def _made(self, layer: str) -> FeedForward:
        norm = "attention.output.LayerNorm."
        names = (f"{norm}weight", f"{norm}bias", _NAMES[1], _NAMES[2], _NAMES[4])
        return even(*(self._source.take(layer + name)[0] for name in names))


@np.errstate(all="ignore")
def even(weight: Array, shift: Array, up: Array, bias: Array, down: Array) -> FeedForward:
    """
    Return what the weights of a part become: `[ffn, d]`, `[ffn]` and `[d, ffn]`.

    `weight` and `shift`, `[d]`, are those of the norm before it. The numbers of the second matrix
    are whole steps then, so that rounding it to bytes changes nothing.
    """
    sizes = np.hypot(weight, shift)
    sizes = np.maximum(sizes, sizes.max() / 1e6 or 1)
    ffn, wide = len(up), _widened(len(up))
    parts, factors = _parts(down, wide)
    columns = np.repeat(np.arange(ffn), parts)
    number = np.arange(len(columns)) - (np.cumsum(parts) - parts)[columns]
    step = np.abs(down / factors / parts).max(axis=1, keepdims=True) / _STEPS
    steps = np.rint(down / factors / np.where(step == 0, 1, step))
    # The parts of a number are whole steps, and together all of its steps.
    split = (steps[:, columns] + number) // parts[columns] * step

    def padded(x: NDArray[np.floating], axis: int = 0) -> Array:
        """Return x in the shape that is declared: what is left over is 0."""
        more = [(0, (wide - len(columns)) * (i == axis)) for i in range(x.ndim)]
        return np.pad(x, more).astype(np.float32)

    return FeedForward(
        (1 / sizes).astype(np.float32),
        padded((up * sizes)[columns]),
        padded(bias[columns]),
        padded(factors[columns]),
        padded(split, 1),
    )


def _parts(down: Array, wide: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """
    Return how many parts each column becomes, and the factors of what they are multiplied with.

    All of them are at most `wide`, and none of their numbers, in standard deviations of its row, is
    larger than need be for that.
    """
    rows = np.sqrt(np.square(down, dtype=np.float64).mean(axis=1, keepdims=True))
    sizes = (np.abs(down) / np.where(rows == 0, 1, rows)).max(axis=0)

    def parted(most: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        ratio = sizes / most
        root = np.where(ratio > _LARGE, np.sqrt(ratio), 1)
        return np.ceil(ratio * root).clip(1).astype(np.int64), 1 / root

    if not np.isfinite(sizes).all() or not sizes.any():
        return np.ones(len(sizes), np.int64), np.ones(len(sizes))
    low, high = sizes.max() / wide, sizes.max()
    for _ in range(30):
        middle = (low + high) / 2
        if parted(middle)[0].sum() > wide:
            low = middle
        else:
            high = middle
    return parted(high)
