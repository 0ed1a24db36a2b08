"""Pipelines of passes by name, as text that `rlx-opt -p` takes; the compiler runs the same text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

TO_MIR = "legalize-hir,fuse-shared-input,fuse-epilogue,fuse-norm,hoist-params,derive-phases"
"""From HIR to MIR that is ready to be planned."""

DEFAULT = f"{TO_MIR},plan-lir"
"""From HIR to LIR."""

PIPELINES = {"rlx-default": DEFAULT}
"""Name -> the passes that it stands for."""


def run_to(module: ModuleOp, stage: str) -> None:
    """
    Bring a module to the stage `hir`, `mir` or `lir` by the default pipeline; it is rewritten.

    A planned module is left as it is: its plan is not made again. Checks run at the boundaries.
    """
    from xdsl.context import Context

    from rlx.dialects import lir
    from rlx.passes.registry import PASSES
    from rlx.passes.verify_ssa import check_ssa

    planned = any(isinstance(op, lir.ProgramOp) for op in module.ops)
    if stage != "hir" and not planned:
        ctx = Context(allow_unregistered=False)
        for name in (TO_MIR if stage == "mir" else DEFAULT).split(","):
            PASSES[name]()().apply(ctx, module)
    module.verify()
    check_ssa(module)
