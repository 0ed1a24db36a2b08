"""Element-wise functions of floats against a wider type, at every level this machine runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from kernels import module_of
from maps import DTYPES, LEVELS, Map, Maps
from numpy.typing import NDArray

from rlx.dialects.kinds import BinaryKind, UnaryKind
from rlx.lowering.emitter import Function
from rlx.lowering.values import vec
from rlx.lowering.vmath import BINARY, UNARY, emit_binary, emit_compare, emit_unary, exp2_softmax
from rlx.reference import elements
from rlx.runtime import jit

Array = NDArray[Any]
WIDE = np.longdouble
PI = WIDE("3.14159265358979323846264338327950288")
FLOATS = ["float", "double"]


# What the functions mean, in long double: 64 bits on x86


def _wide_exp_of_square(x: Array, factor: float) -> Array:
    """exp(factor x^2) of f64 x; the digits that x^2 loses matter where it is large."""
    high = x.astype(np.float32).astype(WIDE)
    low = x - high
    return np.exp(factor * high * high) * np.exp(factor * low * (high + high + low))


def _tail(x: Array) -> Array:
    """P(X > x) of a normal X for x >= 0: a series of positive terms, or a continued fraction."""
    density = _wide_exp_of_square(x, -0.5) / np.sqrt(2 * PI)
    near, fraction = np.minimum(x, 3), np.maximum(x, 3)
    term, total = near, near
    for n in range(1, 60):
        term = term * near * near / (2 * n + 1)
        total = total + term
    rest = fraction
    for n in range(90, 0, -1):
        rest = fraction + n / rest
    return np.where(x < 3, WIDE(0.5) - density * total, density / rest)


def _erf(x: Array) -> Array:
    size = np.minimum(np.abs(x), 8)
    term, total = size, size
    for n in range(1, 200):
        term = term * 2 * size * size / (2 * n + 1)
        total = total + term
    return np.copysign(_wide_exp_of_square(size, -1.0) * 2 / np.sqrt(PI) * total, x)


def _gelu(x: Array) -> Array:
    size = np.minimum(np.abs(x), 60)
    return np.where(x < 0, 0, x) - size * _tail(size)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, WIDE(1)) / (1 + e)


def _times_sigmoid(x: Array, argument: Array) -> Array:
    return np.where(np.isneginf(x), WIDE(-0.0), x * _sigmoid(argument))


def _gelu_tanh(x: Array) -> Array:
    return _times_sigmoid(x, 2 * np.sqrt(2 / PI) * (x + WIDE("0.044715") * x**3))


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _mish(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    w = np.where(x < 0, e * (e + 2), 1 + 2 * e)
    return np.where(x < -20000, WIDE(-0.0), x * w / (w + np.where(x < 0, WIDE(2), 2 * e * e)))


def _softsign(x: Array) -> Array:
    return np.where(np.isinf(x), np.sign(x), x / (1 + np.abs(x)))


def _hard_swish(x: Array) -> Array:
    return np.maximum(x, -3) * np.clip(x + 3, 0, 6) / 6


# Kind -> meaning, and the largest error in ulp, of f32 and f64
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], float, float]] = {
    "neg": (np.negative, 0, 0),
    "abs": (np.abs, 0, 0),
    "sign": (np.sign, 0, 0),
    "floor": (np.floor, 0, 0),
    "ceil": (np.ceil, 0, 0),
    "round": (np.rint, 0, 0),
    "sqrt": (np.sqrt, 0.5, 0.51),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5, 1.5),
    "recip": (lambda x: 1 / x, 0.5, 0.51),
    "exp": (np.exp, 0.8, 0.8),
    "log": (np.log, 0.85, 0.85),
    "sin": (np.sin, 0.6, 0.9),
    "cos": (np.cos, 0.6, 0.9),
    "tan": (np.tan, 0.6, 2.5),
    "atan": (np.arctan, 2.0, 2.0),
    "tanh": (np.tanh, 2.0, 2.0),
    "erf": (_erf, 1.6, 1.6),
    "sigmoid": (_sigmoid, 2.0, 2.0),
    "log_sigmoid": (lambda x: -_softplus(-x), 3.0, 3.0),
    "silu": (lambda x: _times_sigmoid(x, x), 2.5, 2.5),
    "gelu": (_gelu, 6.5, 8.0),
    "relu": (lambda x: np.where(x < 0, WIDE(0), x), 0, 0),
    "elu": (lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x), 1.0, 1.0),
    "softplus": (_softplus, 3.0, 3.0),
    "softsign": (_softsign, 1.5, 1.5),
    "hard_sigmoid": (lambda x: np.clip(x + 3, 0, 6) / 6, 1.5, 1.5),
    "hard_swish": (_hard_swish, 2.5, 2.5),
    "mish": (_mish, 3.8, 3.6),
}

BINARIES: dict[str, tuple[Callable[[Array, Array], Array], float, float]] = {
    "add": (np.add, 0.5, 0.51),
    "sub": (np.subtract, 0.5, 0.51),
    "mul": (np.multiply, 0.5, 0.51),
    "div": (np.divide, 0.5, 0.51),
    "max": (np.maximum, 0, 0),
    "min": (np.minimum, 0, 0),
    "pow": (np.power, 0.6, 0.9),
    "atan2": (np.arctan2, 2.0, 2.0),
}

EDGES = [0.0, 1.0, 0.5, 1.5, 2.5, 3.0, 0.55, 0.92, 30.0, 60.0, np.inf, 8388607.5, 2.0**52 + 1]
EDGES += [87.4, 88.7228, 88.73, 103.9, 104.1, 150.0, 708.3, 709.78, 745.1, 745.2, 1.6e6, 1e9, 1e22]
EDGES += [1e-45, 1e-38, 1.2e-38, 3.4028235e38, 5e-324, 2.2e-308, 1.7976931348623157e308]
# Nearest to a multiple of pi/2 among all f32 and all f64 (Muller et al., Handbook of
# Floating-Point Arithmetic).
EDGES += [16367173.0 * 2.0**72, 6381956970095103.0 * 2.0**797]


@cache
def samples(element: str) -> Array:
    """Return inputs over the whole range, the edges and NaN among them."""
    dtype, rng = DTYPES[element], np.random.default_rng(11)
    size = np.dtype(dtype).itemsize
    bits = rng.integers(0, 256, (4096, size), np.uint8).view(dtype)[:, 0]
    near = [rng.uniform(-s, s, 1500) for s in (0.7, 1.5, 6.0, 40.0, 120.0, 1000.0, 1e6)]
    quarters = np.pi / 4 * np.concatenate([np.arange(600), rng.integers(0, 10**8, 600)])
    powers = 10.0 ** rng.uniform(-9, 1, 1500) * rng.choice([-1, 1], 1500)
    about_one = np.exp(rng.uniform(-0.1, 0.1, 1500))
    with np.errstate(over="ignore"):
        parts = [[np.nan], EDGES, np.negative(EDGES), *near, quarters, powers, about_one]
        return np.concatenate([bits, *(np.asarray(p).astype(dtype) for p in parts)])


def unary_map(kind: str, element: str) -> Map:
    return [element], element, lambda f, v: emit_unary(f, kind, v)


def binary_map(kind: str, element: str) -> Map:
    return [element] * 2, element, lambda f, a, b: emit_binary(f, kind, a, b)


def kinds_of(element: str) -> list[str]:
    return [kind for kind in UNARY if kind != "silu_bf16" or element == "float"]


@cache
def compiled(level: str, element: str, lanes: int = 16) -> Maps:
    maps = {kind: unary_map(kind, element) for kind in kinds_of(element)}
    maps |= {kind: binary_map(kind, element) for kind in BINARY}
    return Maps(level, maps, lanes)


def ulps(result: Array, expected: Array) -> float:
    """Return the largest error in units in the last place; what isn't finite must be equal."""
    rounded = expected.astype(result.dtype)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(result[~finite], rounded[~finite])
    error = np.abs(result[finite] - expected[finite])
    return float((error / np.spacing(np.abs(rounded[finite]))).max())


