"""
Passes of a Fourier transform on split parts, one for each factor of its length.

A pass reads one buffer and writes another (Stockham; see Van Loan, "Computational Frameworks for
the Fast Fourier Transform", 1992). With s the product of the factors before r, m = n / (s r) and
w = exp(-2 pi i / (m r)):

    y[q + s (r p + k)] = w^(p k) sum_j x[q + s (p + m j)] exp(-2 pi i j k / r),  q < s, p < m

so that the last pass leaves the result in order. Lanes run along q where s has as many, and along
q + s p before, where what is stored is interleaved. The powers of w are constants, computed in f64.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from rlx.lowering.emitter import Function
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, f64, float_bits, vec
from rlx.lowering.vmath_base import constant

RADICES = (4, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
"""Factors that have a pass, in the order of the passes: while s is small, it divides a vector."""


def radices_of(n: int) -> list[int] | None:
    """Return the factors of n, None where it has others than `RADICES`."""
    found: list[int] = []
    for radix in RADICES:
        while n % radix == 0:
            found.append(radix)
            n //= radix
    return found if n == 1 else None


@dataclass(frozen=True)
class Complex:
    """Values, or pointers, of real and imaginary parts."""

    re: Value
    im: Value

    @property
    def swapped(self) -> Complex:
        return Complex(self.im, self.re)


class Vectors:
    """Vectors of complex numbers in memory, and tables of constants, of one element type."""

    def __init__(self, f: Function, element: str):
        self.f = f
        self.element = element
        self.size = 4 if element == "float" else 8

    def load(self, p: Complex, lanes: int) -> Complex:
        type_ = vec(lanes, self.element)
        return Complex(self.f.load(type_, p.re), self.f.load(type_, p.im))

    def store(self, v: Complex, p: Complex) -> None:
        self.f.store(v.re, p.re)
        self.f.store(v.im, p.im)

    def at(self, p: Complex, index: Value | int) -> Complex:
        return Complex(*(self.f.at(x, index, self.size) for x in (p.re, p.im)))

    def times(self, a: Complex, b: Complex) -> Complex:
        f = self.f
        return Complex(
            f.fma(a.re, b.re, f.fneg(f.fmul(a.im, b.im))), f.fma(a.re, b.im, f.fmul(a.im, b.re))
        )

    def scaled(self, a: Complex, factor: float) -> Complex:
        if factor == 1.0:
            return a
        by = constant(self.f, a.re, factor)
        return Complex(self.f.fmul(a.re, by), self.f.fmul(a.im, by))

    def table(self, name: str, values: Sequence[float]) -> Value:
        spelled = [float_bits(x) if self.size == 4 else f64(x).name for x in values]
        return self.f.module.table(f"fft.{self.element}.{name}", self.element, spelled)

    def chunks(self, count: int, body: Callable[[Value, int], None]) -> None:
        """
        Emit body(start, lanes) for chunks that cover `count` elements.

        The last one begins earlier where it would not be whole: elements are done twice.
        """
        f, lanes = self.f, min(count, PANEL)

        def chunk(start: Value, _: list[Value]) -> list[Value]:
            whole = count % lanes == 0
            body(start if whole else f.umin(start, count - lanes), lanes)
            return []

        if count:
            f.for_(0, count, lanes, [], chunk)


class Passes(Vectors):
    """The passes of a transform of n, whose factors are `RADICES`."""

    def __init__(self, f: Function, n: int, element: str):
        super().__init__(f, element)
        self.n = n
        radices = radices_of(n)
        assert radices is not None
        self.radices = radices

    def run(self, source: Complex, buffers: tuple[Complex, Complex], scale: float = 1.0) -> None:
        """Emit a transform into the first buffer; the second is written by every other pass."""
        if not self.radices:
            self.store(self.scaled(self.load(source, 1), scale), buffers[0])
        count = len(self.radices)
        for i in range(count):
            target = buffers[(count - 1 - i) % 2]
            _Pass(self, i, scale if i == count - 1 else 1.0).run(source, target)
            source = target


class _Pass:
    """The pass of one factor r."""

    def __init__(self, passes: Passes, index: int, scale: float):
        self.v, self.f, self.index, self.scale = passes, passes.f, index, scale
        self.n = passes.n
        self.r = passes.radices[index]
        self.s = prod(passes.radices[:index])
        self.m = self.n // (self.s * self.r)

    def run(self, source: Complex, target: Complex) -> None:
        blocks = self.s < PANEL and PANEL % self.s == 0 and self.s * self.m > 1
        if blocks and self.r in (2, 4):
            self._interleaved(source, target)
        else:
            self._along(source, target)

    def _twiddles(self, by_p: bool) -> Value:
        """Return a table of w^(p k), k from 1: real and imaginary parts of each k, by p or of p."""
        n = self.m * self.r
        w = [[cmath.rect(1, -2 * math.pi * (p * k % n) / n) for p in range(self.m)]
             for k in range(1, self.r)]  # fmt: skip
        if by_p:
            values = [x for p in range(self.m) for row in w for x in (row[p].real, row[p].imag)]
        else:
            values = [x for row in w for x in (*(c.real for c in row), *(c.imag for c in row))]
        return self.v.table(f"{self.n}.{self.index}", values)

    def _butterfly(self, source: Complex, lanes: int) -> list[Complex]:
        """Return the sums over j of what lies from `source` on."""
        xs = [self.v.load(self.v.at(source, self.s * self.m * j), lanes) for j in range(self.r)]
        return [self.v.scaled(y, self.scale) for y in butterfly(self.f, xs)]

    def _interleaved(self, source: Complex, target: Complex) -> None:
        """Emit the pass with lanes along q + s p."""
        v, f, s, m = self.v, self.f, self.s, self.m
        table = self._twiddles(by_p=False) if m > 1 else None

        def chunk(t: Value, lanes: int) -> None:
            ys = self._butterfly(v.at(source, t), lanes)
            if table:
                first = f.at(table, f.udiv(t, s), v.size)

                def twiddle(k: int) -> Complex:
                    start = f.at(first, 2 * (k - 1) * m * v.size)
                    w = v.load(Complex(start, f.at(start, m * v.size)), lanes // s)
                    if s == 1:
                        return w
                    spread = [lane // s for lane in range(lanes)]
                    return Complex(f.shuffle(w.re, w.re, spread), f.shuffle(w.im, w.im, spread))

                ys = [ys[0], *(v.times(ys[k], twiddle(k)) for k in range(1, self.r))]
            parts = ([y.re for y in ys], [y.im for y in ys])
            joined = Complex(*(self._joined(part) for part in parts))
            v.store(joined, v.at(target, f.mul(t, self.r)))

        v.chunks(s * m, chunk)

    def _joined(self, ys: Sequence[Value]) -> Value:
        """Return vectors as one in which blocks of s of each follow one another."""
        while len(ys) > 1:
            half = len(ys) // 2
            ys = [self._zipped(a, b) for a, b in zip(ys[:half], ys[half:], strict=True)]
        return ys[0]

    def _zipped(self, a: Value, b: Value) -> Value:
        s, lanes = self.s, a.lanes
        blocks = range(0, lanes, s)
        return self.f.shuffle(
            a, b, [side + i + q for i in blocks for side in (0, lanes) for q in range(s)]
        )

    def _along(self, source: Complex, target: Complex) -> None:
        """Emit the pass with lanes along q."""
        v, f, s, m, r = self.v, self.f, self.s, self.m, self.r
        table = self._twiddles(by_p=True) if m > 1 else None

        def group(p: Value, _: list[Value]) -> list[Value]:
            first, out = v.at(source, f.mul(p, s)), v.at(target, f.mul(p, s * r))
            row = f.at(table, p, 2 * (r - 1) * v.size) if table else None
            pairs = [f.at(row, 2 * k * v.size) for k in range(r - 1)] if row else []
            ws = [v.load(Complex(pair, f.at(pair, v.size)), 1) for pair in pairs]

            def chunk(q: Value, lanes: int) -> None:
                ys = self._butterfly(v.at(first, q), lanes)
                for k, w in enumerate(ws, 1):
                    spread = Complex(f.splat(w.re, lanes), f.splat(w.im, lanes))
                    ys[k] = v.times(ys[k], spread)
                for k, y in enumerate(ys):
                    v.store(y, v.at(v.at(out, q), s * k))

            v.chunks(s, chunk)
            return []

        f.for_(0, m, 1, [], group)


def butterfly(f: Function, xs: Sequence[Complex]) -> list[Complex]:
    """Return a transform of a few vectors: y_k = sum_j x_j exp(-2 pi i j k / r)."""
    if len(xs) == 2:
        return [_add(f, *xs), _sub(f, *xs)]
    if len(xs) == 4:
        a, b = _add(f, xs[0], xs[2]), _sub(f, xs[0], xs[2])
        c, d = _add(f, xs[1], xs[3]), _sub(f, xs[1], xs[3])
        return [_add(f, a, c), _minus_i(f, b, d), _sub(f, a, c), _plus_i(f, b, d)]
    return _odd_butterfly(f, xs)


def _odd_butterfly(f: Function, xs: Sequence[Complex]) -> list[Complex]:
    """Return a transform of an odd length, whose results k and r - k share their sums."""
    r, half = len(xs), range(1, len(xs) // 2 + 1)
    sums = [_add(f, xs[j], xs[r - j]) for j in half]
    differences = [_sub(f, xs[j], xs[r - j]) for j in half]
    total = xs[0]
    for s in sums:
        total = _add(f, total, s)
    ys = [total] * r
    for k in half:
        cosines, sines = (
            [constant(f, xs[0].re, function(2 * math.pi * (j * k % r) / r)) for j in half]
            for function in (math.cos, math.sin)
        )
        even = xs[0]
        for c, s in zip(cosines, sums, strict=True):
            even = Complex(f.fma(s.re, c, even.re), f.fma(s.im, c, even.im))
        d = differences[0]
        odd = Complex(f.fmul(d.re, sines[0]), f.fmul(d.im, sines[0]))
        for c, d in zip(sines[1:], differences[1:], strict=True):
            odd = Complex(f.fma(d.re, c, odd.re), f.fma(d.im, c, odd.im))
        ys[k], ys[r - k] = _minus_i(f, even, odd), _plus_i(f, even, odd)
    return ys


def _add(f: Function, a: Complex, b: Complex) -> Complex:
    return Complex(f.fadd(a.re, b.re), f.fadd(a.im, b.im))


def _sub(f: Function, a: Complex, b: Complex) -> Complex:
    return Complex(f.fsub(a.re, b.re), f.fsub(a.im, b.im))


def _minus_i(f: Function, a: Complex, b: Complex) -> Complex:
    """Return a - i b."""
    return Complex(f.fadd(a.re, b.im), f.fsub(a.im, b.re))


def _plus_i(f: Function, a: Complex, b: Complex) -> Complex:
    """Return a + i b."""
    return Complex(f.fsub(a.re, b.im), f.fadd(a.im, b.re))
