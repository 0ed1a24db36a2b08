"""The files of the cache folder: where it is, locks on them, and what is said of trouble."""

from __future__ import annotations

import os
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

from rlx.files import open_regular

TEMPORARY = ".tmp"
"""What the names of files that are being written end in."""

_warned: set[str] = set()


def warn_once(subject: str, message: str) -> None:
    """Warn of a subject the first time that it comes up in this process."""
    if subject not in _warned:
        _warned.add(subject)
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def cache_dir() -> Path:
    """Return RLX_CACHE_DIR, or the place for rlx in the platform's cache folder."""
    if chosen := os.environ.get("RLX_CACHE_DIR"):
        return Path(chosen)
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        # No home folder is known: a path under a file stands for "no cache".
        home = os.devnull
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path(home, "AppData", "Local"), "rlx")
    if sys.platform == "darwin":
        return Path(home, "Library", "Caches", "rlx")
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    return Path(xdg if os.path.isabs(xdg) else Path(home, ".cache"), "rlx")


def make_folder(path: Path, abandoned_s: float) -> Path:
    """
    Make the folder of `path`, free of what killed writers left in it, and return it.

    A temporary file younger than `abandoned_s` stays: its writer may not have locked it yet.
    """
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in folder.glob(f"*{TEMPORARY}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime < abandoned_s:
                continue
            with open_regular(left) as f:
                lock(f.fileno())
                if is_at(f.fileno(), left):
                    left.unlink()
    return folder


def lock(fd: int) -> None:
    """Lock a file until it is closed; raise BlockingIOError where another has it locked."""
    if sys.platform == "win32":
        # Nothing to do: a file that a process has open can't be removed there.
        return
    import fcntl

    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def share(fd: int) -> None:
    """
    Mark an open file as used, along with others, until it and its mappings are closed.

    A lock of this process on it becomes that. Where the system has no locks, nothing happens.
    """
    if sys.platform != "win32":
        import fcntl

        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_free(fd: int) -> bool:
    """Return whether no other process uses or writes an open file; it is locked then."""
    try:
        lock(fd)
    except OSError:
        return False
    return True


def is_at(fd: int, path: Path) -> bool:
    """Return whether an open file still has its path: it may have been renamed or removed."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def warn_no_cache(error: OSError) -> None:
    advice = "set RLX_CACHE_DIR to a folder that can be written to"
    warn_once("cache", f"rlx stores nothing in its cache folder ({error}): {advice}")
