"""
Sorting, and reading and writing at indices that values give.

Indices are i32 or i64. Those below 0 count from the end of their axis. What is read beyond an axis
is its first or last element, what is written there is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, ReduceKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops import scattering, sorting
from rlx.ops.places import covers, flat_places, strides_of, wrapped_ids
from rlx.ops.record import FLOATS, INTEGERS, MOVE, Array, Case, Record
from rlx.ops.samples import Draw
from rlx.ops.sorting import axis_of

B = BinaryKind

# Reading at indices


@irdl_op_definition
class GatherNdOp(NamedOp):
    """
    Slices of x `[batch..., d0, .., dq-1, rest...]` at ids `[batch..., m..., q]`.

    The result is `[batch..., m..., rest...]`, from x[batch, ids[batch, m, 0], ids[batch, m, 1],
    ...]. `batch` is how many leading axes the two share; these and d0 to dq-1 are numbers. An index
    beyond its axis means the first or last element.
    """

    name = "indexing.gather_nd"
    KIND: ClassVar = OpKind.GATHER_ND
    OPTIONS: ClassVar = {"batch": 0}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2)
        infer.check_element(f"{cls.name} indices", types[1], (i32, i64))
        x, ids = dims_of(types[0]), dims_of(types[1])
        b, q = o["batch"], ids[-1] if ids else 0
        fits = isinstance(q, int) and q > 0 and 0 <= b < len(ids) and b + q <= len(x)
        if not fits or x[:b] != ids[:b] or not all(isinstance(d, int) for d in x[: b + q]):
            raise cls.refuse(
                "a tensor [batch..., d0, .., dq-1, rest...] and indices [batch..., m..., q] with "
                f"`batch` {b} axes in common and numbers for all but m and rest",
                types,
            )
        return [tensor([*ids[:-1], *x[b + q :]], element_of(types[0]))]


def _gather_nd(op: GatherNdOp, x: Array, ids: Array) -> Array:
    import numpy as np

    b, q = op.option("batch"), ids.shape[-1]
    result = np.zeros((*ids.shape[:-1], *x.shape[b + q :]), x.dtype)
    if not all(x.shape[b : b + q]):
        return result
    for place in np.ndindex(*ids.shape[:-1]):
        at = _clamped(ids[place], x.shape[b : b + q])
        result[place] = x[(*place[:b], *at)]
    return result


def _clamped(index: Iterable[int], sizes: Sequence[int]) -> list[int]:
    """Return an index that counts from the start and lies within sizes above 0."""
    return [
        min(max(int(i) + d if i < 0 else int(i), 0), d - 1)
        for i, d in zip(index, sizes, strict=True)
    ]


def _expand_gather_nd(w: Writer, op: GatherNdOp) -> Sequence[SSAValue]:
    x, ids = op.args[0], w.cast(op.args[1], i64)
    b, dims, places = op.option("batch"), dims_of(x.type), dims_of(ids.type)
    q = places[-1]
    assert isinstance(q, int)
    sizes = [d for d in dims[: b + q] if isinstance(d, int)]
    row = w.constant(sizes[b:], [q], i64)
    last = len(places) - 1
    wrapped = wrapped_ids(w, ids, w.along(row, last, places))
    top = w.along(w.constant([d - 1 for d in sizes[b:]], [q], i64), last, places)
    inside = w.binary(B.MAX, w.binary(B.MIN, wrapped, top), 0)
    strides = strides_of(sizes)
    scaled = w.binary(B.MUL, inside, w.along(w.constant(strides[b:], [q], i64), last, places))
    flat = w.reduce(ReduceKind.SUM, scaled, [last])
    for axis in range(b):
        place = w.iota(axis, dims_of(flat.type), i64)
        flat = w.binary(B.ADD, flat, w.binary(B.MUL, place, strides[axis]))
    rows = w.reshape(x, [prod(sizes), *dims[b + q :]])
    return [w.gather(rows, flat, 0)]


def _sample_gather_nd(draw: Draw) -> Case:
    x = draw.array(draw.shape(2, 3, 4, low=0))
    b = draw.between(0, x.ndim - 1)
    q = draw.between(1, x.ndim - b)
    ids = draw.rng.integers(-12, 12, (*x.shape[:b], *draw.shape(0, 1), q))
    ids = ids.astype(draw.choice(["i4", "i8"]))
    return Case([x, ids], lambda w, v: w.add_all(GatherNdOp(*v, batch=b)))


@irdl_op_definition
class GatherElementsOp(NamedOp):
    """
    Elements of x along an axis, one for each index: result[i, j] = x[ids[i, j], j] for axis 0.

    The indices have the rank of x and at most its size along other axes; x has numbers as
    dimensions. An index beyond the axis means its first or last element.
    """

    name = "indexing.gather_elements"
    KIND: ClassVar = OpKind.GATHER_ELEMENTS
    OPTIONS: ClassVar = {"axis": 0}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2)
        infer.check_element(f"{cls.name} indices", types[1], (i32, i64))
        axis = axis_of(cls, types[0], o["axis"])
        x, ids = dims_of(types[0]), dims_of(types[1])
        if not all(isinstance(d, int) for d in x) or not covers(x, ids, axis):
            raise cls.refuse(
                "a tensor of numbers as dimensions, and indices of its rank that are not larger "
                f"along axes other than {axis}",
                types,
            )
        return [tensor(ids, element_of(types[0]))]


def _gather_elements(op: GatherElementsOp, x: Array, ids: Array) -> Array:
    import numpy as np

    axis = int(op.option("axis")) % x.ndim
    result = np.zeros(ids.shape, x.dtype)
    for place in np.ndindex(*ids.shape if x.shape[axis] else (0,)):
        (index,) = _clamped([int(ids[place])], [x.shape[axis]])
        result[place] = x[(*place[:axis], index, *place[axis + 1 :])]
    return result


def _expand_gather_elements(w: Writer, op: GatherElementsOp) -> Sequence[SSAValue]:
    x, ids = op.args[0], w.cast(op.args[1], i64)
    dims = [d for d in dims_of(x.type) if isinstance(d, int)]
    axis = int(op.option("axis")) % len(dims)
    wrapped = wrapped_ids(w, ids, w.value(dims[axis], ids.type))
    inside = w.binary(B.MAX, w.binary(B.MIN, wrapped, dims[axis] - 1), 0)
    flat = flat_places(w, inside, axis, strides_of(dims))
    return [w.gather(w.reshape(x, [prod(dims)]), flat, 0)]


def _sample_gather_elements(draw: Draw) -> Case:
    x = draw.array(draw.shape(1, 2, 3, low=0))
    axis = draw.between(-x.ndim, x.ndim - 1)
    shape = [draw.between(0, d) for d in x.shape]
    shape[axis] = draw.size(high=33)
    ids = draw.rng.integers(-12, 12, shape).astype(draw.choice(["i4", "i8"]))
    return Case([x, ids], lambda w, v: w.add_all(GatherElementsOp(*v, axis=axis)))


_ALL = (*FLOATS, *INTEGERS)
RECORDS = (
    *sorting.RECORDS,
    Record(
        GatherNdOp, (OpKind.GATHER_ND,), MOVE, _ALL, _gather_nd, _sample_gather_nd,
        _expand_gather_nd, nmse=0,
    ),
    Record(
        GatherElementsOp, (OpKind.GATHER_ELEMENTS,), MOVE, _ALL, _gather_elements,
        _sample_gather_elements, _expand_gather_elements, nmse=0,
    ),
    *scattering.RECORDS,
)  # fmt: skip

Indexing = Dialect("indexing", [r.op for r in RECORDS], [])
