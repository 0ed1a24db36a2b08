"""
LIR: the plan. Every byte has its place and every launch its turn, before the first run.

A module holds weights and states with their offsets, kernels shared by structure, and one program:
buffers with their slots in the arena, then the launches in order, with the barriers between them
and the loops over layers. Kernel bodies are MIR operations on whole tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    I64,
    FlatSymbolRefAttrConstr,
    IndexType,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    UnitAttr,
)
from xdsl.ir import Attribute, Block, Dialect, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import Pure, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from rlx.dialects import shapes
from rlx.dialects.common import PhaseAttr, PhaseKind, dims_of
from rlx.dialects.definition import op_definition
from rlx.dialects.lir_regions import (
    IfOp,
    KernelOp,
    LoopOp,
    ProgramOp,
    WhileOp,
    check_at_least,
    check_layers,
)
from rlx.dialects.ops import AnyTensor, StateRole, StateRoleAttr, i64_attr

CARRY = "rlx.carry"
"""Module attribute: input name -> the output that it takes at the next step."""

ADVANCE = "rlx.advance"
"""Module attribute: dimension -> the dimension that it grows by after a step."""

PRECISION = "rlx.precision"
"""
Module attribute: `fast` where element-wise operations on f32 may lose some bits, and activations of
one row more, before a product with quantised weights.
"""

PRODUCTS = "rlx.products"
"""
Module attribute: `bf16` where products of many rows may round what they multiply to that,
`bf16-weights` where their weights may be packed as that, too, `int8` where both may be rounded to
bytes, each row with a step of its own, and `int8-f32` where they may be and nothing to bf16.
"""

MARKS = "rlx.marks"
"""Module attribute, of no value: every thread notes when it comes to each launch and barrier."""


FEW_ROWS = "rlx.few_rows"
"""
Module attribute, of no value: rows times packed weights are few, and each gives to the bit what it
does alone, in a program of one row.
"""


def set_few_rows(module: ModuleOp) -> None:
    """Let each row of a module be multiplied as a single one is."""
    module.attributes[FEW_ROWS] = UnitAttr()


def set_marks(module: ModuleOp, marks: bool) -> None:
    """Ask for marks in a module, or for none."""
    if marks:
        module.attributes[MARKS] = UnitAttr()
    else:
        module.attributes.pop(MARKS, None)


def set_precision(module: ModuleOp, precision: str, products: str = "f32") -> None:
    """Ask for a precision in a module, `exact` or `fast`, and for products of `f32` or `bf16`."""
    for name, value, default in ((PRECISION, precision, "exact"), (PRODUCTS, products, "f32")):
        if value == default:
            module.attributes.pop(name, None)
        else:
            module.attributes[name] = StringAttr(value)


class Job(StrEnum):
    """What runs a launch; all threads end a job before the next begins."""

    PACK = "pack"
    PROLOGUE = "prologue"
    STEP = "step"


@op_definition
class WeightOp(IRDLOperation):
    """
    A packed weight's place in the weight segment.

    A family has a member for each layer in `first .. last - 1`, at offset + (layer - first) *
    stride; its sources, which packing reads, are numbered from `source` on.
    """

    name = "lir.weight"
    sym_name = prop_def(SymbolNameConstraint())
    key = prop_def(StringAttr)
    offset = prop_def(IntegerAttr[I64])
    stride = prop_def(IntegerAttr[I64])
    first = prop_def(IntegerAttr[I64])
    last = prop_def(IntegerAttr[I64])
    source = prop_def(IntegerAttr[I64])
    type = prop_def(AnyTensor)
    traits = traits_def(SymbolOpInterface())
    assembly_format = (
        "$sym_name $key `offset` $offset `stride` $stride `layers` $first `to` $last"
        " `source` $source `:` $type attr-dict"
    )

    def __init__(
        self,
        name: str,
        key: str,
        offset: int,
        stride: int,
        layers: range,
        source: int,
        type: Attribute,
    ):
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "key": StringAttr(key),
                "offset": i64_attr(offset),
                "stride": i64_attr(stride),
                "first": i64_attr(layers.start),
                "last": i64_attr(layers.stop),
                "source": i64_attr(source),
                "type": type,
            }
        )

    def verify_(self) -> None:
        what = f"weight @{self.sym_name.data}"
        check_at_least(what, 0, offset=self.offset, stride=self.stride, source=self.source)
        check_layers(what, self.first, self.last)
        shapes.check_numbers(what, self.type)
        shapes.check_blocks(what, self.type)


@op_definition
class StateOp(IRDLOperation):
    """A state's place in the state segment, which outlives every step; members as of weights."""

    name = "lir.state"
    sym_name = prop_def(SymbolNameConstraint())
    role = prop_def(StateRoleAttr)
    head_dim = prop_def(IntegerAttr[I64])
    offset = prop_def(IntegerAttr[I64])
    stride = prop_def(IntegerAttr[I64])
    first = prop_def(IntegerAttr[I64])
    last = prop_def(IntegerAttr[I64])
    type = prop_def(AnyTensor)
    traits = traits_def(SymbolOpInterface())
    assembly_format = (
        "$sym_name $role `head_dim` $head_dim `offset` $offset `stride` $stride"
        " `layers` $first `to` $last `:` $type attr-dict"
    )

    def __init__(
        self,
        name: str,
        role: StateRole,
        head_dim: int,
        offset: int,
        stride: int,
        layers: range,
        type: Attribute,
    ):
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "role": StateRoleAttr(role),
                "head_dim": i64_attr(head_dim),
                "offset": i64_attr(offset),
                "stride": i64_attr(stride),
                "first": i64_attr(layers.start),
                "last": i64_attr(layers.stop),
                "type": type,
            }
        )

    def verify_(self) -> None:
        what = f"state @{self.sym_name.data}"
        check_at_least(what, 0, offset=self.offset, stride=self.stride)
        check_layers(what, self.first, self.last)
        shapes.check_state(what, self.type, self.head_dim.value.data)


