"""
The cache folder, and what it holds of compiled objects; `packed.py` has the packed weights.

Everything is addressed by a key over what it was made from, written beside its place and renamed
into it, and checked byte for byte when it is read: so nothing need be on the disk before it is
renamed. Where the folder cannot be written to, rlx works without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

_OBJECT_MAGIC = b"rlxobj01"
_CHECKSUM = 16

ABANDONED_S = 60.0
"""Age in seconds from which an object's temporary file is removed, if its writer is gone."""

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


class ObjectCache:
    """Blobs of bytes by key, in `folder`: by default `objects` in the cache folder."""

    def __init__(self, folder: Path | None = None):
        self._folder = folder or cache_dir() / "objects"

    @staticmethod
    def key(*parts: bytes | str | int) -> str:
        """Return 40 hexadecimal digits that differ where a part differs in type or value."""
        digest = blake2b(digest_size=20)
        for part in parts:
            data = part if isinstance(part, bytes) else str(part).encode()
            digest.update(f"{type(part).__name__} {len(data)} ".encode())
            digest.update(data)
        return digest.hexdigest()

    def get(self, key: str) -> bytes | None:
        """Return the blob, or None where there is none; a damaged one is removed."""
        path = self._folder / key
        try:
            stored = path.read_bytes()
        except OSError:
            return None
        start = len(_OBJECT_MAGIC) + _CHECKSUM
        if stored[:start] == _OBJECT_MAGIC + _checksum(stored[start:]):
            return stored[start:]
        remove(path)
        return None

    def put(self, key: str, data: bytes) -> None:
        """Store a blob; where that fails, warn once and go on without."""
        temporary = None
        try:
            fd, temporary = _temporary(self._folder / key)
            with open(fd, "wb") as f:
                f.write(_OBJECT_MAGIC + _checksum(data) + data)
            os.replace(temporary, self._folder / key)
        except OSError as e:
            if temporary:
                remove(temporary)
            warn_no_cache(e)


def _checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=_CHECKSUM).digest()


def _temporary(path: Path) -> tuple[int, Path]:
    """
    Open a new file for what will be `path`; return its descriptor and its own path.

    A lock tells other processes that its writer lives.
    """
    folder = make_folder(path, ABANDONED_S)
    prefix = f"{path.name}.{os.getpid()}."
    fd, name = tempfile.mkstemp(suffix=".tmp", prefix=prefix, dir=folder)
    with suppress(OSError):
        lock(fd)
    return fd, Path(name)


def make_folder(path: Path, abandoned_s: float) -> Path:
    """
    Make the folder of `path`, free of what killed writers left in it, and return it.

    A temporary file younger than `abandoned_s` stays: its writer may not have locked it yet.
    """
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in folder.glob("*.tmp"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime < abandoned_s:
                continue
            with left.open("rb") as f:
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
