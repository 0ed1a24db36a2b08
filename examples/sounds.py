"""
Recordings for the examples: WAV files read and written, and a plucked string to record.

    python examples/sounds.py    the string, to string.wav
"""

from __future__ import annotations

import sys
import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Signal = NDArray[np.float32]
RATE, STRING = 16000, 196.0
"""Samples in a second, and the tone of the string in Hz: a G."""

SAMPLES = {1: np.dtype("u1"), 2: np.dtype("<i2"), 4: np.dtype("<i4")}
"""Bytes of a sample -> its type; that of one byte is unsigned."""


def read_wave(path: Path) -> tuple[Signal, int]:
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


def write_wave(path: Path, signal: Signal, rate: int) -> None:
    """Write a signal from -1 to 1 as samples of 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((signal * 32767).round().astype("<i2").tobytes())


def plucked(hertz: float, seconds: float, rate: int) -> Signal:
    """Return a plucked string: noise that goes round and is smoothed (Karplus and Strong, 1983)."""
    # A round is the string's length and the half sample by which smoothing delays.
    period = round(rate / hertz - 0.5)
    string = np.random.default_rng(0).uniform(-1, 1, period)
    string -= string.mean()
    rounds = []
    for _ in range(int(seconds * rate / period) + 1):
        rounds.append(string)
        string = 0.498 * (string + np.roll(string, 1))
    sound = np.concatenate(rounds)[: int(seconds * rate)]
    return (0.9 * sound / np.abs(sound).max()).astype(np.float32)


def recorded(path: Path) -> Path:
    """Record a plucked string."""
    write_wave(path, plucked(STRING, 2.0, RATE), RATE)
    print(f"{path}: 2 s of a string of {STRING:.0f} Hz")
    return path


if __name__ == "__main__":
    recorded(Path("string.wav"))
