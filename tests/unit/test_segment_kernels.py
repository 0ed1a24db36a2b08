"""Kernels of packed sequences: at every level in f32 and f64, and of bf16 where it is fast."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from bodies import Compiled, block_of, typed
from kernels import bf16_levels, levels, nmse
from xdsl.utils.exceptions import VerifyException

from rlx.errors import RlxError
from rlx.lowering import segment_attention, segment_mean
from rlx.lowering.segment_tiles import SPAN
from rlx.ops.segments import SegmentAttentionOp, SegmentMeanOp

LEVELS = levels()
DIMS = ("rows", "segments")
at_levels_of_bf16 = pytest.mark.parametrize("level", bf16_levels())


@cache
def attention(level: str, dtype: Any, heads: int, head_dim: int, scale: float = 0.0) -> Compiled:
    types = [typed(dtype, "rows", heads * head_dim)] * 3 + [typed(np.int32, "segments")]

    def build(args: Any) -> Any:
        op = SegmentAttentionOp(*args, head_dim=head_dim, scale=scale)
        return [op], [*op.res]

    return Compiled(level, block_of(types, build), segment_attention.emit, DIMS)


@cache
def mean(level: str, dtype: Any, width: int) -> Compiled:
    types = [typed(dtype, "rows", width), typed(np.int32, "segments")]

    def build(args: Any) -> Any:
        op = SegmentMeanOp(*args)
        return [op], [*op.res]

    return Compiled(level, block_of(types, build), segment_mean.emit, DIMS)


def wanted(q: Any, k: Any, v: Any, lengths: Sequence[int], heads: int, scale: float) -> np.ndarray:
    """Attention of each sequence on itself in float64, by its definition."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    result, first, d = np.zeros_like(q), 0, q.shape[1] // heads
    for length in lengths:
        for head in range(heads):
            own = slice(first, first + length), slice(head * d, head * d + d)
            scores = q[own] @ k[own].T * (scale or d**-0.5)
            e = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
            result[own] = e / e.sum(axis=1, keepdims=True) @ v[own]
        first += length
    return result


