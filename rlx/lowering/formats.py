"""
Weight formats, their packed panels, and the code that packs and unpacks them.

A weight is a matrix of n rows (outputs) by k. In a GGUF file each row is a sequence of blocks along
k (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Kernels read it in panels: 16 rows
interleaved, so that one vector holds the same position of 16 rows. A panel takes the bytes of its
rows, rounded up to 64:

    q4_1        for each block of 32: nibbles [4 words][16 rows], then 16 scales, 16 minima (f16)
    q4_0, q8_0  for each block of 32: [4 or 8 words][16 rows]; behind the last, 16 scales for each
    f32, f16    for each k: 16 elements; bf16 the same

A word is 4 bytes of a row's block: of q4, byte j holds elements j (low nibble) and j + 16. The
bytes of q8_0 are stored biased, q + 128, because the x86 byte products want one unsigned operand.
Rows beyond n are zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlx.contract.quant import GGML_TYPES_BY_NAME
from rlx.errors import RlxError
from rlx.lowering.emitter import Function
from rlx.lowering.target import PANEL
from rlx.lowering.values import Index, Value, f32, i64, vec


@dataclass(frozen=True)
class Format:
    """How panels store the blocks of a weight format."""

    name: str
    words: int = 0
    """Words of quantised values in a block; 0 for a float format."""
    halves: int = 0
    """f16 numbers before them: the scale, then the minimum where there is one."""
    zero: int = 0
    """The stored number that stands for 0, where the block has no minimum."""
    interleaved: bool = False
    """Whether a panel keeps each block's scales behind it, and not all of them at its end."""

    @property
    def block(self) -> int:
        """Return the elements of a block, consecutive in a row."""
        return GGML_TYPES_BY_NAME[self.name].elements

    @property
    def block_bytes(self) -> int:
        return GGML_TYPES_BY_NAME[self.name].nbytes

    @property
    def quantised(self) -> bool:
        return self.words > 0

    @property
    def block_step(self) -> int:
        """Return the bytes from a panel's block to the next."""
        if self.interleaved or not self.quantised:
            return self.block_bytes * PANEL
        return self.words * 4 * PANEL

    @property
    def scale_step(self) -> int:
        """Return the bytes from a block's scales to the next one's."""
        return self.block_step if self.interleaved else self.halves * 2 * PANEL


FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format("q4_1", words=4, halves=2, interleaved=True),
        Format("q4_0", words=4, halves=1, zero=8),
        Format("q8_0", words=8, halves=1, zero=128),
        Format("f32"),
        Format("f16"),
        Format("bf16"),
    )
}


def format_named(name: str, k: int) -> Format:
    """Return a format; raises RlxError where it is unknown or rows of k have a part of a block."""
    form = FORMATS.get(name)
    if form is None:
        known = ", ".join(FORMATS)
        raise RlxError(f"unknown weight format '{name}': expected one of {known}")
    if k <= 0 or k % form.block:
        raise RlxError(
            f"a {name} weight has blocks of {form.block} along its rows, and rows of {k} are not a "
            f"positive multiple of that: use a format without blocks, or pad the rows"
        )
    return form


