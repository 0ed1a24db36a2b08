"""
Causal attention over the KV cache of kv_cache.py: one query (decode) or many (prefill).

Blocks of keys are counted from position 0 and tiles of queries are aligned to absolute positions:
a row's result does not depend on threads, on how a prompt was split into chunks, or on other rows,
to the bit. Decode and prefill agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rlx.lowering.attention_units import in_turn, shared_heads
from rlx.lowering.emitter import Function
from rlx.lowering.kv_cache import LINE, Attention
from rlx.lowering.online_softmax import (
    Block,
    Registers,
    attend,
    attend_rows,
    combine,
    prepare_row,
    state_bytes,
)
from rlx.lowering.values import Value, i64

DECODE_KEYS = 128
"""Keys of a decode work unit."""

PREFILL_KEYS = 64
"""Keys of a prefill block: its K and V stay in L1 for all the heads that share them."""

_STACK = 64 * 1024
"""Bytes on the stack that the queries and states of a prefill work unit may take."""


def decode_scratch_bytes(a: Attention) -> int:
    """
    Return the size of the scratch of `emit_attention_decode`.

    Its first kv_heads * 64 bytes must be zero before the first call, and are again after each one.
    """
    return a.kv_heads * LINE + a.heads * _splits(a) * state_bytes(a)


def _splits(a: Attention) -> int:
    return -(-a.capacity // DECODE_KEYS)


def emit_attention_decode(
    f: Function,
    a: Attention,
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    scratch: Value,
    keys: Value,
    tid: Value,
    nth: Value,
) -> None:
    """
    Emit one query's attention to cache positions 0 to keys - 1; keys is i64 and at least 1.

    q, out f32 [heads][head_dim]. A work unit is a kv head and `DECODE_KEYS` keys. The thread that
    finishes a kv head's last unit combines them all in order, so that the barrier that publishes
    `out` is the only one.
    """
    query = _Query(f, a, q, k, v, out, scratch, keys)
    units = f.mul(query.splits, a.kv_heads)
    first = f.udiv(f.mul(units, tid), nth)
    end = f.udiv(f.mul(units, f.add(tid, 1)), nth)
    query.emit_units(first, end)


def emit_attention_rows(
    f: Function,
    a: Attention,
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    scratch: Value,
    places: Value,
    rows: Value,
    tid: Value,
    nth: Value,
) -> None:
    """
    Emit the attention of `rows` queries (i64), each on a sequence of its own: see `mir.append`.

    q, out f32 [rows][heads][head_dim]; places i64 [rows][2], whose first numbers are multiples of
    64; scratch is `decode_scratch_bytes` for each row. Work units are those of
    `emit_attention_decode`, row by row, and so are the bits.
    """

    def keys_of(r: Value) -> Value:
        return f.add(f.load("i64", f.at(f.at(places, r, 16), 8), align=8), 1)

    (total,) = f.for_(0, rows, 1, [i64(0)], lambda r, n: [f.add(n[0], _splits_of(f, keys_of(r)))])
    total = f.mul(total, a.kv_heads)
    first = f.udiv(f.mul(total, tid), nth)
    end = f.udiv(f.mul(total, f.add(tid, 1)), nth)

    def row(r: Value, carried: list[Value]) -> list[Value]:
        (base,) = carried
        behind = f.load("i64", f.at(places, r, 16), align=8)
        query = _Query(
            f,
            a,
            f.at(q, r, a.heads * a.row_bytes),
            f.at(k, behind),
            f.at(v, behind),
            f.at(out, r, a.heads * a.row_bytes),
            f.at(scratch, r, decode_scratch_bytes(a)),
            keys_of(r),
        )
        count = f.mul(query.splits, a.kv_heads)
        last = f.add(base, count)
        own = (f.sub(f.umin(f.umax(bound, base), last), base) for bound in (first, end))
        query.emit_units(*own)
        return [last]

    f.for_(0, rows, 1, [i64(0)], row)


def _splits_of(f: Function, keys: Value) -> Value:
    return f.udiv(f.add(keys, DECODE_KEYS - 1), DECODE_KEYS)


class _Query:
    """One query's attention: a work unit is a kv head and `DECODE_KEYS` keys."""

    def __init__(
        self,
        f: Function,
        a: Attention,
        q: Value,
        k: Value,
        v: Value,
        out: Value,
        scratch: Value,
        keys: Value,
    ):
        self.f, self.a, self.q, self.out, self.scratch = f, a, q, out, scratch
        self.k, self.v, self.keys = k, v, keys
        self.splits = _splits_of(f, keys)
        self.scaled = f.scratch("scaled", a.group * a.row_bytes)
        self.weights = f.scratch("weights", Registers.of(f.target).rows * DECODE_KEYS * 4)

    def _place(self, u: Value) -> tuple[Value, Value]:
        """Return the kv head of a unit, and which of its splits it is."""
        head = self.f.udiv(u, self.splits)
        return head, self.f.sub(u, self.f.mul(head, self.splits))

    def emit_units(self, first: Value, end: Value) -> None:
        """Emit the units from `first` to below `end`; whoever does a head's last combines them."""
        self.f.for_(first, end, 1, [], lambda u, _: self._unit(u, end))

    def _unit(self, u: Value, end: Value) -> list[Value]:
        f, a, keys, splits = self.f, self.a, self.keys, self.splits
        head, split = self._place(u)
        start = f.mul(split, DECODE_KEYS)
        next_head, next_split = self._place(f.umin(f.add(u, 1), f.sub(end, 1)))
        unit_bytes = a.group * state_bytes(a)
        states = f.at(f.at(self.scratch, a.kv_heads * LINE), head, _splits(a) * unit_bytes)
        state = f.at(states, split, unit_bytes)
        queries = f.at(self.q, head, a.group * a.row_bytes)

        def prepare(r: Value, _: list[Value]) -> list[Value]:
            own = f.at(self.scaled, r, a.row_bytes), f.at(state, r, state_bytes(a))
            prepare_row(f, a, f.at(queries, r, a.row_bytes), *own)
            return []

        def finish(r: Value, _: list[Value]) -> list[Value]:
            target = f.at(f.at(self.out, head, a.group * a.row_bytes), r, a.row_bytes)
            combine(f, a, f.at(states, r, state_bytes(a)), unit_bytes, splits, target)
            return []

        def finish_group() -> list[Value]:
            f.store(i64(0), counter, 8)
            return f.for_(0, a.group, 1, [], finish)

        f.for_(0, a.group, 1, [], prepare)
        block = replace(
            _block(f, a, self.k, self.v, head, start, keys, False),
            ahead=_at(f, a, self.k, next_head, f.mul(next_split, DECODE_KEYS)),
        )
        attend_rows(f, a, block, self.scaled, state, self.weights, a.group)
        counter = f.at(self.scratch, head, LINE)
        done = f.atomic_rmw("add", counter, i64(1))
        f.if_(f.icmp("eq", done, f.sub(splits, 1)), finish_group)
        return []


