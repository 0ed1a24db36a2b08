"""Sizes for the symbols of a graph: given, or inferred from its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from rlx.contract.graph import Graph, Node, Op, Value
from rlx.contract.opkind import OpKind
from rlx.contract.shape import Shape, bind_dim
from rlx.contract.symbols import DimBinding, sym
from rlx.errors import RlxError


def bind_graph(graph: Graph, binding: DimBinding) -> Graph:
    """
    Return a graph with a size for each bound symbol, in shapes and in attributes; ids stay.

    A symbol that is not bound but follows, because a reshape has as many elements as its operand,
    gets its size too. Raises RlxError where such a size would not be whole or differ.
    """
    sizes = DimBinding.from_pairs(binding)
    while True:
        bound = graph.with_nodes(_bind_node(node, sizes) for node in graph.nodes)
        found = _solve_reshape(bound)
        if found is None:
            return bound
        sizes.set(*found)


def _bind_node(node: Node, binding: DimBinding) -> Node:
    attributes = {n: _bind_value(v, binding) for n, v in node.op.attributes.items()}
    return replace(node, op=Op(node.kind, **attributes), shape=node.shape.bind(binding))


def _bind_value(value: Value, binding: DimBinding) -> Value:
    if isinstance(value, tuple):
        return tuple(_bind_value(v, binding) for v in value)
    return bind_dim(value, binding) if isinstance(value, sym) else value


def _solve_reshape(graph: Graph) -> tuple[int, int] | None:
    """Return a symbol and its size, if a reshape of a static operand has one symbol."""
    shapes = {node.id: node.shape for node in graph.nodes}
    for node in graph.nodes:
        if node.kind is not OpKind.RESHAPE or len(node.inputs) != 1:
            continue
        operand = shapes.get(node.inputs[0])
        elements = operand.num_elements() if operand is not None else None
        open_ = [d for d in node.shape.dims if isinstance(d, sym)]
        if elements is not None and len(open_) == 1:
            return open_[0], _size_of(f"reshape {node.id}", node.shape, elements)
    return None


def _size_of(what: str, shape: Shape, elements: int) -> int:
    """Return the size of a shape's one symbol, given the number of elements."""
    known = prod(d for d in shape.dims if not isinstance(d, sym))
    if known < 1 or elements % known:
        raise RlxError(f"{what}: {elements} elements do not fill {shape}: expected n * {known}")
    return elements // known


def infer_bindings_from_inputs(graph: Graph, elements: Mapping[str, int]) -> DimBinding:
    """
    Return the sizes of the symbols, given the number of elements of each input by its name.

    An input may have one symbol, once. Raises RlxError for an input that has more, is not given or
    is not of the graph, for a number that doesn't fill its shape, and where two inputs differ.
    """
    inputs = {node.name: node.shape for node in graph.nodes if node.kind is OpKind.INPUT}
    unknown = next((name for name in elements if name not in inputs), None)
    if unknown is not None:
        raise RlxError(f"no input '{unknown}': expected {', '.join(inputs) or 'none'}")
    binding = DimBinding()
    source: dict[int, str] = {}
    for name, shape in inputs.items():
        if name not in elements:
            raise RlxError(f"input '{name}' {shape}: expected its number of elements, got none")
        given = elements[name]
        symbols = [d for d in shape.dims if isinstance(d, sym)]
        if len(symbols) > 1:
            raise RlxError(f"input '{name}' {shape}: expected one symbol, got {len(symbols)}")
        if not symbols:
            if given != shape.num_elements():
                raise RlxError(f"input '{name}' {shape}: {given} elements do not fill it")
            continue
        symbol = symbols[0]
        size = _size_of(f"input '{name}'", shape, given)
        earlier = binding.get(symbol)
        if earlier is not None and earlier != size:
            raise RlxError(
                f"input '{name}' {shape}: its {given} elements give {symbol} = {size}, "
                f"input '{source[symbol]}' gave {earlier}"
            )
        binding.set(symbol, size)
        source[symbol] = name
    return binding
