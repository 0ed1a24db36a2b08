"""
Sorting: one kernel sorts rows, or finds the first k of them; the rest is made of it.

The operations are of the dialect `indexing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.record import FLOATS, INTEGERS, SORT, Array, Case, Record
from rlx.ops.samples import Draw

NUMBERS = (*infer.FLOATS, *infer.INTEGERS)


def axis_of(op: type[NamedOp], type_: Attribute, axis: int) -> int:
    """Return an axis as its number from the first one. Raises VerifyException if there is none."""
    rank = len(dims_of(type_))
    if not -rank <= axis < rank:
        raise op.refuse(f"an axis of {rank} dimensions as `axis` {axis}", [type_])
    return axis % rank


def _first(op: type[NamedOp], types: Sequence[Attribute], k: int, size: Dim) -> int:
    """Return how many elements of an axis are wanted, all of which it must have."""
    if not isinstance(size, int) or not 0 < k <= size:
        raise op.refuse(f"an axis of a number of elements from `k` {k} on, and that above 0", types)
    return k


@irdl_op_definition
class SortRowsOp(NamedOp):
    """
    The elements of each row (the last axis) in order, and where each was, i64.

    Equal elements stay in their order; -0 equals 0, and NaN is after all numbers, `descending` or
    not. With `k` above 0 the results have the first k of each row alone.
    """

    name = "indexing.sort_rows"
    KIND: ClassVar = OpKind.SORT
    OPTIONS: ClassVar = {"descending": False, "k": 0}
    LAUNCHED: ClassVar = True

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        infer.check_element(cls.name, types[0], NUMBERS)
        dims, k = list(dims_of(types[0])), o["k"]
        if not dims:
            raise cls.refuse("a dimension or more", types)
        if k:
            dims[-1] = _first(cls, types, k, dims[-1])
        return [tensor(dims, element_of(types[0])), tensor(dims, i64)]


def _order(x: Array, descending: bool) -> Array:
    """Return the stable order of the last axis; NaN is last both in x and in -x."""
    import numpy as np

    reversed_ = -x if x.dtype.kind == "f" else ~x
    return np.argsort(reversed_ if descending else x, axis=-1, kind="stable")


def _sort_rows(op: SortRowsOp, x: Array) -> tuple[Array, Array]:
    import numpy as np

    order = _order(x, op.option("descending"))[..., : op.option("k") or None]
    return np.take_along_axis(x, order, -1), order


def _keys(draw: Draw, shape: Sequence[int]) -> Array:
    """Return what orders are hard on: equal elements, zeros of both signs, infinities and NaN."""
    x = draw.array(shape)
    if draw.chance():
        x = (x % 5).astype(x.dtype) if not draw.is_float else x.round() * 1
    if draw.is_float and x.size and draw.chance():
        for value in (float("nan"), float("inf"), -float("inf"), 0.0, -0.0):
            x[draw.rng.random(x.shape) < 0.1] = value
    return x


def _sample_sort_rows(draw: Draw) -> Case:
    x = _keys(draw, (*draw.shape(0, 1), draw.size(0)))
    options: dict[str, Any] = {"descending": draw.chance(), "k": 0}
    if x.shape[-1] and draw.chance():
        options["k"] = draw.between(1, x.shape[-1])
    return Case([x], lambda w, v: w.add_all(SortRowsOp(*v, **options)))


class _AlongAxis(NamedOp):
    """What is made of `indexing.sort_rows` along any axis."""

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        axis, k = axis_of(cls, types[0], o["axis"]), o.get("k", 0)
        infer.check_element(cls.name, types[0], NUMBERS)
        dims = list(dims_of(types[0]))
        if k:
            dims[axis] = _first(cls, types, k, dims[axis])
        return cls.kept(tensor(dims, element_of(types[0])), tensor(dims, i64))

    @classmethod
    def kept(cls, values: Attribute, indices: Attribute) -> Sequence[Attribute]:
        return [values, indices]

    @property
    def rows(self) -> dict[str, Any]:
        """Return the options of the sort of rows."""
        o = self.chosen
        return {"descending": o.get("descending", o.get("largest")), "k": o.get("k", 0)}


def _along_axis(op: _AlongAxis, x: Array) -> tuple[Array, Array]:
    import numpy as np

    moved = np.moveaxis(x, op.option("axis"), -1)
    order = _order(moved, op.rows["descending"])[..., : op.rows["k"] or None]
    values = np.take_along_axis(moved, order, -1)
    back = [np.moveaxis(y, -1, op.option("axis")) for y in (values, order)]
    return back[0], back[1]


def _expand_along_axis(w: Writer, op: _AlongAxis) -> Sequence[SSAValue]:
    rank = len(dims_of(op.args[0].type))
    axis = op.option("axis") % rank
    order = [i for i in range(rank) if i != axis] + [axis]
    rows = w.add_all(SortRowsOp(w.transpose(op.args[0], order), **op.rows))
    back = [order.index(i) for i in range(rank)]
    return [w.transpose(r, back) for r in rows]


def _sample_along_axis(op: type[_AlongAxis]) -> Callable[[Draw], Case]:
    def sample(draw: Draw) -> Case:
        x = _keys(draw, draw.shape(1, 2, 3))
        axis = draw.between(-x.ndim, x.ndim - 1)
        options: dict[str, Any] = {"axis": axis}
        for name in op.OPTIONS:
            if name == "k":
                options[name] = draw.between(1, x.shape[axis])
            elif name != "axis":
                options[name] = draw.chance()
        return Case([x], lambda w, v: w.add_all(op(*v, **options)))

    return sample


@irdl_op_definition
class SortOp(_AlongAxis):
    """The elements along an axis in order, and where each was, i64; see `indexing.sort_rows`."""

    name = "indexing.sort"
    KIND: ClassVar = OpKind.SORT
    OPTIONS: ClassVar = {"axis": -1, "descending": False}


@irdl_op_definition
class ArgSortOp(_AlongAxis):
    """Where the elements along an axis are in order, i64; see `indexing.sort_rows`."""

    name = "indexing.argsort"
    KIND: ClassVar = OpKind.ARG_SORT
    OPTIONS: ClassVar = {"axis": -1, "descending": False}

    @classmethod
    def kept(cls, values: Attribute, indices: Attribute) -> Sequence[Attribute]:
        return [indices]


def _argsort(op: ArgSortOp, x: Array) -> Array:
    return _along_axis(op, x)[1]


def _expand_argsort(w: Writer, op: ArgSortOp) -> Sequence[SSAValue]:
    return _expand_along_axis(w, op)[1:]


@irdl_op_definition
class TopKOp(_AlongAxis):
    """
    The `k` largest elements along an axis (or smallest), from the first on, and where each is, i64.

    Of equal ones those of smaller indices come first. NaN comes after all numbers.
    """

    name = "indexing.topk"
    KIND: ClassVar = OpKind.TOP_K
    OPTIONS: ClassVar = {"k": 1, "axis": -1, "largest": True}


@irdl_op_definition
class TopKIdsOp(_AlongAxis):
    """Where the `k` largest elements along an axis are (or smallest), i64; see `indexing.topk`."""

    name = "indexing.topk_ids"
    KIND: ClassVar = OpKind.TOP_K
    OPTIONS: ClassVar = {"k": 1, "axis": -1, "largest": True}

    @classmethod
    def kept(cls, values: Attribute, indices: Attribute) -> Sequence[Attribute]:
        return [indices]


_ALL = (*FLOATS, *INTEGERS)


def _along(op: type[_AlongAxis], kind: OpKind, ids: bool) -> Record:
    meaning, expand = (_argsort, _expand_argsort) if ids else (_along_axis, _expand_along_axis)
    return Record(op, (kind,), SORT, _ALL, meaning, _sample_along_axis(op), expand, nmse=0)


RECORDS = (
    Record(
        SortRowsOp, (OpKind.SORT,), SORT, _ALL, _sort_rows, _sample_sort_rows,
        kernel="rlx.lowering.sort", nmse=0,
    ),
    _along(SortOp, OpKind.SORT, False),
    _along(ArgSortOp, OpKind.ARG_SORT, True),
    _along(TopKOp, OpKind.TOP_K, False),
    _along(TopKIdsOp, OpKind.TOP_K, True),
)  # fmt: skip
