"""
Packed weights in the cache folder: written by one process, mapped by all that follow.

A file is its head and its data. The head is the magic, the size of the data, their key, and a
checksum of each chunk of them. A process that maps a file checks all of it, at the speed of reading
it, and packs again what anything has damaged: so no write to the disk need be waited for.

Who packs holds a lock on the file that it writes, which has a name of its own until it is complete.
Others wait for that. The lock of a killed process is free, and what it left is written over.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from rlx.lowering.checksum import CHUNK
from rlx.runtime.cache import (
    cache_dir,
    is_at,
    lock,
    make_folder,
    remove,
    warn_no_cache,
    warn_once,
)
from rlx.runtime.memory import Block, address_of, anonymous

MAGIC = b"rlxpck02"
PAGE = 16384
"""What head and data are padded to: data begin at a page, where pages have at most this size."""
WAIT_S = 60.0
"""How long to wait for another process that packs: it may have been stopped."""
_POLL_S = 0.01

Checksums: TypeAlias = Callable[[int, int], bytes]
"""Gives 8 bytes for each `CHUNK` of so many bytes, a multiple of `PAGE`, at an address."""
Fill: TypeAlias = Callable[[Block], None]
"""Writes all the data."""


def stored(key: str, nbytes: int, checksums: Checksums, fill: Fill) -> Block:
    """
    Return the data of a key: mapped from the cache folder, or written now and kept there.

    Where the folder can't be used they are in a nameless file of the system's temporary folder.
    """
    file = _File(cache_dir() / "packed" / key, nbytes, checksums)
    found = file.open()
    try:
        found = found or file.wait_or_create()
    except OSError as e:
        warn_no_cache(e)
    if isinstance(found, Block):
        return found
    if found is None:
        block = Block(_map_nameless(nbytes), 0, nbytes)
        fill(block)
        return block
    return file.fill(found, fill)


class _File(NamedTuple):
    """A packed file: where it is, or is to be, and what must be in it."""

    path: Path
    nbytes: int
    checksums: Checksums

    @property
    def temporary(self) -> Path:
        """The name that it has while it is written."""
        return self.path.with_name(f"{self.path.name}.tmp")

    @property
    def data_bytes(self) -> int:
        return _padded(self.nbytes)

    @property
    def start(self) -> int:
        """Where the data begin."""
        chunks = -(-self.data_bytes // CHUNK)
        return _padded(len(MAGIC) + 8 + len(self.path.name) + 8 * chunks)

    def head(self, mapping: mmap.mmap) -> bytes:
        """Return the head that a mapping of a complete file has."""
        sums = self.checksums(address_of(mapping) + self.start, self.data_bytes)
        facts = MAGIC + self.nbytes.to_bytes(8, "little") + self.path.name.encode()
        return (facts + sums).ljust(self.start, b"\0")

    def open(self) -> Block | None:
        """Map the complete file read-only; None where there is none. A damaged one is removed."""
        try:
            with self.path.open("rb") as f:
                complete = os.fstat(f.fileno()).st_size == self.start + self.data_bytes
                mapping = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) if complete else None
        except OSError:
            return None
        if mapping is not None and mapping[: self.start] == self.head(mapping):
            return Block(mapping, self.start, self.nbytes)
        remove(self.path)
        warn_once(f"damaged {self.path}", f"{self.path} is damaged: its weights are packed again")
        return None

    def wait_or_create(self) -> Block | mmap.mmap | None:
        """
        Return the complete file of another process, or a mapping of a new one, which is locked.

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
                return self._reserved(claim)
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

    def _reserved(self, fd: int) -> mmap.mmap:
        """Return a mapping of a claimed file, empty, with its space on the disk reserved."""
        try:
            return _map_new(fd, self.start + self.data_bytes)
        except OSError:
            remove(self.temporary)
            raise

    def fill(self, mapping: mmap.mmap, fill: Fill) -> Block:
        """Write the file, and give it its name."""
        block = Block(mapping, self.start, self.nbytes)
        try:
            fill(block)
            mapping[: self.start] = self.head(mapping)
        except BaseException:
            remove(self.temporary)
            raise
        try:
            os.replace(self.temporary, self.path)
        except OSError as e:
            remove(self.temporary)
            warn_no_cache(e)
        return block


def _padded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // PAGE) * PAGE


def _map_new(fd: int, nbytes: int) -> mmap.mmap:
    """Map so many zeros of a file for writing, their space reserved; close the descriptor."""
    try:
        os.ftruncate(fd, 0)
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
