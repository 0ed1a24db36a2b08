"""Definitions of operations whose text form is made when text is first read or written."""

from __future__ import annotations

from functools import cache
from typing import TypeVar

from xdsl.irdl import IRDLOperation, irdl_op_definition
from xdsl.irdl.declarative_assembly_format import FormatProgram
from xdsl.parser import Parser
from xdsl.printer import Printer

Op = TypeVar("Op", bound=IRDLOperation)


def op_definition(cls: type[Op]) -> type[Op]:
    """
    Define an operation as `irdl_op_definition` does, and leave its `assembly_format` for later.

    A format is parsed into a small program, which for all of them is half the time of loading the
    dialects: a compilation that reads and writes no text does without.
    """
    text = cls.assembly_format
    if text is None:
        return irdl_op_definition(cls)
    cls.assembly_format = None
    irdl_op_definition(cls)
    cls.assembly_format = text
    definition = cls.get_irdl_definition()
    definition.assembly_format = text

    @cache
    def program() -> FormatProgram:
        return FormatProgram.from_str(text, definition)

    def parse(cls: type[Op], parser: Parser) -> Op:
        return program().parse(parser, cls)

    def print(self: Op, printer: Printer) -> None:
        program().print(printer, self)

    setattr(cls, "parse", classmethod(parse))
    setattr(cls, "print", print)
    return cls
