"""
Compilations by LLVM: they are counted, and a caller may forbid them.

A call on a program's hot path compiles nothing: `no_compile` makes that a promise that is kept, and
`counted` shows what a load or a call has cost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from rlx.errors import RlxError


class Compilations:
    """A count of the modules that LLVM compiled in this process, and how long that took."""

    count = 0
    seconds = 0.0


class Tally:
    """A count of the modules that were compiled while it was open, by whoever opened it."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0


_lock = threading.Lock()
_tallies: ContextVar[tuple[Tally, ...]] = ContextVar("tallies", default=())
_forbidden: ContextVar[bool] = ContextVar("forbidden", default=False)


@contextmanager
def no_compile() -> Generator[None]:
    """
    Let whatever would compile code raise RlxError, which says what that is.

    It holds for this thread (or asynchronous task) alone, and also decorates functions. Programs
    that were compiled before go on, and programs from the cache are loaded: that compiles nothing.
    """
    before = _forbidden.set(True)
    try:
        yield
    finally:
        _forbidden.reset(before)


def check_allowed(what: str) -> None:
    """Raise RlxError inside of `no_compile`, where `what` is about to be compiled."""
    if _forbidden.get():
        raise RlxError(
            f"inside rlx.no_compile() nothing may be compiled, but {what} would have to be: "
            "it is neither loaded nor in the cache; let it be compiled before"
        )


def is_allowed() -> bool:
    """Return whether this thread may compile."""
    return not _forbidden.get()


@contextmanager
def counted() -> Generator[Tally]:
    """Count what this thread compiles."""
    tally = Tally()
    before = _tallies.set((*_tallies.get(), tally))
    try:
        yield tally
    finally:
        _tallies.reset(before)


@contextmanager
def compiling(what: str) -> Generator[None]:
    """Count a compilation by LLVM. Raises RlxError where it is forbidden."""
    check_allowed(what)
    started = time.perf_counter()
    yield
    note(1, time.perf_counter() - started)


def note(count: int, seconds: float) -> None:
    """Count modules that were compiled on behalf of this thread."""
    with _lock:
        Compilations.count += count
        Compilations.seconds += seconds
    for tally in _tallies.get():
        tally.count += count
        tally.seconds += seconds
