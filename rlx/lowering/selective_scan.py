"""
The kernel of Mamba's selective scan: sixteen channels at a time, through all rows.

A channel's states are its own, so a thread takes sixteen channels of a batch: their states and
their rates, a vector for each of the n, stay on its stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from rlx.dialects.common import dims_of, element_bytes, element_of
from rlx.errors import RlxError
from rlx.lowering.body import Body
from rlx.lowering.tensor_elements import memory_type
from rlx.lowering.values import Value, i64, vec
from rlx.lowering.vmath import emit_unary

if TYPE_CHECKING:
    from rlx.ops.selective_scan import SelectiveScanOp

_LANES = 16
_MAX_STACK = 384 << 10
"""Bytes of the states and rates of sixteen channels."""
_AHEAD = 8
"""Rows that are asked for ahead of their use: each is in a page of its own."""


def emit(body: Body) -> None:
    """
    A selective scan as a launch of its own; see `recurrent.selective_scan`.

    Raises RlxError for channels of more states than a thread's stack holds.
    """
    op = cast("SelectiveScanOp", body.ops[0])
    f = body.f
    *batch, _, channels = dims_of(op.args[0].type)
    assert isinstance(channels, int)
    scan = _Scan(body, op, channels)
    panels = -(-channels // _LANES)

    def unit(u: Value) -> None:
        item = f.udiv(u, panels)
        scan.run(item, f.mul(f.sub(u, f.mul(item, panels)), _LANES))

    body.for_rows(f.mul(body.count(batch), panels), unit)


class _Scan:
    """The recurrence of sixteen channels, with their states `[n][16]` on the stack."""

    def __init__(self, body: Body, op: SelectiveScanOp, channels: int):
        self.body, self.f, self.channels = body, body.f, channels
        *_, rows, _ = dims_of(op.args[0].type)
        _, n = dims_of(op.args[2].type)
        assert isinstance(n, int)
        self.rows, self.n = body.size(rows), n
        self.size = element_bytes(op.args[0].type)
        self.element = memory_type(element_of(op.args[0].type))
        self.vector = vec(_LANES, self.element)
        row = _LANES * self.size
        if 2 * n * row > _MAX_STACK:
            most = _MAX_STACK // (2 * row)
            raise RlxError(f"{op.name}: expected at most {most} states of a channel, got {n}")
        self.states = self.f.scratch("selective_scan", 2 * n * row)
        self.rates = self.f.at(self.states, n * row)
        self.ins = [body.pointers[v] for v in op.args[:5]]
        self.more = {name: body.pointers[v] for name, v in op.more.items()}
        outs = dict(zip(body.yielded, body.outs, strict=True))
        self.output, self.final = (outs.get(r) for r in op.res)

    def run(self, item: Value, channel: Value) -> None:
        """Emit all rows of the sixteen channels from one on, of an item of the batch."""
        f = self.f
        left = f.sub(i64(self.channels), channel)
        mask = None
        if self.channels % _LANES:
            some = f.splat(f.cast("trunc", left, "i32"), _LANES)
            mask = f.icmp("slt", f.vector("i32", range(_LANES)), some)
        count = f.intrinsic("smin", "i64", left, i64(_LANES))
        self._turned(f.at(self.ins[2], channel, self.n * self.size), self.rates, count)
        at = f.mul(f.add(f.mul(item, self.channels), channel), self.n * self.size)
        initial = self.more.get("state")
        if initial is None:
            self._each(lambda i: f.store(f.zero(self.vector), self._at(self.states, i), self.size))
        else:
            self._turned(f.at(initial, at), self.states, count)
        first = f.mul(item, self.rows)
        skip = self.more.get("skip")
        d = self._load(f.at(skip, channel, self.size), mask) if skip else None

        def row(t: Value, _: list[Value]) -> list[Value]:
            self._row(f.add(first, t), channel, mask, d)
            return []

        f.for_(0, self.rows, 1, [], row)
        if self.final is not None:
            self._turned_back(self.states, f.at(self.final, at), count)

    def _row(self, r: Value, channel: Value, mask: Value | None, d: Value | None) -> None:
        f = self.f

        def part(array: Value) -> Value:
            return f.at(f.at(array, r, self.channels * self.size), channel, self.size)

        x, delta = (self._load(self._soon(part(array)), mask) for array in self.ins[:2])
        b, c = (f.at(array, r, self.n * self.size) for array in self.ins[3:])
        scaled = f.fmul(delta, x)

        def state(i: Value, total: Value) -> Value:
            at = self._at(self.states, i)
            rate = f.load(self.vector, self._at(self.rates, i), self.size)
            kept = f.fmul(emit_unary(f, "exp", f.fmul(delta, rate)), f.load(self.vector, at, 4))
            new = f.fma(scaled, self._number(b, i), kept)
            f.store(new, at, self.size)
            return f.fma(new, self._number(c, i), total)

        (y,) = f.for_(0, self.n, 1, [f.zero(self.vector)], lambda i, total: [state(i, total[0])])
        y = f.fma(d, x, y) if d else y
        if "gate" in self.more:
            z = self._load(self._soon(part(self.more["gate"])), mask)
            y = f.fmul(y, emit_unary(f, "silu", z))
        if self.output is None:
            return
        if mask:
            f.store_masked(y, part(self.output), mask, self.size)
        else:
            f.store(y, part(self.output), self.size)

    def _soon(self, at: Value) -> Value:
        self.f.prefetch(self.f.at(at, _AHEAD * self.channels * self.size))
        return at

    def _number(self, row: Value, i: Value) -> Value:
        """Return a number of a row in every lane."""
        f = self.f
        return f.splat(f.load(self.element, f.at(row, i, self.size), self.size), _LANES)

    def _load(self, at: Value, mask: Value | None) -> Value:
        f, size = self.f, self.size
        return f.load_masked(self.vector, at, mask, size) if mask else f.load(self.vector, at, size)

    def _at(self, array: Value, i: Value) -> Value:
        return self.f.at(array, i, _LANES * self.size)

    def _each(self, body: Callable[[Value], None]) -> None:
        self.f.for_(0, self.n, 1, [], lambda i, _: body(i) or [])

    def _turned(self, source: Value, out: Value, count: Value) -> None:
        """Emit `[count][n]` to `[n][16]`, zeros for channels that there are not."""
        f = self.f
        self._each(lambda i: f.store(f.zero(self.vector), self._at(out, i), self.size))
        self._cells(count, lambda c, i: (self._cell(source, c, i), self._lane(out, c, i)))

    def _turned_back(self, source: Value, out: Value, count: Value) -> None:
        self._cells(count, lambda c, i: (self._lane(source, c, i), self._cell(out, c, i)))

    def _cell(self, array: Value, channel: Value, i: Value) -> Value:
        return self.f.at(self.f.at(array, channel, self.n * self.size), i, self.size)

    def _lane(self, array: Value, channel: Value, i: Value) -> Value:
        return self.f.at(self._at(array, i), channel, self.size)

    def _cells(self, count: Value, ends: Callable[[Value, Value], Sequence[Value]]) -> None:
        """Copy numbers from one of two places to the other, for all channels and states."""
        f = self.f

        def one(c: Value, i: Value) -> list[Value]:
            source, out = ends(c, i)
            f.store(f.load(self.element, source, self.size), out, self.size)
            return []

        def channel(c: Value, _: list[Value]) -> list[Value]:
            f.for_(0, self.n, 1, [], lambda i, _: one(c, i))
            return []

        f.for_(0, count, 1, [], channel)
