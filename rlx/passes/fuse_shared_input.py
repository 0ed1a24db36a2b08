"""Matmuls of one input become one launch, which reads the input once: q, k, v; gate and up."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from rlx.dialects import mir
from rlx.passes.fuse_common import Fusion, Join, cannot_group, in_order, launch_of, users
from rlx.passes.fusion_cost import source


@dataclass
class GroupMatmulsOfOneInput(RewritePattern):
    fusion: Fusion

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: mir.MatmulOp, rewriter: PatternRewriter) -> None:
        input_ = source(op.input)
        launch = launch_of(op)
        members = in_order(
            launch_of(user)
            for user in users(input_)
            if isinstance(user, mir.MatmulOp)
            and source(user.input) is input_
            and launch_of(user).parent is launch.parent
        )
        # Its group is tried once, from the first of them.
        if len(members) > 1 and members[0] is launch:
            self.fusion.attempt(launch, [Join(members)], cannot_group(members), rewriter)


@dataclass(frozen=True)
class FuseSharedInputPass(ModulePass):
    """
    Group matmuls, and kernels of matmuls, that multiply the same rows.

    %q = mir.matmul %x, %wq; %k = mir.matmul %x, %wk
        --> %q, %k = mir.kernel { %0 = mir.matmul %x, %wq; %1 = mir.matmul %x, %wk; mir.yield }

    The kernel stands where the last of them stood, or at the first where what lies between asks for
    that. `target` names the gate; `report` leaves `rlx.fusion_report` on the module.
    """

    name = "fuse-shared-input"
    target: str = "cpu"
    report: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        fusion = Fusion.of(self.name, op, self.target, self.report)
        fusion.run([GroupMatmulsOfOneInput(fusion)], op)
