"""What maps and casts mean, element by element, against formulas written a second time."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from references import ELEMENTS, INTEGERS, close, run, same, typed

from rlx.dialects.kinds import BinaryKind, CompareKind, UnaryKind

# Maps


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


UNARY: dict[str, Callable[[float], float]] = {
    "neg": lambda x: -x,
    "abs": abs,
    "sign": lambda x: (x > 0) - (x < 0),
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "recip": lambda x: 1 / x,
    "exp": math.exp,
    "log": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "atan": math.atan,
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "log_sigmoid": log_sigmoid,
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * (0.5 - math.erf(-x / math.sqrt(2)) / 2),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    ),
    "relu": lambda x: max(x, 0.0),
    "elu": lambda x: x if x > 0 else math.exp(x) - 1,
    "softplus": lambda x: math.log(1 + math.exp(x)),
    "softsign": lambda x: x / (1 + abs(x)),
    "hard_sigmoid": lambda x: min(max(x / 6 + 0.5, 0), 1),
    "hard_swish": lambda x: x * min(max((x + 3) / 6, 0), 1),
    "mish": lambda x: x * math.tanh(math.log(1 + math.exp(x))),
}
POSITIVE = ("sqrt", "rsqrt", "log")


@pytest.mark.parametrize("kind", [k for k in UnaryKind if k != UnaryKind.NOT])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unary(kind: str, dtype: type):
    x = (np.random.default_rng(4).standard_normal((3, 5)) * 3).astype(dtype)
    x[0, :2] = 2.5, -0.5
    x = np.abs(x) if kind in POSITIVE else x
    wanted = np.vectorize(UNARY[kind], otypes=[float])(x.astype(float))
    y = run(f"mir.unary {kind} %x : $x", typed(x), x=x)
    # The formulas here cancel in the tails.
    np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-14)
    assert run(f"mir.unary {kind} %x : $x", typed(x), np.float32, x=x).dtype == dtype


@pytest.mark.parametrize("dtype", INTEGERS)
def test_unary_of_integers_wraps(dtype: type):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array([low, low + 1, -1, 0, 1, high], dtype)
    wanted = {
        "neg": [low, high, 1, 0, -1, low + 1],
        "abs": [low, high, 1, 0, 1, high],
        "sign": [-1, -1, -1, 0, 1, 1],
        "not": [high, high - 1, 0, -1, -2, low],
    }
    for kind, values in wanted.items():
        same(run(f"mir.unary {kind} %x : $x", typed(x), x=x), np.array(values, dtype))


def test_not_of_a_bool():
    x = np.array([True, False])
    same(run("mir.unary not %x : $x", "tensor<2xi1>", x=x), np.array([False, True]))


def test_functions_hold_at_the_ends():
    x = np.array([-1000.0, -30.0, 1000.0], np.float32)
    inf, e = math.inf, math.exp(-30)
    wanted = {
        "sigmoid": [0, e / (1 + e), 1],
        "silu": [0, -30 * e / (1 + e), 1000],
        "softplus": [0, math.log1p(e), 1000],
        "log_sigmoid": [-1000, -30 - math.log1p(e), 0],
        "elu": [-1, math.expm1(-30), 1000],
        "mish": [0, -30 * math.tanh(math.log1p(e)), 1000],
        "gelu": [0, -15 * math.erfc(30 / math.sqrt(2)), 1000],
        "exp": [0, e, inf],
    }
    for kind, values in wanted.items():
        close(run(f"mir.unary {kind} %x : $x", "tensor<3xf32>", x=x), values)


BINARY: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": max,
    "min": min,
    "pow": lambda a, b: abs(a) ** b,
    "mod": lambda a, b: a - math.floor(a / b) * b,
    "atan2": math.atan2,
}


@pytest.mark.parametrize("kind", list(BINARY))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_binary(kind: str, dtype: type):
    a, b = (np.random.default_rng(5).standard_normal((2, 3, 5)) * 2).astype(dtype)
    a = np.abs(a) if kind == "pow" else a
    y = run(f"mir.binary {kind} %a, %b : $a", typed(a), a=a, b=b)
    close(y, np.vectorize(BINARY[kind])(a.astype(float), b.astype(float)), 1e-11)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_binary_of_integers(dtype: type):
    """Every pair of some values, by Python's own integers, wrapped."""
    bits = np.dtype(dtype).itemsize * 8
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    values = [low, low + 1, -bits - 1, -7, -1, 0, 1, 3, 5, bits - 1, bits, bits + 1, high]
    pairs = list(product(values, values))
    a, b = (np.array(side, dtype) for side in zip(*pairs, strict=True))

    def shl(x: int, n: int) -> int:
        return x << n if 0 <= n < bits else 0

    def shr(x: int, n: int) -> int:
        return x >> (n if 0 <= n < bits else bits - 1)

    functions: dict[str, Callable[[int, int], int]] = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "div": lambda x, y: x // y if y else 0,
        "mod": lambda x, y: x % y if y else 0,
        "max": max,
        "min": min,
        "and": lambda x, y: x & y,
        "or": lambda x, y: x | y,
        "xor": lambda x, y: x ^ y,
        "shl": shl,
        "shr": shr,
    }
    assert set(functions) == set(BinaryKind) - {"pow", "atan2"}
    for kind, function in functions.items():
        wanted = [(function(x, y) - low) % (1 << bits) + low for x, y in pairs]
        got = run(f"mir.binary {kind} %a, %b : $a", typed(a), a=a, b=b)
        assert got.tolist() == wanted, kind
        assert got.dtype == dtype


