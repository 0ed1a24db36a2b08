"""Running sums, products and extremes, and where the largest is: by hand and against numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from by_hand import made, meaning
from kernels import levels
from xdsl.dialects.builtin import f16, i1
from xdsl.utils.exceptions import VerifyException

from rlx.dialects.common import tensor
from rlx.flow.source import MapWeights
from rlx.functions import CompiledFunction, build
from rlx.lowering.target import Target
from rlx.ops.cumulative import ArgReduceOp, CumulateOp
from rlx.ops.grad_indexing import CumsumBackwardOp
from rlx.passes.source import context, parse

RNG = np.random.default_rng(5)
Function = Callable[..., list[np.ndarray]]
DTYPES = {"f32": "f4", "f64": "f8", "i8": "i1", "i16": "i2", "i32": "i4", "i64": "i8", "ui8": "u1"}
NUMPY = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
SHAPES = (
    (0, 4, 3),
    (2, 0, 3),
    (3, 4, 0),
    (1, 1, 1),
    (2, 37, 5),
    (3, 5, 37),
    (1, 16, 200),
    (4, 1, 16),
)
DIMS = "attributes {rlx.dims = #hir.dim_table<a = 0 to any, b = 0 to any, c = 0 to any>}"


def named(op: str, axis: int, level: str = "host", elements: Sequence[str] = ("f32",)) -> Function:
    """Return a function of tensors of any sizes, one of each element, on one thread and on two."""
    left = [d for i, d in enumerate("abc") if i != axis]
    ins = [f"tensor<?x?x?x{e}, #hir.dims<a, b, c>>" for e in elements]
    outs = [f"tensor<?x?xi64, #hir.dims<{', '.join(left)}>>"] * len(ins) if "arg" in op else ins
    args = ", ".join(f'%x{i}: {t} {{rlx.name = "x{i}"}}' for i, t in enumerate(ins))
    results = ", ".join(f'{t} {{rlx.name = "y{i}"}}' for i, t in enumerate(outs))
    names = ", ".join(f"%y{i}" for i in range(len(outs)))
    ops = [
        f"%y{i} = cumulative.{op.replace(' ', f'(%x{i}) ', 1)} axis {axis} : ({x}) -> {y}"
        for i, (x, y) in enumerate(zip(ins, outs, strict=True))
    ]
    text = f"""builtin.module {DIMS} {{
      func.func @main({args}) -> ({results}) {{
        {chr(10).join(ops)}
        func.return {names} : {", ".join(outs)}
      }}
    }}"""
    built = build(parse(context(), text.encode(), "test"), Target.named(level))
    functions = [CompiledFunction(built, MapWeights({}), n, poison=True) for n in (1, 2)]

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        one, two = (f(*arrays) for f in functions)
        both = [y if isinstance(y, tuple) else (y,) for y in (one, two)]
        for y, z in zip(*both, strict=True):
            np.testing.assert_array_equal(y, z)
        return list(both[0])

    return run


def numbers(shape: tuple[int, ...], element: str, kind: str) -> np.ndarray:
    """Return numbers whose sums and products are exact, in any order, and some that aren't."""
    if element[0] != "f":
        info = np.iinfo(DTYPES[element])
        return RNG.integers(info.min, info.max, shape, DTYPES[element], endpoint=True)
    if kind == "prod":
        x = RNG.choice([-1.0, 1.0, 2.0, 0.5], shape)
    else:
        x = RNG.integers(-64, 64, shape) / 4
    for value in (np.nan, np.inf, -np.inf):
        x[RNG.random(shape) < 0.01] = value
    return x.astype(DTYPES[element])


