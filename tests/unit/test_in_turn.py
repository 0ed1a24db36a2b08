"""Items that threads take in turn: each is done once, and what they count in is zero again."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import Buffer, call_on_threads, compile_kernel, levels

from rlx.lowering.emitter import Function
from rlx.lowering.in_turn import TURNS_BYTES, emit_in_turn
from rlx.lowering.values import Value, i64


def body(f: Function) -> None:
    turns, counts, sums, count, tid, nth = f.params

    def item(i: Value, before: list[Value]) -> list[Value]:
        at = f.at(counts, i, 8)
        f.store(f.add(f.load("i64", at, align=8), 1), at, align=8)
        total = f.add(before[0], i)
        f.store(total, f.at(sums, tid, 8), align=8)
        return [total]

    emit_in_turn(f, turns, count, nth, [i64(0)], item)


@pytest.mark.parametrize("level", [levels()[0], levels()[-1]])
def test_every_item_is_done_once(level: str):
    names = ("turns", "counts", "sums")
    params = [*(("ptr", n) for n in names), *(("i64", n) for n in ("count", "tid", "nth"))]
    kernel = compile_kernel(level, params, body)
    turns = Buffer.of(np.zeros(TURNS_BYTES, np.uint8))
    for threads in (1, 2, 5):
        for count in (0, 1, 2, 3000):
            counts, sums = (Buffer.of(np.zeros(n, np.int64)) for n in (count + 1, 5))
            rest = turns, counts, sums, count
            call_on_threads(threads, lambda tid, rest=rest, n=threads: kernel(*rest, tid, n))
            assert (counts.array(np.int64, count + 1)[:count] == 1).all()
            assert counts.array(np.int64, count + 1)[count] == 0
            assert sums.array(np.int64, 5).sum() == count * (count - 1) // 2
            assert not turns.bytes.any()
