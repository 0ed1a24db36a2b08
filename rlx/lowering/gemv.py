"""
One row of f32 activations times packed weights, to f32 accuracy at the speed of bytes.

Each block of 32 activations is written as 24-bit integers times a power of two, an integer as
three balanced digits of 8 bits: q = 65536 s + 256 t + u. The digits are multiplied with the
quantised weights in integers, exactly, while these are in registers, whatever the instruction set;
a block's three sums are then put together in f32:

    d (65536 S + (256 T + U))      S, T, U: the sums of weight times digit; d: the power of two

256 T + U is exact in i32. The sum of activations that goes with a minimum is that of the integers.
A block with an infinity or a NaN gives NaN. Activations below 2^-104 lose bits to underflow.

Float weights are multiplied with the activations in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rlx.lowering.contract import Group, check, shares
from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import (
    FORMATS,
    Format,
    load_float,
    load_scale,
    panel_bytes,
    position,
    scales_at,
)
from rlx.lowering.target import PANEL, Target
from rlx.lowering.values import Value, f32, i32, i64

Store = Callable[[Function, int, Value, list[Value]], None]
"""An epilogue: called with the group, the panel (i64) and an <16 x float> for each weight."""

_ROW = f"<{PANEL} x float>"
_INTS = f"<{PANEL} x i32>"

_AHEAD = 8192  # bytes: with a prefetch so far ahead the panels stream as fast as plain loads

# A block of digits: [s, t, u][32] i8, then these
_DIGITS = 128
_SCALE_AT = 96  # f32: the power of two
_SUM_AT = 100  # f32: the sum of the block's activations
_BIAS_AT = {8: 104, 128: 116}  # [3] i32: minus the sums of s, t, u times the weights' zero


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
    4 k bytes of its stack, once for all products in a function.
    """
    check(k, groups, weights)
    module = f.module
    digits = row
    forms = [FORMATS[name] for group in groups for name in group.formats]
    if any(form.quantised for form in forms):
        digits = f.scratch("digits", k // 32 * _DIGITS)
        zeros = tuple(sorted({form.zero for form in forms if form.zero}))
        f.call(_digits(module, zeros), "void", row, digits, i64(k // 32))
    costs = [sum(panel_bytes(name, k) for name in group.formats) // 64 for group in groups]
    split = shares(f, [group.panels for group in groups], costs, tid, nth)

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

    for g, (first, last) in enumerate(split):
        f.for_(first, last, 1, [], partial(panel, g))


# Digits


def _digits(module: Module, zeros: tuple[int, ...]) -> str:
    """Return a function that writes a row as digits, with the sums that weights' zeros need."""

    def body(f: Function) -> None:
        row, digits, blocks = f.params

        def block(b: Value, _: list[Value]) -> list[Value]:
            _emit_digit_block(f, f.at(row, b, 128), f.at(digits, b, _DIGITS), zeros)
            return []

        f.for_(0, blocks, 1, [], block)
        f.ret()

    name = "_".join(["gemv.digits", *map(str, zeros)])
    return module.once(name, [("ptr", "row"), ("ptr", "digits"), ("i64", "blocks")], body)


def _emit_digit_block(f: Function, row: Value, out: Value, zeros: tuple[int, ...]) -> None:
    """Turn 32 activations into digits and what goes with them."""
    bits = [f.load(_INTS, f.at(row, 64 * i)) for i in range(2)]
    sizes = [f.and_(b, 0x7FFFFFFF) for b in bits]
    largest = f.reduce("smax", f.intrinsic("smax", _INTS, *sizes))
    finite = f.icmp("ult", largest, 0x7F800000)
    # The exponent e with largest < 2^(e - 127) * 8355711 / 2^22, so that no integer exceeds three
    # digits of 127: the addition carries into the exponent where the mantissa is beyond that.
    exponent = f.umax(f.lshr(f.add(largest, 65794), 23), 23)
    up = f.cast("bitcast", f.shl(f.sub(i32(276), exponent), 23), "float")
    down = f.cast("bitcast", f.shl(f.sub(exponent, 22), 23), "float")
    down = f.select(finite, down, f32(float("nan")))
    mask = f.splat(f.cast("sext", finite, "i32"), PANEL)
    integers = [_round(f, f.and_(b, mask), up) for b in bits]

    planes: list[list[Value]] = [[], [], []]
    for i, q in enumerate(integers):
        u = f.ashr(f.shl(q, 24), 24)
        q = f.ashr(f.sub(q, u), 8)
        t = f.ashr(f.shl(q, 24), 24)
        s = f.ashr(f.sub(q, t), 8)
        for plane, digit in enumerate((s, t, u)):
            planes[plane].append(digit)
            f.store(f.cast("trunc", digit, f"<{PANEL} x i8>"), f.at(out, 32 * plane + 16 * i))
    f.store(down, f.at(out, _SCALE_AT))
    total = f.cast("sitofp", f.reduce("add", f.add(*integers)), "float")
    f.store(f.fmul(total, down), f.at(out, _SUM_AT))
    for plane, digit in enumerate(planes if zeros else []):
        digit_sum = f.reduce("add", f.add(*digit))
        for zero in zeros:
            f.store(f.mul(digit_sum, -zero), f.at(out, _BIAS_AT[zero] + 4 * plane))


def _round(f: Function, bits: Value, scale: Value) -> Value:
    """Return f32 lanes, given as bits, times a scale, rounded to integers: below 2^23 in size."""
    x = f.fmul(f.cast("bitcast", bits, _ROW), f.splat(scale, PANEL))
    # Adding and subtracting 2^23 with x's sign rounds to nearest on every CPU.
    sign = f.and_(f.cast("bitcast", x, _INTS), -0x80000000)
    shift = f.cast("bitcast", f.or_(sign, 0x4B000000), _ROW)
    return f.cast("fptosi", f.fsub(f.fadd(x, shift), shift), _INTS)


# Panels of quantised weights


def _quantised(module: Module, name: str) -> str:
    params = [("ptr", "digits"), ("ptr", "panel"), ("i64", "blocks")]
    body = partial(_emit_quantised, form=FORMATS[name])
    return module.once(f"gemv.{name}", params, body, _ROW)


def _emit_quantised(f: Function, form: Format) -> None:
    """Return the 16 dot products of a panel with a row of digits."""
    digits, panel, blocks = f.params
    scales = f.at(panel, f.mul(blocks, form.block_step)) if not form.interleaved else panel
    scales = f.at(scales, scales_at(form, 1)) if form.interleaved else scales
    dot = _dot(f.target)

    def block(b: Value, carried: list[Value]) -> list[Value]:
        (acc,) = carried
        digit = f.at(digits, b, _DIGITS)
        scale = f.at(scales, b, form.scale_step)
        _prefetch(f, panel, b, form.block_bytes)
        s, t, u = dot(f, form, f.at(panel, b, form.block_step), digit)
        power = f.splat(f.load("float", f.at(digit, _SCALE_AT)), PANEL)
        low = f.cast("sitofp", f.add(f.shl(t, 8), u), _ROW)
        value = f.fma(f.cast("sitofp", s, _ROW), f.splat(f32(65536.0), PANEL), low)
        acc = f.fma(value, f.fmul(load_scale(f, scale), power), acc)
        if form.halves == 2:
            total = f.splat(f.load("float", f.at(digit, _SUM_AT)), PANEL)
            acc = f.fma(load_scale(f, scale, 1), total, acc)
        return [acc]

    (acc,) = f.for_(0, blocks, 1, [f.zero(_ROW)], block)
    f.ret(acc)


def _prefetch(f: Function, panel: Value, block: Value, block_bytes: int) -> None:
    """Ask for as many lines as a block has, `_AHEAD` bytes on: most often in the next panels."""
    ahead = f.at(f.at(panel, block, block_bytes * PANEL), _AHEAD)
    for line in range(0, block_bytes * PANEL, 64):
        f.prefetch(f.at(ahead, line), locality=2)


def _bias(f: Function, form: Format, digit: Value, plane: int, lanes: int) -> Value:
    """Return what a plane's sums start from: the stored numbers are `zero` too large."""
    if not form.zero:
        return f.zero(f"<{lanes} x i32>")
    return f.splat(f.load("i32", f.at(digit, _BIAS_AT[form.zero] + 4 * plane)), lanes)


def _dot(target: Target) -> Callable[[Function, Format, Value, Value], list[Value]]:
    """Return the fastest form of the integer products; all give the same integers."""
    if not target.triple.startswith("x86"):
        return _plain_dot
    if target.has("avx512vnni") or target.has("avxvnni"):
        return _vnni_dot
    return _pair_dot if target.avx2 else _plain_dot


def _plain_dot(f: Function, form: Format, block: Value, digit: Value) -> list[Value]:
    """Return the sums of 16 rows with the three digits, by multiplications of 32-bit lanes."""
    bits = 4 if form.words == 4 else 8

    def word(c: Value, sums: list[Value]) -> list[Value]:
        words = f.load(_INTS, f.at(block, c, 4 * PANEL))
        at = f.at(digit, c, 4)
        for part in range(32 // bits):
            number = f.and_(f.lshr(words, bits * part) if part else words, (1 << bits) - 1)
            place = position(form, 0, part)
            for plane in range(3):
                byte = f.load("i8", f.at(at, 32 * plane + place), align=1)
                x = f.splat(f.cast("sext", byte, "i32"), PANEL)
                sums[plane] = f.add(sums[plane], f.mul(number, x))
        return sums

    init = [_bias(f, form, digit, plane, PANEL) for plane in range(3)]
    return f.for_(0, form.words, 1, init, word)


def _byte_products(
    f: Function, form: Format, block: Value, digit: Value, lanes: int, nibbles: bool
) -> Iterator[tuple[int, int, Value, Value]]:
    """
    Give the products a block takes: plane, field, bytes of weights, as many bytes of digits.

    `lanes` rows at `block` are covered. With `nibbles` the bytes of an 8-bit format come as two
    fields of 4 bits, the high one second.
    """
    type_ = f"<{lanes} x i32>"
    narrow = nibbles or form.words == 4
    for c in range(form.words):
        words = f.load(type_, f.at(block, c * 4 * PANEL))
        for field in range(2 if narrow else 1):
            number = f.lshr(words, 4 * field) if field else words
            if narrow:
                number = f.and_(number, 0x0F0F0F0F)
            place = 16 * field if form.words == 4 else 0
            for plane in range(3):
                four = f.load("i32", f.at(digit, 32 * plane + place + 4 * c))
                yield plane, field, number, f.splat(four, lanes)


def _halves(
    f: Function, block: Value, dot: Callable[[Value], list[Value]], lanes: int
) -> list[Value]:
    """Return the sums of 16 rows from a function of the `lanes` rows at a pointer."""
    if lanes == PANEL:
        return dot(block)
    low, high = dot(block), dot(f.at(block, 4 * lanes))
    return [f.shuffle(a, b, range(PANEL)) for a, b in zip(low, high, strict=True)]


def _vnni_dot(f: Function, form: Format, block: Value, digit: Value) -> list[Value]:
    """Return the sums of 16 rows with the three digits, by dot products of four bytes."""
    lanes = 16 if f.target.has("avx512vnni") else 8
    type_, name = f"<{lanes} x i32>", f"x86.avx512.vpdpbusd.{32 * lanes}"

    def rows(at: Value) -> list[Value]:
        # Two chains for each digit: a chain of 8 dependent products would wait for their latency.
        chains = [[_bias(f, form, digit, plane, lanes), f.zero(type_)] for plane in range(3)]
        products = _byte_products(f, form, at, digit, lanes, nibbles=False)
        for i, (plane, _, a, b) in enumerate(products):
            chain = chains[plane]
            last = i // 3 % 2
            chain[last] = f.intrinsic(name, type_, chain[last], *_as_bytes(f, a, b))
        return [f.add(*chain) for chain in chains]

    return _halves(f, block, rows, lanes)


def _pair_dot(f: Function, form: Format, block: Value, digit: Value) -> list[Value]:
    """
    Return the sums of 16 rows with the three digits, by products of byte pairs summed in 16 bits.

    16 products of a nibble and a digit are at most 16 * 15 * 128 = 30720 in size: no saturation.
    """
    lanes = 16 if f.target.avx512 else 8
    type_, shorts = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    bytes_product, add_pairs = (
        ("x86.avx512.pmaddubs.w.512", "x86.avx512.pmaddw.d.512")
        if lanes == 16
        else ("x86.avx2.pmadd.ub.sw", "x86.avx2.pmadd.wd")
    )
    ones = f.constant(shorts, 1)

    def rows(at: Value) -> list[Value]:
        pairs: dict[tuple[int, int], Value] = {}
        for plane, field, a, b in _byte_products(f, form, at, digit, lanes, nibbles=True):
            key = plane, field if form.words == 8 else 0
            product = f.intrinsic(bytes_product, shorts, *_as_bytes(f, a, b))
            pairs[key] = f.add(pairs[key], product) if key in pairs else product
        sums = [_bias(f, form, digit, plane, lanes) for plane in range(3)]
        for (plane, field), pair in pairs.items():
            wide = f.intrinsic(add_pairs, type_, pair, ones)
            sums[plane] = f.add(sums[plane], f.shl(wide, 4) if field else wide)
        return sums

    return _halves(f, block, rows, lanes)


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
        w = load_float(f, name, f.at(f.at(panel, i, step), step * ahead), PANEL)
        return f.fma(w, f.splat(x, PANEL), acc)

    def eight(i: Value, acc: list[Value]) -> list[Value]:
        _prefetch(f, f.at(panel, i, step), i64(0), 8 * FORMATS[name].block_bytes)
        return [product(i, product(i, acc[j], j), j + 4) for j in range(4)]

    whole = f.and_(k, -8)
    sums = f.for_(0, whole, 8, [f.zero(_ROW)] * 4, eight)
    total = f.fadd(f.fadd(sums[0], sums[1]), f.fadd(sums[2], sums[3]))
    (total,) = f.for_(whole, k, 1, [total], lambda i, acc: [product(i, acc[0])])
    f.ret(total)
