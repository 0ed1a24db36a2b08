"""
A trace: a plain list of the operations that a Python function does to arrays, with its dimensions.

Operations are the tensor primitives of MIR, by name and with attributes of plain values. The text
of a trace is the key of its compiled program; `rlx.jit.build` makes HIR of it on a miss.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from linecache import getline
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlx.errors import RlxError
from rlx.jit.dims import Dim, Dims

Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[Dim, ...]
Type: TypeAlias = tuple[str, Shape]
"""The name of a numpy dtype, and dimensions."""

DTYPES = tuple(
    np.dtype(name)
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint32",
        "float16", "float32", "float64",
    )
)  # fmt: skip
"""Elements of the arrays that a traced function takes and makes."""
LARGEST_CONSTANT = 64
"""Bytes of the largest array that is written into a program; a larger one is an input of it."""

_HERE = str(Path(__file__).parent)
_NUMPY = str(Path(np.__file__).parent)


class Node(NamedTuple):
    """One operation: operands are numbers of values, results are numbered on from `first`."""

    op: str
    attributes: tuple[Any, ...]
    operands: tuple[int, ...]
    first: int
    types: tuple[Type, ...]


@dataclass(eq=False)
class Block:
    """A straight run of operations with arguments and what it yields: a function, or a region."""

    arguments: list[int] = field(default_factory=list[int])
    nodes: list[Node] = field(default_factory=list[Node])
    results: list[int] = field(default_factory=list[int])
    known: dict[Any, int] = field(default_factory=dict[Any, int])
    """Results by what makes them, so that nothing is done twice."""


class Trace:
    """What a function does to its arguments, while it is written down."""

    def __init__(self, name: str):
        self.name = name
        self.dims = Dims()
        self.main = Block()
        self.blocks = [self.main]
        """The block that is written, last, and those around it."""
        self.types: list[Type] = []
        self.captured: list[Array] = []
        """Arrays that the function uses and is not given: the last inputs."""
        self.sizes: list[str] = []
        """Dimensions whose sizes are values: inputs of rank 0 after the arguments."""
        self.known: dict[int, Array] = {}
        """Values of which the function gave the elements: constants and captured arrays."""
        self._captures: dict[int, int] = {}
        self._size_values: dict[str, int] = {}

    # Values

    def value(self, dtype: np.dtype[Any], shape: Shape) -> int:
        """Return a new value that no operation makes."""
        self.types.append((dtype.name, shape))
        return len(self.types) - 1

    def add(
        self,
        op: str,
        attributes: tuple[Any, ...],
        operands: Sequence[int],
        *types: tuple[np.dtype[Any], Shape],
    ) -> int:
        """Add an operation; return the number of its first result."""
        shapes = tuple((t.name, tuple(map(self.dims.find, dims))) for t, dims in types)
        key = (op, attributes, tuple(operands), shapes)
        if op not in ("if", "while"):
            for block in reversed(self.blocks):
                if key in block.known:
                    return block.known[key]
        first = len(self.types)
        self.types += shapes
        self.blocks[-1].nodes.append(Node(op, attributes, tuple(operands), first, shapes))
        self.blocks[-1].known[key] = first
        return first

    def capture(self, array: Array) -> int:
        """Return the value of an array that the function uses and is not given."""
        found = self._captures.get(id(array))
        if found is None:
            found = self._captures[id(array)] = self.value(array.dtype, array.shape)
            self.captured.append(array)
            self.known[found] = array
        return found

    def size_value(self, dim: str) -> int:
        """Return the value, an int64 of rank 0, of a dimension's size."""
        found = self._size_values.get(dim)
        if found is None:
            found = self._size_values[dim] = self.value(np.dtype(np.int64), ())
            self.sizes.append(dim)
        return found

    def inputs(self) -> list[int]:
        """Return the values of all inputs: arguments, sizes, captured arrays."""
        return [*self.main.arguments, *self._size_values.values(), *self._captures.values()]

    @contextmanager
    def region(self, arguments: Iterable[Type]) -> Generator[Block]:
        """Write a region: what is added goes into the block that this gives."""
        block = Block([self.value(np.dtype(name), shape) for name, shape in arguments])
        with self.within(block):
            yield block

    @contextmanager
    def within(self, block: Block) -> Generator[None]:
        """Go on writing in a block."""
        self.blocks.append(block)
        try:
            yield
        finally:
            self.blocks.pop()

    def visible(self, block: Block) -> bool:
        """Return whether values of a block may be used where the trace is written now."""
        return any(b is block for b in self.blocks)

    # The finished trace

    def type_of(self, value: int) -> Type:
        """Return a value's type with what stands for its dimensions."""
        dtype, shape = self.types[value]
        return dtype, tuple(map(self.dims.find, shape))

    def text(self) -> str:
        """Return all that decides the program, for the key of its compiled form."""
        table = {name: self.dims.definition(name) for name in self.names()}
        inputs = [(v, self.type_of(v)) for v in self.inputs()]
        return repr((table, inputs, self._spell(self.main)))

    def names(self) -> list[str]:
        """Return the names of dimensions that types have, operands before what derives of them."""
        shapes = [self.type_of(v)[1] for v in self._values(self.main)]
        return self.dims.order([*(d for shape in shapes for d in shape), *self.starts()])

    def starts(self) -> list[Dim]:
        """Return where parts of named dimensions start."""
        return [self.dims.find(d) for node in self._nodes(self.main) for d in node_dims(node)]

    def _values(self, block: Block) -> Iterator[int]:
        yield from (*self.inputs(), *block.arguments)
        for node in self._nodes(block):
            yield from range(node.first, node.first + len(node.types))
            for inner in regions(node):
                yield from inner.arguments

    def _nodes(self, block: Block) -> Iterator[Node]:
        for node in block.nodes:
            yield node
            for inner in regions(node):
                yield from self._nodes(inner)

    def _spell(self, block: Block) -> object:
        return block.arguments, [self._spell_node(n) for n in block.nodes], block.results

    def _spell_node(self, node: Node) -> object:
        attributes = [self._spell(a) if isinstance(a, Block) else a for a in self.attributes(node)]
        types = [self.type_of(node.first + i) for i in range(len(node.types))]
        return node.op, attributes, node.operands, types

    def attributes(self, node: Node) -> tuple[Any, ...]:
        """Return a node's attributes with what stands for the dimensions among them."""
        if node.op != "narrow":
            return node.attributes
        axis, start, step = node.attributes
        return axis, self.dims.find(start), step


