"""Several rows at once, each to the bit as alone: products, attention, sampling, at every level."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from kernels import Buffer, Kernel, call_on_threads, compile_kernel, levels, module_of
from test_attention_kernels import CAPACITY, SHAPES, Case, attention, decode_kernel, every_format
from test_contract_kernels import Gemv, flat, pointers, weights_of

from rlx.lowering.attention import decode_scratch_bytes, emit_attention_rows
from rlx.lowering.contract import Group, store_panel
from rlx.lowering.emitter import Function
from rlx.lowering.formats import FORMATS
from rlx.lowering.gemv_rows import emit_gemv_rows
from rlx.lowering.in_turn import TURNS_BYTES
from rlx.lowering.kv_cache import Attention
from rlx.lowering.values import Value

LEVELS = levels()
ROWS = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 33)


def rows_kernel(level: str, k: int, groups: list[Group], fast: bool = False) -> Kernel:
    count = sum(len(g.formats) for g in groups)

    def body(f: Function) -> None:
        rows, tid, nth, a, turns = f.params[:5]
        weights, outs = pointers(f, groups, 5), pointers(f, groups, 5 + count)

        def store(f: Function, g: int, row: Value, panel: Value, values: list[Value]) -> None:
            n = groups[g].n
            for out, value in zip(outs[g], values, strict=True):
                store_panel(f, f.at(out, row, 4 * n), n, panel, value)

        emit_gemv_rows(f, k, groups, a, 4 * k + 64, rows, weights, tid, nth, store, turns)

    params = [*(("i64", n) for n in ("rows", "tid", "nth")), ("ptr", "a"), ("ptr", "turns")]
    params += [("ptr", f"p{i}") for i in range(2 * count)]
    module = module_of(level, params, body, fast)
    return Kernel(module.text, "kernel", module.target)


def check(level: str, k: int, groups: list[Group], fast: bool = False, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    weights, _ = weights_of(rng, groups, k)
    a = (rng.standard_normal((max(ROWS), k)) * 10.0 ** rng.uniform(-3, 2, k)).astype(np.float32)
    a[2], a[5, : k // 2], a[7, 1], a[8, -1] = 0, -0.0, np.inf, np.nan
    alone = Gemv(level, k, groups, fast)
    wanted = [alone(row, weights, 1) for row in a]
    kernel = rows_kernel(level, k, groups, fast)
    for rows, threads in itertools.product(ROWS, (1, 3)):
        order = rng.permutation(max(ROWS))[:rows]
        # Rows lie 64 bytes apart, with NaN between.
        given = np.full((rows, k + 16), np.nan, np.float32)
        given[:, :k] = a[order]
        outs = [[Buffer(4 * g.n * rows, offset=4) for _ in g.formats] for g in groups]
        turns = Buffer.of(np.zeros(TURNS_BYTES, np.uint8))
        for tid in reversed(range(threads)):
            source = Buffer.of(given, offset=4)
            kernel(rows, tid, threads, source, turns, *flat(weights), *flat(outs))
        assert not turns.bytes.any()
        for g, (group, of_group) in enumerate(zip(groups, outs, strict=True)):
            for i, out in enumerate(of_group):
                got = out.array(np.uint32, rows, group.n)
                for row, n in zip(got, order, strict=True):
                    expected = wanted[n][g][i]
                    nan = np.isnan(expected)
                    assert np.isnan(row.view(np.float32)[nan]).all()
                    np.testing.assert_array_equal(row[~nan], expected.view(np.uint32)[~nan])


@pytest.mark.sample(20)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", FORMATS)
def test_products(name: str, level: str):
    for n, chunks in ((33, 1), (100, 10)):
        k = -(-32 * chunks // FORMATS[name].block) * FORMATS[name].block
        check(level, k, [Group((name,), n)])


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.quantised])
def test_fast_products(name: str):
    check("host", 2 * FORMATS[name].block, [Group((name,), 33)], fast=True)


@pytest.mark.parametrize("level", LEVELS)
def test_products_of_groups(level: str):
    groups = [
        Group(("q4_1", "q8_0"), 50),
        Group(("f16",), 16),
        Group(("q4_0",), 7),
        Group(("bf16", "q4_1", "f32"), 33),
    ]
    check(level, 160, groups)


def test_long_rows_go_in_smaller_tiles():
    """Digits of sixteen rows of 8,960 don't fit the stack."""
    check("host", 8960, [Group(("q4_1",), 40)])


@pytest.mark.parametrize("k", [32, 64, 96])
def test_floats_of_any_length(k: int):
    for name in ("f32", "f16", "bf16"):
        check("host", k + 1, [Group((name,), 17)])


