"""
The mathematics of the operations on numpy arrays, as the formulas of their sources.

Every function computes in the dtype of its floating-point arguments. Nothing here is made to be
fast: these are what compiled kernels are compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlx.dialects.primitives import BinaryKind, UnaryKind

Array: TypeAlias = NDArray[Any]


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), by way of exp(-|x|), which can't overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, np.ones_like(x)) / (1 + e)


def silu(x: Array) -> Array:
    """x * sigmoid(x) (Elfwing et al., 2018)."""
    return x * sigmoid(x)


def gelu_tanh(x: Array) -> Array:
    """The tanh form of GELU (Hendrycks and Gimpel, 2016)."""
    return x / 2 * (1 + np.tanh(float(np.sqrt(2 / np.pi)) * (x + 0.044715 * x**3)))


UNARY: dict[UnaryKind, Callable[[Array], Array]] = {
    UnaryKind.NEG: np.negative,
    UnaryKind.EXP: np.exp,
    UnaryKind.SILU: silu,
    UnaryKind.SIGMOID: sigmoid,
    UnaryKind.TANH: np.tanh,
    UnaryKind.GELU_TANH: gelu_tanh,
    UnaryKind.RELU: lambda x: np.maximum(x, 0),
    UnaryKind.SQRT: np.sqrt,
    UnaryKind.RSQRT: lambda x: 1 / np.sqrt(x),
    UnaryKind.RECIP: lambda x: 1 / x,
    UnaryKind.ABS: np.abs,
}

BINARY: dict[BinaryKind, Callable[[Array, Array], Array]] = {
    BinaryKind.ADD: np.add,
    BinaryKind.SUB: np.subtract,
    BinaryKind.MUL: np.multiply,
    BinaryKind.DIV: np.divide,
    BinaryKind.MAX: np.maximum,
    BinaryKind.MIN: np.minimum,
}


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """`[rows, d], [d] -> [rows, d]`: x / sqrt(mean(x^2) + eps) * weight."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def linear(x: Array, weight: Array) -> Array:
    """`[rows, k], [n, k] -> [rows, n]`: x @ weight^T."""
    return x @ weight.T


def glu(kind: UnaryKind, x: Array, up: Array, gate: Array, down: Array) -> Array:
    """`[rows, d]`, two `[ffn, d]` and a `[d, ffn]` -> `[rows, d]` (Shazeer, 2020)."""
    return linear(UNARY[kind](linear(x, gate)) * linear(x, up), down)


def rope_table(positions: int, n_rot: int, base: float) -> tuple[Array, Array]:
    """
    The tables of rotary embedding, `[positions, n_rot]` float64 each (Su et al., 2021).

    Pair i turns by position * base^(-2i / n_rot). Both features of a pair have its cosine; the
    first has the sine negated, so that rotating is x * cos + swapped(x) * sin.
    """
    rates = base ** (-np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)
    angles = np.arange(positions, dtype=np.float64)[:, None] * rates
    sin = np.sin(angles)
    return np.repeat(np.cos(angles), 2, axis=1), np.stack([-sin, sin], axis=2).reshape(-1, n_rot)


def rope(x: Array, cos: Array, sin: Array, start: int, head_dim: int) -> Array:
    """
    Rotates pairs (2i, 2i + 1) of the first n_rot features of each head; the others stay.

    `[rows, heads * head_dim]`, tables `[positions, n_rot]`; row r is at position `start + r`.
    """
    rows, n_rot = len(x), cos.shape[1]
    heads = x.reshape(rows, -1, head_dim)
    turned = heads[:, :, :n_rot]
    swapped = turned.reshape(rows, -1, n_rot // 2, 2)[..., ::-1].reshape(turned.shape)
    here = slice(start, start + rows)
    result = heads.copy()
    result[:, :, :n_rot] = turned * cos[here, None] + swapped * sin[here, None]
    return result.reshape(x.shape)


def softmax(x: Array) -> Array:
    """Over the last dimension."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(query: Array, keys: Array, values: Array, head_dim: int, scale: float) -> Array:
    """
    Causal attention: `[rows, heads * head_dim]`, two `[keys, kv_heads * head_dim]` -> as the query.

    Row r of R is at position keys - R + r and sees the keys up to it. Query head h uses key head
    h // (heads / kv_heads) (Ainslie et al., 2023).
    """
    rows, count = len(query), len(keys)
    k = keys.reshape(count, -1, head_dim).transpose(1, 0, 2)[:, None]
    v = values.reshape(count, -1, head_dim).transpose(1, 0, 2)[:, None]
    q = query.reshape(rows, len(k), -1, head_dim).transpose(1, 2, 0, 3)
    positions = np.arange(count - rows, count)
    visible = np.arange(count) <= positions[:, None]
    scores = np.where(visible, q @ k.swapaxes(2, 3) * scale, -np.inf)
    return (softmax(scores) @ v).transpose(2, 0, 1, 3).reshape(query.shape)
