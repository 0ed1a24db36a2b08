"""
Kernels of tensor primitives: loops over the elements of what is written.

Each result is written by a loop over rows, a row in chunks of sixteen lanes, and an element is
*pulled*: its operands are computed at the places that the operation says, back to loads. Moves only
change the place (`tensor_access`), so they cost no buffer. `hoist` puts what a row's elements share
before the row's loop, so that a row's reductions become stages of their own. A reduction's shape
depends on sizes alone: the same bits come out for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Operation, SSAValue

from rlx.dialects import infer, mir
from rlx.dialects.common import element_of, spell
from rlx.errors import RlxError
from rlx.lowering.body import Body
from rlx.lowering.target import PANEL
from rlx.lowering.tensor_access import AnyAxis, At, Axis
from rlx.lowering.tensor_bundle import BUNDLE, bundle_of, bundled, reduce_rows
from rlx.lowering.tensor_cost import Cost, too_large
from rlx.lowering.tensor_elements import stored
from rlx.lowering.tensor_lanes import column_reductions, lane_dims, lane_reductions, repeated_dims
from rlx.lowering.tensor_lines import Lines
from rlx.lowering.tensor_nodes import (
    Graph,
    Node,
    Size,
    is_heavy,
    is_packed_vector,
    product,
    reachable,
)
from rlx.lowering.tensor_pipeline import Pipeline
from rlx.lowering.tensor_reduce import ROW_BYTES, Ahead, Program
from rlx.lowering.tensor_rows import Row
from rlx.lowering.tensor_split import LENGTH, ROWS, Split
from rlx.lowering.tensor_stages import kept, over_rows
from rlx.lowering.tensor_tiles import turned
from rlx.lowering.values import Value, i64

COMPUTED = frozenset((
    *mir.MAPS, *mir.MOVES, mir.ConstantOp, mir.IotaOp, mir.ReduceOp, mir.SoftmaxOp, mir.LayerNormOp,
    mir.RmsNormOp,
))  # fmt: skip
"""The operations that `refusal` may accept."""
NEAR = 1 << 12
"""Up to how many elements of a row L1 holds: what it is made of and results."""
BLOCK = 256
"""Columns of the blocks that threads share where tiles are transposed."""


class Domain:
    """The loops over outputs of one shape."""

    def __init__(self, program: Program, outputs: list[tuple[Node, Value]]):
        self.program = program
        self.places = program.places
        self.access = program.access
        self.outputs = outputs
        self.nodes = [node for node, _ in outputs]
        self.dims = self.nodes[0].dims
        lanes = lane_dims(self.nodes)
        self.outer = self.dims[: len(self.dims) - lanes]
        self.inner = self.dims[len(self.dims) - lanes :]
        self.repeated = repeated_dims(self.nodes, len(self.outer)) if lanes else []
        """The outer dimensions that no reduction of columns depends on: innermost loops."""
        joint = lanes and any(lane_reductions(n, len(self.outer)) for n in self.nodes)
        self.joint = 4 if joint else 1
        heavy = any(map(is_heavy, reachable(*self.nodes)))
        self.unroll = 1 if joint else 2 if heavy else 4
        self.lines: Lines | None = None
        self.columns: list[Node] = []
        """The reductions down columns that are collected a stripe of columns at a time."""
        if joint and not self.repeated and program.upper(product(self.inner)) > PANEL * self.joint:
            self.columns = column_reductions(self.nodes, len(self.outer))

    def emit(self) -> None:
        tiles = turned(self.nodes, len(self.outer)) if self.inner and self.outer else None
        rows = kept(self.nodes) if self.inner else set[Node]()
        if tiles:
            self._tiles(*tiles)
        elif rows:
            self._keeping(rows)
        else:
            self._shared_rows()

    def _keeping(self, rows: set[Node]) -> None:
        """Write rows, and keep those of some nodes where they are short enough for that."""
        p, program, f = self.places, self.program, self.program.f
        program.row_limit = limit = ROW_BYTES // sum(n.bytes for n in rows) - 4 * PANEL
        sizes = {n.dims[-1]: None for n in rows if program.upper(n.dims[-1]) > limit}

        def write(kept: set[Node]) -> list[Value]:
            program.kept = kept
            if kept:
                self._rows()
            else:
                self._shared_rows(may_be_short=False)
            program.kept = set()
            return []

        fits = Value("i1", "true")
        for size in sizes:
            fits = f.and_(fits, f.icmp("ule", self.access.size(size), limit))
        if sizes:
            p.branch(fits, lambda: write(rows), lambda: write(set()))
        else:
            write(rows)

    def _tiles(self, axis: int, nodes: set[Node]) -> None:
        """Write blocks of 16 rows and 256 columns, in tiles: see `tensor_tiles`."""
        p, access, program = self.places, self.access, self.program
        others = [d for i, d in enumerate(self.outer) if i != axis]
        rows, columns = access.size(self.dims[axis]), access.size(product(self.inner))
        down, across = (
            p.div(p.add(size, block - 1), i64(block))
            for size, block in ((rows, PANEL), (columns, BLOCK))
        )
        first, last = self._share(p.mul(p.mul(access.size(product(others)), down), across))

        def block(unit: Value) -> list[Value]:
            fixed = access.split(Axis(p.div(p.div(unit, across), down)), others)

            def place(row: Axis, column: Axis, mask: Value | None = None) -> At:
                axes = [*fixed, *access.split(column, self.inner)]
                axes.insert(axis, row)
                return At(tuple(axes), mask)

            row = p.mul(p.rem(p.div(unit, across), down), PANEL)
            column = p.mul(p.rem(unit, across), BLOCK)
            end, row_end = p.least(p.add(column, BLOCK), columns), p.least(p.add(row, PANEL), rows)
            whole = p.mul(p.div(p.sub(row_end, row), i64(PANEL)), p.sub(end, column))
            tiles_end = p.add(column, p.mul(p.div(whole, i64(PANEL)), PANEL))

            def tile(c: Value) -> list[Value]:
                steps = [access.plus(Axis(c), Axis(i64(i))) for i in range(PANEL)]
                with program.tile(nodes, [place(Axis(row, 1), s) for s in steps]) as tile:

                    def one(i: Value) -> list[Value]:
                        tile.place, tile.row = place(Axis(p.add(row, i)), Axis(c, 1)), i
                        self.store([tile.place])
                        return []

                    p.loop(0, PANEL, 1, [], lambda i, _: one(i))
                return []

            def chunk(r: Value, c: Value) -> list[Value]:
                mask = p.here([program.live(p.sub(end, c))])[0]
                self.store([place(Axis(r), Axis(c, 1), mask)])
                return []

            # What a tile needs may be read before the loop, but not where there is none: there are
            # fewer rows left then.
            p.branch(
                p.here([program.f.icmp("ult", column, tiles_end)])[0],
                lambda: p.loop(column, tiles_end, PANEL, [], lambda c, _: tile(c)),
            )
            p.loop(
                row, row_end, 1, [],
                lambda r, _: p.loop(tiles_end, end, PANEL, [], lambda c, _: chunk(r, c)),
            )  # fmt: skip
            return []

        p.loop(first, last, 1, [], lambda unit, _: block(unit))

    def _shared_rows(self, may_be_short: bool = True) -> None:
        """
        Write rows whose reductions threads may share: see `tensor_split`.

        Where rows may be short, those that threads don't share have code of their own: the other
        code takes 15 ns more for a row.
        """
        body, f, program = self.program.body, self.program.f, self.program
        rows = product(self.outer)
        long = [
            size
            for n in reachable(*self.nodes)
            if n.op == "reduce" and len(n.args[0].dims) - 1 in n.axes
            for size in [product([n.args[0].dims[a] for a in n.axes])]
            if program.upper(size) >= LENGTH
        ]
        if body.scratch is None or not long or (rows.static or 0) > ROWS:
            self._rows()
            return
        on = f.icmp("uge", self.access.size(long[0]), LENGTH)
        on = self.places.here([f.and_(on, f.icmp("ule", self.access.size(rows), ROWS))])[0]
        if not may_be_short or (rows.static is not None and (long[0].static or 0) >= LENGTH):
            self._split_rows(on)
            return

        def together() -> list[Value]:
            unroll, self.unroll = self.unroll, 1
            self._split_rows(Value("i1", "true"))
            self.unroll = unroll
            return []

        def apart() -> list[Value]:
            self._rows()
            return []

        self.places.branch(on, together, apart)

    def _split_rows(self, on: Value) -> None:
        """Write rows whose reductions threads share where `on`."""
        program, bundle = self.program, bundle_of(self.nodes, self.program.f.target)
        program.split = split = Split(program.body, self.places, on, program.shared, bundle)
        self._rows()
        split.meet()
        program.split, program.shared = None, split.used

    def _rows(self) -> None:
        lines = self.inner and not self.joint > 1 and not self.repeated
        self.lines = Lines.of(self.program, self.outputs, len(self.outer)) if lines else None
        pipeline = Pipeline.of(self)
        if pipeline is None:
            self._one_by_one()
            return
        rows = self.access.size(product(self.outer))
        first, last = self._share(rows)

        def together() -> list[Value]:
            pipeline.emit(first, last)
            return []

        def apart() -> list[Value]:
            self._one_by_one()
            return []

        self.places.branch(pipeline.pays(rows), together, apart)

    def _one_by_one(self) -> None:
        fixed = [d for i, d in enumerate(self.outer) if i not in self.repeated]
        rows, n = product(fixed), product(self.inner)
        body, access = self.program.body, self.access
        count, width = access.size(rows), access.size(n)
        f, split = self.program.f, self.program.split
        if not self.inner:
            first, last = self._share(count)
            if split:
                first, last = self.places.here(list(split.share(first, last, count)))
            self._elements(first, last)
            return
        group = PANEL * (1 if self.columns else self.joint * self.unroll)
        if (rows.static or 0) >= 256 or (
            n.static is not None and n.static < 256 and not rows.is_one and not split
        ):
            first, last = self._share(count)
            self.places.loop(first, last, 1, [], lambda r, _: self._row(r, i64(0), width))
            return
        blocks = f.udiv(f.add(width, group - 1), group)
        low, high = (f.mul(x, group) for x in body.share(blocks))
        high = f.umin(high, width)
        if rows.is_one:
            low, high = self.places.here([low, high])
            self.places.know(low, PANEL)
            self._row(i64(0), low, high)
            return
        first, last = body.share(count)
        few = f.icmp("ult", count, body.threads)
        few = f.or_(few, split.on) if split else few
        bounds = [
            f.select(few, a, b)
            for a, b in ((i64(0), first), (count, last), (low, i64(0)), (high, width))
        ]
        first, last, low, high = self.places.here(bounds)
        self.places.know(low, PANEL)
        self.places.loop(first, last, 1, [], lambda r, _: self._row(r, low, high))

    def _elements(self, first: Value, last: Value) -> None:
        """Write results of one element for each row, of several rows at a time where it pays."""
        p, program = self.places, self.program
        # Rows that threads share are read in pieces.
        reductions = [] if program.split else bundled(self.nodes, program.f.target)
        if reductions and (product(self.outer).static or BUNDLE) >= BUNDLE:

            def rows(r: Value) -> list[Value]:
                indices = [Axis(p.add(r, i)) for i in range(BUNDLE)]
                ats = [At(tuple(self.access.split(i, self.outer))) for i in indices]
                for node in reductions:
                    reduce_rows(program, node, ats)
                self.store(ats)
                return []

            main = p.add(first, p.mul(p.div(p.sub(last, first), i64(BUNDLE)), BUNDLE))
            p.loop(first, main, BUNDLE, [], lambda r, _: rows(r))
            first = main
        p.loop(first, last, 1, [], lambda r, _: self._row(r, None, None))

    def _share(self, count: Value) -> tuple[Value, Value]:
        first, last = self.program.body.share(count)
        self.places.here([first, last])
        return first, last

    def _row(self, row: Value, low: Value | None, high: Value | None) -> list[Value]:
        fixed = [i for i in range(len(self.outer)) if i not in self.repeated]
        axes = self.access.split(Axis(row), [self.dims[i] for i in fixed])
        if self.program.split and len(fixed) == len(self.outer):
            self.program.split.begin(tuple(axes), row)
        if low is None or high is None:
            self.store([At(tuple(axes))])
            return []
        written = Row(self, dict(zip(fixed, axes, strict=True)))
        if self.columns:
            written.stripes(low, high)
            return []
        self.program.ahead = self._ahead(row, tuple(axes))
        written.write(low, high)
        self.program.ahead = None
        return []

    def _ahead(self, row: Value, outer: tuple[AnyAxis, ...]) -> Ahead | None:
        """Return the place of the next row, or of this one where rows are long, if it is of use."""
        reductions = sum(map(over_rows, reachable(*self.nodes)))
        if not reductions or not outer or len(self.outer) != len(outer) or len(self.inner) != 1:
            return None
        f, size = self.program.f, self.access.size(self.inner[0])
        short = f.icmp("ule", size, LENGTH)
        after = self.places.here([f.add(row, f.cast("zext", short, "i64"))])[0]
        next_ = self.access.split(Axis(after), self.outer)
        far = f.icmp("ugt", size, NEAR)
        far = f.or_(far, self.lines.streams) if self.lines else far
        within = f.select(far, i64(0), i64(-1))
        fetches = not self.program.kept
        return Ahead(outer, tuple(next_), fetches, self.outputs, within, reductions)

    def store(self, ats: Sequence[At], align: int = 0) -> None:
        """Pull every output at some places, then store; see `Access.store` for `align`."""
        values = [self.program.pull(node, ats) for node, _ in self.outputs]
        # A single output of one row is written in whole lines, which don't wait for one another.
        fetches = self.lines is None or len(self.outputs) > 1 or bool(self.outer)
        for (node, out), elements in zip(self.outputs, values, strict=True):
            for v, at in zip(elements, ats, strict=True):
                if self.inner:
                    v = self.places.splat(v)
                v = stored(self.program.f, node.element, v)
                self.access.store(v, out, node.bytes, at, node.dims, align, fetches)


def emit_tensor_program(body: Body) -> None:
    """
    Emit the kernel of any operations that `refusal` does not refuse.

    Raises RlxError where they are too large, as those of a kernel that was written by hand may be.
    """
    program = Program(body)
    nodes = [program.graph.node(v) for v in body.yielded]
    reason = too_large(nodes) if len(body.ops) > 1 else None
    if reason:
        raise RlxError(
            f"can't compile a kernel of {len(body.ops)} operations, from {body.ops[0].name} on: "
            f"it has {reason}. Make several kernels of them, or let fuse-rows choose"
        )
    for places in by_shape(nodes):
        Domain(program, [(nodes[i], body.outs[i]) for i in places]).emit()


def refusal(
    ops: Sequence[Operation],
    yielded: Sequence[SSAValue],
    source: Callable[[SSAValue], SSAValue] = lambda v: v,
) -> str | None:
    """
    Return why operations can't be one kernel; None if they can.

    `ops` are in order; what they use and don't make is read from memory, `yielded` is written. They
    may still use results of kernels that they are part of: `source` gives what those yield. A
    single operation of `COMPUTED` is never refused.
    """
    for op in ops:
        if type(op) not in COMPUTED:
            return f"{op.name} is not an operation of a tensor kernel"
    for v in (*yielded, *(v for op in ops for v in (*op.operands, *op.results))):
        if element_of(v.type) not in infer.ELEMENTS and not is_packed_vector(v.type):
            return f"{spell(v.type)} has elements that are read in blocks"
    if len(ops) <= 1:
        return None
    graph, cost = Graph(None, source), Cost()
    for op in ops:
        graph.add(op)
    nodes = [graph.node(v) for v in yielded]
    reason = too_large(nodes)
    if reason:
        return reason
    for places in by_shape(nodes):
        cost.outputs([nodes[i] for i in places])
    if cost.excess:
        node = cost.excess[0]
        what = f"{node.op} {node.kind}".strip()
        return f"{what} would be computed again for each of the elements that use it"
    return None


def by_shape(nodes: Sequence[Node]) -> list[list[int]]:
    """Return the positions of outputs that one loop writes; those that have no element are left."""
    groups: dict[tuple[Size, ...], list[int]] = {}
    for i, node in enumerate(nodes):
        if node.count.number:
            groups.setdefault(node.dims, []).append(i)
    return list(groups.values())
