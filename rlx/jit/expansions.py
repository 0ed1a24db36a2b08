"""What numpy's ufuncs do to values of one dtype and shape, where that is several primitives."""

from __future__ import annotations

import math
from typing import Any

from rlx.jit import core
from rlx.jit.core import BOOL, Value
from rlx.jit.rules import RULES, Binary, logic, rule
from rlx.jit.trace import fail


def _where(condition: Value, a: Value | float, b: Value | float) -> Any:
    like = a if isinstance(a, Value) else b
    assert isinstance(like, Value)
    sides = [v if isinstance(v, Value) else core.full_like(like, v) for v in (a, b)]
    return core.select(condition, *sides)


def _is(kind: str, x: Value, number: float) -> Any:
    return core.compare(kind, x, core.full_like(x, number))


def _scaled(x: Value, factor: float) -> Any:
    return core.binary("mul", x, core.full_like(x, factor))


def _plus(x: Value, number: float) -> Any:
    return core.binary("add", x, core.full_like(x, number))


@rule("isnan")
def _isnan(x: Value) -> Any:
    return core.compare("ne", x, x)


@rule("isinf")
def _isinf(x: Value) -> Any:
    if x.dtype.kind != "f":
        return core.full_like(x, False, BOOL)
    return _is("eq", core.unary("abs", x), math.inf)


@rule("isfinite")
def _isfinite(x: Value) -> Any:
    if x.dtype.kind != "f":
        return core.full_like(x, True, BOOL)
    return _is("lt", core.unary("abs", x), math.inf)


@rule("signbit")
def _signbit(x: Value) -> Any:
    # 1 / -0 is -inf; of NaN no sign is known.
    return core.binary("or", _is("lt", x, 0), _is("lt", core.unary("recip", x), 0))


@rule("copysign")
def _copysign(a: Value, b: Value) -> Any:
    size = core.unary("abs", a)
    return core.select(_signbit(b), core.unary("neg", size), size)


@rule("trunc")
def _trunc(x: Value) -> Any:
    if x.dtype.kind != "f":
        return x
    return core.select(_is("lt", x, 0), core.unary("ceil", x), core.unary("floor", x))


@rule("floor_divide")
def _floor_divide(a: Value, b: Value) -> Any:
    """(a - fmod(a, b)) / b, which is near an integer, less 1 where the signs differ."""
    if a.dtype.kind != "f":
        return core.binary("div", a, b)
    rest = _fmod(a, b)
    apart = core.binary("xor", _is("lt", b, 0), _is("lt", rest, 0))
    apart = core.binary("and", apart, _is("ne", rest, 0))
    whole = core.binary("div", core.binary("sub", a, rest), b)
    whole = core.select(apart, _plus(whole, -1), whole)
    down = core.unary("floor", whole)
    down = core.select(_is("gt", core.binary("sub", whole, down), 0.5), _plus(down, 1), down)
    # What is 0 has the sign of the quotient.
    quotient = core.binary("div", a, b)
    zero = _copysign(core.full_like(a, 0), quotient)
    down = core.select(_is("eq", whole, 0), zero, down)
    return core.select(_is("eq", b, 0), quotient, down)


@rule("fmod")
def _fmod(a: Value, b: Value) -> Any:
    if a.dtype.kind == "f":
        sizes = core.unary("abs", a), core.unary("abs", b)
        return _copysign(core.binary("mod", *sizes), a)
    rest = core.binary("mod", a, b)
    zero = core.full_like(a, 0)
    apart = core.binary("xor", core.compare("lt", a, zero), core.compare("lt", b, zero))
    moved = core.binary("and", apart, core.compare("ne", rest, zero))
    return core.select(moved, core.binary("sub", rest, b), rest)


def _one_of(kind: str) -> Binary:
    """fmax and fmin: the other operand where one is NaN."""

    def function(a: Value, b: Value) -> Any:
        both = logic(kind, "or" if kind == "max" else "and")(a, b)
        if a.dtype.kind != "f":
            return both
        return core.select(_isnan(a), b, core.select(_isnan(b), a, both))

    return function


RULES.update({"fmax": _one_of("max"), "fmin": _one_of("min")})


@rule("power")
def _power(a: Value, b: Value) -> Any:
    if a.dtype.kind != "f":
        raise fail(
            "power: expected floats, or an integer number as the exponent: cast the exponents "
            "or the base to a float"
        )
    return core.binary("pow", a, b)


def integer_power(x: Value, exponent: int) -> Any:
    """Return an integer's power by a number, by repeated squares; it wraps."""
    if exponent < 0:
        raise ValueError("Integers to negative integer powers are not allowed.")
    result: Any = core.full_like(x, 1)
    square: Any = x
    while exponent:
        if exponent & 1:
            result = core.binary("mul", result, square)
        exponent >>= 1
        square = core.binary("mul", square, square) if exponent else square
    return result


@rule("expm1")
def _expm1(x: Value) -> Any:
    """2 t / (1 - t) with t = tanh(x / 2) near 0, where exp(x) - 1 loses digits."""
    half = core.unary("tanh", _scaled(x, 0.5))
    near = core.binary("div", _scaled(half, 2), core.binary("sub", core.full_like(x, 1), half))
    far = _plus(core.unary("exp", x), -1)
    return core.select(_is("lt", core.unary("abs", x), 0.5), near, far)


