"""
Tensor primitives as a graph of nodes: what `tensor_program` emits code for.

Sizes are products of a number and names, so that a reshape knows which dimensions it merges.
softmax and layer_norm are spelled out here as maps and reductions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute, Operation, SSAValue

from rlx.dialects import mir
from rlx.dialects.common import (
    DimTable,
    PackedType,
    dims_of,
    element_bytes,
    element_of,
    format_of,
    repeats,
    tensor,
)
from rlx.dialects.ops import numbers


class Size(NamedTuple):
    """A product: a number times the sizes of dimensions with names, in alphabetical order."""

    number: int
    names: tuple[str, ...] = ()

    def __mul__(self, other: object) -> Size:
        assert isinstance(other, Size)
        return Size(self.number * other.number, tuple(sorted((*self.names, *other.names))))

    @property
    def static(self) -> int | None:
        return None if self.names else self.number

    @property
    def is_one(self) -> bool:
        return self == ONE


ONE = Size(1)
"""The size of a dimension of one element."""


def product(sizes: Sequence[Size]) -> Size:
    return prod(sizes, start=ONE)


@dataclass(frozen=True, eq=False)
class Node:
    """A tensor as what makes it: an operation (`input` for an argument) of other nodes."""

    op: str
    dims: tuple[Size, ...]
    element: Attribute
    args: tuple[Node, ...] = ()
    kind: str = ""
    """Which map or reduction."""
    axes: tuple[int, ...] = ()
    """
    The axes of a reduction or reversal, the order of a transposition, the starts of a slice, what a
    pad has before each axis, or one axis.
    """
    steps: tuple[int, ...] = ()
    """Of a slice or between padded elements, for each axis; stride and step of windows."""
    data: bytes = b""
    """The elements of a constant; one of them may be all."""

    @property
    def bytes(self) -> int:
        """Return the bytes of one element in memory."""
        return element_bytes(tensor((), self.element))

    @property
    def axis(self) -> int:
        return self.axes[0]

    @property
    def count(self) -> Size:
        return product(self.dims)


def is_packed_vector(type_: Attribute) -> bool:
    """Whether a weight is a packed vector of f32, whose elements lie one after the other."""
    packed = isinstance(element_of(type_), PackedType)
    return packed and format_of(type_) == "f32" and len(dims_of(type_)) == 1


class Graph:
    """The nodes of a kernel's values, by value."""

    def __init__(
        self, table: DimTable | None, source: Callable[[SSAValue], SSAValue] = lambda v: v
    ):
        self._table = table
        self._source = source
        """Gives the value that operations know another as."""
        self._nodes: dict[SSAValue, Node] = {}

    def sizes(self, type_: Attribute) -> tuple[Size, ...]:
        """Return a tensor's dimensions; products that the table declares are taken apart."""
        return tuple(Size(d) if isinstance(d, int) else self._named(d) for d in dims_of(type_))

    def _named(self, name: str) -> Size:
        definition = self._table.dims.get(name) if self._table else None
        if definition is not None and definition.operator == "*":
            a, b = definition.operands
            return self._named(a) * self._named(b)
        return Size(1, (name,))

    def node(self, value: SSAValue) -> Node:
        """Return the node of an argument or of an operation's result."""
        value = self._source(value)
        if value not in self._nodes:
            element = f32 if is_packed_vector(value.type) else element_of(value.type)
            node = Node("input", self.sizes(value.type), element)
            self._nodes[value] = node
        return self._nodes[value]

    def add(self, op: Operation) -> None:
        """Take in an operation, after those that it uses."""
        result = op.results[0]
        type_ = result.type
        args = tuple(self.node(v) for v in op.operands)
        if isinstance(op, mir.SoftmaxOp):
            self._nodes[result] = _softmax(args[0])
        elif isinstance(op, mir.LayerNormOp):
            x, weight, bias = args
            self._nodes[result] = _layer_norm(x, weight, bias, op.eps.value.data)
        elif isinstance(op, mir.RmsNormOp):
            x, weight = args
            self._nodes[result] = _rms_norm(x, weight, op.eps.value.data)
        else:
            name = op.name.removeprefix("mir.")
            self._nodes[result] = _node(op, name, self.sizes(type_), args)


def _node(op: Operation, name: str, dims: tuple[Size, ...], args: tuple[Node, ...]) -> Node:
    node = Node(name, dims, element_of(op.results[0].type), args)
    match op:
        case mir.ConstantOp():
            return replace(node, data=op.value.data.data)
        case mir.IotaOp() | mir.ConcatOp() | mir.GatherOp():
            return replace(node, axes=(op.axis.value.data,))
        case mir.UnaryOp() | mir.BinaryOp() | mir.CompareOp():
            return replace(node, kind=str(op.kind.data))
        case mir.ReduceOp():
            axes = tuple(sorted(numbers(op.axes)))
            if not axes:
                return replace(node, op="reshape")
            return replace(node, kind=str(op.kind.data), axes=axes)
        case mir.TransposeOp():
            return replace(node, axes=tuple(numbers(op.order)))
        case mir.NarrowOp():
            axes, steps = (op.axis.value.data,), (op.step.value.data,)
            return replace(node, kind=op.start.data, axes=axes, steps=steps)
        case mir.PadOp():
            between = numbers(op.between)
            return replace(node, axes=tuple(numbers(op.low)), steps=tuple(n + 1 for n in between))
        case mir.WindowOp():
            steps = (op.stride.value.data, op.step.value.data)
            return replace(node, axes=(op.axis.value.data,), steps=steps)
        case mir.ReverseOp():
            return replace(node, axes=tuple(numbers(op.axes)))
        case mir.SliceOp():
            starts, steps = (tuple(numbers(n)) for n in (op.starts, op.steps))
            return replace(node, axes=starts, steps=steps)
        case _:
            return node


