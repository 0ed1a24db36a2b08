"""Products of integers that stand for floats, with exact sums, as such integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar, cast

from xdsl.dialects.builtin import IntegerType, f64, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, ReduceKind, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.convolution import convolved, operands, windows_of
from rlx.ops.record import CONTRACTION, Array, Case, Record
from rlx.ops.samples import Draw
from rlx.ops.windows import LEAD, draw_spatial, draw_windows
from rlx.ops.windows import OPTIONS as WINDOWS

I8 = IntegerType(8)
POINTS = {"x_zero": 0, "w_zero": 0, "out_zero": 0, "mult": 1.0}
"""Zero points, and what a sum is multiplied with: the scales of x and w over the result's."""


def _check_codes(cls: type[NamedOp], types: Sequence[Attribute], o: Mapping[str, Any]) -> None:
    """Raise VerifyException unless there are i8, i8 and perhaps an i32, with zero points of i8."""
    cls.expect_count(types, 2, 3)
    if [element_of(t) for t in types] != [I8, I8, i32][: len(types)]:
        raise cls.refuse("operands of i8, i8 and, for a bias, i32", types)
    zeros = [o[name] for name in POINTS if name != "mult"]
    if not all(-128 <= z <= 127 for z in zeros) or o["mult"] <= 0:
        raise cls.refuse(f"zero points from -128 to 127 and a mult above 0, not {zeros}", types)


def sums(w: Writer, rows: SSAValue, columns: SSAValue, zeros: tuple[int, int]) -> SSAValue:
    """Return the i32 sums of (row - its zero) (column - its zero) of `[.., m, k], [.., k, n]`."""
    total = w.dot(rows, columns)
    dims = dims_of(total.type)
    last = len(dims) - 1
    k = cast(int, dims_of(rows.type)[-1])
    for zero, side, axis in ((zeros[1], rows, last), (zeros[0], columns, last - 1)):
        if zero:
            side_sums = w.reduce(ReduceKind.SUM, w.cast(side, i32), [axis], keep=True)
            scaled = w.binary(BinaryKind.MUL, side_sums, zero)
            total = w.binary(BinaryKind.SUB, total, w.spread(scaled, dims))
    both = k * zeros[0] * zeros[1]
    return w.binary(BinaryKind.ADD, total, both) if both else total


def requantise(w: Writer, total: SSAValue, o: Mapping[str, Any]) -> SSAValue:
    """Return sums times `mult` as i8. In f64: no sum is rounded before it is multiplied."""
    codes = w.binary(BinaryKind.MUL, w.cast(total, f64), o["mult"])
    codes = w.binary(BinaryKind.ADD, w.unary(UnaryKind.ROUND, codes), o["out_zero"])
    return w.cast(codes, I8)


def _requantised(total: Array, o: Mapping[str, Any]) -> Array:
    import numpy as np

    codes = np.rint(total * np.float64(o["mult"])) + o["out_zero"]
    return codes.clip(-128, 127).astype(np.int8)


def _draw_points(draw: Draw, k: int) -> dict[str, Any]:
    """Return options under which results of k products are of all sizes, some beyond i8."""
    zeros = {name: draw.between(-20, 20) if draw.chance() else 0 for name in POINTS}
    return {**zeros, "mult": draw.rng.uniform(0.5, 1.5) / (80 * max(k, 1) ** 0.5)}


def _draw_bias(draw: Draw, n: int) -> list[Array]:
    import numpy as np

    return [draw.rng.integers(-9999, 9999, n).astype(np.int32)] if draw.chance() else []


# Matrices


@irdl_op_definition
class QMatmulOp(NamedOp):
    """
    Products of codes as codes: `[m, k] i8, [k, n] i8, [n] i32? -> [m, n] i8`.

    round(mult (bias + sum of (x - x_zero) (w - w_zero))) + out_zero, half to even, or the end of
    the range of i8 beyond it. The sum is exact, in i32.
    """

    name = "quant.q_matmul"
    KIND: ClassVar = OpKind.QMATMUL
    OPTIONS: ClassVar = POINTS

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        _check_codes(cls, types, o)
        x, weight = (dims_of(t) for t in types[:2])
        fits = len(x) == len(weight) == 2 and x[1] == weight[0] and isinstance(x[1], int)
        if not fits or any(dims_of(b) != weight[1:] for b in types[2:]):
            raise cls.refuse("[m, k], [k, n] with a number k, and perhaps a bias [n]", types)
        return [tensor([x[0], weight[1]], I8)]


