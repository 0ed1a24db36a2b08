"""The tensor primitives of MIR that take many elements together: reductions, norms, products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import DenseArrayBase, Float64Type, FloatAttr, UnitAttr, i1, i64
from xdsl.ir import SSAValue
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
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import infer, shapes
from rlx.dialects.common import element_of
from rlx.dialects.definition import op_definition
from rlx.dialects.kinds import ReduceAttr, ReduceKind
from rlx.dialects.ops import AnyTensor, Number, Numbers, check_finite, f64_attr, indices, numbers


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
