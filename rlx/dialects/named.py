"""
Named operations: what a model author says in one word, and rare kernels have as an operation.

There are many, and each is needed seldom, so they live in dialects of their own (`rlx.ops`), which
are loaded when they are first named. Each is a class with little text: its options, its shape rule.
What is not `LAUNCHED` is written out in primitives by legalize-hir; what is has a kernel.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar, TypeAlias, cast

from xdsl.dialects.builtin import ArrayAttr, BoolAttr, FloatAttr, IntegerAttr, StringAttr, f64, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, traits_def, var_operand_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from rlx.contract.opkind import OpKind
from rlx.dialects import shapes
from rlx.dialects.common import spell
from rlx.dialects.ops import AnyTensor

Option: TypeAlias = bool | int | float | str | tuple[int, ...]
"""A value of an option; its default says which type it has."""


class NamedOp(IRDLOperation):
    """
    An operation on tensors with options: `vision.conv %x, %w stride [2, 2] : (...) -> ...`.

    A subclass gives its name, its `KIND`, its `OPTIONS` with their defaults, and `infer`.
    """

    args = var_operand_def(AnyTensor)
    res = var_result_def(AnyTensor)
    traits = traits_def(Pure())

    KIND: ClassVar[OpKind]
    OPTIONS: ClassVar[Mapping[str, Option]] = {}
    """Name -> default. An empty tuple stands for one that `infer` chooses."""
    CHOICES: ClassVar[Mapping[str, Sequence[str]]] = {}
    """What an option of text may be."""
    LAUNCHED: ClassVar[bool] = False
    """Whether it has a kernel of its own; others are written out in primitives."""
    IN_PLACE: ClassVar[tuple[tuple[int, int], ...]] = ()
    """Operands and results that may share bytes: the kernel reads an element, then writes it."""

    def __init__(self, *args: SSAValue, types: Sequence[Attribute] = (), **options: Option):
        """Take operands and options; `types`, where they can't be inferred for sizes with names."""
        unknown = next((name for name in options if name not in self.OPTIONS), None)
        if unknown is not None:
            raise VerifyException(f"{self.name}: {_known(self.OPTIONS)}, got {unknown}")
        for name, value in options.items():
            self._check_option(name, value, self.OPTIONS[name])
        if not types:
            types = self.infer([v.type for v in args], {**self.OPTIONS, **options})
        super().__init__(
            operands=[args],
            attributes={k: _encoded(v) for k, v in options.items() if v != self.OPTIONS[k]},
            result_types=[list(types)],
        )

    @classmethod
    @abstractmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        """
        Return the types of the results, from those of the operands and the options by name.

        Raises VerifyException where they don't fit.
        """

    @property
    def chosen(self) -> dict[str, Any]:
        """Return every option's value, of the type of its default."""
        return {name: self.option(name) for name in self.OPTIONS}

    def option(self, name: str) -> Any:
        attribute = self.attributes.get(name)
        return self.OPTIONS[name] if attribute is None else _decoded(attribute)

    @classmethod
    def refuse(cls, wanted: str, types: Sequence[Attribute]) -> VerifyException:
        """Return an error that says what was expected, and what operands there are."""
        given = ", ".join(map(spell, types)) or "none"
        return VerifyException(f"{cls.name}: expected {wanted}, got {given}")

    @classmethod
    def expect_count(cls, types: Sequence[Attribute], *counts: int) -> None:
        """Raise VerifyException for another number of operands."""
        if len(types) not in counts:
            raise cls.refuse(f"{' or '.join(map(str, counts))} operands", types)

    def verify_(self) -> None:
        for name, default in self.OPTIONS.items():
            self._check_option(name, self.option(name), default)
        wanted = list(self.infer([v.type for v in self.args], self.chosen))
        if len(wanted) != len(self.res):
            raise VerifyException(
                f"{self.name}: expected {len(wanted)} results, got {len(self.res)}"
            )
        for result, type_ in zip(self.res, wanted, strict=True):
            shapes.expect(self, result.type, type_)

    def _check_option(self, name: str, value: object, default: Option) -> None:
        if isinstance(value, float) and not isfinite(value):
            raise VerifyException(f"{self.name}: expected a finite {name}, got {value}")
        if type(value) is not type(default):
            raise VerifyException(f"{self.name}: {name}: expected the like of {default}")
        if name in self.CHOICES and value not in self.CHOICES[name]:
            known = ", ".join(self.CHOICES[name])
            raise VerifyException(f"{self.name}: {name}: expected one of {known}, got {value}")

    # Text

    @classmethod
    def parse(cls, parser: Parser) -> NamedOp:
        at = parser.pos
        operands = parser.parse_comma_separated_list(
            parser.Delimiter.PAREN, parser.parse_unresolved_operand
        )
        attributes: dict[str, Attribute] = {}
        while (word := parser.parse_optional_identifier()) is not None:
            if word == "attributes":
                attributes.update(parser.parse_optional_attr_dict())
                break
            if word not in cls.OPTIONS or word in attributes:
                parser.raise_error(f"{_known(cls.OPTIONS)}, each once, got {word}", at, parser.pos)
            attributes[word] = _parsed(parser, cls.OPTIONS[word])
        parser.parse_punctuation(":")
        signature = parser.parse_function_type()
        ins = list(signature.inputs)
        resolved = parser.resolve_operands(operands, ins, at)
        return cls.create(
            operands=resolved, attributes=attributes, result_types=list(signature.outputs)
        )

    def print(self, printer: Printer) -> None:
        printer.print_string("(")
        printer.print_list(self.args, printer.print_ssa_value)
        printer.print_string(")")
        for name in self.OPTIONS:
            if name in self.attributes:
                printer.print_string(f" {name} {_spelled(self.option(name))}")
        others = {k: v for k, v in self.attributes.items() if k not in self.OPTIONS}
        if others:
            printer.print_string(" attributes ")
            printer.print_attr_dict(others)
        printer.print_string(" : ")
        printer.print_function_type([v.type for v in self.args], [v.type for v in self.res])


