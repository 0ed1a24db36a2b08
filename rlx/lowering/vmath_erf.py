"""The error function, and GELU from its complement."""

from __future__ import annotations

import math

from rlx.lowering import vmath_pieces
from rlx.lowering.emitter import Function
from rlx.lowering.values import Value
from rlx.lowering.vmath_base import (
    clamp_high,
    clamp_low,
    constant,
    copysign,
    double,
    layout,
    magnitude,
    pick,
    power,
    scale,
    series,
    two_product,
)
from rlx.lowering.vmath_exp import exp2_part, exp_parts, one_plus

# Minimax fits in relative error: erf x = x + x P(x^2) for x up to 0.92, to 1e-9 and 3e-18;
# e^(z^2) erfc z = Q(t) / (z + K), t = z / (z + K) - M, for z up to 10.4 (f64: 27.4), to 7e-10
# and 4e-18.
_ERF = {
    "float": (
        0.12837917,
        -0.3761263,
        0.11283626,
        -0.026855735,
        0.0051924265,
        -0.0008050167,
        7.998975e-05,
    ),
    "double": (
        0.1283791670955126,
        -0.37612638903183754,
        0.1128379167095508,
        -0.02686617064511962,
        0.005223977625286237,
        -0.0008548327010983415,
        0.00012055332340743112,
        -1.4925628221312323e-05,
        1.6461589585866732e-06,
        -1.6357266730472713e-07,
        1.471183395335583e-08,
        -1.1596781943035704e-09,
        6.378790932300396e-11,
    ),
}
_ERFCX = {
    "float": (
        1.3140628,
        -2.3218656,
        2.9396493,
        -2.5079787,
        1.1248109,
        0.18025613,
        -0.4853108,
        0.043368675,
        0.20873685,
        -0.02482021,
        -0.08230166,
    ),
    "double": (
        1.095995661000491,
        -1.9530974581617642,
        3.092834809060947,
        -4.3268306505058,
        5.293625406048385,
        -5.568349991689289,
        4.888416954184634,
        -3.375366826830841,
        1.56468624817448,
        -0.14385096491672583,
        -0.4659739544293682,
        0.3621132005862028,
        -0.014889556597592961,
        -0.15451571327204303,
        0.07691177377674739,
        0.046729830322051996,
        -0.055443241851325833,
        -0.010217867749176707,
        0.03248859584426496,
        0.0013572547127141286,
        -0.016142853780774676,
        -0.000785461925516866,
        0.004280091985889537,
    ),
}
_CENTRE = {"float": 2.75, "double": 4.0}
_MIDDLE = {"float": 0.375, "double": 0.5}
"""K, and the middle M of the range of the quotient."""

_HALF_LOG2_E = (0.7213475108146667, 9.62981494545545e-09)
"""log2(e) / 2, as a number of f32 and the rest."""


def erf(f: Function, v: Value) -> Value:
    """Return 2/sqrt(pi) times the integral of e^(-t^2) from 0 to v."""
    if f.target.avx2 and not double(v):
        return vmath_pieces.erf(f, v)
    one = constant(f, v, 1.0)
    size = magnitude(f, v)
    near = f.fmul(v, v)
    small = f.fma(size, series(f, _ERF, near), size)
    z = clamp_high(f, size, pick(v, 4.0, 6.0))
    n, fraction = _gauss(f, z, -1.0)
    large = f.fsub(one, f.fmul(f.fmul(fraction, power(f, n)), _erfcx(f, z)))
    below = f.fcmp("olt", size, constant(f, v, 0.92))
    return copysign(f, f.select(below, small, large), v)


def gelu(f: Function, v: Value) -> Value:
    """
    Return v P(X < v) for a normal X; -0 at -inf, the limit.

    With q = P(X < -|v|) = erfc(|v| / sqrt 2) / 2 it is max(v, 0) - |v| q.
    """
    size = clamp_high(f, magnitude(f, v), pick(v, 14.6, 38.7))
    if f.target.avx512 and not double(v):
        tail = _pieces_tail(f, size)
        return f.fsub(clamp_low(f, v, 0.0), tail)
    n, fraction = _gauss(f, size, -0.5)
    half = f.fmul(_erfcx(f, f.fmul(size, constant(f, v, math.sqrt(0.5)))), constant(f, v, 0.5))
    tail = scale(f, f.fmul(f.fmul(size, half), fraction), n)
    positive = f.fcmp("oge", v, constant(f, v, 0.0))
    return f.select(positive, f.fsub(v, tail), f.fneg(tail))


def _pieces_tail(f: Function, z: Value) -> Value:
    """Return z P(X < -z) for f32 z >= 0."""
    square, lost = two_product(f, z, z)
    high, low = (constant(f, z, -part) for part in _HALF_LOG2_E)
    magic = constant(f, z, layout(z).magic)
    n = f.fsub(f.fma(square, high, magic), magic)
    # Exact but for a rounding of numbers below 1/2.
    r = f.fma(square, high, f.fneg(n))
    r = f.fma(lost, high, f.fma(square, low, r))
    return scale(f, f.fmul(f.fmul(z, vmath_pieces.mills(f, z)), exp2_part(f, r)), n)


def _gauss(f: Function, z: Value, factor: float) -> tuple[Value, Value]:
    """Return (n, m): e^(factor z^2) = 2^n m; `factor` is a power of two."""
    square, lost = two_product(f, z, z)
    by = constant(f, z, factor)
    n, r, tail = exp_parts(f, f.fmul(square, by), f.fmul(lost, by))
    return n, one_plus(f, r, tail)


def _erfcx(f: Function, z: Value) -> Value:
    """Return e^(z^2) erfc z."""
    centre = constant(f, z, _CENTRE[z.element])
    inverse = f.fdiv(constant(f, z, 1.0), f.fadd(z, centre))
    t = f.fsub(f.fmul(z, inverse), constant(f, z, _MIDDLE[z.element]))
    return f.fmul(series(f, _ERFCX, t), inverse)
