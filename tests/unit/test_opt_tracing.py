"""`rlx-opt`: the module around passes, times, counts, and reproducers of crashes."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from rlx.dialects.common import QuantType, tensor
from rlx.dialects.hir import WeightOp
from rlx.passes.registry import PASSES
from rlx.tools.opt.statistics import Timing

RESIDUAL = Path(__file__).parents[2] / "examples" / "residual.mlir"
PIPELINE = "legalize-hir,cse,dce,hoist-params"


def titles(err: str) -> list[str]:
    return re.findall(r"^// IR (.*)$", err, re.MULTILINE)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], []),
        (["--print-ir-before=cse"], ["before cse"]),
        (["--print-ir-after=cse"], ["after cse"]),
        (["--print-ir-after=dce", "--print-ir-before", "cse"], ["before cse", "after dce"]),
        (["--print-ir-after=cse", "--print-ir-after=dce"], ["after cse", "after dce"]),
        (["--print-ir-after=cse,dce"], ["after cse", "after dce"]),
        (["--print-ir-before=cse,dce", "--print-ir-before=dce"], ["before cse", "before dce"]),
        (["--print-ir-after=plan-lir"], []),
        (["--print-ir-after-change"], ["after legalize-hir", "after hoist-params"]),
        (["--print-ir-before-all"], [f"before {name}" for name in PIPELINE.split(",")]),
        (["--print-ir-after-all"], [f"after {name}" for name in PIPELINE.split(",")]),
    ],
)
def test_modules_around_passes(rlx_opt, args, expected):
    result = rlx_opt(str(RESIDUAL), "-p", PIPELINE, *args)
    assert result.code == 0
    assert titles(result.err) == expected
    assert result.out == rlx_opt(str(RESIDUAL), "-p", PIPELINE).out


def test_what_is_printed_is_the_module_at_that_point(rlx_opt):
    result = rlx_opt(
        str(RESIDUAL),
        "-p",
        PIPELINE,
        "--print-ir-before=legalize-hir",
        "--print-ir-after=hoist-params",
    )
    source, final = re.split(r"^// IR .*\n", result.err, flags=re.MULTILINE)[1:]
    assert source == rlx_opt(str(RESIDUAL)).out
    assert final == result.out != source


def test_a_pass_that_is_asked_for_must_exist(rlx_opt):
    result = rlx_opt(str(RESIDUAL), "-p", "cse", "--print-ir-after=nope")
    assert result.code == 1
    assert "unknown pass 'nope'" in result.err


def test_the_generic_form_is_used_everywhere(rlx_opt):
    result = rlx_opt(str(RESIDUAL), "-p", "cse", "--print-ir-after-all", "--mlir-print-op-generic")
    assert result.err == f"// IR after cse\n{result.out}"
    assert '"hir.linear"(' in result.out


def test_tree_of_numbered_files(rlx_opt, tmp_path):
    folder = tmp_path / "a" / "b"
    result = rlx_opt(str(RESIDUAL), "-p", PIPELINE, "--print-ir-tree-dir", str(folder))
    assert result.code == 0
    names = ["input", *PIPELINE.split(",")]
    assert sorted(p.name for p in folder.iterdir()) == [
        f"{i:02}_{name}.mlir" for i, name in enumerate(names)
    ]
    assert (folder / "00_input.mlir").read_text() == rlx_opt(str(RESIDUAL)).out
    assert (folder / "04_hoist-params.mlir").read_text() == result.out
    assert "mir.linear" not in (folder / "01_legalize-hir.mlir").read_text()
    # Each file goes on from where it stands.
    rest = rlx_opt(str(folder / "01_legalize-hir.mlir"), "-p", "cse,dce,hoist-params")
    assert rest.out == result.out


def test_tree_of_a_split_file(rlx_opt, tmp_path):
    text = 'hir.weight @a "a" : tensor<3xf32>\n// -----\nhir.weight @b "b" : tensor<3xf32>\n'
    folder = str(tmp_path)
    assert rlx_opt("--split-input-file", "--print-ir-tree-dir", folder, stdin=text).code == 0
    assert '"a"' in (tmp_path / "part_1" / "00_input.mlir").read_text()
    assert '"b"' in (tmp_path / "part_2" / "00_input.mlir").read_text()


def test_a_tree_that_cannot_be_written(rlx_opt, tmp_path):
    (tmp_path / "file").write_text("")
    result = rlx_opt(str(RESIDUAL), "--print-ir-tree-dir", str(tmp_path / "file" / "x"))
    assert (result.code, result.out) == (1, "")
    assert "cannot write" in result.err


@pytest.mark.parametrize("option", ["--timing", "--time-passes"])
def test_timing(rlx_opt, option):
    result = rlx_opt(str(RESIDUAL), "-p", "cse,dce,cse", option)
    assert result.out == rlx_opt(str(RESIDUAL)).out
    head, columns, *rows = result.err.splitlines()
    assert (head, columns.split()) == ("// timing", ["ms", "percent"])
    table = {what: (float(ms), float(share)) for ms, share, what in map(str.split, rows)}
    assert list(table) == ["parse", "verify", "cse", "dce", "print", "total"]
    parts = [table[name] for name in list(table)[:-1]]
    assert table["total"][1] == 100
    assert sum(ms for ms, _ in parts) == pytest.approx(table["total"][0], abs=0.5)
    assert sum(share for _, share in parts) == pytest.approx(100, abs=0.5)


def test_times_of_the_same_thing_are_added_up(monkeypatch):
    clock = iter([0.0, 1.0, 5.0, 6.0, 10.0, 12.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    timing = Timing()
    for what in ("a", "b", "a"):
        with timing.measure(what):
            pass
    table = [line.split() for line in timing.table().splitlines()[2:]]
    assert table == [
        ["3000.0", "75.0", "a"],
        ["1000.0", "25.0", "b"],
        ["4000.0", "100.0", "total"],
    ]


def rows(text: str) -> dict[str, list[int]]:
    found = re.findall(r"^((?: +\d+)+)  (\S.*)$", text, re.MULTILINE)
    return {what: [int(n) for n in numbers.split()] for numbers, what in found}


def test_statistics(rlx_opt):
    result = rlx_opt(str(RESIDUAL), "-p", "rlx-default", "--statistics")
    assert result.out == rlx_opt(str(RESIDUAL), "-p", "rlx-default").out
    counts = rows(result.err)
    assert counts["hir.linear"] == [1, 0]
    assert "builtin.module" not in counts
    assert counts["lir.kernel"] == [0, result.out.count("lir.kernel @")]
    assert counts["lir.launch"] == [0, result.out.count("lir.launch @")]
    for i in range(2):
        total = sum(n[i] for what, n in counts.items() if what.endswith("., all"[1:]))
        by_operation = sum(n[i] for what, n in counts.items() if "." in what)
        assert by_operation == counts["all"][i]
        assert total == counts["all"][i]
    arena, bound = re.search(r"arena of (\d+) bytes, lower bound (\d+)", result.err).groups()
    assert f"arena {arena} lower_bound {bound}" in result.out
    # One norm, one product and their barriers per layer, of which there are two.
    assert "  5 launches per step\n" in result.err


def test_statistics_before_planning_have_no_plan(rlx_opt):
    result = rlx_opt(str(RESIDUAL), "--statistics")
    assert rows(result.err)["hir.linear"] == [1, 1]
    assert "plan" not in result.err
    stats = rlx_opt(str(RESIDUAL), "-t", "stats").out
    assert rows(stats)["hir.linear"] == [1]


# Crashes


@dataclass(frozen=True)
class BreakPass(ModulePass):
    name = "break"
    how: str = "raise"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        weight = next(o for o in op.ops if isinstance(o, WeightOp))
        if self.how == "raise":
            weight.detach()
            raise KeyError("lost")
        weight.properties["type"] = tensor([8, 33], QuantType(StringAttr("q8_0")))


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PASSES, "break", lambda: BreakPass)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "pass 'break': internal error, KeyError: 'lost'"),
        ("invalid", "after pass 'break': weight @norm: expected rows of whole q8_0 blocks"),
    ],
)
def test_crash_reproducer(rlx_opt, tmp_path, how, message):
    path = tmp_path / "crash.mlir"
    args = ["-p", f"legalize-hir,break{{how={how}}},cse", "--crash-reproducer", str(path)]
    result = rlx_opt(str(RESIDUAL), *args)
    assert (result.code, result.out) == (1, "")
    assert message in result.err
    assert result.err.endswith(f"\n  reproducer: {path}\n")
    first, source = path.read_text().split("\n", 1)
    assert source == rlx_opt(str(RESIDUAL), "-p", "legalize-hir").out
    passes = re.fullmatch(r"// RUN: rlx-opt %s -p '?(break[^']*)'?", first)[1]
    again = rlx_opt(str(path), "-p", passes)
    assert again.code == 1
    assert message in again.err


@pytest.mark.usefixtures("broken")
def test_no_reproducer_unless_it_is_asked_for_or_needed(rlx_opt, tmp_path):
    path = tmp_path / "crash.mlir"
    assert "reproducer" not in rlx_opt(str(RESIDUAL), "-p", "break").err
    # An error in the input is no crash.
    args = ["-p", "verify-stage{stage=lir}", "--crash-reproducer", str(path)]
    assert rlx_opt(str(RESIDUAL), *args).code == 1
    assert rlx_opt(str(RESIDUAL), "-p", "cse", "--crash-reproducer", str(path)).code == 0
    assert not path.exists()


@pytest.mark.usefixtures("broken")
def test_a_reproducer_that_cannot_be_written_hides_no_error(rlx_opt):
    args = ["-p", "break", "--crash-reproducer", "/no/such/folder/crash.mlir"]
    result = rlx_opt(str(RESIDUAL), *args)
    assert result.code == 1
    assert "KeyError: 'lost'" in result.err
    assert "no reproducer: cannot write /no/such/folder/crash.mlir" in result.err


def test_invalid_modules_end_in_a_message(rlx_opt):
    text = (
        'lir.program @p arena 0 lower_bound 0 alignment 1 state 0 weights 0 fingerprint "" {\n'
        "  lir.launch @none steady_state ins() outs()\n}"
    )
    for args in (["--statistics"], ["-t", "stats"], ["--print-ir-after-all", "-p", "cse"]):
        result = rlx_opt("--disable-verify", *args, stdin=text)
        assert "Traceback" not in result.err
        assert result.code in (0, 1)
    assert rlx_opt("--disable-verify", "--statistics", stdin=text).code == 1
