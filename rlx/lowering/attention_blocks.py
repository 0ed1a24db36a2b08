"""
Attention of some queries on keys, a block of keys at a time, whatever the layout in memory.

Scores, weights and sums are products of blocks (`dot_blocks`) with an online softmax between them
(Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), so that the memory used
does not grow with the keys. Blocks of keys are counted from the first key, and a key that a query
doesn't see adds exact zeros: a query's result depends neither on threads nor on other queries, to
the bit. Values must be finite where a weight is 0.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

from rlx.lowering.dot_blocks import Shapes, emit_block
from rlx.lowering.dot_matrix import (
    Matrix,
    Tiling,
    lanes_below,
    load_part,
    load_some,
    store_part,
)
from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, f32, f64, i64
from rlx.lowering.vmath import emit_unary, exp2_softmax

QUERIES = 96
"""Queries of a work unit, at most."""

_KEY_BYTES = 512
"""Bytes of a query's scores for a block of keys: whole panels at every level, 128 keys in f32."""

_LARGEST = {"float": 2.0**128 - 2.0**104, "double": sys.float_info.max}

Seen = Callable[[Value, Value, Value], Value]
"""Of a query (i64) and a block, by its first key and its length: how many keys are seen."""
MaskAt = Callable[[Value, Value], Value]
"""Of a query and a block's first key: where the numbers are that are added to the scores."""


def up_to(f: Function, n: Value, most: Value) -> Value:
    """Return a number that may be negative or too large, from 0 to `most`."""
    positive = f.select(f.icmp("sgt", n, 0), n, i64(0))
    return f.umin(positive, most)


