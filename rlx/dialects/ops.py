"""Operations that HIR and MIR have in common, as bases that each level names."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from math import isfinite
from typing import ClassVar, TypeAlias, cast

from xdsl.dialects.builtin import (
    I64,
    DenseArrayBase,
    FlatSymbolRefAttrConstr,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    SymbolRefAttr,
    TensorType,
    f64,
    i64,
)
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, SpacedOpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    VarConstraint,
    irdl_attr_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from rlx.dialects import shapes
from rlx.dialects.common import dims_of, tensor

AnyTensor = TensorType.constr()
Indices: TypeAlias = DenseArrayBase[I64]


class StateRole(StrEnum):
    KEYS = "keys"
    VALUES = "values"


@irdl_attr_definition
class StateRoleAttr(EnumAttribute[StateRole], SpacedOpaqueSyntaxAttribute):
    """What a state holds: the keys or the values of attention."""

    name = "hir.state_role"


@irdl_custom_directive
class Number(CustomDirective):
    """An f64 in its shortest decimal form, which reads back to the bit; xDSL's own may be hex."""

    value: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.value.set(state, f64_attr(float(parser.parse_number())))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        number = self.value.get(op)
        assert isinstance(number, FloatAttr)
        state.print_whitespace(printer)
        text = repr(number.value.data)
        mantissa, e, exponent = text.partition("e")
        printer.print_string(f"{mantissa if '.' in mantissa else f'{mantissa}.0'}{e}{exponent}")


@irdl_custom_directive
class Numbers(CustomDirective):
    """Integers in brackets: `[1, 0]`."""

    values: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        numbers = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        self.values.set(state, indices(numbers))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        given = self.values.get(op)
        assert isinstance(given, DenseArrayBase)
        state.print_whitespace(printer)
        printer.print_string(f"[{', '.join(map(str, given.get_values()))}]")


def indices(numbers: Sequence[int]) -> Indices:
    return DenseArrayBase.from_list(i64, list(numbers))


def numbers(given: Indices) -> list[int]:
    """Return the integers of an attribute."""
    return list(cast(Sequence[int], given.get_values()))


def check_finite(op: IRDLOperation, name: str, number: FloatAttr[Float64Type]) -> None:
    """Raise VerifyException for a number of an operation that is infinite or NaN."""
    if not isfinite(number.value.data):
        raise VerifyException(f"{op.name}: expected a finite {name}, got {number.value.data}")


def i64_attr(n: int) -> IntegerAttr[I64]:
    return IntegerAttr(n, i64)


def f64_attr(x: float) -> FloatAttr[Float64Type]:
    return FloatAttr(x, f64)


class LoadWeight(IRDLOperation, ABC):
    """Gives a weight in its file's own type; inside a repeated function, the layer's member."""

    weight = prop_def(FlatSymbolRefAttrConstr)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = "$weight `:` type($result) attr-dict"

    def __init__(self, weight: str, type: Attribute):
        super().__init__(properties={"weight": SymbolRefAttr(weight)}, result_types=[type])


class Embedding(IRDLOperation, ABC):
    """Rows of a table chosen by ids: `[rows] i32, [vocab, d] -> [rows, d] f32`."""

    ids = operand_def(AnyTensor)
    table = operand_def(AnyTensor)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = "$ids `,` $table `:` type($ids) `,` type($table) `->` type($result) attr-dict"

    def __init__(self, ids: SSAValue, table: SSAValue):
        super().__init__(
            operands=[ids, table], result_types=[shapes.embedding(ids.type, table.type)]
        )

    def verify_(self) -> None:
        shapes.expect(self, self.result.type, shapes.embedding(self.ids.type, self.table.type))