def test_digits_at_their_limits():
    """Integers of all bits, signs and carries; sums as large as they get, or nothing at all."""
    k, rng = 96, np.random.default_rng(5)
    groups = [Group((name,), 32) for name in ("q4_1", "q4_0", "q8_0", "q5_1")]
    weights, _ = weights_of(rng, groups, k)
    largest = np.float32(8355711)
    integers = [0x7F7F7F, 0x800, -0x800, 0x7FF, -0x801, 0x0F0F0F, -0x7F7F7F, 0x808, 8, -8, 0x8080]
    a = rng.choice(np.array(integers, np.float32), (40, k))
    a[:, ::32] = largest
    a[0], a[1], a[2, 1:] = largest, -largest, 0
    a *= np.exp2(rng.integers(-20, 20, (40, 1))).astype(np.float32)
    alone, kernel = Gemv("host", k, groups), rows_kernel("host", k, groups)
    given = np.zeros((40, k + 16), np.float32)
    given[:, :k] = a
    outs = [[Buffer(4 * g.n * 40)] for g in groups]
    turns = Buffer.of(np.zeros(TURNS_BYTES, np.uint8))
    kernel(40, 0, 1, Buffer.of(given), turns, *flat(weights), *flat(outs))
    for n, row in enumerate(a):
        wanted = alone(row, weights, 1)
        for own, (out,) in zip(wanted, outs, strict=True):
            got = out.array(np.float32, 40, 32)[n]
            assert np.isfinite(got).all()
            np.testing.assert_array_equal(got.view(np.uint32), own[0].view(np.uint32))


def test_many_rows_are_shared_by_threads():
    k, groups, rng = (
        64,
        [Group(("q4_1", "q8_0"), 50), Group(("q4_0",), 16)],
        np.random.default_rng(1),
    )
    weights, _ = weights_of(rng, groups, k)
    kernel = rows_kernel("host", k, groups)
    given = np.full((300, k + 16), np.nan, np.float32)
    given[:, :k] = rng.standard_normal((300, k))
    results: list[list[bytes]] = []
    for rows, threads in ((300, 1), (300, 2), (300, 3), (129, 2)):
        outs = [[Buffer(4 * g.n * rows) for _ in g.formats] for g in groups]
        turns = Buffer.of(np.zeros(TURNS_BYTES, np.uint8))
        args = Buffer.of(given[:rows]), turns, *flat(weights), *flat(outs)
        call_on_threads(
            threads,
            lambda tid, rows=rows, threads=threads, args=args: kernel(rows, tid, threads, *args),
        )
        results.append([out.bytes.tobytes() for out in flat(outs)])
        assert all(np.isfinite(out.array(np.float32, out.size // 4)).all() for out in flat(outs))
    assert results[0] == results[1] == results[2]
    assert all(all_[: len(part)] == part for all_, part in zip(results[0], results[3], strict=True))


# Attention

ROWS_OF = [("ptr", n) for n in ("q", "k", "v", "out", "scratch", "places")]
ROWS_OF += [("i64", n) for n in ("rows", "tid", "nth")]


def attention_of_rows(
    kernel: Kernel, a: Attention, cases: list[Case], lengths: list[int], threads: int
) -> np.ndarray:
    """Return the output of the last query of each sequence, whose caches lie in one buffer."""
    rows, size = len(cases), decode_scratch_bytes(a)
    caches = [case.caches(keys) for case, keys in zip(cases, lengths, strict=True)]
    k, v = (Buffer.of(np.concatenate([c[i].bytes for c in caches])) for i in range(2))
    order = list(reversed(range(rows)))
    places = np.array([[n * a.cache_bytes, lengths[n] - 1] for n in order], np.int64)
    q = np.array([cases[n].q[lengths[n] - 1] for n in order])
    scratch, out = Buffer(rows * size), Buffer(rows * a.heads * a.row_bytes)
    counters = scratch.bytes.reshape(rows, size)[:, : 64 * a.kv_heads]
    counters[:] = 0
    for tid in reversed(range(threads)):
        kernel(Buffer.of(q), k, v, out, scratch, Buffer.of(places), rows, tid, threads)
    assert not counters.any()
    return out.array(np.float32, rows, a.heads, a.head_dim)[::-1]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", SHAPES)
@every_format
def test_attention(shape: tuple[int, int, int], level: str, kept: str):
    a = attention(*shape, kept)
    lengths = [1, 16, 300, 128, 129, CAPACITY, 17]
    cases = [Case(a, keys, seed) for seed, keys in enumerate(lengths)]
    alone = decode_kernel(level, a)
    wanted = [case.decode(alone, keys) for case, keys in zip(cases, lengths, strict=True)]
    kernel = compile_kernel(level, ROWS_OF, lambda f: emit_attention_rows(f, a, *f.params))
    for count, threads in ((1, 1), (1, 4), (3, 2), (7, 1), (7, 3), (7, 40)):
        got = attention_of_rows(kernel, a, cases[:count], lengths[:count], threads)
        assert math.isfinite(float(abs(got).max()))
        np.testing.assert_array_equal(got, np.array(wanted[:count]))
