"""Signal operations: their types, their meaning in numpy, and the pass that keeps spectra back."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import f64
from xdsl.dialects.test import TestOp as Values
from xdsl.utils.exceptions import VerifyException

import rlx
from rlx.contract.opkind import OpKind
from rlx.dialects import mir, signal
from rlx.dialects.common import Dim, tensor
from rlx.errors import RlxError
from rlx.passes.dce import DcePass
from rlx.passes.diagnostics import IrError
from rlx.passes.fusion_report import FusionEntry, fusion_report
from rlx.passes.select_peaks_only_outputs import SelectPeaksOnlyOutputsPass
from rlx.passes.source import context, parse
from rlx.passes.verify_stage import verify_stage
from rlx.reference import Reference
from rlx.reference.signal import fft, log_mel, power, welch_peaks

RNG = np.random.default_rng(11)


def value(*dims: Dim):
    return Values(result_types=[tensor(dims)]).results[0]


# Types


def test_types_follow_from_the_operands():
    spectrum = value("batch", 6, 32)
    transform = signal.FftOp(signal.FftKind.INVERSE, spectrum, signal.FftNorm.ORTHO)
    peaks = signal.WelchPeaksOp(value(6, 32), 4, 3)
    bands = signal.LogMelOp(spectrum, value(5, 9))
    given = signal.LogMelOp(value("batch", 9), value(5, 9))
    for op in (transform, peaks, bands, given):
        op.verify()
    assert transform.result.type == spectrum.type
    assert peaks.result.type == tensor([2, 8])
    assert bands.result.type == tensor(["batch", 6, 5])
    assert (bands.is_complex, given.is_complex) == (True, False)
    assert [transform.length, peaks.length] == [16, 16]


def test_one_segment_keeps_a_dimension_with_a_name():
    assert signal.WelchPeaksOp(value("batch", 32), 4, 1).result.type == tensor(["batch", 8])
    with pytest.raises(VerifyException, match=r"a multiple of 2 segments, got \[batch, 32\]"):
        signal.WelchPeaksOp(value("batch", 32), 4, 2)


def test_the_table_says_whether_names_fit():
    text = """
