"""The cache folder's limit: what goes when there is too much, what stays, and who else is there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from packing import NBYTES, Packing, checksums

from rlx.runtime import packed, room
from rlx.runtime.cache import ObjectCache
from rlx.runtime.packed import LAYOUT, PackedFile, stored
from rlx.runtime.room import KEPT_S, files, limit

pytestmark = pytest.mark.usefixtures("folder")

SIZE = 1000


@pytest.fixture(autouse=True)
def _looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process look at the folder again, as a new one would."""
    monkeypatch.setattr(room, "_slack", {})


def key(number: int) -> str:
    return ObjectCache.key("room", number)


def put(number: int, age: float = 1e6) -> Path:
    """Store an object that was last used so many seconds ago."""
    ObjectCache().put(key(number), bytes(SIZE), f"object {number}")
    return used(number, age)


def used(number: int, age: float) -> Path:
    path = next(f.path for f in files() if f.path.name == key(number))
    os.utime(path, (time.time() - age,) * 2)
    return path


def left() -> set[int]:
    names = {key(i): i for i in range(100)}
    return {names[f.path.name] for f in files()}


def test_the_limit_is_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLX_CACHE_LIMIT", raising=False)
    assert limit() == room.DEFAULT_LIMIT
    for text, nbytes in (
        ("0", 0), ("1000", 1000), ("3K", 3 << 10), ("500M", 500 << 20), (" 1.5 GB ", 3 << 29),
        ("2gib", 2 << 30), ("1t", 1 << 40), ("", room.DEFAULT_LIMIT),
    ):  # fmt: skip
        monkeypatch.setenv("RLX_CACHE_LIMIT", text)
        assert limit() == nbytes, text


@pytest.mark.parametrize(
    "text", ["much", "-1", "1X", "1 2", "1e9", "\u0663M", "1\u212a", "9" * 400, "9000000T"]
)
def test_what_is_no_size_is_one_warning(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE_LIMIT", text)
    with pytest.warns(RuntimeWarning, match="expected a size such as 500M") as caught:
        assert limit() == limit() == room.DEFAULT_LIMIT
    assert len(caught) == 1


def test_the_least_recently_used_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(10):
        put(i, age=1e6 - i)
    # A read is a use.
    assert ObjectCache().get(key(0)) is not None
    used(0, 1000)
    monkeypatch.setenv("RLX_CACHE_LIMIT", "8K")
    monkeypatch.setattr(room, "_slack", {})
    put(10)
    assert left() == {0, 6, 7, 8, 9, 10}
    assert sum(f.nbytes for f in files()) <= 8 << 10


def test_a_read_is_a_use() -> None:
    path = put(0)
    before = path.stat().st_mtime
    assert ObjectCache().get(key(0)) == bytes(SIZE)
    assert path.stat().st_mtime > before


def test_what_was_just_used_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE_LIMIT", "1K")
    for i in range(5):
        put(i, age=KEPT_S / 2)
    assert left() == {0, 1, 2, 3, 4}
    for i in range(4):
        used(i, 2 * KEPT_S)
    put(5)
    assert left() == {4, 5}


def test_writes_are_counted_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(room, "files", lambda: looks.append(1) or files())
    monkeypatch.setenv("RLX_CACHE_LIMIT", "100K")
    for i in range(90):
        put(i)
    assert len(looks) < 20, "the folder is not read for each file"
    for i in range(90, 100):
        put(i)
    assert sum(f.nbytes for f in files()) <= 100 << 10


def test_what_is_mapped_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = stored(ObjectCache.key("mapped"), NBYTES, checksums, Packing())
    again = stored(ObjectCache.key("mapped"), NBYTES, checksums, Packing())
    stored(ObjectCache.key("closed"), NBYTES, checksums, Packing()).close()
    for file in (folder / "packed").iterdir():
        os.utime(file, (1e9, 1e9))
    monkeypatch.setenv("RLX_CACHE_LIMIT", "1K")
    monkeypatch.setattr(room, "_slack", {})
    put(0)
    assert [f.name for f in (folder / "packed").iterdir()] == [ObjectCache.key("mapped")]
    # The one that wrote the file has gone, the one that read it has not.
    mapped.close()
    put(1)
    assert len(list((folder / "packed").iterdir())) == 1
    again.close()
    put(2)
    assert list((folder / "packed").iterdir()) == []


def test_what_another_process_maps_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from packing import *\nblock = get(Packing()); print('mapped', flush=True); input()"
    )
    command = [sys.executable, "-c", script]
    monkeypatch.setenv("RLX_CACHE_LIMIT", "0")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        (file,) = (folder / "packed").iterdir()
        os.utime(file, (1e9, 1e9))
        put(0)
        assert file.exists()
        other.communicate(b"\n")
    os.utime(file, (1e9, 1e9))
    put(1)
    assert not file.exists()


