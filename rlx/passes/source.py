"""Parsing of IR text: every operation knows its place, and no text can exhaust the machine."""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Callable
from importlib import import_module
from itertools import accumulate
from math import prod
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import UNKNOWN_LOC, FileLineColLoc, IntAttr, ModuleOp, StringAttr
from xdsl.ir import Dialect, Operation, TypeAttribute
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError
from xdsl.utils.lexer import Token
from xdsl.utils.mlir_lexer import MLIRTokenKind

from rlx.errors import RlxError
from rlx.ops.registry import DIALECTS as NAMED
from rlx.passes.diagnostics import IrError

MAX_WIDTH = 2**24 - 1
"""Bits of the widest integer type, as in MLIR."""
MAX_ELEMENTS = 2**20
"""Elements of the largest dense literal: they are parsed one by one, and weights are symbols."""
WIDTH = 160
"""Characters of a source line that an error shows."""


_STRING = re.compile(r'//[^\n]*|"(?:[^"\\\n\v\f]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+("?)')
"""A comment, or a string and its closing quote, which is empty where there is none."""


class SourceError(RlxError):
    """An error in a module; its message begins with the place, `file:line:column: error:`."""


def parse(
    ctx: Context, data: bytes, name: str, *, first_line: int = 1, implicit_module: bool = True
) -> ModuleOp:
    """
    Parse a module; `name` and `first_line` say where the text comes from.

    Raises SourceError, whatever the text.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        message = f"{name}: error: not UTF-8 text (byte {data[e.start]:#04x} at offset {e.start})"
        raise SourceError(message) from e
    source = _Source(text, name, first_line)
    if not text.strip():
        raise SourceError(source.describe(0, "expected a module, got an empty text"))
    _check_strings(source)
    parser: _Parser | None = None
    try:
        parser = _Parser(ctx, source)
        return parser.parse_module(implicit_module)
    except IrError as e:
        raise SourceError(e.report(name)) from e
    except ParseError as e:
        raise SourceError(source.describe(e.span.start, e.msg)) from e
    except Exception as e:
        # xDSL lets errors of attributes through, and of numbers that Python refuses to convert.
        position = parser.last if parser is not None else 0
        raise SourceError(source.describe(position, _message(e))) from e


def _message(error: Exception) -> str:
    """Return what is wrong with a text, in words that aren't Python's."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, ValueError) and "set_int_max_str_digits" in str(error):
        return f"an integer of more than {sys.get_int_max_str_digits()} digits"
    return str(error) or type(error).__name__


def _check_strings(source: _Source) -> None:
    """Raise SourceError at a string that is not closed, which would stall xDSL's lexer."""
    # Its time is exponential in the number of characters before the place where it fails.
    for match in _STRING.finditer(source.text):
        if match[1] == "":
            message = r"expected a string that ends on its line, with escapes \n, \t, \\, \" or \XX"
            raise SourceError(source.describe(match.start(), message))


class _Source:
    """A text, where its lines begin, and what it is called."""

    def __init__(self, text: str, name: str, first_line: int):
        self.text = text
        self.name = name
        self.first_line = first_line
        self.starts = list(accumulate((len(t) + 1 for t in text.split("\n")), initial=0))

    def place(self, position: int) -> tuple[int, int]:
        """Return line and column of a position, both from 1."""
        line = bisect_right(self.starts, position)
        return line - 1 + self.first_line, position - self.starts[line - 1] + 1

    def describe(self, position: int, message: str) -> str:
        """Return an error message with its place, what stands there, and a caret."""
        line, column = self.place(position)
        start = max(position - column + 1, position - WIDTH // 2)
        shown = self.text[start : start + WIDTH].split("\n", 1)[0]
        shown = "".join(c if c.isprintable() else " " for c in shown)
        caret = " " * (position - start) + "^"
        place = f"{self.name}:{line}:{column}"
        return f"{place}: error: {message.strip()}\n  {shown}\n  {caret}"


class _Parser(Parser):
    """A parser that notes each operation's place and refuses what would exhaust memory."""

    def __init__(self, ctx: Context, source: _Source):
        super().__init__(ctx, source.text, source.name)
        self._source = source
        self._file = StringAttr(source.name)
        self.last = 0
        """Where the token begins that was read last."""

    def parse_module(self, allow_implicit_module: bool = True) -> ModuleOp:
        try:
            return super().parse_module(allow_implicit_module)
        except ParseError as e:
            if not e.msg.startswith("values used but not defined"):
                raise
            # Found at the end of the text: say where the first use is.
            name, values = next(iter(self.forward_ssa_references.items()))
            user = next(use.operation for value in values.values() for use in value.uses)
            raise IrError(user, f"{user.name} uses %{name}, which is not defined there") from e

    def _consume_token(
        self, expected_kind: MLIRTokenKind | None = None
    ) -> Token[MLIRTokenKind, str]:
        self.last = self._current_token.span.start
        return super()._consume_token(expected_kind)

    def parse_operation(self) -> Operation:
        start = self._current_token.span.start
        op = super().parse_operation()
        if op.location == UNKNOWN_LOC:
            line, column = self._source.place(start)
            op.location = FileLineColLoc(self._file, IntAttr(line), IntAttr(column))
        return op

    def _parse_optional_integer_or_float_type(self) -> TypeAttribute | None:
        digits = self._current_token.text.lstrip("sui")
        if digits.isdecimal() and (len(digits) > 8 or int(digits) > MAX_WIDTH):
            self.raise_error(f"an integer type of more than {MAX_WIDTH} bits")
        return super()._parse_optional_integer_or_float_type()

    def _parse_dense_literal_type(self) -> Any:
        type_ = super()._parse_dense_literal_type()
        if prod(type_.get_shape()) > MAX_ELEMENTS:
            self.raise_error(f"a dense literal of more than {MAX_ELEMENTS} elements")
        return type_


DIALECTS = {
    "builtin": ("xdsl.dialects.builtin", "Builtin"),
    "func": ("xdsl.dialects.func", "Func"),
    "hir": ("rlx.dialects.hir", "Hir"),
    "mir": ("rlx.dialects.mir", "Mir"),
    "lir": ("rlx.dialects.lir", "Lir"),
    "signal": ("rlx.dialects.signal", "Signal"),
    "graph": ("rlx.dialects.graph", "Graph"),
    **NAMED,
}
"""Name -> module and attribute of a dialect; it is loaded when a text first names it."""


def context(allow_unregistered: bool = False) -> Context:
    """Return a context that knows the dialects of rlx."""
    ctx = Context(allow_unregistered=allow_unregistered)
    for name, (module, attribute) in DIALECTS.items():
        ctx.register_dialect(name, _dialect(module, attribute))
    ctx.load_registered_dialect("builtin")
    return ctx


def _dialect(module: str, attribute: str) -> Callable[[], Dialect]:
    return lambda: getattr(import_module(module), attribute)
