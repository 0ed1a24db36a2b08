"""
MIR: a closed set of tensor operations, and the kernels that fusion makes of them.

`mir.kernel` groups operations that run as one launch. Its region holds the ordinary operations on
whole tensors and uses values from outside directly, so to fuse is to move an operation in, and to
unfuse is to inline the region. Declarations of weights and state stay those of HIR.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from xdsl.dialects.builtin import (
    I64,
    FlatSymbolRefAttrConstr,
    IntegerAttr,
    StringAttr,
    SymbolRefAttr,
    TensorType,
)
from xdsl.ir import Attribute, Block, Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    operand_def,
    opt_operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_result_def,
)
from xdsl.traits import (
    MemoryReadEffect,
    MemoryWriteEffect,
    Pure,
    RecursiveMemoryEffect,
)
from xdsl.utils.exceptions import VerifyException

from rlx.contract.opkind import OpKind
from rlx.dialects import infer, ops, shapes
from rlx.dialects.common import (
    PackedType,
    PhaseAttr,
    QuantType,
    dims_of,
    element_of,
    format_of,
    spell,
    tensor,
)
from rlx.dialects.control import IfOp, WhileOp, YieldOp
from rlx.dialects.definition import op_definition
from rlx.dialects.moves import (
    BroadcastOp,
    ConcatOp,
    GatherOp,
    NarrowOp,
    PadOp,
    ReshapeOp,
    ReverseOp,
    SliceOp,
    TransposeOp,
    WindowOp,
)
from rlx.dialects.named import NamedOp
from rlx.dialects.ops import AnyTensor, StateRole, StateRoleAttr, i64_attr
from rlx.dialects.primitives import (
    ATTRIBUTES,
    MAPS,
    MOVES,
    PRIMITIVES,
    BinaryOp,
    CastOp,
    CompareOp,
    ConstantOp,
    IotaOp,
    SelectOp,
    UnaryOp,
)
from rlx.dialects.reductions import DotOp, LayerNormOp, ReduceOp, SdpaOp, SoftmaxOp
from rlx.dialects.sequence import SCANS, GatedDeltaNetOp

__all__ = [
    "CONTROL", "ELEMENTWISE", "KINDS", "KINDS_BY_NAME", "MAPS", "MOVES", "PHASE", "PRIMITIVES",
    "SCANS", "AppendOp", "AttentionOp", "BinaryOp", "BroadcastOp", "CastOp", "CompareOp",
    "ConcatOp", "ConstantOp", "DotOp", "EmbeddingOp", "FirstRowsOp", "GatedDeltaNetOp", "GatherOp",
    "IfOp", "IotaOp", "KernelOp", "LastRowsOp", "LayerNormOp", "LoadStateOp", "LoadWeightOp",
    "MatmulOp", "Mir", "NamedOp", "NarrowOp", "PackOp", "PadOp", "ReduceOp", "RepeatOp",
    "ReshapeOp", "ReverseOp", "RmsNormOp", "RopeOp", "RopeTableOp", "SampleOp", "SdpaOp",
    "SelectOp", "SliceOp", "SoftmaxOp", "TransposeOp", "UnaryOp", "WhileOp", "WindowOp", "YieldOp",
    "captures", "is_mir", "kind_of", "kind_of_kernel",
]  # fmt: skip

PHASE = "phase"
"""The attribute that says when an operation runs."""


@op_definition
class LoadWeightOp(ops.LoadWeight):
    name = "mir.load_weight"


@op_definition
class PackOp(IRDLOperation):
    """
    A weight in the layout that kernels read: depends on weights only, so it runs once.

    That is panels for products (`!hir.packed`), or, where the type stays, the elements as they are.
    Panels of a matrix of f32 or f16 may be of bf16, and those of f32, f16 or bf16 of i8: each row
    is rounded to integers of at most 127 times a 127th of its largest.
    """

    name = "mir.pack"
    input = operand_def(AnyTensor)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = "$input `:` type($input) `->` type($result) attr-dict"

    def __init__(self, input: SSAValue, result: Attribute | None = None):
        super().__init__(operands=[input], result_types=[result or self.packed(input.type)])

    @property
    def panels(self) -> bool:
        """Return whether the result is in panels for products."""
        return isinstance(element_of(self.result.type), PackedType)

    @staticmethod
    def packed(type_: Attribute) -> TensorType[Attribute]:
        element = PackedType(StringAttr(format_of(type_)))
        return tensor(dims_of(type_), element)

    @staticmethod
    def narrowed(type_: Attribute) -> dict[str, TensorType[Attribute]]:
        """Return the types of panels that lose some bits of a weight, by their formats."""
        given = format_of(type_)
        if isinstance(element_of(type_), QuantType) or len(dims_of(type_)) != 2:
            return {}
        found = {"f32": ("bf16", "i8"), "f16": ("bf16", "i8"), "bf16": ("i8",)}.get(given, ())
        return {name: tensor(dims_of(type_), PackedType(StringAttr(name))) for name in found}

    def verify_(self) -> None:
        if self.result.type == self.input.type:
            infer.check_element(self.name, self.input.type, infer.ELEMENTS)
        elif self.result.type not in self.narrowed(self.input.type).values():
            shapes.expect(self, self.result.type, self.packed(self.input.type))


@op_definition
class LoadStateOp(IRDLOperation):
    """Gives a state, as a tensor of its whole capacity; in a repeated function, the layer's own."""

    name = "mir.load_state"
    state = prop_def(FlatSymbolRefAttrConstr)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = "$state `:` type($result) attr-dict"

    def __init__(self, state: str, type: Attribute):
        super().__init__(properties={"state": SymbolRefAttr(state)}, result_types=[type])


