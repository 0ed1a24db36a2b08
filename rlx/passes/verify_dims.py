"""The names of dimensions: in types and as the starts of rows, each is one that is declared."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import VerifyException

from rlx.dialects.common import DIMS, DimDef, DimTable, DimTableAttr, dims_of
from rlx.passes.diagnostics import IrError


def check_dims(module: ModuleOp) -> None:
    """Raise IrError at the first operation that names a dimension its module does not declare."""
    declared = module.attributes.get(DIMS)
    if not isinstance(declared, DimTableAttr | None):
        raise IrError(module, f"expected {DIMS} to be a #hir.dim_table, got {declared}")
    table = DimTable.of(module).dims
    for op in module.ops:
        _check(op, table)


def _check(op: Operation, table: Mapping[str, DimDef]) -> None:
    if isinstance(op, ModuleOp):
        return check_dims(op)
    blocks = [block for region in op.regions for block in region.blocks]
    types = [*op.result_types, *(a.type for block in blocks for a in block.args)]
    for name in [*(n for t in types for n in _names(t)), *_starts(op)]:
        if name not in table:
            what = ", ".join(table) or "nothing"
            message = f"dimension '{name}' is not declared: {DIMS} declares {what}"
            raise IrError(op, f"{op.name}: {message}")
    for block in blocks:
        for inner in block.ops:
            _check(inner, table)


def _starts(op: Operation) -> list[str]:
    start = op.properties.get("start")
    return [start.data] if isinstance(start, StringAttr) else []


def _names(type_: Attribute) -> list[str]:
    try:
        return [d for d in dims_of(type_) if isinstance(d, str)]
    except VerifyException:
        return []
