"""
Integer products of packed weights with digits, by the instructions that a target has.

All forms give the same integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import TypeAlias

from rlx.lowering.digits import bias
from rlx.lowering.emitter import Function
from rlx.lowering.formats import CHUNK, GROUPS, Format, group_bytes, load_words
from rlx.lowering.target import PANEL, Target
from rlx.lowering.values import Value

_INTS = f"<{PANEL} x i32>"

Sums: TypeAlias = list[list[Value]]
"""Of 16 rows: for each part of a chunk with a scale of its own, the sums for each digit."""

Dot: TypeAlias = Callable[[Function, Format, int, Sequence[Value], Value], list[Sums]]
"""The sums of some panels: of a chunk's words at a pointer each, with so many digits at another."""


def dot_of(target: Target) -> Dot:
    """Return the fastest form of the integer products; all give the same integers."""
    if not target.triple.startswith("x86"):
        return _each(_plain_dot)
    if target.has("avx512vnni"):
        return _wide_dot
    if target.has("avxvnni"):
        return _each(_vnni_dot)
    return _each(_pair_dot if target.avx2 else _plain_dot)


def panels_at_once(target: Target, form: Format) -> tuple[int, ...]:
    """
    Return how many panels' sums fit the registers together, the most first; 1 is the last.

    These share the loads of digits, which take as many of a CPU's slots as the products do; but
    each is a stream of memory, of which Zen takes one faster.
    """
    if not (form.quantised and target.has("avx512vnni")) or target.zen:
        return (1,)
    return (4, 2, 1) if form.scales_in_chunk == 1 else (2, 1)


_Single: TypeAlias = Callable[[Function, Format, int, Value, Value], Sums]


def _each(dot: _Single) -> Dot:
    """Return a form that takes one panel after the other."""
    return lambda f, form, planes, words, digit: [dot(f, form, planes, w, digit) for w in words]


def _plain_dot(f: Function, form: Format, planes: int, words: Value, digit: Value) -> Sums:
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

    result: Sums = []
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
        four = digits_of(f, planes, digit, group, lanes)
        yield group, group_bytes(f, form, loaded, group), four


def digits_of(f: Function, planes: int, digit: Value, group: int, lanes: int) -> list[Value]:
    """Return a group's four bytes of each digit, in all lanes."""
    return [
        f.splat(f.load("i32", f.at(digit, CHUNK * plane + 4 * group)), lanes)
        for plane in range(planes)
    ]


def _halves(f: Function, words: Value, dot: Callable[[Value], Sums], lanes: int) -> Sums:
    """Return the sums of 16 rows from a function of the `lanes` rows at a pointer."""
    if lanes == PANEL:
        return dot(words)
    low, high = dot(words), dot(f.at(words, 4 * lanes))
    return [
        [f.shuffle(a, b, range(PANEL)) for a, b in zip(*parts, strict=True)]
        for parts in zip(low, high, strict=True)
    ]


def _wide_dot(
    f: Function, form: Format, planes: int, words: Sequence[Value], digit: Value
) -> list[Sums]:
    """Multiply by dot products of four bytes, several panels with the same digits in registers."""
    if len(words) == 1:
        return _each(_vnni_dot)(f, form, planes, words, digit)
    count = form.scales_in_chunk
    start = [[bias(f, form, digit, part, p, PANEL) for p in range(planes)] for part in range(count)]
    result = [[list(sums) for sums in start] for _ in words]
    loaded = [load_words(f, form, at) for at in words]
    for group in range(GROUPS):
        four = digits_of(f, planes, digit, group, PANEL)
        for own, sums in zip(loaded, result, strict=True):
            number = group_bytes(f, form, own, group)
            multiply(f, sums[group * count // GROUPS], number, four)
    return result


def multiply(f: Function, sums: list[Value], number: Value, digits: Sequence[Value]) -> None:
    """Add the products of a group's bytes with each digit's to that digit's sums."""
    name = f"x86.avx512.vpdpbusd.{32 * number.lanes}"
    for p, x in enumerate(digits):
        sums[p] = f.intrinsic(name, sums[p].type, sums[p], *_as_bytes(f, number, x))


def _vnni_dot(f: Function, form: Format, planes: int, words: Value, digit: Value) -> Sums:
    """Multiply by dot products of four bytes."""
    lanes = 16 if f.target.has("avx512vnni") else 8
    type_ = f"<{lanes} x i32>"

    def rows(at: Value) -> Sums:
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
            multiply(f, chains[group * 2 // GROUPS], number, four)
        return chains if apart else [[f.add(a, b) for a, b in zip(*chains, strict=True)]]

    return _halves(f, words, rows, lanes)


def _pair_dot(f: Function, form: Format, planes: int, words: Value, digit: Value) -> Sums:
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

    def rows(at: Value) -> Sums:
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
