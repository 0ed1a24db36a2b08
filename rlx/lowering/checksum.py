"""
Checksums of memory, at the speed of reading it: one of 64 bits for each chunk.

A chunk is read in rounds of 256 bytes, which four accumulators of 16 lanes of i32 take in turn:

    lane = rotate_left(lane ^ word * SPREAD, 13) * PRIME

A step gives another result for another lane or another word, so a change within one word of four
bytes always shows. What changes several words of a lane shows but for a chance of 2^-32: the first
product spreads single bits, so that few of them do not cancel. The lanes are folded in the same
manner, with the number of rounds. All instruction sets give the same.
"""

from __future__ import annotations

from rlx.lowering.emitter import Function, Module
from rlx.lowering.values import Value

CHUNK = 1 << 16
"""Bytes that share a checksum; the last chunk may be shorter."""
ROUND = 256
"""What the number of bytes must be a multiple of."""
DATA, ROUNDS, SUMS = range(3)
"""Words of the job's context: where the data are, how many rounds, where i64 [chunks] goes."""

_VECTOR, _LANES, _STREAMS = "<16 x i32>", 16, 4
PRIME, SPREAD, PRIME_64 = 0x9E3779B1, 0x85EBCA77, 0x9E3779B185EBCA87
"""Odd numbers with their bits well mixed."""
TURN, TURN_64 = 13, 27


def emit_checksums(module: Module, name: str) -> None:
    """Define and export a job that writes the checksums of `ROUNDS` times 256 bytes at `DATA`."""
    job = [("ptr", "ctx"), ("i64", "tid"), ("i64", "threads")]
    f = module.function(name, job, exported=True)
    ctx, tid, threads = f.params
    data, rounds, sums = (
        f.load(type_, f.at(ctx, word, 8), align=8)
        for type_, word in (("ptr", DATA), ("i64", ROUNDS), ("ptr", SUMS))
    )
    each = CHUNK // ROUND
    chunks = f.udiv(f.add(rounds, each - 1), each)

    def chunk(c: Value, _: list[Value]) -> list[Value]:
        count = f.umin(f.sub(rounds, f.mul(c, each)), each)
        f.store(_checksum(f, f.at(data, c, CHUNK), count), f.at(sums, c, 8), align=8)
        return []

    first = f.udiv(f.mul(chunks, tid), threads)
    last = f.udiv(f.mul(chunks, f.add(tid, 1)), threads)
    f.for_(first, last, 1, [], chunk)
    f.ret()


def _checksum(f: Function, chunk: Value, rounds: Value) -> Value:
    seeds = [f.constant(_VECTOR, _signed(SPREAD * (i + 1), 32)) for i in range(_STREAMS)]

    def step(i: Value, lanes: list[Value]) -> list[Value]:
        start = f.at(chunk, i, ROUND)
        words = [f.load(_VECTOR, f.at(start, 4 * _LANES * s)) for s in range(_STREAMS)]
        spread = [f.mul(word, f.constant(_VECTOR, _signed(SPREAD, 32))) for word in words]
        return [_mixed(f, a, b, TURN, PRIME) for a, b in zip(lanes, spread, strict=True)]

    first, *others = f.for_(0, rounds, 1, seeds, step)
    for other in others:
        first = _mixed(f, first, other, TURN, PRIME)
    pairs = f.cast("bitcast", first, f"<{_LANES // 2} x i64>")
    total = rounds
    for i in range(_LANES // 2):
        total = _mixed(f, total, f.extract(pairs, i), TURN_64, PRIME_64)
    return total


def _mixed(f: Function, a: Value, b: Value, turn: int, prime: int) -> Value:
    """Return a number that differs where one of two differs."""
    x, bits = f.xor(a, b), int(a.element[1:])
    turned = f.intrinsic("fshl", a.type, x, x, f.constant(a.type, turn))
    return f.mul(turned, f.constant(a.type, _signed(prime, bits)))


def _signed(number: int, bits: int) -> int:
    """Return the integer constant of some bits that has the low bits of a number."""
    half = 1 << (bits - 1)
    return (number + half) % (1 << bits) - half
