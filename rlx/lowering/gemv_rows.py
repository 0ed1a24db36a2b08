"""
A few rows of f32 activations times packed weights, each as `gemv.py` takes its one: to the bit.

A panel of weights is read, and where registers are wide enough unpacked, once for all rows of a
tile, of 16 rows on the matrix unit (`gemv_tiles.py`) where there are enough. The sums of a row are
put together by the very operations of a single one, so that what a row gives depends neither on the
rows beside it nor on their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rlx.errors import RlxError
from rlx.lowering import amx
from rlx.lowering.contract import Group, check
from rlx.lowering.digit_tiles import TILE_ROWS, tile_digits_function
from rlx.lowering.digits import DIGITS, Numbers, bias, digits_function, planes
from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import (
    CHUNK,
    FORMATS,
    GROUPS,
    Format,
    block_scale,
    chunk_scales,
    group_bytes,
    heads_at,
    load_words,
    panel_bytes,
)
from rlx.lowering.gemm_unit import StoreRow
from rlx.lowering.gemv import split
from rlx.lowering.gemv_dots import Sums, digits_of, dot_of, multiply
from rlx.lowering.gemv_panels import join, panels_function, scaled
from rlx.lowering.gemv_tiles import configure, in_pairs, layout_of, on_tiles, tile_function
from rlx.lowering.in_turn import emit_in_turn
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, i64

_TILE = 16
"""Rows whose digits and sums are kept at a time."""
_STACK = 320 * 1024
"""Bytes that the digits of these rows may take of a thread's stack."""

_TILE_STACK = 512 * 1024
"""Bytes that digits of tiles may take."""
_MOST_TILES = 16
_FEW = 7
"""Rows up to which the products of registers are as fast as those of the matrix unit."""
_LOW = 8
"""Rows up to which the sums of half a tile are put together."""
_SPLIT_ROWS = 64
"""Rows for each thread from which on threads share rows and not panels."""
_PARTS, _RUNS = 2, 8
"""Parts of rows, or runs of panels, that each thread would take if all were as fast."""
_AHEAD = 4096  # bytes: what L1 holds beside the digits of rows

_ROW = f"<{PANEL} x float>"
_INTS = f"<{PANEL} x i32>"
_LINE = 4 * PANEL


