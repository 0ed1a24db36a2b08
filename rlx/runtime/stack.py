"""
Room on the stack: kernels and LLVM take more of it than a thread of the application may have.

What a thread has no room for runs on one that has, while it waits.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeAlias, TypeVar

from rlx.errors import RlxError

T = TypeVar("T")
Enter: TypeAlias = "Callable[[int, object, object, int], int]"
"""What runs a prepared call: see `rlx.lowering.enter`."""

STACK_BYTES = 4 << 20
"""Of the threads that are started here."""
NEEDED = 2 << 20
"""Bytes that are enough for any compiled code, and for LLVM."""

_ANY_STACK = 32 << 10
"""Bytes that any thread of Python's has left."""
_PYTHON_STACK = 128 << 10
"""Bytes that Python itself has taken, at most."""
MOST = NEEDED - _PYTHON_STACK
"""Bytes that compiled code may take."""

_here = threading.local()


def start_thread(work: Callable[..., object], args: tuple[object, ...], name: str) -> Any:
    """
    Start a thread, a daemon, with room on its stack, whatever the application lets threads have.

    Raises RuntimeError where the system refuses it.
    """
    thread = threading.Thread(target=work, args=args, name=name, daemon=True)
    try:
        # It returns what was set before; without an argument it would set the system's size.
        before = threading.stack_size(STACK_BYTES)
    except RuntimeError:
        # A system that lets nobody choose.
        thread.start()
        return thread
    try:
        thread.start()
    finally:
        threading.stack_size(before)
    return thread


def has_room(nbytes: int = NEEDED) -> bool:
    """Return whether the stack of this thread has so many bytes; where nobody knows, it has."""
    try:
        return _here.nbytes >= nbytes
    except AttributeError:
        _here.nbytes = _stack_bytes()
        return _here.nbytes >= nbytes


def guarded(enter: Enter, nbytes: int) -> Enter:
    """Return `enter` for a program that takes so many bytes, on a thread that has them."""
    if nbytes <= _ANY_STACK:
        return enter
    nbytes += _PYTHON_STACK
    here = _here

    def enter_with_room(address: int, args: object, outs: object, wait: int) -> int:
        # As `has_room`, written out: calls of small programs take a microsecond.
        try:
            roomy = here.nbytes >= nbytes
        except AttributeError:
            roomy = has_room(nbytes)
        if roomy:
            return enter(address, args, outs, wait)
        return elsewhere(lambda: enter(address, args, outs, wait))

    return enter_with_room


def elsewhere(body: Callable[[], T]) -> T:
    """
    Call a function on a thread of its own, with this one's context; return what it returns.

    Raises RlxError where the system refuses the thread.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    context = copy_context()

    def work() -> None:
        try:
            results.append(context.run(body))
        except BaseException as e:
            errors.append(e)

    try:
        thread = start_thread(work, (), "rlx-stack")
    except RuntimeError as e:
        raise RlxError(
            "this thread's stack is too small for compiled code, and the system refused a thread "
            f"with a larger one ({e}): allow {STACK_BYTES >> 20} MB with threading.stack_size"
        ) from None
    interrupt: BaseException | None = None
    while thread.is_alive():
        try:
            thread.join()
        except BaseException as e:
            # Ctrl-C: native code can't be left, as what it works on would go.
            interrupt = e
    for error in (interrupt, *errors):
        if error is not None:
            raise error
    return results[0]


def _stack_bytes() -> int:
    """Return the size of this thread's stack."""
    if sys.platform != "linux":
        return NEEDED
    libc = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(256)
    lowest, nbytes = ctypes.c_void_p(), ctypes.c_size_t()
    libc.pthread_self.restype = ctypes.c_void_p
    if libc.pthread_getattr_np(ctypes.c_void_p(libc.pthread_self()), attributes):
        return NEEDED
    libc.pthread_attr_getstack(attributes, ctypes.byref(lowest), ctypes.byref(nbytes))
    libc.pthread_attr_destroy(attributes)
    return nbytes.value
