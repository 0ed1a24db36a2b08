"""
Large results of rows that are reduced: a row is written while the next one is reduced.

A row's stages wait for different things. What comes first waits for memory, the exponentials of a
softmax for arithmetic, and results that go past the caches for memory again. So one loop does what
is to be done with three rows, a chunk of each at a time: reductions that depend on no other take in
the next row, the last reduction takes in this one, and the results of the one before are written.
Each row's results are those of its stages one after the other, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlx.lowering.target import PANEL
from rlx.lowering.tensor_access import AnyAxis, At, Axis
from rlx.lowering.tensor_elements import Reduction
from rlx.lowering.tensor_lines import Lines
from rlx.lowering.tensor_nodes import MAPS, Node, reachable
from rlx.lowering.tensor_reduce import ACCUMULATORS, Program, Stage
from rlx.lowering.tensor_rows import Row
from rlx.lowering.tensor_split import LENGTH
from rlx.lowering.tensor_stages import over_rows, stage_of
from rlx.lowering.values import Value, i64

if TYPE_CHECKING:
    from rlx.lowering.tensor_program import Domain

GROUP = PANEL * ACCUMULATORS
_EARLY = 2
"""How many reductions of the next row registers have accumulators for."""


@dataclass(frozen=True)
class Reductions:
    """A row's reductions, by when they are done."""

    early: Sequence[Node]
    """Some that depend on no other: they are those of the row after this one."""
    middle: Sequence[Node]
    last: Node
    shown: Sequence[Node]
    """Those that results use."""

    @staticmethod
    def of(outputs: Sequence[Node], kept: set[Node]) -> Reductions | None:
        """
        Return the reductions of outputs' rows; None where rows can't be taken in turn.

        A row that is kept has one buffer: it is written chunk by chunk as the one before is read.
        """
        dims = outputs[0].dims
        found = [n for n in reachable(*outputs) if over_rows(n) and n.args[0].dims == dims]
        if not found:
            return None
        *others, last = found
        for node in others:
            if kept & stage_of(node.args[0]).keys():
                return None
        if not kept <= stage_of(last.args[0]).keys():
            return None
        shown = _shown(outputs, kept, set(found))
        if shown is None:
            return None
        early = [n for n in others if not any(m.op == "reduce" for m in reachable(n.args[0]))]
        early = early[:_EARLY]
        return Reductions(early, [n for n in others if n not in early], last, shown)


def _shown(outputs: Iterable[Node], kept: set[Node], reductions: set[Node]) -> list[Node] | None:
    """Return the reductions that results use; None where they use kept rows at other places."""
    shown: dict[Node, None] = {}
    work, seen = [(node, False) for node in outputs], set[tuple[Node, bool]]()
    while work:
        node, moved = work.pop()
        if (node, moved) in seen:
            continue
        seen.add((node, moved))
        if node in kept:
            if moved:
                return None
        elif node in reductions:
            shown[node] = None
        else:
            work += [(arg, moved or node.op not in MAPS) for arg in node.args]
    return list(shown)


