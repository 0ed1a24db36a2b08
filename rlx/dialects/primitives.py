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

from xdsl.dialects.builtin import (
    I64,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    UnitAttr,
    i1,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    VarConstraint,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
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
    ReduceKind,
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
from rlx.dialects.ops import (
    AnyTensor,
    Number,
    Numbers,
    check_finite,
    f64_attr,
    i64_attr,
    indices,
    numbers,
)

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


# Reductions, norms and products


@op_definition
class ReduceOp(IRDLOperation):
    """
    Combines the elements along some axes, which the result lacks.

    Of no elements the sum is 0, the product 1, the mean NaN, the maximum the least value of the
    type. Of i1, `max` is whether any holds and `min` whether all do.
    """

    name = "mir.reduce"
    kind = prop_def(ReduceAttr)
    input = operand_def(AnyTensor)
    axes = prop_def(DenseArrayBase.constr(i64))
    custom_directives = (Numbers,)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = (
        "$kind $input `axes` custom<Numbers>($axes) `:` type($input) `->` type($result) attr-dict"
    )

    def __init__(self, kind: ReduceKind, input: SSAValue, axes: Sequence[int]):
        super().__init__(
            operands=[input],
            properties={"kind": ReduceAttr(kind), "axes": indices(axes)},
            result_types=[infer.reduced("mir.reduce", input.type, axes)],
        )

    def verify_(self) -> None:
        infer.check_element(self.name, self.input.type, (*infer.FLOATS, *infer.INTEGERS, i1))
        element, kind = element_of(self.input.type), self.kind.data
        if (kind is ReduceKind.MEAN and element not in infer.FLOATS) or (
            element == i1 and kind not in (ReduceKind.MAX, ReduceKind.MIN)
        ):
            raise VerifyException(f"{self.name}: {kind} is not defined for {element}")
        wanted = infer.reduced(self.name, self.input.type, numbers(self.axes))
        shapes.expect(self, self.result.type, wanted)


@op_definition
class SoftmaxOp(IRDLOperation):
    """exp(x - max x) / sum of it, over the last dimension."""

    name = "mir.softmax"
    T: ClassVar = VarConstraint("T", AnyTensor)
    input = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$input `:` type($input) attr-dict"

    def __init__(self, input: SSAValue):
        super().__init__(operands=[input], result_types=[input.type])

    def verify_(self) -> None:
        infer.check_softmax(self.name, self.input.type)


@op_definition
class LayerNormOp(IRDLOperation):
    """(x - mean) / sqrt(var + eps) * weight + bias, over the last dimension (Ba et al., 2016)."""

    name = "mir.layer_norm"
    T: ClassVar = VarConstraint("T", AnyTensor)
    V: ClassVar = VarConstraint("V", AnyTensor)
    input = operand_def(T)
    weight = operand_def(V)
    bias = operand_def(V)
    eps = prop_def(FloatAttr[Float64Type])
    custom_directives = (Number,)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = (
        "$input `,` $weight `,` $bias `eps` custom<Number>($eps) `:` type($input) `,`"
        " type($weight) attr-dict"
    )

    def __init__(self, input: SSAValue, weight: SSAValue, bias: SSAValue, eps: float):
        super().__init__(
            operands=[input, weight, bias],
            properties={"eps": f64_attr(eps)},
            result_types=[input.type],
        )

    def verify_(self) -> None:
        check_finite(self, "eps", self.eps)
        infer.check_norm(self.name, self.input.type, self.weight.type)


@op_definition
class DotOp(IRDLOperation):
    """
    Matrix products: `[batch..., m, k] x [batch..., k, n] -> [batch..., m, n]`.

    `lhs_t` and `rhs_t` say that the last two dimensions of a side are swapped. Elements are f32 and
    f64, i32 and i64, whose sums wrap around, or i8, whose sums are i32.
    """

    name = "mir.dot"
    lhs = operand_def(AnyTensor)
    rhs = operand_def(AnyTensor)
    lhs_t = opt_prop_def(UnitAttr)
    rhs_t = opt_prop_def(UnitAttr)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = (
        "$lhs (`lhs_t` $lhs_t^)? `,` $rhs (`rhs_t` $rhs_t^)? `:` type($lhs) `,` type($rhs) `->`"
        " type($result) attr-dict"
    )

    def __init__(self, lhs: SSAValue, rhs: SSAValue, lhs_t: bool = False, rhs_t: bool = False):
        super().__init__(
            operands=[lhs, rhs],
            properties={
                "lhs_t": UnitAttr() if lhs_t else None,
                "rhs_t": UnitAttr() if rhs_t else None,
            },
            result_types=[infer.dot("mir.dot", lhs.type, rhs.type, (lhs_t, rhs_t))],
        )

    @property
    def transposed(self) -> tuple[bool, bool]:
        """Return which sides are given with their last two dimensions swapped."""
        return self.lhs_t is not None, self.rhs_t is not None

    def verify_(self) -> None:
        wanted = infer.dot(self.name, self.lhs.type, self.rhs.type, self.transposed)
        shapes.expect(self, self.result.type, wanted)


@op_definition
class SdpaOp(IRDLOperation):
    """
    Scaled dot-product attention: softmax(q k^T * scale + mask) v (Vaswani et al., 2017).

    `[batch..., heads, m, d], [batch..., kv_heads, n, d], [batch..., kv_heads, n, e] ->
    [batch..., heads, m, e]`; query heads share the keys' heads in groups (Ainslie et al., 2023). A
    mask `[batch..., m, n]` is added for every head; `causal` lets query i see the keys up to
    i + n - m. A query that sees no key gives zeros.
    """

    name = "mir.sdpa"
    query = operand_def(AnyTensor)
    keys = operand_def(AnyTensor)
    values = operand_def(AnyTensor)
    mask = opt_operand_def(AnyTensor)
    scale = prop_def(FloatAttr[Float64Type])
    causal = opt_prop_def(UnitAttr)
    custom_directives = (Number,)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = (
        "$query `,` $keys `,` $values (`mask` $mask^ `:` type($mask))? `scale`"
        " custom<Number>($scale) (`causal` $causal^)? `:` type($query) `,` type($keys) `,`"
        " type($values) `->` type($result) attr-dict"
    )

    def __init__(
        self,
        query: SSAValue,
        keys: SSAValue,
        values: SSAValue,
        scale: float,
        mask: SSAValue | None = None,
        causal: bool = False,
    ):
        super().__init__(
            operands=[query, keys, values, mask],
            properties={
                "scale": f64_attr(scale),
                "causal": UnitAttr() if causal else None,
            },
            result_types=[infer.sdpa("mir.sdpa", query.type, keys.type, values.type)],
        )

    def verify_(self) -> None:
        check_finite(self, "scale", self.scale)
        wanted = infer.sdpa(self.name, self.query.type, self.keys.type, self.values.type)
        shapes.expect(self, self.result.type, wanted)
        if self.mask is not None:
            infer.check_mask(self.name, self.mask.type, self.query.type, self.keys.type)


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
