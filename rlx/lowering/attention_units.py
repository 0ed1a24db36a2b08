"""How threads share the work units of an attention of many queries."""

from __future__ import annotations

from collections.abc import Callable

from rlx.lowering.emitter import Function
from rlx.lowering.kv_cache import Attention
from rlx.lowering.values import Value


def in_turn(
    f: Function, units: Value, tid: Value, nth: Value, unit: Callable[[Value], list[Value]]
) -> None:
    """
    Emit `unit(number)` for a thread's part of `units` units, an i64.

    Threads take them in turn and back, so that none has the costlier one of every round.
    """

    def round_(r: Value, _: list[Value]) -> list[Value]:
        back = f.icmp("ne", f.and_(r, 1), 0)
        place = f.select(back, f.sub(f.sub(nth, 1), tid), tid)
        u = f.add(f.mul(r, nth), place)
        return f.if_(f.icmp("ult", u, units), lambda: unit(u))

    f.for_(0, f.udiv(f.add(units, f.sub(nth, 1)), nth), 1, [], round_)


def shared_heads(a: Attention, head_bytes: int, most: int) -> int:
    """Return how many heads of a group a unit takes: a divisor, of at most so many bytes, or 1."""
    fits = [n for n in range(1, a.group + 1) if a.group % n == 0 and n * head_bytes <= most]
    return max(fits, default=1)
