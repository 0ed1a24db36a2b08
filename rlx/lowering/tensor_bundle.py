"""
Several rows that are reduced at a time.

A row that comes from memory is fetched by what the CPU expects of one stream of addresses. Several
rows are several streams, so that more lines are on their way. Each row's result is that of
`Program.reduce` alone, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import f32

from rlx.lowering.target import PANEL, Target
from rlx.lowering.tensor_access import At, Axis
from rlx.lowering.tensor_elements import Reduction
from rlx.lowering.tensor_nodes import MAPS, Node, contiguous, is_heavy, product, reachable
from rlx.lowering.tensor_reduce import ACCUMULATORS, Program, tail_mask
from rlx.lowering.values import Value, i64

BUNDLE = 4
"""Rows at a time: with four accumulators each, half of the registers."""
_MAPS = 8
"""The most maps that leave the other registers enough room."""


def bundle_of(nodes: Sequence[Node], target: Target) -> int:
    """Return how many rows, or pieces of one, are worth their registers where outputs are made."""
    found = reachable(*nodes)
    heavy = any(map(is_heavy, found)) or sum(n.op in MAPS for n in found) > _MAPS
    floats = all(n.args[0].element == f32 for n in found if n.op == "reduce")
    return BUNDLE if target.avx512 and floats and not heavy else 1


def bundled(nodes: Sequence[Node], target: Target) -> list[Node]:
    """
    Return the reductions of rows that maps alone lead to, where several rows are worth it.

    `nodes` are outputs of one element for each row. None where a row is reduced more than once, as
    the CPU has it in a cache then.
    """
    if bundle_of(nodes, target) == 1:
        return []
    direct: dict[Node, None] = {}
    work = list(nodes)
    for n in work:
        if n.op in MAPS:
            work += [arg for arg in n.args if arg not in work]
        elif n.op == "reduce" and _over_last(n):
            direct[n] = None
    nested = any(below.op == "reduce" for n in direct for below in reachable(n.args[0]))
    return [] if nested else list(direct)


def _over_last(node: Node) -> bool:
    """Return whether a reduction is of rows that lie in one piece."""
    rank, count = len(node.args[0].dims), len(node.axes)
    last = node.axes == tuple(range(rank - count, rank))
    return last and (count == 1 or contiguous(node.args[0]))


def reduce_rows(program: Program, node: Node, ats: Sequence[At]) -> None:
    """Reduce rows at several places, a chunk of each in turn, for who pulls them there."""
    p, f, rows = program.places, program.f, len(ats)
    source = node.args[0]
    reduction = Reduction(f, node.kind, node.element)
    dims = [source.dims[a] for a in node.axes]
    n = product(dims)
    size = program.access.size(n)

    def step(c: Value, mask: Value | None, old: Sequence[Value]) -> list[Value]:
        parts = program.access.split(Axis(c, 1), dims)
        values = program.pull(source, [At((*at.axes, *parts), mask) for at in ats])
        new = [reduction.combine(a, p.splat(v)) for a, v in zip(old, values, strict=True)]
        return (
            new if mask is None else [f.select(mask, a, b) for a, b in zip(new, old, strict=True)]
        )

    def unrolled(c: Value, old: list[Value]) -> list[Value]:
        steps = [step(p.add(c, i * PANEL), None, old[i * rows :][:rows]) for i in range(count)]
        return [v for new in steps for v in new]

    chunks = ACCUMULATORS if n.static is None else -(-n.static // PANEL)
    count = max(1, min(ACCUMULATORS, chunks))
    main = p.mul(p.div(size, i64(PANEL * count)), PANEL * count)
    flat = [reduction.neutral(PANEL)] * (count * rows)
    flat = p.loop(0, main, PANEL * count, flat, unrolled)
    accs = [flat[i * rows :][:rows] for i in range(count)]
    for i, old in enumerate(accs):
        c = p.add(main, i * PANEL)
        if n.static is None:

            def more(c: Value = c, old: list[Value] = old) -> list[Value]:
                return step(c, p.here([program.live(p.sub(size, c))])[0], old)

            here = f.icmp("slt", c, size)
            accs[i] = p.branch(here, more, lambda old=old: old)
        elif (c.constant or 0) < n.static:
            accs[i] = step(c, tail_mask(f, n.static - (c.constant or 0)), old)
    for at, row in zip(ats, zip(*accs, strict=True), strict=True):
        value = reduction.finish(reduction.horizontal(list(row)), size)
        p.remember(("reduce", node, at.axes), p.here([value]))
