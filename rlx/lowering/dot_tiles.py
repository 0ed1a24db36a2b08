"""Blocks of a matrix product by register tiles, in functions that all products share."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Shapes:
    """The register tiles that a product needs: those of all products, or of one of known size."""

    heights: tuple[int, ...]
    widths: tuple[int, ...]

    @staticmethod
    def of(t: Tiling, rows: int | None, columns: int | None) -> Shapes:
        """Return the tiles of a product of so many rows and columns, where these are known."""
        heights = [t.rows, *(h for h in (4, 2, 1) if h < t.rows)]
        widths = range(1, t.vectors + 1)
        if rows is not None:
            rest, needed = rows, list[int]()
            for height in heights:
                needed += [height] if rest >= height else []
                rest %= height
            heights = needed
        if columns is not None:
            rest = -(-(columns % t.columns) // t.lanes)
            widths = [w for w in widths if w == rest or (w == t.vectors and columns >= t.columns)]
        return Shapes(tuple(heights), tuple(widths))

    @property
    def name(self) -> str:
        return "".join(map(str, self.heights)) + "x" + "".join(map(str, self.widths))


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
    multiple of a tile on. A call uses at most 325 KB of stack.
    """
    sides = "".join("t" if m.swapped else "n" for m in (a, b))
    name = f"dot.block_{t.element}_{sides}_{shapes.name}"
    params = [("ptr", "a"), ("i64", "a_stride"), ("ptr", "b"), ("i64", "b_stride")]
    params += [("ptr", "c"), ("i64", "c_stride"), ("i64", "rows"), ("i64", "columns")]
    params += [("i64", "k"), ("i1", "add")]
    f.module.once(name, params, partial(_block, t, shapes, a.swapped, b.swapped))
    sources = [v for m in (a, b, c) for v in (m.pointer, m.stride)]
    f.call(name, "void", *sources, rows, columns, k, add)


def _block(t: Tiling, shapes: Shapes, a_swapped: bool, b_swapped: bool, f: Function) -> None:
    a_at, a_stride, b_at, b_stride, c_at, c_stride, rows, columns, k, add = f.params
    a, b = Matrix(a_at, a_stride, a_swapped), Matrix(b_at, b_stride, b_swapped)
    c = Matrix(c_at, c_stride)
    packed = f.alloca(t.block // t.rows * t.tile_bytes)
    panels = f.alloca(t.panels * t.panel_bytes)
    depth = depth_of(f, t, k)
    # Many panels serve block after block of rows; those of one block of rows stay in L1 one by one.
    one = f.icmp("ule", rows, t.block)
    chunk = f.select(one, i64(t.columns), i64(t.panels * t.columns))

    def columns_chunk(k0: Value, length: Value, carried: list[Value]) -> list[Value]:
        (j,) = carried
        wide = f.umin(f.sub(columns, j), chunk)
        source = b.at(f, k0, j, t.size)
        f.call(pack_rhs(f.module, t, b_swapped), "void", source, b.stride, panels, length, wide)
        more = f.or_(add, f.icmp("ne", k0, 0))

        def row_block(r: Value, _: list[Value]) -> list[Value]:
            here = f.umin(f.sub(rows, r), t.block)
            own = a.at(f, r, k0, t.size), a.stride, packed, here, length

            def pack() -> list[Value]:
                f.call(pack_lhs(f.module, t, a_swapped), "void", *own)
                return []

            f.if_(f.or_(f.icmp("eq", j, 0), f.xor(one, 1)), pack)

            def columns_from(first: Value, vectors: int, left: Value) -> list[Value]:
                """Multiply with the panel of columns from `first`, `left` in its last vector."""
                panel = f.at(panels, f.udiv(first, t.columns), t.panel_bytes)
                to = c.at(f, r, f.add(j, first), t.size)
                cover = _cover(f.module, t, shapes.heights, a_swapped, vectors)
                size = here, padded(f, length)
                f.call(cover, "void", packed, panel, to, c.stride, *size, more, left)
                return []

            def full(first: Value, _: list[Value]) -> list[Value]:
                return columns_from(first, t.vectors, i64(t.lanes))

            last = f.mul(f.udiv(wide, t.columns), t.columns)
            if t.vectors in shapes.widths:
                f.for_(0, last, t.columns, [], full)
            for vectors in shapes.widths:
                left = f.sub(f.sub(wide, last), (vectors - 1) * t.lanes)
                there = f.icmp("ult", f.sub(left, 1), t.lanes)
                f.if_(there, partial(columns_from, last, vectors, left))
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
    f.ret()


def _cover(
    module: Module,
    t: Tiling,
    heights: tuple[int, ...],
    swapped: bool,
    vectors: int,
) -> str:
    """Return a function that multiplies a block's rows with a panel, the largest tiles first."""

    def body(f: Function) -> None:
        a, b, c, stride, rows, k, more, left = f.params
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
                f.call(name, "void", own, b, to, stride, k, more, left)
                return [f.add(r, height)]

            def fits(carried: list[Value], height: int = height) -> Value:
                return f.icmp("sle", f.add(carried[0], height), rows)

            (row,) = f.while_([row], fits, one)
        f.ret()

    params = [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("i64", "stride"), ("i64", "rows")]
    params += [("i64", "k"), ("i1", "more"), ("i64", "left")]
    tiles = f"{''.join(map(str, heights))}x{vectors}"
    name = f"dot.cover_{t.element}_{'t' if swapped else 'n'}_{tiles}"
    return module.once(name, params, body)


def _tile(module: Module, t: Tiling, swapped: bool, height: int, vectors: int) -> str:
    """
    Return a function that multiplies `height` packed rows with a panel.

    It adds to c where `more`, and stores `left` elements of the last vector.
    """
    unroll = UNROLL if height == t.rows else 1
    row_step, k_step = (t.size, t.rows * t.size) if swapped else (t.row_bytes, t.size)

    def body(f: Function) -> None:
        a, b, c, stride, k, more, left = f.params
        rows_at = [f.at(c, f.mul(stride, r)) for r in range(height)]
        spots = [f.at(p, v * t.lanes, t.size) for p in rows_at for v in range(vectors)]
        # One line more than the vectors have: they may start within a line.
        for at in rows_at:
            for v in range(t.lanes * vectors * t.size // LINE + 1):
                f.prefetch(f.at(at, v * LINE))

        def step(i: Value, sums: list[Value]) -> list[Value]:
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

        mask = lanes_below(f, t.lanes, left)
        if f.target.avx512:
            finish(mask)
        else:
            f.if_(f.icmp("ult", left, t.lanes), lambda: finish(mask), lambda: finish(None))
        f.ret()

    params = [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("i64", "stride"), ("i64", "k")]
    params += [("i1", "more"), ("i64", "left")]
    name = f"dot.tile_{t.element}_{'t' if swapped else 'n'}{height}x{vectors}"
    return module.once(name, params, body)
