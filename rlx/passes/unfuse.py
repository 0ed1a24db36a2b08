"""Pass `unfuse`: the operations of kernels on their own again, and composite ones in basic ones."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.rewriter import InsertPoint

from rlx.dialects import mir
from rlx.passes.expansions import EXPANDED, expansion
from rlx.passes.matching import keep_phase
from rlx.passes.rewriting import rewrite


class InlineKernel(RewritePattern):
    """Put the operations of a kernel in its place; they run when it did."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, mir.KernelOp):
            return
        keep_phase(op, op.ops)
        end = op.yielded
        rewriter.inline_block(op.body.block, InsertPoint.before(op))
        values = list(end.arguments)
        rewriter.erase(end)
        rewriter.replace(op, [], values)


class Expand(RewritePattern):
    """Compute a composite operation from basic ones."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, EXPANDED):
            return
        new = expansion(op)
        if new is not None:
            keep_phase(op, new)
            rewriter.replace(op, new)


@dataclass(frozen=True)
class UnfusePass(ModulePass):
    """
    Undo what fusion did.

    %y = mir.kernel { %0 = mir.matmul %x, %w; %1 = mir.unary silu %0; mir.yield %1 }
        --> %0 = mir.matmul %x, %w; %y = mir.unary silu %0

    With `expand` the composite operations become basic ones too: softmax, layer and RMS norms,
    attention on tensors, and functions such as silu and gelu, which leaves exp, log, tanh, erf and
    the like.

    %y = mir.unary silu %x --> %s = mir.unary sigmoid %x; %y = mir.binary mul %x, %s
    """

    name = "unfuse"
    expand: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite(op, [InlineKernel(), *([Expand()] if self.expand else [])])
