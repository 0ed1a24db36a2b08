"""The logarithm and what is built from it: softplus and its mirror, log_sigmoid."""

from __future__ import annotations

import math

from rlx.lowering.emitter import Function
from rlx.lowering.values import Value
from rlx.lowering.vmath_base import (
    bits,
    clamp_high,
    clamp_low,
    constant,
    from_bits,
    layout,
    magnitude,
    series,
)
from rlx.lowering.vmath_exp import exp, ln2_parts

# Minimax fits: 2 atanh(s) = s (2 + z L(z)) where z = s^2. First for s up to (sqrt 2 - 1)^2,
# to 9e-10 and 2e-18; then for s up to 1/3, to 2e-10 and 3e-18.
_LOG = {
    "float": (0.66666776, 0.39977568, 0.2987156),
    "double": (
        0.6666666666666735,
        0.39999999999411967,
        0.28571428743079497,
        0.22222198492830378,
        0.18183568989375656,
        0.15313919080659907,
        0.1479738197390543,
    ),
}
_LOG1P = {
    "float": (0.66666675, 0.3999895, 0.28615212, 0.21443889, 0.24245231),
    "double": (
        0.6666666666666631,
        0.4000000000015724,
        0.28571428547854183,
        0.22222223969728427,
        0.18181743924570026,
        0.1538655993779238,
        0.13300973325364007,
        0.12106088694681098,
        0.08340089679192508,
        0.17018598758052444,
    ),
}


def split_exponent(f: Function, v: Value) -> tuple[Value, Value]:
    """Return (n, m): v = 2^n m, n a whole float, m from sqrt(1/2) to sqrt(2), for v > 0 finite."""
    form = layout(v)
    tiny = f.fcmp("olt", v, constant(f, v, 2.0 ** (1 - form.bias)))
    up = 2.0 ** (form.digits + 1)
    v = f.select(tiny, f.fmul(v, constant(f, v, up)), v)
    word = bits(f, v)
    # Adding what lies between sqrt(1/2) and 1 carries into the exponent at a power of two's middle.
    low = int(math.sqrt(0.5) * 2 ** (form.digits + 1)) - (1 << form.digits)
    exponents = f.add(word, f.constant(word.type, (1 << form.digits) - low))
    field = f.lshr(exponents, form.digits)
    kept = f.and_(exponents, f.constant(word.type, (1 << form.digits) - 1))
    mantissa = f.add(kept, f.constant(word.type, low + ((form.bias - 1) << form.digits)))
    magic = constant(f, v, form.magic)
    shifted = from_bits(f, f.add(field, bits(f, magic)))
    bias = f.select(
        tiny,
        constant(f, v, form.magic + form.bias + form.digits + 1),
        constant(f, v, form.magic + form.bias),
    )
    return f.fsub(shifted, bias), from_bits(f, mantissa)


def log(f: Function, v: Value) -> Value:
    """
    Return the natural logarithm: -inf at 0, NaN below.

    With m = 1 + d and s = d / (2 + d), log m = 2 atanh s = d - d^2/2 + s (d^2/2 + s^2 L(s^2)).
    """
    n, m = split_exponent(f, v)
    d = f.fsub(m, constant(f, v, 1.0))
    s = f.fdiv(d, f.fadd(d, constant(f, v, 2.0)))
    z = f.fmul(s, s)
    half = f.fmul(f.fmul(d, d), constant(f, v, 0.5))
    ln2_high, ln2_low = (constant(f, v, part) for part in ln2_parts(v))
    inner = f.fma(s, f.fma(z, series(f, _LOG, z), half), f.fmul(n, ln2_low))
    result = f.fma(n, ln2_high, f.fsub(d, f.fsub(half, inner)))
    zero, infinity = constant(f, v, 0.0), constant(f, v, math.inf)
    result = f.select(f.fcmp("olt", v, infinity), result, v)
    pole = f.select(f.fcmp("oeq", v, zero), f.fneg(infinity), constant(f, v, math.nan))
    return f.select(f.fcmp("ogt", v, zero), result, pole)


def softplus(f: Function, v: Value) -> Value:
    """Return log(1 + e^v)."""
    return f.fadd(clamp_low(f, v, 0.0), _log1p_exp(f, v))


def log_sigmoid(f: Function, v: Value) -> Value:
    """Return -log(1 + e^-v)."""
    return f.fsub(clamp_high(f, v, -0.0), _log1p_exp(f, v))


def _log1p_exp(f: Function, v: Value) -> Value:
    """Return log(1 + e) where e = exp(-|v|), as 2 atanh(e / (2 + e))."""
    e = exp(f, f.fneg(magnitude(f, v)))
    s = f.fdiv(e, f.fadd(e, constant(f, v, 2.0)))
    z = f.fmul(s, s)
    return f.fma(f.fmul(s, z), series(f, _LOG1P, z), f.fadd(s, s))
