"""
The kernel of `contraction.grouped_matmul`: for each matrix, products with blocks of its rows.

The rows of a matrix are found by a look at all indices, gathered while they are packed, and their
sums go from a block on the stack to where the rows are. A matrix with one row, as most have when a
model makes one token, is read as it lies. Threads share the columns, and where these are few the
matrices. What an element adds depends on k alone, as in `mir.dot`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from rlx.dialects.common import dims_of, element_of
from rlx.lowering.body import Body
from rlx.lowering.dot_blocks import Shapes, block
from rlx.lowering.dot_few import emit_few
from rlx.lowering.dot_matrix import Matrix, Tiling, lanes_below, load_part, store_part, up
from rlx.lowering.dot_sides import Stored
from rlx.lowering.emitter import Function
from rlx.lowering.target import LINE
from rlx.lowering.tensor_elements import register_type
from rlx.lowering.values import Value, i64

if TYPE_CHECKING:
    from rlx.ops.contraction import GroupedMatmulOp

_WIDE = 2048
"""Bytes of the columns that are computed at a time."""


def emit(body: Body) -> None:
    """Rows times the matrices of their indices, as a launch of its own."""
    op = cast("GroupedMatmulOp", body.ops[0])
    x, w, _ = op.args
    f, g = body.f, _Grouped(body, op, Tiling.of(body.f.target, register_type(element_of(x.type))))
    experts, _, n = (body.size(d) for d in dims_of(w.type))
    panels = up(f, n, g.tiling.columns)
    by_columns = f.icmp("uge", panels, body.threads)
    first, last = body.share(f.select(by_columns, panels, experts))
    low, high = (f.umin(f.mul(p, g.tiling.columns), n) for p in (first, last))
    low, high = f.select(by_columns, low, i64(0)), f.select(by_columns, high, n)
    first, last = f.select(by_columns, i64(0), first), f.select(by_columns, experts, last)
    f.for_(first, last, 1, [], lambda e, _: g.expert(e, experts, low, high))
    # Without matrices nothing above writes.
    f.if_(f.icmp("eq", experts, 0), lambda: g.clear())


@dataclass(frozen=True)
class _Gathered:
    """Rows of lhs at places in a list."""

    tiling: Tiling
    matrix: Matrix
    rows: Value
    swapped: bool = False

    def block(self, f: Function, first: Value, count: Value, k0: Value, length: Value) -> Matrix:
        t = self.tiling
        out = f.scratch("gathered", t.block * t.row_bytes)

        def row(i: Value, _: list[Value]) -> list[Value]:
            r = f.load("i64", f.at(self.rows, f.add(first, i), 8), align=8)
            _copy(f, t, self.matrix.at(f, r, k0, t.size), f.at(out, i, t.row_bytes), length)
            return []

        f.for_(0, count, 1, [], row)
        return Matrix(out, i64(t.row_bytes))


@dataclass
class _Grouped:
    """The products of a kernel."""

    body: Body
    op: GroupedMatmulOp
    tiling: Tiling

    @property
    def sizes(self) -> tuple[Value, Value, Value]:
        m, k = (self.body.size(d) for d in dims_of(self.op.args[0].type))
        return m, self.body.size(dims_of(self.op.args[1].type)[2]), k

    def clear(self) -> list[Value]:
        """Emit zeros for this thread's rows."""
        f, (m, n, _), t = self.body.f, self.sizes, self.tiling

        def row(r: Value) -> None:
            out = f.at(self.body.outs[0], f.mul(r, n), t.size)
            _vectors(f, t, n, lambda j, mask: store_part(
                f, t, f.zero(t.vector), f.at(out, j, t.size), mask
            ))  # fmt: skip

        self.body.for_rows(m, row)
        return []

    def expert(self, e: Value, experts: Value, low: Value, high: Value) -> list[Value]:
        """Emit the products of a matrix, of some columns."""
        body, f, t = self.body, self.body.f, self.tiling
        (m, n, k), size = self.sizes, t.size
        x = Matrix(body.pointers[self.op.args[0]], f.mul(k, size))
        start = f.at(body.pointers[self.op.args[1]], f.mul(e, f.mul(k, n)), size)
        w = Matrix(start, f.mul(n, size))
        y = Matrix(body.outs[0], f.mul(n, size))
        rows = f.scratch("rows", 8 * t.block)
        sums = Matrix(f.scratch("sums", t.block * (_WIDE + LINE)), i64(_WIDE + LINE))

        def columns(j: Value, count: Value) -> list[Value]:
            """Multiply the rows that were found."""
            wide = f.umin(f.sub(high, j), _WIDE // size)
            right = Matrix(w.at(f, 0, j, size), w.stride)

            def single() -> list[Value]:
                r = f.load("i64", rows, align=8)
                left, out = (Matrix(v.at(f, r, 0, size), v.stride) for v in (x, y))
                out = Matrix(f.at(out.pointer, j, size), out.stride)
                emit_few(f, t, 1, left, right, out, i64(1), wide, k)
                return []

            def several() -> list[Value]:
                sides = _Gathered(t, x, rows), Stored(right, size, left=False)
                block(f, t, Shapes.of(t, None, None), *sides, sums, count, wide, k)

                def row(i: Value, _: list[Value]) -> list[Value]:
                    r = f.load("i64", f.at(rows, i, 8), align=8)
                    _copy(f, t, sums.at(f, i, 0, size), y.at(f, r, j, size), wide)
                    return []

                return f.for_(0, count, 1, [], row)

            return f.if_(f.icmp("eq", count, 1), single, several)

        def find(carried: list[Value]) -> list[Value]:
            """Take note of a row where it is of this matrix."""
            i, count = carried
            f.store(i, f.at(rows, count, 8), align=8)
            own = f.cast("zext", f.icmp("eq", self._expert_of(i, experts), e), "i64")
            return [f.add(i, 1), f.add(count, own)]

        def some(carried: list[Value]) -> list[Value]:
            def more(v: list[Value]) -> Value:
                return f.and_(f.icmp("slt", v[0], m), f.icmp("slt", v[1], t.block))

            i, count = f.while_([carried[0], i64(0)], more, find)

            def multiply() -> list[Value]:
                return f.for_(low, high, _WIDE // size, [], lambda j, _: columns(j, count))

            f.if_(f.icmp("ne", count, 0), multiply)
            return [i]

        f.while_([i64(0)], lambda v: f.icmp("slt", v[0], m), some)
        return []

    def _expert_of(self, row: Value, experts: Value) -> Value:
        """Return the matrix of a row, the first or the last for an index beyond them."""
        f, ids = self.body.f, self.op.args[2]
        wide = str(element_of(ids.type)) == "i64"
        at = f.at(self.body.pointers[ids], row, 8 if wide else 4)
        v = f.load("i64" if wide else "i32", at, align=4)
        v = v if wide else f.cast("sext", v, "i64")
        v = f.intrinsic("smax", "i64", v, i64(0))
        return f.intrinsic("smin", "i64", v, f.sub(experts, 1))


def _vectors(
    f: Function, t: Tiling, count: Value, body: Callable[[Value, Value | None], None]
) -> None:
    """Emit body(first, mask) for each vector of so many elements."""
    whole = f.mul(f.udiv(count, t.lanes), t.lanes)
    f.for_(0, whole, t.lanes, [], lambda j, _: body(j, None) or [])
    rest = f.sub(count, whole)
    mask = lanes_below(f, t.lanes, rest)
    f.if_(f.icmp("ne", rest, 0), lambda: body(whole, mask) or [])


def _copy(f: Function, t: Tiling, source: Value, out: Value, count: Value) -> None:
    """Emit a copy of elements."""

    def vector(j: Value, mask: Value | None) -> None:
        v = load_part(f, t, f.at(source, j, t.size), mask)
        store_part(f, t, v, f.at(out, j, t.size), mask)

    _vectors(f, t, count, vector)
