"""
Element-wise maths on vectors of any lane count: what each kind means for each element type.

Everything works at every instruction-set level without a library: where an x86 has no instruction
to round or to multiply and add at once, others take its place. All is branch-free but `mod` and
what is rare: angles from 1.6e6 on in sin, cos and tan (some 20 ns each), and arguments of pow that
are not finite and positive. But for silu_bf16 a value has the same bits in a scalar as in a vector.

NaN passes through every function. Zeros keep their signs, but silu and gelu_tanh give 0 for -0.
Zero and infinity give what C99 says, and the limit where the definition has inf / inf or 0 inf:
softsign +-1, and -0 for silu, gelu, gelu_tanh, hard_swish and mish at -inf.

With AVX-512 exp, tanh, erf and gelu of f32 look up coefficients in registers, with AVX2 erf does
(`vmath_pieces`): 17 to 41 instructions for sixteen lanes instead of 25 to 60 and a division.

The largest errors against long double, in units in the last place (ulp), over 3M random inputs and
the edges of the range, with FMA and without (an x86 CPU of before 2013):

| function     | f32: FMA | none | f64: FMA | none | notes                                       |
|--------------|----------|------|----------|------|---------------------------------------------|
| exp          | 0.77     | 0.77 | 0.75     | 0.75 | through subnormals to 0                     |
| log          | 0.81     | 0.81 | 0.80     | 0.80 | of subnormals too                           |
| sin, cos     | 0.57     | 0.57 | 0.78     | 0.79 | all finite arguments                        |
| tan          | 0.57     | 0.57 | 2.3      | 2.3  | all finite arguments                        |
| atan         | 1.85     | 1.85 | 1.80     | 1.88 |                                             |
| atan2        | 1.83     | 1.84 | 1.80     | 1.80 | subnormal results too                       |
| tanh         | 0.97     | 1.97 | 1.98     | 1.92 | 1.91 without AVX-512                        |
| erf          | 1.2      | 1.2  | 1.3      | 1.3  |                                             |
| sigmoid      | 1.83     | 1.83 | 1.81     | 1.81 | subnormal results too                       |
| log_sigmoid  | 2.7      | 2.7  | 2.7      | 2.7  |                                             |
| softplus     | 2.7      | 2.7  | 2.7      | 2.7  |                                             |
| silu         | 1.87     | 2.47 | 1.78     | 2.41 | subnormal results too                       |
| gelu         | 3.8      | 6.3  | 7.5      | 7.5  | in the far tail, 6.3 without AVX-512; above |
|              |          |      |          |      | -2 2.8, 4, 5 and 5                          |
| gelu_tanh    | 14       | 14   | 14       | 14   | from -3 up; below, relative errors grow to  |
|              |          |      |          |      | 2e-5 (f64: 2e-13) as it vanishes            |
| elu          | 0.90     | 0.90 | 0.94     | 0.94 |                                             |
| mish         | 3.6      | 3.6  | 3.4      | 3.4  | subnormal results too                       |
| softsign     | 1.50     | 1.50 | 1.50     | 1.50 |                                             |
| hard_sigmoid | 1.34     | 1.34 | 1.34     | 1.34 |                                             |
| hard_swish   | 2.3      | 2.3  | 2.3      | 2.3  |                                             |
| rsqrt        | 1.50     | 1.50 | 1.50     | 1.50 |                                             |
| pow          | 0.51     | 0.51 | 0.73     | 0.73 | all exponents                               |
| softmax's    | 0.92     | 1.19 |          |      | `exp2_softmax`, results below 2^-126.5 are 0|

A program of `precision="fast"` has the forms of `vmath_fast` for some of f32.

The four operations, sqrt and recip are rounded to nearest. neg, abs, sign, relu, max, min, floor,
ceil and round are exact, and so is the remainder that `mod` rounds once. So are all kinds for
integers (`vmath_int`), and casts round once (`vmath_cast`).
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
    exp_below,
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
    "exp_below": exp_below,
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


def emit_unary(f: Function, kind: str, v: Value, signed: bool = True) -> Value:
    """
    Emit a function, lane by lane: a kind of `UNARY`, or of `vmath_int.UNARY` for integers.

    Without `signed` integers are from 0 on, here and in what follows.
    """
    if v.element[0] != "i":
        return (_fast(f, kind, v) or UNARY[kind])(f, v)
    table = vmath_int.UNARY if signed else vmath_int.UNARY_UNSIGNED
    return table[kind](f, v)


def emit_binary(f: Function, kind: str, a: Value, b: Value, signed: bool = True) -> Value:
    """Emit a function, lane by lane: a kind of `BINARY`, or of `vmath_int.BINARY` for integers."""
    if a.element[0] != "i":
        return (_fast(f, kind, a) or BINARY[kind])(f, a, b)
    table = vmath_int.BINARY if signed else vmath_int.BINARY_UNSIGNED
    return table[kind](f, a, b)


def _fast(f: Function, kind: str, v: Value) -> Callable[..., Value] | None:
    """Return what `vmath_fast.fast` does, which a program of exact functions doesn't import."""
    if not f.module.fast:
        return None
    from rlx.lowering.vmath_fast import fast

    return fast(f, kind, v)


def emit_compare(f: Function, kind: str, a: Value, b: Value, signed: bool = True) -> Value:
    """Emit a comparison (eq, ne, lt, ...) to lanes of i1; with NaN only `ne` holds."""
    if a.element[0] != "i":
        return f.fcmp("une" if kind == "ne" else f"o{kind}", a, b)
    order = "" if kind in ("eq", "ne") else "s" if signed and a.element != "i1" else "u"
    return f.icmp(order + kind, a, b)


def emit_cast(
    f: Function, v: Value, element: str, signed: bool = True, to_signed: bool = True
) -> Value:
    """Emit a conversion to lanes of another element type, as `vmath_cast.convert` describes it."""
    return convert(f, v, element, signed, to_signed)
