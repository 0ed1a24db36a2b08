"""Functions of floats that need no series: signs, rounding, extrema, pieces of lines, mod."""

from __future__ import annotations

from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, vec
from rlx.lowering.vmath_base import (
    any_lane,
    bits,
    clamp_high,
    clamp_low,
    constant,
    copysign,
    double,
    from_bits,
    has_fma,
    layout,
    magnitude,
    split,
)


def sqrt(f: Function, v: Value) -> Value:
    return f.intrinsic("sqrt", v.type, v)


def rsqrt(f: Function, v: Value) -> Value:
    return recip(f, sqrt(f, v))


def recip(f: Function, v: Value) -> Value:
    return f.fdiv(constant(f, v, 1.0), v)


def sign(f: Function, v: Value) -> Value:
    """Return -1 or 1, 0 for zeros of both signs, and NaN for NaN."""
    zero, one = constant(f, v, 0.0), constant(f, v, 1.0)
    return f.select(f.fcmp("one", v, zero), copysign(f, one, v), f.fadd(v, zero))


# Rounding to whole numbers


def _rounds(f: Function) -> bool:
    """Return whether there is an instruction; LLVM would call libm for the others."""
    return not f.target.triple.startswith("x86") or f.target.has("avx") or f.target.has("sse4.1")


def round_even(f: Function, v: Value) -> Value:
    """Return the nearest whole number, the even one of two; -0 from -0.5 to -0."""
    if _rounds(f):
        return f.intrinsic("roundeven", v.type, v)
    limit = 2.0 ** layout(v).digits
    magic = copysign(f, constant(f, v, limit), v)
    rounded = copysign(f, f.fsub(f.fadd(v, magic), magic), v)
    return f.select(f.fcmp("olt", magnitude(f, v), constant(f, v, limit)), rounded, v)


def floor(f: Function, v: Value) -> Value:
    if _rounds(f):
        return f.intrinsic("floor", v.type, v)
    whole = round_even(f, v)
    above = f.fcmp("ogt", whole, v)
    return f.select(above, f.fsub(whole, constant(f, v, 1.0)), whole)


def ceil(f: Function, v: Value) -> Value:
    if _rounds(f):
        return f.intrinsic("ceil", v.type, v)
    return f.fneg(floor(f, f.fneg(v)))


# Extrema


def maximum(f: Function, a: Value, b: Value) -> Value:
    """Return the larger, NaN where either is NaN."""
    return _nan_or(f, a, f.select(f.fcmp("ogt", a, b), a, b))


def minimum(f: Function, a: Value, b: Value) -> Value:
    """Return the smaller, NaN where either is NaN."""
    return _nan_or(f, a, f.select(f.fcmp("olt", a, b), a, b))


def _nan_or(f: Function, a: Value, b: Value) -> Value:
    return f.select(f.fcmp("uno", a, a), a, b)


# Activations without an exponential


def relu(f: Function, v: Value) -> Value:
    return clamp_low(f, v, 0.0)


def softsign(f: Function, v: Value) -> Value:
    """Return v / (1 + |v|); the limits -1 and 1 at infinity."""
    size = clamp_high(f, magnitude(f, v), 1e30)
    return copysign(f, f.fdiv(size, f.fadd(size, constant(f, v, 1.0))), v)


def hard_sigmoid(f: Function, v: Value) -> Value:
    """Return relu6(v + 3) / 6."""
    return f.fmul(_relu6_ahead(f, v), constant(f, v, 1.0 / 6.0))


def hard_swish(f: Function, v: Value) -> Value:
    """Return v relu6(v + 3) / 6; -0 at -inf."""
    sixth = f.fmul(clamp_low(f, v, -4.0), constant(f, v, 1.0 / 6.0))
    return f.fmul(sixth, _relu6_ahead(f, v))


def _relu6_ahead(f: Function, v: Value) -> Value:
    return clamp_high(f, clamp_low(f, f.fadd(v, constant(f, v, 3.0)), 0.0), 6.0)


# Remainders


def mod(f: Function, a: Value, b: Value) -> Value:
    """
    Return a - b floor(a / b) for exact a / b, rounded once: of b's sign; NaN where b is 0.

    The remainder is exact for all arguments: a step of the loop takes 26 bits off the quotient, so
    that one is enough for most.
    """
    wide = vec(a.lanes, "double")
    x, y = (v if double(v) else f.cast("fpext", v, wide) for v in (a, b))
    r = _remainder(f, x, y)
    r = r if double(a) else f.cast("fptrunc", r, a.type)
    zero = constant(f, a, 0.0)
    differ = f.icmp("slt", f.xor(bits(f, r), bits(f, b)), 0)
    moved = f.select(differ, f.fadd(r, b), r)
    moved = f.select(f.fcmp("oeq", r, zero), copysign(f, zero, b), moved)
    return f.select(f.fcmp("uno", b, b), b, moved)


def _remainder(f: Function, x: Value, y: Value) -> Value:
    """Return an f64 r between -|y| and |y| such that (x - r) / y is whole."""
    size = magnitude(f, y)
    kept = -(1 << (layout(x).digits - 25))

    def outside(r: Value) -> Value:
        return f.fcmp("oge", magnitude(f, r), size)

    def step(carried: list[Value]) -> list[Value]:
        (r,) = carried
        divisor = size
        for _ in range(2):
            # A quotient that may overflow is taken by a multiple of y first.
            over = f.fcmp("olt", divisor, f.fmul(magnitude(f, r), constant(f, x, 2.0**-900)))
            divisor = f.select(over, f.fmul(divisor, constant(f, x, 2.0**600)), divisor)
        q = round_even(f, from_bits(f, f.and_(bits(f, f.fdiv(r, divisor)), kept)))
        if has_fma(f):
            rest = f.fma(f.fneg(q), divisor, r)
        else:
            high, low = split(f, divisor)
            rest = f.fsub(f.fsub(r, f.fmul(q, high)), f.fmul(q, low))
        return [f.select(outside(r), rest, r)]

    return f.while_([x], lambda v: any_lane(f, outside(v[0])), step)[0]
