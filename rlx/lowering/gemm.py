"""
Rows of f32 activations times packed weights, in f32.

A unit of panels (the weights of a group, or two neighbours of a single one) is dequantised into a
scratch, 16 f32 for each k, and multiplied with all rows by register tiles. Every tile adds
the products of an output in the order of k, one after the other: a row's result depends neither on
the rows beside it nor on the number of threads, to the bit.

Where k is too large for the scratch, and for few rows, it is cut into blocks, for chunks of rows
whose sums wait in a second scratch between the blocks. Tiles, and what fills the scratch, are
functions that all contractions of a module share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rlx.lowering.contract import Group, check, shares
from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import (
    CHUNK,
    FORMATS,
    block_scale,
    chunk_columns,
    chunk_pointers,
    chunk_scales,
    heads_at,
    load_float,
    panel_bytes,
)
from rlx.lowering.target import PANEL, Target
from rlx.lowering.values import Value, i64

StoreRow = Callable[[Function, int, Value, Value, list[Value]], None]
"""An epilogue: called with the group, the row and panel (i64), an <16 x float> for each weight."""

_SCRATCH = 256 * 1024
"""Bytes of dequantised panels at a time: inside every L2 cache, and a thread's stack."""
_L1_SCRATCH = 16 * 1024
"""The same for few rows, where dequantising costs more than keeping sums between blocks of k."""
_FEW_ROWS = 126

_ROW = f"<{PANEL} x float>"
_LINE = 4 * PANEL


def _heights(target: Target) -> tuple[int, ...]:
    """Return the rows of the register tiles: the largest leaves registers for the operands."""
    if target.avx512:
        return 14, 8, 4, 2, 1
    if target.avx2 or target.registers == 32:
        return 6, 4, 2, 1
    return 2, 1


