"""
Products in f32, by tiles of vector registers: any machine, and all precision.

Panels are dequantised to f32, 16 for each k. Every tile adds the products of an output in the order
of k, one after the other. Tiles, and what fills the scratch, are functions that all contractions
of a module share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from rlx.lowering.gemm_product import LINE, SCRATCH, SUMS, Product, Source
from rlx.lowering.target import PANEL, Target
from rlx.lowering.values import Value, i64

_L1_SCRATCH = 16 * 1024
"""The scratch for few rows, where dequantising costs more than keeping sums between blocks of k."""
FEW_ROWS = 126


def _heights(target: Target) -> tuple[int, ...]:
    """Return the rows of the register tiles: the largest leaves registers for the operands."""
    if target.avx512:
        return 14, 8, 4, 2, 1
    if target.avx2 or target.registers == 32:
        return 6, 4, 2, 1
    return 2, 1


@dataclass(frozen=True)
class RegisterProduct(Product):
    """A product by tiles of vector registers."""

    @property
    def neighbours(self) -> int:
        """Return 2 for a lone weight where a tile is two panels wide: with AVX-512."""
        return 2 if self.f.target.avx512 and len(self.group.formats) == 1 else 1

    @property
    def wide(self) -> int:
        return 2 if self.f.target.avx512 and self.across % 2 == 0 else 1

    @property
    def per_k(self) -> int:
        return LINE

    @property
    def block(self) -> int:
        return min(self.k, self.whole_blocks(SCRATCH // (LINE * self.across)))

    @property
    def block_for_few(self) -> int:
        return min(self.k, self.whole_blocks(_L1_SCRATCH // (LINE * self.across)))

    @property
    def chunk(self) -> int:
        rows = SCRATCH // (2 * LINE * self.across) if self.block < self.k else FEW_ROWS
        largest = _heights(self.f.target)[0]
        return rows // largest * largest

    def fill(self, sources: Sequence[Source], panels: Value, k0: Value, length: Value) -> None:
        """Dequantise panels, those of a tile side by side for each k."""
        f = self.f
        for i, (name, source) in enumerate(sources):
            form = FORMATS[name]
            first, count = f.udiv(k0, form.block), f.udiv(length, form.block)
            tile, place = divmod(i, self.wide)
            heads = f.at(source, heads_at(f, form, self.k // form.block))
            f.call(
                _filler(f.module, name, self.wide),
                "void",
                f.at(source, first, form.block_step),
                f.at(heads, first, form.head_step),
                f.at(panels, (tile * self.block * self.wide + place) * LINE),
                count,
            )

    def operands(self, sources: Sequence[Source], panels: Value, k0: Value) -> list[Value]:
        """Return where all panels are, which lie in one place."""
        return [panels]

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
        self.f.call(_cover(self), "void", a, *operands, sums, rows, length, more)


def _cover(p: RegisterProduct) -> str:
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
                    f.call(_tile(p, height), "void", f.at(a, r, p.stride), b, c, length, more)
                return [f.add(r, height)]

            def fits(carried: list[Value], height: int = height) -> Value:
                return f.icmp("sle", f.add(carried[0], height), rows)

            (row,) = f.while_([row], fits, cover)
        f.ret()

    pointers = [("ptr", name) for name in ("a", "panels", "sums")]
    params = [*pointers, ("i64", "rows"), ("i64", "length"), ("i1", "more")]
    name = f"gemm.cover_{p.k}_{p.stride}_{p.across}_{p.wide}_{p.element}"
    return p.f.module.once(name, params, body)


def _filler(module: Module, name: str, wide: int) -> str:
    """Return a function that writes a panel's blocks as f32, every `wide` lines of 64 bytes."""

    def body(f: Function) -> None:
        form = FORMATS[name]
        panel, heads, out, blocks = f.params

        def element(i: Value, _: list[Value]) -> list[Value]:
            value = load_column(f, name, panel, i)
            f.store(value, f.at(out, i, wide * LINE), align=64)
            return []

        def chunk(i: Value, _: list[Value]) -> list[Value]:
            at, head, place = chunk_pointers(f, form, panel, heads, i)
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


def _tile(p: RegisterProduct, height: int) -> str:
    """
    Return a function that multiplies `height` rows with `p.wide` dequantised panels.

    It starts from the sums at c where `more`, from zero otherwise, and leaves the sums at c.
    """
    unroll = 2 if p.k % 2 == 0 and height == _heights(p.f.target)[0] else 1
    size = 4 if p.element == "float" else 2

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
                    at = f.at(a_i, r * p.stride + size * j)
                    x = f.splat(load_float(f, "f32" if size == 4 else "bf16", at, 1), PANEL)
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

    name = f"gemm.tile_{height}x{p.wide}_{p.stride}_{p.across}_{unroll}_{p.element}"
    params = [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("i64", "k"), ("i1", "more")]
    return p.f.module.once(name, params, body)
