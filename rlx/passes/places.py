"""
Places for buffers whose sizes have no bound: which of them share one.

A plan with such buffers is made with virtual offsets. Below `PLACE` bytes is what has a bound, at
its true offset; place k begins at (k + 1) * PLACE. When sizes are bound, each place is as large as
the largest buffer there, and places lie one after the other. Buffers that overlap at virtual
offsets are those that share a place, so checks and barriers hold for every size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlx.dialects.common import PLACE, Monomial, monomial
from rlx.passes.buffers import Buffer


@dataclass(eq=False)
class _Place:
    """When the buffer that is in a place dies, and which sizes the place has had."""

    free_from: int
    sizes: set[Monomial] = field(default_factory=set[Monomial])


def place(buffers: Sequence[tuple[int, Buffer]], end: int) -> tuple[dict[int, int], int]:
    """
    Return a virtual offset for each numbered buffer, and the end of the last place.

    A buffer goes where one of its size was, else where a larger one was, else to a new place.
    """
    places: list[_Place] = []
    offsets: dict[int, int] = {}
    for i, buffer in sorted(buffers, key=lambda pair: pair[1].first):
        size = monomial(buffer.type)
        free = [p for p in places if p.free_from <= buffer.first]
        chosen = next((p for p in free if size in p.sizes), None)
        chosen = chosen or next((p for p in free if any(_within(size, s) for s in p.sizes)), None)
        if chosen is None:
            chosen = _Place(0)
            places.append(chosen)
        chosen.sizes.add(size)
        chosen.free_from = end + 1 if buffer.whole_run else buffer.last + 1
        offsets[i] = (places.index(chosen) + 1) * PLACE
    return offsets, (len(places) + 1) * PLACE if places else 0


def _within(a: Monomial, b: Monomial) -> bool:
    """Return whether a size is at most another, whatever the dimensions from 1 on."""
    return a[0] <= b[0] and not Counter(a[1]) - Counter(b[1])
