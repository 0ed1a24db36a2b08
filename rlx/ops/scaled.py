"""
Floats of 4, 6 and 8 bits with a scale, as codes: bits of a format in the low bits of a byte.

The formats are those of the OCP specification "Microscaling Formats", 2023, and of "8-bit Floating
Point", 2023: `e4m3` and `e5m2` of 8 bits, `e3m2` and `e2m3` of 6, `e2m1` of 4. A scale is of the
whole tensor, given without dimensions, or of each block of `block` elements of the last axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any, ClassVar

from xdsl.dialects.builtin import IntegerType, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.record import FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw

CODE = IntegerType(8)
SMALLEST_SCALE = 1e-12
"""What a scale that comes from data is at least, so that zeros are divided by something."""


@dataclass(frozen=True)
class Format:
    """A sign, `exponent` bits with a bias, and `mantissa` bits; subnormal where the first are 0."""

    exponent: int
    mantissa: int
    nans: int = 0
    """How many of the greatest codes are NaN."""
    infinite: bool = False
    """Whether the code before them is infinity."""

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def least(self) -> int:
        """The exponent of the least normal number."""
        return 2 - (1 << (self.exponent - 1))

    @property
    def largest(self) -> int:
        """The code of the largest finite number."""
        return (1 << (self.bits - 1)) - 1 - self.nans - self.infinite

    def value(self, code: int) -> float:
        """Return the number of a code."""
        low = code & ((1 << (self.bits - 1)) - 1)
        exponent, digits = low >> self.mantissa, low & ((1 << self.mantissa) - 1)
        sign = -1.0 if code >> (self.bits - 1) & 1 else 1.0
        if low > self.largest:
            return sign * inf if self.infinite and low == self.largest + 1 else nan
        whole = digits + (1 << self.mantissa if exponent else 0)
        return sign * whole * 2.0 ** (self.least + max(exponent - 1, 0) - self.mantissa)

    @property
    def most(self) -> float:
        """The largest finite number."""
        return self.value(self.largest)


FORMATS = {
    "e4m3": Format(4, 3, nans=1),
    "e5m2": Format(5, 2, nans=3, infinite=True),
    "e3m2": Format(3, 2),
    "e2m3": Format(2, 3),
    "e2m1": Format(2, 1),
}

_OPTIONS = {"format": "e4m3", "block": 0}
_CHOICES = {"format": tuple(FORMATS)}


def scale_dims(cls: type[NamedOp], type_: Attribute, block: int) -> list[Dim]:
    """Return the dimensions of a scale. Raises VerifyException where blocks aren't whole."""
    dims = dims_of(type_)
    if block == 0:
        return []
    last = dims[-1] if dims else 0
    if block < 0 or not isinstance(last, int) or last % block:
        raise cls.refuse(f"a last dimension of whole blocks of {block}", [type_])
    return [*dims[:-1], last // block]


def _spread(w: Writer, scale: SSAValue, dims: Sequence[Dim], block: int) -> SSAValue:
    """Repeat a scale over the elements that it is of."""
    if block == 0:
        return w.spread(scale, dims)
    blocks = dims_of(scale.type)
    return w.reshape(w.spread(w.reshape(scale, [*blocks, 1]), [*blocks, block]), dims)


def _repeated(scale: Array, block: int) -> Array:
    return scale.repeat(block, axis=-1) if block else scale


def _values(name: str) -> Array:
    """Return the numbers of all bytes, of which only the low bits count."""
    import numpy as np

    return np.array([FORMATS[name].value(code) for code in range(256)])


def decoded(w: Writer, codes: SSAValue, name: str, element: Attribute) -> SSAValue:
    """Return the numbers of codes, from a table of them all."""
    bits = FORMATS[name].bits
    table = w.constant([FORMATS[name].value(c) for c in range(1 << bits)], [1 << bits], element)
    return w.gather(table, w.binary(BinaryKind.AND, w.cast(codes, i32), (1 << bits) - 1), 0)


def encoded(w: Writer, x: SSAValue, name: str) -> SSAValue:
    """
    Return the codes nearest to numbers, the even one of two, the largest finite one beyond.

    Numbers are halved until they are below 2, in units of the least normal one: what is left is
    whole in units of the last digit when it is rounded, and codes count the numbers from 0 up.
    """
    f = FORMATS[name]
    size = w.binary(BinaryKind.MIN, w.unary(UnaryKind.ABS, x), f.most)
    left = w.binary(BinaryKind.MUL, size, 2.0**-f.least)
    halvings = w.value(0, tensor(dims_of(x.type), i32))
    for i in reversed(range(f.exponent)):
        times = 1 << i
        above = w.compare(CompareKind.GE, left, 2.0**times)
        left = w.select(above, w.binary(BinaryKind.MUL, left, 2.0**-times), left)
        halvings = w.select(above, w.binary(BinaryKind.ADD, halvings, times), halvings)
    whole = w.unary(UnaryKind.ROUND, w.binary(BinaryKind.MUL, left, 2.0**f.mantissa))
    code = w.binary(BinaryKind.SHL, halvings, f.mantissa)
    code = w.binary(BinaryKind.ADD, code, w.cast(whole, i32))
    if f.nans:
        missing = w.compare(CompareKind.NE, x, x)
        code = w.select(missing, (1 << (f.bits - 1)) - 1, code)
    sign = w.select(w.compare(CompareKind.LT, x, 0), w.value(1 << (f.bits - 1), code.type), 0)
    return w.cast(w.binary(BinaryKind.ADD, code, sign), CODE)


def _encoded(x: Array, name: str) -> Array:
    """Return the codes nearest to numbers, by looking at all of them."""
    import numpy as np

    f = FORMATS[name]
    numbers = np.array([f.value(code) for code in range(f.largest + 1)])
    size = np.minimum(np.abs(np.nan_to_num(x, nan=0.0, posinf=f.most, neginf=-f.most)), f.most)
    upper = np.searchsorted(numbers, size)
    lower = np.maximum(upper - 1, 0)
    below, above = size - numbers[lower], numbers[upper] - size
    down = (below < above) | ((below == above) & (lower % 2 == 0))
    codes = np.where(down, lower, upper)
    codes = np.where(np.isnan(x) & (f.nans > 0), (1 << (f.bits - 1)) - 1, codes)
    return np.where(x < 0, codes + (1 << (f.bits - 1)), codes).astype(np.uint8).view(np.int8)


def _draw_format(draw: Draw) -> tuple[str, int, tuple[int, ...]]:
    """Return a format, a block and a shape of whole blocks."""
    block = draw.choice((0, 0, 1, 16, 32))
    *lead, last = draw.shape(1, 2, 3)
    return draw.choice(tuple(FORMATS)), block, (*lead, max(block, 1) * min(last, 40))


def draw_codes(draw: Draw, name: str, shape: Sequence[int], finite: bool = False) -> Array:
    import numpy as np

    f = FORMATS[name]
    codes = draw.rng.integers(0, 1 << f.bits, shape)
    if finite:
        codes = np.where(codes % (1 << (f.bits - 1)) > f.largest, 1, codes)
    return codes.astype(np.uint8).view(np.int8)


def draw_scale(draw: Draw, shape: Sequence[int], block: int) -> Array:
    dims = (*shape[:-1], shape[-1] // block) if block else ()
    return draw.array(dims, 0.01, 2.0)


# The scale of a tensor


@irdl_op_definition
class ScaledQuantScaleOp(NamedOp):
    """The largest |x| over the largest number of the format, at least 1e-12: the scale of x."""

    name = "quant.scaled_quant_scale"
    KIND: ClassVar = OpKind.SCALED_QUANT_SCALE
    OPTIONS: ClassVar = _OPTIONS
    CHOICES: ClassVar = _CHOICES

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        return [tensor(scale_dims(cls, types[0], o["block"]), element_of(types[0]))]


def _scaled_quant_scale(op: ScaledQuantScaleOp, x: Array) -> Array:
    import numpy as np

    name, block = op.chosen.values()
    size = np.abs(x)
    if block:
        size = size.reshape(*x.shape[:-1], -1, block)
    largest = np.max(size, axis=-1 if block else None, initial=0.0)
    return np.maximum(largest / FORMATS[name].most, SMALLEST_SCALE)


def _expand_scaled_quant_scale(w: Writer, op: ScaledQuantScaleOp) -> Sequence[SSAValue]:
    (x,) = op.args
    name, block = op.chosen.values()
    dims = dims_of(op.res[0].type)
    size = w.unary(UnaryKind.ABS, x)
    if block:
        size = w.reshape(size, [*dims, block])
    axes = range(len(dims), len(dims_of(size.type)))
    largest = w.reduce(ReduceKind.MAX, size, list(axes)) if axes else size
    scale = w.binary(BinaryKind.DIV, largest, FORMATS[name].most)
    return [w.binary(BinaryKind.MAX, scale, SMALLEST_SCALE)]


def _sample_scaled_quant_scale(draw: Draw) -> Case:
    name, block, shape = _draw_format(draw)
    x = draw.array(shape)
    return Case([x], lambda w, v: w.add_all(ScaledQuantScaleOp(*v, format=name, block=block)))


# Codes of a tensor


@irdl_op_definition
class ScaledQuantizeOp(NamedOp):
    """
    Codes i8 of x / scale: the nearest number of the format, of two the one whose code is even.

    Beyond the largest finite number it is that; NaN is NaN where the format has it, else 0.
    """

    name = "quant.scaled_quantize"
    KIND: ClassVar = OpKind.SCALED_QUANTIZE
    OPTIONS: ClassVar = _OPTIONS
    CHOICES: ClassVar = _CHOICES

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        wanted = tensor(scale_dims(cls, types[0], o["block"]), element_of(types[0]))
        if types[1] != wanted:
            raise cls.refuse(f"a scale {wanted}", types)
        return [infer.with_element(types[0], CODE)]


def _scaled_quantize(op: ScaledQuantizeOp, x: Array, scale: Array) -> Array:
    name, block = op.chosen.values()
    return _encoded(x / _repeated(scale, block), name)


def _expand_scaled_quantize(w: Writer, op: ScaledQuantizeOp) -> Sequence[SSAValue]:
    x, scale = op.args
    name, block = op.chosen.values()
    ratio = w.binary(BinaryKind.DIV, x, _spread(w, scale, dims_of(x.type), block))
    return [encoded(w, ratio, name)]


def _sample_scaled_quantize(draw: Draw) -> Case:
    import numpy as np

    name, block, shape = _draw_format(draw)
    f, scale = FORMATS[name], draw_scale(draw, shape, block)
    numbers = _values(name)[draw_codes(draw, name, shape, finite=True).view(np.uint8)]
    # Near numbers of the format: half way between two the last bit of the quotient would decide.
    near = numbers * (1 + draw.rng.uniform(-1, 1, shape) * 2.0 ** -(f.mantissa + 3))
    near = np.where(draw.rng.random(shape) < 0.1, near * 3e4, near)
    x = (near * _repeated(scale, block)).astype(draw.dtype)
    options: dict[str, Any] = {"format": name, "block": block}
    return Case([x, scale], lambda w, v: w.add_all(ScaledQuantizeOp(*v, **options)))


# Back to floats


def check_codes(cls: type[NamedOp], codes: Attribute, scale: Attribute, block: int) -> None:
    """Raise VerifyException unless there are codes and floats that are their scale."""
    infer.check_element(cls.name, codes, (CODE,))
    infer.check_element(cls.name, scale, infer.FLOATS)
    wanted = scale_dims(cls, codes, block)
    if list(dims_of(scale)) != wanted:
        raise cls.refuse(f"a scale of the dimensions {wanted}", [codes, scale])


@irdl_op_definition
class ScaledDequantizeOp(NamedOp):
    """The numbers of codes i8 times their scale, in its element type."""

    name = "quant.scaled_dequantize"
    KIND: ClassVar = OpKind.SCALED_DEQUANTIZE
    OPTIONS: ClassVar = _OPTIONS
    CHOICES: ClassVar = _CHOICES

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2)
        check_codes(cls, types[0], types[1], o["block"])
        return [infer.with_element(types[0], element_of(types[1]))]


def numbers_of(codes: Array, scale: Array, name: str, block: int) -> Array:
    import numpy as np

    numbers = _values(name)[codes.view(np.uint8)]
    return (numbers * _repeated(scale, block)).astype(scale.dtype)


def _scaled_dequantize(op: ScaledDequantizeOp, codes: Array, scale: Array) -> Array:
    return numbers_of(codes, scale, *op.chosen.values())


def _expand_scaled_dequantize(w: Writer, op: ScaledDequantizeOp) -> Sequence[SSAValue]:
    codes, scale = op.args
    return [dequantized(w, codes, scale, *op.chosen.values())]


def dequantized(w: Writer, codes: SSAValue, scale: SSAValue, name: str, block: int) -> SSAValue:
    """Return the numbers of codes times their scale."""
    numbers = decoded(w, codes, name, element_of(scale.type))
    return w.binary(BinaryKind.MUL, numbers, _spread(w, scale, dims_of(codes.type), block))


def _sample_scaled_dequantize(draw: Draw) -> Case:
    name, block, shape = _draw_format(draw)
    arrays = [draw_codes(draw, name, shape), draw_scale(draw, shape, block)]
    options: dict[str, Any] = {"format": name, "block": block}
    return Case(arrays, lambda w, v: w.add_all(ScaledDequantizeOp(*v, **options)))


RECORDS = (
    Record(ScaledQuantScaleOp, (OpKind.SCALED_QUANT_SCALE,), ROWS, FLOATS, _scaled_quant_scale,
           _sample_scaled_quant_scale, _expand_scaled_quant_scale),
    Record(ScaledQuantizeOp, (OpKind.SCALED_QUANTIZE,), ROWS, FLOATS, _scaled_quantize,
           _sample_scaled_quantize, _expand_scaled_quantize),
    Record(ScaledDequantizeOp, (OpKind.SCALED_DEQUANTIZE,), ROWS, FLOATS, _scaled_dequantize,
           _sample_scaled_dequantize, _expand_scaled_dequantize),
)  # fmt: skip
