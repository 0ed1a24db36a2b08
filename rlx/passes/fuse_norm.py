"""
An rms_norm of one row joins the matmul kernel that multiplies it, as the prologue.

Each thread normalises the row for itself: for one row that is cheaper than a launch and the
barrier after it, for many rows it would cost threads - 1 times the whole norm. The gate counts
launches and bytes only, so the number of rows is a rule beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from rlx.dialects import mir
from rlx.dialects.common import dims_of
from rlx.passes.fuse_common import Fusion, Join, cannot_group, launch_of, matmuls, users
from rlx.passes.fusion_cost import source


def can_fuse_norm(op: mir.RmsNormOp, kernel: Operation) -> str | None:
    """Return why a norm can't begin a matmul kernel (or a lone matmul); None when it can."""
    readers = users(op.result)
    if any(launch_of(user) is not kernel for user in readers):
        return "more than one launch reads its rows"
    if any(not isinstance(user, mir.MatmulOp) or user.weight is op.result for user in readers):
        return "the epilogue reads its rows too"
    if any(source(matmul.input) is not op.result for matmul in matmuls(kernel)):
        return "the kernel multiplies other rows too"
    rows = dims_of(op.result.type)[0]
    if rows != 1:
        return f"each thread would normalise all of the {rows} rows again"
    return cannot_group([op, kernel])


@dataclass
class MoveNormIntoMatmulKernel(RewritePattern):
    fusion: Fusion

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: mir.RmsNormOp, rewriter: PatternRewriter) -> None:
        kernels = [launch_of(u) for u in users(op.result) if isinstance(u, mir.MatmulOp)]
        if kernels and launch_of(op) is op:
            kernel = kernels[0]
            self.fusion.attempt(op, [Join([op, kernel])], can_fuse_norm(op, kernel), rewriter)


@dataclass(frozen=True)
class FuseNormPass(ModulePass):
    """
    Move an rms_norm of one row into the matmul kernel that is its only consumer.

    %h = mir.rms_norm %x, %g; %y = mir.matmul %h, %w
        --> %y = mir.kernel { %0 = mir.rms_norm %x, %g; %1 = mir.matmul %0, %w; mir.yield %1 }

    `target` names the gate; `report` leaves `rlx.fusion_report` on the module.
    """

    name = "fuse-norm"
    target: str = "cpu"
    report: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        fusion = Fusion.of(self.name, op, self.target, self.report)
        fusion.run([MoveNormIntoMatmulKernel(fusion)], op)
