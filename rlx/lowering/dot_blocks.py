"""
Blocks of a matrix product by the register tiles of `dot_tiles`, in functions that all products
share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from rlx.lowering.dot_matrix import Matrix, Tiling, depth_of, up
from rlx.lowering.dot_sides import Source, Stored, pack_columns, pack_rows
from rlx.lowering.dot_tiles import TALL, From, cover
from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, i64

NO = Value("i1", "false")

_DIRECT = 4
"""Panels up to which rows of lhs are read from where they are: packed ones would be read seldom."""

_HIGH = 288
"""Rows of a block of those: they stay in L2, with rows that are 4 KB apart too."""


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
            return [h for h in (TALL, 4, 2, 1) if rest is None or rest >= h]
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
    there = a.matrix if isinstance(a, Stored) and not a.swapped and not t.bytes else None
    direct = f.icmp("ule", columns, _DIRECT * t.columns) if there else NO
    high = f.select(direct, i64(_HIGH), i64(t.block))
    # Many panels serve block after block of rows; those of one block of rows stay in L1 one by one.
    one = f.icmp("ule", rows, high)
    chunk = f.select(one, i64(t.columns), i64(t.panels * t.columns))
    heights = {v: shapes.heights(t, v, a.swapped) for v in shapes.widths}
    beside = b.matrix if isinstance(b, Stored) and not b.swapped and not t.bytes else None
    packs = NO
    if beside and heights.get(t.vectors):
        # The first tile of each panel packs it, but what is left beside the panels.
        packs = f.icmp("uge", rows, heights[t.vectors][0])

    def columns_chunk(k0: Value, length: Value, carried: list[Value]) -> list[Value]:
        (j,) = carried
        wide = f.umin(f.sub(columns, j), chunk)
        last = f.mul(f.udiv(wide, t.columns), t.columns)
        beyond = f.select(packs, last, i64(0))

        def pack_panels() -> list[Value]:
            to = f.at(panels, f.udiv(beyond, t.columns), t.panel_bytes)
            pack_columns(f, t, b, f.add(j, beyond), f.sub(wide, beyond), k0, length, to)
            return []

        f.if_(f.icmp("ult", beyond, wide), pack_panels)
        more = f.or_(add, f.icmp("ne", k0, 0))

        def row_block(carried: list[Value]) -> list[Value]:
            (r,) = carried
            here = f.umin(f.sub(rows, r), high)
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

            def columns_from(
                first: Value, vectors: int, left: Value, whole: bool = False
            ) -> list[Value]:
                """
                Multiply with the panel of columns from `first`, `left` in its last vector.

                A panel that is not `whole` has been packed: where it is in memory, vectors of rows
                of it would reach past their end.
                """
                panel = f.at(panels, f.udiv(first, t.columns), t.panel_bytes)
                to = c.at(f, r, f.add(j, first), t.size)
                size = here, up(f, length, t.group)
                args = own, stride, panel, to, c.stride, *size, more, left

                def multiplied(*source: Value) -> list[Value]:
                    found = From.PANEL
                    if source:
                        once = heights[vectors] == [shapes.rows]
                        found = From.SOURCE if once else From.PACKING
                    name = cover(f.module, t, heights[vectors], a.swapped, vectors, found)
                    f.call(name, "void", *args, *source)
                    return []

                def from_source() -> list[Value]:
                    assert beside
                    at = f.add(j, first)
                    beyond = f.add(at, t.columns)
                    after = f.select(
                        f.icmp("ult", beyond, columns),
                        beside.at(f, k0, beyond, t.size),
                        beside.at(f, f.add(k0, length), 0, t.size),
                    )
                    return multiplied(beside.at(f, k0, at, t.size), beside.stride, after)

                if whole and packs is not NO:
                    return f.if_(f.and_(packs, f.icmp("eq", r, 0)), from_source, multiplied)
                return multiplied()

            def full(first: Value, _: list[Value]) -> list[Value]:
                return columns_from(first, t.vectors, i64(t.lanes), whole=True)

            if t.vectors in shapes.widths:
                f.for_(0, last, t.columns, [], full)
            for vectors in shapes.widths:
                left = f.sub(f.sub(wide, last), (vectors - 1) * t.lanes)
                some = f.icmp("ult", f.sub(left, 1), t.lanes)
                f.if_(some, partial(columns_from, last, vectors, left))
            return [f.add(r, high)]

        f.while_([i64(0)], lambda v: f.icmp("ult", v[0], rows), row_block)
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
