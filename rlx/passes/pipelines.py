"""Pipelines of passes by name, as text that `rlx-opt -p` takes; the compiler runs the same text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rlx.errors import RlxError

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.passes import ModulePass

    from rlx.flow.profile import CompileProfile

TO_MIR = (
    "legalize-hir,narrow-products,constant-fold,simplify-algebra,eliminate-moves,cse,dce,hoist-params,"
    "fuse-attention,fuse-shared-input,fuse-epilogue,fuse-prologue,fuse-norm,fuse-residual-norm,"
    "fuse-rows,derive-phases"
)
"""
From HIR to MIR that is ready to be planned.

Values are made few before launches are: a fusion sees no move that comes to nothing, and takes
nothing into a step that weights alone decide. Among fusions what the more special rules take comes
first: products take their epilogues before a norm takes the sum that is left, and row programs are
made of what no other kernel has.
"""

DEFAULT = f"{TO_MIR},plan-lir"
"""From HIR to LIR."""

PIPELINES = {"rlx-default": DEFAULT, "rlx-decode": DEFAULT}
"""Name -> the passes that it stands for."""


FUSION = "fuse-"
"""What the names of passes that fuse begin with."""
LEGALIZE, PLAN = "legalize-hir", "plan-lir"

_PRECISION = {
    ("f16", "none"): "policy=always-f16",
    ("bf16", "none"): "compute=bf16 reduction=bf16 elementwise=bf16 data_movement=bf16",
    ("f32", "auto"): "policy=auto-mixed-conservative",
    ("f16", "auto"): "policy=auto-mixed",
    ("bf16", "auto"): "policy=auto-mixed-bf16",
}
"""What a profile computes in, and whether it mixes types -> the options of set-precision."""


def pipeline_for(profile: CompileProfile) -> str:
    """
    Return the passes from HIR to LIR that a profile asks for, as text.

    Raises RlxError for a backend, a target or a pass to skip that there is none of.
    """
    from xdsl.utils.arg_spec import ArgSpec, parse_pipeline

    if profile.backend != "cpu":
        raise RlxError(f"profile: backend: expected cpu, got {profile.backend!r}")
    default = list(parse_pipeline(DEFAULT))
    fusions = [spec.name for spec in default if spec.name.startswith(FUSION)]
    options, skipped = _fusion_options(profile), _skipped(profile, fusions)
    if profile.fusion.assert_clean and skipped.issuperset(fusions):
        raise RlxError(
            "profile: fusion.assert_clean: expected fusion passes that run, fusion.skip leaves "
            "out all: nothing would report what is missed"
        )
    chosen = [
        str(ArgSpec(spec.name, {**spec.parameters, **options}) if spec.name in fusions else spec)
        for spec in default
        if spec.name not in skipped
    ]
    precision = _PRECISION.get((profile.precision.compute, profile.precision.mixed))
    if precision is not None:
        chosen.insert(chosen.index(LEGALIZE) + 1, f"set-precision{{{precision}}}")
    if profile.fusion.assert_clean:
        chosen.insert(chosen.index(PLAN), "assert-fusion-clean")
    return ",".join(chosen)


def _fusion_options(profile: CompileProfile) -> dict[str, tuple[str | bool]]:
    """Return the options of a fusion pass."""
    from rlx.contract.benefit import IoFusionGate

    target = profile.fusion.target
    if target not in ("auto", *IoFusionGate.presets):
        known = ", ".join(["auto", *IoFusionGate.presets])
        raise RlxError(f"profile: fusion.target: expected one of {known}, got {target!r}")
    options: dict[str, tuple[str | bool]] = {} if target == "auto" else {"target": (target,)}
    return {**options, "report": (True,)} if profile.fusion.assert_clean else options


def _skipped(profile: CompileProfile, fusions: Sequence[str]) -> set[str]:
    """Return the passes that don't run."""
    skip = profile.fusion.skip
    names = (fusions if skip else ()) if isinstance(skip, bool) else skip
    unknown = next((name for name in names if name not in fusions), None)
    if unknown is not None:
        raise RlxError(
            f"profile: fusion.skip: expected passes of {', '.join(fusions)}, got {unknown!r}"
        )
    general = {"dce": profile.passes.dce, "constant-fold": profile.passes.constant_folding}
    return {*names, *(name for name, runs in general.items() if not runs)}


def _passes(text: str) -> Iterator[ModulePass]:
    """Return the passes of a pipeline."""
    from xdsl.utils.arg_spec import parse_pipeline

    from rlx.passes.registry import PASSES

    for spec in parse_pipeline(text):
        yield PASSES[spec.name]().from_spec(spec)


def run_to(
    module: ModuleOp,
    stage: str,
    profile: CompileProfile | None = None,
    reached: Callable[[str, ModuleOp], None] | None = None,
) -> None:
    """
    Bring a module to the stage `hir`, `mir` or `lir`; it is rewritten.

    `reached` is called with each stage that it comes to, that it is given in too, and the module.
    The passes are the default ones, or those that a profile asks for; one that is `verbose` tells
    on stderr what each does. A planned module is left as it is: its plan is not made again. Checks
    run at the boundaries of stages.
    """
    from xdsl.context import Context

    from rlx.dialects import lir
    from rlx.dialects.levels import stage_of
    from rlx.passes.diagnostics import verify
    from rlx.passes.verify_stage import verify_stage
    from rlx.runtime import stages

    def check(stage: str) -> None:
        with stages.stage("verification"):
            verify(module)
            verify_stage(module, stage)
        if reached is not None:
            reached(stage, module)

    if any(isinstance(op, lir.ProgramOp) for op in module.ops):
        check("lir")
        return
    verify(module)
    if reached is not None and (given := stage_of(module)) == "hir":
        reached(given, module)
    if stage == "hir":
        return
    verbose = profile is not None and profile.passes.verbose
    for p in _passes(DEFAULT if profile is None else pipeline_for(profile)):
        if p.name == PLAN:
            check("mir")
            if stage == "mir":
                return
        started = time.perf_counter()
        with stages.stage(p.name):
            p.apply(Context(), module)
        if verbose:
            _tell(p, module, time.perf_counter() - started)
    check("lir")


def _tell(p: ModulePass, module: ModuleOp, seconds: float) -> None:
    count = sum(1 for _ in module.walk())
    print(f"rlx: {p}: {count} operations, {seconds * 1000:.1f} ms", file=sys.stderr)
