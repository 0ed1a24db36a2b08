"""Operations on tensors of any shape that primitives express: limits, repetition, triangles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import i64
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, CompareKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops import tensor_maps, tensor_moves
from rlx.ops.record import FLOATS, INTEGERS, MOVE, ROWS, Array, Case, Record
from rlx.ops.samples import Draw
from rlx.ops.tensor_moves import number_of

# Clamp


@irdl_op_definition
class ClampOp(NamedOp):
    """min(max(x, low), high), element by element; NaN stays NaN."""

    name = "tensor.clamp"
    KIND: ClassVar = OpKind.CLAMP
    OPTIONS: ClassVar = {"low": 0.0, "high": 0.0}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        infer.check_element(cls.name, types[0], (*infer.FLOATS, *infer.INTEGERS))
        return types


def _clamp(op: ClampOp, x: Array) -> Array:
    return x.clip(op.option("low"), op.option("high")).astype(x.dtype)


def _expand_clamp(w: Writer, op: ClampOp) -> Sequence[SSAValue]:
    element = element_of(op.args[0].type)
    low, high = (number_of(op.option(name), element) for name in ("low", "high"))
    return [w.binary(BinaryKind.MIN, w.binary(BinaryKind.MAX, op.args[0], low), high)]


def _sample_clamp(draw: Draw) -> Case:
    x = draw.array(draw.shape(0, 1, 2, 3))
    return Case([x], lambda w, v: w.add_all(ClampOp(*v, low=-1.0, high=2.0)))


# Tile


@irdl_op_definition
class TileOp(NamedOp):
    """A tensor repeated `times` along each axis; all its dimensions are numbers."""

    name = "tensor.tile"
    KIND: ClassVar = OpKind.TILE
    OPTIONS: ClassVar = {"times": ()}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        dims, times = dims_of(types[0]), o["times"]
        if len(times) != len(dims) or min(times, default=1) < 0:
            raise cls.refuse(f"a count from 0 for each axis, as `times` {times}", types)
        sizes = [d * n for d, n in zip(dims, times, strict=True) if isinstance(d, int)]
        if len(sizes) != len(dims):
            raise cls.refuse("numbers for dimensions", types)
        return [tensor(sizes, element_of(types[0]))]


def _tile(op: TileOp, x: Array) -> Array:
    import numpy as np

    return np.tile(x, op.option("times"))


def _expand_tile(w: Writer, op: TileOp) -> Sequence[SSAValue]:
    dims, times = dims_of(op.args[0].type), op.option("times")
    apart = w.reshape(op.args[0], [n for d in dims for n in (1, d)])
    spread = w.spread(apart, [n for pair in zip(times, dims, strict=True) for n in pair])
    return [w.reshape(spread, dims_of(op.res[0].type))]


def _sample_tile(draw: Draw) -> Case:
    x = draw.array(draw.shape(1, 2, 3, low=0))
    times = tuple(draw.between(0, 3) for _ in x.shape)
    return Case([x], lambda w, v: w.add_all(TileOp(*v, times=times)))


# Triangles


@irdl_op_definition
class TriluOp(NamedOp):
    """The lower or upper triangle of the last two axes, from a diagonal on; zeros elsewhere."""

    name = "tensor.trilu"
    KIND: ClassVar = OpKind.TRILU
    OPTIONS: ClassVar = {"upper": False, "diagonal": 0}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        if len(dims_of(types[0])) < 2:
            raise cls.refuse("matrices", types)
        return types


def _trilu(op: TriluOp, x: Array) -> Array:
    import numpy as np

    return (np.triu if op.option("upper") else np.tril)(x, op.option("diagonal"))


def _expand_trilu(w: Writer, op: TriluOp) -> Sequence[SSAValue]:
    x = op.args[0]
    dims = dims_of(x.type)
    row, column = (w.iota(axis, dims, i64) for axis in (len(dims) - 2, len(dims) - 1))
    offset = w.binary(BinaryKind.SUB, column, row)
    kind = CompareKind.GE if op.option("upper") else CompareKind.LE
    return [w.select(w.compare(kind, offset, op.option("diagonal")), x, 0)]


def _sample_trilu(draw: Draw) -> Case:
    x = draw.array(draw.shape(2, 3))
    upper, diagonal = draw.chance(), draw.between(-3, 3)
    return Case([x], lambda w, v: w.add_all(TriluOp(*v, upper=upper, diagonal=diagonal)))


_ALL = (*FLOATS, *INTEGERS)
RECORDS = (
    *tensor_maps.RECORDS,
    *tensor_moves.RECORDS,
    Record(ClampOp, (OpKind.CLAMP,), ROWS, _ALL, _clamp, _sample_clamp, _expand_clamp),
    Record(TileOp, (OpKind.TILE,), MOVE, _ALL, _tile, _sample_tile, _expand_tile),
    Record(TriluOp, (OpKind.TRILU,), ROWS, _ALL, _trilu, _sample_trilu, _expand_trilu),
)

Tensor = Dialect("tensor", [r.op for r in RECORDS], [])
