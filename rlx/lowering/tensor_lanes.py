"""
Along which axis of each node lanes lie, when outputs are written with lanes along their last.

It says which reductions are of rows and which of columns, and so how the loops are nested.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.lowering.tensor_nodes import MAPS, Node, contiguous, cuts, reachable

SHORT, SHORT_WINDOW = 4, 16
"""Up to how many elements are reduced one after the other, with lanes along what is kept."""


def lane_dims(nodes: Sequence[Node]) -> int:
    """
    Return how many of the last dimensions of outputs of one shape are one row with lanes along it.

    All of them where every element is made of elements of the same place, or of a column. 0 where
    lanes would lie across the rows of a reduction over a last axis: elements are then one at a
    time, with lanes along what is reduced.
    """
    dims = nodes[0].dims
    long = [i for i, d in enumerate(dims) if not d.is_one]
    if not long or any("columns" in lane_reductions(n, long[-1]) for n in nodes):
        return 0
    flat = all(contiguous(n, reduced=True) for n in nodes)
    return len(dims) if flat else len(dims) - long[-1]


def lane_reductions(node: Node, axis: int | None) -> set[str]:
    """
    Return how reductions are read when a node is, with lanes along an axis: `columns`, `lanes`.

    A reduction of rows (its result is the same in all lanes) isn't named.
    """
    return {
        "columns" if len(n.args[0].dims) - 1 in n.axes and not _is_short(n) else "lanes"
        for n, k in lane_axes(node, axis)
        if n.op == "reduce" and k is not None
    }


def column_reductions(nodes: Sequence[Node], outer: int) -> list[Node]:
    """
    Return the reductions down columns that maps alone lead to, if there are no others.

    `outer` is the axis of the outputs along which lanes lie.
    """
    found = {
        n for node in nodes for n, k in lane_axes(node, outer) if n.op == "reduce" and k is not None
    }
    direct: dict[Node, None] = {}
    work, seen = list(nodes), set(nodes)
    while work:
        n = work.pop()
        if n in found:
            direct[n] = None
        elif n.op in MAPS:
            work += [arg for arg in n.args if arg not in seen]
            seen.update(n.args)
    below = {n for d in direct for n in reachable(d.args[0])}
    return list(direct) if found <= set(direct) and not found & below else []


def _is_short(node: Node) -> bool:
    """Return whether the rows of a reduction are too short for lanes along them."""
    (source,) = node.args
    axis = len(source.dims) - 1
    size = source.dims[axis].static
    if size is None or size > SHORT_WINDOW:
        return False
    # What is kept lies a few elements apart, or side by side along the windows.
    near = size <= SHORT and axis - 1 not in node.axes
    return near or any(n.op == "window" and k == n.axis + 1 for n, k in lane_axes(source, axis))


def splits_lanes(node: Node, axis: int) -> bool:
    """Return whether an axis with lanes is taken apart, which is cheap at multiples of 16 alone."""
    return not contiguous(node) and any(
        n.op == "reshape" and k is not None and not contiguous(n) for n, k in lane_axes(node, axis)
    )


def repeated_dims(nodes: Sequence[Node], outer: int) -> list[int]:
    """
    Return which of the outer dimensions of outputs no reduction of columns depends on.

    Columns are then the outer loop, so that their reductions aren't computed again for every row.
    """
    columns = {
        n for node in nodes for n, k in lane_axes(node, outer) if n.op == "reduce" and k is not None
    }
    if not columns:
        return []
    return [
        axis
        for axis in range(outer)
        if not any(
            n in columns and k is not None for node in nodes for n, k in lane_axes(node, axis)
        )
    ]


def lane_axes(node: Node, axis: int | None) -> set[tuple[Node, int | None]]:
    """Return along which axis lanes lie in all that a node is made of, None for no axis."""
    seen: set[tuple[Node, int | None]] = set()
    work = [(node, axis)]
    while work:
        n, k = work.pop()
        if (n, k) not in seen:
            seen.add((n, k))
            work += [(arg, _lane_axis(n, i, k)) for i, arg in enumerate(n.args)]
    return seen


def _lane_axis(node: Node, operand: int, axis: int | None) -> int | None:
    """Return the axis of an operand along which lanes lie, None where all read the same."""
    arg = node.args[operand]
    if axis is None:
        return None
    match node.op:
        case "transpose":
            return node.axes[axis]
        case "broadcast":
            moved = axis - (len(node.dims) - len(arg.dims))
            return moved if moved >= 0 and not arg.dims[moved].is_one else None
        case "reduce":
            kept = [i for i in range(len(arg.dims)) if i not in node.axes]
            return kept[axis]
        case "gather":
            k, rank = node.axis, len(node.args[1].dims)
            if operand == 1:
                return axis - k if k <= axis < k + rank else None
            return axis if axis < k else k if axis < k + rank else axis - rank + 1
        case "reshape":
            return _reshaped_axis(node, axis)
        case "pad":
            return None if operand else axis
        case "window":
            return axis - (axis > node.axis)
        case _:
            return axis


def _reshaped_axis(node: Node, axis: int) -> int | None:
    wanted = node.args[0].dims
    j = 0
    for i2, j2 in cuts(node.dims, wanted):
        if axis < i2:
            long = [k for k in range(j, j2) if not wanted[k].is_one]
            return long[-1] if long and not node.dims[axis].is_one else None
        j = j2
    return None
