"""Operations on tensors of any shape, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from by_hand import expanded, made, meaning
from xdsl.dialects.builtin import f32, i1, i32, i64
from xdsl.utils.exceptions import VerifyException

from rlx.dialects.common import tensor
from rlx.dialects.named import Option
from rlx.ops.tensor_maps import (
    ArangeOp,
    ComplexNormSqOp,
    ConjugateOp,
    FmaOp,
    LinspaceOp,
    OneHotOp,
    StopGradientOp,
    WhereOp,
)
from rlx.ops.tensor_moves import ExpandOp, PadOp, SliceOp, StackOp

X = np.array([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("constant", [9, 9, 1, 2, 3, 9]),
        ("edge", [1, 1, 1, 2, 3, 3]),
        ("reflect", [3, 2, 1, 2, 3, 2]),
        ("symmetric", [2, 1, 1, 2, 3, 3]),
        ("wrap", [2, 3, 1, 2, 3, 1]),
    ],
)
def test_padding(mode: str, wanted: list[float]):
    y = meaning(PadOp, X, low=(2,), high=(1,), mode=mode, value=9.0)
    np.testing.assert_array_equal(y, wanted)


def test_an_axis_that_stays_may_have_a_name():
    op = made(PadOp, [tensor(["n", 3])], low=(0, 2), high=(0, 0), mode="reflect")
    assert op.res[0].type == tensor(["n", 5])


def test_slices_forwards_and_backwards():
    x = np.arange(12).reshape(3, 4)
    y = meaning(SliceOp, x, axes=(1,), starts=(3,), sizes=(2,), steps=(-2,))
    np.testing.assert_array_equal(y, x[:, 3::-2])
    y = meaning(SliceOp, x, axes=(1, 0), starts=(1, 2), sizes=(3, 3), steps=(1, -1))
    np.testing.assert_array_equal(y, x[::-1, 1:])
    names = expanded(SliceOp, [tensor([5])], axes=(0,), starts=(4,), sizes=(3,), steps=(-2,))
    assert names == ["slice", "reverse"]


def test_stacks():
    y = meaning(StackOp, X, X + 10, axis=1)
    np.testing.assert_array_equal(y, [[1, 11], [2, 12], [3, 13]])


def test_repetition():
    y = meaning(ExpandOp, X.reshape(3, 1), shape=(2, -1, 2))
    np.testing.assert_array_equal(y, np.broadcast_to(X.reshape(3, 1), (2, 3, 2)))
    assert made(ExpandOp, [tensor(["n", 1])], shape=(4, -1, 3)).res[0].type == tensor([4, "n", 3])


def test_broadcasting_of_three():
    c = np.array([[True], [False]])
    np.testing.assert_array_equal(meaning(WhereOp, c, X, np.array(0.0)), [X, [0, 0, 0]])
    np.testing.assert_array_equal(meaning(FmaOp, X, np.array([[2.0], [3]]), X), [3 * X, 4 * X])
    named = [tensor(["n", 1], i1), tensor([4]), tensor(["n", 1])]
    assert made(WhereOp, named).res[0].type == tensor(["n", 4])


def test_one_of_many():
    ids = np.array([1, -1, 3, 0])
    y = meaning(OneHotOp, ids, depth=3, axis=0, on=2.0, off=-1.0)
    np.testing.assert_array_equal(y.T, [[-1, 2, -1], [-1] * 3, [-1] * 3, [2, -1, -1]])


def test_complex_numbers():
    x = np.array([[3.0, 0, 4, -1]])
    np.testing.assert_array_equal(meaning(ComplexNormSqOp, x), [[25, 1]])
    np.testing.assert_array_equal(meaning(ConjugateOp, x), [[3, 0, -4, 1]])


def test_sequences():
    np.testing.assert_array_equal(meaning(ArangeOp, count=3, start=5.0, step=-2.0, to="i32"),
                                  np.array([5, 3, 1], np.int32))  # fmt: skip
    np.testing.assert_allclose(meaning(ArangeOp, count=3, start=0.5, step=0.1), [0.5, 0.6, 0.7])
    np.testing.assert_allclose(meaning(LinspaceOp, count=5, start=-1.0), [-1, -0.5, 0, 0.5, 1])
    np.testing.assert_array_equal(meaning(LinspaceOp, count=1, start=3.0, stop=9.0), [3])
    assert meaning(LinspaceOp, count=0).shape == (0,)


def test_a_stopped_gradient_is_the_value_itself():
    assert expanded(StopGradientOp, [tensor([3])]) == []


@pytest.mark.parametrize(
    ("op", "types", "options", "wanted"),
    [
        (PadOp, (([3], f32),), {"low": (1, 1), "high": (1, 1)}, "three counts for each axis"),
        (PadOp, (([3], f32),), {"low": (-1,), "high": (0,)}, "counts from 0"),
        (PadOp, ((["n"], f32),), {"low": (1,), "high": (0,)}, "a name for the padded dimension"),
        (PadOp, (([0], f32),), {"low": (1,), "high": (0,), "mode": "edge"}, "can be padded with"),
        (SliceOp, (([3], f32),), {"axes": (0,), "starts": (0,), "sizes": (4,), "steps": (1,)},
         "elements 0, 1, ... to 3 within axis 0"),
        (SliceOp, (([3], f32),), {"axes": (0,), "starts": (1,), "sizes": (3,), "steps": (-1,)},
         "elements 1, 0, ... to -1 within axis 0"),
        (SliceOp, ((["n"], f32),), {"axes": (0,), "starts": (0,), "sizes": (1,), "steps": (1,)},
         "within axis 0"),
        (SliceOp, (([3], f32),), {"axes": (0,)}, "a start, a size and a step"),
        (StackOp, (([3], f32), ([2], f32)), {}, "operands of one type"),
        (StackOp, (([3], f32),), {"axis": 2}, "an axis from 0 to 1"),
        (ExpandOp, (([3], f32),), {"shape": (2,)}, "those of the result or 1"),
        (ExpandOp, (([3], f32),), {"shape": (-1, 3)}, "sizes for all dimensions"),
        (WhereOp, (([3], f32), ([3], f32), ([3], f32)), {}, "a condition of i1"),
        (FmaOp, (([3], f32), ([2], f32), ([], f32)), {}, "equal or 1"),
        (FmaOp, (([3], f32), ([3], i32), ([3], f32)), {}, "one element type"),
        (OneHotOp, (([3], f32),), {}, "expected elements of i32, i64"),
        (ConjugateOp, (([3], f32),), {}, "[..., 2n]"),
        (ArangeOp, (), {"to": "i64", "step": 0.5}, "whole numbers"),
        (LinspaceOp, (([3], i64),), {}, "0 operands"),
    ],
)  # fmt: skip
def test_what_does_not_fit(op: type, types: tuple, options: dict[str, Option], wanted: str):
    with pytest.raises(VerifyException) as error:
        made(op, [tensor(dims, element) for dims, element in types], **options)
    assert wanted in str(error.value)
    assert op.name in str(error.value)
