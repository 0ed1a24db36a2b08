"""
Kernels of operations that run over rows in order: what is carried stays in the first cache.

A column of the gated delta net's state is changed by its own values alone. A thread therefore
takes sixteen columns of a head through all rows: their part of the state, 64 bytes for each key
feature, stays on its stack, and what it computes does not depend on how many threads there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rlx.dialects import mir
from rlx.dialects.common import Dim, dims_of
from rlx.errors import RlxError
from rlx.lowering.body import Body
from rlx.lowering.rows import VECTOR, fold
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, f32, i64
from rlx.lowering.vmath import exp

MAX_FEATURES = 4096
"""Key features of a head: their state of sixteen columns is 256 KB of stack."""

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
    columns = -(-e // PANEL)
    scan = _Scan(body, n, e, heads, key_heads, body.size(rows))

    def unit(u: Value) -> None:
        head_of_batch = f.udiv(u, columns)
        column = f.mul(f.sub(u, f.mul(head_of_batch, columns)), PANEL)
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
        scan.run(_Unit(q, k, v, g, beta, o, before, after, scan.mask(column)))

    body.for_rows(f.mul(_product(body, batch), heads * columns), unit)


def _product(body: Body, dims: list[Dim]) -> Value:
    count = i64(1)
    for dim in dims:
        count = body.f.mul(count, body.size(dim))
    return count


@dataclass(frozen=True)
class _Unit:
    """Sixteen columns of a head: pointers to their first row, and which of them are features."""

    q: Value
    k: Value
    v: Value
    g: Value
    beta: Value
    output: Value | None
    before: Value | None
    after: Value | None
    mask: Value | None


class _Scan:
    """The recurrence of sixteen columns, with their state `[n][16]` on the stack."""

    def __init__(self, body: Body, n: int, e: int, heads: int, key_heads: int, rows: Value):
        self.f = body.f
        self.n, self.e, self.heads, self.key_heads = n, e, heads, key_heads
        self.rows = rows
        self.state = body.f.scratch("gated_delta_net", n * PANEL * 4)

    def mask(self, column: Value) -> Value | None:
        """Return which of sixteen columns are values' features; None where all always are."""
        if self.e % PANEL == 0:
            return None
        f = self.f
        left = f.cast("trunc", f.sub(i64(self.e), column), "i32")
        return f.icmp("slt", f.vector("i32", range(PANEL)), f.splat(left, PANEL))

    def run(self, unit: _Unit) -> None:
        """Emit the loading of the state, the rows in order, and the storing of the state."""
        f = self.f

        def load(i: Value) -> None:
            row = self._load(f.at(unit.before, i, self.e * 4), unit.mask) if unit.before else None
            f.store(row or f.zero(VECTOR), self._at(i), align=64)

        self._each(load)
        f.for_(0, self.rows, 1, [], lambda t, _: self._row(unit, t) or [])
        after = unit.after
        if after:
            self._each(
                lambda i: self._store(
                    f.load(VECTOR, self._at(i), align=64), f.at(after, i, self.e * 4), unit.mask
                )
            )

    def _row(self, unit: _Unit, t: Value) -> None:
        f, width = self.f, self.heads * self.e * 4
        q, k = (f.at(p, t, self.key_heads * self.n * 4) for p in (unit.q, unit.k))
        g, beta = (f.load("float", f.at(p, t, self.heads * 4)) for p in (unit.g, unit.beta))
        decay = f.splat(exp(f, g), PANEL)
        seen = self._sum(lambda i, total: f.fma(self._feature(k, i), self._state(i), total))
        error = f.fsub(self._load(f.at(unit.v, t, width), unit.mask), f.fmul(seen, decay))
        correction = f.fmul(error, f.splat(beta, PANEL))

        def update(i: Value, total: Value) -> Value:
            kept = f.fmul(self._state(i), decay)
            new = f.fma(self._feature(k, i), correction, kept)
            f.store(new, self._at(i), align=64)
            return f.fma(self._feature(q, i), new, total)

        read = f.fmul(self._sum(update), f.splat(f32(1 / math.sqrt(self.n)), PANEL))
        if unit.output:
            self._store(read, f.at(unit.output, t, width), unit.mask)

    def _at(self, i: Value) -> Value:
        return self.f.at(self.state, i, PANEL * 4)

    def _state(self, i: Value) -> Value:
        return self.f.load(VECTOR, self._at(i), align=64)

    def _feature(self, row: Value, i: Value) -> Value:
        """Return a key's or a query's feature in every lane."""
        return self.f.splat(self.f.load("float", self.f.at(row, i, 4)), PANEL)

    def _load(self, pointer: Value, mask: Value | None) -> Value:
        f = self.f
        return f.load_masked(VECTOR, pointer, mask) if mask else f.load(VECTOR, pointer)

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

        totals = f.for_(0, whole, _ACCUMULATORS, [f.zero(VECTOR)] * _ACCUMULATORS, group)
        for i in range(whole, self.n):
            totals[i - whole] = body(i64(i), totals[i - whole])
        return fold(f, "fadd", totals)
