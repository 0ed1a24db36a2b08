"""`rlx-opt --bisect-numerics`: the first pass after which outputs are others."""

import re

import numpy as np
import pytest
from opt_passes import LAYERS, STATE, register

from rlx.tools.opt.bisect import nmse

PIPELINE = "legalize-hir,fuse-epilogue,fuse-norm,hoist-params,derive-phases,plan-lir"
ALL = f"--bisect-numerics -p {PIPELINE}".split()


@pytest.fixture(autouse=True)
def _wrong(monkeypatch):
    register(monkeypatch)


def errors(out: str) -> dict[str, tuple[str, dict[str, float]]]:
    """Return, by pass, what ran it and the errors of the outputs."""
    head, first, *rows = out.splitlines()
    assert head.startswith("// NMSE")
    assert first.split()[:2] == ["reference", "input"]
    table = {}
    for row in rows:
        how, name, *rest = re.split(r" {2,}", row)
        pairs = (pair.rpartition(" ") for pair in rest[0].split(", "))
        table[name] = (how, {key: float(value) for key, _, value in pairs})
    return table


@pytest.mark.parametrize("args", [[], ["--dim=rows=7", "--seed=3"]])
def test_a_good_pipeline_gives_a_table(rlx_opt, args):
    result = rlx_opt(*ALL, *args, stdin=LAYERS)
    assert (result.code, result.err) == (0, "")
    table = errors(result.out)
    assert list(table) == PIPELINE.split(",")
    assert {how for how, _ in list(table.values())[:-1]} == {"reference"}
    how, planned = table["plan-lir"]
    assert how == "jit"
    assert set(planned) == {"y", "z"}
    assert all(0 < error < 1e-8 for error in planned.values())
    assert all(error < 1e-20 for _, row in list(table.values())[:-1] for error in row.values())


def test_state_is_compared_and_a_second_step_reads_it(rlx_opt):
    result = rlx_opt(*ALL, stdin=STATE)
    assert result.code == 0, result.err
    table = errors(result.out)
    assert set(table["fuse-norm"][1]) == {"y", "state @k", "state @v"}
    assert set(table["plan-lir"][1]) == {"y"}


@pytest.mark.parametrize("past", [0, 3])
def test_a_state_that_a_pass_spoils_shows_at_once_and_in_the_second_step(rlx_opt, past):
    passes = PIPELINE.replace("fuse-epilogue", "wrong{how=clobber},fuse-epilogue")
    result = rlx_opt("--bisect-numerics", "-p", passes, f"--dim=past={past}", stdin=STATE)
    assert (result.code, result.out) == (1, "")
    assert "diverge after pass 'wrong'" in result.err
    assert re.search(r"^  y: NMSE \S+, at step 2, \[", result.err, re.MULTILINE)
    assert re.search(rf"^  state @k: NMSE \S+, at \[{past}|{past + 1}, ", result.err, re.MULTILINE)


def test_one_step_where_the_sizes_allow_no_second(rlx_opt):
    args = ["--bisect-numerics", "--dim=past=8", "-p"]
    assert rlx_opt(*args, PIPELINE, stdin=STATE).code == 0
    result = rlx_opt(*args, "legalize-hir,wrong{how=clobber}", stdin=STATE)
    assert "state @k: NMSE" in result.err
    assert "y: NMSE" not in result.err


@pytest.mark.parametrize(
    ("how", "where", "outputs"),
    [
        ("silu-to-relu", 0, "y"),
        ("silu-to-relu", 2, "y"),
        ("add-to-sub", 1, "y"),
        ("add-to-sub", 6, "y"),
        ("silu-to-relu", 6, "y"),
        ("eps", 3, "y"),
        ("exp-of-exp", 1, "z"),
    ],
)
def test_a_wrong_pass_is_named_with_numbers(rlx_opt, how, where, outputs):
    passes = PIPELINE.split(",")
    passes.insert(where, f"wrong{{how={how}}}")
    result = rlx_opt("--bisect-numerics", "-p", ",".join(passes), stdin=LAYERS)
    assert (result.code, result.out) == (1, "")
    title, *lines = result.err.splitlines()
    assert title == "stdin: error: --bisect-numerics: outputs diverge after pass 'wrong'"
    named = [line.split(":")[0].strip() for line in lines if ": NMSE" in line]
    assert named == [outputs]
    explained = re.search(r"NMSE (\S+), at \[\d+, \d+\] expected (\S+), got (\S+)$", lines[0])
    assert float(explained[1]) > 1e-9
    assert explained[2] != explained[3]
    assert f"by the {'jit' if where == 6 else 'reference'}" in lines[1]
    assert "  changed: @" in result.err
    assert len(lines) <= 13


def test_what_the_pass_changed_is_shown(rlx_opt):
    result = rlx_opt(*ALL[:2], "legalize-hir,wrong{how=silu-to-relu}", stdin=LAYERS)
    assert "  changed: @main\n    -  %silu = mir.unary silu %x" in result.err
    assert "    +  %silu = mir.unary relu %x" in result.err
    result = rlx_opt(*ALL[:2], "wrong{how=exp-of-exp}", stdin=LAYERS)
    assert "  operations: +1000 mir.unary\n" in result.err
    assert "    and 998 more\n" in result.err


