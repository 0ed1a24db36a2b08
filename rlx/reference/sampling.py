"""Sampling of a token from logits, and the counter-based random numbers it draws with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PARAMETERS = np.dtype(
    [
        ("temperature", "<f4"),
        ("top_k", "<i4"),
        ("top_p", "<f4"),
        ("unused", "<i4"),
        ("seed", "<u8"),
        ("counter", "<u8"),
    ]
)
"""The words of the operand; a top_k below 1, and a top_p from 1, set no limit."""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """
    Four random 32-bit words from a counter and a key: Philox4x32-10.

    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        low, high = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (high >> 32) ^ c1 ^ k0,
            high & _LOW,
            (low >> 32) ^ c3 ^ k1,
            low & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniform(seed: int, counter: int) -> float:
    """A number in [0, 1): the upper 53 bits of the first two words, the second on top."""
    low, high, *_ = philox4x32((counter & _LOW, counter >> 32, 0, 0), (seed & _LOW, seed >> 32))
    return ((high << 32 | low) >> 11) / 2**53


def sample(logits: NDArray[Any], params: NDArray[np.int32]) -> int:
    """
    Choose an index of `[vocab]` logits by the eight words of `PARAMETERS`.

    The rule of `rlx.lowering.sampling`, in float64: at a temperature of 0, or beside an infinite
    logit, the largest, the first of several. Else the top_k largest, of those the fewest that have
    top_p of their probability, and of those one at random. NaN and -inf have no part in it;
    -1 where all are NaN.
    """
    given = np.ascontiguousarray(params, "<i4").view(PARAMETERS)[0]
    x = logits.astype(np.float64)
    order = np.argsort(-x, kind="stable")
    order = order[~np.isnan(x[order])]
    if not order.size:
        return -1
    top, temperature = x[order[0]], float(given["temperature"])
    if not temperature > 0 or np.isinf(top):
        return int(order[0])
    order = order[x[order] > -np.inf]
    if given["top_k"] > 0:
        order = order[: given["top_k"]]
    weights = np.exp((x[order] - top) / temperature)
    if given["top_p"] < 1:
        sums = np.cumsum(weights)
        order = order[: 1 + np.searchsorted(sums, float(given["top_p"]) * sums[-1])]
    kept = np.sort(order)
    sums = np.cumsum(np.exp((x[kept] - top) / temperature))
    u = uniform(int(given["seed"]), int(given["counter"]))
    return int(kept[np.searchsorted(sums, u * sums[-1], side="right")])
