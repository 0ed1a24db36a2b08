"""Kernels of signal operations against numpy in float64, at every instruction-set level."""

from __future__ import annotations

import re

import numpy as np
import pytest
from bodies import Compiled, block_of, typed
from kernels import levels, nmse

import rlx
from rlx.dialects import signal
from rlx.dialects.common import Dim
from rlx.errors import RlxError
from rlx.lowering.fft import emit_fft
from rlx.lowering.fft_passes import RADICES, radices_of
from rlx.lowering.log_mel import emit_log_mel
from rlx.lowering.signal import emit_welch_peaks
from rlx.reference.signal import fft, log_mel, power, welch_peaks
from rlx.runtime import jit

LENGTHS = [1, 2, 3, 4, 6, 8, 15, 16, 20, 27, 31, 32, 37, 48, 64, 77, 100, 128, 400, 1000, 1024]
TOLERANCE = {np.float32: 1e-12, np.float64: 1e-29}


def transform(
    level: str,
    n: int,
    kind: str = "forward",
    norm: str = "backward",
    dtype: type = np.float32,
    batch: tuple[Dim, ...] = ("rows",),
) -> Compiled:
    def build(args):
        op = signal.FftOp(signal.FftKind(kind), args[0], signal.FftNorm(norm))
        return [op], [op.result]

    names = [d for d in batch if isinstance(d, str)]
    return Compiled(level, block_of([typed(dtype, *batch, 2 * n)], build), emit_fft, names)


