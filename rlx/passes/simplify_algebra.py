"""Pass `simplify-algebra`: what maps, reductions and moves need not compute."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from rlx.passes.algebra_rules import ALGEBRA_RULES
from rlx.passes.cast_rules import CAST_RULES
from rlx.passes.matching import apply_rules
from rlx.passes.move_rules import MOVE_RULES
from rlx.passes.reduce_rules import REDUCE_RULES


@dataclass(frozen=True)
class SimplifyAlgebraPass(ModulePass):
    """
    Replace operations by simpler ones that give the same bits.

    mir.binary mul %x, (constant 1.0) --> %x
    mir.cast (mir.cast %x : f16 -> f32) : f32 -> f64 --> mir.cast %x : f16 -> f64
    mir.transpose (mir.transpose %x [1, 0]) [1, 0] --> %x

    The rules are the classes of `algebra_rules`, `cast_rules`, `reduce_rules` and `move_rules`.
    """

    name = "simplify-algebra"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        apply_rules(op, [*ALGEBRA_RULES, *CAST_RULES, *REDUCE_RULES, *MOVE_RULES])
