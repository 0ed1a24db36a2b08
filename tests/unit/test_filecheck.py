"""The FileCheck harness: a file passes only if its RUN lines run and its CHECK lines match."""

from pathlib import Path

import pytest
from conftest import FileCheckError, run_line

WEIGHT = 'hir.weight @w "w" : tensor<3xf32>'
BAD = 'hir.weight @w "w" : tensor<-3xf32>'


def check(tmp_path: Path, line: str, text: str) -> None:
    path = tmp_path / "in.mlir"
    path.write_text(text)
    run_line(line, path)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("rlx-opt %s | filecheck %s", f"{WEIGHT}\n// CHECK: hir.weight @w\n// CHECK-NEXT: }}"),
        ("rlx-opt %s -p cse,dce | filecheck %s --check-prefix=A", f"{WEIGHT}\n// A: @w"),
        ("rlx-opt %s | rlx-opt -p 'cse' | filecheck %s", f"{WEIGHT}\n// CHECK: @w"),
        ("RLX_ROUNDTRIP | filecheck %s", f"{WEIGHT}\n// CHECK: hir.weight @w"),
        ("RLX_GENERIC_ROUNDTRIP | filecheck %s", f'{WEIGHT}\n// CHECK: "hir.weight"()'),
        ("rlx-opt %s --verify-diagnostics | filecheck %s", f"{BAD}\n// CHECK: error: Expected"),
    ],
)
def test_passes(tmp_path, line, text):
    check(tmp_path, line, text)


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        ("rlx-opt %s | filecheck %s", f"{WEIGHT}\n// CHECK: hir.state", "Couldn't match"),
        ("rlx-opt %s | filecheck %s", f"{WEIGHT}\n// CHECK-NOT: @w", "excluded string"),
        ("rlx-opt %s | filecheck %s", WEIGHT, "No check strings found"),
        ("rlx-opt %s | filecheck %s", f"{BAD}\n// CHECK: @w", "Expected shape type"),
        ("rlx-opt %s", f"{WEIGHT}\n// CHECK: @w", "ends in filecheck"),
        ("cat %s | filecheck %s", f"{WEIGHT}\n// CHECK: @w", "unknown command 'cat'"),
        ("rlx-opt %s -p nope | filecheck %s", f"{WEIGHT}\n// CHECK: @w", "unknown pass 'nope'"),
    ],
)
def test_fails(tmp_path, line, text, message):
    with pytest.raises(FileCheckError, match=message):
        check(tmp_path, line, text)


def test_a_failure_shows_the_input(tmp_path):
    with pytest.raises(FileCheckError, match=r"   2   hir.weight @w"):
        check(tmp_path, "rlx-opt %s | filecheck %s", f"{WEIGHT}\n// CHECK: hir.state")


def test_sizes_of_fuzz_runs(fuzz_count, monkeypatch):
    monkeypatch.delenv("RLX_FUZZ", raising=False)
    assert fuzz_count(2000, 100) == 100
    monkeypatch.setenv("RLX_FUZZ", "full")
    assert fuzz_count(2000, 100) == 2000
