"""Fast forms of the exponential, the logistic functions, the logarithm and powers, for f32."""

from __future__ import annotations

import math

from rlx.lowering import vmath_log, vmath_pow
from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, vec
from rlx.lowering.vmath_base import (
    bits,
    clamp_high,
    clamp_low,
    constant,
    from_bits,
    layout,
    magnitude,
    native_512,
    nearest,
    polynomial,
    quick_two_sum,
    rarely,
    scale,
    scalef,
    wide,
)
from rlx.lowering.vmath_fast_roots import inverse_from_one
from rlx.lowering.vmath_pieces import lookup

_LOG2_E = math.log2(math.e)

# Minimax fits in relative error: 2^r on |r| <= 1/2 to 9e-8; log(1 + r) = r L(r) and
# log2(1 + r) = r log2(e) + r^2 Q(r), from sqrt(1/2) - 1 to sqrt(2) - 1 to 2e-7 and 3e-8, and near
# 0, from -1/32 to 1/16, to 1e-7 and 3e-9.
_EXP2 = (1.0, 0.693147, 0.24022242, 0.055507336, 0.009671513, 0.0013264724)
_LOG1P = (
    *(0.99999994, -0.50000364, 0.3333506, -0.24969909),
    *(0.19900173, -0.17250848, 0.16222525, -0.10106764),
)
_LOG1P_NEAR = (0.99999994, -0.5000104, 0.33358288, -0.239751)
_LOG2 = (
    *(-0.7213474, 0.48090726, -0.3606991, 0.28799182),
    *(-0.23906198, 0.21522108, -0.20641334, 0.12601581),
)
_LOG2_NEAR = (-0.72134745, 0.48091543, -0.36093083, 0.2740653)

_INVERSES = (
    *(1.0, 0.9140625, 0.86328125, 0.8203125, 0.78125, 0.74609375, 0.7109375, 0.6796875),
    *(0.65234375, 0.62890625, 0.60546875, 0.58203125, 0.5625, 0.54296875, 0.5234375, 0.5),
)
"""
Of the middles of sixteen pieces from 1 to 2; of the ends in the first and the last, so that beside
1 a logarithm comes from the polynomial alone and keeps its bits.
"""
_LOGS = tuple(-math.log(x) for x in _INVERSES)
_LOG2S = tuple(round(-math.log2(x) * 2**16) / 2**16 for x in _INVERSES)
"""Short, so that their sums with exponents are exact."""
_LOG2S_LOW = tuple(-math.log2(x) - high for x, high in zip(_INVERSES, _LOG2S, strict=True))


def exp(f: Function, v: Value) -> Value:
    return _power_of_two(f, v, _LOG2_E)


def sigmoid(f: Function, v: Value) -> Value:
    return _times_sigmoid(f, clamp_low(f, v, -87.0), _LOG2_E, None)


def silu(f: Function, v: Value) -> Value:
    v = clamp_low(f, v, -87.0)
    return _times_sigmoid(f, v, _LOG2_E, v)


def gelu_tanh(f: Function, v: Value) -> Value:
    """Return v (1 + tanh u) / 2 = v sigmoid(2u) where u = sqrt(2/pi) (v + 0.044715 v^3)."""
    v = clamp_low(f, v, -10.0)
    factor = 2.0 * math.sqrt(2.0 / math.pi) * _LOG2_E
    inner = f.fma(f.fmul(v, v), constant(f, v, 0.044715 * factor), constant(f, v, factor))
    return _times_sigmoid(f, f.fmul(v, inner), 1.0, v)


def _times_sigmoid(f: Function, v: Value, by: float, factor: Value | None) -> Value:
    """Return factor / (1 + 2^(-by v)), factor 1 where None."""
    denominator = f.fadd(_power_of_two(f, v, -by), constant(f, v, 1.0))
    return inverse_from_one(f, denominator, factor)


def _power_of_two(f: Function, v: Value, by: float) -> Value:
    """Return 2^(by v); without AVX-512 0 below 2^-125.5."""
    factor = constant(f, v, by)
    if wide(f):
        n, r = _whole(f, f.fmul(v, factor))
        return scalef(f, polynomial(f, _EXP2, r), n)
    low, high = sorted((-126.0 / by, 128.01 / by))
    v = clamp_high(f, clamp_low(f, v, low), high)
    # The bias rides on the rounding constant, less 1 and with twice the power, so that 2^128 has
    # an exponent field, and 2^-126 that of 0.
    magic = constant(f, v, layout(v).magic + 126.0)
    shifted = f.fma(v, factor, magic)
    r = f.fma(v, factor, f.fneg(f.fsub(shifted, magic)))
    twice = polynomial(f, [2.0 * c for c in _EXP2], r)
    return f.fmul(twice, from_bits(f, f.shl(bits(f, shifted), layout(v).digits)))


