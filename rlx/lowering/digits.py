"""
Rows of f32 activations as digits: integers of 8 bits times a power of two, for products of bytes.

A block of 32 activations is written as 24-bit integers times a power of two, an integer as three
balanced digits, q = 65536 s + 256 t + u; or, for fast products, as one digit, the integer nearest
to the activation times 127 over the block's largest. Beside the digits are the sums that go with a
weight's minimum or the number that stands for its zero: exact, in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import CHUNK, Format
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, f32, i32

_ROW = f"<{PANEL} x float>"
_INTS = f"<{PANEL} x i32>"

DIGITS = 160
"""Bytes of a block: [s, t, u][32] i8, then the numbers below."""
_SCALE_AT = 96  # f32: the power of two
_SUM_AT = 100  # f32: the sum of the block's activations
_PART_SUMS_AT = 104  # [2] f32: that of its halves
_LESS_AT = 112  # [3] i32: minus the sums of s, t, u
_PARTS_LESS_AT = 124  # [2][3] i32: those of the halves


def digits_function(module: Module, forms: Sequence[Format]) -> str:
    """Return a function that writes a row as digits, with the sums that its weights need."""
    zeros = any(form.zero for form in forms)
    parts = any(form.scales_in_chunk > 1 for form in forms if form.quantised)
    emit = _emit_fast_block if module.fast else _emit_digit_block

    def body(f: Function) -> None:
        row, digits, blocks = f.params

        def block(b: Value, _: list[Value]) -> list[Value]:
            out = f.at(digits, b, DIGITS)
            planes, scale = emit(f, f.at(row, b, 4 * CHUNK), out)
            _store_sums(f, out, planes, scale, zeros, parts)
            return []

        f.for_(0, blocks, 1, [], block)
        f.ret()

    name = f"gemv.digits{'_zeros' * zeros}{'_parts' * parts}"
    return module.once(name, [("ptr", "row"), ("ptr", "digits"), ("i64", "blocks")], body)


_Planes: TypeAlias = Sequence[Sequence[Value]]
"""For each digit, s first, those of a block's two halves, in i32 lanes."""


def _largest(f: Function, row: Value) -> tuple[list[Value], Value, Value]:
    """Return the bits of 32 activations, the largest of their magnitudes, whether it is finite."""
    bits = [f.load(_INTS, f.at(row, 64 * i)) for i in range(2)]
    sizes = [f.and_(b, 0x7FFFFFFF) for b in bits]
    largest = f.reduce("smax", f.intrinsic("smax", _INTS, *sizes))
    return bits, largest, f.icmp("ult", largest, 0x7F800000)


def _store_digits(f: Function, plane: int, digits: Sequence[Value], out: Value) -> None:
    for i, digit in enumerate(digits):
        f.store(f.cast("trunc", digit, f"<{PANEL} x i8>"), f.at(out, 32 * plane + 16 * i))


def _emit_digit_block(f: Function, row: Value, out: Value) -> tuple[_Planes, Value]:
    """Turn 32 activations into three digits and a power of two."""
    bits, largest, finite = _largest(f, row)
    # The exponent e with largest < 2^(e - 127) * 8355711 / 2^22, so that no integer exceeds three
    # digits of 127: the addition carries into the exponent where the mantissa is beyond that.
    exponent = f.umax(f.lshr(f.add(largest, 65794), 23), 23)
    up = f.cast("bitcast", f.shl(f.sub(i32(276), exponent), 23), "float")
    down = f.cast("bitcast", f.shl(f.sub(exponent, 22), 23), "float")
    down = f.select(finite, down, f32(float("nan")))
    mask = f.splat(f.cast("sext", finite, "i32"), PANEL)
    planes: list[list[Value]] = [[], [], []]
    for b in bits:
        q = _round(f, f.and_(b, mask), up)
        u = f.ashr(f.shl(q, 24), 24)
        q = f.ashr(f.sub(q, u), 8)
        t = f.ashr(f.shl(q, 24), 24)
        for plane, digit in zip(planes, (f.ashr(f.sub(q, t), 8), t, u), strict=True):
            plane.append(digit)
    for i, plane in enumerate(planes):
        _store_digits(f, i, plane, out)
    return planes, down


