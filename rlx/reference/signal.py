"""What the operations of `rlx.dialects.signal` mean, in numpy; imported when one is met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dialects import signal
from rlx.reference.elements import Array
from rlx.reference.scope import Scope, evaluate


def fft(x: Array, inverse: bool = False, norm: Any = "backward") -> Array:
    """The transforms of `[..., 2n]`, n real parts and then n imaginary parts."""
    n = x.shape[-1] // 2
    given = x[..., :n] + 1j * x[..., n:]
    transform = np.fft.ifft if inverse else np.fft.fft
    result = transform(given, norm=norm)
    return np.concatenate([result.real, result.imag], axis=-1).astype(x.dtype)


def power(x: Array) -> Array:
    """Squared magnitudes of the bins of one side: `[..., 2n] -> [..., n / 2 + 1]`."""
    n = x.shape[-1] // 2
    bins = signal.bins_of(n)
    return x[..., :bins] ** 2 + x[..., n : n + bins] ** 2


def welch_peaks(x: Array, k: int, segments: int) -> Array:
    """(bin, power) of the k strongest peaks, as `signal.welch_peaks` defines them."""
    rows, width = len(x) // segments, x.shape[-1]
    p = power(x.reshape(rows, segments, width)).mean(axis=1)
    before = np.pad(p, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    after = np.pad(p, ((0, 0), (0, 1)), constant_values=-1)[:, 1:]
    peak = (p > before) & (p >= after)
    # A stable sort by two keys, the first of them last: among equals the smaller bin comes first.
    order = np.argsort(-np.nan_to_num(p, nan=0.0, posinf=np.inf), axis=-1, kind="stable")
    rank = np.argsort(~np.take_along_axis(peak, order, -1), axis=-1, kind="stable")
    found = np.take_along_axis(order, rank, -1)[:, :k]
    pairs = np.stack([found.astype(x.dtype), np.take_along_axis(p, found, -1)], axis=-1)
    return pairs.reshape(rows, 2 * k)


def log_mel(p: Array, filters: Array) -> Array:
    """Logarithms to base 10 of bands: powers `[..., bins]`, filters `[mels, bins]`."""
    return np.log10(np.maximum(p @ filters.T, signal.SMALLEST_POWER))


@evaluate.register
def _(op: signal.FftOp, scope: Scope, x: Array) -> Sequence[Array]:
    return [fft(x, op.kind.data is signal.FftKind.INVERSE, op.norm.data.value)]


@evaluate.register
def _(op: signal.WelchPeaksOp, scope: Scope, x: Array) -> Sequence[Array]:
    return [welch_peaks(x, op.k.value.data, op.segments.value.data)]


@evaluate.register
def _(op: signal.LogMelOp, scope: Scope, spectrum: Array, filters: Array) -> Sequence[Array]:
    return [log_mel(power(spectrum) if op.is_complex else spectrum, filters)]
