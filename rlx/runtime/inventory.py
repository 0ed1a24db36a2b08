"""What the cache folder holds, for `rlx cache`: lists it, empties it, and checks every file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rlx.lowering import abi, checksum
from rlx.lowering.emitter import Module
from rlx.lowering.target import Target
from rlx.runtime.cache import MAGIC as OBJECT
from rlx.runtime.cache import ObjectCache, Stored
from rlx.runtime.cache_files import remove
from rlx.runtime.jit import Engine, compile_object
from rlx.runtime.once import once
from rlx.runtime.packed import MAGIC as PACKED
from rlx.runtime.packed import PackedFile, described
from rlx.runtime.room import File, files, remove_unused
from rlx.runtime.threads import Team

OTHER, DAMAGED = "of another version of rlx", "damaged"
"""What is said of files whose heads say nothing."""
_KIND = 6
"""Bytes at the start of a file that all versions have; their number follows."""


class Item(NamedTuple):
    """A file of the cache, and what it is for people."""

    file: File
    label: str


def items() -> list[Item]:
    """Return all files of the cache, the most recently used first."""
    found = sorted(files(), key=lambda f: -f.used)
    return [Item(file, _label(file)) for file in found]


def _label(file: File) -> str:
    if _is_older(file):
        return OTHER
    try:
        if file.kind == "packed":
            return described(file.path)[1]
        stored = Stored.read(file.path)
        return DAMAGED if stored is None else stored.label
    except (OSError, ValueError):
        return DAMAGED


def _is_older(file: File) -> bool:
    """Return whether a file is of a version of rlx that this one has nothing to do with."""
    magic = PACKED if file.kind == "packed" else OBJECT
    try:
        with file.path.open("rb") as f:
            head = f.read(len(magic))
    except OSError:
        return False
    return head[:_KIND] == magic[:_KIND] and head[_KIND:].isdigit() and head != magic


def clear() -> tuple[list[File], list[File]]:
    """
    Remove all files of the cache; return those that are gone, and those that are not.

    What a process has mapped stays, and what can't be removed.
    """
    gone: list[File] = []
    left: list[File] = []
    for file in files():
        (gone if remove_unused(file) else left).append(file)
    return gone, left


def damaged() -> Iterator[File]:
    """Check every file of the cache; remove those that are damaged, and return them."""
    for file in files():
        if _is_older(file):
            continue
        try:
            good = _is_packed(file) if file.kind == "packed" else Stored.read(file.path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            good = False
        if not good:
            remove(file.path)
            yield file


def _is_packed(file: File) -> bool:
    """Return whether a file holds the packed weights that it is named after."""
    nbytes, _ = described(file.path)
    return PackedFile(file.path, file.path.name, nbytes, _checksums).mapped() is not None


def _checksums(address: int, nbytes: int) -> bytes:
    """Return what a program with weights gives as the checksums of memory."""
    team, engine = _checker()
    sums = np.zeros(-(-nbytes // checksum.CHUNK), np.int64)
    words = np.array([address, nbytes // checksum.ROUND, sums.ctypes.data], np.int64)
    team.run(engine.address(abi.CHECKSUMS), words.ctypes.data)
    return sums.tobytes()


@once
def _checker() -> tuple[Team, Engine]:
    import llvmlite

    module = Module(Target.host())
    checksum.emit_checksums(module, abi.CHECKSUMS)
    objects, what = ObjectCache(), "checksums of packed weights"
    key = objects.key("checksums", llvmlite.__version__, module.text)
    data = objects.get(key)
    if data is None:
        data = compile_object(module.text, module.target, what)
        objects.put(key, data, what)
    return Team(None), Engine(data)
