"""
The tensor primitives of MIR: maps, reductions, products and moves on tensors of any rank.

HIR may use them too, beside its named operations. Shapes are explicit: what is to be broadcast goes
through `mir.broadcast`, so that every map has operands of one shape, and a pass never guesses.
Arithmetic is on f32, f64 and integers (ui8 and ui32 have no sign, i8 to i64 have one); f16 and bf16
are stored, moved and cast. Integers wrap; division and `mod` round down, and give 0 where the
divisor is 0. max and min give NaN where an operand is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod
from typing import Any, ClassVar, cast

from xdsl.dialects.builtin import I64, DenseIntOrFPElementsAttr, IntegerAttr, i1
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import IRDLOperation, VarConstraint, operand_def, prop_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from rlx.dialects import infer, shapes
from rlx.dialects.common import element_bytes, element_of, repeats, spell
from rlx.dialects.definition import op_definition
from rlx.dialects.kinds import (
    BOOL_BINARY,
    FLOAT_BINARY,
    FLOAT_UNARY,
    INTEGER_BINARY,
    INTEGER_UNARY,
    BinaryAttr,
    BinaryKind,
    CompareAttr,
    CompareKind,
    ReduceAttr,
    UnaryAttr,
    UnaryKind,
)
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
from rlx.dialects.ops import AnyTensor, i64_attr
from rlx.dialects.reductions import DotOp, LayerNormOp, ReduceOp, SdpaOp, SoftmaxOp

MAX_CONSTANT_BYTES = 1 << 16
"""The largest constant; what is larger is a weight."""


def _check_kind(
    op: UnaryOp | BinaryOp,
    type_: Attribute,
    floats: Sequence[StrEnum],
    integers: Sequence[StrEnum],
    bools: Sequence[StrEnum],
) -> None:
    infer.check_element(op.name, type_, (*infer.FLOATS, *infer.INTEGERS, i1))
    element = element_of(type_)
    allowed = bools if element == i1 else floats if element in infer.FLOATS else integers
    if op.kind.data not in allowed:
        raise VerifyException(
            f"{op.name}: {op.kind.data} is not defined for {spell(type_)}: "
            f"expected one of {', '.join(allowed)}"
        )


@op_definition
class ConstantOp(IRDLOperation):
    """A tensor of given values, at most 64 KiB: what is larger is a weight or a broadcast."""

    name = "mir.constant"
    value = prop_def(DenseIntOrFPElementsAttr)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())

    def __init__(self, value: DenseIntOrFPElementsAttr[Any]):
        super().__init__(properties={"value": value}, result_types=[value.type])

    @classmethod
    def parse(cls, parser: Parser) -> ConstantOp:
        at = parser.pos
        value = parser.parse_attribute()
        if not isinstance(value, DenseIntOrFPElementsAttr):
            parser.raise_error("expected dense<...> : tensor<...>", at, parser.pos)
        op = cls(cast(DenseIntOrFPElementsAttr[Any], value))
        op.attributes = parser.parse_optional_attr_dict()
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        if self._has_text():
            printer.print_attribute(self.value)
        else:
            # xDSL prints infinities and NaN as bits, and reads these as numbers; zeros of both
            # signs as one.
            printer.print_string(f'dense<"0x{bytes(self.value.data.data).hex().upper()}"> : ')
            printer.print_attribute(self.value.type)
        if self.attributes:
            printer.print_string(" ")
            printer.print_attr_dict(self.attributes)

    def _has_text(self) -> bool:
        values = self.value.get_values()
        if any(not isfinite(v) for v in values if isinstance(v, float)):
            return False
        return self.is_splat or not values or not self.value.is_splat()

    @property
    def is_splat(self) -> bool:
        """Whether it is one number throughout: unlike xDSL's, which takes -0.0 for 0.0."""
        return repeats(self.value.data.data, self.value.get_element_type().compile_time_size)

    def verify_(self) -> None:
        infer.check_element(self.name, self.result.type, infer.ELEMENTS)
        if self.value.type != self.result.type:
            raise VerifyException(
                f"{self.name}: expected the result {self.value.type}, got {self.result.type}"
            )
        # One value that fills the tensor counts as often as text would repeat it.
        size = prod(self.value.get_shape()) * element_bytes(self.result.type)
        if size > MAX_CONSTANT_BYTES:
            raise VerifyException(
                f"{self.name}: expected at most {MAX_CONSTANT_BYTES} bytes, got {size}: "
                "declare a hir.weight, or broadcast a smaller constant"
            )


@op_definition
class IotaOp(IRDLOperation):
    """Each element is its own index along an axis."""

    name = "mir.iota"
    axis = prop_def(IntegerAttr[I64])
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = "`axis` $axis `:` type($result) attr-dict"

    def __init__(self, axis: int, type: Attribute):
        super().__init__(properties={"axis": i64_attr(axis)}, result_types=[type])

    def verify_(self) -> None:
        infer.check_element(self.name, self.result.type, (*infer.FLOATS, *infer.INTEGERS))
        infer.check_axes(self.name, self.result.type, [self.axis.value.data])


