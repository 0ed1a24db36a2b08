"""
`mir.sdpa`: attention on tensors in memory, a block of keys at a time.

Scores, weights and sums are products of blocks (`dot_tiles`) with an online softmax between them
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

from xdsl.dialects.builtin import f32 as f32_type
from xdsl.ir import SSAValue

from rlx.dialects.common import dims_of, element_of
from rlx.dialects.primitives import SdpaOp
from rlx.errors import RlxError
from rlx.lowering.body import Body
from rlx.lowering.dot_matrix import (
    Matrix,
    Tiling,
    lanes_below,
    load_part,
    load_some,
    store_part,
    up,
)
from rlx.lowering.dot_tiles import Shapes, emit_block
from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, f32, f64, i64
from rlx.lowering.vmath import emit_unary, exp2_softmax

QUERIES = 96
"""Queries of a work unit, of the heads that share a head of keys."""

_KEY_BYTES = 512
"""Bytes of a query's scores for a block of keys: whole panels at every level, 128 keys in f32."""

_LARGEST = {"float": 2.0**128 - 2.0**104, "double": sys.float_info.max}


def emit_sdpa(body: Body) -> None:
    """
    Attention of the queries of one `mir.sdpa`, alone in its launch.

    A work unit is 96 queries of the heads that share a head of keys. It uses at most 370 KB of
    stack. The result must not share memory with an operand.
    """
    op = body.ops[0]
    if len(body.ops) != 1 or not isinstance(op, SdpaOp) or list(body.yielded) != [op.result]:
        names = ", ".join(op.name for op in body.ops)
        raise RlxError(f"sdpa: expected one mir.sdpa and its result in a launch, got {names}")
    f, a = body.f, _Attention.of(body, op)
    blocks = up(f, a.queries, QUERIES)
    units = f.mul(body.count(dims_of(op.keys.type)[:-2]), blocks)

    def unit(u: Value) -> list[Value]:
        heads = f.udiv(u, blocks)
        # From the last queries on: where attention is causal, they take longest.
        block = f.sub(f.sub(blocks, 1), f.sub(u, f.mul(heads, blocks)))
        a.unit(heads, f.mul(block, QUERIES))
        return []

    def round_(r: Value, _: list[Value]) -> list[Value]:
        back = f.icmp("ne", f.and_(r, 1), 0)
        place = f.select(back, f.sub(f.sub(body.threads, 1), body.tid), body.tid)
        u = f.add(f.mul(r, body.threads), place)
        return f.if_(f.icmp("ult", u, units), lambda: unit(u))

    rounds = f.udiv(f.add(units, f.sub(body.threads, 1)), body.threads)
    f.for_(0, rounds, 1, [], round_)