@op_definition
class MatmulOp(ops.Linear):
    """
    A product with a packed weight, accumulated in f32.

    With a weight of i8 each row of the input is rounded too, to 255 numbers from its least to its
    largest, and sums are exact.
    """

    name = "mir.matmul"

    def verify_(self) -> None:
        if not isinstance(element_of(self.weight.type), PackedType):
            raise VerifyException(
                f"mir.matmul: expected a packed weight, got {spell(self.weight.type)}: mir.pack it"
            )
        shapes.expect(self, self.result.type, shapes.linear(self.input.type, self.weight.type))


@op_definition
class EmbeddingOp(ops.Embedding):
    name = "mir.embedding"


@op_definition
class RmsNormOp(ops.RmsNorm):
    name = "mir.rms_norm"


@op_definition
class RopeTableOp(ops.RopeTable):
    name = "mir.rope_table"


@op_definition
class RopeOp(ops.Rope):
    name = "mir.rope"


@op_definition
class AppendOp(IRDLOperation):
    """
    Writes rows into a state from position `start`; gives a view of the positions filled.

    With `places` `[rows, 2] i64` rows are of several sequences: the state of row r lies
    `places[r, 0]` bytes behind that of the module, and its position is `start` + `places[r, 1]`;
    the view is then of the whole capacity. No two rows have one place.
    Rows of f32 are rounded once to the state's elements, to nearest, ties to even. The state's role
    and head_dim choose the layout of its bytes.
    """

    name = "mir.append"
    input = operand_def(AnyTensor)
    state = operand_def(AnyTensor)
    places = opt_operand_def(AnyTensor)
    role = prop_def(StateRoleAttr)
    head_dim = prop_def(IntegerAttr[I64])
    start = prop_def(StringAttr)
    result = result_def(AnyTensor)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$input `to` $state (`at` $places^ `:` type($places))? $role `head_dim` $head_dim"
        " `start` $start `:` type($input) `,`"
        " type($state) `->` type($result) attr-dict"
    )

    def __init__(
        self,
        input: SSAValue,
        state: SSAValue,
        role: StateRole,
        head_dim: int,
        start: str,
        result: Attribute,
        places: SSAValue | None = None,
    ):
        super().__init__(
            operands=[input, state, places],
            properties={
                "role": StateRoleAttr(role),
                "head_dim": i64_attr(head_dim),
                "start": StringAttr(start),
            },
            result_types=[result],
        )

    def verify_(self) -> None:
        shapes.check_append(self.name, self.input.type, self.result.type)
        shapes.check_append(self.name, self.input.type, self.state.type)
        if element_of(self.result.type) != element_of(self.state.type):
            raise VerifyException(
                f"{self.name}: expected a result of the state's elements, "
                f"got {spell(self.state.type)} and {spell(self.result.type)}"
            )
        shapes.check_state(self.name, self.state.type, self.head_dim.value.data)
        if self.places is not None:
            shapes.check_places(self.name, self.input.type, self.places.type)
            shapes.expect(self, self.result.type, self.state.type)


@op_definition
class FirstRowsOp(ops.Rows):
    """The positions of a state that are filled: `[capacity, width] -> [keys, width]`, a view."""

    name = "mir.first_rows"


@op_definition
class AttentionOp(ops.Attention):
    name = "mir.attention"


@op_definition
class LastRowsOp(ops.LastRows):
    name = "mir.last_rows"


@op_definition
class SampleOp(ops.Sample):
    name = "mir.sample"


@op_definition
class RepeatOp(ops.Repeat):
    name = "mir.repeat"


@op_definition
class KernelOp(IRDLOperation):
    """Operations that run as one launch; the yielded values are its results."""

    name = "mir.kernel"
    res = var_result_def(AnyTensor)
    body = region_def("single_block")
    traits = traits_def(RecursiveMemoryEffect())
    assembly_format = "`->` `(` type($res) `)` $body attr-dict-with-keyword"

    def __init__(self, body: Block, result_types: Sequence[Attribute]):
        super().__init__(regions=[Region(body)], result_types=[result_types])

    @property
    def ops(self) -> Iterator[Operation]:
        """Return the operations of the body, without the yield."""
        # Not isinstance, which takes long where a class isn't the very same.
        return (op for op in self.body.block.ops if type(op) is not YieldOp)

    @property
    def yielded(self) -> YieldOp:
        last = self.body.block.last_op
        assert isinstance(last, YieldOp)
        return last

    def verify_(self) -> None:
        last = self.body.block.last_op
        if not isinstance(last, YieldOp):
            raise VerifyException("mir.kernel: expected a body that ends in mir.yield")
        if self.body.block.args:
            raise VerifyException(
                "mir.kernel: expected a body without arguments, which uses outer values directly"
            )
        given = [v.type for v in last.arguments]
        if given != [r.type for r in self.results]:
            raise VerifyException(
                f"mir.kernel: expected the yielded types ({', '.join(map(spell, given))}), "
                f"got ({', '.join(spell(r.type) for r in self.results)})"
            )


