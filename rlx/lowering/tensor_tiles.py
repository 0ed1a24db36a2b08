"""
Tiles of sixteen rows and sixteen columns, for what lies the other way in memory.

Where an output's rows are columns of what is read, a chunk of a row would be sixteen loads. A tile
reads sixteen chunks along the other axis and transposes them in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.lowering.emitter import Function
from rlx.lowering.target import PANEL
from rlx.lowering.tensor_lanes import lane_axes
from rlx.lowering.tensor_nodes import MAPS, Node, is_splat, reachable
from rlx.lowering.values import Value


def turned(outputs: Sequence[Node], last: int) -> tuple[int, set[Node]] | None:
    """
    Return an axis, and the nodes that are read along it instead of along `last`.

    None where that axis serves all, or where something is reduced or looked up.
    """
    nodes = reachable(*outputs)
    if any(n.op in ("reduce", "gather", "concat", "pad") for n in nodes):
        return None
    edges = {n for n in nodes if n.op not in MAPS and _reached_by_maps(n, outputs)}
    strided = {n for n in edges if not _contiguous(n, last)}
    for axis in range(last):
        found = {n for n in strided if _contiguous(n, axis)}
        if found and not outputs[0].dims[axis].is_one:
            return axis, found
    return None


def _reached_by_maps(node: Node, outputs: Sequence[Node]) -> bool:
    work, seen = list(outputs), set(outputs)
    while work:
        n = work.pop()
        if n is node:
            return True
        for arg in n.args if n.op in MAPS else ():
            if arg not in seen:
                seen.add(arg)
                work.append(arg)
    return False


def _contiguous(node: Node, axis: int) -> bool:
    """Return whether lanes along an axis read what lies side by side, or one element."""
    return all(
        k is None or k == len(n.dims) - 1
        for n, k in lane_axes(node, axis)
        if n.op in ("input", "constant") and not is_splat(n)
    )


def transpose(f: Function, rows: Sequence[Value]) -> list[Value]:
    """Return sixteen vectors of sixteen lanes, transposed: blocks of 8, 4, 2 and 1 change sides."""
    rows = list(rows)
    for block in (8, 4, 2, 1):
        low = [lane if not lane & block else lane - block + PANEL for lane in range(PANEL)]
        high = [lane + block if not lane & block else lane + PANEL for lane in range(PANEL)]
        for i in (i for i in range(PANEL) if not i & block):
            a, b = rows[i], rows[i + block]
            rows[i], rows[i + block] = f.shuffle(a, b, low), f.shuffle(a, b, high)
    return rows
