"""A module as a graph for Graphviz: operations are nodes, bodies are clusters, values are edges."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.ir import Block, Operation, SSAValue

from rlx.dialects.common import spell


def to_dot(module: ModuleOp) -> str:
    """Return the graph of a module of any level."""
    graph = _Graph()
    graph.add_block(module.body.block, "  ")
    name = module.sym_name.data if module.sym_name is not None else "module"
    head = [f"digraph {_quote(name)} {{", "  node [shape=box];"]
    return "\n".join([*head, *graph.lines, *graph.edges, "}"]) + "\n"


class _Graph:
    """The lines of a graph while it is written; edges come last, so that they join no cluster."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.edges: list[str] = []
        self._of_value: dict[SSAValue, str] = {}
        self._count = 0

    def add_block(self, block: Block, indent: str) -> str:
        """Write a block's arguments and operations; return the node of the last one."""
        node = ""
        for argument in block.args:
            name = argument.name_hint or f"argument {argument.index}"
            node = self._add_node([name, spell(argument.type)], indent, "ellipse")
            self._of_value[argument] = node
        for op in block.ops:
            node = self._add_operation(op, indent)
        return node

    def _add_operation(self, op: Operation, indent: str) -> str:
        if not op.regions:
            node = self._add_node(_title(op), indent)
            self._add_edges(op, node)
            return node
        self._count += 1
        label = _quote(" ".join(_title(op)))
        self.lines += [f"{indent}subgraph cluster_{self._count} {{", f"{indent}  label={label};"]
        node = ""
        for region in op.regions:
            for block in region.blocks:
                node = self.add_block(block, f"{indent}  ")
        if op.results:
            # What the body yields are the results: its terminator stands for the operation.
            self._add_edges(op, node)
        self.lines.append(f"{indent}}}")
        return node

    def _add_node(self, text: list[str], indent: str, shape: str = "") -> str:
        self._count += 1
        node = f"n{self._count}"
        style = f", shape={shape}" if shape else ""
        self.lines.append(f"{indent}{node} [label={_quote(*text)}{style}];")
        return node

    def _add_edges(self, op: Operation, node: str) -> None:
        written = set(_written(op))
        for i, value in enumerate(op.operands):
            # A value that is not defined before has no node: an invalid module still prints.
            source = self._of_value.get(value)
            if source is not None:
                a, b = (node, source) if i in written else (source, node)
                self.edges.append(f"  {a} -> {b};")
        for result in op.results:
            self._of_value[result] = node


def _written(op: Operation) -> Iterator[int]:
    """Give the operands that an operation writes: a launch's `outs` and scratch."""
    if op.name == "lir.launch":
        from rlx.dialects.lir import LaunchOp

        assert isinstance(op, LaunchOp)
        yield from range(len(op.ins), len(op.operands))


def _title(op: Operation) -> list[str]:
    """Return the lines of an operation's node: its name, kind and symbols, then its results."""
    words = [op.name]
    for name, value in op.properties.items():
        data: object = getattr(value, "data", None)
        if isinstance(value, SymbolRefAttr):
            words.append(f"@{value.root_reference.data}")
        elif isinstance(data, Enum):
            words.append(str(data.value))
        elif name == "sym_name":
            words.append(f"@{data}")
        elif name == "io_name":
            words.append(f'"{data}"')
    return [" ".join(words), *(spell(r.type) for r in op.results)]


def _quote(*lines: str) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