builtin.module attributes {rlx.dims = #hir.dim_table<b = 1 to 4, n = SIZE, rows = b * n>} {
  func.func @main(%x: tensor<?x32xf32, #hir.dims<rows, _>> {rlx.name = "x"})
      -> (tensor<?x6xf32, #hir.dims<b, _>> {rlx.name = "p"}) {
    %p = signal.welch_peaks %x k 3 segments 2
        : tensor<?x32xf32, #hir.dims<rows, _>> -> tensor<?x6xf32, #hir.dims<b, _>>
    func.return %p : tensor<?x6xf32, #hir.dims<b, _>>
  }
}
"""
    verify_stage(module_of(text.replace("SIZE", "2")), "hir")
    for size in ("3", "1 to 2"):
        with pytest.raises(IrError, match=r"at every size, got \[rows, 32\] f32, \[b, 6\] f32"):
            verify_stage(module_of(text.replace("SIZE", size)), "hir")


def test_peaks_are_of_f32():
    doubles = Values(result_types=[tensor([6, 32], f64)]).results[0]
    with pytest.raises(VerifyException, match="expected elements of f32"):
        signal.WelchPeaksOp(doubles, 4, 3)


@pytest.mark.parametrize(
    ("kind", "norm", "factor"),
    [
        ("forward", "backward", 1.0),
        ("forward", "forward", 1 / 16),
        ("forward", "ortho", 1 / 4),
        ("inverse", "backward", 1 / 16),
        ("inverse", "forward", 1.0),
        ("inverse", "ortho", 1 / 4),
    ],
)
def test_a_norm_says_where_the_factor_is(kind: str, norm: str, factor: float):
    op = signal.FftOp(signal.FftKind(kind), value(3, 32), signal.FftNorm(norm))
    assert op.scale == factor


def test_kinds_are_those_of_the_contract():
    spectrum = value(6, 32)
    ops = [
        signal.FftOp(signal.FftKind.FORWARD, spectrum),
        signal.WelchPeaksOp(spectrum, 4, 3),
        signal.LogMelOp(spectrum, value(5, 9)),
    ]
    kinds = [mir.kind_of(op) for op in ops]
    assert kinds == [OpKind.FFT, OpKind.WELCH_PEAKS, OpKind.LOG_MEL]
    assert [k in rlx.host_sync_op_kinds() for k in kinds] == [False, True, True]
    assert set(mir.KINDS_BY_NAME) == {op.name for op in signal.Signal.operations}


def test_the_dialect_is_loaded_when_it_is_named():
    code = """
import sys
import rlx.dialects.hir, rlx.passes.source, rlx.passes.pipelines, rlx.reference, rlx.functions
ctx = rlx.passes.source.context()
parse = lambda text: rlx.passes.source.parse(ctx, text.encode(), "x")
parse("func.func @f(%x: tensor<4xf32>) { %y = mir.unary exp %x : tensor<4xf32> func.return }")
assert not any(m.endswith(".signal") for m in sys.modules), "loaded too early"
parse("func.func @f(%x: tensor<4xf32>) { %y = signal.fft forward %x : tensor<4xf32> func.return }")
assert "rlx.dialects.signal" in sys.modules and "rlx.reference.signal" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# Meaning


@pytest.mark.parametrize("n", [1, 2, 5, 12])
@pytest.mark.parametrize("norm", ["backward", "forward", "ortho"])
@pytest.mark.parametrize("inverse", [False, True])
def test_transforms_are_sums_of_their_definition(n: int, norm: str, inverse: bool):
    x = RNG.standard_normal((3, 2 * n))
    sign = 1 if inverse else -1
    roots = np.exp(sign * 2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n)
    factor = signal.FftOp(
        signal.FftKind("inverse" if inverse else "forward"), value(2 * n), signal.FftNorm(norm)
    ).scale
    expected = (x[:, :n] + 1j * x[:, n:]) @ roots * factor
    np.testing.assert_allclose(
        fft(x, inverse, norm), np.concatenate([expected.real, expected.imag], -1), atol=1e-12
    )


def plain_peaks(x: np.ndarray, k: int, segments: int) -> np.ndarray:
    """The definition of signal.welch_peaks, one bin at a time."""
    n = x.shape[1] // 2
    rows: list[list[float]] = []
    for first in range(0, len(x), segments):
        p = [
            sum(x[first + s, j] ** 2 + x[first + s, n + j] ** 2 for s in range(segments)) / segments
            for j in range(n // 2 + 1)
        ]

        def rank(j: int, p: list[float] = p) -> tuple[bool, float, int]:
            rises = j == 0 or p[j] > p[j - 1]
            falls = j == len(p) - 1 or p[j] >= p[j + 1]
            return not (rises and falls), 0.0 if math.isnan(p[j]) else -p[j], j

        best = sorted(range(len(p)), key=rank)[:k]
        rows.append([v for j in best for v in (float(j), p[j])])
    return np.array(rows)


@pytest.mark.parametrize(("n", "k", "segments"), [(1, 1, 1), (2, 2, 3), (9, 5, 2), (64, 33, 4)])
def test_peaks_are_those_of_their_definition(n: int, k: int, segments: int):
    x = RNG.standard_normal((3 * segments, 2 * n))
    x[0, n // 3] = np.nan
    x[-1] = 2.0  # equal powers
    np.testing.assert_allclose(welch_peaks(x, k, segments), plain_peaks(x, k, segments))


def test_peaks_come_before_what_is_beside_them():
    spectrum = np.zeros((1, 40))
    spectrum[0, [3, 4, 8, 9, 10]] = [3, 9, 2, 5, 2]
    spectrum[0, 20 + 6] = 1
    expected = [4, 81, 9, 25, 6, 1, 0, 0, 3, 9, 8, 4, 10, 4]
    np.testing.assert_array_equal(welch_peaks(spectrum, 7, 1)[0], expected)


def test_bands_are_those_of_whisper():
    """Up to its last two steps, as its authors' code computes them from |stft|^2."""
    x = RNG.standard_normal((2, 3, 2 * 400))
    filters = np.abs(RNG.standard_normal((80, 201)))
    filters[7] = 0
    magnitudes = np.abs(x[..., :201] + 1j * x[..., 400:601]) ** 2
    expected = np.log10(np.clip(np.einsum("mb,...b->...m", filters, magnitudes), 1e-10, None))
    np.testing.assert_allclose(log_mel(power(x), filters), expected)
    assert (expected[..., 7] == -10).all()


PROGRAM = """
builtin.module {
  func.func @main(%x: tensor<4x32xf32> {rlx.name = "x"}, %f: tensor<5x9xf32> {rlx.name = "f"})
      -> (tensor<4x32xf32> {rlx.name = "s"}, tensor<2x6xf32> {rlx.name = "p"},
          tensor<4x5xf32> {rlx.name = "m"}) {
    %s = signal.fft forward %x norm ortho : tensor<4x32xf32>
    %p = signal.welch_peaks %s k 3 segments 2 : tensor<4x32xf32> -> tensor<2x6xf32>
    %m = signal.log_mel %s, %f : tensor<4x32xf32>, tensor<5x9xf32> -> tensor<4x5xf32>
    func.return %s, %p, %m : tensor<4x32xf32>, tensor<2x6xf32>, tensor<4x5xf32>
  }
}
"""


def module_of(text: str):
    return parse(context(), text.encode(), "test")


def test_the_interpreter_runs_them():
    x, f = RNG.standard_normal((4, 32)), np.abs(RNG.standard_normal((5, 9)))
    results = Reference(module_of(PROGRAM), {}).run({"x": x, "f": f})
    s = fft(x, norm="ortho")
    np.testing.assert_array_equal(results["s"], s)
    np.testing.assert_array_equal(results["p"], welch_peaks(s, 3, 2))
    np.testing.assert_array_equal(results["m"], log_mel(power(s), f))


# Peaks only

SPECTRUM = """
builtin.module {
  func.func @main(%x: tensor<4x32xf32> {rlx.name = "x"}) -> (tensor<4x32xf32> {rlx.name = "y"}) {
    %s = signal.fft forward %x : tensor<4x32xf32>
    %p = signal.welch_peaks %s k 3 segments 2 : tensor<4x32xf32> -> tensor<2x6xf32>
    func.return %s : tensor<4x32xf32>
  }
}
"""


def selected(text: str, target: str) -> tuple[str, list[FusionEntry]]:
    module = module_of(text)
    SelectPeaksOnlyOutputsPass(target, report=True).apply(Context(), module)
    entries = fusion_report(module)
    module.attributes.clear()
    DcePass().apply(Context(), module)
    module.verify()
    return str(module), entries


def big(rows: int) -> str:
    return SPECTRUM.replace("4x32", f"{rows}x512").replace("2x6", f"{rows // 2}x6")


@pytest.mark.parametrize(
    ("rows", "fused"),
    [
        (4, "none"),
        (16384, "metal mlx"),
        (1 << 19, "metal mlx cuda rocm"),
        (1 << 21, "metal mlx cuda rocm wgpu tpu"),
    ],
)
def test_the_gate_of_a_target_decides_on_a_spectrum_alone(rows: int, fused: str):
    for target in ("cpu", "metal", "mlx", "cuda", "rocm", "wgpu", "tpu"):
        text, (entry,) = selected(big(rows), target)
        assert entry.fused == (target in fused.split())
        assert ("func.return %p" in text) == entry.fused
        assert ("signal.welch_peaks" in text) == entry.fused


@pytest.mark.parametrize("target", ["metal", "cuda", "wgpu"])
def test_both_need_no_gate(target: str):
    text, (entry,) = selected(PROGRAM, target)
    assert entry.fused
    assert entry.syncs_before == entry.syncs_after == 2
    assert (entry.host_bytes_before, entry.host_bytes_after) == (4 * (128 + 12 + 20), 4 * (12 + 20))
    assert 'rlx.name = "s"' not in text
    x, f = RNG.standard_normal((4, 32)), np.abs(RNG.standard_normal((5, 9)))
    before = Reference(module_of(PROGRAM), {}).run({"x": x, "f": f})
    after = Reference(module_of(text), {}).run({"x": x, "f": f})
    assert set(after) == {"p", "m"}
    for name, result in after.items():
        np.testing.assert_array_equal(result, before[name])


def test_a_cpu_keeps_both():
    text, (entry,) = selected(PROGRAM, "cpu")
    assert not entry.fused
    assert "host's memory" in entry.reason
    assert text == str(module_of(PROGRAM))


def test_peaks_take_the_place_and_the_name_of_the_spectrum():
    text, (entry,) = selected(big(16384), "metal")
    assert entry.fused
    small = text.replace("16384x512", "4x512").replace("8192x6", "2x6")
    x = RNG.standard_normal((4, 512))
    results = Reference(module_of(small), {}).run({"x": x})
    np.testing.assert_array_equal(results["y"], welch_peaks(fft(x), 3, 2))


def test_an_output_that_is_carried_stays():
    carried = PROGRAM.replace(
        "builtin.module {", 'builtin.module attributes {rlx.carry = {x = "s"}} {'
    )
    module = module_of(carried)
    SelectPeaksOnlyOutputsPass("wgpu", report=True).apply(Context(), module)
    assert fusion_report(module) == []
    assert str(module_of(carried)) in str(module).replace(", rlx.fusion_report = []", "")


def test_the_entry_is_read_back_and_printed():
    _, (entry,) = selected(big(16384), "metal")
    assert FusionEntry.from_attribute(entry.to_attribute()) == entry
    assert "syncs 0 -> 1, bytes to the host 33554432 -> 196608" in str(entry)


def test_an_unknown_target_is_named():
    with pytest.raises(RlxError, match="expected a target of metal"):
        SelectPeaksOnlyOutputsPass("vulkan").apply(Context(), module_of(PROGRAM))


# The contract's values


def profile(text: str) -> rlx.GraphIoProfile:
    return rlx.profile_graph_io(rlx.MirModule.from_ir(text).as_graph())


def test_peaks_of_a_spectrum_are_256_bytes_to_the_host():
    found = profile(
        """
func.func @main(%x: tensor<4x512xf32> {rlx.name = "x"}) -> (tensor<2x32xf32> {rlx.name = "p"}) {
  %p = signal.welch_peaks %x k 16 segments 2 : tensor<4x512xf32> -> tensor<2x32xf32>
  func.return %p : tensor<2x32xf32>
}"""
    )
    assert (found.host_output_bytes, found.sync_points, found.kernel_launches) == (256, 1, 1)


def test_a_transform_of_a_signal_beside_zeros():
    found = profile(
        """
func.func @main(%x: tensor<8x512xf32> {rlx.name = "x"}) -> (tensor<8x1024xf32> {rlx.name = "s"}) {
  %0 = mir.constant dense<0.0> : tensor<f32>
  %z = mir.broadcast %0 : tensor<f32> -> tensor<8x512xf32>
  %c = mir.concat axis 1 (%x, %z) : (tensor<8x512xf32>, tensor<8x512xf32>) -> tensor<8x1024xf32>
  %s = signal.fft forward %c : tensor<8x1024xf32>
  func.return %s : tensor<8x1024xf32>
}"""
    )
    assert (found.host_output_bytes, found.kernel_launches, found.sync_points) == (32768, 3, 0)
