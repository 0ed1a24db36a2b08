"""
Element-wise maths on float vectors of any lane count: exp and what is built from it.

Everything is branch-free and works at every instruction-set level: rounding to an integer is an
addition of 1.5 * 2^23, which needs no rounding instruction. NaN passes through every function.
The largest errors against float64, in units in the last place (ulp), over 3M random inputs and the
edges of the range, with FMA and without (an x86 CPU of before 2013):

| function  | FMA  | none | notes                                                                 |
|-----------|------|------|-----------------------------------------------------------------------|
| exp       | 0.77 | 0.77 | overflow to inf, underflow through subnormals to 0                    |
| sigmoid   | 1.83 | 1.83 | subnormal results too                                                 |
| silu      | 1.87 | 2.47 | subnormal results too; -0 at -inf                                     |
| tanh      | 1.90 | 1.92 |                                                                       |
| gelu_tanh | 14   | 14   | from -3 up; below, relative errors grow to 2e-5 as it vanishes        |
| softmax's | 0.92 | 1.19 | `exp2_softmax`, results below 2^-126.5 are 0                          |
"""

from __future__ import annotations

import math
from collections.abc import Callable

from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, f32, vec

_ROUND = 1.5 * 2.0**23
"""Adding this leaves round-to-nearest(x) in the low bits of the sum, for |x| < 2^22."""

_LN2_HIGH = 0.693359375
_LN2_LOW = math.log(2) - _LN2_HIGH
"""ln 2 in two parts; the first has 10 bits, so that its product with an exponent is exact."""

# Minimax fits in relative error: e^r = 1 + r + r^2 E(r) on |r| <= ln(2)/2 to 3e-9,
# 2^r = 1 + r T(r) on |r| <= 1/2 to 2e-9, and the short one to 3e-06.
_EXP = (0.49999994, 0.1666652, 0.041668408, 0.008368914, 0.001381419)
_EXP2 = (0.6931472, 0.24022648, 0.055503324, 0.009618437, 0.0013398874, 0.00015353362)
_EXP2_SHORT = (0.69312419, 0.24024099, 0.055906425, 0.009582853)


def constant(f: Function, like: Value, x: float) -> Value:
    """Return a float constant in every lane of a value like `like`."""
    return f.splat(f32(x), like.lanes)


def clamp_low(f: Function, v: Value, low: float) -> Value:
    """Return max(v, low), NaN where v is NaN (one instruction on x86)."""
    floor = constant(f, v, low)
    return f.select(f.fcmp("olt", v, floor), floor, v)


def clamp_high(f: Function, v: Value, high: float) -> Value:
    """Return min(v, high), NaN where v is NaN."""
    ceiling = constant(f, v, high)
    return f.select(f.fcmp("ogt", v, ceiling), ceiling, v)


def exp(f: Function, v: Value) -> Value:
    """Return e^v."""
    n, r, tail = _exp_parts(f, clamp_high(f, clamp_low(f, v, -105.0), 89.0))
    return _scale(f, _one_plus(f, r, tail), n)


def exp2_softmax(f: Function, v: Value) -> Value:
    """
    Return 2^v for v <= 0, exactly 0 below -126.5 (so at -inf): the weights of a softmax.

    Twelve instructions and no subnormal results.
    """
    return _exp2(f, clamp_low(f, v, -127.0), _EXP2)


def _exp2(f: Function, v: Value, coefficients: tuple[float, ...]) -> Value:
    """Return 2^v for v in [-127, 127], 0 below -126.5."""
    # The bias rides on the rounding constant, so that the sum's low bits are the exponent field.
    magic = constant(f, v, _ROUND + 127.0)
    shifted = f.fadd(v, magic)
    r = f.fsub(v, f.fsub(shifted, magic))
    power = f.fma(_polynomial(f, coefficients, r), r, constant(f, v, 1.0))
    bits = f.shl(f.cast("bitcast", shifted, vec(v.lanes, "i32")), 23)
    return f.fmul(power, f.cast("bitcast", bits, v.type))


def sigmoid(f: Function, v: Value) -> Value:
    """Return 1 / (1 + e^-v)."""
    return _logistic_product(f, v, None)


def silu(f: Function, v: Value) -> Value:
    """Return v / (1 + e^-v); -0 at -inf, the limit."""
    return _logistic_product(f, v, v)


