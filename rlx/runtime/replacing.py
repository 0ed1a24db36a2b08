"""Files that are written whole: until then, what was there stays."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from errno import EACCES, EISDIR
from typing import BinaryIO

from rlx.errors import RlxError


@contextmanager
def replacing(path: str, *inputs: str) -> Generator[BinaryIO]:
    """
    Open a file to write, which takes its name once the `with` has ended without an error.

    Raises RlxError where it can't be written, before anything else is done, or is one of the
    `inputs`, and leaves what was there. An input that is not there is none.
    """
    if not path:
        raise RlxError("cannot write a file: expected its path, got an empty one")
    with errors_of(path):
        # The system says now, not after minutes of work, that a name is too long, say.
        there = _status(path)
        for name in inputs if there else ():
            with suppress(OSError, ValueError):
                if os.path.samefile(name, path):
                    raise RlxError(f"cannot write {path}: it is an input: name another file")
        # A device or a pipe has nothing to replace.
        in_place = there is not None and not stat.S_ISREG(there.st_mode)
        target = path if in_place else os.path.realpath(path)
        written = path if in_place else name_beside(target)
        if there is None and not os.path.basename(path):
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if there is not None and not os.access(path, os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
        file = open(written, "wb" if in_place else "xb")
    try:
        yield file
        with errors_of(path):
            file.close()
            if not in_place:
                if there is not None:
                    os.chmod(written, stat.S_IMODE(there.st_mode))
                os.replace(written, target)
    except BaseException:
        # What a full disk has refused is refused again.
        with suppress(OSError):
            file.close()
        if not in_place:
            with suppress(OSError):
                os.remove(written)
        raise


@contextmanager
def errors_of(path: str) -> Generator[None]:
    """Raise RlxError, which names a file, for what the system says of writing it."""
    try:
        yield
    except (OSError, ValueError) as e:
        raise RlxError(f"cannot write {path}: {reason(e)}") from e


def reason(error: OSError | ValueError) -> str:
    """Return what went wrong with a file, without its name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def name_beside(path: str) -> str:
    """Return a new path in a file's folder, of a short name whatever the file's own is."""
    return os.path.join(os.path.dirname(path), f".rlx-{os.urandom(8).hex()}.tmp")
