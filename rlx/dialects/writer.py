"""
Primitives written one after the other: what expansions of larger operations are made with.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias, cast

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FixedBitwidthType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import moves, primitives, reductions
from rlx.dialects.common import Dim, dims_of, element_of, spell, tensor
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind, UnaryKind

Number: TypeAlias = int | float
Operand: TypeAlias = "SSAValue | Number"
"""A number stands for a tensor of it, of the type that the operation wants."""


def has_numbers(type_: Attribute) -> bool:
    """Return whether a tensor's dimensions are numbers, above 0."""
    return all(isinstance(d, int) and d > 0 for d in dims_of(type_))


def nbytes(type_: Attribute) -> int:
    """Return the bytes of a tensor whose dimensions are numbers."""
    element = element_of(type_)
    size = element.size if isinstance(element, FixedBitwidthType) else 1
    return prod(cast(Sequence[int], dims_of(type_))) * size


def constant(number: Number, type_: Attribute) -> primitives.ConstantOp:
    """Return a constant whose elements are all one number; its dimensions are numbers."""
    return primitives.ConstantOp(DenseIntOrFPElementsAttr.from_list(cast(Any, type_), [number]))


def fill(number: Number, type_: Attribute) -> list[Operation]:
    """Return operations that give a tensor of one number, whatever its dimensions."""
    if has_numbers(type_) and nbytes(type_) <= primitives.MAX_CONSTANT_BYTES:
        return [constant(number, type_)]
    scalar = constant(number, tensor([], element_of(type_)))
    return [scalar, moves.BroadcastOp(scalar.result, type_)]


