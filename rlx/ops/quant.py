"""
Numbers as integers times a scale, and what training makes of a float to get used to that.

Rounding is to the nearest integer, of two the even one. A scale is of the whole tensor, given
without dimensions, or of each place of an axis, given as a vector; `axis` -1 means the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import i32
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Operand, Writer
from rlx.ops import quant_products, quant_weights, scaled, scaled_products
from rlx.ops.record import FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import DTYPES, Draw

CODES: dict[str, Attribute] = {
    str(element).replace("ui", "u"): element for element in infer.INTEGERS if element.size == 1
}
"""What floats are quantised to, by name."""

_CODED = [element for element in infer.INTEGERS if element.size <= i32.size]

SMALLEST_SCALE = 1e-12
"""What a scale that comes from data is at least, so that zeros are divided by something."""

LARGEST = {8: 127, 4: 7, 2: 1}
"""Bits of a fake quantisation -> the largest code; the smallest is its negative."""


def scale_dims(cls: type[NamedOp], types: Sequence[Attribute], axis: int) -> tuple[Dim, ...]:
    """Return the dimensions of a scale. Raises VerifyException for an axis that isn't there."""
    dims = dims_of(types[0])
    if not -1 <= axis < len(dims):
        raise cls.refuse(f"an axis of the first operand, or -1, as `axis` {axis}", types)
    return () if axis < 0 else (dims[axis],)


def spread_scale(w: Writer, scale: SSAValue, axis: int, dims: Sequence[Dim]) -> SSAValue:
    """Repeat a scale over a shape."""
    return w.spread(scale, dims) if axis < 0 else w.along(scale, axis, dims)


def _shaped(scale: Array, axis: int, rank: int) -> Array:
    return scale if axis < 0 else scale.reshape([-1 if i == axis else 1 for i in range(rank)])


def draw_scaled(
    draw: Draw, shape: Sequence[int], axis: int, largest: int, beyond: float = 1.2
) -> tuple[Array, Array]:
    """
    Return numbers that aren't half way between codes, and their scale.

    Half way it would hang on the last bit of a quotient where they are rounded to.
    """
    size = () if axis < 0 else (shape[axis],)
    scale = draw.rng.uniform(0.01, 2.0, size).astype(draw.dtype)
    most = int(largest * beyond)
    codes = draw.rng.integers(-most, most, shape, endpoint=True)
    near = codes + draw.rng.uniform(-0.4, 0.4, shape)
    return (near * _shaped(scale, axis, len(shape))).astype(draw.dtype), scale


def _draw_axis(draw: Draw, shape: Sequence[int]) -> int:
    return draw.between(0, len(shape) - 1) if shape and draw.chance(0.6) else -1


# Quantise


class _Affine(NamedOp):
    """x and a scale, and perhaps a zero point i32 of the same dimensions."""

    @classmethod
    def check_affine(
        cls, types: Sequence[Attribute], axis: int, allowed: Sequence[Attribute]
    ) -> None:
        cls.expect_count(types, 2, 3)
        infer.check_element(cls.name, types[0], allowed)
        infer.check_element(cls.name, types[1], infer.FLOATS)
        size = scale_dims(cls, types, axis)
        if dims_of(types[1]) != size or any(t != tensor(size, i32) for t in types[2:]):
            raise cls.refuse(f"a scale {list(size)}, and perhaps a zero point of it, i32", types)


@irdl_op_definition
class QuantizeOp(_Affine):
    """
    Codes of floats: round(x / scale) + zero_point, or the end of the range beyond it; 0 for NaN.

    x, a scale of its element type, and perhaps a zero point i32, of the whole tensor or an axis.
    """

    name = "quant.quantize"
    KIND: ClassVar = OpKind.QUANTIZE
    OPTIONS: ClassVar = {"axis": -1, "to": "i8"}
    CHOICES: ClassVar = {"to": tuple(CODES)}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.check_affine(types, o["axis"], infer.FLOATS)
        if element_of(types[1]) != element_of(types[0]):
            raise cls.refuse("a scale of the first operand's element type", types)
        return [infer.with_element(types[0], CODES[o["to"]])]


