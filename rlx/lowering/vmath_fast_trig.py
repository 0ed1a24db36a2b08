"""Fast forms of sine and cosine, in f32 throughout, for f32."""

from __future__ import annotations

import math
from collections.abc import Callable

from rlx.lowering import vmath_trig
from rlx.lowering.emitter import Function
from rlx.lowering.values import Value
from rlx.lowering.vmath_base import bits, constant, from_bits, layout, magnitude, polynomial, rarely

_LARGE = 25000.0
"""From here on, where a multiple of pi has more than 13 bits, the exact forms take over."""

_SIN = (1.0, -0.1666666, 0.008333066, -0.0001980957, 2.6057046e-06)
"""Minimax fit in relative error: sin r = r S(r^2) on |r| <= pi/2, to 6e-9."""

_PI = (3.140625, 0.0009670257568359375, 6.278329465203569e-07)
"""pi as a sum, whose first parts are short: their products with 14 bits are exact."""


def sin(f: Function, v: Value) -> Value:
    return _sine(f, v, 0.0, vmath_trig.sin)


def cos(f: Function, v: Value) -> Value:
    return _sine(f, v, 0.5, vmath_trig.cos)


def _sine(f: Function, v: Value, ahead: float, exact: Callable[[Function, Value], Value]) -> Value:
    """Return sin(v + ahead pi), which `exact` returns for all v."""
    magic, half_turn = constant(f, v, layout(v).magic), constant(f, v, 1.0 / math.pi)
    if ahead:
        turns = f.fma(v, half_turn, constant(f, v, ahead))
        shifted = f.fadd(turns, magic)
        n = f.fsub(f.fsub(shifted, magic), constant(f, v, ahead))
    else:
        shifted = f.fma(v, half_turn, magic)
        n = f.fsub(shifted, magic)
    r = v
    for part in _PI:
        r = f.fma(n, constant(f, v, -part), r)
    size = f.fmul(r, polynomial(f, _SIN, f.fmul(r, r)))
    result = from_bits(f, f.xor(bits(f, size), f.shl(bits(f, shifted), 31)))
    large = f.fcmp("uge", magnitude(f, v), constant(f, v, _LARGE))
    return rarely(f, large, exact, [v], result)
