"""
What the element-wise functions are built from: constants, bits, polynomials, powers of two.

Every helper takes f32 and f64 values of any lane count and tells them apart by their type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rlx.lowering.emitter import Function
from rlx.lowering.values import Index, Value, f32, f64, i32, vec


@dataclass(frozen=True)
class Layout:
    """The bits of a float type."""

    integer: str
    """The integer of its size."""
    digits: int
    """Fraction bits that are stored."""
    bias: int
    """The exponent field of 1."""

    @property
    def magic(self) -> float:
        """Return what leaves round-to-nearest(x) in the low bits of a sum with a small x."""
        return 1.5 * 2.0**self.digits

    @property
    def sign(self) -> int:
        return -(1 << (int(self.integer[1:]) - 1))


LN2_PARTS = {
    "float": (0.693359375, math.log(2) - 0.693359375),
    "double": (0.6931471805592082, 7.371002565167799e-13),
}
"""ln 2 in two parts; the first is short, so that its product with an exponent is exact."""

_LONG = 8
"""From how many coefficients on a polynomial is evaluated in halves."""

_LAYOUTS = {"float": Layout("i32", 23, 127), "double": Layout("i64", 52, 1023)}


def layout(v: Value) -> Layout:
    return _LAYOUTS[v.element]


def double(v: Value) -> bool:
    return v.element == "double"


def pick(v: Value, single: float, wide: float) -> float:
    """Return the number that a function uses for the element type of `v`."""
    return wide if double(v) else single


def has_fma(f: Function) -> bool:
    """Return whether `Function.fma` rounds once."""
    return not f.target.triple.startswith("x86") or f.target.has("fma")


def constant(f: Function, like: Value, x: float) -> Value:
    """Return a float constant in every lane of a value like `like`."""
    return f.splat(f64(x) if double(like) else f32(x), like.lanes)


def clamp_low(f: Function, v: Value, low: float) -> Value:
    """Return max(v, low), NaN where v is NaN (one instruction on x86)."""
    floor = constant(f, v, low)
    return f.select(f.fcmp("olt", v, floor), floor, v)


def clamp_high(f: Function, v: Value, high: float) -> Value:
    """Return min(v, high), NaN where v is NaN."""
    ceiling = constant(f, v, high)
    return f.select(f.fcmp("ogt", v, ceiling), ceiling, v)


def magnitude(f: Function, v: Value) -> Value:
    return f.intrinsic("fabs", v.type, v)


def copysign(f: Function, v: Value, sign: Value) -> Value:
    return f.intrinsic("copysign", v.type, v, sign)


def bits(f: Function, v: Value) -> Value:
    """Return the bits of floats as integers."""
    return f.cast("bitcast", v, vec(v.lanes, layout(v).integer))


def from_bits(f: Function, v: Value) -> Value:
    """Return the floats that integers of 32 or 64 bits spell."""
    return f.cast("bitcast", v, vec(v.lanes, "float" if v.element == "i32" else "double"))


def any_lane(f: Function, mask: Value) -> Value:
    """Return whether a mask holds in some lane, as a scalar."""
    if mask.lanes == 1:
        return mask
    return f.intrinsic("vector.reduce.or", "i1", mask, suffixes=[mask.type])


def polynomial(f: Function, coefficients: Sequence[float], x: Value) -> Value:
    """
    Return c0 + c1 x + c2 x^2 + ...

    A long one is the sum of its even and odd halves: what costs is the chain of operations.
    """
    if len(coefficients) >= _LONG:
        square = f.fmul(x, x)
        even, odd = (polynomial(f, coefficients[start::2], square) for start in (0, 1))
        return f.fma(odd, x, even)
    total = constant(f, x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = f.fma(total, x, constant(f, x, c))
    return total


def series(f: Function, table: Mapping[str, tuple[float, ...]], x: Value) -> Value:
    """Return the polynomial that a table holds for the element type of `x`."""
    return polynomial(f, table[x.element], x)


# Whole numbers and powers of two


def nearest(f: Function, v: Value) -> Value:
    """Return the whole number nearest to v, for |v| < 2^22, or 2^51 of f64."""
    magic = constant(f, v, layout(v).magic)
    return f.fsub(f.fadd(v, magic), magic)


def power(f: Function, n: Value) -> Value:
    """Return 2^n for a whole float n in the range of normal exponents."""
    form = layout(n)
    field = bits(f, f.fadd(n, constant(f, n, form.magic + form.bias)))
    return from_bits(f, f.shl(field, form.digits))


def scale(f: Function, v: Value, n: Value) -> Value:
    """Return v * 2^n, rounded once, for a whole float n in twice the range of exponents."""
    if _scales(f, v):
        return scalef(f, v, n)
    half = nearest(f, f.fmul(n, constant(f, v, 0.5)))
    return f.fmul(f.fmul(v, power(f, half)), power(f, f.fsub(n, half)))


def scale_floor(f: Function, v: Value, n: Value) -> Value:
    """Return `scale` by the whole number that is n or below it."""
    return scalef(f, v, n) if _scales(f, v) else scale(f, v, f.intrinsic("floor", n.type, n))


def _scales(f: Function, v: Value) -> bool:
    """Return whether an instruction scales, by the floor of its operand."""
    width = 8 if double(v) else 16
    return f.target.avx512 and v.lanes >= width and v.lanes & (v.lanes - 1) == 0


def scalef(f: Function, v: Value, n: Value) -> Value:
    """Return v * 2^floor(n), rounded once, with AVX-512."""
    width = 8 if double(v) else 16
    everywhere = Value(f"i{width}", "-1")
    name = f"x86.avx512.mask.scalef.{'pd' if double(v) else 'ps'}.512"

    def instruction(f: Function, v: Value, n: Value) -> Value:
        return f.intrinsic(name, v.type, v, n, v, everywhere, i32(4))

    return native(f, width, instruction, v, n)


# Instructions of one width, and what is rare


def native(f: Function, width: int, body: Callable[..., Value], *values: Value) -> Value:
    """Return body(f, *values) of values of any lane count, where it takes those of one alone."""
    return _native(width, body, f, *values)


def _native(width: int, body: Callable[..., Value], f: Function, *values: Value) -> Value:
    lanes = values[0].lanes
    if lanes == width:
        return body(f, *values)
    if lanes > width:
        return in_halves(f, partial(_native, width, body), *values)
    if lanes == 1:
        return f.extract(body(f, *(f.splat(v, width) for v in values)), 0)
    spread = [i % lanes for i in range(width)]
    found = body(f, *(f.shuffle(v, v, spread) for v in values))
    return f.shuffle(found, found, range(lanes))


def wide(f: Function) -> bool:
    """Return whether there is `native_512`."""
    return f.target.avx512 and f.target.has("avx512dq")


def native_512(f: Function, name: str, v: Value, *immediate: int) -> Value:
    """Return what an AVX-512 instruction of sixteen f32 makes of a value."""
    # A rounding mode, that of the machine, goes with the instructions that have their masks' name.
    mode = [i32(4)] if name.startswith("mask.") else []

    def instruction(f: Function, v: Value) -> Value:
        operands = [v, *map(i32, immediate), v, Value("i16", "-1"), *mode]
        return f.intrinsic(f"x86.avx512.{name}.512", v.type, *operands)

    return native(f, 16, instruction, v)


def rarely(
    f: Function, rare: Value, exact: Callable[..., Value], values: Sequence[Value], result: Value
) -> Value:
    """Return `result`, in the lanes of a mask exact(f, *values), behind a branch."""
    return f.if_(
        any_lane(f, rare), lambda: [f.select(rare, exact(f, *values), result)], lambda: [result]
    )[0]


def in_halves(f: Function, body: Callable[..., Value], *values: Value) -> Value:
    """Return body(*values), emitted for the lower and the upper lanes apart."""
    lanes = values[0].lanes
    ends = (range(lanes // 2), range(lanes // 2, lanes))
    low, high = (body(f, *(f.shuffle(v, v, list(end)) for v in values)) for end in ends)
    return f.shuffle(low, high, list(range(lanes)))


# Sums and products in two parts


def two_sum(f: Function, a: Value, b: Value) -> tuple[Value, Value]:
    """Return a + b rounded, and what the rounding lost (Knuth)."""
    total = f.fadd(a, b)
    other = f.fsub(total, a)
    return total, f.fadd(f.fsub(a, f.fsub(total, other)), f.fsub(b, other))


def quick_two_sum(f: Function, a: Value, b: Value) -> tuple[Value, Value]:
    """Return `two_sum` of an `a` that is 0 or not smaller than b (Dekker)."""
    total = f.fadd(a, b)
    return total, f.fsub(b, f.fsub(total, a))


def two_product(f: Function, a: Value, b: Value) -> tuple[Value, Value]:
    """Return a * b rounded, and what the rounding lost; that is within 2^-100 a b without FMA."""
    product = f.fmul(a, b)
    if has_fma(f):
        return product, f.fma(a, b, f.fneg(product))
    (a_high, a_low), (b_high, b_low) = split(f, a), split(f, b)
    lost = f.fsub(f.fmul(a_high, b_high), product)
    lost = f.fadd(f.fadd(lost, f.fmul(a_high, b_low)), f.fmul(a_low, b_high))
    return product, f.fadd(lost, f.fmul(a_low, b_low))


def split(f: Function, v: Value) -> tuple[Value, Value]:
    """Return v as a sum of numbers of half as many digits, whose products are exact."""
    kept: Index = -(1 << ((layout(v).digits + 2) // 2))
    high = from_bits(f, f.and_(bits(f, v), kept))
    return high, f.fsub(v, high)
