"""
A few rows of f32 times packed weights in registers: the digits of a row lie beside each other.

Each thread has a share of the panels, and makes the digits of all rows for itself; of many rows it
has a share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rlx.lowering.contract import SPLIT_ROWS
from rlx.lowering.digits import DIGITS, Numbers, bias, digits_function, planes
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
)
from rlx.lowering.gemm_unit import LINE, SUMS
from rlx.lowering.gemv import split
from rlx.lowering.gemv_dots import Sums, digits_of, dot_of, multiply
from rlx.lowering.gemv_panels import ask_ahead, join, scaled
from rlx.lowering.gemv_row_panels import RowPanels
from rlx.lowering.target import PANEL, Target
from rlx.lowering.values import Value, i64

_TILE = 16
"""Rows whose digits and sums are kept at a time."""
_STACK = 320 * 1024
"""Bytes that the digits of these rows may take of a thread's stack."""


_INTS = f"<{PANEL} x i32>"


def emit_lines(what: RowPanels, rows: Value, tid: Value, nth: Value) -> None:
    """Emit a thread's share of the products of `rows` rows with all panels."""
    f, k, module, tile = what.f, what.k, what.f.module, _tile(what.k)
    forms = what.forms
    many = f.icmp("uge", rows, f.mul(nth, SPLIT_ROWS))
    shares = split(f, k, what.groups, f.select(many, i64(0), tid), f.select(many, i64(1), nth))
    each = f.mul(f.udiv(f.add(rows, f.sub(f.mul(nth, tile), 1)), f.mul(nth, tile)), tile)
    first = f.select(many, f.umin(f.mul(tid, each), rows), i64(0))
    last = f.select(many, f.umin(f.add(first, each), rows), rows)
    quantised = any(form.quantised for form in forms)
    digits = f.scratch("digits", tile * (k // CHUNK) * DIGITS) if quantised else what.a

    def some(r0: Value, _: list[Value]) -> list[Value]:
        count = f.umin(f.sub(last, r0), tile)

        def write_digits(r: Value, _: list[Value]) -> list[Value]:
            row, to = f.at(what.a, f.add(r0, r), what.stride), f.at(digits, r, DIGITS)
            name = digits_function(module, forms, tile)
            f.call(name, "void", row, to, i64(k // CHUNK))
            return []

        def kernel(name: str, panel: Value, blocks: Value, sums: Value) -> None:
            f.call(_quantised(module, name, tile), "void", digits, panel, blocks, count, sums)

        def panel(g: int, p: Value, _: list[Value]) -> list[Value]:
            what.panel(g, p, r0, count, tile, kernel)
            return []

        if quantised:
            f.for_(0, count, 1, [], write_digits)
        for g, (begin, end) in enumerate(shares):
            f.for_(begin, end, 1, [], partial(panel, g))
        return []

    f.for_(first, last, tile, [], some)


def has_lines(target: Target, k: int) -> bool:
    """
    Return whether products of digits are faster than those of f32, for rows of any number.

    What joins the digits' sums takes half as many slots as their products, and is free where it has
    pipes of its own. On Zen 5: 0.98 to 1.17 of the rate of f32 with 256 rows, 1.15 to 1.3 with 16.
    """
    return target.zen and target.has("avx512vnni") and _tile(k) == _TILE


def _tile(k: int) -> int:
    """Return the rows of a tile: fewer where rows are long."""
    return max(1, min(_TILE, _STACK // (k // CHUNK * DIGITS or 1)))


def _quantised(module: Module, name: str, tile: int) -> str:
    params = [("ptr", "digits"), ("ptr", "panel"), ("i64", "blocks"), ("i64", "rows")]
    body = partial(_emit_quantised, form=FORMATS[name], planes=planes(module), tile=tile)
    return module.once(f"gemv_rows.{name}_{tile}", [*params, ("ptr", "sums")], body)


def _emit_quantised(f: Function, form: Format, planes: int, tile: int) -> None:
    """Write the 16 dot products of a panel with each row of digits, which lie block by block."""
    digits, panel, blocks, rows, sums = f.params
    heads = f.at(panel, heads_at(f, form, blocks))

    def clear(r: Value, _: list[Value]) -> list[Value]:
        f.store(f.zero(SUMS), f.at(sums, r, LINE), align=64)
        return []

    def block(b: Value, _: list[Value]) -> list[Value]:
        at, head = f.at(panel, b, form.block_step), f.at(heads, b, form.head_step)
        of_block = block_scale(f, form, head)
        first = f.mul(b, form.chunks)

        def chunk(c: Value, _: list[Value]) -> list[Value]:
            words = f.at(at, c, form.chunk_step)
            ask_ahead(f, words, form.chunk_step)
            scales = chunk_scales(f, form, head, of_block, c)
            products = _products(f, form, planes, words)
            of_chunk = f.at(digits, f.add(first, c), tile * DIGITS)

            def row(r: Value, _: list[Value]) -> list[Value]:
                digit, place = f.at(of_chunk, r, DIGITS), f.at(sums, r, LINE)
                numbers = Numbers.of_row(f, digit)
                power = f.splat(numbers.scale, PANEL)
                before = f.load(SUMS, place, align=64)
                joined = [join(f, own) for own in products(digit)]
                value = scaled(f, before, joined, scales, power, numbers)
                f.store(value, place, align=64)
                return []

            f.for_(0, rows, 1, [], row)
            return []

        f.for_(0, form.chunks, 1, [], chunk)
        return []

    f.for_(0, rows, 1, [], clear)
    f.for_(0, blocks, 1, [], block)
    f.ret()


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
