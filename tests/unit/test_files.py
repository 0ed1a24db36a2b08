"""Files that are read whole: those without an end, and what is no file, are one error."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlx.files import MOST_BYTES
from rlx.tools import cli, embed


@pytest.fixture
def fail(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`fail(*args)` runs the command, which must fail, and returns its one message."""

    def fail(*args: str) -> str:
        assert cli.main(args) == 1
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        return err

    return fail


@pytest.fixture
def large(tmp_path: Path) -> str:
    """A file of more zeros than are read: as /dev/zero, but it ends if all are."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    return str(path)


def test_files_without_an_end(
    fail: Callable[..., str],
    rlx_opt: Callable[..., Any],
    large: str,
    monkeypatch: pytest.MonkeyPatch,
):
    message = "expected at most 64 MiB, got more, perhaps without end"
    assert f"{large}: {message}" in fail("plan", large)
    assert f"cannot read {large}: {message}" in rlx_opt(large).err
    assert f"cannot read stdin: {message}" in rlx_opt(stdin=bytes(MOST_BYTES + 1)).err
    with open(large, "rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        assert f"stdin: {message.replace('64', '4')}" in fail("generate", "m", "--prompt", "-")
    found = fail("inspect", __file__, "--stage", "hir", "--profile", large)
    assert f"{large}: expected a profile in TOML: {message}" in found


def test_lines_without_an_end(
    fail: Callable[..., str], large: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    message = "line 1: expected a text of at most 1 MiB, got more"
    assert f"{large}, {message}" in fail("embed", "m", large)
    lines = tmp_path / "lines"
    lines.write_bytes(b"a text\r\n" * 1000)
    monkeypatch.setattr(embed, "_MOST_MEMORY", 999 * sys.getsizeof("a text"))
    assert f"{lines}, line 1000: expected texts that take at most" in fail("embed", "m", str(lines))
    # Its end is no part of a line.
    monkeypatch.setattr(embed, "_MOST_LINE", len("a text"))
    monkeypatch.setattr(embed, "_MOST_MEMORY", 1000 * sys.getsizeof("a text"))
    assert "expected the folder of an encoder" in fail("embed", str(tmp_path), str(lines))
