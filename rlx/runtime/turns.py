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
        # Free when the turn may be this one's and nobody has noticed.
        self.called = threading.Lock()
        self.called.acquire()


class Turns:
    """
    Lets one user after the other have a model.

    A thread waits for another's turn to end, and for those that came before it. It gets an error
    instead where that would be for ever: the turn is its own (a generator that it has left half
    read), or its thread has ended. A turn belongs to the thread that moved it on last, as a
    generator may wander from thread to thread.

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
        self._waiting: list[weakref.ref[_Claim]] = []

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
            claim.called.acquire(timeout=_POLL_SECONDS)

    def _taken(self, claim: _Claim) -> bool:
        """Take the turn if nobody has it or came before; return whether it was so."""
        with self._lock:
            holder = self._held()
            if holder is None:
                if self._first() in (None, claim):
                    self._holder = weakref.ref(claim)
                    self._forget(claim)
                    return True
            elif holder.thread is threading.current_thread() or not holder.thread.is_alive():
                raise RlxError(
                    "this model is generating already: finish or close that generator first, or "
                    "load the model a second time"
                )
            if all(waiting() is not claim for waiting in self._waiting):
                self._waiting.append(weakref.ref(claim))
            return False

    def _first(self) -> _Claim | None:
        """Return who has waited longest."""
        claims = (waiting() for waiting in self._waiting)
        return next((c for c in claims if c is not None and c.thread.is_alive()), None)

    def _forget(self, claim: _Claim) -> None:
        """Let a claim wait no more, nor any that has ended."""
        self._waiting = [w for w in self._waiting if w() not in (None, claim)]

    def _give(self, claim: _Claim) -> None:
        with self._lock:
            self._forget(claim)
            if self._held() is claim:
                self._holder = None
            first = self._first()
            if self._held() is None and first is not None and first.called.locked():
                first.called.release()


def _after_fork() -> None:
    for turns in list(_all):
        turns.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
