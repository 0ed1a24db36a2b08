"""
Products of bf16 rows on the matrix unit, with sums in f32.

Rows are copied to tiles first (`gemm_tile_copies`), as many as stay in the L2 cache, and so is a
unit of panels, for as much of k as stays in L1 while rows go by; panels of bf16 are packed as tiles
already. A block of two tiles of rows and two of panels takes four loads for four products, and the
loads hide behind them. So does the epilogue of the block before: some of its rows are handed on at
each step, for stores that miss the caches cost as much as the products do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rlx.lowering import amx
from rlx.lowering.contract import Group, shares
from rlx.lowering.emitter import Function
from rlx.lowering.formats import CHUNK, FORMATS, heads_at
from rlx.lowering.gemm_tile_copies import copy_rows, fill_tiles
from rlx.lowering.gemm_unit import (
    LINE,
    SCRATCH,
    AskRow,
    Rows,
    Source,
    StorePanel,
    StoreRow,
    Units,
)
from rlx.lowering.target import Target
from rlx.lowering.values import Value, i64

_L1_PANELS = 40 * 1024
"""Bytes of a unit's tiles that stay in the L1 cache while rows go by."""
_L2_ROWS = 768 * 1024
"""Bytes of rows that stay in the L2 cache while panels go by; on the stack."""
_HIGH = 2 * amx.ROWS
"""Rows of a block."""
_MOST_ROWS = 512
_MOST_K = 16384
_SPLIT_ROWS = 64
"""Rows for each thread from which on threads share rows, where they may."""
_PER_K = LINE // 2
"""Bytes of a panel's tiles for each k."""
_SUM, _A, _B = 0, 4, 6
"""The first of four tiles of sums, `[rows][panels]`, of two of rows and of two of panels."""


def has_tiles(target: Target, k: int) -> bool:
    """Return whether rows of k are multiplied on the matrix unit."""
    return amx.has_amx(target) and k <= _MOST_K


@dataclass(frozen=True)
class _Pending:
    """A block whose sums wait to be handed on: its unit, its first row and its rows, maybe none."""

    unit: Value
    row: Value
    count: Value

    @property
    def values(self) -> list[Value]:
        return [self.unit, self.row, self.count]


_NOTHING = _Pending(i64(0), i64(0), i64(0))


