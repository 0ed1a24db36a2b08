"""
The cache folder's size: what was used least recently goes when there is more than the limit.

A file's time of change is when it was last used: who reads it sets that. What was used in the last
minute stays, and what a process has mapped, which holds a lock on it: so a file that was just
written is there when it is wanted. Two processes that make room at once remove the same files.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from errno import ENOTDIR
from pathlib import Path
from typing import NamedTuple

from rlx.runtime.cache_files import TEMPORARY, cache_dir, is_free, warn_no_cache, warn_once

DEFAULT_LIMIT = 16 << 30
KEPT_S = 60.0
"""What was used so many seconds ago or less stays."""
FOLDERS = ("objects", "packed")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SHARE = 8
"""A process looks again, as others write too, when it has written this part of the limit."""

_slack: dict[Path, int] = {}
"""How many bytes this process may write into a cache folder before it looks again."""


class File(NamedTuple):
    """A complete file of the cache folder."""

    path: Path
    nbytes: int
    used: float
    """When it was used last, in seconds since the epoch."""

    @property
    def kind(self) -> str:
        """Return the name of its folder."""
        return self.path.parent.name


def limit() -> int:
    """Return how many bytes the cache folder may hold: RLX_CACHE_LIMIT, or 16 GB."""
    text = os.environ.get("RLX_CACHE_LIMIT", "").strip()
    if not text:
        return DEFAULT_LIMIT
    pattern = r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?"
    if found := re.fullmatch(pattern, text, re.IGNORECASE | re.ASCII):
        nbytes = float(found[1]) * _UNITS[found[2].upper()]
        if nbytes < 2**63:
            return int(nbytes)
    warn_once(
        "limit",
        f"RLX_CACHE_LIMIT: expected a size such as 500M or 20G, got {text!r:.80}: "
        f"the cache folder keeps up to {DEFAULT_LIMIT >> 30}G",
    )
    return DEFAULT_LIMIT


def check_settings() -> None:
    """Warn, once, of what RLX_CACHE_LIMIT and RLX_CACHE_DIR can't mean."""
    limit()
    folder = cache_dir()
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), str(folder))
    except FileNotFoundError:
        # Whoever writes the first file makes it.
        pass
    except OSError as e:
        warn_no_cache(e)


def files() -> Iterator[File]:
    """Return the complete files of the cache folder, of each of its parts in no order."""
    for name in FOLDERS:
        with suppress(OSError), os.scandir(cache_dir() / name) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_file(follow_symlinks=False) and TEMPORARY not in entry.name:
                        found = entry.stat(follow_symlinks=False)
                        yield File(Path(entry.path), found.st_size, found.st_mtime)


def used_now(path: Path) -> None:
    """Note that a file of the cache is used, where it may be noted."""
    with suppress(OSError):
        os.utime(path)


def make_room(written: int) -> None:
    """Note that so many bytes were written; remove what was used least recently if need be."""
    folder = cache_dir()
    slack = _slack.get(folder, 0) - written
    if slack < 0:
        most = limit()
        total = _evict(most)
        slack = min(most - total, most // _SHARE)
    _slack[folder] = max(slack, 0)


def _evict(most: int) -> int:
    """Remove files, the least recently used first, from `most` bytes on; return what is left."""
    found = sorted(files(), key=lambda f: f.used)
    total = sum(f.nbytes for f in found)
    if total <= most:
        return total
    for file in found:
        # Some more than must be: the next file may well be as large.
        if total <= most - most // _SHARE or file.used > time.time() - KEPT_S:
            break
        if remove_unused(file):
            total -= file.nbytes
    return total


def remove_unused(file: File) -> bool:
    """Remove a file unless it was used since it was looked at, or a process has it mapped."""
    try:
        with file.path.open("rb") as f:
            if os.fstat(f.fileno()).st_mtime != file.used or not is_free(f.fileno()):
                return False
            file.path.unlink()
    except FileNotFoundError:
        # Another process has removed it.
        return True
    except OSError:
        return False
    return True
