"""
A planned program to LLVM IR: its kernels, and the jobs that launch them in order.

Packing fills the weight segment, the prologue what depends on constants. A step runs the steady
state and the epilogue, several times where the program carries an output on as its next input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Block, Operation, SSAValue

from rlx.dialects import lir
from rlx.dialects.common import PLACE, DimTable, dims_of
from rlx.errors import RlxError
from rlx.lowering import abi
from rlx.lowering.checksum import emit_checksums
from rlx.lowering.emitter import Function, Module
from rlx.lowering.kernels import emit_kernel
from rlx.lowering.marks import emit_marks, place_of
from rlx.lowering.parts import Part, part_count, parts_of, runs_in
from rlx.lowering.sync import emit_barrier
from rlx.lowering.target import Target
from rlx.lowering.traffic import kernels_of, numbered
from rlx.lowering.values import Index, Value, i64

_JOB = [("ptr", "ctx"), ("i64", "tid"), ("i64", "threads")]


def lower(module: ModuleOp, target: Target) -> str:
    """
    Return a planned module as LLVM IR text for a target.

    Raises RlxError where the module has no program, or a kernel that no family covers.
    """
    program = next((op for op in module.ops if isinstance(op, lir.ProgramOp)), None)
    if program is None:
        raise RlxError("expected a planned module with a lir.program: run plan-lir first")
    out = Module(target, _is_fast(module), lir.FEW_ROWS in module.attributes)
    table = DimTable.of(module)
    barrier = emit_barrier(out)
    for kernel in kernels_of(module).values():
        emit_kernel(out, kernel, table)
    places = {
        op.sym_name.data: op for op in module.ops if isinstance(op, lir.WeightOp | lir.StateOp)
    }

    def job(name: str) -> _Job:
        return _Job(out.function(name, _JOB, exported=True), table, places, barrier)

    job(abi.PACK).define(program, lir.Job.PACK)
    if any(isinstance(op, lir.WeightOp) for op in places.values()):
        emit_checksums(out, abi.CHECKSUMS)
    job(abi.PROLOGUE).define(program, lir.Job.PROLOGUE)
    step = job(abi.STEP)
    if lir.MARKS in module.attributes:
        step.marks = _Marks(emit_marks(out), numbered(program))
    step.define_steps(program, _carried(module, program))
    return out.text


def _is_fast(module: ModuleOp) -> bool:
    precision = module.attributes.get(lir.PRECISION)
    if precision not in (None, StringAttr("exact"), StringAttr("fast")):
        raise RlxError(f'{lir.PRECISION}: expected "exact" or "fast", got {precision}')
    return precision == StringAttr("fast")


@dataclass
class _Carry:
    """What a step hands to the next: an output's token to an input, and dimensions that grow."""

    token: lir.OutputOp | None = None
    to: lir.InputOp | None = None
    advance: dict[str, str] = field(default_factory=dict[str, str])


def _carried(module: ModuleOp, program: lir.ProgramOp) -> _Carry:
    pairs, advance = _names(module, lir.CARRY), _names(module, lir.ADVANCE)
    if not pairs:
        return _Carry()
    ops = program.body.block.ops
    inputs = {op.io_name.data: op for op in ops if isinstance(op, lir.InputOp)}
    outputs = {op.io_name.data: op for op in ops if isinstance(op, lir.OutputOp)}
    ((to, token),) = pairs.items() if len(pairs) == 1 else [("", "")]
    if to not in inputs or token not in outputs or dims_of(outputs[token].result.type) != (1,):
        raise RlxError(
            f"{lir.CARRY}: expected one input that takes an output of one token, got {pairs}"
        )
    return _Carry(outputs[token], inputs[to], advance)


class _Marks(NamedTuple):
    """The function that marks a place, and the numbers of places."""

    function: str
    sites: dict[Operation, int]


def _names(module: ModuleOp, attribute: str) -> dict[str, str]:
    value = module.attributes.get(attribute)
    if not isinstance(value, DictionaryAttr):
        return {}
    return {k: v.data for k, v in value.data.items() if isinstance(v, StringAttr)}


