"""
Sine, cosine and tangent, in f64 throughout: an f32 argument is widened, and the result rounded.

The argument minus a multiple of pi/2 is found in two parts, with a fast form below 1.6e6 and
`vmath_reduce` above, so that every finite argument is right.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, vec
from rlx.lowering.vmath_base import (
    any_lane,
    bits,
    constant,
    double,
    from_bits,
    magnitude,
    polynomial,
    two_sum,
)
from rlx.lowering.vmath_reduce import PIO2_PARTS, reduce_large

_FAST = 1.6e6
"""Below this a multiple of pi/2 has 20 bits, and its product with 32 bits of pi/2 is exact."""

_TWO_OVER_PI = 0.6366197723675814
_MAGIC = 1.5 * 2.0**52

# Minimax fits on |r| <= pi/4: sin r = r + r z S(z), cos r = 1 - z/2 + z^2 C(z) where z = r^2, to
# 4e-9 and 2e-10 for results of f32, to 9e-18 and 2e-18 for f64.
_SIN_SHORT = (-0.1666665454016448, 0.008332156190165805, -0.0001951464375480363)
_COS_SHORT = (0.04166664560336708, -0.0013887311425047227, 2.443253356827279e-05)
_SIN = (
    -0.1666666666666663,
    0.00833333333332202,
    -0.00019841269829503765,
    2.7557313589745954e-06,
    -2.5050742546036584e-08,
    1.589591418170232e-10,
)
_COS = (
    0.041666666666666595,
    -0.0013888888888872897,
    2.4801587288749182e-05,
    -2.755731414875478e-07,
    2.0875696575504715e-09,
    -1.135831007999319e-11,
)


class _Turn(NamedTuple):
    """Sine and cosine of an argument less a multiple of pi/2, and that multiple as an i64."""

    sin: Value
    cos: Value
    quadrant: Value


def sin(f: Function, v: Value) -> Value:
    return _rounded(f, _quarter(f, _turn(f, v), 0), v)


def cos(f: Function, v: Value) -> Value:
    return _rounded(f, _quarter(f, _turn(f, v), 1), v)


def tan(f: Function, v: Value) -> Value:
    turn = _turn(f, v)
    odd = f.icmp("ne", f.and_(turn.quadrant, 1), 0)
    above = f.select(odd, f.fneg(turn.cos), turn.sin)
    return _rounded(f, f.fdiv(above, f.select(odd, turn.sin, turn.cos)), v)


def _rounded(f: Function, result: Value, v: Value) -> Value:
    return result if double(v) else f.cast("fptrunc", result, v.type)


def _quarter(f: Function, turn: _Turn, ahead: int) -> Value:
    """Return the sine of an argument, `ahead` quarters of a turn later."""
    quadrant = f.add(turn.quadrant, ahead)
    odd = f.icmp("ne", f.and_(quadrant, 1), 0)
    sign = f.shl(f.and_(quadrant, 2), 62)
    size = f.select(odd, turn.cos, turn.sin)
    return from_bits(f, f.xor(bits(f, size), sign))


def _turn(f: Function, v: Value) -> _Turn:
    x = v if double(v) else f.cast("fpext", v, vec(v.lanes, "double"))
    shifted = f.fma(x, constant(f, x, _TWO_OVER_PI), constant(f, x, _MAGIC))
    n = f.fsub(shifted, constant(f, x, _MAGIC))
    r, low = _reduce(f, x, n) if double(v) else _reduce_single(f, x, n)
    quadrant = bits(f, shifted)
    large = f.fcmp("oge", magnitude(f, x), constant(f, x, _FAST))
    r, low, quadrant = f.if_(
        any_lane(f, large),
        lambda: reduce_large(f, x, large, r, low, quadrant),
        lambda: [r, low, quadrant],
    )
    z = f.fmul(r, r)
    half = f.fmul(z, constant(f, x, 0.5))
    one = constant(f, x, 1.0)
    rest = f.fsub(one, half)
    if not double(v):
        sine = f.fmul(r, f.fma(z, polynomial(f, _SIN_SHORT, z), one))
        return _Turn(sine, f.fma(f.fmul(z, z), polynomial(f, _COS_SHORT, z), rest), quadrant)
    sine = f.fadd(r, f.fma(f.fmul(r, z), polynomial(f, _SIN, z), f.fmul(low, rest)))
    sine = f.select(f.fcmp("oeq", x, constant(f, x, 0.0)), x, sine)  # the sums make -0 a 0
    lost = f.fsub(f.fsub(one, rest), half)
    fourth = f.fma(f.fmul(z, z), polynomial(f, _COS, z), f.fneg(f.fmul(r, low)))
    return _Turn(sine, f.fadd(rest, f.fadd(lost, fourth)), quadrant)


def _reduce(f: Function, x: Value, n: Value) -> tuple[Value, Value]:
    """Return x - n pi/2 in two parts, for |x| below `_FAST`."""
    first, second, third, fourth = (constant(f, x, -part) for part in PIO2_PARTS)
    high, low = two_sum(f, f.fma(n, first, x), f.fmul(n, second))
    high, lower = two_sum(f, high, f.fmul(n, third))
    low = f.fma(n, fourth, f.fadd(low, lower))
    total = f.fadd(high, low)
    return total, f.fadd(f.fsub(high, total), low)


def _reduce_single(f: Function, x: Value, n: Value) -> tuple[Value, Value]:
    """Return x - n pi/2, and 0, for an x of 24 bits: it has 36 bits at the worst."""
    first, second = PIO2_PARTS[0], PIO2_PARTS[1] + PIO2_PARTS[2]
    r = f.fma(n, constant(f, x, -second), f.fma(n, constant(f, x, -first), x))
    return r, f.zero(x.type)