@dataclass
class Blocks:
    """
    The queries of a work unit, with their scores and states on the stack.

    Queries and keys have d features, values and results e.
    """

    f: Function
    tiling: Tiling
    scale: float
    d: Value
    e: Value
    scores: Value
    """Of the queries and a block of keys; then their weights."""
    state: Value
    """Largest score so far, and sum of weights, of each query."""

    @staticmethod
    def of(f: Function, element: str, scale: float, d: Value, e: Value) -> Blocks:
        """Return those for numbers of `element`, float or double."""
        t = Tiling.of(f.target, element)
        scores, state = f.alloca(QUERIES * _KEY_BYTES), f.alloca(QUERIES * 2 * t.size)
        return Blocks(f, t, scale, d, e, scores, state)

    def attend(
        self,
        q: Matrix,
        k: Matrix,
        v: Matrix,
        out: Matrix,
        count: Value,
        keys: Value,
        shapes: tuple[Shapes, Shapes],
        seen: Seen | None = None,
        mask_at: MaskAt | None = None,
    ) -> None:
        """
        Emit the attention of `count` queries, up to `QUERIES`, on so many keys.

        `k` is swapped. The shapes are those of products with keys and with values. Without `seen` a
        query sees all keys.
        """
        f, t = self.f, self.tiling
        scores = Matrix(self.scores, i64(_KEY_BYTES))

        def start(r: Value, _: list[Value]) -> list[Value]:
            largest, total = self._state(r)
            f.store(self.constant(-_LARGEST[t.element]), largest, align=t.size)
            f.store(self.constant(0.0), total, align=t.size)
            return []

        def key_block(k0: Value, _: list[Value]) -> list[Value]:
            length = f.umin(f.sub(keys, k0), _KEY_BYTES // t.size)
            own = Matrix(k.at(f, 0, k0, t.size), k.stride, swapped=True)
            emit_block(f, t, shapes[0], q, own, scores, count, length, self.d)

            def softmax(r: Value, _: list[Value]) -> list[Value]:
                mask = None if mask_at is None else mask_at(r, k0)
                self._softmax(
                    r, k0, length, length if seen is None else seen(r, k0, length), mask, out
                )
                return []

            f.for_(0, count, 1, [], softmax)
            own = Matrix(v.at(f, k0, 0, t.size), v.stride)
            more = f.icmp("ne", k0, 0)
            emit_block(f, t, shapes[1], scores, own, out, count, self.e, length, more)
            return []

        f.for_(0, count, 1, [], start)
        f.for_(0, keys, _KEY_BYTES // t.size, [], key_block)
        f.for_(0, count, 1, [], lambda r, _: self._finish(r, out) or [])

    def constant(self, number: float) -> Value:
        return f32(number) if self.tiling.element == "float" else f64(number)

    def _state(self, row: Value) -> tuple[Value, Value]:
        f, size = self.f, self.tiling.size
        return f.at(self.state, row, 2 * size), f.at(f.at(self.state, row, 2 * size), size)

    def _softmax(
        self, row: Value, k0: Value, length: Value, seen: Value, mask: Value | None, out: Matrix
    ) -> None:
        """Turn a query's scores into weights, and rescale what it has of earlier blocks."""
        f, t = self.f, self.tiling
        scores = f.at(self.scores, row, _KEY_BYTES)
        lowest = f.splat(self.constant(-math.inf), t.lanes)
        scale = f.splat(self.constant(self.scale), t.lanes)

        def score(j: Value, tops: list[Value]) -> list[Value]:
            at, left = f.at(scores, j, t.size), up_to(f, f.sub(seen, j), i64(t.lanes))
            value = f.load(t.vector, at, align=t.size)
            if mask is None:
                value = f.fmul(value, scale)
            else:
                value = f.fma(value, scale, load_some(f, t, f.at(mask, j, t.size), left))
            value = f.select(lanes_below(f, t.lanes, left), value, lowest)
            f.store(value, at, align=t.size)
            return [f.select(f.fcmp("ogt", value, tops[0]), value, tops[0])]

        largest_at, total_at = self._state(row)
        old = f.load(t.element, largest_at, align=t.size)
        (tops,) = f.for_(0, length, t.lanes, [f.splat(old, t.lanes)], score)
        largest = self._largest(tops)
        top = f.splat(largest, t.lanes)

        def weigh(j: Value, sums: list[Value]) -> list[Value]:
            at = f.at(scores, j, t.size)
            weight = _weight(f, f.fsub(f.load(t.vector, at, align=t.size), top))
            f.store(weight, at, align=t.size)
            return [f.fadd(sums[0], weight)]

        (sums,) = f.for_(0, length, t.lanes, [f.zero(t.vector)], weigh)
        change = _weight(f, f.fsub(old, largest))
        total = f.fma(f.load(t.element, total_at, align=t.size), change, f.reduce("fadd", sums))
        f.store(largest, largest_at, align=t.size)
        f.store(total, total_at, align=t.size)

        def rescale() -> list[Value]:
            spread = f.splat(change, t.lanes)
            self._map(f.at(out.pointer, f.mul(row, out.stride)), lambda v: f.fmul(v, spread))
            return []

        f.if_(f.icmp("ne", k0, 0), rescale)

    def _largest(self, v: Value) -> Value:
        """Return the largest lane; they have no NaN."""
        f = self.f
        while v.lanes > 1:
            half = v.lanes // 2
            low, high = (
                (f.extract(v, 0), f.extract(v, 1))
                if half == 1
                else (f.shuffle(v, v, range(half)), f.shuffle(v, v, range(half, v.lanes)))
            )
            v = f.select(f.fcmp("ogt", low, high), low, high)
        return v

    def _map(self, row: Value, change: Callable[[Value], Value]) -> None:
        """Emit a map over a row of the result."""
        f, t = self.f, self.tiling

        def part(j: Value, mask: Value | None) -> list[Value]:
            at = f.at(row, j, t.size)
            store_part(f, t, change(load_part(f, t, at, mask)), at, mask)
            return []

        whole = f.mul(f.udiv(self.e, t.lanes), t.lanes)
        f.for_(0, whole, t.lanes, [], lambda j, _: part(j, None))
        rest = f.sub(self.e, whole)
        mask = lanes_below(f, t.lanes, rest)
        f.if_(f.icmp("ne", rest, 0), lambda: part(whole, mask))

    def _finish(self, row: Value, out: Matrix) -> None:
        """Divide a query's sums by that of its weights; zeros where there are none."""
        f, t = self.f, self.tiling
        total = f.load(t.element, self._state(row)[1], align=t.size)
        none = f.splat(f.fcmp("oeq", total, self.constant(0.0)), t.lanes)
        inverse = f.splat(f.fdiv(self.constant(1.0), total), t.lanes)
        zero = f.zero(t.vector)
        self._map(
            f.at(out.pointer, f.mul(row, out.stride)),
            lambda v: f.select(none, zero, f.fmul(v, inverse)),
        )


def _weight(f: Function, v: Value) -> Value:
    """Return e^v for v <= 0, exactly 0 at -inf."""
    if v.element == "double":
        return emit_unary(f, "exp", v)
    return exp2_softmax(f, f.fmul(v, f.splat(f32(math.log2(math.e)), v.lanes)))