def _quantize(op: QuantizeOp, x: Array, scale: Array, *zeros: Array) -> Array:
    import numpy as np

    axis = op.option("axis")
    codes = np.rint(x / _shaped(scale, axis, x.ndim))
    for zero in zeros:
        codes = codes + _shaped(zero, axis, x.ndim)
    limits = np.iinfo(DTYPES[op.option("to")])
    codes = np.nan_to_num(codes.clip(limits.min, limits.max), nan=0.0)
    return codes.astype(DTYPES[op.option("to")])


def coded(w: Writer, x: SSAValue, zeros: Sequence[Operand], element: Attribute) -> SSAValue:
    """Return floats rounded and with zero points added, as integers; the ends where beyond."""
    codes = w.unary(UnaryKind.ROUND, x)
    for zero in zeros:
        codes = w.binary(BinaryKind.ADD, codes, zero)
    return w.cast(codes, element)


def _expand_quantize(w: Writer, op: QuantizeOp) -> Sequence[SSAValue]:
    x, scale, *zeros = op.args
    axis, dims, element = op.option("axis"), dims_of(x.type), element_of(x.type)
    codes = w.binary(BinaryKind.DIV, x, spread_scale(w, scale, axis, dims))
    wide = [spread_scale(w, w.cast(zero, element), axis, dims) for zero in zeros]
    return [coded(w, codes, wide, CODES[op.option("to")])]


def _draw_zeros(draw: Draw, scale: Array) -> list[Array]:
    import numpy as np

    if draw.chance():
        return []
    return [draw.rng.integers(-99, 99, scale.shape).astype(np.int32)]


def _sample_quantize(draw: Draw) -> Case:
    shape = draw.shape(1, 2, 3, 4)
    axis = _draw_axis(draw, shape)
    x, scale = draw_scaled(draw, shape, axis, 200)
    to = draw.choice(tuple(CODES))
    arrays = [x, scale, *_draw_zeros(draw, scale)]
    return Case(arrays, lambda w, v: w.add_all(QuantizeOp(*v, axis=axis, to=to)))


@irdl_op_definition
class DequantizeOp(_Affine):
    """
    Floats of codes: (q - zero_point) scale, in the scale's element type.

    Integers up to 32 bits, a scale, and perhaps a zero point i32, of the whole tensor or an axis.
    """

    name = "quant.dequantize"
    KIND: ClassVar = OpKind.DEQUANTIZE
    OPTIONS: ClassVar = {"axis": -1}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.check_affine(types, o["axis"], _CODED)
        return [infer.with_element(types[0], element_of(types[1]))]


def _dequantize(op: DequantizeOp, q: Array, scale: Array, *zeros: Array) -> Array:
    import numpy as np

    axis = op.option("axis")
    codes = q.astype(np.int32)
    for zero in zeros:
        codes = codes - _shaped(zero, axis, q.ndim)
    return codes.astype(scale.dtype) * _shaped(scale, axis, q.ndim)


def _expand_dequantize(w: Writer, op: DequantizeOp) -> Sequence[SSAValue]:
    q, scale, *zeros = op.args
    axis, dims = op.option("axis"), dims_of(q.type)
    codes = w.cast(q, i32)
    for zero in zeros:
        codes = w.binary(BinaryKind.SUB, codes, spread_scale(w, zero, axis, dims))
    codes = w.cast(codes, element_of(scale.type))
    return [w.binary(BinaryKind.MUL, codes, spread_scale(w, scale, axis, dims))]


def _sample_dequantize(draw: Draw) -> Case:
    shape = draw.shape(1, 2, 3, 4)
    axis = _draw_axis(draw, shape)
    q = draw.array(shape)
    scale = draw.array(() if axis < 0 else (shape[axis],), 0.01, 2.0, draw.choice(FLOATS))
    arrays = [q, scale, *_draw_zeros(draw, scale)]
    return Case(arrays, lambda w, v: w.add_all(DequantizeOp(*v, axis=axis)))


# What a float would be as a code


