"""
The exponential and what is built from it: logistic functions, tanh, ELU, Mish.

The scaling by 2^n comes last everywhere, so that nothing under- or overflows before the result.
"""

from __future__ import annotations

import math

from rlx.lowering import vmath_pieces
from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, vec
from rlx.lowering.vmath_base import (
    LN2_PARTS,
    clamp_high,
    clamp_low,
    constant,
    copysign,
    double,
    layout,
    magnitude,
    pick,
    polynomial,
    power,
    quick_two_sum,
    scale,
    series,
)

# Minimax fits in relative error: e^r = 1 + r + r^2 E(r) on |r| <= ln(2)/2 to 3e-9, of f64 to 8e-19;
# 2^r = 1 + r T(r) on |r| <= 1/2 to 2e-9, and the short one to 3e-06.
_EXP = {
    "float": (0.49999994, 0.1666652, 0.041668408, 0.008368914, 0.001381419),
    "double": (
        0.5,
        0.16666666666666682,
        0.04166666666666609,
        0.008333333333316987,
        0.0013888888889116717,
        0.000198412698965075,
        2.4801586925047733e-05,
        2.7557234734258543e-06,
        2.7557582823461536e-07,
        2.511208259563462e-08,
        2.08264246374825e-09,
    ),
}
_EXP2 = (0.6931472, 0.24022648, 0.055503324, 0.009618437, 0.0013398874, 0.00015353362)
_EXP2_SHORT = (0.69312419, 0.24024099, 0.055906425, 0.009582853)


def ln2_parts(v: Value) -> tuple[float, float]:
    return LN2_PARTS[v.element]


def exp(f: Function, v: Value) -> Value:
    """Return e^v."""
    low, high = (-746.0, 710.0) if double(v) else (-105.0, 89.0)
    v = clamp_high(f, clamp_low(f, v, low), high)
    if f.target.avx512 and not double(v):
        return vmath_pieces.exp(f, v)
    return _scaled_exp(f, v)


def exp_below(f: Function, v: Value) -> Value:
    """Return e^v for v <= 0; NaN for NaN. With AVX-512 the last bit of an f32 may be wrong."""
    v = clamp_low(f, v, -746.0 if double(v) else -105.0)
    if f.target.avx512 and not double(v):
        return vmath_pieces.exp_below(f, v)
    return _scaled_exp(f, v)


def _scaled_exp(f: Function, v: Value) -> Value:
    n, r, tail = exp_parts(f, v)
    return scale(f, one_plus(f, r, tail), n)


def exp2_softmax(f: Function, v: Value) -> Value:
    """
    Return 2^v for f32 v <= 0, exactly 0 below -126.5 (so at -inf): the weights of a softmax.

    Twelve instructions and no subnormal results.
    """
    return _exp2(f, clamp_low(f, v, -127.0), _EXP2)


def _exp2(f: Function, v: Value, coefficients: tuple[float, ...]) -> Value:
    """Return 2^v for v in [-127, 127], 0 below -126.5."""
    # The bias rides on the rounding constant, so that the sum's low bits are the exponent field.
    magic = constant(f, v, layout(v).magic + 127.0)
    shifted = f.fadd(v, magic)
    r = f.fsub(v, f.fsub(shifted, magic))
    fraction = exp2_part(f, r, coefficients)
    field = f.shl(f.cast("bitcast", shifted, vec(v.lanes, "i32")), 23)
    return f.fmul(fraction, f.cast("bitcast", field, v.type))


def exp2_part(f: Function, r: Value, coefficients: tuple[float, ...] = _EXP2) -> Value:
    """Return 2^r for f32 |r| <= 1/2."""
    return f.fma(polynomial(f, coefficients, r), r, constant(f, r, 1.0))


def sigmoid(f: Function, v: Value) -> Value:
    """Return 1 / (1 + e^-v)."""
    return _logistic_product(f, v, None)


def silu(f: Function, v: Value) -> Value:
    """Return v / (1 + e^-v); -0 at -inf, the limit."""
    return _logistic_product(f, v, v)


def silu_bf16(f: Function, v: Value) -> Value:
    """
    Return silu(v) of f32 for a result that is rounded to bf16 next, at a third of the cost.

    Relative error 6e-5 above -87 (a bf16 has 4e-3), absolute error below 1e-35 under it.
    """
    v = clamp_low(f, v, -87.0)
    exponent = clamp_low(f, f.fmul(v, constant(f, v, -math.log2(math.e))), -127.0)
    one = constant(f, v, 1.0)
    denominator = f.fadd(_exp2(f, exponent, _EXP2_SHORT), one)
    if f.target.avx512 and v.lanes == 16:
        name = "x86.avx512.rcp14.ps.512"
        inverse = f.intrinsic(name, v.type, denominator, f.zero(v.type), Value("i16", "-1"))
        return f.fmul(v, inverse)
    return f.fdiv(v, denominator)


def gelu_tanh(f: Function, v: Value) -> Value:
    """Return v (1 + tanh u) / 2 = v sigmoid(2u) where u = sqrt(2/pi) (v + 0.044715 v^3)."""
    factor = 2.0 * math.sqrt(2.0 / math.pi)
    square = f.fmul(v, v)
    inner = f.fma(square, constant(f, v, 0.044715 * factor), constant(f, v, factor))
    return _logistic_product(f, f.fmul(v, inner), v)


