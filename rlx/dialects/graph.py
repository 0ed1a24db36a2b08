"""
Planned graphs of the contract's operations: a form of LIR for what has no kernels of ours.

A program's header has what the plan says of the whole, each node its place and phase. The kinds of
operations are those of `rlx.contract`; nothing here is compiled. Attributes of an operation are
spelled in JSON, which keeps every number as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from xdsl.dialects.builtin import (
    I64,
    ArrayAttr,
    DictionaryAttr,
    IntAttr,
    IntegerAttr,
    StringAttr,
)
from xdsl.ir import Attribute, Block, Dialect, ParametrizedAttribute, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, NoTerminator
from xdsl.utils.exceptions import VerifyException

from rlx.dialects.common import PhaseAttr, dims_of
from rlx.dialects.definition import op_definition
from rlx.dialects.ops import AnyTensor


@irdl_attr_definition
class IdsAttr(ParametrizedAttribute):
    """Ids of nodes, or symbols: `<0, 2>`."""

    name = "graph.ids"
    values: ArrayAttr[IntAttr]

    @staticmethod
    def of(ids: Iterable[int]) -> IdsAttr:
        return IdsAttr(ArrayAttr(IntAttr(int(id)) for id in ids))

    @property
    def ids(self) -> list[int]:
        return [id.data for id in self.values]

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        ids = parser.parse_comma_separated_list(
            parser.Delimiter.ANGLE, lambda: parser.parse_integer(allow_boolean=False)
        )
        return (cls.of(ids).values,)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(", ".join(map(str, self.ids)))


@irdl_attr_definition
class NamedIdsAttr(ParametrizedAttribute):
    """Names with ids of nodes, in order: `<"x" = 0, "mask" = 2>`."""

    name = "graph.named_ids"
    names: ArrayAttr[StringAttr]
    values: ArrayAttr[IntAttr]

    @staticmethod
    def of(pairs: Iterable[tuple[str, int]]) -> NamedIdsAttr:
        pairs = list(pairs)
        return NamedIdsAttr(
            ArrayAttr(StringAttr(name) for name, _ in pairs),
            ArrayAttr(IntAttr(id) for _, id in pairs),
        )

    @property
    def pairs(self) -> list[tuple[str, int]]:
        return [(n.data, id.data) for n, id in zip(self.names, self.values, strict=True)]

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        new = cls.of(
            parser.parse_comma_separated_list(parser.Delimiter.ANGLE, lambda: _parse_pair(parser))
        )
        return (new.names, new.values)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_list(self.pairs, lambda pair: _print_pair(printer, *pair))


def _parse_pair(parser: AttrParser) -> tuple[str, int]:
    name = parser.parse_str_literal()
    parser.parse_punctuation("=")
    return name, parser.parse_integer(allow_boolean=False)


def _print_pair(printer: Printer, name: str, id: int) -> None:
    printer.print_string_literal(name)
    printer.print_string(f" = {id}")


@op_definition
class ProgramOp(IRDLOperation):
    """A graph and its plan: sizes in bytes, `schedule` and the rest by node ids."""

    name = "graph.program"
    sym_name = prop_def(StringAttr)
    arena_size = prop_def(IntegerAttr[I64])
    alignment = prop_def(IntegerAttr[I64])
    outputs = prop_def(IdsAttr)
    schedule = prop_def(IdsAttr)
    dynamic = prop_def(IdsAttr)
    io_inputs = prop_def(NamedIdsAttr)
    io_params = prop_def(NamedIdsAttr)
    io_outputs = prop_def(IdsAttr)
    body = region_def()
    traits = traits_def(IsolatedFromAbove(), NoTerminator())
    assembly_format = (
        "$sym_name `arena` $arena_size `alignment` $alignment `outputs` $outputs"
        " `schedule` $schedule `dynamic` $dynamic `io` $io_inputs $io_params $io_outputs"
        " $body attr-dict-with-keyword"
    )

    def __init__(self, properties: dict[str, Attribute], body: Block):
        # Without nodes there is no block: an empty one would not print.
        super().__init__(properties=properties, regions=[Region(body if body.ops else ())])

    @property
    def nodes(self) -> Iterator[NodeOp]:
        return (op for op in self.body.walk() if isinstance(op, NodeOp))

    def verify_(self) -> None:
        other = next((op for op in self.body.walk() if not isinstance(op, NodeOp)), None)
        if len(self.body.blocks) > 1 or other is not None:
            raise VerifyException("graph.program: expected one block of graph.node")


@op_definition
class NodeOp(IRDLOperation):
    """
    One node: its id, its kind, its attributes, and what the plan says of it.

    It has a slot (`offset`, `size`), or lies `byte_offset` bytes into the buffer of the node
    `root`, or has no place in the arena.
    """

    name = "graph.node"
    id = prop_def(IntegerAttr[I64])
    kind = prop_def(StringAttr)
    io_name = opt_prop_def(StringAttr)
    given = prop_def(DictionaryAttr)
    phase = opt_prop_def(PhaseAttr)
    offset = opt_prop_def(IntegerAttr[I64])
    size = opt_prop_def(IntegerAttr[I64])
    root = opt_prop_def(IntegerAttr[I64])
    byte_offset = opt_prop_def(IntegerAttr[I64])
    args = var_operand_def(AnyTensor)
    res = result_def(AnyTensor)
    assembly_format = (
        "$id $kind (`name` $io_name^)? $given `(` ($args^ `:` type($args))? `)`"
        " (`phase` $phase^)? (`slot` $offset^ `size` $size)?"
        " (`view` $root^ `byte_offset` $byte_offset)? `:` type($res) attr-dict"
    )

    def __init__(
        self,
        args: Sequence[SSAValue],
        properties: dict[str, Attribute | None],
        type: Attribute,
    ):
        super().__init__(operands=[args], properties=properties, result_types=[type])

    def verify_(self) -> None:
        what = f"graph.node {self.id.value.data}"
        dims_of(self.res.type)
        for value in self.given.data.values():
            if not isinstance(value, StringAttr):
                raise VerifyException(f"{what}: expected attributes in JSON, got {value}")
        for a, b in ((self.offset, self.size), (self.root, self.byte_offset)):
            if (a is None) != (b is None):
                raise VerifyException(f"{what}: expected both numbers of a slot or a view")


def number(value: IntegerAttr[I64] | None) -> int:
    """Return the value of a property that the operation has."""
    assert value is not None
    return value.value.data


Graph = Dialect("graph", [ProgramOp, NodeOp], [IdsAttr, NamedIdsAttr])