def _known(options: Mapping[str, Option]) -> str:
    return f"expected options of {', '.join(options) or 'none'}"


def _encoded(value: Option) -> Attribute:
    if isinstance(value, bool):
        return BoolAttr.from_bool(value)
    if isinstance(value, int):
        return IntegerAttr(value, i64)
    if isinstance(value, float):
        return FloatAttr(value, f64)
    if isinstance(value, str):
        return StringAttr(value)
    return ArrayAttr([IntegerAttr(n, i64) for n in value])


def _decoded(attribute: Attribute) -> Option | None:
    match attribute:
        case IntegerAttr():
            number = cast("IntegerAttr[Any]", attribute)
            return bool(number.value.data) if number.type != i64 else number.value.data
        case FloatAttr():
            return cast("FloatAttr[Any]", attribute).value.data
        case StringAttr():
            return attribute.data
        case ArrayAttr():
            items = [_decoded(a) for a in attribute]
            return tuple(i for i in items if isinstance(i, int))
        case _:
            return None


def _parsed(parser: Parser, default: Option) -> Attribute:
    """Read a value of the type of a default."""
    if isinstance(default, bool):
        return BoolAttr.from_bool(parser.parse_boolean())
    if isinstance(default, int):
        return IntegerAttr(parser.parse_integer(), i64)
    if isinstance(default, float):
        return FloatAttr(float(parser.parse_number()), f64)
    if isinstance(default, str):
        return StringAttr(parser.parse_identifier())
    numbers = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
    return _encoded(tuple(numbers))


def _spelled(value: Option) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if not isinstance(value, float):
        return str(value)
    # Without a point it would be read as an integer, and what follows as a word.
    mantissa, e, exponent = repr(value).partition("e")
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}{e}{exponent}"
