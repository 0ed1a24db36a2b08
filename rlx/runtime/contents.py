"""What a file holds, by a digest that is remembered for as long as the file stays as it is."""

from __future__ import annotations

import os
import time
from hashlib import blake2b
from mmap import mmap

from rlx.lowering.target import usable_cores
from rlx.runtime.cache import ObjectCache

_PART = 8 << 20
_SETTLED_NS = 2_000_000_000
"""How old a change must be: a later one within the clock's tick would have the same time."""


def contents_digest(data: mmap, stat: os.stat_result) -> str:
    """
    Return a digest of a mapped file's contents, which `stat` described when it was mapped.

    It is kept in the cache folder under the file's number, size and times. Each write to a file
    changes the last of these, the time of its status, which no program can set.
    """
    times = stat.st_mtime_ns, stat.st_ctime_ns
    facts = (stat.st_dev, stat.st_ino, stat.st_size, *times)
    cache, key = ObjectCache(), ObjectCache.key("contents", _PART, *facts)
    found = cache.get(key)
    if found is not None:
        return found.decode()
    digest = _digest(data)
    if time.time_ns() - max(times) > _SETTLED_NS:
        cache.put(key, digest.encode(), "digest of a model's file")
    return digest


def _digest(data: mmap) -> str:
    # Imported here: only a file's first load needs it.
    from concurrent.futures import ThreadPoolExecutor

    view = memoryview(data)

    def part(at: int) -> bytes:
        return blake2b(view[at : at + _PART]).digest()

    with ThreadPoolExecutor(usable_cores()) as threads:
        parts = threads.map(part, range(0, len(view), _PART))
        whole = blake2b(b"".join(parts), digest_size=16)
    whole.update(str(len(view)).encode())
    return whole.hexdigest()