def test_infinities_are_a_difference_and_equal_ones_are_none(rlx_opt):
    result = rlx_opt(*ALL[:2], "wrong{how=exp-of-exp}", stdin=LAYERS)
    assert "z: NMSE inf, at [0, 0] expected" in result.err
    text = re.sub(r"mir.unary exp (%\w+)", r"mir.unary sqrt \1", LAYERS)
    both = rlx_opt(*ALL[:2], "legalize-hir,wrong{how=nothing},fuse-norm", stdin=text)
    assert both.code == 0, both.err


def test_passes_after_the_first_wrong_one_are_not_run(rlx_opt):
    passes = "wrong{how=silu-to-relu},legalize-hir,wrong{how=crash}"
    assert "diverge after pass 'wrong'" in rlx_opt(*ALL[:2], passes, stdin=LAYERS).err


def test_a_module_that_no_longer_runs(rlx_opt):
    passes = "legalize-hir,wrong{how=misspell},dce"
    result = rlx_opt("--bisect-numerics", "-p", passes, stdin=STATE)
    assert (result.code, result.out) == (1, "")
    title, reason, *_ = result.err.splitlines()
    assert title == "stdin: error: --bisect-numerics: no run after pass 'wrong'"
    assert reason.startswith("  reference: expected a state @k")


def test_errors_may_be_allowed(rlx_opt):
    args = ["--bisect-numerics", "-p", "legalize-hir,wrong{how=eps}"]
    assert rlx_opt(*args, stdin=LAYERS).code == 1
    assert rlx_opt(*args, "--threshold=0.1", stdin=LAYERS).code == 0
    assert rlx_opt(*ALL, "--threshold=0", stdin=LAYERS).code == 1


def test_inputs_from_files(rlx_opt, tmp_path):
    # Of zeros the two functions are the same.
    np.save(tmp_path / "x.npy", np.zeros((2, 64), np.float32))
    args = ["--bisect-numerics", "-p", "wrong{how=silu-to-relu}"]
    assert rlx_opt(*args, f"--input=x={tmp_path / 'x.npy'}", stdin=LAYERS).code == 0
    assert rlx_opt(*args, stdin=LAYERS).code == 1


def test_a_planned_module_is_the_first_to_run(rlx_opt):
    planned = rlx_opt("-p", PIPELINE, stdin=LAYERS).out
    good = rlx_opt("--bisect-numerics", "-p", "verify-plan,cse", stdin=planned)
    assert good.code == 0, good.err
    assert re.findall(r"^jit +(\S+)", good.out, re.MULTILINE) == ["input", "verify-plan", "cse"]
    bad = rlx_opt("--bisect-numerics", "-p", "wrong{how=silu-to-relu}", stdin=planned)
    assert "diverge after pass 'wrong'" in bad.err


def test_each_part_is_compared_with_itself(rlx_opt):
    text = f"{LAYERS}// -----\n{STATE}"
    result = rlx_opt(*ALL, "--split-input-file", stdin=text)
    assert result.code == 0, result.err
    assert result.out.count("// NMSE") == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--bisect-numerics", "--run=main"], "got both"),
        (["--bisect-numerics", "-t", "json"], "got both"),
        (["--threshold=0.5"], "--threshold is for --bisect-numerics"),
        (["--bisect-numerics", "--threshold=-1"], "at least 0"),
        (["--bisect-numerics", "--threshold=nan"], "at least 0"),
        (["--bisect-numerics", "--threshold=low"], "invalid float value"),
        (["--bisect-numerics", "--dim=rows=65"], "must be from 1 to 64, got 65"),
    ],
)
def test_bad_requests(rlx_opt, args, message):
    result = rlx_opt(*args, stdin=LAYERS)
    assert (result.code, result.out) == (1, "")
    assert message in result.err
    assert len(result.err.splitlines()) == 1


def test_a_module_without_a_program(rlx_opt):
    result = rlx_opt("--bisect-numerics", stdin="func.func @f() {\n  func.return\n}")
    assert (result.code, result.out) == (1, "")
    assert "expected a function @main" in result.err


@pytest.mark.parametrize(
    ("got", "wanted", "expected"),
    [
        ([1, 2], [1, 2], 0),
        ([1, 2], [1, 1], 0.5),
        ([0, 0], [0, 0], 0),
        ([0, 1], [0, 0], np.inf),
        ([np.nan, 1], [np.nan, 1], 0),
        ([np.nan, 1], [0, 1], np.inf),
        ([0, 1], [np.nan, 1], np.inf),
        ([np.inf, 2], [np.inf, 1], 1),
        ([-np.inf, 1], [np.inf, 1], np.inf),
        ([], [], 0),
    ],
)
def test_the_normalised_error(got, wanted, expected):
    assert nmse(np.array(got, np.float32), np.array(wanted, np.float64)) == expected