# Norms, spelled out


def unary(kind: str, x: Node) -> Node:
    return Node("unary", x.dims, x.element, (x,), kind)


def binary(kind: str, a: Node, b: Node) -> Node:
    return Node("binary", a.dims, a.element, (a, b), kind)


def _over_last(kind: str, x: Node) -> Node:
    """Reduce over the last axis, and keep it with one element."""
    last = len(x.dims) - 1
    reduced = Node("reduce", x.dims[:-1], x.element, (x,), kind, (last,))
    return Node("reshape", (*x.dims[:-1], ONE), x.element, (reduced,))


def _along(x: Node, like: Node) -> Node:
    return Node("broadcast", like.dims, x.element, (x,))


def _scalar(value: float, like: Node) -> Node:
    """Return a number in every element of a tensor of the shape of another."""
    data = struct.pack("<f" if like.element == f32 else "<d", value)
    return Node("constant", like.dims, like.element, data=data)


def _softmax(x: Node) -> Node:
    # Where a row has a NaN, its sum is one, whatever its maximum is.
    shifted = binary("sub", x, _along(_over_last("highest", x), x))
    power = unary("exp_below", shifted)
    return binary("mul", power, _along(unary("recip", _over_last("sum", power)), x))


def _layer_norm(x: Node, weight: Node, bias: Node, eps: float) -> Node:
    centred = binary("sub", x, _along(_over_last("mean", x), x))
    variance = _over_last("mean", binary("mul", centred, centred))
    scale = unary("rsqrt", binary("add", variance, _scalar(eps, variance)))
    normal = binary("mul", centred, _along(scale, x))
    return binary("add", binary("mul", normal, _along(weight, x)), _along(bias, x))


def _rms_norm(x: Node, weight: Node, eps: float) -> Node:
    mean = _over_last("mean", binary("mul", x, x))
    scale = unary("rsqrt", binary("add", mean, _scalar(eps, mean)))
    return binary("mul", binary("mul", x, _along(scale, x)), _along(weight, x))


# What a node is made of

MAPS = ("unary", "binary", "compare", "select", "cast")
CHEAP = (
    "neg",
    "abs",
    "sign",
    "not",
    "relu",
    "add",
    "sub",
    "mul",
    "max",
    "min",
    "and",
    "or",
    "xor",
)


def reachable(*nodes: Node) -> list[Node]:
    """Return nodes and all that they are made of, operands first."""
    found: dict[Node, None] = {}
    work = [(node, False) for node in nodes]
    while work:
        node, after_operands = work.pop()
        if after_operands:
            found[node] = None
        elif node not in found:
            work.append((node, True))
            work += [(arg, False) for arg in node.args]
    return list(found)


def is_splat(node: Node) -> bool:
    """Return whether a node is a constant of one value."""
    return node.op == "constant" and repeats(node.data, node.bytes)


def contiguous(node: Node, reduced: bool = False) -> bool:
    """
    Return whether element i of a node, in row-major order, needs only elements i of tensors.

    With `reduced` those may be reductions over leading axes: of elements i, n + i, 2n + i, ...
    """
    work, seen = [node], {node}
    while work:
        n = work.pop()
        if reduced and n.op == "reduce" and n.axes == tuple(range(len(n.axes))):
            if not contiguous(n.args[0]):
                return False
            continue
        if n.op == "broadcast":
            if not n.args[0].count.is_one and n.args[0].count != n.count:
                return False
            args = n.args if n.args[0].count == n.count else ()
        elif n.op in (*MAPS, "reshape"):
            args = n.args
        elif n.op == "input" or is_splat(n):
            args = ()
        else:
            return False
        for arg in args:
            if arg not in seen:
                seen.add(arg)
                work.append(arg)
    return True


def is_heavy(node: Node) -> bool:
    """Return whether an element of a node takes many instructions after its operands."""
    return node.op in ("unary", "binary") and node.kind not in CHEAP


def cuts(given: Sequence[Size], wanted: Sequence[Size]) -> list[tuple[int, int]]:
    """Return where the leading dimensions of two shapes hold as many elements, the ends last."""
    counts = {product(given[: i + 1]): i + 1 for i in reversed(range(len(given)))}
    found: list[tuple[int, int]] = []
    for j in range(len(wanted)):
        i = counts.get(product(wanted[: j + 1]))
        if i is not None and (not found or i > found[-1][0]):
            found.append((i, j + 1))
    if not found or found[-1] != (len(given), len(wanted)):
        found = [c for c in found if c[0] < len(given) and c[1] < len(wanted)]
        found.append((len(given), len(wanted)))
    return found
