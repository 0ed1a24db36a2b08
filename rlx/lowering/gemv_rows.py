"""
A few rows of f32 activations times packed weights, each as `gemv.py` takes its one: to the bit.

A panel of weights is read, and where registers are wide enough unpacked, once for all rows of a
tile. The sums of a row are put together by the very operations of a single one, so that what a row
gives depends neither on the rows beside it nor on their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rlx.lowering.contract import Group, check
from rlx.lowering.digits import DIGITS, bias, digits_function, load_scale, planes
from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import (
    CHUNK,
    FORMATS,
    GROUPS,
    Format,
    block_scale,
    chunk_scales,
    group_bytes,
    heads_at,
    load_words,
    panel_bytes,
)
from rlx.lowering.gemm import StoreRow
from rlx.lowering.gemv import split
from rlx.lowering.gemv_dots import Sums, digits_of, dot_of, multiply
from rlx.lowering.gemv_panels import panels_function, scaled
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, i64

_TILE = 16
"""Rows whose digits and sums are kept at a time."""
_STACK = 320 * 1024
"""Bytes that the digits of these rows may take of a thread's stack."""

_AHEAD = 4096  # bytes: what L1 holds beside the digits of rows

_ROW = f"<{PANEL} x float>"
_INTS = f"<{PANEL} x i32>"
_LINE = 4 * PANEL


