"""Quantisation, against numbers worked out by hand and the specifications of the formats."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from by_hand import made, meaning
from kernels import levels
from op_cases import Batch, Drawn
from xdsl.dialects.builtin import f32, f64, i8, i32
from xdsl.utils.exceptions import VerifyException

from rlx.dialects.common import tensor
from rlx.ops.quant import DequantizeOp, FakeQuantizeLsqOp, FakeQuantizeOp, QuantizeOp
from rlx.ops.quant_products import QConv2dOp, QMatmulOp
from rlx.ops.quant_weights import DequantGroupedMatmulOp, DequantMatmulOp, DequantMoeWeightsOp
from rlx.ops.record import Case
from rlx.ops.registry import record_of
from rlx.ops.scaled import (
    FORMATS,
    ScaledDequantizeOp,
    ScaledQuantizeOp,
    ScaledQuantScaleOp,
)
from rlx.ops.scaled_products import ScaledGroupedMatmulOp, ScaledMatmulOp


def test_codes_by_hand():
    x = np.array([0.25, 0.75, -0.25, 1.0, 63.4, 1e9, -1e9, nan, inf])
    codes = meaning(QuantizeOp, x, np.array(0.5))
    np.testing.assert_array_equal(codes, [0, 2, 0, 2, 127, 127, -128, 0, 127])
    assert codes.dtype == np.int8
    moved = meaning(QuantizeOp, x[:4], np.array(0.5), np.array(-3, np.int32))
    np.testing.assert_array_equal(moved, [-3, -1, -3, -1])


def test_a_scale_of_each_place_of_an_axis():
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    by_row = meaning(QuantizeOp, x, np.array([1.0, 0.5]), axis=0)
    np.testing.assert_array_equal(by_row, [[1, 2], [6, 8]])
    by_column = meaning(QuantizeOp, x, np.array([1.0, 0.5]), axis=1)
    np.testing.assert_array_equal(by_column, [[1, 4], [3, 8]])


def test_floats_of_codes():
    q, zero = np.array([[-128, 0, 127]], np.int8), np.array([1, -1, 0], np.int32)
    y = meaning(DequantizeOp, q, np.array([0.5, 1, 2]), zero, axis=1)
    np.testing.assert_array_equal(y, [[-64.5, 1, 254]])
    np.testing.assert_array_equal(meaning(DequantizeOp, q, np.array(2.0)), [[-256, 0, 254]])


@pytest.mark.parametrize(("bits", "most"), [(8, 127), (4, 7), (2, 1)])
def test_fake_quantisation_has_the_codes_of_its_bits(bits: int, most: int):
    x = np.linspace(-3, 3, 1001)
    y = meaning(FakeQuantizeOp, x, bits=bits)
    np.testing.assert_allclose(np.unique(y), np.arange(-most, most + 1) * (3 / most), atol=1e-12)
    assert np.abs(x - y).max() <= 1.5 / most + 1e-12
    fixed = meaning(FakeQuantizeOp, x, np.array(1 / most), bits=bits, mode="fixed")
    learned = meaning(FakeQuantizeLsqOp, x, np.array(1 / most), bits=bits)
    np.testing.assert_array_equal(fixed, learned)
    assert np.abs(fixed).max() == 1


def test_fake_quantisation_of_zeros():
    np.testing.assert_array_equal(meaning(FakeQuantizeOp, np.zeros(4)), np.zeros(4))


def test_a_moving_scale():
    x = np.array([[127.0, 1.0], [0.5, 254.0]])
    y, scale = meaning(
        FakeQuantizeOp, x, np.array([3.0, 0.0]), axis=1, mode="ema", decay=0.75
    )  # fmt: skip
    np.testing.assert_allclose(scale, [0.75 * 3 + 0.25, 2.0])
    np.testing.assert_allclose(y, [[np.rint(127 / 2.5) * 2.5, 0], [0, 254]])


def test_products_of_codes_by_hand():
    x, w = np.array([[1, 2]], np.int8), np.array([[3, -4], [5, 6]], np.int8)
    np.testing.assert_array_equal(meaning(QMatmulOp, x, w), [[13, 8]])
    # (1 - 1)(3 - 2) + (2 - 1)(5 - 2) = 3, and (2 - 1)(6 - 2) = 4, plus the bias.
    bias = np.array([2, 1], np.int32)
    y = meaning(QMatmulOp, x, w, bias, x_zero=1, w_zero=2, out_zero=10, mult=0.5)
    np.testing.assert_array_equal(y, [[12, 12]])
    beyond = meaning(QMatmulOp, x, w, mult=100.0)
    np.testing.assert_array_equal(beyond, [[127, 127]])


def test_padding_of_codes_is_their_zero():
    x, w = np.full((1, 1, 3), 7, np.int8), np.ones((1, 1, 3), np.int8)
    y = meaning(QConv2dOp, x, w, low=(1,), x_zero=7)
    np.testing.assert_array_equal(y, np.zeros((1, 1, 3)))
    y = meaning(QConv2dOp, x, w, low=(1,), x_zero=6)
    np.testing.assert_array_equal(y, [[[2, 3, 2]]])


def test_weights_of_codes():
    x, q = np.array([[1.0, 1.0]]), np.array([[2], [4]], np.int8)
    y = meaning(DequantMatmulOp, x, q, np.array([[10.0], [1]]), np.array([[1.0], [0]]), block=1)
    np.testing.assert_array_equal(y, [[14]])


def test_weights_of_experts():
    x, q = np.eye(2), np.arange(8, dtype=np.int8).reshape(2, 2, 2)
    scale, zero = np.array([[[1.0, 2]], [[3, 4]]]), np.array([[[1.0, 0]], [[0, 1]]])
    wide = meaning(DequantMoeWeightsOp, q, scale, zero, block=2)
    np.testing.assert_array_equal(wide, [[[-1, 2], [1, 6]], [[12, 16], [18, 24]]])
    y = meaning(DequantGroupedMatmulOp, x, q, scale, zero, np.array([1, 0]), block=2)
    np.testing.assert_array_equal(y, [[12, 16], [1, 6]])


# Formats


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("e4m3", {0x00: 0, 0x01: 2**-9, 0x08: 2**-6, 0x38: 1, 0x7E: 448, 0x7F: nan, 0xFE: -448}),
        ("e5m2", {0x01: 2**-16, 0x04: 2**-14, 0x3C: 1, 0x7B: 57344, 0x7C: inf, 0xFC: -inf,
                  0x7D: nan}),
        ("e3m2", {0x01: 0.0625, 0x0C: 1, 0x1F: 28, 0x3F: -28}),
        ("e2m3", {0x01: 0.125, 0x08: 1, 0x1F: 7.5, 0x3F: -7.5}),
        ("e2m1", {0: 0, 1: 0.5, 2: 1, 3: 1.5, 4: 2, 5: 3, 6: 4, 7: 6, 15: -6}),
    ],
)  # fmt: skip
def test_numbers_of_the_specifications(name: str, codes: dict[int, float]):
    given = np.array(list(codes), np.uint8).view(np.int8)
    y = meaning(ScaledDequantizeOp, given, np.array(1.0), format=name)
    np.testing.assert_array_equal(y, list(codes.values()))


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_of_a_format_are_their_own_codes(name: str):
    f = FORMATS[name]
    codes = np.arange(1 << f.bits, dtype=np.uint8)
    codes = codes[(codes % (1 << (f.bits - 1)) <= f.largest) & (codes != 1 << (f.bits - 1))]
    numbers = meaning(ScaledDequantizeOp, codes.view(np.int8), np.array(0.5), format=name)
    back = meaning(ScaledQuantizeOp, numbers, np.array(0.5), format=name)
    np.testing.assert_array_equal(back.view(np.uint8), codes)
    # Half way between two, the even code.
    ordered = np.sort(numbers[numbers >= 0])
    middle = meaning(ScaledQuantizeOp, (ordered[1:] + ordered[:-1]) / 2, np.array(0.5), format=name)
    np.testing.assert_array_equal(middle % 2, 0)


def test_scales_of_blocks():
    x = np.array([[1.0, -6.0, 0.0, 0.0]])
    scale = meaning(ScaledQuantScaleOp, x, format="e2m1", block=2)
    np.testing.assert_allclose(scale, [[1, 1e-12]])
    assert meaning(ScaledQuantScaleOp, x, format="e4m3") == 6 / 448
    codes = meaning(ScaledQuantizeOp, x, scale, format="e2m1", block=2)
    np.testing.assert_array_equal(codes, [[2, 15, 0, 0]])


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("shape", [(2, 17), (3, 33), (5, 1)])
def test_the_last_code_of_a_row_is_one_byte(shape: tuple[int, int], level: str):
    """A lone lane that is cut from a wider one was stored with its bytes, beyond the result."""
    x = np.random.default_rng(1).uniform(-3, 3, shape).astype(np.float32)
    case = Case([x, np.float32(1)], lambda w, v: w.add_all(ScaledQuantizeOp(*v)))
    Batch([Drawn(record_of(ScaledQuantizeOp.name), "f32", 0, case)]).check([level])


def test_a_product_of_formats():
    x, w = np.array([[2, 4]], np.int8), np.array([[0x0C, 0x0C], [0x2C, 0x0C]], np.int8)
    y = meaning(ScaledMatmulOp, x, w, np.array(10.0), np.array(1.0), np.array([0.5, 0.0]),
                x_format="e2m1", w_format="e3m2")  # fmt: skip
    np.testing.assert_array_equal(y, [[30.5, 10]])


def test_rows_of_formats_have_matrices_of_their_own():
    x, w = np.array([[2, 4], [2, 2]], np.int8), np.array([[[2, 2]], [[4, 0]]], np.int8)
    y = meaning(ScaledGroupedMatmulOp, x, w, np.array(1.0), np.array(0.5), np.array([1, 0]),
                x_format="e2m1", w_format="e2m1")  # fmt: skip
    np.testing.assert_array_equal(y, [[1], [1]])


@pytest.mark.parametrize(
    ("op", "types", "options", "wanted"),
    [
        (QuantizeOp, (([4], f32), ([4], f32)), {}, "a scale []"),
        (QuantizeOp, (([4], f32), ([4], f32)), {"axis": 1}, "an axis of the first operand"),
        (QuantizeOp, (([4], f32), ([], f64)), {}, "a scale of the first operand's element type"),
        (QuantizeOp, (([4], f32), ([], f32)), {"to": "i16"}, "expected one of i8"),
        (DequantizeOp, (([4], i8), ([], f32), ([], i8)), {}, "a zero point of it, i32"),
        (FakeQuantizeOp, (([4], f32),), {"bits": 3}, "one of 8, 4, 2"),
        (FakeQuantizeOp, (([4], f32),), {"mode": "fixed"}, "2 operands"),
        (QMatmulOp, (([2, 3], i8), ([4, 2], i8)), {}, "[m, k], [k, n]"),
        (QMatmulOp, (([2, 3], i8), ([3, 2], f32)), {}, "operands of i8, i8"),
        (QMatmulOp, (([2, 3], i8), ([3, 2], i8), ([3], i32)), {}, "a bias [n]"),
        (QMatmulOp, (([2, 3], i8), ([3, 2], i8)), {"x_zero": 200}, "zero points from -128"),
        (DequantMatmulOp, (([2, 6], f32), ([6, 2], i8), *[([2, 2], f32)] * 2), {"block": 4},
         "[k / 4, n]"),
        (ScaledQuantizeOp, (([4, 6], f32), ([4, 2], f32)), {"block": 4}, "whole blocks of 4"),
        (ScaledMatmulOp, (([2, 4], i8), ([4, 2], i8), ([], f32), ([], f32)), {}, "[n, k]"),
    ],
)  # fmt: skip
def test_what_does_not_fit(op: type, types: tuple, options: dict, wanted: str):
    with pytest.raises(VerifyException) as error:
        made(op, [tensor(dims, element) for dims, element in types], **options)
    assert wanted in str(error.value)
    assert op.name in str(error.value)
