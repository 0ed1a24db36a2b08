"""The launches of a program in order, and the buffers they read and write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, StringAttr, i8
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from rlx.dialects import mir
from rlx.dialects.common import DimTable, PhaseAttr, PhaseKind, tensor
from rlx.lowering.kernels import scratch_of
from rlx.passes.buffers import Buffer, Space, dies_at, size_of
from rlx.passes.diagnostics import IrError
from rlx.passes.outline import Kernels, Launch


@dataclass(frozen=True)
class Member:
    """A weight or a state, at the layer of the enclosing loop if `layered`."""

    symbol: str
    type: Attribute
    layered: bool
    packed: bool = True


Operand: TypeAlias = Buffer | Member


@dataclass
class Step:
    """A launch with the buffers it reads and writes."""

    kernel: str
    phase: PhaseKind
    ins: list[Operand]
    outs: list[Operand]
    scratch: Buffer | None = None


@dataclass
class Loop:
    layers: range
    steps: list[Step]


@dataclass
class Schedule:
    """The launches of a program in order, from a walk over @main and the functions it repeats."""

    table: DimTable
    functions: dict[str, FuncOp]
    kernels: Kernels = field(default_factory=Kernels)
    items: list[Step | Loop] = field(default_factory=list[Step | Loop])
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    families: frozenset[str] = frozenset()
    """Weights that have a member for each layer; the others are the same in all layers."""
    layers: dict[str, range] = field(default_factory=dict[str, range])
    """The layers in which each weight or state is used; range(0, 1) for one without layers."""
    env: dict[SSAValue, Operand] = field(default_factory=dict[SSAValue, Operand])
    frozen: set[SSAValue] = field(default_factory=set[SSAValue])
    """Values whose buffers may not be taken over by a result."""
    zeroed: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    """Scratch that is zero before each launch, by kernel: others find other words zero."""
    phase: PhaseKind = PhaseKind.STEADY_STATE
    """The phase of what is scheduled now."""
    time: int = 0

    def buffer(self, type_: Attribute) -> Buffer:
        new = Buffer(type_, size_of(type_, self.table), self.time, self.time)
        self.buffers.append(new)
        return new

    def run(self, block: Block, layers: range | None, steps: list[Step | Loop]) -> None:
        """Schedule a function's operations; `layers` are those of the enclosing loop."""
        for op in block.ops:
            if layers is None:
                self.phase = phase_of(op)
            match op:
                case mir.LoadWeightOp():
                    symbol = op.weight.root_reference.data
                    own = layers if symbol in self.families else None
                    self._name(op.result, symbol, own, packed=False)
                case mir.LoadStateOp():
                    self._name(op.result, op.state.root_reference.data, layers)
                case mir.PackOp():
                    source = self.env.get(op.input)
                    if not isinstance(source, Member):
                        raise IrError(op, "plan-lir: expected a weight to pack")
                    self.env[op.result] = Member(source.symbol, op.result.type, source.layered)
                case mir.RepeatOp():
                    if layers is not None:
                        raise IrError(op, "plan-lir: expected no repeat in a repeated function")
                    steps.append(self._loop(op, steps))
                case ReturnOp():
                    pass
                case _:
                    self._launch(op, steps)

    def _name(
        self, value: SSAValue, symbol: str, layers: range | None, packed: bool = True
    ) -> None:
        used = self.layers.get(symbol)
        here = layers or range(1)
        if used is not None:
            here = range(min(used.start, here.start), max(used.stop, here.stop))
        self.layers[symbol] = here
        self.env[value] = Member(symbol, value.type, layers is not None, packed)

    def _launch(self, op: Operation, steps: list[Step | Loop]) -> None:
        launch = self.kernels.outline(op)
        ins = [self._operand(v, op) for v in launch.ins]
        outs = [self._result(launch, op, i) for i in range(len(launch.outs))]
        if self.phase is PhaseKind.PROLOGUE:
            for buffer in outs:
                buffer.whole_run = True
            self.frozen.update(launch.outs)
        scratch = self._scratch(launch.kernel)
        self._add(Step(launch.kernel, self.phase, ins, [*outs], scratch), steps)

    def _operand(self, value: SSAValue, op: Operation) -> Operand:
        """Return what a launch reads: a buffer, a state, or a packed weight."""
        operand = self.env[value]
        if isinstance(operand, Member) and not operand.packed:
            raise IrError(
                op,
                f"plan-lir: {op.name} reads the weight @{operand.symbol} as it lies in its file, "
                "which only packing can: use it in a linear, a norm, a glu or an embedding",
            )
        return operand

    def _buffer_of(self, value: SSAValue, op: Operation) -> Buffer:
        """Return the buffer of a value that an operation hands on."""
        operand = self.env.get(value)
        if not isinstance(operand, Buffer):
            raise IrError(
                op, f"plan-lir: {op.name} hands on a weight or a state, expected a computed tensor"
            )
        return operand

    def _scratch(self, kernel: str) -> Buffer | None:
        """Return a launch's scratch: one for all where it is zeroed, else one of its own."""
        need = scratch_of(self.kernels.named(kernel))
        if need is None:
            return None
        if kernel in self.zeroed:
            return self.zeroed[kernel]
        buffer = self.buffer(tensor([need.size], i8))
        if need.zeroed:
            buffer.whole_run = buffer.zeroed = True
            self.zeroed[kernel] = buffer
        return buffer

    def _result(self, launch: Launch, op: Operation, index: int) -> Buffer:
        """Return where a result goes: an operand's bytes if it may, else new ones."""
        value = launch.outs[index]
        for position, out in sorted(launch.in_place):
            operand = launch.ins[position]
            old = self.env[operand]
            if out != index or operand in self.frozen or not isinstance(old, Buffer):
                continue
            taken = any(self.env[v] is old for v in launch.outs[:index])
            if not taken and dies_at(operand, op):
                self.env[value] = old
                return old
        self.env[value] = self.buffer(value.type)
        return self.buffers[-1]

    def _add(self, step: Step, steps: list[Step | Loop]) -> None:
        for operand in (*step.ins, *step.outs, step.scratch):
            if isinstance(operand, Buffer):
                operand.use(self.time)
        steps.append(step)
        self.time += 1

    def copy(self, value: Buffer, steps: list[Step | Loop], target: Buffer | None = None) -> Buffer:
        new = target or self.buffer(value.type)
        kernel = self.kernels.copy(value.type)
        self._add(Step(kernel, self.phase, [value], [new]), steps)
        return new

    def _loop(self, op: mir.RepeatOp, steps: list[Step | Loop]) -> Loop:
        name = op.callee.root_reference.data
        if name not in self.functions:
            raise IrError(op, f"plan-lir: expected a function @{name}, there is none")
        callee = self.functions[name]
        args = callee.body.block.args
        carried: list[Buffer] = []
        kept = [self.env.get(v) for v in op.arguments[len(op.res) :]]
        for i, (outer, arg) in enumerate(zip(op.arguments, args, strict=True)):
            if i < len(op.res):
                operand = self._buffer_of(outer, op)
                shared = operand in carried or operand in kept
                if shared or outer in self.frozen or not dies_at(outer, op):
                    operand = self.copy(operand, steps)
                carried.append(operand)
                self.env[arg] = operand
            elif outer in self.env:
                self.frozen.add(arg)
                self.env[arg] = self.env[outer]
            else:
                raise IrError(op, "plan-lir: a view of a state is not an argument of a layer")
        start = self.time
        layers = range(op.first.value.data, op.last.value.data)
        loop = Loop(layers, [])
        body: list[Step | Loop] = []
        self.run(callee.body.block, layers, body)
        self._carry(callee, carried, body)
        loop.steps = [s for s in body if isinstance(s, Step)]
        for buffer in self._used_from_outside(loop, start):
            buffer.use(self.time - 1)
        for result, buffer in zip(op.res, carried, strict=True):
            self.env[result] = buffer
        return loop

    def _used_from_outside(self, loop: Loop, start: int) -> Iterable[Buffer]:
        """Return the buffers that every turn of a loop finds as the first one found them."""
        operands = (o for step in loop.steps for o in (*step.ins, *step.outs))
        return {o for o in operands if isinstance(o, Buffer) and o.first < start}

    def _carry(self, callee: FuncOp, carried: list[Buffer], body: list[Step | Loop]) -> None:
        """Bring what a layer returns into the buffers where the next layer looks for it."""
        returned = callee.body.block.last_op
        assert isinstance(returned, ReturnOp)
        values = [self._buffer_of(value, returned) for value in returned.arguments]
        moves = [(v, b) for v, b in zip(values, carried, strict=True) if v is not b]
        if any(v in carried for v, _ in moves):
            moves = [(self.copy(v, body), b) for v, b in moves]
        for value, buffer in moves:
            self.copy(value, body, buffer)


