"""
The inner kernels of a row times packed weights: some panels of one weight, at the speed of bytes.

Each is a function of its module, `void (ptr row, ptr panels, ptr then, i64 stride, i64 blocks, ptr
sums)`, for a format and a number of panels, `stride` bytes apart; `row` is in digits for quantised
weights. It writes 16 f32 for each panel to `sums`. Memory is asked for what lies some blocks on in
every panel, and past their ends for as many panels from `then` on, which are read next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rlx.lowering.digits import DIGITS, Numbers, planes
from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import (
    FORMATS,
    Format,
    Scale,
    block_scale,
    chunk_scales,
    heads_at,
    load_column,
)
from rlx.lowering.gemv_dots import dot_of
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, f32, i64

SUMS = 4 * PANEL
"""Bytes of a panel's outputs."""

_ROW = f"<{PANEL} x float>"
_AHEAD = 6144  # bytes: what L1 holds beside the digits, and a wait for memory
_ROWS_AHEAD = 4096  # bytes: what L1 holds beside the digits of rows
_PARAMS = [
    *(("ptr", name) for name in ("row", "panels", "then")),
    *(("i64", name) for name in ("stride", "blocks")),
    ("ptr", "sums"),
]


def panels_function(module: Module, name: str, width: int) -> str:
    """Return the function of `width` panels of a weight in a format."""
    form = FORMATS[name]
    if form.quantised:
        body = partial(_emit_quantised, form=form, planes=planes(module), width=width)
    else:
        assert width == 1
        body = partial(_emit_float, name=name)
    return module.once(f"gemv.{name}.{width}", _PARAMS, body)


def _emit_quantised(f: Function, form: Format, planes: int, width: int) -> None:
    digits, first, then, stride, blocks, out = f.params
    panels = [f.at(first, f.mul(stride, i)) for i in range(width)]
    heads = heads_at(f, form, blocks)
    dot = dot_of(f.target)
    shift_of = _shifts(f, form, first, then, blocks, max(1, _AHEAD // (width * form.step)))

    def block(b: Value, carried: list[Value]) -> list[Value]:
        at = [f.at(panel, b, form.block_step) for panel in panels]
        head = [f.at(f.at(panel, heads), b, form.head_step) for panel in panels]
        of_block = [block_scale(f, form, h) for h in head]
        words_shift, head_shift = shift_of(b)
        for pointer in head:
            f.prefetch_lines(f.at(pointer, head_shift), form.head_bytes)
        before = f.mul(b, form.chunks)

        def chunk(c: Value | int, acc: list[Value]) -> list[Value]:
            words = [f.at(pointer, c, form.chunk_step) for pointer in at]
            digit = f.at(digits, f.add(before, c), DIGITS)
            for pointer in words:
                f.prefetch_lines(f.at(pointer, words_shift), form.chunk_step)
            numbers = Numbers.of_row(f, digit)
            power = f.splat(numbers.scale, PANEL)
            products = dot(f, form, planes, words, digit)
            scales = [chunk_scales(f, form, *own, c) for own in zip(head, of_block, strict=True)]
            joined = [[join(f, sums) for sums in own] for own in products]
            return [
                scaled(f, *own, power, numbers) for own in zip(acc, joined, scales, strict=True)
            ]

        return f.for_(0, form.chunks, 1, carried, chunk) if form.chunks > 1 else chunk(0, carried)

    for i, value in enumerate(f.for_(0, blocks, 1, [f.zero(_ROW)] * width, block)):
        f.store(value, f.at(out, i * SUMS))
    f.ret()


def scaled(
    f: Function,
    value: Value,
    products: Sequence[Value],
    scales: Sequence[Scale],
    power: Value,
    numbers: Numbers,
) -> Value:
    """Return a panel's outputs with the products of a chunk added, one for each scale."""
    for i, ((scale, minimum), product) in enumerate(zip(scales, products, strict=True)):
        value = f.fma(product, f.fmul(scale, power), value)
        if minimum:
            total = numbers.total(i if len(scales) > 1 else None)
            value = f.fma(minimum, f.splat(total, PANEL), value)
    return value


def join(f: Function, sums: Sequence[Value]) -> Value:
    """Return the f32 that sums of products with digits stand for."""
    *first, t, u = sums
    low = f.cast("sitofp", f.add(f.shl(t, 8), u), _ROW)
    if not first:
        return low
    return f.fma(f.cast("sitofp", first[0], _ROW), f.splat(f32(65536.0), PANEL), low)


def ask_ahead(f: Function, words: Value, size: int) -> None:
    """Ask for `size` bytes behind those that rows are multiplied with: most in the next panel."""
    f.prefetch_lines(f.at(words, _ROWS_AHEAD), size)


def _shifts(
    f: Function, form: Format, first: Value, then: Value, blocks: Value, ahead: int
) -> Callable[[Value], list[Value]]:
    """
    Return what tells, at a block, how far to ask ahead of its words and of its head.

    `ahead` blocks on, the last ones of a panel at the start of the one that is read then.
    """
    way = f.sub(f.cast("ptrtoint", then, "i64"), f.cast("ptrtoint", first, "i64"))
    inside = f.sub(blocks, ahead)
    steps = [form.block_step, form.head_step]
    past = [f.add(f.sub(way, f.mul(blocks, step)), ahead * step) for step in steps]

    def shifts(b: Value) -> list[Value]:
        here = f.icmp("slt", b, inside)
        return [
            f.select(here, i64(ahead * step), beyond)
            for step, beyond in zip(steps, past, strict=True)
        ]

    return shifts


def _emit_float(f: Function, name: str) -> None:
    """Write the 16 dot products of a panel with a row of f32, in four interleaved sums."""
    row, panel, _, _, k, out = f.params
    step = FORMATS[name].block_step

    def product(i: Value, acc: Value, ahead: int = 0) -> Value:
        x = f.load("float", f.at(f.at(row, i, 4), 4 * ahead))
        w = load_column(f, name, panel, f.add(i, ahead))
        return f.fma(w, f.splat(x, PANEL), acc)

    def eight(i: Value, acc: list[Value]) -> list[Value]:
        f.prefetch_lines(f.at(f.at(panel, i, step), _AHEAD), 8 * step)
        return [product(i, product(i, acc[j], j), j + 4) for j in range(4)]

    whole = f.and_(k, -8)
    sums = f.for_(0, whole, 8, [f.zero(_ROW)] * 4, eight)
    total = f.fadd(f.fadd(sums[0], sums[1]), f.fadd(sums[2], sums[3]))
    (total,) = f.for_(whole, k, 1, [total], lambda i, acc: [product(i, acc[0])])
    f.store(total, out)
    f.ret()
