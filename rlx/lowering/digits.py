"""
Rows of f32 activations as digits: integers of 8 bits times a power of two, for products of bytes.

A block of 32 activations is written as 24-bit integers times a power of two, an integer as three
balanced digits, q = 65536 s + 256 t + u; or, for fast products, as 16-bit integers times a number,
q = 256 s + t. Beside the digits are the sums that go with a weight's minimum or the number that
stands for its zero: exact, in integers.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import CHUNK, Format
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, f32, i32

_ROW = f"<{PANEL} x float>"
_INTS = f"<{PANEL} x i32>"

DIGITS = 160
"""Bytes of a block: [s, t, u][32] i8, then the numbers below."""
_SCALE_AT = 96  # f32: what the integers are multiplied with
_SUM_AT = 100  # f32: the sum of the block's activations
_PART_SUMS_AT = 104  # [2] f32: that of its halves
_LESS_AT = 112  # [3] i32: minus the sums of s, t, u
_PARTS_LESS_AT = 124  # [2][3] i32: those of the halves


def digits_function(module: Module, forms: Sequence[Format], apart: int = 1) -> str:
    """
    Return a function that writes a row as digits, with the sums that its weights need.

    Its blocks are `apart` times their size apart.
    """
    zeros = any(form.zero for form in forms)
    parts = any(form.scales_in_chunk > 1 for form in forms if form.quantised)

    def body(f: Function) -> None:
        row, digits, blocks = f.params

        def block(b: Value, _: list[Value]) -> list[Value]:
            out = f.at(digits, b, apart * DIGITS)
            integers, scale = _integers(f, f.at(row, b, 4 * CHUNK))
            digits_of = _digits(f, integers, planes(module))
            for plane, halves in enumerate(digits_of):
                for i, digit in enumerate(halves):
                    small = f.cast("trunc", digit, f"<{PANEL} x i8>")
                    f.store(small, f.at(out, CHUNK * plane + PANEL * i))
            _store_sums(f, out, integers, scale, parts)
            if zeros:
                _store_less(f, out, digits_of, parts)
            return []

        f.for_(0, blocks, 1, [], block)
        f.ret()

    name = f"gemv.digits{'_zeros' * zeros}{'_parts' * parts}_{apart}"
    return module.once(name, [("ptr", "row"), ("ptr", "digits"), ("i64", "blocks")], body)


def planes(module: Module) -> int:
    """Return how many digits an activation has."""
    return 2 if module.fast else 3


def _integers(f: Function, row: Value) -> tuple[list[Value], Value]:
    """Return the integers of 32 activations, and what these are multiplied with: NaN for one."""
    bits = [f.load(_INTS, f.at(row, 4 * PANEL * i)) for i in range(2)]
    sizes = [f.and_(b, 0x7FFFFFFF) for b in bits]
    largest = f.reduce("smax", f.intrinsic("smax", _INTS, *sizes))
    finite = f.icmp("ult", largest, 0x7F800000)
    up, down = _fast_scale(f, largest) if f.module.fast else _power_of_two(f, largest)
    mask = f.splat(f.cast("sext", finite, "i32"), PANEL)
    integers = [_round(f, f.and_(b, mask), up) for b in bits]
    return integers, f.select(finite, down, f32(float("nan")))


def _power_of_two(f: Function, largest: Value) -> tuple[Value, Value]:
    """Return what activations and integers are multiplied with, for three digits."""
    # The exponent e with largest < 2^(e - 127) * 8355711 / 2^22, so that no integer exceeds three
    # digits of 127: the addition carries into the exponent where the mantissa is beyond that.
    exponent = f.umax(f.lshr(f.add(largest, 65794), 23), 23)
    up = f.cast("bitcast", f.shl(f.sub(i32(276), exponent), 23), "float")
    return up, f.cast("bitcast", f.shl(f.sub(exponent, 22), 23), "float")


def _fast_scale(f: Function, largest: Value) -> tuple[Value, Value]:
    """Return what activations and integers are multiplied with, for two digits."""
    most = f.cast("bitcast", largest, "float")
    # No integer exceeds two digits of 127. Below 2^-100 the quotient could overflow, and the block
    # is as good as zero.
    up = f.select(f.fcmp("ogt", most, f32(2.0**-100)), f.fdiv(f32(32639.0), most), f32(0.0))
    return up, f.fmul(most, f32(1 / 32639))


def _digits(f: Function, integers: Sequence[Value], count: int) -> list[list[Value]]:
    """Return the digits of a block's two halves, in i32 lanes, those of most weight first."""
    result: list[list[Value]] = []
    rest = list(integers)
    for _ in range(count - 1):
        low = [f.ashr(f.shl(q, 24), 24) for q in rest]
        rest = [f.ashr(f.sub(q, digit), 8) for q, digit in zip(rest, low, strict=True)]
        result.insert(0, low)
    return [rest, *result]


def _store_sums(
    f: Function, out: Value, integers: Sequence[Value], scale: Value, parts: bool
) -> None:
    """Store a block's scale, and the sums of its activations."""
    f.store(scale, f.at(out, _SCALE_AT))

    def store(total: Value, at: int) -> None:
        f.store(f.fmul(f.cast("sitofp", total, "float"), scale), f.at(out, at))

    if not parts:
        store(f.reduce("add", f.add(*integers)), _SUM_AT)
        return
    halves = [f.reduce("add", q) for q in integers]
    store(f.add(*halves), _SUM_AT)
    for i, half in enumerate(halves):
        store(half, _PART_SUMS_AT + 4 * i)


def _store_less(f: Function, out: Value, digits: Sequence[Sequence[Value]], parts: bool) -> None:
    """Store minus the sums of each digit."""
    for p, plane in enumerate(digits):
        halves = [f.sub(i32(0), f.reduce("add", digit)) for digit in plane]
        f.store(f.add(*halves), f.at(out, _LESS_AT + 4 * p))
        for i, half in enumerate(halves if parts else []):
            f.store(half, f.at(out, _PARTS_LESS_AT + 12 * i + 4 * p))


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
