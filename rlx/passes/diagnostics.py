"""Verification of whole modules, and errors that show the operations around the culprit."""

from __future__ import annotations

from collections import deque
from io import StringIO

from xdsl.dialects.builtin import FileLineColLoc, ModuleOp, StringAttr
from xdsl.ir import Block, Operation
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, NoTerminator
from xdsl.utils.exceptions import VerifyException

BEFORE, AFTER = 4, 5
"""Operations shown before and after the culprit."""
WIDTH = 160
"""Characters shown of one operation."""


class IrError(VerifyException):
    """What is wrong with one operation of a module."""

    def __init__(self, op: Operation, message: str):
        super().__init__(message)
        self.op = op

    def report(self, source: str, doing: str = "") -> str:
        """
        Return the message with its place in the `source` (a file's name) and what is around.

        `doing` says when it was found, as "after pass 'dce'".
        """
        place = location_of(self.op) or source
        when = f"{doing}: " if doing else ""
        return f"{place}: error: {when}{self}\n{show_around(self.op)}"


def verify(module: ModuleOp) -> None:
    """
    Check a module: where values are visible, every operation, the names of dimensions.

    Raises IrError, which names the operation. What xDSL's own `verify` checks is checked here, in
    linear time; on an error that one prints the whole module and does not say which operation.
    """
    from rlx.passes.verify_dims import check_dims
    from rlx.passes.verify_ssa import check_ssa

    check_ssa(module)
    _verify(module)
    check_dims(module)


def _verify(op: Operation) -> None:
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                _verify(inner)
            if not op.has_trait(NoTerminator):
                _verify_end(op, block)
    try:
        if op.successors:
            op.verify(verify_nested_ops=False)
        else:
            op.verify_()
    except IrError:
        raise
    except VerifyException as e:
        raise IrError(op, str(e)) from None


def _verify_end(op: Operation, block: Block) -> None:
    last = block.last_op
    if last is None:
        raise IrError(op, f"{op.name}: expected a body that ends in a terminator, got an empty one")
    if not last.has_trait(IsTerminator):
        raise IrError(
            last, f"{op.name}: expected a body that ends in a terminator, got {last.name}"
        )


def location_of(op: Operation) -> str | None:
    """Return where an operation stands in its source, as `file:line:column`, if it is known."""
    location = op.location
    if not isinstance(location, FileLineColLoc):
        return None
    return f"{location.filename.data}:{location.line.data}:{location.column.data}"


def show_around(culprit: Operation) -> str:
    """Return the text of an operation, marked, between its neighbours in its block."""
    block = culprit.parent
    if block is None:
        return f"  > {_first_line(culprit, Printer())}"
    around = deque([culprit])
    for _ in range(BEFORE):
        if (previous := around[0].prev_op) is not None:
            around.appendleft(previous)
    for _ in range(AFTER):
        if (following := around[-1].next_op) is not None:
            around.append(following)
    parent = block.parent_op()
    lines = [f"  in {_title(parent)}:"] if parent is not None else []
    printer = Printer()  # one for all, so that a value has one name throughout
    for op in around:
        lines.append(f"  {'>' if op is culprit else ' '} {_first_line(op, printer)}")
    return "\n".join(lines)


def _title(op: Operation) -> str:
    name = op.properties.get("sym_name")
    return f"{op.name} @{name.data}" if isinstance(name, StringAttr) else op.name


def _first_line(op: Operation, printer: Printer) -> str:
    """Return the first line of an operation's text; an invalid one may print in no form at all."""
    for generic in (False, True):
        printer.stream = text = StringIO()
        printer.print_generic_format = generic
        try:
            printer.print_op(op)
        except Exception:
            continue
        line = text.getvalue().split("\n", 1)[0]
        return line if len(line) <= WIDTH else f"{line[:WIDTH]} ..."
    return op.name
