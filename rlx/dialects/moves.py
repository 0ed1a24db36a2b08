"""The primitives that only bring elements to other places."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import I64, DenseArrayBase, IntegerAttr, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import Pure

from rlx.dialects import infer, shapes
from rlx.dialects.ops import AnyTensor, Numbers, i64_attr, indices, numbers


class _Move(IRDLOperation):
    """Elements of one tensor in another order or shape, named by the result's type."""

    input = operand_def(AnyTensor)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = "$input `:` type($input) `->` type($result) attr-dict"

    def __init__(self, input: SSAValue, type: Attribute):
        super().__init__(operands=[input], result_types=[type])


@irdl_op_definition
class ReshapeOp(_Move):
    """The same elements in row-major order under another shape."""

    name = "mir.reshape"

    def verify_(self) -> None:
        infer.check_element(self.name, self.input.type, infer.ELEMENTS)
        infer.check_reshape(self.name, self.input.type, self.result.type)


@irdl_op_definition
class BroadcastOp(_Move):
    """Repeats a tensor along new leading dimensions and dimensions of size 1."""

    name = "mir.broadcast"

    def verify_(self) -> None:
        infer.check_element(self.name, self.input.type, infer.ELEMENTS)
        infer.check_broadcast(self.name, self.input.type, self.result.type)


@irdl_op_definition
class TransposeOp(IRDLOperation):
    """Axis i of the result is axis order[i] of the input."""

    name = "mir.transpose"
    input = operand_def(AnyTensor)
    order = prop_def(DenseArrayBase.constr(i64))
    custom_directives = (Numbers,)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = "$input custom<Numbers>($order) `:` type($input) `->` type($result) attr-dict"

    def __init__(self, input: SSAValue, order: Sequence[int]):
        super().__init__(
            operands=[input],
            properties={"order": indices(order)},
            result_types=[infer.transposed("mir.transpose", input.type, order)],
        )

    def verify_(self) -> None:
        infer.check_element(self.name, self.input.type, infer.ELEMENTS)
        wanted = infer.transposed(self.name, self.input.type, numbers(self.order))
        shapes.expect(self, self.result.type, wanted)


@irdl_op_definition
class SliceOp(IRDLOperation):
    """Elements start, start + step, ... of each axis; the result's type says how many."""

    name = "mir.slice"
    input = operand_def(AnyTensor)
    starts = prop_def(DenseArrayBase.constr(i64))
    steps = prop_def(DenseArrayBase.constr(i64))
    custom_directives = (Numbers,)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = (
        "$input `starts` custom<Numbers>($starts) `steps` custom<Numbers>($steps) `:`"
        " type($input) `->` type($result) attr-dict"
    )

    def __init__(
        self, input: SSAValue, starts: Sequence[int], type: Attribute, steps: Sequence[int] = ()
    ):
        super().__init__(
            operands=[input],
            properties={
                "starts": indices(starts),
                "steps": indices(steps or [1] * len(starts)),
            },
            result_types=[type],
        )

    def verify_(self) -> None:
        infer.check_element(self.name, self.input.type, infer.ELEMENTS)
        starts, steps = numbers(self.starts), numbers(self.steps)
        infer.check_slice(self.name, self.input.type, starts, steps, self.result.type)


@irdl_op_definition
class ConcatOp(IRDLOperation):
    """Tensors one after the other along an axis."""

    name = "mir.concat"
    axis = prop_def(IntegerAttr[I64])
    parts = var_operand_def(AnyTensor)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = "`axis` $axis `(` $parts `)` `:` functional-type($parts, $result) attr-dict"

    def __init__(self, axis: int, parts: Sequence[SSAValue], type: Attribute):
        super().__init__(operands=[parts], properties={"axis": i64_attr(axis)}, result_types=[type])

    def verify_(self) -> None:
        infer.check_element(self.name, self.result.type, infer.ELEMENTS)
        types = [part.type for part in self.parts]
        infer.check_concat(self.name, types, self.axis.value.data, self.result.type)


@irdl_op_definition
class GatherOp(IRDLOperation):
    """
    Takes indices along an axis; an index beyond it means its first or last element.

    An axis without elements has neither: the result is then 0, whatever the indices.
    """

    name = "mir.gather"
    input = operand_def(AnyTensor)
    ids = operand_def(AnyTensor)
    axis = prop_def(IntegerAttr[I64])
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = (
        "$input `,` $ids `axis` $axis `:` type($input) `,` type($ids) `->` type($result) attr-dict"
    )

    def __init__(self, input: SSAValue, ids: SSAValue, axis: int):
        super().__init__(
            operands=[input, ids],
            properties={"axis": i64_attr(axis)},
            result_types=[infer.gathered("mir.gather", input.type, ids.type, axis)],
        )

    def verify_(self) -> None:
        infer.check_element(self.name, self.input.type, infer.ELEMENTS)
        axis = self.axis.value.data
        wanted = infer.gathered(self.name, self.input.type, self.ids.type, axis)
        shapes.expect(self, self.result.type, wanted)
