"""The examples of signal processing: a spectrum analyser, a log-mel picture, a streaming filter."""

from __future__ import annotations

import re
import runpy
import struct
import subprocess
import sys
import wave
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest

FOLDER = Path(__file__).parents[2] / "examples"
BIN = 16000 / 1024
"""Hz from one frequency of the analyser to the next."""

Load = Callable[[str], dict[str, Any]]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Load:
    """Load an example by name; it finds its neighbours, and writes into a folder of its own."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.chdir(tmp_path)
    return lambda name: runpy.run_path(str(FOLDER / f"{name}.py"))


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.py")))
def test_what_an_example_writes_is_said_and_ignored_by_git(name: str, tmp_path: Path):
    """Of every example, run as its text says."""
    command = [sys.executable, str(FOLDER / name)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    for path in tmp_path.iterdir():
        assert f"{path.name}: " in done.stdout
        assert path.name in (FOLDER.parent / ".gitignore").read_text().splitlines()


# The analyser


def tones(text: str) -> list[list[tuple[float, float]]]:
    """Return (Hz, dB) of the tones of each line."""
    lines = text.splitlines()
    found = [re.findall(r"([\d.]+) Hz +(-?[\d.]+) dB", line) for line in lines]
    return [[(float(hz), float(db)) for hz, db in line] for line in found]


def test_a_string_has_the_multiples_of_its_tone(load: Load, capsys: pytest.CaptureFixture):
    load("spectrum")["main"]([])
    said = capsys.readouterr().out
    assert said.startswith("string.wav: ")
    _, *lines = tones(said)
    assert len(lines) == 4
    for line in lines[1:]:
        assert sorted(round(hz / 196) for hz, _ in line) == [1, 2, 3, 4]
        for hz, _ in line:
            # A bin's middle is half a bin from the tone at most; the string is a bit out of tune.
            assert abs(hz - 196 * round(hz / 196)) <= BIN / 2 + 4
    # It becomes softer.
    levels = [line[0][1] for line in lines]
    assert levels == sorted(levels, reverse=True)


def near(line: list[tuple[float, float]], wanted: Sequence[float]) -> bool:
    return all(abs(hz - w) <= BIN / 2 for (hz, _), w in zip(line, wanted, strict=True))


@pytest.mark.parametrize(("size", "dtype"), [(1, "u1"), (2, "<i2"), (4, "<i4")])
def test_a_file(size: int, dtype: str, tmp_path: Path, load: Load, capsys: pytest.CaptureFixture):
    t = np.arange(16000) / 16000
    channels = [0.8 * np.sin(2 * np.pi * 700 * t), 0.4 * np.sin(2 * np.pi * 3000 * t)]
    scaled = np.stack(channels, 1) * (2 ** (8 * size - 1) - 1) + (128 if size == 1 else 0)
    path = tmp_path / "tones.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(size)
        file.setframerate(16000)
        file.writeframes(scaled.round().astype(dtype).tobytes())
    load("spectrum")["main"]([str(path), "--peaks", "2"])
    lines = tones(capsys.readouterr().out)
    assert len(lines) == 2
    assert near(lines[0], [700, 3000])
    # Off the middle of its bin, a tone loses up to 1.5 dB with this window.
    assert -1.6 < lines[0][0][1] - 20 * np.log10(0.4) < 0.1


def test_what_is_no_recording_is_named(tmp_path: Path, load: Load):
    main = load("spectrum")["main"]
    path = tmp_path / "notes.wav"
    path.write_text("not a recording")
    with pytest.raises(SystemExit, match=r"notes.wav: expected a WAV file"):
        main([str(path)])
    with pytest.raises(SystemExit, match=r"missing.wav: expected a WAV file"):
        main([str(tmp_path / "missing.wav")])


# The picture


def pixels_of(data: bytes) -> np.ndarray:
    """Return the pixels of a PNG of three bytes a pixel whose rows have no filter."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    chunks: dict[bytes, bytes] = {}
    at = 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert data[at + 8 + size : at + 12 + size] == struct.pack(">I", zlib.crc32(kind + body))
        chunks[kind] = body
        at += 12 + size
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour, list(chunks)[-1]) == (8, 2, b"IEND")
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def test_the_picture_shows_three_strings(load: Load, tmp_path: Path):
    load("log_mel")["main"]([])
    pixels = pixels_of((tmp_path / "log_mel.png").read_bytes()).astype(int)
    assert pixels.shape == (3 * 80 + 8, 3 * 241, 3)
    bright = pixels[: 3 * 80].sum(-1)
    # A string's lowest tone is the lowest bright row: higher for each string.
    columns = (200, 440, 680)
    lowest = [max(np.flatnonzero(bright[:, c] > 300)) for c in columns]
    assert lowest == sorted(lowest, reverse=True)
    assert len(set(lowest)) == 3


def test_its_bands_are_those_of_whisper(load: Load):
    """The filters too: those of transformers are in the golden file."""
    inputs, example = oracles.inputs, load("log_mel")
    want = inputs.golden("whisper")
    oracles.assert_golden(example["filters_of"](inputs.FFT, inputs.RATE), want["filters"], 1e-6)
    bands = example["log_mel"](inputs.sound(), inputs.RATE)
    oracles.assert_golden(bands[:-1].T, want["features"], 1e-6)


# The filter


def test_blocks_give_what_the_whole_gives(load: Load, capsys: pytest.CaptureFixture):
    example = load("streaming_filter")
    assert example["main"]() < 1e-12
    assert "prologue" in capsys.readouterr().out


def test_the_filter_is_designed_in_the_prologue(load: Load):
    import rlx

    example = load("streaming_filter")
    cutoff = np.array([0.05], np.float32)
    text = rlx.compile(example["PROGRAM"], {"cutoff": cutoff}).ir("mir")
    counts = example["phases"](text)
    assert min(counts.values()) > 0
    # The window, which depends on no weight, is folded.
    assert "mir.unary cos" not in text
    for kind, phase in (("sin", "prologue"), ("log", "epilogue")):
        # Where a kernel holds the operation, the kernel has the phase.
        after = text[text.index(f"mir.unary {kind} ") :]
        assert re.search(r"phase = #mir<phase (\w+)>", after)[1] == phase