def test_a_file_that_is_used_meanwhile_stays() -> None:
    path = put(0)
    (file,) = files()
    os.utime(path)
    assert not room.remove_unused(file)
    assert path.exists()
    (file,) = files()
    assert room.remove_unused(file)
    assert room.remove_unused(file), "another process was quicker"


def test_a_folder_that_nothing_can_be_removed_from(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    put(0)
    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setenv("RLX_CACHE_LIMIT", "0")
    put(1)
    assert left() == {0, 1}


def test_processes_that_make_room_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE_LIMIT", "20K")
    script = f"""
import os, sys, warnings
warnings.simplefilter("error")
sys.path.insert(0, {str(Path(__file__).parent)!r})
from rlx.runtime import room
from rlx.runtime.cache import ObjectCache
room.KEPT_S = 0.0
for i in range(300):
    key, data = ObjectCache.key(int(sys.argv[1]), i % 40), bytes([i % 40]) * 1000
    found = ObjectCache().get(key)
    assert found in (None, data)
    ObjectCache().put(key, data)
print("good")
"""
    command = [sys.executable, "-c", script]
    others = [
        subprocess.Popen([*command, str(i % 2)], stdout=subprocess.PIPE, text=True)
        for i in range(3)
    ]
    assert [other.communicate()[0] for other in others] == ["good\n"] * 3
    assert sum(f.nbytes for f in files()) <= 3 * (20 << 10)
    assert not list(folder.rglob("*.tmp"))


# Layouts of packed weights


def test_old_layouts_that_are_long_unused_go(folder: Path) -> None:
    weights = ObjectCache.key("weights")
    old, young, current, ancient = (
        f"{weights}{LAYOUT}old", f"{weights}{LAYOUT}other", f"{weights}{LAYOUT}now", weights,
    )  # fmt: skip
    for name in (old, young, ancient, current):
        stored(name, NBYTES, checksums, Packing()).close()
    for name in (old, ancient, current):
        os.utime(folder / "packed" / name, (1e9, 1e9))
    stored(f"{ObjectCache.key('others')}{LAYOUT}now", NBYTES, checksums, Packing())
    names = {p.name for p in (folder / "packed").iterdir()}
    assert names == {young, current, f"{ObjectCache.key('others')}{LAYOUT}now"}


def test_an_old_layout_in_use_stays(folder: Path) -> None:
    name = f"{ObjectCache.key('weights')}{LAYOUT}old"
    block = stored(name, NBYTES, checksums, Packing())
    os.utime(folder / "packed" / name, (1e9, 1e9))
    stored(f"{ObjectCache.key('others')}{LAYOUT}now", NBYTES, checksums, Packing())
    assert (folder / "packed" / name).exists()
    block.close()


def test_a_file_says_what_it_holds(folder: Path) -> None:
    name, label = ObjectCache.key("weights"), "weights of a model with a name: ü"
    stored(name, NBYTES, checksums, Packing(), label).close()
    path = folder / "packed" / name
    assert packed.described(path) == (NBYTES, label)
    assert PackedFile(path, name, NBYTES, checksums).mapped() is not None
    path.write_bytes(b"RLX" + path.read_bytes()[3:])
    with pytest.raises(ValueError, match="expected packed weights"):
        packed.described(path)