@dataclass(frozen=True)
class _Product:
    """The product of rows with one group, as far as it is known when code is generated."""

    f: Function
    k: int
    group: Group
    stride: int

    @property
    def neighbours(self) -> int:
        """Return the panels of one weight in a unit: an AVX-512 tile is two panels wide."""
        return 2 if self.f.target.avx512 and len(self.group.formats) == 1 else 1

    @property
    def across(self) -> int:
        """Return the panels of a unit."""
        return len(self.group.formats) * self.neighbours

    @property
    def wide(self) -> int:
        """Return the panels of a tile."""
        return 2 if self.f.target.avx512 and self.across % 2 == 0 else 1

    @property
    def units(self) -> int:
        return -(-self.group.panels // self.neighbours)

    @property
    def block(self) -> int:
        """Return how many of k are dequantised at a time, at most."""
        return min(self.k, self._whole_blocks(_SCRATCH // (_LINE * self.across)))

    @property
    def block_for_few(self) -> int:
        """Return how many of k are dequantised at a time for few rows."""
        return min(self.k, self._whole_blocks(_L1_SCRATCH // (_LINE * self.across)))

    def _whole_blocks(self, k: int) -> int:
        """Return how many of k elements are whole blocks of all formats: one at least."""
        step = max(CHUNK, *(FORMATS[name].block for name in self.group.formats))
        return max(step, k // step * step)

    @property
    def chunk(self) -> int:
        """Return the rows whose sums are kept: many, where each chunk dequantises anew."""
        rows = _SCRATCH // (2 * _LINE * self.across) if self.block < self.k else _FEW_ROWS
        largest = _heights(self.f.target)[0]
        return rows // largest * largest


def emit_gemm(
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
) -> None:
    """
    Emit `rows` (i64, may be 0) rows of k f32 times this thread's share of the groups' panels.

    Row r is at a + r * a_stride_bytes; `weights` are pointers to packed weights, for each group.
    `store(f, group, row, panel, values)` emits what is done with a row's outputs of a panel. The
    stack used is at most 400 KB, once for all products in a function.
    """
    check(k, groups, weights)
    products = [_Product(f, k, group, a_stride_bytes) for group in groups]
    panels = f.scratch("panels", max(p.block * p.across * _LINE for p in products))
    sums = f.scratch("sums", max(p.chunk * p.across * _LINE for p in products))
    few = f.icmp("ule", rows, _FEW_ROWS)
    split = shares(f, [p.units for p in products], [p.across for p in products], tid, nth)
    for g, (first, last) in enumerate(split):
        p = products[g]
        block = i64(p.block)
        if p.block_for_few < p.block:
            block = f.select(few, i64(p.block_for_few), block)

        def unit(u: Value, _: list[Value], g: int = g, block: Value = block) -> list[Value]:
            scratch = panels, sums, block
            _emit_unit(products[g], u, a, rows, weights[g], scratch, partial(store, f, g))
            return []

        f.for_(first, last, 1, [], unit)


def _emit_unit(
    p: _Product,
    unit: Value,
    a: Value,
    rows: Value,
    weights: Sequence[Value],
    scratch: tuple[Value, Value, Value],
    store: Callable[[Value, Value, list[Value]], None],
) -> None:
    """
    Multiply all rows with a unit's panels, chunk by chunk, and hand the sums on.

    The scratch is for panels, for sums, and holds so many of k.
    """
    f = p.f
    panels, sums, block = scratch
    numbers = [f.add(f.mul(unit, p.neighbours), j) for j in range(p.neighbours)]
    # The neighbour of the last panel of an odd number is that panel again, and not stored.
    read = [f.umin(n, p.group.panels - 1) if p.group.panels % p.neighbours else n for n in numbers]
    sources = [
        (name, f.at(weight, number, panel_bytes(name, p.k)))
        for number in read
        for name, weight in zip(p.group.formats, weights, strict=True)
    ]

    def chunk(r0: Value, _: list[Value]) -> list[Value]:
        count = f.umin(f.sub(rows, r0), p.chunk)

        def k_block(carried: list[Value]) -> list[Value]:
            (k0,) = carried
            length = f.umin(f.sub(p.k, k0), block)
            # What is in the scratch serves the next chunk only where it is all of k.
            stale = f.or_(f.icmp("eq", r0, 0), f.icmp("ult", block, p.k))
            f.if_(stale, partial(_fill, p, sources, panels, k0, length))
            start = f.at(f.at(a, r0, p.stride), k0, 4)
            more = f.icmp("ne", k0, 0)
            f.call(_cover(p), "void", start, panels, sums, count, length, more)
            return [f.add(k0, length)]

        f.while_([i64(0)], lambda carried: f.icmp("slt", carried[0], p.k), k_block)
        f.for_(0, count, 1, [], partial(finish, r0))
        return []

    def finish(r0: Value, r: Value, _: list[Value]) -> list[Value]:
        at = f.at(sums, r, p.across * _LINE)
        values = [f.load(_ROW, f.at(at, i * _LINE), align=64) for i in range(p.across)]
        each = len(p.group.formats)
        for j, number in enumerate(numbers):
            of_panel = partial(store, f.add(r0, r), number, values[j * each : (j + 1) * each])
            if j and p.group.panels % p.neighbours:
                f.if_(f.icmp("ult", number, p.group.panels), lambda: of_panel() or [])
            else:
                of_panel()
        return []

    f.for_(0, rows, p.chunk, [], chunk)


def _fill(
    p: _Product, sources: Sequence[tuple[str, Value]], panels: Value, k0: Value, length: Value
) -> list[Value]:
    """Dequantise [k0, k0 + length) of a unit's panels: those of a tile side by side for each k."""
    f = p.f
    for i, (name, source) in enumerate(sources):
        form = FORMATS[name]
        first, count = f.udiv(k0, form.block), f.udiv(length, form.block)
        tile, place = divmod(i, p.wide)
        out = f.at(panels, (tile * p.block * p.wide + place) * _LINE)
        heads = f.at(source, heads_at(f, form, p.k // form.block))
        f.call(
            _filler(f.module, name, p.wide),
            "void",
            f.at(source, first, form.block_step),
            f.at(heads, first, form.head_step),
            out,
            count,
        )
    return []


def _cover(p: _Product) -> str:
    """Return a function that covers rows with register tiles, the largest first."""

    def body(f: Function) -> None:
        a, panels, sums, rows, length, more = f.params
        row = i64(0)
        for height in _heights(f.target):

            def cover(carried: list[Value], height: int = height) -> list[Value]:
                (r,) = carried
                for tile in range(p.across // p.wide):
                    b = f.at(panels, tile * p.block * p.wide * _LINE)
                    c = f.at(f.at(sums, r, p.across * _LINE), tile * p.wide * _LINE)
                    f.call(_tile(p, height), "void", f.at(a, r, p.stride), b, c, length, more)
                return [f.add(r, height)]

            def fits(carried: list[Value], height: int = height) -> Value:
                return f.icmp("sle", f.add(carried[0], height), rows)

            (row,) = f.while_([row], fits, cover)
        f.ret()

    pointers = [("ptr", name) for name in ("a", "panels", "sums")]
    params = [*pointers, ("i64", "rows"), ("i64", "length"), ("i1", "more")]
    name = f"gemm.cover_{p.k}_{p.stride}_{p.across}_{p.wide}"
    return p.f.module.once(name, params, body)


def _filler(module: Module, name: str, wide: int) -> str:
    """Return a function that writes a panel's blocks as f32, every `wide` lines of 64 bytes."""

    def body(f: Function) -> None:
        form = FORMATS[name]
        panel, heads, out, blocks = f.params

        def element(i: Value, _: list[Value]) -> list[Value]:
            value = load_float(f, name, f.at(panel, i, form.block_step), PANEL)
            f.store(value, f.at(out, i, wide * _LINE), align=64)
            return []

        def chunk(i: Value, _: list[Value]) -> list[Value]:
            at, head, place = chunk_pointers(f, form, panel, heads, i)
            scales = chunk_scales(f, form, head, block_scale(f, form, head), place)
            to = f.at(out, i, CHUNK * wide * _LINE)
            for j, value in enumerate(chunk_columns(f, form, at, scales)):
                f.store(value, f.at(to, j * wide * _LINE), align=64)
            return []

        if form.quantised:
            f.for_(0, f.mul(blocks, form.chunks), 1, [], chunk)
        else:
            f.for_(0, blocks, 1, [], element)
        f.ret()

    params = [("ptr", "panel"), ("ptr", "heads"), ("ptr", "out"), ("i64", "blocks")]
    return module.once(f"gemm.fill_{name}_{wide}", params, body)


def _tile(p: _Product, height: int) -> str:
    """
    Return a function that multiplies `height` rows with `p.wide` dequantised panels.

    It starts from the sums at c where `more`, from zero otherwise, and leaves the sums at c.
    """
    unroll = 2 if p.k % 2 == 0 and height == _heights(p.f.target)[0] else 1

    def body(f: Function) -> None:
        a, b, c, k, more = f.params
        spots = [f.at(c, (r * p.across + w) * _LINE) for r in range(height) for w in range(p.wide)]

        def step(i: Value, sums: list[Value]) -> list[Value]:
            a_i, b_i = f.at(a, i, 4), f.at(b, i, p.wide * _LINE)
            for j in range(unroll):
                columns = [
                    f.load(_ROW, f.at(b_i, (j * p.wide + w) * _LINE), align=64)
                    for w in range(p.wide)
                ]
                for r in range(height):
                    x = f.splat(f.load("float", f.at(a_i, r * p.stride + 4 * j)), PANEL)
                    for w, column in enumerate(columns):
                        sums[r * p.wide + w] = f.fma(x, column, sums[r * p.wide + w])
            return sums

        sums = f.if_(
            more,
            lambda: [f.load(_ROW, spot, align=64) for spot in spots],
            lambda: [f.zero(_ROW)] * len(spots),
        )
        for spot, value in zip(spots, f.for_(0, k, unroll, sums, step), strict=True):
            f.store(value, spot, align=64)
        f.ret()

    name = f"gemm.tile_{height}x{p.wide}_{p.stride}_{p.across}_{unroll}"
    params = [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("i64", "k"), ("i1", "more")]
    return p.f.module.once(name, params, body)
