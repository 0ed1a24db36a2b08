"""How the commands end: one message and exit code 1 for any error, a traceback only on demand."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import BinaryIO, TextIO, cast

from rlx.errors import RlxError


def standard_input() -> BinaryIO:
    """Return standard input; raises RlxError where it is closed."""
    if (stream := cast("TextIO | None", sys.stdin)) is None:
        raise RlxError("standard input: expected it open, it is closed")
    return stream.buffer


def standard_output() -> TextIO:
    """Return standard output; raises RlxError where it is closed."""
    if (stream := cast("TextIO | None", sys.stdout)) is None:
        raise RlxError("standard output: expected it open, it is closed")
    return stream


class _Ended(BaseException):
    """The system, or another program, asked this one to end."""


@contextmanager
def _ends_in_order() -> Generator[None]:
    """Let SIGTERM be an exception, so that files that are half written and processes go."""

    def end(_: int, __: FrameType | None) -> None:
        raise _Ended

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def ended(body: Callable[[], None], say: Callable[[str, Exception], None], debug: bool) -> int:
    """
    Run a command and return its exit code: 0, 1 after an error, 130 after Ctrl-C, 143 when it was
    asked to end.

    `say` prints an error's message, given that and the error. A reader of our output that has left,
    as `head` does, is no error, whenever it left: what fits the pipe is written without a word.
    """
    try:
        # argparse ends with SystemExit when it has printed its help.
        with suppress(SystemExit), _ends_in_order():
            body()
        if (stream := cast("TextIO | None", sys.stdout)) is not None:
            stream.flush()
    except KeyboardInterrupt:
        return 130
    except _Ended:
        return 143
    except BrokenPipeError:
        return 0
    except Exception as e:
        if debug:
            raise
        say(_explained(e), e)
        return 1
    finally:
        _flush_or_discard()
    return 0


def _explained(error: Exception) -> str:
    """Return what to tell of an error: an RlxError's text says all that a user needs."""
    if isinstance(error, RlxError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return f"{type(error).__name__}: {error} (--debug shows where)"


def _flush_or_discard() -> None:
    """Write what is left in stdout's buffer, or let the interpreter do so, at exit, to nowhere."""
    try:
        if (stream := cast("TextIO | None", sys.stdout)) is not None:
            stream.flush()
    except (OSError, ValueError):
        # A full disk, mostly, or a reader that has left: the interpreter would exit with 120.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
