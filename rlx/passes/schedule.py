"""The launches of a program in order, and the buffers they read and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from rlx.dialects import mir
from rlx.dialects.common import DimTable, PhaseAttr, PhaseKind, dims_of, element_of, tensor
from rlx.dialects.control import YieldOp, yielded
from rlx.dialects.ops import numbers
from rlx.lowering.kernels import scratch_of
from rlx.passes.buffers import Buffer, Space, dies_at, size_of
from rlx.passes.diagnostics import IrError
from rlx.passes.outline import Kernels, Launch
from rlx.passes.steps import (
    Branch,
    Item,
    Loop,
    Member,
    Operand,
    Step,
    While,
    buffers_of,
    last_use,
    replace,
)


@dataclass
class Schedule:
    """The launches of a program in order, from a walk over @main and the functions it repeats."""

    table: DimTable
    functions: dict[str, FuncOp]
    kernels: Kernels = field(default_factory=Kernels)
    items: list[Item] = field(default_factory=list[Item])
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    families: frozenset[str] = frozenset()
    """Weights that have a member for each layer; the others are the same in all layers."""
    layers: dict[str, range] = field(default_factory=dict[str, range])
    """The layers in which each weight or state is used; range(0, 1) for one without layers."""
    env: dict[SSAValue, Operand] = field(default_factory=dict[SSAValue, Operand])
    frozen: set[SSAValue] = field(default_factory=set[SSAValue])
    """Values whose buffers may not be taken over by a result."""
    names: dict[Buffer, list[SSAValue]] = field(default_factory=dict[Buffer, list[SSAValue]])
    """The values in a buffer that has bytes of its own: they die together."""
    zeroed: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    """Scratch that is zero before each launch, by kernel: others find other words zero."""
    phase: PhaseKind = PhaseKind.STEADY_STATE
    """The phase of what is scheduled now."""
    time: int = 0

    def buffer(self, type_: Attribute) -> Buffer:
        new = Buffer(type_, size_of(type_, self.table), self.time, self.time)
        new.whole_run = self.phase is PhaseKind.PROLOGUE
        self.buffers.append(new)
        return new

    def bind(self, value: SSAValue, operand: Operand) -> None:
        """Say where a value lies."""
        self.env[value] = operand
        if isinstance(operand, Buffer):
            self.names.setdefault(operand.base, []).append(value)
            if operand.base.whole_run:
                self.frozen.add(value)

    def run(self, block: Block, layers: range | None, items: list[Item], top: bool = False) -> None:
        """Schedule operations; `layers` are those of the enclosing loop, `top` says it is @main."""
        for op in block.ops:
            if top:
                self.phase = phase_of(op)
            match op:
                case mir.LoadWeightOp():
                    symbol = op.weight.root_reference.data
                    layered = layers is not None and symbol in self.families
                    self.env[op.result] = Member(symbol, op.result.type, layered, packed=False)
                case mir.LoadStateOp():
                    symbol = op.state.root_reference.data
                    self._use(symbol, layers)
                    self.env[op.result] = Member(symbol, op.result.type, layers is not None)
                case mir.PackOp():
                    self._pack(op, layers)
                case mir.RepeatOp():
                    if layers is not None:
                        raise IrError(op, "plan-lir: expected no repeat in a repeated function")
                    items.append(self._loop(op, items))
                case mir.IfOp():
                    items.append(self._branch(op, layers))
                case mir.WhileOp():
                    items.append(self._while(op, layers, items))
                case mir.ReshapeOp() | mir.SliceOp() if self._view(op):
                    pass
                case ReturnOp() | YieldOp():
                    pass
                case _:
                    self._launch(op, items)

    def _use(self, symbol: str, layers: range | None) -> None:
        used = self.layers.get(symbol)
        here = layers or range(1)
        if used is not None:
            here = range(min(used.start, here.start), max(used.stop, here.stop))
        self.layers[symbol] = here

    def _pack(self, op: mir.PackOp, layers: range | None) -> None:
        source = self.env.get(op.input)
        if not isinstance(source, Member) or source.packed:
            raise IrError(op, "plan-lir: expected a weight to pack")
        symbol = source.symbol if op.panels else plain(source.symbol)
        for name, type_ in mir.PackOp.narrowed(op.input.type).items():
            if op.result.type == type_:
                symbol = narrowed(source.symbol, name)
        self._use(symbol, layers if source.layered else None)
        self.env[op.result] = Member(symbol, op.result.type, source.layered, plain=not op.panels)

    def _view(self, op: mir.ReshapeOp | mir.SliceOp) -> bool:
        """Let a result be bytes of its operand, if it may; return whether it is."""
        source = self.env.get(op.input)
        offset = byte_offset(op)
        if not isinstance(source, Buffer) or offset is None:
            return False
        view = Buffer(op.result.type, size_of(op.result.type, self.table), self.time, self.time)
        view.root, view.offset = source.base, source.offset + offset
        view.use(self.time)
        self.bind(op.result, view)
        return True

    # Launches

    def _launch(self, op: Operation, items: list[Item]) -> None:
        launch = self.kernels.outline(op)
        ins = [self._operand(v, op) for v in launch.ins]
        outs = [self._result(launch, op, i) for i in range(len(launch.outs))]
        scratch = self._scratch(launch.kernel)
        self._add(Step(launch.kernel, self.phase, ins, [*outs], scratch), items)

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

    def handed_on(self, value: SSAValue, op: Operation, items: list[Item]) -> Buffer:
        """Return the buffer of a value that an operation hands on; of a weight, that of a copy."""
        operand = self.env.get(value)
        if isinstance(operand, Member) and operand.plain:
            return self.copy(operand, items)
        return self._buffer_of(value, op)

    def _buffer_of(self, value: SSAValue, op: Operation) -> Buffer:
        operand = self.env.get(value)
        if not isinstance(operand, Buffer):
            raise IrError(
                op, f"plan-lir: {op.name} hands on a weight or a state, expected a computed tensor"
            )
        return operand

    def _scratch(self, kernel: str) -> Buffer | None:
        """Return a launch's scratch: one for all where it is zeroed, else one of its own."""
        need = scratch_of(self.kernels.named(kernel), self.table)
        if need is None:
            return None
        if kernel in self.zeroed:
            return self.zeroed[kernel]
        buffer = self.buffer(need.type)
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
            if out != index or not isinstance(old, Buffer) or not self._dies(operand, op):
                continue
            # Neither a result before this one has the bytes, nor does the launch see them twice.
            others = [*launch.outs[:index], *(v for v in launch.ins if v is not operand)]
            taken = (self.env[v] for v in others)
            if not any(isinstance(t, Buffer) and t.base is old.base for t in taken):
                self.bind(value, old)
                return old
        new = self.buffer(value.type)
        self.bind(value, new)
        return new

    def _dies(self, value: SSAValue, op: Operation) -> bool:
        """Return whether the bytes of a value are free after an operation."""
        buffer = self.env[value]
        if not isinstance(buffer, Buffer) or value in self.frozen:
            return False
        sharing = self.names[buffer.base]
        return all(v not in self.frozen and dies_at(v, op) for v in sharing)

    def _add(self, step: Step, items: list[Item]) -> None:
        step.time = self.time
        for buffer in buffers_of([step]):
            buffer.use(self.time)
        items.append(step)
        self.time += 1

    def copy(self, value: Operand, items: list[Item], target: Buffer | None = None) -> Buffer:
        new = target or self.buffer(value.type)
        kernel = self.kernels.copy(value.type)
        self._add(Step(kernel, self.phase, [value], [new]), items)
        return new

    # Control

    def _carried(
        self, op: Operation, outer: SSAValue, items: list[Item], others: Sequence[Operand | None]
    ) -> Buffer:
        """Return the buffer that a loop carries from `outer` on: its own, or a copy."""
        buffer = self.handed_on(outer, op, items)
        if isinstance(self.env[outer], Member):
            return buffer
        shared = any(isinstance(o, Buffer) and o.base is buffer.base for o in others)
        inside = any(
            use.operation is not op and op.is_ancestor(use.operation) for use in outer.uses
        )
        if shared or inside or buffer.root is not None or not self._dies(outer, op):
            return self.copy(buffer, items)
        return buffer

    def _loop(self, op: mir.RepeatOp, items: list[Item]) -> Loop:
        name = op.callee.root_reference.data
        block = self.functions[name].body.block
        carried: list[Buffer] = []
        kept = [self.env.get(v) for v in op.arguments[len(op.res) :]]
        for i, (outer, arg) in enumerate(zip(op.arguments, block.args, strict=True)):
            if i < len(op.res):
                carried.append(self._carried(op, outer, items, [*carried, *kept]))
                self._enter(arg, carried[-1])
            elif outer in self.env:
                self.env[arg] = self.env[outer]
                self.frozen.add(arg)
            else:
                raise IrError(op, "plan-lir: a view of a state is not an argument of a layer")
        start = self.time
        layers = range(op.first.value.data, op.last.value.data)
        loop = Loop(layers, [])
        self.run(block, layers, loop.items)
        assert block.last_op is not None
        self._carry(block.last_op, carried, loop.items, start)
        self._leave(loop, start, op, carried)
        return loop

    def _branch(self, op: mir.IfOp, layers: range | None) -> Branch:
        item = Branch(self._condition(op.condition, op), self.time - 1, [], [])
        results = [self.buffer(r.type) for r in op.res]
        for region, items in ((op.then, item.then), (op.otherwise, item.otherwise)):
            start = self.time
            self.run(region.block, layers, items)
            self._deliver(yielded(region.block), results, items, start)
        # A branch that wrote where the condition is would have to wait for all that read it.
        item.condition.use(self.time - 1)
        for result, buffer in zip(op.res, results, strict=True):
            self.bind(result, buffer)
        return item

    def _condition(self, value: SSAValue, op: Operation) -> Buffer:
        """Return the buffer of a condition, which every thread reads before it goes on."""
        buffer = self._buffer_of(value, op)
        buffer.use(self.time)
        self.time += 1
        return buffer

    def _deliver(
        self, op: YieldOp, results: Sequence[Buffer], items: list[Item], start: int
    ) -> None:
        """Bring what a branch yields to where the results are: made there, or copied."""
        moved: dict[Buffer, Buffer] = {}
        for value, target in zip(op.arguments, results, strict=True):
            source = self.handed_on(value, op, items)
            source = moved.get(source, source)
            if source not in results and self._made_since(source, start, target):
                replace(items, source, target)
                target.use(source.last)
                self.buffers.remove(source)
                moved[source] = target
            else:
                self.copy(source, items, target)

    def _made_since(self, buffer: Buffer, start: int, target: Buffer) -> bool:
        """Return whether a buffer is of this branch alone, so that another can stand for it."""
        own = buffer.root is None and buffer.space is Space.SLOT and not buffer.whole_run
        viewed = any(self.env[v] is not buffer for v in self.names.get(buffer, ()))
        return own and not viewed and buffer.first >= start and buffer.size == target.size

    def _while(self, op: mir.WhileOp, layers: range | None, items: list[Item]) -> While:
        test, body = op.condition.block, op.body.block
        carried: list[Buffer] = []
        for outer in op.inits:
            carried.append(self._carried(op, outer, items, carried))
        start = self.time
        for arg, buffer in zip(test.args, carried, strict=True):
            self._enter(arg, buffer)
            self.frozen.add(arg)
        tests: list[Item] = []
        self.run(test, layers, tests)
        last = yielded(test)
        item = While(self._condition(last.arguments[0], last), self.time - 1, tests, [])
        inside = self.time
        for arg, buffer in zip(body.args, carried, strict=True):
            self._enter(arg, buffer)
        self.run(body, layers, item.body)
        self._carry(yielded(body), carried, item.body, inside)
        item.condition.use(self.time - 1)
        self._leave(item, start, op, carried)
        return item

    def _enter(self, arg: SSAValue, buffer: Buffer) -> None:
        """Let a loop's argument be the one value in a buffer that is carried."""
        self.names[buffer] = []
        self.bind(arg, buffer)

    def _leave(
        self, item: Loop | While, start: int, op: Operation, carried: Sequence[Buffer]
    ) -> None:
        """Keep what every turn finds as the first one did to the end; bind the results."""
        # A loop without launches has no turn to tell apart; it lasts a moment all the same.
        self.time = max(self.time, start + 1)
        for buffer in {b.base for b in buffers_of([item])}:
            if buffer.first < start:
                buffer.use(self.time - 1)
        for result, buffer in zip(op.results, carried, strict=True):
            self._enter(result, buffer)

    def _carry(self, op: Operation, carried: list[Buffer], items: list[Item], start: int) -> None:
        """
        Bring what a turn ends with into the buffers where the next turn looks for it.

        A value is made there if all that the turn reads there comes before; else it is copied.
        """
        values = [self.handed_on(value, op, items) for value in op.operands]
        sources = {v.base for v in values}
        moved: dict[Buffer, Buffer] = {}
        moves: list[tuple[Buffer, Buffer]] = []
        for value, target in zip(values, carried, strict=True):
            source = moved.get(value, value)
            if source is target:
                continue
            own = source not in carried and self._made_since(source, start, target)
            if own and target not in sources and last_use(items, target) < source.first:
                replace(items, source, target)
                target.use(source.last)
                self.buffers.remove(source)
                moved[source] = target
            else:
                moves.append((source, target))
        self._move([(moved.get(s, s), t) for s, t in moves], items)

    def _move(self, moves: list[tuple[Buffer, Buffer]], items: list[Item]) -> None:
        """Copy buffers to others as if at once: one that is still to be read is written later."""
        while moves:
            sources = {source.base for source, _ in moves}
            free = next((move for move in moves if move[1] not in sources), None)
            if free is None:
                source, target = moves[0]
                moves[0] = (self.copy(source, items), target)
                continue
            moves.remove(free)
            self.copy(free[0], items, free[1])


def plain(symbol: str) -> str:
    """Return the name of a weight's elements as they are, beside its panels."""
    return f"{symbol}.plain"


def narrowed(symbol: str, name: str) -> str:
    """Return the name of a weight's panels of fewer bits, beside those of its own format."""
    return f"{symbol}.{name}"


def byte_offset(op: mir.ReshapeOp | mir.SliceOp) -> int | None:
    """Return where in its input an operation's result lies as it is; None if it does not."""
    if isinstance(op, mir.ReshapeOp):
        return 0
    dims, parts = dims_of(op.input.type), dims_of(op.result.type)
    starts, steps = numbers(op.starts), numbers(op.steps)
    whole = dims[1:] == parts[1:] and not any(starts[1:]) and all(s == 1 for s in steps)
    inner = [d for d in dims[1:] if isinstance(d, int)]
    if not dims or not whole or (starts[0] and len(inner) < len(dims) - 1):
        return None
    size = size_of(tensor([1, *inner], element_of(op.input.type)), DimTable({}))
    return starts[0] * size


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
