"""How the commands end: one message and exit code 1 for any error, a traceback only on demand."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
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


def ended(body: Callable[[], None], say: Callable[[str, Exception], None], debug: bool) -> int:
    """
    Run a command and return its exit code: 0, 1 after an error, 130 after Ctrl-C.

    `say` prints an error's message, given that and the error. A reader of our output that has left,
    as `head` does, is no error to speak of.
    """
    try:
        # argparse ends with SystemExit when it has printed its help.
        with suppress(SystemExit):
            body()
        if (stream := cast("TextIO | None", sys.stdout)) is not None:
            stream.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _discard_output()
        return 1
    except Exception as e:
        if debug:
            raise
        say(_explained(e), e)
        if isinstance(e, OSError):
            # A full disk, mostly.
            _discard_output()
        return 1
    return 0


def _explained(error: Exception) -> str:
    """Return what to tell of an error: an RlxError's text says all that a user needs."""
    if isinstance(error, RlxError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return f"{type(error).__name__}: {error} (--debug shows where)"


def _discard_output() -> None:
    """Let the interpreter write what is left in stdout's buffer, at exit, to nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