# Maps


@op_definition
class UnaryOp(IRDLOperation):
    """An element-wise function of one tensor."""

    name = "mir.unary"
    T: ClassVar = VarConstraint("T", AnyTensor)
    kind = prop_def(UnaryAttr)
    input = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$kind $input `:` type($input) attr-dict"

    def __init__(self, kind: UnaryKind, input: SSAValue):
        super().__init__(
            operands=[input], properties={"kind": UnaryAttr(kind)}, result_types=[input.type]
        )

    def verify_(self) -> None:
        _check_kind(self, self.input.type, FLOAT_UNARY, INTEGER_UNARY, [UnaryKind.NOT])


@op_definition
class BinaryOp(IRDLOperation):
    """An element-wise function of two tensors of one shape."""

    name = "mir.binary"
    T: ClassVar = VarConstraint("T", AnyTensor)
    kind = prop_def(BinaryAttr)
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$kind $lhs `,` $rhs `:` type($lhs) attr-dict"

    def __init__(self, kind: BinaryKind, lhs: SSAValue, rhs: SSAValue):
        super().__init__(
            operands=[lhs, rhs], properties={"kind": BinaryAttr(kind)}, result_types=[lhs.type]
        )

    def verify_(self) -> None:
        _check_kind(self, self.lhs.type, FLOAT_BINARY, INTEGER_BINARY, BOOL_BINARY)


@op_definition
class CompareOp(IRDLOperation):
    """Element-wise comparison of two tensors of one shape, i1; with NaN only `ne` holds."""

    name = "mir.compare"
    T: ClassVar = VarConstraint("T", AnyTensor)
    kind = prop_def(CompareAttr)
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = "$kind $lhs `,` $rhs `:` type($lhs) `->` type($result) attr-dict"

    def __init__(self, kind: CompareKind, lhs: SSAValue, rhs: SSAValue):
        super().__init__(
            operands=[lhs, rhs],
            properties={"kind": CompareAttr(kind)},
            result_types=[infer.with_element(lhs.type, i1)],
        )

    def verify_(self) -> None:
        infer.check_element(self.name, self.lhs.type, (*infer.FLOATS, *infer.INTEGERS, i1))
        shapes.expect(self, self.result.type, infer.with_element(self.lhs.type, i1))


@op_definition
class SelectOp(IRDLOperation):
    """Elements of `lhs` where the condition holds, of `rhs` elsewhere; all of one shape."""

    name = "mir.select"
    T: ClassVar = VarConstraint("T", AnyTensor)
    condition = operand_def(AnyTensor)
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$condition `,` $lhs `,` $rhs `:` type($condition) `,` type($lhs) attr-dict"

    def __init__(self, condition: SSAValue, lhs: SSAValue, rhs: SSAValue):
        super().__init__(operands=[condition, lhs, rhs], result_types=[lhs.type])

    def verify_(self) -> None:
        infer.check_element(self.name, self.lhs.type, infer.ELEMENTS)
        wanted = infer.with_element(self.lhs.type, i1)
        if self.condition.type != wanted:
            raise VerifyException(
                f"{self.name}: expected a condition {spell(wanted)}, "
                f"got {spell(self.condition.type)}"
            )


@op_definition
class CastOp(IRDLOperation):
    """
    Elements as another type.

    A float becomes the integer towards zero, the nearest one that the type has where it is beyond,
    and 0 for NaN; an integer wraps; i1 is whether it is not 0; other floats are rounded to nearest.
    """

    name = "mir.cast"
    input = operand_def(AnyTensor)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = "$input `:` type($input) `->` type($result) attr-dict"

    def __init__(self, input: SSAValue, element: Attribute):
        super().__init__(operands=[input], result_types=[infer.with_element(input.type, element)])

    def verify_(self) -> None:
        for type_ in (self.input.type, self.result.type):
            infer.check_element(self.name, type_, infer.ELEMENTS)
        wanted = infer.with_element(self.input.type, element_of(self.result.type))
        shapes.expect(self, self.result.type, wanted)


MAPS = (UnaryOp, BinaryOp, CompareOp, SelectOp, CastOp)
"""Operations that make an element of the same places of their operands."""

MOVES = (
    ReshapeOp, BroadcastOp, TransposeOp, SliceOp, NarrowOp, ConcatOp, GatherOp, PadOp, WindowOp,
    ReverseOp,
)  # fmt: skip
"""Operations that only bring elements to other places."""

PRIMITIVES = (*MAPS, *MOVES, ConstantOp, IotaOp, ReduceOp, SoftmaxOp, LayerNormOp, DotOp, SdpaOp)
"""Every tensor primitive."""


def is_splat(op: Operation | Block) -> bool:
    """Whether an operation is a constant of one number."""
    return isinstance(op, ConstantOp) and op.is_splat


ATTRIBUTES = [UnaryAttr, BinaryAttr, CompareAttr, ReduceAttr]
