"""
A small spectrum analyser: the strongest tones of a recording, about twice a second.

    python examples/spectrum.py               a plucked string, recorded to string.wav first
    python examples/spectrum.py speech.wav    a WAV file of 8, 16 or 32 bits

Frames that overlap by half are windowed and transformed; the power of each bin is averaged over
sixteen of them, and the peaks of that are printed (Welch, 1967). All but the cutting into frames is
one program, compiled for any number of blocks. The string is synthetic: no recording is shipped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from sounds import Signal, read_wave, recorded

import rlx

LENGTH, SEGMENTS = 1024, 16
HOP = LENGTH // 2


def program(k: int) -> str:
    """Return IR that gives the k strongest peaks of each block of frames."""
    real, spectrum = (f"tensor<?x{n}xf32, #hir.dims<frames, _>>" for n in (LENGTH, 2 * LENGTH))
    peaks = f"tensor<?x{2 * k}xf32, #hir.dims<blocks, _>>"
    return f"""
builtin.module @spectrum attributes {{rlx.dims = #hir.dim_table<
    blocks = 1 to 65536, segments = {SEGMENTS}, frames = blocks * segments>}} {{
  func.func @main(
      %x: {real} {{rlx.name = "frames"}},
      %w: tensor<{LENGTH}xf32> {{rlx.name = "window"}}
  ) -> ({peaks} {{rlx.name = "peaks"}}) {{
    %windows = mir.broadcast %w : tensor<{LENGTH}xf32> -> {real}
    %windowed = mir.binary mul %x, %windows : {real}
    %0 = mir.constant dense<0.0> : tensor<f32>
    %zeros = mir.broadcast %0 : tensor<f32> -> {real}
    %complex = mir.concat axis 1 (%windowed, %zeros) : ({real}, {real}) -> {spectrum}
    %spectrum = signal.fft forward %complex : {spectrum}
    %peaks = signal.welch_peaks %spectrum k {k} segments {SEGMENTS} : {spectrum} -> {peaks}
    func.return %peaks : {peaks}
  }}
}}
"""


def frames_of(signal: Signal) -> Signal:
    """Return frames that overlap by half, `[blocks * SEGMENTS, LENGTH]`; zeros fill the last."""
    blocks = max(1, -(-len(signal) // (HOP * SEGMENTS)))
    padded = np.zeros(blocks * SEGMENTS * HOP + HOP, np.float32)
    padded[: len(signal)] = signal
    return np.ascontiguousarray(sliding_window_view(padded, LENGTH)[::HOP])


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Print the strongest tones of a recording.")
    parser.add_argument("wav", type=Path, nargs="?", help="a WAV file; without one, a string")
    parser.add_argument("--peaks", type=int, default=4, metavar="K", help="tones to print")
    args = parser.parse_args(argv)
    if not 1 <= args.peaks <= LENGTH // 2 + 1:
        parser.error(f"--peaks: expected 1 to {LENGTH // 2 + 1}, got {args.peaks}")
    signal, rate = read_wave(args.wav or recorded(Path("string.wav")))

    frames, window = frames_of(signal), np.hanning(LENGTH + 1)[:-1].astype(np.float32)
    analyse = rlx.compile(program(args.peaks))
    peaks = analyse(frames, window, dims={"blocks": len(frames) // SEGMENTS})
    assert isinstance(peaks, np.ndarray)

    # The window's sum makes a sine of amplitude 1 a power of (sum / 2)^2.
    full = (window.sum() / 2) ** 2
    for block, row in enumerate(peaks.reshape(len(peaks), -1, 2)):
        decibels = 10 * np.log10(np.maximum(row[:, 1] / full, 1e-12))
        tones = (
            f"{bin * rate / LENGTH:9.1f} Hz {level:6.1f} dB"
            for bin, level in zip(row[:, 0], decibels, strict=True)
        )
        print(f"{block * SEGMENTS * HOP / rate:7.2f} s {'  '.join(tones)}")


if __name__ == "__main__":
    main(sys.argv[1:])
