"""
Static memory planning: an offset in one arena for every buffer whose lifetime is known.

Buffers that live at the same time must not overlap in memory; the goal is a low peak. Every method
here places buffers one by one at a free offset and differs only in the order. Effort 0 takes the
best of several fixed orders and repairs it a little; efforts 1 and 2 go on from there with a search
over orders. Budgets are counts of work, so that a plan is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import islice
from operator import itemgetter

from rlx.errors import RlxError

# Work is counted in neighbours looked at while placing: roughly 0.15 us each.
_STATIC_WORK = 800_000
_REPAIRS = 16
_SEARCH_CYCLES = {1: 1, 2: 10}

# A placed buffer is one integer, offset << _END_BITS | end: they sort fast, and 0 means unplaced.
_END_BITS = 48
_END_MASK = (1 << _END_BITS) - 1


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
    if effort and _peak(keys) > problem.floor:
        keys = _search(problem, keys, _SEARCH_CYCLES[effort])
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
        # No plan has a lower peak than this.
        self.floor = max(self.lower_bound, _peak(self.fixed_keys))
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

    def orders(self) -> Iterator[list[int]]:
        """Yield the fixed orders, the best on average first; ties go to the larger buffer."""
        size, pressure = self.sizes, self.pressure
        lower = [b.lower for b in self.buffers]
        upper = [b.upper for b in self.buffers]
        time = [b.upper - b.lower for b in self.buffers]

        @cache
        def crowd(i: int) -> int:
            return sum(map(size.__getitem__, self.neighbours[i]))

        criteria: list[Callable[[int], float]] = [
            lambda i: size[i],
            lambda i: size[i] * time[i],
            lambda i: size[i] * time[i] ** 0.5,
            lambda i: time[i],
            lambda i: crowd(i),
            lambda i: crowd(i) + size[i],
            lambda i: crowd(i) * size[i],
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
        for criterion in criteria:
            yield sorted(self.movable, key=lambda i: (-criterion(i), -size[i], i))

    def place(self, order: list[int], fit: Callable[[Iterable[int], int], int]) -> list[int]:
        """Return the keys that placing the movable buffers in `order` gives."""
        keys = self.fixed_keys.copy()
        for i in order:
            offset = fit(self.gather[i](keys), self.sizes[i])
            keys[i] = offset << _END_BITS | offset + self.sizes[i]
        return keys

    def best_static(self) -> list[int]:
        """Return the placement of lowest peak among the fixed orders, first and best fit."""
        # The first is always tried, however large the problem.
        left = max(_STATIC_WORK // (sum(map(len, self.neighbours)) + len(self.buffers) + 1), 1)
        fits = (_first_fit, _best_fit)
        attempts = ((order, fit) for order in self.orders() for fit in fits)
        best: list[int] = []
        for order, fit in islice(attempts, left):
            left -= 1
            keys = self.place(order, fit)
            if not best or _peak(keys) < _peak(best):
                best = keys
            if _peak(best) <= self.floor:
                return best
        return self.repaired(best, min(left, _REPAIRS))

    def repaired(self, best: list[int], rounds: int) -> list[int]:
        """Return the best of `best` and of moving what ends too high to the front, repeatedly."""
        keys = best
        order = sorted(self.movable, key=keys.__getitem__)
        for _ in range(rounds):
            peak = _peak(best)
            order.sort(key=lambda i: keys[i] & _END_MASK < peak)
            keys = self.place(order, _first_fit)
            if _peak(keys) < peak:
                best = keys
                order.sort(key=keys.__getitem__)
        return best


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


def _search(problem: _Problem, keys: list[int], cycles: int) -> list[int]:
    """Return the better of `keys` and what the search over orders finds from there."""
    # A compile, at effort 0, needs neither the search nor its code generator.
    from rlx.passes.arena_search import search

    fixed = {i: key >> _END_BITS for i, key in enumerate(problem.fixed_keys) if key}
    # By offset, first fit places every buffer where it is in `keys` or lower.
    order = sorted(problem.movable, key=keys.__getitem__)
    order = search(order, problem.sizes, problem.neighbours, fixed, problem.floor, cycles)
    return min(keys, problem.place(order, _first_fit), key=_peak)
