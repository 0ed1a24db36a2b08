"""
Packing: from the blocks of a GGUF file to panels.

Block layouts: https://github.com/ggml-org/ggml (the structures of its quantised types). Here each
is said once, by where the bits of a group of four numbers are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlx.lowering.byte_rows import emit_pack_bytes
from rlx.lowering.emitter import Function
from rlx.lowering.formats import (
    BYTES,
    CHUNK,
    FORMATS,
    GROUPS,
    Format,
    element_at,
    format_named,
    half_to_float,
    heads_at,
)
from rlx.lowering.target import PANEL
from rlx.lowering.values import Index, Value, i64
from rlx.lowering.vmath_cast import convert

_ONES = 0x01010101

Bits = Callable[[Function, Value, Value, int], Value]
"""Of a block's pointer, a chunk and a group: its numbers' bits of one plane, in four bytes."""
Scales = Callable[[Function, Value, int], tuple[Value, Value | None]]
"""Of a block's pointer and a part's number: the bytes of its scale and its minimum."""


@dataclass(frozen=True)
class _Raw:
    """Where a format's block of one row has its numbers and scales."""

    planes: tuple[Bits, ...]
    halves: tuple[int, ...]
    """Byte offsets of the scale and of the minimum."""
    scales: Scales | None = None


def _word(f: Function, block: Value, at: int, group: int) -> Value:
    return f.load("i32", f.at(block, at + 4 * group), align=1)


def _field(at: int, bits: int, step: int = 32) -> Bits:
    """Bits of a chunk beside those of the next, in words which `step` bytes later others follow."""
    each = 8 // bits if step else CHUNK // 4

    def of(f: Function, block: Value, chunk: Value, group: int) -> Value:
        start = f.at(block, f.udiv(chunk, each), step) if step else block
        shift = f.mul(f.cast("trunc", f.and_(chunk, each - 1), "i32"), bits)
        return f.and_(f.lshr(_word(f, start, at, group), shift), _ONES * ((1 << bits) - 1))

    return of


def _nibbles(at: int) -> Bits:
    """A block of 32: the low halves of 16 bytes are elements 0 to 15, the high ones the others."""

    def of(f: Function, block: Value, chunk: Value, group: int) -> Value:
        word = _word(f, block, at, group % 4)
        return f.and_(f.lshr(word, 4) if group >= 4 else word, 0x0F * _ONES)

    return of


def _bit_each(at: int) -> Bits:
    """A bit for each of 32 elements, in their order."""

    def of(f: Function, block: Value, chunk: Value, group: int) -> Value:
        four = f.and_(f.lshr(_word(f, block, at, 0), 4 * group), 15)
        # Copies of the four bits, 7 apart: bit i of copy i stands at the foot of byte i.
        return f.and_(f.mul(four, 0x00204081), _ONES)

    return of


def _biased(f: Function, block: Value, chunk: Value, group: int) -> Value:
    return f.xor(_word(f, block, 2, group), -0x7F7F7F80)


def _q6_low(f: Function, block: Value, chunk: Value, group: int) -> Value:
    """Four chunks in 64 bytes: the low halves of both words' bytes, then the high ones."""
    start = f.at(f.at(block, f.udiv(chunk, 4), 64), f.and_(chunk, 1), 32)
    shift = f.cast("trunc", f.shl(f.and_(chunk, 2), 1), "i32")
    return f.and_(f.lshr(_word(f, start, 0, group), shift), 0x0F * _ONES)


def _byte(f: Function, block: Value, at: int) -> Value:
    return f.load("i8", f.at(block, at), align=1)


def _joined(f: Function, low: Value, high: Value, shift: int) -> Value:
    """Return four low bits and, above them, two bits of a byte from a place on."""
    return f.or_(low, f.and_(f.shl(f.lshr(high, shift), 4), 0x30))


def _six_bits(f: Function, block: Value, part: int) -> tuple[Value, Value | None]:
    """q4_k and q5_k: 8 scales and 8 minima of 6 bits in 12 bytes."""
    if part < 4:
        return f.and_(_byte(f, block, 4 + part), 63), f.and_(_byte(f, block, 8 + part), 63)
    both = _byte(f, block, 8 + part)
    return (
        _joined(f, f.and_(both, 15), _byte(f, block, part), 6),
        _joined(f, f.lshr(both, 4), _byte(f, block, 4 + part), 6),
    )


