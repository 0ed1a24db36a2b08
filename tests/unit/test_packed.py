"""Packed files: damage, killed writers, processes at once, and folders that can't be used."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from packing import KEY, NBYTES, Packing, bytes_of, checksums, get

from rlx.lowering.checksum import CHUNK
from rlx.runtime import cache_files, packed
from rlx.runtime.cache import ObjectCache
from rlx.runtime.memory import Block, Resident, rss_anon
from rlx.runtime.packed import PAGE, stored

MB = 1 << 20

needs_kill = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and file locks")


pytestmark = pytest.mark.usefixtures("folder")


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def pack() -> Packing:
    return Packing()


@pytest.mark.parametrize("nbytes", [1, 64, PAGE, PAGE + 1, CHUNK, 2000 * CHUNK // 8])
def test_what_was_packed_is_mapped(folder: Path, pack: Packing, nbytes: int) -> None:
    first = get(pack, nbytes)
    assert bytes_of(first).flags.writeable
    second = get(pack, nbytes)
    assert pack.count == 1
    assert not bytes_of(second).flags.writeable
    assert files(folder) == [KEY]
    size = (folder / "packed" / KEY).stat().st_size
    assert first.mapped_bytes == second.mapped_bytes == size
    assert nbytes < size <= nbytes + nbytes // 1000 + 3 * PAGE
    assert first.address % 4096 == second.address % 4096 == 0


def test_a_packing_that_fails_leaves_nothing(folder: Path, pack: Packing) -> None:
    def fail(block: Block) -> None:
        bytes_of(block)[:10] = 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stored(KEY, NBYTES, checksums, fail)
    assert files(folder) == []
    get(pack)
    assert files(folder) == [KEY]


# Damage


def repaired(folder: Path, pack: Packing, damaged: bytes) -> None:
    """Check that a damaged file is noticed with one warning and packed again."""
    path, count = folder / "packed" / KEY, pack.count
    cache_files._warned.clear()
    # Another file in its place: those who have mapped the good one keep it.
    path.with_name("damaged").write_bytes(damaged)
    path.with_name("damaged").replace(path)
    with pytest.warns(RuntimeWarning, match="is damaged: its weights are packed again") as caught:
        get(pack)
    assert len(caught) == 1
    assert pack.count == count + 1
    # A warning would be an error here.
    get(pack)
    assert pack.count == count + 1
    assert files(folder) == [KEY]


def test_a_changed_byte_anywhere_is_noticed(folder: Path, pack: Packing) -> None:
    get(pack)
    good = (folder / "packed" / KEY).read_bytes()
    start = len(good) - -(-NBYTES // PAGE) * PAGE
    table = len(packed.MAGIC) + 8 + len(KEY)
    places = [0, 7, 8, 15, 16, table - 1, table, table + 31, table + 32, start - 1, start]
    places += [start + CHUNK - 1, start + CHUNK, start + NBYTES - 1, start + NBYTES, len(good) - 1]
    for at in [*places, *random.Random(0).sample(range(len(good)), 40)]:
        damaged = bytearray(good)
        damaged[at] ^= 1 << at % 8
        repaired(folder, pack, bytes(damaged))


@pytest.mark.parametrize("size", [0, 1, 100, PAGE, PAGE + CHUNK, -1, -PAGE])
def test_a_cut_file_is_noticed(folder: Path, pack: Packing, size: int) -> None:
    get(pack)
    repaired(folder, pack, (folder / "packed" / KEY).read_bytes()[:size])


@pytest.mark.parametrize("more", [1, PAGE])
def test_a_longer_file_is_noticed(folder: Path, pack: Packing, more: int) -> None:
    get(pack)
    repaired(folder, pack, (folder / "packed" / KEY).read_bytes() + bytes(more))


def test_exchanged_chunks_are_noticed(folder: Path, pack: Packing) -> None:
    get(pack)
    good = (folder / "packed" / KEY).read_bytes()
    start = len(good) - -(-NBYTES // PAGE) * PAGE
    first, second = good[start:][:CHUNK], good[start + CHUNK :][:CHUNK]
    repaired(folder, pack, good[:start] + second + first + good[start + 2 * CHUNK :])


def test_a_file_of_another_key_or_size_is_not_taken(folder: Path, pack: Packing) -> None:
    get(pack)
    other = ObjectCache.key("other")
    (folder / "packed" / KEY).rename(folder / "packed" / other)
    with pytest.warns(RuntimeWarning, match="damaged"):
        stored(other, NBYTES, checksums, pack)
    get(pack)
    with pytest.warns(RuntimeWarning, match="damaged"):
        get(pack, NBYTES + 1)


# Other processes


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """`process(seconds, script)` runs a script whose `pack` takes so long."""

    def process(seconds: float, script: str = "get(pack); print('done')") -> subprocess.Popen[str]:
        setup = [
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})",
            "from packing import *",
            f"pack = Slow({seconds}, {str(tmp_path / 'log')!r})",
        ]
        command = [sys.executable, "-W", "error", "-c", "\n".join([*setup, script])]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    return process


def packings(folder: Path) -> int:
    return (folder.parent / "log").read_text().count("packs")


Process = Callable[..., subprocess.Popen[str]]


@needs_kill
def test_of_processes_at_once_one_packs(folder: Path, process: Process) -> None:
    others = [process(0.5) for _ in range(3)]
    assert [p.communicate()[0].split()[-1] for p in others] == ["done"] * 3
    assert packings(folder) == 1
    assert files(folder) == [KEY]


@needs_kill
def test_a_killed_packer_leaves_nothing_trusted(
    folder: Path, pack: Packing, process: Process
) -> None:
    rng, path = random.Random(1), folder / "packed" / KEY
    again = f"import os\nwhile True:\n    get(pack)\n    os.unlink({str(path)!r})"
    for _ in range(6):
        with process(0.1, again) as packer:
            assert packer.stdout is not None
            packer.stdout.readline()
            time.sleep(rng.uniform(0, 0.15))
            packer.kill()
        left = files(folder)
        assert left in ([], [KEY], [f"{KEY}.tmp"])
        count = pack.count
        # As in every test, a warning, that of a damaged file too, would be an error.
        get(pack)
        assert pack.count == count + (left != [KEY])
        assert files(folder) == [KEY]
        path.unlink()


@needs_kill
def test_who_waits_for_a_killed_packer_packs(folder: Path, process: Process) -> None:
    with process(60) as packer:
        assert packer.stdout is not None
        packer.stdout.readline()
        waiting = process(0)
        time.sleep(0.3)
        assert packings(folder) == 1
        packer.kill()
        assert waiting.communicate()[0].split() == ["packs", "done"]
    assert files(folder) == [KEY]


@needs_kill
def test_who_has_waited_for_long_packs_in_memory(
    folder: Path, pack: Packing, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "WAIT_S", 0.1)
    with process(1) as packer:
        assert packer.stdout is not None
        packer.stdout.readline()
        packer.send_signal(signal.SIGSTOP)
        with pytest.warns(RuntimeWarning, match="another process packs"):
            get(pack)
        packer.send_signal(signal.SIGCONT)
        assert packer.communicate()[0].split() == ["done"]
    assert files(folder) == [KEY]
    get(pack)
    assert pack.count == 1


@needs_kill
def test_what_killed_packers_left_of_other_weights_is_removed(
    folder: Path, pack: Packing, process: Process
) -> None:
    with process(60) as packer:
        assert packer.stdout is not None
        packer.stdout.readline()
        other = ObjectCache.key("other")
        stored(other, NBYTES, checksums, pack)
        assert files(folder) == sorted([other, f"{KEY}.tmp"]), "its writer lives"
        packer.kill()
    stored(ObjectCache.key("third"), NBYTES, checksums, pack)
    assert f"{KEY}.tmp" not in files(folder)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs smaps")
def test_processes_share_the_pages(pack: Packing, process: Process) -> None:
    nbytes = 16 * MB
    block = get(pack, nbytes)
    script = f"""
