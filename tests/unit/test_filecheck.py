"""The harness: a FileCheck file passes only if its lines run and match, and sizes of samples."""

from pathlib import Path

import pytest
from conftest import FileCheckError, beyond_sample, run_line, spread

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


def test_levels_of_a_sample():
    """The host's level for all of the cases, and each of the others for some of them."""
    others = ["a", "b", "c", "d"]
    for count in (1, 2, 3, 4, 12, 200):
        cases = {str(case): [f"{case} {x}" for x in (*others, "host")] for case in range(count)}
        left_out = set(beyond_sample(cases))
        kept = [name for names in cases.values() for name in names if name not in left_out]
        assert sum(name.endswith("host") for name in kept) == count
        turns = [sum(name.endswith(x) for name in kept) for x in others]
        assert 1 <= min(turns) <= max(turns) <= min(turns) + 1, count
        # Nothing that alternates from case to case is left without one of the levels.
        if count == 200:
            for period in range(2, 11):
                seen = {name.split()[1] for name in kept if int(name.split()[0]) % period == 0}
                assert seen == {*others, "host"}
    assert list(beyond_sample({"": ["host"]})) == []


def test_a_marks_sample_has_each_value_of_each_parameter():
    cases = [[f"x {x}", f"y {y}"] for x in range(13) for y in range(4)]
    for count in (13, 20, 26):
        kept = [cases[i] for i in spread(cases, count)]
        assert len(kept) == count
        for values, most in (({x for x, _ in cases}, 13), ({y for _, y in cases}, 4)):
            turns = [sum(value in case for case in kept) for value in values]
            assert 1 <= min(turns) <= max(turns) <= -(-count // most) + 1, count
    assert len(spread(cases, 100)) == 52