def panel_bytes(name: str, k: int) -> int:
    """Return the bytes of one packed panel of 16 rows, a multiple of 64."""
    form = format_named(name, k)
    return _round_up(k // form.block * form.block_bytes * PANEL)


def packed_bytes(name: str, n: int, k: int) -> int:
    """Return the bytes of a packed [n, k] weight, a multiple of 64."""
    return -(-n // PANEL) * panel_bytes(name, k)


def _round_up(size: int) -> int:
    return (size + 63) // 64 * 64


def scales_at(form: Format, blocks: int) -> int:
    """Return the byte offset in a panel of `blocks` blocks of the first block's scales."""
    return form.words * 4 * PANEL * (1 if form.interleaved else blocks)


# Numbers


def half_to_float(f: Function, bits: Value) -> Value:
    """Convert binary16 numbers, given as i16 lanes, to f32."""
    lanes = bits.lanes
    float_type, int_type = vec(lanes, "float"), vec(lanes, "i32")
    if not f.target.triple.startswith("x86") or f.target.has("f16c"):
        return f.cast("fpext", f.cast("bitcast", bits, vec(lanes, "half")), float_type)
    # An x86 CPU without F16C: place the bits as a small f32 and multiply its exponent into range,
    # which also normalises subnormals; infinities and NaNs then get the exponent of all ones.
    wide = f.cast("zext", bits, int_type)
    magnitude = f.shl(f.and_(wide, 0x7FFF), 13)
    scaled = f.fmul(f.cast("bitcast", magnitude, float_type), f.splat(f32(2.0**112), lanes))
    special = f.cast("sext", f.icmp("uge", magnitude, 0x7C00 << 13), int_type)
    value = f.or_(f.cast("bitcast", scaled, int_type), f.and_(special, 0x7F800000))
    sign = f.shl(f.and_(wide, 0x8000), 16)
    return f.cast("bitcast", f.or_(value, sign), float_type)


def load_float(f: Function, name: str, pointer: Value, lanes: int) -> Value:
    """Load `lanes` elements of a float format as f32."""
    if name == "f32":
        return f.load(vec(lanes, "float"), pointer)
    bits = f.load(vec(lanes, "i16"), pointer, align=2)
    if name == "f16":
        return half_to_float(f, bits)
    wide = f.shl(f.cast("zext", bits, vec(lanes, "i32")), 16)
    return f.cast("bitcast", wide, vec(lanes, "float"))


def load_scale(f: Function, pointer: Value, index: int = 0) -> Value:
    """Load the 16 scales (index 0) or minima (1) of a panel's block as f32."""
    bits = f.load(f"<{PANEL} x i16>", f.at(pointer, index * 2 * PANEL), align=2)
    return half_to_float(f, bits)


# Packing


def emit_pack(
    f: Function, name: str, src: Value, dst: Value, n: Index, k: Index, tid: Value, nth: Value
) -> None:
    """
    Emit the packing of a [n, k] weight in GGUF's layout at `src` into panels at `dst`.

    Thread `tid` of `nth` packs its share of the panels. Nothing is assumed of src's alignment.
    """
    form = format_named(name, k if isinstance(k, int) else FORMATS[name].block)
    rows, blocks = _index(n), f.udiv(_index(k), form.block)
    quant_bytes = f.mul(blocks, form.block_step)
    size = f.and_(f.add(f.mul(blocks, form.block_bytes * PANEL), 63), -64)
    panels = f.udiv(f.add(rows, PANEL - 1), PANEL)

    def panel(p: Value, _: list[Value]) -> list[Value]:
        out = f.at(dst, f.mul(p, size))
        # What rounding up adds is 32 bytes at the end, or nothing and these are written again.
        f.store(f.zero("<32 x i8>"), f.at(out, f.sub(size, 32)), align=1)
        scales = f.at(out, scales_at(form, 1) if form.interleaved else quant_bytes)

        def row(r: Value, _: list[Value]) -> list[Value]:
            number = f.add(f.mul(p, PANEL), r)
            source = f.at(src, f.mul(number, blocks), form.block_bytes)
            _pack_row(f, form, source, out, scales, r, blocks, f.icmp("slt", number, rows))
            return []

        f.for_(0, PANEL, 1, [], row)
        return []

    first = f.udiv(f.mul(panels, tid), nth)
    last = f.udiv(f.mul(panels, f.add(tid, 1)), nth)
    f.for_(first, last, 1, [], panel)


def _pack_row(
    f: Function,
    form: Format,
    source: Value,
    out: Value,
    scales: Value,
    lane: Value,
    blocks: Value,
    present: Value,
) -> None:
    """Scatter a row's blocks, or zeros where the row is not present, over a lane of its panel."""
    word = "i32" if form.quantised or form.block_bytes == 4 else "i16"
    size = 4 if word == "i32" else 2
    head = form.halves * 2
    quants = f.at(out, lane, size)
    halves = f.at(scales, lane, 2)

    def blocks_from(load: bool) -> list[Value]:
        def block(b: Value, _: list[Value]) -> list[Value]:
            at = f.at(source, b, form.block_bytes)
            to, scales_to = f.at(quants, b, form.block_step), f.at(halves, b, form.scale_step)
            for h in range(form.halves):
                value = f.load("i16", f.at(at, 2 * h), align=1) if load else Value("i16", "0")
                f.store(value, f.at(scales_to, h * 2 * PANEL), align=2)
            for c in range(form.words or 1):
                value = f.load(word, f.at(at, head + size * c), align=1) if load else None
                if value and form.zero == 128:
                    value = f.xor(value, -0x7F7F7F80)
                f.store(value or Value(word, "0"), f.at(to, c * size * PANEL), align=size)
            return []

        return f.for_(0, blocks, 1, [], block)

    f.if_(present, lambda: blocks_from(True), lambda: blocks_from(False))


def _index(n: Index) -> Value:
    return i64(n) if isinstance(n, int) else n


# Unpacking


def dequantised(f: Function, form: Format, word: Value, part: int) -> Value:
    """Return the part-th numbers (nibbles of q4, bytes of q8_0) of i32 words, as f32."""
    bits = 4 if form.words == 4 else 8
    shifted = f.lshr(word, bits * part) if part else word
    number = f.and_(shifted, (1 << bits) - 1)
    if form.zero:
        number = f.sub(number, form.zero)
    return f.cast("sitofp", number, vec(word.lanes, "float"))


def position(form: Format, word: int, part: int) -> int:
    """Return the place in its block of a word's part-th number."""
    return 4 * word + (part // 2 + 16 * (part % 2) if form.words == 4 else part)


def block_columns(
    f: Function, form: Format, block: Value, scales: Value
) -> Iterator[tuple[int, Value]]:
    """Dequantise a panel's block: give each place in it and the f32 of the 16 rows there."""
    scale = load_scale(f, scales)
    minimum = load_scale(f, scales, 1) if form.halves == 2 else None
    for c in range(form.words):
        word = f.load(f"<{PANEL} x i32>", f.at(block, c * 4 * PANEL))
        for part in range(32 // form.words):
            number = dequantised(f, form, word, part)
            value = f.fma(number, scale, minimum) if minimum else f.fmul(number, scale)
            yield position(form, c, part), value


def emit_unpack_row(f: Function, name: str, packed: Value, row: Value, k: int, dst: Value) -> None:
    """Emit the dequantisation of one row of a packed [n, k] weight to k f32 at `dst`."""
    form = format_named(name, k)
    blocks = k // form.block
    panel = f.at(packed, f.lshr(row, 4), panel_bytes(name, k))
    lane = f.and_(row, PANEL - 1)
    if not form.quantised:
        elements = f.at(panel, lane, form.block_bytes)

        def element(i: Value, _: list[Value]) -> list[Value]:
            value = load_float(f, name, f.at(elements, i, form.block_step), 1)
            f.store(value, f.at(dst, i, 4))
            return []

        f.for_(0, k, 1, [], element)
        return
    quants = f.at(panel, lane, 4)
    scales = f.at(f.at(panel, scales_at(form, blocks)), lane, 2)

    def block(b: Value, _: list[Value]) -> list[Value]:
        _unpack_block(
            f,
            form,
            f.at(quants, b, form.block_step),
            f.at(scales, b, form.scale_step),
            f.at(dst, b, 4 * form.block),
        )
        return []

    f.for_(0, blocks, 1, [], block)


def _unpack_block(f: Function, form: Format, block: Value, scales: Value, dst: Value) -> None:
    """Dequantise one row's lane of a panel's block, four consecutive elements at a time."""
    halves = [
        f.splat(half_to_float(f, f.load("i16", f.at(scales, h * 2 * PANEL), align=2)), 4)
        for h in range(form.halves)
    ]
    fields = 2 if form.words == 4 else 1
    for c in range(form.words):
        word = f.splat(f.load("i32", f.at(block, c * 4 * PANEL)), 4)
        bytes_ = f.lshr(word, f.vector("i32", [0, 8, 16, 24]))
        for field in range(fields):
            number = f.lshr(bytes_, 4 * field) if field else bytes_
            number = f.and_(number, 15 if fields == 2 else 255)
            if form.zero:
                number = f.sub(number, form.zero)
            value = f.cast("sitofp", number, "<4 x float>")
            value = f.fma(value, *halves) if form.halves == 2 else f.fmul(value, halves[0])
            f.store(value, f.at(dst, 4 * position(form, c, field)))
