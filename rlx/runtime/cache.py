"""
The cache folder: compiled objects, and packed weights that later processes map.

Everything is addressed by a key over what it was made from, written beside its place and renamed
into it. An object is checked byte for byte when it is read, packed weights by their header and
size alone. Where the folder cannot be written to, rlx works without it.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import time
import warnings
import weakref
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from rlx.runtime.memory import Block, anonymous

_OBJECT_MAGIC = b"rlxobj01"
_PACKED_MAGIC = b"rlxpck01"
_CHECKSUM = 16

DATA_START = 16384
"""Where a packed file's data begin: a multiple of every page size in use."""

ABANDONED_S = 60.0
"""Age in seconds from which a temporary file whose writer is gone is removed."""

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
        _remove(path)
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
                _remove(temporary)
            _warn_no_cache(e)


class PackedFile(Block):
    """
    Packed weights in a file of the cache folder, mapped: file pages, not anonymous memory.

    `open` maps what some process committed. `create` maps a new file for writing, which `commit`
    gives its name and `abort`, or the end of this process, removes. Address and views hold from
    `create` on, whatever the file's fate. Without a usable cache folder the file is a nameless one
    in the system's temporary folder.
    """

    def __init__(self, mapping: mmap.mmap, start: int, nbytes: int, key: str):
        super().__init__(mapping, start, nbytes)
        self._key = key
        self._temporary: Path | None = None
        self._discard: weakref.finalize[[Path, int], PackedFile] | None = None

    @staticmethod
    def open(key: str, nbytes: int) -> PackedFile | None:
        """
        Map a complete file read-only; None where there is none.

        A damaged one is removed, and so is what writers left that were killed.
        """
        path = _packed(key)
        _remove_abandoned(path.parent)
        header = _header(key, nbytes)
        try:
            with path.open("rb") as f:
                size = os.fstat(f.fileno()).st_size
                if size == DATA_START + nbytes and f.read(len(header)) == header:
                    mapping = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
                    return PackedFile(mapping, DATA_START, nbytes, key)
        except OSError:
            return None
        _remove(path)
        return None

    @staticmethod
    def create(key: str, nbytes: int) -> PackedFile:
        """Map `nbytes` zero bytes for writing; their space on the disk is reserved."""
        temporary = None
        try:
            fd, temporary = _temporary(_packed(key))
            file = PackedFile(_map_new(fd, DATA_START + nbytes), DATA_START, nbytes, key)
        except OSError as e:
            if temporary:
                _remove(temporary)
            _warn_no_cache(e)
            return PackedFile(_map_nameless(nbytes), 0, nbytes, key)
        file._temporary = temporary
        file._discard = weakref.finalize(file, _remove_own, temporary, os.getpid())
        return file

    def commit(self) -> None:
        """
        Make the data, all written now, available to later processes.

        They are on the disk before the header that calls them complete, so that a crash of the
        machine leaves no file that is trusted and wrong (65 ms for 98 MB on a fast disk).
        """
        if self._map is None or self._temporary is None or self._discard is None:
            return
        try:
            self._map.flush()
            header = _header(self._key, self.nbytes)
            self._map[: len(header)] = header
            os.replace(self._temporary, _packed(self._key))
        except OSError as e:
            self._discard()
            _warn_no_cache(e)
        self._discard.detach()
        self._temporary = None

    def abort(self) -> None:
        """Remove the file, which was not committed, and close it."""
        if self._discard:
            self._discard()
        self._temporary = None
        self.close()


def _packed(key: str) -> Path:
    return cache_dir() / "packed" / key


def _header(key: str, nbytes: int) -> bytes:
    body = _PACKED_MAGIC + nbytes.to_bytes(8, "little") + key.encode()
    return body + _checksum(body)


def _checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=_CHECKSUM).digest()


def _temporary(path: Path) -> tuple[int, Path]:
    """
    Open a new file for what will be `path`; return its descriptor and its own path.

    A lock tells other processes that its writer lives.
    """
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_abandoned(folder)
    prefix = f"{path.name}.{os.getpid()}."
    fd, name = tempfile.mkstemp(suffix=".tmp", prefix=prefix, dir=folder)
    with suppress(OSError):
        _lock(fd)
    return fd, Path(name)


def _remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of writers that are gone."""
    for path in folder.glob("*.tmp"):
        if _abandoned(path):
            _remove(path)


def _abandoned(path: Path) -> bool:
    try:
        if time.time() - path.stat().st_mtime < ABANDONED_S:
            return False
        with path.open("rb") as f:
            _lock(f.fileno())
    except OSError:
        return False
    return True


def _lock(fd: int) -> None:
    """Lock a file until it is closed; raise OSError where another has it locked."""
    if sys.platform == "win32":
        # Nothing to do: a file that a process has open can't be removed there.
        return
    import fcntl

    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _map_new(fd: int, nbytes: int) -> mmap.mmap:
    """Return a writable mapping of a new file, with its space reserved; close the descriptor."""
    try:
        if sys.platform == "linux":
            os.posix_fallocate(fd, 0, nbytes)
        else:
            os.ftruncate(fd, nbytes)
        return mmap.mmap(fd, nbytes)
    finally:
        os.close(fd)


def _map_nameless(nbytes: int) -> mmap.mmap:
    try:
        with tempfile.TemporaryFile() as f:
            return _map_new(os.dup(f.fileno()), max(nbytes, 1))
    except OSError as e:
        warn_once("temporary", f"packed weights take anonymous memory: no temporary file ({e})")
        return anonymous(nbytes)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _remove_own(path: Path, pid: int) -> None:
    """Remove a temporary file, unless this is a forked child of its writer."""
    if os.getpid() == pid:
        _remove(path)


def _warn_no_cache(error: OSError) -> None:
    advice = "set RLX_CACHE_DIR to a folder that can be written to"
    warn_once("cache", f"rlx stores nothing in its cache folder ({error}): {advice}")
