"""`rlx cache`: lists, empties and verifies the cache folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from models import write_llama

import rlx
from rlx.runtime import cache_files
from rlx.runtime.cache import ObjectCache
from rlx.tools import cli

pytestmark = pytest.mark.usefixtures("folder")

SHAPE = {"layers": 2, "d": 32, "ffn": 64, "heads": 2, "kv_heads": 1, "vocab": 301, "ctx": 64}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*args: str) -> tuple[int, str, str]:
        code = cli.main(["cache", *args])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "small.gguf", **SHAPE)


def test_an_empty_cache(run: Run, folder: Path) -> None:
    assert run("list") == (
        0,
        f"0 files, 0.00 MB of at most 17180 MB (RLX_CACHE_LIMIT) in {folder}\n",
        "",
    )
    assert run("clear") == (0, "removed 0 files, 0.00 MB\n", "")
    assert run("verify") == (0, "0 of 0 files are as they were written\n", "")
    assert not folder.exists() or not list((folder / "packed").glob("*"))


def test_the_list_says_what_files_are(
    run: Run, path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rlx.load(path)
    monkeypatch.setenv("RLX_CACHE_LIMIT", "1G")
    code, out, _ = run("list", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["folder"] == str(folder)
    assert found["limit"] == 1 << 30
    labels = {f["what"]: f["kind"] for f in found["files"]}
    assert labels["prefill of small.gguf"] == labels["decode of small.gguf"] == "objects"
    assert labels["weights of small.gguf"] == "packed"
    sizes = {f["name"]: f["bytes"] for f in found["files"]}
    assert sizes == {p.name: p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    assert found["bytes"] == sum(sizes.values())
    assert [f["used"] for f in found["files"]] == sorted(f["used"] for f in found["files"])[::-1]
    code, out, _ = run("list")
    assert "prefill of small.gguf\n" in out
    assert out.count("\n") == len(sizes) + 1


def test_clear_leaves_what_is_in_use(run: Run, path: Path, folder: Path) -> None:
    model = rlx.load(path)
    code, out, _ = run("clear")
    assert code == 0
    assert "kept, as they are in use or can't be removed: 1 file," in out
    (left,) = [p for p in folder.rglob("*") if p.is_file()]
    assert left.parent.name == "packed"
    assert list(model.generate_ids([1, 2], 3))
    del model
    code, out, _ = run("clear", "--json")
    assert [f["name"] for f in json.loads(out)["removed"]] == [left.name]
    assert not [p for p in folder.rglob("*") if p.is_file()]


def test_verify_removes_what_is_damaged(run: Run, path: Path, folder: Path) -> None:
    rlx.load(path)
    assert run("verify")[0] == 0
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    program = max((p for p in files if p.parent.name == "objects"), key=lambda p: p.stat().st_size)
    (weights,) = (p for p in files if p.parent.name == "packed")
    for file in (program, weights):
        data = bytearray(file.read_bytes())
        data[-100] ^= 1
        file.unlink()
        file.write_bytes(data)
    code, out, err = run("verify")
    assert code == 1
    assert f"damaged: {program}\n" in out
    assert f"damaged: {weights}\n" in out
    assert f"{len(files) - 2} of {len(files)} files are as they were written" in out
    assert err == "rlx: error: cache: 2 damaged files: removed, they will be made again\n"
    assert not program.exists()
    assert not weights.exists()
    code, out, _ = run("verify", "--json")
    assert (code, json.loads(out)) == (0, {"files": len(files) - 2, "damaged": []})


def test_damage_is_told_where_nobody_reads_the_list(folder: Path) -> None:
    (folder / "objects").mkdir(parents=True)
    # More than Python's buffer holds, and less.
    for count in (200, 1):
        for i in range(count):
            (folder / "objects" / ObjectCache.key(str(i))).write_bytes(b"not ours at all")
        reader, stdout = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "rlx.tools.cli", "cache", "verify"]
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True)
        os.close(stdout)
        assert done.returncode == 1
        assert done.stderr.startswith(f"rlx: error: cache: {count} damaged file")
        assert done.stderr.count("\n") == 1


def test_files_of_other_versions_are_left_alone(run: Run, folder: Path) -> None:
    for name, head in (("objects", b"rlxobj01"), ("packed", b"rlxpck02")):
        (folder / name).mkdir(parents=True)
        (folder / name / ObjectCache.key(name)).write_bytes(head + bytes(1000))
    (folder / "objects" / ObjectCache.key("x")).write_bytes(b"not ours at all")
    _code, out, _ = run("list", "--json")
    labels = sorted(f["what"] for f in json.loads(out)["files"])
    assert labels == ["damaged", "of another version of rlx", "of another version of rlx"]
    assert run("verify")[0] == 1
    assert len([p for p in folder.rglob("*") if p.is_file()]) == 2


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "RLX_CACHE_LIMIT",
            "abc",
            "expected a size such as 500M or 20G, got 'abc'",
        ),
        ("RLX_CACHE_DIR", os.devnull, "rlx stores nothing in its cache folder"),
        ("RLX_CACHE_DIR", f"{os.devnull}/below", "rlx stores nothing in its cache folder"),
        ("RLX_CACHE_DIR", "n" * 256, "rlx stores nothing in its cache folder"),
    ],
)
def test_settings_that_mean_nothing_are_one_warning(
    run: Run, path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    rlx.load(path)
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(cache_files, "_warned", set())
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, err = run("list")
    assert code == 0
    assert err.startswith("rlx: warning: ")
    assert err.count("\n") == 1
    assert message in err
    monkeypatch.setattr(cache_files, "_warned", set())
    with pytest.warns(RuntimeWarning, match=message) as caught:
        rlx.load(path)
    assert len(caught) == 1


def test_another_action_is_refused(run: Run) -> None:
    code, out, err = run("prune")
    assert (code, out) == (1, "")
    assert err == "rlx: error: cache: expected one of list, clear, verify, got 'prune'\n"
