"""
The inner routine of attention: some rows against one block of keys, by online softmax.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018. Queries come
scaled by scale * log2(e), so that a weight is p = 2^(score - maximum). A row's state:

    f32 [head_dim]   sums of p V
    f32 [16]         partial sums of p
    f32 [16]         the maximum so far, in every lane
    f32 [16]         the last block's rescaling factor, in every lane

Rows are a few heads that share a kv head, or neighbouring queries of one head. What a row gets does
not depend on which rows it is computed with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rlx.lowering.emitter import Function
from rlx.lowering.formats import load_float
from rlx.lowering.kv_cache import LINE, Attention, load_cached
from rlx.lowering.rows import VECTOR
from rlx.lowering.target import PANEL, Target
from rlx.lowering.values import Index, Value, f32, i32, i64
from rlx.lowering.vmath import exp2_softmax
from rlx.lowering.vmath_cast import convert

SUM, MAXIMUM, FACTOR = range(3)
"""The vectors of a state after its head_dim sums."""


def state_bytes(a: Attention) -> int:
    """Return the size of a row's state."""
    return a.row_bytes + 3 * LINE


@dataclass(frozen=True)
class Registers:
    """How a register file is spent: rows of a tile, and accumulators (vectors of 16 floats)."""

    rows: int
    accumulators: int

    def columns(self, rows: int) -> int:
        """Return how many vectors to a row fit, a power of two."""
        return 1 << int(math.log2(self.accumulators // rows))

    @staticmethod
    def of(target: Target) -> Registers:
        vectors = target.registers * target.vector_bits // (32 * PANEL)
        if vectors >= 32:
            return Registers(8, 24)
        return Registers(4, 6) if vectors >= 8 else Registers(2, 2)


@dataclass(frozen=True)
class Block:
    """A block of at most `size` keys, a multiple of 16, as one call of `attend` sees it."""

    k: Value
    v: Value
    keys: Value
    """Keys that the first row sees, from the block's first on, at least 1; may exceed `size`."""
    size: int
    causal: bool
    """Row i sees i keys more. The last row's must end in the same 16 keys as the first's."""
    ahead: Value | None = None
    """
    The keys of the block that comes next, where each block is read once: memory is asked for values
    while these keys are read, and for those keys while values are read.
    """


def prepare_row(f: Function, a: Attention, q: Value, scaled: Value, state: Value) -> None:
    """Emit one row's start: the query, scaled for `attend`, and an empty state."""
    factor = f.splat(f32(a.scale * math.log2(math.e)), PANEL)
    for chunk in range(a.chunks):
        query = load_float(f, a.query_format, f.at(q, chunk * a.query_bytes // a.chunks), PANEL)
        f.store(f.fmul(query, factor), f.at(scaled, chunk * LINE))
        f.store(f.zero(VECTOR), f.at(state, chunk * LINE))
    f.store(f.zero(VECTOR), _field(f, a, state, SUM))
    f.store(f.splat(f32(-math.inf), PANEL), _field(f, a, state, MAXIMUM))


def attend(
    f: Function, a: Attention, block: Block, q: Value, state: Value, p: Value, rows: int
) -> None:
    """
    Emit `rows` rows' attention to one block of keys.

    q f32 [rows][head_dim], scaled; state [rows]; p is scratch, f32 [rows][block.size].
    """
    extra = rows - 1 if block.causal else 0
    last = f.umin(f.add(block.keys, extra), block.size)
    key_blocks = f.lshr(f.add(last, PANEL - 1), 4)
    width = min(Registers.of(f.target).columns(rows), block.size // PANEL)
    if block.ahead is not None and f.target.zen:
        # What is read from memory is read as one stream.
        width = 1
    _scores(f, a, block, q, p, rows, key_blocks, width)
    end = f.mul(f.udiv(f.add(key_blocks, width - 1), width), width)
    _softmax(f, a, state, p, rows, block.size, end, width)
    _accumulate(f, a, block, state, p, rows)


def _scores(
    f: Function,
    a: Attention,
    block: Block,
    q: Value,
    p: Value,
    rows: int,
    key_blocks: Value,
    width: int,
) -> None:
    """Write scores to p, -inf where a row doesn't see the key; `width` vectors at a time."""
    lanes = f.vector("i32", list(range(PANEL)))

    def group(first: Value, _: list[Value]) -> list[Value]:
        # A group may reach past the last block: it reads that again, and the mask removes it.
        within = [f.umin(f.add(first, j), f.sub(key_blocks, 1)) for j in range(width)]
        keys = [f.at(block.k, b, PANEL * a.cached_bytes) for b in within]

        def features(d: Value, sums: list[Value]) -> list[Value]:
            for step in range(4):
                at = f.add(d, step)
                vectors = [load_cached(f, a, f.at(key, at, a.chunk_bytes)) for key in keys]
                if block.ahead is not None and step * a.chunk_bytes % LINE == 0:
                    # Values of as many keys have as many bytes.
                    for b in within:
                        value = f.at(block.v, b, PANEL * a.cached_bytes)
                        f.prefetch(f.at(value, at, a.chunk_bytes))
                for r in range(rows):
                    x = f.splat(f.load("float", f.at(f.at(q, at, 4), r * a.row_bytes)), PANEL)
                    for j in range(width):
                        sums[r * width + j] = f.fma(x, vectors[j], sums[r * width + j])
            return sums

        sums = f.for_(0, a.head_dim, 4, [f.zero(VECTOR)] * (rows * width), features)
        start = f.mul(first, PANEL)

        def masked() -> list[Value]:
            seen = f.cast("trunc", f.sub(block.keys, start), "i32")
            result: list[Value] = []
            for n, score in enumerate(sums):
                r, j = divmod(n, width)
                limit = f.add(seen, i32((r if block.causal else 0) - j * PANEL))
                visible = f.icmp("slt", lanes, f.splat(limit, PANEL))
                result.append(f.select(visible, score, f.splat(f32(-math.inf), PANEL)))
            return result

        cut = f.icmp("sgt", f.add(start, width * PANEL), block.keys)
        for n, score in enumerate(f.if_(cut, masked, lambda: sums)):
            r, j = divmod(n, width)
            f.store(score, f.at(f.at(p, start, 4), (r * block.size + j * PANEL) * 4))
        return []

    f.for_(0, key_blocks, width, [], group)


def _softmax(
    f: Function, a: Attention, state: Value, p: Value, rows: int, size: int, end: Value, width: int
) -> None:
    """Turn the scores in the first `end` vectors of each row into weights, and update its state."""

    def row(r: Value, _: list[Value]) -> list[Value]:
        own, scores = f.at(state, r, state_bytes(a)), f.at(p, r, size * 4)
        at = [_field(f, a, own, field) for field in (SUM, MAXIMUM, FACTOR)]

        def pointers(i: Value) -> list[Value]:
            return [f.at(f.at(scores, i, LINE), j * LINE) for j in range(width)]

        def larger(i: Value, tops: list[Value]) -> list[Value]:
            values = [f.load(VECTOR, pointer) for pointer in pointers(i)]
            return [larger_of(f, v, top) for v, top in zip(values, tops, strict=True)]

        old = f.load(VECTOR, at[MAXIMUM])
        tops = f.for_(0, end, width, [old] * width, larger)
        maximum = _reduce_max(f, tops)
        factor = exp2_softmax(f, f.fsub(old, maximum))

        def weights(i: Value, sums: list[Value]) -> list[Value]:
            for pointer in pointers(i):
                weight = exp2_softmax(f, f.fsub(f.load(VECTOR, pointer), maximum))
                f.store(weight, pointer)
                sums = [f.fadd(sums[0], weight)]
            return sums

        total = f.fmul(f.load(VECTOR, at[SUM]), factor)
        (total,) = f.for_(0, end, width, [total], weights)
        for value, pointer in zip((total, maximum, factor), at, strict=True):
            f.store(value, pointer)
        return []

    f.for_(0, rows, 1, [], row)


def larger_of(f: Function, v: Value, w: Value) -> Value:
    """Return the larger of two, w where either is NaN (one instruction on x86)."""
    return f.select(f.fcmp("ogt", v, w), v, w)


def _reduce_max(f: Function, vectors: list[Value]) -> Value:
    """Return the maximum of all lanes of all vectors, in every lane."""
    top = vectors[0]
    for v in vectors[1:]:
        top = larger_of(f, v, top)
    for step in (8, 4, 2, 1):
        top = larger_of(f, f.shuffle(top, top, [lane ^ step for lane in range(PANEL)]), top)
    return top


def _accumulate(f: Function, a: Attention, block: Block, state: Value, p: Value, rows: int) -> None:
    """Rescale the rows' sums and add p V, for as many features at a time as registers hold."""
    most = Registers.of(f.target).accumulators // rows
    tiles = -(-a.chunks // most)
    width = -(-a.chunks // tiles)

    def features(first: Value, count: int) -> list[Value]:
        sums_at = [
            f.at(f.at(state, first, LINE), r * state_bytes(a) + c * LINE)
            for r in range(rows)
            for c in range(count)
        ]

        def add(key: Value, sums: list[Value], first_row: int) -> list[Value]:
            value = f.at(f.at(block.v, key, a.cached_bytes), first, a.chunk_bytes)
            vectors = [load_cached(f, a, f.at(value, c * a.chunk_bytes)) for c in range(count)]
            if block.ahead is not None:
                next_keys = f.at(f.at(block.ahead, key, a.cached_bytes), first, a.chunk_bytes)
                f.prefetch_lines(next_keys, count * a.chunk_bytes, locality=2)
            result = sums[: first_row * count]
            for r in range(first_row, rows):
                weight = f.load("float", f.at(f.at(p, key, 4), r * block.size * 4))
                x = f.splat(weight, PANEL)
                mine = sums[r * count : (r + 1) * count]
                result += [f.fma(x, v, s) for v, s in zip(vectors, mine, strict=True)]
            return result

        def triangle(sums: list[Value]) -> list[Value]:
            # No multiplying with a weight of 0: a later value may be NaN.
            for i in range(1, rows):
                sums = add(f.add(block.keys, i - 1), sums, i)
            return sums

        factors = [
            f.load(VECTOR, _field(f, a, f.at(state, r * state_bytes(a)), FACTOR))
            for r in range(rows)
        ]
        sums = [
            f.fmul(f.load(VECTOR, pointer), factors[n // count])
            for n, pointer in enumerate(sums_at)
        ]
        shared = f.umin(block.keys, block.size)
        sums = f.for_(0, shared, 1, sums, lambda key, sums: add(key, sums, 0))
        if block.causal:
            diagonal = f.icmp("sle", block.keys, i64(block.size))
            before = sums
            sums = f.if_(diagonal, lambda: triangle(before), lambda: before)
        for value, pointer in zip(sums, sums_at, strict=True):
            f.store(value, pointer)
        return []

    _tiled(f, a.chunks, width, features)


def _tiled(f: Function, n: int, size: int, body: Callable[[Value, int], list[Value]]) -> None:
    """Emit body(first, count) for n things in tiles of `size` and a rest."""
    whole = n // size * size
    f.for_(0, whole, size, [], lambda first, _: body(first, size))
    if whole < n:
        body(i64(whole), n - whole)


def attend_rows(
    f: Function, a: Attention, block: Block, q: Value, state: Value, p: Value, rows: int
) -> None:
    """Emit `attend` for any number of rows, in even tiles that fit the registers."""
    tiles = -(-rows // Registers.of(f.target).rows)

    def tile(first: Value, count: int) -> list[Value]:
        own = f.at(state, first, state_bytes(a))
        attend(f, a, block, f.at(q, first, a.row_bytes), own, p, count)
        return []

    _tiled(f, rows, -(-rows // tiles), tile)


def combine(
    f: Function, a: Attention, states: Value, stride: int, count: Index, out: Value
) -> None:
    """Write a row's attention from `count` states of disjoint keys, `stride` bytes apart."""

    def part(i: Value, chunk: int) -> Value:
        return f.load(VECTOR, f.at(f.at(states, i, stride), chunk * LINE))

    maximum_at = a.chunks + MAXIMUM
    (maximum,) = f.for_(
        1,
        count,
        1,
        [part(i64(0), maximum_at)],
        lambda i, top: [larger_of(f, part(i, maximum_at), top[0])],
    )

    def add(i: Value, sums: list[Value]) -> list[Value]:
        weight = exp2_softmax(f, f.fsub(part(i, maximum_at), maximum))
        return [f.fma(part(i, c), weight, total) for c, total in enumerate(sums)]

    *sums, total = f.for_(0, count, 1, [f.zero(VECTOR)] * (a.chunks + 1), add)
    inverse = f.splat(f.fdiv(f32(1.0), f.reduce("fadd", total)), PANEL)
    for c, v in enumerate(sums):
        value = f.fmul(v, inverse)
        value = convert(f, value, "bfloat") if a.narrow else value
        f.store(value, f.at(out, c * a.query_bytes // a.chunks), align=2)


def _field(f: Function, a: Attention, state: Value, field: int) -> Value:
    return f.at(state, a.row_bytes + field * LINE)
