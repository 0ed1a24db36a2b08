"""
What can happen to the cache of a model: right answers, one warning at most, nothing broken left.

Each test loads a small model through the whole stack, with the cache as something left it.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from models import write_llama

import rlx
from rlx.driver import open_model
from rlx.lowering.target import Target
from rlx.runtime import cache, cache_files, contents, inventory
from rlx.runtime.cache import ObjectCache, Stored
from rlx.runtime.compiled import Compiled

SHAPE = {"layers": 2, "d": 32, "ffn": 64, "heads": 2, "kv_heads": 1, "vocab": 301, "ctx": 64}
IDS = [1, 2, 3, 4, 5]
LOAD = """
import sys, rlx
model = rlx.load(sys.argv[1], threads=1)
print(*model.generate_ids([1, 2, 3, 4, 5], 8, stop=False), model.stats.compilations)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "small.gguf", **SHAPE)


@pytest.fixture(scope="module")
def full(path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A complete cache of the model, and its answer."""
    folder = tmp_path_factory.mktemp("full") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLX_CACHE_DIR", str(folder))
        # The folders of compiled models that other tests have loaded.
        patch.setattr(cache, "_elsewhere", [])
        # The digest of a file that was just written is remembered as well.
        patch.setattr(contents, "_SETTLED_NS", -1)
        model = rlx.load(path, threads=1)
        # Code that any program uses may be in the memory of this process alone.
        subprocess.run([sys.executable, "-c", LOAD, str(path)], capture_output=True, check=True)
        return folder, list(model.generate_ids(IDS, 8, stop=False))


@pytest.fixture
def copy(full: tuple[Path, list[int]], folder: Path) -> Path:
    shutil.copytree(full[0], folder)
    return folder


def answer(path: Path, most: int = 1) -> tuple[list[int], int, list[str]]:
    """Load in this process; return the answer, the compilations, and the warnings."""
    cache_files._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = rlx.load(path, threads=1)
        ids = list(model.generate_ids(IDS, 8, stop=False))
    texts = [str(w.message) for w in caught]
    assert len(texts) <= most, texts
    return ids, model.stats.compilations, texts


def healthy(path: Path, wanted: list[int]) -> None:
    """Check that all files are good, and that the next load takes them."""
    assert list(inventory.damaged()) == []
    assert [p for p in cache_files.cache_dir().rglob("*.tmp")] == []
    assert answer(path, most=0)[:2] == (wanted, 0)


def damages(data: bytes) -> Iterator[bytes]:
    draw = random.Random(len(data))
    yield b""
    yield data[: draw.randrange(len(data))]
    yield data[:-1]
    yield data + b"\0"
    for _ in range(3):
        at = draw.randrange(len(data))
        yield data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
    yield bytes(len(data))


def test_every_file_in_every_way(path: Path, copy: Path, full: tuple[Path, list[int]]) -> None:
    files = [p for p in copy.rglob("*") if p.is_file()]
    assert len(files) >= 5, "two programs, the threads' code, the weights, a digest"
    for file in files:
        data = file.read_bytes()
        for damaged in damages(data):
            other = file.with_name("other")
            other.write_bytes(damaged)
            other.replace(file)
            ids, _, _ = answer(path)
            assert ids == full[1], file
            # Whoever has no use for a file does not look at it.
            assert len(list(inventory.damaged())) <= 1
            if not file.exists():
                file.write_bytes(data)
    healthy(path, full[1])


def test_files_in_each_others_place(path: Path, copy: Path, full: tuple[Path, list[int]]) -> None:
    objects = sorted((copy / "objects").iterdir())
    contents = [p.read_bytes() for p in objects]
    for file, content in zip(objects, [*contents[1:], contents[0]], strict=True):
        file.write_bytes(content)
    ids, compilations, texts = answer(path)
    assert (ids, texts) == (full[1], [])
    assert compilations >= 2
    # This process has the code of threads, and looks for no other.
    assert len(list(inventory.damaged())) <= 1
    healthy(path, full[1])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_named_pipes_in_place_of_files(
    path: Path, copy: Path, full: tuple[Path, list[int]]
) -> None:
    """Whoever opens one waits for its writer, who never comes."""
    (packed,) = (copy / "packed").iterdir()
    for file in (*copy.glob("*/*"), packed.with_suffix(".tmp"), copy / "objects" / "left.tmp"):
        file.unlink(missing_ok=True)
        os.mkfifo(file)
        os.utime(file, (1e9, 1e9))
    assert inventory.items() == []
    command = [sys.executable, "-c", LOAD, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert [int(i) for i in done.stdout.split()[:-1]] == full[1], done.stderr
    (copy / "objects" / "left.tmp").unlink()
    assert answer(path, most=0)[:2] == (full[1], 0)
    healthy(path, full[1])


def test_code_of_another_target_never_runs(
    path: Path, copy: Path, full: tuple[Path, list[int]]
) -> None:
    """The programs' files hold the code of another CPU, as a cache on a shared disk may."""
    other, model = Target.named("aarch64"), open_model(path, None)
    for program in ("prefill", "decode"):
        theirs, ours = model.key(program, other), model.key(program, Target.host())
        assert theirs != ours
        file = copy / "objects" / ours
        stored = Stored.read(file)
        assert stored is not None
        data = Compiled.from_bytes(stored.data)._replace(code=b"of another CPU").to_bytes()
        file.write_bytes(Stored("", data).bytes_of(theirs))
    ids, compilations, texts = answer(path)
    assert (ids, compilations, texts) == (full[1], 2, [])
    healthy(path, full[1])


# Folders


def as_user(command: list[str]) -> list[str]:
    """Return a command that runs without the rights of root, who may write anywhere."""
    if os.name == "posix" and os.getuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("root may write anywhere, and there is no setpriv")
        return [setpriv, "--bounding-set", "-all", "--inh-caps", "-all", *command]
    return command


@pytest.mark.skipif(sys.platform == "win32", reason="needs rights of POSIX")
@pytest.mark.parametrize("what", ["full", "empty", "damaged"])
def test_a_read_only_folder(
    path: Path, copy: Path, full: tuple[Path, list[int]], what: str, tmp_path: Path
) -> None:
    if what == "empty":
        shutil.rmtree(copy)
        copy.mkdir()
    if what == "damaged":
        for file in [p for p in copy.rglob("*") if p.is_file()]:
            file.write_bytes(file.read_bytes()[:-1])
    for folder in (copy, *(p for p in copy.rglob("*") if p.is_dir())):
        folder.chmod(0o555)
    try:
        command = as_user([sys.executable, "-c", LOAD, str(path)])
        done = subprocess.run(command, capture_output=True, text=True)
    finally:
        for folder in (copy, *(p for p in copy.rglob("*") if p.is_dir())):
            folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    *ids, compilations = map(int, done.stdout.split())
    assert ids == full[1]
    assert compilations == (0 if what == "full" else 3)
    found = done.stderr.count("Warning: ")
    assert found == (0 if what == "full" else 1) or (what, found) == ("damaged", 2), done.stderr


@contextlib.contextmanager
def small_disk(folder: Path, nbytes: int) -> Iterator[None]:
    """A disk of its own for a folder; skips the test where none can be had."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "none", str(folder)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        yield
    finally:
        # The mappings of models that are gone may still be there.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("kilobytes", [4, 16, 40, 64, 100, 150])
def test_a_full_disk(
    path: Path, folder: Path, full: tuple[Path, list[int]], kilobytes: int
) -> None:
    with small_disk(folder, kilobytes << 10):
        command = [sys.executable, "-c", LOAD, str(path)]
        for _ in range(2):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert [int(i) for i in done.stdout.split()[:-1]] == full[1]
            assert done.stderr.count("Warning: ") <= 1, done.stderr
            assert "RLX_CACHE_DIR" in done.stderr or not done.stderr
            assert not list(folder.rglob("*.tmp")), "no room is taken by what failed"
            assert list(inventory.damaged()) == []


# Processes


def start(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", LOAD, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_compile_at_once(
    path: Path, folder: Path, full: tuple[Path, list[int]]
) -> None:
    others = [start(path) for _ in range(3)]
    for other in others:
        assert [int(i) for i in other.communicate()[0].split()[:-1]] == full[1]
    assert len([p for p in folder.rglob("*") if p.is_file()]) >= 4
    healthy(path, full[1])


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_processes_killed_in_the_middle(
    path: Path, folder: Path, full: tuple[Path, list[int]]
) -> None:
    draw = random.Random(2)
    for _ in range(4):
        with start(path) as other:
            # Whatever it is at by then: imports, a pass, LLVM, a file.
            time.sleep(draw.uniform(0.3, 2.5))
            other.send_signal(signal.SIGKILL)
        assert list(inventory.damaged()) == []
    assert answer(path, most=0)[0] == full[1]
    # What a killed one was writing is removed once it is old.
    for left in folder.rglob("*.tmp"):
        os.utime(left, (1e9, 1e9))
    ObjectCache().put(ObjectCache.key("next"), b"")
    healthy(path, full[1])
