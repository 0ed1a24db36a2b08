"""
The mathematics of the operations on numpy arrays, as the formulas of their sources.

Every function computes in the dtype of its floating-point arguments. Nothing here is made to be
fast: these are what compiled kernels are compared with.
"""

from __future__ import annotations

import numpy as np

from rlx.dialects.kinds import UnaryKind
from rlx.reference.elements import UNARY, Array


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """`[rows, d], [d] -> [rows, d]`: x / sqrt(mean(x^2) + eps) * weight."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def linear(x: Array, weight: Array) -> Array:
    """`[rows, k], [n, k] -> [rows, n]`: x @ weight^T."""
    return x @ weight.T


def weight_bytes(x: Array) -> Array:
    """`[rows, k]`: each number the nearest integer times a 127th of the largest of its row."""
    step = np.abs(x).max(axis=1, keepdims=True, initial=0) / 127
    return np.rint(np.divide(x, step, out=np.zeros_like(x), where=step > 0)) * step


def activation_bytes(x: Array) -> Array:
    """`[rows, k]`: each number one of 255, which go from its row's least to its largest."""
    low, high = x.min(axis=1, keepdims=True, initial=0), x.max(axis=1, keepdims=True, initial=0)
    step = (high - low) / 254
    divided = np.divide(x, step, out=np.zeros_like(x), where=step > 0)
    zero = np.rint(np.divide(-low, step, out=np.zeros_like(low), where=step > 0))
    return (np.rint(divided + zero) - zero) * step


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


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    """`[..., d]`, two `[d]` -> `[..., d]`: (x - mean) / sqrt(var + eps) * weight + bias."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return rms_norm(centred, weight, eps) + bias


def softmax(x: Array) -> Array:
    """Over the last dimension."""
    e = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=-1, keepdims=True)


def scaled_attention(
    query: Array, keys: Array, values: Array, scale: float, mask: Array | None, causal: bool
) -> Array:
    """
    Attention as `mir.sdpa` defines it, of heads that share keys in groups.

    `[batch..., heads, m, d], [batch..., kv_heads, n, d], [batch..., kv_heads, n, e] ->
    [batch..., heads, m, e]`, mask `[batch..., m, n]`. A query without a key that has a finite
    score gives zeros.
    """
    heads, m, d = query.shape[-3:]
    kv_heads, n = keys.shape[-3:-1]
    groups = query.reshape(*query.shape[:-3], kv_heads, heads // kv_heads, m, d)
    scores: Array = groups @ keys[..., None, :, :].swapaxes(-1, -2) * scale
    if mask is not None:
        scores = scores + mask[..., None, None, :, :]
    if causal:
        scores = np.where(np.tri(m, n, n - m, dtype=np.bool_), scores, -np.inf)
    seen = scores.max(axis=-1, keepdims=True, initial=-np.inf) != -np.inf
    shares = np.where(seen, softmax(np.where(seen, scores, 0)), 0)
    return (shares @ values[..., None, :, :]).reshape(*query.shape[:-1], values.shape[-1])


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
