"""Profiles: their files, the passes that they stand for, and what they make of a program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flows import RandomWeights, flow_of
from models import write_llama
from xdsl.dialects.builtin import ModuleOp, f32

import rlx
from rlx.dialects import mir
from rlx.driver import open_model
from rlx.errors import RlxError
from rlx.flow.model import BuiltModel
from rlx.flow.profile import CompileProfile, FusionOptions, PassOptions, PrecisionOptions
from rlx.flow.stages import Linear, ResidualAdd, ResidualSave, RmsNorm
from rlx.lowering.target import Target
from rlx.passes.fusion_report import FUSION_REPORT
from rlx.passes.pipelines import DEFAULT, pipeline_for, run_to
from rlx.tools.cli import main
from rlx.tools.opt.pipeline import make_passes

SIZES = {"layers": 2, "d": 64, "ffn": 96, "heads": 4, "kv_heads": 2, "vocab": 300}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "tiny.gguf", **SIZES)


# Files


def test_profile_presets():
    assert CompileProfile.prefill().fusion.policy == "direct"
    assert CompileProfile.decode().fusion.policy == "fusable"
    default = CompileProfile()
    assert default.passes == PassOptions(dce=True, constant_folding=True, verbose=False)
    assert default.precision == PrecisionOptions("f32", "none")
    assert default.fusion == FusionOptions("fusable", "auto", assert_clean=False, skip=False)
    assert default.backend == "cpu"


def test_profile_from_toml(tmp_path: Path):
    path = tmp_path / "fast.rlx.toml"
    path.write_text(
        'backend = "cpu"\n[fusion]\npolicy = "direct"\nskip = true\n'
        '[passes]\ndce = false\n[precision]\ncompute = "bf16"\nmixed = "auto"\n'
    )
    assert CompileProfile.from_toml(path) == CompileProfile(
        FusionOptions("direct", skip=True), PassOptions(dce=False), PrecisionOptions("bf16", "auto")
    )
    path.write_text('[fusion]\nskip = ["fuse-norm", "fuse-rows"]\n')
    assert CompileProfile.from_toml(path).fusion.skip == ("fuse-norm", "fuse-rows")
    path.write_text("")
    assert CompileProfile.from_toml(path) == CompileProfile()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[fusions]", "unknown key 'fusions': expected fusion, passes, precision, backend"),
        ("[passes]\nlicm = true", "unknown key 'licm' in [passes]: expected dce"),
        ("[passes]\ndce = 1", "passes.dce: expected true or false, got 1"),
        ('[fusion]\npolicy = "all"', "fusion.policy: expected one of direct, fusable, got 'all'"),
        ("[fusion]\npolicy = {}", "fusion.policy: expected one of direct, fusable"),
        ("[precision]\ncompute = 32", "precision.compute: expected one of f32, f16, bf16, got 32"),
        ("[fusion]\nskip = 3", "fusion.skip: expected names of passes, or true or false, got 3"),
        ("[fusion]\nskip = [1]", "fusion.skip: expected names of passes, or true or false"),
        ("fusion = true", "fusion: expected a table, got True"),
        ("backend = 3", "backend: expected a string, got 3"),
        ("backend =", "expected a profile in TOML"),
    ],
)
def test_profile_errors(tmp_path: Path, text: str, message: str):
    path = tmp_path / "bad.rlx.toml"
    path.write_text(text)
    with pytest.raises(RlxError) as error:
        CompileProfile.from_toml(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


def test_profile_missing_file(tmp_path: Path):
    with pytest.raises(RlxError, match="No such file"):
        CompileProfile.from_toml(tmp_path / "nope.toml")


def test_a_profile_is_given_or_read(tmp_path: Path):
    path = tmp_path / "p.rlx.toml"
    path.write_text("[passes]\ndce = false")
    assert CompileProfile.of(None) is None
    given = CompileProfile.decode()
    assert CompileProfile.of(given) is given
    assert CompileProfile.of(path) == CompileProfile.of(str(path))
    assert CompileProfile.of(path) == CompileProfile(passes=PassOptions(dce=False))
    with pytest.raises(RlxError, match="profile: expected a CompileProfile or a path, got 3"):
        CompileProfile.of(3)


# Passes


def names(profile: CompileProfile) -> list[str]:
    return [p.name for p in make_passes(pipeline_for(profile))]


def test_the_default_profile_is_the_default_pipeline():
    assert pipeline_for(CompileProfile()) == DEFAULT
    assert pipeline_for(CompileProfile.prefill()) == DEFAULT


def test_what_is_skipped_does_not_run():
    everything = names(CompileProfile())
    fusions = [name for name in everything if name.startswith("fuse-")]
    assert "fuse-norm" in fusions
    one = names(CompileProfile(FusionOptions(skip=("fuse-norm",))))
    assert one == [name for name in everything if name != "fuse-norm"]
    none = names(CompileProfile(FusionOptions(skip=True)))
    assert none == [name for name in everything if name not in fusions]
    general = names(CompileProfile(passes=PassOptions(dce=False, constant_folding=False)))
    assert general == [name for name in everything if name not in ("dce", "constant-fold")]


def test_target_and_clean_are_options_of_the_fusions():
    text = pipeline_for(CompileProfile(FusionOptions(target="metal", assert_clean=True)))
    made = make_passes(text)
    fusions = [p for p in made if p.name.startswith("fuse-")]
    assert {(p.target, p.report) for p in fusions} == {("metal", True)}
    assert [p.name for p in made][-2:] == ["assert-fusion-clean", "plan-lir"]


@pytest.mark.parametrize("compute", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("mixed", ["none", "auto"])
def test_precision_is_a_pass_behind_legalisation(compute, mixed):
    profile = CompileProfile(precision=PrecisionOptions(compute, mixed))
    made = make_passes(pipeline_for(profile))
    at = [p.name for p in made].index("legalize-hir") + 1
    if (compute, mixed) == ("f32", "none"):
        assert not profile.narrows
        assert "set-precision" not in names(profile)
        return
    assert profile.narrows
    assert made[at].name == "set-precision"
    policy = made[at].chosen()
    wanted = "f16" if compute == "f32" else compute
    assert policy.compute == wanted
    assert policy.reduction == ("f32" if mixed == "auto" else wanted)
    assert policy.exact_reductions == ((compute, mixed) == ("f32", "auto"))


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (CompileProfile(backend="tpu"), "backend: expected cpu, got 'tpu'"),
        (
            CompileProfile(FusionOptions(assert_clean=True, skip=True)),
            "fusion.assert_clean: expected fusion passes that run, fusion.skip leaves out all",
        ),
        (
            CompileProfile(FusionOptions(target="abacus")),
            "fusion.target: expected one of auto, .*cpu.*, got 'abacus'",
        ),
        (
            CompileProfile(FusionOptions(skip=("plan-lir",))),
            "fusion.skip: expected passes of .*fuse-norm.*, got 'plan-lir'",
        ),
    ],
)
def test_profiles_that_no_pipeline_serves(profile: CompileProfile, message: str):
    with pytest.raises(RlxError, match=message):
        pipeline_for(profile)


# Programs


def row_model(rows: int = 1) -> BuiltModel:
    """A norm that one product reads, which joins it for a single row."""
    w = RandomWeights(1, g=(32,), w=(32, 32))
    stages = (ResidualSave(), RmsNorm("g", 1e-5), Linear("w"), ResidualAdd())
    return flow_of(*stages, x=((rows, 32), f32)).build(w)


def kernels(module: ModuleOp) -> list[list[str]]:
    found = [op for op in module.walk() if isinstance(op, mir.KernelOp)]
    return [[inner.name.removeprefix("mir.") for inner in k.ops] for k in found]


def test_a_skipped_fusion_leaves_its_launches():
    def lowered(profile: CompileProfile | None) -> list[list[str]]:
        module = row_model().module
        run_to(module, "mir", profile)
        return kernels(module)

    assert lowered(None) == [["rms_norm", "matmul", "binary"]]
    assert lowered(CompileProfile(FusionOptions(skip=("fuse-norm",)))) == [["matmul", "binary"]]
    assert lowered(CompileProfile(FusionOptions(skip=True))) == []


def test_a_missed_fusion_is_an_error_where_it_is_asked_for():
    clean = CompileProfile(FusionOptions(assert_clean=True))
    one = row_model(1).module
    run_to(one, "mir", clean)
    assert FUSION_REPORT not in one.attributes
    with pytest.raises(RlxError, match="assert_clean: missed fusions: 1,") as error:
        run_to(row_model(4).module, "mir", clean)
    assert "fuse-norm @main: rms_norm %norm" in str(error.value)
    assert "each thread would normalise all of the 4 rows again" in str(error.value)


def test_compile_takes_a_profile(tmp_path: Path):
    path = tmp_path / "plain.rlx.toml"
    path.write_text("[fusion]\nskip = true\n")
    built = row_model()
    x = np.random.default_rng(0).standard_normal((1, 32)).astype(np.float32)
    fused = rlx.compile(built.module, built.weights)
    plain = rlx.compile(built.module, built.weights, profile=path)
    assert "mir.kernel" in fused.ir("mir")
    assert "mir.kernel" not in plain.ir("mir")
    assert plain.manifest.kernels > fused.manifest.kernels
    np.testing.assert_allclose(fused(x), plain(x), rtol=1e-5, atol=1e-6)


def test_a_narrow_precision_stores_less():
    built = row_model()
    profile = CompileProfile(precision=PrecisionOptions("bf16"))
    narrow = rlx.compile(built.module, built.weights, profile=profile)
    assert "bf16" in narrow.ir("mir")
    x = np.random.default_rng(0).standard_normal((1, 32)).astype(np.float32)
    exact = rlx.compile(built.module, built.weights)(x)
    difference = np.abs(narrow(x) - exact).max() / np.abs(exact).max()
    assert 1e-5 < difference < 0.02


def test_a_verbose_profile_tells_what_passes_do(capsys: pytest.CaptureFixture[str]):
    run_to(row_model().module, "mir", CompileProfile(passes=PassOptions(verbose=True)))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(names(CompileProfile())) - 1
    assert all(line.startswith("rlx: ") and " operations, " in line for line in lines)


# Models


def test_a_model_is_built_and_compiled_by_its_profile(model: Path, tmp_path: Path):
    path = tmp_path / "p.rlx.toml"
    path.write_text('[fusion]\npolicy = "direct"\nskip = ["fuse-norm"]\n')
    given = open_model(model, 32, path)
    assert "hir.glu" in given.ir("hir", "decode")
    default = open_model(model, 32)
    assert "hir.glu" not in default.ir("hir", "decode")
    assert "hir.glu" in default.ir("hir", "prefill")
    assert given.ir("mir", "decode") != default.ir("mir", "decode")


def test_a_programs_key_covers_the_profile(model: Path):
    opened = open_model(model, 32)
    profiles = [None, CompileProfile(), CompileProfile.prefill()]
    profiles += [CompileProfile(FusionOptions(skip=("fuse-norm",)))]
    keys = [replace(opened, profile=p).key("decode", Target.host()) for p in profiles]
    assert len(set(keys)) == len(keys)


def test_load_takes_a_profile(model: Path):
    skip = CompileProfile(FusionOptions(skip=("fuse-norm",)))
    plain, given = rlx.load(model, max_context=32), rlx.load(model, max_context=32, profile=skip)
    assert given.stats.barriers_per_step > plain.stats.barriers_per_step
    ids = [[*m.generate_ids([1, 5, 9], 8, stop=False)] for m in (plain, given)]
    assert ids[0] == ids[1]
    narrow = CompileProfile(precision=PrecisionOptions("bf16"))
    with pytest.raises(RlxError, match="exact stores every value as f32, but the profile asks for"):
        rlx.load(model, "exact", profile=narrow)


def test_the_commands_take_a_profile(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "p.rlx.toml"
    path.write_text('[fusion]\npolicy = "direct"\n')
    inspect = ["inspect", str(model), "--stage", "hir", "--max-context", "32", "--profile"]
    assert main([*inspect, str(path)]) == 0
    assert "hir.glu" in capsys.readouterr().out
    generate = ["generate", str(model), "--prompt-ids", "1,2", "-n", "2", "--max-context", "32"]
    assert main([*generate, "--json", "--profile", str(path)]) == 0
    capsys.readouterr()
    path.write_text('[fusion]\npolicy = "all"\n')
    for command in (inspect, [*generate, "--profile"]):
        assert main([*command, str(path)]) == 1
        message = capsys.readouterr().err
        assert "fusion.policy: expected one of direct, fusable, got 'all'" in message
        assert message.count("\n") == 1
