"""The mathematics of operations that run over the rows of a sequence in order."""

from __future__ import annotations

import numpy as np

from rlx.reference.elements import Array


def gated_delta_net(
    query: Array,
    keys: Array,
    values: Array,
    gate: Array,
    beta: Array,
    state: Array | None = None,
) -> tuple[Array, Array]:
    """
    The gated delta rule as `mir.gated_delta_net` defines it (Yang et al., 2024).

    `[batch..., rows, key_heads, n]` twice, `[batch..., rows, heads, e]`, two `[batch..., rows,
    heads]` and a state `[batch..., heads, n, e]` or none -> the output, and the state at the end.
    """
    *batch, rows, heads, e = values.shape
    n = query.shape[-1]
    group = heads // query.shape[-2]
    query, keys = (np.repeat(x, group, axis=-2) for x in (query, keys))
    s = np.zeros((*batch, heads, n, e), values.dtype) if state is None else state.copy()
    output = np.empty_like(values)
    for t in range(rows):
        k = keys[..., t, :, :, None]
        s *= np.exp(gate[..., t, :, None, None])
        correction = (values[..., t, :, :] - (s * k).sum(axis=-2)) * beta[..., t, :, None]
        s += k * correction[..., None, :]
        output[..., t, :, :] = (s * query[..., t, :, :, None]).sum(axis=-2) / np.sqrt(n)
    return output, s
