"""
Sides of products that are computed while they are packed: windows, casts, scaled numbers.

A block of a side is computed into a buffer on the stack, row by row of the side as it would lie in
memory, and packed from there. What an axis was merged from is kept apart: the windows `[channels,
height, width, rows, columns]` of an image are not divided again for each element, but read in runs
along their columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.ir import Operation, SSAValue

from rlx.lowering.body import Body
from rlx.lowering.dot_matrix import Matrix, Tiling
from rlx.lowering.dot_sides import STEPS
from rlx.lowering.emitter import Function
from rlx.lowering.target import PANEL
from rlx.lowering.tensor_access import At, Axis
from rlx.lowering.tensor_elements import stored
from rlx.lowering.tensor_nodes import MAPS, ONE, Node, Size, is_splat, product
from rlx.lowering.tensor_reduce import Program
from rlx.lowering.values import Value, i64

_FIRST = i64(0)

Group = tuple[Size, ...]
"""The sizes that an axis was merged from."""


@dataclass(frozen=True)
class Pulled:
    """A side that operations of the kernel compute; `left` tells whether it is lhs."""

    body: Body
    ops: Sequence[Operation]
    value: SSAValue
    batch: Value
    tiling: Tiling
    left: bool
    swapped: bool
    origin: Value = _FIRST
    """The line that is called the first."""

    def block(self, f: Function, first: Value, count: Value, k0: Value, length: Value) -> Matrix:
        """Emit the computation of a block, and return where it is."""
        t, first = self.tiling, f.add(first, self.origin)
        depth = t.depth if self.left or self.swapped else STEPS * t.group
        lines = t.block if self.left else t.columns if self.swapped else t.panels * t.columns
        by_lines = self.left != self.swapped
        rows, columns = (lines, depth) if by_lines else (depth, lines)
        # The last vector of a row may be stored whole.
        stride = (columns + PANEL) * t.source_size
        out = f.scratch("pulled", rows * stride)
        place = (first, count, k0, length) if by_lines else (k0, length, first, count)
        _Fill(self).emit(out, stride, *place)
        return Matrix(out, i64(stride), self.swapped)

    def moved(self, f: Function, line: Value) -> Pulled:
        """Return the lines from one on."""
        return replace(self, origin=f.add(self.origin, line))


class _Fill:
    """The computation of rows of a side."""

    def __init__(self, side: Pulled):
        self.side = side
        self.program = Program(replace(side.body, ops=list(side.ops)))
        node = self.program.graph.node(side.value)
        self.batches = node.dims[:-2]
        self.rows, self.columns = groups_of(node)
        self.node = apart(node, self.batches, self.rows, self.columns)

    def emit(
        self, out: Value, stride: int, first: Value, count: Value, low: Value, width: Value
    ) -> None:
        """Emit `count` rows from `first` on, of `width` elements from `low` on."""
        program, p, size = self.program, self.program.places, self.side.tiling.source_size
        access, f = program.access, program.f
        batch = access.split(Axis(self.side.batch), self.batches)
        outer, run = self.columns[:-1], access.size(self.columns[-1])
        high = p.add(low, width)
        runs = p.div(p.sub(p.add(high, run), 1), run) if outer else i64(1)

        def row(i: Value) -> list[Value]:
            place = (*batch, *access.split(Axis(p.add(first, i)), self.rows))
            to = f.at(out, f.mul(i, stride))

            def elements(index: Value) -> list[Value]:
                """Write the elements that a run has of those from `low` to `high`."""
                start = p.mul(index, run)
                begin = f.umax(start, low) if outer else low
                end = f.umin(f.add(start, run), high) if outer else high
                p.here([begin, end])
                at = (*place, *access.split(Axis(index), outer))
                target = f.at(to, f.sub(begin, low), size)
                span = p.sub(end, begin)
                most = p.mul(p.div(span, i64(PANEL)), PANEL)

                def chunk(c: Value, mask: Value | None = None) -> list[Value]:
                    column = Axis(p.add(p.sub(begin, start), c), 1)
                    v = p.splat(program.pull_one(self.node, At((*at, column), mask)))
                    f.store(stored(f, self.node.element, v), f.at(target, c, size), align=size)
                    return []

                def tail() -> list[Value]:
                    return chunk(most, p.here([program.live(p.sub(span, most))])[0])

                p.loop(0, most, PANEL, [], lambda c, _: chunk(c))
                return p.branch(f.icmp("ult", most, span), tail)

            begin = p.div(low, run) if outer else i64(0)
            return p.loop(begin, runs, 1, [], lambda index, _: elements(index))

        p.loop(0, count, 1, [], lambda i, _: row(i))


def groups_of(node: Node) -> tuple[Group, Group]:
    """Return what the last two axes of a side were merged from, by the first reshape that tells."""
    rows, columns = node.dims[-2:]
    work = [node]
    while work:
        n = work.pop()
        if n.op in MAPS:
            work += [arg for arg in n.args if arg.dims == node.dims]
        elif n.op == "reshape":
            dims = n.args[0].dims
            for j in reversed(range(len(dims))):
                if product(dims[j:]) == columns:
                    # Sizes of 1 at the end would make runs of one element.
                    inner = tuple(d for d in dims[j:] if not d.is_one) or (ONE,)
                    for i in reversed(range(j + 1)):
                        if product(dims[i:j]) == rows:
                            return dims[i:j] or (ONE,), inner
                    return (rows,), inner
    return (rows,), (columns,)


def apart(node: Node, batches: Group, rows: Group, columns: Group) -> Node:
    """Return a side with more axes: those that its last two were merged from."""
    dims = (*batches, *rows, *columns)
    if node.dims == dims:
        return node
    if node.op in MAPS:
        args = tuple(apart(arg, batches, rows, columns) for arg in node.args)
        return replace(node, dims=dims, args=args)
    if is_splat(node):
        return replace(node, dims=dims)
    if node.op == "broadcast":
        (arg,) = node.args
        given = (ONE,) * (2 - len(arg.dims)) + arg.dims
        ones = [(ONE,) * len(group) for group in (rows, columns)]
        last = [
            group if size == whole else one
            for size, whole, group, one in zip(
                given[-2:], node.dims[-2:], (rows, columns), ones, strict=True
            )
        ]
        spread = apart(arg, given[:-2], *last)
        return replace(node, dims=dims, args=(spread,))
    if node.op == "reshape":
        (arg,) = node.args
        return arg if arg.dims == dims else replace(node, dims=dims)
    return Node("reshape", dims, node.element, (node,))
