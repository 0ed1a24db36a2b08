"""
HIR: what a model's author says, one operation for each named thing.

Weights and state are symbols. A weight whose key contains `{layer}` is a family with one member for
each layer; inside a function that `hir.repeat` calls, loading it gives the layer's own member.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import (
    I64,
    FlatSymbolRefAttrConstr,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    TensorType,
)
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    VarConstraint,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import ops, shapes
from rlx.dialects.common import (
    DimDefAttr,
    DimsAttr,
    DimTableAttr,
    PackedType,
    QuantType,
    spell,
)
from rlx.dialects.definition import op_definition
from rlx.dialects.kinds import UnaryAttr, UnaryKind
from rlx.dialects.ops import (
    AnyTensor,
    StateRole,
    StateRoleAttr,
    i64_attr,
)
from rlx.dialects.scan_op import ScanOp


@op_definition
class WeightOp(IRDLOperation):
    """Declares a weight by the key of its source; `{layer}` in the key makes a family."""

    name = "hir.weight"
    sym_name = prop_def(SymbolNameConstraint())
    key = prop_def(StringAttr)
    type = prop_def(AnyTensor)
    traits = traits_def(SymbolOpInterface())
    assembly_format = "$sym_name $key `:` $type attr-dict"

    def __init__(self, name: str, key: str, type: TensorType[Attribute]):
        super().__init__(
            properties={"sym_name": StringAttr(name), "key": StringAttr(key), "type": type}
        )

    def verify_(self) -> None:
        what = f"weight @{self.sym_name.data}"
        shapes.check_numbers(what, self.type)
        shapes.check_blocks(what, self.type)

    @property
    def is_family(self) -> bool:
        return "{layer}" in self.key.data


@op_definition
class StateOp(IRDLOperation):
    """
    Declares persistent state, one member for each layer: `capacity` positions of a width.

    Elements are f32, f16 or bf16: what is kept of the f32 rows that are appended.
    """

    name = "hir.state"
    sym_name = prop_def(SymbolNameConstraint())
    role = prop_def(StateRoleAttr)
    head_dim = prop_def(IntegerAttr[I64])
    type = prop_def(AnyTensor)
    traits = traits_def(SymbolOpInterface())
    assembly_format = "$sym_name $role `head_dim` $head_dim `:` $type attr-dict"

    def __init__(self, name: str, role: StateRole, head_dim: int, type: TensorType[Attribute]):
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "role": StateRoleAttr(role),
                "head_dim": i64_attr(head_dim),
                "type": type,
            }
        )

    def verify_(self) -> None:
        what = f"state @{self.sym_name.data}"
        shapes.check_state(what, self.type, self.head_dim.value.data)


@op_definition
class LinearOp(ops.Linear):
    name = "hir.linear"


@op_definition
class GluOp(IRDLOperation):
    """
    (act(x @ gate^T) * (x @ up^T)) @ down^T: SwiGLU where act is silu, GeGLU where gelu.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020.
    """

    name = "hir.glu"
    kind = prop_def(UnaryAttr)
    T: ClassVar = VarConstraint("T", AnyTensor)
    input = operand_def(T)
    up = operand_def(AnyTensor)
    gate = operand_def(AnyTensor)
    down = operand_def(AnyTensor)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = (
        "$kind $input `up` $up `gate` $gate `down` $down `:` type($input) `,` type($up) `,`"
        " type($gate) `,` type($down) attr-dict"
    )

    def __init__(
        self, kind: UnaryKind, input: SSAValue, up: SSAValue, gate: SSAValue, down: SSAValue
    ):
        super().__init__(
            operands=[input, up, gate, down],
            properties={"kind": UnaryAttr(kind)},
            result_types=[input.type],
        )

    def verify_(self) -> None:
        up = shapes.linear(self.input.type, self.up.type)
        gate = shapes.linear(self.input.type, self.gate.type)
        if up != gate:
            raise VerifyException(
                f"hir.glu: expected up and gate of one shape, got {spell(self.up.type)} "
                f"and {spell(self.gate.type)}"
            )
        shapes.expect(self, self.result.type, shapes.linear(up, self.down.type))


@op_definition
class AppendOp(IRDLOperation):
    """
    Writes rows into a state at position `start`; gives the rows of the state up to them.

    With `places` each row is of a sequence and at a position: see `mir.append`.
    Rows of f32 are rounded once to the state's elements, to nearest, ties to even.
    """

    name = "hir.append"
    input = operand_def(AnyTensor)
    places = opt_operand_def(AnyTensor)
    state = prop_def(FlatSymbolRefAttrConstr)
    start = prop_def(StringAttr)
    result = result_def(AnyTensor)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$input `to` $state (`at` $places^ `:` type($places))? `start` $start `:` type($input)"
        " `->` type($result) attr-dict"
    )

    def __init__(
        self,
        input: SSAValue,
        state: str,
        start: str,
        result: Attribute,
        places: SSAValue | None = None,
    ):
        super().__init__(
            operands=[input, places],
            properties={"state": SymbolRefAttr(state), "start": StringAttr(start)},
            result_types=[result],
        )

    def verify_(self) -> None:
        shapes.check_append("hir.append", self.input.type, self.result.type)
        if self.places is not None:
            shapes.check_places("hir.append", self.input.type, self.places.type)


@op_definition
class LoadWeightOp(ops.LoadWeight):
    name = "hir.load_weight"


@op_definition
class EmbeddingOp(ops.Embedding):
    name = "hir.embedding"


@op_definition
class RmsNormOp(ops.RmsNorm):
    name = "hir.rms_norm"


@op_definition
class RopeTableOp(ops.RopeTable):
    name = "hir.rope_table"


@op_definition
class RopeOp(ops.Rope):
    name = "hir.rope"


@op_definition
class AttentionOp(ops.Attention):
    name = "hir.attention"


@op_definition
class LastRowsOp(ops.LastRows):
    name = "hir.last_rows"


@op_definition
class SampleOp(ops.Sample):
    name = "hir.sample"


@op_definition
class RepeatOp(ops.Repeat):
    name = "hir.repeat"


Hir = Dialect(
    "hir",
    [
        WeightOp,
        StateOp,
        LoadWeightOp,
        EmbeddingOp,
        RmsNormOp,
        LinearOp,
        GluOp,
        RopeTableOp,
        RopeOp,
        AppendOp,
        AttentionOp,
        LastRowsOp,
        SampleOp,
        RepeatOp,
        ScanOp,
    ],
    [
        DimsAttr,
        DimDefAttr,
        DimTableAttr,
        QuantType,
        PackedType,
        StateRoleAttr,
    ],
)
