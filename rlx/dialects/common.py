"""
Types and attributes that the three levels share: symbolic dimensions, quantised elements, phases.

A dimension is a number or a name. Names ride on the builtin tensor's encoding,
`tensor<?x576xf32, #hir.dims<seq, _>>`, and are declared once for a program in the module attribute
`rlx.dims = #hir.dim_table<seq = 1 to 512, past = 0 to 2048, keys = past + seq>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias, cast

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    IntAttr,
    ModuleOp,
    NoneAttr,
    StringAttr,
    TensorType,
    f32,
)
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import (
    Attribute,
    ParametrizedAttribute,
    SpacedOpaqueSyntaxAttribute,
    TypeAttribute,
)
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from rlx.contract.derived import BY_CONSTANT, OPERATORS
from rlx.contract.quant import PACKED_FORMATS, WEIGHT_FORMATS

Dim: TypeAlias = int | str
DIMS = "rlx.dims"
"""The module attribute that holds the dimension table."""
MAX_DIM = 2**63 - 1
"""The largest size of a dimension."""
ANY = 2**31 - 1
"""
The bound of a free dimension that has none, spelled `any`.

A program with such dimensions has no arena of one size: its buffers get their places when sizes are
bound (`rlx.passes.places`). Its tensors have fewer than 2^31 elements, which is checked then too.
"""

PLACE = 1 << 40
"""The virtual bytes of a place in the arena whose size is known when sizes are bound."""


class PhaseKind(StrEnum):
    PROLOGUE = "prologue"
    STEADY_STATE = "steady_state"
    EPILOGUE = "epilogue"


@irdl_attr_definition
class PhaseAttr(EnumAttribute[PhaseKind], SpacedOpaqueSyntaxAttribute):
    """When an operation runs: once after loading, at every step, or for the results of a step."""

    name = "mir.phase"


class _FormatType(ParametrizedAttribute, TypeAttribute):
    """An element type that is spelled by a weight format's name."""

    format: StringAttr
    FORMATS: ClassVar[Sequence[str]] = WEIGHT_FORMATS

    def verify(self) -> None:
        if self.format.data not in self.FORMATS:
            known = ", ".join(self.FORMATS)
            raise VerifyException(f"unknown weight format '{self.format.data}': expected {known}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            return (StringAttr(parser.parse_identifier()),)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(self.format.data)


@irdl_attr_definition
class QuantType(_FormatType):
    """An element of a weight in its file's block format; a block lies along the last dimension."""

    name = "hir.q"
    format: StringAttr


@irdl_attr_definition
class PackedType(_FormatType):
    """An element of a weight in the layout that kernels read: sixteen rows interleaved."""

    name = "hir.packed"
    format: StringAttr
    FORMATS: ClassVar[Sequence[str]] = PACKED_FORMATS


@irdl_attr_definition
class DimsAttr(ParametrizedAttribute):
    """The names of a tensor's dynamic dimensions; `_` where the dimension is a number."""

    name = "hir.dims"
    names: ArrayAttr[StringAttr]

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        names = parser.parse_comma_separated_list(
            parser.Delimiter.ANGLE, lambda: StringAttr(parser.parse_identifier())
        )
        return (ArrayAttr(names),)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_list(self.names, lambda name: printer.print_string(name.data))


@dataclass(frozen=True)
class DimDef:
    """A declared dimension: a range (a constant when its ends meet), or made from two others."""

    name: str
    low: int = 0
    high: int = 0
    operator: str = ""
    operands: tuple[str, ...] = ()

    def size(self, sizes: Mapping[str, int]) -> int:
        """Return the upper bound, given the sizes of the dimensions that this one derives from."""
        if not self.operator:
            return self.high
        a, b = (sizes[o] for o in self.operands)
        return OPERATORS[self.operator](a, b)

    def __str__(self) -> str:
        if self.operator:
            return f"{self.name} = {self.operands[0]} {self.operator} {self.operands[1]}"
        high = "any" if self.high == ANY else self.high
        value = str(self.low) if self.low == self.high else f"{self.low} to {high}"
        return f"{self.name} = {value}"


@irdl_attr_definition
class DimDefAttr(ParametrizedAttribute):
    """One entry of a dimension table, as parameters that compare and hash."""

    name = "hir.dim"
    dim: StringAttr
    low: IntAttr
    high: IntAttr
    operator: StringAttr
    operands: ArrayAttr[StringAttr]


@irdl_attr_definition
class DimTableAttr(ParametrizedAttribute):
    """The dimensions of a program: bounds of the free ones, and how the others derive from them."""

    name = "hir.dim_table"
    entries: ArrayAttr[DimDefAttr]

    @staticmethod
    def of(dims: Iterable[DimDef]) -> DimTableAttr:
        return DimTableAttr(
            ArrayAttr(
                DimDefAttr(
                    StringAttr(d.name),
                    IntAttr(d.low),
                    IntAttr(d.high),
                    StringAttr(d.operator),
                    ArrayAttr(StringAttr(o) for o in d.operands),
                )
                for d in dims
            )
        )

    def verify(self) -> None:
        upper: dict[str, int] = {}
        table = self.table
        unbounded = table.unbounded
        for d in table.dims.values():
            if d.low < 0 or d.high < d.low:
                raise VerifyException(f"dimension '{d.name}': expected 0 <= low <= high, got {d}")
            for operand in d.operands:
                if operand not in upper:
                    raise VerifyException(
                        f"dimension '{d.name}' uses '{operand}', which is not declared before it"
                    )
            if d.operator in BY_CONSTANT:
                by = table.dims[d.operands[1]]
                if by.operator or by.low != by.high or by.low < (d.operator == "ceildiv"):
                    raise VerifyException(
                        f"dimension '{d.name}': expected '{by.name}' to be a number"
                        f"{' above 0' if d.operator == 'ceildiv' else ''}, got {by}"
                    )
            upper[d.name] = d.size(upper)
            if upper[d.name] > MAX_DIM and d.name not in unbounded:
                raise VerifyException(
                    f"dimension '{d.name}': expected an upper bound below 2^63, got more by {d}"
                )
        if len(upper) != len(self.entries):
            raise VerifyException("a dimension is declared twice")

    @property
    def table(self) -> DimTable:
        return DimTable(
            {
                e.dim.data: DimDef(
                    e.dim.data,
                    e.low.data,
                    e.high.data,
                    e.operator.data,
                    tuple(o.data for o in e.operands),
                )
                for e in self.entries
            }
        )

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        dims = parser.parse_comma_separated_list(
            parser.Delimiter.ANGLE, lambda: _parse_dim_def(parser)
        )
        return (DimTableAttr.of(dims).entries,)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(", ".join(map(str, self.table.dims.values())))


def _parse_operator(parser: AttrParser) -> str:
    for operator in OPERATORS:
        if operator.isalpha():
            found = parser.parse_optional_keyword(operator)
        else:
            found = parser.parse_optional_punctuation(cast(Any, operator))
        if found is not None:
            return operator
    parser.raise_error(f"expected one of {', '.join(OPERATORS)}")


def _parse_dim_def(parser: AttrParser) -> DimDef:
    name = parser.parse_identifier()
    parser.parse_punctuation("=")
    first = parser.parse_optional_identifier()
    if first is not None:
        return DimDef(name, 0, 0, _parse_operator(parser), (first, parser.parse_identifier()))
    low = parser.parse_integer(allow_boolean=False, allow_negative=False)
    high = low
    if parser.parse_optional_keyword("to") is not None:
        if parser.parse_optional_keyword("any") is not None:
            high = ANY
        else:
            high = parser.parse_integer(allow_boolean=False, allow_negative=False)
    return DimDef(name, low, high)


@dataclass(frozen=True)
class DimTable:
    """A program's dimensions by name, in order of declaration."""

    dims: Mapping[str, DimDef]

    @staticmethod
    def of(module: ModuleOp) -> DimTable:
        """Return the table that a module declares, an empty one where it declares none."""
        attribute = module.attributes.get(DIMS)
        return attribute.table if isinstance(attribute, DimTableAttr) else DimTable({})

    @property
    def free(self) -> tuple[str, ...]:
        """Return the dimensions whose sizes are given at run time."""
        return tuple(d.name for d in self.dims.values() if not d.operator and d.low != d.high)

    @cached_property
    def unbounded(self) -> frozenset[str]:
        """Return the dimensions without a bound, and those that derive from them."""
        found: set[str] = set()
        for d in self.dims.values():
            free = not d.operator and d.low != d.high
            if (free and d.high == ANY) or not found.isdisjoint(d.operands):
                found.add(d.name)
        return frozenset(found)

    def bind(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the size of every dimension, given those of the free ones."""
        values: dict[str, int] = {}
        for d in self.dims.values():
            values[d.name] = d.size(values) if d.operator else sizes.get(d.name, d.high)
        return values

    @cached_property
    def upper(self) -> dict[str, int]:
        """Return every dimension's upper bound."""
        return self.bind({})

    def size(self, dim: Dim) -> int:
        """Return a dimension's upper bound; a number is its own."""
        return dim if isinstance(dim, int) else self.upper[dim]


def tensor(dims: Sequence[Dim], element: Attribute = f32) -> TensorType[Attribute]:
    """Return the type of a tensor whose dimensions are numbers or names."""
    named = any(isinstance(d, str) for d in dims)
    encoding = NoneAttr()
    if named:
        encoding = DimsAttr(ArrayAttr(StringAttr(d if isinstance(d, str) else "_") for d in dims))
    shape = [DYNAMIC_INDEX if isinstance(d, str) else d for d in dims]
    return TensorType(element, shape, encoding)


def _tensor(type_: Attribute) -> TensorType[Attribute]:
    # Not xDSL's isa: it takes 100 us, and this is asked of every operand.
    if not isinstance(type_, TensorType):
        raise VerifyException(f"expected a tensor, got {type_}")
    return cast(TensorType[Attribute], type_)


def dims_of(type_: Attribute) -> tuple[Dim, ...]:
    """
    Return a tensor type's dimensions as numbers and names.

    Raises VerifyException where the names don't fit the shape.
    """
    type_ = _tensor(type_)
    shape = type_.get_shape()
    if any(s != DYNAMIC_INDEX and not 0 <= s <= MAX_DIM for s in shape):
        raise VerifyException(f"a dimension is negative or beyond 2^63 - 1 in {type_}")
    if not isinstance(type_.encoding, DimsAttr):
        if DYNAMIC_INDEX in shape:
            raise VerifyException(f"{type_} has a dynamic dimension without a name: add #hir.dims")
        return tuple(shape)
    names = [n.data for n in type_.encoding.names]
    if len(names) != len(shape):
        raise VerifyException(
            f"{type_}: expected {len(shape)} dimension names, one for each dimension, "
            f"got {len(names)}"
        )
    for name, size in zip(names, shape, strict=True):
        if (name == "_") != (size != DYNAMIC_INDEX):
            raise VerifyException(f"{type_}: a name stands for each '?' and '_' for each number")
    return tuple(s if n == "_" else n for n, s in zip(names, shape, strict=True))


def element_of(type_: Attribute) -> Attribute:
    """Return a tensor's element type."""
    return _tensor(type_).element_type


def format_of(type_: Attribute) -> str:
    """Return the weight format of a tensor's elements: `f32` for builtin f32, and so on."""
    element = element_of(type_)
    if isinstance(element, QuantType | PackedType):
        return element.format.data
    return str(element)


def spell(type_: Attribute) -> str:
    """Return a tensor type as people write a shape: `[seq, 576] f32`, `[64, 576] packed q4_1`."""
    try:
        dims = ", ".join(map(str, dims_of(type_)))
    except VerifyException:
        return str(type_)
    packed = "packed " if isinstance(element_of(type_), PackedType) else ""
    return f"[{dims}] {packed}{format_of(type_)}"


def element_bytes(type_: Attribute) -> int:
    """Return the bytes of one element of a tensor that is not a weight."""
    element = str(element_of(type_))
    if element not in _BYTES:
        raise VerifyException(
            f"expected elements of one of {', '.join(_BYTES)}, got {spell(type_)}"
        )
    return _BYTES[element]


def repeats(data: bytes, size: int) -> bool:
    """Whether elements of a size are all of the same bytes, so that -0.0 is not 0.0; not none."""
    # On bytes: xDSL's `is_splat` makes a Python number of each element.
    return bool(data) and data == data[:size] * (len(data) // size)


Monomial: TypeAlias = tuple[int, tuple[str, ...]]
"""A number times the sizes of dimensions."""


def monomial(type_: Attribute) -> Monomial:
    """Return the bytes of a tensor."""
    number, dims = element_bytes(type_), dims_of(type_)
    for d in dims:
        number *= d if isinstance(d, int) else 1
    return number, tuple(sorted(d for d in dims if isinstance(d, str)))


_BYTES = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "i1": 1,
    "ui32": 4, "ui8": 1,
}  # fmt: skip
