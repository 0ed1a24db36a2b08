"""
Kernels of operations that run over rows in order: what is carried stays in the first cache.

A column of the gated delta net's state is changed by its own values alone. A thread therefore
takes sixteen columns of a head through all rows: their part of the state, 64 bytes for each key
feature, stays on its stack, and what it computes does not depend on how many threads there are.
Where there may be many rows a thread takes more columns, and chunks of rows (`scan_chunks`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rlx.dialects import mir
from rlx.dialects.common import dims_of
from rlx.errors import RlxError
from rlx.lowering.body import Body
from rlx.lowering.rows import fold
from rlx.lowering.scan_chunks import ROWS, Chunk
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, f32, i64, vec
from rlx.lowering.vmath import exp

MAX_FEATURES = 4096
"""Key features of a head: their state of sixteen columns is 256 KB of stack."""

_MAX_STACK = 384 << 10
"""Bytes of a unit's state and of what a chunk of its rows needs."""
_TOGETHER = 4
"""Times 16 or 32 columns, which share the products of keys of a chunk of rows."""
_ACCUMULATORS = 4


def emit_gated_delta_net(body: Body) -> None:
    """
    A gated delta net as a launch of its own; see `mir.gated_delta_net`. Computes in f32.

    Raises RlxError for heads of more than `MAX_FEATURES` key features.
    """
    op = next(op for op in body.ops if isinstance(op, mir.GatedDeltaNetOp))
    f = body.f
    *batch, rows, heads, e = dims_of(op.values.type)
    *_, key_heads, n = dims_of(op.query.type)
    assert isinstance(heads, int)
    assert isinstance(e, int)
    assert isinstance(key_heads, int)
    assert isinstance(n, int)
    if n > MAX_FEATURES:
        raise RlxError(f"{op.name}: expected heads of at most {MAX_FEATURES} features, got {n}")
    outs = dict(zip(body.yielded, body.outs, strict=True))
    chunked = body.table.size(rows) >= ROWS and _chunks_pay(body, n, e)
    lanes = ROWS if chunked and e > PANEL else PANEL
    width = min(-(-e // lanes), _TOGETHER) if chunked else 1
    groups = -(-e // (lanes * width))
    scan = _Scan(body, n, e, heads, key_heads, body.size(rows), lanes, width, chunked)

    def unit(u: Value) -> None:
        head_of_batch = f.udiv(u, groups)
        column = f.mul(f.sub(u, f.mul(head_of_batch, groups)), lanes * width)
        item = f.udiv(head_of_batch, heads)
        head = f.sub(head_of_batch, f.mul(item, heads))
        first_row = f.mul(item, scan.rows)
        key_head = f.udiv(head, heads // key_heads)
        q, k = (
            f.at(f.at(body.pointers[v], first_row, key_heads * n * 4), key_head, n * 4)
            for v in (op.query, op.keys)
        )
        v, o = (
            f.at(f.at(f.at(p, first_row, heads * e * 4), head, e * 4), column, 4) if p else None
            for p in (body.pointers[op.values], outs.get(op.output))
        )
        g, beta = (
            f.at(f.at(body.pointers[p], first_row, heads * 4), head, 4) for p in (op.gate, op.beta)
        )
        before, after = (
            f.at(f.at(p, head_of_batch, n * e * 4), column, 4) if p else None
            for p in (body.pointers[op.state] if op.state else None, outs.get(op.final))
        )
        assert v is not None
        scan.run(_Unit(q, k, v, g, beta, o, before, after, f.sub(i64(e), column)))

    body.for_rows(f.mul(body.count(batch), heads * groups), unit)


def _chunks_pay(body: Body, n: int, e: int) -> bool:
    """Return whether chunks of rows are faster than one at a time, and fit the stack."""
    stack = Chunk.stack(n) + min(-(-e // ROWS), _TOGETHER) * n * ROWS * 4
    return n >= (64 if body.f.target.registers == 32 else 96) and stack <= _MAX_STACK


@dataclass(frozen=True)
class _Unit:
    """Columns of a head: pointers to their first row, and how many features there are from it."""

    q: Value
    k: Value
    v: Value
    g: Value
    beta: Value
    output: Value | None
    before: Value | None
    after: Value | None
    left: Value


@dataclass(frozen=True)
class _Columns:
    """Some columns of a unit: the same pointers, theirs, and which of them are features."""

    unit: _Unit
    state: Value
    v: Value
    output: Value | None
    before: Value | None
    after: Value | None
    mask: Value | None


class _Scan:
    """The recurrence of columns of a head, with the state of some `[n][lanes]` on the stack."""

    def __init__(
        self,
        body: Body,
        n: int,
        e: int,
        heads: int,
        key_heads: int,
        rows: Value,
        lanes: int,
        width: int,
        chunked: bool,
    ):
        self.f = body.f
        self.n, self.e, self.heads, self.key_heads = n, e, heads, key_heads
        self.rows, self.lanes, self.width = rows, lanes, width
        self.vector, self.bytes = vec(lanes, "float"), 4 * lanes
        self.state = body.f.scratch("gated_delta_net", width * n * self.bytes)
        self.chunk = Chunk(body, n, key_heads * n * 4, heads * 4, lanes) if chunked else None

    def run(self, unit: _Unit) -> None:
        """Emit the loading of the state, the rows in order, and the storing of the state."""
        f, chunk = self.f, self.chunk
        self._panels(unit, self._load_state)
        done = i64(0)
        if chunk is not None:
            done = f.sub(self.rows, f.binary("urem", self.rows, ROWS))

            def rows(t: Value, _: list[Value]) -> list[Value]:
                q, k = (f.at(p, t, self.key_heads * self.n * 4) for p in (unit.q, unit.k))
                g, beta = (f.at(p, t, self.heads * 4) for p in (unit.g, unit.beta))
                chunk.prepare(q, k, g, beta)
                self._panels(unit, lambda c: self._chunk(chunk, c, t))
                return []

            f.for_(0, done, ROWS, [], rows)

        def rest(c: _Columns) -> None:
            f.for_(done, self.rows, 1, [], lambda t, _: self._row(c, t) or [])
            self._store_state(c)

        self._panels(unit, rest)

    def _panels(self, unit: _Unit, body: Callable[[_Columns], None]) -> None:
        """Emit body for every so many columns of a unit that there are."""
        f = self.f
        count = f.udiv(f.add(unit.left, self.lanes - 1), self.lanes)
        count = f.intrinsic("smin", "i64", count, i64(self.width)) if self.width > 1 else i64(1)

        def panel(p: Value, _: list[Value]) -> list[Value]:
            mask = None
            if self.e % self.lanes:
                left = f.cast("trunc", f.sub(unit.left, f.mul(p, self.lanes)), "i32")
                mask = f.icmp("slt", f.vector("i32", range(self.lanes)), f.splat(left, self.lanes))
            state = f.at(self.state, p, self.n * self.bytes)
            v = f.at(unit.v, p, self.bytes)
            output, before, after = (
                f.at(at, p, self.bytes) if at else None
                for at in (unit.output, unit.before, unit.after)
            )
            body(_Columns(unit, state, v, output, before, after, mask))
            return []

        f.for_(0, count, 1, [], panel)

    def _load_state(self, c: _Columns) -> None:
        f, before = self.f, c.before

        def load(i: Value) -> None:
            row = self._load(f.at(before, i, self.e * 4), c.mask) if before else None
            f.store(row or f.zero(self.vector), self._at(c, i), align=64)

        self._each(load)

    def _store_state(self, c: _Columns) -> None:
        f, after = self.f, c.after
        if after:
            self._each(lambda i: self._store(self._state(c, i), f.at(after, i, self.e * 4), c.mask))

    def _chunk(self, chunk: Chunk, c: _Columns, first: Value) -> None:
        """Emit a chunk of rows of some columns."""
        f, width, output = self.f, self.heads * self.e * 4, c.output

        def value(t: Value) -> Value:
            return self._load(f.at(c.v, f.add(first, t), width), c.mask)

        def put(t: Value, v: Value) -> None:
            assert output is not None
            self._store(v, f.at(output, f.add(first, t), width), c.mask)

        chunk.columns(c.state, value, put if output else None)

    def _row(self, c: _Columns, t: Value) -> None:
        f, unit, width = self.f, c.unit, self.heads * self.e * 4
        q, k = (f.at(p, t, self.key_heads * self.n * 4) for p in (unit.q, unit.k))
        g, beta = (f.load("float", f.at(p, t, self.heads * 4)) for p in (unit.g, unit.beta))
        decay = f.splat(exp(f, g), self.lanes)
        seen = self._sum(lambda i, total: f.fma(self._feature(k, i), self._state(c, i), total))
        error = f.fsub(self._load(f.at(c.v, t, width), c.mask), f.fmul(seen, decay))
        correction = f.fmul(error, f.splat(beta, self.lanes))

        def update(i: Value, total: Value) -> Value:
            kept = f.fmul(self._state(c, i), decay)
            new = f.fma(self._feature(k, i), correction, kept)
            f.store(new, self._at(c, i), align=64)
            return f.fma(self._feature(q, i), new, total)

        read = f.fmul(self._sum(update), f.splat(f32(1 / math.sqrt(self.n)), self.lanes))
        if c.output:
            self._store(read, f.at(c.output, t, width), c.mask)

    def _at(self, c: _Columns, i: Value) -> Value:
        return self.f.at(c.state, i, self.bytes)

    def _state(self, c: _Columns, i: Value) -> Value:
        return self.f.load(self.vector, self._at(c, i), align=64)

    def _feature(self, row: Value, i: Value) -> Value:
        """Return a key's or a query's feature in every lane."""
        return self.f.splat(self.f.load("float", self.f.at(row, i, 4)), self.lanes)

    def _load(self, pointer: Value, mask: Value | None) -> Value:
        f = self.f
        return f.load_masked(self.vector, pointer, mask) if mask else f.load(self.vector, pointer)

    def _store(self, v: Value, pointer: Value, mask: Value | None) -> None:
        if mask:
            self.f.store_masked(v, pointer, mask)
        else:
            self.f.store(v, pointer)

    def _each(self, body: Callable[[Value], None]) -> None:
        self.f.for_(0, self.n, 1, [], lambda i, _: body(i) or [])

    def _sum(self, body: Callable[[Value, Value], Value]) -> Value:
        """Return a sum over the key features; feature i goes to accumulator i mod 4."""
        f = self.f
        whole = self.n // _ACCUMULATORS * _ACCUMULATORS

        def group(i: Value, totals: list[Value]) -> list[Value]:
            return [body(f.add(i, j), total) for j, total in enumerate(totals)]

        totals = f.for_(0, whole, _ACCUMULATORS, [f.zero(self.vector)] * _ACCUMULATORS, group)
        for i in range(whole, self.n):
            totals[i - whole] = body(i64(i), totals[i - whole])
        return fold(f, "fadd", totals)
