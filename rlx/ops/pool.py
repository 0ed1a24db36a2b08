"""Pools of windows and of whole images, `[n, channels, d...]`, and windows as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import Any, ClassVar

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_bytes, element_of, tensor
from rlx.dialects.kinds import BinaryKind, ReduceKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Number, Writer
from rlx.ops.record import FLOATS, INTEGERS, MOVE, ROWS, Array, Case, Record
from rlx.ops.samples import Draw
from rlx.ops.windows import LEAD, OPTIONS, Windows, draw_spatial, draw_windows, spatial

KINDS = ("max", "mean", "sum")
_NUMBERS = (*infer.FLOATS, *infer.INTEGERS)


def _check_kind(cls: type[NamedOp], types: Sequence[Attribute], kind: str) -> None:
    cls.expect_count(types, 1)
    infer.check_element(cls.name, types[0], infer.FLOATS if kind == "mean" else _NUMBERS)


def _draw_kind(draw: Draw) -> str:
    return draw.choice(KINDS if draw.is_float else ("max", "sum"))


# Pool


@irdl_op_definition
class PoolOp(NamedOp):
    """
    The `max`, `mean` or `sum` of each window: `[n, c, d...] -> [n, c, p...]`, floats or integers.

    `size` has a number for each spatial axis; windows lie next to each other without `stride`.
    Padding counts as 0 in a mean with `padded true`, and not at all without; a maximum of padding
    alone is the least value of the type. Spatial sizes are numbers.
    """

    name = "vision.pool"
    KIND: ClassVar = OpKind.POOL
    OPTIONS: ClassVar = {"kind": "max", "size": (), **OPTIONS, "padded": False}
    CHOICES: ClassVar = {"kind": KINDS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        _check_kind(cls, types, o["kind"])
        sizes = spatial(cls.name, types[0])
        if len(o["size"]) != len(sizes):
            raise cls.refuse(f"a number in `size` {o['size']} for each spatial axis", types)
        counts = _pool_windows(o).counts(cls.name, sizes)
        return [tensor([*dims_of(types[0])[:LEAD], *counts], element_of(types[0]))]


def _pool_windows(o: Mapping[str, Any]) -> Windows:
    return Windows.of(PoolOp.name, o["size"], o, stride=o["size"])


def _pool(op: PoolOp, x: Array) -> Array:
    import numpy as np

    windows, kind = _pool_windows(op.chosen), op.option("kind")
    counts = windows.counts("pool", x.shape[LEAD:])
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    padded = windows.padded(x, least if kind == "max" else 0)
    there = windows.padded(np.ones(x.shape[LEAD:]))
    y = np.full((*x.shape[:LEAD], *counts), least if kind == "max" else 0, x.dtype)
    seen = np.zeros(counts)
    for offset in np.ndindex(*windows.size):
        part = windows.shifted(padded, counts, offset)
        y = np.maximum(y, part) if kind == "max" else y + part
        seen += windows.shifted(there, counts, offset)
    if kind != "mean":
        return y
    return y / (prod(windows.size) if op.option("padded") else seen.astype(x.dtype))


def _expand_pool(w: Writer, op: PoolOp) -> Sequence[SSAValue]:
    (x,), windows, kind = op.args, _pool_windows(op.chosen), op.option("kind")
    rank = len(windows.size)
    taken = windows.take(w, x, _least(x.type) if kind == "max" else 0)
    kernel = list(range(LEAD, LEAD + rank))
    dims = dims_of(op.res[0].type)
    if kind == "max":
        return [w.reduce(ReduceKind.MAX, taken, kernel)]
    total = w.reduce(ReduceKind.SUM, taken, kernel)
    if kind == "sum":
        return [total]
    if op.option("padded") or not any((*windows.low, *windows.high)):
        return [w.binary(BinaryKind.DIV, total, prod(windows.size))]
    for axis in range(rank):
        counts = _counts(w, windows, axis, x.type)
        total = w.binary(BinaryKind.DIV, total, w.along(counts, LEAD + axis, dims))
    return [total]


def _least(type_: Attribute) -> Number:
    """Return the least value of a tensor's elements."""
    element = element_of(type_)
    if element in infer.FLOATS:
        return -inf
    return 0 if str(element).startswith("ui") else -(1 << (8 * element_bytes(type_) - 1))


def _counts(w: Writer, windows: Windows, axis: int, type_: Attribute) -> SSAValue:
    """Return how many elements of an axis each window has, as a vector of the type's elements."""
    fields = ("size", "stride", "low", "high", "dilation")
    along = Windows(*((getattr(windows, name)[axis],) for name in fields))
    ones = w.value(1, tensor(dims_of(type_)[LEAD + axis : LEAD + axis + 1], element_of(type_)))
    return w.reduce(ReduceKind.SUM, along.take(w, ones), [0])


