"""
Products of floats with weights of 8-bit codes, whose scales and zero points are of blocks.

A weight is `[..., k, n]` of i8; `block` consecutive rows of k share a scale and a zero point, which
are floats `[..., k / block, n]`: the weight is (q - zero) scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import IntegerType, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.contraction import GroupedMatmulOp
from rlx.ops.record import CONTRACTION, FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw

I8 = IntegerType(8)
BLOCK = {"block": 32}


def check_weight(
    cls: type[NamedOp], types: Sequence[Attribute], rank: int, block: int
) -> tuple[int, ...]:
    """Return the dimensions of a weight, given as codes, scale and zero point."""
    dims = dims_of(types[0])
    sizes = tuple(d for d in dims if isinstance(d, int))
    fits = len(sizes) == len(dims) == rank and block > 0 and sizes[-2] % block == 0
    wanted = (*sizes[:-2], sizes[-2] // block, sizes[-1]) if fits else ()
    same = types[1] == types[2] and element_of(types[1]) in infer.FLOATS
    if not (fits and same) or element_of(types[0]) != I8 or dims_of(types[1]) != wanted:
        lead = "e, " * (rank - 2)
        raise cls.refuse(
            f"a weight [{lead}k, n] of i8 and two floats [{lead}k / {block}, n] of one type", types
        )
    return sizes


def dequantised(w: Writer, q: SSAValue, scale: SSAValue, zero: SSAValue, block: int) -> SSAValue:
    """Return a weight as floats."""
    *lead, blocks, n = dims_of(scale.type)
    apart = [*lead, blocks, block, n]
    scale, zero = (w.spread(w.reshape(v, [*lead, blocks, 1, n]), apart) for v in (scale, zero))
    wide = w.cast(w.reshape(q, apart), element_of(scale.type))
    wide = w.binary(BinaryKind.MUL, w.binary(BinaryKind.SUB, wide, zero), scale)
    return w.reshape(wide, dims_of(q.type))


def _dequantised(q: Array, scale: Array, zero: Array, block: int) -> Array:
    return (q - zero.repeat(block, axis=-2)) * scale.repeat(block, axis=-2)


def _draw_weight(draw: Draw, *lead: int) -> tuple[list[Array], int]:
    """Return codes, scale and zero point, and the block."""
    block, n, blocks = draw.choice((1, 4, 16, 32)), draw.size(1, 97), draw.between(1, 6)
    codes = draw.array((*lead, block * blocks, n), element="i8")
    dims = (*lead, blocks, n)
    return [codes, draw.array(dims, 0.01, 0.1), draw.array(dims, -20, 20)], block


@irdl_op_definition
class DequantMatmulOp(NamedOp):
    """x times a weight: `x [m, k], q [k, n], scale, zero -> [m, n]`; floats of one type."""

    name = "quant.dequant_matmul"
    KIND: ClassVar = OpKind.DEQUANT_MATMUL
    OPTIONS: ClassVar = BLOCK

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 4)
        k, n = check_weight(cls, types[1:], 2, o["block"])
        x = dims_of(types[0])
        if len(x) != 2 or x[1] != k or element_of(types[0]) != element_of(types[2]):
            raise cls.refuse(f"x [m, {k}] of the scale's element type, and a weight", types)
        return [tensor([x[0], n], element_of(types[0]))]


def _dequant_matmul(op: DequantMatmulOp, x: Array, q: Array, scale: Array, zero: Array) -> Array:
    return (x @ _dequantised(q, scale, zero, op.option("block"))).astype(x.dtype)


def _expand_dequant_matmul(w: Writer, op: DequantMatmulOp) -> Sequence[SSAValue]:
    x, q, scale, zero = op.args
    return [w.dot(x, dequantised(w, q, scale, zero, op.option("block")))]


def _sample_dequant_matmul(draw: Draw) -> Case:
    weight, block = _draw_weight(draw)
    arrays = [draw.array((draw.size(1, 64), weight[0].shape[0])), *weight]
    return Case(arrays, lambda w, v: w.add_all(DequantMatmulOp(*v, block=block)))


@irdl_op_definition
class DequantGroupedMatmulOp(NamedOp):
    """
    Row i times weight ids[i]: `x [m, k], q [e, k, n], scale, zero, ids [m] -> [m, n]`.

    Floats are of one type; ids are i32 or i64, of which one beyond the weights means the first or
    the last (`contraction.grouped_matmul`).
    """

    name = "quant.dequant_grouped_matmul"
    KIND: ClassVar = OpKind.DEQUANT_GROUPED_MATMUL
    OPTIONS: ClassVar = BLOCK

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 5)
        _, k, n = check_weight(cls, types[1:4], 3, o["block"])
        infer.check_element(f"{cls.name} ids", types[4], (i32, i64))
        x, ids = dims_of(types[0]), dims_of(types[4])
        if x != (*ids, k) or len(ids) != 1 or element_of(types[0]) != element_of(types[2]):
            raise cls.refuse(f"x [m, {k}] of the scale's element type, a weight, ids [m]", types)
        return [tensor([x[0], n], element_of(types[0]))]


def _dequant_grouped_matmul(op: DequantGroupedMatmulOp, x: Array, *given: Array) -> Array:
    import numpy as np

    q, scale, zero, ids = given
    wide = _dequantised(q, scale, zero, op.option("block"))
    rows = [row @ wide[min(max(int(e), 0), len(wide) - 1)] for row, e in zip(x, ids, strict=True)]
    return np.array(rows, x.dtype).reshape(len(x), wide.shape[-1])


def _expand_dequant_grouped_matmul(w: Writer, op: DequantGroupedMatmulOp) -> Sequence[SSAValue]:
    x, q, scale, zero, ids = op.args
    wide = dequantised(w, q, scale, zero, op.option("block"))
    return [w.add(GroupedMatmulOp(x, wide, ids))]


def _sample_dequant_grouped_matmul(draw: Draw) -> Case:
    e, m = draw.between(1, 5), draw.size(1, 64)
    weight, block = _draw_weight(draw, e)
    ids = draw.ids((m,), e, draw.choice(("i32", "i64")))
    arrays = [draw.array((m, weight[0].shape[1])), *weight, ids]
    return Case(arrays, lambda w, v: w.add_all(DequantGroupedMatmulOp(*v, block=block)))


@irdl_op_definition
class DequantMoeWeightsOp(NamedOp):
    """Weights as floats: `q [e, k, n] i8, scale, zero -> [e, k, n]`."""

    name = "quant.dequant_moe_weights"
    KIND: ClassVar = OpKind.DEQUANT_MOE_WEIGHTS
    OPTIONS: ClassVar = BLOCK

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        return [tensor(check_weight(cls, types, 3, o["block"]), element_of(types[1]))]


def _dequant_moe_weights(op: DequantMoeWeightsOp, q: Array, scale: Array, zero: Array) -> Array:
    return _dequantised(q, scale, zero, op.option("block"))


def _expand_dequant_moe_weights(w: Writer, op: DequantMoeWeightsOp) -> Sequence[SSAValue]:
    q, scale, zero = op.args
    return [dequantised(w, q, scale, zero, op.option("block"))]


def _sample_dequant_moe_weights(draw: Draw) -> Case:
    weight, block = _draw_weight(draw, draw.between(1, 5))
    return Case(weight, lambda w, v: w.add_all(DequantMoeWeightsOp(*v, block=block)))


RECORDS = (
    Record(
        DequantMatmulOp, (OpKind.DEQUANT_MATMUL,), CONTRACTION, FLOATS, _dequant_matmul,
        _sample_dequant_matmul, _expand_dequant_matmul,
    ),
    Record(
        DequantGroupedMatmulOp, (OpKind.DEQUANT_GROUPED_MATMUL,), CONTRACTION, FLOATS,
        _dequant_grouped_matmul, _sample_dequant_grouped_matmul, _expand_dequant_grouped_matmul,
    ),
    Record(
        DequantMoeWeightsOp, (OpKind.DEQUANT_MOE_WEIGHTS,), ROWS, FLOATS, _dequant_moe_weights,
        _sample_dequant_moe_weights, _expand_dequant_moe_weights,
    ),
)  # fmt: skip
