"""
Reductions of tensors, with lanes along what is reduced or along what is kept.

A reduction's shape depends on sizes alone: chunk c of sixteen elements goes to accumulator c mod 4,
then the four are added in pairs, then the lanes by halves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from rlx.lowering.body import Body
from rlx.lowering.emitter import Function
from rlx.lowering.target import PANEL
from rlx.lowering.tensor_access import AnyAxis, At, Axis
from rlx.lowering.tensor_elements import Reduction, register_type
from rlx.lowering.tensor_nodes import Node, Size, contiguous, product
from rlx.lowering.tensor_pull import Pull
from rlx.lowering.tensor_split import Split
from rlx.lowering.values import Value, i64, vec

Fixed: TypeAlias = Sequence[tuple[int, AnyAxis]]
"""Indices along some axes, by their numbers."""
ACCUMULATORS = 4
_FETCHED = 2
"""The stage that keeps a row fetches the next: the first one waits for memory itself."""
_ROWS = 4
"""Rows that columns take in at a time."""

ROW_BYTES = 256 << 10
"""The most that a thread keeps of rows, on its stack."""


@dataclass
class Stage:
    """A loop over a row while it is written: the place of its chunk, and the rows that it keeps."""

    outer: tuple[AnyAxis, ...]
    chunk: Axis | None = None
    rows: dict[Node, Value] = field(default_factory=dict[Node, Value])


@dataclass
class Ahead:
    """The place of a row, and of the next one, which is fetched in one of the row's stages."""

    axes: tuple[AnyAxis, ...]
    next: tuple[AnyAxis, ...]
    fetches: bool
    """Whether the stage that is written does: the results, unless a reduction has more to do."""
    outputs: Sequence[tuple[Node, Value]]
    """The results of the row, whose lines are fetched while the last reduction computes much."""
    within: Value
    """-1, or 0 where this is of no use, so that the row's first line alone is fetched."""
    reductions: int
    stages: int = 0


