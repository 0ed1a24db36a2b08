"""`rlx cache`: what the cache folder holds, as a table or as JSON; empties and checks it."""

from __future__ import annotations

import json
import time
from contextlib import suppress

from rlx.errors import RlxError
from rlx.runtime import inventory
from rlx.runtime.cache_files import cache_dir
from rlx.runtime.room import File, check_settings, limit
from rlx.wording import several

ACTIONS = ("list", "clear", "verify")
_MB = 1e6


def run(action: str, as_json: bool) -> None:
    """Do an action and print what came of it. Raises RlxError for one that there is none of."""
    check_settings()
    if action == "list":
        _list(as_json)
    elif action == "clear":
        _clear(as_json)
    elif action == "verify":
        _verify(as_json)
    else:
        raise RlxError(f"cache: expected one of {', '.join(ACTIONS)}, got {action!r:.80}")


def _list(as_json: bool) -> None:
    found = inventory.items()
    total = sum(item.file.nbytes for item in found)
    if as_json:
        facts = [{**_facts(item.file), "what": item.label} for item in found]
        _print_json({"folder": str(cache_dir()), "limit": limit(), "bytes": total, "files": facts})
        return
    for file, label in found:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(file.used))
        print(f"{file.kind:8} {file.nbytes / _MB:10.2f} MB  {used}  {file.path.name[:12]}  {label}")
    print(
        f"{several(len(found), 'file')}, {total / _MB:.2f} MB of at most {limit() / _MB:.0f} MB "
        f"(RLX_CACHE_LIMIT) in {cache_dir()}"
    )


def _clear(as_json: bool) -> None:
    gone, left = inventory.clear()
    if as_json:
        _print_json({"removed": [_facts(f) for f in gone], "kept": [_facts(f) for f in left]})
        return
    print(_count("removed", gone))
    if left:
        print(_count("kept, as they are in use or can't be removed:", left))


def _verify(as_json: bool) -> None:
    total = len(inventory.items())
    bad = list(inventory.damaged())
    # Who reads no further is told by the error below, too.
    with suppress(BrokenPipeError):
        if as_json:
            _print_json({"files": total, "damaged": [_facts(f) for f in bad]})
        else:
            for file in bad:
                print(f"damaged: {file.path}")
            print(f"{total - len(bad)} of {several(total, 'file')} are as they were written")
    if bad:
        raise RlxError(
            f"cache: {several(len(bad), 'damaged file')}: removed, they will be made again"
        )


def _facts(file: File) -> dict[str, object]:
    name = file.path.name
    return {"kind": file.kind, "name": name, "bytes": file.nbytes, "used": file.used}


def _count(what: str, files: list[File]) -> str:
    return f"{what} {several(len(files), 'file')}, {sum(f.nbytes for f in files) / _MB:.2f} MB"


def _print_json(facts: dict[str, object]) -> None:
    print(json.dumps(facts))