def _at(f: Function, a: Attention, cache: Value, head: Value, start: Value) -> Value:
    """Return the address of a kv head's K or V from position `start` on, a multiple of 16."""
    return f.at(f.at(cache, head, a.head_bytes), start, a.cached_bytes)


def _block(
    f: Function,
    a: Attention,
    k: Value,
    v: Value,
    head: Value,
    start: Value,
    keys: Value,
    causal: bool,
) -> Block:
    """Return the block of a kv head's keys from position `start` on, of `keys` from position 0."""
    at = [_at(f, a, cache, head, start) for cache in (k, v)]
    size = PREFILL_KEYS if causal else DECODE_KEYS
    return Block(*at, keys=f.sub(keys, start), size=size, causal=causal)


def emit_attention_prefill(
    f: Function,
    a: Attention,
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    rows: Value,
    past: Value,
    tid: Value,
    nth: Value,
) -> None:
    """
    Emit causal attention of `rows` queries at positions past to past + rows - 1 (i64, rows >= 1).

    q, out [rows][heads][head_dim], f32 or bf16; K and V of these positions are in the cache. A work
    unit is a tile of queries and the heads that share a kv head, or some of them. Units go from the
    costly last tile to the first, to the threads in turn and back.
    """
    tile = Registers.of(f.target).rows
    shared = shared_heads(a, tile * (a.row_bytes + state_bytes(a)), _STACK)
    scaled = f.alloca(shared * tile * a.row_bytes)
    states = f.alloca(shared * tile * state_bytes(a))
    weights = f.alloca(tile * PREFILL_KEYS * 4)
    total = f.add(past, rows)
    first_tile = f.udiv(past, tile)
    tiles = f.sub(f.udiv(f.add(total, tile - 1), tile), first_tile)
    units = f.mul(tiles, a.heads // shared)

    def unit(u: Value) -> list[Value]:
        rank = f.sub(f.sub(units, 1), u)
        step = f.udiv(rank, a.heads // shared)
        head = f.mul(f.sub(rank, f.mul(step, a.heads // shared)), shared)
        start = f.mul(f.add(first_tile, step), tile)

        def row(i: Value, body: Callable[[Value, Value, Value], None]) -> list[Value]:
            """Emit body(position, state, offset of the row in q) for the unit's i-th row."""
            h = f.udiv(i, tile)
            position = f.add(start, f.sub(i, f.mul(h, tile)))
            # Positions that aren't asked for share a tile with some that are: any row will do.
            n = f.umin(f.sub(f.select(f.icmp("slt", position, past), past, position), past), last)
            offset = f.add(f.mul(n, a.heads * a.query_bytes), f.mul(f.add(head, h), a.query_bytes))
            body(position, f.at(states, i, state_bytes(a)), offset)
            return []

        def prepare(i: Value, offset: Value, state: Value) -> None:
            prepare_row(f, a, f.at(q, offset), f.at(scaled, i, a.row_bytes), state)

        def finish(position: Value, offset: Value, state: Value) -> None:
            def write() -> list[Value]:
                combine(f, a, state, 0, 1, f.at(out, offset))
                return []

            asked = f.icmp("ult", f.sub(position, past), rows)
            f.if_(asked, write)

        def key_block(b: Value, _: list[Value]) -> list[Value]:
            at = f.mul(b, PREFILL_KEYS)
            kv_head = f.udiv(head, a.group)
            block = _block(f, a, k, v, kv_head, at, f.add(start, 1), True)

            def one_head(h: Value, _: list[Value]) -> list[Value]:
                own = f.at(scaled, h, tile * a.row_bytes), f.at(states, h, tile * state_bytes(a))
                attend(f, a, block, *own, weights, tile)
                return []

            return f.for_(0, shared, 1, [], one_head)

        last = f.sub(rows, 1)
        count = shared * tile
        f.for_(0, count, 1, [], lambda i, _: row(i, lambda p, s, o: prepare(i, o, s)))
        f.for_(0, f.add(f.udiv(start, PREFILL_KEYS), 1), 1, [], key_block)
        f.for_(0, count, 1, [], lambda i, _: row(i, lambda p, s, o: finish(p, o, s)))
        return []

    in_turn(f, units, tid, nth, unit)
