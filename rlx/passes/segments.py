"""Places of packed weights and of states, and the launches that pack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Attribute, Block, Operation

from rlx.dialects import hir, lir, mir
from rlx.dialects.common import (
    DimTable,
    PackedType,
    PhaseKind,
    dims_of,
    element_of,
    format_of,
    spell,
)
from rlx.lowering.formats import packed_bytes
from rlx.passes.buffers import size_of
from rlx.passes.diagnostics import IrError
from rlx.passes.schedule import Schedule, narrowed, plain
from rlx.passes.steps import Item, Loop, Member, Step

ALIGNMENT = 64


@dataclass
class Segments:
    """Places of weights and states, and the declarations that state them."""

    declarations: list[Operation] = field(default_factory=list[Operation])
    weights_size: int = 0
    state_size: int = 0
    sources: int = 0
    symbols: set[str] = field(default_factory=set[str])

    def declare(self, module: ModuleOp, layers: dict[str, range]) -> None:
        for op in module.ops:
            match op:
                case hir.WeightOp():
                    for symbol, type_ in layouts(op):
                        self._weight(op, symbol, type_, layers.get(symbol))
                case hir.StateOp():
                    self._state(op, layers.get(op.sym_name.data))
                case _:
                    pass

    def _weight(
        self, op: hir.WeightOp, symbol: str, type_: TensorType[Attribute], layers: range | None
    ) -> None:
        if layers is None:
            return
        if symbol in self.symbols:
            raise IrError(op, f"plan-lir: @{symbol} is what the plan calls one weight: rename it")
        self.symbols.add(symbol)
        size = member_bytes(op, type_)
        new = lir.WeightOp(
            symbol, op.key.data, self.weights_size, size, layers, self.sources, type_
        )
        self.declarations.append(new)
        self.weights_size += size * len(layers)
        self.sources += len(layers)

    def _state(self, op: hir.StateOp, layers: range | None) -> None:
        if layers is None:
            return
        size = _aligned(size_of(op.type, DimTable({})))
        role, head_dim = op.role.data, op.head_dim.value.data
        self.declarations.append(
            lir.StateOp(op.sym_name.data, role, head_dim, self.state_size, size, layers, op.type)
        )
        self.state_size += size * len(layers)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def layouts(op: hir.WeightOp) -> list[tuple[str, TensorType[Attribute]]]:
    """Return the symbols and types of a weight's panels, and of its elements as they are."""
    found = [(op.sym_name.data, mir.PackOp.packed(op.type)), (plain(op.sym_name.data), op.type)]
    narrow = mir.PackOp.narrowed(op.type).items()
    return [*found, *((narrowed(op.sym_name.data, name), type_) for name, type_ in narrow)]


def member_bytes(op: Operation, type_: Attribute) -> int:
    """Return the bytes of a weight in the segment, in the layout that its type says."""
    dims = [d for d in dims_of(type_) if isinstance(d, int)]
    if not isinstance(element_of(type_), PackedType):
        return _aligned(size_of(type_, DimTable({})))
    if len(dims) not in (1, 2):
        raise IrError(op, f"plan-lir: expected a vector or a matrix, got {spell(type_)}")
    return _aligned(dims[0] * 4) if len(dims) == 1 else packed_bytes(format_of(type_), *dims)


def packing(schedule: Schedule, weights: Sequence[hir.WeightOp]) -> list[Item]:
    """Return the launches that pack every weight that is used, grouped by the layers they cover."""
    loops: dict[range, Loop] = {}
    single: list[Item] = []
    for op in weights:
        for symbol, type_ in layouts(op):
            layers = schedule.layers.get(symbol)
            if layers is None:
                continue
            block = Block(arg_types=[op.type])
            pack = mir.PackOp(block.args[0], type_)
            block.add_ops([pack, mir.YieldOp(pack.result)])
            kernel = schedule.kernels.add("pack", block)
            source = Member(symbol, op.type, op.is_family, packed=False)
            target = Member(symbol, type_, op.is_family)
            step = Step(kernel, PhaseKind.PROLOGUE, [source], [target])
            if op.is_family:
                loops.setdefault(layers, Loop(layers, [])).items.append(step)
            else:
                single.append(step)
    return [*single, *loops.values()]