class RmsNorm(IRDLOperation, ABC):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, 2019)."""

    T: ClassVar = VarConstraint("T", AnyTensor)
    input = operand_def(T)
    weight = operand_def(AnyTensor)
    eps = prop_def(FloatAttr[Float64Type])
    custom_directives = (Number,)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = (
        "$input `,` $weight `eps` custom<Number>($eps) `:` type($input) `,` type($weight) attr-dict"
    )

    def __init__(self, input: SSAValue, weight: SSAValue, eps: float):
        super().__init__(
            operands=[input, weight], properties={"eps": f64_attr(eps)}, result_types=[input.type]
        )

    def verify_(self) -> None:
        check_finite(self, "eps", self.eps)
        shapes.check_norm(self.name, self.input.type, self.weight.type)


class Linear(IRDLOperation, ABC):
    """
    x @ weight^T: `[rows, k], [n, k] -> [rows, n] f32`. K is the weight's last dimension.

    x is f32, or bf16: then the weight may be rounded to bf16 too. Sums are f32.
    """

    input = operand_def(AnyTensor)
    weight = operand_def(AnyTensor)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = (
        "$input `,` $weight `:` type($input) `,` type($weight) `->` type($result) attr-dict"
    )

    def __init__(self, input: SSAValue, weight: SSAValue):
        super().__init__(
            operands=[input, weight], result_types=[shapes.linear(input.type, weight.type)]
        )

    def verify_(self) -> None:
        shapes.expect(self, self.result.type, shapes.linear(self.input.type, self.weight.type))


class RopeTable(IRDLOperation, ABC):
    """
    Cosines and sines of rotary embedding, `[positions, n_rot] f32` each (Su et al., 2021).

    Pair i turns by position * base^(-2i / n_rot). Columns 2i and 2i + 1 hold the pair's cosine
    twice, and its sine as (-sin, +sin).
    """

    base = prop_def(FloatAttr[Float64Type])
    custom_directives = (Number,)
    cos = result_def(AnyTensor)
    sin = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = "`base` custom<Number>($base) `:` type($cos) `,` type($sin) attr-dict"

    def __init__(self, base: float, positions: int, n_rot: int):
        type = tensor([positions, n_rot])
        super().__init__(properties={"base": f64_attr(base)}, result_types=[type, type])

    def verify_(self) -> None:
        check_finite(self, "base", self.base)
        shapes.check_rope_table(self.name, self.cos.type, self.sin.type)
        shapes.check_numbers(self.name, self.cos.type)


class Rope(IRDLOperation, ABC):
    """
    Rotates pairs (2i, 2i + 1) of each head by the angle of the row's position.

    Row r is at position `start + r`, `start` a dimension of the program.
    """

    T: ClassVar = VarConstraint("T", AnyTensor)
    input = operand_def(T)
    cos = operand_def(AnyTensor)
    sin = operand_def(AnyTensor)
    start = prop_def(StringAttr)
    head_dim = prop_def(IntegerAttr[I64])
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = (
        "$input `,` $cos `,` $sin `start` $start `head_dim` $head_dim `:` type($input) `,`"
        " type($cos) `,` type($sin) attr-dict"
    )

    def __init__(self, input: SSAValue, cos: SSAValue, sin: SSAValue, start: str, head_dim: int):
        super().__init__(
            operands=[input, cos, sin],
            properties={"start": StringAttr(start), "head_dim": i64_attr(head_dim)},
            result_types=[input.type],
        )

    def verify_(self) -> None:
        shapes.check_rope(
            self.name, self.input.type, self.cos.type, self.sin.type, self.head_dim.value.data
        )


class Attention(IRDLOperation, ABC):
    """
    Causal attention of queries on the keys and values of a state.

    `[rows, heads * head_dim], [keys, kv_heads * head_dim] x 2 -> [rows, heads * head_dim]`; the
    last row is the query at position keys - 1. Heads share keys in groups (Ainslie et al., 2023).
    With `places` `[rows, 2] i64` each row is the query of a sequence and at a position: see
    `mir.append`; keys and values are then states of that capacity.
    Keys and values are f32, f16 or bf16, all that is computed with them is f32. Queries are f32, or
    bf16, as the result is then: keys, values and the weights of softmax may be rounded to bf16 too.
    """

    T: ClassVar = VarConstraint("T", AnyTensor)
    S: ClassVar = VarConstraint("S", AnyTensor)
    query = operand_def(T)
    keys = operand_def(S)
    values = operand_def(S)
    places = opt_operand_def(AnyTensor)
    head_dim = prop_def(IntegerAttr[I64])
    scale = prop_def(FloatAttr[Float64Type])
    custom_directives = (Number,)
    result = result_def(T)
    traits = traits_def(MemoryReadEffect())
    assembly_format = (
        "$query `,` $keys `,` $values (`at` $places^ `:` type($places))? `head_dim` $head_dim"
        " `scale` custom<Number>($scale) `:` type($query) `,` type($keys) attr-dict"
    )

    def __init__(
        self,
        query: SSAValue,
        keys: SSAValue,
        values: SSAValue,
        head_dim: int,
        scale: float,
        places: SSAValue | None = None,
    ):
        super().__init__(
            operands=[query, keys, values, places],
            properties={"head_dim": i64_attr(head_dim), "scale": f64_attr(scale)},
            result_types=[query.type],
        )

    def verify_(self) -> None:
        check_finite(self, "scale", self.scale)
        shapes.check_attention(self.name, self.query.type, self.keys.type, self.head_dim.value.data)
        if self.places is not None:
            shapes.check_places(self.name, self.query.type, self.places.type)


class Rows(IRDLOperation, ABC):
    """Some rows of a tensor, of its width: `[rows, d] -> [some, d]`."""

    input = operand_def(AnyTensor)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = "$input `:` type($input) `->` type($result) attr-dict"

    def __init__(self, input: SSAValue, result: Attribute):
        super().__init__(operands=[input], result_types=[result])

    def verify_(self) -> None:
        shapes.check_some_rows(self.name, self.input.type, self.result.type)


class LastRows(Rows, ABC):
    """The last rows of a tensor: `[seq, d] -> [out, d]`, out <= seq."""


class Sample(IRDLOperation, ABC):
    """
    Draws a token from the last row of logits: `[rows, vocab] f32, [8] i32 -> [1] i32`.

    The parameters are the words of `rlx.lowering.abi.Sampling`. Where each row has its own,
    `[rows, 8] i32`, a token is drawn from each: `[rows] i32`. It is -1 where all logits are NaN.
    """

    logits = operand_def(AnyTensor)
    params = operand_def(AnyTensor)
    result = result_def(AnyTensor)
    traits = traits_def(Pure())
    assembly_format = (
        "$logits `,` $params `:` type($logits) `,` type($params) `->` type($result) attr-dict"
    )

    def __init__(self, logits: SSAValue, params: SSAValue):
        super().__init__(operands=[logits, params], result_types=[shapes.sampled(params.type)])

    def verify_(self) -> None:
        shapes.check_sample(self.name, self.logits.type, self.params.type)
        shapes.expect(self, self.result.type, shapes.sampled(self.params.type))

    @property
    def single(self) -> bool:
        """Return whether it draws one token, which the first thread does alone."""
        return len(dims_of(self.params.type)) == 1


class Repeat(IRDLOperation, ABC):
    """
    Calls a function once for each layer in `first .. last - 1`.

    The function's results are the next layer's leading arguments; the other arguments stay.
    """

    callee = prop_def(FlatSymbolRefAttrConstr)
    first = prop_def(IntegerAttr[I64])
    last = prop_def(IntegerAttr[I64])
    arguments = var_operand_def(AnyTensor)
    res = var_result_def(AnyTensor)
    assembly_format = (
        "$callee `(` $arguments `)` `layers` $first `to` $last `:`"
        " functional-type($arguments, $res) attr-dict"
    )

    def __init__(self, callee: str, first: int, last: int, arguments: Sequence[SSAValue], n: int):
        super().__init__(
            operands=[arguments],
            properties={
                "callee": SymbolRefAttr(callee),
                "first": i64_attr(first),
                "last": i64_attr(last),
            },
            result_types=[[a.type for a in arguments[:n]]],
        )

    def verify_(self) -> None:
        shapes.check_repeat(self.name, self.first, self.last, self)
