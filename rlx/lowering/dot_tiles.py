"""Blocks of a matrix product by register tiles, in functions that all products share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from rlx.lowering.dot_matrix import (
    LINE,
    Matrix,
    Tiling,
    depth_of,
    lanes_below,
    load_part,
    store_part,
    up,
)
from rlx.lowering.dot_sides import Source, Stored, pack_columns, pack_rows
from rlx.lowering.emitter import Function, Module
from rlx.lowering.values import Value, i64

NO = Value("i1", "false")

_TALL = 12
"""Rows of a tile of one vector: their sums hide the latency of FMAs, their addresses fit."""

_DIRECT = 4
"""Panels up to which rows of lhs are read from where they are: packed ones would be read seldom."""

_AHEAD = 2048
"""Bytes of rows of rhs that are fetched before they are read."""

_SOURCE = [("ptr", "source"), ("i64", "source_stride"), ("ptr", "next")]
"""A panel's columns where they are in memory, and those that are read after them."""


class From(StrEnum):
    """Where a tile finds the columns of a panel."""

    PANEL = ""
    SOURCE = "s"
    """Where they are in memory."""
    PACKING = "p"
    """There, and it puts them into the panel."""


@dataclass(frozen=True)
class Shapes:
    """The register tiles that a product needs: those of all products, or of one of known size."""

    rows: int | None
    widths: tuple[int, ...]

    @staticmethod
    def of(t: Tiling, rows: int | None, columns: int | None) -> Shapes:
        """Return the tiles of a product of so many rows and columns, where these are known."""
        widths = range(1, t.vectors + 1)
        if columns is not None:
            rest = -(-(columns % t.columns) // t.lanes)
            widths = [w for w in widths if w == rest or (w == t.vectors and columns >= t.columns)]
        # Rows that need the same tiles have the same functions.
        if rows is not None and rows >= 4 * t.rows:
            rows = rows % t.rows + 3 * t.rows
        return Shapes(rows, tuple(widths))

    @property
    def name(self) -> str:
        return f"{'m' if self.rows is None else self.rows}x{''.join(map(str, self.widths))}"

    def heights(self, t: Tiling, vectors: int, swapped: bool) -> list[int]:
        """Return the heights of tiles of so many vectors, the largest first."""
        rest, needed = self.rows, list[int]()
        if vectors == 1 and not swapped:
            # A part of the rows may have any number of these.
            return [h for h in (_TALL, 4, 2, 1) if rest is None or rest >= h]
        heights = [6, 3, 2, 1] if t.rows == 6 else [4, 2, 1]
        if rest is None:
            return heights
        if vectors == t.vectors and rest <= (t.rows if swapped else t.most_rows):
            return [rest]
        for height in heights:
            if rest >= height and not _better_by_twos(height, rest):
                needed.append(height)
                rest %= height
        return needed


def _better_by_twos(height: int, rows: int) -> bool:
    return height == 3 and rows == 4


def emit_block(
    f: Function,
    t: Tiling,
    shapes: Shapes,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    rows: Value,
    columns: Value,
    k: Value,
    add: Value = NO,
) -> None:
    """
    Emit c = a b, or c += a b where `add`, for any rows, columns and k (i64).

    Rows and columns are parts of the product that `shapes` are of, from its first or from a
    multiple of a tile on. A call uses at most 400 KB of stack.
    """
    swaps = "".join("t" if m.swapped else "n" for m in (a, b))
    name = f"dot.block_{t.name}_{swaps}_{shapes.name}"
    params = [("ptr", "a"), ("i64", "a_stride"), ("ptr", "b"), ("i64", "b_stride")]
    params += [("ptr", "c"), ("i64", "c_stride"), ("i64", "rows"), ("i64", "columns")]
    params += [("i64", "k"), ("i1", "add")]

    def body(f: Function) -> None:
        a_at, a_stride, b_at, b_stride, c_at, c_stride, rows, columns, k, add = f.params
        own = (
            Stored(Matrix(a_at, a_stride, a.swapped), t.source_size, left=True),
            Stored(Matrix(b_at, b_stride, b.swapped), t.source_size, left=False),
        )
        block(f, t, shapes, *own, Matrix(c_at, c_stride), rows, columns, k, add)
        f.ret()

    f.module.once(name, params, body)
    sources = [v for m in (a, b, c) for v in (m.pointer, m.stride)]
    f.call(name, "void", *sources, rows, columns, k, add)


def block(
    f: Function,
    t: Tiling,
    shapes: Shapes,
    a: Source,
    b: Source,
    c: Matrix,
    rows: Value,
    columns: Value,
    k: Value,
    add: Value = NO,
) -> None:
    """Emit the same here, for sides of any kind."""
    packed = f.scratch("lhs", t.block // t.rows * t.tile_bytes)
    panels = f.scratch("rhs", t.panels * t.panel_bytes)
    depth = depth_of(f, t, k)
    # Many panels serve block after block of rows; those of one block of rows stay in L1 one by one.
    one = f.icmp("ule", rows, t.block)
    chunk = f.select(one, i64(t.columns), i64(t.panels * t.columns))
    there = a.matrix if isinstance(a, Stored) and not a.swapped and not t.bytes else None
    direct = f.icmp("ule", columns, _DIRECT * t.columns) if there else NO
    heights = {v: shapes.heights(t, v, a.swapped) for v in shapes.widths}
    beside = b.matrix if isinstance(b, Stored) and not b.swapped and not t.bytes else None
    packs = NO
    if beside and heights.get(t.vectors):
        packs = f.and_(one, f.icmp("uge", rows, heights[t.vectors][0]))

    def columns_chunk(k0: Value, length: Value, carried: list[Value]) -> list[Value]:
        (j,) = carried
        wide = f.umin(f.sub(columns, j), chunk)
        fused = f.and_(packs, f.icmp("eq", wide, t.columns))

        def pack_panels() -> list[Value]:
            pack_columns(f, t, b, j, wide, k0, length, panels)
            return []

        f.if_(f.xor(fused, 1), pack_panels)
        more = f.or_(add, f.icmp("ne", k0, 0))

        def row_block(r: Value, _: list[Value]) -> list[Value]:
            here = f.umin(f.sub(rows, r), t.block)
            own, stride = packed, i64(t.row_bytes)

            def pack() -> list[Value]:
                pack_rows(f, t, a, r, here, k0, length, packed)
                return []

            first = f.or_(f.icmp("eq", j, 0), f.xor(one, 1))
            if there:
                f.if_(f.and_(first, f.xor(direct, 1)), pack)
                own = f.select(direct, there.at(f, r, k0, t.size), packed)
                stride = f.select(direct, there.stride, stride)
            else:
                f.if_(first, pack)

            def columns_from(first: Value, vectors: int, left: Value) -> list[Value]:
                """Multiply with the panel of columns from `first`, `left` in its last vector."""
                panel = f.at(panels, f.udiv(first, t.columns), t.panel_bytes)
                to = c.at(f, r, f.add(j, first), t.size)
                size = here, up(f, length, t.group)
                args = own, stride, panel, to, c.stride, *size, more, left

                def cover(*source: Value) -> list[Value]:
                    found = From.PANEL
                    if source:
                        once = heights[vectors] == [shapes.rows]
                        found = From.SOURCE if once else From.PACKING
                    name = _cover(f.module, t, heights[vectors], a.swapped, vectors, found)
                    f.call(name, "void", *args, *source)
                    return []

                def from_source() -> list[Value]:
                    assert beside
                    beyond = f.add(j, t.columns)
                    after = f.select(
                        f.icmp("ult", beyond, columns),
                        beside.at(f, k0, beyond, t.size),
                        beside.at(f, f.add(k0, length), 0, t.size),
                    )
                    return cover(beside.at(f, k0, j, t.size), beside.stride, after)

                if vectors == t.vectors and packs is not NO:
                    return f.if_(fused, from_source, cover)
                return cover()

            def full(first: Value, _: list[Value]) -> list[Value]:
                return columns_from(first, t.vectors, i64(t.lanes))

            last = f.mul(f.udiv(wide, t.columns), t.columns)
            if t.vectors in shapes.widths:
                f.for_(0, last, t.columns, [], full)
            for vectors in shapes.widths:
                left = f.sub(f.sub(wide, last), (vectors - 1) * t.lanes)
                some = f.icmp("ult", f.sub(left, 1), t.lanes)
                f.if_(some, partial(columns_from, last, vectors, left))
            return []

        f.for_(0, rows, t.block, [], row_block)
        return [f.add(j, chunk)]

    def k_block(carried: list[Value]) -> list[Value]:
        (k0,) = carried
        length = f.umin(f.sub(k, k0), depth)
        part = partial(columns_chunk, k0, length)
        f.while_([i64(0)], lambda v: f.icmp("slt", v[0], columns), part)
        return [f.add(k0, depth)]

    def more(carried: list[Value]) -> Value:
        # At least once: a product over no k is zero.
        return f.or_(f.icmp("slt", carried[0], k), f.icmp("eq", carried[0], 0))

    f.while_([i64(0)], more, k_block)


def _cover(
    module: Module,
    t: Tiling,
    heights: Sequence[int],
    swapped: bool,
    vectors: int,
    found: From,
) -> str:
    """
    Return a function that multiplies a block's rows with a panel, the largest tiles first.

    Where the panel isn't there the first tile packs it, or is the only one: there must be rows for
    the largest.
    """

    def body(f: Function) -> None:
        a, a_stride, b, c, stride, rows, k, more, left, *source = f.params
        row = i64(heights[0] if found else 0)
        if found:
            name = _tile(module, t, swapped, heights[0], vectors, found)
            f.call(name, "void", a, a_stride, b, c, stride, k, more, left, *source)
        for height in heights[: None if found is not From.SOURCE else 0]:

            def one(carried: list[Value], height: int = height) -> list[Value]:
                (r,) = carried
                own = f.at(a, f.mul(r, a_stride))
                if swapped:
                    tile = f.udiv(r, t.rows)
                    within = f.sub(r, f.mul(tile, t.rows))
                    own = f.at(f.at(a, tile, t.tile_bytes), within, t.size)
                to = f.at(c, f.mul(r, stride))
                name = _tile(module, t, swapped, height, vectors)
                f.call(name, "void", own, a_stride, b, to, stride, k, more, left)
                return [f.add(r, height)]

            def fits(carried: list[Value], height: int = height) -> Value:
                rest = f.sub(rows, carried[0])
                there = f.icmp("sge", rest, height)
                # Four rows are two tiles of two, not one of three and one of one.
                return f.and_(there, f.icmp("ne", rest, 4)) if height == 3 else there

            (row,) = f.while_([row], fits, one)
        f.ret()

    params = [("ptr", "a"), ("i64", "a_stride"), ("ptr", "b"), ("ptr", "c"), ("i64", "stride")]
    params += [("i64", "rows"), ("i64", "k"), ("i1", "more"), ("i64", "left")]
    params += _SOURCE if found else []
    tiles = f"{''.join(map(str, heights))}x{vectors}{found}"
    name = f"dot.cover_{t.name}_{'t' if swapped else 'n'}_{tiles}"
    return module.once(name, params, body)


def _tile(
    module: Module,
    t: Tiling,
    swapped: bool,
    height: int,
    vectors: int,
    found: From = From.PANEL,
) -> str:
    """
    Return a function that multiplies `height` packed rows with a panel.

    It adds to c where `more`, and stores `left` elements of the last vector.
    """

    def body(f: Function) -> None:
        a, a_stride, b, c, stride, k, more, left, *source = f.params
        rows_at = [f.at(c, f.mul(stride, r)) for r in range(height)]
        spots = [f.at(p, v * t.lanes, t.size) for p in rows_at for v in range(vectors)]
        if swapped:
            words_at = [f.at(a, r, t.size) for r in range(height)]
        else:
            words_at = [f.at(a, f.mul(a_stride, r)) for r in range(height)]
        k_step = t.rows * t.size if swapped else t.size
        # One line more than the vectors have: they may start within a line.
        for at in rows_at:
            for v in range(t.lanes * vectors * t.size // LINE + 1):
                f.prefetch(f.at(at, v * LINE))

        def row_of(panel: Value, align: int = LINE // 4) -> list[Value]:
            at = [v * t.lanes * t.size for v in range(vectors)]
            return [f.load(t.vector, f.at(panel, x), align=align) for x in at]

        def row_of_source(i: Value) -> list[Value]:
            at, ahead = f.at(source[0], f.mul(i, source[1])), f.add(i, _AHEAD // t.panel_row_bytes)
            # Below the last row are those that are read next.
            below = f.icmp("uge", ahead, k)
            ahead = f.select(below, f.sub(ahead, k), ahead)
            start = f.at(f.select(below, source[2], source[0]), f.mul(ahead, source[1]))
            # They may start within a line.
            for line in range(0, t.panel_row_bytes + 1, LINE):
                f.prefetch(f.at(start, line))
            columns = row_of(at, t.size)
            if found is From.PACKING:
                for v, column in enumerate(columns):
                    to = f.at(panel, i, t.panel_row_bytes)
                    f.store(column, f.at(to, v * t.lanes, t.size), align=LINE // 4)
            return columns

        def step(i: Value, sums: list[Value]) -> list[Value]:
            sums = list(sums)
            columns = row_of_source(i) if found else row_of(f.at(panel, i, t.panel_row_bytes))
            for r, word in enumerate(words_at):
                x = f.splat(f.load(t.element, f.at(word, i, k_step), align=t.size), t.lanes)
                for v, column in enumerate(columns):
                    own = r * vectors + v
                    sums[own] = t.multiply_add(f, x, column, sums[own])
            return sums

        def line(i: Value, sums: list[Value]) -> list[Value]:
            """Take as many steps as a line of a row has words, while the next tile's is fetched."""
            for word in words_at:
                f.prefetch(f.at(f.at(word, f.mul(a_stride, height)), i, k_step))
            for at in range(LINE // t.size):
                sums = step(f.add(i, at), sums)
            return sums

        sums = (row_of(b) if t.offset else [f.zero(t.vector)] * vectors) * height
        panel = f.at(b, t.panel_row_bytes) if t.offset else b
        start = i64(0)
        if vectors == 1 and not swapped and height == _TALL:
            # So few columns that rows are as often fetched as multiplied.
            start = f.mul(f.udiv(k, LINE // t.size), LINE // t.size)
            sums = f.for_(0, start, LINE // t.size, sums, line)
        sums = f.for_(start, k, 1, sums, step)

        def own(i: int, mask: Value | None) -> Value | None:
            return mask if i % vectors == vectors - 1 else None

        def add(values: list[Value], mask: Value | None) -> list[Value]:
            """Return the sums with what c has."""
            return [
                t.add(f, load_part(f, t, spot, own(i, mask)), value)
                for i, (spot, value) in enumerate(zip(spots, values, strict=True))
            ]

        def finish(mask: Value | None) -> list[Value]:
            values = f.if_(more, lambda: add(sums, mask), lambda: sums)
            for i, (spot, value) in enumerate(zip(spots, values, strict=True)):
                store_part(f, t, value, spot, own(i, mask))
            return []

        mask = lanes_below(f, t.lanes, left)
        if f.target.avx512:
            finish(mask)
        else:
            f.if_(f.icmp("ult", left, t.lanes), lambda: finish(mask), lambda: finish(None))
        f.ret()

    params = [("ptr", "a"), ("i64", "a_stride"), ("ptr", "b"), ("ptr", "c"), ("i64", "stride")]
    params += [("i64", "k"), ("i1", "more"), ("i64", "left"), *(_SOURCE if found else [])]
    name = f"dot.tile_{t.name}_{'t' if swapped else 'n'}{height}x{vectors}{found}"
    return module.once(name, params, body)
