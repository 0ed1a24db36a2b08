"""Places of packed weights and of states, and the launches that pack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation

from rlx.dialects import hir, lir, mir
from rlx.dialects.common import DimTable, PhaseKind, dims_of, format_of, spell
from rlx.lowering.formats import packed_bytes
from rlx.passes.buffers import size_of
from rlx.passes.diagnostics import IrError
from rlx.passes.schedule import Loop, Member, Schedule, Step

ALIGNMENT = 64


@dataclass
class Segments:
    """Places of weights and states, and the declarations that state them."""

    declarations: list[Operation] = field(default_factory=list[Operation])
    weights_size: int = 0
    state_size: int = 0
    sources: int = 0

    def declare(self, module: ModuleOp, layers: dict[str, range]) -> None:
        for op in module.ops:
            match op:
                case hir.WeightOp():
                    self._weight(op, layers.get(op.sym_name.data))
                case hir.StateOp():
                    self._state(op, layers.get(op.sym_name.data))
                case _:
                    pass

    def _weight(self, op: hir.WeightOp, layers: range | None) -> None:
        if layers is None:
            return
        type_ = mir.PackOp.packed(op.type)
        dims = [d for d in dims_of(type_) if isinstance(d, int)]
        if len(dims) not in (1, 2):
            raise IrError(op, f"plan-lir: expected a vector or a matrix, got {spell(op.type)}")
        format_ = format_of(type_)
        size = _aligned(dims[0] * 4) if len(dims) == 1 else packed_bytes(format_, dims[0], dims[1])
        name, key = op.sym_name.data, op.key.data
        new = lir.WeightOp(name, key, self.weights_size, size, layers, self.sources, type_)
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


def packing(schedule: Schedule, weights: Sequence[hir.WeightOp]) -> list[Step | Loop]:
    """Return the launches that pack every weight that is used, grouped by the layers they cover."""
    loops: dict[range, Loop] = {}
    single: list[Step | Loop] = []
    for op in weights:
        symbol = op.sym_name.data
        layers = schedule.layers.get(symbol)
        if layers is None:
            continue
        block = Block(arg_types=[op.type])
        pack = mir.PackOp(block.args[0])
        block.add_ops([pack, mir.YieldOp(pack.result)])
        kernel = schedule.kernels.add("pack", block)
        source = Member(symbol, op.type, op.is_family, packed=False)
        target = Member(symbol, pack.result.type, op.is_family)
        step = Step(kernel, PhaseKind.PROLOGUE, [source], [target])
        if op.is_family:
            loops.setdefault(layers, Loop(layers, [])).steps.append(step)
        else:
            single.append(step)
    return [*single, *loops.values()]
