"""Gradients of the element-wise functions of one tensor, by kind of `mir.unary`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import pi, sqrt
from typing import Any, ClassVar

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.kinds import FLOAT_UNARY, BinaryKind, CompareKind, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Operand, Writer
from rlx.ops.record import FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw

B, C, U = BinaryKind, CompareKind, UnaryKind

CUBIC = 0.044715
"""The factor of the cube in the tanh form of GELU (Hendrycks and Gimpel, 2016)."""


@irdl_op_definition
class UnaryBackwardOp(NamedOp):
    """
    The gradient by the operand of an element-wise function: f'(x) * upstream.

    `(x, upstream) -> x`, all of one type. `of` is a kind of `mir.unary`. Where a function has a
    kink, the derivative is 0 at it: of abs and relu at 0, and of hard_sigmoid at -3 and 3; that of
    hard_swish is 0 at -3 and 1 at 3, that of elu at 0 is 1.
    """

    name = "grad.unary"
    KIND: ClassVar = OpKind.ACTIVATION_BACKWARD
    OPTIONS: ClassVar = {"of": "relu"}
    CHOICES: ClassVar = {"of": FLOAT_UNARY}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        if types[0] != types[1]:
            raise cls.refuse("an upstream of the type of the operand", types)
        return types[:1]


# Meaning: the functions themselves, on complex numbers whose imaginary part is a small step

Complex = Callable[[Array], Array]


def _where(condition: Callable[[Array], Array], inside: Complex, outside: Complex) -> Complex:
    """Return a function of two pieces, by a condition on the real part."""
    import numpy as np

    return lambda z: np.where(condition(np.real(z)), inside(z), outside(z))


def _functions() -> Mapping[UnaryKind, Complex]:
    """Return the differentiable functions, and pieces of them where they have kinks."""
    import math

    import numpy as np

    def constant(z: Array) -> Array:
        return 0 * np.real(z)

    def erf(z: Array) -> Array:
        # A step changes the integral that defines it by the integrand.
        x = np.real(z)
        return np.vectorize(math.erf)(x) + 1j * np.imag(z) * 2 / sqrt(pi) * np.exp(-x * x)

    def sigmoid(z: Array) -> Array:
        return (1 + np.tanh(z / 2)) / 2

    def softplus(z: Array) -> Array:
        small = np.log(1 + np.exp(np.where(np.real(z) > 0, -z, z)))
        return small + np.where(np.real(z) > 0, z, 0)

    def magnitude(z: Array) -> Array:
        return np.sign(np.real(z)) * z

    def hard_sigmoid(z: Array) -> Array:
        return np.where(np.abs(np.real(z)) < 3, (z + 3) / 6, np.real(z) > 0)

    return {
        U.NEG: np.negative,
        U.ABS: magnitude,
        **dict.fromkeys((U.SIGN, U.FLOOR, U.CEIL, U.ROUND), constant),
        U.SQRT: np.sqrt,
        U.RSQRT: lambda z: z**-0.5,
        U.RECIP: lambda z: 1 / z,
        U.EXP: np.exp,
        U.LOG: np.log,
        U.SIN: np.sin,
        U.COS: np.cos,
        U.TAN: lambda z: np.sin(z) / np.cos(z),
        U.ATAN: np.arctan,
        U.TANH: np.tanh,
        U.ERF: erf,
        U.SIGMOID: sigmoid,
        U.LOG_SIGMOID: lambda z: -softplus(-z),
        U.SILU: lambda z: z * sigmoid(z),
        U.GELU: lambda z: z / 2 * (1 + erf(z / sqrt(2))),
        U.GELU_TANH: lambda z: z / 2 * (1 + np.tanh(sqrt(2 / pi) * (z + CUBIC * z**3))),
        U.RELU: _where(lambda x: x > 0, lambda z: z, constant),
        U.ELU: _where(lambda x: x > 0, lambda z: z, lambda z: np.exp(z) - 1),
        U.SOFTPLUS: softplus,
        U.SOFTSIGN: lambda z: z / (1 + magnitude(z)),
        U.HARD_SIGMOID: hard_sigmoid,
        U.HARD_SWISH: lambda z: z * hard_sigmoid(z),
        U.MISH: lambda z: z * np.tanh(softplus(z)),
    }


def _meaning(op: UnaryBackwardOp, x: Array, upstream: Array) -> Array:
    from rlx.ops.derivative import pulled_back

    return pulled_back(_functions()[UnaryKind(op.option("of"))], x, upstream, 0)


# Expansion: a derivative that is a number, or a value

Derivative = Callable[[Writer, SSAValue], Operand]


def _one_less_square(w: Writer, x: SSAValue) -> SSAValue:
    return w.binary(B.SUB, 1.0, w.binary(B.MUL, x, x))


def _sqrt(w: Writer, x: SSAValue) -> SSAValue:
    return w.binary(B.DIV, 0.5, w.unary(U.SQRT, x))


def _rsqrt(w: Writer, x: SSAValue) -> SSAValue:
    return w.binary(B.DIV, w.binary(B.MUL, w.unary(U.RSQRT, x), -0.5), x)


def _recip(w: Writer, x: SSAValue) -> SSAValue:
    r = w.unary(U.RECIP, x)
    return w.binary(B.MUL, r, w.unary(U.NEG, r))


def _tan(w: Writer, x: SSAValue) -> SSAValue:
    t = w.unary(U.TAN, x)
    return w.binary(B.ADD, w.binary(B.MUL, t, t), 1.0)


def _atan(w: Writer, x: SSAValue) -> SSAValue:
    return w.unary(U.RECIP, w.binary(B.ADD, w.binary(B.MUL, x, x), 1.0))


def _normal(w: Writer, x: SSAValue, square: float, factor: float) -> SSAValue:
    """Return factor * exp(square * x^2)."""
    e = w.unary(U.EXP, w.binary(B.MUL, w.binary(B.MUL, x, x), square))
    return w.binary(B.MUL, e, factor)


def _sigmoid(w: Writer, x: SSAValue) -> SSAValue:
    s = w.unary(U.SIGMOID, x)
    return w.binary(B.MUL, s, w.binary(B.SUB, 1.0, s))


def _silu(w: Writer, x: SSAValue) -> SSAValue:
    s = w.unary(U.SIGMOID, x)
    slope = w.binary(B.MUL, x, w.binary(B.SUB, 1.0, s))
    return w.binary(B.MUL, s, w.binary(B.ADD, slope, 1.0))


def _gelu(w: Writer, x: SSAValue) -> SSAValue:
    below = w.binary(B.ADD, w.unary(U.ERF, w.binary(B.MUL, x, sqrt(0.5))), 1.0)
    density = w.binary(B.MUL, x, _normal(w, x, -0.5, sqrt(0.5 / pi)))
    return w.binary(B.ADD, w.binary(B.MUL, below, 0.5), density)


def _gelu_tanh(w: Writer, x: SSAValue) -> SSAValue:
    square, c = w.binary(B.MUL, x, x), sqrt(2 / pi)
    inner = w.binary(B.ADD, w.binary(B.MUL, square, c * CUBIC), c)
    t = w.unary(U.TANH, w.binary(B.MUL, x, inner))
    slope = w.binary(B.ADD, w.binary(B.MUL, square, 3 * c * CUBIC), c)
    change = w.binary(B.MUL, w.binary(B.MUL, x, slope), _one_less_square(w, t))
    return w.binary(B.MUL, w.binary(B.ADD, w.binary(B.ADD, t, 1.0), change), 0.5)


def _relu(w: Writer, x: SSAValue) -> SSAValue:
    return w.select(w.compare(C.GT, x, 0.0), w.value(1.0, x.type), 0.0)


def _elu(w: Writer, x: SSAValue) -> SSAValue:
    return w.unary(U.EXP, w.binary(B.MIN, x, 0.0))


def _softsign(w: Writer, x: SSAValue) -> SSAValue:
    r = w.unary(U.RECIP, w.binary(B.ADD, w.unary(U.ABS, x), 1.0))
    return w.binary(B.MUL, r, r)


def _inside(w: Writer, x: SSAValue, value: Operand, otherwise: Operand) -> SSAValue:
    """Return a value where |x| < 3, and another elsewhere."""
    value = w.value(value, x.type)
    return w.select(w.compare(C.LT, w.unary(U.ABS, x), 3.0), value, otherwise)


def _hard_swish(w: Writer, x: SSAValue) -> SSAValue:
    slope = w.binary(B.ADD, w.binary(B.MUL, x, 1 / 3), 0.5)
    return _inside(w, x, slope, _relu(w, x))


def _mish(w: Writer, x: SSAValue) -> SSAValue:
    t = w.unary(U.TANH, w.unary(U.SOFTPLUS, x))
    slope = w.binary(B.MUL, w.binary(B.MUL, x, w.unary(U.SIGMOID, x)), _one_less_square(w, t))
    return w.binary(B.ADD, t, slope)


DERIVATIVES: dict[UnaryKind, Derivative] = {
    U.NEG: lambda w, x: -1.0,
    U.ABS: lambda w, x: w.unary(U.SIGN, x),
    U.SIGN: lambda w, x: 0.0,
    U.FLOOR: lambda w, x: 0.0,
    U.CEIL: lambda w, x: 0.0,
    U.ROUND: lambda w, x: 0.0,
    U.SQRT: _sqrt,
    U.RSQRT: _rsqrt,
    U.RECIP: _recip,
    U.EXP: lambda w, x: w.unary(U.EXP, x),
    U.LOG: lambda w, x: w.unary(U.RECIP, x),
    U.SIN: lambda w, x: w.unary(U.COS, x),
    U.COS: lambda w, x: w.unary(U.NEG, w.unary(U.SIN, x)),
    U.TAN: _tan,
    U.ATAN: _atan,
    U.TANH: lambda w, x: _one_less_square(w, w.unary(U.TANH, x)),
    U.ERF: lambda w, x: _normal(w, x, -1.0, 2 / sqrt(pi)),
    U.SIGMOID: _sigmoid,
    U.LOG_SIGMOID: lambda w, x: w.unary(U.SIGMOID, w.unary(U.NEG, x)),
    U.SILU: _silu,
    U.GELU: _gelu,
    U.GELU_TANH: _gelu_tanh,
    U.RELU: _relu,
    U.ELU: _elu,
    U.SOFTPLUS: lambda w, x: w.unary(U.SIGMOID, x),
    U.SOFTSIGN: _softsign,
    U.HARD_SIGMOID: lambda w, x: _inside(w, x, 1 / 6, 0.0),
    U.HARD_SWISH: _hard_swish,
    U.MISH: _mish,
}


def derivative(w: Writer, kind: UnaryKind, x: SSAValue) -> SSAValue:
    """Return f'(x), of the type of x."""
    return w.value(DERIVATIVES[kind](w, x), x.type)


def _expand(w: Writer, op: UnaryBackwardOp) -> Sequence[SSAValue]:
    x, upstream = op.args
    return [w.binary(B.MUL, derivative(w, UnaryKind(op.option("of")), x), upstream)]


_POSITIVE = (U.SQRT, U.RSQRT, U.RECIP, U.LOG)


def _sample(draw: Draw) -> Case:
    of = draw.choice(FLOAT_UNARY)
    shape = draw.shape(0, 1, 2, 3, low=0)
    # tan has poles at 1.57 and -1.57, around which its derivative says little of rounding.
    low, high = (0.1, 5.0) if of in _POSITIVE else (-1.4, 1.4) if of is U.TAN else (-5.0, 5.0)
    arrays = [draw.array(shape, low, high), draw.array(shape)]
    return Case(arrays, lambda w, v: w.add_all(UnaryBackwardOp(*v, of=of.value)))


RECORDS = (
    Record(
        UnaryBackwardOp,
        (OpKind.ACTIVATION_BACKWARD, OpKind.RELU_BACKWARD),
        ROWS,
        FLOATS,
        _meaning,
        _sample,
        _expand,
    ),
)