def _tile(k: int) -> int:
    """Return the rows of a tile: fewer where rows are long."""
    return max(1, min(_TILE, _STACK // (k // CHUNK * DIGITS or 1)))


def emit_gemv_rows(
    f: Function,
    k: int,
    groups: Sequence[Group],
    a: Value,
    a_stride_bytes: int,
    rows: Value,
    weights: Sequence[Sequence[Value]],
    tid: Value,
    nth: Value,
    store: StoreRow,
) -> None:
    """
    Emit `rows` (i64, may be 0) rows of k f32 times this thread's share of the groups' panels.

    The arguments are those of `emit_gemm`. Every thread makes the digits of all rows for itself.
    """
    check(k, groups, weights)
    module, tile = f.module, _tile(k)
    forms = [FORMATS[name] for group in groups for name in group.formats]
    quantised = any(form.quantised for form in forms)
    digits = f.scratch("digits", tile * (k // CHUNK) * DIGITS) if quantised else a
    sums = f.scratch("sums", max(len(g.formats) for g in groups) * tile * _LINE)

    def some(r0: Value, _: list[Value]) -> list[Value]:
        count = f.umin(f.sub(rows, r0), tile)
        first = f.at(a, r0, a_stride_bytes)

        def write_digits(r: Value, _: list[Value]) -> list[Value]:
            row, to = f.at(first, r, a_stride_bytes), f.at(digits, r, DIGITS)
            name = digits_function(module, forms, tile)
            f.call(name, "void", row, to, i64(k // CHUNK))
            return []

        def panel(g: int, p: Value, _: list[Value]) -> list[Value]:
            for i, (name, weight) in enumerate(zip(groups[g].formats, weights[g], strict=True)):
                pointer, to = f.at(weight, p, panel_bytes(name, k)), f.at(sums, i * tile * _LINE)
                blocks = i64(k // FORMATS[name].block)
                if FORMATS[name].quantised:
                    kernel = _quantised(module, name, tile)
                    f.call(kernel, "void", digits, pointer, blocks, count, to)
                else:
                    _float(f, name, first, a_stride_bytes, pointer, blocks, count, to)
            f.for_(0, count, 1, [], partial(finish, g, p))
            return []

        def finish(g: int, p: Value, r: Value, _: list[Value]) -> list[Value]:
            places = [f.at(sums, i * tile * _LINE) for i in range(len(groups[g].formats))]
            values = [f.load(_ROW, f.at(place, r, _LINE), align=64) for place in places]
            store(f, g, f.add(r0, r), p, values)
            return []

        if quantised:
            f.for_(0, count, 1, [], write_digits)
        for g, (begin, end) in enumerate(split(f, k, groups, tid, nth)):
            f.for_(begin, end, 1, [], partial(panel, g))
        return []

    f.for_(0, rows, tile, [], some)


def _float(
    f: Function,
    name: str,
    a: Value,
    stride: int,
    panel: Value,
    k: Value,
    rows: Value,
    sums: Value,
) -> None:
    """Multiply rows with a panel of floats, which the first row brings near."""
    kernel = panels_function(f.module, name, 1)

    def row(r: Value, _: list[Value]) -> list[Value]:
        out = f.at(sums, r, _LINE)
        f.call(kernel, "void", f.at(a, r, stride), panel, panel, i64(0), k, out)
        return []

    f.for_(0, rows, 1, [], row)


def _quantised(module: Module, name: str, tile: int) -> str:
    params = [("ptr", "digits"), ("ptr", "panel"), ("i64", "blocks"), ("i64", "rows")]
    body = partial(_emit_quantised, form=FORMATS[name], planes=planes(module), tile=tile)
    return module.once(f"gemv_rows.{name}_{tile}", [*params, ("ptr", "sums")], body)


def _emit_quantised(f: Function, form: Format, planes: int, tile: int) -> None:
    """Write the 16 dot products of a panel with each row of digits, which lie block by block."""
    digits, panel, blocks, rows, sums = f.params
    heads = f.at(panel, heads_at(f, form, blocks))

    def clear(r: Value, _: list[Value]) -> list[Value]:
        f.store(f.zero(_ROW), f.at(sums, r, _LINE), align=64)
        return []

    def block(b: Value, _: list[Value]) -> list[Value]:
        at, head = f.at(panel, b, form.block_step), f.at(heads, b, form.head_step)
        of_block = block_scale(f, form, head)
        first = f.mul(b, form.chunks)

        def chunk(c: Value, _: list[Value]) -> list[Value]:
            words = f.at(at, c, form.chunk_step)
            _prefetch(f, words, form.chunk_step)
            scales = chunk_scales(f, form, head, of_block, c)
            products = _products(f, form, planes, words)
            of_chunk = f.at(digits, f.add(first, c), tile * DIGITS)

            def row(r: Value, _: list[Value]) -> list[Value]:
                digit, place = f.at(of_chunk, r, DIGITS), f.at(sums, r, _LINE)
                power = f.splat(load_scale(f, digit), PANEL)
                before = f.load(_ROW, place, align=64)
                value = scaled(f, before, products(digit), scales, power, digit)
                f.store(value, place, align=64)
                return []

            f.for_(0, rows, 1, [], row)
            return []

        f.for_(0, form.chunks, 1, [], chunk)
        return []

    f.for_(0, rows, 1, [], clear)
    f.for_(0, blocks, 1, [], block)
    f.ret()


def _prefetch(f: Function, at: Value, size: int) -> None:
    """Ask for `size` bytes, `_AHEAD` bytes on: most often in the next panel."""
    ahead = f.at(at, _AHEAD)
    for line in range(0, size, 64):
        f.prefetch(f.at(ahead, line), locality=3)


def _products(f: Function, form: Format, planes: int, words: Value) -> Callable[[Value], Sums]:
    """Return what gives the sums of a chunk's words with the digits at a pointer."""
    if not f.target.has("avx512vnni"):
        return lambda digit: dot_of(f.target)(f, form, planes, [words], digit)[0]
    loaded = load_words(f, form, words, PANEL)
    numbers = [group_bytes(f, form, loaded, group) for group in range(GROUPS)]
    apart = form.scales_in_chunk == 2

    def products(digit: Value) -> Sums:
        # A chain for each half of the chunk: one of 8 dependent products would wait for latency.
        chains = [
            [
                bias(f, form, digit, half, p, PANEL) if apart or not half else f.zero(_INTS)
                for p in range(planes)
            ]
            for half in range(2)
        ]
        for group, number in enumerate(numbers):
            four = digits_of(f, planes, digit, group, PANEL)
            multiply(f, chains[group * 2 // GROUPS], number, four)
        return chains if apart else [[f.add(a, b) for a, b in zip(*chains, strict=True)]]

    return products
