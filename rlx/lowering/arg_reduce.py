"""
The kernel that finds where the largest or smallest element of an axis is.

Along the last axis each lane of a vector keeps the best element it has seen and the turn it was
seen in; along another one lanes are columns. The first of equal ones wins, so the order in which
lanes are combined does not matter.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, cast

from rlx.lowering.along_axis import AlongAxis
from rlx.lowering.body import Body
from rlx.lowering.values import Value, i64, vec

if TYPE_CHECKING:
    from rlx.ops.cumulative import ArgReduceOp


def emit(body: Body) -> None:
    """The index of an axis's extreme, as a launch; see `cumulative.arg_reduce`."""
    kernel = _ArgReduce(body, cast("ArgReduceOp", body.ops[0]))
    kernel.axis.emit(kernel.row, kernel.columns)


class _ArgReduce:
    def __init__(self, body: Body, op: ArgReduceOp):
        self.f = body.f
        self.axis = AlongAxis(body, op.args[0].type, op.option("axis"))
        self.x, self.out = body.pointers[op.args[0]], body.outs[0]
        self.largest = op.option("kind") == "max"
        # Nothing is worse, so where it is not beaten the first element is as good as any.
        self.worst = self.axis.number(-inf if self.largest else inf)

    def beats(self, a: Value, b: Value) -> Value:
        """Return whether a is better than b; NaN beats numbers, and nothing beats NaN."""
        f, order = self.f, "gt" if self.largest else "lt"
        if self.axis.is_float:
            return f.and_(f.fcmp(f"u{order}", a, b), f.fcmp("ord", b, b))
        return f.icmp(f"{'u' if self.axis.unsigned else 's'}{order}", a, b)

    # Along the last axis

    def row(self, r: Value) -> None:
        f, n, axis = self.f, self.axis.n, self.axis
        lanes = 16 if axis.size == 8 else 32
        x = f.at(self.x, f.mul(r, n), axis.size)
        turns = f.udiv(n, lanes)

        def turn(i: Value, best: list[Value]) -> list[Value]:
            new = axis.load(x, f.mul(i, lanes), lanes)
            better = self.beats(new, best[0])
            now = f.splat(f.cast("trunc", i, "i32"), lanes)
            return [f.select(better, new, best[0]), f.select(better, now, best[1])]

        def vectors() -> list[Value]:
            start = [f.splat(self.worst, lanes), f.zero(vec(lanes, "i32"))]
            values, seen = f.for_(0, turns, 1, start, turn)
            seen = f.mul(f.cast("zext", seen, vec(lanes, "i64")), lanes)
            return self._first(values, f.add(seen, f.vector("i64", range(lanes))))

        def single(i: Value, best: list[Value]) -> list[Value]:
            new = axis.load(x, i, 1)
            better = self.beats(new, best[0])
            return [f.select(better, new, best[0]), f.select(better, i, best[1])]

        best = f.if_(f.icmp("ne", turns, 0), vectors, lambda: [self.worst, i64(0)])
        best = f.for_(f.mul(turns, lanes), n, 1, best, single)
        f.store(best[1], f.at(self.out, r, 8), 8)

    def _first(self, values: Value, indices: Value) -> list[Value]:
        """Return the best of lanes and its index, the smallest where several are as good."""
        f = self.f
        while values.lanes > 1:
            half = values.lanes // 2
            (a, b), (i, j) = ([self._part(v, k, half) for k in (0, 1)] for v in (values, indices))
            ahead = f.and_(f.xor(self.beats(a, b), -1), f.icmp("slt", j, i))
            second = f.or_(self.beats(b, a), ahead)
            values, indices = f.select(second, b, a), f.select(second, j, i)
        return [values, indices]

    def _part(self, v: Value, which: int, half: int) -> Value:
        if half == 1:
            return self.f.extract(v, which)
        return self.f.shuffle(v, v, list(range(which * half, which * half + half)))

    # Along another axis

    def columns(self, o: Value, first: Value, last: Value) -> None:
        """Emit the columns of a slice, a vector of them at a time."""
        f, axis = self.f, self.axis
        x = f.at(self.x, f.mul(f.mul(o, axis.n), axis.inner), axis.size)
        out = f.at(self.out, f.mul(o, axis.inner), 8)

        def column(c: Value, lanes: int) -> None:
            def row(r: Value, best: list[Value]) -> list[Value]:
                new = axis.load(f.at(x, f.mul(r, axis.inner), axis.size), c, lanes)
                better = self.beats(new, best[0])
                index = f.splat(r, lanes)
                return [f.select(better, new, best[0]), f.select(better, index, best[1])]

            start = [f.splat(self.worst, lanes), f.zero(vec(lanes, "i64"))]
            best = f.for_(0, axis.n, 1, start, row)
            f.store(best[1], f.at(out, c, 8), 8)

        axis.chunks(first, last, min(16, 64 // axis.size), column)
