"""
The packing of blocks of matrices, in functions that all products share.

Packed lhs is rows one after the other, or for a transposed lhs tiles `[k][rows]`. Packed rhs is
panels `[k][columns]`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.lowering.dot_matrix import Tiling, lanes_below, load_part, load_some
from rlx.lowering.emitter import Function, Module
from rlx.lowering.target import LINE
from rlx.lowering.values import Value, i64, vec

_BLOCK = 16
"""Bytes of a vector within which lanes move fast."""


def _left(f: Function, length: Value, k: Value) -> Value:
    """Return length - k, or 0."""
    return f.sub(f.umax(length, k), k)


def _copy(
    f: Function, t: Tiling, source: Value, out: Value, vectors: int, mask: Value | None = None
) -> None:
    """Copy neighbouring vectors; the mask is that of the last, and its other lanes become zeros."""
    values = [
        load_part(f, t, f.at(source, v * t.lanes, t.size), mask if v == vectors - 1 else None)
        for v in range(vectors)
    ]
    for v, value in enumerate(values):
        f.store(value, f.at(out, v * t.lanes, t.size), align=t.size)


def pack_lhs(module: Module, t: Tiling, swapped: bool) -> str:
    """Return a function that packs rows of lhs, for one block of k."""

    def rows_of(f: Function) -> None:
        source, stride, out, rows, length = f.params

        def row(r: Value, _: list[Value]) -> list[Value]:
            own, to = f.at(source, f.mul(r, stride)), f.at(out, r, t.row_bytes)

            def copy(k: Value, _: list[Value]) -> list[Value]:
                _copy(f, t, f.at(own, k, t.size), f.at(to, k, t.size), 4)
                return []

            def rest(k: Value, _: list[Value]) -> list[Value]:
                value = load_some(f, t, f.at(own, k, t.size), _left(f, length, k))
                f.store(value, f.at(to, k, t.size), align=t.size)
                return []

            four = 4 * t.lanes
            most = f.mul(f.udiv(length, four), four)
            f.for_(0, most, four, [], copy)
            return f.for_(most, length, t.lanes, [], rest)

        f.for_(0, rows, 1, [], row)
        f.ret()

    def columns_of(f: Function) -> None:
        source, stride, out, rows, length = f.params
        # A power of two is loaded and stored: the next step overwrites what is too much.
        lanes = 1 << (t.rows - 1).bit_length()
        narrow = vec(lanes, t.element)
        full = f.udiv(rows, t.rows)
        rest = lanes_below(f, lanes, f.sub(rows, f.mul(full, t.rows)))
        whole = f.vector("i1", [int(lane < t.rows) for lane in range(lanes)])

        def step(k: Value, _: list[Value]) -> list[Value]:
            own, to = f.at(source, f.mul(k, stride)), f.at(out, k, t.rows * t.size)

            def tile(i: Value, mask: Value) -> None:
                value = f.load_masked(narrow, f.at(own, i, t.rows * t.size), mask, align=t.size)
                f.store(value, f.at(to, i, t.tile_bytes), align=t.size)

            f.for_(0, full, 1, [], lambda i, _: tile(i, whole) or [])
            f.if_(f.icmp("ult", f.mul(full, t.rows), rows), lambda: tile(full, rest) or [])
            return []

        f.for_(0, length, 1, [], step)
        f.ret()

    params = [("ptr", "source"), ("i64", "stride"), ("ptr", "out")]
    params += [("i64", "rows"), ("i64", "length")]
    name = f"dot.pack_lhs_{t.name}_{'t' if swapped else 'n'}"
    return module.once(name, params, columns_of if swapped else rows_of)


def pack_rhs(module: Module, t: Tiling, swapped: bool) -> str:
    """Return a function that packs columns of rhs, panel after panel, for one block of k."""
    wide = t.lanes * t.size

    def rows_of(f: Function) -> None:
        source, stride, out, length, columns = f.params
        full = f.udiv(columns, t.columns)
        rest = f.sub(columns, f.mul(full, t.columns))
        whole = f.udiv(rest, t.lanes)
        left = f.sub(rest, f.mul(whole, t.lanes))
        mask = lanes_below(f, t.lanes, left)

        def step(k: Value, _: list[Value]) -> list[Value]:
            own, to = f.at(source, f.mul(k, stride)), f.at(out, k, t.panel_row_bytes)

            def panel(p: Value, _: list[Value]) -> list[Value]:
                at = f.at(own, p, t.panel_row_bytes), f.at(to, p, t.panel_bytes)
                _copy(f, t, *at, t.vectors)
                return []

            def vector(v: Value, mask: Value | None = None) -> list[Value]:
                _copy(f, t, f.at(tail[0], v, wide), f.at(tail[1], v, wide), 1, mask)
                return []

            f.for_(0, full, 1, [], panel)
            tail = f.at(own, full, t.panel_row_bytes), f.at(to, full, t.panel_bytes)
            f.for_(0, whole, 1, [], lambda v, _: vector(v))
            return f.if_(f.icmp("ne", left, 0), lambda: vector(whole, mask))

        f.for_(0, length, 1, [], step)
        f.ret()

    def columns_of(f: Function) -> None:
        source, stride, out, length, columns = f.params

        def vector(j: Value, _: list[Value]) -> list[Value]:
            own, count = f.at(source, f.mul(j, stride)), f.umin(f.sub(columns, j), t.lanes)
            panel = f.udiv(j, t.columns)
            within = f.sub(j, f.mul(panel, t.columns))
            to = f.at(f.at(out, panel, t.panel_bytes), within, t.size)

            def part(k: Value, _: list[Value]) -> list[Value]:
                at = f.at(own, k, t.size), stride, f.at(to, k, t.panel_row_bytes)
                f.call(_square(module, t), "void", *at, count, _left(f, length, k))
                return []

            return f.for_(0, length, t.lanes, [], part)

        f.for_(0, columns, t.lanes, [], vector)
        f.ret()

    params = [("ptr", "source"), ("i64", "stride"), ("ptr", "out")]
    params += [("i64", "length"), ("i64", "columns")]
    name = f"dot.pack_rhs_{t.name}_{'t' if swapped else 'n'}"
    return module.once(name, params, columns_of if swapped else rows_of)


def _square(module: Module, t: Tiling) -> str:
    """
    Return a function that packs the transpose of a square of as many rows and columns as lanes.

    Of the rows from `count` on and columns from `left` on there are none.
    """

    def body(f: Function) -> None:
        source, stride, out, count, left = f.params

        def store(columns: list[Value]) -> None:
            for i, column in enumerate(columns):
                f.store(column, f.at(out, i * t.panel_row_bytes), align=LINE // 4)

        def whole() -> list[Value]:
            store(square(f, t, [f.at(source, f.mul(stride, r)) for r in range(t.lanes)]))
            return []

        def part() -> list[Value]:
            # Rows beyond the last are that one again; their columns are never stored.
            last = f.sub(count, 1)
            places = [f.mul(stride, f.umin(i64(r), last)) for r in range(t.lanes)]
            mask = lanes_below(f, t.lanes, f.umin(left, t.lanes))
            store(square(f, t, [f.at(source, place) for place in places], mask))
            return []

        f.if_(f.icmp("uge", f.umin(count, left), t.lanes), whole, part)
        f.ret()

    params = [("ptr", "source"), ("i64", "stride"), ("ptr", "out")]
    params += [("i64", "count"), ("i64", "left")]
    return module.once(f"dot.square_{t.name}", params, body)


def square(f: Function, t: Tiling, rows: Sequence[Value], mask: Value | None = None) -> list[Value]:
    """Return the columns of as many rows in memory as lanes; zeros where the mask has no column."""
    side = _BLOCK // t.size
    block = vec(side, t.element)
    whole = [load_part(f, t, row, mask) for row in rows] if mask else []
    columns: list[Value] = []
    for k in range(0, t.lanes, side):
        blocks = (
            [f.shuffle(row, row, range(k, k + side)) for row in whole]
            or [f.load(block, f.at(row, k * t.size), align=t.size) for row in rows]
        )  # fmt: skip
        columns += _zip(f, [_joined(f, blocks[i::side]) for i in range(side)])
    return columns


def _joined(f: Function, parts: list[Value]) -> Value:
    """Return vectors, a power of two of them, one after the other in one."""
    while len(parts) > 1:
        lanes = range(2 * parts[0].lanes)
        parts = [f.shuffle(a, b, lanes) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _zip(f: Function, rows: list[Value]) -> list[Value]:
    """Transpose squares of 16 bytes a side, which lie side by side in `rows`, each by itself."""
    side, lanes = len(rows), rows[0].lanes

    def pick(a: Value, b: Value, unit: int, high: int) -> Value:
        """Take, in each block, units of a half of a and of b in turn."""
        order: list[int] = []
        for block in range(0, lanes, side):
            for i in range(0, side // 2, unit):
                at = block + high * side // 2 + i
                order += [*range(at, at + unit), *range(lanes + at, lanes + at + unit)]
        return f.shuffle(a, b, order)

    if side == 2:
        return [pick(rows[0], rows[1], 1, high) for high in (0, 1)]
    columns: list[Value] = []
    for high in (0, 1):
        a, b = (pick(rows[i], rows[i + 1], 1, high) for i in (0, 2))
        columns += [pick(a, b, 2, 0), pick(a, b, 2, 1)]
    return columns