def accumulated(x: np.ndarray, kind: str, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
    """What numpy's own function gives, and before it the identity."""
    moved = np.moveaxis(x, axis, 0)
    moved = moved[::-1] if reverse else moved
    with np.errstate(all="ignore"):
        result = NUMPY[kind].accumulate(moved, 0, dtype=x.dtype)
    if exclusive:
        limits = np.finfo(x.dtype) if x.dtype.kind == "f" else np.iinfo(x.dtype)
        worst = (-np.inf, np.inf) if x.dtype.kind == "f" else (limits.min, limits.max)
        first = {"sum": 0, "prod": 1, "max": worst[0], "min": worst[1]}[kind]
        result = np.concatenate([np.full_like(moved[:1], first), result[:-1]])
    return np.moveaxis(result[::-1] if reverse else result, 0, axis)


# What they mean


def test_running_combinations_by_hand():
    x = np.array([[1.0, 3.0, 2.0], [4.0, 0.5, 9.0]])
    assert meaning(CumulateOp, x).tolist() == [[1, 4, 6], [4, 4.5, 13.5]]
    assert meaning(CumulateOp, x, axis=0, kind="prod").tolist() == [[1, 3, 2], [4, 1.5, 18]]
    assert meaning(CumulateOp, x, exclusive=True).tolist() == [[0, 1, 4], [0, 4, 4.5]]
    assert meaning(CumulateOp, x, reverse=True).tolist() == [[6, 5, 2], [13.5, 9.5, 9]]
    got = meaning(CumulateOp, x, kind="max", exclusive=True, reverse=True)
    assert got.tolist() == [[3, 2, -np.inf], [9, 9, -np.inf]]
    assert meaning(CumulateOp, np.array([100, 100, 100], np.int8)).tolist() == [100, -56, 44]
    got = meaning(CumulateOp, np.array([3, 1], np.int8), kind="min", exclusive=True)
    assert got.tolist() == [127, 3]


def test_indices_of_extremes_by_hand():
    x = np.array([[2.0, 5.0, 5.0], [np.nan, 7.0, np.nan], [-1.0, -0.0, 0.0]])
    assert meaning(ArgReduceOp, x).tolist() == [1, 0, 1]
    assert meaning(ArgReduceOp, x, kind="min").tolist() == [0, 0, 0]
    assert meaning(ArgReduceOp, x, axis=0).tolist() == [1, 1, 1]
    assert meaning(ArgReduceOp, np.zeros((2, 0))).tolist() == [0, 0]


def test_the_gradient_of_sums_is_their_transpose():
    x, upstream = RNG.random((2, 3, 7, 2))
    for exclusive in (False, True):
        for reverse in (False, True):
            o = {"axis": 1, "exclusive": exclusive, "reverse": reverse}
            sums, gradient = meaning(CumulateOp, x, **o), meaning(CumsumBackwardOp, upstream, **o)
            np.testing.assert_allclose((sums * upstream).sum(), (x * gradient).sum())


# The kernels


@pytest.mark.parametrize("kind", NUMPY)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_running_combinations_are_those_of_numpy(
    axis: int, kind: str, fuzz_count: Callable[[int, int], int]
):
    # A sample has two of the four variants for each axis.
    for turn in range(axis, axis + fuzz_count(4, 2)):
        level = levels()[(turn + axis) % len(levels())]
        exclusive, reverse = bool(turn & 1), bool(turn & 2)
        op = f"cumulate kind {kind} exclusive {exclusive} reverse {reverse}".lower()
        f = named(op, axis, level, list(DTYPES))
        for shape in SHAPES:
            arrays = [numbers(shape, element, kind) for element in DTYPES]
            for x, got in zip(arrays, f(*arrays), strict=True):
                want = accumulated(x, kind, axis, exclusive, reverse)
                np.testing.assert_array_equal(got, want, f"{op}, {x.dtype} {shape}, {level}")


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_indices_of_extremes_are_those_of_numpy(axis: int, kind: str, level: str):
    f = named(f"arg_reduce kind {kind}", axis, level, list(DTYPES))
    for shape in (*SHAPES, (2, 3, 700), (2, 700, 3)):
        arrays = [numbers(shape, element, "sum") for element in DTYPES]
        if RNG.random() < 0.5:
            arrays = [np.where(RNG.random(shape) < 0.9, x.dtype.type(1), x) for x in arrays]
        for x, got in zip(arrays, f(*arrays), strict=True):
            if shape[axis] == 0:
                assert not got.any()
                continue
            want = (np.argmax if kind == "max" else np.argmin)(x, axis)
            np.testing.assert_array_equal(got, want, f"{kind}, {x.dtype} {shape}, {level}")


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_the_first_of_equals_wherever_it_is(kind: str, axis: int):
    """One extreme, two of them, only the worst number, and NaN before and after: all places."""
    f = named(f"arg_reduce kind {kind}", axis, "host", ["f32", "f64"])
    n, sign = 83, 1 if kind == "max" else -1
    x = np.zeros((6, n, n), np.float32)
    for i in range(n):
        x[0, i, i] = sign
        x[1, i, i:] = sign
        x[2, i, i] = np.nan
        x[3, i, i:] = np.nan
        x[4, i, :i] = -sign * np.inf
    x[5] = -sign * np.inf
    x = np.swapaxes(x, 2, axis)
    for got in f(x, x.astype(np.float64)):
        assert (got[:5] == np.arange(n)).all()
        assert not got[5].any()


def test_sums_of_long_rows_are_not_worse_than_numpys():
    x = RNG.random((4, 1 << 18)).astype(np.float32)[None]
    exact = np.cumsum(x.astype(np.float64), -1)
    got = named("cumulate ", 2)(x)[0]
    errors = [np.square(y - exact).mean() for y in (got, np.cumsum(x, -1))]
    assert errors[0] <= errors[1]


def test_zeros_keep_their_sign():
    x = np.full((1, 3, 35), -0.0, np.float32)
    for axis in (1, 2):
        for kind in NUMPY:
            f = named(f"cumulate kind {kind}", axis)
            want = NUMPY[kind].accumulate(x, axis)
            np.testing.assert_array_equal(np.signbit(f(x)[0]), np.signbit(want))


# What is refused


def test_operands_that_do_not_fit():
    def refused(message: str, *args: object, **options: object) -> None:
        with pytest.raises(VerifyException, match=message):
            made(*args, **options)  # pyright: ignore: wrong operands are the point

    x = tensor([4, 5])
    for op in (CumulateOp, ArgReduceOp):
        refused("an axis of 2 dimensions as `axis` 2", op, [x], axis=2)
        refused("expected elements of f32", op, [tensor([3], f16)])
        refused("expected elements of f32", op, [tensor([3], i1)])
        refused("an axis of 0 dimensions", op, [tensor([])])
        refused("kind: expected one of", op, [x], kind="mean")
        refused("1 operands", op, [x, x])
