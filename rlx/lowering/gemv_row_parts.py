"""
A few rows of f32 times packed weights on the matrix unit, in parts that threads take in turn.

A part is rows times panels: the digits of some tiles of rows stay while panels go by.
"""

from __future__ import annotations

from functools import partial

from rlx.lowering import amx
from rlx.lowering.contract import SPLIT_ROWS
from rlx.lowering.digit_tiles import TILE_ROWS, tile_digits_function
from rlx.lowering.emitter import Function
from rlx.lowering.formats import CHUNK, FORMATS
from rlx.lowering.gemv_row_panels import RowPanels
from rlx.lowering.gemv_tiles import configure, in_pairs, layout_of, tile_function
from rlx.lowering.in_turn import emit_in_turn
from rlx.lowering.values import Value, i64

_LOW = 8
"""Rows up to which the sums of half a tile are put together."""
_PARTS, _RUNS = 2, 8
"""Parts of rows, or runs of panels, that each thread would take if all were as fast."""


def emit_parts(what: RowPanels, tiles: int, rows: Value, turns: Value, nth: Value) -> None:
    """Emit the products of `rows` rows, of which `tiles` tiles have digits at a time."""
    f, module, blocks = what.f, what.f.module, what.k // CHUNK
    forms = [form for form in what.forms if form.quantised]
    layout = layout_of(module, forms)
    digits = f.scratch("digits", tiles * blocks * layout.size)
    ways = {in_pairs(module, form) for form in forms}
    total = sum(group.panels for group in what.groups)
    height, run = _parts(f, tiles, rows, total, nth)
    runs = f.udiv(f.add(run, total - 1), run)

    def tile_at(t: Value) -> Value:
        return f.at(digits, t, blocks * layout.size)

    def rows_from(first: Value, count: Value) -> Value:
        """Return how many of `count` rows are in a tile, from its first one on."""
        return f.umin(f.sub(count, first), TILE_ROWS)

    def write(row0: Value, count: Value) -> list[Value]:
        def tile(t: Value, _: list[Value]) -> list[Value]:
            first = f.mul(t, TILE_ROWS)
            source = f.at(what.a, f.add(row0, first), what.stride)
            own = rows_from(first, count)
            name = tile_digits_function(module, layout, what.stride)
            f.call(name, "void", source, tile_at(t), i64(blocks), own)
            return []

        return f.for_(0, _tiles_of(f, count), 1, [], tile)

    def panel(row0: Value, count: Value, g: int, p: Value, _: list[Value]) -> list[Value]:
        def tile(t: Value, _: list[Value]) -> list[Value]:
            first = f.mul(t, TILE_ROWS)
            own = rows_from(first, count)

            def kernel(name: str, panel: Value, blocks: Value, sums: Value) -> None:
                if len(ways) > 1:
                    configure(f, in_pairs(module, FORMATS[name]))

                def call(height: int) -> list[Value]:
                    function = tile_function(module, name, layout, height)
                    f.call(function, "void", tile_at(t), panel, blocks, sums)
                    return []

                f.if_(f.icmp("ule", own, _LOW), lambda: call(_LOW), lambda: call(TILE_ROWS))

            what.panel(g, p, f.add(row0, first), own, TILE_ROWS, kernel)
            return []

        return f.for_(0, _tiles_of(f, count), 1, [], tile)

    def part(number: Value, written: list[Value]) -> list[Value]:
        band = f.udiv(number, runs)
        start = f.mul(f.sub(number, f.mul(band, runs)), run)
        row0 = f.mul(band, height)
        count = f.umin(f.sub(rows, row0), height)
        f.if_(f.icmp("ne", row0, written[0]), lambda: write(row0, count))
        base = 0
        for g, group in enumerate(what.groups):
            first, end = (
                f.umin(f.sub(f.umax(at, base), base), group.panels)
                for at in (start, f.add(start, run))
            )
            f.for_(first, end, 1, [], partial(panel, row0, count, g))
            base += group.panels
        return [row0]

    configure(f, next(iter(ways)))
    bands = f.udiv(f.add(rows, f.sub(height, 1)), height)
    emit_in_turn(f, turns, f.mul(bands, runs), nth, [i64(-1)], part)
    amx.release(f)


def _tiles_of(f: Function, rows: Value) -> Value:
    return f.udiv(f.add(rows, TILE_ROWS - 1), TILE_ROWS)


def _parts(f: Function, tiles: int, rows: Value, panels: int, nth: Value) -> tuple[Value, Value]:
    """
    Return the rows and the panels of a part that a thread takes.

    Of many rows these are fewer, and all panels, so that the digits of a row are made once.
    """
    most = i64(tiles * TILE_ROWS)
    each = f.udiv(f.add(rows, f.sub(f.mul(nth, _PARTS), 1)), f.mul(nth, _PARTS))
    even = f.mul(_tiles_of(f, each), TILE_ROWS)
    many = f.icmp("uge", rows, f.mul(nth, SPLIT_ROWS))
    height = f.select(many, f.umin(even, most), most)
    run = f.umax(f.udiv(i64(panels), f.mul(nth, _RUNS)), 1)
    whole = f.or_(many, f.icmp("eq", nth, 1))
    return f.select(f.icmp("eq", nth, 1), most, height), f.select(whole, i64(panels), run)
