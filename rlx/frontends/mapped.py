"""A file that is mapped to be read: what the file system said of it, and its pages."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import NamedTuple

from rlx.errors import RlxError
from rlx.files import open_regular


class MappedFile(NamedTuple):
    """
    A model's file, mapped read-only.

    It must not be cut short by others while it is mapped: reading a byte that is gone kills the
    process.
    """

    path: Path
    data: mmap.mmap
    stat: os.stat_result
    """Of the file that was mapped, whatever its path means later."""

    @staticmethod
    def open(path: Path, kind: str = "GGUF") -> MappedFile:
        """Map a file of a kind. Raises RlxError for one that is missing, empty, or not readable."""
        try:
            with open_regular(path) as file:
                info = os.fstat(file.fileno())
                if info.st_size == 0:
                    raise RlxError(
                        f"{path}: at byte 0: expected a {kind} file, found an empty file; download "
                        "it again"
                    )
                return MappedFile(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), info)
        except IsADirectoryError as error:
            raise RlxError(
                f"{path}: expected a {kind} file, found a directory; name the file in it"
            ) from error
        # A ValueError: a NUL in the path, or a file emptied since.
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise RlxError(f"{path}: expected a readable {kind} file: {reason}") from error

    def changed(self) -> bool:
        """Return whether someone has written to the file since it was mapped."""
        try:
            now = self.path.stat()
        except OSError:
            return False
        # A file of its own that took the path leaves the mapped one as it was.
        same = os.path.samestat(now, self.stat)
        return same and (now.st_size, now.st_mtime_ns) != (self.stat.st_size, self.stat.st_mtime_ns)

    def release(self) -> None:
        """Give the mapping's pages back: they leave this process, not the system's page cache."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED)