def _whole(f: Function, t: Value) -> tuple[Value, Value]:
    """Return (n, r): t = n + r, n whole and |r| <= 1/2; with AVX-512 r is 0 at infinity."""
    if wide(f):
        r = native_512(f, "mask.reduce.ps", t, 0)
        return f.fsub(t, r), r
    n = nearest(f, t)
    return n, f.fsub(t, n)


def log(f: Function, v: Value) -> Value:
    ln2 = constant(f, v, math.log(2))
    if wide(f):
        n, r, index = _near_parts(f, v)
        start = f.fma(n, ln2, lookup(f, _LOGS, index))
        return f.fma(r, polynomial(f, _LOG1P_NEAR, r), start)
    n, r = _log_parts(f, v)
    result = f.fma(n, ln2, f.fmul(r, polynomial(f, _LOG1P, r)))
    return rarely(f, _not_normal(f, v), vmath_log.log, [v], result)


def _near_parts(f: Function, v: Value) -> tuple[Value, Value, Value]:
    """
    Return (n, r, i): v = 2^n (1 + r) / _INVERSES[i], for v > 0 finite.

    What it returns for all others makes a sum of n and a multiple of r their logarithm.
    """
    n = native_512(f, "mask.getexp.ps", v)
    m = native_512(f, "mask.getmant.ps", v, 0b1000)  # from 1 to 2, NaN where v < 0
    index = f.lshr(bits(f, m), layout(v).digits - 4)
    return n, f.fma(m, lookup(f, _INVERSES, index), constant(f, v, -1.0)), index


def _log_parts(f: Function, v: Value) -> tuple[Value, Value]:
    """Return (n, r): v = 2^n (1 + r), 1 + r from sqrt(1/2) to sqrt(2), for normal v > 0."""
    form, word = layout(v), bits(f, v)
    one = 1 << form.digits
    low = int(math.sqrt(0.5) * 2 * one) - one
    exponents = f.add(word, f.constant(word.type, one - low))
    n = f.cast("sitofp", f.lshr(exponents, form.digits), v.type)
    kept = f.and_(exponents, f.constant(word.type, one - 1))
    m = from_bits(f, f.add(kept, f.constant(word.type, low + (form.bias - 1) * one)))
    return f.fsub(n, constant(f, v, form.bias)), f.fsub(m, constant(f, v, 1.0))


def _not_normal(f: Function, v: Value) -> Value:
    """Return where v isn't a normal number above 0: an unsigned comparison, moved to a signed."""
    first, count, half = 1 << 23, 254 << 23, 1 << 31
    word = f.add(bits(f, v), f.constant(vec(v.lanes, "i32"), half - first))
    return f.icmp("sge", word, count - half)


def pow(f: Function, x: Value, y: Value) -> Value:
    """
    Return x^y = 2^(y log2 x), with log2 x in two parts.

    The exact form takes over where x isn't a normal number above 0 or y isn't finite.
    """
    log, low = _log2(f, x)
    t = f.fmul(y, log)
    if not wide(f):
        t = clamp_high(f, clamp_low(f, t, -160.0), 160.0)
    lost = f.fma(y, low, f.fma(y, log, f.fneg(t)))
    n, r = _whole(f, t)
    # What a t beyond all exponents lost is anything.
    r = clamp_high(f, clamp_low(f, f.fadd(r, lost), -1.0), 1.0)
    result = (scalef if wide(f) else scale)(f, polynomial(f, _EXP2, r), n)
    unbounded = f.fcmp("uge", magnitude(f, y), constant(f, y, math.inf))
    return rarely(f, f.or_(_not_normal(f, x), unbounded), vmath_pow.pow, [x, y], result)


def _log2(f: Function, x: Value) -> tuple[Value, Value]:
    """Return log2 x, and what its rounding lost, for normal x > 0."""
    unit = constant(f, x, _LOG2_E)
    if wide(f):
        n, r, index = _near_parts(f, x)
        start = f.fadd(n, lookup(f, _LOG2S, index))
        low, rest = lookup(f, _LOG2S_LOW, index), polynomial(f, _LOG2_NEAR, r)
    else:
        start, r = _log_parts(f, x)
        low, rest = None, polynomial(f, _LOG2, r)
    first = f.fmul(r, unit)
    lost = f.fma(r, unit, f.fneg(first))
    lost = f.fma(f.fmul(r, r), rest, f.fadd(lost, low) if low else lost)
    part, lost = quick_two_sum(f, first, lost)
    total, low = quick_two_sum(f, start, part)
    return total, f.fadd(low, lost)
