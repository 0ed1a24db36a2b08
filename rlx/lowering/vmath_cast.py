"""
Conversions between element types, each rounded once, and none by way of a library call.

f16 and bf16 are converted by integer code where there is no exact instruction for it: an x86
without F16C has none for f16, and those for bf16 take subnormals for 0.
"""

from __future__ import annotations

from rlx.lowering.emitter import Function
from rlx.lowering.formats import half_to_float
from rlx.lowering.values import Value, f32, vec
from rlx.lowering.vmath_base import bits, constant, from_bits, magnitude
from rlx.lowering.vmath_int import narrow, width

_SHORT = ("half", "bfloat")


def convert(
    f: Function, v: Value, element: str, signed: bool = True, to_signed: bool = True
) -> Value:
    """
    Return lanes as another element type.

    A float becomes the integer towards zero, the nearest that the type has where it is beyond, and
    0 for NaN; an integer wraps, and counts as unsigned where `signed` is false; i1 counts as 0 or
    1, and becomes whether a number is not 0 (NaN isn't). Without `to_signed` integers that a float
    becomes are from 0 on, of 8 to 32 bits.
    """
    if v.element == element:
        return v
    if v.element in _SHORT:
        return convert(f, _from_short(f, v), element, to_signed=to_signed)
    if element == "i1":
        zero = f.zero(v.type)
        return f.icmp("ne", v, 0) if v.element[0] == "i" else f.fcmp("une", v, zero)
    if v.element[0] == "i":
        signed = signed and v.element != "i1"
        return _from_integer(f, v, element, signed)
    return _from_float(f, v, element, to_signed)


def _from_integer(f: Function, v: Value, element: str, signed: bool) -> Value:
    if element[0] == "i":
        grows = int(element[1:]) > width(v)
        return f.cast(
            ("sext" if signed else "zext") if grows else "trunc", v, vec(v.lanes, element)
        )
    if element in _SHORT:
        # No f64 is needed for what f32 holds exactly.
        through = "float" if width(v) < 32 else "double"
        v = _odd_to_53(f, v, signed) if width(v) == 64 else v
        return _from_float(f, _from_integer(f, v, through, signed), element)
    if width(v) < 32:
        v, signed = f.cast("sext" if signed else "zext", v, vec(v.lanes, "i32")), True
    return f.cast("sitofp" if signed else "uitofp", v, vec(v.lanes, element))


def _from_float(f: Function, v: Value, element: str, to_signed: bool = True) -> Value:
    if element in ("float", "double"):
        return f.cast("fpext" if element == "double" else "fptrunc", v, vec(v.lanes, element))
    if element in _SHORT:
        single = v if v.element == "float" else _odd_to_24(f, v)
        return _to_half(f, single) if element == "half" else _to_bfloat(f, single)
    return _to_integer(f, v, element) if to_signed else _to_unsigned(f, v, element)


def _to_integer(f: Function, v: Value, element: str) -> Value:
    """Return integers towards zero, saturated, 0 for NaN."""
    size = int(element[1:])
    bound = constant(f, v, 2.0 ** (size - 1))
    above = f.fcmp("oge", v, bound)
    inside = f.fcmp("olt", magnitude(f, v), bound)
    through = vec(v.lanes, "i64" if size == 64 else "i32")
    whole = narrow(f, f.cast("fptosi", f.select(inside, v, f.zero(v.type)), through), element)
    below = f.fcmp("ole", v, f.fneg(bound))
    least, most = (f.constant(whole.type, n) for n in (-(1 << (size - 1)), (1 << (size - 1)) - 1))
    return f.select(above, most, f.select(below, least, whole))


