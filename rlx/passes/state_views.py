"""
Which values may be views of a state, whose contents change when rows are appended.

An operation on such a value reads the state when it runs. So it may neither be put elsewhere nor
be replaced by its operand, as one on other values may.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from rlx.dialects import hir, mir, ops

Flow = tuple[SSAValue, SSAValue]

_SAME_BYTES = (*mir.MOVES, ops.Rows)
"""What may give a view of its operand."""


def state_views(module: ModuleOp) -> set[SSAValue]:
    """Return the values that may be views of a state, found by following moves, regions, calls."""
    functions = {f.sym_name.data: f for f in module.ops if isinstance(f, FuncOp) and f.body.blocks}
    calls: dict[str, list[ops.Repeat]] = {}
    found: set[SSAValue] = set()
    inner = list(module.walk())
    for op in inner:
        if isinstance(op, ops.Repeat):
            calls.setdefault(op.callee.string_value(), []).append(op)
        elif isinstance(op, mir.LoadStateOp | mir.AppendOp | hir.AppendOp):
            found.update(op.results)
            found.update(op.operands[1:])
    if not found:
        return found
    targets: dict[SSAValue, list[SSAValue]] = {}
    for op in inner:
        for source, target in _flows(op, functions, calls):
            targets.setdefault(source, []).append(target)
    todo = list(found)
    while todo:
        new = set(targets.get(todo.pop(), ())) - found
        found |= new
        todo += new
    return found


def _flows(
    op: Operation, functions: dict[str, FuncOp], calls: dict[str, list[ops.Repeat]]
) -> Iterator[Flow]:
    """Yield the pairs of values of which an operation may make the second a view of the first."""
    match op:
        case mir.WhileOp():
            for block in (op.condition.block, op.body.block):
                yield from zip(op.inits, block.args, strict=True)
            yield from zip(op.inits, op.res, strict=True)
        case mir.YieldOp():
            yield from _yielded(op)
        case ops.Repeat():
            callee = functions.get(op.callee.string_value())
            yield from zip(op.arguments, callee.args if callee is not None else (), strict=False)
        case ReturnOp():
            parent = op.parent_op()
            name = parent.sym_name.data if isinstance(parent, FuncOp) else ""
            for call in calls.get(name, ()):
                yield from zip(op.arguments, call.res, strict=False)
                yield from zip(op.arguments, functions[name].args, strict=False)
        case _ if isinstance(op, _SAME_BYTES):
            yield from ((operand, result) for operand in op.operands for result in op.results)
        case _:
            pass


def _yielded(op: mir.YieldOp) -> Iterator[Flow]:
    parent = op.parent_op()
    if parent is None:
        return
    if not isinstance(parent, mir.WhileOp):
        yield from zip(op.arguments, parent.results, strict=False)
    elif op.parent is parent.body.block:
        for values in (parent.condition.block.args, parent.body.block.args, parent.res):
            yield from zip(op.arguments, values, strict=False)
