"""
Static memory planning: an offset in one arena for every buffer whose lifetime is known.

Buffers that live at the same time must not overlap in memory; the goal is a low peak. Every method
here places buffers one by one at a free offset and differs only in the order. Effort 0 takes the
best of several fixed orders; efforts 1 and 2 go on from there with a randomised search over orders,
seeded and budgeted by counted work, so that a plan is the same on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from heapq import heappop, heappush
from math import gcd
from operator import (
    itemgetter,
    or_,  # pyright: ignore[reportUnknownVariableType]  # its stub has no types
)
from typing import cast

from rlx.errors import RlxError

# Work is counted in neighbours looked at while placing: roughly 0.1 us each.
_STATIC_WORK = 2_000_000
# Bits of the search's masks: 4096 keep an `or` near 0.1 us and rounding near 1 in 4000.
_MAX_UNITS = 4096
_SEARCH_WORK = {1: 25_000_000, 2: 250_000_000}

# A placed buffer is one integer, offset << _END_BITS | end: they sort fast, and 0 means unplaced.
_END_BITS = 48
_END_MASK = (1 << _END_BITS) - 1

# The operator itself, typed: half the cost of calling `int.__or__`.
_or = cast(Callable[[int, int], int], or_)


@dataclass(frozen=True, slots=True)
class Buffer:
    """
    A buffer of `size` bytes that lives in the half-open interval [lower, upper) of steps.

    `fixed_offset` is the byte offset of a buffer whose place is already decided.
    """

    id: int
    lower: int
    upper: int
    size: int
    fixed_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """
    A plan: byte offset of each buffer id, and the size of arena that it needs.

    `lower_bound` is the largest sum of (aligned) sizes that live at one time: no plan is smaller.
    """

    offsets: dict[int, int]
    peak: int
    lower_bound: int


def plan(buffers: Sequence[Buffer], alignment: int = 64, effort: int = 0) -> Placement:
    """
    Place `buffers` in one arena at multiples of `alignment` bytes.

    Effort 0 suits every compile (well under a second for thousands of buffers); effort 1 takes
    some seconds and effort 2 ten times that. The result depends on the arguments alone. Raises
    `RlxError` on malformed buffers and on fixed offsets that are misaligned or overlap.
    """
    if effort not in (0, 1, 2):
        raise RlxError(f"arena: expected an effort of 0, 1 or 2, got {effort}")
    _check(buffers, alignment)
    live = [b for b in buffers if b.size and b.upper > b.lower]
    problem = _Problem(live, alignment)
    keys = problem.best_static()
    if effort and problem.movable and _peak(keys) > problem.lower_bound:
        keys = _search(problem, keys, _SEARCH_WORK[effort])
    # A buffer without bytes or lifetime conflicts with nothing.
    offsets = {b.id: b.fixed_offset or 0 for b in buffers}
    offsets.update((b.id, key >> _END_BITS) for b, key in zip(live, keys, strict=True))
    return Placement(offsets, _peak(keys), problem.lower_bound)


def _check(buffers: Sequence[Buffer], alignment: int) -> None:
    if alignment < 1:
        raise RlxError(f"arena: expected an alignment of at least 1 byte, got {alignment}")
    if len({b.id for b in buffers}) != len(buffers):
        raise RlxError("arena: expected one buffer per id, got an id twice")
    for b in buffers:
        if b.size < 0 or b.upper < b.lower:
            raise RlxError(f"arena: buffer {b.id} has a negative size or lifetime: {b}")
        if b.fixed_offset is not None and (b.fixed_offset < 0 or b.fixed_offset % alignment):
            raise RlxError(
                f"arena: buffer {b.id} is fixed at offset {b.fixed_offset}, "
                f"expected a multiple of {alignment}"
            )
    top = max((b.fixed_offset or 0 for b in buffers), default=0)
    total = sum(-(-b.size // alignment) * alignment for b in buffers)
    if top + total > _END_MASK:
        raise RlxError(
            f"arena: expected sizes, aligned to {alignment}, that add up to less than "
            f"2**{_END_BITS} bytes, got {top + total}"
        )


def _peak(keys: Iterable[int]) -> int:
    return max((key & _END_MASK for key in keys), default=0)


class _Problem:
    """The buffers as parallel lists: aligned sizes, and who lives at the same time as whom."""

    def __init__(self, buffers: list[Buffer], alignment: int) -> None:
        self.buffers = buffers
        self.sizes = [-(-b.size // alignment) * alignment for b in buffers]
        self.neighbours: list[list[int]] = [[] for _ in buffers]
        # The largest sum of live sizes seen during each buffer's life.
        self.pressure = [0] * len(buffers)
        self.lower_bound = 0
        self._sweep()
        self.fixed_keys = [0] * len(buffers)
        for i, b in enumerate(buffers):
            if b.fixed_offset is not None:
                self._fix(i, b.fixed_offset)
        self.movable = [i for i, key in enumerate(self.fixed_keys) if not key]
        self.gather = [_getter(found) for found in self.neighbours]

    def _sweep(self) -> None:
        """Walk through time once: find the pairs that live together and the live sums."""
        live: dict[int, None] = {}
        deaths: list[tuple[int, int]] = []
        total = 0
        for i in sorted(range(len(self.buffers)), key=lambda i: self.buffers[i].lower):
            while deaths and deaths[0][0] <= self.buffers[i].lower:
                dead = heappop(deaths)[1]
                del live[dead]
                total -= self.sizes[dead]
            for other in live:
                self.neighbours[other].append(i)
            self.neighbours[i].extend(live)
            live[i] = None
            heappush(deaths, (self.buffers[i].upper, i))
            total += self.sizes[i]
            self.lower_bound = max(self.lower_bound, total)
            for other in live:
                if self.pressure[other] < total:
                    self.pressure[other] = total

    def _fix(self, i: int, offset: int) -> None:
        end = offset + self.sizes[i]
        for j in self.neighbours[i]:
            key = self.fixed_keys[j]
            if key >> _END_BITS < end and offset < key & _END_MASK:
                raise RlxError(
                    f"arena: buffers {self.buffers[i].id} and {self.buffers[j].id} live at the "
                    "same time and are fixed at offsets where they overlap"
                )
        self.fixed_keys[i] = offset << _END_BITS | end

    def orders(self) -> list[list[int]]:
        """Return the fixed orders, the best on average first; ties go to the larger buffer."""
        size, pressure = self.sizes, self.pressure
        lower = [b.lower for b in self.buffers]
        upper = [b.upper for b in self.buffers]
        time = [b.upper - b.lower for b in self.buffers]
        crowd = [sum(map(size.__getitem__, found)) for found in self.neighbours]
        criteria: list[Callable[[int], float]] = [
            lambda i: size[i],
            lambda i: size[i] * time[i],
            lambda i: size[i] * time[i] ** 0.5,
            lambda i: time[i],
            lambda i: crowd[i],
            lambda i: crowd[i] + size[i],
            lambda i: crowd[i] * size[i],
            lambda i: pressure[i] * size[i],
            lambda i: pressure[i] * time[i],
            lambda i: pressure[i],
            lambda i: len(self.neighbours[i]),
            lambda i: len(self.neighbours[i]) * size[i],
            lambda i: -lower[i],
            lambda i: lower[i],
            lambda i: upper[i],
            lambda i: -upper[i],
        ]
        return [
            sorted(self.movable, key=lambda i: (-criterion(i), -size[i], i))
            for criterion in criteria
        ]

    def place(self, order: list[int], fit: Callable[[Iterable[int], int], int]) -> list[int]:
        """Return the keys that placing the movable buffers in `order` gives."""
        keys = self.fixed_keys.copy()
        for i in order:
            offset = fit(self.gather[i](keys), self.sizes[i])
            keys[i] = offset << _END_BITS | offset + self.sizes[i]
        return keys

    def best_static(self) -> list[int]:
        """Return the placement of lowest peak among the fixed orders, first and best fit."""
        best: list[int] | None = None
        work = 0
        per_order = sum(map(len, self.neighbours)) + len(self.neighbours)
        for order in self.orders():
            for fit in (_first_fit, _best_fit):
                if best is not None and work > _STATIC_WORK:
                    return best
                keys = self.place(order, fit)
                work += per_order
                if best is None or _peak(keys) < _peak(best):
                    best = keys
        return best or []


def _getter(indices: list[int]) -> Callable[[list[int]], tuple[int, ...]]:
    """Return a function that gathers the elements at `indices` of a list, at C speed."""
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda values: tuple(values[i] for i in indices)


def _first_fit(taken: Iterable[int], size: int) -> int:
    """Return the lowest offset where `size` bytes are free of the `taken` keys."""
    top = 0
    for key in sorted(taken):
        if (key >> _END_BITS) - top >= size:
            break
        end = key & _END_MASK
        if end > top:
            top = end
    return top


def _best_fit(taken: Iterable[int], size: int) -> int:
    """Return the offset of the smallest gap that holds `size` bytes, else that of the top."""
    top = best = 0
    smallest = None
    for key in sorted(taken):
        gap = (key >> _END_BITS) - top
        if gap >= size and (smallest is None or gap < smallest):
            smallest, best = gap, top
        end = key & _END_MASK
        if end > top:
            top = end
    return top if smallest is None else best


def _search(problem: _Problem, keys: list[int], budget: int) -> list[int]:
    """
    Lower the peak of `keys` by moving buffers that do not fit to an earlier place in the order.

    Buffers are placed by first fit under a limit a little below the best peak so far. The first
    that does not fit moves forward by an exponentially distributed share of the order, which
    shrinks over the budget, and placing goes on from there. When all fit, the limit drops.
    """
    rng = random.Random(0)
    state = _FirstFit(problem, keys)
    order: list[int] = []
    peak = limit = sum(state.sizes) + state.bound
    while state.work < budget:
        if state.extend(limit):
            order = sorted(state.order, key=lambda i: state.low[i])
            peak = state.peak()
            if peak <= state.bound:
                break
            limit = peak - 1 - int(0.03 * (peak - state.bound))
            state.retreat(limit)
        else:
            reach = 0.2 * 0.1 ** (state.work / budget)
            state.advance(1 + int(rng.expovariate(1.0) * reach * len(state.order)))
    found = problem.place(order, _first_fit)
    return min(keys, found, key=_peak)


class _FirstFit:
    """
    First fit along an order that changes, recomputing only the offsets that a change can reach.

    Memory is a bit mask: one bit per unit of the arena, in one integer per buffer, so that the
    memory taken by all neighbours is a single `or`. Sizes and offsets are in units. When the sizes
    have no unit that gives few enough bits, they are rounded up to one that does.

    The buffers placed so far are `order[:position]`; of the others the mask is 0. `low` is the last
    offset of every buffer and is right unless `dirty`: unless a buffer before it in the order
    appeared or moved where that matters. `work` counts what the search costs.
    """

    def __init__(self, problem: _Problem, keys: list[int]) -> None:
        fixed = [(key >> _END_BITS, key & _END_MASK) for key in problem.fixed_keys]
        unit = gcd(*problem.sizes, *(offset for offset, _ in fixed))
        unit *= -(-_peak(keys) // (unit * _MAX_UNITS))
        self.problem = problem
        # By offset, first fit places every buffer where it is in `keys` or lower.
        self.order = sorted(problem.movable, key=lambda i: keys[i])
        self.sizes = [-(-size // unit) for size in problem.sizes]
        self.masks = [(1 << -(-end // unit)) - (1 << offset // unit) for offset, end in fixed]
        self.bound = -(-max(problem.lower_bound, _peak(problem.fixed_keys)) // unit)
        self.low = [0] * len(keys)
        self.dirty = [True] * len(keys)
        self.position = 0
        self.moved = -1
        self.work = 0

    def peak(self) -> int:
        """Return the end of the highest buffer."""
        return max(mask.bit_length() for mask in self.masks)

    def extend(self, limit: int) -> bool:
        """Place buffers until one would end above `limit`; return whether all are placed."""
        sizes, masks, low, dirty = self.sizes, self.masks, self.low, self.dirty
        gather = self.problem.gather
        start = self.position
        for position in range(start, len(self.order)):
            i = self.order[position]
            size, offset = sizes[i], low[i]
            if dirty[i]:
                offset = _lowest_run(reduce(_or, gather[i](masks), 0), size, limit)
                self.work += len(self.problem.neighbours[i]) + 20
            if offset < 0 or offset + size > limit:
                self.position = position
                self.work += position - start + 10
                return False
            if dirty[i]:
                if offset != low[i] or i == self.moved:
                    self._spread(i, offset)
                low[i] = offset
                dirty[i] = False
            masks[i] = ((1 << size) - 1) << offset
        self.position = len(self.order)
        self.work += self.position - start
        return True

    def _spread(self, i: int, offset: int) -> None:
        """Mark as dirty the neighbours after `i` whose offset its new `offset` can change."""
        masks, low, dirty, sizes = self.masks, self.low, self.dirty, self.sizes
        old, end = low[i], offset + sizes[i]
        for j in self.problem.neighbours[i]:
            # Leaving a place below j may open a gap for it; otherwise j itself is in the way.
            if not masks[j] and (old < low[j] or (low[j] < end and offset < low[j] + sizes[j])):
                dirty[j] = True
        self.work += len(self.problem.neighbours[i])

    def retreat(self, limit: int) -> None:
        """Go back to the first buffer that ends above `limit`."""
        masks, order = self.masks, self.order
        self.position = next(p for p, i in enumerate(order) if masks[i].bit_length() > limit)
        for i in order[self.position :]:
            masks[i] = 0

    def advance(self, places: int) -> None:
        """Move the buffer that did not fit forward by `places` and go back to its new place."""
        target = max(self.position - places, 0)
        for i in self.order[target : self.position]:
            self.masks[i] = 0
        self.moved = self.order.pop(self.position)
        self.order.insert(target, self.moved)
        self.dirty[self.moved] = True
        self.position = target


def _lowest_run(taken: int, size: int, limit: int) -> int:
    """Return the lowest bit where `size` bits below `limit` are free of `taken`, or -1."""
    runs = ~taken & (1 << limit) - 1
    length = 1
    # Bit b of `runs` says that `length` bits from b on are free.
    while length * 2 <= size:
        runs &= runs >> length
        length *= 2
    runs &= runs >> (size - length)
    return (runs & -runs).bit_length() - 1
