"""
Arithmetic on integers of 8 to 64 bits, which wraps, and on i1; unsigned ones have up to 32 bits.

Nothing traps, whatever a lane holds: a divisor of 0 or -1 is replaced before the division, as is a
shift count outside the width.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, vec
from rlx.lowering.vmath_basic import floor


def width(v: Value) -> int:
    """Return the bits of an integer element."""
    return int(v.element[1:])


def _negate(f: Function, v: Value) -> Value:
    return f.binary("sub", f.zero(v.type), v)


def _abs(f: Function, v: Value) -> Value:
    return f.select(f.icmp("slt", v, 0), _negate(f, v), v)


def _sign(f: Function, v: Value) -> Value:
    one = f.constant(v.type, 1)
    return f.select(f.icmp("sgt", v, 0), one, f.ashr(v, width(v) - 1))


def _not(f: Function, v: Value) -> Value:
    return f.xor(v, 1 if v.element == "i1" else -1)


def _max(f: Function, a: Value, b: Value) -> Value:
    return f.select(f.icmp("sgt", a, b), a, b)


def _min(f: Function, a: Value, b: Value) -> Value:
    return f.select(f.icmp("slt", a, b), a, b)


def _divide(f: Function, a: Value, b: Value) -> Value:
    """Return the quotient rounded down, 0 for a divisor of 0; the least number by -1 wraps."""
    zero, minus = f.icmp("eq", b, 0), f.icmp("eq", b, -1)
    safe = f.select(f.binary("or", zero, minus), f.constant(b.type, 1), b)
    whole = _quotient_64 if width(a) == 64 else _quotient
    result = f.select(minus, _negate(f, a), whole(f, a, safe))
    return f.select(zero, f.zero(a.type), result)


def _quotient_64(f: Function, a: Value, b: Value) -> Value:
    q = f.binary("sdiv", a, b)
    rest = f.binary("sub", a, f.binary("mul", q, b))
    below = f.binary("and", f.icmp("ne", rest, 0), f.icmp("slt", f.xor(rest, b), 0))
    return f.select(below, f.add(q, f.constant(q.type, -1)), q)


def _quotient(f: Function, a: Value, b: Value) -> Value:
    """
    Return the quotient by a division of floats, which vector units have.

    One that isn't whole is at least 1 / |b| from the next whole number, which is more than it is
    rounded by: f32 has enough digits for 16 bits, f64 for 32.
    """
    lanes = a.lanes
    wide = vec(lanes, "double" if width(a) == 32 else "float")
    x, y = (f.cast("sitofp", widen(f, v), wide) for v in (a, b))
    return narrow(f, f.cast("fptosi", floor(f, f.fdiv(x, y)), vec(lanes, "i32")), a.element)


def _mod(f: Function, a: Value, b: Value) -> Value:
    """Return a - b floor(a / b), of b's sign; 0 for a divisor of 0."""
    rest = f.binary("sub", a, f.binary("mul", _divide(f, a, b), b))
    return f.select(f.icmp("eq", b, 0), f.zero(a.type), rest)


def _shift_left(f: Function, a: Value, b: Value) -> Value:
    inside = f.icmp("ult", b, width(a))
    shifted = f.shl(a, f.select(inside, b, f.zero(b.type)))
    return f.select(inside, shifted, f.zero(a.type))


def _shift_right(f: Function, a: Value, b: Value) -> Value:
    last = f.constant(b.type, width(a) - 1)
    return f.ashr(a, f.select(f.icmp("ult", b, width(a)), b, last))


# Unsigned integers


def _sign_unsigned(f: Function, v: Value) -> Value:
    return f.cast("zext", f.icmp("ne", v, 0), v.type)


def _divide_unsigned(f: Function, a: Value, b: Value) -> Value:
    """Return the quotient rounded down, 0 for a divisor of 0; see `_quotient`."""
    zero, one = f.icmp("eq", b, 0), f.icmp("eq", b, 1)
    # Of other divisors than 1 the quotient is less than half of the range: a signed integer.
    safe = f.select(f.binary("or", zero, one), f.constant(b.type, 2), b)
    wide = vec(a.lanes, "double" if width(a) == 32 else "float")
    x, y = (f.cast("uitofp", v, wide) for v in (a, safe))
    whole = f.cast("fptosi", f.fdiv(x, y), vec(a.lanes, "i32"))
    result = f.select(one, a, narrow(f, whole, a.element))
    return f.select(zero, f.zero(a.type), result)


def _mod_unsigned(f: Function, a: Value, b: Value) -> Value:
    """Return a - b floor(a / b); 0 for a divisor of 0."""
    rest = f.binary("sub", a, f.binary("mul", _divide_unsigned(f, a, b), b))
    return f.select(f.icmp("eq", b, 0), f.zero(a.type), rest)


def _shift_right_unsigned(f: Function, a: Value, b: Value) -> Value:
    inside = f.icmp("ult", b, width(a))
    shifted = f.lshr(a, f.select(inside, b, f.zero(b.type)))
    return f.select(inside, shifted, f.zero(a.type))


def widen(f: Function, v: Value) -> Value:
    """Return integers of at least 32 bits, by sign."""
    return f.cast("sext", v, vec(v.lanes, "i32")) if width(v) < 32 else v


def narrow(f: Function, v: Value, element: str) -> Value:
    """Return integers as a smaller type, wrapped, or as they are."""
    return v if v.element == element else f.cast("trunc", v, vec(v.lanes, element))


UNARY: dict[str, Callable[[Function, Value], Value]] = {
    "neg": _negate,
    "abs": _abs,
    "sign": _sign,
    "not": _not,
}

BINARY: dict[str, Callable[[Function, Value, Value], Value]] = {
    "add": lambda f, a, b: f.binary("add", a, b),
    "sub": lambda f, a, b: f.binary("sub", a, b),
    "mul": lambda f, a, b: f.binary("mul", a, b),
    "div": _divide,
    "max": _max,
    "min": _min,
    "mod": _mod,
    "and": lambda f, a, b: f.and_(a, b),
    "or": lambda f, a, b: f.or_(a, b),
    "xor": lambda f, a, b: f.xor(a, b),
    "shl": _shift_left,
    "shr": _shift_right,
}

UNARY_UNSIGNED: dict[str, Callable[[Function, Value], Value]] = {
    **UNARY,
    "abs": lambda f, v: v,
    "sign": _sign_unsigned,
}

BINARY_UNSIGNED: dict[str, Callable[[Function, Value, Value], Value]] = {
    **BINARY,
    "div": _divide_unsigned,
    "max": lambda f, a, b: f.select(f.icmp("ugt", a, b), a, b),
    "min": lambda f, a, b: f.select(f.icmp("ult", a, b), a, b),
    "mod": _mod_unsigned,
    "shr": _shift_right_unsigned,
}
