"""
What is copied before it is multiplied: rows, and panels of weights as tiles.

A tile is 1 KB in one piece, wherever rows lie and however far apart they are. What it lacks of rows
or of k is zero. Rows that dot products multiply are one behind the other.
"""

from __future__ import annotations

from rlx.lowering import amx
from rlx.lowering.bf16_products import joined, pairs
from rlx.lowering.byte_rows import Activations, over
from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import (
    CHUNK,
    FORMATS,
    block_scale,
    chunk_columns,
    chunk_pointers,
    chunk_scales,
    load_column,
)
from rlx.lowering.gemm_tile_plan import RowCopies, element_of
from rlx.lowering.gemm_unit import OF_ROW, SUMS, Rows
from rlx.lowering.gemv_panels import ask_ahead
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, i64

_TILE_ROW = f"<{amx.DEPTH} x i16>"


def copy_rows(
    f: Function, rows: Rows, first: Value, count: Value, tiles: Value, steps: Value
) -> None:
    """
    Emit the copy of `count` rows from `first` on to where `RowCopies` has them.

    What is kept of rows that become bytes goes to `[count][OF_ROW]`.
    """
    start = f.at(rows.start, first, rows.stride)
    f.call(_copier(f.module, rows), "void", start, tiles, count, steps)


def _copier(module: Module, rows: Rows) -> str:
    depth, copies = element_of(rows).depth, RowCopies.of(module.target, rows)

    def body(f: Function) -> None:
        a, tiles, count, row_steps = f.params
        activations = Activations(f, rows)

        def numbers(source: Value, s: Value, count: int) -> Value:
            """Return the s-th 32 numbers of a row as bf16, zeros after `count`."""
            live = [int(lane < count) for lane in range(amx.DEPTH)]
            at = f.at(source, s, amx.DEPTH * rows.size)
            if rows.size == 2:
                return f.load_masked(_TILE_ROW, at, f.vector("i1", live), align=2)
            halves = [
                f.load_masked(SUMS, f.at(at, 4 * n), f.vector("i1", live[n : n + PANEL]))
                for n in (0, PANEL)
            ]
            return joined(f, *halves)

        def row(r: Value, _: list[Value]) -> list[Value]:
            source, to = f.at(a, r, rows.stride), copies.at(f, tiles, r)
            how = activations.kept(source, f.at(row_steps, r, OF_ROW)) if rows.bytes else None

            def step(s: Value, count: int, none: list[Value]) -> list[Value]:
                at, size = f.at(to, s, copies.step), amx.ROW_BYTES
                if how is not None:
                    parts = activations.parts(source, s, count, how)
                    size //= len(parts)
                else:
                    parts = [numbers(source, s, count)]
                for i, part in enumerate(parts):
                    f.store(part, f.at(at, i * size), align=size)
                return none

            return over(f, rows.k, depth, [], step)

        def empty(r: Value, _: list[Value]) -> list[Value]:
            to = copies.at(f, tiles, r)

            def step(s: Value, _: list[Value]) -> list[Value]:
                f.store(f.zero(_TILE_ROW), f.at(to, s, copies.step), align=64)
                return []

            return f.for_(0, copies.steps, 1, [], step)

        f.for_(0, count, 1, [], row)
        if copies.tiles:
            f.for_(count, f.and_(f.add(count, amx.ROWS - 1), -amx.ROWS), 1, [], empty)
        f.ret()

    params = [("ptr", "a"), ("ptr", "tiles"), ("i64", "count"), ("ptr", "steps")]
    kind = "bytes" if rows.bytes else "rows"
    return module.once(f"gemm.{kind}_{rows.k}_{rows.stride}_{rows.element}", params, body)


def fill_tiles(
    f: Function, name: str, panel: Value, heads: Value, out: Value, length: Value
) -> None:
    """Emit a panel's `length` numbers of each row, from a pointer on, as tiles `[length / 32]`."""
    f.call(_filler(f.module, name), "void", panel, heads, out, length)


def _filler(module: Module, name: str) -> str:
    form = FORMATS[name]

    def body(f: Function) -> None:
        panel, heads, out, length = f.params

        def chunk(i: Value, _: list[Value]) -> list[Value]:
            at, head, place = chunk_pointers(f, form, panel, heads, i)
            ask_ahead(f, at, form.chunk_step)
            scales = chunk_scales(f, form, head, block_scale(f, form, head), place)
            columns = chunk_columns(f, form, at, scales)
            to = f.at(out, i, amx.TILE_BYTES)
            for j in range(amx.ROWS):
                both = pairs(f, *columns[2 * j : 2 * j + 2])
                f.store(both, f.at(to, j * amx.ROW_BYTES), align=64)
            return []

        def pair(j: Value, _: list[Value]) -> list[Value]:
            columns = [load_column(f, name, panel, f.add(f.mul(j, 2), n)) for n in range(2)]
            ask_ahead(f, f.at(panel, j, 2 * form.block_step), 2 * form.block_step)
            f.store(pairs(f, *columns), f.at(out, j, amx.ROW_BYTES), align=64)
            return []

        def rest(j: Value, _: list[Value]) -> list[Value]:
            """Write a pair of which one may be there, or none."""
            kept: list[Value] = []
            for n in range(2):
                at = f.add(f.mul(j, 2), n)
                column = load_column(f, name, panel, f.umin(at, f.sub(length, 1)))
                there = f.splat(f.icmp("slt", at, length), PANEL)
                kept.append(f.select(there, column, f.zero(SUMS)))
            f.store(pairs(f, *kept), f.at(out, j, amx.ROW_BYTES), align=64)
            return []

        if form.quantised:
            f.for_(i64(0), f.udiv(length, CHUNK), 1, [], chunk)
        else:
            whole = f.lshr(length, 1)
            end = f.shl(f.lshr(f.add(length, amx.DEPTH - 1), 5), 4)
            f.for_(0, whole, 1, [], pair)
            f.for_(whole, end, 1, [], rest)
        f.ret()

    params = [("ptr", "panel"), ("ptr", "heads"), ("ptr", "out"), ("i64", "length")]
    return module.once(f"gemm.tiles_of_{name}", params, body)