@rule("log1p")
def _log1p(x: Value) -> Any:
    """log(u) x / (u - 1) with u = 1 + x as rounded (Kahan)."""
    u = _plus(x, 1)
    log, change = core.unary("log", u), _plus(u, -1)
    near = core.binary("mul", log, core.binary("div", x, change))
    same = core.binary("or", _is("eq", change, 0), _is("eq", core.unary("abs", x), math.inf))
    return core.select(_is("eq", change, 0), x, core.select(same, log, near))


@rule("exp2")
def _exp2(x: Value) -> Any:
    return core.binary("pow", core.full_like(x, 2), x)


@rule("log2")
def _log2(x: Value) -> Any:
    return _scaled(core.unary("log", x), 1 / math.log(2))


@rule("log10")
def _log10(x: Value) -> Any:
    return _scaled(core.unary("log", x), 1 / math.log(10))


@rule("cbrt")
def _cbrt(x: Value) -> Any:
    root = core.binary("pow", core.unary("abs", x), core.full_like(x, 1 / 3))
    # One step of Newton's: 1/3 is not a number of the format.
    square = core.binary("mul", root, root)
    error = core.binary("sub", core.binary("mul", square, root), core.unary("abs", x))
    better = core.binary("sub", root, core.binary("div", error, _scaled(square, 3)))
    plain = core.binary("or", _is("eq", root, 0), _is("eq", root, math.inf))
    return _copysign(core.select(plain, root, better), x)


def _root_1_minus_square(x: Value) -> Any:
    one = core.full_like(x, 1)
    product = core.binary("mul", core.binary("sub", one, x), core.binary("add", one, x))
    return core.unary("sqrt", product)


@rule("arcsin")
def _arcsin(x: Value) -> Any:
    return core.binary("atan2", x, _root_1_minus_square(x))


@rule("arccos")
def _arccos(x: Value) -> Any:
    return core.binary("atan2", _root_1_minus_square(x), x)


@rule("sinh")
def _sinh(x: Value) -> Any:
    """(e + e / (e + 1)) / 2 with e = expm1(|x|); exp(|x| / 2)^2 / 2 where that is large."""
    size = core.unary("abs", x)
    e = _expm1(size)
    near = _scaled(core.binary("add", e, core.binary("div", e, _plus(e, 1))), 0.5)
    return _copysign(core.select(_is("lt", size, 20), near, _half_exp(size)), x)


@rule("cosh")
def _cosh(x: Value) -> Any:
    size = core.unary("abs", x)
    e = core.unary("exp", size)
    near = _scaled(core.binary("add", e, core.unary("recip", e)), 0.5)
    return core.select(_is("lt", size, 20), near, _half_exp(size))


def _half_exp(x: Value) -> Any:
    root = core.unary("exp", _scaled(x, 0.5))
    return core.binary("mul", _scaled(root, 0.5), root)


@rule("arcsinh")
def _arcsinh(x: Value) -> Any:
    """log1p(a + a^2 / (1 + sqrt(a^2 + 1))) of a = |x|; log(2 a) where a^2 may overflow."""
    a = core.unary("abs", x)
    square = core.binary("mul", a, a)
    root = core.unary("sqrt", _plus(square, 1))
    near = _log1p(core.binary("add", a, core.binary("div", square, _plus(root, 1))))
    far = _plus(core.unary("log", a), math.log(2))
    return _copysign(core.select(_is("lt", a, 1e9), near, far), x)


@rule("arccosh")
def _arccosh(x: Value) -> Any:
    """log1p(t + sqrt(2 t + t^2)) of t = x - 1; log(2 x) where t^2 may overflow."""
    t = _plus(x, -1)
    root = core.unary("sqrt", core.binary("mul", t, _plus(t, 2)))
    far = _plus(core.unary("log", x), math.log(2))
    return core.select(_is("lt", x, 1e9), _log1p(core.binary("add", t, root)), far)


@rule("arctanh")
def _arctanh(x: Value) -> Any:
    """log1p(2 a / (1 - a)) / 2 of a = |x|."""
    a = core.unary("abs", x)
    ratio = core.binary("div", _scaled(a, 2), core.binary("sub", core.full_like(a, 1), a))
    return _copysign(_scaled(_log1p(ratio), 0.5), x)


@rule("hypot")
def _hypot(a: Value, b: Value) -> Any:
    """m sqrt(1 + (n / m)^2) with m the larger."""
    sizes = core.unary("abs", a), core.unary("abs", b)
    large, small = core.binary("max", *sizes), core.binary("min", *sizes)
    ratio = core.binary("div", small, large)
    root = core.unary("sqrt", _plus(core.binary("mul", ratio, ratio), 1))
    result = core.select(_is("eq", large, 0), large, core.binary("mul", large, root))
    either = core.binary("or", *(_is("eq", s, math.inf) for s in sizes))
    return _where(either, math.inf, result)


@rule("logaddexp")
def _logaddexp(a: Value, b: Value) -> Any:
    high = core.binary("max", a, b)
    apart = core.unary("neg", core.unary("abs", core.binary("sub", a, b)))
    total = core.binary("add", high, _log1p(core.unary("exp", apart)))
    return core.select(core.compare("eq", a, b), _plus(high, math.log(2)), total)


@rule("heaviside")
def _heaviside(x: Value, at_zero: Value) -> Any:
    step = _where(_is("lt", x, 0), core.full_like(x, 0), 1)
    return core.select(_isnan(x), x, core.select(_is("eq", x, 0), at_zero, step))


@rule("deg2rad", "radians")
def _radians(x: Value) -> Any:
    return _scaled(x, math.pi / 180)


@rule("rad2deg", "degrees")
def _degrees(x: Value) -> Any:
    return _scaled(x, 180 / math.pi)
