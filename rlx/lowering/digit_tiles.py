"""
Tiles of rows of f32 activations as digits, for the matrix unit: those of `digits.py`, to the bit.

A block of 16 rows is written at once, so that what each row has one of (its largest activation, its
scale, its sum) is in the lanes of a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlx.lowering.digits import Numbers, scales_of
from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import CHUNK
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, f32, i64

TILE_ROWS = 16
_ROW, _INTS = f"<{PANEL} x float>", f"<{PANEL} x i32>"
_BYTES = f"<{4 * PANEL} x i8>"
_NUMBER = 4 * TILE_ROWS
"""Bytes of a number of all rows."""


@dataclass(frozen=True)
class TileLayout:
    """
    Where a block of a tile of rows has what products need.

        digits of bytes     [s, t, u][16][32] i8, where there are `bytes`
        pairs of digits     [h, l][16][32 of more weight, 32 of less] i8, where there are `pairs`
        its numbers         [16] f32 of each, as `digits.Numbers` has them

    An integer is 4096 h + l, and each of these 16 times one digit and another one.
    """

    planes: int
    bytes: bool
    pairs: bool

    @property
    def digit_step(self) -> int:
        """Return the bytes of a tile of digits."""
        return TILE_ROWS * CHUNK

    @property
    def pair_step(self) -> int:
        return 2 * self.digit_step

    @property
    def pairs_at(self) -> int:
        return self.planes * self.digit_step if self.bytes else 0

    @property
    def numbers_at(self) -> int:
        return self.pairs_at + (2 * self.pair_step if self.pairs else 0)

    @property
    def size(self) -> int:
        """Return the bytes of a block, a multiple of 64."""
        return self.numbers_at + 2 * _NUMBER

    def numbers(self, f: Function, block: Value, row: int = 0) -> Numbers:
        """Return a row's numbers."""
        return Numbers(f, f.at(block, self.numbers_at + 4 * row), _NUMBER)


def tile_digits_function(module: Module, layout: TileLayout, stride: int) -> str:
    """
    Return a function that writes a tile of rows, `stride` bytes apart, as digits.

    `void (ptr rows, ptr tile, i64 blocks, i64 count)`: of count rows, 1 to 16; what is left of the
    tile is the last row again, as other numbers might be subnormal, and slow.
    """

    def body(f: Function) -> None:
        rows, tile, blocks, count = f.params
        last = f.sub(count, 1)
        own = [f.at(rows, f.umin(i64(r), last), stride) for r in range(TILE_ROWS)]

        def block(b: Value, _: list[Value]) -> list[Value]:
            out = f.at(tile, b, layout.size)
            _write_block(f, layout, [f.at(row, b, 4 * CHUNK) for row in own], out)
            return []

        f.for_(0, blocks, 1, [], block)
        f.ret()

    kinds = "_bytes" * layout.bytes + "_pairs" * layout.pairs
    params = [("ptr", "rows"), ("ptr", "tile"), ("i64", "blocks"), ("i64", "count")]
    return module.once(f"gemv.tile_digits{kinds}_{stride}", params, body)


def _write_block(f: Function, layout: TileLayout, rows: Sequence[Value], out: Value) -> None:
    """Write a block of 16 rows."""

    def largest(row: Value) -> Value:
        sizes = [f.and_(f.load(_INTS, f.at(row, at)), 0x7FFFFFFF) for at in (0, 4 * PANEL)]
        return f.intrinsic("smax", _INTS, *sizes)

    most = _in_lanes(
        f, [largest(row) for row in rows], lambda a, b: f.intrinsic("smax", _INTS, a, b)
    )
    up, down = scales_of(f, most)
    finite = f.icmp("ult", most, 0x7F800000)
    scale = f.select(finite, down, f.splat(f32(float("nan")), PANEL))
    ups = f.scratch("ups", _NUMBER)
    f.store(up, ups, align=64)
    sums: list[Value] = []
    for r, row in enumerate(rows):
        factor = f.splat(f.load("float", f.at(ups, 4 * r)), PANEL)
        integers = [
            _rounded(f, f.fmul(f.load(_ROW, f.at(row, at)), factor)) for at in (0, 4 * PANEL)
        ]
        sums.append(f.add(*integers))
        if layout.bytes:
            _store_bytes(f, layout, integers, f.at(out, r * CHUNK))
        if layout.pairs:
            _store_pairs(f, layout, integers, f.at(out, layout.pairs_at + r * 2 * CHUNK))
    numbers = layout.numbers(f, out)
    f.store(scale, numbers.at, align=64)
    total = f.fmul(f.cast("sitofp", _in_lanes(f, sums, f.add), _ROW), scale)
    f.store(total, numbers.total_at(None), align=64)


def _rounded(f: Function, x: Value) -> Value:
    """Return f32 lanes rounded to integers, to nearest; some integer for what isn't finite."""
    # The instruction, as LLVM's conversion is undefined there.
    rounding = Value("i16", "-1"), Value("i32", "4")
    return f.intrinsic("x86.avx512.mask.cvtps2dq.512", _INTS, x, f.zero(_INTS), *rounding)


def _in_lanes(
    f: Function, vectors: Sequence[Value], join: Callable[[Value, Value], Value]
) -> Value:
    """Return what each of 16 vectors' lanes are together, in the lanes of one vector."""
    level, width = list(vectors), PANEL
    while len(level) > 1:
        # A vector has segments of `width` lanes, one for each that it stands for.
        width //= 2
        first = [lane for lane in range(2 * PANEL) if lane // width % 2 == 0]
        second = [lane + width for lane in first]
        level = [
            join(f.shuffle(a, b, first), f.shuffle(a, b, second))
            for a, b in zip(level[::2], level[1::2], strict=True)
        ]
    return level[0]


def _store_bytes(f: Function, layout: TileLayout, integers: Sequence[Value], to: Value) -> None:
    """Store a row's digits: the bytes of its integers, when 128 is added to each and taken off."""
    middle = 0x808080 if layout.planes == 3 else 0x8080
    words = [f.xor(f.add(q, middle), middle) for q in integers]
    for plane in range(layout.planes):
        own = _gathered(f, words, [layout.planes - 1 - plane])
        f.store(own, f.at(to, plane * layout.digit_step), align=32)


def _store_pairs(f: Function, layout: TileLayout, integers: Sequence[Value], to: Value) -> None:
    """Store a row's pairs: integers' bits 16 to 23 and 12 to 15, and 4 to 11 and 0 to 3."""
    words: list[Value] = []
    for q in integers:
        # 128 is added to the third digit, and taken off where it is a byte of its own.
        moved = f.add(q, 0x800)
        middle = f.xor(f.and_(f.shl(moved, 4), 0xFFF00), 0x8000)
        word = f.or_(middle, f.and_(f.shl(moved, 8), -0x1000000))
        words.append(f.or_(word, f.and_(q, 15)))
    for i, bytes_ in enumerate(((3, 2), (1, 0))):
        f.store(_gathered(f, words, bytes_), f.at(to, i * layout.pair_step), align=64)


def _gathered(f: Function, words: Sequence[Value], bytes_: Sequence[int]) -> Value:
    """Return the given bytes of a block's words, those of each together."""
    first, second = (f.cast("bitcast", word, _BYTES) for word in words)
    return f.shuffle(first, second, [4 * i + byte for byte in bytes_ for i in range(2 * PANEL)])
