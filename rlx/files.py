"""Files that are read whole: whatever stands there, reading it ends, and takes so much memory."""

from __future__ import annotations

import os
import stat
from errno import EFBIG, EINVAL
from typing import BinaryIO

MOST_BYTES = 64 << 20


def read_bounded(file: BinaryIO, name: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """
    Return what is left of a file, of `most` bytes at most: pipes and devices may have no end.

    Raises OSError, which has its name, where there is more.
    """
    data = file.read(most + 1)
    if len(data) > most:
        message = f"expected at most {most >> 20} MiB, got more, perhaps without end"
        raise OSError(EFBIG, message, os.fspath(name))
    return data


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """
    Open a regular file to read.

    Raises OSError for anything else, at once: opening a named pipe would wait for a writer.
    """
    return open(path, "rb", opener=_opened_if_regular)


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Return what is in a regular file. Raises OSError for anything else, and where it's larger."""
    with open_regular(path) as file:
        return read_bounded(file, path)


def _opened_if_regular(path: str, flags: int) -> int:
    fd = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(fd).st_mode
    # What `open` says of a folder is clear.
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return fd
    os.close(fd)
    raise OSError(EINVAL, "expected a regular file", path)
