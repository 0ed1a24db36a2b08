"""
Piecewise polynomials of f32 whose coefficients come out of a register: erf, tanh, Mills' ratio.

Sixteen pieces have a table of sixteen numbers for each power, and an instruction that permutes
lanes looks up those of every lane at once. So a function costs a degree of 5 or 6 and no division.
AVX-512 has one for sixteen lanes. With AVX2 a lookup takes six instructions: still fewer than erf
takes without, but not fewer than tanh does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, f32, vec
from rlx.lowering.vmath_base import (
    LN2_PARTS,
    bits,
    clamp_high,
    constant,
    copysign,
    from_bits,
    layout,
    magnitude,
    native,
    polynomial,
    scale_floor,
)

_WIDTH = 16
"""Pieces of a function, and the lanes that are looked up at once."""

Table = tuple[tuple[float, ...], ...]
"""For each power, the coefficients of the pieces, in the order of their indices."""


def table(text: str, pieces: int = _WIDTH) -> Table:
    """Return the rows of a table from its numbers in order."""
    numbers = [float(word) for word in text.split()]
    return tuple(tuple(numbers[i : i + pieces]) for i in range(0, len(numbers), pieces))


# Minimax fits in relative error. erf on pieces of the width _ERF_STEP around its multiples, to
# 3e-9; tanh and Mills' ratio on four pieces for each doubling of 1 + z from z = 0 on, to 8e-9 and
# 8e-8. An index is what low bits of the number spell, so a table starts in the middle. In the
# first pieces of erf and tanh it is the function less z.
_ERF_STEP = 2139 / 8192
_ERF = table(
    """
    0.0 0.28806832 0.5398052 0.7320471 0.86033833 0.93515354 0.9732796 0.9902576 0.9968642
    0.99911064 0.99977803 0.9999513 0.99999064 0.9999984 0.99999976 0.99999994
    0.12837917 1.054013 0.8590501 0.6109036 0.37906057 0.20522308 0.09694502 0.039958254
    0.014370411 0.0045093466 0.0012346385 0.00029494966 6.1480576e-5 1.1181757e-5 1.7744533e-6
    2.4569798e-7
    2.8720697e-7 -0.27520576 -0.44860435 -0.47852936 -0.39590192 -0.2679295 -0.1518803 -0.073035866
    -0.030012943 -0.010600264 -0.0032184725 -0.0008421481 -0.00019609526 -3.1839012e-5
    -5.5607065e-6 5.8853875e-6
    -0.3761421 -0.3034658 -0.13019076 0.046256684 0.14930753 0.16478695 0.12631495 0.07567442
    0.037012782 0.01509845 0.0051999344 0.0015236704 0.000381833 8.2139435e-5 1.5209258e-5
    2.429115e-6
    0.00029351088 0.13033468 0.1823683 0.14066976 0.054078076 -0.017761948 -0.047953527
    -0.044621807 -0.028905332 -0.014103887 -0.006003162 -0.0021614106 -0.0003796129 -0.00041626862
    -6.970344e-5 -0.00032596948
    0.11093296 0.07864426 0.0018746711 -0.057477277 -0.067017585 -0.03992856 -0.007831138
    0.009896437 0.012762649 0.00882609 0.0044279466 0.0017483543 0.0005625628 0.00015031744
    3.3749187e-5 6.4149854e-6
    """
)
_TANH = table(
    """
    0.7615942 0.90514827 0.9640276 0.9866143 0.9950548 0.9993293 0.9999092 0.9999877 0.99999833 1.0
    1.0 1.0 0.0 0.24491866 0.46211717 0.63514894
    0.4199737 0.18070611 0.070650645 0.026592843 0.009864874 0.0013400848 0.00018107488
    2.4301251e-5 3.404078e-6 0.0 0.0 0.0 0.0 0.9400152 0.78644675 0.59658694
    -0.31985116 -0.1635643 -0.06810691 -0.026245829 -0.009803458 -0.0013324284 -0.00017740413
    -2.2360877e-5 -3.6117399e-6 0.0 0.0 0.0 -1.1416344e-6 -0.23023817 -0.3633962 -0.37895697
    0.103726454 0.087872714 0.04209782 0.017083362 0.0064085135 0.0008622379 0.000106227475
    8.717225e-6 2.630623e-6 0.0 0.0 0.0 -0.3332687 -0.25680748 -0.094742924 0.042289257
    0.026723599 -0.025572827 -0.017890695 -0.008237959 -0.0029843785 -0.00038355752 -3.425031e-5
    4.8005713e-6 -1.3268087e-6 0.0 0.0 0.0 -0.0012002281 0.1387931 0.16896589 0.0967992
    -0.043212928 -0.00020667129 0.0049311393 0.0031060686 0.0009391402 0.000107260115 3.2346892e-7
    -7.506105e-6 4.0071484e-7 0.0 0.0 0.0 0.1431583 0.07492642 -0.045184296 -0.056537535
    0.015641334 0.0024322101 -0.00064234965 -0.0007751079 -0.00015017613 -1.3719732e-5 2.5194079e-6
    2.6641737e-6 -5.2534304e-8 0.0 0.0 0.0 -0.037093397 -0.07426153 -0.013013591 -0.0016034213
    """
)
_MILLS = table(
    """
    0.2615783 0.20578067 0.168102 0.14133133 0.12151394 0.094410636 0.0769193 0.06477931
    0.055893477 0.04379879 0.03597489 0.030509414 0.5 0.4140321 0.34961882 0.30023247
    -0.13736343 -0.09027119 -0.062737994 -0.04561386 -0.034399863 -0.02129949 -0.014345668
    -0.0102663245 -0.0076877247 -0.0047531566 -0.0032184897 -0.0023198857 -0.39894208 -0.29543403
    -0.22413184 -0.1737685
    0.06209178 0.035182383 0.021308163 0.013646578 0.009149622 0.0046037026 0.0025944787
    0.0015899765 0.0010380477 0.00050989154 0.00028567485 0.00017537939 0.24998878 0.17007789
    0.11875154 0.08496473
    -0.024943719 -0.012449527 -0.006672625 -0.0038188586 -0.0022812614 -0.0009500191 -0.0004535104
    -0.00023962275 -0.00013586758 -5.3685955e-5 -2.504618e-5 -1.3130554e-5 -0.13277248 -0.0841653
    -0.05465998 -0.036769908
    0.008668429 0.003902329 0.0018671682 0.0009731687 0.00049672625 0.00017609159 7.274043e-5
    3.337455e-5 1.5766203e-5 5.1927727e-6 2.061591e-6 9.3073743e-7 0.06079141 0.03622286
    0.021554036 0.014548598
    -0.0020054046 -0.000844039 -0.00036252302 -0.00017800581 -6.8528614e-5 -2.1616266e-5
    -8.02884e-6 -3.2327503e-6 -1.1484925e-6 -3.3595305e-7 -1.1911936e-7 -4.7464304e-8 -0.020042155
    -0.011306185 -0.005636589 -0.0047604297
    """
)

# 2^(j / 16) for j from 0 to 15, as numbers of f32 and the rest.
_POWERS = table(
    """
    1.0 1.0442737 1.0905077 1.1387886 1.1892071 1.2418578 1.2968396 1.3542556 1.4142135 1.4768262
    1.5422108 1.6104903 1.6817929 1.7562522 1.8340081 1.9152066
    0.0 4.83347e-8 -1.307754e-8 5.3862223e-8 3.7976353e-8 4.496838e-8 -4.0189995e-8 -1.0123349e-8
    2.4203235e-8 -4.500899e-8 8.070905e-9 9.836217e-9 -2.4755327e-8 -9.23577e-9 -1.1239278e-8
    9.845328e-9
    """
)
_EXP = (0.5000162, 0.16667059)
"""e^r = 1 + r + r^2 E(r) on |r| <= ln(2) / 32, to 2e-9."""
_EXP2 = (0.6931472, 0.24022648, 0.05550332)
"""2^r = 1 + r T(r) on |r| <= 1 / 32, to 9e-9."""
_LOG2_E = 1.4426950216293335
"""log2(e) as an f32."""


def exp(f: Function, v: Value) -> Value:
    """Return e^v for v from -105 to 89: 2^n e^r, n a multiple of 1 / 16 and r = v - n ln 2."""
    log2_e, magic = constant(f, v, math.log2(math.e)), constant(f, v, layout(v).magic / _WIDTH)
    shifted = f.fma(v, log2_e, magic)
    n = f.fsub(shifted, magic)
    high, low = (constant(f, v, -part) for part in LN2_PARTS["float"])
    r = f.fma(n, low, f.fma(n, high, v))
    above = f.fma(polynomial(f, _EXP, r), f.fmul(r, r), r)
    power, rest = (lookup(f, row, bits(f, shifted)) for row in _POWERS)
    return scale_floor(f, f.fadd(power, f.fma(power, above, rest)), n)


def exp_below(f: Function, v: Value) -> Value:
    """
    Return e^v for v from -105 to 0: 2^n 2^r, n a multiple of 1 / 16 and r = v log2(e) - n.

    Three instructions fewer than `exp`, which is correct to the last bit more often.
    """
    magic, log2_e = constant(f, v, layout(v).magic / _WIDTH), constant(f, v, _LOG2_E)
    shifted = f.fma(v, log2_e, magic)
    n = f.fsub(shifted, magic)
    r = f.fma(v, constant(f, v, math.log2(math.e) - _LOG2_E), f.fma(v, log2_e, f.fneg(n)))
    power = lookup(f, _POWERS[0], bits(f, shifted))
    above = f.fma(f.fmul(power, r), polynomial(f, _EXP2, r), power)
    return scale_floor(f, above, n)


def erf(f: Function, v: Value) -> Value:
    """Return the error function."""
    z = clamp_high(f, magnitude(f, v), 15.49 * _ERF_STEP)
    magic = constant(f, v, layout(v).magic)
    shifted = f.fma(z, constant(f, v, 1 / _ERF_STEP), magic)
    n = f.fsub(shifted, magic)
    d = f.fma(n, constant(f, v, -_ERF_STEP), z)
    first = f.fcmp("oeq", n, constant(f, v, 0.0))
    return copysign(f, _piecewise(f, _ERF, bits(f, shifted), d, first), v)


def tanh(f: Function, v: Value) -> Value:
    """Return the hyperbolic tangent."""
    index, start, d = _octaves(f, clamp_high(f, magnitude(f, v), 9.0))
    first = f.fcmp("oeq", start, constant(f, v, 0.0))
    return copysign(f, _piecewise(f, _TANH, index, d, first), v)


def mills(f: Function, z: Value) -> Value:
    """Return e^(z^2 / 2) P(X > z) for a normal X and z from 0 to 15."""
    index, _, d = _octaves(f, z)
    return _piecewise(f, _MILLS, index, d)


def _octaves(f: Function, z: Value) -> tuple[Value, Value, Value]:
    """Return the piece of a z from 0 to 15, by the leading bits of 1 + z; its start; z less it."""
    one = constant(f, z, 1.0)
    word = bits(f, f.fadd(z, one))
    shift = layout(z).digits - 2
    start = f.fsub(from_bits(f, f.and_(word, -1 << shift)), one)
    return f.lshr(word, shift), start, f.fsub(z, start)


def _piecewise(
    f: Function, table: Table, index: Value, d: Value, first: Value | None = None
) -> Value:
    """Return the polynomial of each lane's piece; more by d where it is the `first`."""
    total = lookup(f, table[-1], index)
    for row in reversed(table[1:-1]):
        total = f.fma(total, d, lookup(f, row, index))
    start = lookup(f, table[0], index)
    return f.fma(total, d, start if first is None else f.select(first, d, start))


