"""
The kernel that sorts rows: by counting where rows are short, by digits (radix) where they are long.

An element becomes a signed integer of its size that orders as it does (`sort_keys`). In a short
row, each one's place is how many come before it: comparisons of vectors with every element. Longer
ones are sorted in `sort_radix`. A row is one thread's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from xdsl.ir import Attribute

from rlx.dialects.common import DimTable, dims_of, element_bytes
from rlx.lowering.body import Body
from rlx.lowering.sort_keys import SortedRows
from rlx.lowering.sort_radix import Radix, record_bytes
from rlx.lowering.values import Value, i64, vec

if TYPE_CHECKING:
    from rlx.lowering.kernels import Scratch
    from rlx.ops.sorting import SortRowsOp

MAX_STACK = 256 << 10
"""Bytes of records that are on the stack."""
SLOTS = 16
"""Threads that sort longer rows: each has memory for one row."""

_SHORT = 48
"""Elements, for each byte of one, of the longest row whose places are counted."""


def _is_short(type_: Attribute, n: int) -> bool:
    return n <= _SHORT * element_bytes(type_)


def _on_stack(type_: Attribute, n: int) -> bool:
    return _is_short(type_, n) or 2 * n * record_bytes(type_) <= MAX_STACK


def scratch(op: SortRowsOp, table: DimTable) -> Scratch | None:
    """Return two rows of records for each slot, where they are too long for the stack."""
    from rlx.lowering.kernels import Scratch

    *batch, n = dims_of(op.args[0].type)
    if _on_stack(op.args[0].type, table.size(n)):
        return None
    rows = 1
    for d in batch:
        rows = min(rows * table.size(d), SLOTS)
    return Scratch(2 * max(rows, 1) * record_bytes(op.args[0].type), zeroed=False, dims=(n,))


def emit(body: Body) -> None:
    """Rows in order, as a launch of its own; see `indexing.sort_rows`."""
    op = cast("SortRowsOp", body.ops[0])
    f, x = body.f, op.args[0]
    *batch, n = dims_of(x.type)
    rows, longest = body.count(batch), body.table.size(n)
    k = i64(op.option("k")) if op.option("k") else body.size(n)
    sort = (_Counting if _is_short(x.type, longest) else Radix)(body, op, body.size(n), k)
    first, last = i64(0), rows
    if body.scratch is not None:
        active = f.umin(body.threads, SLOTS)
        at_work = f.icmp("ult", body.tid, active)
        mine = (f.udiv(f.mul(rows, t), active) for t in (body.tid, f.add(body.tid, 1)))
        first, last = (f.select(at_work, r, i64(0)) for r in mine)
    else:
        first, last = body.share(rows)
    f.for_(first, last, 1, [], lambda r, _: sort.row(r) or [])


class _Counting(SortedRows):
    """An element's place is how many are less, or are equal and come before it."""

    def row(self, r: Value) -> None:
        f, size, integer = self.f, self.size, f"i{self.bits}"
        source = self.source(r)
        # What is past the row is compared too, and not used.
        room = (_SHORT * size + 64) * size
        keys, places = f.scratch("sort_keys", room), f.scratch("sort_places", room)
        lanes = 64 // size
        ints = vec(lanes, integer)
        whole = f.sub(self.n, f.binary("srem", self.n, lanes))

        def load(i: Value, width: int) -> list[Value]:
            f.store(self.key(self.element_at(source, i, width)), f.at(keys, i, size), size)
            return []

        f.for_(0, whole, lanes, [], lambda i, _: load(i, lanes))
        f.for_(whole, self.n, 1, [], lambda i, _: load(i, 1))
        order = f.vector(integer, range(lanes))

        def count(i: Value, _: list[Value]) -> list[Value]:
            own = f.load(ints, f.at(keys, i, size), size)
            end = f.intrinsic("smin", "i64", f.add(i, lanes), self.n)

            def other(j: Value) -> Value:
                return f.splat(f.load(integer, f.at(keys, j, size), size), lanes)

            def add(before: Value, total: Value) -> Value:
                return f.sub(total, f.cast("sext", before, ints))

            def within(j: Value, total: list[Value]) -> list[Value]:
                lane = f.splat(
                    f.cast("trunc", f.sub(j, i), integer) if size < 8 else f.sub(j, i), lanes
                )
                key = other(j)
                tie = f.and_(f.icmp("eq", key, own), f.icmp("slt", lane, order))
                return [add(f.or_(f.icmp("slt", key, own), tie), total[0])]

            total = f.for_(
                0, i, 1, [f.zero(ints)], lambda j, t: [add(f.icmp("sle", other(j), own), t[0])]
            )
            total = f.for_(i, end, 1, total, within)
            total = f.for_(
                end, self.n, 1, total, lambda j, t: [add(f.icmp("slt", other(j), own), t[0])]
            )
            f.store(total[0], f.at(places, i, size), size)
            return []

        f.for_(0, self.n, lanes, [], count)

        def place(i: Value, _: list[Value]) -> list[Value]:
            at = f.load(integer, f.at(places, i, size), size)
            at = f.cast("zext", at, "i64") if size < 8 else at

            def write() -> list[Value]:
                self.store(r, at, self.element_at(source, i), i)
                return []

            if self.op.option("k"):
                f.if_(f.icmp("slt", at, self.k), write)
            else:
                write()
            return []

        f.for_(0, self.n, 1, [], place)