@dataclass
class _Attention:
    """The attention of a kernel. `queries` are those of the heads that share a head of keys."""

    body: Body
    op: SdpaOp
    tiling: Tiling
    kv_heads: int
    queries: Value
    m: Value
    n: Value
    d: Value
    e: Value
    scores: Value
    """Of a unit's queries and a block of keys; then their weights."""
    state: Value
    """Largest score so far, and sum of weights, of each query."""

    @staticmethod
    def of(body: Body, op: SdpaOp) -> _Attention:
        f = body.f
        q, v = dims_of(op.query.type), dims_of(op.values.type)
        heads, kv_heads = q[-3], v[-3]
        assert isinstance(heads, int)
        assert isinstance(kv_heads, int)
        t = Tiling.of(f.target, "float" if element_of(op.query.type) == f32_type else "double")
        m, n, d, e = (body.size(x) for x in (q[-2], v[-2], q[-1], v[-1]))
        scores, state = f.alloca(QUERIES * _KEY_BYTES), f.alloca(QUERIES * 2 * t.size)
        queries = f.mul(m, heads // kv_heads)
        return _Attention(body, op, t, kv_heads, queries, m, n, d, e, scores, state)

    @property
    def keys(self) -> int:
        """Return the keys of a block."""
        return _KEY_BYTES // self.tiling.size

    def constant(self, number: float) -> Value:
        return f32(number) if self.tiling.element == "float" else f64(number)

    def unit(self, heads: Value, first: Value) -> None:
        """Emit the attention of the queries from `first` on, of a head of keys (of any batch)."""
        f, t, body = self.body.f, self.tiling, self.body
        count = f.umin(f.sub(self.queries, first), QUERIES)
        q = self._matrix(self.op.query, f.add(f.mul(heads, self.queries), first), self.d)
        k = self._matrix(self.op.keys, f.mul(heads, self.n), self.d, swapped=True)
        v = self._matrix(self.op.values, f.mul(heads, self.n), self.e)
        row = f.mul(f.add(f.mul(heads, self.queries), first), self.e)
        out = Matrix(f.at(body.outs[0], row, t.size), f.mul(self.e, t.size))
        scores = Matrix(self.scores, i64(_KEY_BYTES))

        n = None if self.op.causal is not None else self.n.constant
        by_keys = Shapes.of(t, self.queries.constant, n)
        by_values = Shapes.of(t, self.queries.constant, self.e.constant)

        def start(r: Value, _: list[Value]) -> list[Value]:
            largest, total = self._state(r)
            f.store(self.constant(-_LARGEST[t.element]), largest, align=t.size)
            f.store(self.constant(0.0), total, align=t.size)
            return []

        def key_block(k0: Value, _: list[Value]) -> list[Value]:
            length = f.umin(f.sub(seen, k0), self.keys)
            keys = Matrix(k.at(f, 0, k0, t.size), k.stride, swapped=True)
            values = Matrix(v.at(f, k0, 0, t.size), v.stride)
            emit_block(f, t, by_keys, q, keys, scores, count, length, self.d)
            f.for_(
                0, count, 1, [], lambda r, _: self._softmax(heads, first, r, k0, length, out) or []
            )
            emit_block(
                f, t, by_values, scores, values, out, count, self.e, length, f.icmp("ne", k0, 0)
            )
            return []

        seen = self._seen(first, count)
        f.for_(0, count, 1, [], start)
        f.for_(0, seen, self.keys, [], key_block)
        f.for_(0, count, 1, [], lambda r, _: self._finish(r, out) or [])

    def _matrix(self, source: SSAValue, row: Value, width: Value, swapped: bool = False) -> Matrix:
        """Return the matrix that starts at a row of an operand."""
        f, size = self.body.f, self.tiling.size
        start = f.at(self.body.pointers[source], f.mul(row, width), size)
        return Matrix(start, f.mul(width, size), swapped)

    def _state(self, row: Value) -> tuple[Value, Value]:
        f, size = self.body.f, self.tiling.size
        return f.at(self.state, row, 2 * size), f.at(f.at(self.state, row, 2 * size), size)

    def _seen(self, first: Value, count: Value) -> Value:
        """Return how many keys are seen by one of the queries or more."""
        f = self.body.f
        if self.op.causal is None:
            return self.n
        position = f.binary("urem", first, self.m)
        end = f.add(position, count)
        # Where the queries are of more than one head, the last of a head is among them.
        last = f.umin(end, self.m)
        return self._up_to(f.add(f.sub(last, self.m), self.n), self.n)

    def _up_to(self, keys: Value, most: Value) -> Value:
        """Return a number of keys that may be negative or too large, from 0 to `most`."""
        f = self.body.f
        positive = f.select(f.icmp("sgt", keys, 0), keys, i64(0))
        return f.umin(positive, most)

    def _softmax(
        self, heads: Value, first: Value, row: Value, k0: Value, length: Value, out: Matrix
    ) -> None:
        """Turn a query's scores into weights, and rescale what it has of earlier blocks."""
        f, t = self.body.f, self.tiling
        position = f.binary("urem", f.add(first, row), self.m)
        seen = length
        if self.op.causal is not None:
            last = f.add(f.sub(f.add(position, 1), self.m), f.sub(self.n, k0))
            seen = self._up_to(last, length)
        mask = None
        if self.op.mask is not None:
            index = f.add(f.mul(f.udiv(heads, self.kv_heads), self.m), position)
            mask = f.at(self._matrix(self.op.mask, index, self.n).pointer, k0, t.size)
        scores = f.at(self.scores, row, _KEY_BYTES)
        lowest = f.splat(self.constant(-math.inf), t.lanes)
        scale = f.splat(self.constant(self.op.scale.value.data), t.lanes)

        def score(j: Value, tops: list[Value]) -> list[Value]:
            at, left = f.at(scores, j, t.size), self._up_to(f.sub(seen, j), i64(t.lanes))
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
        f = self.body.f
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
        f, t = self.body.f, self.tiling

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
        f, t = self.body.f, self.tiling
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
