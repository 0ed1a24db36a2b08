"""
What is computed again and again when tensor primitives are one kernel, found without writing it.

A node is pulled at indices that loops make. Here an index is only the depth of the innermost loop
that it depends on, and `hoist` computes a value in that loop: so the loops around are how often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlx.lowering.tensor_lanes import lane_dims, repeated_dims
from rlx.lowering.tensor_nodes import (
    MAPS,
    Node,
    Size,
    contiguous,
    cuts,
    is_heavy,
    product,
    reachable,
)

REDUCED_TWICE = 2
"""How often an element of a reduction may be computed; what has rounding room in its size."""
HEAVY = 4
"""How often an element of a map of many instructions may be: the stages of a norm, and one more."""

MAX_CODE = 256
"""The most nodes that are written for one kernel, those of several branches counted for each."""
MAX_DEPTH = 700
"""The most Python calls within each other, of the thousand that there may be."""
_CALLS = {"reduce": 20, "concat": 18, "gather": 18, "pad": 24}
"""Calls within each other for a node; 4 for others."""

Depths = tuple[int, ...]
"""For each axis, the depth of the innermost loop that the index depends on; -1 for none."""


def too_large(outputs: Sequence[Node]) -> str | None:
    """Return why outputs are more than a kernel may hold, None where they aren't."""
    nodes = reachable(*outputs)
    depth: dict[Node, int] = {}
    for node in nodes:
        below = max((depth[arg] for arg in node.args), default=0)
        depth[node] = below + _CALLS.get(node.op, 4)
    if max(depth.values(), default=0) > MAX_DEPTH:
        return "too many operations after one another"
    if _code(nodes, outputs) > MAX_CODE:
        return "too many operations"
    return None


def _code(nodes: Sequence[Node], outputs: Sequence[Node]) -> int:
    """Return how many nodes are written, each in every branch that computes it; or too many."""
    branches: dict[Node, set[int]] = {node: set() for node in nodes}
    for output in outputs:
        branches[output].add(0)
    total = count = 0
    for node in reversed(nodes):
        total += len(branches[node])
        if total > MAX_CODE:
            break
        for arg in node.args:
            if node.op in ("concat", "pad"):
                # Each part is computed in a branch of its own; what is padded, also with a mask.
                times = 2 if node.op == "pad" else 1
                new = range(count + 1, count + 1 + times * len(branches[node]))
                branches[arg].update(new)
                count = new.stop - 1
            else:
                branches[arg] |= branches[node]
    return total


@dataclass
class Cost:
    """The nodes that are computed too often, while the loops of outputs are gone through."""

    excess: list[Node] = field(default_factory=list[Node])
    _known: dict[tuple[Node, Depths, tuple[Size, ...], int], int] = field(
        default_factory=dict[tuple[Node, Depths, tuple[Size, ...], int], int]
    )

    def outputs(self, nodes: Sequence[Node]) -> None:
        """Go through the loops that write outputs of one shape."""
        dims = nodes[0].dims
        lanes = lane_dims(nodes)
        outer = len(dims) - lanes
        inside = repeated_dims(nodes, outer) if lanes else []
        depths = [2 if i in inside else 0 for i in range(outer)] + [1] * lanes
        fixed = [d for d, depth in zip(dims, depths, strict=True) if not depth]
        loops = (product(fixed), product(dims[outer:]), product([dims[i] for i in inside]))
        for node in nodes:
            self._depth(node, tuple(depths), loops, -1)

    def _depth(self, node: Node, at: Depths, loops: tuple[Size, ...], floor: int) -> int:
        """Return the depth of the loop that computes a node at a place."""
        at = tuple(-1 if d.is_one else depth for d, depth in zip(node.dims, at, strict=True))
        key = (node, at, loops, floor)
        if key not in self._known:
            self._known[key] = self._found(node, at, loops, floor)
        return self._known[key]

    def _found(self, node: Node, at: Depths, loops: tuple[Size, ...], floor: int) -> int:
        deepest = max((floor, *at))
        match node.op:
            case "reduce":
                inner = loops[: deepest + 1]
                self._check(node, inner, REDUCED_TWICE)
                self._reduced(node, at, inner)
                return deepest
            case "concat":
                for part in node.args:
                    here = list(loops)
                    if at[node.axis] >= 0 and here[at[node.axis]] == node.dims[node.axis]:
                        here[at[node.axis]] = part.dims[node.axis]
                    self._depth(part, at, tuple(here), deepest)
                return deepest
            case "pad":
                source, fill = node.args
                self._depth(fill, (), loops, floor)
                here = list(loops)
                for depth, size, given in zip(at, source.dims, node.dims, strict=True):
                    if depth >= 0 and here[depth] == given:
                        here[depth] = size
                self._depth(source, at, tuple(here), deepest)
                return deepest
            case "gather":
                k, rank = node.axis, len(node.args[1].dims)
                ids = self._depth(node.args[1], at[k : k + rank], loops, floor)
                place = (*at[:k], ids, *at[k + rank :])
                return self._depth(node.args[0], place, loops, floor)
            case "constant" | "input" | "iota":
                return deepest
            case _:
                places = [_moved(node, arg, at) for arg in node.args]
                depth = max(
                    self._depth(arg, place, loops, floor)
                    for arg, place in zip(node.args, places, strict=True)
                )
                if node.op in MAPS and is_heavy(node):
                    self._check(node, loops[: depth + 1], HEAVY)
                return depth

    def _reduced(self, node: Node, at: Depths, loops: tuple[Size, ...]) -> None:
        """Go through the loops of a reduction."""
        source, axes = node.args[0], node.axes
        sizes = [source.dims[a] for a in axes]
        depths = dict(zip(axes, range(len(loops), len(loops) + len(axes)), strict=True))
        if contiguous(source):
            depths = dict.fromkeys(axes, len(loops))
            sizes = [product(sizes)]
        kept = iter(at)
        place = tuple(depths[i] if i in depths else next(kept) for i in range(len(source.dims)))
        self._depth(source, place, (*loops, *sizes), -1)

    def _check(self, node: Node, loops: Sequence[Size], times: int) -> None:
        done, needed = product(loops), node.count
        rest = list(needed.names)
        for name in done.names:
            if name not in rest:
                self.excess.append(node)
                return
            rest.remove(name)
        if not rest and done.number > times * needed.number:
            self.excess.append(node)


def _moved(node: Node, arg: Node, at: Depths) -> Depths:
    """Return the place in an operand of a map or a move of one operand."""
    match node.op:
        case "broadcast":
            return at[len(at) - len(arg.dims) :]
        case "window":
            k = node.axis
            return (*at[:k], max(at[k : k + 2]), *at[k + 2 :])
        case "transpose":
            axes = list(at)
            for i, axis in enumerate(node.axes):
                axes[axis] = at[i]
            return tuple(axes)
        case "reshape":
            axes = [-1] * len(arg.dims)
            i = j = 0
            for i2, j2 in cuts(node.dims, arg.dims):
                axes[j:j2] = [max((-1, *at[i:i2]))] * (j2 - j)
                i, j = i2, j2
            return tuple(axes)
        case _:
            return at
