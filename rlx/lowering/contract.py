"""
What the two contraction generators share: groups of weights, their split over threads, stores.

A contraction multiplies rows of f32 activations by packed weights and hands panels of 16 outputs
to its caller's epilogue. The weights of a group are multiplied together, so that an epilogue that
needs the same outputs of several of them (gate and up) has both; groups follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.errors import RlxError
from rlx.lowering.emitter import Function
from rlx.lowering.formats import BYTES, format_named
from rlx.lowering.target import PANEL
from rlx.lowering.values import Index, Value, i64

SPLIT_ROWS = 64
"""Rows for each thread from which on threads share rows and not panels, where they may."""


@dataclass(frozen=True)
class Group:
    """Packed weights [n, k] that are multiplied together, by their formats."""

    formats: tuple[str, ...]
    n: int

    @property
    def panels(self) -> int:
        return -(-self.n // PANEL)


def check(k: int, groups: Sequence[Group], weights: Sequence[Sequence[Value]]) -> None:
    """Raise RlxError unless k suits every format and there is a pointer for each weight."""
    for group in groups:
        for name in group.formats:
            if name != BYTES:
                format_named(name, k)
    wanted, given = [len(g.formats) for g in groups], [len(w) for w in weights]
    if wanted != given:
        raise RlxError(f"the groups have {wanted} weights, and {given} pointers were given")


def shares(
    f: Function, counts: Sequence[int], costs: Sequence[int], tid: Value, nth: Value
) -> list[tuple[Value, Value]]:
    """
    Split sequences of `counts` items, each of the given cost, over threads in one piece a thread.

    Returns this thread's (first, last) in each. An item belongs to the thread in whose share of
    the total cost it starts.
    """
    total = sum(n * cost for n, cost in zip(counts, costs, strict=True))
    bounds = [f.udiv(f.mul(end, total), nth) for end in (tid, f.add(tid, 1))]
    result: list[tuple[Value, Value]] = []
    base = 0
    for n, cost in zip(counts, costs, strict=True):
        first, last = (
            f.umin(f.udiv(f.add(f.sub(f.umax(b, base), base), cost - 1), cost), n) for b in bounds
        )
        result.append((first, last))
        base += n * cost
    return result


def store_panel(f: Function, base: Value, n: int, panel: Index, value: Value) -> None:
    """
    Store a panel's 16 outputs, f32 or bf16, into a row of n at `base`.

    Lanes from n on are not written.
    """
    panel = i64(panel) if isinstance(panel, int) else panel
    size = 4 if value.element == "float" else 2
    pointer = f.at(base, panel, size * PANEL)
    if n % PANEL == 0:
        f.store(value, pointer, align=size)
        return
    left = f.cast("trunc", f.sub(n, f.mul(panel, PANEL)), "i32")
    lanes = f.vector("i32", range(PANEL))
    f.store_masked(value, pointer, f.icmp("slt", lanes, f.splat(left, PANEL)), align=size)