def test_max_and_min_give_nan():
    a = np.array([math.nan, 1, math.nan, 1, -math.inf], np.float32)
    b = np.array([1, math.nan, math.nan, 2, 1], np.float32)
    for kind, wanted in {"max": [2, 1], "min": [1, -math.inf]}.items():
        y = run(f"mir.binary {kind} %a, %b : $a", typed(a), a=a, b=b)
        assert y[3:].tolist() == wanted
        assert np.isnan(y[:3]).all()


def test_bools():
    a, b = np.array([[0, 0, 1, 1], [0, 1, 0, 1]], bool)
    for kind, wanted in {"and": [0, 0, 0, 1], "or": [0, 1, 1, 1], "xor": [0, 1, 1, 0]}.items():
        same(run(f"mir.binary {kind} %a, %b : $a", typed(a), a=a, b=b), np.array(wanted, bool))
    for kind in CompareKind:
        y = run(f"mir.compare {kind} %a, %b : $a -> $a", typed(a), a=a, b=b)
        assert y.tolist() == [getattr(int(x), f"__{kind}__")(int(z)) for x, z in zip(a, b)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, *INTEGERS])
def test_compare(dtype: type):
    a, b = np.array([[1, 2, 3, -1], [2, 2, 1, 0]], dtype)
    for kind in CompareKind:
        y = run(f"mir.compare {kind} %a, %b : $a -> tensor<4xi1>", "tensor<4xi1>", a=a, b=b)
        same(y, [getattr(float(x), f"__{kind}__")(float(z)) for x, z in zip(a, b)])
    nan = np.array([math.nan] * 4, np.float32)
    for kind in CompareKind:
        op = f"mir.compare {kind} %a, %b : $a -> tensor<4xi1>"
        assert run(op, "tensor<4xi1>", a=nan, b=nan).tolist() == [kind == "ne"] * 4


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.bool_])
def test_select(dtype: type):
    a, b = np.array([[1, 0], [0, 1]], dtype), np.array([[0, 1], [1, 0]], dtype)
    c = np.array([[True, False], [False, False]])
    wanted = np.array([[1, 1], [1, 0]], dtype)
    same(run("mir.select %c, %a, %b : $c, $a", typed(a), c=c, a=a, b=b), wanted)


def cast(x: np.ndarray, element: str, dtype: type = np.float64) -> np.ndarray:
    shape = "".join(f"{d}x" for d in x.shape)
    return run(f"mir.cast %x : $x -> tensor<{shape}{element}>", f"tensor<{shape}{element}>",
               dtype, x=x)  # fmt: skip


@pytest.mark.parametrize("wide", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_floats_become_the_nearest_integer_towards_zero(dtype: type, wide: type):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array([-1.9, 1.9, -0.5, 0, math.nan, math.inf, -math.inf, 1e30, -1e30, 100.5], wide)
    x = np.append(x, [wide(low), wide(high), np.nextafter(wide(high), wide(0))])
    wanted = [min(max(int(v), low), high) if np.isfinite(v) else 0 for v in x.tolist()]
    wanted[5:7] = high, low
    assert cast(x, ELEMENTS[np.dtype(dtype)]).tolist() == wanted


def test_integers_wrap_and_bools_are_whether_not_zero():
    x = np.array([-(2**63), -129, -128, 0, 1, 2**31, 2**40 + 5], np.int64)
    for dtype in INTEGERS:
        same(cast(x, ELEMENTS[np.dtype(dtype)]), x.astype(dtype))
    same(cast(x, "i1"), x != 0)
    same(cast(np.array([0.0, -0.0, 0.1, math.inf], np.float32), "i1"), [False, False, True, True])
    b = np.array([True, False])
    same(cast(b, "i64"), np.array([1, 0]))
    same(cast(b, "f32"), np.array([1.0, 0.0]))
    same(cast(b, "bf16", np.float32), np.array([1.0, 0.0], np.float32))


def bf16_by_hand(x: float) -> float:
    """The even one of the two nearest of all numbers of bf16."""
    bits = np.arange(0x7F81, dtype=np.uint32) << np.uint32(16)
    grid = bits.view(np.float32).astype(np.float64)
    # Where infinity begins, the next number would be 2^128.
    spaced = np.append(grid[:-1], 2.0**128)
    distance = np.abs(spaced - abs(x))
    near = np.flatnonzero(distance == distance.min())
    return math.copysign(grid[next(i for i in near if len(near) == 1 or i % 2 == 0)], x)


def test_bf16_is_rounded_to_nearest_even():
    rng = np.random.default_rng(6)
    x = rng.standard_normal(60) * 10.0 ** rng.integers(-42, 39, 60)
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 2.0**-134, 3 * 2.0**-134])
    # What rounding to f32 first would make a tie; the largest number, and what lies beyond it.
    edges = np.array([1 + 2**-8 + 2**-40, 3.3895e38, 3.39e38, 3.3961775e38, -3.4e38, 1e39])
    x = np.concatenate([x, ties, edges])
    assert cast(x, "bf16").tolist() == [bf16_by_hand(v) for v in x.tolist()]
    special = cast(np.array([math.nan, math.inf, -math.inf, -0.0, 1e300]), "bf16")
    assert [str(v) for v in special.tolist()] == ["nan", "inf", "-inf", "-0.0", "inf"]


def test_f16_is_rounded_and_f32_is_not():
    x = np.array([1 / 3, 65519, 65520, 1e-8, 1 + 2**-11])
    same(cast(x, "f16"), np.array([0.333251953125, 65504, math.inf, 0, 1]))
    same(cast(x, "f32"), x)
    same(cast(x, "f32", np.float32), x.astype(np.float32))
