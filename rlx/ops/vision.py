"""Operations on images, volumes and signals, `[n, channels, d...]`, and on patches of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from xdsl.dialects.builtin import i64
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of
from rlx.dialects.kinds import BinaryKind, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops import conv_blocks, convolution, pool, resize
from rlx.ops.record import FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw

# Rotation by row and column


@irdl_op_definition
class AxialRope2dOp(NamedOp):
    """
    Rotates features by the place of a patch: `[n, repeat * height * width, heads * head_dim]`.

    Row i is the patch in column i mod width and row i / width mod height. Of a head, features 2j
    and 2j + 1 are a pair, which is turned by the column times base^(-4j / head_dim) in the first
    half, and by the row times the same in the second (Ravi et al., 2024, of RoFormer). head_dim is
    a multiple of 4.
    """

    name = "vision.axial_rope_2d"
    KIND: ClassVar = OpKind.AXIAL_ROPE2D
    OPTIONS: ClassVar = {"height": 1, "width": 1, "head_dim": 4, "base": 10000.0}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        dims, patches = dims_of(types[0]), o["height"] * o["width"]
        if o["head_dim"] < 4 or o["head_dim"] % 4 or min(o["height"], o["width"]) < 1:
            raise cls.refuse(
                f"a height and width from 1 and whole fours of features, not {o}", types
            )
        n, width = dims[-2:] if len(dims) == 3 else (1, 1)
        if (
            not (isinstance(n, int) and isinstance(width, int))
            or n % patches
            or (width % o["head_dim"])
        ):
            raise cls.refuse(
                f"[n, rows, features] with multiples of {patches} rows and of {o['head_dim']} "
                "features",
                types,
            )
        if o["base"] <= 0:
            raise cls.refuse(f"a base above 0, not {o['base']}", types)
        return types


def _axial_rope_2d(op: AxialRope2dOp, x: Array) -> Array:
    import numpy as np

    height, width, head_dim, base = op.chosen.values()
    y = np.empty_like(x)
    for i in range(x.shape[1]):
        places = i % width, i // width % height
        for j in range(x.shape[2] // 2):
            half, k = divmod(j % (head_dim // 2), head_dim // 4)
            angle = places[half] * base ** (-4 * k / head_dim)
            a, b = x[:, i, 2 * j], x[:, i, 2 * j + 1]
            y[:, i, 2 * j] = a * np.cos(angle) - b * np.sin(angle)
            y[:, i, 2 * j + 1] = a * np.sin(angle) + b * np.cos(angle)
    return y


def _expand_axial_rope_2d(w: Writer, op: AxialRope2dOp) -> Sequence[SSAValue]:
    (x,) = op.args
    height, width, head_dim, base = op.chosen.values()
    element = element_of(x.type)
    n, rows, features = dims_of(x.type)
    quarter, patches = head_dim // 4, height * width
    places = w.iota(0, [patches], i64)
    column, row = (w.binary(k, places, width) for k in (BinaryKind.MOD, BinaryKind.DIV))
    speeds = w.constant([base ** (-j / quarter) for j in range(quarter)], [quarter], element)
    table = [patches, 1, quarter]
    turns = [
        w.binary(BinaryKind.MUL, w.along(w.cast(p, element), 0, table), w.along(speeds, 2, table))
        for p in (column, row)
    ]
    angles = w.reshape(w.concat(1, turns), [patches, 1, 2 * quarter, 1])
    signs = w.constant([-1, 1], [2], element)
    cosines, sines = (w.unary(k, angles) for k in (UnaryKind.COS, UnaryKind.SIN))
    pairs = [
        n,
        cast(int, rows) // patches,
        patches,
        cast(int, features) // head_dim,
        2 * quarter,
        2,
    ]
    x = w.reshape(x, pairs)
    # (a, b) becomes (a, b) cos + (b, a) (-sin, sin).
    turned = w.binary(BinaryKind.MUL, w.reverse(x, [5]), w.spread(signs, pairs))
    turned = w.binary(BinaryKind.MUL, turned, w.spread(sines, pairs))
    kept = w.binary(BinaryKind.MUL, x, w.spread(cosines, pairs))
    return [w.reshape(w.binary(BinaryKind.ADD, kept, turned), [n, rows, features])]


def _sample_axial_rope_2d(draw: Draw) -> Case:
    o: dict[str, Any] = {"height": draw.between(1, 5), "width": draw.between(1, 5)}
    o["head_dim"] = 4 * draw.between(1, 6)
    rows = o["height"] * o["width"] * draw.between(1, 2)
    x = draw.array((draw.between(1, 2), rows, o["head_dim"] * draw.between(1, 3)))
    base = draw.choice((100.0, 10000.0))
    return Case([x], lambda w, v: w.add_all(AxialRope2dOp(*v, base=base, **o)))


RECORDS = (
    *convolution.RECORDS,
    *conv_blocks.RECORDS,
    *pool.RECORDS,
    *resize.RECORDS,
    Record(
        AxialRope2dOp, (OpKind.AXIAL_ROPE2D,), ROWS, FLOATS, _axial_rope_2d,
        _sample_axial_rope_2d, _expand_axial_rope_2d,
    ),
)  # fmt: skip

Vision = Dialect("vision", [r.op for r in RECORDS], [])