class Pipeline:
    """The loop over a domain's rows, while it is written."""

    def __init__(
        self, domain: Domain, lines: Lines, reductions: Reductions, rows: dict[Node, Value]
    ):
        self.domain = domain
        self.program = domain.program
        self.places = domain.places
        self.lines = lines
        self.reductions = reductions
        self.rows = rows
        """Where rows are kept."""
        self.width = domain.access.size(domain.inner[0])

    @staticmethod
    def of(domain: Domain) -> Pipeline | None:
        """Return how rows are written, None where that is always one after the other."""
        lines, program = domain.lines, domain.program
        if not lines or not lines.may_stream or program.split:
            return None
        if not domain.outer or len(domain.inner) != 1:
            return None
        reductions = Reductions.of(domain.nodes, program.kept)
        if reductions is None:
            return None
        stage = Stage(())
        if all([program.row(stage, node) for node in program.kept]):
            return Pipeline(domain, lines, reductions, stage.rows)
        program.spare |= stage.rows
        return None

    def pays(self, rows: Value) -> Value:
        """Return whether results go past the caches, and a cache holds some rows of each thread."""
        f = self.program.f
        fits = f.and_(self.lines.streams, f.icmp("ule", self.width, LENGTH))
        return self.places.here([f.and_(fits, f.icmp("uge", rows, self.program.body.threads))])[0]

    def emit(self, first: Value, last: Value) -> None:
        """Write the rows from `first` to `last`."""
        p, f, r = self.places, self.program.f, self.reductions

        def rows() -> list[Value]:
            none = [Reduction(f, n.kind, n.element).neutral(1) for n in r.shown]
            early = [self.program.reduce(n, [At(self._axes(first))])[0] for n in r.early]
            end = p.sub(last, 1)
            values = p.loop(
                first, last, 1, [*none, *early], lambda row, old: self._row(row, first, end, old)
            )
            self._written(end, values[: len(r.shown)], self.width).write()
            return []

        p.branch(f.icmp("slt", first, last), rows)
        self.program.spare |= self.rows

    def _row(self, row: Value, first: Value, end: Value, old: Sequence[Value]) -> list[Value]:
        """Reduce a row, and the next by what is early; write the one before, of the first none."""
        p, f, program, r = self.places, self.program.f, self.program, self.reductions
        shown, axes = len(r.shown), self._axes(row)
        for node, v in zip(r.early, old[shown:], strict=True):
            p.remember(("reduce", node, axes), [v])
        for node in r.middle:
            program.reduce(node, [At(axes)])
        # There is no row before the first: nothing of one is written, and nothing for it read.
        none, earlier = f.icmp("eq", row, first), p.sub(row, 1)
        width, earlier = p.here(
            [f.select(none, i64(0), self.width), f.select(none, first, earlier)]
        )
        before = self._written(earlier, old[:shown], width)
        after = self._axes(p.least(p.add(row, 1), end))
        taken = [Taken(program, r.last, axes), *(Taken(program, n, after) for n in r.early)]
        program.stage = Stage(axes, rows=self.rows)

        def together(c: Value, old: list[Value]) -> list[Value]:
            new: list[Value] = []
            for i in range(ACCUMULATORS):
                # Before the row that is kept is written over.
                before.chunk(p.add(p.add(before.start, c), i * PANEL))
                for t in taken:
                    new.append(t.chunk(p.add(c, i * PANEL), None, old[len(new)]))
            return new

        before.head()
        accs = [t.reduction.neutral(PANEL) for t in taken] * ACCUMULATORS
        accs = p.loop(0, before.length, GROUP, accs, together)
        before.tail()
        totals: list[Value] = []
        for i, t in enumerate(taken):
            own = program.span(before.length, self.width, accs[i :: len(taken)], t.chunk)
            totals.append(t.reduction.finish(t.reduction.horizontal(own), self.width))
        program.stage = None
        total, *early = totals
        p.remember(("reduce", r.last, axes), [total])
        return [*(program.reduce(n, [At(axes)])[0] for n in r.shown), *early]

    def _axes(self, row: Value) -> tuple[AnyAxis, ...]:
        return tuple(self.domain.access.split(Axis(row), self.domain.outer))

    def _written(self, row: Value, shown: Sequence[Value], width: Value) -> Written:
        """Return a row whose last reduction has been done, from what its results use."""
        axes = self._axes(row)
        for node, v in zip(self.reductions.shown, shown, strict=True):
            self.places.remember(("reduce", node, axes), [v])
        for node, kept in self.rows.items():
            self.places.remember(("row", node, axes), [kept])
        return Written(Row(self.domain, dict(enumerate(axes))), self.lines.unit, width)


class Taken:
    """A reduction of a row, while its chunks are taken in."""

    def __init__(self, program: Program, node: Node, outer: tuple[AnyAxis, ...]):
        self.program = program
        self.node = node
        self.outer = outer
        self.reduction = Reduction(program.f, node.kind, node.element)

    def chunk(self, c: Value, mask: Value | None, acc: Value) -> Value:
        """Return an accumulator with the chunk from an index on."""
        stage = self.program.stage
        assert stage is not None
        stage.chunk = Axis(c, 1)
        at = At((*self.outer, stage.chunk), mask)
        return self.program.take(self.reduction, self.node.args[0], at, acc)


class Written:
    """The results of a row: what comes before the first whole line, groups of lines, the rest."""

    def __init__(self, row: Row, unit: int, width: Value):
        p = row.places
        self.row = row
        self.unit = unit
        self.width = width
        self.start = row.line(i64(0), width)
        self.length = p.mul(p.div(p.sub(width, self.start), i64(GROUP)), GROUP)

    def write(self) -> None:
        """Write all of the row."""

        def chunk(c: Value) -> list[Value]:
            self.chunk(c)
            return []

        self.head()
        end = self.row.places.add(self.start, self.length)
        self.row.places.loop(self.start, end, PANEL, [], lambda c, _: chunk(c))
        self.tail()

    def head(self) -> None:
        self.row.part(i64(0), self.start)

    def chunk(self, c: Value) -> None:
        """Write a line, past the caches."""
        self.row.chunks(c, 1, None, self.unit)

    def tail(self) -> None:
        self.row.rest(self.row.places.add(self.start, self.length), self.width)
