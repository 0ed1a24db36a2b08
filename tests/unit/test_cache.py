"""The object cache and packed files: damage, concurrency, and folders that can't be used."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rlx.runtime import cache as cache_module
from rlx.runtime.cache import DATA_START, ObjectCache, PackedFile, cache_dir
from rlx.runtime.memory import rss_anon

KEY = ObjectCache.key("weights")
MB = 1 << 20


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_module, "_warned", set())
    return tmp_path / "cache"


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


# Packed files


def fill(file: PackedFile, seed: int) -> np.ndarray:
    view = file.view(0, np.uint8, [file.nbytes])
    view[:] = np.random.default_rng(seed).integers(0, 256, file.nbytes, np.uint8)
    return view


@pytest.mark.parametrize("nbytes", [0, 1, 64, 100_001])
def test_a_committed_file_opens_read_only(folder: Path, nbytes: int) -> None:
    assert PackedFile.open(KEY, nbytes) is None
    made = PackedFile.create(KEY, nbytes)
    written = fill(made, 1)
    assert PackedFile.open(KEY, nbytes) is None
    address = made.address
    made.commit()
    assert made.address == address
    assert files(folder) == [KEY]
    file = PackedFile.open(KEY, nbytes)
    assert file.nbytes == nbytes
    assert file.address % 4096 == address % 4096 == 0
    view = file.view(0, np.uint8, [nbytes])
    np.testing.assert_array_equal(view, written)
    assert ctypes.string_at(file.address, nbytes) == written.tobytes()
    assert not view.flags.writeable


def test_views_are_relative_to_the_data() -> None:
    file = PackedFile.create(KEY, 256)
    view = file.view(64, np.float32, [4, 4])
    assert view.ctypes.data == file.address + 64
    with pytest.raises((TypeError, ValueError)):
        file.view(64, np.float32, [49])
    file.abort()


def test_an_aborted_file_is_gone(folder: Path) -> None:
    file = PackedFile.create(KEY, 1000)
    assert len(files(folder)) == 1
    file.abort()
    file.abort()
    file.commit()
    assert files(folder) == []


def test_a_dropped_file_is_gone(folder: Path) -> None:
    file = PackedFile.create(KEY, 1000)
    del file
    assert files(folder) == []


def damaged(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        data = data[:-1]
    elif how == "longer":
        data += b"\0"
    elif how == "unmarked":
        data = bytes(DATA_START) + data[DATA_START:]
    elif how == "magic":
        data = b"rlxpck00" + data[8:]
    elif how == "empty":
        data = b""
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["truncated", "longer", "unmarked", "magic", "empty"])
def test_a_damaged_file_is_removed(folder: Path, how: str) -> None:
    file = PackedFile.create(KEY, 1000)
    file.commit()
    file.close()
    damaged(folder / "packed" / KEY, how)
    assert PackedFile.open(KEY, 1000) is None
    assert files(folder) == []


def test_a_file_of_another_key_or_size_is_not_taken(folder: Path) -> None:
    PackedFile.create(KEY, 1000).commit()
    other = ObjectCache.key("other")
    (folder / "packed" / KEY).rename(folder / "packed" / other)
    assert PackedFile.open(other, 1000) is None
    PackedFile.create(KEY, 1000).commit()
    assert PackedFile.open(KEY, 1001) is None


def test_two_processes_pack_the_same_weights(folder: Path) -> None:
    script = f"""
import numpy as np
for i in range(20):
    file = PackedFile.create({KEY!r}, 1 << 20)
    file.view(0, np.uint8, [1 << 20])[:] = 100 + i
    file.commit()
    file = PackedFile.open({KEY!r}, 1 << 20)
    assert file is not None
    values = np.unique(file.view(0, np.uint8, [1 << 20]))
    assert len(values) == 1 and values[0] >= 100, values
