"""Records of the moves (`rlx.dialects.moves`)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from xdsl.ir import SSAValue

from rlx.contract.opkind import OpKind
from rlx.dialects import moves
from rlx.dialects.common import DimDef, element_of, tensor
from rlx.dialects.writer import Writer
from rlx.ops.record import FLOATS, INTEGERS, MOVE, Case, Record, Surroundings
from rlx.ops.samples import Draw

ALL = (*FLOATS, "f16", *INTEGERS, "i1")


def _sample_reshape(draw: Draw) -> Case:
    x = draw.array(draw.shape(0, 1, 2, 3, low=0))
    parts = [d for n in x.shape for d in ((n // 2, 2) if n % 2 == 0 else (n,))]
    dims = list(draw.rng.permutation([*parts, 1]).tolist())
    return Case([x], lambda w, v: [w.reshape(v[0], dims)])


def _sample_broadcast(draw: Draw) -> Case:
    dims = draw.shape(1, 2, 3, low=0)
    kept = dims[draw.between(0, len(dims) - 1) :]
    x = draw.array([1 if draw.chance(0.4) else d for d in kept])
    return Case([x], lambda w, v: [w.add(moves.BroadcastOp(v[0], tensor(dims, _element(v))))])


def _sample_transpose(draw: Draw) -> Case:
    x = draw.array(draw.shape(2, 3, 4, low=0))
    order = draw.rng.permutation(x.ndim).tolist()
    return Case([x], lambda w, v: [w.add(moves.TransposeOp(v[0], order))])


def _sample_slice(draw: Draw) -> Case:
    x = draw.array(draw.shape(1, 2, 3))
    starts = [draw.between(0, n - 1) for n in x.shape]
    steps = [draw.choice([1, 1, 2, 3]) for _ in x.shape]
    sizes = [
        draw.between(0, -(-(n - start) // step))
        for n, start, step in zip(x.shape, starts, steps, strict=True)
    ]
    return Case(
        [x], lambda w, v: [w.add(moves.SliceOp(v[0], starts, tensor(sizes, _element(v)), steps))]
    )


def _sample_concat(draw: Draw) -> Case:
    dims = draw.shape(1, 2, 3)
    axis = draw.between(0, len(dims) - 1)
    sizes = [draw.size(0, 33) for _ in range(draw.between(1, 4))]
    arrays = [draw.array([*dims[:axis], n, *dims[axis + 1 :]]) for n in sizes]
    return Case(arrays, lambda w, v: [w.concat(axis, v)])


def _sample_gather(draw: Draw) -> Case:
    x = draw.array(draw.shape(1, 2, 3, low=0))
    axis = draw.between(0, x.ndim - 1)
    # Indices beyond the axis mean its ends.
    ids = draw.ids(draw.shape(0, 1, 2)[:2], x.shape[axis] + 6, draw.choice(["i32", "i64"])) - 3
    while prod(ids.shape) * prod(x.shape) > 1 << 18:
        ids = ids[: len(ids) // 2]
    return Case([x, ids], lambda w, v: [w.gather(v[0], v[1], axis)])


def _sample_pad(draw: Draw) -> Case:
    x = draw.array(draw.shape(1, 2, 3, low=0))
    low, high, between = ([draw.between(0, 3) for _ in x.shape] for _ in range(3))
    fill = draw.array(())
    return Case([x, fill], lambda w, v: [w.add(moves.PadOp(v[0], v[1], low, high, between))])


def _sample_window(draw: Draw) -> Case:
    size, stride, step = draw.between(1, 4), draw.between(1, 3), draw.between(1, 3)
    dims = list(draw.shape(1, 2, 3))
    axis = draw.between(0, len(dims) - 1)
    dims[axis] += (size - 1) * step
    x = draw.array(dims)
    return Case([x], lambda w, v: [w.window(v[0], axis, size, stride, step)])


def _sample_reverse(draw: Draw) -> Case:
    x = draw.array(draw.shape(1, 2, 3, low=0))
    axes = [i for i in range(x.ndim) if draw.chance()] or [0]
    return Case([x], lambda w, v: [w.reverse(v[0], axes)])


def _sample_narrow(draw: Draw) -> Case:
    """Some elements of an axis whose start and count the caller says."""
    others, step = draw.shape(0, 1, 2), draw.between(1, 2)
    axis = draw.between(0, len(others))
    count, start = draw.size(1, 33), draw.between(0, 9)
    whole = start + count * step + draw.between(0, 5)
    x = draw.array([*others[:axis], whole, *others[axis:]])
    dims = [DimDef("count", 0, 33), DimDef("start", 0, 9)]

    def build(w: Writer, v: Sequence[SSAValue]) -> Sequence[SSAValue]:
        return [w.add(moves.NarrowOp(v[0], axis, "start", "count", step))]

    return Case([x], build, Surroundings(dims=dims, sizes={"count": count, "start": start}))


def _element(v: Sequence[SSAValue]) -> Any:
    return element_of(v[0].type)


def _record(op: Any, kind: OpKind, sample: Any) -> Record:
    return Record(op, (kind,), MOVE, ALL, None, sample)


RECORDS = (
    _record(moves.ReshapeOp, OpKind.RESHAPE, _sample_reshape),
    _record(moves.BroadcastOp, OpKind.EXPAND, _sample_broadcast),
    _record(moves.TransposeOp, OpKind.TRANSPOSE, _sample_transpose),
    _record(moves.SliceOp, OpKind.NARROW, _sample_slice),
    _record(moves.NarrowOp, OpKind.NARROW, _sample_narrow),
    _record(moves.ConcatOp, OpKind.CONCAT, _sample_concat),
    _record(moves.GatherOp, OpKind.GATHER, _sample_gather),
    _record(moves.PadOp, OpKind.PAD, _sample_pad),
    _record(moves.WindowOp, OpKind.IM2_COL, _sample_window),
    _record(moves.ReverseOp, OpKind.REVERSE, _sample_reverse),
)
