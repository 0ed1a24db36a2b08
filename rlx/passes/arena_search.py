"""
The search behind the planner's efforts 1 and 2: an order of buffers that first fit places lower.

Buffers are placed by first fit under a limit a little below the best peak so far. The first that
does not fit moves forward by an exponentially distributed share of the order, which shrinks over
a cycle, and placing goes on from there. When all fit, the limit drops.

The inner loop is compiled. It works on integers alone and its budget is counted, not timed, so an
order depends on the arguments and not on the machine.
"""

from __future__ import annotations

import ctypes
import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

from rlx.lowering.emitter import Function, Module
from rlx.lowering.target import Target
from rlx.lowering.values import Index, Value, i64
from rlx.runtime.once import once

_ROUNDS = 100
_DRAW_BITS = 12
_FRACTION_BITS = 16
# Words of the kernel's state, and of what it is given beside that.
_POSITION, _LIMIT, _WORK, _UNTIL, _MOVED, _RANDOM, _REACH = range(7)
_ARRAYS = ("state", "order", "sizes", "first", "neighbours", "low", "end", "dirty", "draws")


def search(
    order: Sequence[int],
    sizes: Sequence[int],
    neighbours: Sequence[Sequence[int]],
    fixed: Mapping[int, int],
    bound: int,
    cycles: int,
    budget: int = 1_200_000_000,
) -> list[int]:
    """
    Return the best order found for the buffers of `order`, starting from that.

    All buffers have `sizes` and `neighbours`, those that live at the same time; `fixed` gives the
    offsets of those that aren't in the order. The search ends at a peak of `bound` or when the
    `budget` of each cycle is spent, in neighbours looked at: roughly 1.5 ns each. More cycles are
    never worse, as each goes on from where the one before ended.
    """
    state = SearchState(order, sizes, neighbours, fixed)
    best = list(order)
    state.limit = sum(sizes) + max(state.end)
    spent = 0
    while spent < cycles * _ROUNDS:
        reach = 0.2 * 0.03 ** (spent % _ROUNDS / _ROUNDS)
        if state.run(budget * (spent + 1) // _ROUNDS, reach):
            best = sorted(state.order, key=state.low.__getitem__)
            peak = max(state.end)
            if peak <= bound:
                break
            state.retreat(peak - 1 - (peak - bound) * 3 // 100)
        else:
            spent += 1
    return best


class SearchState:
    """
    The arrays that the kernel works on, 64-bit integers all.

    `end` is 0 for a buffer that isn't placed. `low` is the last offset of every buffer and is right
    unless `dirty`: unless a buffer before it in the order appeared or moved where that matters.
    """

    def __init__(
        self,
        order: Sequence[int],
        sizes: Sequence[int],
        neighbours: Sequence[Sequence[int]],
        fixed: Mapping[int, int],
    ):
        self._given = neighbours
        self._sort_at = 0
        rng = random.Random(0)
        self.words = array("q", [0] * 7)
        self.words[_MOVED] = -1
        self.order = array("q", order)
        self.low = array("q", [fixed.get(i, 0) for i in range(len(sizes))])
        self.end = array("q", [fixed[i] + n if i in fixed else 0 for i, n in enumerate(sizes)])
        self.neighbours = array("q", chain.from_iterable(neighbours))
        scale = 1 << _FRACTION_BITS
        self._arrays = (
            self.words,
            self.order,
            array("q", sizes),
            array("q", accumulate(map(len, neighbours), initial=0)),
            self.neighbours,
            self.low,
            self.end,
            array("q", [1] * len(sizes)),
            array("q", [int(rng.expovariate(1.0) * scale) for _ in range(1 << _DRAW_BITS)]),
        )
        self._addresses = [a.buffer_info()[0] for a in self._arrays]

    @property
    def limit(self) -> int:
        """The highest end that a buffer may have."""
        return self.words[_LIMIT]

    @limit.setter
    def limit(self, limit: int) -> None:
        self.words[_LIMIT] = limit

    def run(self, until: int, reach: float) -> bool:
        """Search until so much work is done in all; return whether every buffer is placed."""
        if self.words[_WORK] >= self._sort_at:
            self._sort()
        self.words[_UNTIL] = until
        self.words[_REACH] = int(reach * len(self.order) * (1 << _FRACTION_BITS))
        _kernel()(*self._addresses, len(self.order))
        return self.words[_POSITION] == len(self.order)

    def _sort(self) -> None:
        """Sort all neighbours by offset: placing is the quicker the nearer they are to that."""
        found: list[list[int]] = [[] for _ in self._given]
        for j in sorted(range(len(self.low)), key=self.low.__getitem__):
            for i in self._given[j]:
                found[i].append(j)
        self.neighbours[:] = array("q", chain.from_iterable(found))
        # A tenth of the time, at 50 ns a pair.
        self._sort_at = self.words[_WORK] + 500 * len(self.neighbours)

    def retreat(self, limit: int) -> None:
        """Go on under a lower limit, from the first buffer that ends above it."""
        position = next(p for p, i in enumerate(self.order) if self.end[i] > limit)
        for i in self.order[position:]:
            self.end[i] = 0
        self.limit, self.words[_POSITION] = limit, position


@once
def _kernel() -> Callable[..., None]:
    from rlx.runtime.jit import Engine, compile_object

    target = Target.host()
    module = Module(target)
    params = [*(("ptr", name) for name in _ARRAYS), ("i64", "count")]
    _Emitter(module.function("search", params, exported=True)).emit()
    engine = Engine(compile_object(module.text, target, "the planner's search"))
    function: Any = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(_ARRAYS), ctypes.c_int64)(
        engine.address("search")
    )
    # The code lives as long as its engine.
    function.engine = engine
    return function


class _Emitter:
    """Emits the kernel: places the buffers of the order until all are or the work is done."""

    def __init__(self, f: Function):
        self.f = f
        *arrays, self.count = f.params
        self.arrays: dict[str, Value] = dict(zip(_ARRAYS, arrays, strict=True))
        self.limit = self.get("state", _LIMIT)
        self.reach = self.get("state", _REACH)

    def get(self, name: str, index: Index) -> Value:
        return self.f.load("i64", self.f.at(self.arrays[name], index, 8), 8)

    def set(self, name: str, index: Index, value: Value) -> None:
        self.f.store(value, self.f.at(self.arrays[name], index, 8), 8)

    def emit(self) -> None:
        f = self.f
        until = self.get("state", _UNTIL)
        carried = (_POSITION, _WORK, _MOVED, _RANDOM)
        left = f.while_(
            [self.get("state", word) for word in carried],
            lambda v: f.and_(f.icmp("slt", v[0], self.count), f.icmp("slt", v[1], until)),
            lambda v: self.step(*v),
        )
        for word, value in zip(carried, left, strict=True):
            self.set("state", word, value)
        f.ret()

    def step(self, position: Value, work: Value, moved: Value, random: Value) -> list[Value]:
        """Place the buffer at `position`, or move it forward where it does not fit."""
        f = self.f
        i = self.get("order", position)
        size, old = self.get("sizes", i), self.get("low", i)
        dirty = f.icmp("ne", self.get("dirty", i), 0)
        offset, looks = f.if_(dirty, lambda: self.lowest(i, size), lambda: [old, i64(0)])
        work = f.add(f.add(work, looks), 10)
        end = f.add(offset, size)

        def place() -> list[Value]:
            changed = f.or_(f.icmp("ne", offset, old), f.icmp("eq", i, moved))
            (spread,) = f.if_(
                f.and_(dirty, changed),
                lambda: [self.spread(i, old, offset, end)],
                lambda: [i64(0)],
            )
            self.set("low", i, offset)
            self.set("end", i, end)
            self.set("dirty", i, i64(0))
            return [f.add(position, 1), f.add(work, spread), moved, random]

        return f.if_(
            f.icmp("sle", end, self.limit), place, lambda: self.advance(i, position, work, random)
        )

    def each_neighbour(
        self, i: Value, init: Sequence[Value], body: Callable[[Value, list[Value]], Sequence[Value]]
    ) -> list[Value]:
        first, last = self.get("first", i), self.get("first", self.f.add(i, 1))
        return self.f.for_(first, last, 1, init, lambda at, v: body(self.get("neighbours", at), v))

    def lowest(self, i: Value, size: Value) -> list[Value]:
        """
        Return the lowest offset where `i` fits, or one too high for the limit; and the work.

        Wherever a neighbour is in the way, every offset up to its end is ruled out. So the offset
        rises until a pass over the neighbours finds none in the way.
        """
        f = self.f
        cost = f.sub(self.get("first", f.add(i, 1)), self.get("first", i))

        def rise(j: Value, v: list[Value]) -> list[Value]:
            (offset,) = v
            end = self.get("end", j)
            below = f.icmp("slt", self.get("low", j), f.add(offset, size))
            return [f.select(f.and_(below, f.icmp("sgt", end, offset)), end, offset)]

        def again(v: list[Value]) -> Value:
            offset, before, _ = v
            return f.and_(
                f.icmp("ne", offset, before), f.icmp("sle", f.add(offset, size), self.limit)
            )

        offset, _, work = f.while_(
            [i64(0), i64(-1), i64(0)],
            again,
            lambda v: [*self.each_neighbour(i, [v[0]], rise), v[0], f.add(v[2], cost)],
        )
        return [offset, work]

    def spread(self, i: Value, old: Value, offset: Value, end: Value) -> Value:
        """Mark the neighbours after `i` whose offset its new one can change; return the work."""
        f = self.f

        def mark(j: Value, v: list[Value]) -> list[Value]:
            low = self.get("low", j)
            # Leaving a place below j may open a gap for it; otherwise j itself is in the way.
            above = f.and_(
                f.icmp("slt", low, end), f.icmp("slt", offset, f.add(low, self.get("sizes", j)))
            )
            reached = f.or_(f.icmp("slt", old, low), above)
            unplaced = f.icmp("eq", self.get("end", j), 0)
            flag = f.cast("zext", f.and_(unplaced, reached), "i64")
            self.set("dirty", j, f.or_(self.get("dirty", j), flag))
            return [f.add(v[0], 1)]

        return self.each_neighbour(i, [i64(0)], mark)[0]

    def advance(self, i: Value, position: Value, work: Value, random: Value) -> list[Value]:
        """Move `i` forward and go back to its new place."""
        f = self.f
        # Knuth's MMIX generator, of which the high bits are good.
        random = f.add(f.mul(random, 6364136223846793005), 1442695040888963407)
        draw = self.get("draws", f.lshr(random, 64 - _DRAW_BITS))
        places = f.add(f.lshr(f.mul(draw, self.reach), 2 * _FRACTION_BITS), 1)
        target = f.select(f.icmp("slt", places, position), f.sub(position, places), i64(0))

        def shift(at: Value) -> Value:
            before = f.sub(at, 1)
            other = self.get("order", before)
            self.set("end", other, i64(0))
            self.set("order", at, other)
            return before

        f.while_([position], lambda v: f.icmp("sgt", v[0], target), lambda v: [shift(v[0])])
        self.set("order", target, i)
        self.set("dirty", i, i64(1))
        return [target, f.add(work, f.sub(position, target)), i, random]
