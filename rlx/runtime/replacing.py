"""Files that are written whole: until then, what was there stays."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from rlx.errors import RlxError


@contextmanager
def replacing(path: str) -> Generator[BinaryIO]:
    """
    Open a file to write, which takes its name once the `with` has ended without an error.

    Raises RlxError where it can't be written, and leaves what was there.
    """
    if not path:
        raise RlxError("cannot write a file: expected its path, got an empty one")
    target = os.path.realpath(path) if "\0" not in path else path
    # A device or a pipe has nothing to replace.
    in_place = os.path.exists(target) and not os.path.isfile(target)
    written = target if in_place else f"{target}.{os.getpid()}.tmp"
    with errors_of(path):
        file = open(written, "wb" if in_place else "xb")
    try:
        yield file
        with errors_of(path):
            file.close()
            if not in_place:
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
        reason = (e.strerror if isinstance(e, OSError) else None) or str(e)
        raise RlxError(f"cannot write {path}: {reason}") from e
