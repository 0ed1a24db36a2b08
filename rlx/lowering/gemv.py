"""
One row of f32 activations times packed weights, at the speed of bytes.

The row is written as digits (`digits.py`). These are multiplied with the quantised weights in
integers, exactly, while the weights are in registers, whatever the instruction set; a block's sums
are then put together in f32:

    d (65536 S + (256 T + U))      S, T, U: the sums of weight times digit; d: the power of two

256 T + U is exact in i32. A block with an infinity or a NaN gives NaN. Activations below 2^-104
lose bits to underflow. Modules that are `fast` have two digits, d (256 S + T).

Float weights are multiplied with the activations in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce

from rlx.lowering.contract import Group, check, shares
from rlx.lowering.digits import DIGITS, bias, digits_function, load_scale, load_sum, planes
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
    load_column,
    load_words,
    panel_bytes,
)
from rlx.lowering.target import PANEL, Target
from rlx.lowering.values import Value, f32, i64

Store = Callable[[Function, int, Value, list[Value]], None]
"""An epilogue: called with the group, the panel (i64) and an <16 x float> for each weight."""

_ROW = f"<{PANEL} x float>"
_INTS = f"<{PANEL} x i32>"

_AHEAD = 6144  # bytes: what L1 holds beside the digits, and a wait for memory
_FIRST = 16384  # bytes: what memory gives while a thread waits, and makes the digits


def emit_gemv(
    f: Function,
    k: int,
    groups: Sequence[Group],
    row: Value,
    weights: Sequence[Sequence[Value]],
    tid: Value,
    nth: Value,
    store: Store,
) -> None:
    """
    Emit one row of k f32 at `row` times this thread's share of the groups' panels.

    `weights` are pointers to packed weights, for each group. `store(f, group, panel, values)`
    emits what is done with a panel's outputs. The digits are made by every thread for itself, in
    5 k bytes of its stack, once for all products in a function.
    """
    check(k, groups, weights)
    module = f.module
    digits = row
    forms = [FORMATS[name] for group in groups for name in group.formats]
    if any(form.quantised for form in forms):
        digits = f.scratch("digits", k // CHUNK * DIGITS)
        f.call(digits_function(module, forms), "void", row, digits, i64(k // CHUNK))

    def panel(g: int, p: Value, _: list[Value]) -> list[Value]:
        values: list[Value] = []
        for name, weight in zip(groups[g].formats, weights[g], strict=True):
            pointer = f.at(weight, p, panel_bytes(name, k))
            quantised = FORMATS[name].quantised
            kernel = _quantised(module, name) if quantised else _float(module, name)
            blocks = i64(k // FORMATS[name].block)
            values.append(f.call(kernel, _ROW, digits if quantised else row, pointer, blocks))
        store(f, g, p, values)
        return []

    for g, (first, last) in enumerate(_split(f, k, groups, tid, nth)):
        f.for_(first, last, 1, [], partial(panel, g))


def emit_gemv_ahead(
    f: Function,
    k: int,
    groups: Sequence[Group],
    weights: Sequence[Sequence[Value]],
    tid: Value,
    nth: Value,
) -> None:
    """Emit prefetches of what `emit_gemv` reads first: it asks only for what is further ahead."""
    check(k, groups, weights)

    def ask(g: int, first: Value) -> list[Value]:
        for name, weight in zip(groups[g].formats, weights[g], strict=True):
            start = f.at(weight, first, panel_bytes(name, k))

            def line(offset: Value, _: list[Value], start: Value = start) -> list[Value]:
                f.prefetch(f.at(start, offset), locality=2)
                return []

            f.for_(0, _FIRST // len(weights[g]), 64, [], line)
        return []

    asked = Value("i1", "false")
    for g, (first, last) in enumerate(_split(f, k, groups, tid, nth)):
        here = f.icmp("ult", first, last)
        f.if_(f.icmp("ult", asked, here), partial(ask, g, first))
        asked = f.or_(asked, here)


def _split(
    f: Function, k: int, groups: Sequence[Group], tid: Value, nth: Value
) -> list[tuple[Value, Value]]:
    """Return this thread's first panel of each group, and where its last one ends."""
    costs = [sum(panel_bytes(name, k) for name in group.formats) // 64 for group in groups]
    return shares(f, [group.panels for group in groups], costs, tid, nth)


# Panels of quantised weights


def _quantised(module: Module, name: str) -> str:
    params = [("ptr", "digits"), ("ptr", "panel"), ("i64", "blocks")]
    body = partial(_emit_quantised, form=FORMATS[name], planes=planes(module))
    return module.once(f"gemv.{name}", params, body, _ROW)


def _emit_quantised(f: Function, form: Format, planes: int) -> None:
    """Return the 16 dot products of a panel with a row of digits."""
    digits, panel, blocks = f.params
    heads = f.at(panel, heads_at(f, form, blocks))
    dot = _dot(f.target)

    def block(b: Value, carried: list[Value]) -> list[Value]:
        at, head = f.at(panel, b, form.block_step), f.at(heads, b, form.head_step)
        of_block = block_scale(f, form, head)
        _prefetch(f, head, form.head_bytes)
        first = f.mul(b, form.chunks)

        def chunk(c: Value | int, acc: list[Value]) -> list[Value]:
            words = f.at(at, c, form.chunk_step)
            digit = f.at(digits, f.add(first, c), DIGITS)
            _prefetch(f, words, form.chunk_step)
            scales = chunk_scales(f, form, head, of_block, c)
            power = f.splat(load_scale(f, digit), PANEL)
            value = acc[0]
            products = dot(f, form, planes, words, digit)
            for i, ((scale, minimum), sums) in enumerate(zip(scales, products, strict=True)):
                value = f.fma(_joined(f, sums), f.fmul(scale, power), value)
                if minimum:
                    total = load_sum(f, digit, i if len(scales) > 1 else None)
                    value = f.fma(minimum, f.splat(total, PANEL), value)
            return [value]

        return f.for_(0, form.chunks, 1, carried, chunk) if form.chunks > 1 else chunk(0, carried)

    (acc,) = f.for_(0, blocks, 1, [f.zero(_ROW)], block)
    f.ret(acc)


def _joined(f: Function, sums: Sequence[Value]) -> Value:
    """Return the f32 that sums of products with digits stand for."""
    *first, t, u = sums
    low = f.cast("sitofp", f.add(f.shl(t, 8), u), _ROW)
    if not first:
        return low
    return f.fma(f.cast("sitofp", first[0], _ROW), f.splat(f32(65536.0), PANEL), low)


def _prefetch(f: Function, at: Value, size: int) -> None:
    """Ask for `size` bytes, `_AHEAD` bytes on: most often in the next panels."""
    ahead = f.at(at, _AHEAD)
    for line in range(0, size, 64):
        f.prefetch(f.at(ahead, line), locality=3)


_Dot = Callable[[Function, Format, int, Value, Value], list[list[Value]]]
"""
The sums of 16 rows: of a chunk's words at a pointer, with so many digits at another.

For each part of the chunk with a scale of its own, the sums for each digit.
"""


def _dot(target: Target) -> _Dot:
    """Return the fastest form of the integer products; all give the same integers."""
    if not target.triple.startswith("x86"):
        return _plain_dot
    if target.has("avx512vnni") or target.has("avxvnni"):
        return _vnni_dot
    return _pair_dot if target.avx2 else _plain_dot


def _plain_dot(
    f: Function, form: Format, planes: int, words: Value, digit: Value
) -> list[list[Value]]:
    """Multiply 32-bit lanes."""
    count = form.scales_in_chunk

    def group(g: Value, sums: list[Value]) -> list[Value]:
        number, first, low = f.zero(_INTS), 0, 0
        for bits in form.bits:
            place = f.and_(g, bits - 1)
            word = f.load(_INTS, f.at(words, f.add(place, first), 4 * PANEL))
            # Bits from bits * (g // bits) on, which is g less its place.
            shift = f.splat(f.cast("trunc", f.sub(g, place), "i32"), PANEL)
            moved = f.and_(f.binary("lshr", word, shift), 0x01010101 * ((1 << bits) - 1))
            number = f.or_(number, f.shl(moved, low) if low else moved)
            first, low = first + bits, low + bits
        at = f.at(digit, g, 4)
        for byte in range(4):
            own = f.lshr(number, 8 * byte) if byte else number
            own = f.and_(own, 255)
            for plane in range(planes):
                x = f.load("i8", f.at(at, CHUNK * plane + byte), align=1)
                x = f.splat(f.cast("sext", x, "i32"), PANEL)
                sums[plane] = f.add(sums[plane], f.mul(own, x))
        return sums

    result: list[list[Value]] = []
    for part in range(count):
        start = [bias(f, form, digit, part, plane, PANEL) for plane in range(planes)]
        first, last = part * GROUPS // count, (part + 1) * GROUPS // count
        result.append(f.for_(first, last, 1, start, group))
    return result


def _groups(
    f: Function, form: Format, planes: int, words: Value, digit: Value, lanes: int
) -> Iterator[tuple[int, Value, list[Value]]]:
    """Give each group of a chunk, its bytes of `lanes` rows, and those of each digit."""
    loaded = load_words(f, form, words, lanes)
    for group in range(GROUPS):
        four = [
            f.splat(f.load("i32", f.at(digit, CHUNK * plane + 4 * group)), lanes)
            for plane in range(planes)
        ]
        yield group, group_bytes(f, form, loaded, group), four


def _halves(
    f: Function, words: Value, dot: Callable[[Value], list[list[Value]]], lanes: int
) -> list[list[Value]]:
    """Return the sums of 16 rows from a function of the `lanes` rows at a pointer."""
    if lanes == PANEL:
        return dot(words)
    low, high = dot(words), dot(f.at(words, 4 * lanes))
    return [
        [f.shuffle(a, b, range(PANEL)) for a, b in zip(*parts, strict=True)]
        for parts in zip(low, high, strict=True)
    ]


def _vnni_dot(
    f: Function, form: Format, planes: int, words: Value, digit: Value
) -> list[list[Value]]:
    """Multiply by dot products of four bytes."""
    lanes = 16 if f.target.has("avx512vnni") else 8
    type_, name = f"<{lanes} x i32>", f"x86.avx512.vpdpbusd.{32 * lanes}"

    def rows(at: Value) -> list[list[Value]]:
        # A chain for each half of the chunk: one of 8 dependent products would wait for latency.
        apart = form.scales_in_chunk == 2
        chains = [
            [
                bias(f, form, digit, half, p, lanes) if apart or not half else f.zero(type_)
                for p in range(planes)
            ]
            for half in range(2)
        ]
        for group, number, four in _groups(f, form, planes, at, digit, lanes):
            chain = chains[group * 2 // GROUPS]
            for p, x in enumerate(four):
                chain[p] = f.intrinsic(name, type_, chain[p], *_as_bytes(f, number, x))
        return chains if apart else [[f.add(a, b) for a, b in zip(*chains, strict=True)]]

    return _halves(f, words, rows, lanes)


def _pair_dot(
    f: Function, form: Format, planes: int, words: Value, digit: Value
) -> list[list[Value]]:
    """
    Multiply pairs of bytes, whose sums are added in 16 bits as often as these hold.

    A pair with numbers of b bits and digits is at most 2 (2^b - 1) 128 in size. Those of 8 bits
    are multiplied as two of 4.
    """
    lanes = 16 if f.target.avx512 else 8
    type_, shorts = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    bytes_product, add_pairs = (
        ("x86.avx512.pmaddubs.w.512", "x86.avx512.pmaddw.d.512")
        if lanes == 16
        else ("x86.avx2.pmadd.ub.sw", "x86.avx2.pmadd.wd")
    )
    ones = f.constant(shorts, 1)
    narrow = 4 if form.words == 8 else form.words
    most = 32767 // (2 * ((1 << narrow) - 1) * 128)

    def total(pairs: Sequence[Value]) -> Value:
        sums: list[Value] = []
        for i in range(0, len(pairs), most):
            together = pairs[i]
            for pair in pairs[i + 1 : i + most]:
                together = f.add(together, pair)
            sums.append(f.intrinsic(add_pairs, type_, together, ones))
        return reduce(f.add, sums)

    def rows(at: Value) -> list[list[Value]]:
        count = form.scales_in_chunk
        pairs: dict[tuple[int, int, int], list[Value]] = {}
        for group, number, four in _groups(f, form, planes, at, digit, lanes):
            low = f.and_(number, 0x0F0F0F0F) if form.words == 8 else number
            parts = [low]
            if form.words == 8:
                parts.append(f.and_(f.lshr(number, 4), 0x0F0F0F0F))
            for p, x in enumerate(four):
                for field, part in enumerate(parts):
                    product = f.intrinsic(bytes_product, shorts, *_as_bytes(f, part, x))
                    pairs.setdefault((group * count // GROUPS, p, field), []).append(product)
        sums = [
            [bias(f, form, digit, part, p, lanes) for p in range(planes)] for part in range(count)
        ]
        for (part, p, field), some in pairs.items():
            wide = total(some)
            sums[part][p] = f.add(sums[part][p], f.shl(wide, 4) if field else wide)
        return sums

    return _halves(f, words, rows, lanes)


def _as_bytes(f: Function, *words: Value) -> list[Value]:
    return [f.cast("bitcast", word, f"<{4 * word.lanes} x i8>") for word in words]


# Panels of float weights


def _float(module: Module, name: str) -> str:
    params = [("ptr", "row"), ("ptr", "panel"), ("i64", "k")]
    return module.once(f"gemv.{name}", params, partial(_emit_float, name=name), _ROW)


def _emit_float(f: Function, name: str) -> None:
    """Return the 16 dot products of a panel with a row of f32, in four interleaved sums."""
    row, panel, k = f.params
    step = FORMATS[name].block_step

    def product(i: Value, acc: Value, ahead: int = 0) -> Value:
        x = f.load("float", f.at(f.at(row, i, 4), 4 * ahead))
        w = load_column(f, name, panel, f.add(i, ahead))
        return f.fma(w, f.splat(x, PANEL), acc)

    def eight(i: Value, acc: list[Value]) -> list[Value]:
        _prefetch(f, f.at(panel, i, step), 8 * step)
        return [product(i, product(i, acc[j], j), j + 4) for j in range(4)]

    whole = f.and_(k, -8)
    sums = f.for_(0, whole, 8, [f.zero(_ROW)] * 4, eight)
    total = f.fadd(f.fadd(sums[0], sums[1]), f.fadd(sums[2], sums[3]))
    (total,) = f.for_(whole, k, 1, [total], lambda i, acc: [product(i, acc[0])])
    f.ret(total)
