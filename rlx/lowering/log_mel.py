"""
The kernel of `signal.log_mel`: a product of powers with filters, and logarithms of it.

Filters are few and used by every row, so that each thread turns them round first, sixteen bands to
a vector. A tile of rows then takes one bin after the other: a vector of filters is loaded once for
all of them, and each sum is in the order of the bins, whatever the tile and the thread.
"""

from __future__ import annotations

import math

from rlx.dialects.common import dims_of
from rlx.dialects.signal import SMALLEST_POWER, LogMelOp
from rlx.errors import RlxError
from rlx.lowering.body import Body, width_of
from rlx.lowering.fft import MAX_STACK, product
from rlx.lowering.rows import VECTOR, load_chunk, row_map, store_chunk, tail_mask
from rlx.lowering.target import PANEL, Target
from rlx.lowering.values import Value, f32, i64
from rlx.lowering.vmath import clamp_low, log


def emit_log_mel(body: Body) -> None:
    """
    Logarithms of bands as a launch of its own; see `signal.log_mel`.

    Raises RlxError for more bins than `MAX_STACK` bytes hold sixteen filters of, about 5,000.
    """
    _Bands(body, next(op for op in body.ops if isinstance(op, LogMelOp))).emit()


def _tile(target: Target, mels: int) -> tuple[int, int]:
    """Return the rows, and the vectors of bands, whose sums fill the registers."""
    registers = target.registers * target.vector_bits // (32 * PANEL)
    rows = 4 if registers >= 32 else 2 if registers >= 8 else 1
    return rows, min(-(-mels // PANEL), max(1, (registers - 2) // rows), 6)


class _Bands:
    def __init__(self, body: Body, op: LogMelOp):
        self.body, self.f, self.op = body, body.f, op
        self.mels, self.bins = (d for d in dims_of(op.filters.type) if isinstance(d, int))
        self.width = width_of(op.spectrum)
        self.rows, self.vectors = _tile(body.f.target, self.mels)
        row = -(-self.bins // PANEL) * PANEL * 4
        room = MAX_STACK - self.rows * row
        self.vectors = min(self.vectors, max(room // (self.bins * PANEL * 4), 0))
        if not self.vectors and self.mels:
            raise RlxError(
                f"{op.name}: {self.bins} bins need {self.bins * PANEL * 4 + self.rows * row} bytes "
                f"of stack, expected at most {MAX_STACK}"
            )
        self.powers = [body.f.scratch(f"power{i}", row) for i in range(self.rows)]
        self.filters = body.f.scratch("filters", self.bins * self.vectors * PANEL * 4)

    def emit(self) -> None:
        """Emit the blocks of bands, each for all rows of the thread."""
        if not self.mels:
            return
        step = self.vectors * PANEL
        rest = self.mels % step
        whole = self.mels - rest
        self.f.for_(0, whole, step, [], lambda m, _: self._block(m, step) or [])
        if rest:
            self._block(i64(whole), rest)

    def _block(self, first: Value, count: int) -> None:
        """Emit bands from `first` on."""
        f, rows = self.f, self.rows
        self._turn(first, count)
        low, high = self.body.share(product(self.body, dims_of(self.op.spectrum.type)[:-1]))
        tiles = f.mul(f.udiv(f.sub(high, low), rows), rows)
        middle = f.add(low, tiles)
        f.for_(low, middle, rows, [], lambda r, _: self._rows(r, rows, first, count) or [])
        if rows > 1:
            f.for_(middle, high, 1, [], lambda r, _: self._rows(r, 1, first, count) or [])

    def _turn(self, first: Value, count: int) -> None:
        """Store filters by bin, then band: `[bins][vectors][16]`, zero past the last band."""
        f, vectors = self.f, -(-count // PANEL)
        source = f.at(self.body.pointers[self.op.filters], first, self.bins * 4)
        offsets = f.vector("i64", [lane * self.bins for lane in range(PANEL)])

        def bin_(b: Value, _: list[Value]) -> list[Value]:
            for j in range(vectors):
                live = [int(j * PANEL + lane < count) for lane in range(PANEL)]
                start = f.at(source, f.add(b, j * PANEL * self.bins), 4)
                v = f.load_gathered("float", start, offsets, f.vector("i1", live))
                f.store(v, self._filter(b, j, vectors), align=64)
            return []

        f.for_(0, self.bins, 1, [], bin_)

    def _filter(self, b: Value, j: int, vectors: int) -> Value:
        return self.f.at(self.f.at(self.filters, b, vectors * PANEL * 4), j * PANEL * 4)

    def _rows(self, r: Value, rows: int, first: Value, count: int) -> None:
        f, vectors = self.f, -(-count // PANEL)
        given = [
            f.at(self.body.pointers[self.op.spectrum], f.add(r, i), self.width * 4)
            for i in range(rows)
        ]
        powers = [self._power(x, p) for x, p in zip(given, self.powers, strict=False)]

        def bin_(b: Value, sums: list[Value]) -> list[Value]:
            weights = [
                f.load(VECTOR, self._filter(b, j, vectors), align=64) for j in range(vectors)
            ]
            scales = [f.splat(f.load("float", f.at(p, b, 4)), PANEL) for p in powers]
            pairs = [(w, s) for s in scales for w in weights]
            return [f.fma(*pair, total) for pair, total in zip(pairs, sums, strict=True)]

        sums = f.for_(0, self.bins, 1, [f.zero(VECTOR)] * (rows * vectors), bin_)
        for i in range(rows):
            out = f.at(f.at(self.body.outs[0], f.add(r, i), self.mels * 4), first, 4)
            for j, v in enumerate(sums[i * vectors : (i + 1) * vectors]):
                mask = tail_mask(f, count) if j == vectors - 1 else None
                store_chunk(f, v, out, i64(j * PANEL), mask)
            row_map(f, count, lambda c, m, out=out: self._store_log(out, c, m), 1)

    def _power(self, x: Value, out: Value) -> Value:
        """Return where the powers of a row are."""
        f = self.f
        if not self.op.is_complex:
            return x
        im = f.at(x, self.width // 2 * 4)

        def chunk(c: Value, mask: Value | None) -> None:
            a, b = (load_chunk(f, part, c, mask) for part in (x, im))
            store_chunk(f, f.fma(a, a, f.fmul(b, b)), out, c, mask)

        row_map(f, self.bins, chunk)
        return out

    def _store_log(self, out: Value, c: Value, mask: Value | None) -> None:
        f = self.f
        power = clamp_low(f, load_chunk(f, out, c, mask), SMALLEST_POWER)
        by = f.splat(f32(1 / math.log(10)), PANEL)
        store_chunk(f, f.fmul(log(f, power), by), out, c, mask)
