"""Element-wise maths, norms and RoPE against float64, at every level this machine runs."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from kernels import Buffer, Kernel, compile_kernel, levels, module_of, nmse

from rlx.lowering.emitter import Function
from rlx.lowering.rope import emit_rope_table, rotate_interleaved
from rlx.lowering.rows import (
    VECTOR,
    emit_rms_norm,
    load_chunk,
    row_map,
    row_reduce,
    store_chunk,
)
from rlx.lowering.target import Target
from rlx.lowering.values import Value
from rlx.lowering.vmath import BINARY, UNARY, clamp_high, emit_binary, emit_unary, exp2_softmax
from rlx.runtime import jit

POINTERS = [("ptr", "a"), ("ptr", "b"), ("ptr", "c")]
SIZES = (1, 15, 16, 17, 63, 64, 65, 200)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1.0 + e)


def _times_sigmoid(x: np.ndarray, argument: np.ndarray) -> np.ndarray:
    return np.where(np.isneginf(x), -0.0, x * _sigmoid(argument))


def _gelu(x: np.ndarray) -> np.ndarray:
    return _times_sigmoid(x, 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


# Kind -> float64 meaning, largest error in ulp with FMA and without
FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float]] = {
    "neg": (np.negative, 0.5, 0.5),
    "abs": (np.abs, 0.5, 0.5),
    "relu": (lambda x: np.where(x < 0, 0.0, x), 0.5, 0.5),
    "sqrt": (np.sqrt, 0.5, 0.5),
    "recip": (lambda x: 1.0 / x, 0.5, 0.5),
    "rsqrt": (lambda x: 1.0 / np.sqrt(x), 1.5, 1.5),
    "exp": (np.exp, 1.0, 1.0),
    "sigmoid": (_sigmoid, 2.0, 2.0),
    "silu": (lambda x: _times_sigmoid(x, x), 2.0, 2.5),
    "tanh": (np.tanh, 2.0, 2.0),
}

EDGES = [0.0, -0.0, math.inf, -math.inf, math.nan, 88.7228, 88.73, -87.4, -103.9, -104.1, -150.0]
EDGES += [3e38, -3e38, 1e-38, -1e-38, 1e-45, -1e-45, 1e-20, 0.55, -0.55, 9.0, 11.0]


def samples() -> np.ndarray:
    """Return inputs over the whole range, the edges among them."""
    rng = np.random.default_rng(11)
    wide = 10.0 ** rng.uniform(-44, 38, 1 << 15) * rng.choice([-1, 1], 1 << 15)
    near = [rng.uniform(-s, s, 1 << 15) for s in (1.0, 12.0, 110.0)]
    return np.concatenate([EDGES, wide, *near]).astype(np.float32)[: (1 << 17) - 32]


def ulps(result: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest error in units in the last place; what isn't finite must be equal."""
    rounded = expected.astype(np.float32)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(result[~finite], rounded[~finite])
    error = np.abs(result[finite] - expected[finite])
    return float((error / np.spacing(np.abs(rounded[finite])).astype(np.float64)).max())


def map_kernel(level: str, n: int, body: Callable[[Function, Value], Value]) -> Kernel:
    """Compile b[i] = body(a[i]) over n floats."""

    def emit(f: Function) -> None:
        a, b = f.params
        row_map(f, n, lambda c, m: store_chunk(f, body(f, load_chunk(f, a, c, m)), b, c, m))

    return compile_kernel(level, POINTERS[:2], emit)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", FUNCTIONS)
@np.errstate(all="ignore")
def test_unary_is_accurate_over_the_whole_range(kind: str, level: str):
    meaning, with_fma, without = FUNCTIONS[kind]
    x = samples()
    out = Buffer(x.nbytes)
    kernel = map_kernel(level, len(x), lambda f, v: emit_unary(f, kind, v))
    kernel(Buffer.of(x), out)
    bound = with_fma if Target.named(level).has("fma") else without
    assert ulps(out.array(np.float32, len(x)), meaning(x.astype(np.float64))) <= bound


@pytest.mark.parametrize("level", levels())
@np.errstate(all="ignore")
def test_gelu_tanh(level: str):
    x = samples()
    out = Buffer(x.nbytes)
    map_kernel(level, len(x), lambda f, v: emit_unary(f, "gelu_tanh", v))(Buffer.of(x), out)
    expected = _gelu(x.astype(np.float64))
    # The argument of the exponential is rounded: relative errors grow in the far negative tail.
    near = ~(x < -3)
    y = out.array(np.float32, len(x))
    assert ulps(y[near], expected[near]) <= 16
    np.testing.assert_allclose(y, expected.astype(np.float32), rtol=3e-5, atol=1e-44)


