"""
Causal attention of many queries by products of bf16, over the KV cache of kv_cache.py.

Keys, values and weights of softmax are rounded to bf16, sums are f32. A work unit is some
neighbouring queries of the heads that share a kv head; it goes through the keys in spans, counted
from position 0. The keys and values of a span become tiles once for all of the unit's queries, and
all scores of a query on a span are there before its softmax: sums are rescaled once a span.

A row's result depends neither on the rows beside it nor on threads, nor on how a prompt was split,
to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rlx.lowering import amx
from rlx.lowering.attention_stack import (
    HIGH,
    SCORES,
    SPAN,
    WEIGHTS,
    WIDEST,
    Stack,
    exp2_of_weights,
)
from rlx.lowering.attention_units import shared_heads
from rlx.lowering.bf16_products import all_tiles, has_bf16, joined, pairs
from rlx.lowering.emitter import Function
from rlx.lowering.formats import load_float
from rlx.lowering.in_turn import emit_in_turn
from rlx.lowering.kv_cache import LINE, Attention, load_cached
from rlx.lowering.online_softmax import larger_of
from rlx.lowering.rows import VECTOR
from rlx.lowering.target import PANEL, Target
from rlx.lowering.values import Value, f32, i64

_BLOCKS = 2
"""Blocks of queries of a head, at most, that share the tiles of keys and values."""
_STACK = 128 * 1024
"""Bytes on the stack that the sums of a work unit may take."""


def runs_on_tiles(target: Target, a: Attention) -> bool:
    """Return whether an attention with queries of bf16 multiplies tiles."""
    whole = a.head_dim % amx.DEPTH == 0 and a.head_dim <= WIDEST
    return a.narrow and has_bf16(target) and whole and a.scale > 0


def emit_attention_tiles(
    f: Function,
    a: Attention,
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    rows: Value,
    past: Value,
    turns: Value,
    nth: Value,
) -> None:
    """
    Emit causal attention of `rows` queries at positions past to past + rows - 1 (i64, rows >= 1).

    q, out bf16 [rows][heads][head_dim]; K and V of these positions are in the cache. Threads take
    units in turn, counted in `turns`, from the costly last queries to the first.
    """
    heads = shared_heads(a, _BLOCKS * HIGH * a.row_bytes, _STACK)
    stack = Stack.of(f, a.head_dim, heads * _BLOCKS, heads * _BLOCKS)
    kernel = _Kernel(f, a, heads, stack, q, k, v, out, rows, past)
    first = f.udiv(past, HIGH)
    count = f.sub(f.udiv(f.add(f.add(past, rows), HIGH - 1), HIGH), first)
    shares = a.heads // heads
    # Blocks in pairs share the tiles of keys and values; few of them are rather spread.
    many = f.icmp("uge", f.mul(count, shares), f.mul(nth, 8))
    pace = f.select(many, i64(_BLOCKS), i64(1))
    units = f.mul(f.udiv(f.add(count, f.sub(pace, 1)), pace), shares)

    def run(u: Value, _: list[Value]) -> list[Value]:
        rank = f.sub(f.sub(units, 1), u)
        step = f.udiv(rank, shares)
        head = f.mul(f.sub(rank, f.mul(step, shares)), heads)
        begin = f.mul(step, pace)
        kernel.unit(head, f.add(first, begin), f.umin(pace, f.sub(count, begin)))
        return []

    with all_tiles(f):
        emit_in_turn(f, turns, units, nth, [], run)


@dataclass(frozen=True)
class _Kernel:
    """What all units of a launch have in common."""

    f: Function
    a: Attention
    heads: int
    """The heads of a unit, which share a kv head."""
    stack: Stack
    q: Value
    k: Value
    v: Value
    out: Value
    rows: Value
    past: Value

    @property
    def query_bytes(self) -> int:
        """Return the size of a block's queries."""
        return HIGH * self.a.query_bytes

    @property
    def sum_bytes(self) -> int:
        """Return the size of a block's sums."""
        return HIGH * self.a.row_bytes

    def unit(self, head: Value, block: Value, blocks: Value) -> None:
        """Emit a unit: `blocks` blocks of queries, the first of them the `block`-th of all."""
        f, a = self.f, self.a
        total = f.add(self.past, self.rows)
        end = f.umin(f.mul(f.add(block, blocks), HIGH), total)
        kv_head = f.udiv(head, a.group)
        k, v = (f.at(cache, kv_head, a.head_bytes) for cache in (self.k, self.v))

        def each(body: Callable[[Value, Value, Value], None]) -> None:
            """Emit body(first position, head, number) for the unit's blocks of queries."""

            def one(i: Value, _: list[Value]) -> list[Value]:
                b = f.udiv(i, self.heads)
                h = f.sub(i, f.mul(b, self.heads))
                body(f.mul(f.add(block, b), HIGH), f.add(head, h), i)
                return []

            f.for_(0, f.mul(blocks, self.heads), 1, [], one)

        def span(start: Value, _: list[Value]) -> list[Value]:
            here = f.umin(f.sub(end, start), SPAN)
            self._key_tiles(f.at(k, start, a.cached_bytes), here)
            values = f.at(v, start, a.cached_bytes)
            finite = self._value_tiles(values, here)

            def attend(position: Value, _: Value, i: Value) -> None:
                # Blocks and spans are aligned: all of a block's queries see of a span, or none.
                keys = f.umin(f.sub(f.add(position, HIGH), start), SPAN)
                own = f.sub(position, start)
                sees = f.icmp("sge", position, start)
                f.if_(sees, lambda: self._attend(i, keys, own, start, values, finite) or [])

            each(attend)
            return []

        each(self._load_queries)
        f.for_(0, end, SPAN, [], span)
        each(self._finish)

    def _load_queries(self, position: Value, head: Value, i: Value) -> None:
        """Copy a block's queries; where there is none, another: its result is not written."""
        f, a = self.f, self.a

        def row(r: Value, _: list[Value]) -> list[Value]:
            n = f.sub(f.add(position, r), self.past)
            n = f.intrinsic("smin", "i64", n, f.sub(self.rows, 1))
            n = f.intrinsic("smax", "i64", n, i64(0))
            source = f.at(f.at(self.q, n, a.heads * a.query_bytes), head, a.query_bytes)
            to = f.at(f.at(self.stack.queries, i, self.query_bytes), r, a.query_bytes)
            for line in range(0, a.query_bytes, LINE):
                f.store(f.load("<8 x i64>", f.at(source, line)), f.at(to, line), align=64)
            return []

        f.for_(0, HIGH, 1, [], row)

    def _key_tiles(self, k: Value, count: Value) -> None:
        """Write `count` keys as tiles `[keys / 16][head_dim / 32]`, those beyond as they come."""
        f, a = self.f, self.a

        def pair(j: Value, _: list[Value]) -> list[Value]:
            # A block of 16 keys is head_dim / 2 pairs of features, in the cache and here.
            at = f.at(k, j, 2 * a.chunk_bytes)
            both = load_cached(f, a, at), load_cached(f, a, f.at(at, a.chunk_bytes))
            f.store(pairs(f, *both), f.at(self.stack.key_tiles, j, LINE), align=64)
            return []

        blocks = f.lshr(f.add(count, PANEL - 1), 4)
        f.for_(0, f.mul(blocks, a.head_dim // 2), 1, [], pair)

    def _value_tiles(self, v: Value, count: Value) -> Value:
        """
        Write `count` values as tiles `[keys / 32][head_dim / 16]`, zeros after the last one.

        Returns whether all of them are finite.
        """
        f, a = self.f, self.a

        def pair(j: Value, load: Callable[[Value, int], Value], left: Value) -> list[Value]:
            group, row = f.lshr(j, 4), f.and_(j, amx.ROWS - 1)
            to = f.at(f.at(self.stack.value_tiles, group, a.chunks * amx.TILE_BYTES), row, LINE)
            for chunk in range(a.chunks):
                both = [load(f.add(f.mul(j, 2), n), chunk) for n in range(2)]
                f.store(pairs(f, *both), f.at(to, chunk * amx.TILE_BYTES), align=64)
                # What is left of a finite number is 0, and it stays; of others it is NaN.
                for value in both:
                    left = f.fma(value, f.zero(VECTOR), left)
            return [left]

        def there(key: Value, chunk: int) -> Value:
            return load_cached(f, a, f.at(f.at(v, key, a.cached_bytes), chunk * a.chunk_bytes))

        def perhaps(key: Value, chunk: int) -> Value:
            value = there(f.umin(key, f.sub(count, 1)), chunk)
            seen = f.splat(f.icmp("ult", key, count), PANEL)
            return f.select(seen, value, f.zero(VECTOR))

        whole = f.lshr(count, 1)
        end = f.mul(f.lshr(f.add(count, amx.DEPTH - 1), 5), amx.ROWS)
        (left,) = f.for_(0, whole, 1, [f.zero(VECTOR)], lambda j, c: pair(j, there, c[0]))
        (left,) = f.for_(whole, end, 1, [left], lambda j, c: pair(j, perhaps, c[0]))
        total = f.reduce("fadd", left)
        return f.fcmp("ord", total, total)

    def _attend(
        self, i: Value, keys: Value, diagonal: Value, start: Value, v: Value, finite: Value
    ) -> None:
        """
        Emit a block's attention to a span: `keys` of it, the block's own from `diagonal` on.

        A product of tiles multiplies a value with a weight of 0, too. Where values are not all
        `finite` a block's own are therefore added one by one, each to the queries that see it.
        """
        f, a = self.f, self.a
        queries = f.at(self.stack.queries, i, self.query_bytes)
        sums = f.at(self.stack.sums, i, self.sum_bytes)
        state = f.at(self.stack.state, i, HIGH * 8)
        first = f.icmp("eq", start, 0)
        self._scores(queries, keys)

        def row(r: Value, _: list[Value]) -> list[Value]:
            self._softmax(r, f.add(f.add(diagonal, r), 1), keys, state, first)
            return []

        f.for_(0, HIGH, 1, [], row)

        f.if_(first, list, lambda: self.stack.rescale(f, sums, HIGH))
        here = f.icmp("ult", diagonal, SPAN)
        apart = f.and_(here, f.xor(finite, 1))
        tiled = f.select(apart, f.sub(keys, HIGH), keys)
        if amx.has_amx(f.target):
            for r in range(2):
                for c in range(0, a.chunks, 4):
                    self._values(sums, r, c, min(4, a.chunks - c), tiled, first)
        else:
            for c in range(0, a.chunks, 2):
                self.stack.dot_values(f, f.at(sums, c * LINE), c, i64(HIGH), tiled, first)
        f.if_(apart, lambda: self._own_values(sums, diagonal, v) or [])

    def _own_values(self, sums: Value, diagonal: Value, v: Value) -> None:
        """Add weights times values of a block's own keys, those that each query sees."""
        f, a = self.f, self.a

        def row(r: Value, _: list[Value]) -> list[Value]:
            weights = f.at(f.at(self.stack.weights, r, WEIGHTS), diagonal, 2)

            def key(j: Value, _: list[Value]) -> list[Value]:
                weight = f.splat(load_float(f, "bf16", f.at(weights, j, 2), 1), PANEL)
                value = f.at(v, f.add(diagonal, j), a.cached_bytes)
                for c in range(a.chunks):
                    at = f.at(f.at(sums, r, a.row_bytes), c * LINE)
                    one = load_cached(f, a, f.at(value, c * a.chunk_bytes))
                    f.store(f.fma(one, weight, f.load(VECTOR, at)), at)
                return []

            return f.for_(0, f.add(r, 1), 1, [], key)

        f.for_(0, HIGH, 1, [], row)

    def _scores(self, queries: Value, keys: Value) -> None:
        """Write the scores of a block's queries on `keys` keys, a multiple of 32."""
        f, a = self.f, self.a
        if not amx.has_amx(f.target):
            self.stack.dot_scores(f, queries, i64(HIGH), keys)
            return
        sums, query, key = (0, 1), (4, 5), 6

        def tile(j: Value, _: list[Value]) -> list[Value]:
            at = f.at(self.stack.key_tiles, j, (a.head_dim // amx.DEPTH) * amx.TILE_BYTES)
            for c in sums:
                amx.zero(f, c)
            for step in range(a.head_dim // amx.DEPTH):
                amx.load(f, key, f.at(at, step * amx.TILE_BYTES), LINE)
                for c, x in zip(sums, query, strict=True):
                    row = f.at(queries, c * amx.ROWS * a.query_bytes + step * LINE)
                    amx.load(f, x, row, a.query_bytes)
                    amx.multiply(f, c, x, key)
            to = f.at(self.stack.scores, j, LINE)
            for c in sums:
                amx.store(f, c, f.at(to, c * amx.ROWS * SCORES), SCORES)
            return []

        f.for_(0, f.lshr(keys, 4), 1, [], tile)

    def _softmax(self, r: Value, seen: Value, keys: Value, state: Value, first: Value) -> None:
        """Make weights of a row's scores, zero from the `seen`-th key on, and update its state."""
        f, a = self.f, self.a
        scores, weights = f.at(self.stack.scores, r, SCORES), f.at(self.stack.weights, r, WEIGHTS)
        largest_at, total_at = f.at(state, r, 4), f.at(f.at(state, HIGH * 4), r, 4)
        scale = f.splat(f32(a.scale * math.log2(math.e)), PANEL)
        lanes = [f.vector("i32", range(n, n + PANEL)) for n in (0, PANEL)]
        # A query sees all keys of the span up to the last 32, of which perhaps some.
        whole = f.sub(keys, amx.DEPTH)

        def pair(at: Value) -> list[Value]:
            return [f.load(VECTOR, f.at(f.at(scores, at, 4), n * LINE)) for n in range(2)]

        left = f.splat(f.cast("trunc", f.sub(seen, whole), "i32"), PANEL)
        minus = f.splat(f32(-math.inf), PANEL)
        last = [
            f.select(f.icmp("slt", lane, left), score, minus)
            for lane, score in zip(lanes, pair(whole), strict=True)
        ]

        def larger(at: Value, tops: list[Value]) -> list[Value]:
            return [larger_of(f, v, top) for v, top in zip(pair(at), tops, strict=True)]

        tops = f.for_(0, whole, amx.DEPTH, last, larger)
        old = f.select(first, f32(-math.inf), f.load("float", largest_at))
        top = f.reduce("maxnum", larger_of(f, *tops))
        top = f.fmul(top, f32(a.scale * math.log2(math.e)))
        top = f.select(f.fcmp("ogt", old, top), old, top)
        f.store(top, largest_at)
        shift = f.fneg(f.splat(top, PANEL))

        def weigh(at: Value, values: list[Value], total: Value) -> Value:
            both = [exp2_of_weights(f, f.fma(v, scale, shift)) for v in values]
            f.store(joined(f, *both), f.at(weights, at, 2), align=64)
            return f.fadd(total, f.fadd(*both))

        (total,) = f.for_(
            0, whole, amx.DEPTH, [f.zero(VECTOR)], lambda at, t: [weigh(at, pair(at), t[0])]
        )
        total = f.reduce("fadd", weigh(whole, last, total))

        def go_on() -> list[Value]:
            factor = f.extract(exp2_of_weights(f, f.splat(f.fsub(old, top), PANEL)), 0)
            f.store(factor, f.at(self.stack.factors, r, 4))
            return [f.fma(f.load("float", total_at), factor, total)]

        f.store(f.if_(first, lambda: [total], go_on)[0], total_at)

    def _values(
        self, sums: Value, r: int, chunk: int, count: int, keys: Value, first: Value
    ) -> None:
        """Add weights times values to `count` tiles of features of 16 rows, from `chunk` on."""
        f, a = self.f, self.a
        weight, value = 4, 5
        spots = [f.at(sums, r * amx.ROWS * a.row_bytes + (chunk + c) * LINE) for c in range(count)]

        def start() -> list[Value]:
            for c in range(count):
                amx.zero(f, c)
            return []

        def go_on() -> list[Value]:
            for c, at in enumerate(spots):
                amx.load(f, c, at, a.row_bytes)
            return []

        def step(i: Value, _: list[Value]) -> list[Value]:
            row = f.at(f.at(self.stack.weights, r * amx.ROWS * WEIGHTS), i, LINE)
            amx.load(f, weight, row, WEIGHTS)
            tiles = f.at(
                f.at(self.stack.value_tiles, i, a.chunks * amx.TILE_BYTES), chunk * amx.TILE_BYTES
            )
            for c in range(count):
                amx.load(f, value + c % 3, f.at(tiles, c * amx.TILE_BYTES), LINE)
                amx.multiply(f, c, weight, value + c % 3)
            return []

        f.if_(first, start, go_on)
        f.for_(0, f.lshr(keys, 5), 1, [], step)
        for c, at in enumerate(spots):
            amx.store(f, c, at, a.row_bytes)

    def _finish(self, position: Value, head: Value, i: Value) -> None:
        """Write the results of a block's queries that are asked for."""
        f, a = self.f, self.a
        sums = f.at(self.stack.sums, i, self.sum_bytes)
        totals = f.at(f.at(self.stack.state, i, HIGH * 8), HIGH * 4)

        def write(n: Value, r: Value) -> list[Value]:
            inverse = f.splat(f.fdiv(f32(1.0), f.load("float", f.at(totals, r, 4))), PANEL)
            to = f.at(f.at(self.out, n, a.heads * a.query_bytes), head, a.query_bytes)
            row = f.at(sums, r, a.row_bytes)
            for c in range(0, a.chunks, 2):
                both = [f.fmul(f.load(VECTOR, f.at(row, (c + n) * LINE)), inverse) for n in (0, 1)]
                f.store(joined(f, *both), f.at(to, c * LINE // 2), align=2)
            return []

        def row(r: Value, _: list[Value]) -> list[Value]:
            n = f.sub(f.add(position, r), self.past)
            f.if_(f.icmp("ult", n, self.rows), lambda: write(n, r))
            return []

        f.for_(0, HIGH, 1, [], row)