def _check_bits(cls: type[NamedOp], types: Sequence[Attribute], bits: int) -> None:
    if bits not in LARGEST:
        raise cls.refuse(f"one of {', '.join(map(str, LARGEST))} as `bits`, not {bits},", types)


def _rounded(x: Array, scale: Array, axis: int, bits: int) -> Array:
    import numpy as np

    wide, most = _shaped(scale, axis, x.ndim), LARGEST[bits]
    return np.rint(x / wide).clip(-most, most) * wide


def _expand_rounded(w: Writer, x: SSAValue, scale: SSAValue, axis: int, bits: int) -> SSAValue:
    wide, most = spread_scale(w, scale, axis, dims_of(x.type)), LARGEST[bits]
    codes = w.unary(UnaryKind.ROUND, w.binary(BinaryKind.DIV, x, wide))
    codes = w.binary(BinaryKind.MIN, w.binary(BinaryKind.MAX, codes, -most), most)
    return w.binary(BinaryKind.MUL, codes, wide)


@irdl_op_definition
class FakeQuantizeOp(NamedOp):
    """
    x rounded to codes and back: min(max(round(x / scale), -q), q) scale, in floats.

    q is 127, 7 or 1 for 8, 4 or 2 `bits`. The scale is of the whole or of each place of `axis`:
    - `per_batch`: the largest |x| over q;
    - `fixed`: the second operand;
    - `ema`: decay old + (1 - decay) of `per_batch`, or that alone where old is not above 0. The old
      scale is the second operand, and the new one a second result.
    None is below 1e-12, but what `ema` mixes of an old one.
    """

    name = "quant.fake_quantize"
    KIND: ClassVar = OpKind.FAKE_QUANTIZE
    OPTIONS: ClassVar = {"bits": 8, "axis": -1, "mode": "per_batch", "decay": 0.99}
    CHOICES: ClassVar = {"mode": ("per_batch", "fixed", "ema")}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1 if o["mode"] == "per_batch" else 2)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        _check_bits(cls, types, o["bits"])
        scale = tensor(scale_dims(cls, types, o["axis"]), element_of(types[0]))
        if any(t != scale for t in types[1:]):
            raise cls.refuse(f"a scale {scale}", types)
        return list(types)[: 2 if o["mode"] == "ema" else 1]


def _fake_quantize(op: FakeQuantizeOp, x: Array, *given: Array) -> Array | tuple[Array, Array]:
    import numpy as np

    bits, axis, mode, decay = op.chosen.values()
    if mode == "fixed":
        return _rounded(x, np.maximum(given[0], SMALLEST_SCALE), axis, bits)
    others = tuple(i for i in range(x.ndim) if i != axis)
    scale: Array = np.maximum(np.abs(x).max(others) / LARGEST[bits], SMALLEST_SCALE)
    if mode == "ema":
        scale = np.where(given[0] > 0, decay * given[0] + (1 - decay) * scale, scale)
        return _rounded(x, scale, axis, bits), scale
    return _rounded(x, scale, axis, bits)


def _expand_fake_quantize(w: Writer, op: FakeQuantizeOp) -> Sequence[SSAValue]:
    x, *given = op.args
    bits, axis, mode, decay = op.chosen.values()
    if mode == "fixed":
        scale = w.binary(BinaryKind.MAX, given[0], SMALLEST_SCALE)
        return [_expand_rounded(w, x, scale, axis, bits)]
    others = [i for i in range(len(dims_of(x.type))) if i != axis]
    size = w.unary(UnaryKind.ABS, x)
    scale = w.reduce(ReduceKind.MAX, size, others) if others else size
    scale = w.binary(BinaryKind.DIV, scale, LARGEST[bits])
    scale = w.binary(BinaryKind.MAX, scale, SMALLEST_SCALE)
    for old in given:
        parts = (w.binary(BinaryKind.MUL, v, d) for v, d in ((old, decay), (scale, 1 - decay)))
        blended = w.binary(BinaryKind.ADD, *parts)
        scale = w.select(w.compare(CompareKind.GT, old, 0), blended, scale)
    return [_expand_rounded(w, x, scale, axis, bits), *([scale] if given else [])]


