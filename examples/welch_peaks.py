"""
A small spectrum analyser: the strongest tones of a recording, about twice a second.

    python examples/welch_peaks.py               two synthetic tones
    python examples/welch_peaks.py speech.wav    a WAV file of 8, 16 or 32 bits

Frames that overlap by half are windowed and transformed; the power of each bin is averaged over
sixteen of them, and the peaks of that are printed (Welch, 1967). All but the cutting into frames is
one program, compiled for any number of blocks.
"""

from __future__ import annotations

import argparse
import sys
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

import rlx

LENGTH, SEGMENTS = 1024, 16
HOP = LENGTH // 2
SAMPLES = {1: np.dtype("u1"), 2: np.dtype("<i2"), 4: np.dtype("<i4")}
"""Bytes of a sample -> its type; that of one byte is unsigned."""


def program(k: int) -> str:
    """Return IR that gives the k strongest peaks of each block of frames."""
    real, spectrum = (f"tensor<?x{n}xf32, #hir.dims<frames, _>>" for n in (LENGTH, 2 * LENGTH))
    peaks = f"tensor<?x{2 * k}xf32, #hir.dims<blocks, _>>"
    return f"""
builtin.module @welch_peaks attributes {{rlx.dims = #hir.dim_table<
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


def frames_of(signal: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return frames that overlap by half, `[blocks * SEGMENTS, LENGTH]`; zeros fill the last."""
    blocks = max(1, -(-len(signal) // (HOP * SEGMENTS)))
    padded = np.zeros(blocks * SEGMENTS * HOP + HOP, np.float32)
    padded[: len(signal)] = signal
    return np.ascontiguousarray(sliding_window_view(padded, LENGTH)[::HOP])


def two_tones(rate: int) -> NDArray[np.float32]:
    """Return two seconds of 440 Hz and, half as loud, 1320 Hz, in a little noise."""
    t = np.arange(2 * rate) / rate
    noise = np.random.default_rng(0).standard_normal(len(t))
    tones = 0.5 * np.sin(2 * np.pi * 440 * t) + 0.25 * np.sin(2 * np.pi * 1320 * t)
    return (tones + 0.001 * noise).astype(np.float32)


def read_wave(path: Path) -> tuple[NDArray[np.float32], int]:
    """Return the mean of a file's channels, from -1 to 1, and its rate; exit if it is no WAV."""
    try:
        with wave.open(str(path)) as file:
            size, channels = file.getsampwidth(), file.getnchannels()
            data, rate = file.readframes(file.getnframes()), file.getframerate()
    except (OSError, EOFError, wave.Error) as e:
        sys.exit(f"{path}: expected a WAV file: {e}")
    if size not in SAMPLES:
        sys.exit(f"{path}: expected samples of 8, 16 or 32 bits, got {8 * size}")
    samples = np.frombuffer(data, SAMPLES[size]).astype(np.float64)
    samples = samples / 128 - 1 if size == 1 else samples / 2.0 ** (8 * size - 1)
    return samples.reshape(-1, channels).mean(axis=1).astype(np.float32), rate


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Print the strongest tones of a recording.")
    parser.add_argument("wav", type=Path, nargs="?", help="a WAV file; two tones without one")
    parser.add_argument("--peaks", type=int, default=2, metavar="K", help="tones to print")
    args = parser.parse_args(argv)
    if not 1 <= args.peaks <= LENGTH // 2 + 1:
        parser.error(f"--peaks: expected 1 to {LENGTH // 2 + 1}, got {args.peaks}")
    signal, rate = read_wave(args.wav) if args.wav else (two_tones(16000), 16000)

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