def given(seed: int, *shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# Transforms


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("n", LENGTHS)
def test_transform_against_float64(n: int, level: str):
    x = given(n, 3, 2 * n)
    (y,) = transform(level, n)([x], rows=3)
    assert nmse(y, fft(x.astype(np.float64))) < TOLERANCE[np.float32]


@pytest.mark.parametrize("n", [2, 12, 41, 60, 256])
@pytest.mark.parametrize("norm", ["backward", "forward", "ortho"])
@pytest.mark.parametrize("kind", ["forward", "inverse"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kinds_norms_and_elements(n: int, norm: str, kind: str, dtype: type):
    x = given(n, 2, 3, 2 * n, dtype=dtype)
    (y,) = transform("host", n, kind, norm, dtype, (2, 3))([x])
    assert nmse(y, fft(x.astype(np.float64), kind == "inverse", norm)) < TOLERANCE[dtype]


@pytest.mark.parametrize("radix", [r for r in RADICES if r > 5])
def test_every_radix(radix: int):
    n = 16 * radix
    assert radices_of(n) == [4, 4, radix]
    x = given(n, 2, 2 * n)
    (y,) = transform("host", n)([x], rows=2)
    assert nmse(y, fft(x.astype(np.float64))) < TOLERANCE[np.float32]


@pytest.mark.parametrize(
    ("n", "dtype"), [(51200, np.float32), (25600, np.float64), (8191, np.float32)]
)
def test_the_longest_rows(n: int, dtype: type):
    x = given(n, 1, 2 * n, dtype=dtype)
    (y,) = transform("host", n, dtype=dtype)([x], rows=1)
    assert nmse(y, fft(x.astype(np.float64))) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("n", "dtype", "most"),
    [
        (51201, np.float32, "51200 numbers, or 8192 where"),
        (8209, np.float32, "51200 numbers, or 8192 where"),
        (25608, np.float64, "25600 numbers, or 4096 where"),
    ],
)
def test_longer_rows_are_refused(n: int, dtype: type, most: str):
    with pytest.raises(RlxError, match=f"signal.fft: rows of {n} complex numbers need .* {most}"):
        transform("host", n, dtype=dtype)


def test_an_impulse_and_a_tone():
    n = 240
    x = np.zeros((2, 2 * n), np.float32)
    x[0, 0] = 1
    x[1, :n] = np.cos(2 * np.pi * 7 * np.arange(n) / n)
    (y,) = transform("host", n)([x], rows=2)
    np.testing.assert_array_equal(y[0], np.repeat([1, 0], n))
    tone = np.zeros(2 * n)
    tone[[7, n - 7]] = n / 2
    np.testing.assert_allclose(y[1], tone, atol=1e-4)


def test_what_went_forward_comes_back():
    x = given(5, 4, 2 * 360)
    (there,) = transform("host", 360)([x], rows=4)
    (back,) = transform("host", 360, "inverse")([there], rows=4)
    assert nmse(back, x) < 1e-12


@pytest.mark.parametrize("n", [7, 64, 100, 82])
def test_transforms_do_not_depend_on_threads_or_alignment(n: int):
    x, run = given(n, 5, 2 * n), transform("host", n)
    (one,) = run([x], rows=5)
    for threads, offset in ((2, 0), (3, 4), (9, 20)):
        (y,) = run([x], threads=threads, offset=offset, rows=5)
        np.testing.assert_array_equal(y.view(np.uint32), one.view(np.uint32))


def test_no_rows():
    (y,) = transform("host", 16)([given(1, 0, 32)], rows=0)
    assert y.shape == (0, 32)


def test_not_numbers_stay_in_their_row():
    x = given(3, 3, 64)
    x[1, 5] = np.nan
    (y,) = transform("host", 32)([x], rows=3)
    assert np.isnan(y[1, :32]).all()
    assert not np.isnan(y[[0, 2]]).any()


@pytest.mark.parametrize("cpu", ["aarch64", "sapphirerapids"])
def test_compiles_for_other_cpus(cpu: str, monkeypatch: pytest.MonkeyPatch):
    import bodies

    monkeypatch.setattr(bodies, "Kernel", lambda *_: None)
    module = transform(cpu, 400).module
    assert "ret" in jit.assembly(module.text, module.target)


# Peaks and bands


def peaks(level: str, n: int, k: int, segments: int, rows: int) -> Compiled:
    def build(args):
        op = signal.WelchPeaksOp(args[0], k, segments)
        return [op], [op.result]

    block = block_of([typed(np.float32, rows * segments, 2 * n)], build)
    return Compiled(level, block, emit_welch_peaks)


def assert_same_peaks(result: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(result[:, ::2], expected[:, ::2])
    np.testing.assert_allclose(result[:, 1::2], expected[:, 1::2], rtol=1e-6)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(
    ("n", "k", "segments"),
    [(1, 1, 1), (2, 2, 3), (9, 5, 2), (30, 16, 1), (256, 16, 4), (1000, 40, 2)],
)
def test_peaks_against_float64(n: int, k: int, segments: int, level: str):
    x = given(n + k, 3 * segments, 2 * n)
    (y,) = peaks(level, n, k, segments, 3)([x])
    assert_same_peaks(y, welch_peaks(x.astype(np.float64), k, segments))


def test_equal_powers_infinities_and_not_numbers():
    x = np.ones((4, 2 * 40), np.float32)
    x[1] = 0
    x[2, 7], x[2, 3], x[2, 4] = np.inf, np.nan, 2
    x[3] = np.nan
    (y,) = peaks("host", 40, 21, 1, 4)([x])
    with np.errstate(all="ignore"):
        expected = welch_peaks(x.astype(np.float64), 21, 1)
    np.testing.assert_array_equal(y, expected)


def test_peaks_of_many_segments():
    x = given(9, 2 * 3000, 2 * 16)
    (y,) = peaks("host", 16, 9, 3000, 2)([x])
    expected = welch_peaks(x.astype(np.float64), 9, 3000)
    assert_same_peaks(y, expected)
    assert nmse(y[:, 1::2], expected[:, 1::2]) < 1e-14


def test_longer_spectra_are_refused():
    with pytest.raises(RlxError, match="spectra of 131072 complex numbers need"):
        peaks("host", 1 << 17, 4, 1, 1)


def bands(level: str, width: int, mels: int, bins: int) -> Compiled:
    def build(args):
        op = signal.LogMelOp(args[0], args[1])
        return [op], [op.result]

    types = [typed(np.float32, "rows", width), typed(np.float32, mels, bins)]
    return Compiled(level, block_of(types, build), emit_log_mel, ["rows"])


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(("n", "mels"), [(1, 1), (9, 3), (60, 17), (30, 200), (400, 80)])
@pytest.mark.parametrize("given_power", [False, True])
def test_bands_against_float64(n: int, mels: int, given_power: bool, level: str):
    bins = n // 2 + 1
    x, filters = given(n, 7, 2 * n), np.abs(given(mels, mels, bins))
    filters[0] = 0
    wide = power(x.astype(np.float64))
    spectrum = wide.astype(np.float32) if given_power else x
    (y,) = bands(level, spectrum.shape[-1], mels, bins)([spectrum, filters], rows=7)
    assert nmse(y, log_mel(wide, filters.astype(np.float64))) < 1e-12


def test_many_bins_leave_room_for_fewer_bands():
    x, filters = given(1, 2, 2 * 4000), np.abs(given(2, 40, 2001))
    (y,) = bands("host", 8000, 40, 2001)([x, filters], rows=2)
    wide = power(x.astype(np.float64))
    assert nmse(y, log_mel(wide, filters.astype(np.float64))) < 1e-12
    with pytest.raises(RlxError, match=r"signal.log_mel: 6001 bins need .* bytes of stack"):
        bands("host", 24000, 40, 6001)


def test_bands_of_not_numbers():
    x, filters = given(1, 2, 32), np.abs(given(2, 5, 9))
    x[1, 3] = np.nan
    (y,) = bands("host", 32, 5, 9)([x, filters], rows=2)
    assert np.isnan(y[1]).all()
    assert not np.isnan(y[0]).any()


@pytest.mark.parametrize("make", ["peaks", "bands"])
def test_peaks_and_bands_do_not_depend_on_threads(make: str):
    x, filters = given(6, 10, 2 * 100), np.abs(given(7, 24, 51))
    run, arrays, sizes = peaks("host", 100, 8, 2, 5), [x], {}
    if make == "bands":
        run, arrays, sizes = bands("host", 200, 24, 51), [x, filters], {"rows": 10}
    (one,) = run(arrays, **sizes)
    for threads, offset in ((2, 4), (3, 0), (11, 8)):
        (y,) = run(arrays, threads=threads, offset=offset, **sizes)
        np.testing.assert_array_equal(y.view(np.uint32), one.view(np.uint32))


# Programs


def named(text: str) -> str:
    """Return IR in which types of f32 with a named first dimension may be short: [rows, 4]."""
    return re.sub(r"\[([a-z]+), (\d+)\]", r"tensor<?x\2xf32, #hir.dims<\1, _>>", text)


WHISPER = """
builtin.module attributes {rlx.dims = #hir.dim_table<frames = 1 to 3000>} {
  hir.weight @filters "filters" : tensor<80x201xf32>
  func.func @main(%x: [frames, 400] {rlx.name = "x"}, %w: tensor<400xf32> {rlx.name = "window"})
      -> ([frames, 80] {rlx.name = "mel"}) {
    %filters = hir.load_weight @filters : tensor<80x201xf32>
    %ws = mir.broadcast %w : tensor<400xf32> -> [frames, 400]
    %windowed = mir.binary mul %x, %ws : [frames, 400]
    %0 = mir.constant dense<0.0> : tensor<f32>
    %zero = mir.broadcast %0 : tensor<f32> -> [frames, 400]
    %complex = mir.concat axis 1 (%windowed, %zero)
        : ([frames, 400], [frames, 400]) -> [frames, 800]
    %s = signal.fft forward %complex : [frames, 800]
    %mel = signal.log_mel %s, %filters : [frames, 800], tensor<80x201xf32> -> [frames, 80]
    %top = mir.reduce max %mel axes [0, 1] : [frames, 80] -> tensor<f32>
    %8 = mir.constant dense<-8.0> : tensor<f32>
    %low = mir.binary add %top, %8 : tensor<f32>
    %lows = mir.broadcast %low : tensor<f32> -> [frames, 80]
    %clamped = mir.binary max %mel, %lows : [frames, 80]
    %4 = mir.constant dense<4.0> : tensor<f32>
    %fours = mir.broadcast %4 : tensor<f32> -> [frames, 80]
    %sum = mir.binary add %clamped, %fours : [frames, 80]
    %y = mir.binary div %sum, %fours : [frames, 80]
    func.return %y : [frames, 80]
  }
}
"""


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("threads", [1, 2])
def test_the_front_end_of_whisper(threads: int, level: str):
    x, window = given(1, 37, 400), np.hanning(400).astype(np.float32)
    filters = np.abs(given(2, 80, 201))
    run = rlx.compile(named(WHISPER), weights={"filters": filters}, threads=threads, target=level)
    wide = np.fft.rfft(x.astype(np.float64) * window, axis=-1)
    mel = np.log10(np.maximum(np.abs(wide) ** 2 @ filters.T.astype(np.float64), 1e-10))
    assert nmse(run(x, window), (np.maximum(mel, mel.max() - 8) + 4) / 4) < 1e-12


TONES = """
builtin.module attributes {rlx.dims = #hir.dim_table<b = 1 to 8, four = 4, rows = b * four>} {
  func.func @main(%x: [rows, 512] {rlx.name = "x"})
      -> ([rows, 512] {rlx.name = "s"}, [b, 4] {rlx.name = "p"}) {
    %s = signal.fft forward %x : [rows, 512]
    %p = signal.welch_peaks %s k 2 segments 4 : [rows, 512] -> [b, 4]
    func.return %s, %p : [rows, 512], [b, 4]
  }
}
"""


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("threads", [1, 2])
def test_two_tones_are_found_at_every_batch(threads: int, level: str):
    run = rlx.compile(named(TONES), threads=threads, target=level)
    t = np.arange(256) / 256
    for b in (1, 3, 8):
        x = given(b, 4 * b, 512) * 0.1
        x[:, :256] += 3 * np.cos(2 * np.pi * 20 * t) + 2 * np.cos(2 * np.pi * 33 * t)
        s, p = run(x, dims={"b": b})
        assert nmse(s, fft(x.astype(np.float64))) < 1e-12
        assert (p[:, ::2] == [20, 33]).all()
        assert_same_peaks(p, welch_peaks(fft(x.astype(np.float64)), 2, 4))


def test_a_signal_may_depend_on_what_is_known_before_the_first_step():
    """A transform of a weight runs once: its phase is the prologue's."""
    text = """
builtin.module {
  hir.weight @w "w" : tensor<2x16xf32>
  func.func @main(%x: tensor<2x16xf32> {rlx.name = "x"}) -> (tensor<2x16xf32> {rlx.name = "y"}) {
    %w = hir.load_weight @w : tensor<2x16xf32>
    %s = signal.fft forward %w : tensor<2x16xf32>
    %y = mir.binary add %x, %s : tensor<2x16xf32>
    func.return %y : tensor<2x16xf32>
  }
}
"""
    w, x = given(1, 2, 16), given(2, 2, 16)
    run = rlx.compile(text, weights={"w": w})
    assert "lir.launch @signal.fft prologue" in run.ir("lir")
    for _ in range(2):
        assert nmse(run(x), x + fft(w.astype(np.float64))) < 1e-12