class _Job:
    """A function that launches the kernels of some phases in order."""

    def __init__(
        self,
        f: Function,
        table: DimTable,
        places: dict[str, lir.WeightOp | lir.StateOp],
        barrier: str,
    ):
        self.f = f
        self.ctx, self.tid, self.threads = f.params
        self.table = table
        self.places = places
        self.barrier = barrier
        self.sizes: list[Value] = []
        self.launched = False
        self.marks: _Marks | None = None
        words = (abi.TEAM, abi.ARENA, abi.STATE, abi.WEIGHTS, abi.SOURCES, abi.INPUTS, abi.OUTPUTS)
        self.words = {word: self._word(word, "ptr") for word in words}

    def _word(self, index: int, type_: str = "i64") -> Value:
        return self.f.load(type_, self.f.at(self.ctx, index, 8), align=8)

    def _set_word(self, index: int, value: Value) -> None:
        self.f.store(value, self.f.at(self.ctx, index, 8), align=8)

    def _load_sizes(self) -> None:
        self.sizes = [self._word(abi.DIMS + i) for i in range(len(self.table.free))]

    def wait(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Emit a barrier, and what a thread does before it waits in it."""
        f, team = self.f, self.words[abi.TEAM]
        if meanwhile is None:
            f.call(self.barrier, "void", team, self.threads)
            return
        seen = f.call("arrive", "i32", team, self.threads)
        meanwhile()
        f.call("leave", "void", team, seen)

    def _mark(self, op: Operation | None, layer: Value | None = None) -> None:
        """Emit a mark after a launch or a barrier; of None, that where a token is handed on."""
        if self.marks is not None:
            sites = self.marks.sites
            site = len(sites) if op is None else sites[op]
            self._mark_place(self.marks.function, place_of(self.f, site, layer))

    def _mark_step(self) -> None:
        """Emit the mark at which a step begins."""
        if self.marks is not None:
            self._mark_place(self.marks.function, i64(abi.STEP_MARK))

    def _mark_place(self, function: str, place: Value) -> None:
        self.f.call(function, "void", self._word(abi.MARKS_AT, "ptr"), self.tid, place)

    def define(self, program: lir.ProgramOp, job: lir.Job) -> None:
        """Emit the launches of a job that runs once."""
        self._load_sizes()
        if self.f.name == abi.PROLOGUE:
            self._zero(program)
        self._block(program.body.block, job, {}, None)
        self.f.ret()

    def define_steps(self, program: lir.ProgramOp, carry: _Carry) -> None:
        """Emit the launches of a step in a loop over steps, which ends early after a stop token."""
        f = self.f
        parts = parts_of(program)
        steps = self._word(abi.STEPS) if carry.token is not None else i64(1)

        def more(v: list[Value]) -> Value:
            return f.icmp("slt", v[0], steps)

        def step(v: list[Value]) -> list[Value]:
            self._load_sizes()
            self._mark_step()
            self._parts(parts)
            taken = f.add(v[0], 1)
            if carry.token is None:
                return [taken]

            def whole() -> list[Value]:
                self._on_first_thread(lambda: self._hand_on(v[0], carry))
                self.wait()
                self._mark(None)
                return [f.select(self._stopped(v[0]), steps, taken)]

            count = part_count(parts)
            return f.if_(f.icmp("sge", self._word(abi.UNTIL), count), whole, lambda: [taken])

        f.while_([i64(0)], more, step)
        f.ret()

    def _parts(self, parts: list[Part]) -> None:
        """Emit the launches of a step: of those parts that the context says, if there are many."""
        f = self.f
        start, end = self._word(abi.FROM), self._word(abi.UNTIL)

        def straight(part: Part) -> list[Value]:
            self._ops(part.ops, lir.Job.STEP, {}, None)
            return []

        for part in parts:
            first = f.sub(start, part.first)
            if len(parts) == 1 and part.loop is None:
                straight(part)
            elif part.loop is None:
                here = f.and_(f.icmp("sle", first, 0), f.icmp("sgt", end, part.first))
                f.if_(here, partial(straight, part))
            else:
                low, high = part.loop.first.value.data, part.loop.last.value.data
                begin = f.add(first, low)
                begin = f.select(f.icmp("sgt", first, 0), begin, i64(low))
                stop = f.add(end, low - part.first)
                stop = f.select(f.icmp("slt", stop, high), stop, i64(high))
                self._loop(part.loop, lir.Job.STEP, {}, begin, stop)

    def _hand_on(self, index: Value, carry: _Carry) -> None:
        """Emit, for one thread: record the token, make it the next input, let dimensions grow."""
        f = self.f
        assert carry.token is not None
        assert carry.to is not None
        token = f.load("i32", self._io(carry.token))
        f.store(token, f.at(self._word(abi.IDS, "ptr"), index, 4))
        f.store(token, self._io(carry.to))
        free = list(self.table.free)
        for name, by in carry.advance.items():
            if name not in free:
                # Its one value leaves no room for another step.
                continue
            amount = self.sizes[free.index(by)] if by in free else i64(self.table.upper[by])
            place = free.index(name)
            self._set_word(abi.DIMS + place, f.add(self.sizes[place], amount))
        self._set_word(abi.TAKEN, f.add(index, 1))

    def _stopped(self, index: Value) -> Value:
        """Return whether the step's token is a stop token, or none: -1, which no step may take."""
        f = self.f
        token = f.load("i32", f.at(self._word(abi.IDS, "ptr"), index, 4))
        stops = self._word(abi.STOPS, "ptr")

        def compare(i: Value, found: list[Value]) -> list[Value]:
            return [f.or_(found[0], f.icmp("eq", f.load("i32", f.at(stops, i, 4)), token))]

        none = f.icmp("slt", token, 0)
        return f.for_(0, self._word(abi.STOP_COUNT), 1, [none], compare)[0]

    def _zero(self, program: lir.ProgramOp) -> None:
        """Fill the slots that launches expect to be zero, before the first of them."""
        slots = [op for op in program.body.block.ops if isinstance(op, lir.SlotOp) and op.zeroed]
        for op in slots:
            arguments = (
                self._address(op.result, {}, None),
                Value("i8", "0"),
                i64(op.size.value.data),
                Value("i1", "false"),
            )
            self._on_first_thread(partial(self._memset, *arguments))
        if slots:
            self.wait()

    def _on_first_thread(self, body: Callable[[], None]) -> None:
        self.f.if_(self.f.icmp("eq", self.tid, 0), lambda: body() or [])

    def _memset(self, *arguments: Value) -> None:
        self.f.intrinsic("memset", "void", *arguments, suffixes=["ptr", "i64"])

    def _block(
        self,
        block: Block,
        job: lir.Job,
        known: dict[SSAValue, Value],
        layer: Value | None,
    ) -> None:
        self._ops(block.ops, job, known, layer)

    def _ops(
        self,
        ops: Iterable[Operation],
        job: lir.Job,
        known: dict[SSAValue, Value],
        layer: Value | None,
    ) -> None:
        for op in ops:
            match op:
                case lir.LaunchOp() if op.job is job:
                    self._launch(op, known, layer)
                    self._mark(op, layer)
                    self.launched = True
                case lir.BarrierOp() if self.launched:
                    self.wait(self._ahead(op, job, known, layer))
                    self._mark(op, layer)
                case lir.LoopOp() if runs_in(op, job):
                    self._loop(op, job, known, op.first.value.data, op.last.value.data)
                case lir.IfOp() if runs_in(op, job):
                    self._if(op, job, known, layer)
                case lir.WhileOp() if runs_in(op, job):
                    self._while(op, job, known, layer)
                case _:
                    pass

    def _loop(
        self,
        op: lir.LoopOp,
        job: lir.Job,
        known: dict[SSAValue, Value],
        first: Index,
        last: Index,
    ) -> None:
        def body(layer: Value, _: list[Value]) -> list[Value]:
            self._block(op.body.block, job, dict(known), layer)
            return []

        self.f.for_(first, last, 1, [], body)

    def _if(
        self, op: lir.IfOp, job: lir.Job, known: dict[SSAValue, Value], layer: Value | None
    ) -> None:
        def side(block: Block) -> list[Value]:
            self._block(block, job, dict(known), layer)
            return []

        holds = self._holds(op.condition, known, layer)
        self.f.if_(holds, lambda: side(op.then.block), lambda: side(op.otherwise.block))

    def _while(
        self, op: lir.WhileOp, job: lir.Job, known: dict[SSAValue, Value], layer: Value | None
    ) -> None:
        def test(_: list[Value]) -> Value:
            inner = dict(known)
            self._block(op.test.block, job, inner, layer)
            return self._holds(op.condition, inner, layer)

        def turn(_: list[Value]) -> list[Value]:
            self._block(op.body.block, job, dict(known), layer)
            return []

        self.f.while_([], test, turn)

    def _holds(self, value: SSAValue, known: dict[SSAValue, Value], layer: Value | None) -> Value:
        """Read a condition, a byte that is not 0 where it holds."""
        byte = self.f.load("i8", self._address(value, known, layer), align=1)
        return self.f.icmp("ne", byte, 0)

    def _ahead(
        self,
        barrier: lir.BarrierOp,
        job: lir.Job,
        known: dict[SSAValue, Value],
        layer: Value | None,
    ) -> Callable[[], None] | None:
        """Return what asks for the bytes that the launch behind a barrier reads first, if any."""
        op = barrier.next_op
        while isinstance(op, lir.RefOp | lir.ViewOp):
            op = op.next_op
        if not isinstance(op, lir.LaunchOp) or op.job is not job:
            return None
        name = abi.AHEAD.format(op.kernel.root_reference.data)
        if not self.f.module.defines(name):
            return None
        return partial(self._call, name, op, known, layer)

    def _launch(self, op: lir.LaunchOp, known: dict[SSAValue, Value], layer: Value | None) -> None:
        """Emit a launch; of a kernel that packs, where its source has an address."""
        f, name = self.f, abi.KERNEL.format(op.kernel.root_reference.data)
        source = next((v for v in op.ins if isinstance(v.owner, lir.SourceOp)), None)
        if source is None:
            self._call(name, op, known, layer)
            return
        # Emitted here, not where they may be skipped: later launches have these addresses, too.
        self._buffers(op, known, layer)

        def call() -> list[Value]:
            self._call(name, op, known, layer)
            return []

        f.if_(f.icmp("ne", self._address(source, known, layer), Value("ptr", "null")), call)

    def _call(
        self, name: str, op: lir.LaunchOp, known: dict[SSAValue, Value], layer: Value | None
    ) -> None:
        buffers = self._buffers(op, known, layer)
        self.f.call(name, "void", *buffers, *self.sizes, self.tid, self.threads)

    def _buffers(
        self, op: lir.LaunchOp, known: dict[SSAValue, Value], layer: Value | None
    ) -> list[Value]:
        """Return the addresses of all that a launch reads and writes."""
        buffers = [*op.ins, *op.outs, *([op.scratch] if op.scratch is not None else [])]
        return [self._address(v, known, layer) for v in buffers]

    def _address(self, value: SSAValue, known: dict[SSAValue, Value], layer: Value | None) -> Value:
        if value not in known:
            known[value] = self._emit_address(value.owner, known, layer)
        return known[value]

    def _emit_address(
        self, op: Operation | Block, known: dict[SSAValue, Value], layer: Value | None
    ) -> Value:
        f = self.f
        match op:
            case lir.SlotOp():
                place, offset = divmod(op.offset.value.data, PLACE)
                if place and self.table.unbounded:
                    offset = self._word(abi.DIMS + len(self.table.free) + place - 1)
                return f.at(self.words[abi.ARENA], offset)
            case lir.InputOp() | lir.OutputOp():
                return self._io(op)
            case lir.ViewOp():
                return f.at(self._address(op.root, known, layer), op.byte_offset.value.data)
            case lir.RefOp():
                place = self.places[op.symbol.root_reference.data]
                segment = abi.WEIGHTS if isinstance(place, lir.WeightOp) else abi.STATE
                base = f.at(self.words[segment], place.offset.value.data)
                return f.at(base, self._member(place, op, layer), place.stride.value.data)
            case lir.SourceOp():
                place = self.places[op.symbol.root_reference.data]
                assert isinstance(place, lir.WeightOp)
                index = f.add(self._member(place, op, layer), place.source.value.data)
                return f.load("ptr", f.at(self.words[abi.SOURCES], index, 8), align=8)
            case _:
                raise RlxError("a launch uses something that is not a buffer")

    def _member(
        self,
        place: lir.WeightOp | lir.StateOp,
        op: lir.RefOp | lir.SourceOp,
        layer: Value | None,
    ) -> Value:
        """Return which member of a family an operation means, from 0."""
        if op.layer is None or layer is None:
            return i64(0)
        return self.f.sub(layer, place.first.value.data)

    def _io(self, op: lir.InputOp | lir.OutputOp) -> Value:
        array = self.words[abi.INPUTS if isinstance(op, lir.InputOp) else abi.OUTPUTS]
        return self.f.load("ptr", self.f.at(array, op.index.value.data, 8), align=8)
