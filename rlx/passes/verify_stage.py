"""
What a module of each stage may hold, as data, and the check of a whole program.

The verifiers of operations see one operation at a time. Here symbols are looked up, dimensions are
looked up in the module's table, and what a call or a launch passes is compared with what is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from rlx.dialects import mir
from rlx.dialects.named import NamedOp
from rlx.errors import RlxError
from rlx.passes.program import Program, fail
from rlx.passes.verify_dims import check_dims
from rlx.passes.verify_phases import check_order_of_phases

_STEPS = "lir.view lir.ref lir.source lir.launch lir.barrier lir.loop lir.if lir.while"

_PRIMITIVES = " ".join(op.name for op in (*mir.PRIMITIVES, *mir.SCANS, *mir.CONTROL))
_HIR = f"hir.* !hir.weight !hir.state signal.* named launched {_PRIMITIVES}"
_MIR = "mir.* signal.* launched !mir.yield"
_LAUNCHED = "mir.* signal.* launched !mir.kernel !mir.repeat !mir.if !mir.while"

STAGES: dict[str, dict[str, str]] = {
    "hir": {
        "builtin.module": "hir.weight hir.state func.func",
        "func.func": f"{_HIR} func.return",
        "mir.if": f"{_HIR} mir.yield",
        "mir.while": f"{_HIR} mir.yield",
        "hir.scan": f"{_HIR} mir.yield",
    },
    "mir": {
        "builtin.module": "hir.weight hir.state func.func",
        "func.func": f"{_MIR} func.return",
        "mir.if": "mir.* signal.* launched",
        "mir.while": "mir.* signal.* launched",
        "mir.kernel": _LAUNCHED,
    },
    "lir": {
        "builtin.module": "lir.weight lir.state lir.kernel lir.program",
        "lir.kernel": f"{_LAUNCHED} !mir.load_weight !mir.load_state",
        "lir.program": f"lir.input lir.output lir.slot {_STEPS}",
        "lir.loop": _STEPS,
        "lir.if": _STEPS,
        "lir.while": _STEPS,
    },
}
"""
Stage -> operation with a region -> what may stand in it; `!` excludes from a dialect's `*`.

`launched` are the named operations of `rlx.ops` that have a kernel, `named` the others.
"""


def verify_stage(module: ModuleOp, stage: str) -> None:
    """
    Check that a valid module is a whole program of a stage: `hir`, `mir` or `lir`.

    Raises IrError at the first operation that is not, RlxError for a stage that is not known.
    """
    if stage not in STAGES:
        raise RlxError(f"unknown stage '{stage}': expected one of {', '.join(STAGES)}")
    for op in module.walk():
        if (parent := op.parent_op()) is not None:
            _check_place(op, parent, stage)
    check_dims(module)
    program = Program(module)
    program.check_module()
    for op in module.walk():
        program.check(op)
    for op in module.ops:
        check_order_of_phases(op)
    if stage == "lir":
        from rlx.passes.verify_lir import check_lir

        for op in module.walk():
            check_lir(program, op)


def _check_place(op: Operation, parent: Operation, stage: str) -> None:
    words = STAGES[stage].get(parent.name, "").split()
    group = f"{op.name.split('.')[0]}.*"
    if isinstance(op, NamedOp):
        group = "launched" if op.LAUNCHED else "named"
    if f"!{op.name}" in words or not (op.name in words or group in words):
        fail(op, f"not allowed in {parent.name} at stage {stage}")


@dataclass(frozen=True)
class VerifyStagePass(ModulePass):
    """
    Check that a module is a program of a stage; it stays as it is.

    verify-stage{stage=mir}
    """

    name = "verify-stage"
    stage: str

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        verify_stage(op, self.stage)
