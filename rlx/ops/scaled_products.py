"""Products of floats of 4, 6 and 8 bits, given as codes and scales (`rlx.ops.scaled`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.contraction import GroupedMatmulOp
from rlx.ops.record import CONTRACTION, FLOATS, Array, Case, Record
from rlx.ops.samples import Draw
from rlx.ops.scaled import FORMATS, check_codes, dequantized, draw_codes, draw_scale, numbers_of

_OPTIONS = {"x_format": "e4m3", "w_format": "e4m3", "block": 0}
_CHOICES = {"x_format": tuple(FORMATS), "w_format": tuple(FORMATS)}


@irdl_op_definition
class ScaledMatmulOp(NamedOp):
    """
    Products of what codes stand for: `[m, k] i8, [n, k] i8, scale, scale, [n]? -> [m, n]`.

    Formats are those of each side; the scales and the bias have the result's element type. `block`
    is of both scales.
    """

    name = "quant.scaled_matmul"
    KIND: ClassVar = OpKind.SCALED_MATMUL
    OPTIONS: ClassVar = _OPTIONS
    CHOICES: ClassVar = _CHOICES

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 4, 5)
        x, weight = (dims_of(t) for t in types[:2])
        fits = len(x) == len(weight) == 2 and x[1] == weight[1]
        same = all(element_of(t) == element_of(types[2]) for t in types[3:])
        if not (fits and same) or any(dims_of(b) != weight[:1] for b in types[4:]):
            raise cls.refuse("[m, k], [n, k], two scales and perhaps a bias [n]", types)
        for codes, scale in zip(types[:2], types[2:4], strict=True):
            check_codes(cls, codes, scale, o["block"])
        return [tensor([x[0], weight[0]], element_of(types[2]))]


def _scaled_matmul(op: ScaledMatmulOp, x: Array, w: Array, *rest: Array) -> Array:
    x_format, w_format, block = op.chosen.values()
    x_scale, w_scale, *bias = rest
    a, b = numbers_of(x, x_scale, x_format, block), numbers_of(w, w_scale, w_format, block)
    return sum(bias, a @ b.T)


def _expand_scaled_matmul(w: Writer, op: ScaledMatmulOp) -> Sequence[SSAValue]:
    x, weight, x_scale, w_scale, *bias = op.args
    x_format, w_format, block = op.chosen.values()
    rows = dequantized(w, x, x_scale, x_format, block)
    y = w.dot(rows, dequantized(w, weight, w_scale, w_format, block), y_t=True)
    for b in bias:
        y = w.binary(BinaryKind.ADD, y, w.spread(b, dims_of(y.type)))
    return [y]


def _sample_scaled_matmul(draw: Draw) -> Case:
    names = [draw.choice(tuple(FORMATS)) for _ in range(2)]
    block = draw.choice((0, 1, 16, 32))
    m, n, k = draw.size(1, 64), draw.size(1, 64), max(block, 1) * draw.between(1, 4)
    shapes = (m, k), (n, k)
    codes = [draw_codes(draw, f, s, finite=True) for f, s in zip(names, shapes, strict=True)]
    arrays = [*codes, *(draw_scale(draw, s, block) for s in shapes)]
    if draw.chance():
        arrays.append(draw.array((n,)))
    options: dict[str, Any] = {"x_format": names[0], "w_format": names[1], "block": block}
    return Case(arrays, lambda w, v: w.add_all(ScaledMatmulOp(*v, **options)))


@irdl_op_definition
class ScaledGroupedMatmulOp(NamedOp):
    """
    Row i times matrix ids[i]: `[m, k] i8, [e, n, k] i8, scale, scale, ids [m] -> [m, n]`.

    Formats are those of each side; the scales have the result's element type. ids are i32 or i64,
    of which one beyond the matrices means the first or the last.
    """

    name = "quant.scaled_grouped_matmul"
    KIND: ClassVar = OpKind.SCALED_GROUPED_MATMUL
    OPTIONS: ClassVar = _OPTIONS
    CHOICES: ClassVar = _CHOICES

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 5)
        x, weight = (dims_of(t) for t in types[:2])
        infer.check_element(f"{cls.name} ids", types[4], (i32, i64))
        fits = len(x) == 2 and len(weight) == 3 and x[1] == weight[2]
        fits = fits and dims_of(types[4]) == x[:1]
        if not fits or element_of(types[2]) != element_of(types[3]):
            raise cls.refuse("[m, k], [e, n, k], two scales and ids [m]", types)
        for codes, scale in zip(types[:2], types[2:4], strict=True):
            check_codes(cls, codes, scale, o["block"])
        return [tensor([x[0], weight[1]], element_of(types[2]))]


def _scaled_grouped_matmul(op: ScaledGroupedMatmulOp, x: Array, w: Array, *rest: Array) -> Array:
    import numpy as np

    x_format, w_format, block = op.chosen.values()
    x_scale, w_scale, ids = rest
    a, b = numbers_of(x, x_scale, x_format, block), numbers_of(w, w_scale, w_format, block)
    rows = [b[min(max(int(e), 0), len(b) - 1)] @ row for row, e in zip(a, ids, strict=True)]
    return np.array(rows).reshape(len(x), w.shape[1])


def _expand_scaled_grouped_matmul(w: Writer, op: ScaledGroupedMatmulOp) -> Sequence[SSAValue]:
    x, weight, x_scale, w_scale, ids = op.args
    x_format, w_format, block = op.chosen.values()
    rows = dequantized(w, x, x_scale, x_format, block)
    wide = dequantized(w, weight, w_scale, w_format, block)
    return [w.add(GroupedMatmulOp(rows, w.transpose(wide, [0, 2, 1]), ids))]


def _sample_scaled_grouped_matmul(draw: Draw) -> Case:
    names = [draw.choice(tuple(FORMATS)) for _ in range(2)]
    block = draw.choice((0, 1, 16, 32))
    m, n, k = draw.size(1, 64), draw.size(1, 64), max(block, 1) * draw.between(1, 4)
    e = draw.between(1, 4)
    shapes = (m, k), (e, n, k)
    codes = [draw_codes(draw, f, s, finite=True) for f, s in zip(names, shapes, strict=True)]
    ids = draw.ids((m,), e, draw.choice(("i32", "i64")))
    arrays = [*codes, *(draw_scale(draw, s, block) for s in shapes), ids]
    options: dict[str, Any] = {"x_format": names[0], "w_format": names[1], "block": block}
    return Case(arrays, lambda w, v: w.add_all(ScaledGroupedMatmulOp(*v, **options)))


RECORDS = (
    Record(
        ScaledMatmulOp, (OpKind.SCALED_MATMUL,), CONTRACTION, FLOATS, _scaled_matmul,
        _sample_scaled_matmul, _expand_scaled_matmul,
    ),
    Record(
        ScaledGroupedMatmulOp, (OpKind.SCALED_GROUPED_MATMUL,), CONTRACTION, FLOATS,
        _scaled_grouped_matmul, _sample_scaled_grouped_matmul, _expand_scaled_grouped_matmul,
    ),
)  # fmt: skip
