"""Fast forms of division and roots, for f32: an instruction's approximation, and a Newton step."""

from __future__ import annotations

import math

from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, i32
from rlx.lowering.vmath_base import constant, native, native_512, wide

_NOT_FINITE = 0x99
"""NaN and both infinities, for the instruction that tells classes of numbers apart."""


def recip(f: Function, v: Value) -> Value:
    y = _approximate(f, "rcp", v)
    return _refined(f, y, _error(f, v, y), y)


def rsqrt(f: Function, v: Value) -> Value:
    y = _approximate(f, "rsqrt", v)
    return _refined(f, y, _error(f, f.fmul(v, y), y), f.fmul(y, constant(f, v, 0.5)))


def sqrt(f: Function, v: Value) -> Value:
    y = _approximate(f, "rsqrt", v)
    root = f.fmul(v, y)
    better = f.fma(f.fmul(root, constant(f, v, 0.5)), _error(f, root, y), root)
    zero, infinite = (f.fcmp("oeq", v, constant(f, v, x)) for x in (0.0, math.inf))
    return f.select(f.or_(zero, infinite), v, better)


def div(f: Function, a: Value, b: Value) -> Value:
    y = _approximate(f, "rcp", b)
    q = f.fmul(a, y)
    error = f.fma(f.fneg(b), q, a)

    def classify(f: Function, v: Value) -> Value:
        return f.intrinsic("x86.avx512.fpclass.ps.512", "<16 x i1>", v, i32(_NOT_FINITE))

    # With an infinite divisor or quotient there is no error to take off.
    return f.select(native(f, 16, classify, error), q, f.fma(y, error, q))


def inverse_from_one(f: Function, v: Value, factor: Value | None = None) -> Value:
    """Return factor / v, factor 1 where None, for v from 1 to 2^126."""
    one = constant(f, v, 1.0)
    if not wide(f):
        return f.fdiv(factor or one, v)
    y = _approximate(f, "rcp", v)
    y = f.fma(y, _error(f, v, y), y)
    return f.fmul(factor, y) if factor else y


def _approximate(f: Function, stem: str, v: Value) -> Value:
    """Return rcp or rsqrt to 14 bits, with AVX2 to 12."""
    if wide(f):
        return native_512(f, f"{stem}14.ps", v)

    def instruction(f: Function, v: Value) -> Value:
        return f.intrinsic(f"x86.avx.{stem}.ps.256", v.type, v)

    return native(f, 8, instruction, v)


def _error(f: Function, a: Value, b: Value) -> Value:
    """Return 1 - a b."""
    return f.fma(f.fneg(a), b, constant(f, a, 1.0))


def _refined(f: Function, y: Value, error: Value, by: Value) -> Value:
    """Return y + error `by`; y where it is 0 or infinite, whose error is not a number."""
    usual = f.fcmp("ogt", error, constant(f, y, -1.0))
    return f.select(usual, f.fma(by, error, y), y)
