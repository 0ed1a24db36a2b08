"""
The log-mel front end of speech recognition as a picture: what Whisper hears (Radford et al., 2022).

    python examples/log_mel.py                    three plucked strings, to log_mel.png
    python examples/log_mel.py speech.wav out.png a WAV file

A row of the picture is a band of frequencies, low ones at the bottom, as bright as it is loud; a
column is ten milliseconds, and the marks below are half seconds. The window, the transforms, the
bands and the scale are one program, compiled for any number of frames.
"""

from __future__ import annotations

import argparse
import struct
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from sounds import Signal, plucked, read_wave

import rlx

MELS = 80
RATE = 16000
WINDOW, HOP = 0.025, 0.010
"""Seconds of a frame, and from one to the next."""


def program(length: int) -> str:
    """Return IR that makes frames of a length into bands from -1 up to about 1."""
    bins = length // 2 + 1
    real, spectrum, bands = (
        f"tensor<?x{n}xf32, #hir.dims<frames, _>>" for n in (length, 2 * length, MELS)
    )
    filters = f"tensor<{MELS}x{bins}xf32>"
    return f"""
builtin.module @log_mel attributes {{rlx.dims = #hir.dim_table<frames = 1 to 1048576>}} {{
  func.func @main(
      %x: {real} {{rlx.name = "frames"}},
      %w: tensor<{length}xf32> {{rlx.name = "window"}},
      %f: {filters} {{rlx.name = "filters"}}
  ) -> ({bands} {{rlx.name = "bands"}}) {{
    %windows = mir.broadcast %w : tensor<{length}xf32> -> {real}
    %windowed = mir.binary mul %x, %windows : {real}
    %0 = mir.constant dense<0.0> : tensor<f32>
    %zeros = mir.broadcast %0 : tensor<f32> -> {real}
    %complex = mir.concat axis 1 (%windowed, %zeros) : ({real}, {real}) -> {spectrum}
    %spectrum = signal.fft forward %complex : {spectrum}
    %log = signal.log_mel %spectrum, %f : {spectrum}, {filters} -> {bands}

    // No more than eighty decibels below the loudest.
    %most = mir.reduce max %log axes [0, 1] : {bands} -> tensor<f32>
    %8 = mir.constant dense<8.0> : tensor<f32>
    %least = mir.binary sub %most, %8 : tensor<f32>
    %floor = mir.broadcast %least : tensor<f32> -> {bands}
    %kept = mir.binary max %log, %floor : {bands}
    %4 = mir.constant dense<4.0> : tensor<f32>
    %fours = mir.broadcast %4 : tensor<f32> -> {bands}
    %shifted = mir.binary add %kept, %fours : {bands}
    %bands = mir.binary div %shifted, %fours : {bands}
    func.return %bands : {bands}
  }}
}}
"""


def mel_of(hertz: Any) -> Any:
    """Return the mel of a frequency: even up to 1 kHz, then logarithmic (Slaney, 1998)."""
    return np.where(hertz < 1000, hertz * 3 / 200, 15 + 27 * np.log(hertz / 1000) / np.log(6.4))


def filters_of(length: int, rate: int) -> NDArray[np.float32]:
    """Return triangles of one area around places evenly apart in mel: `[MELS, bins]`."""
    bins = np.linspace(0, rate / 2, length // 2 + 1)
    grid = np.linspace(0, rate / 2, 1 << 14)
    edges = np.interp(
        np.linspace(0, mel_of(rate / 2), MELS + 2), mel_of(np.maximum(grid, 1e-9)), grid
    )
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    sides = np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle))
    return (np.maximum(sides, 0) * 2 / (high - low)).astype(np.float32)


def log_mel(signal: Signal, rate: int) -> NDArray[np.float32]:
    """Return the bands of a signal, `[frames, MELS]`."""
    length, hop = int(WINDOW * rate), int(HOP * rate)
    padded = np.pad(signal, length // 2, mode="reflect")
    frames = np.ascontiguousarray(sliding_window_view(padded, length)[::hop])
    window = np.hanning(length + 1)[:-1].astype(np.float32)
    bands = rlx.compile(program(length))(frames, window, filters_of(length, rate))
    assert isinstance(bands, np.ndarray)
    return bands


# The picture

COLOURS = np.array(
    [[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]], np.float64
)
"""From silent to loud."""


def picture(bands: NDArray[np.float32], zoom: int = 3) -> NDArray[np.uint8]:
    """Return pixels `[height, width, 3]`: a frame and a band are `zoom` wide and high."""
    low, high = bands.min(), bands.max()
    level = (bands.T[::-1] - low) / max(high - low, 1e-9) * (len(COLOURS) - 1)
    channels = [np.interp(level, np.arange(len(COLOURS)), COLOURS[:, c]) for c in range(3)]
    pixels = np.stack(channels, -1).astype(np.uint8).repeat(zoom, 0).repeat(zoom, 1)
    marks = np.full((8, pixels.shape[1], 3), 255, np.uint8)
    for column in range(0, pixels.shape[1], round(0.5 / HOP) * zoom):
        marks[:6, column : column + 2] = 0
    return np.concatenate([pixels, marks])


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return an image as a PNG file (ISO/IEC 15948): one byte of filter before each row."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0))).tobytes()
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def strings() -> Signal:
    """Return three strings, one after the other."""
    return np.concatenate([plucked(hertz, 0.8, RATE) for hertz in (196.0, 293.7, 440.0)])


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Plot the log-mel spectrum of a recording.")
    parser.add_argument("wav", type=Path, nargs="?", help="a WAV file; without one, strings")
    parser.add_argument("png", type=Path, nargs="?", default="log_mel.png", help="the picture")
    args = parser.parse_args(argv)
    signal, rate = read_wave(args.wav) if args.wav else (strings(), RATE)
    bands = log_mel(signal, rate)
    args.png.write_bytes(png(picture(bands)))
    print(f"{args.png}: {len(bands)} frames of {MELS} bands")


if __name__ == "__main__":
    main(sys.argv[1:])
