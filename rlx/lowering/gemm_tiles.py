"""
Products of bf16 rows on the matrix unit, with sums in f32.

A panel is dequantised to the tiles that the unit wants, `[k / 32]` times the pairs of 32 k and 16
outputs, 1 KB; panels of bf16 are packed like that already. A block of two tiles of rows and two of
panels takes four loads for four products, and the loads hide behind them. Rows are read as they
lie.

K that is no multiple of 32 has a last step that begins 32 before its end: the weights of what the
step before has taken in are zero there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.lowering import amx
from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import (
    CHUNK,
    FORMATS,
    block_scale,
    chunk_columns,
    chunk_pointers,
    chunk_scales,
    heads_at,
    load_column,
)
from rlx.lowering.gemm_product import LINE, SCRATCH, SUMS, Product, Source
from rlx.lowering.target import PANEL, Target
from rlx.lowering.values import Value, i64

_L1_PANELS = 40 * 1024
"""Bytes of tiles that stay in the L1 cache while rows go by."""
_HIGH = 2 * amx.ROWS
"""Rows of a block."""
_SUM, _A, _B = 0, 4, 6
"""The first of four tiles of sums, `[rows][panels]`, of two of rows and of two of panels."""


def has_tiles(target: Target, k: int) -> bool:
    """Return whether rows of k are multiplied on the matrix unit."""
    return amx.has_amx(target) and k >= amx.DEPTH


@dataclass(frozen=True)
class TileProduct(Product):
    """A product by tiles of the matrix unit."""

    @property
    def neighbours(self) -> int:
        return 2 if len(self.group.formats) == 1 else 1

    @property
    def wide(self) -> int:
        return 2 if self.across % 2 == 0 else 1

    @property
    def per_k(self) -> int:
        return LINE // 2

    @property
    def block(self) -> int:
        """Return k in even parts, whose tiles stay in the L1 cache."""
        most = self.whole_blocks(_L1_PANELS // (self.per_k * self.across))
        parts = -(-self.k // most)
        return min(self.k, self.whole_blocks(-(-self.k // parts) + CHUNK - 1))

    @property
    def chunk(self) -> int:
        """Return a block's rows, whose sums are still in L1 when they are handed on."""
        return SCRATCH // (LINE * self.across) // _HIGH * _HIGH if self.block < self.k else _HIGH

    def begin(self, rows: Value) -> None:
        """Configure the tiles for blocks of full height, or for the rows if there are fewer."""
        f = self.f
        f.if_(f.icmp("ne", rows, 0), lambda: _configure(f, f.umin(rows, _HIGH)) or [])

    def end(self) -> None:
        amx.release(self.f)

    def fill(self, sources: Sequence[Source], panels: Value, k0: Value, length: Value) -> None:
        f = self.f
        for (name, source), out in zip(sources, self._filled(panels), strict=True):
            if self._is_ready(name):
                continue
            form = FORMATS[name]
            first = f.udiv(k0, form.block)
            heads = f.at(source, heads_at(f, form, self.k // form.block))
            f.call(
                _filler(f.module, name),
                "void",
                f.at(source, first, form.block_step),
                f.at(heads, first, form.head_step),
                out,
                length,
            )

    def operands(self, sources: Sequence[Source], panels: Value, k0: Value) -> list[Value]:
        """Return where each panel's tiles are: where it was filled, or the panel itself."""
        filled = self._filled(panels)
        return [
            self.f.at(source, k0, self.per_k) if self._is_ready(name) else out
            for (name, source), out in zip(sources, filled, strict=True)
        ]

    def _filled(self, panels: Value) -> list[Value]:
        """Return where each panel of a unit is filled."""
        size = self.panels_bytes // self.across
        return [self.f.at(panels, i * size) for i in range(self.across)]

    def _is_ready(self, name: str) -> bool:
        """Return whether panels of a format are tiles as they are packed: pairs of bf16."""
        return name == "bf16" and self.k % amx.DEPTH == 0

    def cover(
        self,
        a: Value,
        operands: Sequence[Value],
        sums: Value,
        rows: Value,
        length: Value,
        more: Value,
        all_rows: Value,
    ) -> None:
        few = self.f.icmp("ult", all_rows, _HIGH)
        self.f.call(_cover(self), "void", a, *operands, sums, rows, length, more, few)


def _configure(f: Function, rows: Value) -> None:
    """Configure the tiles for a block of 1 to 32 rows."""
    top = f.umin(rows, amx.ROWS)
    low = f.umax(f.sub(rows, top), 1)
    counts = [top, top, low, low, top, low, i64(amx.ROWS), i64(amx.ROWS)]
    amx.configure(f, f.scratch("tiles", amx.ROW_BYTES), counts)


def _cover(p: TileProduct) -> str:
    """
    Return a function that covers rows with blocks.

    The last rows are fewer than a block's: they have a configuration of their own, and so no row
    is read or written that is not there. Where all rows are `few`, theirs is in place already.
    """

    def body(f: Function) -> None:
        a, *panels, sums, rows, length, more, few = f.params

        def block(r: Value, high: int) -> None:
            for tile in range(p.across // p.wide):
                b = panels[tile * p.wide : (tile + 1) * p.wide]
                c = f.at(f.at(sums, r, p.across * LINE), tile * p.wide * LINE)
                f.call(_tile(p, high), "void", f.at(a, r, p.stride), *b, c, length, more)

        whole = f.and_(rows, -_HIGH)
        f.for_(0, whole, _HIGH, [], lambda r, _: block(r, 2) or [])
        left = f.sub(rows, whole)

        def configured(count: Value) -> None:
            f.if_(few, list, lambda: _configure(f, count) or [])

        def rest() -> list[Value]:
            configured(left)
            f.if_(
                f.icmp("ugt", left, amx.ROWS),
                lambda: block(whole, 2) or [],
                lambda: block(whole, 1) or [],
            )
            configured(i64(_HIGH))
            return []

        f.if_(f.icmp("ne", left, 0), rest)
        f.ret()

    pointers = [("ptr", name) for name in ("a", *_names(p.across), "sums")]
    params = [*pointers, ("i64", "rows"), ("i64", "length"), ("i1", "more"), ("i1", "few")]
    name = f"gemm.tiles_{p.k}_{p.stride}_{p.across}_{p.wide}"
    return p.f.module.once(name, params, body)


def _tile(p: TileProduct, high: int) -> str:
    """
    Return a function that multiplies `high` tiles of rows with `p.wide` of panels.

    It starts from the sums at c where `more`, from zero otherwise, and leaves the sums at c.
    """
    ragged = p.k % amx.DEPTH != 0

    def body(f: Function) -> None:
        a, *b, c, k, more = f.params
        across = p.across * LINE
        sums = [
            (_SUM + 2 * r + w, f.at(c, r * amx.ROWS * across + w * LINE))
            for r in range(high)
            for w in range(p.wide)
        ]

        def go_on() -> list[Value]:
            for tile, at in sums:
                amx.load(f, tile, at, across)
            return []

        def start() -> list[Value]:
            for tile, _ in sums:
                amx.zero(f, tile)
            return []

        def step(i: Value, _: list[Value]) -> list[Value]:
            at = _start(f, i, k) if ragged else i
            for r in range(high):
                amx.load(f, _A + r, f.at(f.at(a, at, 2), r * amx.ROWS * p.stride), p.stride, True)
            for w in range(p.wide):
                amx.load(f, _B + w, f.at(b[w], i, LINE // 2), amx.ROW_BYTES)
            for r in range(high):
                for w in range(p.wide):
                    amx.multiply(f, _SUM + 2 * r + w, _A + r, _B + w)
            return []

        f.if_(more, go_on, start)
        f.for_(0, k, amx.DEPTH, [], step)
        for tile, at in sums:
            amx.store(f, tile, at, across)
        f.ret()

    name = f"gemm.block_{high}x{p.wide}_{p.stride}_{p.across}_{int(ragged)}"
    pointers = [("ptr", name) for name in ("a", *_names(p.wide), "c")]
    return p.f.module.once(name, [*pointers, ("i64", "k"), ("i1", "more")], body)


def _names(count: int) -> list[str]:
    return [f"b{i}" for i in range(count)]


def _start(f: Function, i: Value, length: Value) -> Value:
    """Return where a step at i begins: earlier where it would go past the end, even of a block."""
    return f.intrinsic("smin", "i64", i, f.sub(length, amx.DEPTH))


def _filler(module: Module, name: str) -> str:
    """Return a function that writes `length` of a panel's k as tiles."""

    def body(f: Function) -> None:
        form = FORMATS[name]
        panel, heads, out, length = f.params

        def chunk(i: Value, _: list[Value]) -> list[Value]:
            at, head, place = chunk_pointers(f, form, panel, heads, i)
            scales = chunk_scales(f, form, head, block_scale(f, form, head), place)
            columns = chunk_columns(f, form, at, scales)
            to = f.at(out, i, amx.TILE_BYTES)
            for j in range(amx.ROWS):
                pair = amx.pairs(f, *columns[2 * j : 2 * j + 2])
                f.store(pair, f.at(to, j * amx.ROW_BYTES), align=64)
            return []

        def floats(i: Value, _: list[Value]) -> list[Value]:
            """Write a tile; of the last one the k that are not in the one before."""
            first = _start(f, i, length)
            to = f.at(out, i, LINE // 2)

            def pair(j: Value, _: list[Value]) -> list[Value]:
                at = [f.add(first, f.add(f.mul(j, 2), n)) for n in range(2)]
                columns = [
                    f.select(
                        f.splat(f.icmp("sge", k, i), PANEL),
                        load_column(f, name, panel, k),
                        f.zero(SUMS),
                    )
                    for k in at
                ]
                f.store(amx.pairs(f, *columns), f.at(to, j, amx.ROW_BYTES), align=64)
                return []

            return f.for_(0, amx.ROWS, 1, [], pair)

        if form.quantised:
            f.for_(0, f.udiv(length, CHUNK), 1, [], chunk)
        else:
            f.for_(0, length, amx.DEPTH, [], floats)
        f.ret()

    params = [("ptr", "panel"), ("ptr", "heads"), ("ptr", "out"), ("i64", "length")]
    return module.once(f"gemm.tiles_of_{name}", params, body)
