"""A program in which a fusion was missed is refused, for those who count on all of them."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from rlx.errors import RlxError
from rlx.passes.fusion_report import FUSION_REPORT, fusion_report

SHOWN = 5
"""Missed fusions that the error names."""


@dataclass(frozen=True)
class AssertFusionCleanPass(ModulePass):
    """
    Raise an error where the fusion report says that a fusion was declined; else drop the report.

    fuse-epilogue{report=true},assert-fusion-clean
    """

    name = "assert-fusion-clean"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        missed = [entry for entry in fusion_report(op) if not entry.fused]
        if missed:
            shown = "\n  ".join(map(str, missed[:SHOWN]))
            raise RlxError(
                f"fusion.assert_clean: missed fusions: {len(missed)}, of which the first are\n"
                f"  {shown}"
            )
        op.attributes.pop(FUSION_REPORT, None)