def _six_bits_signed(f: Function, block: Value, part: int) -> tuple[Value, Value | None]:
    """q3_k: 16 scales of 6 bits in 12 bytes, 32 too large."""
    low = f.and_(f.lshr(_byte(f, block, 96 + part % 8), part // 8 * 4), 15)
    return f.sub(_joined(f, low, _byte(f, block, 104 + part % 4), part // 4 * 2), 32), None


_RAW = {
    "q4_0": _Raw((_nibbles(2),), (0,)),
    "q4_1": _Raw((_nibbles(4),), (0, 2)),
    "q5_0": _Raw((_nibbles(6), _bit_each(2)), (0,)),
    "q5_1": _Raw((_nibbles(8), _bit_each(4)), (0, 2)),
    "q8_0": _Raw((_biased,), (0,)),
    "q2_k": _Raw((_field(16, 2),), (80, 82), lambda f, b, part: (_byte(f, b, part), None)),
    "q3_k": _Raw((_field(32, 2), _field(0, 1, step=0)), (108,), _six_bits_signed),
    "q4_k": _Raw((_field(16, 4),), (0, 2), _six_bits),
    "q5_k": _Raw((_field(48, 4), _field(16, 1, step=0)), (0, 2), _six_bits),
    "q6_k": _Raw((_q6_low, _field(128, 2)), (208,), lambda f, b, p: (_byte(f, b, 192 + p), None)),
}


def emit_pack(
    f: Function,
    name: str,
    src: Value,
    dst: Value,
    n: Index,
    k: Index,
    tid: Value,
    nth: Value,
    given: str | None = None,
) -> None:
    """
    Emit the packing of a [n, k] weight in GGUF's layout at `src` into panels at `dst`.

    The weight is of the format `given`, f32 or f16, where it is rounded to `name`, bf16, or to i8
    (then also of bf16, and k is known). Thread
    `tid` of `nth` packs its share of the panels. Nothing is assumed of src's alignment.
    """
    given = given or name
    if name == BYTES:
        assert isinstance(k, int)
        emit_pack_bytes(f, src, dst, n, k, tid, nth, given)
        return
    form = format_named(name, k if isinstance(k, int) else FORMATS[name].block)
    rows, blocks = _index(n), f.udiv(_index(k), form.block)
    size = f.and_(f.add(f.mul(blocks, form.step), 63), -64)
    panels = f.udiv(f.add(rows, PANEL - 1), PANEL)

    def panel(p: Value, _: list[Value]) -> list[Value]:
        out = f.at(dst, f.mul(p, size))
        # What rounding up adds is 32 bytes at the end, or nothing and these are written again.
        f.store(f.zero("<32 x i8>"), f.at(out, f.sub(size, 32)), align=1)

        def row(r: Value, _: list[Value]) -> list[Value]:
            number = f.add(f.mul(p, PANEL), r)
            source = f.at(src, f.mul(number, blocks), FORMATS[given].block_bytes)
            present = f.icmp("slt", number, rows)
            f.if_(
                present,
                lambda: _pack_row(f, form, given, source, out, r, blocks),
                lambda: _clear_row(f, form, out, r, blocks),
            )
            return []

        f.for_(0, PANEL, 1, [], row)
        return []

    first = f.udiv(f.mul(panels, tid), nth)
    last = f.udiv(f.mul(panels, f.add(tid, 1)), nth)
    f.for_(first, last, 1, [], panel)


def _pack_row(
    f: Function, form: Format, given: str, source: Value, out: Value, lane: Value, blocks: Value
) -> list[Value]:
    """Scatter a row's blocks over a lane of its panel."""
    if not form.quantised:
        return _each_element(f, form, out, lane, blocks, _reader(form, given, source))
    raw = _RAW[form.name]

    def block(b: Value, _: list[Value]) -> list[Value]:
        at = f.at(source, b, form.block_bytes)
        to = f.at(f.at(out, b, form.block_step), lane, 4)

        def chunk(c: Value, _: list[Value]) -> list[Value]:
            words = _words(f, form, [[p(f, at, c, g) for g in range(GROUPS)] for p in raw.planes])
            for i, word in enumerate(words):
                f.store(word, f.at(f.at(to, c, form.chunk_step), i * 4 * PANEL))
            return []

        f.for_(0, form.chunks, 1, [], chunk)
        halves = [f.load("i16", f.at(at, place), align=1) for place in raw.halves]
        scales = [raw.scales(f, at, i) for i in range(form.parts)] if raw.scales else []
        bytes_ = [scale for scale, _ in scales] + [minimum for _, minimum in scales if minimum]
        _store_head(f, form, _head(f, form, out, b, blocks), lane, halves, bytes_)
        return []

    return f.for_(0, blocks, 1, [], block)


def _words(f: Function, form: Format, planes: Sequence[Sequence[Value]]) -> list[Value]:
    """Return a chunk's words from the bits of its groups in each plane."""
    words: list[Value] = []
    for bits, groups in zip(form.bits, planes, strict=True):
        for first in range(bits):
            word = groups[first]
            for field in range(1, 8 // bits):
                word = f.or_(word, f.shl(groups[first + bits * field], bits * field))
            words.append(word)
    return words


def _head(f: Function, form: Format, panel: Value, block: Value, blocks: Value) -> Value:
    return f.at(f.at(panel, heads_at(f, form, blocks)), block, form.head_step)


def _store_head(
    f: Function,
    form: Format,
    head: Value,
    lane: Value,
    halves: Sequence[Value],
    bytes_: Sequence[Value],
) -> None:
    for i, half in enumerate(halves):
        f.store(half, f.at(f.at(head, lane, 2), i * 2 * PANEL), align=2)
    parts = f.at(f.at(head, form.halves * 2 * PANEL), lane)
    for i, byte in enumerate(bytes_):
        f.store(byte, f.at(parts, i * PANEL), align=1)


def _clear_row(f: Function, form: Format, out: Value, lane: Value, blocks: Value) -> list[Value]:
    """Write zeros where a panel has no row."""
    if not form.quantised:
        return _each_element(f, form, out, lane, blocks, None)
    each = form.head_bytes // PANEL - 2 * form.halves

    def block(b: Value, _: list[Value]) -> list[Value]:
        to = f.at(f.at(out, b, form.block_step), lane, 4)

        def word(i: Value, _: list[Value]) -> list[Value]:
            f.store(Value("i32", "0"), f.at(to, i, 4 * PANEL))
            return []

        f.for_(0, form.chunks * form.words, 1, [], word)
        head = _head(f, form, out, b, blocks)
        halves, bytes_ = [Value("i16", "0")] * form.halves, [Value("i8", "0")] * each
        _store_head(f, form, head, lane, halves, bytes_)
        return []

    return f.for_(0, blocks, 1, [], block)


def _each_element(
    f: Function,
    form: Format,
    out: Value,
    lane: Value,
    blocks: Value,
    load: Callable[[Function, Value], Value] | None,
) -> list[Value]:
    """Write a row's elements, or zeros, to a lane of its panel."""
    size = form.block_bytes
    type_ = f"i{8 * size}"

    def element(i: Value, _: list[Value]) -> list[Value]:
        value = load(f, i) if load else Value(type_, "0")
        f.store(value, f.at(out, element_at(f, form.name, lane, i)), align=size)
        return []

    f.for_(0, blocks, 1, [], element)
    if form.name == "bf16":
        # The last pair of an odd number has one element; this writes the other.
        odd = f.icmp("ne", f.and_(blocks, 1), 0)
        last = f.at(out, element_at(f, form.name, lane, blocks))
        f.if_(odd, lambda: f.store(Value(type_, "0"), last, align=size) or [])
    return []


def _reader(form: Format, given: str, source: Value) -> Callable[[Function, Value], Value]:
    """Return what loads a row's i-th element, of the format `given`, as the bits of `form`."""
    size = FORMATS[given].block_bytes

    def load(f: Function, i: Value) -> Value:
        bits = f.load(f"i{8 * size}", f.at(source, i, size), align=1)
        if form.name == given:
            return bits
        number = half_to_float(f, bits) if given == "f16" else f.cast("bitcast", bits, "float")
        return f.cast("bitcast", convert(f, number, "bfloat"), "i16")

    return load


def _index(n: Index) -> Value:
    return i64(n) if isinstance(n, int) else n
