"""Pass `canonicalize`: xDSL's canonicalization, by the driver that ends."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.folder import Folder
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.traits import ConstantLike, HasCanonicalizationPatternsTrait, HasFolder
from xdsl.transforms.dead_code_elimination import is_trivially_dead, region_dce

from rlx.passes.rewriting import rewrite


class EraseDead(RewritePattern):
    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if is_trivially_dead(op):
            rewriter.erase(op)


@dataclass
class Fold(RewritePattern):
    ctx: Context

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        # A constant would be folded to a constant, for ever.
        if not op.has_trait(HasFolder, value_if_unregistered=False) or op.has_trait(ConstantLike):
            return
        if (folded := Folder(self.ctx).try_fold(op)) is not None:
            values, made = folded
            rewriter.replace(op, made, values)


@dataclass(frozen=True)
class CanonicalizePass(ModulePass):
    """
    Bring operations into the form that their dialects define, and erase those that nothing uses.

    %a = unused; %y = folds to a constant --> %y = constant
    """

    name = "canonicalize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        always = [EraseDead(), Fold(ctx)]

        def patterns(op: Operation) -> list[RewritePattern]:
            traits = op.get_traits_of_type(HasCanonicalizationPatternsTrait)
            return [*always, *(p for trait in traits for p in trait.get_patterns(type(op)))]

        rewrite(op, patterns, after_walk=region_dce)
