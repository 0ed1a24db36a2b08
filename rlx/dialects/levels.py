"""Which level a module is of."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from rlx.dialects import hir, mir
from rlx.dialects.named import NamedOp

_BOTH = {op.name for op in (*mir.PRIMITIVES, *mir.SCANS, *mir.CONTROL, mir.YieldOp)}
_DECLARATIONS = {hir.WeightOp.name, hir.StateOp.name}


def stage_of(module: ModuleOp) -> str:
    """
    Return the level of a module: `hir`, `mir` or `lir`.

    Declarations of weights and state belong to every level, primitives to HIR and MIR; a module of
    nothing else is HIR, unless its operations have phases.
    """
    found = "hir"
    for op in module.walk():
        if isinstance(op, NamedOp) and not op.LAUNCHED:
            return "hir"
        dialect = op.name.partition(".")[0]
        if dialect == "lir":
            return "lir"
        if op.name in _DECLARATIONS:
            continue
        if dialect == "hir":
            return "hir"
        if (dialect == "mir" and op.name not in _BOTH) or mir.PHASE in op.attributes:
            found = "mir"
    return found
