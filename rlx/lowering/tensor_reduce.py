"""
Reductions of tensors, with lanes along what is reduced or along what is kept.

A reduction's shape depends on sizes alone: chunk c of sixteen elements goes to accumulator c mod 4,
then the four are added in pairs, then the lanes by halves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from rlx.lowering.body import Body
from rlx.lowering.emitter import Function
from rlx.lowering.target import PANEL
from rlx.lowering.tensor_access import AnyAxis, At, Axis
from rlx.lowering.tensor_elements import Reduction, register_type
from rlx.lowering.tensor_nodes import Node, Size, contiguous, product
from rlx.lowering.tensor_pull import Pull
from rlx.lowering.values import Value, i64, vec

_ACCUMULATORS = 4


_ROW_BYTES = 32 << 10
"""The most that a kernel keeps of rows, on the stack."""


@dataclass
class Stage:
    """A loop over a row while it is written: the place of its chunk, and the rows that it keeps."""

    outer: tuple[AnyAxis, ...]
    chunk: Axis | None = None
    rows: dict[Node, Value] = field(default_factory=dict[Node, Value])


class Program(Pull):
    """A kernel while it is written: values of nodes, reductions too."""

    def __init__(self, body: Body):
        super().__init__(body)
        self.kept: set[Node] = set()
        """The nodes whose rows are worth keeping between the stages of a row."""
        self._stage: Stage | None = None
        self._row_bytes = 0

    def pull(self, node: Node, ats: Sequence[At]) -> list[Value]:
        if node not in self.kept:
            return super().pull(node, ats)
        return [self._row_chunk(node, at) or self._computed(node, at) for at in ats]

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
        if self.places.multiple(last.base) % PANEL:
            return None
        type_ = vec(PANEL, register_type(node.element))
        v = self.f.load(type_, self.f.at(row[0], last.base, node.bytes))
        self.places.remember((node, at), self.places.here([v]))
        return v

    def _computed(self, node: Node, at: At) -> Value:
        """Return a value, and keep it if it is the chunk at hand of the stage's row."""
        v = super().pull(node, [at])[0]
        stage = self._stage
        if stage and v.lanes > 1 and at.axes == (*stage.outer, stage.chunk):
            row = self._row(stage, node)
            if row and stage.chunk:
                self.f.store(v, self.f.at(row, stage.chunk.base, node.bytes))
        return v

    def _row(self, stage: Stage, node: Node) -> Value | None:
        if node not in stage.rows:
            last = node.dims[-1]
            size = last.number * prod(self.body.table.size(name) for name in last.names)
            room = -(-size // PANEL) * PANEL * node.bytes
            if self._row_bytes + room > _ROW_BYTES:
                return None
            self._row_bytes += room
            stage.rows[node] = self.f.alloca(room)
        return stage.rows[node]

    # Reductions

    def reduce(self, node: Node, ats: Sequence[At]) -> list[Value]:
        source = node.args[0]
        if not node.axes:
            return self.pull(source, ats)
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

        def chunk(
            fixed: list[tuple[int, AnyAxis]], c: Value, mask: Value | None, acc: Value
        ) -> Value:
            if self._stage:
                self._stage.chunk = Axis(c, 1)
            parts = self.access.split(Axis(c, 1), dims)
            place = _inserted(at.axes, [*fixed, *zip(inner, parts, strict=True)])
            v = self.places.splat(self.pull_one(source, At(place, mask)))
            new = reduction.combine(acc, v)
            return new if mask is None else self.f.select(mask, new, acc)

        def rows(
            rest: list[int], fixed: list[tuple[int, AnyAxis]], accs: list[Value]
        ) -> list[Value]:
            if not rest:
                return self._chunks(n, accs, lambda c, m, a: chunk(fixed, c, m, a))
            axis, *others = rest
            size = self.access.size(source.dims[axis])
            return self.places.loop(
                0, size, 1, accs, lambda i, a: rows(others, [*fixed, (axis, Axis(i))], a)
            )

        before, self._stage = self._stage, Stage(at.axes) if len(axes) == 1 else None
        chunks = _ACCUMULATORS if n.static is None else -(-n.static // PANEL)
        accs = [reduction.neutral(PANEL)] * max(1, min(_ACCUMULATORS, chunks))
        accs = rows(outer, [], accs)
        for kept, row in (self._stage.rows if self._stage else {}).items():
            self.places.remember(("row", kept, at.axes), [row])
        self._stage = before
        count = self.access.size(product([source.dims[a] for a in axes]))
        return reduction.finish(reduction.horizontal(accs), count)

    def _chunks(
        self,
        n: Size,
        accs: list[Value],
        step: Callable[[Value, Value | None, Value], Value],
    ) -> list[Value]:
        """Take in the chunks of a row of n elements, each accumulator in turn."""
        p, group = self.places, PANEL * len(accs)
        end = p.mul(p.div(self.access.size(n), i64(group)), group)

        def unrolled(c: Value, old: list[Value]) -> list[Value]:
            return [step(p.add(c, i * PANEL), None, a) for i, a in enumerate(old)]

        accs = p.loop(0, end, group, accs, unrolled)
        if n.static is not None:
            for i, c in enumerate(range(n.static // group * group, n.static, PANEL)):
                accs[i] = step(i64(c), tail_mask(self.f, n.static - c), accs[i])
            return accs
        size = self.access.size(n)
        for i in range(len(accs)):
            c = p.add(end, i * PANEL)

            def more(i: int = i, c: Value = c) -> list[Value]:
                mask = self.places.here([self.live(p.sub(size, c))])[0]
                return [step(c, mask, accs[i])]

            here = self.f.icmp("slt", c, size)
            accs[i] = p.branch(here, more, lambda old=accs[i]: [old])[0]
        return accs

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

        def rows(
            rest: Sequence[int], fixed: list[tuple[int, AnyAxis]], accs: list[Value]
        ) -> list[Value]:
            if not rest:
                places = [At(_inserted(at.axes, fixed), at.mask) for at in ats]
                values = [self.places.splat(v) for v in self.pull(source, places)]
                return [reduction.combine(a, v) for a, v in zip(accs, values, strict=True)]
            axis, *others = rest
            size = self.access.size(source.dims[axis])
            return self.places.loop(
                0, size, 1, accs, lambda i, a: rows(others, [*fixed, (axis, Axis(i))], a)
            )

        accs = rows(axes, [], [reduction.neutral(PANEL) for _ in ats])
        count = self.access.size(product([source.dims[a] for a in axes]))
        return [reduction.finish(a, count) for a in accs]


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
