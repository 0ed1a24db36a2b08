"""
Rows of f32 activations as digits: integers of 8 bits times a power of two, for products of bytes.

A block of 32 activations is written as 24-bit integers times a power of two, an integer as three
balanced digits, q = 65536 s + 256 t + u; or, for fast products, as 16-bit integers times a number,
q = 256 s + t. Beside the digits are the sums that go with a weight's minimum or the number that
stands for its zero: exact, in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import CHUNK, Format
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, f32, i32, vec

_ROW = f"<{PANEL} x float>"
_INTS = f"<{PANEL} x i32>"

DIGITS = 160
"""Bytes of a block of one row: [s, t, u][32] i8, then its numbers, as below."""
_NUMBERS_AT = 96
_SUM, _PART_SUMS = 1, 2
"""The f32 numbers: what integers are multiplied with, sums of all activations and of each half."""
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
            _store_sums(f, Numbers.of_row(f, out), integers, scale, parts)
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
    up, down = scales_of(f, largest)
    mask = f.splat(f.cast("sext", finite, "i32"), PANEL)
    integers = [_round(f, f.and_(b, mask), up) for b in bits]
    return integers, f.select(finite, down, f32(float("nan")))


def scales_of(f: Function, largest: Value) -> tuple[Value, Value]:
    """
    Return what a block's activations are multiplied with, and its integers.

    `largest` are the bits of its largest magnitude: of one block, or of several in lanes.
    """
    return _fast_scale(f, largest) if f.module.fast else _power_of_two(f, largest)


def _power_of_two(f: Function, largest: Value) -> tuple[Value, Value]:
    """Return what activations and integers are multiplied with, for three digits."""
    # The exponent e with largest < 2^(e - 127) * 8355711 / 2^22, so that no integer exceeds three
    # digits of 127: the addition carries into the exponent where the mantissa is beyond that.
    exponent = f.umax(f.lshr(f.add(largest, 65794), 23), 23)
    float_type = vec(largest.lanes, "float")
    up = f.shl(f.sub(f.constant(largest.type, 276), exponent), 23)
    down = f.shl(f.sub(exponent, 22), 23)
    return f.cast("bitcast", up, float_type), f.cast("bitcast", down, float_type)


def _fast_scale(f: Function, largest: Value) -> tuple[Value, Value]:
    """Return what activations and integers are multiplied with, for two digits."""
    lanes = largest.lanes
    most = f.cast("bitcast", largest, vec(lanes, "float"))
    # No integer exceeds two digits of 127. Below 2^-100 the quotient could overflow, and the block
    # is as good as zero.
    quotient = f.fdiv(f.splat(f32(32639.0), lanes), most)
    some = f.fcmp("ogt", most, f.splat(f32(2.0**-100), lanes))
    up = f.select(some, quotient, f.splat(f32(0.0), lanes))
    return up, f.fmul(most, f.splat(f32(1 / 32639), lanes))


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
    f: Function, numbers: Numbers, integers: Sequence[Value], scale: Value, parts: bool
) -> None:
    """Store a block's scale, and the sums of its activations."""
    f.store(scale, numbers.at)

    def store(total: Value, half: int | None) -> None:
        f.store(f.fmul(f.cast("sitofp", total, "float"), scale), numbers.total_at(half))

    if not parts:
        store(f.reduce("add", f.add(*integers)), None)
        return
    halves = [f.reduce("add", q) for q in integers]
    store(f.add(*halves), None)
    for i, half in enumerate(halves):
        store(half, i)


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


@dataclass(frozen=True)
class Numbers:
    """Where the numbers of a row's block are, so many bytes apart."""

    f: Function
    at: Value
    step: int

    @staticmethod
    def of_row(f: Function, digits: Value) -> Numbers:
        return Numbers(f, f.at(digits, _NUMBERS_AT), 4)

    @property
    def scale(self) -> Value:
        """Load what a block's integers are multiplied with."""
        return self.f.load("float", self.at)

    def total(self, half: int | None) -> Value:
        """Load the sum of a block's activations, or of those of a half."""
        return self.f.load("float", self.total_at(half))

    def total_at(self, half: int | None) -> Value:
        number = _SUM if half is None else _PART_SUMS + half
        return self.f.at(self.at, number * self.step)


def bias(f: Function, form: Format, digit: Value, part: int, plane: int, lanes: int) -> Value:
    """Return what a digit's sums start from: the stored numbers are `zero` too large."""
    if not form.zero:
        return f.zero(f"<{lanes} x i32>")
    at = _LESS_AT if form.scales_in_chunk == 1 else _PARTS_LESS_AT + 12 * part
    less = f.splat(f.load("i32", f.at(digit, at + 4 * plane)), lanes)
    return f.shl(less, form.zero.bit_length() - 1)
