"""Register tiles of a matrix product, in functions that all products share."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from rlx.lowering.dot_matrix import Tiling, lanes_below, load_part, store_part
from rlx.lowering.emitter import Function, Module
from rlx.lowering.target import LINE
from rlx.lowering.values import Value, i64

TALL = 12
"""Rows of a tile of one vector: their sums hide the latency of FMAs, their addresses fit."""

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


def cover(
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
            f.prefetch_lines(at, t.lanes * vectors * t.size + 1)

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
            f.prefetch_lines(start, t.panel_row_bytes + 1)
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
        if vectors == 1 and not swapped and height == TALL:
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
