"""The phases of @main in order, and its inputs and outputs as buffers that the caller binds."""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from rlx.dialects import mir
from rlx.dialects.common import PhaseKind
from rlx.passes.buffers import Buffer, Space
from rlx.passes.diagnostics import IrError
from rlx.passes.schedule import Schedule, phase_of
from rlx.passes.steps import Member


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
        schedule.bind(arg, buffer)
        schedule.frozen.add(arg)
        inputs.append(buffer)
    schedule.run(block, None, schedule.items, top=True)
    schedule.phase = PhaseKind.EPILOGUE
    returned = block.last_op
    assert isinstance(returned, ReturnOp)
    names = _argument_names(main, main.res_attrs, len(returned.arguments))
    outputs: list[Buffer] = []
    for i, (value, name) in enumerate(zip(returned.arguments, names, strict=True)):
        buffer = schedule.env.get(value)
        if isinstance(buffer, Member) and buffer.plain:
            buffer = schedule.copy(buffer, schedule.items)
        if not isinstance(buffer, Buffer):
            raise IrError(returned, f"plan-lir: output '{name}' is a weight or a state")
        if buffer.space is not Space.SLOT or buffer.whole_run or buffer.root is not None:
            buffer = schedule.copy(buffer, schedule.items)
        buffer.space, buffer.name, buffer.index = Space.OUTPUT, name, i
        outputs.append(buffer)
    return inputs, outputs