def tanh(f: Function, v: Value) -> Value:
    """
    Return tanh v.

    With e = exp(-2|v|) it is (1 - e) / (1 + e) below 1/2, from e - 1 so that small arguments keep
    their bits, and 1 - 2e / (1 + e) above, where the quotient's error shrinks in the subtraction.
    """
    if f.target.avx512 and not double(v):
        return vmath_pieces.tanh(f, v)
    one = constant(f, v, 1.0)
    size = clamp_high(f, magnitude(f, v), pick(v, 10.0, 20.0))
    n, r, tail = exp_parts(f, f.fmul(size, constant(f, v, -2.0)))
    expm1, p = f.fadd(r, tail), power(f, n)
    large = f.fcmp("ogt", size, constant(f, v, 0.55))
    twice = f.fadd(p, p)
    above = f.fma(twice, expm1, twice)
    below = f.fneg(f.fma(p, expm1, f.fsub(p, one)))
    ratio = f.fdiv(f.select(large, above, below), f.fma(p, expm1, f.fadd(p, one)))
    return copysign(f, f.select(large, f.fsub(one, ratio), ratio), v)


def elu(f: Function, v: Value) -> Value:
    """Return v where positive, else e^v - 1."""
    n, r, tail = exp_parts(f, clamp_high(f, clamp_low(f, v, pick(v, -87.0, -708.0)), 0.0))
    p = power(f, n)
    below = f.fma(p, f.fadd(r, tail), f.fsub(p, constant(f, v, 1.0)))
    return f.select(f.fcmp("olt", v, constant(f, v, 0.0)), below, v)


def mish(f: Function, v: Value) -> Value:
    """
    Return v tanh(log(1 + e^v)); -0 at -inf, the limit.

    It is v w / (w + 2) where w = e^v (e^v + 2). With e = exp(-|v|) the quotient is
    (1 + 2e) / (1 + 2e + 2e^2) where v is positive.
    """
    zero, one, two = (constant(f, v, x) for x in (0.0, 1.0, 2.0))
    below = f.fneg(magnitude(f, v))
    n, r, tail = exp_parts(f, clamp_low(f, below, pick(v, -170.0, -1400.0)))
    fraction = one_plus(f, r, tail)
    e = scale(f, fraction, n)
    negative = f.fcmp("olt", v, zero)
    twice = f.fadd(e, e)
    w = f.select(negative, f.fma(e, e, twice), f.fadd(twice, one))
    denominator = f.fadd(w, f.select(negative, two, f.fmul(twice, e)))
    multiplier = f.select(negative, f.fma(fraction, e, f.fadd(fraction, fraction)), w)
    quotient = f.fdiv(f.fmul(clamp_low(f, v, -1e20), multiplier), denominator)
    return scale(f, quotient, f.select(negative, n, zero))


def _logistic_product(f: Function, argument: Value, factor: Value | None) -> Value:
    """
    Return factor * sigmoid(argument), factor 1 where None; argument must go to -inf with factor.

    With e = exp(-|argument|) <= 1 it is 1 / (1 + e) or e / (1 + e), so that nothing overflows; the
    scaling of e by 2^n comes last, so that nothing underflows early. The roundings of numerator
    and denominator go into a correction, which costs little beside the division.
    """
    one = constant(f, argument, 1.0)
    negative = f.fcmp("olt", argument, constant(f, argument, 0.0))
    below = f.fneg(magnitude(f, argument))
    n, r, tail = exp_parts(f, clamp_low(f, below, pick(argument, -170.0, -1400.0)))
    fraction = one_plus(f, r, tail)
    e = scale(f, fraction, n)
    denominator = f.fadd(e, one)
    lost = f.fneg(f.fadd(f.fsub(one, denominator), e))
    multiplier = f.select(negative, fraction, one)
    if factor is None:
        quotient = f.fdiv(multiplier, denominator)
        error = f.fmul(quotient, lost)
    else:
        bounded = clamp_low(f, factor, -1e20)
        product = f.fmul(bounded, multiplier)
        quotient = f.fdiv(product, denominator)
        error = f.fma(quotient, lost, f.fma(bounded, multiplier, f.fneg(product)))
    # 1 / (1 + e) within 6 %, enough for a correction.
    inverse = f.fma(denominator, constant(f, argument, -0.47), constant(f, argument, 1.41))
    result = f.fma(error, inverse, quotient)
    result = scale(f, result, f.select(negative, n, f.zero(n.type)))
    # The correction of an infinite quotient is NaN.
    saturated = f.fcmp("ogt", argument, constant(f, argument, pick(argument, 30.0, 60.0)))
    return f.select(saturated, one if factor is None else factor, result)


def exp_parts(f: Function, v: Value, low: Value | None = None) -> tuple[Value, Value, Value]:
    """
    Return (n, r, tail): e^v = 2^n (1 + r + tail), n a whole float, for |v| < 175 (f64: 1400).

    `tail` is small against r, and holds what r lost in rounding. `low` is what v lacks.
    """
    ln2_high, ln2_low = (constant(f, v, -part) for part in ln2_parts(v))
    magic = constant(f, v, layout(v).magic)
    n = f.fsub(f.fma(v, constant(f, v, math.log2(math.e)), magic), magic)
    high = f.fma(n, ln2_high, v)
    rest = None
    if low:
        high, rest = quick_two_sum(f, high, low)
    r = f.fma(n, ln2_low, high)
    lost = f.fma(n, ln2_low, f.fsub(high, r))
    return n, r, exp_tail(f, r, f.fadd(lost, rest) if rest else lost)


def exp_tail(f: Function, r: Value, lost: Value) -> Value:
    """Return e^(r + lost) - 1 - r where `lost` is below the digits of r."""
    return f.fma(series(f, _EXP, r), f.fmul(r, r), lost)


def one_plus(f: Function, r: Value, tail: Value) -> Value:
    """Return 1 + r + tail, rounded as if once."""
    one = constant(f, r, 1.0)
    total = f.fadd(one, r)
    return f.fadd(total, f.fadd(tail, f.fadd(f.fsub(one, total), r)))
