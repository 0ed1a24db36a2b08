"""
A few rows times a matrix, from where they are in memory: nothing to pack would be read again.

The sums of some columns are kept in L1 while rows of rhs stream by, several at a time. Elements add
their products in the order of `dot_tiles`: a result does not depend on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rlx.lowering.dot_matrix import (
    Matrix,
    Tiling,
    depth_of,
    lanes_below,
    load_part,
    store_part,
)
from rlx.lowering.dot_pack import square
from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, i64

_ROWS, _ROWS_SWAPPED = 2, 4
"""The most rows where it is not known how many there are: for more, packing pays."""

_STEPS = 8
"""Rows of rhs that are read together."""

COLUMN_BYTES = 8192
"""Bytes of the columns whose sums are kept, of each row."""


def few_rows(t: Tiling, b: Matrix, known: bool) -> int:
    """Return how many rows are few for a rhs, where their number is `known` and where not."""
    if not known:
        return _ROWS_SWAPPED if b.swapped else _ROWS
    # Where columns are transposed it is once for all rows; others have tiles from two rows on.
    return t.rows if b.swapped else 1


def emit_few(
    f: Function,
    t: Tiling,
    known: int | None,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    rows: Value,
    columns: Value,
    k: Value,
) -> None:
    """
    Emit c = a b for at most `few_rows` rows, any columns and any k (i64).

    `known` is the number of rows where the code may be for that alone.
    """
    steps = (i64(t.size), a.stride) if a.swapped else (a.stride, i64(t.size))
    numbers = (*steps, b.stride, c.stride, rows, columns, k)
    sums = () if b.swapped else (f.scratch("few", _ROWS * COLUMN_BYTES),)
    pointers = (a.pointer, b.pointer, c.pointer, *sums)
    params = [("ptr", n) for n in ("a", "b", "c", "sums")[: len(pointers)]]
    params += [("i64", n) for n in _NUMBERS]
    name, body = f"dot.few_{t.element}", partial(_few, t)
    if b.swapped:
        heights = [4, 2, 1] if known is None else [known]
        name += f"_t{''.join(map(str, heights))}"
        body = partial(_few_columns, t, heights)
    f.module.once(name, params, body)
    f.call(name, "void", *pointers, *numbers)


_NUMBERS = ("a_row", "a_step", "b_stride", "c_stride", "rows", "columns", "k")


def _few_columns(t: Tiling, heights: Sequence[int], f: Function) -> None:
    """The same for a swapped rhs: squares of it are transposed in registers, for some rows."""
    a, b, c, a_row, a_step, b_stride, c_stride, rows, columns, k = f.params
    depth = depth_of(f, t, k)

    def group(row: Value, height: int, j: Value) -> None:
        own = [f.at(a, f.mul(f.add(row, r), a_row)) for r in range(height)]
        last = f.sub(columns, 1)
        lines = [f.at(b, f.mul(f.umin(f.add(j, i), last), b_stride)) for i in range(t.lanes)]

        def add(totals: list[Value], first: Value, left: Value | None) -> list[Value]:
            mask = None if left is None else lanes_below(f, t.lanes, left)
            totals = list(totals)
            values = square(f, t, [f.at(line, first, t.size) for line in lines], mask)
            for i, value in enumerate(values):
                for r, line in enumerate(own):
                    x = f.splat(_number(f, t, line, f.add(first, i), a_step, left, i), t.lanes)
                    totals[r] = t.multiply_add(f, x, value, totals[r])
            return totals

        def k_block(carried: list[Value]) -> list[Value]:
            k0, *totals = carried
            stop = f.add(k0, f.umin(f.sub(k, k0), depth))
            whole = f.add(k0, f.mul(f.udiv(f.sub(stop, k0), t.lanes), t.lanes))
            zeros = [f.zero(t.vector)] * height
            sums = f.for_(k0, whole, t.lanes, zeros, lambda i, v: add(v, i, None))
            left = f.sub(stop, whole)
            sums = f.if_(f.icmp("ne", left, 0), lambda: add(sums, whole, left), lambda: sums)
            return [stop, *(t.add(f, x, y) for x, y in zip(totals, sums, strict=True))]

        start = [i64(0), *[f.zero(t.vector)] * height]
        _, *totals = f.while_(start, lambda v: f.icmp("slt", v[0], k), k_block)
        mask = lanes_below(f, t.lanes, f.umin(f.sub(columns, j), t.lanes))
        for r, total in enumerate(totals):
            to = f.at(f.at(c, f.mul(f.add(row, r), c_stride)), j, t.size)
            store_part(f, t, total, to, mask)

    def all_rows(j: Value, _: list[Value]) -> list[Value]:
        row = i64(0)
        for height in heights:

            def some(v: list[Value], height: int = height) -> list[Value]:
                group(v[0], height, j)
                return [f.add(v[0], height)]

            def fits(v: list[Value], height: int = height) -> Value:
                return f.icmp("ule", f.add(v[0], height), rows)

            (row,) = f.while_([row], fits, some)
        return []

    f.for_(0, columns, t.lanes, [], all_rows)
    f.ret()


def _number(
    f: Function, t: Tiling, row: Value, k: Value, step: Value, left: Value | None, i: int
) -> Value:
    """Return an element of lhs, 0 from the `left`-th of a square on."""
    if left is None:
        return f.load(t.element, f.at(row, f.mul(k, step)), align=t.size)
    there = f.icmp("ult", i64(i), left)
    place = f.select(there, f.mul(k, step), i64(0))
    value = f.load(t.element, f.at(row, place), align=t.size)
    return f.select(there, value, f.zero(t.element))


def _few(t: Tiling, f: Function) -> None:
    a, b, c, sums, a_row, a_step, b_stride, c_stride, rows, columns, k = f.params
    depth = depth_of(f, t, k)

    def vectors(count: Value, body: Callable[[Value, Value | None], None]) -> None:
        """Emit body(offset in bytes, mask) for each vector of so many columns."""
        whole = f.mul(f.udiv(count, t.lanes), t.lanes)
        f.for_(0, whole, t.lanes, [], lambda j, _: body(f.mul(j, t.size), None) or [])
        rest = f.sub(count, whole)
        mask = lanes_below(f, t.lanes, rest)
        f.if_(f.icmp("ne", rest, 0), lambda: body(f.mul(whole, t.size), mask) or [])

    def chunk(j0: Value, _: list[Value]) -> list[Value]:
        count = f.umin(f.sub(columns, j0), COLUMN_BYTES // t.size)

        def each_row(body: Callable[[Value, Value], None]) -> None:
            f.for_(0, rows, 1, [], lambda r, _: body(r, f.at(sums, r, COLUMN_BYTES)) or [])

        def steps(first: Value, k0: Value, count_k: int) -> None:
            lines = [
                f.at(f.at(b, f.mul(f.add(first, i), b_stride)), j0, t.size) for i in range(count_k)
            ]

            def row(r: Value, own: Value) -> None:
                at = f.at(a, f.mul(r, a_row))
                xs = [
                    f.splat(
                        f.load(t.element, f.at(at, f.mul(f.add(first, i), a_step)), align=t.size),
                        t.lanes,
                    )
                    for i in range(count_k)
                ]
                fresh = f.icmp("eq", first, k0)

                def add(offset: Value, mask: Value | None) -> None:
                    total = f.select(fresh, f.zero(t.vector), f.load(t.vector, f.at(own, offset)))
                    for x, line in zip(xs, lines, strict=True):
                        value = load_part(f, t, f.at(line, offset), mask)
                        total = t.multiply_add(f, x, value, total)
                    f.store(total, f.at(own, offset))

                vectors(count, add)

            each_row(row)

        def k_block(carried: list[Value]) -> list[Value]:
            (k0,) = carried
            stop = f.add(k0, f.umin(f.sub(k, k0), depth))
            several = f.add(k0, f.mul(f.udiv(f.sub(stop, k0), _STEPS), _STEPS))
            f.for_(k0, several, _STEPS, [], lambda i, _: steps(i, k0, _STEPS) or [])
            f.for_(several, stop, 1, [], lambda i, _: steps(i, k0, 1) or [])

            def finish(r: Value, own: Value) -> None:
                to = f.at(f.at(c, f.mul(r, c_stride)), j0, t.size)

                def put(offset: Value, mask: Value | None) -> None:
                    at = f.at(to, offset)
                    value = f.load(t.vector, f.at(own, offset))
                    value = f.select(f.icmp("eq", k, 0), f.zero(t.vector), value)
                    (value,) = f.if_(
                        f.icmp("ne", k0, 0),
                        lambda: [t.add(f, load_part(f, t, at, mask), value)],
                        lambda: [value],
                    )
                    store_part(f, t, value, at, mask)

                vectors(count, put)

            each_row(finish)
            return [f.add(k0, depth)]

        f.while_([i64(0)], lambda v: f.or_(f.icmp("slt", v[0], k), f.icmp("eq", v[0], 0)), k_block)
        return []

    f.for_(0, columns, COLUMN_BYTES // t.size, [], chunk)
    f.ret()
