"""
A norm takes the residual sum before it into its launch: x + y, or x + (y + bias), then the norm.

The sum is yielded where others use it, as the next residual does. A sum that is the epilogue of a
product stays there: moved out it would be written and read once more.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from rlx.dialects import mir
from rlx.dialects.common import dims_of
from rlx.dialects.kinds import BinaryKind
from rlx.passes.fuse_common import Fusion, Join, in_order, launch_of
from rlx.passes.fuse_rows import cannot_join, is_cheap
from rlx.passes.fusion_cost import source


def _sum_of(value: SSAValue) -> mir.BinaryOp | None:
    """Return the addition that a value is the result of, None where it is not one."""
    op = source(value).owner
    return op if isinstance(op, mir.BinaryOp) and op.kind.data is BinaryKind.ADD else None


def _vector_of(op: mir.BinaryOp) -> Operation | None:
    """Return the broadcast of a vector along the rows that is an operand of an addition."""
    for value in op.operands:
        owner = value.owner
        if isinstance(owner, mir.BroadcastOp) and is_cheap(owner) and launch_of(owner) is owner:
            if len(dims_of(owner.input.type)) == 1:
                return owner
    return None


def _sums(norm: mir.LayerNormOp | mir.RmsNormOp) -> list[mir.BinaryOp]:
    """Return the residual sum that is normalised, and the sum with a bias that it takes."""
    residual = _sum_of(norm.input)
    if residual is None:
        return []
    for value in residual.operands:
        inner = _sum_of(value)
        if inner is not None and _vector_of(inner) is not None and launch_of(inner) is inner:
            return [inner, residual]
    return [residual]


@dataclass
class TakeSumIntoNorm(RewritePattern):
    fusion: Fusion

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: mir.LayerNormOp | mir.RmsNormOp, rewriter: PatternRewriter
    ) -> None:
        sums = _sums(op)
        if not sums or launch_of(op) is not op:
            return
        join = Join(
            in_order([*map(launch_of, sums), op]),
            [vector for s in sums if (vector := _vector_of(s)) is not None],
        )
        reason = cannot_join(join)
        if launch_of(sums[-1]) is not sums[-1]:
            reason = "the sum is part of a kernel already"
        self.fusion.attempt(op, [join], reason, rewriter)


@dataclass(frozen=True)
class FuseResidualNormPass(ModulePass):
    """
    Move a residual sum, and the sum with a bias before it, into the launch of a norm.

    %s = mir.binary add %x, %y; %n = mir.layer_norm %s, %g, %b
        --> %s, %n = mir.kernel { %0 = mir.binary add %x, %y; %1 = mir.layer_norm %0, %g, %b;
                                  mir.yield %0, %1 }

    `target` names the gate; `report` leaves `rlx.fusion_report` on the module.
    """

    name = "fuse-residual-norm"
    target: str = "cpu"
    report: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        fusion = Fusion.of(self.name, op, self.target, self.report)
        fusion.run([TakeSumIntoNorm(fusion)], op)
