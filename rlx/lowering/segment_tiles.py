"""
Attention of packed sequences by products of bf16: `transformer.segment_attention` of it.

Weights of softmax are rounded to bf16, sums are f32. A work unit is a head of some queries of a
sequence; it goes through the keys in spans. The keys and values of a span become tiles once for all
of the unit's queries, and all scores of 32 queries on a span are there before their softmax: sums
are rescaled once a span, and mostly a sequence is one span.

A row's result depends neither on other sequences nor on threads, to the bit. Values must be finite
where a weight is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlx.errors import RlxError
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
from rlx.lowering.bf16_products import has_bf16, joined
from rlx.lowering.body import Body, width_of
from rlx.lowering.emitter import Function
from rlx.lowering.kv_cache import LINE
from rlx.lowering.online_softmax import larger_of
from rlx.lowering.rows import VECTOR
from rlx.lowering.scan_chunks import transposed
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, f32

if TYPE_CHECKING:
    from rlx.ops.segments import SegmentAttentionOp

_SUMS = 64 * 1024
"""Bytes on the stack that the sums of a unit's queries take at most."""
_WORD = 2
"""Bytes of a bf16."""
_ROWS = 4
"""Rows whose softmax is computed together: the reductions of one hide behind the others'."""


@dataclass(frozen=True)
class TileAttention:
    """The attention of a launch, with what its threads have on their stacks."""

    f: Function
    head_dim: int
    stride: int
    """Bytes from a row of an operand to the next."""
    scale: float
    """What scores are multiplied with for weights that are powers of 2."""
    q: Value
    k: Value
    v: Value
    out: Value
    stack: Stack

    @staticmethod
    def of(body: Body, op: SegmentAttentionOp) -> TileAttention:
        """Raise RlxError for a target that has no products of bf16, and for heads of no tiles."""
        f, head_dim = body.f, int(op.option("head_dim"))
        if not has_bf16(f.target) or head_dim % amx.DEPTH or head_dim > WIDEST:
            raise RlxError(
                f"{op.name}: bf16 needs a CPU that multiplies it, and heads of a multiple of "
                f"{amx.DEPTH} features, at most {WIDEST}, got {head_dim}: cast its operands to f32"
            )
        q, k, v = (body.pointers[x] for x in op.args[:3])
        stack = Stack.of(f, head_dim, _blocks(head_dim), 1)
        scale = op.scale * math.log2(math.e)
        stride = width_of(op.args[0]) * _WORD
        return TileAttention(f, head_dim, stride, scale, q, k, v, body.outs[0], stack)

    @property
    def row(self) -> int:
        """Return the bytes of a head's row of an operand."""
        return self.head_dim * _WORD

    @property
    def steps(self) -> int:
        """Return the tiles of a row of a head."""
        return self.head_dim // amx.DEPTH

    @property
    def chunks(self) -> int:
        """Return the tiles of sums of a row of a head."""
        return self.head_dim // PANEL

    @property
    def most(self) -> int:
        """Return the queries of a unit, at most."""
        return _blocks(self.head_dim) * HIGH

    def unit(self, first: Value, end: Value, query: Value, head: Value) -> None:
        """Emit a head of the queries from `query` on, of a sequence of rows `first` to `end`."""
        f = self.f
        count = f.umin(f.sub(end, query), self.most)
        q, k, v, out = (f.at(p, head, self.row) for p in (self.q, self.k, self.v, self.out))
        q, out = (f.at(p, query, self.stride) for p in (q, out))

        def span(start: Value, _: list[Value]) -> list[Value]:
            here = f.umin(f.sub(end, start), SPAN)
            self._key_tiles(f.at(k, start, self.stride), here)
            self._value_tiles(f.at(v, start, self.stride), here)
            begins = f.icmp("eq", start, first)
            ends = f.icmp("eq", f.add(start, here), end)

            def block(b: Value, _: list[Value]) -> list[Value]:
                rows = f.umin(f.sub(count, b), HIGH)
                self._attend(f.at(q, b, self.stride), b, rows, here, begins)
                f.if_(ends, lambda: self._finish(f.at(out, b, self.stride), b, rows) or [])
                return []

            f.for_(0, count, HIGH, [], block)
            return []

        f.for_(first, end, SPAN, [], span)

    # Tiles

    def _key_tiles(self, k: Value, count: Value) -> None:
        """Write keys as tiles `[keys / 16][head_dim / 32]`, the last one again beyond it."""
        f, last = self.f, self.f.sub(count, 1)

        def tile(b: Value, _: list[Value]) -> list[Value]:
            rows = [f.at(k, f.umin(f.add(b, n), last), self.stride) for n in range(PANEL)]
            to = f.at(self.stack.key_tiles, b, self.row)
            for step in range(self.steps):
                # What is multiplied with a pair of features is next to it: words of 32 bits.
                words = [f.load(VECTOR, f.at(row, step * LINE), align=2) for row in rows]
                for line, column in enumerate(transposed(f, words)):
                    at = f.at(to, step * amx.TILE_BYTES + line * LINE)
                    f.store(column, at, align=64)
            return []

        f.for_(0, self._whole(count), PANEL, [], tile)

    def _value_tiles(self, v: Value, count: Value) -> None:
        """Write values as tiles `[keys / 32][head_dim / 16]`, the last one again beyond it."""
        f, last = self.f, self.f.sub(count, 1)
        low = [lane for i in range(16) for lane in (i, 32 + i)]

        def pair(j: Value, _: list[Value]) -> list[Value]:
            rows = [f.at(v, f.umin(f.add(f.mul(j, 2), n), last), self.stride) for n in range(2)]
            group, line = f.lshr(j, 4), f.and_(j, amx.ROWS - 1)
            to = f.at(f.at(self.stack.value_tiles, group, self.chunks * amx.TILE_BYTES), line, LINE)
            for step in range(self.steps):
                a, b = (f.load("<32 x i16>", f.at(row, step * LINE), align=2) for row in rows)
                for half in range(2):
                    both = f.shuffle(a, b, [lane + 16 * half for lane in low])
                    f.store(both, f.at(to, (2 * step + half) * amx.TILE_BYTES), align=64)
            return []

        f.for_(0, f.lshr(self._whole(count), 1), 1, [], pair)

    def _whole(self, count: Value) -> Value:
        """Return a number of keys, rounded up to what a product takes in at a time."""
        return self.f.and_(self.f.add(count, amx.DEPTH - 1), -amx.DEPTH)

    # A block of queries

    def _attend(self, q: Value, b: Value, rows: Value, keys: Value, first: Value) -> None:
        """Emit the attention of up to 32 queries to a span of keys, the first one or another."""
        f = self.f
        state, sums = f.at(self.stack.state, b, 8), f.at(self.stack.sums, b, 2 * self.row)
        self._load_queries(q, rows)
        self._scores(rows, self._whole(keys))
        f.for_(0, rows, _ROWS, [], lambda r, _: self._softmax(r, keys, state, first) or [])

        f.if_(first, list, lambda: self.stack.rescale(f, sums, rows))
        for c in range(0, self.chunks, 2):
            self._values(f.at(sums, c * LINE), c, rows, self._whole(keys), first)

    def _load_queries(self, q: Value, rows: Value) -> None:
        """Copy a block's queries; beyond the last one it comes again."""
        f = self.f

        def row(r: Value, _: list[Value]) -> list[Value]:
            source = f.at(q, f.umin(r, f.sub(rows, 1)), self.stride)
            for line in range(0, self.row, LINE):
                at = f.at(f.at(self.stack.queries, r, self.row), line)
                f.store(f.load(VECTOR, f.at(source, line), align=2), at, align=64)
            return []

        f.for_(0, HIGH, 1, [], row)

    def _scores(self, rows: Value, keys: Value) -> None:
        """Write the scores of a block's queries on so many keys, a multiple of 32."""
        f = self.f
        if not amx.has_amx(f.target):
            # Softmax takes some rows together.
            some = f.and_(f.add(rows, _ROWS - 1), -_ROWS)
            self.stack.dot_scores(f, self.stack.queries, some, keys)
            return

        def pair(j: Value, _: list[Value]) -> list[Value]:
            at = f.at(self.stack.key_tiles, j, self.row)
            for c in range(4):
                amx.zero(f, c)
            for step in range(self.steps):
                for n in range(2):
                    block = f.at(self.stack.queries, n * amx.ROWS * self.row + step * LINE)
                    amx.load(f, 4 + n, block, self.row)
                    tile = f.at(at, (n * self.steps + step) * amx.TILE_BYTES)
                    amx.load(f, 6 + n, tile, LINE)
                for c in range(4):
                    amx.multiply(f, c, 4 + c // 2, 6 + c % 2)
            to = f.at(self.stack.scores, j, 4)
            for c in range(4):
                spot = f.at(to, c // 2 * amx.ROWS * SCORES + c % 2 * LINE)
                amx.store(f, c, spot, SCORES)
            return []

        f.for_(0, keys, amx.DEPTH, [], pair)

    def _softmax(self, r: Value, keys: Value, state: Value, first: Value) -> None:
        """Make weights of some rows' scores, zero beyond the last key, and update their states."""
        f = self.f
        rows = [f.add(r, n) for n in range(_ROWS)]
        scale = f.splat(f32(self.scale), PANEL)
        whole = f.sub(self._whole(keys), amx.DEPTH)
        left = f.splat(f.cast("trunc", f.sub(keys, whole), "i32"), PANEL)
        minus = f.splat(f32(-math.inf), PANEL)
        lanes = [f.vector("i32", range(n, n + PANEL)) for n in (0, PANEL)]
        seen = [f.icmp("slt", lane, left) for lane in lanes]

        def pair(row: Value, at: Value) -> list[Value]:
            start = f.at(f.at(self.stack.scores, row, SCORES), at, 4)
            return [f.load(VECTOR, f.at(start, n * LINE)) for n in range(2)]

        def larger(at: Value, tops: list[Value]) -> list[Value]:
            scores = [v for row in rows for v in pair(row, at)]
            return [larger_of(f, v, top) for v, top in zip(scores, tops, strict=True)]

        last = [
            [f.select(s, v, minus) for s, v in zip(seen, pair(row, whole), strict=True)]
            for row in rows
        ]
        tops = f.for_(0, whole, amx.DEPTH, [v for both in last for v in both], larger)
        olds = [
            f.select(first, f32(-math.inf), f.load("float", f.at(state, row, 4))) for row in rows
        ]
        largest = [_largest(f, larger_of(f, *tops[2 * n : 2 * n + 2])) for n in range(_ROWS)]
        largest = [f.fmul(top, f32(self.scale)) for top in largest]
        largest = [
            f.select(f.fcmp("ogt", old, top), old, top)
            for old, top in zip(olds, largest, strict=True)
        ]
        shifts = [f.fneg(f.splat(top, PANEL)) for top in largest]

        def weigh(n: int, at: Value, values: list[Value], total: Value) -> Value:
            both = [exp2_of_weights(f, f.fma(v, scale, shifts[n])) for v in values]
            to = f.at(f.at(self.stack.weights, rows[n], WEIGHTS), at, _WORD)
            f.store(joined(f, *both), to, align=64)
            return f.fadd(total, f.fadd(*both))

        def weigh_all(at: Value, totals: list[Value]) -> list[Value]:
            return [weigh(n, at, pair(rows[n], at), totals[n]) for n in range(_ROWS)]

        totals = f.for_(0, whole, amx.DEPTH, [f.zero(VECTOR)] * _ROWS, weigh_all)
        sums = [f.reduce("fadd", weigh(n, whole, last[n], totals[n])) for n in range(_ROWS)]
        totals_at = f.at(state, HIGH * 4)

        def go_on() -> list[Value]:
            found: list[Value] = []
            for row, old, top, total in zip(rows, olds, largest, sums, strict=True):
                factor = f.extract(exp2_of_weights(f, f.splat(f.fsub(old, top), PANEL)), 0)
                f.store(factor, f.at(self.stack.factors, row, 4))
                found.append(f.fma(f.load("float", f.at(totals_at, row, 4)), factor, total))
            return found

        sums = f.if_(first, lambda: sums, go_on)
        for row, top, total in zip(rows, largest, sums, strict=True):
            f.store(top, f.at(state, row, 4))
            f.store(total, f.at(totals_at, row, 4))

    def _values(self, sums: Value, chunk: int, rows: Value, keys: Value, first: Value) -> None:
        """Add weights times values to two tiles of features of a block's rows, from `chunk` on."""
        f, row = self.f, 2 * self.row
        if not amx.has_amx(f.target):
            self.stack.dot_values(f, sums, chunk, rows, keys, first)
            return
        spots = [f.at(sums, c // 2 * amx.ROWS * row + c % 2 * LINE) for c in range(4)]

        def each(emit: Callable[[int, Value], None]) -> list[Value]:
            for c, at in enumerate(spots):
                emit(c, at)
            return []

        def step(i: Value, _: list[Value]) -> list[Value]:
            tiles = f.at(f.at(self.stack.value_tiles, i, self.row), chunk * amx.TILE_BYTES)
            for n in range(2):
                block = f.at(f.at(self.stack.weights, n * amx.ROWS * WEIGHTS), i, _WORD)
                amx.load(f, 4 + n, block, WEIGHTS)
                amx.load(f, 6 + n, f.at(tiles, n * amx.TILE_BYTES), LINE)
            for c in range(4):
                amx.multiply(f, c, 4 + c // 2, 6 + c % 2)
            return []

        f.if_(
            first,
            lambda: each(lambda c, _: amx.zero(f, c)),
            lambda: each(lambda c, at: amx.load(f, c, at, row)),
        )
        f.for_(0, keys, amx.DEPTH, [], step)
        each(lambda c, at: amx.store(f, c, at, row))

    def _finish(self, out: Value, b: Value, rows: Value) -> None:
        """Write a block's results: sums of values over those of weights."""
        f = self.f
        totals = f.at(f.at(self.stack.state, b, 8), HIGH * 4)
        sums = f.at(self.stack.sums, b, 2 * self.row)
        for n in range(0, HIGH * 4, LINE):
            inverse = f.fdiv(f.splat(f32(1.0), PANEL), f.load(VECTOR, f.at(totals, n)))
            f.store(inverse, f.at(self.stack.factors, n))

        def row(r: Value, _: list[Value]) -> list[Value]:
            inverse = f.splat(f.load("float", f.at(self.stack.factors, r, 4)), PANEL)
            own, to = f.at(sums, r, 2 * self.row), f.at(out, r, self.stride)
            for c in range(0, self.chunks, 2):
                both = [f.fmul(f.load(VECTOR, f.at(own, (c + n) * LINE)), inverse) for n in (0, 1)]
                f.store(joined(f, *both), f.at(to, c * LINE // 2), align=2)
            return []

        f.for_(0, rows, 1, [], row)


def _largest(f: Function, v: Value) -> Value:
    """Return the largest lane of a vector, by halves: `reduce` would look for NaNs at each step."""
    while v.lanes > 1:
        half = v.lanes // 2
        if half == 1:
            return larger_of(f, f.extract(v, 0), f.extract(v, 1))
        v = larger_of(f, f.shuffle(v, v, range(half)), f.shuffle(v, v, range(half, v.lanes)))
    return v


def _blocks(head_dim: int) -> int:
    """Return the blocks of queries of a unit, at most."""
    return max(1, _SUMS // (HIGH * head_dim * 4))
