"""
Powers: 2^(y log2 x), with the logarithm in f64 for f32 and in two f64 for f64.

A logarithm that is multiplied by y needs ten bits more than the result, or large exponents lose
them.
"""

from __future__ import annotations

import math

from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, vec
from rlx.lowering.vmath_base import (
    any_lane,
    clamp_high,
    clamp_low,
    constant,
    copysign,
    double,
    magnitude,
    nearest,
    polynomial,
    power,
    quick_two_sum,
    scale,
    two_product,
    two_sum,
)
from rlx.lowering.vmath_basic import round_even
from rlx.lowering.vmath_exp import exp_tail, one_plus
from rlx.lowering.vmath_log import split_exponent

# Minimax fits: log2(1 + d) = d L(d) from sqrt(1/2) to sqrt(2) to 3e-12, and 2^r = 1 + r T(r) on
# |r| <= 1/2 to 5e-11, for f32; atanh s = s + s z (1/3 + z A(z)), z = s^2, for s up to
# (sqrt 2 - 1)^2 to 1e-20, for f64.
_LOG2 = (
    1.442695040886558,
    -0.7213475203270583,
    0.48089834881220156,
    -0.36067379324084725,
    0.2885387949122251,
    -0.24044642718994202,
    0.2061071465708894,
    -0.18043691796120875,
    0.16021642955753623,
    -0.14249664395224973,
    0.13027577209171437,
    -0.1346386476997302,
    0.13251838859719892,
    -0.06973312589815725,
)
_EXP2 = (
    0.6931471805416463,
    0.24022651075886295,
    0.05550410962914399,
    0.009618036854807811,
    0.0013333430145622091,
    0.00015467140146671658,
    1.531515044969466e-05,
)
_ATANH = (
    0.20000000000001134,
    0.14285714285046694,
    0.11111111260576145,
    0.09090892125128702,
    0.07693381537245514,
    0.06628338444622128,
    0.06598846572717047,
)
_THIRD = (1 / 3, 1.850371707708594e-17)
_TWICE_LOG2_E = (2.8853900817779268, 4.0710547481862066e-17)
_LN2 = (math.log(2), 2.3190468138462996e-17)


def pow(f: Function, x: Value, y: Value) -> Value:
    """
    Return x^y with all special cases of C99: 1 where y is 0 or x is 1, even with NaN.

    The cases that aren't a finite power of a positive finite number are put right behind a branch.
    """
    infinity, zero = constant(f, x, math.inf), constant(f, x, 0.0)
    plain = f.binary("and", f.fcmp("ogt", x, zero), f.fcmp("olt", x, infinity))
    plain = f.binary("and", plain, f.fcmp("olt", magnitude(f, y), infinity))
    size = magnitude(f, x)
    result = _pow_double(f, size, y) if double(x) else _pow_single(f, size, y)
    a, b = (v if double(x) else f.cast("fpext", v, result.type) for v in (x, y))
    result = f.if_(
        any_lane(f, f.xor(plain, f.constant(plain.type, 1))),
        lambda: [_special(f, a, b, result)],
        lambda: [result],
    )[0]
    return result if double(x) else f.cast("fptrunc", result, x.type)


def _special(f: Function, x: Value, y: Value, result: Value) -> Value:
    """Return the power where `result` is that of |x| for finite numbers, |x| > 0."""
    zero, one, infinity = (constant(f, x, c) for c in (0.0, 1.0, math.inf))
    size = magnitude(f, x)
    grows = f.xor(f.fcmp("ogt", size, one), f.fcmp("olt", y, zero))
    ends = f.binary("or", f.fcmp("oeq", size, zero), f.fcmp("oeq", size, infinity))
    ends = f.binary("or", ends, f.fcmp("oeq", magnitude(f, y), infinity))
    result = f.select(ends, f.select(grows, infinity, zero), result)
    result = f.select(f.fcmp("oeq", size, one), one, result)
    whole = f.fcmp("oeq", round_even(f, y), y)
    half = f.fmul(y, constant(f, x, 0.5))
    odd = f.binary("and", whole, f.fcmp("one", round_even(f, half), half))
    result = f.select(odd, copysign(f, result, x), result)
    negative = f.binary("and", f.fcmp("olt", x, zero), f.fcmp("olt", size, infinity))
    undefined = f.binary("and", negative, f.xor(whole, f.constant(whole.type, 1)))
    undefined = f.binary("or", undefined, f.fcmp("uno", x, y))
    result = f.select(undefined, constant(f, x, math.nan), result)
    certain = f.binary("or", f.fcmp("oeq", y, zero), f.fcmp("oeq", x, one))
    return f.select(certain, one, result)


