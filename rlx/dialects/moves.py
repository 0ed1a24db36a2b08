"""The primitives that only bring elements to other places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import I64, DenseArrayBase, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    VarConstraint,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import infer, shapes
from rlx.dialects.common import Dim, dims_of
from rlx.dialects.definition import op_definition
from rlx.dialects.ops import AnyTensor, Numbers, i64_attr, indices, numbers


class _Move(IRDLOperation):
    """Elements of one tensor in another order or shape, named by the result's type."""

    input = operand_def(AnyTensor)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = "$input `:` type($input) `->` type($result) attr-dict"

    def __init__(self, input: SSAValue, type: Attribute):
        super().__init__(operands=[input], result_types=[type])


@op_definition
class ReshapeOp(_Move):
    """The same elements in row-major order under another shape."""

    name = "mir.reshape"

    def verify_(self) -> None:
        infer.check_element(self.name, self.input.type, infer.ELEMENTS)
        infer.check_reshape(self.name, self.input.type, self.result.type)


@op_definition
class BroadcastOp(_Move):
    """Repeats a tensor along new leading dimensions and dimensions of size 1."""

    name = "mir.broadcast"

    def verify_(self) -> None:
        infer.check_element(self.name, self.input.type, infer.ELEMENTS)
        infer.check_broadcast(self.name, self.input.type, self.result.type)


@op_definition
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


@op_definition
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


@op_definition
class NarrowOp(IRDLOperation):
    """
    Elements start, start + step, ... of an axis, from the size of the dimension `start` on.

    It is what `mir.slice` is for dimensions with names: they say how many elements there are, and
    that they lie within the axis is checked when sizes are bound.
    """

    name = "mir.narrow"
    input = operand_def(AnyTensor)
    axis = prop_def(IntegerAttr[I64])
    start = prop_def(StringAttr)
    step = prop_def(IntegerAttr[I64])
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = (
        "$input `axis` $axis `start` $start `step` $step `:` type($input) `->` type($result)"
        " attr-dict"
    )

    def __init__(self, input: SSAValue, axis: int, start: str, size: Dim, step: int = 1):
        super().__init__(
            operands=[input],
            properties={
                "axis": i64_attr(axis),
                "start": StringAttr(start),
                "step": i64_attr(step),
            },
            result_types=[infer.narrowed("mir.narrow", input.type, axis, size)],
        )

    def verify_(self) -> None:
        infer.check_element(self.name, self.input.type, infer.ELEMENTS)
        axis, step = self.axis.value.data, self.step.value.data
        infer.check_axes(self.name, self.input.type, [axis])
        if step < 1:
            raise VerifyException(f"{self.name}: expected a step from 1, got {step}")
        size = dims_of(self.result.type)[axis : axis + 1]
        wanted = infer.narrowed(self.name, self.input.type, axis, *(size or (0,)))
        shapes.expect(self, self.result.type, wanted)


@op_definition
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


@op_definition
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


@op_definition
class PadOp(IRDLOperation):
    """
    Adds elements of one value: `low` before and `high` after each axis, `between` after each one.

    An axis of n elements becomes low + n + (n - 1) * between + high, where n is not 0. The value is
    a tensor without dimensions.
    """

    name = "mir.pad"
    input = operand_def(AnyTensor)
    fill = operand_def(AnyTensor)
    low = prop_def(DenseArrayBase.constr(i64))
    high = prop_def(DenseArrayBase.constr(i64))
    between = prop_def(DenseArrayBase.constr(i64))
    custom_directives = (Numbers,)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = (
        "$input `,` $fill `low` custom<Numbers>($low) `high` custom<Numbers>($high) `between`"
        " custom<Numbers>($between) `:` type($input) `,` type($fill) `->` type($result) attr-dict"
    )

    def __init__(
        self,
        input: SSAValue,
        fill: SSAValue,
        low: Sequence[int],
        high: Sequence[int],
        between: Sequence[int] = (),
        type: Attribute | None = None,
    ):
        """Take the counts for each axis; `type` is needed where a padded dimension has a name."""
        between = between or [0] * len(low)
        if type is None:
            type = infer.padded("mir.pad", input.type, low, high, between)
        super().__init__(
            operands=[input, fill],
            properties={"low": indices(low), "high": indices(high), "between": indices(between)},
            result_types=[type],
        )

    def verify_(self) -> None:
        infer.check_element(self.name, self.input.type, infer.ELEMENTS)
        low, high, between = (numbers(n) for n in (self.low, self.high, self.between))
        infer.check_pad(self.name, self.input.type, low, high, between, self.result.type)
        shapes.expect(self, self.fill.type, infer.scalar(self.input.type))


@op_definition
class WindowOp(IRDLOperation):
    """
    Overlapping windows along an axis, whose n elements become the two axes `[windows, size]`.

    Element j of window i is element i * stride + j * step; there are as many windows as lie within
    the axis: (n - (size - 1) * step - 1) / stride + 1, rounded down.
    """

    name = "mir.window"
    input = operand_def(AnyTensor)
    axis = prop_def(IntegerAttr[I64])
    size = prop_def(IntegerAttr[I64])
    stride = prop_def(IntegerAttr[I64])
    step = prop_def(IntegerAttr[I64])
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = (
        "$input `axis` $axis `size` $size `stride` $stride `step` $step `:` type($input) `->`"
        " type($result) attr-dict"
    )

    def __init__(self, input: SSAValue, axis: int, size: int, stride: int = 1, step: int = 1):
        super().__init__(
            operands=[input],
            properties={
                "axis": i64_attr(axis),
                "size": i64_attr(size),
                "stride": i64_attr(stride),
                "step": i64_attr(step),
            },
            result_types=[infer.windows("mir.window", input.type, axis, size, stride, step)],
        )

    def verify_(self) -> None:
        infer.check_element(self.name, self.input.type, infer.ELEMENTS)
        axis, size, stride, step = (
            n.value.data for n in (self.axis, self.size, self.stride, self.step)
        )
        wanted = infer.windows(self.name, self.input.type, axis, size, stride, step)
        shapes.expect(self, self.result.type, wanted)


@op_definition
class ReverseOp(IRDLOperation):
    """The elements of some axes from the last to the first."""

    name = "mir.reverse"
    T: ClassVar = VarConstraint("T", AnyTensor)
    input = operand_def(T)
    axes = prop_def(DenseArrayBase.constr(i64))
    custom_directives = (Numbers,)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$input `axes` custom<Numbers>($axes) `:` type($input) attr-dict"

    def __init__(self, input: SSAValue, axes: Sequence[int]):
        super().__init__(
            operands=[input], properties={"axes": indices(axes)}, result_types=[input.type]
        )

    def verify_(self) -> None:
        infer.check_element(self.name, self.input.type, infer.ELEMENTS)
        infer.check_axes(self.name, self.input.type, numbers(self.axes))