def _sample_pool(draw: Draw) -> Case:
    size, options = draw_windows(draw, draw.choice((1, 2, 2, 3)))
    kind = _draw_kind(draw)
    channels = draw.between(1, 3), draw.between(1, 4)
    x = draw.array((*channels, *draw_spatial(draw, size, draw.most // 16)))
    padded = kind == "mean" and draw.chance()
    return Case([x], lambda w, v: w.add_all(
        PoolOp(*v, kind=kind, size=size, padded=padded, **options)
    ))  # fmt: skip


# Of whole images


@irdl_op_definition
class GlobalPoolOp(NamedOp):
    """The `max`, `mean` or `sum` of all elements of a channel: `[n, c, d...] -> [n, c, 1...]`."""

    name = "vision.global_pool"
    KIND: ClassVar = OpKind.POOL
    OPTIONS: ClassVar = {"kind": "mean"}
    CHOICES: ClassVar = {"kind": KINDS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        _check_kind(cls, types, o["kind"])
        dims = dims_of(types[0])
        if len(dims) <= LEAD:
            raise cls.refuse("[n, c, d...]", types)
        ones = [1] * (len(dims) - LEAD)
        return [tensor([*dims[:LEAD], *ones], element_of(types[0]))]


def _global_pool(op: GlobalPoolOp, x: Array) -> Array:
    axes = tuple(range(LEAD, x.ndim))
    return getattr(x, op.option("kind"))(axis=axes, keepdims=True).astype(x.dtype)


def _expand_global_pool(w: Writer, op: GlobalPoolOp) -> Sequence[SSAValue]:
    axes = range(LEAD, len(dims_of(op.args[0].type)))
    return [w.reduce(ReduceKind(op.option("kind")), op.args[0], list(axes), keep=True)]


def _sample_global_pool(draw: Draw) -> Case:
    x, kind = draw.array(draw.shape(3, 4, 5)), _draw_kind(draw)
    return Case([x], lambda w, v: w.add_all(GlobalPoolOp(*v, kind=kind)))


# Columns


@irdl_op_definition
class Im2colOp(NamedOp):
    """
    Windows as columns: `[n, c, d...] -> [n, c * size, places]`, any element.

    Row (j, q) of the result is element q of the windows of channel j; places are in row-major
    order. Padding is 0. Channels and spatial sizes are numbers.
    """

    name = "vision.im2col"
    KIND: ClassVar = OpKind.IM2_COL
    OPTIONS: ClassVar = {"size": (), **OPTIONS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        infer.check_element(cls.name, types[0], infer.ELEMENTS)
        sizes = spatial(cls.name, types[0])
        n, c, *_ = dims_of(types[0])
        if not isinstance(c, int) or len(o["size"]) != len(sizes):
            raise cls.refuse(
                f"a number of channels, and one in `size` {o['size']} for each spatial axis", types
            )
        counts = Windows.of(cls.name, o["size"], o).counts(cls.name, sizes)
        return [tensor([n, c * prod(o["size"]), prod(counts)], element_of(types[0]))]


def _im2col(op: Im2colOp, x: Array) -> Array:
    import numpy as np

    windows = Windows.of(op.name, op.option("size"), op.chosen)
    counts = windows.counts("im2col", x.shape[LEAD:])
    padded = windows.padded(x)
    rows = [windows.shifted(padded, counts, offset) for offset in np.ndindex(*windows.size)]
    return np.stack(rows, axis=LEAD).reshape(x.shape[0], x.shape[1] * len(rows), prod(counts))


def _expand_im2col(w: Writer, op: Im2colOp) -> Sequence[SSAValue]:
    windows = Windows.of(op.name, op.option("size"), op.chosen)
    fill = False if element_of(op.args[0].type) == infer.ELEMENTS[-1] else 0
    taken = windows.take(w, op.args[0], fill)
    return [w.reshape(taken, dims_of(op.res[0].type))]


def _sample_im2col(draw: Draw) -> Case:
    size, options = draw_windows(draw, draw.choice((1, 2, 2, 3)))
    channels = draw.between(0, 3), draw.between(1, 4)
    x = draw.array((*channels, *draw_spatial(draw, size, draw.most // 64)))
    return Case([x], lambda w, v: w.add_all(Im2colOp(*v, size=size, **options)))


_NAMES = (*FLOATS, *INTEGERS)
RECORDS = (
    Record(PoolOp, (OpKind.POOL,), ROWS, _NAMES, _pool, _sample_pool, _expand_pool),
    Record(
        GlobalPoolOp, (OpKind.POOL,), ROWS, _NAMES, _global_pool, _sample_global_pool,
        _expand_global_pool,
    ),
    Record(
        Im2colOp, (OpKind.IM2_COL,), MOVE, (*_NAMES, "f16", "i1"), _im2col, _sample_im2col,
        _expand_im2col,
    ),
)  # fmt: skip
