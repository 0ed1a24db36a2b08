"""
FileCheck files as pytest items, `rlx-opt` in process, cache folders, and what a run leaves to
`make fuzz`.

Each RUN line of a `tests/filecheck/**/*.mlir` is one item, `rlx-opt %s ... | filecheck %s ...`,
run in this process: 15 ms instead of 350 for two of their own. `%s` is the file.
"""

from __future__ import annotations

import io
import os
import random
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

FILECHECK = Path(__file__).parent / "filecheck"
RUN = re.compile(r"^\s*// RUN:\s*(.*)$", re.MULTILINE)
SUBSTITUTIONS = {
    "RLX_ROUNDTRIP": "rlx-opt %s --print-op-generic --split-input-file"
    " | rlx-opt --split-input-file",
    "RLX_GENERIC_ROUNDTRIP": "rlx-opt %s --split-input-file"
    " | rlx-opt --print-op-generic --split-input-file",
}
"""Reads a file, prints it in the one form, reads that and prints it in the other."""
SHOWN = 200
"""Lines of filecheck's input that a failure shows."""

Cases = dict[str, list[pytest.Item]]
"""The tests of each case, which its parameters but for the level name."""


@dataclass(frozen=True)
class Result:
    """What a command left: its exit code, and its output and errors as text."""

    code: int
    out: str
    err: str


def run_opt(*args: str, stdin: str | bytes = "") -> Result:
    """Run `rlx-opt` in this process."""
    from rlx.tools.opt import main

    data = stdin.encode() if isinstance(stdin, str) else stdin
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data))),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = main(args)
    return Result(code, out.getvalue(), err.getvalue())


def run_filecheck(*args: str, stdin: str) -> Result:
    """Run filecheck in this process; its messages are the errors."""
    from filecheck.finput import FInput
    from filecheck.matcher import Matcher
    from filecheck.options import parse_argv_options
    from filecheck.parser import Parser, pattern_for_opts

    opts = parse_argv_options(["filecheck", *args])
    checks = Parser(
        opts, io.StringIO(Path(opts.match_filename).read_text()), *pattern_for_opts(opts)
    )
    err = io.StringIO()
    with redirect_stderr(err), redirect_stdout(err):
        code = Matcher(opts, FInput("<stdin>", stdin), checks).run()
    return Result(code, "", err.getvalue())


COMMANDS: dict[str, Callable[..., Result]] = {"rlx-opt": run_opt, "filecheck": run_filecheck}


class FileCheckError(Exception):
    """Why a RUN line failed: shown as it is, without a traceback."""


def run_line(line: str, path: Path) -> None:
    """Run the commands of a RUN line; raise FileCheckError at the first that fails."""
    for name, commands in SUBSTITUTIONS.items():
        line = re.sub(rf"\b{name}\b", commands, line)
    commands = [shlex.split(part.replace("%s", str(path))) for part in line.split(" | ")]
    if commands[-1][:1] != ["filecheck"]:
        raise FileCheckError(f"expected a RUN line that ends in filecheck, got: {line}")
    text = ""
    for command, *args in commands:
        if command not in COMMANDS:
            known = ", ".join([*COMMANDS, *SUBSTITUTIONS])
            raise FileCheckError(f"unknown command '{command}': expected one of {known}")
        result = COMMANDS[command](*args, stdin=text)
        if result.code != 0:
            raise FileCheckError(
                f"RUN: {line}\n{command} failed with exit code {result.code}\n{result.err}\n"
                f"--- input of {command}\n{_numbered(text)}"
            )
        text = result.out


def _numbered(text: str) -> str:
    lines = text.splitlines()
    shown = [f"{i:4} {line}" for i, line in enumerate(lines[:SHOWN], 1)]
    left = len(lines) - SHOWN
    return "\n".join([*shown, f"     ... {left} more lines"] if left > 0 else shown)


