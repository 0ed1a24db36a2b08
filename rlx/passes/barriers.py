"""
Where threads must wait for each other.

A launch needs a barrier before it if it touches bytes that another launch has written since the
last barrier, or writes bytes that one has read. Offsets are known by now, so the answer is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from rlx.dialects import lir, mir
from rlx.passes.outline import written_arguments


class Range(NamedTuple):
    """Bytes in a space: the arena, or the buffer or symbol of that name."""

    space: str
    start: int
    end: int
    layered: bool = False
    """Whether it is the layer's own member of a family: the next layer's is another."""

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
            return Range(f"{op.name} {op.io_name.data}", 0, 1)
        case lir.RefOp() | lir.SourceOp():
            name = f"{op.name} {op.symbol.root_reference.data}"
            return Range(name, 0, 1, op.layer is not None)
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
        reads = [r for r in self.reads if not r.layered]
        return _Pending(reads, [w for w in self.writes if not w.layered])

    def clear(self) -> None:
        self.reads.clear()
        self.writes.clear()

    def copy(self) -> _Pending:
        return _Pending(list(self.reads), list(self.writes))

    def either(self, one: _Pending, other: _Pending) -> None:
        """Become what may have happened where two ways meet."""
        self.reads = list(dict.fromkeys([*one.reads, *other.reads]))
        self.writes = list(dict.fromkeys([*one.writes, *other.writes]))


def _touched(op: lir.LaunchOp, written: dict[str, set[int]]) -> tuple[list[Range], list[Range]]:
    reads = [range_of(v) for v in op.ins]
    also = written[op.kernel.root_reference.data]
    outs = [*op.outs, *([op.scratch] if op.scratch is not None else [])]
    return reads, [*(range_of(v) for v in outs), *(reads[i] for i in also)]


def insert_barriers(
    block: Block, kernels: Sequence[lir.KernelOp], carried: Mapping[str, str]
) -> None:
    """
    Put barriers into a program; `carried` maps inputs to the outputs that they take after a step.

    Packing, prologue and step are jobs of their own: all threads end one before the next begins.
    """
    written = {k.sym_name.data: written_arguments(k.body.block) for k in kernels}
    pending, job = _Pending(), None
    for op in list(block.ops):
        launch = next((o for o in op.walk() if isinstance(o, lir.LaunchOp)), None)
        if launch is None:
            continue
        if launch.job != job:
            pending.clear()
        job = launch.job
        _insert([op], written, pending)
    alone = {k.sym_name.data for k in kernels if _is_alone(k.body.block.first_op)}
    last = [op for op in _since_barrier(block) if op.kernel.root_reference.data not in alone]
    touched = [_touched(op, written) for op in last]
    end = _Pending([r for rs, _ in touched for r in rs], [w for _, ws in touched for w in ws])
    # The first thread, which alone samples, hands the token on to the next step.
    reads = [Range(f"{lir.OutputOp.name} {name}", 0, 1) for name in carried.values()]
    writes = [Range(f"{lir.InputOp.name} {name}", 0, 1) for name in carried]
    if end.conflicts(reads, writes):
        block.add_op(lir.BarrierOp())


def _is_alone(op: Operation | None) -> bool:
    """Return whether the first thread alone runs a kernel of an operation."""
    return isinstance(op, mir.SampleOp) and op.single


def _since_barrier(block: Block) -> Iterator[lir.LaunchOp]:
    """Give the launches of a block that may come after its last barrier, from the end."""
    for op in reversed(list(block.ops)):
        if _always_waits(op):
            if isinstance(op, lir.LoopOp):
                yield from _since_barrier(op.body.block)
            return
        # Of a branch or a loop that may not run, every launch is taken, and what is before it.
        yield from (inner for inner in op.walk() if isinstance(inner, lir.LaunchOp))


def _always_waits(op: Operation) -> bool:
    """Return whether every way through an operation passes a barrier."""
    if isinstance(op, lir.LoopOp):
        return any(map(_always_waits, op.body.block.ops))
    return isinstance(op, lir.BarrierOp)


def _insert(ops: Iterable[Operation], written: dict[str, set[int]], pending: _Pending) -> None:
    for op in ops:
        if isinstance(op, lir.LoopOp):
            body = op.body.block
            _insert(list(body.ops), written, pending)
            again = op.last.value.data - op.first.value.data > 1
            if again and _next_turn_conflicts(body, written, pending):
                body.add_op(lir.BarrierOp())
                pending.clear()
        elif isinstance(op, lir.LaunchOp):
            reads, writes = _touched(op, written)
            if pending.conflicts(reads, writes):
                Rewriter.insert_op(lir.BarrierOp(), InsertPoint.before(op))
                pending.clear()
            pending.reads += reads
            pending.writes += writes
        elif isinstance(op, lir.IfOp):
            _insert_if(op, written, pending)
        elif isinstance(op, lir.WhileOp):
            _insert_while(op, written, pending)


def _condition(op: lir.IfOp | lir.WhileOp, where: InsertPoint, pending: _Pending) -> None:
    """Let every thread read a condition that all have made, and keep it until they have."""
    read = range_of(op.condition)
    if pending.conflicts([read], []):
        Rewriter.insert_op(lir.BarrierOp(), where)
        pending.clear()
    pending.reads.append(read)


def _insert_if(op: lir.IfOp, written: dict[str, set[int]], pending: _Pending) -> None:
    _condition(op, InsertPoint.before(op), pending)
    ways = pending.copy(), pending.copy()
    for region, way in zip((op.then, op.otherwise), ways, strict=True):
        _insert(list(region.block.ops), written, way)
    pending.either(*ways)


def _insert_while(op: lir.WhileOp, written: dict[str, set[int]], pending: _Pending) -> None:
    test, body = op.test.block, op.body.block
    launched = [o for o in test.walk() if isinstance(o, lir.LaunchOp)]
    if any(pending.conflicts(*_touched(o, written)) for o in launched):
        # Not in the test, where every turn would wait.
        Rewriter.insert_op(lir.BarrierOp(), InsertPoint.before(op))
        pending.clear()
    _insert(list(test.ops), written, pending)
    _condition(op, InsertPoint.at_end(test), pending)
    if not body.ops:
        return
    _insert(list(body.ops), written, pending.copy())
    # The next turn starts as the first one did, or with less behind it.
    body.add_op(lir.BarrierOp())


def _next_turn_conflicts(body: Block, written: dict[str, set[int]], pending: _Pending) -> bool:
    """Return whether a loop's next turn, up to its first barrier, conflicts with this one."""
    trial = pending.of_every_layer()
    for op in body.ops:
        if isinstance(op, lir.BarrierOp):
            return False
        if isinstance(op, lir.IfOp | lir.WhileOp):
            # Which of its launches come before a barrier is not looked into.
            return True
        if isinstance(op, lir.LaunchOp):
            reads, writes = _touched(op, written)
            if trial.conflicts(reads, writes):
                return True
    return False
