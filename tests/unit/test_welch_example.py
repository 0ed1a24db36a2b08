"""The example of a spectrum analyser, on its own tones and on WAV files."""

from __future__ import annotations

import re
import runpy
import wave
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).parents[2] / "examples" / "welch_peaks.py"
BIN = 16000 / 1024
"""Hz from one frequency to the next."""


@pytest.fixture(scope="module")
def example() -> dict[str, Callable[..., object]]:
    return runpy.run_path(str(FILE))


def tones(text: str) -> list[list[tuple[float, float]]]:
    """Return (Hz, dB) of the tones of each line."""
    lines = text.splitlines()
    found = [re.findall(r"([\d.]+) Hz +(-?[\d.]+) dB", line) for line in lines]
    return [[(float(hz), float(db)) for hz, db in line] for line in found]


def near(line: list[tuple[float, float]], wanted: Sequence[float]) -> bool:
    return [abs(hz - w) <= BIN / 2 for (hz, _), w in zip(line, wanted, strict=True)] == [True] * 2


def test_its_own_tones(example: dict[str, Callable[..., object]], capsys: pytest.CaptureFixture):
    example["main"]([])
    lines = tones(capsys.readouterr().out)
    assert len(lines) == 4
    for line in lines[:3]:
        assert near(line, [440, 1320])
        # Off the middle of its bin, a tone loses up to 1.5 dB with this window.
        assert -1.6 < line[0][1] - 20 * np.log10(0.5) < 0.1
        assert -1.6 < line[1][1] - 20 * np.log10(0.25) < 0.1


@pytest.mark.parametrize(("size", "dtype"), [(1, "u1"), (2, "<i2"), (4, "<i4")])
def test_a_file(
    size: int,
    dtype: str,
    tmp_path: Path,
    example: dict[str, Callable[..., object]],
    capsys: pytest.CaptureFixture,
):
    t = np.arange(16000) / 16000
    channels = [0.8 * np.sin(2 * np.pi * 700 * t), 0.4 * np.sin(2 * np.pi * 3000 * t)]
    scaled = np.stack(channels, 1) * (2 ** (8 * size - 1) - 1) + (128 if size == 1 else 0)
    path = tmp_path / "tones.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(size)
        file.setframerate(16000)
        file.writeframes(scaled.round().astype(dtype).tobytes())
    example["main"]([str(path)])
    lines = tones(capsys.readouterr().out)
    assert len(lines) == 2
    assert near(lines[0], [700, 3000])
    assert abs(lines[0][0][1] - 20 * np.log10(0.4)) < 1.6


def test_what_is_no_recording_is_named(tmp_path: Path, example: dict[str, Callable[..., object]]):
    path = tmp_path / "notes.wav"
    path.write_text("not a recording")
    with pytest.raises(SystemExit, match=r"notes.wav: expected a WAV file"):
        example["main"]([str(path)])
    with pytest.raises(SystemExit, match=r"missing.wav: expected a WAV file"):
        example["main"]([str(tmp_path / "missing.wav")])
