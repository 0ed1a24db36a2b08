"""Pipelines of passes by name, as text that `rlx-opt -p` takes; the compiler runs the same text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

TO_MIR = "legalize-hir,fuse-shared-input,fuse-epilogue,fuse-norm,hoist-params,derive-phases"
"""From HIR to MIR that is ready to be planned."""

DEFAULT = f"{TO_MIR},plan-lir"
"""From HIR to LIR."""

PIPELINES = {"rlx-default": DEFAULT, "rlx-decode": DEFAULT}
"""Name -> the passes that it stands for."""


def run_to(module: ModuleOp, stage: str) -> None:
    """
    Bring a module to the stage `hir`, `mir` or `lir` by the default pipeline; it is rewritten.

    A planned module is left as it is: its plan is not made again. Checks run at the boundaries.
    """
    from xdsl.context import Context

    from rlx.dialects import lir
    from rlx.passes.diagnostics import verify
    from rlx.passes.registry import PASSES
    from rlx.passes.verify_stage import verify_stage

    def check(stage: str) -> None:
        verify(module)
        verify_stage(module, stage)

    if any(isinstance(op, lir.ProgramOp) for op in module.ops):
        check("lir")
        return
    verify(module)
    ctx = Context()
    for reached, passes in (("mir", TO_MIR), ("lir", "plan-lir")):
        if stage == "hir":
            break
        for name in passes.split(","):
            PASSES[name]()().apply(ctx, module)
        check(reached)
        if reached == stage:
            break