from rlx.runtime.memory import rss_anon
block = get(Packing(), {nbytes})
before = rss_anon()
bytes_of(block).sum()
text = open("/proc/self/smaps").read().split("packed/")[1]
facts = dict(line.split(":", 1) for line in text.splitlines()[1:20] if ":" in line)
kb = [int(facts[name].split()[0]) for name in ("Rss", "Pss", "Anonymous")]
print(*kb, (rss_anon() - before) // 1024)
"""
    resident, share, anonymous, more = map(int, process(0, script).communicate()[0].split())
    assert resident == block.mapped_bytes // 1024
    assert share <= resident * 0.51
    assert anonymous == 0
    assert more < 2000


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs smaps")
def test_resident_bytes_are_those_of_one_mapping(pack: Packing) -> None:
    block, other = get(pack), Block(packed._map_nameless(64 * MB), 0, 64 * MB)
    bytes_of(block).sum()
    found = Resident.of_process(block.address, other.address)
    assert found.resident_weight_bytes == block.mapped_bytes
    assert found.resident_file_bytes == 0
    bytes_of(other)[:] = 1
    assert Resident.of_process(block.address, other.address).resident_file_bytes == 64 * MB


# Folders that can't be used


def in_memory(pack: Packing) -> None:
    """Check that weights are packed in memory, with one warning in all."""
    with pytest.warns(RuntimeWarning, match="set RLX_CACHE_DIR") as caught:
        get(pack)
    assert len(caught) == 1
    before = rss_anon()
    get(pack, 32 * MB)
    assert pack.count == 2
    if before is not None:
        assert rss_anon() - before < 4 * MB, "the file's pages are not anonymous memory"


def test_packing_in_a_folder_under_a_file(
    pack: Packing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "file" / "cache"))
    in_memory(pack)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc")
def test_packing_in_a_folder_that_takes_no_files(
    pack: Packing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLX_CACHE_DIR", "/proc/rlx")
    in_memory(pack)


def test_a_read_only_folder(folder: Path, pack: Packing, monkeypatch: pytest.MonkeyPatch) -> None:
    get(pack)
    opened = os.open

    def refuse(path: Path, flags: int, *more: int) -> int:
        if flags & os.O_CREAT and folder in Path(path).parents:
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    # What is there is taken without a word.
    get(pack)
    (folder / "packed" / KEY).unlink()
    pack.count = 0
    in_memory(pack)


@pytest.mark.skipif(sys.platform != "linux", reason="space is reserved on Linux")
def test_a_full_disk_is_found_before_the_data_are_written(
    folder: Path, pack: Packing, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = os.posix_fallocate

    def full(fd: int, offset: int, nbytes: int) -> None:
        if str(folder) in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(fd, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", full)
    in_memory(pack)
    assert files(folder) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of Linux")
def test_a_process_that_may_write_no_large_file(folder: Path, process: Process) -> None:
    script = f"""
import resource, warnings
resource.setrlimit(resource.RLIMIT_FSIZE, ({MB}, {MB}))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    get(Packing(), {4 * MB})
print([str(w.message) for w in caught])
"""
    text = process(0, script).communicate()[0]
    assert "stores nothing in its cache folder" in text
    assert "anonymous memory" in text
    assert files(folder) == []


def test_packing_without_any_folder(
    pack: Packing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse() -> None:
        raise FileNotFoundError("no usable temporary directory")

    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(packed.tempfile, "TemporaryFile", refuse)
    with pytest.warns(RuntimeWarning) as caught:
        get(pack)
    assert "anonymous memory" in str(caught[-1].message)


def test_a_folder_that_vanishes_while_packing(folder: Path, pack: Packing) -> None:
    def vanish(block: Block) -> None:
        pack(block)
        (folder / "packed" / f"{KEY}.tmp").unlink()

    with pytest.warns(RuntimeWarning, match="RLX_CACHE_DIR"):
        get(vanish)
    assert files(folder) == []
    get(pack)
    assert pack.count == 2