class FileCheckItem(pytest.Item):
    """One RUN line of a file; a file without any is one item, which fails."""

    def __init__(self, line: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.line = line

    def runtest(self) -> None:
        if not self.line:
            raise FileCheckError(f"{self.path}: expected a line '// RUN: ... | filecheck %s'")
        run_line(self.line, self.path)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, FileCheckError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


class FileCheckFile(pytest.File):
    def collect(self) -> Iterator[FileCheckItem]:
        lines = RUN.findall(self.path.read_text())
        for i, line in enumerate(lines or [""], 1):
            yield FileCheckItem.from_parent(self, name=f"run{i}", line=line.strip())


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> FileCheckFile | None:
    if file_path.suffix == ".mlir" and file_path.is_relative_to(FILECHECK):
        return FileCheckFile.from_parent(parent, path=file_path)
    return None


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of a file's own; the file names it in its `pytestmark`."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLX_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder of a test's own, which is not there yet; warnings are given again."""
    from rlx.runtime import cache_files

    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_files, "_warned", set())
    return tmp_path / "cache"


@pytest.fixture
def rlx_opt() -> Callable[..., Result]:
    """`rlx_opt(*args, stdin="")` runs the tool in this process."""
    return run_opt


@pytest.fixture
def call_seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`call_seconds(s)` lets native calls take about so long."""
    from rlx.runtime import batch, language, program

    def let(seconds: float) -> None:
        for module in (batch, language, program):
            monkeypatch.setattr(module, "CALL_SECONDS", seconds)

    return let


def is_full() -> bool:
    return os.environ.get("RLX_FUZZ") == "full"


@pytest.fixture
def fuzz_count() -> Callable[[int, int], int]:
    """`fuzz_count(full, sample)` is how many cases to try: all of them under RLX_FUZZ=full."""
    return lambda full, sample: full if is_full() else sample


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "sample(count): so many of a test's cases, all of them under RLX_FUZZ=full"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Leave out most instruction-set levels of the cases of a test, except under RLX_FUZZ=full.

    A case, which is the parameters besides `level`, stays at the host's level, and at others in
    turn: every test runs at every level. Of a test marked `sample`, so many of those that are left
    stay. What is asked for by its name runs.
    """
    if is_full() or any("::" in arg for arg in config.args):
        return
    left_out = {item for cases in by_level(items).values() for item in beyond_sample(cases)}
    left_out |= set(beyond_mark([item for item in items if item not in left_out]))
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def beyond_mark(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Return what the marks leave out."""
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample"):
            found.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in found.values():
        mark = cases[0].get_closest_marker("sample")
        assert mark is not None
        places = [getattr(item, "callspec").indices.items() for item in cases]
        kept = spread([[f"{name} {i}" for name, i in place] for place in places], *mark.args)
        yield from (item for i, item in enumerate(cases) if i not in kept)


def spread(cases: Sequence[Sequence[str]], count: int) -> set[int]:
    """Return which of the cases to keep: each value of each parameter about as often."""
    left = random.Random(len(cases)).sample(range(len(cases)), len(cases))
    times, kept = Counter[str](), set[int]()
    while left and len(kept) < count:
        least = min(left, key=lambda i: sum(times[value] for value in cases[i]))
        times.update(cases[least])
        left.remove(least)
        kept.add(least)
    return kept


def by_level(items: Sequence[pytest.Item]) -> dict[str, Cases]:
    """Return the tests that have a level, by function and by the other parameters."""
    found: dict[str, Cases] = {}
    for item in items:
        spec = getattr(item, "callspec", None)
        if spec is not None and "level" in spec.params:
            case = f"-{spec.id}-".replace(f"-{spec.params['level']}-", "-", 1)
            function = item.nodeid.partition("[")[0]
            found.setdefault(function, {}).setdefault(case, []).append(item)
    return found


def beyond_sample(cases: Cases) -> Iterator[pytest.Item]:
    """Return what a sample leaves out: most levels of a case but the last, the host's own."""
    rng, turns = random.Random(0), list[int]()
    for *others, _ in cases.values():
        kept = -(-len(others) // len(cases))
        # In an order that no other parameter has: none meets always the same level.
        if len(turns) < kept:
            turns += rng.sample(range(len(others)), len(others))
        yield from (other for i, other in enumerate(others) if i not in turns[:kept])
        del turns[:kept]
