"""
Element-wise functions: numpy's ufuncs by name, with numpy's own promotion, and those of rlx.

`apply` asks the ufunc for its loop (`resolve_dtypes`), casts and broadcasts, and hands values of
the loop's dtypes to the rule of the function. f16 is computed in f32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, cast

import numpy as np

from rlx.jit import core
from rlx.jit.core import BOOL, FLOAT16, FLOAT32, DType, Value
from rlx.jit.sizes import Size
from rlx.jit.trace import DTYPES, fail

Rule: TypeAlias = Callable[..., Any]
Unary: TypeAlias = Callable[[Any], Any]
Binary: TypeAlias = Callable[[Any, Any], Any]
RULES: dict[str, Rule] = {}
"""Name of a numpy ufunc -> what it does to values of its loop's dtype and of one shape."""


def apply(name: str, *args: object) -> Any:
    """Return a ufunc of arrays, numbers and sizes, as numpy would promote and broadcast them."""
    args = tuple(a if _is_scalar(a) else core.lift(a, what=name) for a in args)
    if not any(isinstance(a, Value) for a in args):
        args = tuple(core.lift(a, what=name) for a in args)
    kinds = tuple(a.weak or a.dtype if isinstance(a, Value) else _kind(a) for a in args)
    weak = not any(isinstance(k, np.dtype) for k in kinds)
    if weak:
        kinds = tuple(np.dtype(k) for k in kinds)
    *inputs, output = _loop(name, kinds)
    if output == BOOL and name in COMPARISONS:
        inputs = _for_comparison(args, inputs)
    compute = [FLOAT32 if t == FLOAT16 else t for t in inputs]
    rounded = [_rounded(a, t) for a, t in zip(args, inputs, strict=True)]
    values = [core.lift(a, t, name) for a, t in zip(rounded, compute, strict=True)]
    dims = core.common_shape(*(v.dims for v in values))
    result = RULES[name](*(core.broadcast(v, dims) for v in values))
    result = core.cast_to(result, output)
    if weak and output != BOOL:
        return core.wrap(result.trace, result.number, float if output.kind == "f" else int)
    return result


def _is_scalar(x: object) -> bool:
    return isinstance(x, core.SCALARS) and not isinstance(x, np.generic)


def _kind(x: object) -> type | DType:
    return BOOL if isinstance(x, bool) else type(x)


@cache
def _loop(name: str, kinds: tuple[type | DType, ...]) -> tuple[DType, ...]:
    """Return the dtypes of the operands and of the result of numpy's loop."""
    ufunc = getattr(np, name)
    found = ufunc.resolve_dtypes((*kinds, None))
    if any(t not in DTYPES for t in found):
        raise TypeError(f"{name}: rlx has no loop for {', '.join(map(str, kinds))}")
    return found


def _rounded(x: object, dtype: DType) -> object:
    """Return an operand as the loop's dtype has it, where the loop is computed in a wider one."""
    if dtype != FLOAT16 or (isinstance(x, Value) and x.dtype == FLOAT16):
        return x
    return core.lift(x, FLOAT16)


def _for_comparison(args: tuple[object, ...], inputs: list[DType]) -> list[DType]:
    """Return dtypes that have the numbers of a comparison: int8 < 300 is true in numpy too."""
    for x, dtype in zip(args, inputs, strict=True):
        if isinstance(x, int) and dtype.kind in "iu":
            limits = np.iinfo(dtype)
            if not limits.min <= x <= limits.max:
                return [core.INT64] * len(inputs)
    return inputs


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


# Rules that are one primitive

_FLOAT_UNARY = {
    "exp": "exp", "log": "log", "sin": "sin", "cos": "cos", "tan": "tan", "arctan": "atan",
    "tanh": "tanh", "sqrt": "sqrt",
}  # fmt: skip
_UNARY = {"negative": "neg", "sign": "sign"}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "rint": "round"}
_BINARY = {
    "divide": "div", "remainder": "mod", "arctan2": "atan2", "subtract": "sub",
    "left_shift": "shl", "right_shift": "shr",
}  # fmt: skip
_LOGIC = {"add": ("add", "or"), "multiply": ("mul", "and"), "maximum": ("max", "or"),
          "minimum": ("min", "and"), "bitwise_and": ("and", "and"), "bitwise_or": ("or", "or"),
          "bitwise_xor": ("xor", "xor")}  # fmt: skip
"""Kinds for numbers and for bools."""
COMPARISONS = {
    "equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt",
    "greater_equal": "ge",
}  # fmt: skip