def _to_unsigned(f: Function, v: Value, element: str) -> Value:
    """Return integers towards zero, those beyond as 0 or the greatest, 0 for NaN."""
    size = int(element[1:])
    bound, half = constant(f, v, 2.0**size), constant(f, v, 2.0**31)
    above, zero = f.fcmp("oge", v, bound), f.zero(v.type)
    inside = f.binary("and", f.fcmp("ogt", v, zero), f.fcmp("olt", v, bound))
    v = f.select(inside, v, zero)
    # There is an instruction for signed integers of 32 bits; the subtraction is exact.
    high = f.fcmp("oge", v, half)
    whole = f.cast("fptosi", f.select(high, f.fsub(v, half), v), vec(v.lanes, "i32"))
    top = f.select(high, f.constant(whole.type, -(1 << 31)), f.zero(whole.type))
    whole = narrow(f, f.xor(whole, top) if size == 32 else whole, element)
    return f.select(above, f.constant(whole.type, -1), whole)


# Short floats


def _from_short(f: Function, v: Value) -> Value:
    """Return f16 or bf16 as f32."""
    word = f.cast("bitcast", v, vec(v.lanes, "i16"))
    if v.element == "half":
        return half_to_float(f, word)
    return from_bits(f, f.shl(f.cast("zext", word, vec(v.lanes, "i32")), 16))


def _to_bfloat(f: Function, v: Value) -> Value:
    word = bits(f, v)
    even = f.and_(f.lshr(word, 16), 1)
    rounded = f.lshr(f.add(f.add(word, even), f.constant(word.type, 0x7FFF)), 16)
    quiet = f.or_(f.lshr(word, 16), 0x40)
    result = f.select(f.fcmp("uno", v, v), quiet, rounded)
    return f.cast("bitcast", narrow(f, result, "i16"), vec(v.lanes, "bfloat"))


def _to_half(f: Function, v: Value) -> Value:
    if not f.target.triple.startswith("x86") or f.target.has("f16c"):
        return f.cast("fptrunc", v, vec(v.lanes, "half"))
    word = bits(f, v)
    size = f.and_(word, 0x7FFFFFFF)
    even = f.and_(f.lshr(size, 13), 1)
    # The exponent's bias falls from 127 to 15; the addition rounds to even.
    moved = f.add(f.add(size, even), f.constant(size.type, 0xFFF - (112 << 23)))
    normal = f.lshr(moved, 13)
    # Adding 0.5 leaves multiples of 2^-24, the smallest f16, in the low bits.
    small = bits(f, f.fadd(from_bits(f, size), f.splat(f32(0.5), v.lanes)))
    small = f.binary("sub", small, f.constant(size.type, 126 << 23))
    result = f.select(f.icmp("ult", size, 113 << 23), small, normal)
    result = f.select(f.icmp("uge", size, 143 << 23), f.constant(size.type, 0x7C00), result)
    result = f.select(f.icmp("ugt", size, 255 << 23), f.constant(size.type, 0x7E00), result)
    result = f.or_(result, f.and_(f.lshr(word, 16), 0x8000))
    return f.cast("bitcast", narrow(f, result, "i16"), vec(v.lanes, "half"))


# Rounding to odd: what is inexact gets an odd last digit, so that another rounding to at least two
# digits fewer comes out as if it were the only one (Boldo and Melquiond, 2008).


def _odd_to_24(f: Function, v: Value) -> Value:
    """Return f64 as f32, rounded to odd."""
    single = f.cast("fptrunc", v, vec(v.lanes, "float"))
    back = f.cast("fpext", single, v.type)
    word = bits(f, single)
    away = f.fcmp("ogt", magnitude(f, back), magnitude(f, v))
    odd = f.or_(f.select(away, f.add(word, f.constant(word.type, -1)), word), 1)
    return f.select(f.fcmp("one", back, v), from_bits(f, odd), single)


def _odd_to_53(f: Function, v: Value, signed: bool) -> Value:
    """Return i64 rounded to odd at its twelfth digit where it has more than an f64 holds."""
    low = f.constant(v.type, 0x7FF)
    sticky = f.and_(f.or_(v, f.add(f.and_(v, low), low)), ~0x7FF)
    size = f.select(f.icmp("slt", v, 0), f.xor(v, -1), v) if signed else v
    return f.select(f.icmp("ult", size, 1 << 53), v, sticky)
