"""
The rules of `simplify-algebra` for casts, comparisons and selections, each exact.

Of a comparison with itself nothing is known where a float may be NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import bf16, f16, f32, f64, i1
from xdsl.ir import Attribute

from rlx.dialects import infer, mir
from rlx.dialects.common import element_of
from rlx.dialects.kinds import CompareKind, UnaryKind
from rlx.dialects.writer import fill
from rlx.passes.algebra_rules import argument_of
from rlx.passes.matching import Replacement, Rule, ValueRule, is_number

C = CompareKind

_DIGITS: Mapping[Attribute, int] = {f16: 11, bf16: 8, f32: 24, f64: 53}
"""The digits of whole numbers that each type of float has."""


def _keeps(source: Attribute, target: Attribute) -> bool:
    """Return whether a cast keeps every value of a type."""
    found, wider = infer.range_of(source), infer.range_of(target)
    if found is None:
        return target == f64 or (target == f32 and source in infer.STORAGE)
    if wider is not None:
        return target != i1 and wider[0] <= found[0] and found[1] <= wider[1]
    # The least integer of a type is a power of two: it has no more digits than the greatest.
    return found[1].bit_length() <= _DIGITS[target]


class ComposeCasts(ValueRule[mir.CastOp]):
    """A cast to the type itself --> x; a cast of one that keeps every value --> one cast."""

    ops = (mir.CastOp,)

    def replacement(self, op: mir.CastOp) -> Replacement:
        if op.input.type == op.result.type:
            return op.input
        inner = op.input.owner
        if not isinstance(inner, mir.CastOp):
            return None
        first, last = element_of(inner.input.type), element_of(op.result.type)
        if not self._is_one(first, element_of(op.input.type), last):
            return None
        return inner.input if first == last else [mir.CastOp(inner.input, last)]

    def _is_one(self, first: Attribute, middle: Attribute, last: Attribute) -> bool:
        """Return whether a cast by way of a type is the same as one without."""
        ranges = [infer.range_of(t) for t in (first, middle, last)]
        sizes = [high - low for low, high in filter(None, ranges)]
        if len(sizes) == 3 and i1 not in (middle, last) and sizes[2] <= sizes[1]:
            return True  # the low bits of the low bits
        # From a float, an integer that does not fit is the nearest; from an integer it wraps.
        wraps = ranges[0] is not None and ranges[2] is not None and last != i1
        alike = not wraps or ranges[1] is not None or _keeps(first, last)
        return alike and _keeps(first, middle)


class CompareWithSelf(ValueRule[mir.CompareOp]):
    """Of integers x == x, x <= x, x >= x --> true, and the others --> false."""

    ops = (mir.CompareOp,)

    def replacement(self, op: mir.CompareOp) -> Replacement:
        if op.lhs is not op.rhs or element_of(op.lhs.type) in infer.FLOATS:
            return None
        return fill(int(op.kind.data in (C.EQ, C.LE, C.GE)), op.result.type)


_OPPOSITE = {C.EQ: C.NE, C.NE: C.EQ, C.LT: C.GE, C.GE: C.LT, C.GT: C.LE, C.LE: C.GT}


class NegateCompare(ValueRule[mir.UnaryOp]):
    """not (a == b) --> a != b; of integers not (a < b) --> a >= b, which NaN would not allow."""

    ops = (mir.UnaryOp,)

    def replacement(self, op: mir.UnaryOp) -> Replacement:
        inner = op.input.owner
        if op.kind.data is not UnaryKind.NOT or not isinstance(inner, mir.CompareOp):
            return None
        kind = inner.kind.data
        if kind not in (C.EQ, C.NE) and element_of(inner.lhs.type) in infer.FLOATS:
            return None
        return [mir.CompareOp(_OPPOSITE[kind], inner.lhs, inner.rhs)]


class SimplifySelect(ValueRule[mir.SelectOp]):
    """select c, x, x --> x; select not c, x, y --> select c, y, x; select c, true, false --> c."""

    ops = (mir.SelectOp,)

    def replacement(self, op: mir.SelectOp) -> Replacement:
        if op.lhs is op.rhs:
            return op.lhs
        if element_of(op.lhs.type) == i1 and is_number(op.lhs, 1) and is_number(op.rhs, 0):
            return op.condition
        condition = argument_of(op.condition, UnaryKind.NOT)
        return [mir.SelectOp(condition, op.rhs, op.lhs)] if condition is not None else None


CAST_RULES: Sequence[Rule] = (
    ComposeCasts(),
    CompareWithSelf(),
    NegateCompare(),
    SimplifySelect(),
)
