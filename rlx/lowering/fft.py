"""
Fourier transforms of rows, and Bluestein's chirp for lengths that have no passes.

An inverse transform is a forward one with the parts exchanged. A thread takes whole rows, so that
results do not depend on how many threads there are; what lies between passes is on its stack.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence

from rlx.dialects.common import Dim, dims_of, element_bytes
from rlx.dialects.signal import FftKind, FftOp
from rlx.errors import RlxError
from rlx.lowering.body import Body
from rlx.lowering.emitter import Function
from rlx.lowering.fft_passes import RADICES, Complex, Passes, Vectors, radices_of
from rlx.lowering.values import Value, i64, vec

MAX_STACK = 400 << 10
"""Bytes of a thread's stack that a kernel may take."""


def emit_fft(body: Body) -> None:
    """
    A Fourier transform as a launch of its own; see `signal.fft`.

    Raises RlxError for rows whose passes need more than `MAX_STACK` bytes of stack.
    """
    op = next(op for op in body.ops if isinstance(op, FftOp))
    f, n, size = body.f, op.length, element_bytes(op.input.type)
    radices = radices_of(n)
    padded = n if radices is not None else 1 << (2 * n - 2).bit_length()
    stack = padded * size * (2 if radices is not None else 4)
    if stack > MAX_STACK:
        most = MAX_STACK // (2 * size)
        convolved = 1 << ((most // 2).bit_length() - 2)
        raise RlxError(
            f"{op.name}: rows of {n} complex numbers need {stack} bytes of stack, expected at most "
            f"{MAX_STACK}: {most} numbers, or {convolved} where the number has a prime factor "
            f"above {RADICES[-1]}"
        )
    scratch = f.scratch("fft", stack)
    element = "float" if size == 4 else "double"

    def row(r: Value) -> None:
        source, out = (
            Complex(start, f.at(start, n * size))
            for start in (f.at(p, r, 2 * n * size) for p in (body.pointers[op.input], body.outs[0]))
        )
        if op.kind.data is FftKind.INVERSE:
            source, out = source.swapped, out.swapped
        if radices is not None:
            between = Complex(scratch, f.at(scratch, n * size))
            Passes(f, n, element).run(source, (out, between), op.scale)
        else:
            _Chirp(f, n, padded, element, scratch).run(source, out, op.scale)

    body.for_rows(product(body, dims_of(op.input.type)[:-1]), row)


def product(body: Body, dims: Sequence[Dim]) -> Value:
    """Return the product of dimensions as i64."""
    count = i64(1)
    for dim in dims:
        count = body.f.mul(count, body.size(dim))
    return count


class _Chirp(Vectors):
    """
    A transform of any n as a convolution, by transforms of m, a power of two from 2 n - 1.

    Source: Bluestein, "A linear filtering approach to the computation of discrete Fourier
    transform", 1970. With c[t] = exp(-pi i t^2 / n): X[k] = c[k] sum_t (x[t] c[t]) conj(c[k - t]).
    """

    def __init__(self, f: Function, n: int, m: int, element: str, scratch: Value):
        super().__init__(f, element)
        self.n, self.m = n, m
        parts = [f.at(scratch, i * m * self.size) for i in range(4)]
        self.buffers = Complex(*parts[:2]), Complex(*parts[2:])

    def run(self, source: Complex, out: Complex, scale: float) -> None:
        n, m, (a, b) = self.n, self.m, self.buffers
        chirp = [cmath.rect(1, -math.pi * (t * t % (2 * n)) / n) for t in range(n)]
        table = self._pair("chirp", chirp)
        self._products(n, source, table, a)
        self._zeros(self.at(a, n), m - n)
        passes = Passes(self.f, m, self.element)
        # The first pass must not write what it reads: an even number of them begins with b.
        even = len(passes.radices) % 2 == 0
        there = (a, b) if even else (b, a)
        passes.run(a, there)
        filtered, other = there
        weights = self._pair(f"filter.{scale!r}", self._filter(chirp, scale))
        self._products(m, filtered, weights, filtered)
        back = (filtered, other) if even else (other, filtered)
        passes.run(filtered.swapped, (back[0].swapped, back[1].swapped))
        self._products(n, back[0], table, out)

    def _zeros(self, out: Complex, count: int) -> None:
        def chunk(i: Value, lanes: int) -> None:
            zero = self.f.zero(vec(lanes, self.element))
            self.store(Complex(zero, zero), self.at(out, i))

        self.chunks(count, chunk)

    def _filter(self, chirp: Sequence[complex], scale: float) -> list[complex]:
        """Return the transform of what the chirped signal is convolved with, and all factors."""
        import numpy as np

        around = np.zeros(self.m, np.complex128)
        around[: self.n] = np.conj(chirp)
        around[self.m - self.n + 1 :] = np.conj(chirp[:0:-1])
        return list(np.fft.fft(around) * (scale / self.m))

    def _pair(self, name: str, values: Sequence[complex]) -> Complex:
        flat = [*(v.real for v in values), *(v.imag for v in values)]
        start = self.table(f"{self.n}.{name}", flat)
        return Complex(start, self.f.at(start, len(values) * self.size))

    def _products(self, count: int, x: Complex, y: Complex, out: Complex) -> None:
        """Emit products of two rows; `out` may be one of them where chunks don't overlap."""
        self.chunks(
            count,
            lambda i, lanes: self.store(
                self.times(*(self.load(self.at(p, i), lanes) for p in (x, y))), self.at(out, i)
            ),
        )
