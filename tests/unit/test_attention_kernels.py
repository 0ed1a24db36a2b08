"""Attention against float64 on what the cache keeps, with NaN wherever it isn't in use."""

import itertools
import math

import numpy as np
import pytest
from kernels import (
    Buffer,
    Kernel,
    bf16_levels,
    call_on_threads,
    compile_kernel,
    levels,
    module_of,
    nmse,
)
from ml_dtypes import bfloat16

from rlx.contract.quant import KV_FORMATS
from rlx.dialects.infer import STORED
from rlx.lowering.attention import (
    decode_scratch_bytes,
    emit_attention_decode,
    emit_attention_prefill,
)
from rlx.lowering.attention_tiles import emit_attention_tiles, runs_on_tiles
from rlx.lowering.emitter import Function
from rlx.lowering.in_turn import TURNS_BYTES
from rlx.lowering.kv_cache import Attention, store_k_panel, store_v_panel
from rlx.lowering.rows import VECTOR
from rlx.reference.elements import bf16_values, rounded
from rlx.runtime import jit

DECODE = [("ptr", n) for n in ("q", "k", "v", "out", "scratch")]
DECODE += [("i64", n) for n in ("keys", "tid", "nth")]
PREFILL = [("ptr", n) for n in ("q", "k", "v", "out")]
PREFILL += [("i64", n) for n in ("rows", "past", "tid", "nth")]
NARROW = [*PREFILL, ("ptr", "turns")]

EDGES = np.array(
    [
        *(0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-45, 3e38, -3.4e38),
        # Halfway between two numbers of f16, and of bf16; where f16 ends, and where it has no
        # normal numbers.
        *(1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, -1 - 3 * 2**-8, 1 + 2**-8 + 2**-20),
        *(65504.0, 65519.0, 65520.0, -65520.0, 2**-14, 2**-24, 2**-25, 3 * 2**-26, -(2**-15) / 3),
    ],
    np.float32,
)
"""Numbers that round in ways of their own."""

SHAPES = [(9, 3, 64), (2, 2, 80), (16, 1, 16), (7, 1, 48), (4, 4, 128)]
CAPACITY = 336
TOLERANCE = 1e-11


every_format = pytest.mark.parametrize("kept", KV_FORMATS)


def attention(
    heads: int, kv_heads: int, head_dim: int, kept: str = "f32", narrow: bool = False
) -> Attention:
    return Attention(heads, kv_heads, head_dim, CAPACITY, head_dim**-0.5, kept, narrow)


