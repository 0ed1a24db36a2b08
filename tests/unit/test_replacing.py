"""Files that are written whole: what is refused before any work, and what is left behind."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlx.errors import RlxError
from rlx.runtime.replacing import replacing
from rlx.tools import cli, generate
from rlx.tools.opt import session


def write(path: Path | str, *inputs: Path | str, data: bytes = b"new") -> None:
    with replacing(str(path), *map(str, inputs)) as file:
        file.write(data)


@pytest.mark.parametrize("length", [1, 240, 255])
def test_a_name_of_any_length(tmp_path: Path, length: int):
    path = tmp_path / ("n" * length)
    for data in (b"first", b"second"):
        write(path, data=data)
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="needs modes of POSIX")
def test_modes_are_those_of_any_file(tmp_path: Path):
    path, before = tmp_path / "file", os.umask(0o027)
    try:
        write(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o606)
        write(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o606
    finally:
        os.umask(before)


def test_a_link_stays_and_its_file_is_written(tmp_path: Path):
    (tmp_path / "link").symlink_to("file")
    for data in (b"made", b"replaced"):
        write(tmp_path / "link", data=data)
        assert (tmp_path / "file").read_bytes() == data
    assert (tmp_path / "link").is_symlink()


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="needs names of open files")
def test_a_pipe_is_written_to(tmp_path: Path):
    code = "from rlx.runtime.replacing import replacing\n"
    code += "with replacing('/dev/stdout') as file: file.write(b'through a pipe')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"through a pipe"


def test_what_is_no_place_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "circle").symlink_to("circle")
    places = ["", "missing/file", "file/in", "new/", ".", "n" * 256, "zero\0", "circle"]
    for place in places:
        with (
            pytest.raises(RlxError, match="cannot write"),
            replacing(place and f"{tmp_path}/{place}"),
        ):
            pytest.fail("it is too late to say so")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(RlxError, match="file: Permission denied"), replacing(f"{tmp_path}/file"):
        pytest.fail("it is too late to say so")
    assert (tmp_path / "file").read_bytes() == b"kept"
    assert len(list(tmp_path.iterdir())) == 2


def test_an_input_stays_by_whatever_name(tmp_path: Path):
    file = tmp_path / "file"
    file.write_bytes(b"input")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "hard").hardlink_to(file)
    for name in ("file", "link", "hard", "../" + tmp_path.name + "/file"):
        with pytest.raises(RlxError, match="it is an input: name another file"):
            write(tmp_path / name, "-", "", "zero\0", tmp_path / "none", file)
    assert file.read_bytes() == b"input"


# The tools


@pytest.fixture
def too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reads a model fails."""

    def fail(*_: object, **__: object) -> None:
        pytest.fail("it is too late to say so")

    monkeypatch.setattr("rlx.driver.load", fail)
    monkeypatch.setattr(generate, "load_language", fail)
    monkeypatch.setattr(session, "parse", fail)


COMMANDS = {
    "embed": (["bert", "lines.txt", "--profile", "p.toml"], ["bert/model.safetensors"]),
    "profile": (["m.gguf", "--profile", "p.toml"], []),
    "rlx-opt": (["in.mlir"], []),
}
"""Arguments, and inputs that are not among them."""


@pytest.mark.usefixtures("too_late")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_its_output_before_it_works(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rlx_opt: Callable[..., Any],
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert").mkdir()
    args, more = COMMANDS[command]
    inputs = [name for name in (*args, *more) if "." in name]
    for name in inputs:
        Path(name).write_text(name)

    def refused(place: str) -> str:
        if command == "rlx-opt":
            result = rlx_opt(*args, "-o", place)
            assert result.code == 1
            return result.err
        assert cli.main([command, *args, "-o", place]) == 1
        return capsys.readouterr().err

    for place in ("", "missing/file", "n" * 256, "."):
        message = refused(place)
        assert "error: cannot write" in message
        assert message.count("\n") == 1
    for name in inputs:
        assert f"cannot write {name}: it is an input: name another file" in refused(name)
        assert Path(name).read_text() == name
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.*")) == sorted(inputs)


def test_a_reproducer_is_written_over_no_input(tmp_path: Path, rlx_opt: Callable[..., Any]):
    source = tmp_path / "in.mlir"
    source.write_text("func.func @main(%x: f32) -> f32 {\n  func.return %x : f32\n}\n")
    args = [str(source), "-t", "llvm", "--crash-reproducer"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlx.tools.opt.session.Session._emit", broken)
        message = rlx_opt(*args, str(source)).err
        assert "no reproducer: cannot write" in message
        assert "it is an input" in message
        assert rlx_opt(*args, str(tmp_path / "found.mlir")).code == 1
    assert source.read_text().startswith("func.func")
    assert (tmp_path / "found.mlir").read_text().startswith("// RUN: rlx-opt %s --target=llvm")


def broken(*_: object) -> str:
    raise session.InternalError("broken")