def _sample_fake_quantize(draw: Draw) -> Case:
    import numpy as np

    shape = draw.shape(1, 2, 3, 4)
    axis, bits = _draw_axis(draw, shape), draw.choice(tuple(LARGEST))
    mode, decay = draw.choice(FakeQuantizeOp.CHOICES["mode"]), draw.choice((0.9, 0.99))
    most = LARGEST[bits]
    x, scale = draw_scaled(draw, shape, axis, most, 1.0 if mode == "per_batch" else 2.0)
    wide = np.broadcast_to(_shaped(scale, axis, x.ndim), shape)
    # The largest of each scale is known: it is in the first place of the others.
    first = tuple(slice(None) if i == axis else 0 for i in range(len(shape)))
    x = np.clip(x, -2 * most * wide, 2 * most * wide).astype(x.dtype)
    largest = np.float64(1 if mode == "per_batch" else 2) * most * wide[first]
    if mode == "per_batch":
        x = np.clip(x, -most * wide, most * wide).astype(x.dtype)
    x[first] = largest
    arrays = [x]
    if mode == "fixed":
        arrays.append(scale)
    elif mode == "ema":
        old = (scale - (1 - decay) * (largest / most)) / decay
        arrays.append(np.asarray(old, draw.dtype))
    return Case(arrays, lambda w, v: w.add_all(
        FakeQuantizeOp(*v, bits=bits, axis=axis, mode=mode, decay=decay)
    ))  # fmt: skip


@irdl_op_definition
class FakeQuantizeLsqOp(NamedOp):
    """
    x rounded to codes of a learned scale and back: min(max(round(x / scale), -q), q) scale.

    q is 127, 7 or 1 for 8, 4 or 2 `bits`; the scale is of the whole or of each place of `axis`
    (Esser et al., 2020).
    """

    name = "quant.fake_quantize_lsq"
    KIND: ClassVar = OpKind.FAKE_QUANTIZE_LSQ
    OPTIONS: ClassVar = {"bits": 8, "axis": -1}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        _check_bits(cls, types, o["bits"])
        scale = tensor(scale_dims(cls, types, o["axis"]), element_of(types[0]))
        if types[1] != scale:
            raise cls.refuse(f"a scale {scale}", types)
        return types[:1]


def _fake_quantize_lsq(op: FakeQuantizeLsqOp, x: Array, scale: Array) -> Array:
    return _rounded(x, scale, op.option("axis"), op.option("bits"))


def _expand_fake_quantize_lsq(w: Writer, op: FakeQuantizeLsqOp) -> Sequence[SSAValue]:
    x, scale = op.args
    return [_expand_rounded(w, x, scale, op.option("axis"), op.option("bits"))]


def _sample_fake_quantize_lsq(draw: Draw) -> Case:
    shape = draw.shape(1, 2, 3, 4)
    axis, bits = _draw_axis(draw, shape), draw.choice(tuple(LARGEST))
    arrays = draw_scaled(draw, shape, axis, LARGEST[bits], 2.0)
    return Case(arrays, lambda w, v: w.add_all(FakeQuantizeLsqOp(*v, axis=axis, bits=bits)))


RECORDS = (
    *quant_products.RECORDS,
    *quant_weights.RECORDS,
    *scaled.RECORDS,
    *scaled_products.RECORDS,
    Record(QuantizeOp, (OpKind.QUANTIZE,), ROWS, FLOATS, _quantize, _sample_quantize,
           _expand_quantize),
    Record(DequantizeOp, (OpKind.DEQUANTIZE,), ROWS, ("i8", "i16", "i32"), _dequantize,
           _sample_dequantize, _expand_dequantize),
    Record(FakeQuantizeOp, (OpKind.FAKE_QUANTIZE,), ROWS, FLOATS, _fake_quantize,
           _sample_fake_quantize, _expand_fake_quantize),
    Record(FakeQuantizeLsqOp, (OpKind.FAKE_QUANTIZE_LSQ,), ROWS, FLOATS, _fake_quantize_lsq,
           _sample_fake_quantize_lsq, _expand_fake_quantize_lsq),
)  # fmt: skip

Quant = Dialect("quant", [r.op for r in RECORDS], [])