def silu_bf16(f: Function, v: Value) -> Value:
    """
    Return silu(v) for a result that is rounded to bf16 next, at a third of the cost.

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
    scale = 2.0 * math.sqrt(2.0 / math.pi)
    square = f.fmul(v, v)
    inner = f.fma(square, constant(f, v, 0.044715 * scale), constant(f, v, scale))
    return _logistic_product(f, f.fmul(v, inner), v)


def tanh(f: Function, v: Value) -> Value:
    """
    Return tanh v.

    With e = exp(-2|v|) it is (1 - e) / (1 + e) below 1/2, from e - 1 so that small arguments keep
    their bits, and 1 - 2e / (1 + e) above, where the quotient's error shrinks in the subtraction.
    """
    one = constant(f, v, 1.0)
    magnitude = clamp_high(f, f.intrinsic("fabs", v.type, v), 10.0)
    n, r, tail = _exp_parts(f, f.fmul(magnitude, constant(f, v, -2.0)))
    expm1, power = f.fadd(r, tail), _power(f, n)
    large = f.fcmp("ogt", magnitude, constant(f, v, 0.55))
    twice = f.fadd(power, power)
    above = f.fma(twice, expm1, twice)
    below = f.fneg(f.fma(power, expm1, f.fsub(power, one)))
    ratio = f.fdiv(f.select(large, above, below), f.fma(power, expm1, f.fadd(power, one)))
    return f.intrinsic("copysign", v.type, f.select(large, f.fsub(one, ratio), ratio), v)


def _logistic_product(f: Function, argument: Value, factor: Value | None) -> Value:
    """
    Return factor * sigmoid(argument), factor 1 where None; argument must go to -inf with factor.

    With e = exp(-|argument|) <= 1 it is 1 / (1 + e) or e / (1 + e), so that nothing overflows; the
    scaling of e by 2^n comes last, so that nothing underflows early. The roundings of numerator
    and denominator go into a correction, which costs little beside the division.
    """
    one = constant(f, argument, 1.0)
    negative = f.fcmp("olt", argument, constant(f, argument, 0.0))
    below = f.fneg(f.intrinsic("fabs", argument.type, argument))
    n, r, tail = _exp_parts(f, clamp_low(f, below, -170.0))
    power = _one_plus(f, r, tail)
    e = _scale(f, power, n)
    denominator = f.fadd(e, one)
    lost = f.fneg(f.fadd(f.fsub(one, denominator), e))
    multiplier = f.select(negative, power, one)
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
    result = _scale(f, result, f.select(negative, n, f.zero(n.type)))
    # The correction of an infinite quotient is NaN.
    saturated = f.fcmp("ogt", argument, constant(f, argument, 30.0))
    return f.select(saturated, one if factor is None else factor, result)


def _exp_parts(f: Function, v: Value) -> tuple[Value, Value, Value]:
    """
    Return (n, r, tail): e^v = 2^n (1 + r + tail), n a whole float, for |v| < 175.

    `tail` is small against r, and holds what r lost in rounding.
    """
    magic = constant(f, v, _ROUND)
    n = f.fsub(f.fma(v, constant(f, v, math.log2(math.e)), magic), magic)
    high = f.fma(n, constant(f, v, -_LN2_HIGH), v)
    low = constant(f, v, -_LN2_LOW)
    r = f.fma(n, low, high)
    lost = f.fma(n, low, f.fsub(high, r))
    return n, r, f.fma(_polynomial(f, _EXP, r), f.fmul(r, r), lost)


def _one_plus(f: Function, r: Value, tail: Value) -> Value:
    """Return 1 + r + tail, rounded as if once."""
    one = constant(f, r, 1.0)
    total = f.fadd(one, r)
    return f.fadd(total, f.fadd(tail, f.fadd(f.fsub(one, total), r)))


def _polynomial(f: Function, coefficients: tuple[float, ...], r: Value) -> Value:
    total = constant(f, r, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = f.fma(total, r, constant(f, r, c))
    return total


def _power(f: Function, n: Value) -> Value:
    """Return 2^n for a whole float n in [-126, 127]."""
    exponent = f.cast("fptosi", n, vec(n.lanes, "i32"))
    return f.cast("bitcast", f.shl(f.add(exponent, 127), 23), n.type)


def _scale(f: Function, v: Value, n: Value) -> Value:
    """Return v * 2^n, rounded once, for a whole float n in [-252, 254]."""
    if f.target.avx512 and v.lanes == 16:
        everywhere, nearest = Value("i16", "-1"), Value("i32", "4")
        name = "x86.avx512.mask.scalef.ps.512"
        return f.intrinsic(name, v.type, v, n, v, everywhere, nearest)
    half = f.fmul(n, constant(f, v, 0.5))
    magic = constant(f, v, _ROUND)
    half = f.fsub(f.fadd(half, magic), magic)
    return f.fmul(f.fmul(v, _power(f, half)), _power(f, f.fsub(n, half)))


def maximum(f: Function, a: Value, b: Value) -> Value:
    """Return the larger, NaN where either is NaN."""
    return f.select(f.fcmp("ogt", a, b), a, _nan_or(f, a, b))


def minimum(f: Function, a: Value, b: Value) -> Value:
    """Return the smaller, NaN where either is NaN."""
    return f.select(f.fcmp("olt", a, b), a, _nan_or(f, a, b))


def _nan_or(f: Function, a: Value, b: Value) -> Value:
    return f.select(f.fcmp("uno", a, a), a, b)


UNARY: dict[str, Callable[[Function, Value], Value]] = {
    "neg": lambda f, v: f.fneg(v),
    "exp": exp,
    "silu": silu,
    "silu_bf16": silu_bf16,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "gelu_tanh": gelu_tanh,
    "relu": lambda f, v: clamp_low(f, v, 0.0),
    "sqrt": lambda f, v: f.intrinsic("sqrt", v.type, v),
    "rsqrt": lambda f, v: f.fdiv(constant(f, v, 1.0), f.intrinsic("sqrt", v.type, v)),
    "recip": lambda f, v: f.fdiv(constant(f, v, 1.0), v),
    "abs": lambda f, v: f.intrinsic("fabs", v.type, v),
}
"""Kind -> generator of one value from one."""

BINARY: dict[str, Callable[[Function, Value, Value], Value]] = {
    "add": lambda f, a, b: f.fadd(a, b),
    "sub": lambda f, a, b: f.fsub(a, b),
    "mul": lambda f, a, b: f.fmul(a, b),
    "div": lambda f, a, b: f.fdiv(a, b),
    "max": maximum,
    "min": minimum,
}
"""Kind -> generator of one value from two."""


def emit_unary(f: Function, kind: str, v: Value) -> Value:
    """Emit the function that `UNARY` calls `kind`, lane by lane."""
    return UNARY[kind](f, v)


def emit_binary(f: Function, kind: str, a: Value, b: Value) -> Value:
    """Emit the function that `BINARY` calls `kind`, lane by lane."""
    return BINARY[kind](f, a, b)
