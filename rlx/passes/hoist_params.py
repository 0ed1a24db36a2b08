"""What depends on weights and constants alone is computed once, before the first step."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.traits import is_side_effect_free

from rlx.dialects import mir
from rlx.dialects.common import PhaseAttr, PhaseKind

_PROLOGUE = PhaseAttr(PhaseKind.PROLOGUE)


def _is_computation(op: Operation) -> bool:
    """Whether an operation computes its results from its operands, and nothing else."""
    # A load of state is an address: what lies there changes from step to step.
    return (
        isinstance(op, tuple(mir.Mir.operations))
        and not isinstance(op, mir.LoadStateOp)
        and is_side_effect_free(op)
    )


def _hoist(block: Block) -> None:
    hoisted: set[SSAValue] = set()
    first_of: dict[object, Operation] = {}
    for op in list(block.ops):
        if not _is_computation(op) or not hoisted.issuperset(mir.captures(op)):
            continue
        if op.attributes.setdefault(mir.PHASE, _PROLOGUE) != _PROLOGUE:
            continue
        # Kernels are left as they are: comparing bodies would be a pass of its own.
        if not op.regions:
            results = tuple(r.type for r in op.results)
            key = (op.name, op.operands, frozenset(op.properties.items()), results)
            first = first_of.setdefault(key, op)
            if first is not op:
                Rewriter.replace_op(op, [], first.results)
                continue
        hoisted.update(op.results)


@dataclass(frozen=True)
class HoistParamsPass(ModulePass):
    """
    Mark what depends on weights and constants only as prologue, and merge what is there twice.

    %0 = mir.load_weight @w; %1 = mir.pack %0; %2 = mir.load_weight @w; %3 = mir.pack %2
        --> %0 = mir.load_weight @w {phase = prologue}; %1 = mir.pack %0 {phase = prologue}

    An operation that has another phase already keeps it.
    """

    name = "hoist-params"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, FuncOp) and function.body.blocks:
                _hoist(function.body.block)