def _argument_names(function: FuncOp, attrs: ArrayAttr[DictionaryAttr] | None, n: int) -> list[str]:
    names: list[str] = []
    for i in range(n):
        entry = attrs.data[i].data.get("rlx.name") if attrs is not None else None
        names.append(
            entry.data if isinstance(entry, StringAttr) else f"{function.sym_name.data}{i}"
        )
    if len(set(names)) != len(names):
        raise IrError(function, f"plan-lir: expected a name for each, got {', '.join(names)}")
    return names


def phase_of(op: Operation) -> PhaseKind:
    """Return when an operation of @main runs: what only names a weight or state, at any time."""
    phase = op.attributes.get(mir.PHASE)
    naming = isinstance(op, mir.LoadWeightOp | mir.LoadStateOp | mir.PackOp)
    given = PhaseKind.PROLOGUE if naming else PhaseKind.STEADY_STATE
    if isinstance(phase, PhaseAttr):
        given = phase.data
    if isinstance(op, mir.RepeatOp) and given is PhaseKind.PROLOGUE:
        raise IrError(op, "plan-lir: expected a repeat in the steady state or later")
    return given


def order_by_phase(block: Block) -> None:
    """Put the operations of @main into the order of their phases; within a phase it stays."""

    def rank(op: Operation) -> int:
        order = list(PhaseKind)
        return len(order) if isinstance(op, ReturnOp) else order.index(phase_of(op))

    ops = sorted(block.ops, key=rank)
    ready: set[SSAValue] = set(block.args)
    for op in ops:
        late = next((v for v in mir.captures(op) if v not in ready), None)
        if late is not None:
            assert isinstance(late.owner, Operation)
            raise IrError(
                op,
                f"plan-lir: {op.name} is of the phase {phase_of(op)} and needs a result of "
                f"{late.owner.name}, of the phase {phase_of(late.owner)}",
            )
        ready.update(op.results)
    for op in ops:
        op.detach()
    block.add_ops(ops)


