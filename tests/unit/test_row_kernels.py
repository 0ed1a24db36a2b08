"""Row programs, norms and RoPE against float64, at every level this machine runs."""

import numpy as np
import pytest
from kernels import Buffer, compile_kernel, levels, nmse

from rlx.lowering.emitter import Function
from rlx.lowering.rope import emit_rope_table, rotate_interleaved
from rlx.lowering.rows import VECTOR, emit_rms_norm, load_chunk, row_reduce
from rlx.lowering.values import Value

POINTERS = [("ptr", "a"), ("ptr", "b"), ("ptr", "c")]
SIZES = (1, 15, 16, 17, 63, 64, 65, 200)


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
