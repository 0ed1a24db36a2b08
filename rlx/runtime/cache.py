"""
Compiled objects in the cache folder; `packed.py` has the packed weights.

Everything is addressed by a key over what it was made from, written beside its place and renamed
into it, and checked byte for byte when it is read: so nothing need be on the disk before it is
renamed. Where the folder cannot be written to, rlx works without it.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from rlx.files import open_regular
from rlx.runtime.cache_files import (
    TEMPORARY,
    cache_dir,
    lock,
    make_folder,
    remove,
    warn_no_cache,
)
from rlx.runtime.room import make_room, used_now

MAGIC = b"rlxobj02"
_CHECKSUM = 16
_DATA = len(MAGIC) + _CHECKSUM
_MOST_LABEL = 255

ABANDONED_S = 60.0
"""Age in seconds from which an object's temporary file is removed, if its writer is gone."""

_elsewhere: list[Path] = []


def read_also(folder: Path) -> None:
    """Let objects also be read from another folder, which nothing is written to."""
    if folder not in _elsewhere:
        _elsewhere.append(folder)


class Stored(NamedTuple):
    """What an object's file holds: what the object is, for people, and its bytes."""

    label: str
    data: bytes

    @staticmethod
    def read(path: Path) -> Stored | None:
        """
        Return what the file of an object holds; None where it is damaged, or of another object.

        Raises OSError where it can't be read.
        """
        with open_regular(path) as f:
            stored = f.read()
        rest = stored[_DATA:]
        if not rest or stored[:_DATA] != MAGIC + _checksum(path.name, rest):
            return None
        return Stored(rest[1 : 1 + rest[0]].decode(errors="replace"), rest[1 + rest[0] :])

    def bytes_of(self, key: str) -> bytes:
        """Return what the file of a key holds."""
        label = self.label.encode()[:_MOST_LABEL]
        rest = bytes([len(label)]) + label + self.data
        return MAGIC + _checksum(key, rest) + rest


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

    def has(self, key: str) -> bool:
        """Return whether there is a blob, perhaps a damaged one."""
        return any(os.path.exists(folder / key) for folder in (self._folder, *_elsewhere))

    def get(self, key: str) -> bytes | None:
        """Return the blob, or None where there is none; a damaged one is removed."""
        for folder in (self._folder, *_elsewhere):
            try:
                stored = Stored.read(folder / key)
            except OSError:
                continue
            if stored is not None:
                if folder is self._folder:
                    used_now(folder / key)
                return stored.data
            if folder is self._folder:
                remove(folder / key)
        return None

    def put(self, key: str, data: bytes, label: str = "") -> None:
        """Store a blob with what it is for people; where that fails, warn once and go on."""
        temporary = None
        content = Stored(label, data).bytes_of(key)
        try:
            fd, temporary = _temporary(self._folder / key)
            with open(fd, "wb") as f:
                f.write(content)
            os.replace(temporary, self._folder / key)
        except OSError as e:
            if temporary:
                remove(temporary)
            warn_no_cache(e)
        else:
            make_room(len(content))


def _checksum(key: str, data: bytes) -> bytes:
    return blake2b(data, digest_size=_CHECKSUM, key=key.encode()[:64]).digest()


def _temporary(path: Path) -> tuple[int, Path]:
    """
    Open a new file for what will be `path`; return its descriptor and its own path.

    A lock tells other processes that its writer lives.
    """
    folder = make_folder(path, ABANDONED_S)
    prefix = f"{path.name}.{os.getpid()}."
    fd, name = tempfile.mkstemp(suffix=TEMPORARY, prefix=prefix, dir=folder)
    with suppress(OSError):
        lock(fd)
    return fd, Path(name)
