"""What the launches of a planned program read and write, read off the IR for its checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from rlx.dialects import lir, mir
from rlx.dialects.common import DimTable
from rlx.passes.buffers import size_of
from rlx.passes.outline import written_arguments
from rlx.passes.program import fail


@dataclass(frozen=True)
class Bytes:
    """Bytes [start, end) of a space: the arena, an input, an output, or a member of a symbol."""

    name: str
    space: tuple[str, int]
    start: int
    end: int

    def meets(self, other: Bytes) -> bool:
        return self.space == other.space and self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        return f"{self.name} [{self.start}, {self.end})" if self.space[0] == "arena" else self.name


def root_of(value: SSAValue) -> SSAValue:
    """Return the buffer whose bytes a value is, or is a view of."""
    while isinstance(value.owner, lir.ViewOp):
        value = value.owner.root
    return value


@dataclass
class Access:
    """One launch in one turn of its loop."""

    name: str
    job: lir.Job
    reads: list[Bytes]
    writes: list[Bytes]
    alone: bool = False
    """Whether the first thread runs it alone."""

    def conflict(self, other: Access) -> tuple[Bytes, Bytes] | None:
        """Return bytes of the two that must not be touched at the same time."""
        if self.alone and other.alone:
            return None
        pairs = [(w, o) for w in self.writes for o in (*other.reads, *other.writes)]
        pairs += [(r, w) for r in self.reads for w in other.writes]
        return next(((a, b) for a, b in pairs if a.meets(b)), None)


@dataclass
class Plan:
    """A planned program with what its launches touch."""

    module: ModuleOp
    program: lir.ProgramOp
    table: DimTable
    kernels: dict[str, lir.KernelOp]
    ids: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    """The number of each value of the program, as it is printed."""

    def __post_init__(self) -> None:
        values = (r for op in self.program.body.walk() for r in op.results)
        self.ids = {value: i for i, value in enumerate(values)}

    def size(self, value: SSAValue) -> int:
        return size_of(value.type, self.table)

    def kernel(self, op: lir.LaunchOp) -> lir.KernelOp:
        return self.kernels[op.kernel.root_reference.data]

    def bytes_of(self, value: SSAValue, layer: int | None) -> Bytes:
        """Return what a buffer of a launch stands for, in the loop's turn `layer`."""
        op = value.owner
        match op:
            case lir.SlotOp():
                start = op.offset.value.data
                size = op.size.value.data
                return Bytes(f"%{self.ids[value]}", ("arena", 0), start, start + size)
            case lir.InputOp() | lir.OutputOp():
                name = f'{op.name.removeprefix("lir.")} "{op.io_name.data}"'
                return Bytes(name, (op.name, op.index.value.data), 0, self.size(value))
            case lir.ViewOp():
                root = self.bytes_of(op.root, layer)
                start = root.start + op.byte_offset.value.data
                return Bytes(f"%{self.ids[value]}", root.space, start, start + self.size(value))
            case lir.RefOp() | lir.SourceOp():
                symbol = op.symbol.root_reference.data
                member = layer if op.layer is not None and layer is not None else 0
                kind = "source of " if isinstance(op, lir.SourceOp) else ""
                name = f"{kind}@{symbol} of layer {member}"
                return Bytes(name, (f"{kind}{symbol}", member), 0, 1)
            case _:
                fail(self.program, f"%{value.name_hint} is not a buffer")

    def access(self, op: lir.LaunchOp, layer: int | None) -> Access:
        kernel = self.kernel(op)
        reads = [self.bytes_of(v, layer) for v in op.ins]
        outs = [*op.outs, *([op.scratch] if op.scratch is not None else [])]
        writes = [self.bytes_of(v, layer) for v in outs]
        writes += [reads[i] for i in written_arguments(kernel.body.block)]
        turn = "" if layer is None else f" in layer {layer}"
        first = kernel.body.block.first_op
        alone = isinstance(first, mir.SampleOp) and first.single
        return Access(f"@{kernel.sym_name.data}{turn}", op.job, reads, writes, alone)


def launches(ops: Iterable[Operation]) -> Iterator[lir.LaunchOp]:
    return (inner for op in ops for inner in op.walk() if isinstance(inner, lir.LaunchOp))


def _turns(op: lir.LoopOp) -> list[int]:
    """Return turns of a loop that stand for all: the first three and the last."""
    layers = range(op.first.value.data, op.last.value.data)
    return list(dict.fromkeys([*layers[:3], layers[-1]]))


def events(
    plan: Plan, ops: Iterable[Operation], job: lir.Job, layer: int | None = None
) -> Iterator[Access]:
    """Give a job's launches: of loops some turns, of branches both sides."""
    for op in ops:
        if isinstance(op, lir.LaunchOp):
            if op.job == job:
                yield plan.access(op, layer)
            continue
        for turn in _turns(op) if isinstance(op, lir.LoopOp) else [layer]:
            for region in op.regions:
                yield from events(plan, region.block.ops, job, turn)


@dataclass
class Threads:
    """What the threads of a job may be doing at the same time, along every way through it."""

    plan: Plan
    job: lir.Job
    pending: list[Access] = field(default_factory=list[Access])
    """Launches since the last barrier."""
    started: bool = False
    """Whether the text has had a launch of the job: barriers before it are not in the job."""
    conflicts: list[tuple[Access, Access, tuple[Bytes, Bytes]]] = field(
        default_factory=list[tuple[Access, Access, tuple[Bytes, Bytes]]]
    )

    def run(self, ops: Iterable[Operation], layer: int | None) -> None:
        """Follow operations in the loop's turn `layer`."""
        for op in ops:
            match op:
                case lir.LaunchOp() if op.job == self.job:
                    self.started = True
                    self.add(self.plan.access(op, layer))
                case lir.BarrierOp() if self.started:
                    self.pending = []
                case lir.LoopOp() if self._runs(op):
                    started = self.started
                    for turn in _turns(op):
                        self.started = started
                        self.run(op.body.block.ops, turn)
                case lir.IfOp() if self._runs(op):
                    self._read(op)
                    before = self.pending
                    self.run(op.then.block.ops, layer)
                    after, self.pending = self.pending, before
                    self.run(op.otherwise.block.ops, layer)
                    self._meet(after)
                case lir.WhileOp() if self._runs(op):
                    self._while(op, layer)
                case _:
                    pass

    def _while(self, op: lir.WhileOp, layer: int | None) -> None:
        started = self.started
        self.run(op.test.block.ops, layer)
        self._read(op)
        ends = self.pending
        for _ in range(2):
            self.run(op.body.block.ops, layer)
            self.started = started
            self.run(op.test.block.ops, layer)
            self._read(op)
            self._meet(ends)
            ends = self.pending

    def add(self, event: Access) -> None:
        """Let a launch begin while those since the last barrier may still run."""
        for earlier in self.pending:
            found = earlier.conflict(event)
            if found is not None:
                self.conflicts.append((event, earlier, found))
        self.pending = [*self.pending, event]

    def _read(self, op: lir.IfOp | lir.WhileOp) -> None:
        read = [self.plan.bytes_of(op.condition, None)]
        self.add(Access(f"the condition of {op.name}", self.job, read, []))

    def _meet(self, others: list[Access]) -> None:
        known = {id(event) for event in self.pending}
        self.pending = [*self.pending, *(e for e in others if id(e) not in known)]

    def _runs(self, op: Operation) -> bool:
        return any(o.job == self.job for o in launches([op]))
