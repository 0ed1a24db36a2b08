"""
Graphs of the contract's operations: what its rules for phases, plans and fusion speak about.

A node is known by its id; every node declares its shape. Building never fails for what is wrong
with a graph: `verify` says it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from rlx.contract import infer
from rlx.contract.opkind import OpKind
from rlx.contract.shape import Shape, read_dim, spell_dim
from rlx.contract.symbols import sym

NodeId: TypeAlias = int
"""A node's number in its graph; the builder counts from 0."""

Value: TypeAlias = "bool | int | float | str | bytes | tuple[Value, ...] | None"
"""What an attribute may be; an int may be a `sym`."""

ShapeLike: TypeAlias = Shape | Sequence[int]
"""A shape, or the dimensions of one of f32."""


def as_shape(shape: ShapeLike) -> Shape:
    return shape if isinstance(shape, Shape) else Shape(shape)


@dataclass(frozen=True, init=False, eq=False)
class Op:
    """What a node computes: a kind and its attributes, as `Op(OpKind.TOP_K, k=2)`."""

    kind: OpKind
    attributes: Mapping[str, Value]

    def __init__(self, kind: OpKind, /, **attributes: Value | list[int]) -> None:
        object.__setattr__(self, "kind", kind)
        tuples = {n: tuple(v) if isinstance(v, list) else v for n, v in attributes.items()}
        object.__setattr__(self, "attributes", tuples)

    @property
    def text(self) -> str:
        """Return the kind and every attribute; two operations are equal if their texts are."""
        written = {name: spell_value(value) for name, value in self.attributes.items()}
        return f"{self.kind} {json.dumps(written, sort_keys=True)}" if written else str(self.kind)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


@dataclass(frozen=True)
class Node:
    """One operation with its operands' ids; `name` is that of an input or a parameter."""

    id: NodeId
    op: Op
    inputs: tuple[NodeId, ...]
    shape: Shape
    name: str = ""

    @property
    def kind(self) -> OpKind:
        return self.op.kind

    @property
    def nbytes(self) -> int:
        """Return the result's size in bytes, 0 while a dimension is a symbol."""
        return self.shape.size_bytes() or 0