def regions(node: Node) -> list[Block]:
    return [a for a in node.attributes if isinstance(a, Block)]


def node_dims(node: Node) -> list[Dim]:
    """Return the dimensions among a node's attributes: where a part starts."""
    return [node.attributes[1]] if node.op == "narrow" else []


# The trace that is being written


class _Active(threading.local):
    def __init__(self) -> None:
        self.stack: list[Trace] = []


_active = _Active()


def tracing() -> bool:
    """Return whether this thread is in a traced function."""
    return bool(_active.stack)


def current(what: str) -> Trace:
    """Return the trace that this thread writes; raises RlxError where it writes none."""
    if not _active.stack:
        raise RlxError(
            f"{what}: expected a call in a function that rlx.jit traces, got one outside: "
            "decorate the function with @rlx.jit, or use numpy"
        )
    return _active.stack[-1]


@contextmanager
def writing(trace: Trace) -> Generator[None]:
    """Let this thread's operations on tracers go into a trace."""
    _active.stack.append(trace)
    try:
        yield
    finally:
        _active.stack.pop()


def user_line() -> str:
    """Return the line of the user's code that is running, as `file:line: source`."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]: the only way to the caller
    while frame is not None and _internal(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "an unknown line"
    file, line = frame.f_code.co_filename, frame.f_lineno
    source = getline(file, line).strip()
    return f"{file}:{line}" + (f": {source}" if source else "")


def _internal(file: str) -> bool:
    return file.startswith((_HERE, _NUMPY, "<__array_function__")) or file == _INTERFACE


_INTERFACE = str(Path(__file__).parent.parent / "numpy.py")


def fail(message: str) -> RlxError:
    """Return an error about the user's line that is running."""
    return RlxError(f"{message}\n  at {user_line()}")
