"""
Where threads must wait for each other.

A launch needs a barrier before it if it touches bytes that another launch has written since the
last barrier, or writes bytes that one has read. Offsets are known by now, so the answer is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from rlx.dialects import lir

_MEMBER = " of the layer"
"""How the space of a layer's own member ends: the next layer's is another."""


class Range(NamedTuple):
    """Bytes in a space: the arena, or the buffer or symbol of that name."""

    space: str
    start: int
    end: int

    def meets(self, other: Range) -> bool:
        return self.space == other.space and self.start < other.end and other.start < self.end


def range_of(value: SSAValue) -> Range:
    """Return the bytes that a buffer of a program stands for."""
    op = value.owner
    match op:
        case lir.SlotOp():
            start = op.offset.value.data
            return Range("arena", start, start + op.size.value.data)
        case lir.InputOp() | lir.OutputOp():
            return Range(f"io {op.io_name.data}", 0, 1)
        case lir.RefOp() | lir.SourceOp():
            suffix = _MEMBER if op.layer is not None else ""
            return Range(f"{op.name} {op.symbol.root_reference.data}{suffix}", 0, 1)
        case lir.ViewOp():
            return range_of(op.root)
        case _:
            raise AssertionError(f"{value} is not a buffer")


@dataclass
class _Pending:
    """What has been read and written since the last barrier."""

    reads: list[Range] = field(default_factory=list[Range])
    writes: list[Range] = field(default_factory=list[Range])

    def conflicts(self, reads: Iterable[Range], writes: Sequence[Range]) -> bool:
        after_write = any(w.meets(r) for r in (*reads, *writes) for w in self.writes)
        return after_write or any(r.meets(w) for r in self.reads for w in writes)

    def of_every_layer(self) -> _Pending:
        """Return what is left for the next layer: its members are not those of this one."""
        reads = [r for r in self.reads if not r.space.endswith(_MEMBER)]
        return _Pending(reads, [w for w in self.writes if not w.space.endswith(_MEMBER)])

    def clear(self) -> None:
        self.reads.clear()
        self.writes.clear()


def _touched(op: lir.LaunchOp, appends: dict[str, set[int]]) -> tuple[list[Range], list[Range]]:
    reads = [range_of(v) for v in op.ins]
    written = appends[op.kernel.root_reference.data]
    outs = [*op.outs, *([op.scratch] if op.scratch is not None else [])]
    return reads, [*(range_of(v) for v in outs), *(reads[i] for i in written)]


def insert_barriers(block: Block, appends: dict[str, set[int]]) -> None:
    """Put barriers into a program; `appends` says which arguments of a kernel are also written."""
    _insert(block, appends, _Pending())


def _insert(block: Block, appends: dict[str, set[int]], pending: _Pending) -> None:
    for op in list(block.ops):
        if isinstance(op, lir.LoopOp):
            body = op.body.block
            _insert(body, appends, pending)
            if _next_turn_conflicts(body, appends, pending):
                body.add_op(lir.BarrierOp())
                pending.clear()
        elif isinstance(op, lir.LaunchOp):
            reads, writes = _touched(op, appends)
            if pending.conflicts(reads, writes):
                Rewriter.insert_op(lir.BarrierOp(), InsertPoint.before(op))
                pending.clear()
            pending.reads += reads
            pending.writes += writes


def _next_turn_conflicts(body: Block, appends: dict[str, set[int]], pending: _Pending) -> bool:
    """Return whether a loop's next turn, up to its first barrier, conflicts with this one."""
    trial = pending.of_every_layer()
    for op in body.ops:
        if isinstance(op, lir.BarrierOp):
            return False
        if isinstance(op, lir.LaunchOp):
            reads, writes = _touched(op, appends)
            if trial.conflicts(reads, writes):
                return True
    return False


def count_barriers(ops: Iterable[Operation]) -> int:
    """Return how many barriers a step of a program passes, loops counted out."""
    total = 0
    for op in ops:
        if isinstance(op, lir.BarrierOp):
            total += 1
        elif isinstance(op, lir.LoopOp):
            turns = op.last.value.data - op.first.value.data
            total += turns * count_barriers(op.body.block.ops)
    return total
