"""
Pass `eliminate-moves`: transposes, concats and gathers that need not be made.

What is left of a move is a view, or part of an operation that reads its operand in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from rlx.dialects import mir
from rlx.dialects.ops import numbers
from rlx.passes.constant_fold import FoldPrimitive
from rlx.passes.join_rules import JOIN_RULES
from rlx.passes.map_rules import MAP_RULES
from rlx.passes.matching import Replacement, Rule, ValueRule, apply_rules, made_for
from rlx.passes.move_rules import MOVE_RULES


def _swaps_last(op: object) -> bool:
    """Return whether an operation swaps the last two axes, and those only."""
    if not isinstance(op, mir.TransposeOp):
        return False
    order = numbers(op.order)
    rank = len(order)
    return rank >= 2 and order == [*range(rank - 2), rank - 1, rank - 2]


class FoldIntoDot(ValueRule[mir.DotOp]):
    """dot(transpose a, b) --> dot(a lhs_t, b)."""

    ops = (mir.DotOp,)

    def replacement(self, op: mir.DotOp) -> Replacement:
        sides, flags = [op.lhs, op.rhs], list(op.transposed)
        for i, side in enumerate(sides):
            if isinstance(side.owner, mir.TransposeOp) and _swaps_last(side.owner):
                sides[i], flags[i] = side.owner.input, not flags[i]
        if sides == [op.lhs, op.rhs]:
            return None
        return [mir.DotOp(sides[0], sides[1], flags[0], flags[1])]


class SwapDot(ValueRule[mir.TransposeOp]):
    """transpose(dot(a, b)) --> dot(b lhs_t, a rhs_t)."""

    ops = (mir.TransposeOp,)

    def replacement(self, op: mir.TransposeOp) -> Replacement:
        dot = made_for(op, op.input)
        if not isinstance(dot, mir.DotOp) or not _swaps_last(op):
            return None
        lhs_t, rhs_t = dot.transposed
        return [mir.DotOp(dot.rhs, dot.lhs, not rhs_t, not lhs_t)]


class FoldMove(FoldPrimitive):
    """Move the elements of a constant now."""

    ops = mir.MOVES


RULES: Sequence[Rule] = (
    *MOVE_RULES,
    FoldMove(),
    FoldIntoDot(),
    SwapDot(),
    *JOIN_RULES,
    *MAP_RULES,
)


@dataclass(frozen=True)
class EliminateMovesPass(ModulePass):
    """
    Make moves part of what uses them, or views, or nothing.

    mir.dot (mir.transpose %a [1, 0]), %b --> mir.dot %a lhs_t, %b
    mir.transpose (mir.unary exp (mir.transpose %x [1, 0])) [1, 0] --> mir.unary exp %x
    mir.concat axis 0 (%x from 0 to 2, %x from 2 to 4) --> %x from 0 to 4
    mir.gather %x, (mir.iota) --> mir.slice %x

    A product whose result is transposed is computed with its sides swapped, so its sums may be
    rounded in another way; all else keeps every bit.
    """

    name = "eliminate-moves"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        apply_rules(op, RULES)