print("good")
"""
    packers = [python(script) for _ in range(2)]
    assert [p.communicate()[0] for p in packers] == ["good\n"] * 2
    assert files(folder) == [KEY]
    assert PackedFile.open(KEY, MB) is not None


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and file locks")
def test_a_killed_packer_leaves_nothing_trusted(folder: Path) -> None:
    packer = python(
        f"file = PackedFile.create({KEY!r}, 1000)\nprint('ready', flush=True)\n"
        "import time; time.sleep(60)"
    )
    assert packer.stdout.readline() == "ready\n"
    (left,) = (folder / "packed").glob("*.tmp")
    assert f".{packer.pid}." in left.name
    long_ago = time.time() - 3600
    os.utime(left, (long_ago, long_ago))
    PackedFile.create(KEY, 1000).abort()
    assert left.exists(), "its writer lives"
    packer.send_signal(signal.SIGKILL)
    packer.communicate()
    assert PackedFile.open(KEY, 1000) is None
    assert files(folder) == []
    PackedFile.create(KEY, 1000).commit()
    assert files(folder) == [KEY]
    assert PackedFile.open(KEY, 1000) is not None


def test_a_young_temporary_file_is_left_alone(folder: Path) -> None:
    young = folder / "packed" / f"{KEY}.1.abc.tmp"
    young.parent.mkdir(parents=True)
    young.write_bytes(b"")
    PackedFile.create(KEY, 10).abort()
    assert young.exists()


def test_a_packer_that_exits_removes_its_file(folder: Path) -> None:
    packer = python(f"file = PackedFile.create({KEY!r}, 1000)")
    packer.communicate()
    assert packer.returncode == 0
    assert files(folder) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_its_parents_file(folder: Path) -> None:
    packer = python(
        f"""
file = PackedFile.create({KEY!r}, 1000)
if pid := os.fork():
    os.waitpid(pid, 0)
    file.commit()
"""
    )
    packer.communicate()
    assert packer.returncode == 0
    assert files(folder) == [KEY]


# Folders that can't be used


@pytest.fixture(params=["under a file", "proc"])
def unusable(request, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


@pytest.mark.usefixtures("unusable")
def test_packing_without_a_folder() -> None:
    with pytest.warns(RuntimeWarning, match="set RLX_CACHE_DIR") as caught:
        file = PackedFile.create(KEY, 32 * MB)
    assert len(caught) == 1
    before = rss_anon()
    file.view(0, np.uint8, [32 * MB]).fill(1)
    if before is not None:
        assert rss_anon() - before < 4 * MB, "the file's pages are not anonymous memory"
    assert file.address % 4096 == 0
    address = file.address
    file.commit()
    assert (file.view(0, np.uint8, [32 * MB]) == 1).all()
    assert file.address == address
    file.abort()
    assert PackedFile.open(KEY, 32 * MB) is None


@pytest.mark.usefixtures("unusable")
def test_packing_without_any_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(cache_module.tempfile, "TemporaryFile", refuse)
    with pytest.warns(RuntimeWarning) as caught:
        file = PackedFile.create(KEY, 1000)
    assert "anonymous memory" in str(caught[-1].message)
    fill(file, 2)
    file.commit()
    file.close()


@pytest.mark.skipif(sys.platform != "linux", reason="space is reserved on Linux")
def test_a_full_disk_is_found_before_the_data_are_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = os.posix_fallocate
    asked: list[int] = []

    def full_at_first(fd: int, offset: int, nbytes: int) -> None:
        asked.append(nbytes)
        if len(asked) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(fd, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", full_at_first)
    with pytest.warns(RuntimeWarning, match="No space left"):
        file = PackedFile.create(KEY, 1000)
    assert asked == [DATA_START + 1000, 1000]
    fill(file, 3)
    assert files(folder) == []


def test_a_folder_that_vanishes_before_commit(folder: Path) -> None:
    file = PackedFile.create(KEY, 1000)
    written = fill(file, 4)
    for path in (folder / "packed").iterdir():
        path.unlink()
    with pytest.warns(RuntimeWarning, match="RLX_CACHE_DIR"):
        file.commit()
    np.testing.assert_array_equal(file.view(0, np.uint8, [1000]), written)
    assert PackedFile.open(KEY, 1000) is None


def test_the_cache_imports_no_xdsl_and_no_llvm() -> None:
    script = "import sys; print([m for m in sys.modules if m in ('xdsl', 'llvmlite')])"
    assert python(script).communicate()[0] == "[]\n"
