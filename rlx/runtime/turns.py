"""Whose turn it is: one generation at a time has a model's state."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager

from rlx.errors import RlxError

_POLL_SECONDS = 0.1
_all: weakref.WeakSet[Turns] = weakref.WeakSet()


class _Claim:
    """A turn, or the wish for one; it ends when it is given back, or when nothing holds it."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()


class Turns:
    """
    Lets one user after the other have a model.

    A thread waits for another's turn to end. It gets an error instead where that would be for ever:
    the turn is its own (a generator that it has left half read), or its thread has ended. A turn
    belongs to the thread that moved it on last, as a generator may wander from thread to thread.

    Ctrl-C may come at the start of any Python function and after any call. So a claim is made
    before its turn is taken and is held weakly, and the lock is one that a `with` takes and gives
    back without running Python.
    """

    def __init__(self) -> None:
        self._holder: weakref.ref[_Claim] | None = None
        self._renew()
        _all.add(self)

    def _renew(self) -> None:
        # Held again by a thread that has it where the collector ends a generator meanwhile.
        self._lock = threading.RLock()
        # Free when a turn has been given back and nobody has noticed.
        self._given = threading.Lock()
        self._given.acquire()

    @contextmanager
    def turn(self) -> Generator[None]:
        """Have the model inside a `with`. Raises RlxError where waiting for it would never end."""
        claim = _Claim()
        try:
            self._take(claim)
            yield
        finally:
            self._give(claim)

    def move_on(self) -> None:
        """Note that the turn goes on in the thread that calls this."""
        holder = self._held()
        if holder is not None:
            holder.thread = threading.current_thread()

    def after_fork(self) -> None:
        """Forget a turn whose thread was left behind in the parent, and who waits there."""
        self._renew()
        holder = self._held()
        if holder is not None and holder.thread is not threading.current_thread():
            self._holder = None

    def _held(self) -> _Claim | None:
        return self._holder() if self._holder is not None else None

    def _take(self, claim: _Claim) -> None:
        while not self._taken(claim):
            self._given.acquire(timeout=_POLL_SECONDS)

    def _taken(self, claim: _Claim) -> bool:
        """Take the turn if nobody has it; return whether it was so."""
        with self._lock:
            holder = self._held()
            if holder is None:
                self._holder = weakref.ref(claim)
                return True
            if holder.thread is threading.current_thread() or not holder.thread.is_alive():
                raise RlxError(
                    "this model is generating already: finish or close that generator first, or "
                    "load the model a second time"
                )
            return False

    def _give(self, claim: _Claim) -> None:
        with self._lock:
            if self._held() is claim:
                self._holder = None
                if self._given.locked():
                    self._given.release()


def _after_fork() -> None:
    for turns in list(_all):
        turns.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