@pytest.mark.parametrize("level", levels())
@np.errstate(all="ignore")
def test_silu_for_bf16(level: str):
    x = samples()
    out = Buffer(x.nbytes)
    map_kernel(level, len(x), lambda f, v: emit_unary(f, "silu_bf16", v))(Buffer.of(x), out)
    expected = _times_sigmoid(x.astype(np.float64), x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(out.array(np.float32, len(x)), expected, rtol=7e-5, atol=1e-35)


@pytest.mark.parametrize("level", levels())
def test_softmax_power_is_zero_far_below(level: str):
    x = np.concatenate([[-math.inf, -1e30, -127.0, 0.0], -np.linspace(0, 126, 5000)])
    x = x.astype(np.float32)
    out = Buffer(x.nbytes)
    kernel = map_kernel(level, len(x), lambda f, v: exp2_softmax(f, clamp_high(f, v, 0.0)))
    kernel(Buffer.of(x), out)
    y = out.array(np.float32, len(x))
    assert (y[:3] == 0).all()
    assert y[3] == 1
    assert ulps(y[4:], np.exp2(x[4:].astype(np.float64))) <= 1.3


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", BINARY)
@np.errstate(all="ignore")
def test_binary(kind: str, level: str):
    names = {"sub": "subtract", "mul": "multiply", "div": "divide", "max": "maximum"}
    meaning = getattr(np, {**names, "add": "add", "min": "minimum"}[kind])
    a = samples()
    b = np.random.default_rng(5).permutation(a)
    out = Buffer(a.nbytes)

    def emit(f: Function) -> None:
        x, y, z = f.params

        def body(column: Value, mask: Value | None) -> None:
            v, w = (load_chunk(f, row, column, mask) for row in (x, y))
            store_chunk(f, emit_binary(f, kind, v, w), z, column, mask)

        row_map(f, len(a), body)

    compile_kernel(level, POINTERS, emit)(Buffer.of(a), Buffer.of(b), out)
    np.testing.assert_array_equal(out.array(np.float32, len(a)), meaning(a, b))


def test_every_kind_is_tested():
    assert {*FUNCTIONS, "gelu_tanh", "silu_bf16"} == set(UNARY)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("k", SIZES)
def test_reduction_ignores_what_is_masked_off(k: int, level: str):
    x = np.random.default_rng(k).standard_normal(k).astype(np.float32)

    def emit(f: Function) -> None:
        a, b = f.params

        def add(column: Value, mask: Value | None, total: Value) -> Value:
            return f.fadd(total, load_chunk(f, a, column, mask))

        f.store(row_reduce(f, k, f.zero(VECTOR), add), b)

    out = Buffer(4)
    compile_kernel(level, POINTERS[:2], emit)(Buffer.of(x, offset=4), out)
    expected = x.astype(np.float64).sum()
    assert abs(out.array(np.float32, 1)[0] - expected) <= 1e-6 * np.abs(x).sum()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("k", [*SIZES, 576, 1000])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm(k: int, weighted: bool, level: str):
    rng = np.random.default_rng(k)
    x, w = (rng.standard_normal(k).astype(np.float32) for _ in range(2))
    eps = 1e-5

    def emit(f: Function) -> None:
        a, b, c = f.params
        emit_rms_norm(f, a, b if weighted else None, c, k, eps)

    kernel = compile_kernel(level, POINTERS, emit)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean() + eps) * (w if weighted else 1.0)
    out = Buffer(4 * k)
    kernel(Buffer.of(x, offset=4), Buffer.of(w), out)
    np.testing.assert_allclose(out.array(np.float32, k), expected, rtol=1e-6)
    in_place = Buffer.of(x)
    kernel(in_place, Buffer.of(w), in_place)
    assert in_place.bytes.tobytes() == out.bytes.tobytes()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(("n_rot", "threads"), [(64, 1), (64, 3), (80, 2), (10, 7)])
def test_rope_table(n_rot: int, threads: int, level: str):
    positions, base = 37, 100000.0

    params = [("ptr", "cos"), ("ptr", "sin"), ("i64", "tid"), ("i64", "nth")]

    def emit(f: Function) -> None:
        cos, sin, tid, nth = f.params
        emit_rope_table(f, cos, sin, positions, n_rot, base, tid, nth)

    kernel = compile_kernel(level, params, emit)
    tables = Buffer(4 * positions * n_rot), Buffer(4 * positions * n_rot)
    for tid in range(threads):
        kernel(*tables, tid, threads)
    turns = np.arange(positions)[:, None] * base ** (-2.0 * np.arange(n_rot // 2) / n_rot)
    cos = np.repeat(np.cos(turns), 2, axis=1)
    sin = np.stack([-np.sin(turns), np.sin(turns)], axis=2).reshape(positions, n_rot)
    for table, expected in zip(tables, (cos, sin), strict=True):
        result = table.array(np.float32, positions, n_rot)
        np.testing.assert_allclose(result, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("level", levels())
def test_rotation_turns_pairs(level: str):
    rng = np.random.default_rng(2)
    v, angles = rng.standard_normal(16).astype(np.float32), rng.uniform(-9, 9, 8)
    cos = np.repeat(np.cos(angles), 2)
    sin = np.repeat(np.sin(angles), 2) * np.tile([-1, 1], 8)
    table = np.concatenate([cos, sin]).astype(np.float32)

    def emit(f: Function) -> None:
        a, b, c = f.params
        parts = [f.load(VECTOR, p) for p in (a, b, f.at(b, 64))]
        f.store(rotate_interleaved(f, *parts), c)

    out = Buffer(64)
    compile_kernel(level, POINTERS, emit)(Buffer.of(v), Buffer.of(table), out)
    turned = (v[::2] + 1j * v[1::2]) * np.exp(1j * angles)
    expected = np.stack([turned.real, turned.imag], axis=1).reshape(16)
    assert nmse(out.array(np.float32, 16), expected) < 1e-13


def test_compiles_for_arm():
    def emit(f: Function) -> None:
        a, b = f.params

        def body(column: Value, mask: Value | None) -> None:
            v = load_chunk(f, a, column, mask)
            for kind in UNARY:
                v = emit_unary(f, kind, v)
            store_chunk(f, v, b, column, mask)

        row_map(f, 100, body)

    module = module_of("aarch64", POINTERS[:2], emit)
    assert "fmla" in jit.assembly(module.text, module.target)
