"""
The kernel of running sums, products and extremes.

Along the last axis sixteen lanes combine in four steps (Hillis and Steele, 1986), and with what is
before them in a fifth; rows are shared by threads. Along another one a row of the result is made
of the row before it, and columns are shared. Either way it does not depend on threads.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, cast

from rlx.lowering.along_axis import AlongAxis
from rlx.lowering.body import Body
from rlx.lowering.target import LINE
from rlx.lowering.values import Value, i64
from rlx.lowering.vmath import emit_binary

if TYPE_CHECKING:
    from rlx.ops.cumulative import CumulateOp

_LANES = 16


def emit(body: Body) -> None:
    """Running combinations along an axis, as a launch; see `cumulative.cumulate`."""
    kernel = _Cumulate(body, cast("CumulateOp", body.ops[0]))
    kernel.axis.emit(kernel.row, kernel.columns)


class _Cumulate:
    def __init__(self, body: Body, op: CumulateOp):
        self.f = body.f
        self.axis = AlongAxis(body, op.args[0].type, op.option("axis"))
        self.x, self.out = body.pointers[op.args[0]], body.outs[0]
        self.kind: str = op.option("kind")
        self.exclusive, self.reverse = op.option("exclusive"), op.option("reverse")
        # What is added to -0 and leaves it is -0, not the 0 that an exclusive sum starts with.
        self.neutral = self.axis.number(
            {"sum": -0.0, "prod": 1.0, "max": -inf, "min": inf}[self.kind]
        )
        self.start = self.axis.number(0.0) if self.kind == "sum" else self.neutral

    def combine(self, a: Value, b: Value) -> Value:
        if self.axis.unsigned and self.kind in ("max", "min"):
            return self.f.intrinsic(f"u{self.kind}", a.type, a, b)
        names = {"sum": "add", "prod": "mul"}
        return emit_binary(self.f, names.get(self.kind, self.kind), a, b)

    # Along the last axis

    def row(self, r: Value) -> None:
        """Emit a row: whole vectors from its start, or from its end, then elements."""
        f, n, size = self.f, self.axis.n, self.axis.size
        x, out = (f.at(p, f.mul(r, n), size) for p in (self.x, self.out))
        whole = f.sub(n, f.binary("urem", n, _LANES))
        first = self.start if self.exclusive else self.neutral

        def vector(i: Value, before: list[Value]) -> list[Value]:
            at = f.sub(f.sub(n, i), _LANES) if self.reverse else i
            own = self._prefix(self.axis.load(x, at, _LANES))
            done = self.combine(before[0], own)
            self.axis.store(self._shifted(done, before[0], 1) if self.exclusive else done, out, at)
            # The total is combined, not the last of `done`: the same, in a shorter chain.
            total = f.shuffle(own, own, [0 if self.reverse else _LANES - 1] * _LANES)
            return [self.combine(before[0], total)]

        def single(i: Value, before: list[Value]) -> list[Value]:
            at = f.sub(f.sub(n, i), 1) if self.reverse else i
            done = self.combine(before[0], self.axis.load(x, at, 1))
            self.axis.store(before[0] if self.exclusive else done, out, at)
            return [done]

        carried = f.for_(0, whole, _LANES, [f.splat(first, _LANES)], vector)
        f.for_(whole, n, 1, [f.extract(carried[0], 0)], single)

    def _prefix(self, v: Value) -> Value:
        """Return what the lanes up to each one combine to."""
        neutral, step = self.f.splat(self.neutral, _LANES), 1
        while step < _LANES:
            v = self.combine(self._shifted(v, neutral, step), v)
            step *= 2
        return v

    def _shifted(self, v: Value, fill: Value, by: int) -> Value:
        """Return lanes moved away from where the row starts; others take those of `fill`."""
        if self.reverse:
            return self.f.shuffle(v, fill, list(range(by, _LANES + by)))
        return self.f.shuffle(fill, v, list(range(_LANES - by, 2 * _LANES - by)))

    # Along another axis

    def columns(self, o: Value, first: Value, last: Value) -> None:
        """Emit the columns of a slice, row after row."""
        f, axis = self.f, self.axis
        lanes = LINE // axis.size
        slices = [
            f.at(p, f.mul(f.mul(o, axis.n), axis.inner), axis.size) for p in (self.x, self.out)
        ]

        def row(k: Value) -> list[Value]:
            r = f.sub(f.sub(axis.n, 1), k) if self.reverse else k
            return [f.at(p, f.mul(r, axis.inner), axis.size) for p in slices]

        def start() -> list[Value]:
            x, out = row(i64(0))

            def copy(c: Value, width: int) -> None:
                value = f.splat(self.start, width) if self.exclusive else axis.load(x, c, width)
                axis.store(value, out, c)

            axis.chunks(first, last, lanes, copy)
            return []

        def follow(k: Value, _: list[Value]) -> list[Value]:
            (x_before, before), (x, out) = row(f.sub(k, 1)), row(k)

            def add(c: Value, width: int) -> None:
                new = axis.load(x_before if self.exclusive else x, c, width)
                axis.store(self.combine(axis.load(before, c, width), new), out, c)

            axis.chunks(first, last, lanes, add)
            return []

        f.if_(f.icmp("sgt", axis.n, 0), start)
        f.for_(1, axis.n, 1, [], follow)
