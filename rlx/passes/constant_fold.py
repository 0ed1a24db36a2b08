"""
What is computed from constants alone becomes a constant, with the values of `rlx.reference`.

The reference says what an operation means, so that a folded program can't differ from one that is
run. A kernel is left alone: fold before fusion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, ModuleOp, TensorType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter
from xdsl.rewriter import InsertPoint
from xdsl.traits import is_side_effect_free

from rlx.dialects import mir
from rlx.dialects.common import element_of, tensor
from rlx.dialects.control import yielded
from rlx.dialects.primitives import MAX_CONSTANT_BYTES
from rlx.dialects.writer import constant, fill, has_numbers, nbytes
from rlx.passes.matching import (
    Replacement,
    Rule,
    ValueRule,
    apply_rules,
    keep_phase,
    splat_number,
    splat_of,
)

_SMALL = 1 << 10
"""Bytes of a result that may be more than its operands hold, though it is not one number."""

Dense = DenseIntOrFPElementsAttr[Any]


def _values(constant: Operation) -> np.ndarray[Any, Any]:
    """Return the values of a constant, as they are stored."""
    from rlx.reference import constant as array_of

    assert isinstance(constant, mir.ConstantOp)
    return array_of(cast(Dense, constant.value))


def _array(value: SSAValue) -> np.ndarray[Any, Any] | None:
    """Return the values of a constant or of an iota that is small enough to be one."""
    owner = value.owner
    if isinstance(owner, mir.ConstantOp):
        shape = cast(TensorType[Attribute], value.type).get_shape()
        return np.broadcast_to(_values(owner), shape)
    if isinstance(owner, mir.IotaOp) and has_numbers(value.type):
        from rlx.reference import fold

        return fold(owner, [])[0] if nbytes(value.type) <= MAX_CONSTANT_BYTES else None
    return None


def _constant(op: Operation, arrays: Sequence[np.ndarray[Any, Any]]) -> mir.ConstantOp:
    """Return the result of a primitive as a constant."""
    # Imported here: most programs have nothing to fold.
    from rlx.reference import dense, fold

    (values,) = fold(op, arrays)
    return mir.ConstantOp(dense(values, op.results[0].type))


class FoldPrimitive(ValueRule[Operation]):
    """Replace a primitive whose operands are constants, where the result is a small one."""

    ops = tuple(o for o in mir.PRIMITIVES if o not in (mir.ConstantOp, mir.IotaOp, mir.NarrowOp))

    def replacement(self, op: Operation) -> Replacement:
        type_ = op.results[0].type
        types = [type_, *op.operand_types]
        if not all(map(has_numbers, types)) or nbytes(type_) > MAX_CONSTANT_BYTES:
            return None
        arrays = [array for v in op.operands if (array := _array(v)) is not None]
        if not arrays or len(arrays) < len(op.operands):
            return None
        new = _constant(op, arrays)
        if self._bloats(op, cast(Dense, new.value)):
            return None
        return [new]

    def _bloats(self, op: Operation, value: Dense) -> bool:
        constants = (v for v in op.operands if isinstance(v.owner, mir.ConstantOp))
        limit = max(_SMALL, sum(nbytes(v.type) for v in constants))
        return len(value.data.data) > limit and splat_number(value) is None


class FoldMapOfFills(ValueRule[Operation]):
    """Compute one element of a map whose operands have one number each, of whatever shape."""

    ops = mir.MAPS

    def replacement(self, op: Operation) -> Replacement:
        numbers = [number for v in op.operands if (number := splat_of(v)) is not None]
        if len(numbers) < len(op.operands):
            return None
        scalars = [tensor([], element_of(v.type)) for v in (*op.operands, *op.results)]
        one = [constant(n, t) for n, t in zip(numbers, scalars, strict=False)]
        properties = op.properties.copy()
        element = type(op).create(
            operands=[c.result for c in one], result_types=scalars[-1:], properties=properties
        )
        new = _constant(element, list(map(_values, one)))
        element.erase()
        number = splat_number(cast(Dense, new.value))
        return fill(number, op.results[0].type) if number is not None else None


class TakeArm(ValueRule[mir.SelectOp]):
    """Replace a select whose condition is the same everywhere by the arm that it takes."""

    ops = (mir.SelectOp,)

    def replacement(self, op: mir.SelectOp) -> Replacement:
        condition = splat_of(op.condition)
        return None if condition is None else op.lhs if condition else op.rhs


class TakeBranch(Rule):
    """Replace an if of a constant condition by the operations of the branch that it takes."""

    ops = (mir.IfOp,)

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        assert isinstance(op, mir.IfOp)
        condition = splat_of(op.condition)
        if condition is None:
            return
        taken = (op.then if condition else op.otherwise).block
        keep_phase(op, (o for o in taken.ops if not isinstance(o, mir.YieldOp)))
        end = yielded(taken)
        rewriter.inline_block(taken, InsertPoint.before(op))
        values = list(end.arguments)
        rewriter.erase(end)
        rewriter.replace(op, [], values)


class EraseLoop(Rule):
    """Replace a loop whose condition never holds by the values that it starts with."""

    ops = (mir.WhileOp,)

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        assert isinstance(op, mir.WhileOp)
        block = op.condition.block
        if splat_of(yielded(block).arguments[0]) == 0 and all(map(is_side_effect_free, block.ops)):
            rewriter.replace(op, [], list(op.inits))


@dataclass(frozen=True)
class ConstantFoldPass(ModulePass):
    """
    Compute what depends on constants alone, and take the branches that they decide.

    %c = mir.constant dense<2.0>; %y = mir.binary mul %c, %c --> %y = mir.constant dense<4.0>
    mir.if (constant true) { a } else { b } --> a
    mir.while (%x) { mir.yield (constant false) } do { ... } --> %x

    No constant above 64 KiB is made, and none that holds much more than its operands, unless it is
    one number throughout.
    """

    name = "constant-fold"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rules = [FoldPrimitive(), FoldMapOfFills(), TakeArm(), TakeBranch(), EraseLoop()]
        apply_rules(op, rules)
