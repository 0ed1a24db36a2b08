"""
The parts of a step, between which a call of it may end: turns of loops, and what lies between.

All parts in order are the step. What they leave for each other is in memory, so that several calls
of some parts each do what one call of all of them does, and the caller comes to its senses between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from xdsl.ir import Operation

from rlx.dialects import lir


class Part(NamedTuple):
    """Operations that are a part of a step together, or a loop whose turns are as many parts."""

    ops: list[Operation]
    first: int
    end: int
    """Its numbers are from `first` to below `end`."""

    @property
    def loop(self) -> lir.LoopOp | None:
        op = self.ops[0]
        return op if isinstance(op, lir.LoopOp) else None


def runs_in(op: Operation, job: lir.Job) -> bool:
    """Return whether an operation launches something in a job."""
    return any(isinstance(o, lir.LaunchOp) and o.job is job for o in op.walk())


def parts_of(program: lir.ProgramOp) -> list[Part]:
    """Return the parts of a step."""
    parts: list[Part] = []
    for ops in _pieces(program):
        loop = ops[0] if isinstance(ops[0], lir.LoopOp) else None
        first = part_count(parts)
        turns = loop.last.value.data - loop.first.value.data if loop is not None else 1
        parts.append(Part(ops, first, first + turns))
    return parts


def part_count(parts: Sequence[Part]) -> int:
    return parts[-1].end if parts else 0


def _pieces(program: lir.ProgramOp) -> Iterator[list[Operation]]:
    between: list[Operation] = []
    for op in program.body.block.ops:
        if not isinstance(op, lir.LoopOp):
            between.append(op)
        elif runs_in(op, lir.Job.STEP):
            if any(isinstance(o, lir.BarrierOp) or runs_in(o, lir.Job.STEP) for o in between):
                yield between
            yield [op]
            between = []
    if between:
        yield between
