"""
The choice of the next token: greedy, or at random after temperature, top-k and top-p.

The rule, for logits x in the order (larger first, then smaller index); NaN is never chosen:

1. temperature <= 0 (or an infinite largest logit): the first in the order; -1 if all are NaN.
2. Drop -inf. Keep the first top_k.
3. Weights are w = exp((x - max) / temperature). Keep the shortest start of the order whose weight
   is at least top_p of all that step 2 kept, at least one.
4. The smallest index whose running sum of weights, in index order, exceeds u times the total; u is
   Philox(seed, counter).

Nothing is sorted. "The shortest start of the order with enough measure" is a binary search for its
last logit over the 32-bit patterns of floats, each step one pass over a list of candidates, and the
list is short: with top_k <= 64 it is cut at the least of 64 maxima of disjoint parts, with top_p
alone at the weight (1 - top_p) / n of the total, below which all together can't matter.

All sums are float64 and of a fixed shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from rlx.lowering.emitter import Function
from rlx.lowering.philox import emit_uniform
from rlx.lowering.rows import VECTOR, fold, load_chunk, row_accumulate, row_reduce, tail_mask
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, f32, f64, i64
from rlx.lowering.vmath import clamp_low, exp2_softmax

PARAMETERS_BYTES = 32
"""f32 temperature, i32 top_k (<= 0: off), f32 top_p (>= 1: off), 4 bytes, u64 seed, u64 counter."""

_PARTS = 4 * PANEL
"""The parts whose maxima bound the top_k-th logit from below: lanes of `row_accumulate`."""

_LARGEST = 3.4028234663852886e38
_INTS = f"<{PANEL} x i32>"
_DOUBLES = f"<{PANEL} x double>"

Measure = Callable[[Value], Value]
"""From floats (a vector or a scalar) to the measure of each, floats."""


class _Candidates(NamedTuple):
    """
    Tokens that may still be chosen, in index order: f32 logits and i32 indices.

    NaN follows the last logit, up to a multiple of 16.
    """

    logits: Value
    indices: Value
    length: Value


def _list_bytes(n: int) -> int:
    return (n + 2 * PANEL) // PANEL * PANEL * 4


def sample_scratch_bytes(n: int) -> int:
    """Return the size of the scratch of `emit_sample` for n logits."""
    return 2 * _list_bytes(n)


def emit_sample(f: Function, logits: Value, n: int, params: Value, scratch: Value) -> Value:
    """
    Return the i32 index of the chosen one of n logits (f32), which are only read.

    `params` is a struct of `PARAMETERS_BYTES`, scratch `sample_scratch_bytes(n)`. For one thread.
    """
    temperature = f.load("float", params)
    maxima = _part_maxima(f, logits, n)
    top = _reduce(f, "maxnum", maxima)
    finite = f.fcmp("olt", f.intrinsic("fabs", "float", top), f32(math.inf))
    (chosen,) = f.if_(
        f.and_(f.fcmp("ogt", temperature, f32(0.0)), finite),
        lambda: [_draw(f, logits, n, params, scratch, maxima, top)],
        lambda: [_first_equal(f, logits, n, top)],
    )
    return chosen


def _reduce(f: Function, kind: str, vectors: list[Value]) -> Value:
    return f.reduce(kind, fold(f, kind, vectors))


def _part_maxima(f: Function, logits: Value, n: int) -> list[Value]:
    """Return the maxima of 64 disjoint parts that make up the logits, -inf for an empty one."""
    lowest = f.splat(f32(-math.inf), PANEL)

    def larger(column: Value, mask: Value | None, top: Value) -> Value:
        v = load_chunk(f, logits, column, mask)
        v = f.select(mask, v, lowest) if mask else v
        return f.select(f.fcmp("ogt", v, top), v, top)

    return row_accumulate(f, n, lowest, larger)


def _first_equal(f: Function, row: Value, n: int, x: Value) -> Value:
    """Return the i32 index of the first of n floats equal to x, -1 where there is none."""
    wanted = f.splat(x, PANEL)
    whole = n // PANEL * PANEL

    def equal(column: Value, mask: Value | None) -> Value:
        hits = f.fcmp("oeq", load_chunk(f, row, column, mask), wanted)
        return f.cast("bitcast", f.and_(hits, mask) if mask else hits, "i16")

    def missing(v: list[Value]) -> Value:
        return f.and_(f.icmp("slt", v[0], whole), f.icmp("eq", v[1], 0))

    def step(v: list[Value]) -> list[Value]:
        return [f.add(v[0], PANEL), equal(v[0], None)]

    end, bits = f.while_([i64(0), Value("i16", "0")], missing, step)
    column = f.sub(end, PANEL)
    if mask := tail_mask(f, n):
        absent = f.icmp("eq", bits, 0)
        column = f.select(absent, i64(whole), column)
        bits = f.select(absent, equal(i64(whole), mask), bits)
    lane = f.intrinsic("cttz", "i16", bits, Value("i1", "false"))
    found = f.add(column, f.cast("zext", lane, "i64"))
    return f.cast("trunc", f.select(f.icmp("ne", bits, 0), found, i64(-1)), "i32")


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
    off = f.or_(f.icmp("slt", top_k, 1), f.icmp("sgt", top_k, n))
    top_k = f.select(off, i64(n), top_k)
    top_p = f.cast("fpext", clamp_low(f, f.load("float", f.at(params, 8)), 1e-30), "double")
    nucleus = f.fcmp("olt", top_p, f64(1.0))
    weigh = _weigher(f, temperature, top)

    few = f.icmp("sle", top_k, _PARTS)
    alone = f.and_(f.and_(nucleus, f.icmp("eq", top_k, n)), f.icmp("sgt", top_k, _PARTS))

    def bound_by_parts() -> list[Value]:
        return [f64(0.0), f.select(few, _reduce(f, "minnum", maxima), f32(-math.inf))]

    def bound_by_weight() -> list[Value]:
        total = _total_weight(f, logits, n, weigh)
        return [total, _negligible(f, n, top, temperature, total, top_p)]

    total, cut = f.if_(alone, bound_by_weight, bound_by_parts)
    cut = f.select(f.fcmp("ogt", cut, f32(-_LARGEST)), cut, f32(-_LARGEST))
    found = _gather(f, logits, n, cut, scratch)

    def one(x: Value) -> Value:
        return f.splat(f32(1.0), x.lanes)

    def keep_k() -> list[Value]:
        return [_shortest_start(f, found, cut, top, f.cast("sitofp", top_k, "double"), one)]

    (count,) = f.if_(f.icmp("slt", top_k, found.length), keep_k, lambda: [found.length])
    kept = found._replace(length=count)

    def keep_p() -> list[Value]:
        lowest = f32(-_LARGEST)
        (whole,) = f.if_(alone, lambda: [total], lambda: [_measure(f, kept, "oge", lowest, weigh)])
        return [_shortest_start(f, kept, cut, top, f.fmul(whole, top_p), weigh)]

    (count,) = f.if_(nucleus, keep_p, lambda: [count])
    seed, counter = (f.load("i64", f.at(params, offset), 8) for offset in (16, 24))
    return _invert(f, found._replace(length=count), weigh, emit_uniform(f, seed, counter))


def _weigher(f: Function, temperature: Value, top: Value) -> Measure:
    """Return the generator of w = exp((x - top) / temperature), 0 for NaN."""
    slope = f.fdiv(f32(math.log2(math.e)), temperature)
    # Not infinite: times 0, for the largest logit, that would be NaN.
    slope = f.select(f.fcmp("olt", slope, f32(_LARGEST)), slope, f32(_LARGEST))

    def weigh(x: Value) -> Value:
        distance = f.fsub(x, f.splat(top, x.lanes))
        w = exp2_softmax(f, f.fmul(distance, f.splat(slope, x.lanes)))
        return f.select(f.fcmp("ord", w, w), w, f.splat(f32(0.0), x.lanes))

    return weigh


def _total_weight(f: Function, logits: Value, n: int, weigh: Measure) -> Value:
    """Return the weight of all logits, a double."""

    def add(column: Value, mask: Value | None, total: Value) -> Value:
        w = weigh(load_chunk(f, logits, column, mask))
        w = f.select(mask, w, f.zero(VECTOR)) if mask else w
        return f.fadd(total, f.cast("fpext", w, _DOUBLES))

    return row_reduce(f, n, f.zero(_DOUBLES), add)


def _negligible(
    f: Function, n: int, top: Value, temperature: Value, total: Value, top_p: Value
) -> Value:
    """Return a logit below which n weights together are less than (1 - top_p) * total."""
    share = f.fdiv(f.fmul(f.fsub(f64(1.0), top_p), total), f64(n))
    peak, wide = (f.cast("fpext", x, "double") for x in (top, temperature))
    # Less a margin for the rounding of weights and of differences of logits.
    distance = f.fsub(f.intrinsic("log", "double", share), f64(1e-3))
    slack = f.fmul(f.fadd(f.intrinsic("fabs", "double", peak), f64(1.0)), f64(1e-6))
    return f.cast("fptrunc", f.fsub(f.fma(wide, distance, peak), slack), "float")


def _gather(f: Function, logits: Value, n: int, cut: Value, scratch: Value) -> _Candidates:
    """List the logits >= cut."""
    lanes = f.vector("i32", list(range(PANEL)))
    empty = _Candidates(scratch, f.at(scratch, _list_bytes(n)), i64(0))

    def chunk(column: Value, mask: Value | None, count: Value) -> Value:
        v = load_chunk(f, logits, column, mask)
        keep = f.fcmp("oge", v, f.splat(cut, PANEL))
        indices = f.add(lanes, f.splat(f.cast("trunc", column, "i32"), PANEL))
        return _append(f, empty, count, v, indices, f.and_(keep, mask) if mask else keep)

    whole = n // PANEL * PANEL
    (count,) = f.for_(0, whole, PANEL, [i64(0)], lambda c, counts: [chunk(c, None, counts[0])])
    if mask := tail_mask(f, n):
        count = chunk(i64(whole), mask, count)
    return _terminated(f, empty._replace(length=count))


def _append(
    f: Function, c: _Candidates, count: Value, logits: Value, indices: Value, keep: Value
) -> Value:
    """Append the lanes to keep; return the new count."""
    bits = f.cast("bitcast", keep, "i16")

    def write() -> list[Value]:
        for v, row in ((logits, c.logits), (indices, c.indices)):
            to = f.at(row, count, 4)
            f.intrinsic("masked.compressstore", "void", v, to, keep, suffixes=[v.type], align=4)
        return [f.add(count, f.cast("zext", f.intrinsic("ctpop", "i16", bits), "i64"))]

    return f.if_(f.icmp("ne", bits, 0), write, lambda: [count])[0]


def _terminated(f: Function, c: _Candidates) -> _Candidates:
    f.store(f.splat(f32(math.nan), PANEL), f.at(c.logits, c.length, 4))
    return c


def _measure(f: Function, c: _Candidates, predicate: str, x: Value, measure: Measure) -> Value:
    """Return the measure of the candidates for which `logit predicate x` holds, a double."""
    wanted = f.splat(x, PANEL)

    def add(i: Value, total: list[Value]) -> list[Value]:
        v = f.load(VECTOR, f.at(c.logits, i, 4))
        part = f.select(f.fcmp(predicate, v, wanted), measure(v), f.zero(VECTOR))
        return [f.fadd(total[0], f.cast("fpext", part, _DOUBLES))]

    return f.reduce("fadd", f.for_(0, c.length, PANEL, [f.zero(_DOUBLES)], add)[0])


def _shortest_start(
    f: Function, c: _Candidates, low: Value, high: Value, target: Value, measure: Measure
) -> Value:
    """
    Keep the shortest start of the order whose measure is at least target; return its length.

    Every candidate is in [low, high], two finite floats, and `high` is one of them.
    """

    def narrow(v: list[Value]) -> list[Value]:
        middle = f.add(v[0], f.lshr(f.add(f.sub(v[1], v[0]), 1), 1))
        enough = f.fcmp("oge", _measure(f, c, "oge", _float(f, middle), measure), target)
        return [f.select(enough, middle, v[0]), f.select(enough, v[1], f.sub(middle, 1))]

    bounds = [_key(f, low), _key(f, high)]
    last = _float(f, f.while_(bounds, lambda v: f.icmp("ult", v[0], v[1]), narrow)[0])
    above = _measure(f, c, "ogt", last, measure)

    def at_least(i: Value, count: list[Value]) -> list[Value]:
        v = f.load(VECTOR, f.at(c.logits, i, 4))
        indices = f.load(_INTS, f.at(c.indices, i, 4))
        keep = f.fcmp("oge", v, f.splat(last, PANEL))
        return [_append(f, c, count[0], v, indices, keep)]

    (count,) = f.for_(0, c.length, PANEL, [i64(0)], at_least)
    each = f.cast("fpext", measure(last), "double")

    def drop_ties(i: Value, v: list[Value]) -> list[Value]:
        kept, total = v
        logit = f.load("float", f.at(c.logits, i, 4))
        f.store(logit, f.at(c.logits, kept, 4))
        f.store(f.load("i32", f.at(c.indices, i, 4)), f.at(c.indices, kept, 4))
        tie = f.fcmp("oeq", logit, last)
        keep = f.or_(f.xor(tie, Value("i1", "true")), f.fcmp("olt", total, target))
        total = f.fadd(total, f.select(tie, each, f64(0.0)))
        return [f.add(kept, f.cast("zext", keep, "i64")), total]

    kept, _ = f.for_(0, count, 1, [i64(0), above], drop_ties)
    return _terminated(f, c._replace(length=kept)).length


def _key(f: Function, x: Value) -> Value:
    """Return an i64 below 2^32 that orders as the float does."""
    bits = f.cast("bitcast", x, "i32")
    flip = f.or_(f.ashr(bits, 31), -(2**31))
    return f.cast("zext", f.xor(bits, flip), "i64")


def _float(f: Function, key: Value) -> Value:
    """Return the float of a key."""
    bits = f.cast("trunc", key, "i32")
    flip = f.or_(f.xor(f.ashr(bits, 31), -1), -(2**31))
    return f.cast("bitcast", f.xor(bits, flip), "float")


def _invert(f: Function, c: _Candidates, weigh: Measure, uniform: Value) -> Value:
    """Return the first index whose running sum of weights exceeds uniform * total."""

    def weights(i: Value) -> Value:
        return f.cast("fpext", weigh(f.load(VECTOR, f.at(c.logits, i, 4))), _DOUBLES)

    def add(i: Value, total: list[Value]) -> list[Value]:
        return [f.fadd(total[0], f.reduce("fadd", weights(i)))]

    target = f.fmul(f.for_(0, c.length, PANEL, [f64(0.0)], add)[0], uniform)

    def advance(at: Value, w: Value, v: list[Value]) -> list[Value]:
        """Move to `at` unless already there, if it weighs anything."""
        chosen, before, total = v
        going = f.and_(f.fcmp("ole", total, target), f.fcmp("ogt", w, f64(0.0)))
        return [
            f.select(going, at, chosen),
            f.select(going, total, before),
            f.select(going, f.fadd(total, w), total),
        ]

    start = [i64(0), f64(0.0), f64(0.0)]
    chunk, before, _ = f.for_(
        0, c.length, PANEL, start, lambda i, v: advance(i, f.reduce("fadd", weights(i)), v)
    )
    w, found = weights(chunk), [chunk, before, before]
    for lane in range(PANEL):
        found = advance(f.add(chunk, lane), f.extract(w, lane), found)
    return f.load("i32", f.at(c.indices, found[0], 4))
