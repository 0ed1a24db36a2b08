"""A kernel's function while it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from xdsl.ir import Block, Operation, SSAValue

from rlx.dialects import mir
from rlx.dialects.common import Dim, DimTable, dims_of, spell
from rlx.errors import RlxError
from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, i64


@dataclass
class Body:
    """A kernel's function while it is written: its pointers by value, its sizes, its thread."""

    f: Function
    block: Block
    table: DimTable
    pointers: dict[SSAValue, Value]
    outs: list[Value]
    scratch: Value | None
    sizes: dict[str, Value]
    tid: Value
    threads: Value
    ops: list[Operation] = field(default_factory=list[Operation])

    @property
    def yielded(self) -> Sequence[SSAValue]:
        last = self.block.last_op
        assert isinstance(last, mir.YieldOp)
        return last.arguments

    def size(self, dim: Dim) -> Value:
        """Return a dimension's size as i64."""
        return i64(dim) if isinstance(dim, int) else self.sizes[dim]

    def count(self, dims: Sequence[Dim]) -> Value:
        """Return the product of dimensions as i64."""
        count = i64(1)
        for dim in dims:
            count = self.f.mul(count, self.size(dim))
        return count

    def share(self, count: Value) -> tuple[Value, Value]:
        """Return this thread's part of `count` items."""
        first = self.f.udiv(self.f.mul(count, self.tid), self.threads)
        return first, self.f.udiv(self.f.mul(count, self.f.add(self.tid, 1)), self.threads)

    def on_first_thread(self, then: Callable[[], None]) -> None:
        self.f.if_(self.f.icmp("eq", self.tid, 0), lambda: then() or [])

    def for_rows(self, rows: Value, row: Callable[[Value], None]) -> None:
        """Emit a loop over this thread's part of the rows."""
        first, last = self.share(rows)
        self.f.for_(first, last, 1, [], lambda r, _: row(r) or [])


def width_of(value: SSAValue) -> int:
    """Return the number of a tensor's last dimension."""
    last = dims_of(value.type)[-1]
    if not isinstance(last, int):
        raise RlxError(f"expected a number for the last dimension, got {spell(value.type)}")
    return last
