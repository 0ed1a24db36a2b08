"""
Packed weights in the cache folder: written by one process, mapped by all that follow.

A file is its head and its data. The head is the magic, the size of the data, their key, what they
are for people, and a checksum of each chunk of them. A process that maps a file checks all of it,
at the speed of reading it, and packs again what anything has damaged: so no write to the disk need
be waited for.

Who packs holds a lock on the file that it writes, which has a name of its own until it is complete.
Others wait for that. The lock of a killed process is free, and what it left is written over. Who
has a file mapped shares a lock on it, so that it is not removed to make room.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, TypeAlias

from rlx.files import open_regular
from rlx.lowering.checksum import CHUNK
from rlx.runtime.cache_files import (
    TEMPORARY,
    cache_dir,
    is_at,
    lock,
    make_folder,
    remove,
    share,
    warn_no_cache,
    warn_once,
)
from rlx.runtime.memory import Block, address_of, anonymous
from rlx.runtime.room import files, make_room, remove_unused, used_now

MAGIC = b"rlxpck03"
PAGE = 16384
"""What head and data are padded to: data begin at a page, where pages have at most this size."""
WAIT_S = 60.0
"""How long to wait for another process that packs: it may have been stopped."""
LAYOUT = "-"
"""What stands in a name between the key and the layout that the weights are packed in."""
OLD_S = 86400.0
"""How long weights in another layout, perhaps that of another version of rlx, may be unused."""
_POLL_S = 0.01
_LABEL, _CHECK = 120, 8
"""Bytes of what a file is for people, and of its own checksum."""

Checksums: TypeAlias = Callable[[int, int], bytes]
"""Gives 8 bytes for each `CHUNK` of so many bytes, a multiple of `PAGE`, at an address."""
Fill: TypeAlias = Callable[[Block], None]
"""Writes all the data."""


def stored(key: str, nbytes: int, checksums: Checksums, fill: Fill, label: str = "") -> Block:
    """
    Return the data of a key: mapped from the cache folder, or written now and kept there.

    A key with a `LAYOUT` names the file's layout; files of others that are long unused are removed
    when one is written. Where the folder can't be used the data are in a nameless file of the
    system's temporary folder.
    """
    file = PackedFile(cache_dir() / "packed" / key, key, nbytes, checksums, label, damage=[])
    found = file.open()
    trouble = None
    try:
        found = found or file.wait_or_create()
    except OSError as e:
        trouble = e
    if file.damage:
        where = f", in memory: nothing can be stored there ({trouble})" if trouble else ""
        warn_once(f"damaged {key}", f"{file.path} is damaged: its weights are packed again{where}")
    elif trouble is not None:
        warn_no_cache(trouble)
    if isinstance(found, Block):
        return found
    if found is None:
        block = Block(_map_nameless(nbytes), 0, nbytes)
        fill(block)
        return block
    _prune(key)
    block = file.fill(found, fill)
    make_room(block.mapped_bytes)
    return block


def write(path: Path, key: str, nbytes: int, checksums: Checksums, fill: Fill, label: str) -> None:
    """
    Write a packed file to a path of its own, atomically.

    Raises OSError where there is no space, or no right to write.
    """
    file = PackedFile(path, key, nbytes, checksums, label)
    fd = os.open(file.temporary, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    file.fill(file.reserved(fd), fill, strict=True)


def _prune(key: str) -> None:
    """Remove packed weights whose layout is another one, and which nobody has used for long."""
    _, found, layout = key.partition(LAYOUT)
    if not found:
        return
    for file in files():
        other = file.kind == "packed" and file.path.name.partition(LAYOUT)[2] != layout
        if other and time.time() - file.used > OLD_S:
            remove_unused(file)


class Claim(NamedTuple):
    """A mapping of a new file, and its descriptor, which holds the lock."""

    fd: int
    mapping: mmap.mmap


class PackedFile(NamedTuple):
    """A packed file: where it is, or is to be, and what must be in it."""

    path: Path
    key: str
    nbytes: int
    checksums: Checksums
    label: str = ""
    damage: list[Path] | None = None
    """Takes the paths of damaged files, which are removed then."""

    @property
    def temporary(self) -> Path:
        """The name that it has while it is written."""
        return self.path.with_name(f"{self.path.name}{TEMPORARY}")

    @property
    def data_bytes(self) -> int:
        return _padded(self.nbytes)

    @property
    def start(self) -> int:
        """Where the data begin."""
        chunks = -(-self.data_bytes // CHUNK)
        return _padded(len(self.facts) + _CHECK + _LABEL + 8 * chunks)

    @property
    def facts(self) -> bytes:
        return MAGIC + self.nbytes.to_bytes(8, "little") + self.key.encode()

    def head(self, mapping: mmap.mmap, label: bytes) -> bytes:
        """Return the head that a mapping of a complete file has."""
        sums = self.checksums(address_of(mapping) + self.start, self.data_bytes)
        check = blake2b(label, digest_size=_CHECK).digest()
        return (self.facts + check + label + sums).ljust(self.start, b"\0")

    def open(self) -> Block | None:
        """Map the complete file read-only; None where there is none. A damaged one is removed."""
        try:
            found = self.mapped()
        except OSError:
            return None
        if found is not None:
            used_now(self.path)
        elif self.damage is not None:
            self.damage.append(self.path)
            remove(self.path)
        return found

    def mapped(self) -> Block | None:
        """Map the file; None where it is damaged. Raises OSError where there is none."""
        with open_regular(self.path) as f:
            share(f.fileno())
            if os.fstat(f.fileno()).st_size != self.start + self.data_bytes:
                return None
            # The mapping has the descriptor too, and the lock with it.
            mapping = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        at = len(self.facts) + _CHECK
        same = mapping[: self.start] == self.head(mapping, mapping[at : at + _LABEL])
        return Block(mapping, self.start, self.nbytes) if same else None

    def wait_or_create(self) -> Block | Claim | None:
        """
        Return the complete file of another process, or a new one, which is locked.

        None where another process works on it for too long. Raises OSError for a folder that can't
        be written to or is full.
        """
        make_folder(self.path, abandoned_s=0)
        give_up = time.monotonic() + WAIT_S
        while time.monotonic() < give_up:
            claim = self._claim()
            # It may have been completed just before the claim.
            found = self.open()
            if found is None and claim is None:
                time.sleep(_POLL_S)
                continue
            if claim is None:
                return found
            if found is None:
                return self.reserved(claim)
            remove(self.temporary)
            os.close(claim)
            return found
        warn_once("wait", f"another process packs {self.path} for long: here they stay in memory")
        return None

    def _claim(self) -> int | None:
        """Open and lock the file to write; None where another process has it."""
        fd = os.open(self.temporary, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        try:
            lock(fd)
        except BlockingIOError:
            os.close(fd)
            return None
        if is_at(fd, self.temporary):
            return fd
        os.close(fd)
        return None

    def reserved(self, fd: int) -> Claim:
        """Return a claimed file, empty, with its space on the disk reserved."""
        try:
            return Claim(fd, _map_new(fd, self.start + self.data_bytes))
        except BaseException:
            remove(self.temporary)
            os.close(fd)
            raise

    def fill(self, claim: Claim, fill: Fill, strict: bool = False) -> Block:
        """Write the file, and give it its name; where that fails, raise OSError if `strict`."""
        block = Block(claim.mapping, self.start, self.nbytes)
        try:
            fill(block)
            label = self.label.encode()[:_LABEL].ljust(_LABEL, b"\0")
            claim.mapping[: self.start] = self.head(claim.mapping, label)
            os.replace(self.temporary, self.path)
            share(claim.fd)
        except OSError as e:
            remove(self.temporary)
            if strict:
                raise
            warn_no_cache(e)
        except BaseException:
            remove(self.temporary)
            raise
        finally:
            os.close(claim.fd)
        return block


def described(path: Path) -> tuple[int, str]:
    """
    Return what the head of a file in the cache folder says: bytes of data, and what they are.

    Raises OSError for a file that can't be read, and ValueError for one of another kind.
    """
    key = path.name.encode()
    with path.open("rb") as f:
        head = f.read(len(MAGIC) + 8 + len(key) + _CHECK + _LABEL)
    if not head.startswith(MAGIC) or head[16 : 16 + len(key)] != key:
        raise ValueError(f"{path}: expected packed weights of this version of rlx")
    label = head[-_LABEL:].rstrip(b"\0").decode(errors="replace")
    return int.from_bytes(head[8:16], "little"), label


def _padded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // PAGE) * PAGE


def _map_new(fd: int, nbytes: int) -> mmap.mmap:
    """Map so many zeros of a file for writing, their space reserved."""
    os.ftruncate(fd, 0)
    if sys.platform == "linux":
        os.posix_fallocate(fd, 0, nbytes)
    else:
        os.ftruncate(fd, nbytes)
    return mmap.mmap(fd, nbytes)


def _map_nameless(nbytes: int) -> mmap.mmap:
    try:
        with tempfile.TemporaryFile() as f:
            return _map_new(f.fileno(), max(nbytes, 1))
    except OSError as e:
        warn_once("temporary", f"packed weights take anonymous memory: no temporary file ({e})")
        return anonymous(nbytes)
