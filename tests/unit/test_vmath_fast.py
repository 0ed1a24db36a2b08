"""Fast forms of functions of f32 against a wider type, and that `precision` alone chooses them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from kernels import module_of
from maps import LEVELS, Maps
from numpy.typing import NDArray
from test_vmath import (
    BINARIES,
    FUNCTIONS,
    WIDE,
    _gelu_tanh,
    binary_map,
    pairs,
    samples,
    unary_map,
)

import rlx
import rlx.numpy as rnp
from rlx.compiler import compile_text
from rlx.errors import RlxError
from rlx.lowering.emitter import Function
from rlx.lowering.target import Target
from rlx.lowering.values import vec
from rlx.lowering.vmath import BINARY, UNARY, emit_binary, emit_unary
from rlx.lowering.vmath_fast import FAST
from rlx.passes.source import context, parse

Array = NDArray[Any]
NORMAL = float(np.finfo(np.float32).smallest_normal)


class Limit(NamedTuple):
    """The largest error: in ulp, or absolute where that is more."""

    ulps: float
    absolute: float = 1e-44


LIMITS = {
    "exp": Limit(65, 1.7e-38),
    "log": Limit(10),
    "sin": Limit(1, 1.6e-7),
    "cos": Limit(1, 1.6e-7),
    "tanh": Limit(36),
    "erf": Limit(17),
    "gelu": Limit(3, 1e-6),
    "gelu_tanh": Limit(12, 1e-7),
    "sigmoid": Limit(65, 1.7e-38),
    "silu": Limit(65, 1.5e-36),
    "pow": Limit(65),
    "recip": Limit(2, 1.2e-38),
    "rsqrt": Limit(3.2),
    "div": Limit(0.6),
    "sqrt": Limit(0.8),
}


@cache
def compiled(level: str, lanes: int = 16) -> Maps:
    binary = [kind for kind in FAST if kind in BINARY]
    maps = {kind: unary_map(kind, "float") for kind in FAST if kind in UNARY}
    return Maps(level, maps | {k: binary_map(k, "float") for k in binary}, lanes, fast=True)


@cache
def arguments(kind: str) -> tuple[Array, ...]:
    """Return arguments over the whole range, those aside for which no limit holds."""
    if kind not in BINARY:
        x = samples("float")
        small = (np.abs(x) < NORMAL) & (x != 0)
        return (x[~small] if kind in ("recip", "rsqrt") else x,)
    a, b = pairs("float")
    if kind != "div":
        return a, b
    small = (np.abs(b) < NORMAL) & (b != 0) | (np.abs(a) < 2.0**-100) & (a != 0)
    return a[~small], b[~small]


@cache
@np.errstate(all="ignore")
def meant(kind: str) -> Array:
    wide = [a.astype(WIDE) for a in arguments(kind)]
    if kind == "gelu_tanh":
        return _gelu_tanh(wide[0])
    return (BINARIES if kind in BINARY else FUNCTIONS)[kind][0](*wide)


def errors(kind: str, level: str) -> tuple[Array, Array]:
    """Return the absolute errors of what is finite, and the units there; the rest must be equal."""
    result, expected = compiled(level)(kind, *arguments(kind)), meant(kind)
    rounded = expected.astype(np.float32)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(result[~finite], rounded[~finite])
    error = np.abs(result[finite] - expected[finite])
    return error, np.spacing(np.abs(rounded[finite]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", FAST)
@np.errstate(all="ignore")
def test_a_fast_form_is_within_its_limit_over_the_whole_range(kind: str, level: str):
    error, unit = errors(kind, level)
    limit = LIMITS[kind]
    assert (error <= np.maximum(limit.ulps * unit, limit.absolute)).all()


@pytest.mark.parametrize("level", LEVELS)
def test_fast_forms_have_no_more_than_one_as_their_limit(level: str):
    x = np.linspace(-12, 12, 1 << 16).astype(np.float32)
    assert np.abs(compiled(level)("tanh", x)).max() == 1
    assert compiled(level)("sigmoid", x).max() <= 1


@pytest.mark.parametrize("level", [level for level in LEVELS if Target.named(level).avx512])
def test_exact_quotients_and_roots_stay_exact(level: str):
    a, b = (x.ravel().astype(np.float32) for x in np.meshgrid(np.arange(1, 500), np.arange(1, 500)))
    np.testing.assert_array_equal(compiled(level)("div", a * b, b), a)
    np.testing.assert_array_equal(compiled(level)("sqrt", a * a), a)


@pytest.mark.parametrize("level", LEVELS)
def test_a_scalar_has_the_bits_of_a_vector(level: str):
    for kind in FAST:
        given = [x[::7] for x in arguments(kind)]
        vector, scalar = (compiled(level, lanes)(kind, *given) for lanes in (16, 1))
        np.testing.assert_array_equal(vector, scalar, err_msg=kind)


@pytest.mark.parametrize("level", LEVELS)
def test_a_lane_does_not_depend_on_its_neighbours(level: str):
    for kind in FAST:
        given = arguments(kind)
        order = np.random.default_rng(3).permutation(len(given[0]))
        straight = compiled(level)(kind, *given)[order]
        mixed = compiled(level)(kind, *(x[order] for x in given))
        np.testing.assert_array_equal(straight, mixed, err_msg=kind)


def _text(level: str, element: str, fast: bool) -> str:
    def emit(f: Function) -> None:
        a, b = f.params
        f.module.fast = fast
        v = f.load(vec(16, element), a)
        for kind in FAST:
            v = emit_binary(f, kind, v, v) if kind in BINARY else emit_unary(f, kind, v)
        f.store(v, b)

    return module_of(level, [("ptr", "a"), ("ptr", "b")], emit).text


@pytest.mark.parametrize("level", [*LEVELS, "aarch64"])
def test_only_f32_of_a_fast_module_differs(level: str):
    assert _text(level, "double", fast=True) == _text(level, "double", fast=False)
    assert _text(level, "float", fast=True) != _text(level, "float", fast=False)


# Programs


def chain(x: Array, y: Array) -> Array:
    wave = np.sin(x) * np.exp(-x * x) / (1 + np.abs(y))
    return np.tanh(wave + rnp.gelu(y)) + np.log(1 + y * y) ** 1.5


def given(n: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(n)
    return tuple(rng.normal(size=n).astype(np.float32) for _ in range(2))


def test_precision_chooses_and_neither_is_served_for_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    x, y = given(5000)
    results: dict[str, Array] = {}
    for cached in (0, 1):
        for precision in ("exact", "fast"):
            f = rlx.jit(chain, precision=precision)
            result = f(x, y).copy()
            assert (f.stats.compilations, f.stats.cached) == (1, cached)
            np.testing.assert_array_equal(results.setdefault(precision, result), result)
    assert not np.array_equal(results["exact"], results["fast"])
    expected = chain_of_f64(x, y)
    np.testing.assert_allclose(results["fast"], expected, rtol=1e-5, atol=2e-6)


def chain_of_f64(x: Array, y: Array) -> Array:
    x, y = x.astype(np.float64), y.astype(np.float64)
    wave = np.sin(x) * np.exp(-x * x) / (1 + np.abs(y))
    gelu = FUNCTIONS["gelu"][0](y.astype(WIDE)).astype(np.float64)
    return np.tanh(wave + gelu) + np.log(1 + y * y) ** 1.5


@pytest.mark.parametrize("n", [1, 15, 17, 33, 4099])
def test_threads_and_tails_do_not_matter(n: int):
    x, y = given(70000)
    one, two = (rlx.jit(chain, precision="fast", threads=t) for t in (1, 2))
    whole = one(x, y).copy()
    np.testing.assert_array_equal(whole, two(x, y))
    np.testing.assert_array_equal(two(x[:n], y[:n]), whole[:n])


@pytest.mark.skipif(not Target.host().has("fma"), reason="no FMA")
def test_a_product_in_a_sum_is_rounded_once_in_a_fast_function():
    def sums(x: Array, y: Array, z: Array) -> tuple[Array, ...]:
        return x * y - z, z - x * y, x * y + (-z), -z + x * y

    x, y = given(4099)
    z = x * y  # what is left is what the product's rounding lost
    wide = [v.astype(np.float64) for v in (x, y, z)]
    exact, fast = (rlx.jit(sums, precision=p)(x, y, z) for p in ("exact", "fast"))
    for result, same, expected in zip(fast, exact, sums(*wide), strict=True):
        np.testing.assert_array_equal(result, expected.astype(np.float32))
        assert not np.array_equal(result, same)


@pytest.mark.skipif(not Target.host().has("fma"), reason="no FMA")
def test_a_product_that_is_kept_is_not_computed_again_in_a_fast_function():
    def shifted(x: Array, y: Array) -> tuple[Array, ...]:
        product = np.exp(x) * y
        total = np.sum(product, axis=-1)
        return product, total, product + total[:, None]

    x, y = (v.reshape(8, 512) for v in given(4096))
    product, total, result = rlx.jit(shifted, precision="fast")(x, y)
    np.testing.assert_array_equal(result, product + total[:, None])


def test_f64_is_exact_in_a_fast_function():
    x, y = (v.astype(np.float64) for v in given(999))
    exact, fast = (rlx.jit(chain, precision=p) for p in ("exact", "fast"))
    np.testing.assert_array_equal(exact(x, y), fast(x, y))


EXP = """
func.func @main(%x: tensor<?xf32, #hir.dims<n>> {rlx.name = "x"})
    -> (tensor<?xf32, #hir.dims<n>> {rlx.name = "y"}) {
  %y = mir.unary exp %x : tensor<?xf32, #hir.dims<n>>
  func.return %y : tensor<?xf32, #hir.dims<n>>
}
"""


def module(precision: str) -> str:
    dims = "rlx.dims = #hir.dim_table<n = 0 to 10000>"
    return f"builtin.module attributes {{{dims}{precision}}} {{{EXP}}}"


def test_a_compiled_module_asks_for_a_precision_or_is_told():
    x = given(3000)[0] * 20
    exact = rlx.compile(module(""), threads=1)(x)
    fast = rlx.compile(module(""), threads=1, precision="fast")(x)
    assert not np.array_equal(exact, fast)
    asks = module(', rlx.precision = "fast"')
    np.testing.assert_array_equal(rlx.compile(asks, threads=1)(x), fast)
    np.testing.assert_array_equal(rlx.compile(asks, threads=1, precision="exact")(x), exact)
    assert 'rlx.precision = "fast"' in rlx.compile(module(""), precision="fast").ir("lir")


def test_an_unknown_precision_is_refused():
    with pytest.raises(RlxError, match="precision: expected one of exact, fast, got 'best'"):
        rlx.compile(module(""), precision="best")
    wrong = parse(context(), module(', rlx.precision = "best"').encode(), "wrong")
    with pytest.raises(RlxError, match=r'rlx\.precision: expected "exact" or "fast", got "best"'):
        compile_text(wrong, Target.host())


def test_random_numbers_are_the_same_in_a_fast_program():
    text = """builtin.module {
      func.func @main(%s: tensor<2xi64> {rlx.name = "s"}) -> (tensor<99xf32> {rlx.name = "y"}) {
        %y = random.normal(%s) shape [99] element f32 : (tensor<2xi64>) -> tensor<99xf32>
        func.return %y : tensor<99xf32>
      }
    }"""
    seed = np.array([7, 0], np.int64)
    exact, fast = (rlx.compile(text, threads=1, precision=p)(seed) for p in ("exact", "fast"))
    np.testing.assert_array_equal(exact, fast)
