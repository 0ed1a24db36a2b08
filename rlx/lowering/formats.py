"""
Weight formats, their packed panels, and how kernels read them.

A weight is a matrix of n rows (outputs) by k. In a GGUF file each row is a sequence of blocks of 32
or 256 along k. Kernels read it in panels: 16 rows interleaved, so that one vector holds the same
position of 16 rows. Of a quantised format, 32 elements at a time, a chunk, are 8 groups of four
numbers, and a plane holds some bits of all of them:

    plane of b bits   [b words][16 rows]   group g is in word g % b, its bits from b (g // b) on in
                                           each of the word's four bytes
    chunk             its planes: the low bits of the numbers, then the high ones
    head of a block   [1 or 2][16] f16: the scale, then the minimum; then, where a block has parts
                      with scales of their own, [parts][16] bytes of these, then of their minima

A panel is its blocks, each with its head behind it where that keeps lines whole, else with all
heads behind the last block. It takes about the bytes of its rows, and is rounded up to 64:

    q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q6_k   exactly the bytes of the rows
    q4_k 1.03, q5_k 1.02, q3_k 1.04            scales of 6 bits are stored as bytes

The bytes of q8_0 are stored biased, q + 128, because the x86 byte products want one unsigned
operand. Float formats have 16 elements for each k; those of bf16 in pairs, two consecutive k of a
row beside each other, which is what products of bf16 want. Rows beyond n are zero.

Panels of i8, which no file has, are of rows that were rounded to bytes: integers of at most 127
times a step, a 127th of the row's largest. Four consecutive k of a row are beside each other, and
rows are filled with zeros up to a multiple of 64:

    panel             [k / 4][16][4] i8, then [16] f32 steps, then [16] i32 sums of the rows' bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rlx.contract.quant import GGML_TYPES_BY_NAME
from rlx.errors import RlxError
from rlx.lowering.emitter import Function
from rlx.lowering.target import PANEL
from rlx.lowering.values import Index, Value, f32, i64, vec

CHUNK = 32
"""The elements of a quantised row that are read at a time."""
GROUPS = 8
"""The groups of four numbers in a chunk."""
BYTES = "i8"
"""The format of panels of rows that were rounded to bytes."""
BYTES_DEPTH = 64
"""What a row of bytes is filled up to a multiple of."""
BYTES_TAIL = 8 * PANEL
"""The bytes of the steps and sums behind a panel of bytes."""


@dataclass(frozen=True)
class Format:
    """How panels store the blocks of a weight format."""

    name: str
    bits: tuple[int, ...] = ()
    """The bits of a number in each plane, the low ones first; none for a float format."""
    halves: int = 0
    """f16 numbers of a block: the scale, then the minimum where there is one."""
    zero: int = 0
    """The stored number that stands for 0, where there is no minimum: a power of two."""
    part: int = 0
    """Elements that share a scale of their own, 16 or 32, which the block's multiplies; or 0."""
    signed: bool = False
    """Whether those scales have a sign."""
    nibbles: bool = False
    """Whether a scale and its minimum are the low and the high half of one byte."""

    @property
    def block(self) -> int:
        """Return the elements of a block, consecutive in a row."""
        return GGML_TYPES_BY_NAME[self.name].elements

    @property
    def block_bytes(self) -> int:
        """Return the bytes of a block of one row in a file."""
        return GGML_TYPES_BY_NAME[self.name].nbytes

    @property
    def quantised(self) -> bool:
        return bool(self.bits)

    @property
    def words(self) -> int:
        """Return the words of a chunk of one row."""
        return sum(self.bits)

    @property
    def chunks(self) -> int:
        """Return the chunks of a block."""
        return self.block // CHUNK

    @property
    def parts(self) -> int:
        """Return how many scales of its own a block has; 0 where it has one alone."""
        return self.block // self.part if self.part else 0

    @property
    def scales_in_chunk(self) -> int:
        return CHUNK // self.part if self.part else 1

    @property
    def chunk_step(self) -> int:
        """Return the bytes of a panel's chunk."""
        return self.words * 4 * PANEL

    @property
    def head_bytes(self) -> int:
        """Return the bytes of a panel's head of one block."""
        each = 2 if self.halves == 2 and not self.nibbles else 1
        return (self.halves * 2 + self.parts * each) * PANEL

    @property
    def interleaved(self) -> bool:
        """Whether each block's head is behind it, and not all of them at the panel's end."""
        return self.quantised and self.head_bytes % 64 == 0

    @property
    def block_step(self) -> int:
        """Return the bytes from a panel's block to the next."""
        if not self.quantised:
            return self.block_bytes * PANEL
        return self.chunks * self.chunk_step + (self.head_bytes if self.interleaved else 0)

    @property
    def head_step(self) -> int:
        """Return the bytes from a block's head to the next one's."""
        return self.block_step if self.interleaved else self.head_bytes

    @property
    def step(self) -> int:
        """Return the bytes that a block adds to a panel."""
        return self.block_step + (0 if self.interleaved else self.head_bytes)


FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format("q4_1", (4,), halves=2),
        Format("q4_0", (4,), halves=1, zero=8),
        Format("q5_1", (4, 1), halves=2),
        Format("q5_0", (4, 1), halves=1, zero=16),
        Format("q8_0", (8,), halves=1, zero=128),
        Format("q2_k", (2,), halves=2, part=16, nibbles=True),
        Format("q3_k", (2, 1), halves=1, zero=4, part=16, signed=True),
        Format("q4_k", (4,), halves=2, part=32),
        Format("q5_k", (4, 1), halves=2, part=32),
        Format("q6_k", (4, 2), halves=1, zero=32, part=16, signed=True),
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
    if name == BYTES:
        return -(-k // BYTES_DEPTH) * BYTES_DEPTH * PANEL + BYTES_TAIL
    form = format_named(name, k)
    return (k // form.block * form.step + 63) // 64 * 64


def packed_bytes(name: str, n: int, k: int) -> int:
    """Return the bytes of a packed [n, k] weight, a multiple of 64."""
    return -(-n // PANEL) * panel_bytes(name, k)


def heads_at(f: Function, form: Format, blocks: Index) -> Value:
    """Return the byte offset in a panel of `blocks` blocks of the first block's head."""
    if form.interleaved:
        return i64(form.chunks * form.chunk_step)
    return f.mul(blocks if isinstance(blocks, Value) else i64(blocks), form.block_step)


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


def load_column(f: Function, name: str, panel: Value, k: Index) -> Value:
    """Load a panel's 16 elements of a float format at k as f32."""
    k = i64(k) if isinstance(k, int) else k
    if name != "bf16":
        return load_float(f, name, f.at(panel, k, FORMATS[name].block_step), PANEL)
    pairs = f.load(vec(PANEL, "i32"), f.at(panel, f.lshr(k, 1), 4 * PANEL))
    odd = f.splat(f.cast("trunc", f.shl(f.and_(k, 1), 4), "i32"), PANEL)
    return f.cast("bitcast", f.shl(f.lshr(pairs, odd), 16), vec(PANEL, "float"))


def element_at(f: Function, name: str, lane: Value, k: Value) -> Value:
    """Return the byte offset in a panel of a float format of a row's element."""
    size = FORMATS[name].block_bytes
    if name != "bf16":
        return f.mul(f.add(f.mul(k, PANEL), lane), size)
    pair = f.add(f.mul(f.lshr(k, 1), PANEL), lane)
    return f.mul(f.add(f.mul(pair, 2), f.and_(k, 1)), size)


def load_half(f: Function, pointer: Value) -> Value:
    """Load an f16 of each of 16 rows as f32."""
    return half_to_float(f, f.load(vec(PANEL, "i16"), pointer, align=2))


# Reading panels


def chunk_pointers(
    f: Function, form: Format, panel: Value, heads: Value, chunk: Value
) -> tuple[Value, Value, Value]:
    """Return where a panel's numbered chunk is, where its block's head is, and its place there."""
    block, place = f.udiv(chunk, form.chunks), f.and_(chunk, form.chunks - 1)
    at = f.at(f.at(panel, block, form.block_step), place, form.chunk_step)
    return at, f.at(heads, block, form.head_step), place


def load_words(f: Function, form: Format, chunk: Value, lanes: int = PANEL) -> list[Value]:
    """Load the words of `lanes` rows of a chunk."""
    type_ = vec(lanes, "i32")
    return [f.load(type_, f.at(chunk, c * 4 * PANEL)) for c in range(form.words)]


def group_bytes(f: Function, form: Format, words: Sequence[Value], group: int) -> Value:
    """Return a group's numbers, in the four bytes of i32 lanes."""
    result, first, low = None, 0, 0
    for bits in form.bits:
        word = words[first + group % bits]
        moved = _bits_moved(f, word, group // bits * bits, bits, low) if bits < 8 else word
        result = f.or_(result, moved) if result else moved
        first, low = first + bits, low + bits
    assert result is not None
    return result


def _bits_moved(f: Function, word: Value, start: int, count: int, low: int) -> Value:
    """Return `count` bits from `start` on of each byte, moved to `low`; zeros beside them."""
    mask, up = 0x01010101 * (((1 << count) - 1) << low), low - start
    if up == 0:
        return f.and_(word, mask)
    if not (f.target.has("gfni") and 256 <= 32 * word.lanes <= f.target.vector_bits):
        return f.and_(f.shl(word, up) if up > 0 else f.lshr(word, -up), mask)
    # One instruction multiplies each byte with a matrix of bits: row i, from the last byte of 8
    # on, has the bits of which bit i is the sum.
    matrix = sum(1 << (8 * (7 - low - i) + start + i) for i in range(count))
    lanes, bytes_ = word.lanes // 2, vec(4 * word.lanes, "i8")
    rows = f.cast("bitcast", f.constant(vec(lanes, "i64"), matrix), bytes_)
    product = f.intrinsic(
        f"x86.vgf2p8affineqb.{32 * word.lanes}",
        bytes_,
        f.cast("bitcast", word, bytes_),
        rows,
        Value("i8", "0"),
    )
    return f.cast("bitcast", product, word.type)


Scale: TypeAlias = tuple[Value, Value | None]
"""What numbers are multiplied with, and what is added then, if anything: f32 of 16 rows."""


def block_scale(f: Function, form: Format, head: Value) -> Scale:
    """Load a block's own scale and minimum as f32."""
    return load_half(f, head), load_half(f, f.at(head, 2 * PANEL)) if form.halves == 2 else None


def chunk_scales(
    f: Function, form: Format, head: Value, of_block: Scale, place: Index
) -> list[Scale]:
    """Return the scales of a block's chunk, one for each part of it that has its own."""
    if not form.part:
        return [of_block]
    scale, minimum = of_block
    count = form.scales_in_chunk
    first = f.at(f.at(head, form.halves * 2 * PANEL), place, count * PANEL)
    result: list[Scale] = []
    for i in range(count):
        at = f.at(first, i * PANEL)
        bytes_ = f.load(vec(PANEL, "i8"), at, align=1)
        own = f.and_(bytes_, 15) if form.nibbles else bytes_
        number = f.cast("sext" if form.signed else "zext", own, vec(PANEL, "i32"))
        factor = f.fmul(scale, f.cast("sitofp", number, vec(PANEL, "float")))
        if minimum is None:
            result.append((factor, None))
            continue
        if form.nibbles:
            low = f.lshr(bytes_, 4)
        else:
            low = f.load(vec(PANEL, "i8"), f.at(at, form.parts * PANEL), align=1)
        low = f.cast("sitofp", f.cast("zext", low, vec(PANEL, "i32")), vec(PANEL, "float"))
        result.append((factor, f.fneg(f.fmul(minimum, low))))
    return result


def _spread(f: Function, form: Format, number: Value, scale: Scale) -> Value:
    """Return what numbers, i32 lanes, stand for."""
    if form.zero:
        number = f.sub(number, form.zero)
    value = f.cast("sitofp", number, vec(number.lanes, "float"))
    factor, minimum = scale
    return f.fma(value, factor, minimum) if minimum else f.fmul(value, factor)


def chunk_columns(f: Function, form: Format, chunk: Value, scales: Sequence[Scale]) -> list[Value]:
    """Dequantise a panel's chunk: the f32 of the 16 rows at each of its 32 places."""
    words = load_words(f, form, chunk)
    columns: list[Value] = []
    for group in range(GROUPS):
        four = group_bytes(f, form, words, group)
        scale = scales[group * len(scales) // GROUPS]
        for byte in range(4):
            number = f.lshr(four, 8 * byte) if byte else four
            columns.append(_spread(f, form, f.and_(number, 255) if byte < 3 else number, scale))
    return columns


def emit_unpack_row(f: Function, name: str, packed: Value, row: Value, k: int, dst: Value) -> None:
    """Emit the dequantisation of one row of a packed [n, k] weight to k f32 at `dst`."""
    form = format_named(name, k)
    panel = f.at(packed, f.lshr(row, 4), panel_bytes(name, k))
    lane = f.and_(row, PANEL - 1)
    if not form.quantised:

        def element(i: Value, _: list[Value]) -> list[Value]:
            value = load_float(f, name, f.at(panel, element_at(f, name, lane, i)), 1)
            f.store(value, f.at(dst, i, 4))
            return []

        f.for_(0, k, 1, [], element)
        return
    heads = f.at(panel, heads_at(f, form, k // form.block))

    def chunk(i: Value, _: list[Value]) -> list[Value]:
        at, head, place = chunk_pointers(f, form, panel, heads, i)
        _unpack_chunk(f, form, at, head, place, lane, f.at(dst, i, 4 * CHUNK))
        return []

    f.for_(0, k // CHUNK, 1, [], chunk)


def _unpack_chunk(
    f: Function, form: Format, chunk: Value, head: Value, place: Value, lane: Value, dst: Value
) -> None:
    """Dequantise one row's lane of a panel's chunk, four consecutive elements at a time."""
    own = f.at(chunk, lane, 4)
    words = [f.load("i32", f.at(own, c * 4 * PANEL)) for c in range(form.words)]
    # The scales of all 16 rows, of which one is kept: the code that kernels read them with.
    scales: list[Scale] = [
        (f.splat(f.extract(factor, lane), 4), minimum and f.splat(f.extract(minimum, lane), 4))
        for factor, minimum in chunk_scales(f, form, head, block_scale(f, form, head), place)
    ]
    for group in range(GROUPS):
        four = f.splat(group_bytes(f, form, words, group), 4)
        number = f.and_(f.lshr(four, f.vector("i32", [0, 8, 16, 24])), 255)
        value = _spread(f, form, number, scales[group * len(scales) // GROUPS])
        f.store(value, f.at(dst, 16 * group))
