"""
Operations against what torch, transformers and scipy gave: the golden files of `make oracle`.

`tests/oracle` says how they were made; inputs come from seeds there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import oracles
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from oracles import Values, assert_golden, named, run, windows
from xdsl.ir import SSAValue

from rlx.dialects import signal
from rlx.dialects.common import dims_of
from rlx.dialects.kinds import BinaryKind, ReduceKind
from rlx.dialects.writer import Writer

inputs = oracles.inputs

# Signals


def frames_of(x: np.ndarray, length: int, hop: int) -> np.ndarray:
    return np.ascontiguousarray(sliding_window_view(x, length)[::hop])


def spectrum_of(w: Writer, frames: SSAValue, window: SSAValue) -> SSAValue:
    """Write the transforms of windowed frames `[n, length]`."""
    dims = dims_of(frames.type)
    windowed = w.binary(BinaryKind.MUL, frames, w.spread(window, dims))
    zeros = w.binary(BinaryKind.MUL, windowed, 0.0)
    return w.add(signal.FftOp(signal.FftKind.FORWARD, w.concat(1, [windowed, zeros])))


def test_log_mel_is_the_front_end_of_whisper():
    """With its last steps: at most eight below the largest, scaled."""
    want = inputs.golden("whisper")
    padded = np.pad(inputs.sound(), inputs.FFT // 2, mode="reflect")
    # The extractor leaves the last frame out.
    frames = frames_of(padded, inputs.FFT, inputs.HOP)[:-1]
    window = np.hanning(inputs.FFT + 1)[:-1].astype(np.float32)

    def build(w: Writer, v: Values) -> Sequence[SSAValue]:
        spectrum = spectrum_of(w, v["frames"], v["window"])
        bands = w.add(signal.LogMelOp(spectrum, v["filters"]))
        dims = dims_of(bands.type)
        most = w.reduce(ReduceKind.MAX, bands, [0, 1])
        least = w.spread(w.binary(BinaryKind.SUB, most, 8.0), dims)
        kept = w.binary(BinaryKind.MAX, bands, least)
        return [w.binary(BinaryKind.DIV, w.binary(BinaryKind.ADD, kept, 4.0), 4.0)]

    filters = np.ascontiguousarray(want["filters"])
    (got,) = run({"frames": frames, "window": window, "filters": filters}, build)
    assert_golden(got.T, want["features"], 1e-10)


def test_welch_peaks_are_those_of_scipy():
    want, sizes = inputs.golden("welch"), inputs.WELCH
    frames = frames_of(inputs.sound(), sizes["length"], sizes["hop"])
    window = np.hanning(sizes["length"] + 1)[:-1].astype(np.float32)

    def build(w: Writer, v: Values) -> Sequence[SSAValue]:
        spectrum = spectrum_of(w, v["frames"], v["window"])
        return [w.add(signal.WelchPeaksOp(spectrum, sizes["peaks"], len(frames)))]

    (got,) = run({"frames": frames, "window": window}, build)
    bins, power = got.reshape(-1, 2).T
    np.testing.assert_array_equal(bins, want["bins"])
    # Scipy scales by the sum of the window.
    assert_golden(power / np.float32(window.sum() ** 2), want["power"])


@pytest.mark.parametrize("norm", signal.FftNorm)
@pytest.mark.parametrize("n", [1, 2, 12, 97, 256, 1000])
def test_fft_is_that_of_numpy(n: int, norm: signal.FftNorm):
    x = np.random.default_rng(n).standard_normal((3, 2 * n))

    def build(w: Writer, v: Values) -> Sequence[SSAValue]:
        return [w.add(signal.FftOp(kind, v["x"], norm)) for kind in signal.FftKind]

    given = x[:, :n] + 1j * x[:, n:]
    got = run({"x": x}, build)
    for result, function in zip(got, (np.fft.fft, np.fft.ifft), strict=True):
        want = function(given, norm=norm.value)
        assert_golden(result, np.concatenate([want.real, want.imag], 1), 1e-28)


def test_log_mel():
    want, arrays = inputs.golden("log_mel"), inputs.log_mel()
    pair = {name: arrays[name] for name in ("spectrum", "filters")}
    (got,) = run(pair, lambda w, v: [w.add(signal.LogMelOp(*v.values()))])
    assert_golden(got, want["bands"])


# Convolutions, pools and resizing


@pytest.mark.parametrize("name", inputs.CONVOLUTIONS)
def test_convolutions(name: str):
    want, arrays = inputs.golden(name), inputs.convolution(name)
    options = windows(inputs.CONVOLUTIONS[name]["options"])
    (got,) = run(arrays, lambda w, v: w.add_all(named("vision.conv", *v.values(), **options)))
    assert_golden(got, want["y"])


@pytest.mark.parametrize("name", inputs.TRANSPOSED)
def test_transposed_convolutions(name: str):
    case = inputs.TRANSPOSED[name]
    options = {**windows(case["options"]), "extra": case["extra"]}
    arrays = inputs.convolution(name)
    (got,) = run(
        arrays, lambda w, v: w.add_all(named("vision.conv_transpose", *v.values(), **options))
    )
    assert_golden(got, inputs.golden(name)["y"])


@pytest.mark.parametrize("name", inputs.POOLS)
def test_pools(name: str):
    p = dict(inputs.POOLS[name])
    arrays = inputs.random(name, {"x": p.pop("shape")})
    (got,) = run(arrays, lambda w, v: w.add_all(named("vision.pool", v["x"], **windows(p))))
    assert_golden(got, inputs.golden(f"pool_{name}")["y"])


@pytest.mark.parametrize("name", inputs.RESIZES)
def test_resizing(name: str):
    r = inputs.RESIZES[name]
    ways = {"nearest": ("asymmetric", "floor"), "nearest_exact": ("half_pixel", "half_up")}
    coordinates, rounding = ways.get(name, ("half_pixel", "floor"))
    mode = next(m for m in ("nearest", "linear", "cubic") if m in name)
    options = {
        "sizes": r["sizes"],
        "mode": mode,
        "coordinates": "align_corners" if r["corners"] else coordinates,
        "rounding": rounding,
    }
    arrays = inputs.random(name, {"x": r["shape"]})
    (got,) = run(arrays, lambda w, v: w.add_all(named("vision.resize", v["x"], **options)))
    assert_golden(got, inputs.golden(f"resize_{name}")["y"])


# Norms


def test_norms():
    want, eps = inputs.golden("norms"), inputs.EPS

    def build(w: Writer, v: Values) -> Sequence[SSAValue]:
        x, last, each = v["x"], (v["last"], v["shift"]), (v["gamma"], v["beta"])
        statistics = v["mean"], v["variance"]
        return [
            w.add(named("norm.layer_norm", x, *last, eps=eps)),
            w.add(named("norm.rms_norm", x, *last, eps=eps)),
            w.add(named("norm.group_norm", x, *each, groups=inputs.GROUPS, eps=eps)),
            w.add(named("norm.layer_norm_2d", x, *each, eps=eps)),
            w.add(named("norm.batch_norm_inference", x, *each, *statistics, eps=eps)),
        ]

    arrays = inputs.norms()
    del arrays["upstream"]
    for name, got in zip(
        ("layer", "rms", "group", "layer_2d", "batch"), run(arrays, build), strict=True
    ):
        assert_golden(got, want[name])


# Recurrent nets


@pytest.mark.parametrize("kind", inputs.GATES)
@pytest.mark.parametrize("name", ["forward", "both"])
def test_recurrent_layers(kind: str, name: str):
    want, given = inputs.golden(kind), inputs.recurrent(kind)
    ends = ("",) if name == "forward" else ("", "_reverse")

    def joined(*names: str) -> np.ndarray:
        """Return parameters of each direction: `[dirs, ...]`, or `[dirs, names, ...]`."""
        rows = [[given[f"{n}{end}"] for n in names] for end in ends]
        return np.array(rows) if len(names) > 1 else np.array(rows)[:, 0]

    arrays = {
        "x": given["x"],
        "w": joined("weight_ih_l0"),
        "r": joined("weight_hh_l0"),
        "b": joined("bias_ih_l0", "bias_hh_l0"),
        "h": given["h"][: len(ends)],
    }
    if kind == "lstm":
        arrays["c"] = given["c"][: len(ends)]
    options = {"bias": True, "state": True}
    got = run(arrays, lambda w, v: w.add_all(named(f"recurrent.{kind}", *v.values(), **options)))
    for key, value in zip(("y", "h", "c"), got, strict=False):
        assert_golden(value, want[f"{name}_{key}"])
