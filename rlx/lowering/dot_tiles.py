"""Blocks of a matrix product by register tiles, in functions that all products share."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rlx.lowering.dot_pack import (
    LINE,
    UNROLL,
    Matrix,
    Tiling,
    depth_of,
    lanes_below,
    load_part,
    pack_lhs,
    pack_rhs,
    padded,
    store_part,
)
from rlx.lowering.emitter import Function, Module
from rlx.lowering.values import Value, i64

NO = Value("i1", "false")


def emit_block(
    f: Function,
    t: Tiling,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    rows: Value,
    columns: Value,
    k: Value,
    add: Value = NO,
) -> None:
    """
    Emit c = a b, or c += a b where `add`, for at most `t.block` rows and any columns and k (i64).

    A call uses at most 310 KB of stack.
    """
    sides = "".join("t" if m.swapped else "n" for m in (a, b))
    name = f"dot.block_{t.element}_{sides}"
    params = [("ptr", "a"), ("i64", "a_stride"), ("ptr", "b"), ("i64", "b_stride")]
    params += [("ptr", "c"), ("i64", "c_stride"), ("i64", "rows"), ("i64", "columns")]
    params += [("i64", "k"), ("i1", "add")]
    f.module.once(name, params, partial(_block, t, a.swapped, b.swapped))
    sources = [v for m in (a, b, c) for v in (m.pointer, m.stride)]
    f.call(name, "void", *sources, rows, columns, k, add)


def _block(t: Tiling, a_swapped: bool, b_swapped: bool, f: Function) -> None:
    a_at, a_stride, b_at, b_stride, c_at, c_stride, rows, columns, k, add = f.params
    a, b = Matrix(a_at, a_stride, a_swapped), Matrix(b_at, b_stride, b_swapped)
    c = Matrix(c_at, c_stride)
    packed = f.alloca(t.block // t.rows * t.tile_bytes)
    panel = f.alloca(t.depth * t.panel_row_bytes)
    depth = depth_of(f, t, k)

    def k_block(carried: list[Value]) -> list[Value]:
        (k0,) = carried
        length = f.umin(f.sub(k, k0), depth)
        whole = padded(f, length)
        own_a = a.at(f, 0, k0, t.size)
        own_b = replace(b, pointer=b.at(f, k0, 0, t.size))
        f.call(pack_lhs(f.module, t, a_swapped), "void", own_a, a.stride, packed, rows, length)

        def columns_from(j: Value, vectors: int, left: Value) -> list[Value]:
            """Multiply with the panel of columns from j, whose last vector has `left` of them."""
            source, to = own_b.at(f, 0, j, t.size), c.at(f, 0, j, t.size)
            packer = pack_rhs(f.module, t, b_swapped, vectors)
            f.call(packer, "void", source, b.stride, panel, length, left)
            more = f.or_(add, f.icmp("ne", k0, 0))
            tiles = _cover(f.module, t, a_swapped, b_swapped, vectors)
            # The next panel is fetched while this one is used.
            following = own_b.at(f, 0, f.add(j, t.columns), t.size)
            hint = following, b.stride
            f.call(tiles, "void", packed, panel, to, c.stride, rows, whole, more, left, *hint)
            return []

        def full(j: Value, _: list[Value]) -> list[Value]:
            return columns_from(j, t.vectors, i64(t.lanes))

        last = f.mul(f.udiv(columns, t.columns), t.columns)
        f.for_(0, last, t.columns, [], full)
        rest = f.sub(columns, last)
        for vectors in range(1, t.vectors + 1):
            left = f.sub(rest, (vectors - 1) * t.lanes)
            here = f.icmp("ult", f.sub(left, 1), t.lanes)
            f.if_(here, partial(columns_from, last, vectors, left))
        return [f.add(k0, depth)]

    def more(carried: list[Value]) -> Value:
        # At least once: a product over no k is zero.
        return f.or_(f.icmp("slt", carried[0], k), f.icmp("eq", carried[0], 0))

    f.while_([i64(0)], more, k_block)
    f.ret()


def _cover(module: Module, t: Tiling, swapped: bool, b_swapped: bool, vectors: int) -> str:
    """Return a function that multiplies a block's rows with a panel, the largest tiles first."""
    heights = [t.rows, *(h for h in (8, 4, 2, 1) if h < t.rows)]

    def body(f: Function) -> None:
        a, b, c, stride, rows, k, more, left, following, apart = f.params
        row = i64(0)
        for height in heights:

            def one(carried: list[Value], height: int = height) -> list[Value]:
                (r,) = carried
                tile = f.udiv(r, t.rows)
                within = f.sub(r, f.mul(tile, t.rows))
                step = t.size if swapped else t.row_bytes
                own = f.at(f.at(a, tile, t.tile_bytes), within, step)
                to = f.at(c, f.mul(r, stride))
                name = _tile(module, t, swapped, height, vectors)
                # Each tile fetches one line of some of the rows that the next panel comes from.
                lines = t.depth * t.size // LINE if b_swapped else t.panel_row_bytes // LINE + 1
                group = f.udiv(tile, lines)
                line = f.at(following, f.sub(tile, f.mul(group, lines)), LINE)
                line = f.at(line, f.mul(f.mul(group, t.depth // UNROLL), apart))
                f.call(name, "void", own, b, to, stride, k, more, left, line, apart)
                return [f.add(r, height)]

            def fits(carried: list[Value], height: int = height) -> Value:
                return f.icmp("sle", f.add(carried[0], height), rows)

            (row,) = f.while_([row], fits, one)
        f.ret()

    params = [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("i64", "stride"), ("i64", "rows")]
    params += [("i64", "k"), ("i1", "more"), ("i64", "left"), ("ptr", "next")]
    params += [("i64", "apart")]
    name = f"dot.cover_{t.element}_{'t' if swapped else 'n'}{'t' if b_swapped else 'n'}{vectors}"
    return module.once(name, params, body)


def _tile(module: Module, t: Tiling, swapped: bool, height: int, vectors: int) -> str:
    """
    Return a function that multiplies `height` packed rows with a panel.

    It adds to c where `more`, and stores `left` elements of the last vector.
    """
    unroll = UNROLL if height == t.rows else 1
    row_step, k_step = (t.size, t.rows * t.size) if swapped else (t.row_bytes, t.size)

    def body(f: Function) -> None:
        a, b, c, stride, k, more, left, line, apart = f.params
        rows_at = [f.at(c, f.mul(stride, r)) for r in range(height)]
        spots = [f.at(p, v * t.lanes, t.size) for p in rows_at for v in range(vectors)]
        # One line more than the vectors have: they may start within a line.
        for at in rows_at:
            for v in range(t.lanes * vectors * t.size // LINE + 1):
                f.prefetch(f.at(at, v * LINE))

        def step(i: Value, sums: list[Value]) -> list[Value]:
            if height == t.rows:
                f.prefetch(f.at(line, f.mul(f.udiv(i, UNROLL), apart)), 2)
            sums = list(sums)
            a_i, b_i = f.at(a, i, k_step), f.at(b, i, t.panel_row_bytes)
            for j in range(unroll):
                at = [j * t.panel_row_bytes + v * t.lanes * t.size for v in range(vectors)]
                columns = [f.load(t.vector, f.at(b_i, x), align=LINE // 4) for x in at]
                for r in range(height):
                    element = f.load(t.element, f.at(a_i, r * row_step + j * k_step), align=t.size)
                    x = f.splat(element, t.lanes)
                    for v, column in enumerate(columns):
                        sums[r * vectors + v] = f.fma(x, column, sums[r * vectors + v])
            return sums

        sums = f.for_(0, k, unroll, [f.zero(t.vector)] * len(spots), step)

        def own(i: int, mask: Value | None) -> Value | None:
            return mask if i % vectors == vectors - 1 else None

        def add(values: list[Value], mask: Value | None) -> list[Value]:
            """Return the sums with what c has."""
            return [
                f.fadd(load_part(f, t, spot, own(i, mask)), value)
                for i, (spot, value) in enumerate(zip(spots, values, strict=True))
            ]

        def finish(mask: Value | None) -> list[Value]:
            values = f.if_(more, lambda: add(sums, mask), lambda: sums)
            for i, (spot, value) in enumerate(zip(spots, values, strict=True)):
                store_part(f, t, value, spot, own(i, mask))
            return []

        part = f.icmp("ult", left, t.lanes)
        f.if_(part, lambda: finish(lanes_below(f, t.lanes, left)), lambda: finish(None))
        f.ret()

    params = [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("i64", "stride"), ("i64", "k")]
    params += [("i1", "more"), ("i64", "left"), ("ptr", "line"), ("i64", "apart")]
    name = f"dot.tile_{t.element}_{'t' if swapped else 'n'}{height}x{vectors}"
    return module.once(name, params, body)
