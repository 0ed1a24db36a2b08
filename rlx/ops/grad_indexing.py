"""Gradients of reading at indices and of running sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of
from rlx.dialects.kinds import BinaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.cumulative import CumulateOp
from rlx.ops.record import FLOATS, MOVE, SCAN, Array, Case, Record
from rlx.ops.samples import Draw
from rlx.ops.scattering import ScatterAddOp
from rlx.ops.sorting import axis_of

B = BinaryKind


@irdl_op_definition
class GatherBackwardOp(NamedOp):
    """
    The gradient of `mir.gather` along an axis by its input: sums of the upstream at each index.

    `(x [a..., d, b...], ids [m...], upstream [a..., m..., b...]) -> x`, where d is a number. An
    index beyond the axis counts for its first or last element, as it does in the gather.
    """

    name = "grad.gather"
    KIND: ClassVar = OpKind.GATHER_BACKWARD
    OPTIONS: ClassVar = {"axis": 0}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        wanted = infer.gathered(cls.name, types[0], types[1], o["axis"])
        if types[2] != wanted or not isinstance(dims_of(types[0])[o["axis"]], int):
            raise cls.refuse(
                f"x, with a number for axis {o['axis']}, indices and an upstream {wanted}", types
            )
        return types[:1]


def _gather(op: GatherBackwardOp, x: Array, ids: Array, upstream: Array) -> Array:
    import numpy as np

    axis = op.option("axis")
    result = np.zeros(x.shape, upstream.dtype)
    lead = (slice(None),) * axis
    for place in np.ndindex(*ids.shape):
        i = min(max(int(ids[place]), 0), x.shape[axis] - 1)
        if x.shape[axis]:
            result[(*lead, i)] += upstream[(*lead, *place)]
    return result


def _expand_gather(w: Writer, op: GatherBackwardOp) -> Sequence[SSAValue]:
    x, ids, upstream = op.args
    axis: int = op.option("axis")
    m = len(dims_of(ids.type))
    dims = dims_of(x.type)
    size, rank = dims[axis], len(dims_of(upstream.type))
    assert isinstance(size, int)
    inside = w.binary(B.MAX, w.binary(B.MIN, ids, max(size - 1, 0)), 0)
    before, after = range(axis), range(axis + m, rank)
    rows = w.transpose(upstream, [*range(axis, axis + m), *before, *after])
    sums = w.add(ScatterAddOp(rows, inside, rows=size))
    return [w.transpose(sums, [*range(1, axis + 1), 0, *range(axis + 1, len(dims))])]


def _sample_gather(draw: Draw) -> Case:
    x = draw.array(draw.shape(1, 2, 3))
    axis = draw.between(0, x.ndim - 1)
    d = x.shape[axis]
    ids = draw.rng.integers(-2, d + 2, draw.shape(0, 1, 2)).astype(draw.choice(["i4", "i8"]))
    upstream = draw.array((*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :]))
    return Case([x, ids, upstream], lambda w, v: w.add_all(GatherBackwardOp(*v, axis=axis)))


@irdl_op_definition
class CumsumBackwardOp(NamedOp):
    """
    The gradient of sums by `cumulative.cumulate` along an axis: upstream, of x's shape, gives x.

    An element is part of the sums from it on (before it, where those went in `reverse`; without its
    own, where they were `exclusive`), so it takes the sum of their upstreams.
    """

    name = "grad.cumsum"
    KIND: ClassVar = OpKind.CUMSUM_BACKWARD
    OPTIONS: ClassVar = {"axis": -1, "exclusive": False, "reverse": False}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        axis_of(cls, types[0], o["axis"])
        return types


def _cumsum(op: CumsumBackwardOp, upstream: Array) -> Array:
    """Return the products of upstreams with the sums' derivatives by each element."""
    import numpy as np

    moved = np.moveaxis(upstream, op.option("axis"), -1)
    n = moved.shape[-1]
    derivative = np.tri(n, n, -1 if op.option("exclusive") else 0, dtype=upstream.dtype)
    if op.option("reverse"):
        derivative = derivative.T
    return np.moveaxis(moved @ derivative, -1, op.option("axis"))


def _expand_cumsum(w: Writer, op: CumsumBackwardOp) -> Sequence[SSAValue]:
    options: dict[str, Any] = {**op.chosen, "reverse": not op.option("reverse")}
    return [w.add(CumulateOp(op.args[0], kind="sum", **options))]


def _sample_cumsum(draw: Draw) -> Case:
    upstream = draw.array(draw.shape(1, 2, 3, low=0))
    options: dict[str, Any] = {
        "axis": draw.between(-upstream.ndim, upstream.ndim - 1),
        "exclusive": draw.chance(),
        "reverse": draw.chance(),
    }
    return Case([upstream], lambda w, v: w.add_all(CumsumBackwardOp(*v, **options)))


RECORDS = (
    Record(
        GatherBackwardOp,
        (OpKind.GATHER_BACKWARD,),
        MOVE,
        FLOATS,
        _gather,
        _sample_gather,
        _expand_gather,
        # Many numbers may be for one element, which takes them one after the other.
        nmse=1e-10,
    ),
    Record(
        CumsumBackwardOp,
        (OpKind.CUMSUM_BACKWARD,),
        SCAN,
        FLOATS,
        _cumsum,
        _sample_cumsum,
        _expand_cumsum,
        nmse=1e-10,
    ),
)
