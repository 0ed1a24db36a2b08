"""
Products in f32, by tiles of vector registers: any machine, and all precision.

Panels are dequantised to f32, 16 for each k. Every tile adds the products of an output in the order
of k, one after the other. Where k is too large for the scratch, and for few rows, it is cut into
blocks, for chunks of rows whose sums wait in a second scratch between the blocks. Tiles, and what
fills the scratch, are functions that all contractions of a module share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rlx.lowering.contract import Group, shares
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
    load_float,
)
from rlx.lowering.gemm_unit import (
    LINE,
    ROUNDED,
    SCRATCH,
    SUMS,
    Rows,
    Source,
    StorePanel,
    StoreRow,
    Units,
)
from rlx.lowering.gemv_panels import ask_ahead
from rlx.lowering.target import PANEL, Target
from rlx.lowering.values import Value, i64
from rlx.lowering.vmath_cast import convert

_L1_SCRATCH = 16 * 1024
"""The scratch for few rows, where dequantising costs more than keeping sums between blocks of k."""
_FEW_ROWS = 120


def _heights(target: Target) -> tuple[int, ...]:
    """Return the rows of the register tiles: the largest leaves registers for the operands."""
    if target.avx512:
        return 12, 8, 4, 2, 1
    if target.avx2 or target.registers == 32:
        return 6, 4, 2, 1
    return 2, 1


@dataclass(frozen=True)
class _Product(Units):
    """The product of rows with one group, as far as it is known when code is generated."""

    rows: Rows

    @property
    def wide(self) -> int:
        """Return the panels of a tile."""
        return 2 if self.f.target.avx512 and self.across % 2 == 0 else 1

    @property
    def block(self) -> int:
        """Return how many of k are dequantised at a time, at most."""
        return min(self.k, self.whole_blocks(SCRATCH // (LINE * self.across)))

    @property
    def block_for_few(self) -> int:
        """Return how many of k are dequantised at a time for few rows."""
        return min(self.k, self.whole_blocks(_L1_SCRATCH // (LINE * self.across)))

    @property
    def chunk(self) -> int:
        """Return the rows whose sums are kept: many, where each chunk dequantises anew."""
        rows = SCRATCH // (2 * LINE * self.across) if self.block < self.k else _FEW_ROWS
        largest = _heights(self.f.target)[0]
        return rows // largest * largest


def emit_registers(
    f: Function,
    groups: Sequence[Group],
    rows: Rows,
    weights: Sequence[Sequence[Value]],
    tid: Value,
    nth: Value,
    store: StoreRow,
) -> None:
    """Emit the product of rows with this thread's share of the groups' panels."""

    def product(group: Group) -> _Product:
        # An AVX-512 tile is two panels wide.
        lone = f.target.avx512 and len(group.formats) == 1
        return _Product(f, rows.k, group, 2 if lone else 1, rows)

    products = [product(group) for group in groups]
    panels = f.scratch("panels", max(p.block * p.across * LINE for p in products))
    sums = f.scratch("sums", max(p.chunk * p.across * LINE for p in products))
    few = f.icmp("ule", rows.count, _FEW_ROWS)
    split = shares(f, [p.count for p in products], [p.across for p in products], tid, nth)
    for g, (first, last) in enumerate(split):
        p = products[g]
        block = i64(p.block)
        if p.block_for_few < p.block:
            block = f.select(few, i64(p.block_for_few), block)

        def unit(u: Value, _: list[Value], g: int = g, block: Value = block) -> list[Value]:
            _emit_unit(products[g], u, weights[g], (panels, sums, block), partial(store, f, g))
            return []

        f.for_(first, last, 1, [], unit)


def _emit_unit(
    p: _Product,
    unit: Value,
    weights: Sequence[Value],
    scratch: tuple[Value, Value, Value],
    store: StorePanel,
) -> None:
    """
    Multiply all rows with a unit's panels, chunk by chunk, and hand the sums on.

    The scratch is for panels, for sums, and holds so many of k.
    """
    f, rows = p.f, p.rows
    panels, sums, block = scratch
    sources = p.sources(unit, weights)

    def chunk(r0: Value, _: list[Value]) -> list[Value]:
        count = f.umin(f.sub(rows.count, r0), p.chunk)

        def k_block(carried: list[Value]) -> list[Value]:
            (k0,) = carried
            length = f.umin(f.sub(p.k, k0), block)
            # What is in the scratch serves the next chunk only where it is all of k.
            stale = f.or_(f.icmp("eq", r0, 0), f.icmp("ult", block, p.k))
            f.if_(stale, partial(_fill, p, sources, panels, k0, length))
            start = f.at(f.at(rows.start, r0, rows.stride), k0, rows.size)
            more = f.icmp("ne", k0, 0)
            f.call(_cover(p), "void", start, panels, sums, count, length, more)
            return [f.add(k0, length)]

        def finish(r: Value, _: list[Value]) -> list[Value]:
            values = p.loaded(f.at(sums, r, p.across * LINE), None, [])
            p.finish(unit, f.add(r0, r), values, store)
            return []

        f.while_([i64(0)], lambda carried: f.icmp("slt", carried[0], p.k), k_block)
        f.for_(0, count, 1, [], finish)
        return []

    f.for_(0, rows.count, p.chunk, [], chunk)


def _fill(
    p: _Product, sources: Sequence[Source], panels: Value, k0: Value, length: Value
) -> list[Value]:
    """Dequantise [k0, k0 + length) of a unit's panels: those of a tile side by side for each k."""
    f = p.f
    for i, (name, source) in enumerate(sources):
        form = FORMATS[name]
        first, count = f.udiv(k0, form.block), f.udiv(length, form.block)
        tile, place = divmod(i, p.wide)
        out = f.at(panels, (tile * p.block * p.wide + place) * LINE)
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
                    b = f.at(panels, tile * p.block * p.wide * LINE)
                    c = f.at(f.at(sums, r, p.across * LINE), tile * p.wide * LINE)
                    start = f.at(a, r, p.rows.stride)
                    f.call(_tile(p, height), "void", start, b, c, length, more)
                return [f.add(r, height)]

            def fits(carried: list[Value], height: int = height) -> Value:
                return f.icmp("sle", f.add(carried[0], height), rows)

            (row,) = f.while_([row], fits, cover)
        f.ret()

    pointers = [("ptr", name) for name in ("a", "panels", "sums")]
    params = [*pointers, ("i64", "rows"), ("i64", "length"), ("i1", "more")]
    name = f"gemm.cover_{p.k}_{p.block}_{p.rows.stride}_{p.across}_{p.wide}_{p.rows.element}"
    return p.f.module.once(name, params, body)


