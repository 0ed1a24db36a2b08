"""
Few long rows: their reductions are shared by the threads of a launch.

A row is cut into pieces, whose number and size depend on the row's size alone. Each thread reduces
some of them, all threads meet, and each combines the results of all pieces in their order. So the
result does not depend on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from rlx.dialects import mir
from rlx.dialects.common import DimTable, dims_of
from rlx.dialects.ops import numbers
from rlx.lowering.body import Body
from rlx.lowering.hoist import Places
from rlx.lowering.sync import ARRIVED, BARRIER_SLEEPERS, GENERATION, emit_barrier
from rlx.lowering.target import PANEL
from rlx.lowering.tensor_access import AnyAxis
from rlx.lowering.tensor_elements import Reduction
from rlx.lowering.values import Value, i64

ROWS = 8
"""The most rows that threads share: more of them are work enough for each thread by themselves."""
LENGTH = 1 << 16
"""From how many elements on a row is shared: threads take as long to meet as for some thousand."""
_PIECES = 64
_GROUP = 4 * PANEL
_WORDS = max(ARRIVED, GENERATION, BARRIER_SLEEPERS) + 64
"""Bytes that `barrier` needs, zero at first."""
_RESULTS = 8 * _PIECES
_FIRST = i64(0)
_REDUCTIONS: dict[type[Operation], int] = {
    mir.ReduceOp: 1,
    mir.RmsNormOp: 1,
    mir.SoftmaxOp: 2,
    mir.LayerNormOp: 2,
}


def scratch_bytes(ops: Iterable[Operation], table: DimTable) -> int:
    """Return the scratch of a kernel of operations, zeroed once; 0 where no row may be shared."""
    count = sum(_reductions(op, table) for op in ops)
    return _WORDS + 2 * _RESULTS * count if count else 0


def _reductions(op: Operation, table: DimTable) -> int:
    """Return how many reductions of rows that may be long an operation is."""
    count = _REDUCTIONS.get(type(op), 0)
    if not count:
        return 0
    dims = dims_of(op.operands[0].type)
    axes = numbers(op.axes) if isinstance(op, mir.ReduceOp) else [len(dims) - 1]
    along = len(dims) - 1 in axes
    return count if along and prod(table.size(dims[a]) for a in axes) >= LENGTH else 0


@dataclass
class Split:
    """The rows of a domain whose reductions threads share where `on`, while they are written."""

    body: Body
    places: Places
    on: Value
    used: int
    """Reductions of the kernel that have room for their results so far."""
    bundle: int
    """How many pieces a thread reduces at a time: see `tensor_bundle`."""
    axes: tuple[AnyAxis, ...] = ()
    depth: int = 0
    """The place of a row, and the scope in which all threads are at it together."""
    parity: Value = _FIRST
    """A bit of the row's number, so that one row's results aren't written over by the next's."""

    def begin(self, axes: tuple[AnyAxis, ...], row: Value) -> None:
        """Begin a row."""
        self.axes, self.depth = axes, self.places.depth
        self.parity = self.places.here([self.body.f.and_(row, 1)])[0]

    def covers(self, axes: tuple[AnyAxis, ...]) -> bool:
        """Return whether code is written for the row, or before it, where every thread comes."""
        return axes == self.axes and self.places.depth <= self.depth

    def share(self, first: Value, last: Value, count: Value) -> tuple[Value, Value]:
        """Return this thread's part of what is shared: all of it where threads share rows."""
        f = self.body.f
        return f.select(self.on, i64(0), first), f.select(self.on, count, last)

    def combined(
        self,
        n: Value,
        reduction: Reduction,
        piece: Callable[[Value, Value], Value],
        whole: Callable[[Sequence[Value], Value], Sequence[Value]],
    ) -> Value:
        """
        Return what n elements reduce to.

        `piece` gives the result of those from start to end, `whole` that of several whole pieces,
        from their starts and their size.
        """
        f, p, body = self.body.f, self.places, self.body
        scratch = body.scratch
        assert scratch is not None
        # What doesn't depend on the row comes once, before it.
        parity = self.parity if p.depth == self.depth else i64(0)
        offset = f.mul(parity, _RESULTS)
        shared = f.at(f.at(scratch, _WORDS + 2 * _RESULTS * self.used), offset)
        results = p.here([f.select(self.on, shared, f.alloca(8))])[0]
        self.used += 1
        key = ("pieces", n, self.on, self.bundle)
        per, count, first, main, last = p.place_all(key, [n, self.on], lambda: self._pieces(n))

        def part(i: Value) -> list[Value]:
            start = p.mul(i, per)
            f.store(piece(start, p.least(p.add(start, per), n)), f.at(results, i, 8))
            return []

        def several(i: Value) -> list[Value]:
            places = [p.add(i, j) for j in range(self.bundle)]
            for j, v in zip(places, whole([p.mul(j, per) for j in places], per), strict=True):
                f.store(v, f.at(results, j, 8))
            return []

        if self.bundle > 1:
            p.loop(first, main, self.bundle, [], lambda i, _: several(i))
        p.loop(main, last, 1, [], lambda i, _: part(i))
        self.meet()

        def take(i: Value, total: Value) -> Value:
            return reduction.combine(total, f.load(reduction.type, f.at(results, i, 8)))

        return p.loop(0, count, 1, [reduction.neutral(1)], lambda i, t: [take(i, t[0])])[0]

    def _pieces(self, n: Value) -> list[Value]:
        """
        Return how n elements are cut: elements of a piece, pieces, and this thread's part of them.

        That is from the first on to a middle, which a bundle at a time reaches, and to the last.
        """
        f, bundle = self.body.f, self.bundle
        per = f.udiv(f.add(n, _PIECES - 1), _PIECES)
        per = f.and_(f.add(per, _GROUP - 1), -_GROUP)
        per = f.select(self.on, f.umax(per, 1), f.umax(n, 1))
        count = f.udiv(f.add(n, f.sub(per, 1)), per)
        first, last = self.body.share(count)
        first, last = f.select(self.on, first, i64(0)), f.select(self.on, last, count)
        if bundle == 1:
            return [per, count, first, first, last]
        whole = f.sub(f.umax(f.umin(last, f.udiv(n, per)), first), first)
        return [per, count, first, f.add(first, f.mul(f.udiv(whole, bundle), bundle)), last]

    def meet(self) -> None:
        """Let all threads meet where they share rows."""
        f = self.body.f
        name, scratch = emit_barrier(f.module), self.body.scratch
        assert scratch is not None

        def wait() -> list[Value]:
            f.call(name, "void", scratch, self.body.threads)
            return []

        self.places.branch(self.on, wait)
