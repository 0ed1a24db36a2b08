"""A symbolic program for given sizes: names of dimensions become numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, FunctionType, ModuleOp, TensorType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from rlx.dialects import lir
from rlx.dialects.common import (
    DIMS,
    DimDef,
    DimsAttr,
    DimTable,
    DimTableAttr,
    dims_of,
    element_of,
    tensor,
)
from rlx.errors import RlxError


def bind_dims(module: ModuleOp, sizes: Mapping[str, int]) -> None:
    """
    Bind dimensions of a module of HIR or MIR to sizes; it is rewritten.

    What derives from bound dimensions alone is bound too. The names stay in the table, as
    constants: starts of rows are given by name. Raises RlxError for a dimension that is not free,
    for a size outside its bounds, and for a module that is planned.
    """
    table = DimTable.of(module)
    _check(module, table, sizes)
    known: dict[str, int] = dict(sizes)
    entries: list[DimDef] = []
    for d in table.dims.values():
        if d.operator and all(o in known for o in d.operands):
            known[d.name] = d.size(known)
        elif not d.operator and d.low == d.high:
            known[d.name] = d.low
        size = known.get(d.name)
        constant = DimDef(d.name, size, size) if size is not None else d
        entries.append(constant)
    module.attributes[DIMS] = DimTableAttr.of(entries)
    for op in module.walk():
        _bind_op(op, known)


def _check(module: ModuleOp, table: DimTable, sizes: Mapping[str, int]) -> None:
    if any(isinstance(op, lir.ProgramOp) for op in module.ops):
        raise RlxError("bind-dims: expected a module that is not planned yet")
    for name, size in sizes.items():
        if name not in table.free:
            free = ", ".join(table.free) or "none"
            raise RlxError(f"bind-dims: expected a free dimension ({free}), got '{name}'")
        d = table.dims[name]
        if not d.low <= size <= d.high:
            raise RlxError(f"bind-dims: expected a size of the dimension {d}, got {size}")


def _bind_op(op: Operation, sizes: Mapping[str, int]) -> None:
    for result in op.results:
        _bind_value(result, sizes)
    for region in op.regions:
        for block in region.blocks:
            for argument in block.args:
                _bind_value(argument, sizes)
    type_ = op.properties.get("function_type")
    if isinstance(type_, FunctionType):
        op.properties["function_type"] = FunctionType.from_lists(
            _bound_all(type_.inputs, sizes), _bound_all(type_.outputs, sizes)
        )


def _bind_value(value: SSAValue, sizes: Mapping[str, int]) -> None:
    bound = _bound(value.type, sizes)
    if bound is not value.type:
        Rewriter.replace_value_with_new_type(value, bound)


def _bound_all(types: ArrayAttr[Attribute], sizes: Mapping[str, int]) -> list[Attribute]:
    return [_bound(type_, sizes) for type_ in types]


def _bound(type_: Attribute, sizes: Mapping[str, int]) -> Attribute:
    if not isinstance(type_, TensorType):
        return type_
    of = cast(TensorType[Attribute], type_)
    if not isinstance(of.encoding, DimsAttr):
        return of
    dims = [sizes.get(d, d) if isinstance(d, str) else d for d in dims_of(of)]
    return tensor(dims, element_of(of))


@dataclass(frozen=True)
class BindDimsPass(ModulePass):
    """
    Bind dimensions to sizes: a program for these sizes alone, of numbers.

    bind-dims{sizes="seq = 4"}: tensor<?x8xf32, #hir.dims<seq, _>> --> tensor<4x8xf32>
    """

    name = "bind-dims"
    sizes: tuple[str, ...]
    """Each as `name = size`."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        sizes: dict[str, int] = {}
        for text in self.sizes:
            name, _, size = (part.strip() for part in text.partition("="))
            # Sizes are below 2^63; Python refuses to read numbers of thousands of digits.
            if not name or not size.isascii() or not size.isdigit() or len(size) > 19:
                raise RlxError(f"bind-dims: expected `name = size`, got '{text}'")
            sizes[name] = int(size)
        bind_dims(op, sizes)
