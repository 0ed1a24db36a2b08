"""The object cache: damage, concurrency, and folders that can't be used."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlx.runtime import cache_files
from rlx.runtime.cache import ObjectCache
from rlx.runtime.cache_files import cache_dir

KEY = ObjectCache.key("weights")


pytestmark = pytest.mark.usefixtures("folder")


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def python(script: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from rlx.runtime.cache import *\n" + script]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


# The folder


def test_the_folder_follows_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE_DIR", "/somewhere")
    assert cache_dir() == Path("/somewhere")
    monkeypatch.delenv("RLX_CACHE_DIR")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_dir() == Path("/xdg/rlx")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == Path("/home/me/.cache/rlx")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_dir() == Path("/home/me/Library/Caches/rlx")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert cache_dir() == Path("/local/rlx")


def test_without_a_home_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLX_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.warns(RuntimeWarning, match="RLX_CACHE_DIR"):
        ObjectCache().put(KEY, b"data")
    assert ObjectCache().get(KEY) is None


# Objects


def test_keys_tell_parts_apart() -> None:
    parts = [("ab", "c"), ("a", "bc"), ("abc",), (b"abc",), ("1",), (1,), (b"1",), (), ("",)]
    assert len({ObjectCache.key(*p) for p in parts}) == len(parts)
    assert ObjectCache.key("ab", 1, b"c") == ObjectCache.key("ab", 1, b"c")


@pytest.mark.parametrize("data", [b"", b"x", os.urandom(100_000)])
def test_what_was_put_is_got(folder: Path, data: bytes) -> None:
    assert ObjectCache().get(KEY) is None
    ObjectCache().put(KEY, b"older")
    ObjectCache().put(KEY, data)
    assert ObjectCache().get(KEY) == data
    assert files(folder) == [KEY]


@pytest.mark.parametrize("cut", [0, 1, 8, 23, 24, 500, -1])
def test_a_truncated_object_is_removed(folder: Path, cut: int) -> None:
    ObjectCache().put(KEY, os.urandom(1000))
    path = folder / "objects" / KEY
    path.write_bytes(path.read_bytes()[:cut])
    assert ObjectCache().get(KEY) is None
    assert files(folder) == []


@pytest.mark.parametrize("at", [0, 7, 8, 23, 24, 600, 1023])
def test_a_flipped_bit_is_found(folder: Path, at: int) -> None:
    ObjectCache().put(KEY, os.urandom(1000))
    path = folder / "objects" / KEY
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    assert ObjectCache().get(KEY) is None
    assert files(folder) == []


def test_two_processes_put_the_same_object(folder: Path) -> None:
    script = f"""
import os
c = ObjectCache()
for i in range(200):
    c.put({KEY!r}, bytes([i]) * 50_000)
    data = c.get({KEY!r})
    assert data is not None and len(data) == 50_000 and len(set(data)) == 1
print("good")
"""
    writers = [python(script) for _ in range(2)]
    assert [w.communicate()[0] for w in writers] == ["good\n"] * 2
    assert files(folder) == [KEY]


# What killed writers leave


def left_behind(folder: Path, age: float) -> Path:
    left = folder / "objects" / f"{KEY}.1.abc.tmp"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(b"")
    os.utime(left, (time.time() - age,) * 2)
    return left


def test_an_abandoned_file_is_removed_by_the_next_writer(folder: Path) -> None:
    left_behind(folder, 3600)
    ObjectCache().put(KEY, b"data")
    assert files(folder) == [KEY]


def test_a_young_file_and_one_in_use_are_left_alone(folder: Path) -> None:
    left = left_behind(folder, 1)
    ObjectCache().put(KEY, b"data")
    assert left.exists()
    left_behind(folder, 3600)
    with left.open("rb") as f:
        cache_files.lock(f.fileno())
        ObjectCache().put(KEY, b"data")
        assert left.exists()
    ObjectCache().put(KEY, b"data")
    assert not left.exists()


# Folders that can't be used


@pytest.fixture(params=["under a file", "proc"])
def unusable(request, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if request.param == "proc":
        if not Path("/proc/self").exists():
            pytest.skip("no /proc")
        monkeypatch.setenv("RLX_CACHE_DIR", "/proc/rlx")
    else:
        (tmp_path / "file").write_bytes(b"")
        monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "file" / "cache"))


@pytest.mark.usefixtures("unusable")
def test_objects_without_a_folder() -> None:
    with pytest.warns(RuntimeWarning, match="set RLX_CACHE_DIR"):
        ObjectCache().put(KEY, b"data")
    # A second warning would be an error here.
    ObjectCache().put(KEY, b"data")
    assert ObjectCache().get(KEY) is None


def test_the_cache_imports_no_xdsl_and_no_llvm() -> None:
    script = "import sys; print([m for m in sys.modules if m in ('xdsl', 'llvmlite')])"
    assert python(script).communicate()[0] == "[]\n"
