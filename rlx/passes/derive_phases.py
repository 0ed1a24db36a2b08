"""
Gives every launch of a program its phase.

In @main the contract's rule decides (`rlx.contract.derive_phases`, a repeat counting as compute);
a layer function is called in the steady state, and all of it but the leaves runs there. A phase
that is already written stays. Then an operation runs no later than what consumes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from rlx.contract.opkind import OpKind
from rlx.contract.phase import LEAF_KINDS, Phase, derive_phases
from rlx.dialects import mir
from rlx.dialects.common import PhaseAttr, PhaseKind
from rlx.passes.diagnostics import IrError
from rlx.passes.fuse_common import launch_of

Phases = dict[Operation, Phase]


@dataclass(frozen=True)
class _Node:
    """An operation as the contract's rule sees it."""

    id: int
    kind: OpKind


@dataclass(frozen=True)
class _Graph:
    nodes: Sequence[_Node]


def _by_contract(ops: Sequence[Operation]) -> Phases:
    nodes = [_Node(i, mir.kind_of(op)) for i, op in enumerate(ops)]
    schedule = derive_phases(_Graph(nodes))
    return {ops[i]: phase for i, phase in schedule}


def _in_layer(ops: Sequence[Operation]) -> Phases:
    leaves = {op for op in ops if mir.kind_of(op) in LEAF_KINDS}
    return {op: Phase.PROLOGUE if op in leaves else Phase.STEADY_STATE for op in ops}


def _written(op: Operation) -> Phase | None:
    attribute = op.attributes.get(mir.PHASE)
    return Phase(attribute.data.value) if isinstance(attribute, PhaseAttr) else None


def _repair(ops: Sequence[Operation], phases: Phases) -> None:
    """Move every operation whose phase isn't written to the earliest of its consumers' phases."""
    for op in reversed(ops):
        if _written(op) is not None:
            continue
        consumers = {launch_of(use.operation) for r in op.results for use in r.uses}
        candidates = [phases[op], *(phases[c] for c in consumers if c in phases)]
        phases[op] = min(candidates, key=Phase.order)


def _check(function: str, ops: Sequence[Operation], phases: Phases) -> None:
    for op in ops:
        for value in mir.captures(op):
            ready, what = _ready(value, phases)
            if phases[op].order() < ready.order():
                raise IrError(
                    op,
                    f"derive-phases: {op.name} in @{function} is of the phase {phases[op].value} "
                    f"but needs {what}: let it have a later phase",
                )


def _ready(value: SSAValue, phases: Phases) -> tuple[Phase, str]:
    """Return the phase from which on a value is there, and what it is."""
    owner = value.owner
    if isinstance(owner, Block):
        return Phase.STEADY_STATE, f"the argument %{value.name_hint}, which comes with each step"
    phase = phases.get(owner, Phase.PROLOGUE)
    return phase, f"a result of {owner.name}, of the phase {phase.value}"


@dataclass(frozen=True)
class DerivePhasesPass(ModulePass):
    """
    Write the phase of every MIR operation of @main and of the layer functions.

    %y = mir.matmul %x, %w --> %y = mir.matmul %x, %w {phase = #mir<phase steady_state>}

    What a kernel holds runs with the kernel and gets none of its own. Raises IrError where a
    written phase is earlier than that of an operand.
    """

    name = "derive-phases"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        classes = tuple(mir.Mir.operations)
        for function in op.ops:
            if not isinstance(function, FuncOp) or not function.body.blocks:
                continue
            name = function.sym_name.data
            ops = [o for o in function.body.block.ops if isinstance(o, classes)]
            phases = _by_contract(ops) if name == "main" else _in_layer(ops)
            phases.update((o, phase) for o in ops if (phase := _written(o)) is not None)
            _repair(ops, phases)
            _check(name, ops, phases)
            for o, phase in phases.items():
                o.attributes[mir.PHASE] = PhaseAttr(PhaseKind(phase.value))
