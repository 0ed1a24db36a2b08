"""
Writing at indices: one kernel writes rows, the rest is made of it.

The operations are of the dialect `indexing`, whose file says what indices mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.places import covers, flat_places, strides_of, wrapped_ids
from rlx.ops.record import FLOATS, INTEGERS, MOVE, Array, Case, Record
from rlx.ops.samples import Draw
from rlx.ops.sorting import NUMBERS, axis_of

B, C = BinaryKind, CompareKind

SCATTERS = ("set", "add", "mul", "max", "min")
"""What becomes of an element and the update for it."""


def _kinds(op: type[NamedOp], types: Sequence[Attribute], kind: str) -> None:
    allowed = infer.ELEMENTS if kind == "set" else NUMBERS
    infer.check_element(op.name, types[0], allowed)
    infer.check_element(f"{op.name} indices", types[1], (i32, i64))


def _combined(kind: str, old: Array, new: Array) -> Array:
    import numpy as np

    functions = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    with np.errstate(over="ignore"):
        return new if kind == "set" else functions[kind](old, new)


@irdl_op_definition
class ScatterRowsOp(NamedOp):
    """
    `into` `[d0, .., dq-1, rest...]` with rows replaced, or added to, at ids `[m...]`.

    The updates are `[m..., rest...]`; the first `axes` axes of `into` count as one, in row-major
    order. An index below 0 counts from the end; what is still outside is dropped. Updates of one
    row are taken in their order, so that the result does not depend on threads.
    """

    name = "indexing.scatter_rows"
    KIND: ClassVar = OpKind.SCATTER_ND
    OPTIONS: ClassVar = {"kind": "set", "axes": 1}
    CHOICES: ClassVar = {"kind": SCATTERS}
    LAUNCHED: ClassVar = True
    IN_PLACE: ClassVar = ((0, 0),)

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        _kinds(cls, types, o["kind"])
        into, ids, updates = (dims_of(t) for t in types)
        fits = 1 <= o["axes"] <= len(into) and [*ids, *into[o["axes"] :]] == list(updates)
        if not fits or element_of(types[0]) != element_of(types[2]):
            raise cls.refuse(
                f"a tensor [rows..., rest...] with `axes` {o['axes']} axes of rows, indices [m...] "
                "and updates [m..., rest...] of its elements",
                types,
            )
        return types[:1]


def _scatter_rows(op: ScatterRowsOp, into: Array, ids: Array, updates: Array) -> Array:
    axes = op.option("axes")
    result = into.reshape(-1 if into.size else 0, *into.shape[axes:]).copy()
    n = prod(into.shape[:axes])
    for i, u in zip(ids.reshape(-1), updates.reshape(ids.size, *into.shape[axes:]), strict=True):
        row = int(i) + n if i < 0 else int(i)
        if 0 <= row < n and result.size:
            result[row] = _combined(op.option("kind"), result[row], u)
    return result.reshape(into.shape)


def _sample_scatter_rows(draw: Draw) -> Case:
    into = draw.array(draw.shape(1, 2, 3, low=0), 0.5, 1.5)
    axes = draw.between(1, into.ndim)
    n = prod(into.shape[:axes])
    ids = draw.rng.integers(-n - 2, n + 2, draw.shape(0, 1, 2)).astype(draw.choice(["i4", "i8"]))
    updates = draw.array((*ids.shape, *into.shape[axes:]), 0.5, 1.5)
    options: dict[str, Any] = {"kind": draw.choice(SCATTERS), "axes": axes}
    return Case([into, ids, updates], lambda w, v: w.add_all(ScatterRowsOp(*v, **options)))


@irdl_op_definition
class ScatterAddOp(NamedOp):
    """
    Sums of the updates `[m..., rest...]` for each index: `[rows, rest...]` from ids `[m...]`.

    `rows` is how many there are. What is for an index outside them is dropped.
    """

    name = "indexing.scatter_add"
    KIND: ClassVar = OpKind.SCATTER_ADD
    OPTIONS: ClassVar = {"rows": 1}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2)
        _kinds(cls, types, "add")
        updates, ids = (dims_of(t) for t in types)
        if o["rows"] < 0 or updates[: len(ids)] != ids:
            raise cls.refuse("updates [m..., rest...] and indices [m...], `rows` from 0", types)
        return [tensor([o["rows"], *updates[len(ids) :]], element_of(types[0]))]


def _scatter_add(op: ScatterAddOp, updates: Array, ids: Array) -> Array:
    import numpy as np

    rows = op.option("rows")
    result = np.zeros((rows, *updates.shape[ids.ndim :]), updates.dtype)
    for place in np.ndindex(*ids.shape):
        if -rows <= ids[place] < rows:
            result[ids[place]] += updates[place]
    return result


def _expand_scatter_add(w: Writer, op: ScatterAddOp) -> Sequence[SSAValue]:
    into = w.value(0, op.res[0].type)
    return w.add_all(ScatterRowsOp(into, op.args[1], op.args[0], kind="add"))


def _sample_scatter_add(draw: Draw) -> Case:
    rows = draw.size(0, 97)
    ids = draw.rng.integers(-rows - 2, rows + 2, draw.shape(0, 1, 2))
    updates = draw.array((*ids.shape, *draw.shape(0, 1)))
    return Case([updates, ids], lambda w, v: w.add_all(ScatterAddOp(*v, rows=rows)))


OUTSIDE = -(1 << 62)
"""An index that is outside of any tensor."""


def _checked(w: Writer, ids: SSAValue, sizes: SSAValue) -> tuple[SSAValue, SSAValue]:
    """Return indices counted from the start, and whether they are within sizes."""
    wrapped = wrapped_ids(w, ids, sizes)
    inside = w.binary(B.AND, w.compare(C.GE, wrapped, 0), w.compare(C.LT, wrapped, sizes))
    return wrapped, inside


@irdl_op_definition
class ScatterNdOp(NamedOp):
    """
    `into` `[d0, .., dq-1, rest...]` with slices replaced, or added to, at ids `[m..., q]`.

    The updates are `[m..., rest...]`; d0 to dq-1 are numbers. What is for an index outside is
    dropped; updates of one element are taken in their order.
    """

    name = "indexing.scatter_nd"
    KIND: ClassVar = OpKind.SCATTER_ND
    OPTIONS: ClassVar = {"kind": "set"}
    CHOICES: ClassVar = {"kind": SCATTERS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        _kinds(cls, types, o["kind"])
        into, ids, updates = (dims_of(t) for t in types)
        q = ids[-1] if ids and isinstance(ids[-1], int) else 0
        fits = 1 <= q <= len(into) and all(isinstance(d, int) for d in into[:q])
        if not fits or [*ids[:-1], *into[q:]] != list(updates):
            raise cls.refuse(
                "a tensor [d0, .., dq-1, rest...], with numbers for d0 to dq-1, indices [m..., q] "
                "and updates [m..., rest...]",
                types,
            )
        return types[:1]


def _scatter_nd(op: ScatterNdOp, into: Array, ids: Array, updates: Array) -> Array:
    import numpy as np

    result, sizes = into.copy(), into.shape[: ids.shape[-1]]
    for place in np.ndindex(*ids.shape[:-1]):
        if all(-d <= i < d for i, d in zip(ids[place], sizes, strict=True)):
            at = tuple(ids[place])
            result[at] = _combined(op.option("kind"), result[at], updates[place])
    return result


def _expand_scatter_nd(w: Writer, op: ScatterNdOp) -> Sequence[SSAValue]:
    into, ids, updates = op.args
    ids = w.cast(ids, i64)
    places = dims_of(ids.type)
    last, q = len(places) - 1, places[-1]
    assert isinstance(q, int)
    sizes = [d for d in dims_of(into.type)[:q] if isinstance(d, int)]
    wrapped, inside = _checked(w, ids, w.along(w.constant(sizes, [q], i64), last, places))
    scaled = w.binary(
        B.MUL, wrapped, w.along(w.constant(strides_of(sizes), [q], i64), last, places)
    )
    flat = w.reduce(ReduceKind.SUM, scaled, [last])
    flat = w.select(w.reduce(ReduceKind.MIN, inside, [last]), flat, OUTSIDE)
    return w.add_all(ScatterRowsOp(into, flat, updates, kind=op.option("kind"), axes=q))


def _sample_scatter_nd(draw: Draw) -> Case:
    into = draw.array(draw.shape(1, 2, 3, low=0), 0.5, 1.5)
    q = draw.between(1, into.ndim)
    most = max(into.shape[:q]) + 1
    ids = draw.rng.integers(-most, most, (*draw.shape(0, 1, 2), q))
    ids = ids.astype(draw.choice(["i4", "i8"]))
    updates = draw.array((*ids.shape[:-1], *into.shape[q:]), 0.5, 1.5)
    kind = draw.choice(SCATTERS)
    return Case([into, ids, updates], lambda w, v: w.add_all(ScatterNdOp(*v, kind=kind)))


@irdl_op_definition
class ScatterElementsOp(NamedOp):
    """
    `into` with elements along an axis replaced, or added to: result[ids[i, j], j] = updates[i, j].

    Indices and updates have one shape, of the rank of `into` and at most its size along other axes;
    dimensions of `into` are numbers, but the first may have a name. What is for an index outside is
    dropped; updates of one element are taken in their order.
    """

    name = "indexing.scatter_elements"
    KIND: ClassVar = OpKind.SCATTER_ELEMENTS
    OPTIONS: ClassVar = {"axis": 0, "kind": "set"}
    CHOICES: ClassVar = {"kind": SCATTERS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        _kinds(cls, types, o["kind"])
        axis = axis_of(cls, types[0], o["axis"])
        into, ids, updates = (dims_of(t) for t in types)
        numbers = all(isinstance(d, int) for d in into[1:])
        if not numbers or ids != updates or not covers(into, ids, axis):
            raise cls.refuse(
                "a tensor, and indices and updates of one shape of its rank that are not larger "
                f"along axes other than {axis}; numbers for all but the first dimension",
                types,
            )
        return types[:1]


def _scatter_elements(op: ScatterElementsOp, into: Array, ids: Array, updates: Array) -> Array:
    import numpy as np

    axis, result = op.option("axis") % into.ndim, into.copy()
    for place in np.ndindex(*ids.shape):
        if -into.shape[axis] <= ids[place] < into.shape[axis]:
            at = (*place[:axis], ids[place], *place[axis + 1 :])
            result[at] = _combined(op.option("kind"), result[at], updates[place])
    return result


def _expand_scatter_elements(w: Writer, op: ScatterElementsOp) -> Sequence[SSAValue]:
    into, ids, updates = op.args
    dims = dims_of(into.type)
    axis, rank = int(op.option("axis")) % len(dims), len(dims)
    strides = [prod(d for d in dims[i + 1 :] if isinstance(d, int)) for i in range(rank)]
    ids, size = w.cast(ids, i64), dims[axis]
    if isinstance(size, int):
        wrapped, inside = _checked(w, ids, w.value(size, ids.type))
        flat = w.select(inside, flat_places(w, wrapped, axis, strides), OUTSIDE)
    else:
        # Along the first axis, places before or after the tensor are those of indices outside.
        flat = flat_places(w, ids, axis, strides)
    kind = op.option("kind")
    return w.add_all(ScatterRowsOp(into, flat, updates, kind=kind, axes=rank))


def _sample_scatter_elements(draw: Draw) -> Case:
    into = draw.array(draw.shape(1, 2, 3, low=0), 0.5, 1.5)
    axis = draw.between(-into.ndim, into.ndim - 1)
    shape = [draw.between(0, d) for d in into.shape]
    shape[axis] = draw.size(high=33)
    most = into.shape[axis] + 2
    ids = draw.rng.integers(-most, most, shape).astype(draw.choice(["i4", "i8"]))
    updates = draw.array(shape, 0.5, 1.5)
    options: dict[str, Any] = {"axis": axis, "kind": draw.choice(SCATTERS)}
    return Case([into, ids, updates], lambda w, v: w.add_all(ScatterElementsOp(*v, **options)))


_ALL = (*FLOATS, *INTEGERS)
RECORDS = (
    Record(
        ScatterRowsOp, (OpKind.SCATTER_ND,), MOVE, _ALL, _scatter_rows, _sample_scatter_rows,
        kernel="rlx.lowering.scatter",
    ),
    Record(
        ScatterAddOp, (OpKind.SCATTER_ADD,), MOVE, _ALL, _scatter_add, _sample_scatter_add,
        _expand_scatter_add,
    ),
    Record(
        ScatterNdOp, (OpKind.SCATTER_ND,), MOVE, _ALL, _scatter_nd, _sample_scatter_nd,
        _expand_scatter_nd,
    ),
    Record(
        ScatterElementsOp, (OpKind.SCATTER_ELEMENTS,), MOVE, _ALL, _scatter_elements,
        _sample_scatter_elements, _expand_scatter_elements,
    ),
)  # fmt: skip
