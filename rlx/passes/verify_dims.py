"""
The names of dimensions: in types, one for each `?`, and as the starts of rows, each is declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn, cast

from xdsl.dialects.builtin import FunctionType, IntegerAttr, ModuleOp, StringAttr, TensorType
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import mir
from rlx.dialects.common import DIMS, Dim, DimDef, DimTable, DimTableAttr, dims_of, spell
from rlx.dialects.ops import numbers
from rlx.passes.diagnostics import IrError


def check_dims(module: ModuleOp) -> None:
    """Raise IrError at the first operation with a dimension that its module does not declare."""
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
    types = [*op.result_types, *(a.type for block in blocks for a in block.args), *_signature(op)]
    for name in [*(n for t in types for n in _names(op, t)), *_starts(op)]:
        if name not in table:
            what = ", ".join(table) or "nothing"
            message = f"dimension '{name}' is not declared: {DIMS} declares {what}"
            raise IrError(op, f"{op.name}: {message}")
    match op:
        case mir.ReshapeOp() if not same_elements(op.input.type, op.result.type, DimTable(table)):
            fail(op, "has as many elements as its input", op.input.type, op.result.type)
        case mir.ConcatOp() if not _sums_up(op, table):
            types = [part.type for part in op.parts]
            fail(op, "is as long as its parts together", *types, op.result.type)
        case mir.PadOp() if not _grows(op, table):
            fail(op, "has the elements of its input and those added", op.input.type, op.result.type)
        case Operation(name="signal.welch_peaks") if not _whole_segments(op, table):
            fail(
                op, "has a row for its number of segments", op.operands[0].type, op.results[0].type
            )
        case _:
            pass
    for block in blocks:
        for inner in block.ops:
            _check(inner, table)


def fail(op: Operation, wanted: str, *types: Attribute) -> NoReturn:
    given = ", ".join(map(spell, types))
    raise IrError(op, f"{op.name}: expected a result that {wanted} at every size, got {given}")


def same_elements(a: Attribute, b: Attribute, table: DimTable) -> bool:
    """Return whether two tensors have as many elements at every size."""
    return elements(dims_of(a), table.dims) == elements(dims_of(b), table.dims)


def elements(dims: Iterable[Dim], table: Mapping[str, DimDef]) -> tuple[int, list[str]]:
    """Return a product of dimensions as a number and the names that are not products themselves."""
    number, names = 1, list[str]()
    for dim in dims:
        if isinstance(dim, int):
            number *= dim
            continue
        d = table[dim]
        if d.operator == "*":
            factor, inner = elements(d.operands, table)
            number *= factor
            names += inner
        elif not d.operator and d.low == d.high:
            number *= d.low
        else:
            names.append(dim)
    # Of no elements there are none at any size.
    return number, sorted(names) if number else []


def _sums_up(op: mir.ConcatOp, table: Mapping[str, DimDef]) -> bool:
    axis = op.axis.value.data
    parts = [dims_of(part.type)[axis] for part in op.parts]
    return _total(parts, table) == _total([dims_of(op.result.type)[axis]], table)


def _grows(op: mir.PadOp, table: Mapping[str, DimDef]) -> bool:
    added = zip(numbers(op.low), numbers(op.high), strict=True)
    pairs = zip(dims_of(op.input.type), dims_of(op.result.type), added, strict=True)
    return all(
        _total([old, low, high], table) == _total([new], table)
        for old, new, (low, high) in pairs
        if isinstance(old, str)
    )


def _total(dims: Iterable[Dim], table: Mapping[str, DimDef]) -> tuple[int, list[str]]:
    """Return a sum of dimensions as a number and the names that are not sums themselves."""
    number, names = 0, list[str]()
    for dim in dims:
        if isinstance(dim, int):
            number += dim
            continue
        d = table[dim]
        if d.operator == "+":
            term, inner = _total(d.operands, table)
            number += term
            names += inner
        elif not d.operator and d.low == d.high:
            number += d.low
        else:
            names.append(dim)
    return number, sorted(names)


def _whole_segments(op: Operation, table: Mapping[str, DimDef]) -> bool:
    segments = op.properties["segments"]
    assert isinstance(segments, IntegerAttr)
    rows, batch = (dims_of(v.type)[0] for v in (op.operands[0], op.results[0]))
    return elements([rows], table) == elements([batch, segments.value.data], table)


def _starts(op: Operation) -> list[str]:
    start = op.properties.get("start")
    return [start.data] if isinstance(start, StringAttr) else []


def _signature(op: Operation) -> Sequence[Attribute]:
    """Return the types of a function, which has no arguments where it is only declared."""
    type_ = op.properties.get("function_type")
    return (*type_.inputs, *type_.outputs) if isinstance(type_, FunctionType) else ()


def _names(op: Operation, type_: Attribute) -> list[str]:
    if not isinstance(type_, TensorType):
        return []
    try:
        return [d for d in dims_of(cast(Attribute, type_)) if isinstance(d, str)]
    except VerifyException as e:
        raise IrError(op, f"{op.name}: {e}") from None