def _q_matmul(op: QMatmulOp, x: Array, weight: Array, *bias: Array) -> Array:
    import numpy as np

    o = op.chosen
    wide = [a.astype(np.int64) - o[z] for a, z in ((x, "x_zero"), (weight, "w_zero"))]
    return _requantised(sum(bias, wide[0] @ wide[1]), o)


def _expand_q_matmul(w: Writer, op: QMatmulOp) -> Sequence[SSAValue]:
    x, weight, *bias = op.args
    o = op.chosen
    total = sums(w, x, weight, (o["x_zero"], o["w_zero"]))
    for b in bias:
        total = w.binary(BinaryKind.ADD, total, w.spread(b, dims_of(total.type)))
    return [requantise(w, total, o)]


def _sample_q_matmul(draw: Draw) -> Case:
    m, n, k = (draw.size(1, 128) for _ in range(3))
    arrays = [draw.array((m, k)), draw.array((k, n)), *_draw_bias(draw, n)]
    options = _draw_points(draw, k)
    return Case(arrays, lambda w, v: w.add_all(QMatmulOp(*v, **options)))


# Convolution


@irdl_op_definition
class QConv2dOp(NamedOp):
    """
    `vision.conv` of codes: `[n, c, d...] i8, [o, c / groups, k...] i8, [o] i32? -> i8`.

    Sums and results are as in `quant.q_matmul`; padding is the zero point of x.
    """

    name = "quant.q_conv2d"
    KIND: ClassVar = OpKind.QCONV2D
    OPTIONS: ClassVar = {**WINDOWS, "groups": 1, **POINTS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        _check_codes(cls, types, o)
        bias = [infer.with_element(t, I8) for t in types[2:]]
        return [convolved(cls, [*types[:2], *bias], o, o["groups"])]


def _q_conv2d(op: QConv2dOp, x: Array, weight: Array, *bias: Array) -> Array:
    import numpy as np

    o, windows = op.chosen, windows_of(op)
    counts, groups = windows.counts(op.name, x.shape[LEAD:]), o["groups"]
    padded = windows.padded(x.astype(np.int64) - o["x_zero"])
    wide = weight.astype(np.int64) - o["w_zero"]
    total = np.zeros((x.shape[0], len(wide), *counts), np.int64)
    inner = wide.shape[1]
    for m in range(len(wide)):
        first = m // (len(wide) // groups) * inner
        for j in range(inner):
            for offset in np.ndindex(*windows.size):
                seen = windows.shifted(padded[:, first + j], counts, offset)
                total[:, m] += wide[(m, j, *offset)] * seen
        for b in bias:
            total[:, m] += b[m]
    return _requantised(total, o)


def _expand_q_conv2d(w: Writer, op: QConv2dOp) -> Sequence[SSAValue]:
    x, weight, *bias = op.args
    o, windows = op.chosen, windows_of(op)
    m, *inner = cast(Sequence[int], dims_of(weight.type))
    weight = w.reshape(weight, [o["groups"], m // o["groups"], *inner])
    rows, columns = operands(w, windows.take(w, x, o["x_zero"]), weight)
    total = sums(w, rows, columns, (o["w_zero"], o["x_zero"]))
    total = w.reshape(total, dims_of(op.res[0].type))
    for b in bias:
        total = w.binary(BinaryKind.ADD, total, w.along(b, 1, dims_of(total.type)))
    return [requantise(w, total, o)]


def _sample_q_conv2d(draw: Draw) -> Case:
    size, options = draw_windows(draw, draw.choice((1, 2, 2)))
    groups = draw.choice((1, 1, 2, 3))
    inner, outer = draw.between(1, 6), draw.between(1, 6)
    sizes = draw_spatial(draw, size, draw.most // 64)
    x = draw.array((draw.between(1, 2), groups * inner, *sizes))
    weight = draw.array((groups * outer, inner, *size))
    arrays = [x, weight, *_draw_bias(draw, groups * outer)]
    options |= {"groups": groups, **_draw_points(draw, inner * prod(size))}
    return Case(arrays, lambda w, v: w.add_all(QConv2dOp(*v, **options)))


RECORDS = (
    Record(
        QMatmulOp, (OpKind.QMATMUL,), CONTRACTION, ("i8",), _q_matmul, _sample_q_matmul,
        _expand_q_matmul,
    ),
    Record(
        QConv2dOp, (OpKind.QCONV2D,), CONTRACTION, ("i8",), _q_conv2d, _sample_q_conv2d,
        _expand_q_conv2d,
    ),
)  # fmt: skip
