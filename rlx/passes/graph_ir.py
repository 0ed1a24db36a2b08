"""Contract graphs and their plans as IR, and back: no fact of either is lost."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import cast

from xdsl.dialects.builtin import (
    ComplexType,
    DictionaryAttr,
    IntegerType,
    ModuleOp,
    Signedness,
    StringAttr,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, SSAValue

from rlx.contract.graph import Graph, Node, Op, Value, read_value, spell_value
from rlx.contract.opkind import OpKind
from rlx.contract.phase import Phase
from rlx.contract.plan import LirBufferPlan, LirBufferSlot, LirIoManifest, LirViewAlias
from rlx.contract.shape import DType, Shape
from rlx.contract.symbols import SYMBOL_NAMES, SYMBOL_NUMBERS, sym
from rlx.dialects import graph as ir
from rlx.dialects.common import (
    DIMS,
    MAX_DIM,
    DimDef,
    DimTableAttr,
    PhaseAttr,
    PhaseKind,
    dims_of,
    element_of,
    tensor,
)
from rlx.dialects.ops import i64_attr
from rlx.errors import RlxError

_ELEMENTS: dict[DType, Attribute] = {
    DType.F32: f32,
    DType.F16: f16,
    DType.BF16: bf16,
    DType.F64: f64,
    DType.I8: i8,
    DType.I16: i16,
    DType.I32: i32,
    DType.I64: i64,
    DType.U8: IntegerType(8, Signedness.UNSIGNED),
    DType.U32: IntegerType(32, Signedness.UNSIGNED),
    DType.BOOL: i1,
    DType.C64: ComplexType(f32),
    DType.C128: ComplexType(f64),
}
DTYPES = {element: dtype for dtype, element in _ELEMENTS.items()}
"""The type of the contract that an element type of the IR stands for."""


def write_program(graph: Graph, plan: LirBufferPlan) -> ModuleOp:
    """
    Return a graph and its plan as a module with a `graph.program`.

    Raises RlxError for what has no form in SSA: an input that is no earlier node, an id twice, and
    a plan that places a node which the graph doesn't have.
    """
    known = {node.id for node in graph.nodes}
    named = [*plan.assignments, *plan.view_aliases, *(id for id, _ in plan.phases)]
    stray = next((id for id in named if id not in known), None)
    if stray is not None:
        raise RlxError(f"plan of '{graph.name}': it places node {stray}, which is not in the graph")
    block = Block()
    values: dict[int, SSAValue] = {}
    for node in graph.nodes:
        missing = next((i for i in node.inputs if i not in values), None)
        if missing is not None or node.id in values:
            raise RlxError(
                f"graph '{graph.name}': node {node.id} {node.op.kind} has no form in the IR: "
                "expected a new id and inputs that come before it"
            )
        op = ir.NodeOp(
            [values[i] for i in node.inputs],
            {
                "id": i64_attr(node.id),
                "kind": StringAttr(node.kind.value),
                "io_name": _write_text(node.name) if node.name else None,
                "given": _write_attributes(node.op),
                **_write_place(node.id, plan),
            },
            _write_type(node.shape),
        )
        block.add_op(op)
        values[node.id] = op.res
    return _write_module(graph, plan, block)


def _write_module(graph: Graph, plan: LirBufferPlan, block: Block) -> ModuleOp:
    properties: dict[str, Attribute] = {
        "sym_name": _write_text(graph.name),
        "arena_size": i64_attr(plan.arena_size),
        "alignment": i64_attr(plan.alignment),
        "outputs": ir.IdsAttr.of(graph.outputs),
        "schedule": ir.IdsAttr.of(plan.schedule),
        "dynamic": ir.IdsAttr.of(plan.dynamic_symbols),
        "io_inputs": _write_names(plan.io.inputs),
        "io_params": _write_names(plan.io.params),
        "io_outputs": ir.IdsAttr.of(plan.io.outputs),
    }
    module = ModuleOp([ir.ProgramOp(properties, block)])
    symbols = graph.dynamic_symbols()
    if symbols:
        table = DimTableAttr.of(DimDef(_symbol_name(s), 0, MAX_DIM) for s in symbols)
        module.attributes[DIMS] = table
    return module


def _write_text(text: str) -> StringAttr:
    """Return any text in ASCII: xDSL reads other strings as bytes."""
    return StringAttr(json.dumps(text)[1:-1])


def _read_text(text: str) -> str:
    return json.loads(f'"{text}"')


def _write_names(names: Iterable[tuple[str, int]]) -> ir.NamedIdsAttr:
    return ir.NamedIdsAttr.of((_write_text(name).data, id) for name, id in names)


def _read_names(names: ir.NamedIdsAttr) -> list[tuple[str, int]]:
    return [(_read_text(name), id) for name, id in names.pairs]


def _write_attributes(op: Op) -> DictionaryAttr:
    return DictionaryAttr(
        {n: StringAttr(json.dumps(spell_value(v))) for n, v in op.attributes.items()}
    )


def _write_place(id: int, plan: LirBufferPlan) -> dict[str, Attribute | None]:
    phase, slot, view = plan.phase_of(id), plan.slot(id), plan.view_aliases.get(id)
    return {
        "phase": PhaseAttr(PhaseKind(phase.value)) if phase is not None else None,
        "offset": i64_attr(slot.offset) if slot is not None else None,
        "size": i64_attr(slot.size) if slot is not None else None,
        "root": i64_attr(view.root) if view is not None else None,
        "byte_offset": i64_attr(view.byte_offset) if view is not None else None,
    }


def _symbol_name(symbol: int) -> str:
    return SYMBOL_NAMES.get(symbol, f"s{int(symbol)}")


def _write_type(shape: Shape) -> Attribute:
    dims = [_symbol_name(d) if isinstance(d, sym) else d for d in shape.dims]
    return tensor(dims, _ELEMENTS[shape.dtype])


def read_program(program: ir.ProgramOp) -> tuple[Graph, LirBufferPlan]:
    """Read what `write_program` wrote. Raises RlxError for what no graph could have given."""
    name = program.sym_name.data
    try:
        return _read_program(_read_text(name), program)
    except (KeyError, ValueError) as error:
        raise RlxError(f"graph.program '{name}': cannot read it: {error}") from error


def _read_program(name: str, program: ir.ProgramOp) -> tuple[Graph, LirBufferPlan]:
    plan = LirBufferPlan(
        arena_size=program.arena_size.value.data,
        schedule=program.schedule.ids,
        io=LirIoManifest(
            _read_names(program.io_inputs),
            _read_names(program.io_params),
            program.io_outputs.ids,
        ),
        alignment=program.alignment.value.data,
        dynamic_symbols=program.dynamic.ids,
    )
    graph = Graph(name, outputs=program.outputs.ids)
    ids: dict[SSAValue, int] = {}
    for op in program.nodes:
        id = ids[op.res] = op.id.value.data
        graph.nodes.append(
            Node(
                id,
                Op(OpKind(op.kind.data), **_read_attributes(op.given)),
                tuple(ids[v] for v in op.args),
                _read_type(op.res.type),
                _read_text(op.io_name.data) if op.io_name is not None else "",
            )
        )
        _read_place(op, id, plan)
    return graph, plan


def _read_attributes(given: DictionaryAttr) -> dict[str, Value]:
    return {n: read_value(json.loads(cast(StringAttr, v).data)) for n, v in given.data.items()}


def _read_place(op: ir.NodeOp, id: int, plan: LirBufferPlan) -> None:
    if op.phase is not None:
        plan.phases.set(id, Phase(op.phase.data.value))
    if op.offset is not None:
        plan.assignments[id] = LirBufferSlot(ir.number(op.offset), ir.number(op.size))
    if op.root is not None:
        plan.view_aliases[id] = LirViewAlias(ir.number(op.root), ir.number(op.byte_offset))


def _read_type(type_: Attribute) -> Shape:
    return Shape(map(_read_dim, dims_of(type_)), DTYPES[element_of(type_)])


def _read_dim(dim: int | str) -> int:
    if isinstance(dim, int):
        return dim
    return sym(SYMBOL_NUMBERS[dim]) if dim in SYMBOL_NUMBERS else sym(dim.removeprefix("s"))
