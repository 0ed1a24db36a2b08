"""Products of tensors over any of their axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.record import CONTRACTION, FLOATS, Array, Case, Record
from rlx.ops.samples import Draw


@irdl_op_definition
class DotGeneralOp(NamedOp):
    """
    Sums of products over some axes of two tensors, for each place of others.

    The result has the dimensions of `lhs_batch`, those of the left side that are neither among
    these nor in `lhs_contract`, and those of the right side. Pairs of axes have one size. What is
    left of a side, and what is summed over, are numbers or one dimension.
    """

    name = "fused.dot_general"
    KIND: ClassVar = OpKind.DOT_GENERAL
    OPTIONS: ClassVar = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (), "rhs_contract": ()}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        sides = [_Side.of(types, o, i) for i in range(2)]
        left, right = sides
        same = left.batch == right.batch and left.contract == right.contract
        if not same or element_of(types[0]) != element_of(types[1]):
            raise cls.refuse(
                "pairs of axes of one size, of one element type, with axes "
                + ", ".join(f"{name} {list(o[name])}" for name in cls.OPTIONS),
                types,
            )
        for group in (left.free, right.free, left.contract):
            if _joined(group) is None:
                raise cls.refuse(f"numbers, or a dimension alone, to join {list(group)}", types)
        return [tensor([*left.batch, *left.free, *right.free], element_of(types[0]))]


class _Side:
    """The axes of one side and their dimensions, by what is done with them."""

    def __init__(self, dims: Sequence[Dim], batch: Sequence[int], contract: Sequence[int]):
        free = [i for i in range(len(dims)) if i not in (*batch, *contract)]
        self.axes = (tuple(batch), tuple(free), tuple(contract))
        self.batch, self.free, self.contract = ([dims[i] for i in axes] for axes in self.axes)

    @staticmethod
    def of(types: Sequence[Attribute], o: Mapping[str, Any], side: int) -> _Side:
        name = ("lhs", "rhs")[side]
        batch, contract = o[f"{name}_batch"], o[f"{name}_contract"]
        infer.check_axes(DotGeneralOp.name, types[side], [*batch, *contract])
        return _Side(dims_of(types[side]), batch, contract)

    def matrix(self, w: Writer, x: SSAValue, swapped: bool) -> SSAValue:
        """Return `[batch..., free, contract]`, or with the last two swapped."""
        batch, free, contract = self.axes
        last = ((contract, self.contract), (free, self.free))
        parts = last if swapped else last[::-1]
        x = w.transpose(x, [*batch, *(i for axes, _ in parts for i in axes)])
        joined = [d for _, dims in parts if (d := _joined(dims)) is not None]
        dims = [*self.batch, *joined]
        return w.reshape(x, dims) if list(dims_of(x.type)) != dims else x


def _joined(dims: Sequence[Dim]) -> Dim | None:
    """Return the one dimension that some make, None where that has no name."""
    if len(dims) == 1:
        return dims[0]
    sizes = [d for d in dims if isinstance(d, int)]
    return prod(sizes) if len(sizes) == len(dims) else None


def _dot_general(op: DotGeneralOp, x: Array, y: Array) -> Array:
    import numpy as np

    o = op.chosen
    # The letter of an axis is its number; pairs share that of the left side.
    right = list(range(x.ndim, x.ndim + y.ndim))
    batch: tuple[int, ...] = o["lhs_batch"]
    shared = [*batch, *o["lhs_contract"]]
    for a, b in zip(shared, [*o["rhs_batch"], *o["rhs_contract"]], strict=True):
        right[b] = a
    free = [i for i in (*range(x.ndim), *right) if i not in shared]
    return np.einsum(x, list(range(x.ndim)), y, right, [*batch, *free])


def _expand_dot_general(w: Writer, op: DotGeneralOp) -> Sequence[SSAValue]:
    types, o = [v.type for v in op.args], op.chosen
    left, right = (_Side.of(types, o, i) for i in range(2))
    # The right side as it lies, where it is a transpose of what the product wants.
    swapped = _first(right.axes[2]) < _first(right.axes[1])
    product = w.dot(
        left.matrix(w, op.args[0], swapped=False),
        right.matrix(w, op.args[1], swapped),
        y_t=not swapped,
    )
    return [w.reshape(product, dims_of(op.res[0].type))]


def _first(axes: Sequence[int]) -> int:
    return axes[0] if axes else 0


def _sample_dot_general(draw: Draw) -> Case:
    groups = [[draw.between(1, 5) for _ in range(draw.between(0, 2))] for _ in range(4)]
    batch, contract, *free = groups
    arrays: list[Array] = []
    options: dict[str, Any] = {}
    for name, own in zip(("lhs", "rhs"), free, strict=True):
        sizes = [*batch, *contract, *own]
        places = [int(i) for i in draw.rng.permutation(len(sizes))]
        shape = [0] * len(sizes)
        for size, place in zip(sizes, places, strict=True):
            shape[place] = size
        options[f"{name}_batch"] = tuple(places[: len(batch)])
        options[f"{name}_contract"] = tuple(places[len(batch) : len(batch) + len(contract)])
        arrays.append(draw.array(shape))
    return Case(arrays, lambda w, v: w.add_all(DotGeneralOp(*v, **options)))


RECORDS = (
    Record(
        DotGeneralOp,
        (OpKind.DOT_GENERAL,),
        CONTRACTION,
        FLOATS,
        _dot_general,
        _sample_dot_general,
        _expand_dot_general,
    ),
)