def _pow_single(f: Function, x: Value, y: Value) -> Value:
    """Return x^y as f64, with 36 bits, for finite f32 x > 0 and y."""
    wide = vec(x.lanes, "double")
    n, m = split_exponent(f, x)
    d = f.cast("fpext", f.fsub(m, constant(f, x, 1.0)), wide)
    log = f.fma(d, polynomial(f, _LOG2, d), f.cast("fpext", n, wide))
    t = f.fmul(f.cast("fpext", y, wide), log)
    t = clamp_high(f, clamp_low(f, t, -1000.0), 1000.0)
    whole = nearest(f, t)
    r = f.fsub(t, whole)
    fraction = f.fma(polynomial(f, _EXP2, r), r, constant(f, r, 1.0))
    return f.fmul(fraction, power(f, whole))


def _pow_double(f: Function, x: Value, y: Value) -> Value:
    """Return x^y for finite x > 0 and y."""
    high, low = _log2(f, x)
    t, lost = two_product(f, y, high)
    lost = f.fma(y, low, lost)
    t = clamp_high(f, clamp_low(f, t, -1100.0), 1100.0)
    # Beyond the bounds there is no more to add.
    inside = f.fcmp("olt", magnitude(f, t), constant(f, x, 1100.0))
    lost = f.select(inside, lost, constant(f, x, 0.0))
    whole = nearest(f, t)
    r = f.fsub(t, whole)
    ln2, ln2_low = (constant(f, x, part) for part in _LN2)
    product, rest = two_product(f, r, ln2)
    r, rest = quick_two_sum(f, product, f.fma(r, ln2_low, f.fma(lost, ln2, rest)))
    return scale(f, one_plus(f, r, exp_tail(f, r, rest)), whole)


def _log2(f: Function, x: Value) -> tuple[Value, Value]:
    """Return log2 x in two parts, to 2^-65 of it."""
    n, m = split_exponent(f, x)
    one = constant(f, x, 1.0)
    d = f.fsub(m, one)
    below, below_low = two_sum(f, m, one)
    inverse = f.fdiv(one, below)
    s = f.fmul(d, inverse)
    product, lost = two_product(f, s, below)
    rest = f.fsub(f.fsub(f.fsub(d, product), lost), f.fmul(s, below_low))
    s_low = f.fmul(rest, inverse)
    z, z_low = two_product(f, s, s)
    z_low = f.fma(f.fadd(s, s), s_low, z_low)
    third, third_low = (constant(f, x, part) for part in _THIRD)
    p = polynomial(f, _ATANH, z)
    w, w_low = quick_two_sum(f, third, f.fmul(z, p))
    w_low = f.fadd(w_low, f.fma(z_low, p, third_low))
    q, q_low = _times(f, (z, z_low), (w, w_low))
    v, v_low = _times(f, (s, s_low), (q, q_low))
    log, log_low = quick_two_sum(f, s, v)
    log_low = f.fadd(log_low, f.fadd(s_low, v_low))
    unit = constant(f, x, _TWICE_LOG2_E[0]), constant(f, x, _TWICE_LOG2_E[1])
    log, log_low = _times(f, (log, log_low), unit)
    total, lost = quick_two_sum(f, n, log)
    return total, f.fadd(lost, log_low)


def _times(f: Function, a: tuple[Value, Value], b: tuple[Value, Value]) -> tuple[Value, Value]:
    product, lost = two_product(f, a[0], b[0])
    return product, f.fma(a[0], b[1], f.fma(a[1], b[0], lost))
