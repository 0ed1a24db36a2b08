"""
Modules of MIR and LIR as graphs and plans of the contract: views, computed from the operations.

An operation's id is its position. In MIR the arguments of @main come first, then its operations.
In LIR the weights and states come first, then the operations of the program, those of loops where
they stand. Operations without a result that are not launches (barriers, loops) have an id and no
node. A quantised weight counts as bytes; of several results a node has the first's shape. A launch
that packs a weight or fills a table is a TransformRegion: what it makes is no leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from rlx.contract.graph import Graph, Node, Op, Value
from rlx.contract.infer import VIEW
from rlx.contract.opkind import OpKind
from rlx.contract.phase import LEAF_KINDS, Phase
from rlx.contract.plan import LirBufferPlan, LirBufferSlot, LirIoManifest, LirViewAlias
from rlx.contract.quant import GGML_TYPES_BY_NAME
from rlx.contract.shape import DType, Shape
from rlx.contract.symbols import SYMBOL_NUMBERS, sym
from rlx.dialects import hir, lir, mir
from rlx.dialects.common import (
    Dim,
    DimTable,
    PackedType,
    QuantType,
    dims_of,
    element_of,
    format_of,
)
from rlx.errors import RlxError
from rlx.lowering.formats import packed_bytes
from rlx.passes.graph_ir import DTYPES
from rlx.passes.program import Program

_KINDS: dict[type[Operation], OpKind] = {
    lir.WeightOp: OpKind.PARAM,
    lir.InputOp: OpKind.INPUT,
    # Memory that is there before the first launch: leaves that nobody gives.
    lir.StateOp: OpKind.CONSTANT,
    lir.OutputOp: OpKind.CONSTANT,
    lir.SlotOp: OpKind.CONSTANT,
    # Other names for memory.
    lir.ViewOp: OpKind.RESHAPE,
    lir.RefOp: OpKind.RESHAPE,
    lir.SourceOp: OpKind.RESHAPE,
}


def symbol_numbers(table: DimTable) -> dict[str, int]:
    """Return the number that views give each dimension with a name."""
    own = [name for name in table.dims if name not in SYMBOL_NUMBERS]
    return SYMBOL_NUMBERS | {n: len(SYMBOL_NUMBERS) + i for i, n in enumerate(own)}


@dataclass
class _Shapes:
    """Shapes of the contract for types of the IR; a dimension without a number gets the next."""

    table: DimTable
    numbers: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = symbol_numbers(self.table)

    def of(self, type_: Attribute) -> Shape:
        element = element_of(type_)
        if isinstance(element, QuantType | PackedType):
            return self._bytes(type_)
        return Shape(map(self._dim, dims_of(type_)), DTYPES[element])

    def _dim(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        known = self.table.dims.get(dim)
        if known is not None and not known.operator and known.low == known.high:
            return known.high
        return sym(self.numbers[dim])

    def _bytes(self, type_: Attribute) -> Shape:
        """Return a weight as `[rows, bytes] u8` as it lies in its file, `[bytes] u8` packed."""
        dims = [d for d in dims_of(type_) if isinstance(d, int)]
        name = format_of(type_)
        if isinstance(element_of(type_), QuantType):
            block = GGML_TYPES_BY_NAME[name]
            return Shape([*dims[:-1], dims[-1] // block.elements * block.nbytes], DType.U8)
        size = packed_bytes(name, dims[0], dims[1]) if len(dims) == 2 else prod(dims) * 4
        return Shape([size], DType.U8)


def mir_view(module: ModuleOp) -> Graph:
    """Return the program @main of a module of MIR as a graph; RlxError if it has none."""
    main = next(
        (o for o in module.ops if isinstance(o, FuncOp) and o.sym_name.data == "main"), None
    )
    if main is None:
        raise RlxError("expected a module with a function @main, the program")
    shapes = _Shapes(DimTable.of(module))
    keys = {o.sym_name.data: o.key.data for o in module.ops if isinstance(o, hir.WeightOp)}
    graph = Graph(_name_of(module, "main"))
    ids: dict[SSAValue, int] = {}
    names, _ = Program(module).io_names()
    for i, arg in enumerate(main.body.block.args):
        name = names[i] if i < len(names) else f"arg{i}"
        ids[arg] = i
        graph.nodes.append(Node(i, Op(OpKind.INPUT), (), shapes.of(arg.type), name))
    for id, op in enumerate(main.body.block.ops, len(ids)):
        if isinstance(op, ReturnOp):
            graph.set_outputs(ids[v] for v in op.arguments)
            continue
        if isinstance(op, mir.PackOp):
            # The same param in another layout.
            ids[op.result] = ids[op.input]
            continue
        if not op.results:
            continue
        ids.update((result, id) for result in op.results)
        kind, name = mir.kind_of(op), ""
        if isinstance(op, mir.LoadStateOp):
            kind = OpKind.CONSTANT
        elif isinstance(op, mir.LoadWeightOp):
            name = keys[op.weight.root_reference.data]
        inputs = tuple(ids[v] for v in mir.captures(op))
        shape = shapes.of(op.results[0].type)
        graph.nodes.append(Node(id, Op(kind, **{VIEW: op.name}), inputs, shape, name))
    return graph


def lir_view(module: ModuleOp) -> tuple[Graph, LirBufferPlan]:
    """Return a planned module as a graph and a plan; RlxError if there is no `lir.program`."""
    program = next((op for op in module.ops if isinstance(op, lir.ProgramOp)), None)
    if program is None:
        raise RlxError("expected a planned module with a lir.program: run plan-lir first")
    view = _LirView(module, program)
    for id, op in enumerate(view.operations):
        view.add(id, op)
    view.plan.io = LirIoManifest.collect(view.graph)
    return view.graph, view.plan


@dataclass
class _LirView:
    module: ModuleOp
    program: lir.ProgramOp
    ids: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    symbols: dict[str, int] = field(default_factory=dict[str, int])
    """The ids of weights and states by their symbols."""

    def __post_init__(self) -> None:
        table = DimTable.of(self.module)
        self.shapes = _Shapes(table)
        self.graph = Graph(_name_of(self.module, self.program.sym_name.data))
        self.plan = LirBufferPlan(
            arena_size=self.program.arena_size.value.data,
            alignment=self.program.alignment.value.data,
            dynamic_symbols=sorted(self.shapes.numbers[name] for name in table.free),
        )
        self.kernels = {o.sym_name.data: o for o in self.module.ops if isinstance(o, lir.KernelOp)}

    @property
    def operations(self) -> Sequence[Operation]:
        declared = [o for o in self.module.ops if isinstance(o, lir.WeightOp | lir.StateOp)]
        return [*declared, *self.program.body.walk()]

    def add(self, id: int, op: Operation) -> None:
        """Add what an operation says to the graph and to the plan."""
        self.ids.update((result, id) for result in op.results)
        match op:
            case lir.WeightOp() | lir.StateOp():
                self.symbols[op.sym_name.data] = id
                self._node(id, op, (), op.type, op.key.data if isinstance(op, lir.WeightOp) else "")
            case lir.InputOp() | lir.OutputOp():
                self._node(id, op, (), op.result.type, op.io_name.data)
                if isinstance(op, lir.OutputOp):
                    self.graph.outputs.append(id)
            case lir.SlotOp():
                self._node(id, op, (), op.result.type)
                self.plan.assignments[id] = LirBufferSlot(op.offset.value.data, op.size.value.data)
            case lir.ViewOp():
                self._node(id, op, (self.ids[op.root],), op.result.type)
                self.plan.view_aliases[id] = self._alias(op)
            case lir.RefOp() | lir.SourceOp():
                symbol = self.symbols[op.symbol.root_reference.data]
                self._node(id, op, (symbol,), op.result.type)
            case lir.LaunchOp():
                self._launch(id, op)
            case _:
                pass

    def _node(
        self, id: int, op: Operation, inputs: tuple[int, ...], type_: Attribute, name: str = ""
    ) -> None:
        written = Op(_KINDS[type(op)], **{VIEW: op.name})
        self.graph.nodes.append(Node(id, written, inputs, self.shapes.of(type_), name))

    def _alias(self, op: lir.ViewOp) -> LirViewAlias:
        root = self.ids[op.root]
        base = self.plan.view_aliases.get(root, LirViewAlias(root, 0))
        return LirViewAlias(base.root, base.byte_offset + op.byte_offset.value.data)

    def _launch(self, id: int, op: lir.LaunchOp) -> None:
        kernel = self.kernels[op.kernel.root_reference.data]
        body = [o for o in kernel.body.block.ops if o is not kernel.yielded]
        attributes: dict[str, Value] = {
            VIEW: op.name,
            "kernel": kernel.sym_name.data,
            "outs": tuple(self.ids[v] for v in op.outs),
        }
        if op.scratch is not None:
            attributes["scratch"] = self.ids[op.scratch]
        loop = op.parent_op()
        if isinstance(loop, lir.LoopOp):
            attributes["layers"] = (loop.first.value.data, loop.last.value.data)
        # A kernel that only writes a state has no result.
        shape = self.shapes.of(op.outs[0].type) if op.outs else Shape([0], DType.U8)
        inputs = tuple(self.ids[v] for v in op.ins)
        kind = mir.kind_of_kernel(body)
        written = Op(OpKind.TRANSFORM_REGION if kind in LEAF_KINDS else kind, **attributes)
        self.graph.nodes.append(Node(id, written, inputs, shape))
        self.plan.schedule.append(id)
        self.plan.phases.set(id, Phase(op.phase.data.value))


def _name_of(module: ModuleOp, default: str) -> str:
    return module.sym_name.data if module.sym_name is not None else default
