"""
The threads that run compiled jobs together: Python threads inside a native loop.

A worker is in native code, without the interpreter's lock, from its start until its team is
closed. Between jobs it spins for some tens of microseconds, then sleeps and uses no CPU.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlx.checks import integer
from rlx.errors import RlxError
from rlx.lowering.emitter import Module
from rlx.lowering.enter import Layout, emit_enter
from rlx.lowering.sync import STARTED, TEAM_BYTES, THREADS, emit_team
from rlx.lowering.target import Target, usable_cores
from rlx.runtime.cache import ObjectCache
from rlx.runtime.cache_files import warn_once
from rlx.runtime.memory import Segment
from rlx.runtime.once import once
from rlx.runtime.stack import Enter, elsewhere, has_room, start_thread

if TYPE_CHECKING:
    from rlx.runtime.jit import Engine

_JOB = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_teams: weakref.WeakSet[Team] = weakref.WeakSet()


class Team:
    """
    Threads that run jobs together, the calling one included: one team for each loaded model.

    `threads` defaults to the CPUs that this process may use and is clamped to them, with one
    warning per process. Raises RlxError where it isn't an int of at least 1.

    The other threads start at the first run and are daemons, stopped at the interpreter's exit.
    `address` is what a job passes to `barrier`; it is the same for the team's life, and in a
    forked child, which starts threads of its own.
    """

    def __init__(self, threads: int | None = None):
        self._workers: list[threading.Thread] = []
        self.threads = _clamp(threads)
        self._memory = Segment(TEAM_BYTES)
        self.address = self._memory.address
        self._closed = False
        self.reset()
        _teams.add(self)

    def reset(self) -> None:
        """Start over without workers, as a forked child has none: for the hook below."""
        self._lock = threading.Lock()
        self._workers = []
        self._words = self._memory.view(0, np.int64, [TEAM_BYTES // 8])
        self._words[:] = 0
        self._words[THREADS // 8] = self.threads

    def run(self, job: int, ctx: int, alone: bool = False) -> None:
        """
        Call `void job(ptr ctx, i64 tid, i64 threads)` on every thread; return when all are done.

        With `alone` the calling thread does it all, as the only one of a team of one.
        `job` and `ctx` are addresses. Python threads that call this at once take turns.
        Raises RlxError where the system refuses the threads, or after `close`.
        """
        if not has_room():
            elsewhere(lambda: self.run(job, ctx, alone))
            return
        with self._lock:
            if self._closed:
                raise RlxError("this model was closed: load it again to run it")
            # Before the workers, which need it too.
            code = native()
            if alone:
                _JOB(job)(ctx, 0, 1)
                return
            if self.threads > 1 and not self._workers:
                self._start()
            code.run(self.address, job, ctx)

    def start(self) -> None:
        """Start the threads, where they haven't started. Raises RlxError as `run` does."""
        with self._lock:
            if self._closed:
                raise RlxError("this team was closed")
            native()
            if self.threads > 1 and not self._workers:
                self._start()
            self._words[STARTED // 8] = 1

    def close(self) -> None:
        """Stop the threads, after the run that is going on, if one is."""
        with self._lock:
            self._closed = True
            self._words[STARTED // 8] = 0
            if self._workers:
                native().run(self.address, None, None)
            for thread in self._workers:
                thread.join()
            self._workers = []

    def _start(self) -> None:
        try:
            for tid in range(1, self.threads):
                self._workers.append(start_thread(_work, (self._memory, tid), f"rlx-{tid}"))
        except BaseException as e:
            # A refused thread, or Ctrl-C while one was starting: those that did start return.
            self._closed = True
            self._workers = []
            native().run(self.address, None, None)
            if isinstance(e, RuntimeError):
                raise RlxError(
                    f"the system refused {self.threads} threads ({e}): "
                    "ask for fewer with threads=..., or raise its limit"
                ) from None
            raise

    def __del__(self) -> None:
        if self._workers:
            self.close()


class _Native(NamedTuple):
    engine: Engine
    """Holds the code."""
    run: Callable[[int, int | None, int | None], None]
    worker: Callable[[int, int], None]
    enter: Enter
    """See `rlx.lowering.enter`; other Python threads run meanwhile."""
    enter_at_once: Enter
    """The same without letting others run, which takes longer than a small program."""
    lock: Callable[[int], None]
    unlock: Callable[[int], None]


@once
def native() -> _Native:
    """Return the team's native code, from the object cache where it is there."""
    # Imported here: LLVM takes 60 ms to load, and only those who run a job need it.
    from rlx.runtime.jit import Engine

    engine = Engine(native_object()[1])
    pointer, python = ctypes.c_void_p, ctypes.py_object
    enter = (ctypes.c_int64, pointer, python, python, ctypes.c_int64)
    address = engine.address("enter")
    # Calls through CFUNCTYPE release the interpreter's lock.
    return _Native(
        engine,
        ctypes.CFUNCTYPE(None, pointer, pointer, pointer)(engine.address("run")),
        ctypes.CFUNCTYPE(None, pointer, ctypes.c_int64)(engine.address("worker")),
        ctypes.CFUNCTYPE(*enter)(address),
        ctypes.PYFUNCTYPE(*enter)(address),
        ctypes.CFUNCTYPE(None, pointer)(engine.address("lock")),
        ctypes.CFUNCTYPE(None, pointer)(engine.address("unlock")),
    )


def native_object() -> tuple[str, bytes]:
    """Return the team's object code with its key, from the object cache where it is there."""
    import llvmlite

    module = Module(Target.host())
    emit_team(module)
    emit_enter(module, Layout(object.__basicsize__, tuple.__basicsize__))
    objects, what = ObjectCache(), "team of threads"
    key = objects.key("team", llvmlite.__version__, module.text)
    data = objects.get(key)
    if data is None:
        from rlx.runtime.jit import compile_object

        data = compile_object(module.text, module.target, f"the code of a {what}")
        objects.put(key, data, what)
    return key, data


def _work(memory: Segment, tid: int) -> None:
    """Run jobs until the team stops; `memory` is held so that it outlives the team's object."""
    native().worker(memory.address, tid)


def _clamp(threads: object) -> int:
    cores = usable_cores()
    if threads is None:
        return cores
    count = integer("threads (None is all)", threads, 1)
    if count > cores:
        warn_once(
            "threads",
            f"{count} threads were asked for, but this process may use {cores} CPUs: using {cores}",
        )
    return min(count, cores)


@atexit.register
def _close_teams() -> None:
    for team in list(_teams):
        team.close()


def _reset_teams() -> None:
    for team in list(_teams):
        team.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_teams)
