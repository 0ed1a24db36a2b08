"""
The kernel of recurrent layers: their steps in order, given what the input adds to the gates.

A thread takes rows of the batch, of each direction, through all steps; a row's sums go over the
features of the state in order, whatever rows are beside it, so that results do not depend on
threads. The weights of sixteen units' gates lie together, and are read once a step for up to four
rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from rlx.dialects.common import DimTable, dims_of, element_bytes, element_of
from rlx.lowering.body import Body
from rlx.lowering.tensor_elements import memory_type
from rlx.lowering.values import Value, f32, f64, i64, vec
from rlx.lowering.vmath import emit_unary

if TYPE_CHECKING:
    from rlx.lowering.kernels import Scratch
    from rlx.ops.recurrent import StepsOp

_UNROLL = 4


def scratch(op: StepsOp, table: DimTable) -> Scratch:
    """Return memory for the states of all rows, and for what a step makes of them."""
    from rlx.lowering.kernels import Scratch

    dirs, batch, _ = dims_of(op.args[2].type)
    assert isinstance(dirs, int)
    return Scratch(dirs * _rows_of(op) * _row_bytes(op), zeroed=False, dims=(batch,))


def _rows_of(op: StepsOp) -> int:
    """Return the rows of units that a row of the batch needs."""
    return {"lstm": 3, "gru_before": 4}.get(op.option("cell"), 2)


def _row_bytes(op: StepsOp) -> int:
    """Return the bytes of a row of units, whole vectors of them."""
    _, panels, *_ = dims_of(op.args[1].type)
    assert isinstance(panels, int)
    return panels * _Steps.lanes * element_bytes(op.args[0].type)


def emit(body: Body) -> None:
    """The steps of a recurrent layer as a launch of its own; see `recurrent.steps`."""
    op = cast("StepsOp", body.ops[0])
    f = body.f
    dirs, batch, _ = dims_of(op.args[2].type)
    assert isinstance(dirs, int)
    rows = body.size(batch)
    first, last = body.share(f.mul(rows, dirs))
    for d in range(dirs):
        offset = f.mul(rows, d)
        ends = (f.intrinsic("smax", "i64", f.sub(e, offset), i64(0)) for e in (first, last))
        top, end = (f.intrinsic("smin", "i64", e, rows) for e in ends)
        backwards = op.option("reverse") or d > 0
        steps = _Steps(body, op, d, backwards)
        f.if_(f.icmp("slt", top, end), lambda s=steps, t=top, e=end: s.run(t, e) or [])


class _Steps:
    """The steps of one direction."""

    lanes = 16

    def __init__(self, body: Body, op: StepsOp, direction: int, backwards: bool):
        self.body, self.f, self.op = body, body.f, op
        self.direction, self.backwards = direction, backwards
        self.cell = op.option("cell")
        t, batch, dirs, _ = dims_of(op.args[0].type)
        _, panels, h, gates, _ = dims_of(op.args[1].type)
        assert isinstance(dirs, int)
        assert isinstance(panels, int)
        assert isinstance(h, int)
        assert isinstance(gates, int)
        self.steps, self.batch = body.size(t), body.size(batch)
        self.dirs, self.panels, self.h, self.gates = dirs, panels, h, gates
        self.size = element_bytes(op.args[0].type)
        self.element = memory_type(element_of(op.args[0].type))
        self.vector = vec(self.lanes, self.element)
        outs = dict(zip(body.yielded, body.outs, strict=True))
        self.outs = [outs.get(r) for r in op.res]
        self.ins = [body.pointers[v] for v in op.args]
        skipped = direction * panels * h * gates * self.lanes * self.size
        self.weights = self.f.at(self.ins[1], skipped)
        wide = self.lanes * self.size * 8 // body.f.target.vector_bits
        self.block = max(1, min(4, body.f.target.registers // (2 * wide * gates)))
        self.one = f32(1.0) if self.element == "float" else f64(1.0)

    # Memory. The states of a row of the batch are rows of whole vectors, of which h are used.

    def _space(self, index: int) -> Value:
        """Return one of the arrays of rows of units of this direction."""
        f, row = self.f, _row_bytes(self.op)
        assert self.body.scratch is not None
        skipped = f.mul(self.batch, (index * self.dirs + self.direction) * row)
        return f.at(self.body.scratch, skipped)

    def _units(self, array: Value, row: Value) -> Value:
        return self.f.at(array, row, _row_bytes(self.op))

    def _state(self, array: Value, row: Value) -> Value:
        """Return a row of an operand or a result `[dirs, batch, h]`."""
        f = self.f
        return f.at(array, f.add(f.mul(self.batch, self.direction), row), self.h * self.size)

    def _step(self, array: Value, t: Value, row: Value, width: int) -> Value:
        """Return a row of an operand or a result `[t, batch, dirs, width]`."""
        f = self.f
        at = f.add(f.mul(f.add(f.mul(t, self.batch), row), self.dirs), self.direction)
        return f.at(array, at, width * self.size)

    def _mask(self, panel: Value) -> Value | None:
        """Return which units of a panel there are; None where all are there in every panel."""
        if self.h % self.lanes == 0:
            return None
        f = self.f
        left = f.sub(i64(self.h), f.mul(panel, self.lanes))
        left = f.splat(f.cast("trunc", left, "i32"), self.lanes)
        return f.icmp("slt", f.vector("i32", range(self.lanes)), left)

    def _at(self, row: Value, panel: Value) -> Value:
        return self.f.at(row, panel, self.lanes * self.size)

    def _load(self, at: Value, mask: Value | None) -> Value:
        f, size = self.f, self.size
        return f.load_masked(self.vector, at, mask, size) if mask else f.load(self.vector, at, size)

    def _store(self, v: Value, at: Value, mask: Value | None) -> None:
        if mask:
            self.f.store_masked(v, at, mask, self.size)
        else:
            self.f.store(v, at, self.size)

    # The steps

    def run(self, top: Value, end: Value) -> None:
        """Emit all steps of rows from `top` to `end`."""
        f = self.f
        self._copy(self.ins[2], self._space(0), top, end, back=False)
        if self.cell == "lstm":
            self._copy(self.ins[3], self._space(2), top, end, back=False)

        def step(s: Value, spaces: list[Value]) -> list[Value]:
            t = f.sub(f.sub(self.steps, 1), s) if self.backwards else s
            before, after = spaces
            phases = [self._reset, self._renewed] if self.cell == "gru_before" else [self._whole]
            for phase in phases:
                self._panels(top, end, lambda p, rows, go=phase: go(t, p, rows, before, after))
            return [after, before]

        start = [self._space(0), self._space(1)]
        final, _ = f.for_(0, self.steps, 1, start, step)
        ends = [final, self._space(2)] if self.cell == "lstm" else [final]
        for out, space in zip(self.outs[1:], ends, strict=True):
            if out is not None:
                self._copy(out, space, top, end, back=True)

    def _copy(self, array: Value, space: Value, top: Value, end: Value, back: bool) -> None:
        """Copy states `[dirs, batch, h]` to rows of units, or back."""

        def one(p: Value, rows: Sequence[Value]) -> None:
            mask = self._mask(p)
            for row in rows:
                outer, inner = (
                    self._at(r, p) for r in (self._state(array, row), self._units(space, row))
                )
                if back:
                    self._store(self._load(inner, None), outer, mask)
                else:
                    self._store(self._load(outer, mask), inner, None)

        self._panels(top, end, one)

    def _panels(
        self, top: Value, end: Value, body: Callable[[Value, Sequence[Value]], None]
    ) -> None:
        """Emit body(panel, rows) for every panel and all rows, some at a time."""
        f, block = self.f, self.block

        def panel(p: Value, _: list[Value]) -> list[Value]:
            whole = f.sub(end, f.binary("urem", f.sub(end, top), block)) if block > 1 else end

            def some(row: Value, count: int) -> list[Value]:
                body(p, [f.add(row, i) for i in range(count)])
                return []

            f.for_(top, whole, block, [], lambda r, _: some(r, block))
            if block > 1:
                f.for_(whole, end, 1, [], lambda r, _: some(r, 1))
            return []

        f.for_(0, self.panels, 1, [], panel)

    def _gates(self, t: Value, p: Value, row: Value, mask: Value | None) -> list[Value]:
        """Return what the input adds to the gates of a panel."""
        f = self.f
        start = self._step(self.ins[0], t, row, self.gates * self.h)
        gates = (f.at(start, g * self.h * self.size) for g in range(self.gates))
        return [self._load(self._at(g, p), mask) for g in gates]

    def _sums(
        self, p: Value, rows: Sequence[Value], gates: Sequence[int], start: list[list[Value]]
    ) -> list[list[Value]]:
        """Return products of rows of units with weights of a panel, and what is given."""
        f, width = self.f, self.lanes * self.size
        panel = f.at(self.weights, p, self.h * self.gates * width)
        # Where a unit has one gate alone, sums in four parts do not wait for each other.
        parts = _UNROLL if self.gates == 1 else 1
        rest = self.h % _UNROLL

        def one(k: Value, part: int, flat: list[Value]) -> list[Value]:
            at = f.at(panel, k, self.gates * width)
            weights = [f.load(self.vector, f.at(at, g * width), self.size) for g in gates]
            new = list(flat)
            for r, row in enumerate(rows):
                x = f.load(self.element, f.at(row, k, self.size), self.size)
                x = f.splat(x, self.lanes)
                for g, weight in enumerate(weights):
                    i = (r * len(gates) + g) * parts + part % parts
                    new[i] = f.fma(x, weight, new[i])
            return new

        def some(k: Value, flat: list[Value]) -> list[Value]:
            for part in range(_UNROLL):
                flat = one(f.add(k, part), part, flat)
            return flat

        zero = [f.zero(self.vector)] * (parts - 1)
        flat = [v for row in start for gate in row for v in (gate, *zero)]
        flat = f.for_(0, self.h - rest, _UNROLL, flat, some)
        for part in range(rest):
            flat = one(i64(self.h - rest + part), part, flat)
        sums: list[Value] = []
        for i in range(0, len(flat), parts):
            total = flat[i]
            for v in flat[i + 1 : i + parts]:
                total = f.fadd(total, v)
            sums.append(total)
        return [sums[i : i + len(gates)] for i in range(0, len(sums), len(gates))]

    def _map(self, kind: str, v: Value) -> Value:
        return emit_unary(self.f, kind, v)

    def _put(self, t: Value, p: Value, row: Value, after: Value, v: Value) -> None:
        """Store units of the next state, and of the output."""
        self._store(v, self._at(self._units(after, row), p), None)
        if self.outs[0] is not None:
            out = self._step(self.outs[0], t, row, self.h)
            self._store(v, self._at(out, p), self._mask(p))

    def _blend(self, z: Value, new: Value, old: Value) -> Value:
        """Return (1 - z) new + z old."""
        f = self.f
        kept = f.fmul(z, old)
        return f.fma(f.fsub(f.splat(self.one, self.lanes), z), new, kept)

    def _whole(
        self, t: Value, p: Value, rows: Sequence[Value], before: Value, after: Value
    ) -> None:
        """Emit a step of a cell whose gates are all made of the state as it is."""
        f, mask = self.f, self._mask(p)
        given = [self._gates(t, p, row, mask) for row in rows]
        start = given
        if self.cell == "gru":
            reset = f.at(self.ins[3], self.direction * self.h * self.size)
            reset = self._load(self._at(reset, p), mask)
            start = [[*gates[:2], reset] for gates in given]
        states = [self._units(before, row) for row in rows]
        sums = self._sums(p, states, range(self.gates), start)
        for row, state, gates, own in zip(rows, states, sums, given, strict=True):
            match self.cell:
                case "lstm":
                    new = self._lstm(p, row, gates)
                case "gru":
                    r, z = (self._map("sigmoid", g) for g in gates[:2])
                    candidate = self._map("tanh", f.fma(r, gates[2], own[2]))
                    new = self._blend(z, candidate, self._load(self._at(state, p), None))
                case _:
                    new = self._map(self.cell, gates[0])
            self._put(t, p, row, after, new)

    def _lstm(self, p: Value, row: Value, gates: Sequence[Value]) -> Value:
        f, at = self.f, self._at(self._units(self._space(2), row), p)
        i, forget, o = (self._map("sigmoid", gates[k]) for k in (0, 1, 3))
        kept = f.fmul(forget, self._load(at, None))
        c = f.fma(i, self._map("tanh", gates[2]), kept)
        self._store(c, at, None)
        return f.fmul(o, self._map("tanh", c))

    def _reset(
        self, t: Value, p: Value, rows: Sequence[Value], before: Value, after: Value
    ) -> None:
        """Emit the first half of a GRU that resets its state before the product: r h, and z."""
        f, mask = self.f, self._mask(p)
        states = [self._units(before, row) for row in rows]
        start = [self._gates(t, p, row, mask)[:2] for row in rows]
        for row, state, gates in zip(
            rows, states, self._sums(p, states, (0, 1), start), strict=True
        ):
            r, z = (self._map("sigmoid", g) for g in gates)
            old = self._load(self._at(state, p), None)
            for space, v in ((2, f.fmul(r, old)), (3, z)):
                self._store(v, self._at(self._units(self._space(space), row), p), None)

    def _renewed(
        self, t: Value, p: Value, rows: Sequence[Value], before: Value, after: Value
    ) -> None:
        """Emit the second half."""
        mask = self._mask(p)
        states = [self._units(self._space(2), row) for row in rows]
        start = [self._gates(t, p, row, mask)[2:] for row in rows]
        for row, gates in zip(rows, self._sums(p, states, (2,), start), strict=True):
            z, old = (
                self._load(self._at(self._units(space, row), p), None)
                for space in (self._space(3), before)
            )
            self._put(t, p, row, after, self._blend(z, self._map("tanh", gates[0]), old))
