"""MIR to LIR: every launch gets its turn, every value its bytes, threads their barriers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from xdsl.context import Context
from xdsl.dialects.builtin import IndexType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import hir, lir, mir
from rlx.dialects.common import DimTable, dims_of
from rlx.passes import arena
from rlx.passes.barriers import insert_barriers
from rlx.passes.bind_io import bind_io
from rlx.passes.buffers import Buffer, Space
from rlx.passes.diagnostics import IrError
from rlx.passes.outline import Kernels
from rlx.passes.places import place
from rlx.passes.program import Program
from rlx.passes.schedule import Schedule
from rlx.passes.segments import ALIGNMENT, Segments, packing
from rlx.passes.steps import Branch, Item, Loop, Member, Operand, Step, While, buffers_of
from rlx.passes.structure import structure_of

_NAMED = tuple(o for o in hir.Hir.operations if o not in (hir.WeightOp, hir.StateOp))
"""Operations that HIR names, which are lowered before a program is planned."""


@dataclass
class _Emitter:
    """Turns a schedule whose buffers have places into a program's operations."""

    values: dict[Buffer, SSAValue] = field(default_factory=dict[Buffer, SSAValue])

    def declare(self, block: Block, buffers: Sequence[Buffer], offsets: dict[int, int]) -> None:
        for i, buffer in enumerate(buffers):
            if buffer.root is not None:
                view = lir.ViewOp(self.values[buffer.root], buffer.offset, buffer.type)
                block.add_op(view)
                self.values[buffer] = view.result
                continue
            match buffer.space:
                case Space.INPUT:
                    op = lir.InputOp(buffer.name, buffer.index, buffer.type)
                case Space.OUTPUT:
                    op = lir.OutputOp(buffer.name, buffer.index, buffer.type)
                case Space.SLOT:
                    op = lir.SlotOp(offsets[i], buffer.size, buffer.type, buffer.zeroed)
            block.add_op(op)
            self.values[buffer] = op.result

    def emit(self, block: Block, items: Sequence[Item], layer: SSAValue | None) -> None:
        members: dict[Member, SSAValue] = {}
        for item in items:
            match item:
                case Step():
                    ins, outs = (
                        [self._value(block, o, layer, members) for o in operands]
                        for operands in (item.ins, item.outs)
                    )
                    scratch = self.values[item.scratch] if item.scratch is not None else None
                    block.add_op(lir.LaunchOp(item.kernel, item.phase, ins, outs, scratch))
                case Loop():
                    body = Block(arg_types=[IndexType()])
                    body.args[0].name_hint = "layer"
                    self.emit(body, item.items, body.args[0])
                    block.add_op(lir.LoopOp(item.layers.start, item.layers.stop, body))
                case Branch():
                    parts = self._regions(layer, item.then, item.otherwise)
                    block.add_op(lir.IfOp(self.values[item.condition], *parts))
                case While():
                    parts = self._regions(layer, item.test, item.body)
                    block.add_op(lir.WhileOp(self.values[item.condition], *parts))

    def _regions(
        self, layer: SSAValue | None, first: Sequence[Item], second: Sequence[Item]
    ) -> tuple[Block, Block]:
        blocks = Block(), Block()
        for block, items in zip(blocks, (first, second), strict=True):
            self.emit(block, items, layer)
        return blocks

    def _value(
        self,
        block: Block,
        operand: Operand,
        layer: SSAValue | None,
        members: dict[Member, SSAValue],
    ) -> SSAValue:
        if isinstance(operand, Buffer):
            return self.values[operand]
        if operand not in members:
            cls = lir.RefOp if operand.packed else lir.SourceOp
            op = cls(operand.symbol, layer if operand.layered else None, operand.type)
            block.add_op(op)
            members[operand] = op.result
        return members[operand]