def assert_same_zeros(result: Array, expected: Array) -> None:
    zero = (result == 0) & (expected == 0)
    np.testing.assert_array_equal(np.signbit(result[zero]), np.signbit(expected[zero]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("kind", FUNCTIONS)
@np.errstate(all="ignore")
def test_unary_is_accurate_over_the_whole_range(kind: str, element: str, level: str):
    result, expected = compiled(level, element)(kind, samples(element)), meant(kind, element)
    assert ulps(result, expected) <= FUNCTIONS[kind][1 + FLOATS.index(element)]
    if kind != "silu":  # 0 for -0
        assert_same_zeros(result, expected)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("kind", ["erf", "tanh"])
def test_limits_are_reached(kind: str, element: str, level: str):
    x = np.array([7.0, 30.0, 1e30, np.inf] * 4, DTYPES[element])
    sign = np.repeat([1, -1], 8).astype(x.dtype)
    x = x if kind == "erf" else 4 * x
    np.testing.assert_array_equal(compiled(level, element)(kind, sign * x), sign)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", FLOATS)
@np.errstate(all="ignore")
def test_gelu_tanh(element: str, level: str):
    x = samples(element)
    y = compiled(level, element)("gelu_tanh", x)
    expected = _gelu_tanh(x.astype(WIDE))
    # The argument of the exponential is rounded: relative errors grow in the far negative tail.
    near = ~(x < -3)
    assert ulps(y[near], expected[near]) <= 16
    least = float(np.finfo(y.dtype).smallest_subnormal)
    relative = 3e-5 if element == "float" else 5e-13
    np.testing.assert_allclose(y, expected.astype(y.dtype), rtol=relative, atol=least)


@pytest.mark.parametrize("level", LEVELS)
@np.errstate(all="ignore")
def test_silu_for_bf16(level: str):
    x = samples("float")
    expected = _times_sigmoid(x.astype(WIDE), x.astype(WIDE)).astype(np.float32)
    y = compiled(level, "float")("silu_bf16", x)
    np.testing.assert_allclose(y, expected, rtol=7e-5, atol=1e-35)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", FLOATS)
@np.errstate(all="ignore")
def test_exp_of_numbers_below_zero(element: str, level: str):
    x = samples(element)
    x = x[~(x > 0)]
    result = compiled(level, element)("exp_below", x)
    assert ulps(result, np.exp(x.astype(WIDE))) <= 1.1


@pytest.mark.parametrize("level", LEVELS)
def test_softmax_power_is_zero_far_below(level: str):
    x = np.concatenate([[-np.inf, -1e30, -127.0, 0.0], -np.linspace(0, 126, 5000)])
    x = x.astype(np.float32)
    y = Maps(level, {"power": (["float"], "float", exp2_softmax)})("power", x)
    assert (y[:3] == 0).all()
    assert y[3] == 1
    assert ulps(y[4:], np.exp2(x[4:].astype(WIDE))) <= 1.3


@cache
def pairs(element: str) -> tuple[Array, Array]:
    """Return operands over the whole range, every pair of edges, and powers that are in range."""
    dtype, rng = DTYPES[element], np.random.default_rng(5)
    x = samples(element)
    with np.errstate(over="ignore"):
        edges = np.concatenate([[np.nan, 2.0**53], EDGES, np.negative(EDGES)]).astype(dtype)
    some = np.concatenate([np.abs(x), np.exp(rng.uniform(-3, 3, 4000)).astype(dtype)])
    largest = np.log(float(np.finfo(dtype).max))
    with np.errstate(all="ignore"):
        exponents = largest * rng.uniform(-1.1, 1.1, len(some)) / np.log(some.astype(np.float64))
    whole = rng.integers(-20, 20, len(x))
    grid = np.meshgrid(edges, edges)
    a = [x, grid[0].ravel(), some, x]
    b = [rng.permutation(x), grid[1].ravel(), exponents, whole]
    return np.concatenate(a), np.concatenate([part.astype(dtype) for part in b])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("kind", BINARIES)
@np.errstate(all="ignore")
def test_binary_is_accurate_over_the_whole_range(kind: str, element: str, level: str):
    result, expected = compiled(level, element)(kind, *pairs(element)), meant(kind, element)
    assert ulps(result, expected) <= BINARIES[kind][1 + FLOATS.index(element)]
    if kind not in ("max", "min"):  # of zeros of both signs either will do
        assert_same_zeros(result, expected)


@cache
def meant(kind: str, element: str) -> Array:
    """Return what a function of the samples, or of the pairs, is in long double."""
    if kind in FUNCTIONS:
        return FUNCTIONS[kind][0](samples(element).astype(WIDE))
    return BINARIES[kind][0](*(side.astype(WIDE) for side in pairs(element)))


@pytest.mark.parametrize("kind", [*FUNCTIONS, *BINARIES])
@np.errstate(all="ignore")
def test_the_reference_means_the_same_at_the_edges(kind: str):
    x = np.array([*EDGES[:6], np.nan, *np.negative(EDGES[:6]), np.inf, -np.inf])
    if kind in FUNCTIONS:
        result, want = elements.UNARY[UnaryKind(kind)](x), FUNCTIONS[kind][0](x.astype(WIDE))
    else:
        sides = [side.ravel() for side in np.meshgrid(x, x)]
        result = elements.BINARY[BinaryKind(kind)](*sides)
        want = BINARIES[kind][0](*(side.astype(WIDE) for side in sides))
    np.testing.assert_allclose(result, want.astype(np.float64), 1e-12)
    if kind not in ("max", "min"):  # of zeros of both signs either will do
        assert_same_zeros(result, want)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", FLOATS)
@np.errstate(all="ignore")
def test_mod_is_exact(element: str, level: str):
    a, b = pairs(element)
    result, expected = compiled(level, element)("mod", a, b), np.mod(a, b)
    np.testing.assert_array_equal(result, expected)
    assert_same_zeros(result, expected)


@pytest.mark.parametrize("level", [LEVELS[0], LEVELS[-1]])
@pytest.mark.parametrize("element", FLOATS)
def test_a_scalar_has_the_bits_of_a_vector(element: str, level: str):
    x = samples(element)[::7]
    y = x[::-1].copy()
    vector, scalar = compiled(level, element), compiled(level, element, 1)
    for kind in kinds_of(element):
        if kind != "silu_bf16":
            given = x[~(x > 0)] if kind == "exp_below" else x
            np.testing.assert_array_equal(vector(kind, given), scalar(kind, given), err_msg=kind)
    for kind in BINARY:
        np.testing.assert_array_equal(vector(kind, x, y), scalar(kind, x, y), err_msg=kind)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", FLOATS)
def test_comparisons_are_false_with_nan_but_for_ne(element: str, level: str):
    names = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal"}
    names |= {"gt": "greater", "ge": "greater_equal"}
    a, b = pairs(element)

    def map_of(kind: str) -> Map:
        return [element] * 2, "i1", lambda f, a, b: emit_compare(f, kind, a, b)

    maps = Maps(level, {kind: map_of(kind) for kind in names})
    for kind, name in names.items():
        np.testing.assert_array_equal(maps(kind, a, b), getattr(np, name)(a, b), err_msg=kind)


def test_every_kind_is_tested():
    from rlx.dialects.kinds import FLOAT_BINARY, UnaryKind

    assert {*FUNCTIONS, "exp_below", "gelu_tanh", "silu_bf16"} == set(UNARY)
    assert {*BINARIES, "mod"} == set(BINARY)
    assert {str(kind) for kind in UnaryKind if kind != "not"} <= set(UNARY)
    assert {str(kind) for kind in FLOAT_BINARY} == set(BINARY)


def test_compiles_for_arm():
    def emit(f: Function) -> None:
        a, b = f.params
        for element in FLOATS:
            v = f.load(vec(16, element), a)
            for kind in kinds_of(element):
                v = emit_unary(f, kind, v)
            for kind in BINARY:
                v = emit_binary(f, kind, v, v)
            f.store(v, b)

    module = module_of("aarch64", [("ptr", "a"), ("ptr", "b")], emit)
    assert "fmla" in jit.assembly(module.text, module.target)
