"""
The check of phases: nothing runs in an earlier phase than what it needs.

In MIR a function's operations have phases, and what a kernel, a branch or a loop holds runs with
it. In LIR the launches have them: within a plan's text a launch reads what was written last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from rlx.contract.phase import Phase
from rlx.dialects import lir, mir
from rlx.dialects.common import DimTable, PhaseAttr, dims_of, spell
from rlx.passes.diagnostics import IrError
from rlx.passes.program import fail

Phases = Mapping[Operation, Phase]


def written_phase(op: Operation) -> Phase | None:
    """Return the phase that an operation's attribute names, None where it has none."""
    attribute = op.attributes.get(mir.PHASE)
    return Phase(attribute.data.value) if isinstance(attribute, PhaseAttr) else None


def check_phases(function: str, phases: Phases) -> None:
    """Raise IrError where an operation of a function is of an earlier phase than an operand."""
    for op, phase in phases.items():
        for value in mir.captures(op):
            ready, what = _ready(value, phases)
            if phase.order() < ready.order():
                raise IrError(
                    op,
                    f"{op.name} in @{function} is of the phase {phase.value} but needs {what}: "
                    "let it have a later phase",
                )


def _ready(value: SSAValue, phases: Phases) -> tuple[Phase, str]:
    """Return the phase from which on a value is there, and what it is."""
    owner = value.owner
    if isinstance(owner, Block):
        return Phase.STEADY_STATE, f"the argument %{value.name_hint}, which comes with each step"
    phase = phases.get(owner, Phase.PROLOGUE)
    return phase, f"a result of {owner.name}, of the phase {phase.value}"


def check_order_of_phases(op: Operation) -> None:
    """Raise IrError where the phases of a function or of a plan contradict its order."""
    match op:
        case FuncOp():
            _check_written(op)
        case lir.ProgramOp():
            _check_planned(op)
        case _:
            pass


def _check_written(function: FuncOp) -> None:
    ops = list(function.body.block.ops) if function.body.blocks else []
    written = {op: phase for op in ops if (phase := written_phase(op)) is not None}
    check_phases(function.sym_name.data, written)
    varying = _varying(function)
    for op, phase in written.items():
        if phase is Phase.PROLOGUE:
            _check_sizes(op, [r.type for r in op.results], varying)
    for op in ops:
        for inner in op.walk():
            if inner is not op and mir.PHASE in inner.attributes:
                fail(inner, f"runs with the {op.name} around it: expected no phase of its own")


def _check_planned(program: lir.ProgramOp) -> None:
    """No launch needs what a launch of a later phase writes; the prologue needs no input."""
    written: dict[SSAValue, lir.LaunchOp] = {}
    varying = _varying(program)
    for op in program.walk():
        if not isinstance(op, lir.LaunchOp):
            continue
        phase = Phase(op.phase.data.value)
        if phase is Phase.PROLOGUE:
            _check_sizes(op, op.outs.types, varying)
        for value in (*op.ins, *_conditions(op)):
            root = _root(value)
            if isinstance(root.owner, lir.InputOp) and phase is Phase.PROLOGUE:
                name = root.owner.io_name.data
                fail(op, f'the prologue reads the input "{name}", which comes with each step')
            writer = written.get(root)
            if writer is not None and phase.order() < Phase(writer.phase.data.value).order():
                fail(
                    op,
                    f"of the phase {phase.value} reads what {writer.kernel} writes, of the phase "
                    f"{writer.phase.data.value}",
                )
        written.update((_root(value), op) for value in op.outs)


def _varying(op: Operation) -> set[str]:
    """Return the dimensions of an operation's module whose sizes a step gives."""
    module = op.parent_op()
    table = DimTable.of(module) if isinstance(module, ModuleOp) else DimTable({})
    found = set(table.free)
    for dim in table.dims.values():
        if found.intersection(dim.operands):
            found.add(dim.name)
    return found


def _check_sizes(op: Operation, types: Iterable[Attribute], varying: set[str]) -> None:
    """What runs before the first step has sizes that are known then."""
    for type_ in types:
        names = varying.intersection(d for d in dims_of(type_) if isinstance(d, str))
        if names:
            fail(op, f"the prologue makes {spell(type_)}, but each step says how large it is")


def _root(value: SSAValue) -> SSAValue:
    while isinstance(value.owner, lir.ViewOp):
        value = value.owner.root
    return value


def _conditions(op: Operation) -> list[SSAValue]:
    """Return the conditions of the branches that a launch stands in."""
    found: list[SSAValue] = []
    parent = op.parent_op()
    while parent is not None:
        if isinstance(parent, lir.IfOp):
            found.append(parent.condition)
        parent = parent.parent_op()
    return found