def _place(buffers: Sequence[Buffer], table: DimTable, end: int, effort: int) -> arena.Placement:
    """
    Give every buffer of the arena an offset; what the prologue makes lives to the end.

    The offsets of those without a bound are virtual, see `rlx.passes.places`.
    """
    slots = [(i, b) for i, b in enumerate(buffers) if b.space is Space.SLOT]
    unbounded = [(i, b) for i, b in slots if not table.unbounded.isdisjoint(dims_of(b.type))]
    virtual, top = place([(i, b) for i, b in unbounded if b.root is None], end)
    requests = [
        arena.Buffer(i, 0, end + 1, b.size)
        if b.whole_run
        else arena.Buffer(i, b.first, b.last + 1, b.size)
        for i, b in slots
        if (i, b) not in unbounded
    ]
    placed = arena.plan(requests, alignment=ALIGNMENT, effort=effort)
    offsets, peak = {**placed.offsets, **virtual}, max(placed.peak, top)
    return arena.Placement(offsets, peak, max(placed.lower_bound, top))


def _fingerprint(operations: Sequence[Operation]) -> str:
    return blake2b(structure_of(operations).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class PlanLirPass(ModulePass):
    """
    Plan a program: outline kernels, schedule launches, place buffers, insert barriers.

    %y = mir.unary exp %x --> lir.launch @exp steady_state ins(%x) outs(%slot)
    """

    name = "plan-lir"
    effort: int = 0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        checked = Program(op)
        for inner in op.walk():
            if isinstance(inner, mir.RepeatOp):
                checked.check(inner)
            if isinstance(inner, lir.ProgramOp):
                raise IrError(inner, "plan-lir: expected MIR, the module is planned already")
            if isinstance(inner, _NAMED):
                raise IrError(inner, f"plan-lir: expected MIR, got {inner.name}: run legalize-hir")
        functions = {f.sym_name.data: f for f in op.ops if isinstance(f, FuncOp) and f.body.blocks}
        if "main" not in functions:
            raise VerifyException("plan-lir: expected a function @main, the program")
        name = op.sym_name.data if op.sym_name is not None else "main"
        declared = [o.sym_name.data for o in op.ops if isinstance(o, hir.WeightOp | hir.StateOp)]
        weights = [o for o in op.ops if isinstance(o, hir.WeightOp)]
        schedule = Schedule(
            DimTable.of(op),
            functions,
            Kernels({name, *declared}),
            families=frozenset(w.sym_name.data for w in weights if w.is_family),
        )
        inputs, outputs = bind_io(schedule, functions["main"])
        segments = Segments()
        segments.declare(op, schedule.layers)
        packs = packing(schedule, weights)
        placement = _place(schedule.buffers, schedule.table, schedule.time, self.effort)

        body = Block()
        emitter = _Emitter()
        slots = [b for b in schedule.buffers if b.space is Space.SLOT]
        used = dict.fromkeys(buffers_of(schedule.items))
        ordered = [*inputs, *outputs, *slots, *(b for b in used if b.root is not None)]
        index = {b: i for i, b in enumerate(schedule.buffers)}
        offsets = {
            i: placement.offsets.get(index[b], 0) for i, b in enumerate(ordered) if b in index
        }
        emitter.declare(body, ordered, offsets)
        emitter.emit(body, [*packs, *schedule.items], None)
        kernels = list(schedule.kernels.ops.values())
        insert_barriers(body, kernels, dict(checked.pairs(lir.CARRY)))

        operations = [*segments.declarations, *kernels]
        program = lir.ProgramOp(
            name,
            arena_size=placement.peak,
            lower_bound=placement.lower_bound,
            alignment=ALIGNMENT,
            state_size=segments.state_size,
            weights_size=segments.weights_size,
            fingerprint="",
            body=body,
        )
        program.fingerprint = StringAttr(_fingerprint([*operations, program]))
        for old in list(op.ops):
            old.detach()
            old.erase(safe_erase=False)
        op.body.block.add_ops([*operations, program])
