"""
Rows as bytes, for products with exact sums.

A row of a weight is rounded, when it is packed, to integers of at most 127 times a step, a 127th of
its largest. A row of activations is rounded, when it is copied to where it is multiplied, to bytes
without a sign: 254 steps go from its least number to its largest, zero among them, and the byte
that stands for 0, an integer, is the row's zero. Half of what an activation function gives is far
from as low as the rest is high: so its numbers have a bit more.

A range below 2^-100 counts as none. Where a row has a number that isn't finite, its step isn't
either, and so is no result of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlx.lowering.emitter import Function
from rlx.lowering.formats import (
    BYTES,
    BYTES_DEPTH,
    BYTES_TAIL,
    FORMATS,
    half_to_float,
    panel_bytes,
)
from rlx.lowering.gemm_unit import ROUNDED, Rows
from rlx.lowering.target import PANEL
from rlx.lowering.values import Index, Value, f32, i64, vec
from rlx.lowering.vmath_cast import convert

_FLOATS, _WORDS = vec(PANEL, "float"), vec(PANEL, "i32")
_MOST, _STEPS = 127.0, 254.0
_SMALLEST = 2.0**-100
_TO_INTEGER = 1.5 * 2.0**23
"""Added to a number of at most 2^22, it leaves the nearest integer in the sum's low bits."""
_HALVES = 2 * PANEL
"""Numbers of bf16 that are read at a time."""


def loaded(f: Function, name: str, pointer: Value, live: int) -> Value:
    """Load the first `live` of 16 numbers of a float format as f32, zeros beyond."""
    size = FORMATS[name].block_bytes
    type_ = vec(PANEL, f"i{8 * size}")
    if live < PANEL:
        bits = f.load_masked(type_, pointer, _mask(f, PANEL, live), align=1)
    else:
        bits = f.load(type_, pointer, align=1)
    if name == "f32":
        return f.cast("bitcast", bits, _FLOATS)
    if name == "f16":
        return half_to_float(f, bits)
    return f.cast("bitcast", f.shl(f.cast("zext", bits, _WORDS), 16), _FLOATS)


def _mask(f: Function, lanes: int, live: int) -> Value:
    return f.vector("i1", [int(lane < live) for lane in range(lanes)])


def _step(f: Function, span: Value, count: float) -> tuple[Value, Value]:
    """Return the step of which a row's span, an f32, has so many, and its inverse."""
    small = f.fcmp("olt", span, f32(_SMALLEST))
    inverse = f.select(small, f32(0.0), f.fdiv(f32(count), span))
    return f.fdiv(span, f32(count)), inverse


def _integers(f: Function, x: Value, inverse: Value, shift: Value) -> Value:
    """Return the integers next to x * inverse + zero, in the low bytes of i32 lanes."""
    near = f.fadd(f.fmul(x, inverse), shift)
    return f.cast("bitcast", near, vec(x.lanes, "i32"))


def _ordered(f: Function, bits: Value, places: int) -> Value:
    """Return bits of floats as integers in the floats' order, or these as bits; NaN is last."""
    return f.xor(bits, f.and_(f.ashr(bits, places - 1), (1 << (places - 1)) - 1))


def over(
    f: Function,
    k: int,
    step: int,
    init: Sequence[Value],
    body: Callable[[Value, int, list[Value]], list[Value]],
) -> list[Value]:
    """Emit body(number, live, carried) for each `step` numbers of k; the last may be fewer."""
    whole, left = divmod(k, step)
    carried = f.for_(0, whole, 1, init, lambda i, c: body(i, step, c))
    return body(i64(whole), left, carried) if left else carried


class Range(NamedTuple):
    """How a row of activations is rounded."""

    step: Value
    zero: Value
    """The byte of 0, an i32."""
    inverse: Value
    shift: Value
    """What a number times the inverse is added to: a vector of f32."""