def drawn(seed: int, lengths: Sequence[int], width: int, dtype: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = [rng.standard_normal((sum(lengths), width)).astype(dtype) for _ in range(3)]
    return [*rows, np.cumsum([0, *lengths[:-1]], dtype=np.int32)]


def run(kernel: Compiled, arrays: list[np.ndarray], threads: int, offset: int = 0) -> np.ndarray:
    sizes = {"rows": len(arrays[0]), "segments": len(arrays[-1])}
    return kernel(arrays, threads, offset, **sizes)[0]


LENGTHS = [
    [1], [5], [16, 1, 33], [7, 0, 3, 0], [100, 97, 2], [0], [0, 0, 9], [200, 31], [130, 64, 64],
]  # fmt: skip


@pytest.mark.sample(18)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_attention_of_packed_sequences(level: str, dtype: Any, lengths: list[int]):
    for heads, head_dim, threads in ((3, 16, 1), (2, 5, 2), (1, 32, 5)):
        arrays = drawn(1, lengths, heads * head_dim, dtype)
        got = run(attention(level, dtype, heads, head_dim), arrays, threads)
        limit = 1e-12 if dtype == np.float32 else 1e-25
        assert nmse(got, wanted(*arrays[:3], lengths, heads, 0.0)) < limit


@pytest.mark.sample(12)
@at_levels_of_bf16
@pytest.mark.parametrize("lengths", [*LENGTHS, [SPAN - 1, SPAN, SPAN + 1], [700], [600, 513, 40]])
@pytest.mark.parametrize(("heads", "head_dim"), [(3, 32), (2, 64), (1, 96), (1, 256)])
def test_attention_of_tiles(lengths: list[int], heads: int, head_dim: int, level: str):
    bf16 = ml_dtypes.bfloat16
    kernel = attention(level, bf16, heads, head_dim, 0.25)
    arrays = drawn(2, lengths, heads * head_dim, bf16)
    got = run(kernel, arrays, 1)
    assert nmse(got.astype(np.float64), wanted(*arrays[:3], lengths, heads, 0.25)) < 2e-5
    for threads, offset in ((2, 0), (5, 2)):
        again = run(kernel, arrays, threads, offset)
        np.testing.assert_array_equal(again.view(np.uint16), got.view(np.uint16))


@at_levels_of_bf16
def test_a_sequence_does_not_depend_on_others(level: str):
    bf16, lengths = ml_dtypes.bfloat16, [70, 300, 3, 45]
    kernel = attention(level, bf16, 2, 32)
    arrays = drawn(3, lengths, 64, bf16)
    together = run(kernel, arrays, 2)
    for first, length in zip(arrays[3], lengths, strict=True):
        part = slice(first, first + length)
        own = [a[part] for a in arrays[:3]]
        alone = run(kernel, [*own, np.zeros(1, np.int32)], 1)
        np.testing.assert_array_equal(alone.view(np.uint16), together[part].view(np.uint16))


@at_levels_of_bf16
def test_large_scores_and_equal_ones(level: str):
    """A softmax that is one weight, or all the same."""
    bf16 = ml_dtypes.bfloat16
    arrays = drawn(4, [300], 32, bf16)
    for factor in (0.0, 100.0):
        scaled = [(arrays[0].astype(np.float32) * factor).astype(bf16), *arrays[1:]]
        got = run(attention(level, bf16, 1, 32), scaled, 1)
        assert nmse(got.astype(np.float64), wanted(*scaled[:3], [300], 1, 0.0)) < 2e-5


def test_bf16_needs_its_products_and_whole_tiles():
    for level, head_dim in (
        ("generic", 32), ("x86-64-v4", 32), ("sapphirerapids", 16), ("znver4", 544),
    ):  # fmt: skip
        with pytest.raises(RlxError, match=r"bf16 needs a CPU that multiplies it, and heads of"):
            attention(level, ml_dtypes.bfloat16, 1, head_dim)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_means_of_packed_sequences(level: str, dtype: Any):
    for lengths in LENGTHS:
        for width in (1, 16, 37):
            x, _, _, starts = drawn(5, lengths, width, dtype)
            got = run(mean(level, dtype, width), [x, starts], 3)
            parts = np.split(x.astype(np.float64), starts[1:])
            means = [p.sum(axis=0) / max(len(p), 1) for p in parts]
            np.testing.assert_allclose(got, means, atol=1e-6 if dtype == np.float32 else 1e-14)


@pytest.mark.parametrize("level", LEVELS)
def test_starts_that_are_wrong_read_nothing_outside(level: str):
    """They are checked where they are made; here no row beyond the last is touched."""
    arrays = drawn(6, [40], 32, np.float32)
    for starts in ([50, -1, 7], [0, 1 << 30], [39, 3, 20]):
        given = [*arrays[:3], np.array(starts, np.int32)]
        run(attention(level, np.float32, 2, 16), given, 2)
        run(mean(level, np.float32, 32), [given[0], given[3]], 2)


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        ([(4, 6)] * 3 + [(2,)], {"head_dim": 4}, "width a multiple of head_dim 4"),
        ([(4, 6), (4, 6), (5, 6), (2,)], {"head_dim": 3}, "q, k and v of one type"),
        ([(4, 6)] * 3 + [(2, 1)], {"head_dim": 3}, r"starts of segments, \[segments\] i32"),
        ([(4, 6)] * 3, {"head_dim": 3}, "expected 4 operands"),
        ([(4, 6)] * 3 + [(2,)], {"head_dim": 3, "scale": -1.0}, "a scale from 0"),
    ],
)
def test_operands_that_do_not_fit(shapes: Any, options: Any, message: str):
    dtypes = [np.float32] * 3 + [np.int32]
    types = [typed(t, *s) for t, s in zip(dtypes, shapes, strict=False)]
    with pytest.raises(VerifyException, match=message):
        block_of(types, lambda args: ([SegmentAttentionOp(*args, **options)], []))