def bind_io(schedule: Schedule, main: FuncOp) -> tuple[list[Buffer], list[Buffer]]:
    """Schedule @main between buffers that the caller binds; return those of inputs and outputs."""
    block = main.body.block
    order_by_phase(block)
    names = _argument_names(main, main.arg_attrs, len(block.args))
    inputs: list[Buffer] = []
    for i, (arg, name) in enumerate(zip(block.args, names, strict=True)):
        buffer = schedule.buffer(arg.type)
        buffer.space, buffer.name, buffer.index = Space.INPUT, name, i
        schedule.env[arg] = buffer
        schedule.frozen.add(arg)
        inputs.append(buffer)
    schedule.run(block, None, schedule.items)
    schedule.phase = PhaseKind.EPILOGUE
    returned = block.last_op
    assert isinstance(returned, ReturnOp)
    names = _argument_names(main, main.res_attrs, len(returned.arguments))
    outputs: list[Buffer] = []
    for i, (value, name) in enumerate(zip(returned.arguments, names, strict=True)):
        buffer = schedule.env.get(value)
        if not isinstance(buffer, Buffer):
            raise IrError(returned, f"plan-lir: output '{name}' is a weight or a state")
        if buffer.space is not Space.SLOT or buffer.whole_run:
            buffer = schedule.copy(buffer, schedule.items)
        buffer.space, buffer.name, buffer.index = Space.OUTPUT, name, i
        outputs.append(buffer)
    return inputs, outputs
