"""
Element-wise maths on vectors of any lane count: what each kind means for each element type.

Everything is branch-free but `mod` and the reduction of large angles, and works at every
instruction-set level. NaN passes through every function.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.lowering import vmath_int
from rlx.lowering.emitter import Function
from rlx.lowering.values import Value
from rlx.lowering.vmath_atan import atan, atan2
from rlx.lowering.vmath_base import clamp_high, clamp_low, magnitude
from rlx.lowering.vmath_basic import (
    ceil,
    floor,
    hard_sigmoid,
    hard_swish,
    maximum,
    minimum,
    mod,
    recip,
    relu,
    round_even,
    rsqrt,
    sign,
    softsign,
    sqrt,
)
from rlx.lowering.vmath_cast import convert
from rlx.lowering.vmath_erf import erf, gelu
from rlx.lowering.vmath_exp import (
    elu,
    exp,
    exp2_softmax,
    gelu_tanh,
    mish,
    sigmoid,
    silu,
    silu_bf16,
    tanh,
)
from rlx.lowering.vmath_log import log, log_sigmoid, softplus
from rlx.lowering.vmath_pow import pow
from rlx.lowering.vmath_trig import cos, sin, tan

__all__ = [
    "BINARY",
    "UNARY",
    "clamp_high",
    "clamp_low",
    "emit_binary",
    "emit_cast",
    "emit_compare",
    "emit_unary",
    "exp2_softmax",
]

UNARY: dict[str, Callable[[Function, Value], Value]] = {
    "neg": lambda f, v: f.fneg(v),
    "abs": magnitude,
    "sign": sign,
    "floor": floor,
    "ceil": ceil,
    "round": round_even,
    "sqrt": sqrt,
    "rsqrt": rsqrt,
    "recip": recip,
    "exp": exp,
    "log": log,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "atan": atan,
    "tanh": tanh,
    "erf": erf,
    "sigmoid": sigmoid,
    "log_sigmoid": log_sigmoid,
    "silu": silu,
    "silu_bf16": silu_bf16,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "elu": elu,
    "softplus": softplus,
    "softsign": softsign,
    "hard_sigmoid": hard_sigmoid,
    "hard_swish": hard_swish,
    "mish": mish,
}
"""Kind -> generator of one float value from one."""

BINARY: dict[str, Callable[[Function, Value, Value], Value]] = {
    "add": lambda f, a, b: f.fadd(a, b),
    "sub": lambda f, a, b: f.fsub(a, b),
    "mul": lambda f, a, b: f.fmul(a, b),
    "div": lambda f, a, b: f.fdiv(a, b),
    "max": maximum,
    "min": minimum,
    "pow": pow,
    "mod": mod,
    "atan2": atan2,
}
"""Kind -> generator of one float value from two."""


def emit_unary(f: Function, kind: str, v: Value) -> Value:
    """Emit a function, lane by lane: a kind of `UNARY`, or of `vmath_int.UNARY` for integers."""
    table = vmath_int.UNARY if v.element[0] == "i" else UNARY
    return table[kind](f, v)


def emit_binary(f: Function, kind: str, a: Value, b: Value) -> Value:
    """Emit a function, lane by lane: a kind of `BINARY`, or of `vmath_int.BINARY` for integers."""
    table = vmath_int.BINARY if a.element[0] == "i" else BINARY
    return table[kind](f, a, b)


def emit_compare(f: Function, kind: str, a: Value, b: Value) -> Value:
    """Emit a comparison (eq, ne, lt, ...) to lanes of i1; with NaN only `ne` holds."""
    if a.element[0] != "i":
        return f.fcmp("une" if kind == "ne" else f"o{kind}", a, b)
    order = "" if kind in ("eq", "ne") else "u" if a.element == "i1" else "s"
    return f.icmp(order + kind, a, b)


def emit_cast(f: Function, v: Value, element: str, signed: bool = True) -> Value:
    """Emit a conversion to lanes of another element type, as `vmath_cast.convert` describes it."""
    return convert(f, v, element, signed)
