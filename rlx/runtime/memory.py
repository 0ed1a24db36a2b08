"""Memory that programs run in: anonymous segments, views and addresses of mappings, RSS."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rlx.errors import RlxError

POISON = 0xFF
"""The byte that fills a poisoned segment: every float format reads it as a NaN."""

HUGE_PAGE = 2 << 20
_NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE, which Python names from 3.13 on."""


class Block:
    """A mapping whose bytes from `start` on are data, at a page-aligned `address`."""

    def __init__(self, mapping: mmap.mmap, start: int, nbytes: int):
        self.nbytes = nbytes
        self.address = address_of(mapping) + start
        self._start = start
        self._map: mmap.mmap | None = mapping

    @property
    def mapped_bytes(self) -> int:
        """Return the bytes of the whole mapping, what stands before and after the data included."""
        return 0 if self._map is None else len(self._map)

    def view(self, offset: int, dtype: DTypeLike, shape: Sequence[int]) -> NDArray[Any]:
        """Return an array over the bytes from `offset`; it keeps the memory alive."""
        if self._map is None:
            raise ValueError("this memory is closed")
        return np.ndarray(tuple(shape), dtype, self._map, self._start + offset)

    def close(self) -> None:
        """Give the memory back as soon as no view of it is left; `address` is invalid then."""
        self._map = None


class Segment(Block):
    """
    Zeroed memory of this process alone: an arena, state, the words of a team of threads.

    After a fork the child has its own copy at the same address. `poison` fills the segment with
    NaNs, to show reads of what was never written. `huge` asks for 2 MB pages, which save address
    translation where all of a segment is used, but make 2 MB resident for each byte touched where
    it is used sparsely; it is a hint, and means nothing for less than 2 MB. Of a `sparse` one a
    small part will be used: it may be larger than what the machine has.
    """

    def __init__(self, nbytes: int, poison: bool = False, huge: bool = False, sparse: bool = False):
        mapping = anonymous(nbytes, sparse)
        if huge and nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            mapping.madvise(mmap.MADV_HUGEPAGE)
        if poison:
            np.frombuffer(mapping, np.uint8).fill(POISON)
        super().__init__(mapping, 0, nbytes)


def anonymous(nbytes: int, sparse: bool = False) -> mmap.mmap:
    """
    Return a private mapping without a file; of one byte where none are asked for.

    For a `sparse` one Linux sets no memory aside.

    Raises RlxError where the system doesn't give that much.
    """
    nbytes = max(nbytes, 1)
    try:
        if sys.platform == "win32":
            return mmap.mmap(-1, nbytes)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        if sparse and sys.platform == "linux":
            flags |= _NO_RESERVE
        return mmap.mmap(-1, nbytes, flags=flags)
    except (OSError, OverflowError, ValueError) as e:
        raise RlxError(f"the system does not give {nbytes} bytes of memory: {e}") from None


def aligned_array(shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """Return a new array, not filled, that starts at a multiple of 64, as numpy's seldom do."""
    size = prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(tuple(shape))


def address_of(mapping: mmap.mmap) -> int:
    """Return the address of a mapping, read-only ones included."""
    return np.frombuffer(mapping, np.uint8).ctypes.data


class Resident(NamedTuple):
    """
    Bytes of a process with a model that are in memory; None where the system doesn't tell.

    Those of mapped files are the page cache's: processes share them, and the system takes them back
    when it needs them.
    """

    rss_anon_bytes: int | None
    """Anonymous memory: arena, state, Python's own."""
    resident_weight_bytes: int | None
    """Of the mapping of the packed weights."""
    resident_file_bytes: int | None
    """Of the mapping of the model's file."""

    @staticmethod
    def of_process(weights: int, file: int) -> Resident:
        """Return those of this process, whose mappings have these addresses."""
        return Resident(rss_anon(), _resident_at(weights), _resident_at(file))


def _resident_at(address: int) -> int | None:
    """Return the resident bytes of the mapping that an address lies in."""
    inside = False
    try:
        with open("/proc/self/smaps") as f:
            for line in f:
                field, _, rest = line.partition(" ")
                if inside and field == "Rss:":
                    return int(rest.split()[0]) * 1024
                if not field.endswith(":"):
                    first, _, last = field.partition("-")
                    inside = int(first, 16) <= address < int(last, 16)
    except OSError:
        pass
    return None


def rss_anon() -> int | None:
    """Return the resident anonymous memory of this process in bytes; None where Linux isn't."""
    try:
        with open("/proc/self/status") as f:
            lines = [line for line in f if line.startswith("RssAnon:")]
    except OSError:
        return None
    return int(lines[0].split()[1]) * 1024 if lines else None
