"""
The rules of `simplify-algebra` for functions of one and two tensors, each exact.

Exact means that every bit of the result is the same in the type's own precision, but for those of
a NaN. So x + 0.0 stays, which is 0.0 for x = -0.0, and x * 0.0 too, which is NaN for x = inf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import frexp, inf

from xdsl.dialects.builtin import f64, i1
from xdsl.ir import Attribute, SSAValue

from rlx.dialects import infer, mir
from rlx.dialects.common import element_of
from rlx.dialects.kinds import BinaryKind, UnaryKind
from rlx.dialects.writer import Number, fill
from rlx.passes.matching import Replacement, Rule, ValueRule, is_number, splat_of

B, U = BinaryKind, UnaryKind

COMMUTATIVE = (B.ADD, B.MUL, B.AND, B.OR, B.XOR)
"""Kinds whose operands may be swapped without a change of any bit."""

_FLOAT_NEUTRAL: Mapping[BinaryKind, Number] = {
    B.ADD: -0.0,
    B.SUB: 0.0,
    B.MUL: 1.0,
    B.DIV: 1.0,
    B.POW: 1.0,
    B.MAX: -inf,
    B.MIN: inf,
}
_INTEGER_NEUTRAL: Mapping[BinaryKind, Number] = {
    B.ADD: 0,
    B.SUB: 0,
    B.MUL: 1,
    B.DIV: 1,
    B.AND: -1,
    B.OR: 0,
    B.XOR: 0,
    B.SHL: 0,
    B.SHR: 0,
}
_BOOL_NEUTRAL: Mapping[BinaryKind, Number] = {B.AND: 1, B.OR: 0, B.XOR: 0}
_INTEGER_ABSORBING: Mapping[BinaryKind, Number] = {B.MUL: 0, B.AND: 0, B.OR: -1}
_BOOL_ABSORBING: Mapping[BinaryKind, Number] = {B.AND: 0, B.OR: 1}


class DropNeutral(ValueRule[mir.BinaryOp]):
    """x + -0.0, x - 0.0, x * 1, x / 1, and of integers x + 0, x | 0, x & -1, x << 0 --> x."""

    ops = (mir.BinaryOp,)

    def replacement(self, op: mir.BinaryOp) -> Replacement:
        element, kind = element_of(op.lhs.type), op.kind.data
        floats = _FLOAT_NEUTRAL if element in infer.FLOATS else _INTEGER_NEUTRAL
        neutral = (_BOOL_NEUTRAL if element == i1 else floats).get(kind)
        if neutral is None:
            return None
        if is_number(op.rhs, neutral):
            return op.lhs
        swapped = kind in COMMUTATIVE or kind in (B.MAX, B.MIN)
        return op.rhs if swapped and is_number(op.lhs, neutral) else None


class Absorb(ValueRule[mir.BinaryOp]):
    """Of integers x * 0, x & 0 --> 0, x | -1 --> -1, and x mod 1 --> 0."""

    ops = (mir.BinaryOp,)

    def replacement(self, op: mir.BinaryOp) -> Replacement:
        element, kind = element_of(op.lhs.type), op.kind.data
        if element in infer.FLOATS:
            return None
        if kind is B.MOD and is_number(op.rhs, 1):
            return fill(0, op.result.type)
        absorbing = (_BOOL_ABSORBING if element == i1 else _INTEGER_ABSORBING).get(kind)
        if absorbing is None or not any(is_number(v, absorbing) for v in (op.lhs, op.rhs)):
            return None
        return fill(absorbing, op.result.type)


class CombineWithSelf(ValueRule[mir.BinaryOp]):
    """max, min, and, or of x and x --> x; of integers x - x, x ^ x --> 0."""

    ops = (mir.BinaryOp,)

    def replacement(self, op: mir.BinaryOp) -> Replacement:
        if op.lhs is not op.rhs:
            return None
        if op.kind.data in (B.MAX, B.MIN, B.AND, B.OR):
            return op.lhs
        zero = op.kind.data in (B.SUB, B.XOR) and element_of(op.lhs.type) not in infer.FLOATS
        return fill(0, op.result.type) if zero else None


class FoldSign(ValueRule[mir.BinaryOp]):
    """x + -y --> x - y; x - -y --> x + y."""

    ops = (mir.BinaryOp,)

    def replacement(self, op: mir.BinaryOp) -> Replacement:
        other = {B.ADD: B.SUB, B.SUB: B.ADD}.get(op.kind.data)
        negated = argument_of(op.rhs, U.NEG)
        if other is None or negated is None:
            return None
        return [mir.BinaryOp(other, op.lhs, negated)]


class DividePowerOfTwo(ValueRule[mir.BinaryOp]):
    """x / 2^k --> x * 2^-k; of integers x / 2^k --> x >> k and x mod 2^k --> x & 2^k - 1."""

    ops = (mir.BinaryOp,)

    def replacement(self, op: mir.BinaryOp) -> Replacement:
        kind, divisor, type_ = op.kind.data, splat_of(op.rhs), op.result.type
        if kind not in (B.DIV, B.MOD) or divisor is None or divisor == 0:
            return None
        if element_of(type_) in infer.FLOATS:
            exact = kind is B.DIV and has_exact_reciprocal(divisor, element_of(type_))
            made = fill(1 / divisor, type_) if exact else []
            other = B.MUL
        else:
            exact = divisor > 1 and int(divisor) & (int(divisor) - 1) == 0
            by = int(divisor).bit_length() - 1 if kind is B.DIV else int(divisor) - 1
            made = fill(by, type_) if exact else []
            other = B.SHR if kind is B.DIV else B.AND
        return [*made, mir.BinaryOp(other, op.lhs, made[-1].results[0])] if made else None


def has_exact_reciprocal(number: float, element: Attribute) -> bool:
    """
    Return whether a number is a power of two whose reciprocal is a normal number of a type.

    A product with it is then rounded as the quotient is. That of a subnormal may be infinite.
    """
    top = 1024 if element == f64 else 128
    mantissa, exponent = frexp(number)
    # A number of exponent e, 0.5 * 2^e, has a reciprocal of exponent 2 - e.
    return abs(mantissa) == 0.5 and 3 - top <= 2 - exponent <= top


_IDEMPOTENT = (U.ABS, U.SIGN, U.FLOOR, U.CEIL, U.ROUND, U.RELU)
_WHOLE = (U.FLOOR, U.CEIL, U.ROUND, U.SIGN)


class ApplyTwice(ValueRule[mir.UnaryOp]):
    """neg neg x, not not x --> x; abs abs x --> abs x; abs neg x --> abs x; floor ceil --> ceil."""

    ops = (mir.UnaryOp,)

    def replacement(self, op: mir.UnaryOp) -> Replacement:
        inner, kind = op.input.owner, op.kind.data
        if not isinstance(inner, mir.UnaryOp):
            return None
        first = inner.kind.data
        if kind == first and kind in (U.NEG, U.NOT):
            return inner.input
        if (kind == first and kind in _IDEMPOTENT) or (kind in _WHOLE[:3] and first in _WHOLE):
            return op.input
        if kind is U.ABS and first is U.NEG and not infer.is_unsigned(element_of(op.input.type)):
            return [mir.UnaryOp(U.ABS, inner.input)]
        return None


def argument_of(value: SSAValue, kind: UnaryKind) -> SSAValue | None:
    """Return what a value is a function of, if it is that function."""
    owner = value.owner
    return owner.input if isinstance(owner, mir.UnaryOp) and owner.kind.data == kind else None


ALGEBRA_RULES: Sequence[Rule] = (
    DropNeutral(),
    Absorb(),
    CombineWithSelf(),
    FoldSign(),
    DividePowerOfTwo(),
    ApplyTwice(),
)