def lookup(f: Function, row: Sequence[float], index: Value) -> Value:
    """Return the number of a row that the low bits of each lane's index say: four, or five."""
    return native(f, _WIDTH, partial(_lookup, row), index)


def _lookup(row: Sequence[float], f: Function, index: Value) -> Value:
    if f.target.avx512:
        registers = range(0, len(row), _WIDTH)
        first, *more = (_numbers(f, row[i : i + _WIDTH]) for i in registers)
        if more:
            name = "x86.avx512.vpermi2var.ps.512"
            return f.intrinsic(name, first.type, first, index, *more)
        return f.intrinsic("x86.avx512.permvar.sf.512", first.type, first, index)
    half = _WIDTH // 2
    halves = [_numbers(f, row[i : i + half]) for i in (0, half)]
    parts: list[Value] = []
    for i in (0, half):
        part = f.shuffle(index, index, range(i, i + half))
        low, high = (
            f.intrinsic("x86.avx2.permps", vec(half, "float"), numbers, part) for numbers in halves
        )
        parts.append(f.select(f.icmp("slt", f.shl(part, 28), 0), high, low))
    return f.shuffle(parts[0], parts[1], range(_WIDTH))


def _numbers(f: Function, row: Sequence[float]) -> Value:
    return f.vector("float", [f32(x).name for x in row])