def _filler(module: Module, name: str, wide: int) -> str:
    """Return a function that writes a panel's blocks as f32, every `wide` lines of 64 bytes."""

    def body(f: Function) -> None:
        form = FORMATS[name]
        panel, heads, out, blocks = f.params

        def element(i: Value, _: list[Value]) -> list[Value]:
            ask_ahead(f, f.at(panel, i, form.block_step), form.block_step)
            f.store(load_column(f, name, panel, i), f.at(out, i, wide * LINE), align=64)
            return []

        def chunk(i: Value, _: list[Value]) -> list[Value]:
            at, head, place = chunk_pointers(f, form, panel, heads, i)
            ask_ahead(f, at, form.chunk_step)
            scales = chunk_scales(f, form, head, block_scale(f, form, head), place)
            to = f.at(out, i, CHUNK * wide * LINE)
            for j, value in enumerate(chunk_columns(f, form, at, scales)):
                f.store(value, f.at(to, j * wide * LINE), align=64)
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
    # Elsewhere LLVM would take loads of two steps so early that sums have no registers left.
    twice = p.f.target.vector_bits == 256 and height == _heights(p.f.target)[0]
    unroll = 2 if p.k % 2 == 0 and twice else 1
    stride, size = p.rows.stride, p.rows.size

    def body(f: Function) -> None:
        a, b, c, k, more = f.params
        spots = [f.at(c, (r * p.across + w) * LINE) for r in range(height) for w in range(p.wide)]

        def step(i: Value, sums: list[Value]) -> list[Value]:
            a_i, b_i = f.at(a, i, size), f.at(b, i, p.wide * LINE)
            for j in range(unroll):
                columns = [
                    f.load(SUMS, f.at(b_i, (j * p.wide + w) * LINE), align=64)
                    for w in range(p.wide)
                ]
                for r in range(height):
                    at = f.at(a_i, r * stride + size * j)
                    x = load_float(f, "f32" if size == 4 else "bf16", at, 1)
                    if p.rows.element == ROUNDED:
                        x = convert(f, convert(f, x, "bfloat"), "float")
                    x = f.splat(x, PANEL)
                    for w, column in enumerate(columns):
                        sums[r * p.wide + w] = f.fma(x, column, sums[r * p.wide + w])
            return sums

        sums = f.if_(
            more,
            lambda: [f.load(SUMS, spot, align=64) for spot in spots],
            lambda: [f.zero(SUMS)] * len(spots),
        )
        for spot, value in zip(spots, f.for_(0, k, unroll, sums, step), strict=True):
            f.store(value, spot, align=64)
        f.ret()

    name = f"gemm.tile_{height}x{p.wide}_{stride}_{p.across}_{unroll}_{p.rows.element}"
    params = [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("i64", "k"), ("i1", "more")]
    return p.f.module.once(name, params, body)
