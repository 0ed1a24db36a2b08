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


class Turns:
    """
    Lets one user after the other have a model.

    A thread waits for another's turn to end. It gets an error instead where that would be for ever:
    the turn is its own (a generator that it has left half read), or its thread has ended. A turn
    belongs to the thread that moved it on last, as a generator may wander from thread to thread.
    """

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._owner: threading.Thread | None = None
        _all.add(self)

    @contextmanager
    def turn(self) -> Generator[None]:
        """Have the model inside a `with`. Raises RlxError where waiting for it would never end."""
        self._take()
        busy = self._busy
        try:
            yield
        finally:
            # In a forked child this may be a lock of the parent's, already replaced.
            if busy is self._busy:
                self._owner = None
            busy.release()

    def move_on(self) -> None:
        """Note that the turn goes on in the thread that calls this."""
        self._owner = threading.current_thread()

    def after_fork(self) -> None:
        """Forget a turn whose thread was left behind in the parent."""
        if self._owner is not threading.current_thread():
            self._busy, self._owner = threading.Lock(), None

    def _take(self) -> None:
        while not self._busy.acquire(timeout=_POLL_SECONDS):
            owner = self._owner
            if owner is threading.current_thread() or (owner is not None and not owner.is_alive()):
                raise RlxError(
                    "this model is generating already: finish or close that generator first, or "
                    "load the model a second time"
                )
        self._owner = threading.current_thread()


def _after_fork() -> None:
    for turns in list(_all):
        turns.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
