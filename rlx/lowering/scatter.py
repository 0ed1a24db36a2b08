"""
The kernel that writes rows at indices: replaced, or combined with what is there.

A thread owns whole columns of the result where rows are long, rows of it where they are short, and
goes over all updates in order. So no two threads write one element, and what is computed does not
depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from rlx.dialects.common import dims_of, element_bytes, element_of
from rlx.lowering.body import Body
from rlx.lowering.target import LINE
from rlx.lowering.tensor_elements import memory_type
from rlx.lowering.values import Value, i64, vec
from rlx.lowering.vmath import emit_binary

if TYPE_CHECKING:
    from rlx.ops.scattering import ScatterRowsOp

_BY_COLUMNS = 32
"""Lines of a row from which on threads share its columns."""


def emit(body: Body) -> None:
    """Rows written at indices, as a launch of its own; see `indexing.scatter_rows`."""
    op = cast("ScatterRowsOp", body.ops[0])
    into, ids, updates = op.args
    axes, dims, f = op.option("axes"), dims_of(into.type), body.f
    size = element_bytes(into.type)
    rows, width = body.count(dims[:axes]), body.count(dims[axes:])
    lines = f.udiv(f.add(f.mul(width, size), LINE - 1), LINE)
    by_columns = f.icmp("uge", lines, _BY_COLUMNS)

    def columns() -> list[Value]:
        first, last = (f.mul(part, LINE // size) for part in body.share(lines))
        return [i64(0), rows, first, f.umin(last, width)]

    def whole_rows() -> list[Value]:
        return [*body.share(rows), i64(0), width]

    part = f.if_(by_columns, columns, whole_rows)
    scatter = _Scatter(body, op, size, width, part)
    source, out = body.pointers[into], body.outs[0]

    def copy() -> list[Value]:
        scatter.copy(source)
        return []

    # In place, what is there before is there already.
    f.if_(f.icmp("ne", source, out), copy)
    scatter.update(body.pointers[ids], body.pointers[updates], rows)


class _Scatter:
    """A thread's part of the result: rows from `top` to `end`, columns from `first` to `last`."""

    def __init__(self, body: Body, op: ScatterRowsOp, size: int, width: Value, part: list[Value]):
        self.body, self.f, self.size, self.width = body, body.f, size, width
        self.top, self.end, self.first, self.last = part
        self.kind = op.option("kind")
        element = element_of(op.args[0].type)
        self.element, self.unsigned = memory_type(element), str(element).startswith("ui")
        self.lanes = LINE // size
        self.ids = op.args[1]

    def copy(self, source: Value) -> None:
        """Emit the copy of what is there before."""
        f, out = self.f, self.body.outs[0]

        def row(r: Value, _: list[Value]) -> list[Value]:
            at, to = (self._row(p, r) for p in (source, out))
            self._chunks(lambda c, lanes: self._store(self._load(at, c, lanes), to, c))
            return []

        f.for_(self.top, self.end, 1, [], row)

    def update(self, ids: Value, updates: Value, rows: Value) -> None:
        """Emit the updates in order."""
        f, bits = self.f, 8 * element_bytes(self.ids.type)

        def one(i: Value, _: list[Value]) -> list[Value]:
            row = f.load(f"i{bits}", f.at(ids, i, bits // 8), bits // 8)
            row = f.cast("sext", row, "i64") if bits < 64 else row
            row = f.select(f.icmp("slt", row, 0), f.add(row, rows), row)
            mine = f.and_(f.icmp("sge", row, self.top), f.icmp("slt", row, self.end))

            def write() -> list[Value]:
                at, to = self._row(updates, i), self._row(self.body.outs[0], row)
                self._chunks(lambda c, lanes: self._combine(at, to, c, lanes))
                return []

            f.if_(mine, write)
            return []

        f.for_(0, self.body.count(dims_of(self.ids.type)), 1, [], one)

    def _combine(self, source: Value, out: Value, column: Value, lanes: int) -> None:
        new = self._load(source, column, lanes)
        if self.kind != "set":
            old = self._load(out, column, lanes)
            if self.unsigned and self.kind in ("max", "min"):
                new = self.f.intrinsic(f"u{self.kind}", new.type, old, new)
            else:
                new = emit_binary(self.f, self.kind, old, new)
        self._store(new, out, column)

    def _chunks(self, body: Callable[[Value, int], None]) -> None:
        """Emit body(column, lanes) over the columns: vectors of 64 bytes, then one by one."""
        f = self.f
        count = f.sub(self.last, self.first)
        whole = f.add(self.first, f.sub(count, f.binary("srem", count, self.lanes)))

        def vectors(c: Value, _: list[Value]) -> list[Value]:
            body(c, self.lanes)
            return []

        def single(c: Value, _: list[Value]) -> list[Value]:
            body(c, 1)
            return []

        f.for_(self.first, whole, self.lanes, [], vectors)
        f.for_(whole, self.last, 1, [], single)

    def _row(self, pointer: Value, row: Value) -> Value:
        return self.f.at(pointer, self.f.mul(row, self.width), self.size)

    def _load(self, row: Value, column: Value, lanes: int) -> Value:
        at = self.f.at(row, column, self.size)
        return self.f.load(vec(lanes, self.element), at, self.size)

    def _store(self, v: Value, row: Value, column: Value) -> None:
        self.f.store(v, self.f.at(row, column, self.size), self.size)
