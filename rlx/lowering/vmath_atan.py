"""The inverse tangent of one and of two arguments."""

from __future__ import annotations

import math
import struct

from rlx.lowering.emitter import Function
from rlx.lowering.values import Value
from rlx.lowering.vmath_base import bits, constant, copysign, double, magnitude, pick, series

# Minimax fits of atan z = z + z w A(w) where w = z^2, for z up to tan(pi/8): to 7e-10 and 5e-18.
_ATAN = {
    "float": (-0.33333316, 0.19998528, -0.14244376, 0.105989285, -0.0608912),
    "double": (
        -0.333333333333332,
        0.19999999999953236,
        -0.14285714280158895,
        0.11111110781463578,
        -0.09090897697029925,
        0.07692059076243685,
        -0.0666309043195191,
        0.05847785319632772,
        -0.05038814325190861,
        0.038051558945253985,
        -0.01789239330730273,
    ),
}
_SMALL, _LARGE = math.tan(math.pi / 8), math.tan(3 * math.pi / 8)


def atan(f: Function, v: Value) -> Value:
    """Return the angle whose tangent is v, from -pi/2 to pi/2."""
    one = constant(f, v, 1.0)
    return copysign(f, _angle(f, magnitude(f, v), one, None), v)


def atan2(f: Function, y: Value, x: Value) -> Value:
    """Return the angle of the point (x, y), from -pi to pi; zeros and infinities as in C99."""
    zero, one = constant(f, y, 0.0), constant(f, y, 1.0)
    up, right = magnitude(f, y), magnitude(f, x)
    same = f.fcmp("oeq", up, right)
    infinite = f.fcmp("oeq", up, constant(f, y, math.inf))
    corner = f.binary("and", same, infinite)
    up, right = f.select(corner, one, up), f.select(corner, one, right)
    # The sum of the largest numbers must not overflow, nor a product of subnormal ones lose bits.
    larger = f.select(f.fcmp("ogt", up, right), up, right)
    top, bottom = pick(y, 2.0**120, 2.0**1000), pick(y, 2.0**-90, 2.0**-900)
    by = f.select(f.fcmp("ogt", larger, constant(f, y, top)), constant(f, y, 0.25), one)
    low = f.fcmp("olt", larger, constant(f, y, bottom))
    by = f.select(low, constant(f, y, 2.0**64), by)
    up, right = f.fmul(up, by), f.fmul(right, by)
    right = f.select(f.fcmp("oeq", larger, zero), one, right)
    left = f.icmp("slt", bits(f, x), 0)
    return copysign(f, _angle(f, up, right, left), y)


def _angle(f: Function, up: Value, right: Value, left: Value | None) -> Value:
    """
    Return the angle of a point with coordinates of at least 0; from the left where a mask holds.

    Within pi/8 of 0, pi/4 or pi/2 it is that angle and the arc of a small quotient.
    """
    near = f.fcmp("ole", up, f.fmul(right, constant(f, up, _SMALL)))
    far = f.fcmp("ogt", up, f.fmul(right, constant(f, up, _LARGE)))
    above = f.select(near, up, f.select(far, f.fneg(right), f.fsub(up, right)))
    below = f.select(near, right, f.select(far, up, f.fadd(up, right)))
    z = f.fdiv(above, below)

    def base_of(turns: tuple[float, float, float]) -> list[Value]:
        parts = zip(*(_pi_times(turn, up) for turn in turns), strict=True)
        spelled = [[constant(f, up, x) for x in part] for part in parts]
        return [f.select(near, a, f.select(far, b, c)) for a, b, c in spelled]

    base, low = base_of((0.0, 0.5, 0.25))
    if left is not None:
        mirrored = base_of((1.0, 0.5, 0.75))
        base, low = (f.select(left, m, b) for m, b in zip(mirrored, (base, low), strict=True))
        z = f.select(left, f.fneg(z), z)
    w = f.fmul(z, z)
    arc = f.fma(f.fmul(z, w), series(f, _ATAN, w), low)
    return f.fadd(base, f.fadd(z, arc))


def _pi_times(x: float, like: Value) -> tuple[float, float]:
    """Return pi x as the nearest number of an element type, and the rest; 4 x is whole."""
    product = math.pi * x
    if double(like):
        return product, 1.2246467991473532e-16 * x
    (high,) = struct.unpack("<f", struct.pack("<f", product))
    return high, product - high