class Program(Pull):
    """A kernel while it is written: values of nodes, reductions too."""

    def __init__(self, body: Body):
        super().__init__(body)
        self.row_limit = 0
        """The most elements of a row that is kept."""
        self.split: Split | None = None
        """The rows that threads share."""
        self.shared = 0
        """Reductions of rows that had threads to share them."""
        self.ahead: Ahead | None = None
        self.stage: Stage | None = None
        self.spare: dict[Node, Value] = {}
        """Rows that code on the other side of a branch has kept."""
        self._row_bytes = 0

    def pull(self, node: Node, ats: Sequence[At]) -> list[Value]:
        if node not in self.kept:
            return super().pull(node, ats)
        return [self._row_chunk(node, at) or self._computed(node, at) for at in ats]

    def _load(self, pointer: Value, node: Node, at: At) -> Value:
        v = super()._load(pointer, node, at)
        ahead, last = self.ahead, at.axes[-1] if at.axes else None
        if (
            ahead is not None
            and ahead.fetches
            and at.axes[:-1] == ahead.axes
            and isinstance(last, Axis)
            and last.lanes == 1
        ):
            next_ = self.access.join((*ahead.next, last), node.dims)
            start = self.f.at(pointer, next_.base, node.bytes)
            self.f.prefetch_lines(start, PANEL * node.bytes, locality=2)
        return v

    def _fetch(self, ahead: Ahead, c: Value) -> None:
        """Ask for the lines that a chunk's results will be written to."""
        f = self.f
        column = Axis(self.places.here([f.and_(c, ahead.within)])[0])
        for node, out in ahead.outputs:
            first = f.at(out, self.access.join((*ahead.axes, column), node.dims).base, node.bytes)
            f.prefetch_lines(first, PANEL * node.bytes, write=True)

    # Rows that are kept from one stage to the next

    def _row_chunk(self, node: Node, at: At) -> Value | None:
        """Return a chunk of a row that an earlier stage has kept."""
        known = self.places.find((node, at))
        if known:
            return known[0]
        row = self.places.find(("row", node, at.axes[:-1]))
        last = at.axes[-1]
        if row is None or not isinstance(last, Axis) or last.lanes != 1:
            return None
        type_ = vec(PANEL, register_type(node.element))
        v = self.f.load(type_, self._kept_at(row[0], last, node))
        self.places.remember((node, at), self.places.here([v]))
        return v

    def _computed(self, node: Node, at: At) -> Value:
        """Return a value, and keep it if it is the chunk at hand of the stage's row."""
        v = super().pull(node, [at])[0]
        stage = self.stage
        if stage and v.lanes > 1 and at.axes == (*stage.outer, stage.chunk):
            row = self.row(stage, node)
            if row and stage.chunk:
                self.f.store(v, self._kept_at(row, stage.chunk, node))
        return v

    def _kept_at(self, row: Value, chunk: Axis, node: Node) -> Value:
        # The row starts a chunk into its buffer: one of a padded row may be before it.
        return self.f.at(row, self.f.add(chunk.base, PANEL), node.bytes)

    def row(self, stage: Stage, node: Node) -> Value | None:
        """Return where a stage keeps the row of a node, None where there is no room."""
        if node not in stage.rows:
            # A chunk may start anywhere.
            room = (min(self.upper(node.dims[-1]), self.row_limit) + 3 * PANEL) * node.bytes
            row = self.spare.pop(node, None)
            if row is None:
                if self._row_bytes + room > ROW_BYTES:
                    return None
                self._row_bytes += room
                row = self.f.alloca(room)
            stage.rows[node] = row
        return stage.rows[node]

    # Reductions

    def reduce(self, node: Node, ats: Sequence[At]) -> list[Value]:
        if ats[0].uniform:
            return [
                self.places.place(
                    ("reduce", node, at.axes), at.values, lambda at=at: self._along_row(node, at)
                )
                for at in ats
            ]
        operands = [v for at in ats for v in at.values]
        key = ("reduce", node, tuple(ats))
        return self.places.place_all(key, operands, lambda: self._across_rows(node, ats))

    def _along_row(self, node: Node, at: At) -> Value:
        """Reduce with lanes along the last of the reduced axes, to a scalar."""
        source = node.args[0]
        axes = node.axes
        reduction = Reduction(self.f, node.kind, node.element)
        run = 1
        ordered = list(axes)
        if contiguous(source):
            while run < len(ordered) and ordered[-run - 1] == ordered[-run] - 1:
                run += 1
        outer, inner = ordered[:-run], ordered[-run:]
        dims = [source.dims[a] for a in inner]
        n = product(dims)
        results: Ahead | None = None

        def chunk(fixed: Fixed, c: Value, mask: Value | None, acc: Value) -> Value:
            if self.stage:
                self.stage.chunk = Axis(c, 1)
            if results:
                self._fetch(results, c)
            parts = self.access.split(Axis(c, 1), dims)
            place = _inserted(at.axes, [*fixed, *zip(inner, parts, strict=True)])
            return self.take(reduction, source, At(place, mask), acc)

        def inside(fixed: Fixed, accs: list[Value]) -> list[Value]:
            return self._chunks(n, accs, lambda c, m, a: chunk(fixed, c, m, a))

        count = self.access.size(product([source.dims[a] for a in axes]))
        if self.split and not outer and self.split.covers(at.axes):

            def piece(start: Value, end: Value) -> Value:
                accs = [reduction.neutral(PANEL)] * ACCUMULATORS
                accs = self.span(start, end, accs, lambda c, m, a: chunk([], c, m, a))
                return reduction.horizontal(accs)

            def whole(starts: Sequence[Value], size: Value) -> list[Value]:
                def step(c: Value, old: list[Value]) -> list[Value]:
                    places = [self.places.add(s, self.places.add(c, i * PANEL)) for i, s in order]
                    return [chunk([], c, None, a) for c, a in zip(places, old, strict=True)]

                order = [(i, s) for i in range(ACCUMULATORS) for s in starts]
                accs = [reduction.neutral(PANEL)] * len(order)
                accs = self.places.loop(0, size, ACCUMULATORS * PANEL, accs, step)
                return [reduction.horizontal(accs[j :: len(starts)]) for j in range(len(starts))]

            total = self.split.combined(count, reduction, piece, whole)
            return reduction.finish(total, count)
        ahead, fetches = self.ahead, False
        if ahead:
            ahead.stages += at.axes == ahead.axes
            if self.kept and at.axes == ahead.axes and ahead.stages == ahead.reductions:
                results = ahead
            fetches, ahead.fetches = ahead.fetches, bool(self.kept) and ahead.stages == _FETCHED
        before, self.stage = self.stage, Stage(at.axes) if len(axes) == 1 else None
        chunks = ACCUMULATORS if n.static is None else -(-n.static // PANEL)
        accs = [reduction.neutral(PANEL)] * max(1, min(ACCUMULATORS, chunks))
        accs = self._over(source, outer, accs, inside)
        for kept, row in (self.stage.rows if self.stage else {}).items():
            self.places.remember(("row", kept, at.axes), [row])
        self.stage = before
        if ahead:
            ahead.fetches = fetches
        return reduction.finish(reduction.horizontal(accs), count)

    def _over(
        self,
        source: Node,
        axes: Sequence[int],
        accs: list[Value],
        step: Callable[[Fixed, list[Value]], list[Value]],
        fixed: Fixed = (),
    ) -> list[Value]:
        """Return accumulators after loops over axes of a value, with `step` inside of them."""
        if not axes:
            return step(fixed, accs)
        axis, *others = axes

        def inside(i: Value, accs: list[Value]) -> list[Value]:
            return self._over(source, others, accs, step, (*fixed, (axis, Axis(i))))

        return self.places.loop(0, self.access.size(source.dims[axis]), 1, accs, inside)

    def take(self, reduction: Reduction, source: Node, at: At, acc: Value) -> Value:
        """Return an accumulator with a chunk more."""
        v = self.places.splat(self.pull_one(source, at))
        new = reduction.combine(acc, v)
        return new if at.mask is None else self.f.select(at.mask, new, acc)

    def _chunks(
        self,
        n: Size,
        accs: list[Value],
        step: Callable[[Value, Value | None, Value], Value],
    ) -> list[Value]:
        """Take in the chunks of a row of n elements, each accumulator in turn."""
        if n.static is None:
            return self.span(i64(0), self.access.size(n), accs, step)
        p, group = self.places, PANEL * len(accs)
        main = n.static // group * group

        def unrolled(c: Value, old: list[Value]) -> list[Value]:
            return [step(p.add(c, i * PANEL), None, a) for i, a in enumerate(old)]

        accs = p.loop(0, main, group, accs, unrolled)
        for i, c in enumerate(range(main, n.static, PANEL)):
            accs[i] = step(i64(c), tail_mask(self.f, n.static - c), accs[i])
        return accs

    def span(
        self,
        start: Value,
        end: Value,
        accs: list[Value],
        step: Callable[[Value, Value | None, Value], Value],
    ) -> list[Value]:
        """Take in the chunks of a part of a row, each accumulator in turn."""
        p, group = self.places, PANEL * len(accs)
        main = p.add(start, p.mul(p.div(p.sub(end, start), i64(group)), group))

        def unrolled(c: Value, old: list[Value]) -> list[Value]:
            return [step(p.add(c, i * PANEL), None, a) for i, a in enumerate(old)]

        accs = p.loop(start, main, group, accs, unrolled)
        for i in range(len(accs)):
            c = p.add(main, i * PANEL)

            def more(i: int = i, c: Value = c) -> list[Value]:
                mask = self.places.here([self.live(p.sub(end, c))])[0]
                return [step(c, mask, accs[i])]

            here = self.f.icmp("slt", c, end)
            accs[i] = p.branch(here, more, lambda old=accs[i]: [old])[0]
        return accs

    def upper(self, size: Size) -> int:
        """Return the most that a size may be."""
        return size.number * prod(self.body.table.size(name) for name in size.names)

    def live(self, left: Value) -> Value:
        """Return the mask of the first lanes, as many as are left."""
        count = self.f.cast("trunc", self.f.umin(left, PANEL), "i32")
        lanes = self.f.vector("i32", range(PANEL))
        return self.f.icmp("slt", lanes, self.f.splat(count, PANEL))

    def _across_rows(self, node: Node, ats: Sequence[At]) -> list[Value]:
        """Reduce lane by lane, with the lanes along an axis that is kept."""
        source = node.args[0]
        axes = node.axes
        reduction = Reduction(self.f, node.kind, node.element)

        def combined(fixed: Fixed, accs: list[Value]) -> list[Value]:
            places = [At(_inserted(at.axes, fixed), at.mask) for at in ats]
            values = [self.places.splat(v) for v in self.pull(source, places)]
            return [reduction.combine(a, v) for a, v in zip(accs, values, strict=True)]

        accs = self._over(source, axes, [reduction.neutral(PANEL) for _ in ats], combined)
        count = self.access.size(product([source.dims[a] for a in axes]))
        return [reduction.finish(a, count) for a in accs]

    # Columns

    def collect(
        self, node: Node, place: Callable[[Value], At], start: Value, end: Value, width: int
    ) -> Value:
        """
        Reduce columns from `start` to `end`, at most `width`; return where the results are.

        The rows pass by, four at a time, so that memory is read in its order. The sums are those of
        `_across_rows`, to the bit.
        """
        f, p = self.f, self.places
        source, axes = node.args[0], node.axes
        reduction = Reduction(f, node.kind, node.element)
        memory = f.alloca(width * node.bytes)
        type_ = vec(PANEL, register_type(node.element))
        last, outer = axes[-1], axes[:-1]

        def each(body: Callable[[Value, Value], None]) -> list[Value]:
            def chunk(c: Value) -> list[Value]:
                body(c, f.at(memory, p.sub(c, start), node.bytes))
                return []

            return p.loop(start, end, PANEL, [], lambda c, _: chunk(c))

        def take(fixed: list[tuple[int, AnyAxis]], rows: list[Value]) -> list[Value]:
            def chunk(c: Value, sums: Value) -> None:
                kept = place(c).axes
                ats = [At(_inserted(kept, [*fixed, (last, Axis(r))])) for r in rows]
                total = p.here([f.load(type_, sums)])[0]
                for v in self.pull(source, ats):
                    total = reduction.combine(total, p.splat(v))
                f.store(total, sums)

            return each(chunk)

        def rows(rest: Sequence[int], fixed: list[tuple[int, AnyAxis]]) -> list[Value]:
            axis = rest[0] if rest else last
            size = self.access.size(source.dims[axis])
            if rest:
                return p.loop(
                    0, size, 1, [], lambda i, _: rows(rest[1:], [*fixed, (axis, Axis(i))])
                )
            main = p.mul(p.div(size, i64(_ROWS)), _ROWS)
            p.loop(
                0, main, _ROWS, [], lambda i, _: take(fixed, [p.add(i, j) for j in range(_ROWS)])
            )
            return p.loop(main, size, 1, [], lambda i, _: take(fixed, [i]))

        each(lambda _, sums: f.store(reduction.neutral(PANEL), sums))
        rows(outer, [])
        if node.kind == "mean":
            count = self.access.size(product([source.dims[a] for a in axes]))
            each(lambda _, sums: f.store(reduction.finish(f.load(type_, sums), count), sums))
        return memory

    def give(self, node: Node, at: At, row: Value, index: Value) -> None:
        """Let a node's elements at a place be those in memory from an index on."""
        v = self.f.load(vec(PANEL, register_type(node.element)), self.f.at(row, index, node.bytes))
        self.places.remember((node, at), self.places.here([v]))


def tail_mask(f: Function, left: int) -> Value | None:
    """Return the mask of the first lanes; None for all."""
    if left >= PANEL:
        return None
    return f.vector("i1", [int(lane < left) for lane in range(PANEL)])


def _inserted(kept: Sequence[AnyAxis], found: Sequence[tuple[int, AnyAxis]]) -> tuple[AnyAxis, ...]:
    """Return indices with others put in at their positions."""
    axes = list(kept)
    for position, axis in sorted(found, key=lambda item: item[0]):
        axes.insert(position, axis)
    return tuple(axes)
