"""
The choice of the next token: greedy, or at random after temperature, top-k and top-p.

The rule, for logits x in the order (larger first, then smaller index); NaN is never chosen:

1. temperature <= 0 (or an infinite largest logit): the first in the order; 0 if all are NaN.
2. Drop -inf. Keep the first top_k.
3. Weights are w = exp((x - max) / temperature). Keep the shortest start of the order whose weight
   is at least top_p of all that step 2 kept, at least one.
4. The smallest index whose running sum of weights, in index order, exceeds u times the total; u is
   Philox(seed, counter).

Nothing is sorted. "The shortest start of the order with enough measure" is a binary search for its
last logit over the 32-bit patterns of floats, each step one pass over a list of candidates, and the
list is short: with top_k <= 64 it is cut at the least of 64 maxima of disjoint parts, with top_p
alone at the weight (1 - top_p) / n of the total, below which all together can't matter.

All sums are float64 of a fixed shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from rlx.lowering.emitter import Function, Value, f32, f64, i64
from rlx.lowering.philox import emit_uniform
from rlx.lowering.rows import (
    VECTOR,
    fold,
    load_chunk,
    row_accumulate,
    row_reduce,
    tail_mask,
)
from rlx.lowering.target import PANEL
from rlx.lowering.vmath import clamp_low, exp2_softmax

PARAMETERS_BYTES = 32
"""f32 temperature, i32 top_k (<= 0: off), f32 top_p (>= 1: off), 4 bytes, u64 seed, u64 counter."""

_PARTS = 4 * PANEL
"""The parts whose maxima bound the top-k-th logit from below: lanes of `row_accumulate`."""

_LARGEST = 3.4028234663852886e38
_INTS = f"<{PANEL} x i32>"
_DOUBLES = f"<{PANEL} x double>"


def sample_scratch_bytes(n: int) -> int:
    """Return the size of the scratch of `emit_sample` for n logits."""
    return 3 * _list_bytes(n)


def _list_bytes(n: int) -> int:
    return (n + 2 * PANEL) // PANEL * PANEL * 4


class _Candidates(NamedTuple):
    """
    Tokens that may still be chosen, in index order.

    The values are padded with NaN to a multiple of 16, the weights with 0.
    """

    values: Value
    indices: Value
    weights: Value


def emit_argmax(f: Function, logits: Value, n: int) -> Value:
    """Return the i32 index of the largest of n floats, the smallest of several; NaN is ignored."""
    return _first_equal(f, logits, n, fold_max(f, _part_maxima(f, logits, n)))


def emit_sample(f: Function, logits: Value, n: int, params: Value, scratch: Value) -> Value:
    """
    Return the i32 index of the chosen one of n logits (f32), which are only read.

    `params` is a struct of `PARAMETERS_BYTES`, scratch `sample_scratch_bytes(n)`. For one thread.
    """
    temperature = f.load("float", params)
    maxima = _part_maxima(f, logits, n)
    top = fold_max(f, maxima)
    finite = f.fcmp("olt", f.intrinsic("fabs", "float", top), f32(math.inf))
    at_random = f.and_(f.fcmp("ogt", temperature, f32(0.0)), finite)
    (chosen,) = f.if_(
        at_random,
        lambda: [_draw(f, logits, n, params, scratch, maxima, top)],
        lambda: [_first_equal(f, logits, n, top)],
    )
    return chosen


def fold_max(f: Function, maxima: list[Value]) -> Value:
    return f.reduce("maxnum", fold(f, "maxnum", maxima))


def _part_maxima(f: Function, logits: Value, n: int) -> list[Value]:
    """Return the maxima of 64 disjoint parts that make up the logits, -inf for an empty one."""
    lowest = f.splat(f32(-math.inf), PANEL)

    def larger(column: Value, mask: Value | None, top: Value) -> Value:
        v = load_chunk(f, logits, column, mask)
        if mask:
            v = f.select(mask, v, lowest)
        return f.select(f.fcmp("ogt", v, top), v, top)

    return row_accumulate(f, n, lowest, larger)


def _first_equal(f: Function, row: Value, n: int, x: Value) -> Value:
    """Return the i32 index of the first of n floats equal to x, 0 where there is none."""
    wanted = f.splat(x, PANEL)
    whole = n // PANEL * PANEL

    def equal(column: Value, mask: Value | None) -> Value:
        hits = f.fcmp("oeq", load_chunk(f, row, column, mask), wanted)
        return f.cast("bitcast", f.and_(hits, mask) if mask else hits, "i16")

    def missing(v: list[Value]) -> Value:
        return f.and_(f.icmp("slt", v[0], i64(whole)), f.icmp("eq", v[1], 0))

    def step(v: list[Value]) -> list[Value]:
        return [f.add(v[0], PANEL), equal(v[0], None)]

    end, bits = f.while_([i64(0), Value("i16", "0")], missing, step)
    column = f.sub(end, PANEL)
    if mask := tail_mask(f, n):
        absent = f.icmp("eq", bits, 0)
        column = f.select(absent, i64(whole), column)
        bits = f.select(absent, equal(i64(whole), mask), bits)
    lane = f.cast("zext", _trailing_zeros(f, bits), "i64")
    found = f.select(f.icmp("ne", bits, 0), f.add(column, lane), i64(0))
    return f.cast("trunc", found, "i32")


def _trailing_zeros(f: Function, bits: Value) -> Value:
    return f.intrinsic("cttz", bits.type, bits, Value("i1", "false"))


def _draw(
    f: Function,
    logits: Value,
    n: int,
    params: Value,
    scratch: Value,
    maxima: list[Value],
    top: Value,
) -> Value:
    """Return the index chosen at random; `top` is the largest logit, finite."""
    temperature = f.load("float", params)
    top_k = f.cast("sext", f.load("i32", f.at(params, 4)), "i64")
    top_p = f.cast("fpext", clamp_low(f, f.load("float", f.at(params, 8)), 1e-30), "double")
    off = f.or_(f.icmp("slt", top_k, 1), f.icmp("sgt", top_k, n))
    top_k = f.select(off, i64(n), top_k)
    slope = f.fdiv(f32(math.log2(math.e)), temperature)
    # 0 * inf would be NaN at the largest logit.
    slope = f.select(f.fcmp("olt", slope, f32(_LARGEST)), slope, f32(_LARGEST))
    nucleus = f.fcmp("olt", top_p, f64(1.0))

    def weigh(values: Value) -> Value:
        scaled = f.fmul(f.fsub(values, f.splat(top, values.lanes)), f.splat(slope, values.lanes))
        weights = exp2_softmax(f, scaled)
        return f.select(f.fcmp("ord", weights, weights), weights, f.zero(weights.type))

    def everything() -> list[Value]:
        """Weigh all logits; return the total and the logit below which they can't matter."""
        total = _total_weight(f, logits, n, weigh)
        share = f.fmul(f.fdiv(total, f64(n)), f.fsub(f64(1.0), top_p))
        wide = f.cast("fpext", temperature, "double")
        # A margin for the errors of the weights' exponents, the first term in temperatures.
        below = f.fsub(f.intrinsic("log", "double", share), f64(1e-3))
        peak = f.cast("fpext", top, "double")
        cut = f.fadd(f.fmul(wide, below), peak)
        slack = f.fmul(f.fadd(f.intrinsic("fabs", "double", peak), f64(1.0)), f64(1e-6))
        return [total, f.cast("fptrunc", f.fsub(cut, slack), "float")]

    few = f.icmp("sle", top_k, _PARTS)
    lower = f.select(few, f.reduce("minnum", fold(f, "minnum", maxima)), f32(-math.inf))
    alone = f.and_(f.and_(nucleus, f.icmp("eq", top_k, n)), f.icmp("sgt", top_k, _PARTS))
    total, cut = f.if_(alone, everything, lambda: [f64(0.0), lower])
    cut = f.select(f.fcmp("ogt", cut, f32(-_LARGEST)), cut, f32(-_LARGEST))

    size = _list_bytes(n)
    found = _Candidates(scratch, f.at(scratch, size), f.at(scratch, 2 * size))
    count = _gather(f, logits, n, cut, found)

    def keep_k() -> list[Value]:
        ones = f.splat(f32(1.0), PANEL)
        target = f.cast("sitofp", top_k, "double")
        return [_take(f, found, count, cut, top, target, lambda _: ones, f64(1.0))]

    (count,) = f.if_(f.icmp("slt", top_k, count), keep_k, lambda: [count])
    _weigh_list(f, found, count, weigh)

    def keep_p() -> list[Value]:
        listed = f.if_(alone, lambda: [total], lambda: [_mass(f, found, count)])[0]
        target = f.fmul(listed, top_p)

        def measure(i: Value) -> Value:
            return f.load(VECTOR, f.at(found.weights, i, 4))

        kept = _take(f, found, count, cut, top, target, measure, weigh)
        _weigh_list(f, found, kept, weigh)
        return [kept]

    (count,) = f.if_(nucleus, keep_p, lambda: [count])
    uniform = emit_uniform(
        f, f.load("i64", f.at(params, 16), 8), f.load("i64", f.at(params, 24), 8)
    )
    return _invert(f, found, count, uniform)