def _emit_fast_block(f: Function, row: Value, out: Value) -> tuple[_Planes, Value]:
    """Turn 32 activations into integers of at most 127 and a scale."""
    bits, largest, finite = _largest(f, row)
    most = f.cast("bitcast", largest, "float")
    # Below 2^-100 the quotient could overflow, and the block is as good as zero.
    up = f.select(f.fcmp("ogt", most, f32(2.0**-100)), f.fdiv(f32(127.0), most), f32(0.0))
    down = f.select(finite, f.fmul(most, f32(1 / 127)), f32(float("nan")))
    mask = f.splat(f.cast("sext", finite, "i32"), PANEL)
    digits = [_round(f, f.and_(b, mask), up) for b in bits]
    _store_digits(f, 0, digits, out)
    return [digits], down


def _store_sums(
    f: Function, out: Value, planes: _Planes, scale: Value, zeros: bool, parts: bool
) -> None:
    """Store a block's scale, and the sums that zeros and minima are multiplied with."""
    f.store(scale, f.at(out, _SCALE_AT))
    sums = [[f.reduce("add", digit) for digit in plane] for plane in planes]
    # Of three digits, 65536 S + 256 T + U is the sum of the integers, exactly.
    halves = [_together(f, [plane[i] for plane in sums]) for i in range(2)]

    def as_float(total: Value) -> Value:
        return f.fmul(f.cast("sitofp", total, "float"), scale)

    f.store(as_float(f.add(*halves)), f.at(out, _SUM_AT))
    for i, half in enumerate(halves if parts else []):
        f.store(as_float(half), f.at(out, _PART_SUMS_AT + 4 * i))
    for p, (low, high) in enumerate(sums if zeros else []):
        f.store(f.sub(i32(0), f.add(low, high)), f.at(out, _LESS_AT + 4 * p))
        for i, half in enumerate((low, high) if parts else ()):
            f.store(f.sub(i32(0), half), f.at(out, _PARTS_LESS_AT + 12 * i + 4 * p))


def _together(f: Function, digits: Sequence[Value]) -> Value:
    """Return the integer that digits stand for."""
    total = digits[0]
    for digit in digits[1:]:
        total = f.add(f.shl(total, 8), digit)
    return total


def _round(f: Function, bits: Value, scale: Value) -> Value:
    """Return f32 lanes, given as bits, times a scale, rounded to integers: below 2^23 in size."""
    x = f.fmul(f.cast("bitcast", bits, _ROW), f.splat(scale, PANEL))
    # Adding and subtracting 2^23 with x's sign rounds to nearest on every CPU.
    sign = f.and_(f.cast("bitcast", x, _INTS), -0x80000000)
    shift = f.cast("bitcast", f.or_(sign, 0x4B000000), _ROW)
    return f.cast("fptosi", f.fsub(f.fadd(x, shift), shift), _INTS)


def load_scale(f: Function, digits: Value) -> Value:
    """Load what a block's integers are multiplied with."""
    return f.load("float", f.at(digits, _SCALE_AT))


def load_sum(f: Function, digits: Value, half: int | None) -> Value:
    """Load the sum of a block's activations, or of those of a half."""
    return f.load("float", f.at(digits, _SUM_AT if half is None else _PART_SUMS_AT + 4 * half))


def bias(f: Function, form: Format, digit: Value, part: int, plane: int, lanes: int) -> Value:
    """Return what a digit's sums start from: the stored numbers are `zero` too large."""
    if not form.zero:
        return f.zero(f"<{lanes} x i32>")
    at = _LESS_AT if form.scales_in_chunk == 1 else _PARTS_LESS_AT + 12 * part
    less = f.splat(f.load("i32", f.at(digit, at + 4 * plane)), lanes)
    return f.shl(less, form.zero.bit_length() - 1)
