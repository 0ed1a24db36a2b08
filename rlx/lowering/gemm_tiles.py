"""
Products of tiles: of bf16 rows with sums in f32, of rows as bytes with sums in i32.

They are the matrix unit's, or, of bf16, dot products of rows with tiles of panels. Rows are copied
first (`gemm_tile_copies`), as many as stay in the L2 cache, and a unit of panels becomes tiles, for
as much of k as stays in L1 while rows go by; meanwhile memory is asked for the next unit. Panels of
bf16 and of bytes are packed as tiles already; where all of them stay in L2, they go by a block of
rows in L1. On the unit a block of two tiles of rows and two of panels takes four loads for four
products, and the loads hide behind them. So does the epilogue of the block before: some of its rows
are handed on at each step, for stores that miss the caches cost as much as products do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rlx.lowering import amx
from rlx.lowering.bf16_products import all_tiles, multiply_rows
from rlx.lowering.contract import SPLIT_ROWS, Group
from rlx.lowering.emitter import Function
from rlx.lowering.formats import FORMATS, heads_at
from rlx.lowering.gemm_tile_copies import copy_rows, fill_tiles
from rlx.lowering.gemm_tile_plan import CACHE_LINE, HIGH, TileProduct, are_ready, is_ready
from rlx.lowering.gemm_unit import LINE, OF_ROW, AskRow, Rows, Source, StorePanel, StoreRow
from rlx.lowering.in_turn import emit_in_turn
from rlx.lowering.values import Value, i64

_RUNS = 12
"""Runs of units that each thread would take of many, if all were as fast."""
_BANDS = 4
"""Bands of rows that each thread would take, if all were as fast."""
_RUN_BLOCKS = 8
"""Blocks of rows times units that a run is at least."""
_BUSY_BLOCKS = 4
"""Blocks that are multiplied with a unit from which on there is time to ask for the next one."""
_SUM, _A, _B = 0, 4, 6
"""The first of four tiles of sums, `[rows][panels]`, of two of rows and of two of panels."""

AskStep = Callable[[Value], None]
"""Called with the number of a step of a unit: asks for memory that is wanted after the unit."""


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


def emit_tiles(
    f: Function,
    groups: Sequence[Group],
    rows: Rows,
    weights: Sequence[Sequence[Value]],
    turns: Value,
    nth: Value,
    store: StoreRow,
    ahead: AskRow,
) -> None:
    """
    Emit the product of rows with the groups' panels, parts of which `nth` threads take in turn.

    A part is some rows with a run of units, of all groups as a whole. Where no thread would
    dequantise what another does too, it is rather fewer rows with all units, if there are many.
    """
    products = TileProduct.of(f, rows, groups)
    parts = _Parts.of(products, nth, are_ready(groups, rows.k))
    tiles = f.scratch("rows", products[0].at_once * products[0].copies.row)
    panels = f.scratch("panels", max(p.tile_bytes * p.across for p in products))
    row_steps = f.scratch("steps", products[0].at_once * OF_ROW)
    sums = f.scratch("sums", max(p.waiting * p.across * LINE for p in products))

    def part(number: Value, copied: list[Value]) -> list[Value]:
        band = f.udiv(number, parts.runs)
        start = f.mul(f.sub(number, f.mul(band, parts.runs)), parts.run)
        bounds = start, f.add(start, parts.run)
        top = f.mul(band, parts.height)
        bottom = f.umin(f.add(top, parts.height), rows.count)

        def some_rows(row0: Value, copied: list[Value]) -> list[Value]:
            count = f.umin(f.sub(bottom, row0), products[0].at_once)
            stale = f.icmp("ne", row0, copied[0])
            f.if_(stale, lambda: copy_rows(f, rows, row0, count, tiles, row_steps) or [])
            base = 0
            for g, (p, own) in enumerate(zip(products, weights, strict=True)):
                epilogue = partial(store, f, g), partial(ahead, f, g)
                kernel = _Kernel(p, own, tiles, row_steps, panels, sums, row0, count, *epilogue)
                first, end = (f.umin(f.sub(f.umax(at, base), base), p.count) for at in bounds)
                kernel.units(first, end, f.select(parts.whole, first, f.add(end, parts.between)))
                base += p.count
            return [row0]

        return f.for_(top, bottom, products[0].at_once, copied, some_rows)

    with all_tiles(f):
        emit_in_turn(f, turns, parts.count, nth, [i64(-1)], part)


@dataclass(frozen=True)
class _Parts:
    """How a product is cut into parts that threads take: bands of rows, each with runs of units."""

    height: Value
    """The rows of a band."""
    run: Value
    """The units of a run."""
    runs: Value
    count: Value
    whole: Value
    """Whether a run is all units."""
    between: Value
    """The units that the other threads take meanwhile, if all are as fast."""

    @staticmethod
    def of(products: Sequence[TileProduct], nth: Value, ready: bool) -> _Parts:
        first = products[0]
        f, rows, most = first.f, first.rows.count, first.at_once
        total = sum(p.count for p in products)
        # Long runs hand on the last block of a unit while the next one is multiplied.
        blocks = f.umax(f.umin(first.blocks_of(rows), most // HIGH), 1)
        run = f.umax(f.udiv(i64(total), f.mul(nth, _RUNS)), f.udiv(i64(_RUN_BLOCKS), blocks))
        whole = f.icmp("eq", nth, 1)
        height = i64(most)
        if ready:
            many = f.icmp("uge", rows, f.mul(nth, SPLIT_ROWS))
            whole = f.or_(whole, many)
            # Bands that panels pass by are as low as one likes; others should be few.
            bands = _BANDS if first.passing else _up(f, rows, f.mul(nth, most))
            even = f.and_(f.add(_up(f, rows, f.mul(nth, bands)), HIGH - 1), -HIGH)
            height = f.select(many, even, height)
        run = f.select(whole, i64(total), f.umin(f.umax(run, 1), total))
        runs = _up(f, i64(total), run)
        count = f.mul(f.udiv(f.add(rows, f.sub(height, 1)), height), runs)
        return _Parts(height, run, runs, count, whole, f.mul(run, f.sub(nth, 1)))


def _up(f: Function, a: Value, b: Value) -> Value:
    """Return a / b rounded up, and 1 for no a."""
    return f.umax(f.udiv(f.add(a, f.sub(b, 1)), b), 1)


@dataclass(frozen=True)
class _Kernel:
    """A group's product with some rows, in tiles, while it is written."""

    p: TileProduct
    weights: Sequence[Value]
    tiles: Value
    row_steps: Value
    panels: Value
    sums: Value
    row0: Value
    """The number of the first row."""
    count: Value
    store: StorePanel
    ahead: Callable[[Value, Value], None]

    def units(self, first: Value, end: Value, beyond: Value) -> None:
        """Multiply the rows with the panels of some units; `beyond` may be the one after them."""
        f = self.p.f

        def unit(u: Value, carried: list[Value]) -> list[Value]:
            after = f.add(u, 1)
            following = f.select(f.icmp("eq", after, end), beyond, after)
            return self._unit(u, following, _Pending(*carried)).values

        left = f.for_(first, end, 1, _NOTHING.values, unit)
        self._hand_on(_Pending(*left), i64(0), i64(HIGH))

    def _unit(self, unit: Value, following: Value, pending: _Pending) -> _Pending:
        """
        Multiply the rows with a unit's panels; return the block that is still to hand on.

        Meanwhile memory is asked for the panels of the `following` unit.
        """
        p, f = self.p, self.p.f
        sources = p.sources(unit, self.weights)
        ahead = self._ahead(following)

        def k_block(carried: list[Value]) -> list[Value]:
            k0, *rest = carried
            length = f.umin(f.sub(p.k, k0), p.block)
            self._fill(sources, k0, length)
            panels = self._operands(sources, k0)
            last = f.icmp("eq", f.add(k0, length), p.k)

            def rows(r: Value, before: list[Value]) -> list[Value]:
                own = f.umin(f.sub(self.count, r), HIGH)
                now = _Pending(unit, r, f.select(last, own, i64(0)))
                self._block(panels, now, own, k0, length, _Pending(*before), ahead)
                return now.values

            return [f.add(k0, length), *f.for_(0, self.count, HIGH, rest, rows)]

        if p.block == p.k:
            return _Pending(*k_block([i64(0), *pending.values])[1:])
        start = [i64(0), *pending.values]
        return _Pending(*f.while_(start, lambda c: f.icmp("slt", c[0], p.k), k_block)[1:])

    def _ahead(self, unit: Value) -> AskStep | None:
        """Return what asks for a unit's panels, a part at each step; None where they are in L2."""
        p, f = self.p, self.p.f
        if p.passing:
            return None
        sources = [at for _, at in p.sources(unit, self.weights)]
        blocks = p.blocks_of(self.count)
        steps = f.mul(blocks, p.steps)
        each = f.udiv(f.add(steps, p.lines - 1), steps)
        each = f.select(f.icmp("uge", blocks, _BUSY_BLOCKS), each, i64(0))

        def ask(step: Value) -> None:
            first = f.mul(step, each)

            def one(line: Value, _: list[Value]) -> list[Value]:
                for at in sources:
                    f.prefetch(f.at(at, line, CACHE_LINE), locality=2)
                return []

            f.for_(first, f.umin(f.add(first, each), p.lines), 1, [], one)

        return ask

    def _fill(self, sources: Sequence[Source], k0: Value, length: Value) -> None:
        """Dequantise [k0, k0 + length) of a unit's panels."""
        p, f = self.p, self.p.f
        for i, (name, source) in enumerate(sources):
            if is_ready(name, p.k):
                continue
            form = FORMATS[name]
            first = f.udiv(k0, form.block)
            heads = f.at(source, heads_at(f, form, p.k // form.block))
            at = f.at(source, first, form.block_step), f.at(heads, first, form.head_step)
            fill_tiles(f, name, *at, f.at(self.panels, i * p.tile_bytes), length)

    def _operands(self, sources: Sequence[Source], k0: Value) -> list[Value]:
        """Return where each panel's tiles are: where it was filled, or the panel itself."""
        p, f = self.p, self.p.f
        filled = [f.at(self.panels, i * p.tile_bytes) for i in range(len(sources))]
        return [
            f.at(source, k0, p.per_k) if is_ready(name, p.k) else at
            for (name, source), at in zip(sources, filled, strict=True)
        ]

    def _sums_at(self, r: Value) -> Value:
        """Return where the sums of a block of rows are."""
        p, f = self.p, self.p.f
        place = f.and_(r, p.waiting - 1) if p.block == p.k else r
        return f.at(self.sums, place, p.across * LINE)

    def _hand_on(self, block: _Pending, first: Value, end: Value) -> None:
        """Hand rows of a block on to the epilogue, those that it has of first to end - 1."""
        p, f = self.p, self.p.f
        row, at = f.add(self.row0, block.row), self._sums_at(block.row)
        steps = p.steps_at(block.unit, self.weights) if p.rows.bytes else []

        def one(r: Value, _: list[Value]) -> list[Value]:
            own = f.at(self.row_steps, f.add(block.row, r), OF_ROW) if p.rows.bytes else None
            values = p.loaded(f.at(at, r, p.across * LINE), own, steps)
            p.finish(block.unit, f.add(row, r), values, self.store)
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
        own: Value,
        k0: Value,
        length: Value,
        before: _Pending,
        ahead: AskStep | None,
    ) -> None:
        """
        Multiply a block of `own` rows with a unit's panels, `length` of k from k0 on.

        Meanwhile the block before is handed on, some rows at each of the first steps, and memory is
        asked for what the epilogue of this one wants, and `ahead`.
        """
        p, f, r = self.p, self.p.f, now.row
        a = f.at(f.at(self.tiles, r, p.copies.row), k0, p.copies.step // p.element.depth)
        steps = p.steps_of(length)
        # The steps of the unit that came before.
        earlier = f.mul(p.steps_of(k0), p.blocks_of(self.count))
        done = f.add(earlier, f.mul(p.blocks_of(r), steps))
        for column in range(p.across // p.wide):
            b = panels[column * p.wide : (column + 1) * p.wide]
            c = f.at(self._sums_at(r), column * p.wide * LINE)

            def meanwhile(s: Value) -> None:
                first = f.mul(s, p.rows_a_step)
                end = f.add(first, p.rows_a_step)
                self._hand_on(before, first, end)
                self._ask(now, first, end)
                if ahead:
                    ahead(f.add(done, s))

            more = f.icmp("ne", k0, 0)
            if p.copies.tiles:
                two = f.icmp("ugt", own, amx.ROWS)
                self._tiles(a, b, c, steps, more, two, None if column else meanwhile)
                continue
            # Nothing hides behind dot products: what is done meanwhile comes before them.
            if not column:
                f.for_(0, steps, 1, [], lambda s, none, also=meanwhile: also(s) or none)
            stride, across = p.copies.row, p.across * LINE
            multiply_rows(f, a, stride, b, amx.TILE_BYTES, c, across, own, steps, more)

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
            # L1 is for what stays: whoever reads what goes by next finds it in L2.
            at = f.at(at, r * p.steps * amx.TILE_BYTES)
            amx.load(f, _A + r, at, amx.ROW_BYTES, once=not p.passing)
            for w in range(p.wide):
                amx.multiply(f, _SUM + 2 * r + w, _A + r, _B + w, p.element)
            return []

        def step(s: Value, _: list[Value]) -> list[Value]:
            for w in range(p.wide):
                amx.load(f, _B + w, f.at(b[w], s, amx.TILE_BYTES), amx.ROW_BYTES, once=p.passing)
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