@dataclass(frozen=True)
class _Product(Units):
    """The product of rows with one group, as far as it is known when code is generated."""

    rows: Rows
    at_once: int
    """Rows that are multiplied with one unit after the other, a multiple of a block's."""

    @property
    def wide(self) -> int:
        """Return the panels of a tile block."""
        return 2 if self.across % 2 == 0 else 1

    @property
    def steps(self) -> int:
        """Return the tiles of a row."""
        return -(-self.k // amx.DEPTH)

    @property
    def block(self) -> int:
        """Return k in even parts, whose tiles stay in the L1 cache."""
        most = self.whole_blocks(_L1_PANELS // (_PER_K * self.across))
        parts = -(-self.k // most)
        return min(self.k, self.whole_blocks(-(-self.k // parts) + CHUNK - 1))

    @property
    def panel_bytes(self) -> int:
        """Return the bytes of a panel's tiles for a block of k."""
        return -(-self.block // amx.DEPTH) * amx.TILE_BYTES

    @property
    def rows_a_step(self) -> int:
        """Return the rows to hand on at each step, so that a block's are done in any block of k."""
        shortest = (self.k - 1) % self.block + 1
        return -(-_HIGH // -(-shortest // amx.DEPTH))

    @property
    def waiting(self) -> int:
        """Return the rows whose sums there is room for: two blocks', or all between blocks of k."""
        return 2 * _HIGH if self.block == self.k else self.at_once

    def is_ready(self, name: str) -> bool:
        """Return whether panels of a format are tiles as they are packed: pairs of bf16."""
        return name == "bf16" and self.k % amx.DEPTH == 0


def emit_tiles(
    f: Function,
    groups: Sequence[Group],
    rows: Rows,
    weights: Sequence[Sequence[Value]],
    tid: Value,
    nth: Value,
    store: StoreRow,
    ahead: AskRow,
) -> None:
    """
    Emit the product of rows with this thread's share of the groups' panels.

    Where no thread would dequantise what another does too, threads share rows if there are many.
    """
    steps = -(-rows.k // amx.DEPTH)
    at_once = min(_MOST_ROWS, _L2_ROWS // (steps * amx.ROW_BYTES))
    across = max(2, *(len(group.formats) for group in groups))
    at_once = max(_HIGH, min(at_once, SCRATCH // (LINE * across)) // _HIGH * _HIGH)
    products = [
        _Product(f, rows.k, group, 2 if len(group.formats) == 1 else 1, rows, at_once)
        for group in groups
    ]
    first_row, end_row = i64(0), rows.count
    if all(p.is_ready(name) for p in products for name in p.group.formats):
        many = f.icmp("uge", rows.count, f.mul(nth, _SPLIT_ROWS))
        bounds = [f.udiv(f.mul(rows.count, i), nth) for i in (tid, f.add(tid, 1))]
        start, end = (f.and_(f.add(bound, _HIGH - 1), -_HIGH) for bound in bounds)
        first_row = f.select(many, start, first_row)
        end_row = f.select(many, f.umin(end, end_row), end_row)
        tid, nth = f.select(many, i64(0), tid), f.select(many, i64(1), nth)
    split = shares(f, [p.count for p in products], [p.across for p in products], tid, nth)
    tiles = f.scratch("rows", at_once * steps * amx.ROW_BYTES)
    panels = f.scratch("panels", max(p.panel_bytes * p.across for p in products))
    sums = f.scratch("sums", max(p.waiting * p.across * LINE for p in products))

    def part(r0: Value, _: list[Value]) -> list[Value]:
        count = f.umin(f.sub(end_row, r0), at_once)
        copy_rows(f, rows, r0, count, tiles)
        for g, (p, own, (first, last)) in enumerate(zip(products, weights, split, strict=True)):
            epilogue = partial(store, f, g), partial(ahead, f, g)
            kernel = _Kernel(p, own, tiles, panels, sums, r0, count, *epilogue)

            def unit(u: Value, carried: list[Value], kernel: _Kernel = kernel) -> list[Value]:
                return kernel.unit(u, _Pending(*carried)).values

            left = f.for_(first, last, 1, _NOTHING.values, unit)
            kernel.hand_on(_Pending(*left), i64(0), i64(_HIGH))
        return []

    amx.configure(f)
    f.for_(first_row, end_row, at_once, [], part)
    amx.release(f)


@dataclass(frozen=True)
class _Kernel:
    """A group's product with some rows, in tiles, while it is written."""

    p: _Product
    weights: Sequence[Value]
    tiles: Value
    panels: Value
    sums: Value
    row0: Value
    """The number of the first row."""
    count: Value
    store: StorePanel
    ahead: Callable[[Value, Value], None]

    def unit(self, unit: Value, pending: _Pending) -> _Pending:
        """Multiply the rows with a unit's panels; return the block that is still to hand on."""
        p, f = self.p, self.p.f
        sources = p.sources(unit, self.weights)

        def k_block(carried: list[Value]) -> list[Value]:
            k0, *rest = carried
            length = f.umin(f.sub(p.k, k0), p.block)
            self._fill(sources, k0, length)
            panels = self._operands(sources, k0)
            last = f.icmp("eq", f.add(k0, length), p.k)

            def rows(r: Value, before: list[Value]) -> list[Value]:
                own = f.umin(f.sub(self.count, r), _HIGH)
                now = _Pending(unit, r, f.select(last, own, i64(0)))
                two = f.icmp("ugt", own, amx.ROWS)
                self._block(panels, now, k0, length, _Pending(*before), two)
                return now.values

            return [f.add(k0, length), *f.for_(0, self.count, _HIGH, rest, rows)]

        if p.block == p.k:
            return _Pending(*k_block([i64(0), *pending.values])[1:])
        start = [i64(0), *pending.values]
        return _Pending(*f.while_(start, lambda c: f.icmp("slt", c[0], p.k), k_block)[1:])

    def _fill(self, sources: Sequence[Source], k0: Value, length: Value) -> None:
        """Dequantise [k0, k0 + length) of a unit's panels."""
        p, f = self.p, self.p.f
        for i, (name, source) in enumerate(sources):
            if p.is_ready(name):
                continue
            form = FORMATS[name]
            first = f.udiv(k0, form.block)
            heads = f.at(source, heads_at(f, form, p.k // form.block))
            at = f.at(source, first, form.block_step), f.at(heads, first, form.head_step)
            fill_tiles(f, name, *at, f.at(self.panels, i * p.panel_bytes), length)

    def _operands(self, sources: Sequence[Source], k0: Value) -> list[Value]:
        """Return where each panel's tiles are: where it was filled, or the panel itself."""
        p, f = self.p, self.p.f
        return [
            f.at(source, k0, _PER_K) if p.is_ready(name) else f.at(self.panels, i * p.panel_bytes)
            for i, (name, source) in enumerate(sources)
        ]

    def _sums_at(self, r: Value) -> Value:
        """Return where the sums of a block of rows are."""
        p, f = self.p, self.p.f
        place = f.and_(r, p.waiting - 1) if p.block == p.k else r
        return f.at(self.sums, place, p.across * LINE)

    def hand_on(self, block: _Pending, first: Value, end: Value) -> None:
        """Hand rows of a block on to the epilogue, those that it has of first to end - 1."""
        p, f = self.p, self.p.f
        row, at = f.add(self.row0, block.row), self._sums_at(block.row)

        def one(r: Value, _: list[Value]) -> list[Value]:
            p.finish(block.unit, f.add(row, r), f.at(at, r, p.across * LINE), self.store)
            return []

        f.for_(first, f.umin(end, block.count), 1, [], one)

    def _ask(self, block: _Pending, first: Value, end: Value) -> None:
        """Ask for what the epilogue wants for some rows of a block."""
        p, f = self.p, self.p.f

        def one(r: Value, _: list[Value]) -> list[Value]:
            row = f.add(f.add(self.row0, block.row), r)
            for number in p.numbers(block.unit):
                self.ahead(row, number)
            return []

        f.for_(first, f.umin(end, block.count), 1, [], one)

    def _block(
        self,
        panels: Sequence[Value],
        now: _Pending,
        k0: Value,
        length: Value,
        before: _Pending,
        two: Value,
    ) -> None:
        """
        Multiply one tile of rows, or two, with a unit's panels, `length` of k from k0 on.

        Meanwhile the block before is handed on, some rows at each of the first steps, and memory is
        asked for what the epilogue of this one wants.
        """
        p, f, r = self.p, self.p.f, now.row
        a = f.at(f.at(self.tiles, r, p.steps * amx.ROW_BYTES), k0, amx.ROW_BYTES // 2)
        steps = f.lshr(f.add(length, amx.DEPTH - 1), 5)
        for column in range(p.across // p.wide):
            b = panels[column * p.wide : (column + 1) * p.wide]
            c = f.at(self._sums_at(r), column * p.wide * LINE)

            def meanwhile(s: Value) -> None:
                first = f.mul(s, p.rows_a_step)
                end = f.add(first, p.rows_a_step)
                self.hand_on(before, first, end)
                self._ask(now, first, end)

            self._tiles(a, b, c, steps, f.icmp("ne", k0, 0), two, None if column else meanwhile)

    def _tiles(
        self,
        a: Value,
        b: Sequence[Value],
        c: Value,
        steps: Value,
        more: Value,
        two: Value,
        meanwhile: Callable[[Value], None] | None,
    ) -> None:
        """Multiply, from the sums at c where there are `more`, else from zero, and leave them."""
        p, f = self.p, self.p.f
        across = p.across * LINE
        sums = [
            [(_SUM + 2 * r + w, f.at(c, r * amx.ROWS * across + w * LINE)) for w in range(p.wide)]
            for r in range(2)
        ]

        def go_on() -> list[Value]:
            for tile, at in [*sums[0], *sums[1]]:
                amx.load(f, tile, at, across)
            return []

        def start() -> list[Value]:
            for tile, _ in [*sums[0], *sums[1]]:
                amx.zero(f, tile)
            return []

        def row(r: int, at: Value) -> list[Value]:
            # Whoever reads these rows next finds them in L2: L1 is for panels.
            at = f.at(at, r * p.steps * amx.TILE_BYTES)
            amx.load(f, _A + r, at, amx.ROW_BYTES, once=True)
            for w in range(p.wide):
                amx.multiply(f, _SUM + 2 * r + w, _A + r, _B + w)
            return []

        def step(s: Value, _: list[Value]) -> list[Value]:
            for w in range(p.wide):
                amx.load(f, _B + w, f.at(b[w], s, amx.TILE_BYTES), amx.ROW_BYTES)
            at = f.at(a, s, amx.TILE_BYTES)
            row(0, at)
            f.if_(two, lambda: row(1, at))
            if meanwhile:
                meanwhile(s)
            return []

        f.if_(more, go_on, start)
        f.for_(0, steps, 1, [], step)
        for tile, at in sums[0]:
            amx.store(f, tile, at, across)

        def rest() -> list[Value]:
            for tile, at in sums[1]:
                amx.store(f, tile, at, across)
            return []

        f.if_(two, rest)
