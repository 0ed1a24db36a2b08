"""Stages with their times, what a terminal shows of them, and RLX_DUMP."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from models import write_llama

import rlx
from rlx import dump
from rlx.errors import RlxError
from rlx.runtime import stages
from rlx.runtime.stages import recorded, shown, stage
from rlx.tools import cli

pytestmark = pytest.mark.usefixtures("folder")

SHAPE = {"layers": 2, "d": 32, "ffn": 64, "heads": 2, "kv_heads": 1, "vocab": 301, "ctx": 64}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "small.gguf", **SHAPE)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# Stages


def test_stages_nest_in_their_order() -> None:
    with recorded() as found:
        with stage("a"), stage("b"):
            time.sleep(0.002)
        with pytest.raises(ValueError, match="x"), stage("c"):
            raise ValueError("x")
    assert [(s.depth, s.name) for s in found.stages] == [(0, "a"), (1, "b"), (0, "c")]
    a, b, c = (s.seconds for s in found.stages)
    assert a >= b >= 0.002
    assert c >= 0
    assert found.now() == ""
    assert [line.split()[0] for line in found.table().splitlines()] == ["a", "b", "c"]
    with stage("nobody listens"):
        pass


def test_verbose_prints_every_stage(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for cold in (True, False):
        assert cli.main(["generate", str(model), "--ids", "1,2,3", "-n", "2", "-v"]) == 0
        err = capsys.readouterr().err
        lines = [" ".join(line.split()[:-2]) for line in err.splitlines() if line.endswith(" ms")]
        for name in ("loading small.gguf", "weights", "prologues", "tokenizer", "prefill"):
            assert name in lines
        passes = ("legalize-hir", "fuse-epilogue", "plan-lir", "verification", "emission", "LLVM")
        for name in (*passes, "compiling decode of small.gguf", "packing"):
            assert (name in lines) == cold, name


def test_json_has_the_stages(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", str(model), "--ids", "1,2,3", "-n", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["stages"]
    assert {"depth", "name", "seconds"} == set(found[0])
    assert "LLVM" in [s["name"] for s in found]
    assert all(s["seconds"] >= 0 for s in found)


# The terminal


def test_a_terminal_shows_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "SHOWN_AFTER_S", 0.01)
    monkeypatch.setattr(stages, "_EVERY_S", 0.01)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with shown("loading x"), shown("compiling y"), stage("LLVM"):
        deadline = time.monotonic() + 10
        while "LLVM" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    parts = terminal.getvalue().split("\r")
    assert any("s: loading x: compiling y: LLVM" in part for part in parts)
    assert parts[0] == parts[-1] == "", "the line is cleared"
    assert parts[-2].isspace()
    assert "\n" not in terminal.getvalue()


def test_a_terminal_shows_nothing_of_what_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with shown("loading x"):
        pass
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("stream", [io.StringIO(), None])
def test_what_is_no_terminal_shows_nothing(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(sys, "stderr", stream)
    with shown("loading x"):
        time.sleep(0.02)
    assert stream is None or stream.getvalue() == ""


def test_a_terminal_that_goes_away_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError("gone")

    monkeypatch.setattr(stages, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(sys, "stderr", Gone())
    with shown("loading x"):
        time.sleep(0.02)


# RLX_DUMP


@pytest.fixture
def dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLX_DUMP", str(tmp_path / "dump"))
    monkeypatch.setattr(dump, "_counts", type(dump._counts)())
    return tmp_path / "dump"


def test_each_stage_and_each_kernel_of_a_model_is_written(model: Path, dumped: Path) -> None:
    loaded = rlx.load(model)
    wanted = list(loaded.generate_ids([1, 2, 3], 4))
    for program in ("prefill", "decode"):
        folder = dumped / f"{program}_of_small.gguf"
        names = {p.name for p in folder.iterdir()}
        assert names == {"hir.mlir", "mir.mlir", "lir.mlir", "llvm.ll", "asm.s", "kernels"}
        for stage_name in ("hir", "lir"):
            text = (folder / f"{stage_name}.mlir").read_text()
            assert text == loaded.ir(stage_name, program)
        assert (folder / "llvm.ll").read_text() == loaded.ir("llvm", program)
        kernels = {p.name for p in (folder / "kernels").iterdir()}
        functions = {name.removesuffix(".ll") for name in kernels if name.endswith(".ll")}
        assert {"rlx_step", "rlx_pack", "k_sample", "k_embedding"} <= functions
        assert {f"{name}.s" for name in functions} == {n for n in kernels if n.endswith(".s")}
        text = (folder / "kernels" / "rlx_step.ll").read_text()
        assert text.startswith("define ")
        assert text.endswith("}\n")
        assert text.count("define ") == 1
        assert "rlx_step:" in (folder / "kernels" / "rlx_step.s").read_text()
    # What is in the cache by now is compiled again, as else there would be nothing to write.
    again = rlx.load(model)
    assert again.stats.compilations == 2
    assert list(again.generate_ids([1, 2, 3], 4)) == wanted
    assert (dumped / "decode_of_small.gguf-2" / "llvm.ll").is_file()


def test_functions_are_dumped_and_old_files_go(dumped: Path) -> None:
    folder = dumped / "the_function_twice"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "left.s").write_text("of an earlier run")
    (folder / "notes.txt").write_text("mine")

    @rlx.jit
    def twice(x: np.ndarray) -> np.ndarray:
        return x + x

    twice(np.ones(3))
    twice(np.ones((3, 3), np.float32))
    assert not (folder / "kernels" / "left.s").exists()
    assert (folder / "notes.txt").read_text() == "mine"
    assert (dumped / "the_function_twice-2" / "hir.mlir").read_text() != (
        folder / "hir.mlir"
    ).read_text()


def test_a_dump_that_cannot_be_written_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("RLX_DUMP", str(tmp_path / "file" / "dump"))
    with pytest.raises(RlxError, match=f"RLX_DUMP: {tmp_path}.*name a folder that can be written"):
        rlx.jit(lambda x: x - 1)(np.ones(3))


def test_names_are_fit_for_files(dumped: Path) -> None:
    found = dump.Dump.of("../../a b/c")
    assert found is not None
    assert found.folder.parent == dumped
    assert os.sep not in found.folder.name