class Graph:
    """Nodes in the order they run and the ids of the results, built node by node."""

    def __init__(
        self, name: str, nodes: Iterable[Node] = (), outputs: Iterable[NodeId] = ()
    ) -> None:
        self.name = name
        self.nodes: list[Node] = list(nodes)
        self.outputs: list[NodeId] = list(outputs)

    def set_outputs(self, outputs: Iterable[NodeId]) -> None:
        """Say which nodes are the results, in order."""
        self.outputs = list(outputs)

    def node(self, id: NodeId) -> Node:
        """Return a node. Raises KeyError if there is none."""
        found = next((n for n in self.nodes if n.id == id), None)
        if found is None:
            raise KeyError(id)
        return found

    def add_node(
        self, op: Op, inputs: Iterable[NodeId], shape: ShapeLike, name: str = ""
    ) -> NodeId:
        """Append any operation; return its id."""
        id = len(self.nodes)
        self.nodes.append(Node(id, op, tuple(inputs), as_shape(shape), name))
        return id

    def input(self, name: str, shape: ShapeLike) -> NodeId:
        """Add a tensor that the caller gives at every run."""
        return self.add_node(Op(OpKind.INPUT), (), shape, name)

    def param(self, name: str, shape: ShapeLike) -> NodeId:
        """Add a tensor that is set once."""
        return self.add_node(Op(OpKind.PARAM), (), shape, name)

    def constant(self, data: bytes, shape: ShapeLike) -> NodeId:
        """Add a tensor of known bytes, row-major and little-endian."""
        return self.add_node(Op(OpKind.CONSTANT, data=bytes(data)), (), shape)

    def activation(self, function: str, x: NodeId, shape: ShapeLike) -> NodeId:
        """Apply one of `infer.ACTIVATIONS` to each element."""
        return self.add_node(Op(OpKind.ACTIVATION, function=function), (x,), shape)

    def binary(self, function: str, a: NodeId, b: NodeId, shape: ShapeLike) -> NodeId:
        """Combine elements by one of `infer.BINARIES`; operands broadcast."""
        return self.add_node(Op(OpKind.BINARY, function=function), (a, b), shape)

    def add(self, a: NodeId, b: NodeId, shape: ShapeLike) -> NodeId:
        return self.binary("add", a, b, shape)

    def matmul(self, a: NodeId, b: NodeId, shape: ShapeLike) -> NodeId:
        """`[..., m, k] x [..., k, n] -> [..., m, n]`."""
        return self.add_node(Op(OpKind.MATMUL), (a, b), shape)

    def cast(self, x: NodeId, shape: ShapeLike) -> NodeId:
        """Convert elements to the type of `shape`."""
        return self.add_node(Op(OpKind.CAST), (x,), shape)

    def reshape(self, x: NodeId, shape: ShapeLike) -> NodeId:
        return self.add_node(Op(OpKind.RESHAPE), (x,), shape)

    def transpose(self, x: NodeId, order: Sequence[int], shape: ShapeLike) -> NodeId:
        """Dimension i of the result is dimension `order[i]` of `x`."""
        return self.add_node(Op(OpKind.TRANSPOSE, order=tuple(order)), (x,), shape)

    def narrow(self, x: NodeId, axis: int, start: int, length: int, shape: ShapeLike) -> NodeId:
        """Take `length` elements (or a `sym` of them) from `start` on `axis`."""
        op = Op(OpKind.NARROW, axis=axis, start=start, length=length)
        return self.add_node(op, (x,), shape)

    def concat(self, inputs: Sequence[NodeId], axis: int, shape: ShapeLike) -> NodeId:
        return self.add_node(Op(OpKind.CONCAT, axis=axis), inputs, shape)

    def reduce(
        self, function: str, x: NodeId, axes: Sequence[int], keep_dims: bool, shape: ShapeLike
    ) -> NodeId:
        """Reduce `axes` by one of `infer.REDUCTIONS`."""
        op = Op(OpKind.REDUCE, function=function, axes=tuple(axes), keep_dims=keep_dims)
        return self.add_node(op, (x,), shape)

    def softmax(self, x: NodeId, axis: int, shape: ShapeLike) -> NodeId:
        return self.add_node(Op(OpKind.SOFTMAX, axis=axis), (x,), shape)

    def rms_norm(
        self, x: NodeId, gamma: NodeId, beta: NodeId, eps: float, shape: ShapeLike
    ) -> NodeId:
        return self.add_node(Op(OpKind.RMS_NORM, eps=eps), (x, gamma, beta), shape)

    def layer_norm(
        self, x: NodeId, gamma: NodeId, beta: NodeId, eps: float, shape: ShapeLike
    ) -> NodeId:
        return self.add_node(Op(OpKind.LAYER_NORM, eps=eps), (x, gamma, beta), shape)

    def attention(
        self,
        q: NodeId,
        k: NodeId,
        v: NodeId,
        heads: int,
        head_dim: int,
        mask: str,
        shape: ShapeLike,
        mask_input: NodeId | None = None,
    ) -> NodeId:
        """
        Attend; `mask` is `none`, `causal`, `custom` or `bias`, the last two with `mask_input`.

        The result has the shape of `q`.
        """
        operands = (q, k, v) if mask_input is None else (q, k, v, mask_input)
        op = Op(OpKind.ATTENTION, heads=heads, head_dim=head_dim, mask=mask)
        return self.add_node(op, operands, shape)

    def topk(self, x: NodeId, k: int, shape: ShapeLike) -> NodeId:
        """Return the indices of the `k` largest of each row, as f32."""
        return self.add_node(Op(OpKind.TOP_K, k=k), (x,), shape)

    def sample(
        self,
        logits: NodeId,
        top_k: int,
        top_p: float,
        temperature: float,
        seed: int,
        shape: ShapeLike,
    ) -> NodeId:
        """Draw an id for each row, as f32; `top_k` 0 and `top_p` 1 are off, `seed` 0 counts up."""
        op = Op(OpKind.SAMPLE, top_k=top_k, top_p=top_p, temperature=temperature, seed=seed)
        return self.add_node(op, (logits,), shape)

    def verify(self) -> list[str]:
        """Return what is wrong, in words: ids, counts and shapes of operands; outputs."""
        return [*infer.verify(self), *infer.verify_shapes(self)]

    def dynamic_symbols(self) -> list[int]:
        """Return the symbols in shapes, sorted, each once."""
        return sorted({s for node in self.nodes for s in node.shape.dynamic_symbols})

    def has_dynamic_dims(self) -> bool:
        return not all(node.shape.is_static for node in self.nodes)

    def copy(self) -> Graph:
        return Graph(self.name, self.nodes, self.outputs)

    def to_json(self) -> str:
        """Return the whole graph as a JSON object; `from_json` gives an equal graph."""
        nodes = [
            {
                "id": node.id,
                "op": node.kind.value,
                "attributes": {n: spell_value(v) for n, v in node.op.attributes.items()},
                "inputs": node.inputs,
                "dims": [spell_dim(d) for d in node.shape.dims],
                "dtype": node.shape.dtype.value,
                "name": node.name,
            }
            for node in self.nodes
        ]
        return json.dumps({"name": self.name, "nodes": nodes, "outputs": self.outputs})

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """Read what `to_json` wrote; KeyError or ValueError on anything else."""
        data: dict[str, Any] = json.loads(text)
        nodes = (
            Node(
                node["id"],
                Op(OpKind(node["op"]), **{n: read_value(v) for n, v in node["attributes"].items()}),
                tuple(node["inputs"]),
                Shape(map(read_dim, node["dims"]), node["dtype"]),
                node["name"],
            )
            for node in data["nodes"]
        )
        return cls(data["name"], nodes, data["outputs"])

    def __len__(self) -> int:
        return len(self.nodes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and (self.name, self.nodes, self.outputs) == (
            other.name,
            other.nodes,
            other.outputs,
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # a graph can change

    def __str__(self) -> str:
        lines = [f"graph {self.name}"]
        for node in self.nodes:
            name = f' "{node.name}"' if node.name else ""
            inputs = ", ".join(f"%{i}" for i in node.inputs)
            lines.append(f"  %{node.id} = {node.op.text}{name}({inputs}) : {node.shape}")
        return "\n".join([*lines, f"  outputs {', '.join(f'%{o}' for o in self.outputs)}"])

    def with_nodes(self, nodes: Iterable[Node]) -> Graph:
        """Return a graph of the same name and outputs."""
        return Graph(self.name, nodes, self.outputs)


def spell_value(value: Value) -> object:
    """Return an attribute for JSON; what JSON lacks is an object of one entry."""
    if isinstance(value, sym):
        return {"sym": int(value)}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, tuple):
        return [spell_value(v) for v in value]
    return value


def read_value(spelled: object) -> Value:
    """Read what `spell_value` gave. Raises KeyError or ValueError on anything else."""
    if isinstance(spelled, list):
        return tuple(read_value(v) for v in cast(list[object], spelled))
    if isinstance(spelled, dict):
        entry = cast(dict[str, Any], spelled)
        return sym(entry["sym"]) if "sym" in entry else bytes.fromhex(entry["bytes"])
    return cast(Value, spelled)
