"""The launches of a program in order, and the buffers they read and write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, StringAttr, i8
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import mir
from rlx.dialects.common import DimTable, PhaseAttr, PhaseKind, tensor
from rlx.lowering.kernels import scratch_of
from rlx.passes.buffers import Buffer, Space, dies_at, size_of
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
    layers: dict[str, range] = field(default_factory=dict[str, range])
    """The layers in which each weight or state is used; range(0, 1) for one without layers."""
    env: dict[SSAValue, Operand] = field(default_factory=dict[SSAValue, Operand])
    frozen: set[SSAValue] = field(default_factory=set[SSAValue])
    """Values whose buffers may not be taken over by a result."""
    zeroed: dict[int, Buffer] = field(default_factory=dict[int, Buffer])
    """Scratch that is zero before each launch, by its size."""
    time: int = 0

    def buffer(self, type_: Attribute) -> Buffer:
        new = Buffer(type_, size_of(type_, self.table), self.time, self.time)
        self.buffers.append(new)
        return new

    def run(self, block: Block, layers: range | None, steps: list[Step | Loop]) -> None:
        """Schedule a function's operations; `layers` are those of the enclosing loop."""
        for op in block.ops:
            match op:
                case mir.LoadWeightOp():
                    self._name(op.result, op.weight.root_reference.data, layers, packed=False)
                case mir.LoadStateOp():
                    self._name(op.result, op.state.root_reference.data, layers)
                case mir.PackOp():
                    source = self.env[op.input]
                    assert isinstance(source, Member)
                    self.env[op.result] = Member(source.symbol, op.result.type, source.layered)
                case mir.RepeatOp():
                    if layers is not None:
                        raise VerifyException("plan-lir: expected no repeat in a repeated function")
                    steps.append(self._loop(op, steps))
                case ReturnOp():
                    pass
                case _:
                    self._launch(op, layers, steps)

    def _name(
        self, value: SSAValue, symbol: str, layers: range | None, packed: bool = True
    ) -> None:
        used = self.layers.get(symbol)
        here = layers or range(1)
        if used is not None:
            here = range(min(used.start, here.start), max(used.stop, here.stop))
        self.layers[symbol] = here
        self.env[value] = Member(symbol, value.type, layers is not None, packed)

    def _launch(self, op: Operation, layers: range | None, steps: list[Step | Loop]) -> None:
        launch = self.kernels.outline(op)
        phase = op.attributes.get(mir.PHASE)
        kind = phase.data if isinstance(phase, PhaseAttr) and layers is None else None
        ins = [self.env[v] for v in launch.ins]
        outs = [self._result(launch, op, i) for i in range(len(launch.outs))]
        if kind is PhaseKind.PROLOGUE:
            for buffer in outs:
                buffer.whole_run = True
            self.frozen.update(launch.outs)
        scratch = self._scratch(launch.kernel)
        step = Step(launch.kernel, kind or PhaseKind.STEADY_STATE, ins, [*outs], scratch)
        self._add(step, steps)

    def _scratch(self, kernel: str) -> Buffer | None:
        """Return a launch's scratch: one for all where it is zeroed, else one of its own."""
        need = scratch_of(self.kernels.named(kernel))
        if need is None:
            return None
        if need.zeroed and need.size in self.zeroed:
            return self.zeroed[need.size]
        buffer = self.buffer(tensor([need.size], i8))
        if need.zeroed:
            buffer.whole_run = buffer.zeroed = True
            self.zeroed[need.size] = buffer
        return buffer

    def _result(self, launch: Launch, op: Operation, index: int) -> Buffer:
        """Return where a result goes: an operand's bytes if it may, else new ones."""
        value = launch.outs[index]
        for position, out in sorted(launch.in_place):
            operand = launch.ins[position]
            old = self.env[operand]
            if out != index or operand in self.frozen or not isinstance(old, Buffer):
                continue
            taken = any(self.env.get(v) is old for v in launch.outs)
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
        self._add(Step(kernel, PhaseKind.STEADY_STATE, [value], [new]), steps)
        return new

    def _loop(self, op: mir.RepeatOp, steps: list[Step | Loop]) -> Loop:
        callee = self.functions[op.callee.root_reference.data]
        args = callee.body.block.args
        carried: list[Buffer] = []
        for i, (outer, arg) in enumerate(zip(op.arguments, args, strict=True)):
            operand = self.env[outer]
            if i < len(op.res):
                assert isinstance(operand, Buffer)
                if outer in self.frozen or not dies_at(outer, op) or operand in carried:
                    operand = self.copy(operand, steps)
                carried.append(operand)
            else:
                self.frozen.add(arg)
            self.env[arg] = operand
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
        values: list[Buffer] = []
        for value in returned.arguments:
            operand = self.env[value]
            assert isinstance(operand, Buffer)
            values.append(operand)
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
    return names


def bind_io(schedule: Schedule, main: FuncOp) -> tuple[list[Buffer], list[Buffer]]:
    """Schedule @main between buffers that the caller binds; return those of inputs and outputs."""
    block = main.body.block
    names = _argument_names(main, main.arg_attrs, len(block.args))
    inputs: list[Buffer] = []
    for i, (arg, name) in enumerate(zip(block.args, names, strict=True)):
        buffer = schedule.buffer(arg.type)
        buffer.space, buffer.name, buffer.index = Space.INPUT, name, i
        schedule.env[arg] = buffer
        schedule.frozen.add(arg)
        inputs.append(buffer)
    schedule.run(block, None, schedule.items)
    returned = block.last_op
    assert isinstance(returned, ReturnOp)
    names = _argument_names(main, main.res_attrs, len(returned.arguments))
    outputs: list[Buffer] = []
    for i, (value, name) in enumerate(zip(returned.arguments, names, strict=True)):
        buffer = schedule.env[value]
        if not isinstance(buffer, Buffer):
            raise VerifyException(f"plan-lir: output '{name}' is a weight or a state")
        buffer = buffer
        if buffer.space is not Space.SLOT or buffer.whole_run:
            buffer = schedule.copy(buffer, schedule.items)
        buffer.space, buffer.name, buffer.index = Space.OUTPUT, name, i
        outputs.append(buffer)
    return inputs, outputs
