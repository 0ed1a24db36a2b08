"""
Items that threads take in turn, each as soon as it is free.

A thread that is slower than the others, as its CPU has other work, takes fewer of them. Where each
had its share the others would wait for it.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.lowering.emitter import Function
from rlx.lowering.values import Value, i64

TURNS_BYTES = 128
"""What threads count in: the items taken, and in a cache line of its own the threads that ended."""
_ENDED = 64


def emit_in_turn(
    f: Function,
    turns: Value,
    count: Value,
    nth: Value,
    carried: list[Value],
    body: Callable[[Value, list[Value]], list[Value]],
) -> None:
    """
    Emit body(item, carried) for items below `count` (i64), each on one of `nth` threads.

    A thread's items rise. `turns` are `TURNS_BYTES` bytes that all threads of a launch share: zero
    before it, and again when all threads have ended. What is carried is a thread's own.
    """

    def take() -> Value:
        return f.atomic_rmw("add", turns, i64(1), "monotonic")

    def turn(values: list[Value]) -> list[Value]:
        left = body(values[0], values[1:])
        return [take(), *left]

    f.while_([take(), *carried], lambda values: f.icmp("ult", values[0], count), turn)
    ended = f.at(turns, _ENDED)
    before = f.atomic_rmw("add", ended, i64(1))

    def forget() -> list[Value]:
        f.store(i64(0), turns, align=8)
        f.store(i64(0), ended, align=8)
        return []

    f.if_(f.icmp("eq", before, f.sub(nth, 1)), forget)
