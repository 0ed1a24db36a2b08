"""
What the passes that rewrite values share: rules, constants that fill a tensor, and the driver.

A rule replaces one operation. What is in a `mir.kernel` stays, because fusion chose what a kernel
generator finds there, and so does what reads a state, because it depends on when it runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from math import copysign
from typing import Any, Generic, TypeAlias, TypeVar, cast

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, ModuleOp, i1
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from rlx.dialects import infer, mir
from rlx.dialects.common import element_of, repeats
from rlx.dialects.writer import Number
from rlx.passes.rewriting import rewrite
from rlx.passes.state_views import state_views

OpT = TypeVar("OpT", bound=Operation)
Replacement: TypeAlias = SSAValue | Sequence[Operation] | None
"""A value that is there already, new operations of which the last has the result, or no change."""


class Rule(RewritePattern, ABC):
    """A rewrite of operations of the types `ops`; each rule has its own class."""

    ops: tuple[type[Operation], ...]


class ValueRule(Rule, Generic[OpT]):
    """A rule for operations with one result, which finds or makes another value for it."""

    @abstractmethod
    def replacement(self, op: OpT) -> Replacement:
        """Return what stands for an operation, which is one of `ops`."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        new = self.replacement(cast(OpT, op))
        if isinstance(new, SSAValue):
            rewriter.replace(op, [], [new])
        elif new is not None:
            keep_phase(op, new)
            rewriter.replace(op, new)


def keep_phase(old: Operation, new: Iterable[Operation]) -> None:
    """Let operations run when the one runs that they stand for; what they need is there by then."""
    if (phase := old.attributes.get(mir.PHASE)) is not None:
        for op in new:
            op.attributes.setdefault(mir.PHASE, phase)


class EraseUnused(RewritePattern):
    """Erase a primitive that nothing uses: rules look at how often a value is used."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not any(result.uses for result in op.results):
            rewriter.erase(op)


def apply_rules(module: ModuleOp, rules: Sequence[Rule]) -> None:
    """Apply rules, and erase the primitives that nothing uses, until nothing changes."""
    views = state_views(module)
    by_type: dict[type[Operation], list[RewritePattern]] = {
        cls: [EraseUnused()] for cls in mir.PRIMITIVES
    }
    for rule in rules:
        for cls in rule.ops:
            by_type.setdefault(cls, []).append(rule)

    def patterns(op: Operation) -> Sequence[RewritePattern]:
        if isinstance(op.parent_op(), mir.KernelOp) or not views.isdisjoint(op.operands):
            return ()
        return by_type.get(type(op), ())

    rewrite(module, patterns)


def made_for(op: Operation, value: SSAValue) -> Operation | None:
    """Return what makes a value, where nothing but `op` uses it and both run equally often."""
    owner = value.owner
    if not isinstance(owner, Operation) or not value.has_one_use():
        return None
    phases = [o.attributes.get(mir.PHASE) for o in (owner, op)]
    return owner if owner.parent is op.parent and phases[0] == phases[1] else None


# Constants


def splat_of(value: SSAValue) -> Number | None:
    """Return the one number that all elements of a value are, where that can be seen."""
    owner = value.owner
    while isinstance(owner, mir.BroadcastOp | mir.ReshapeOp | mir.TransposeOp | mir.SliceOp):
        owner = owner.input.owner
    if not isinstance(owner, mir.ConstantOp):
        return None
    return splat_number(cast(DenseIntOrFPElementsAttr[Any], owner.value))


def splat_number(value: DenseIntOrFPElementsAttr[Any]) -> Number | None:
    """Return the one number of a constant, None where it has several or none; i1 gives 0 or 1."""
    data, element = value.data.data, value.get_element_type()
    size = element.compile_time_size
    if not repeats(data, size):
        return None
    (number,) = element.unpack(data[:size], 1)
    return abs(number) if element == i1 else number


def is_number(value: SSAValue, number: Number) -> bool:
    """Return whether all elements of a value are a number; -0.0 is not 0.0."""
    found = splat_of(value)
    return found is not None and found == number and copysign(1, found) == copysign(1, number)


def is_float(value: SSAValue) -> bool:
    return element_of(value.type) in infer.FLOATS
