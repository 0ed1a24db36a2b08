"""A compiled program as bytes for the object cache, and what its key must cover of rlx itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from rlx.lowering.manifest import Manifest
from rlx.runtime.cache import ObjectCache
from rlx.runtime.compilations import check_allowed
from rlx.runtime.room import check_settings
from rlx.runtime.stages import shown, stage


def dump_folder() -> Path | None:
    """Return where RLX_DUMP asks for what each stage of a compilation makes; see `rlx.dump`."""
    folder = os.environ.get("RLX_DUMP")
    return Path(folder) if folder else None


def source_digest(folder: Path = Path(__file__).parent.parent) -> str:
    """Return a digest of rlx's own code: what it generates may change with any of its files."""
    # Not `Path.rglob`, which takes longer than all else to find a program in the cache.
    return blake2b("\n".join(sorted(_sources(folder))).encode(), digest_size=16).hexdigest()


def _sources(folder: str | Path) -> Iterator[str]:
    """Return each source below a folder with its size and its time."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                stat = entry.stat()
                yield f"{entry.name} {stat.st_size} {stat.st_mtime_ns}"
            elif entry.name != "__pycache__" and entry.is_dir(follow_symlinks=False):
                yield from _sources(entry.path)


def from_cache(key: str, what: str, make: Callable[[], Compiled]) -> tuple[Compiled, bool]:
    """
    Return a program, and whether it was in the object cache: else it is made, and kept there.

    Raises RlxError inside of `rlx.no_compile()` where it isn't there.
    """
    check_settings()
    cache = ObjectCache()
    if dump_folder() is None:
        with stage(f"looking for {what}"):
            found = cache.get(key)
        if found is not None:
            return Compiled.from_bytes(found), True
    check_allowed(what)
    with shown(f"compiling {what}"):
        compiled = make()
        with stage("keeping it"):
            cache.put(key, compiled.to_bytes(), what)
    return compiled, False


class Compiled(NamedTuple):
    """A compiled program."""

    manifest: Manifest
    code: bytes

    def to_bytes(self) -> bytes:
        """Return both in one, for the cache: the manifest's length, itself, the code."""
        text = self.manifest.to_json().encode()
        return len(text).to_bytes(8, "little") + text + self.code

    @staticmethod
    def from_bytes(data: bytes) -> Compiled:
        end = 8 + int.from_bytes(data[:8], "little")
        return Compiled(Manifest.from_json(data[8:end].decode()), data[end:])