class Activations:
    """How a row of f32 or bf16 is read, and rounded to bytes."""

    def __init__(self, f: Function, rows: Rows):
        self.f, self.rows = f, rows
        self.narrow = rows.size == 2

    def range_of(self, row: Value) -> Range:
        """Return how a row is rounded."""
        f = self.f
        low, high = self._extremes(row)
        step, inverse = _step(f, f.fsub(high, low), _STEPS)
        shift = f.fsub(f32(_TO_INTEGER), f.fmul(low, inverse))
        zero = f.and_(f.cast("bitcast", shift, "i32"), 0xFF)
        return Range(step, zero, f.splat(inverse, PANEL), f.splat(shift, PANEL))

    def kept(self, row: Value, out: Value) -> Range:
        """Return how a row is rounded, and store its step and zero, OF_ROW bytes."""
        how = self.range_of(row)
        self.f.store(how.step, out)
        self.f.store(how.zero, self.f.at(out, 4))
        return how

    def _extremes(self, row: Value) -> tuple[Value, Value]:
        """Return the least of a row and zero, and the largest, as f32."""
        f, rows = self.f, self.rows
        lanes, places = (_HALVES, 16) if self.narrow else (PANEL, 32)
        type_ = vec(lanes, f"i{places}")

        def some(i: Value, live: int, found: list[Value]) -> list[Value]:
            at = f.at(row, i, lanes * rows.size)
            if self.narrow:
                bits = self._bits(at, live)
            else:
                bits = f.cast("bitcast", self._wide(at, live), type_)
            own = _ordered(f, bits, places)
            kinds = zip(("smin", "smax"), found, strict=True)
            return [f.intrinsic(kind, type_, value, own) for kind, value in kinds]

        found = over(f, rows.k, lanes, [f.zero(type_)] * 2, some)
        ends: list[Value] = []
        for kind, value in zip(("smin", "smax"), found, strict=True):
            bits = _ordered(f, f.reduce(kind, value), places)
            bits = f.shl(f.cast("zext", bits, "i32"), 16) if self.narrow else bits
            ends.append(f.cast("bitcast", bits, "float"))
        return ends[0], ends[1]

    def parts(self, row: Value, line: Value, live: int, how: Range) -> list[Value]:
        """Return the bytes of 64 numbers, the row's `line`th, in vectors that follow each other."""
        f = self.f
        at = f.at(row, line, BYTES_DEPTH * self.rows.size)
        lanes = _HALVES if self.narrow else PANEL
        found: list[Value] = []
        for first in range(0, BYTES_DEPTH, lanes):
            count, pointer = min(max(live - first, 0), lanes), f.at(at, self.rows.size * first)
            if self.narrow:
                found.append(self._pairs(pointer, count, how))
            else:
                near = _integers(f, self._wide(pointer, count), how.inverse, how.shift)
                found.append(f.cast("trunc", near, vec(PANEL, "i8")))
        return found

    def _wide(self, pointer: Value, live: int) -> Value:
        if live == 0:
            return self.f.zero(_FLOATS)
        x = loaded(self.f, "f32", pointer, live)
        if self.rows.element == ROUNDED:
            x = convert(self.f, convert(self.f, x, "bfloat"), "float")
        return x

    def _bits(self, pointer: Value, live: int) -> Value:
        f, type_ = self.f, vec(_HALVES, "i16")
        if live < _HALVES:
            return f.load_masked(type_, pointer, _mask(f, _HALVES, live), align=2)
        return f.load(type_, pointer, align=2)

    def _pairs(self, pointer: Value, live: int, how: Range) -> Value:
        """Return the bytes of 32 numbers of bf16: words of two, one in each half of their bits."""
        f, bytes_ = self.f, vec(_HALVES, "i8")
        if live == 0:
            return f.zero(bytes_)
        words = f.cast("bitcast", self._bits(pointer, live), _WORDS)
        first, second = (
            _integers(f, f.cast("bitcast", bits, _FLOATS), how.inverse, how.shift)
            for bits in (f.shl(words, 16), f.and_(words, -0x10000))
        )
        both = f.or_(f.and_(first, 0xFF), f.shl(second, 8))
        return f.cast("bitcast", f.cast("trunc", both, vec(PANEL, "i16")), bytes_)


# Weights


def emit_pack_bytes(
    f: Function, src: Value, dst: Value, n: Index, k: int, tid: Value, nth: Value, given: str
) -> None:
    """
    Emit the packing of a [n, k] weight of f32, f16 or bf16 at `src` into panels of bytes at `dst`.

    Thread `tid` of `nth` packs its share of the panels. Nothing is assumed of src's alignment.
    """
    rows, size = n if isinstance(n, Value) else i64(n), panel_bytes(BYTES, k)
    panels = f.udiv(f.add(rows, PANEL - 1), PANEL)
    row_bytes = FORMATS[given].block_bytes * k

    def panel(p: Value, _: list[Value]) -> list[Value]:
        out = f.at(dst, p, size)
        f.for_(0, size // 64, 1, [], lambda i, _: _clear(f, f.at(out, i, 64)))
        left = f.umin(f.sub(rows, f.mul(p, PANEL)), PANEL)

        def row(r: Value, _: list[Value]) -> list[Value]:
            source = f.at(src, f.add(f.mul(p, PANEL), r), row_bytes)
            _pack_row(f, given, source, k, f.at(out, r, 4), size - BYTES_TAIL)
            return []

        return f.for_(0, left, 1, [], row)

    first = f.udiv(f.mul(panels, tid), nth)
    last = f.udiv(f.mul(panels, f.add(tid, 1)), nth)
    f.for_(first, last, 1, [], panel)


def _clear(f: Function, at: Value) -> list[Value]:
    f.store(f.zero("<64 x i8>"), at, align=64)
    return []


def _pack_row(f: Function, given: str, source: Value, k: int, out: Value, tail: int) -> None:
    """Write a row's bytes, its step and their sum to its lane of a panel."""
    size = FORMATS[given].block_bytes

    def number(i: Value, live: int, most: list[Value]) -> list[Value]:
        x = loaded(f, given, f.at(source, i, PANEL * size), live)
        magnitude = f.and_(f.cast("bitcast", x, _WORDS), 0x7FFFFFFF)
        return [f.intrinsic("smax", _WORDS, most[0], magnitude)]

    (most,) = over(f, k, PANEL, [f.zero(_WORDS)], number)
    step, inverse = _step(f, f.cast("bitcast", f.reduce("smax", most), "float"), _MOST)
    up, shift = f.splat(inverse, PANEL), f.splat(f32(_TO_INTEGER), PANEL)

    def quads(i: Value, live: int, sums: list[Value]) -> list[Value]:
        x = loaded(f, given, f.at(source, i, PANEL * size), live)
        own = f.cast("trunc", _integers(f, x, up, shift), vec(PANEL, "i8"))
        words = f.cast("bitcast", own, "<4 x i32>")
        for j in range(-(-live // 4)):
            at = f.at(out, f.add(f.mul(i, PANEL // 4), j), 4 * PANEL)
            f.store(f.extract(words, j), at)
        return [f.add(sums[0], f.cast("sext", own, _WORDS))]

    (sums,) = over(f, k, PANEL, [f.zero(_WORDS)], quads)
    f.store(step, f.at(out, tail))
    f.store(f.reduce("add", sums), f.at(out, tail + 4 * PANEL))
