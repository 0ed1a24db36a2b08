"""Images and volumes of other sizes, `[n, channels, d...]`, by interpolation between elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor
from typing import Any, ClassVar, cast

from xdsl.dialects.builtin import i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.record import FLOATS, INTEGERS, MOVE, ROWS, Array, Case, Record
from rlx.ops.samples import Draw
from rlx.ops.windows import LEAD, spatial

CUBIC = -0.75
"""The slope of the cubic at 1 (Keys, 1981), as torch and ONNX have it."""

_HALF = Fraction(1, 2)
_ROUNDINGS: dict[str, Callable[[Fraction], int]] = {
    "floor": floor,
    "ceil": ceil,
    "half_down": lambda x: ceil(x - _HALF),
    "half_up": lambda x: floor(x + _HALF),
}


def place(o: int, old: int, new: int, coordinates: str) -> Fraction:
    """Return where element o of `new` lies among `old` elements."""
    if coordinates == "half_pixel":
        return Fraction((2 * o + 1) * old, 2 * new) - _HALF
    if coordinates == "asymmetric":
        return Fraction(o * old, new)
    return Fraction(o * (old - 1), max(new - 1, 1))


# Resize


@irdl_op_definition
class ResizeOp(NamedOp):
    """
    Spatial axes of other sizes: `[n, c, d...] -> [n, c, sizes...]`.

    `coordinates` says where element o of the new size m lies among the n old ones: (o + 1/2) n / m
    - 1/2 for `half_pixel`, o n / m for `asymmetric`, o (n - 1) / (m - 1) for `align_corners`.
    `nearest` takes the element there, rounded as `rounding` says (`half_down` and `half_up` to the
    nearest one); any element type. `linear` weighs the two around it, `cubic` the four around it
    (Keys, 1981); floats. Beyond an end is the last element. Spatial sizes are numbers from 1.
    """

    name = "vision.resize"
    KIND: ClassVar = OpKind.INTERPOLATE3D
    OPTIONS: ClassVar = {
        "sizes": (), "mode": "nearest", "coordinates": "half_pixel", "rounding": "floor",
    }  # fmt: skip
    CHOICES: ClassVar = {
        "mode": ("nearest", "linear", "cubic"),
        "coordinates": ("half_pixel", "asymmetric", "align_corners"),
        "rounding": tuple(_ROUNDINGS),
    }

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        allowed = infer.ELEMENTS if o["mode"] == "nearest" else infer.FLOATS
        infer.check_element(cls.name, types[0], allowed)
        old, new = spatial(cls.name, types[0]), o["sizes"]
        if len(new) != len(old) or min((*old, *new)) < 1:
            raise cls.refuse(f"sizes from 1, and one in `sizes` {new} for each spatial axis", types)
        return [tensor([*dims_of(types[0])[:LEAD], *new], element_of(types[0]))]


def _linear(x: float) -> float:
    return max(1 - abs(x), 0.0)


def _cubic(x: float) -> float:
    """Return the weight of an element at a distance (Keys, 1981)."""
    x, a = abs(x), CUBIC
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0


def _resize(op: ResizeOp, x: Array) -> Array:
    import numpy as np

    mode, coordinates = op.option("mode"), op.option("coordinates")
    weight = _cubic if mode == "cubic" else _linear
    for axis, new in enumerate(op.option("sizes"), LEAD):
        old = x.shape[axis]
        rows: list[Array] = []
        for o in range(new):
            at = place(o, old, new, coordinates)
            if mode == "nearest":
                near = _ROUNDINGS[op.option("rounding")](at)
                rows.append(x.take(min(max(near, 0), old - 1), axis))
                continue
            row = np.zeros_like(x.take(0, axis))
            for i in range(floor(at) - 1, floor(at) + 3):
                row += weight(float(at - i)) * x.take(min(max(i, 0), old - 1), axis)
            rows.append(row)
        x = np.stack(rows, axis)
    return x


def _numerators(
    w: Writer, old: int, new: int, coordinates: str, shift: int
) -> tuple[SSAValue, int]:
    """Return the places of the new elements as whole numbers over a denominator, and it."""
    o = w.iota(0, [new], i64)
    if coordinates == "half_pixel":
        factor, offset, under = 2 * old, old - new, 2 * new
    elif coordinates == "asymmetric":
        factor, offset, under = 2 * old, 0, 2 * new
    else:
        factor, offset, under = 2 * (old - 1), 0, 2 * max(new - 1, 1)
    scaled = w.binary(BinaryKind.MUL, o, factor)
    return w.binary(BinaryKind.ADD, scaled, offset + shift * under // 2), under


def _nearest(w: Writer, x: SSAValue, axis: int, new: int, op: ResizeOp) -> SSAValue:
    old, rounding = cast(int, dims_of(x.type)[axis]), op.option("rounding")
    shift = 1 if rounding == "half_up" else -1 if rounding == "half_down" else 0
    at, under = _numerators(w, old, new, op.option("coordinates"), shift)
    if rounding in ("ceil", "half_down"):
        at = w.binary(BinaryKind.ADD, at, under - 1)
    return w.gather(x, w.binary(BinaryKind.DIV, at, under), axis)


def _between(w: Writer, x: SSAValue, axis: int, new: int, op: ResizeOp) -> SSAValue:
    """Interpolate along an axis; places are exact, as fractions of whole numbers."""
    old, element = cast(int, dims_of(x.type)[axis]), element_of(x.type)
    at, under = _numerators(w, old, new, op.option("coordinates"), 0)
    first = w.binary(BinaryKind.DIV, at, under)
    rest = w.cast(w.binary(BinaryKind.MOD, at, under), element)
    t = w.binary(BinaryKind.DIV, rest, under)
    weights = _cubics(w, t) if op.option("mode") == "cubic" else _linears(w, t)
    dims = [new if i == axis else d for i, d in enumerate(dims_of(x.type))]
    total: SSAValue | None = None
    for i, weight in weights.items():
        ids = w.binary(BinaryKind.ADD, first, i)
        part = w.binary(BinaryKind.MUL, w.gather(x, ids, axis), w.along(weight, axis, dims))
        total = part if total is None else w.binary(BinaryKind.ADD, total, part)
    assert total is not None
    return total


def _linears(w: Writer, t: SSAValue) -> dict[int, SSAValue]:
    """Return the weights of the elements before and after a place that is t behind the first."""
    return {0: w.binary(BinaryKind.SUB, 1, t), 1: t}


def _cubics(w: Writer, t: SSAValue) -> dict[int, SSAValue]:
    """Return the weights of the four elements around a place that is t behind the second."""
    rest = w.binary(BinaryKind.SUB, 1, t)

    def near(x: SSAValue) -> SSAValue:
        """Return the weight at a distance x up to 1."""
        y = w.binary(BinaryKind.MUL, x, CUBIC + 2)
        y = w.binary(BinaryKind.SUB, y, CUBIC + 3)
        y = w.binary(BinaryKind.MUL, w.binary(BinaryKind.MUL, y, x), x)
        return w.binary(BinaryKind.ADD, y, 1)

    def far(x: SSAValue, y: SSAValue) -> SSAValue:
        """Return the weight at a distance 1 + x, where y is 1 - x."""
        return w.binary(
            BinaryKind.MUL, w.binary(BinaryKind.MUL, x, CUBIC), w.binary(BinaryKind.MUL, y, y)
        )

    return {-1: far(t, rest), 0: near(t), 1: near(rest), 2: far(rest, t)}


def _expand_resize(w: Writer, op: ResizeOp) -> Sequence[SSAValue]:
    (x,) = op.args
    step = _nearest if op.option("mode") == "nearest" else _between
    for axis, new in enumerate(op.option("sizes"), LEAD):
        x = step(w, x, axis, new, op)
    return [x]


def _sample_resize(draw: Draw) -> Case:
    rank = draw.choice((1, 2, 2, 3))
    most = int((draw.most // 16) ** (1 / rank))
    old, new = (tuple(draw.size(1, most) for _ in range(rank)) for _ in range(2))
    options: dict[str, Any] = {
        "mode": draw.choice(ResizeOp.CHOICES["mode"][: 3 if draw.element in FLOATS else 1]),
        "coordinates": draw.choice(ResizeOp.CHOICES["coordinates"]),
        "rounding": draw.choice(ResizeOp.CHOICES["rounding"]),
        "sizes": new,
    }
    x = draw.array((draw.between(1, 2), draw.between(1, 3), *old))
    return Case([x], lambda w, v: w.add_all(ResizeOp(*v, **options)))


# Twice as large


@irdl_op_definition
class ResizeNearest2xOp(NamedOp):
    """Each element of spatial axes twice: `[n, c, d...] -> [n, c, 2 d...]`, any element type."""

    name = "vision.resize_nearest2x"
    KIND: ClassVar = OpKind.RESIZE_NEAREST2X

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        infer.check_element(cls.name, types[0], infer.ELEMENTS)
        sizes = [2 * d for d in spatial(cls.name, types[0])]
        return [tensor([*dims_of(types[0])[:LEAD], *sizes], element_of(types[0]))]


def _resize_nearest2x(op: ResizeNearest2xOp, x: Array) -> Array:
    for axis in range(LEAD, x.ndim):
        x = x.repeat(2, axis)
    return x


def _expand_resize_nearest2x(w: Writer, op: ResizeNearest2xOp) -> Sequence[SSAValue]:
    (x,) = op.args
    for axis, size in enumerate(spatial(op.name, op.res[0].type), LEAD):
        # Lanes along a gather are as many as along a row, along a repeated element only two.
        x = w.gather(x, w.binary(BinaryKind.DIV, w.iota(0, [size], i64), 2), axis)
    return [x]


def _sample_resize_nearest2x(draw: Draw) -> Case:
    x = draw.array(draw.shape(3, 4, 5, low=0))
    return Case([x], lambda w, v: w.add_all(ResizeNearest2xOp(*v)))


_ALL = (*FLOATS, *INTEGERS, "f16", "i1")
RECORDS = (
    Record(
        ResizeOp, (OpKind.INTERPOLATE3D,), ROWS, _ALL, _resize, _sample_resize, _expand_resize
    ),
    Record(
        ResizeNearest2xOp, (OpKind.RESIZE_NEAREST2X,), MOVE, _ALL, _resize_nearest2x,
        _sample_resize_nearest2x, _expand_resize_nearest2x,
    ),
)  # fmt: skip
