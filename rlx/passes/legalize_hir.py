"""HIR to MIR: named things become tensor operations, weights become packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import hir, mir
from rlx.dialects.common import QuantType, dims_of, element_of, spell
from rlx.dialects.kinds import BinaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.registry import record_of
from rlx.passes.diagnostics import IrError
from rlx.passes.scan_loops import loop

Lowered = tuple[Sequence[Operation], Sequence[SSAValue]]
"""New operations in order, and the values that stand for the old results."""


def _one(op: Operation) -> Lowered:
    return [op], list(op.results)


def _linear(input_: SSAValue, weight: SSAValue) -> tuple[mir.PackOp, mir.MatmulOp]:
    pack = mir.PackOp(weight)
    return pack, mir.MatmulOp(input_, pack.result)


def _lower_linear(op: hir.LinearOp) -> Lowered:
    pack, matmul = _linear(op.input, op.weight)
    return [pack, matmul], [matmul.result]


def _lower_glu(op: hir.GluOp) -> Lowered:
    pack_gate, gate = _linear(op.input, op.gate)
    pack_up, up = _linear(op.input, op.up)
    gated = mir.UnaryOp(op.kind.data, gate.result)
    product = mir.BinaryOp(BinaryKind.MUL, gated.result, up.result)
    pack_down, down = _linear(product.result, op.down)
    new = [pack_gate, gate, pack_up, up, gated, product, pack_down, down]
    return new, [down.result]


def _lower_embedding(op: hir.EmbeddingOp) -> Lowered:
    pack = mir.PackOp(op.table)
    embedding = mir.EmbeddingOp(op.ids, pack.result)
    return [pack, embedding], [embedding.result]


def _lower_norm(op: hir.RmsNormOp) -> Lowered:
    pack = mir.PackOp(op.weight)
    norm = mir.RmsNormOp(op.input, pack.result, op.eps.value.data)
    return [pack, norm], [norm.result]


def _lower_append(op: hir.AppendOp, states: dict[str, hir.StateOp]) -> Lowered:
    name = op.state.root_reference.data
    if name not in states:
        raise VerifyException(f"hir.append: state @{name} is not declared in this module")
    declared = states[name]
    state = mir.LoadStateOp(name, declared.type)
    append = mir.AppendOp(
        op.input,
        state.result,
        declared.role.data,
        declared.head_dim.value.data,
        op.start.data,
        op.result.type,
        op.places,
    )
    return [state, append], [append.result]


def _lower_rope_table(op: hir.RopeTableOp) -> Lowered:
    positions, n_rot = dims_of(op.cos.type)
    assert isinstance(positions, int)
    assert isinstance(n_rot, int)
    return _one(mir.RopeTableOp(op.base.value.data, positions, n_rot))


def _written_out(op: NamedOp) -> Lowered:
    """Return a named operation in primitives, by its record."""
    expand = record_of(op.name).expand
    assert expand is not None
    w = Writer()
    values = expand(w, op)
    return w.made, values


def _lower(op: Operation, states: dict[str, hir.StateOp]) -> Lowered | None:
    """Return what an operation becomes, None for one that stays."""
    match op:
        case hir.LinearOp():
            return _lower_linear(op)
        case hir.GluOp():
            return _lower_glu(op)
        case hir.EmbeddingOp():
            return _lower_embedding(op)
        case hir.RmsNormOp():
            return _lower_norm(op)
        case hir.RopeTableOp():
            return _lower_rope_table(op)
        case hir.AppendOp():
            return _lower_append(op, states)
        case hir.LoadWeightOp():
            return _one(mir.LoadWeightOp(op.weight.root_reference.data, op.result.type))
        case hir.RopeOp():
            head_dim = op.head_dim.value.data
            return _one(mir.RopeOp(op.input, op.cos, op.sin, op.start.data, head_dim))
        case hir.AttentionOp():
            head_dim, scale = op.head_dim.value.data, op.scale.value.data
            return _one(mir.AttentionOp(op.query, op.keys, op.values, head_dim, scale, op.places))
        case hir.LastRowsOp():
            return _one(mir.LastRowsOp(op.input, op.result.type))
        case hir.SampleOp():
            return _one(mir.SampleOp(op.logits, op.params))
        case hir.RepeatOp():
            callee, n = op.callee.root_reference.data, len(op.res)
            first, last = op.first.value.data, op.last.value.data
            return _one(mir.RepeatOp(callee, first, last, op.arguments, n))
        case hir.ScanOp():
            return loop(op)
        case NamedOp() if not op.LAUNCHED:
            return _written_out(op)
        case _:
            return None


def _pack_as_is(load: mir.LoadWeightOp) -> None:
    """Let primitives that read a weight read its elements, copied to where kernels find them."""
    uses = [use for use in load.result.uses if not isinstance(use.operation, mir.PackOp)]
    if not uses:
        return
    if isinstance(element_of(load.result.type), QuantType):
        raise IrError(
            uses[0].operation,
            f"legalize-hir: {uses[0].operation.name} reads the quantised weight "
            f"{load.weight}, {spell(load.result.type)}: use it in a linear, a glu or an embedding",
        )
    pack = mir.PackOp(load.result, load.result.type)
    pack.result.name_hint = load.result.name_hint
    Rewriter.insert_op(pack, InsertPoint.after(load))
    for use in uses:
        use.operation.operands[use.index] = pack.result


@dataclass(frozen=True)
class LegalizeHirPass(ModulePass):
    """
    Lower every HIR operation to MIR; declarations of weights and state stay.

    hir.linear %x, %w --> %p = mir.pack %w; mir.matmul %x, %p
    """

    name = "legalize-hir"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        states = {s.sym_name.data: s for s in op.ops if isinstance(s, hir.StateOp)}
        work = list(op.walk())
        while work:
            old = work.pop()
            lowered = _lower(old, states)
            if lowered is None:
                continue
            new, values = lowered
            # Expansions may be made of named operations too.
            work += [made for made in new if isinstance(made, NamedOp)]
            for result, value in zip(old.results, values, strict=True):
                value.name_hint = value.name_hint or result.name_hint
            Rewriter.insert_op(new, InsertPoint.before(old))
            Rewriter.replace_op(old, [], values)
        for load in op.walk():
            if isinstance(load, mir.LoadWeightOp):
                _pack_as_is(load)
