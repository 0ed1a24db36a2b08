"""`rlx-opt`: pipelines in both spellings, and what it says about passes."""

import pytest

from rlx.passes.pipelines import PIPELINES
from rlx.passes.registry import PASSES
from rlx.tools.opt.pipeline import make_nested_passes, make_passes, spell_pipeline


def test_every_pass_is_listed_with_what_it_does(rlx_opt):
    result = rlx_opt("--list-passes")
    assert (result.code, result.err) == (0, "")
    lines = [line.split(maxsplit=1) for line in result.out.splitlines() if line.startswith("  ")]
    assert [name for name, _ in lines] == [*PASSES, *PIPELINES]
    assert all(len(text) > 20 for _, text in lines)


@pytest.mark.parametrize("name", PASSES)
def test_help_of_every_pass(rlx_opt, name):
    result = rlx_opt("--help-pass", name)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{name}\n  ")
    assert "option" in result.out


def test_help_of_a_pass_shows_options_with_types_and_defaults(rlx_opt):
    norm = rlx_opt("--help-pass", "fuse-norm").out
    assert "-->" in norm
    assert "    target: str, default cpu\n    report: bool, default false\n" in norm
    assert "    effort: int, default 0\n" in rlx_opt("--help-pass", "plan-lir").out
    assert "    stage: str, required\n" in rlx_opt("--help-pass", "verify-stage").out
    assert rlx_opt("--help-pass", "verify-ssa").out.endswith("  no options\n")


def test_help_of_a_pipeline_is_its_expansion(rlx_opt):
    assert f"  {PIPELINES['rlx-decode']}\n" in rlx_opt("--help-pass", "rlx-decode").out


def test_help_of_an_unknown_pass(rlx_opt):
    result = rlx_opt("--help-pass", "nope")
    assert (result.code, result.out) == (1, "")
    assert "unknown pass 'nope'" in result.err


@pytest.mark.parametrize("name", PIPELINES)
def test_named_pipelines_print_their_expansion(rlx_opt, name):
    expansion = f"builtin.module({PIPELINES[name]})\n"
    assert rlx_opt("-p", name, "--print-pipeline").out == expansion
    assert rlx_opt(f"--pass-pipeline=builtin.module({name})", "--print-pipeline").out == expansion


def test_options_survive_the_expansion(rlx_opt):
    text = "cse,verify-stage{stage=mir},plan-lir{effort=1},fuse-norm{report=true target=gpu}"
    printed = rlx_opt("-p", text, "--print-pipeline").out
    again = make_nested_passes(printed.strip())
    assert again == make_passes(text)
    assert [p.name for p in again] == ["cse", "verify-stage", "plan-lir", "fuse-norm"]
    assert spell_pipeline(again) + "\n" == printed


def test_both_spellings_run_the_same_passes(rlx_opt):
    text = 'hir.weight @w "w" : tensor<3xf32>'
    nested = rlx_opt(
        "--pass-pipeline= builtin.module( cse,dce ) ",
        "--print-ir-after-all",
        stdin=text,
    )
    flat = rlx_opt("-p", "cse,dce", "--print-ir-after-all", stdin=text)
    assert nested.code == 0
    assert nested == flat
    assert "// IR after dce" in flat.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--pass-pipeline=cse"], "expected builtin.module("),
        (["--pass-pipeline=builtin.module(cse"], "expected builtin.module("),
        (["--pass-pipeline=func.func(cse)"], "expected builtin.module("),
        (["--pass-pipeline=builtin.module(func.func(cse))"], "every pass runs on builtin.module"),
        (["--pass-pipeline=builtin.module(nope)"], "unknown pass 'nope'"),
        (["--pass-pipeline=builtin.module(cse)", "-p", "dce"], "got both"),
        (["-p", "nope", "--print-pipeline"], "unknown pass 'nope'"),
    ],
)
def test_bad_pipelines(rlx_opt, args, message):
    result = rlx_opt(*args, stdin="builtin.module {}")
    assert (result.code, result.out) == (1, "")
    assert message in result.err
    assert len(result.err.splitlines()) == 1
