"""What depends on weights and constants alone is computed once, before the first step."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.traits import is_side_effect_free

from rlx.dialects import mir
from rlx.dialects.common import PhaseAttr, PhaseKind, dims_of

_PROLOGUE = PhaseAttr(PhaseKind.PROLOGUE)

_NAMES = (mir.LoadWeightOp, mir.PackOp)
"""What only names a weight in the layout that kernels read: it may stand in a layer function."""


def _is_computation(op: Operation) -> bool:
    """Whether an operation computes its results from its operands, and nothing else."""
    # A load of state is an address: what lies there changes from step to step. A branch or a loop
    # stays where it is: what it does may be wanted in some steps only, and may never end in others.
    return (
        mir.is_mir(op)
        and not isinstance(op, (mir.LoadStateOp, mir.YieldOp, *mir.CONTROL))
        and is_side_effect_free(op)
        and has_one_size(op)
    )


def has_one_size(op: Operation) -> bool:
    """Whether no size in an operation is one that a step gives: those are not known before it."""
    results = (r.type for inner in op.walk() for r in inner.results)
    return all(isinstance(d, int) for type_ in results for d in dims_of(type_))


@dataclass
class _Hoist:
    """The operations of a function that run once, as they are found in its order."""

    in_main: bool
    hoisted: set[SSAValue] = field(default_factory=set[SSAValue])
    first_of: dict[object, Operation] = field(default_factory=dict[object, Operation])

    def block(self, block: Block, top: Operation | None = None) -> None:
        """Hoist from a block; from a region, to before the operation `top` of the function."""
        for op in list(block.ops):
            if isinstance(op, mir.CONTROL):
                for region in op.regions:
                    self.block(region.block, top or op)
            elif _is_computation(op) and self.hoisted.issuperset(mir.captures(op)):
                self._operation(op, top)

    def _operation(self, op: Operation, top: Operation | None) -> None:
        # A layer function runs as a whole at every step; its weights are found once.
        if not (self.in_main or isinstance(op, _NAMES)):
            return
        if op.attributes.setdefault(mir.PHASE, _PROLOGUE) != _PROLOGUE:
            return
        # Kernels are left as they are: comparing bodies would be a pass of its own.
        if not op.regions:
            results = tuple(r.type for r in op.results)
            key = (op.name, op.operands, frozenset(op.properties.items()), results)
            first = self.first_of.setdefault(key, op)
            if first is not op:
                Rewriter.replace_op(op, [], first.results)
                return
        if top is not None and top.parent is not None:
            op.detach()
            top.parent.insert_op_before(op, top)
        self.hoisted.update(op.results)


@dataclass(frozen=True)
class HoistParamsPass(ModulePass):
    """
    Mark what depends on weights and constants only as prologue, and merge what is there twice.

    %0 = mir.load_weight @w; %1 = mir.pack %0; %2 = mir.load_weight @w; %3 = mir.pack %2
        --> %0 = mir.load_weight @w {phase = prologue}; %1 = mir.pack %0 {phase = prologue}

    What stands in a branch or a loop moves out of it. In a layer function only weights are
    prologue: the rest of it is computed for each layer at every step. An operation that has
    another phase already keeps it.
    """

    name = "hoist-params"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, FuncOp) and function.body.blocks:
                _Hoist(function.sym_name.data == "main").block(function.body.block)
