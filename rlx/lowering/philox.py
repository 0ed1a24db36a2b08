"""
Philox4x32-10, a counter-based random generator.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, f64, vec

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def emit_philox(f: Function, counter: Sequence[Value], key: Sequence[Value]) -> list[Value]:
    """Return four random i32 of a counter of four i32 and a key of two, or of vectors of them."""
    c, k = list(counter), list(key)
    for n in range(_ROUNDS):
        if n:
            k = [f.add(word, weyl) for word, weyl in zip(k, _WEYL, strict=True)]
        high, low = zip(
            *(_wide_product(f, c[2 * i], m) for i, m in enumerate(_MULTIPLIERS)), strict=True
        )
        c = [
            f.xor(f.xor(high[1], c[1]), k[0]),
            low[1],
            f.xor(f.xor(high[0], c[3]), k[1]),
            low[0],
        ]
    return c


def emit_uniform(f: Function, seed: Value, counter: Value) -> Value:
    """Return a double in [0, 1) of 53 random bits, from a seed and a counter, both i64."""
    zero = f.zero("i32")
    words = emit_philox(f, [*halves(f, counter), zero, zero], halves(f, seed))
    low, high = (f.cast("zext", word, "i64") for word in words[:2])
    bits = f.lshr(f.or_(f.shl(high, 32), low), 11)
    return f.fmul(f.cast("uitofp", bits, "double"), f64(2.0**-53))


def _wide_product(f: Function, a: Value, multiplier: int) -> tuple[Value, Value]:
    """Return the high and the low i32 of a product."""
    product = f.mul(f.cast("zext", a, vec(a.lanes, "i64")), multiplier)
    return f.cast("trunc", f.lshr(product, 32), a.type), f.cast("trunc", product, a.type)


def halves(f: Function, a: Value) -> list[Value]:
    """Return the low and the high i32 of an i64."""
    type_ = vec(a.lanes, "i32")
    return [f.cast("trunc", a, type_), f.cast("trunc", f.lshr(a, 32), type_)]
