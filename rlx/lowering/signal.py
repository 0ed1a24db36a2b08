"""
Kernels of `rlx.dialects.signal`: which there are, and that of the strongest peaks of spectra.

A thread takes whole rows, so that results do not depend on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Operation

from rlx.dialects import signal
from rlx.dialects.common import dims_of
from rlx.errors import RlxError
from rlx.lowering.body import Body
from rlx.lowering.emitter import Function
from rlx.lowering.fft import MAX_STACK, emit_fft
from rlx.lowering.log_mel import emit_log_mel
from rlx.lowering.rows import VECTOR, load_chunk, row_map, store_chunk
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, f32, i64, vec

_INDEX_BITS = 31
_PEAK = 1 << 62


def generator(op: Operation) -> Callable[[Body], None]:
    """Return the generator of an operation of the dialect."""
    match op:
        case signal.FftOp():
            return emit_fft
        case signal.WelchPeaksOp():
            return emit_welch_peaks
        case signal.LogMelOp():
            return emit_log_mel
        case _:
            raise RlxError(f"no kernel family computes {op.name}")


def emit_welch_peaks(body: Body) -> None:
    """
    The peaks of averaged spectra as a launch of its own; see `signal.welch_peaks`.

    Raises RlxError for spectra of more than about 68,000 complex numbers.
    """
    op = next(op for op in body.ops if isinstance(op, signal.WelchPeaksOp))
    f, n, k, segments = body.f, op.length, op.k.value.data, op.segments.value.data
    bins = signal.bins_of(n)
    padded = -(-bins // PANEL) * PANEL
    size = 4 * (padded + 2 * PANEL)
    stack = size + 8 * padded
    if stack > MAX_STACK:
        raise RlxError(
            f"{op.name}: spectra of {n} complex numbers need {stack} bytes of stack, expected at "
            f"most {MAX_STACK}"
        )
    scratch = f.scratch("welch_peaks", stack)
    power, keys = f.at(scratch, 4 * PANEL), f.at(scratch, size)
    x, out = body.pointers[op.input], body.outs[0]
    # What is beside the first and the last bin is less than any power.
    beyond = f.splat(f32(-1.0), PANEL)

    def row(r: Value) -> None:
        f.store(beyond, scratch)
        f.store(beyond, f.at(power, bins, 4))
        first = f.at(x, r, segments * 2 * n * 4)
        row_map(
            f, bins, lambda c, m: store_chunk(f, _mean(f, first, n, segments, c, m), power, c, m), 1
        )
        f.for_(0, padded, PANEL, [], lambda c, _: _store_keys(f, power, keys, c, bins))
        _store_largest(f, power, keys, padded, k, f.at(out, r, 2 * k * 4))

    body.for_rows(body.size(dims_of(op.result.type)[0]), row)


def _mean(f: Function, first: Value, n: int, segments: int, c: Value, mask: Value | None) -> Value:
    """Return the power of bins from c on, added up in f64 over the rows of the segments."""
    wide = vec(PANEL, "double")

    def segment(i: Value, total: list[Value]) -> list[Value]:
        start = f.at(first, i, 2 * n * 4)
        for part in (start, f.at(start, n * 4)):
            v = f.cast("fpext", load_chunk(f, part, c, mask), wide)
            total = [f.fma(v, v, total[0])]
        return total

    total = f.for_(0, segments, 1, [f.zero(wide)], segment)[0]
    count = f.cast("fpext", f.splat(f32(float(segments)), PANEL), wide)
    return f.cast("fptrunc", f.fdiv(total, count), VECTOR)


def _store_keys(f: Function, power: Value, keys: Value, c: Value, bins: int) -> list[Value]:
    """
    Store what orders sixteen bins: an i64 each, greater for what comes first, -1 past the last bin.

    From the top: whether it is a peak, the bits of its power, which order as the power does where
    it is not negative, and the bits of its index, inverted.
    """
    ints, longs = vec(PANEL, "i32"), vec(PANEL, "i64")
    at = f.at(power, c, 4)
    p, before, after = (f.load(VECTOR, f.at(at, 4 * offset)) for offset in (0, -1, 1))
    peak = f.and_(f.fcmp("ogt", p, before), f.fcmp("oge", p, after))
    number = f.fcmp("ord", p, p)
    bits = f.select(number, f.cast("bitcast", p, ints), f.zero(ints))
    index = f.add(f.vector("i64", range(PANEL)), f.splat(c, PANEL))
    key = f.shl(f.cast("zext", bits, longs), _INDEX_BITS)
    key = f.or_(key, f.sub(f.constant(longs, (1 << _INDEX_BITS) - 1), index))
    key = f.or_(key, f.select(peak, f.constant(longs, _PEAK), f.zero(longs)))
    key = f.select(f.icmp("slt", index, bins), key, f.constant(longs, -1))
    f.store(key, f.at(keys, c, 8), align=8)
    return []


def _store_largest(f: Function, power: Value, keys: Value, padded: int, k: int, out: Value) -> None:
    """Store (bin, power) of the k greatest keys, from the greatest on; no two keys are equal."""
    longs = vec(PANEL, "i64")

    def find(j: Value, last: list[Value]) -> list[Value]:
        below = f.splat(last[0], PANEL)

        def chunk(c: Value, best: list[Value]) -> list[Value]:
            key = f.load(longs, f.at(keys, c, 8), align=8)
            fits = f.and_(f.icmp("slt", key, below), f.icmp("sgt", key, best[0]))
            return [f.select(fits, key, best[0])]

        best = f.for_(0, padded, PANEL, [f.constant(longs, -1)], chunk)[0]
        key = f.reduce("smax", best)
        index = f.sub(i64((1 << _INDEX_BITS) - 1), f.and_(key, (1 << _INDEX_BITS) - 1))
        pair = f.at(out, j, 8)
        f.store(f.cast("sitofp", index, "float"), pair)
        f.store(f.load("float", f.at(power, index, 4)), f.at(pair, 4))
        return [key]

    f.for_(0, k, 1, [i64((1 << 63) - 1)], find)