ELEMENTWISE = (UnaryOp, BinaryOp)
"""Maps that an epilogue of a product may hold."""

CONTROL = (IfOp, WhileOp)
"""Operations with regions of launches."""

KINDS: dict[type[Operation], OpKind] = {
    LoadWeightOp: OpKind.PARAM,
    PackOp: OpKind.PARAM,
    LoadStateOp: OpKind.PARAM,
    EmbeddingOp: OpKind.GATHER,
    RmsNormOp: OpKind.RMS_NORM,
    RopeTableOp: OpKind.CONSTANT,
    RopeOp: OpKind.ROPE,
    AppendOp: OpKind.CONCAT,
    AttentionOp: OpKind.ATTENTION,
    UnaryOp: OpKind.ACTIVATION,
    BinaryOp: OpKind.BINARY,
    CompareOp: OpKind.COMPARE,
    SelectOp: OpKind.WHERE,
    CastOp: OpKind.CAST,
    ConstantOp: OpKind.CONSTANT,
    IotaOp: OpKind.CONSTANT,
    ReduceOp: OpKind.REDUCE,
    SoftmaxOp: OpKind.SOFTMAX,
    LayerNormOp: OpKind.LAYER_NORM,
    DotOp: OpKind.DOT_GENERAL,
    SdpaOp: OpKind.ATTENTION,
    GatedDeltaNetOp: OpKind.GATED_DELTA_NET,
    ReshapeOp: OpKind.RESHAPE,
    BroadcastOp: OpKind.EXPAND,
    TransposeOp: OpKind.TRANSPOSE,
    SliceOp: OpKind.NARROW,
    NarrowOp: OpKind.NARROW,
    ConcatOp: OpKind.CONCAT,
    GatherOp: OpKind.GATHER,
    PadOp: OpKind.PAD,
    WindowOp: OpKind.IM2_COL,
    ReverseOp: OpKind.REVERSE,
    IfOp: OpKind.IF,
    WhileOp: OpKind.WHILE,
    FirstRowsOp: OpKind.NARROW,
    LastRowsOp: OpKind.NARROW,
    SampleOp: OpKind.SAMPLE,
    RepeatOp: OpKind.FUSED_TRANSFORMER_LAYER,
}

KINDS_BY_NAME = {
    "signal.fft": OpKind.FFT,
    "signal.welch_peaks": OpKind.WELCH_PEAKS,
    "signal.log_mel": OpKind.LOG_MEL,
}
"""Kinds of the operations of dialects that MIR may use, which are not loaded with it."""


def is_mir(op: Operation) -> bool:
    """Return whether an operation is one of MIR, or of a dialect that MIR may use."""
    if isinstance(op, NamedOp):
        return op.LAUNCHED
    return op.name.startswith("mir.") or op.name in KINDS_BY_NAME


def kind_of(op: Operation) -> OpKind:
    """Return the contract's kind of a MIR operation; a kernel has that of its heaviest one."""
    if isinstance(op, MatmulOp):
        return OpKind.MATMUL if format_of(op.weight.type) == "f32" else OpKind.DEQUANT_MATMUL
    if isinstance(op, KernelOp):
        return kind_of_kernel(op.ops)
    if isinstance(op, NamedOp):
        return op.KIND
    return KINDS.get(type(op)) or KINDS_BY_NAME.get(op.name, OpKind.CUSTOM)


HEAVIEST = (
    OpKind.SAMPLE, OpKind.ATTENTION, OpKind.DEQUANT_MATMUL, OpKind.MATMUL, OpKind.DOT_GENERAL,
)  # fmt: skip
"""Kinds that a kernel has as a whole where an operation of it has, the first one first."""


def kind_of_kernel(ops: Iterable[Operation]) -> OpKind:
    """Return the contract's kind of operations that run as one launch: that of the heaviest."""
    kinds = [kind_of(op) for op in ops]
    for kind in HEAVIEST:
        if kind in kinds:
            return kind
    return kinds[-1] if len(kinds) == 1 else OpKind.ELEMENTWISE_REGION


def captures(op: Operation) -> list[SSAValue]:
    """Return the values from outside that an operation or its regions use, once each."""
    inside, used = set[SSAValue](), dict[SSAValue, None]()
    for inner in op.walk():
        used.update(dict.fromkeys(inner.operands))
        inside.update(inner.results)
        inside.update(a for region in inner.regions for block in region.blocks for a in block.args)
    return [v for v in used if v not in inside]


Mir = Dialect(
    "mir",
    [*KINDS, MatmulOp, KernelOp, YieldOp],
    [PhaseAttr, *ATTRIBUTES],
)