def _tile(k: int) -> int:
    """Return the rows of a tile: fewer where rows are long."""
    return max(1, min(_TILE, _STACK // (k // CHUNK * DIGITS or 1)))


def emit_gemv_rows(
    f: Function,
    k: int,
    groups: Sequence[Group],
    a: Value,
    a_stride_bytes: int,
    rows: Value,
    weights: Sequence[Sequence[Value]],
    tid: Value,
    nth: Value,
    store: StoreRow,
    turns: Value | None,
) -> None:
    """
    Emit `rows` (i64, may be 0) rows of k f32 times the groups' panels, on all threads.

    The arguments are those of `emit_gemm`. On the matrix unit threads take parts in turn, else each
    has its share of the panels and makes the digits of all rows for itself.
    """
    check(k, groups, weights)
    what = _Rows(f, k, groups, weights, a, a_stride_bytes, store)
    tiles = tiles_at_once(f.module, k, groups)
    if not tiles:
        _emit_lines(what, rows, tid, nth)
        return
    if turns is None:
        raise RlxError("a product of rows on the matrix unit needs memory for turns")

    def lines() -> list[Value]:
        _emit_lines(what, rows, tid, nth)
        return []

    def on_unit() -> list[Value]:
        _emit_tiles(what, tiles, rows, turns, nth)
        return []

    f.if_(f.icmp("ule", rows, _FEW), lines, on_unit)


def tiles_at_once(module: Module, k: int, groups: Sequence[Group]) -> int:
    """Return how many tiles of rows are in digits at a time on the matrix unit; 0 is without it."""
    forms = _forms(groups)
    if not on_tiles(module.target, forms):
        return 0
    return min(_MOST_TILES, _TILE_STACK // (k // CHUNK * layout_of(module, forms).size))


def _forms(groups: Sequence[Group]) -> list[Format]:
    return [FORMATS[name] for group in groups for name in group.formats]


@dataclass(frozen=True)
class _Rows:
    """What is multiplied: rows of k f32 at `a` with groups of weights."""

    f: Function
    k: int
    groups: Sequence[Group]
    weights: Sequence[Sequence[Value]]
    a: Value
    stride: int
    store: StoreRow

    def panel(
        self, g: int, p: Value, row0: Value, count: Value, high: int, kernel: Quantised
    ) -> None:
        """Multiply `count` rows, at most `high`, with the panels of a group, and hand them on."""
        f, formats = self.f, self.groups[g].formats
        sums = f.scratch("sums", len(formats) * high * _LINE)
        places = [f.at(sums, i * high * _LINE) for i in range(len(formats))]
        for name, weight, place in zip(formats, self.weights[g], places, strict=True):
            pointer, blocks = f.at(weight, p, panel_bytes(name, self.k)), self.blocks(name)
            if FORMATS[name].quantised:
                kernel(name, pointer, blocks, place)
            else:
                first = f.at(self.a, row0, self.stride)
                _float(f, name, first, self.stride, pointer, blocks, count, place)

        def finish(r: Value, _: list[Value]) -> list[Value]:
            values = [f.load(_ROW, f.at(place, r, _LINE), align=64) for place in places]
            self.store(f, g, f.add(row0, r), p, values)
            return []

        f.for_(0, count, 1, [], finish)

    def blocks(self, name: str) -> Value:
        return i64(self.k // FORMATS[name].block)


Quantised = Callable[[str, Value, Value, Value], None]
"""Called with a format, a panel, its blocks and where sums go: multiplies rows with the panel."""


def _emit_lines(what: _Rows, rows: Value, tid: Value, nth: Value) -> None:
    """Multiply in registers, the digits of a row beside each other."""
    f, k, module, tile = what.f, what.k, what.f.module, _tile(what.k)
    forms, shares = _forms(what.groups), split(what.f, what.k, what.groups, tid, nth)
    quantised = any(form.quantised for form in forms)
    digits = f.scratch("digits", tile * (k // CHUNK) * DIGITS) if quantised else what.a

    def some(r0: Value, _: list[Value]) -> list[Value]:
        count = f.umin(f.sub(rows, r0), tile)

        def write_digits(r: Value, _: list[Value]) -> list[Value]:
            row, to = f.at(what.a, f.add(r0, r), what.stride), f.at(digits, r, DIGITS)
            name = digits_function(module, forms, tile)
            f.call(name, "void", row, to, i64(k // CHUNK))
            return []

        def kernel(name: str, panel: Value, blocks: Value, sums: Value) -> None:
            f.call(_quantised(module, name, tile), "void", digits, panel, blocks, count, sums)

        def panel(g: int, p: Value, _: list[Value]) -> list[Value]:
            what.panel(g, p, r0, count, tile, kernel)
            return []

        if quantised:
            f.for_(0, count, 1, [], write_digits)
        for g, (begin, end) in enumerate(shares):
            f.for_(begin, end, 1, [], partial(panel, g))
        return []

    f.for_(0, rows, tile, [], some)


def _emit_tiles(what: _Rows, tiles: int, rows: Value, turns: Value, nth: Value) -> None:
    """Multiply on the matrix unit: digits of so many tiles of rows stay while panels go by."""
    f, module, blocks = what.f, what.f.module, what.k // CHUNK
    forms = [form for form in _forms(what.groups) if form.quantised]
    layout = layout_of(module, forms)
    digits = f.scratch("digits", tiles * blocks * layout.size)
    ways = {in_pairs(module, form) for form in forms}
    total = sum(group.panels for group in what.groups)
    height, run = _parts(f, tiles, rows, total, nth)
    runs = f.udiv(f.add(run, total - 1), run)

    def tile_at(t: Value) -> Value:
        return f.at(digits, t, blocks * layout.size)

    def write(row0: Value, count: Value) -> list[Value]:
        def tile(t: Value, _: list[Value]) -> list[Value]:
            first = f.mul(t, TILE_ROWS)
            source, own = f.at(what.a, f.add(row0, first), what.stride), f.sub(count, first)
            name, own = tile_digits_function(module, layout, what.stride), f.umin(own, TILE_ROWS)
            f.call(name, "void", source, tile_at(t), i64(blocks), own)
            return []

        return f.for_(0, _tiles_of(f, count), 1, [], tile)

    def panel(row0: Value, count: Value, g: int, p: Value, _: list[Value]) -> list[Value]:
        def tile(t: Value, _: list[Value]) -> list[Value]:
            first = f.mul(t, TILE_ROWS)
            own = f.umin(f.sub(count, first), TILE_ROWS)

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
    many = f.icmp("uge", rows, f.mul(nth, _SPLIT_ROWS))
    height = f.select(many, f.umin(even, most), most)
    run = f.umax(f.udiv(i64(panels), f.mul(nth, _RUNS)), 1)
    whole = f.or_(many, f.icmp("eq", nth, 1))
    return f.select(f.icmp("eq", nth, 1), most, height), f.select(whole, i64(panels), run)


def _float(
    f: Function,
    name: str,
    a: Value,
    stride: int,
    panel: Value,
    k: Value,
    rows: Value,
    sums: Value,
) -> None:
    """Multiply rows with a panel of floats, which the first row brings near."""
    kernel = panels_function(f.module, name, 1)

    def row(r: Value, _: list[Value]) -> list[Value]:
        out = f.at(sums, r, _LINE)
        f.call(kernel, "void", f.at(a, r, stride), panel, panel, i64(0), k, out)
        return []

    f.for_(0, rows, 1, [], row)


def _quantised(module: Module, name: str, tile: int) -> str:
    params = [("ptr", "digits"), ("ptr", "panel"), ("i64", "blocks"), ("i64", "rows")]
    body = partial(_emit_quantised, form=FORMATS[name], planes=planes(module), tile=tile)
    return module.once(f"gemv_rows.{name}_{tile}", [*params, ("ptr", "sums")], body)


def _emit_quantised(f: Function, form: Format, planes: int, tile: int) -> None:
    """Write the 16 dot products of a panel with each row of digits, which lie block by block."""
    digits, panel, blocks, rows, sums = f.params
    heads = f.at(panel, heads_at(f, form, blocks))

    def clear(r: Value, _: list[Value]) -> list[Value]:
        f.store(f.zero(_ROW), f.at(sums, r, _LINE), align=64)
        return []

    def block(b: Value, _: list[Value]) -> list[Value]:
        at, head = f.at(panel, b, form.block_step), f.at(heads, b, form.head_step)
        of_block = block_scale(f, form, head)
        first = f.mul(b, form.chunks)

        def chunk(c: Value, _: list[Value]) -> list[Value]:
            words = f.at(at, c, form.chunk_step)
            _prefetch(f, words, form.chunk_step)
            scales = chunk_scales(f, form, head, of_block, c)
            products = _products(f, form, planes, words)
            of_chunk = f.at(digits, f.add(first, c), tile * DIGITS)

            def row(r: Value, _: list[Value]) -> list[Value]:
                digit, place = f.at(of_chunk, r, DIGITS), f.at(sums, r, _LINE)
                numbers = Numbers.of_row(f, digit)
                power = f.splat(numbers.scale, PANEL)
                before = f.load(_ROW, place, align=64)
                joined = [join(f, own) for own in products(digit)]
                value = scaled(f, before, joined, scales, power, numbers)
                f.store(value, place, align=64)
                return []

            f.for_(0, rows, 1, [], row)
            return []

        f.for_(0, form.chunks, 1, [], chunk)
        return []

    f.for_(0, rows, 1, [], clear)
    f.for_(0, blocks, 1, [], block)
    f.ret()


def _prefetch(f: Function, at: Value, size: int) -> None:
    """Ask for `size` bytes, `_AHEAD` bytes on: most often in the next panel."""
    ahead = f.at(at, _AHEAD)
    for line in range(0, size, 64):
        f.prefetch(f.at(ahead, line), locality=3)


def _products(f: Function, form: Format, planes: int, words: Value) -> Callable[[Value], Sums]:
    """Return what gives the sums of a chunk's words with the digits at a pointer."""
    if not f.target.has("avx512vnni"):
        return lambda digit: dot_of(f.target)(f, form, planes, [words], digit)[0]
    loaded = load_words(f, form, words, PANEL)
    numbers = [group_bytes(f, form, loaded, group) for group in range(GROUPS)]
    apart = form.scales_in_chunk == 2

    def products(digit: Value) -> Sums:
        # A chain for each half of the chunk: one of 8 dependent products would wait for latency.
        chains = [
            [
                bias(f, form, digit, half, p, PANEL) if apart or not half else f.zero(_INTS)
                for p in range(planes)
            ]
            for half in range(2)
        ]
        for group, number in enumerate(numbers):
            four = digits_of(f, planes, digit, group, PANEL)
            multiply(f, chains[group * 2 // GROUPS], number, four)
        return chains if apart else [[f.add(a, b) for a, b in zip(*chains, strict=True)]]

    return products
