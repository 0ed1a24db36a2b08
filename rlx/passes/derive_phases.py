"""
Gives every launch of a program its phase.

In @main the contract's rule decides (`rlx.contract.derive_phases`, a repeat counting as compute);
a layer function is called in the steady state, and all of it but the leaves runs there. So does a
constant whose size is not known before a step. A phase that is already written stays. Then an
operation runs no later than what consumes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from rlx.contract.opkind import OpKind
from rlx.contract.phase import (
    COMPUTE_KINDS,
    LEAF_KINDS,
    SAMPLING_KINDS,
    Phase,
    derive_phases,
)
from rlx.dialects import mir
from rlx.dialects.common import PhaseAttr, PhaseKind
from rlx.passes.hoist_params import has_one_size
from rlx.passes.verify_phases import check_phases, written_phase

Phases = dict[Operation, Phase]


@dataclass(frozen=True)
class _Node:
    """An operation as the contract's rule sees it."""

    id: int
    kind: OpKind


@dataclass(frozen=True)
class _Graph:
    nodes: Sequence[_Node]


def _kind_of(op: Operation) -> OpKind:
    """Return the kind that decides on a phase: sampling or compute where an operation holds any."""
    held = {mir.kind_of(inner) for inner in op.walk() if inner is not op}
    for kinds in (SAMPLING_KINDS, COMPUTE_KINDS):
        if found := held & kinds:
            return min(found)
    return mir.kind_of(op)


def _by_contract(ops: Sequence[Operation]) -> Phases:
    nodes = [_Node(i, _kind_of(op)) for i, op in enumerate(ops)]
    schedule = derive_phases(_Graph(nodes))
    return {ops[i]: phase for i, phase in schedule}


def _in_layer(ops: Sequence[Operation]) -> Phases:
    leaves = {op for op in ops if mir.kind_of(op) in LEAF_KINDS}
    return {op: Phase.PROLOGUE if op in leaves else Phase.STEADY_STATE for op in ops}


def _sized_by_steps(ops: Sequence[Operation], phases: Phases) -> list[Operation]:
    return [op for op in ops if phases[op] is Phase.PROLOGUE and not has_one_size(op)]


def _around(op: Operation, user: Operation) -> Operation | None:
    """Return the operation beside `op` that a user is, or is part of."""
    return op.parent.find_ancestor_op_in_block(user) if op.parent is not None else None


def _repair(ops: Sequence[Operation], phases: Phases) -> None:
    """Move every operation whose phase isn't written to the earliest of its consumers' phases."""
    for op in reversed(ops):
        if written_phase(op) is not None:
            continue
        consumers = {_around(op, use.operation) for r in op.results for use in r.uses}
        candidates = [phases[op], *(phases[c] for c in consumers if c is not None and c in phases)]
        phases[op] = min(candidates, key=Phase.order)


@dataclass(frozen=True)
class DerivePhasesPass(ModulePass):
    """
    Write the phase of every MIR operation of @main and of the layer functions.

    %y = mir.matmul %x, %w --> %y = mir.matmul %x, %w {phase = #mir<phase steady_state>}

    What a kernel, a branch or a loop holds runs with it and gets none of its own; a branch or a
    loop with products counts as compute, one that samples as sampling. Raises IrError where a
    written phase is earlier than that of an operand.
    """

    name = "derive-phases"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if not isinstance(function, FuncOp) or not function.body.blocks:
                continue
            name = function.sym_name.data
            ops = [o for o in function.body.block.ops if mir.is_mir(o)]
            phases = _by_contract(ops) if name == "main" else _in_layer(ops)
            # What is as large as a step says can't be made before it.
            phases.update((o, Phase.STEADY_STATE) for o in _sized_by_steps(ops, phases))
            phases.update((o, phase) for o in ops if (phase := written_phase(o)) is not None)
            _repair(ops, phases)
            check_phases(name, phases)
            for o, phase in phases.items():
                o.attributes[mir.PHASE] = PhaseAttr(PhaseKind(phase.value))
