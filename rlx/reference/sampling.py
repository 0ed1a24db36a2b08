"""Sampling of a token from logits, and the counter-based random numbers it draws with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def greedy(logits: NDArray[Any]) -> int:
    """Return the smallest index of the largest logit; NaN is never the largest."""
    return int(np.argmax(np.where(np.isnan(logits), -np.inf, logits)))


def sample(logits: NDArray[Any], params: NDArray[np.int32]) -> int:
    return greedy(logits)