def stored(x: np.ndarray, kept: str) -> np.ndarray:
    """Return f32 as a cache has it, bf16 as its bits."""
    if kept == "bf16":
        return (rounded(x, STORED[kept]).view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return x.astype(np.float16 if kept == "f16" else np.float32)


def decode_kernel(level: str, a: Attention) -> Kernel:
    return compile_kernel(level, DECODE, lambda f: emit_attention_decode(f, a, *f.params))


def prefill_kernel(level: str, a: Attention) -> Kernel:
    return compile_kernel(level, PREFILL, lambda f: emit_attention_prefill(f, a, *f.params))


def narrow_kernel(level: str, a: Attention) -> Kernel:
    """Return the kernel of bf16 queries: of tiles where the level multiplies bf16."""

    def body(f: Function) -> None:
        *operands, tid, nth, turns = f.params
        if runs_on_tiles(f.target, a):
            emit_attention_tiles(f, a, *operands, turns, nth)
        else:
            emit_attention_prefill(f, a, *operands, tid, nth)

    return compile_kernel(level, NARROW, body)


class Case:
    """Random queries, keys and values of `n` positions, and what attention makes of them."""

    def __init__(self, a: Attention, n: int, seed: int):
        rng = np.random.default_rng(seed)
        self.a, self.n = a, n
        self.dtype = np.dtype(bfloat16 if a.narrow else np.float32)
        self.q = (2 * rng.standard_normal((n, a.heads, a.head_dim), np.float32)).astype(self.dtype)
        self.k = rng.standard_normal((n, a.kv_heads, a.head_dim), np.float32)
        self.v = rng.standard_normal((n, a.kv_heads, a.head_dim), np.float32)

    def caches(self, n: int) -> tuple[Buffer, Buffer]:
        """Return the K and V caches after n positions, NaN in the others."""
        a = self.a
        k = np.full((a.kv_heads, a.capacity, a.head_dim), math.nan, np.float32)
        v = k.copy()
        k[:, :n], v[:, :n] = (x[:n].transpose(1, 0, 2) for x in (self.k, self.v))
        blocks = k.reshape(a.kv_heads, a.capacity // 16, 16, a.head_dim).transpose(0, 1, 3, 2)
        return Buffer.of(stored(blocks, a.format)), Buffer.of(stored(v, a.format))

    def expected(self) -> np.ndarray:
        a = self.a
        kept = (rounded(x.astype(np.float64), STORED[a.format]) for x in (self.k, self.v))
        k, v = (np.repeat(x, a.group, axis=1) for x in kept)
        scores = np.einsum("qhd,khd->hqk", self.q.astype(np.float64), k) * a.scale
        scores[:, np.arange(self.n)[None, :] > np.arange(self.n)[:, None]] = -math.inf
        weights = np.exp(scores - scores.max(2, keepdims=True))
        return np.einsum("hqk,khd->qhd", weights / weights.sum(2, keepdims=True), v)

    def prefill(self, kernel: Kernel, start: int, stop: int, threads: int = 1) -> np.ndarray:
        """Return the output rows of positions start to stop - 1, the earlier ones in the cache."""
        shape = (stop - start, self.a.heads, self.a.head_dim)
        q, out = Buffer.of(self.q[start:stop]), Buffer(self.dtype.itemsize * math.prod(shape))
        turns = [Buffer.of(np.zeros(TURNS_BYTES, np.uint8))] if self.a.narrow else []
        caches = self.caches(stop)

        def call(tid: int) -> None:
            kernel(q, *caches, out, stop - start, start, tid, threads, *turns)

        call_on_threads(threads, call)
        assert not any(t.bytes.any() for t in turns)
        return out.array(self.dtype, *shape)

    def decode(self, kernel: Kernel, keys: int, threads: int = 1) -> np.ndarray:
        """Return the output row of position keys - 1; threads run last to first."""
        a = self.a
        scratch, out = Buffer(decode_scratch_bytes(a)), Buffer(a.heads * a.row_bytes)
        scratch.bytes[: 64 * a.kv_heads] = 0
        q = Buffer.of(self.q[keys - 1])
        for tid in reversed(range(threads)):
            kernel(q, *self.caches(keys), out, scratch, keys, tid, threads)
        assert not scratch.bytes[: 64 * a.kv_heads].any()
        return out.array(np.float32, a.heads, a.head_dim)


@pytest.mark.sample(10)
@pytest.mark.parametrize("level", [levels()[0], *dict.fromkeys([*bf16_levels(), "host"])])
@pytest.mark.parametrize("shape", [*SHAPES, (12, 1, 64), (3, 3, 32), (40, 2, 96)])
@every_format
def test_prefill_of_bf16_queries(shape: tuple[int, int, int], level: str, kept: str):
    """Rounded to 8 digits on the way, and the same to the bit however a prompt is split."""
    n = 301
    case = Case(attention(*shape, kept, narrow=True), n, seed=5)
    kernel = narrow_kernel(level, case.a)
    whole = case.prefill(kernel, 0, n)
    assert nmse(whole.astype(np.float64), case.expected()) < 2e-5
    for threads in (2, 3, 7):
        np.testing.assert_array_equal(case.prefill(kernel, 0, n, threads), whole)
    cuts = [0, 1, 6, 31, 33, 64, 255, 257, 300, n]
    for start, stop in itertools.pairwise(cuts):
        np.testing.assert_array_equal(case.prefill(kernel, start, stop, 2), whole[start:stop])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_prefill_of_bf16_queries_sees_no_later_value(bad: float):
    """A value that is not finite reaches the queries that see it, and no other."""
    case = Case(attention(9, 3, 64, narrow=True), 300, seed=7)
    kernel = narrow_kernel("host", case.a)
    whole = case.prefill(kernel, 0, 300).astype(np.float64)
    for position in (7, 40, 255, 256, 290):
        value = case.v[position].copy()
        case.v[position] = bad
        result = case.prefill(kernel, 0, 300).astype(np.float64)
        case.v[position] = value
        assert not np.isfinite(result[position:]).any()
        assert nmse(result[:position], whole[:position]) < 2e-5


def test_prefill_of_bf16_queries_with_extreme_scores():
    """Scores that differ by thousands: a weight of one, all others zero; and equal scores."""
    case = Case(attention(9, 3, 64, narrow=True), 300, seed=6)
    case.k = case.k.astype(bfloat16).astype(np.float32)
    kernel = narrow_kernel("host", case.a)
    for factor in (1e4, 0.0, 1e-30):
        case.q = (case.q.astype(np.float32) * factor).astype(case.dtype)
        result = case.prefill(kernel, 0, 300).astype(np.float64)
        assert nmse(result, case.expected()) < 1e-4


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("shape", SHAPES)
@every_format
def test_prefill(shape: tuple[int, int, int], level: str, kept: str):
    case = Case(attention(*shape, kept), 150, seed=1)
    kernel = prefill_kernel(level, case.a)
    whole = case.prefill(kernel, 0, 150)
    assert nmse(whole, case.expected()) < TOLERANCE
    # Neither the threads nor the split of the prompt may change a bit.
    cuts = [0, 1, 6, 61, 64, 127, 150]
    parts = [
        case.prefill(kernel, start, stop, threads=3) for start, stop in itertools.pairwise(cuts)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.sample(15)
@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("shape", SHAPES)
@every_format
def test_decode(shape: tuple[int, int, int], level: str, kept: str):
    case = Case(attention(*shape, kept), CAPACITY, seed=2)
    kernel, expected = decode_kernel(level, case.a), case.expected()
    for keys in (1, 15, 16, 17, 127, 128, 129, 300, CAPACITY):
        row = case.decode(kernel, keys)
        assert nmse(row, expected[keys - 1]) < TOLERANCE
        np.testing.assert_array_equal(case.decode(kernel, keys, threads=4), row)


@every_format
def test_prefill_at_the_end_of_the_cache(kept: str):
    case = Case(attention(9, 3, 64, kept), CAPACITY, seed=3)
    rows = case.prefill(prefill_kernel("host", case.a), CAPACITY - 3, CAPACITY, threads=2)
    assert nmse(rows, case.expected()[-3:]) < TOLERANCE


def test_large_scores():
    case = Case(attention(9, 3, 64), 40, seed=4)
    case.q *= 300
    expected = case.expected()
    assert nmse(case.prefill(prefill_kernel("host", case.a), 0, 40), expected) < 1e-7
    assert nmse(case.decode(decode_kernel("host", case.a), 40), expected[-1]) < 1e-7


@pytest.mark.parametrize("level", levels())
@every_format
def test_a_later_nan_does_not_reach_earlier_rows(level: str, kept: str):
    case = Case(attention(9, 3, 64, kept), 80, seed=5)
    kernel = prefill_kernel(level, case.a)
    clean = case.prefill(kernel, 0, 80)
    case.k[77], case.v[77], case.q[77] = math.nan, math.nan, math.nan
    poisoned = case.prefill(kernel, 0, 80)
    np.testing.assert_array_equal(poisoned[:77], clean[:77])
    assert np.isnan(poisoned[77:]).all()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("shape", [(9, 3, 64), (2, 2, 80)])
@every_format
def test_panels_go_where_attention_reads_them(shape: tuple[int, int, int], level: str, kept: str):
    case = Case(attention(*shape, kept), 21, seed=6)
    case.k[5].flat[: len(EDGES)] = case.v[6].flat[: len(EDGES)] = EDGES
    a = case.a

    def emit(f: Function) -> None:
        k, v, k_row, v_row, position = f.params

        def panel(i, _):
            at = f.mul(i, 64)
            store_k_panel(f, a, k, position, i, f.load(VECTOR, f.at(k_row, at)))
            store_v_panel(f, a, v, position, i, f.load(VECTOR, f.at(v_row, at)))
            return []

        f.for_(0, a.kv_heads * a.chunks, 1, [], panel)

    params = [("ptr", n) for n in ("k", "v", "k_row", "v_row")] + [("i64", "position")]
    kernel = compile_kernel(level, params, emit)
    k, v = Buffer(a.cache_bytes), Buffer(a.cache_bytes)
    for position in range(case.n):
        kernel(k, v, Buffer.of(case.k[position]), Buffer.of(case.v[position]), position)
    for cache, expected in zip((k, v), case.caches(case.n), strict=True):
        got, wanted = (numbers(buffer, a) for buffer in (cache, expected))
        np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))


def numbers(cache: Buffer, a: Attention) -> np.ndarray:
    """Return the numbers of a cache; NaNs have one sign."""
    count = a.cache_bytes // a.element_bytes
    if a.format == "bf16":
        found = bf16_values(cache.array(np.uint16, count))
    else:
        found = cache.array(np.float16 if a.format == "f16" else np.float32, count)
    return np.where(np.isnan(found), math.nan, found)


@pytest.mark.parametrize(("kept", "part"), [("f16", 2), ("bf16", 2), ("f32", 1)])
def test_a_cache_is_as_large_as_its_format(kept: str, part: int):
    assert attention(9, 3, 64, kept).cache_bytes == 3 * CAPACITY * 64 * 4 // part


@every_format
def test_compiles_for_arm(kept: str):
    a = attention(9, 3, 64, kept)
    for params, emit in ((DECODE, emit_attention_decode), (PREFILL, emit_attention_prefill)):
        module = module_of("aarch64", params, lambda f, emit=emit: emit(f, a, *f.params))
        assert "fmla" in jit.assembly(module.text, module.target)
