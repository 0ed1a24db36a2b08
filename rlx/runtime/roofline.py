"""What memory gives to the plainest of loops: the sum of a buffer, by loads of 64 bytes."""

from __future__ import annotations

import time

import numpy as np

from rlx.lowering.emitter import Module
from rlx.lowering.target import Target
from rlx.lowering.values import Value
from rlx.runtime.jit import Engine, compile_object
from rlx.runtime.memory import Segment
from rlx.runtime.threads import Team

LOADS = 8
"""Loads that a thread has under way, each with a sum of its own."""


class Roofline:
    """
    Sums a buffer of `nbytes`, a part by each thread of a team: how fast reading can be at best.

    It lies on 2 MB pages where the system gives them.
    """

    def __init__(self, team: Team, nbytes: int):
        self._team = team
        # Every thread's part is a multiple of what a turn of its loop reads.
        unit = 64 * LOADS * team.threads
        self.nbytes = -(-max(nbytes, 1) // unit) * unit
        target = Target.host()
        self._engine = Engine(compile_object(_code(target), target, "the loop of the roofline"))
        self._job = self._engine.address("read")
        self._buffer = Segment(self.nbytes, huge=True)
        self._buffer.view(0, np.uint8, [self.nbytes])[:] = 1
        self._sums = Segment(64 * team.threads)
        self._context = np.array(
            [self._buffer.address, self.nbytes // team.threads, self._sums.address], np.int64
        )

    def read(self) -> float:
        """Return the GB/s of one pass over the buffer."""
        started = time.perf_counter()
        self._team.run(self._job, self._context.ctypes.data)
        return self.nbytes / (time.perf_counter() - started) / 1e9

    def total(self) -> int:
        """Return the sum of the last pass over the buffer's 32-bit words, modulo 2^32."""
        return int(self._sums.view(0, np.uint32, [16 * self._team.threads]).sum(dtype=np.uint32))


def _code(target: Target) -> str:
    module = Module(target)
    params = [("ptr", "context"), ("i64", "tid"), ("i64", "threads")]
    f = module.function("read", params, exported=True)
    context, tid, _ = f.params
    share = f.load("i64", f.at(context, 8), align=8)
    start = f.at(f.load("ptr", context, align=8), f.mul(share, tid))
    vector = "<16 x i32>"

    def step(i: Value, sums: list[Value]) -> list[Value]:
        at = f.at(start, i)
        return [f.add(s, f.load(vector, f.at(at, 64 * j), align=64)) for j, s in enumerate(sums)]

    total, *others = f.for_(0, share, 64 * LOADS, [f.zero(vector)] * LOADS, step)
    for other in others:
        total = f.add(total, other)
    f.store(total, f.at(f.load("ptr", f.at(context, 16), align=8), tid, 64))
    f.ret()
    return module.text