class _IoOp(IRDLOperation):
    """A buffer that the caller binds for a step."""

    io_name = prop_def(StringAttr)
    index = prop_def(IntegerAttr[I64])
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = "$io_name `index` $index `:` type($result) attr-dict"

    def __init__(self, name: str, index: int, type: Attribute):
        super().__init__(
            properties={"io_name": StringAttr(name), "index": i64_attr(index)},
            result_types=[type],
        )

    def verify_(self) -> None:
        dims_of(self.result.type)
        check_at_least(f'{self.name} "{self.io_name.data}"', 0, index=self.index)


@op_definition
class InputOp(_IoOp):
    name = "lir.input"


@op_definition
class OutputOp(_IoOp):
    name = "lir.output"


@op_definition
class SlotOp(IRDLOperation):
    """A buffer in the arena; the prologue fills one that is `zeroed` with zeros."""

    name = "lir.slot"
    offset = prop_def(IntegerAttr[I64])
    size = prop_def(IntegerAttr[I64])
    zeroed = opt_prop_def(UnitAttr)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = (
        "`offset` $offset `size` $size (`zeroed` $zeroed^)? `:` type($result) attr-dict"
    )

    def __init__(self, offset: int, size: int, type: Attribute, zeroed: bool = False):
        super().__init__(
            properties={
                "offset": i64_attr(offset),
                "size": i64_attr(size),
                "zeroed": UnitAttr() if zeroed else None,
            },
            result_types=[type],
        )

    def verify_(self) -> None:
        dims_of(self.result.type)
        check_at_least(self.name, 0, offset=self.offset, size=self.size)
        program = self.parent_op()
        if not isinstance(program, ProgramOp):
            raise VerifyException("lir.slot: expected to stand in a lir.program")
        start, size = self.offset.value.data, self.size.value.data
        arena, alignment = program.arena_size.value.data, program.alignment.value.data
        if start + size > arena:
            raise VerifyException(
                f"lir.slot: bytes {start} to {start + size} are outside the arena of {arena}"
            )
        if alignment > 0 and start % alignment:
            raise VerifyException(
                f"lir.slot: expected an offset that is a multiple of {alignment}, got {start}"
            )


