"""
Reduction of large arguments of trigonometric functions (Payne and Hanek, 1983).

x 2/pi modulo 4 needs only those bits of 2/pi that lie around the exponent of x: three words, times
the 53 bits of x, in integers. Rare enough to be a loop over lanes in a helper.
"""

from __future__ import annotations

from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, f64, i64
from rlx.lowering.vmath_base import bits, constant, from_bits, quick_two_sum, two_product

PIO2_PARTS = (
    1.5707963267341256,
    6.07710049817245e-11,
    8.333742917250222e-20,
    1.2706558760139879e-29,
)
"""pi/2 as a sum: three parts of 32 bits, and the rest."""

_PIO2 = (1.5707963267948966, 6.123233995736766e-17)

# 2/pi, 64 bits a word, behind a word of zeros.
_BITS = (
    "0000000000000000 a2f9836e4e441529 fc2757d1f534ddc0 db6295993c439041 fe5163abdebbc561"
    " b7246e3a424dd2e0 06492eea09d1921c fe1deb1cb129a73e e88235f52ebb4484 e99c7026b45f7e41"
    " 3991d639835339f4 9c845f8bbdf9283b 1ff897ffde05980f ef2f118b5a0a6d1f 6d367ecf27cb09b7"
    " 4f463f669e5fea2d 7527bac7ebe5f17b 3d0739f78a5292ea 6bfb5fb11f8d5d08 56033046fc7b6bab"
    " f0cfbc209af4361d"
)


def reduce_large(
    f: Function, x: Value, large: Value, r: Value, low: Value, quadrant: Value
) -> list[Value]:
    """
    Return (r, low, quadrant) with the lanes of a mask replaced: x = quadrant pi/2 + r + low.

    x is f64, at least 2^20 in size where `large` holds; inf and NaN give NaN.
    """
    name = f.module.once(
        "reduce_large", [("ptr", n) for n in ("x", "r", "low", "quadrant")], _define
    )
    size = 8 * x.lanes
    memory = [f.scratch(f"reduce.{part}", size) for part in ("x", "r", "low", "quadrant")]
    # Lanes that are small need an argument within the table, whatever comes of it.
    given = (f.select(large, x, constant(f, x, 2.0**20)), r, low, quadrant)
    for value, pointer in zip(given, memory, strict=True):
        f.store(value, pointer, align=8)

    def lane(i: Value, carried: list[Value]) -> list[Value]:
        f.call(name, "void", *(f.at(pointer, i, 8) for pointer in memory))
        return carried

    f.for_(0, x.lanes, 1, [], lane)
    found = [f.load(v.type, p, align=8) for v, p in zip(given[1:], memory[1:], strict=True)]
    undefined = f.fsub(x, x)
    found[0] = f.select(f.fcmp("uno", undefined, undefined), undefined, found[0])
    return [f.select(large, a, b) for a, b in zip(found, (r, low, quadrant), strict=True)]


def _define(f: Function) -> None:
    """Write r, low and the quadrant of one argument of at least 2^20 in size, not inf or NaN."""
    source, r, low, quadrant = f.params
    word = bits(f, f.load("double", source, align=8))
    exponent = f.and_(f.lshr(word, 52), 0x7FF)
    mantissa = f.or_(f.and_(word, (1 << 52) - 1), 1 << 52)
    position = _fraction(f, mantissa, exponent)
    # The top two bits are the quadrant, rounded to the nearest by the sign of the rest.
    rest = f.shl(position, 2)
    negative = f.icmp("slt", rest, 0)
    turns = f.cast("trunc", f.lshr(position, 126), "i64")
    turns = f.add(turns, f.cast("zext", negative, "i64"))
    size = f.select(negative, f.binary("sub", f.constant("i128", 0), rest), rest)
    high, tail = _as_doubles(f, size)
    pio2, pio2_low = (f64(part) for part in _PIO2)
    product, lost = two_product(f, high, pio2)
    lost = f.fadd(lost, f.fadd(f.fmul(high, pio2_low), f.fmul(tail, pio2)))
    total, lost = quick_two_sum(f, product, lost)
    below = f.icmp("slt", word, 0)
    flip = f.shl(f.cast("zext", f.xor(negative, below), "i64"), 63)
    f.store(from_bits(f, f.xor(bits(f, total), flip)), r, align=8)
    f.store(from_bits(f, f.xor(bits(f, lost), flip)), low, align=8)
    f.store(f.select(below, f.sub(i64(0), turns), turns), quadrant, align=8)
    f.ret()


def _fraction(f: Function, mantissa: Value, exponent: Value) -> Value:
    """Return mantissa 2^(exponent - 1075) 2/pi modulo 4, in units of 2^-126, as an i128."""
    words = [str(int(word, 16)) for word in _BITS.split()]
    table = f.module.table("two_over_pi", "i64", words)
    # The bits of 2/pi from place exponent - 1077 on; those before it give multiples of 4.
    start = f.sub(exponent, 1075 - 62)
    pointer = f.at(table, f.lshr(start, 6), 8)
    shift = f.and_(start, 63)
    loaded = [f.load("i64", f.at(pointer, i, 8), align=8) for i in range(4)]
    wide = f.cast("zext", mantissa, "i128")
    parts: list[Value] = []
    for i in range(3):
        both = f.or_(
            f.shl(f.cast("zext", loaded[i], "i128"), 64), f.cast("zext", loaded[i + 1], "i128")
        )
        aligned = f.lshr(f.shl(both, f.cast("zext", shift, "i128")), 64)
        parts.append(f.binary("mul", aligned, wide))
    total = f.binary("add", f.shl(parts[0], 64), parts[1])
    return f.binary("add", total, f.lshr(parts[2], 64))


def _as_doubles(f: Function, size: Value) -> tuple[Value, Value]:
    """Return size 2^-128 as a sum of two doubles, for an i128 that isn't 0."""
    zeros = f.intrinsic("ctlz", "i128", size, Value("i1", "true"), suffixes=["i128"])
    top = f.shl(size, zeros)
    high = f.cast("trunc", f.lshr(top, 75), "i64")
    low = f.and_(f.cast("trunc", f.lshr(top, 22), "i64"), (1 << 53) - 1)
    field = f.sub(i64(1023 - 53), f.cast("trunc", zeros, "i64"))
    unit = from_bits(f, f.shl(field, 52))
    a = f.fmul(f.cast("sitofp", high, "double"), unit)
    b = f.fmul(f.cast("sitofp", low, "double"), f.fmul(unit, f64(2.0**-53)))
    return a, b