class Writer:
    """Makes operations one after the other, in `made`; values come back."""

    def __init__(self) -> None:
        self.made: list[Operation] = []

    def add(self, op: Operation) -> SSAValue:
        """Take in an operation of one result, which is returned."""
        self.made.append(op)
        return op.results[0]

    def add_all(self, op: Operation) -> Sequence[SSAValue]:
        """Take in an operation, and return its results."""
        self.made.append(op)
        return op.results

    def value(self, x: Operand, type_: Attribute) -> SSAValue:
        """Return a value as it is, or a tensor of a type that is one number throughout."""
        if isinstance(x, SSAValue):
            return x
        self.made += fill(x, type_)
        return self.made[-1].results[0]

    def constant(
        self, values: Sequence[Number], dims: Sequence[int], element: Attribute
    ) -> SSAValue:
        """Return a constant of given values in row-major order."""
        type_ = cast(Any, tensor(dims, element))
        return self.add(
            primitives.ConstantOp(DenseIntOrFPElementsAttr.from_list(type_, list(values)))
        )

    def iota(self, axis: int, dims: Sequence[Dim], element: Attribute) -> SSAValue:
        return self.add(primitives.IotaOp(axis, tensor(dims, element)))

    # Maps

    def unary(self, kind: UnaryKind, x: SSAValue) -> SSAValue:
        return self.add(primitives.UnaryOp(kind, x))

    def binary(self, kind: BinaryKind, x: Operand, y: Operand) -> SSAValue:
        """Return a map of two operands, one of which may be a number."""
        x, y = self._pair(x, y)
        return self.add(primitives.BinaryOp(kind, x, y))

    def compare(self, kind: CompareKind, x: Operand, y: Operand) -> SSAValue:
        x, y = self._pair(x, y)
        return self.add(primitives.CompareOp(kind, x, y))

    def select(self, condition: SSAValue, x: Operand, y: Operand) -> SSAValue:
        x, y = self._pair(x, y)
        return self.add(primitives.SelectOp(condition, x, y))

    def cast(self, x: SSAValue, element: Attribute) -> SSAValue:
        """Return a value with other elements, itself where it has them."""
        if element_of(x.type) == element:
            return x
        return self.add(primitives.CastOp(x, element))

    def _pair(self, x: Operand, y: Operand) -> tuple[SSAValue, SSAValue]:
        typed = x if isinstance(x, SSAValue) else y
        assert isinstance(typed, SSAValue)
        return self.value(x, typed.type), self.value(y, typed.type)

    # Moves

    def reshape(self, x: SSAValue, dims: Sequence[Dim]) -> SSAValue:
        return self.add(moves.ReshapeOp(x, tensor(dims, element_of(x.type))))

    def spread(self, x: SSAValue, dims: Sequence[Dim]) -> SSAValue:
        """Repeat a value along new leading dimensions and dimensions of 1."""
        if dims_of(x.type) == tuple(dims):
            return x
        return self.add(moves.BroadcastOp(x, tensor(dims, element_of(x.type))))

    def along(self, x: SSAValue, axis: int, dims: Sequence[Dim]) -> SSAValue:
        """Repeat a vector along all but one axis of a shape."""
        ones = [d if i == axis else 1 for i, d in enumerate(dims)]
        return self.spread(self.reshape(x, ones), dims)

    def transpose(self, x: SSAValue, order: Sequence[int]) -> SSAValue:
        if list(order) == list(range(len(order))):
            return x
        return self.add(moves.TransposeOp(x, order))

    def slice(self, x: SSAValue, axis: int, start: int, size: Dim, step: int = 1) -> SSAValue:
        """Return `size` elements of an axis from `start` on, every `step`-th."""
        dims = list(dims_of(x.type))
        dims[axis] = size
        starts = [start if i == axis else 0 for i in range(len(dims))]
        steps = [step if i == axis else 1 for i in range(len(dims))]
        return self.add(moves.SliceOp(x, starts, tensor(dims, element_of(x.type)), steps))

    def concat(self, axis: int, parts: Sequence[SSAValue]) -> SSAValue:
        """Join values; raises VerifyException unless their sizes along the axis are numbers."""
        dims = list(dims_of(parts[0].type))
        sizes = [dims_of(p.type)[axis] for p in parts]
        if not all(isinstance(n, int) for n in sizes):
            given = ", ".join(spell(p.type) for p in parts)
            raise VerifyException(f"expected parts of numbers along axis {axis}, got {given}")
        dims[axis] = sum(cast(Sequence[int], sizes))
        return self.add(moves.ConcatOp(axis, parts, tensor(dims, element_of(parts[0].type))))

    def gather(self, x: SSAValue, ids: SSAValue, axis: int) -> SSAValue:
        return self.add(moves.GatherOp(x, ids, axis))

    def pad(
        self,
        x: SSAValue,
        low: Sequence[int],
        high: Sequence[int],
        fill: Operand = 0,
        between: Sequence[int] = (),
    ) -> SSAValue:
        """Add elements before, after and between those of each axis, of numbers as sizes."""
        if not any((*low, *high, *between)):
            return x
        scalar = self.value(fill, tensor([], element_of(x.type)))
        return self.add(moves.PadOp(x, scalar, low, high, between))

    def window(self, x: SSAValue, axis: int, size: int, stride: int = 1, step: int = 1) -> SSAValue:
        return self.add(moves.WindowOp(x, axis, size, stride, step))

    def reverse(self, x: SSAValue, axes: Sequence[int]) -> SSAValue:
        return self.add(moves.ReverseOp(x, axes)) if axes else x

    # Reductions and products

    def reduce(
        self, kind: ReduceKind, x: SSAValue, axes: Sequence[int], keep: bool = False
    ) -> SSAValue:
        """Combine the elements along axes; with `keep` the result has 1 for each of these."""
        result = self.add(reductions.ReduceOp(kind, x, axes))
        if not keep:
            return result
        return self.reshape(result, [1 if i in axes else d for i, d in enumerate(dims_of(x.type))])

    def last(self, kind: ReduceKind, x: SSAValue) -> SSAValue:
        """Reduce the last axis, and repeat the result along it."""
        dims = dims_of(x.type)
        return self.spread(self.reduce(kind, x, [len(dims) - 1], keep=True), dims)

    def dot(self, x: SSAValue, y: SSAValue, x_t: bool = False, y_t: bool = False) -> SSAValue:
        return self.add(reductions.DotOp(x, y, x_t, y_t))