@op_definition
class ViewOp(IRDLOperation):
    """The bytes of another buffer from an offset on, under another shape."""

    name = "lir.view"
    root = operand_def(AnyTensor)
    byte_offset = prop_def(IntegerAttr[I64])
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = (
        "$root `byte_offset` $byte_offset `:` type($root) `->` type($result) attr-dict"
    )

    def __init__(self, root: SSAValue, byte_offset: int, type: Attribute):
        super().__init__(
            operands=[root],
            properties={"byte_offset": i64_attr(byte_offset)},
            result_types=[type],
        )

    def verify_(self) -> None:
        dims_of(self.result.type)
        check_at_least(self.name, 0, byte_offset=self.byte_offset)


class _MemberOp(IRDLOperation):
    """A weight or a state by its symbol, at the layer of the enclosing loop for a family."""

    symbol = prop_def(FlatSymbolRefAttrConstr)
    layer = opt_operand_def(IndexType)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = "$symbol (`layer` $layer^)? `:` type($result) attr-dict"

    def __init__(self, symbol: str, layer: SSAValue | None, type: Attribute):
        super().__init__(
            operands=[layer], properties={"symbol": SymbolRefAttr(symbol)}, result_types=[type]
        )

    def verify_(self) -> None:
        if self.layer is None:
            return
        block = self.layer.owner
        if not isinstance(block, Block) or not isinstance(block.parent_op(), LoopOp):
            raise VerifyException(f"{self.name}: expected a layer that a lir.loop counts")


@op_definition
class RefOp(_MemberOp):
    """A packed weight or a state where kernels read it."""

    name = "lir.ref"


@op_definition
class SourceOp(_MemberOp):
    """A weight's bytes in its file, which only packing reads."""

    name = "lir.source"


@op_definition
class LaunchOp(IRDLOperation):
    """
    Runs a kernel on every thread: it reads `ins` and writes `outs`.

    `scratch` is memory that the kernel's threads share while it runs.
    """

    name = "lir.launch"
    kernel = prop_def(FlatSymbolRefAttrConstr)
    phase = prop_def(PhaseAttr)
    ins = var_operand_def(AnyTensor)
    outs = var_operand_def(AnyTensor)
    scratch = opt_operand_def(AnyTensor)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$kernel $phase `ins` `(` ($ins^ `:` type($ins))? `)` `outs` `(` ($outs^ `:` type($outs))?"
        " `)` (`scratch` `(` $scratch^ `:` type($scratch) `)`)? attr-dict"
    )

    @property
    def job(self) -> Job:
        """Return the job that runs it: what reads a weight's source packs."""
        if any(isinstance(v.owner, SourceOp) for v in self.ins):
            return Job.PACK
        return Job.PROLOGUE if self.phase.data is PhaseKind.PROLOGUE else Job.STEP

    def __init__(
        self,
        kernel: str,
        phase: PhaseKind,
        ins: Sequence[SSAValue],
        outs: Sequence[SSAValue],
        scratch: SSAValue | None = None,
    ):
        super().__init__(
            operands=[ins, outs, scratch],
            properties={"kernel": SymbolRefAttr(kernel), "phase": PhaseAttr(phase)},
        )


@op_definition
class BarrierOp(IRDLOperation):
    """Waits until every thread has come here."""

    name = "lir.barrier"
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


Lir = Dialect(
    "lir",
    [
        WeightOp,
        StateOp,
        KernelOp,
        ProgramOp,
        InputOp,
        OutputOp,
        SlotOp,
        ViewOp,
        RefOp,
        SourceOp,
        LaunchOp,
        BarrierOp,
        LoopOp,
        IfOp,
        WhileOp,
    ],
    [],
)
