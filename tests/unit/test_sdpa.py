"""`mir.sdpa` kernels at every instruction-set level against float64 numpy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from bodies import Compiled, block_of, typed
from kernels import levels

from rlx.dialects.kinds import UnaryKind
from rlx.dialects.primitives import UnaryOp
from rlx.dialects.reductions import SdpaOp
from rlx.errors import RlxError
from rlx.lowering.sdpa import emit_sdpa

LEVELS = levels()
DIMS = ("b", "m", "n", "d", "e")


@cache
def symbolic(level: str, dtype: type, heads: int, kv_heads: int, masked: bool, causal: bool):
    """Return a kernel of one attention whose dimensions but heads are all arguments."""
    shapes = [("b", heads, "m", "d"), ("b", kv_heads, "n", "d"), ("b", kv_heads, "n", "e")]
    shapes += [("b", "m", "n")] if masked else []

    def build(args):
        q, k, v, *mask = args
        op = SdpaOp(q, k, v, 0.3, mask[0] if mask else None, causal)
        return [op], [op.result]

    block = block_of([typed(dtype, *s) for s in shapes], build)
    return Compiled(level, block, emit_sdpa, DIMS)


def attention(q, k, v, scale, mask, causal) -> np.ndarray:
    """Return attention in float64 (for float64 in more), zeros for a query that sees no key."""
    wide = np.float64 if q.dtype == np.float32 else np.longdouble
    q, k, v = (x.astype(wide) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * scale
    m, n = scores.shape[-2:]
    if mask is not None:
        scores = scores + mask.astype(wide)[:, None]
    if causal:
        unseen = np.arange(n) > np.arange(m)[:, None] + n - m
        scores = np.where(unseen, -np.inf, scores)
    if n == 0:
        return np.zeros((*q.shape[:-1], v.shape[-1]))
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total == 0, 1, total) @ v


def random(rng, dtype, heads, kv_heads, sizes, masked):
    b, m, n, d, e = (sizes[x] for x in DIMS)
    shapes = [(b, heads, m, d), (b, kv_heads, n, d), (b, kv_heads, n, e)]
    arrays = [rng.standard_normal(s).astype(dtype) for s in shapes]
    if not masked:
        return arrays
    mask = rng.standard_normal((b, m, n)).astype(dtype)
    mask[rng.random((b, m, n)) < 0.3] = -np.inf
    mask[:, m // 2 : m // 2 + 1] = -np.inf
    return [*arrays, mask]


SIZES = [
    (1, 1, 1, 1, 1), (2, 7, 16, 17, 33), (1, 33, 100, 64, 64), (1, 100, 33, 32, 16),
    (1, 1, 700, 64, 64), (1, 70, 500, 100, 7), (1, 300, 300, 16, 48), (1, 500, 20, 8, 8),
    (0, 3, 3, 4, 4), (1, 0, 3, 4, 4), (1, 3, 0, 4, 4), (1, 3, 5, 0, 4), (1, 3, 5, 4, 0),
]  # fmt: skip


@pytest.mark.sample(6)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "masked", "causal"),
    [(1, 1, False, False), (4, 2, True, False), (3, 1, False, True), (2, 2, True, True)],
)
def test_attention_of_every_size(level, dtype, heads, kv_heads, masked, causal):
    rng = np.random.default_rng(1)
    kernel = symbolic(level, dtype, heads, kv_heads, masked, causal)
    eps = np.finfo(dtype).eps
    for given in SIZES:
        sizes = dict(zip(DIMS, given, strict=True))
        arrays = random(rng, dtype, heads, kv_heads, sizes, masked)
        expected = attention(*arrays[:3], 0.3, arrays[3] if masked else None, causal)
        (one,) = kernel(arrays, 1, 0, **sizes)
        assert one.shape == expected.shape
        np.testing.assert_allclose(one, expected, rtol=0, atol=60 * eps)
        error = ((one - expected) ** 2).sum() / max((expected**2).sum(), 1e-300)
        assert error <= 100 * eps**2
        (three,) = kernel(arrays, 3, np.dtype(dtype).itemsize, **sizes)
        np.testing.assert_array_equal(one, three)


def test_a_query_depends_on_what_it_sees_alone():
    """Other queries, other batches and heads, keys after the last it sees: the same bits."""
    kernel = symbolic("host", np.float32, 4, 2, True, True)
    rng = np.random.default_rng(2)
    sizes = {"b": 2, "m": 300, "n": 500, "d": 24, "e": 40}
    arrays = random(rng, np.float32, 4, 2, sizes, True)
    (whole,) = kernel(arrays, 1, 0, **sizes)
    for first, last in ((0, 1), (30, 200), (299, 300)):
        seen = sizes["n"] - sizes["m"] + last
        q, k, v, mask = (x[1:] for x in arrays)
        part = [q[:, :, first:last], k[:, :, :seen], v[:, :, :seen], mask[:, first:last, :seen]]
        own = {"b": 1, "m": last - first, "n": seen, "d": 24, "e": 40}
        (result,) = kernel(part, 2, 0, **own)
        np.testing.assert_array_equal(result, whole[1:, :, first:last])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_least_number_as_a_mask_is_not_minus_infinity(level: str, dtype: type):
    """A row of the least finite number weighs all keys alike; one of -inf gives zeros."""
    kernel = symbolic(level, dtype, 4, 2, True, False)
    sizes = {"b": 1, "m": 3, "n": 250, "d": 8, "e": 5}
    rng = np.random.default_rng(3)
    q, k, v, _ = random(rng, dtype, 4, 2, sizes, True)
    mask = np.full((1, 3, 250), np.finfo(dtype).min, dtype)
    mask[0, 1] = -np.inf
    mask[0, 2, :245] = -np.inf
    mask[0, 2, 245:] = 1000
    (result,) = kernel([q, k, v, mask], 2, 0, **sizes)
    eps = np.finfo(dtype).eps
    repeated = np.repeat(v.astype(np.float64), 2, axis=1)
    np.testing.assert_allclose(result[:, :, 0], repeated.mean(axis=2), rtol=0, atol=20 * eps)
    np.testing.assert_array_equal(result[:, :, 1], 0)
    expected = attention(q, k, v, 0.3, mask, False)
    # Scores near 1000 have 1000 times the rounding error.
    np.testing.assert_allclose(result[:, :, 2], expected[:, :, 2], rtol=0, atol=4000 * eps)


@pytest.mark.parametrize("causal", [False, True])
def test_dimensions_of_numbers_without_a_batch(causal: bool):
    def build(args):
        op = SdpaOp(*args, 0.125, None, causal)
        return [op], [op.result]

    shapes = [(6, 65, 64), (2, 90, 64), (2, 90, 128)]
    kernel = Compiled("host", block_of([typed(np.float32, *s) for s in shapes], build), emit_sdpa)
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    (result,) = kernel(arrays, 2)
    expected = attention(*(a[None] for a in arrays), 0.125, None, causal)[0]
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-6)


def test_nan_of_an_operand_reaches_the_queries_it_belongs_to():
    kernel = symbolic("host", np.float32, 1, 1, False, False)
    sizes = {"b": 1, "m": 5, "n": 20, "d": 16, "e": 16}
    arrays = random(np.random.default_rng(5), np.float32, 1, 1, sizes, False)
    arrays[0][0, 0, 3, 2] = np.nan
    (result,) = kernel(arrays, 1, 0, **sizes)
    assert np.isnan(result[0, 0, 3]).all()
    assert np.isfinite(np.delete(result[0, 0], 3, axis=0)).all()


def test_another_operation_beside_it_is_refused():
    def build(args):
        op = SdpaOp(*args, 1.0)
        negative = UnaryOp(UnaryKind.NEG, op.result)
        return [op, negative], [negative.result]

    block = block_of([typed(np.float32, 1, 2, 4)] * 3, build)
    with pytest.raises(RlxError, match=r"sdpa: expected one mir\.sdpa .* mir\.sdpa, mir\.unary"):
        Compiled("host", block, emit_sdpa)