def _unary(kind: str) -> Unary:
    return lambda x: core.unary(kind, x)


def _binary(kind: str) -> Binary:
    return lambda a, b: core.binary(kind, a, b)


def _logic(number: str, truth: str) -> Binary:
    return lambda a, b: core.binary(truth if a.dtype == BOOL else number, a, b)


def _compare(kind: str) -> Binary:
    return lambda a, b: core.compare(kind, a, b)


def _floats_only(kind: str) -> Unary:
    return lambda x: core.unary(kind, x) if x.dtype.kind == "f" else x


RULES.update({name: _unary(kind) for name, kind in (_FLOAT_UNARY | _UNARY).items()})
RULES.update({name: _floats_only(kind) for name, kind in _ROUNDING.items()})
RULES.update({name: _binary(kind) for name, kind in _BINARY.items()})
RULES.update({name: _logic(*kinds) for name, kinds in _LOGIC.items()})
RULES.update({name: _compare(kind) for name, kind in COMPARISONS.items()})


@rule("positive", "conjugate")
def _same(x: Value) -> Any:
    return x


@rule("absolute", "fabs")
def _absolute(x: Value) -> Any:
    return x if x.dtype == BOOL else core.unary("abs", x)


@rule("invert")
def _invert(x: Value) -> Any:
    return core.unary("not", x)


@rule("square")
def _square(x: Value) -> Any:
    return core.binary("mul", x, x)


@rule("reciprocal")
def _reciprocal(x: Value) -> Any:
    return core.binary("div", core.full_like(x, 1), x)


def _logical_rule(kind: str) -> Binary:
    return lambda a, b: core.binary(kind, _truth(a), _truth(b))


def _truth(x: Value) -> Any:
    return core.cast_to(x, BOOL)


RULES.update({f"logical_{kind}": _logical_rule(kind) for kind in ("and", "or", "xor")})


@rule("logical_not")
def _logical_not(x: Value) -> Any:
    return core.unary("not", _truth(x))


# Rules that are several


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
        both = _logic(kind, "or" if kind == "max" else "and")(a, b)
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


RULES["float_power"] = _binary("pow")


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


ALIASES = {
    "abs": "absolute", "true_divide": "divide", "mod": "remainder", "acos": "arccos",
    "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
    "atan2": "arctan2", "atanh": "arctanh", "bitwise_invert": "invert", "bitwise_not": "invert",
    "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift", "pow": "power",
    "conj": "conjugate",
}  # fmt: skip
"""Names of the array API standard, and numpy's own second names -> numpy's ufuncs."""


def power(a: object, b: object) -> Any:
    """Return a ** b; the exponents that numpy treats apart are so here too."""
    if _is_scalar(b) and isinstance(a, Value):
        if isinstance(b, int) and a.dtype.kind in "iub":
            kind = _loop("power", (a.weak or a.dtype, BOOL if isinstance(b, bool) else int))[0]
            return integer_power(core.lift(a, kind), int(b))
        if a.dtype.kind == "f" and b in (2, 0.5, -1):
            return apply({2: "square", 0.5: "sqrt", -1: "reciprocal"}[b], a)  # pyright: ignore[reportArgumentType]: `in` has checked
    return apply("power", a, b)


def where(condition: object, a: object, b: object) -> Any:
    """Return elements of `a` where the condition holds, of `b` elsewhere; all are broadcast."""
    test = core.lift(condition, BOOL, "where")
    dtype = result_type(a, b)
    sides = [core.lift(x, dtype, "where") for x in (a, b)]
    dims = core.common_shape(test.dims, *(s.dims for s in sides))
    return core.select(*(core.broadcast(v, dims) for v in (test, *sides)))


def result_type(*args: object) -> DType:
    """Return numpy's result type of arrays, numbers and dtypes."""
    return np.result_type(*(_stand_in(a) for a in args))


def _stand_in(x: object) -> Any:
    if isinstance(x, Value):
        return x.dtype if x.weak is None else x.weak(0)
    if isinstance(x, Size):
        return 0
    if isinstance(x, list | tuple):
        return core.lift(cast(object, x)).dtype
    return x


def on_floats(kind: str, x: object, name: str) -> Any:
    """Return a function of rlx of floats; integers become float64, f16 is computed in f32."""
    value = core.lift(x, what=name)
    dtype = value.dtype if value.dtype.kind == "f" else core.FLOAT64
    inner = core.cast_to(value, FLOAT32 if dtype == FLOAT16 else dtype)
    return core.cast_to(core.unary(kind, inner), dtype)
