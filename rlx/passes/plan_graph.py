"""The memory plan of a contract graph: views, lifetimes, one arena. It needs no IR."""

from __future__ import annotations

from math import prod

from rlx.contract.graph import Graph, Node
from rlx.contract.opkind import OpKind
from rlx.contract.phase import LEAF_KINDS, derive_phases
from rlx.contract.plan import LirBufferPlan, LirBufferSlot, LirIoManifest, LirViewAlias
from rlx.contract.symbols import sym
from rlx.passes import arena


def plan_graph(graph: Graph, alignment: int = 64, effort: int = 0) -> LirBufferPlan:
    """
    Plan a graph: a slot for every node that is not a view, in the order of its nodes.

    Inputs, params and constants live for the whole run, outputs to its end, others to the last
    use of themselves or of a view of them. What has a dimension that is a symbol gets no slot:
    bind the graph first. The graph need not verify. Raises RlxError for a negative size.
    """
    views = find_views(graph)
    buffers = [
        arena.Buffer(node.id, lower, upper, node.nbytes)
        for node, (lower, upper) in _lifetimes(graph, views).items()
        if node.id not in views and node.shape.is_static
    ]
    placement = arena.plan(buffers, alignment, effort)
    return LirBufferPlan(
        arena_size=placement.peak,
        assignments={b.id: LirBufferSlot(placement.offsets[b.id], b.size) for b in buffers},
        schedule=[node.id for node in graph.nodes],
        view_aliases=views,
        phases=derive_phases(graph),
        io=LirIoManifest.collect(graph),
        alignment=alignment,
        dynamic_symbols=graph.dynamic_symbols(),
    )


def find_views(graph: Graph) -> dict[int, LirViewAlias]:
    """
    Return the nodes that lie inside another's buffer: reshapes, casts to the same type, axis-0
    narrows. A view of a view names the buffer at the root.
    """
    nodes: dict[int, Node] = {}
    views: dict[int, LirViewAlias] = {}
    for node in graph.nodes:
        operand = nodes.get(node.inputs[0]) if len(node.inputs) == 1 else None
        offset = _view_offset(node, operand) if operand is not None else None
        if operand is not None and offset is not None:
            base = views.get(operand.id, LirViewAlias(operand.id, 0))
            views[node.id] = LirViewAlias(base.root, base.byte_offset + offset)
        nodes[node.id] = node
    return views


def _view_offset(node: Node, operand: Node) -> int | None:
    """Return where in its operand's bytes a node lies, or None if it is no view."""
    offset = None
    if node.kind is OpKind.RESHAPE or (
        node.kind is OpKind.CAST and node.shape.dtype is operand.shape.dtype
    ):
        offset = 0
    elif node.kind is OpKind.NARROW and node.op.attributes.get("axis") == 0:
        start, inner = node.op.attributes.get("start"), operand.shape.dims[1:]
        if isinstance(start, int) and not any(isinstance(d, sym) for d in (start, *inner)):
            offset = start * prod(inner) * operand.shape.dtype.bytes
    if offset is None or offset < 0:
        return None
    # A view of a graph that doesn't verify may not fit: then it is a buffer of its own.
    static = node.shape.is_static and operand.shape.is_static
    return None if static and offset + node.nbytes > operand.nbytes else offset


def _lifetimes(graph: Graph, views: dict[int, LirViewAlias]) -> dict[Node, tuple[int, int]]:
    """Return the steps [lower, upper) in which each node's bytes are needed."""
    end = len(graph.nodes)
    last: dict[int, int] = {}
    for step, node in enumerate(graph.nodes):
        for id in (node.id, *node.inputs):
            root = views[id].root if id in views else id
            last[root] = step
    for id in graph.outputs:
        last[views[id].root if id in views else id] = end
    return {
        node: (0, end + 1) if node.kind in LEAF_KINDS else (step, last[node.id] + 1)
        for step, node in enumerate(graph.nodes)
        if node.id not in views
    }
