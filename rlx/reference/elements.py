"""
Arrays that stand for tensors of each element type, and what every map does to an element.

A tensor of f32 is an array of the reference's own precision; f64 is float64; f16 and bf16 have no
arithmetic and are numbers of their grid in that precision; integers and i1 are numpy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import bf16, f16, f32, f64, i1
from xdsl.ir import Attribute

from rlx.dialects.infer import FLOATS, INTEGERS, is_unsigned
from rlx.dialects.kinds import BinaryKind, CompareKind, UnaryKind

Array: TypeAlias = NDArray[Any]
Map: TypeAlias = Callable[[Array], Array]
Float: TypeAlias = type[np.float32] | type[np.float64]

DTYPES: dict[Attribute, np.dtype[Any]] = {
    i1: np.dtype(np.bool_),
    f64: np.dtype(np.float64),
    **{e: np.dtype(f"{'u' if is_unsigned(e) else 'i'}{e.size}") for e in INTEGERS},
}
"""Dtypes of the arrays that don't depend on the reference's precision."""
BF16_LOWEST, BF16_DIGITS, BF16_INFINITY = -126, 7, 2.0**128
"""Exponent of the least normal number, digits after the point, and where infinity begins."""


def dtype_of(element: Attribute, precision: Float) -> np.dtype[Any]:
    """Return the dtype of the arrays for an element type, f32 being computed in `precision`."""
    return DTYPES.get(element, np.dtype(precision))


def rounded(x: Array, element: Attribute) -> Array:
    """Return numbers as those of a type, nearest with ties to even, in the dtype that they have."""
    if element == f16:
        return x.astype(np.float16).astype(x.dtype)
    if element == f32:
        return x.astype(np.float32).astype(x.dtype)
    if element != bf16:
        return x
    wide = x.astype(np.float64)
    exponents = np.frexp(wide)[1] - 1
    grid = np.ldexp(1.0, np.maximum(exponents, BF16_LOWEST) - BF16_DIGITS)
    near = np.rint(wide / grid) * grid
    near = np.where(np.abs(near) >= BF16_INFINITY, np.copysign(np.inf, wide), near)
    return np.where(np.isfinite(wide), near, wide).astype(x.dtype)


def bf16_values(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the numbers that bits of bf16 stand for."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def cast(x: Array, element: Attribute, precision: Float) -> Array:
    """Elements as another type, as `mir.cast` defines it; f32 is not rounded beyond `precision`."""
    dtype = dtype_of(element, precision)
    if element == i1:
        return x != 0
    if element in INTEGERS and x.dtype.kind == "f":
        return _saturated(x, dtype)
    return x.astype(dtype) if element in FLOATS else rounded(x.astype(dtype), element)


def _saturated(x: Array, dtype: np.dtype[Any]) -> Array:
    whole, limits = np.trunc(x), np.iinfo(dtype)
    # The greatest value of 64 bits is no float: the next one above it is beyond.
    low, high = whole <= float(limits.min), whole >= float(limits.max)
    inside = np.where(low | high | np.isnan(x), 0, whole).astype(dtype)
    bounds = np.where(low, limits.min, limits.max).astype(dtype)
    return np.where(low | high, bounds, inside)


# Functions of one tensor


def _each(function: Callable[[float], float], x: Array) -> Array:
    return np.vectorize(function, otypes=[x.dtype])(x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), by way of exp(-|x|), which can't overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, np.ones_like(x)) / (1 + e)


def silu(x: Array) -> Array:
    """x * sigmoid(x) (Elfwing et al., 2018)."""
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """x * P(X < x) of a normal X (Hendrycks and Gimpel, 2016); erfc has digits where it is 0."""
    return x / 2 * _each(lambda v: math.erfc(-v / math.sqrt(2)), x)


def gelu_tanh(x: Array) -> Array:
    """The tanh form of GELU (Hendrycks and Gimpel, 2016), as sigmoid: (1 + tanh(u)) / 2."""
    return x * sigmoid(2 * float(np.sqrt(2 / np.pi)) * (x + 0.044715 * x**3))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), by way of exp(-|x|), which can't overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def hard_sigmoid(x: Array) -> Array:
    """x / 6 + 1 / 2 within 0 and 1 (Howard et al., 2019)."""
    return np.clip(x + 3, 0, 6) / 6


def _with_limits(function: Map, low: float, high: float) -> Map:
    """Return a function that has its limits at the infinities, where its formula has none."""

    def limited(x: Array) -> Array:
        result = np.array(function(x))
        result[x == -np.inf], result[x == np.inf] = low, high
        return result

    return limited


UNARY: dict[UnaryKind, Map] = {
    UnaryKind.NEG: np.negative,
    UnaryKind.ABS: np.abs,
    UnaryKind.SIGN: np.sign,
    UnaryKind.NOT: np.invert,
    UnaryKind.FLOOR: np.floor,
    UnaryKind.CEIL: np.ceil,
    UnaryKind.ROUND: np.rint,
    UnaryKind.SQRT: np.sqrt,
    UnaryKind.RSQRT: lambda x: 1 / np.sqrt(x),
    UnaryKind.RECIP: lambda x: 1 / x,
    UnaryKind.EXP: np.exp,
    UnaryKind.LOG: np.log,
    UnaryKind.SIN: np.sin,
    UnaryKind.COS: np.cos,
    UnaryKind.TAN: np.tan,
    UnaryKind.ATAN: np.arctan,
    UnaryKind.TANH: np.tanh,
    UnaryKind.ERF: lambda x: _each(math.erf, x),
    UnaryKind.SIGMOID: sigmoid,
    UnaryKind.LOG_SIGMOID: lambda x: -softplus(-x),
    UnaryKind.SILU: _with_limits(silu, -0.0, np.inf),
    UnaryKind.GELU: _with_limits(gelu, -0.0, np.inf),
    UnaryKind.GELU_TANH: _with_limits(gelu_tanh, -0.0, np.inf),
    UnaryKind.RELU: lambda x: np.where(x < 0, np.zeros_like(x), x),
    UnaryKind.ELU: lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x),
    UnaryKind.SOFTPLUS: softplus,
    UnaryKind.SOFTSIGN: _with_limits(lambda x: x / (1 + np.abs(x)), -1.0, 1.0),
    UnaryKind.HARD_SIGMOID: hard_sigmoid,
    UnaryKind.HARD_SWISH: _with_limits(lambda x: x * hard_sigmoid(x), -0.0, np.inf),
    UnaryKind.MISH: _with_limits(lambda x: x * np.tanh(softplus(x)), -0.0, np.inf),
}

# Functions of two tensors


def _divide(a: Array, b: Array) -> Array:
    # Of integers the quotient is rounded down; numpy gives 0 for a divisor of 0.
    return a / b if a.dtype.kind == "f" else np.floor_divide(a, b)


def _shift(a: Array, b: Array, left: bool) -> Array:
    width = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < width)
    # A shift right by all digits but the sign's leaves the sign.
    signed = a.dtype.kind == "i"
    count = np.where(inside, b, width - 1 if signed else 0).astype(b.dtype)
    shifted = a << count if left else a >> count
    return shifted if signed and not left else np.where(inside, shifted, 0).astype(a.dtype)


BINARY: dict[BinaryKind, Callable[[Array, Array], Array]] = {
    BinaryKind.ADD: np.add,
    BinaryKind.SUB: np.subtract,
    BinaryKind.MUL: np.multiply,
    BinaryKind.DIV: _divide,
    BinaryKind.MAX: np.maximum,
    BinaryKind.MIN: np.minimum,
    BinaryKind.POW: np.power,
    BinaryKind.MOD: np.mod,
    BinaryKind.ATAN2: np.arctan2,
    BinaryKind.AND: np.bitwise_and,
    BinaryKind.OR: np.bitwise_or,
    BinaryKind.XOR: np.bitwise_xor,
    BinaryKind.SHL: lambda a, b: _shift(a, b, left=True),
    BinaryKind.SHR: lambda a, b: _shift(a, b, left=False),
}

COMPARE: dict[CompareKind, Callable[[Array, Array], Array]] = {
    CompareKind.EQ: np.equal,
    CompareKind.NE: np.not_equal,
    CompareKind.LT: np.less,
    CompareKind.LE: np.less_equal,
    CompareKind.GT: np.greater,
    CompareKind.GE: np.greater_equal,
}
