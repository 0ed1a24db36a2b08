"""Which values of a row are computed once and kept, because several stages of the row use them."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects.builtin import f32, f64

from rlx.lowering.tensor_nodes import MAPS, Node, is_heavy, reachable


def kept(outputs: Iterable[Node]) -> set[Node]:
    """
    Return the maps whose rows are worth a buffer, when outputs are written row by row.

    A stage is what one loop over a row computes: a reduction over the last axis, or the outputs. A
    map of many instructions that two stages use is kept by the first: of a chain of them, the last.
    """
    nodes = reachable(*outputs)
    roots = [*outputs, *(n.args[0] for n in nodes if over_rows(n))]
    stages = [stage_of(root) for root in dict.fromkeys(roots)]
    several = {n for n in nodes if sum(n in s for s in stages) > 1}
    # What every stage reaches by way of another value that is kept needs no buffer itself.
    direct = {n for s in stages for n, users in s.items() if n in several and not users <= several}
    return {n for n in direct if n.element in (f32, f64) and _costly(n, direct)}


def over_rows(node: Node) -> bool:
    """Return whether a node is a reduction over the last axis alone."""
    return node.op == "reduce" and node.axes == (len(node.args[0].dims) - 1,)


def stage_of(root: Node) -> dict[Node, set[Node | None]]:
    """Return the maps that a loop over a row computes, each with its users (None: the loop)."""
    users: dict[Node, set[Node | None]] = {}
    work: list[tuple[Node, Node | None]] = [(root, None)]
    while work:
        node, user = work.pop()
        if node.op in MAPS:
            if node not in users:
                work += [(arg, node) for arg in node.args]
            users.setdefault(node, set()).add(user)
    return users


def _costly(node: Node, kept_: set[Node]) -> bool:
    """Return whether a map takes many instructions, with the maps before it that aren't kept."""
    work, seen = [node], {node}
    while work:
        n = work.pop()
        if is_heavy(n):
            return True
        for arg in n.args:
            if arg.op in MAPS and arg not in kept_ and arg not in seen:
                seen.add(arg)
                work.append(arg)
    return False
