"""
Which operations and values of a program something needs, through branches, loops and calls.

Of an if, a loop, a kernel or a repeat each result counts by itself: one that nothing needs makes
nothing needed, and a value that a loop carries is not needed for its own next value alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.traits import IsTerminator, MemoryEffectKind, get_effects

from rlx.dialects import mir, ops
from rlx.dialects.control import yielded


class Liveness:
    """
    What is needed in a module: the results of functions that are called from outside, what has
    effects, and what those need in turn.

    A loop is taken to end: one that computes only what nothing needs is not needed.
    """

    def __init__(self, module: ModuleOp):
        self.ops: set[Operation] = set()
        """Operations that run, and functions that are called."""
        self.values: set[SSAValue] = set()
        self._functions = {f.sym_name.data: f for f in module.ops if isinstance(f, FuncOp)}
        self._calls: dict[FuncOp, list[ops.Repeat]] = {}
        self._effects: dict[Operation, bool] = {}
        self._todo: list[SSAValue] = []
        self.fixed = self._known_outside(module)
        """Functions that keep their arguments and results."""
        for function in self.fixed:
            self._enter(function)
            self._need(function.args if function.body.blocks else ())
            self._need(returned(function))
        while self._todo:
            self._define(self._todo.pop())

    def _known_outside(self, module: ModuleOp) -> set[FuncOp]:
        """Return the functions that keep their types: all but private ones that repeats call."""
        found = {
            f
            for f in self._functions.values()
            if f.sym_visibility is None or f.sym_visibility.data != "private"
        }
        for op in module.walk():
            for attribute in (*op.properties.values(), *op.attributes.values()):
                if isinstance(attribute, SymbolRefAttr):
                    function = self._functions.get(attribute.root_reference.data)
                    if function is None:
                        continue
                    if isinstance(op, ops.Repeat) and not function.is_declaration:
                        self._calls.setdefault(function, []).append(op)
                    else:
                        found.add(function)
        return found

    def callee(self, op: ops.Repeat) -> FuncOp | None:
        """Return the function that a repeat calls, None where the module has no body of it."""
        function = self._functions.get(op.callee.string_value())
        return None if function is None or function.is_declaration else function

    def kept(self, values: Iterable[SSAValue]) -> list[int]:
        """Return the places of the values that are needed."""
        return [i for i, value in enumerate(values) if value in self.values]

    # Marking

    def _need(self, values: Iterable[SSAValue]) -> None:
        for value in values:
            if value not in self.values:
                self.values.add(value)
                self._todo.append(value)

    def _define(self, value: SSAValue) -> None:
        """Mark what a needed value comes from."""
        if isinstance(value, BlockArgument):
            owner, index = value.block.parent_op(), value.index
        else:
            assert isinstance(value, OpResult)
            owner, index = value.op, value.index
            self._run(owner)
        match owner:
            case FuncOp():
                self._need_slot(owner, index)
            case mir.WhileOp():
                carried = (owner.condition.block.args, owner.body.block.args, owner.res)
                sources = (owner.inits, yielded(owner.body.block).arguments)
                self._need(values[index] for values in (*carried, *sources))
            case mir.IfOp() | mir.KernelOp():
                self._need(yielded(region.block).arguments[index] for region in owner.regions)
            case ops.Repeat() if (function := self.callee(owner)) is not None:
                self._need_slot(function, index)
            case Operation():
                self._need(owner.operands)
            case None:
                pass

    def _need_slot(self, function: FuncOp, index: int) -> None:
        """Mark an argument, with the result that is its next value where there is one."""
        self._enter(function)
        calls = self._calls.get(function, [])
        self._need(function.args[index : index + 1])
        self._need(call.arguments[index] for call in calls if call in self.ops)
        if any(index < len(call.res) for call in calls):
            self._need(returned(function)[index : index + 1])
            self._need(call.res[index] for call in calls if call in self.ops)

    def _run(self, op: Operation) -> None:
        """Mark what decides how an operation runs."""
        if op in self.ops:
            return
        self.ops.add(op)
        if isinstance(op, mir.IfOp):
            self._need([op.condition])
        elif isinstance(op, mir.WhileOp):
            self._need(yielded(op.condition.block).arguments)
        elif isinstance(op, ops.Repeat) and (function := self.callee(op)) is not None:
            self._enter(function)
            for index in self.kept(function.args):
                self._need_slot(function, index)
        for region in op.regions:
            self._do(region.block)

    def _enter(self, function: FuncOp) -> None:
        if function not in self.ops:
            self.ops.add(function)
            if function.body.blocks:
                self._do(function.body.block)

    def _do(self, block: Block) -> None:
        """Mark the operations of a block that do more than give results."""
        for op in block.ops:
            if not op.has_trait(IsTerminator) and self._has_effects(op):
                self._run(op)
                known = isinstance(op, ops.Repeat) and self.callee(op) is not None
                if not op.regions and not known:
                    self._need(op.operands)

    def _has_effects(self, op: Operation) -> bool:
        if op in self._effects:
            return self._effects[op]
        self._effects[op] = True  # so that a function which calls itself is not followed for ever
        owner = self.callee(op) or op if isinstance(op, ops.Repeat) else op
        if owner.regions:
            inner = (o for r in owner.regions for b in r.blocks for o in b.ops)
            found = any(self._has_effects(o) for o in inner if not o.has_trait(IsTerminator))
        else:
            effects = get_effects(owner)
            found = effects is None or any(e.kind is not MemoryEffectKind.READ for e in effects)
        self._effects[op] = found
        return found


def returned(function: FuncOp) -> list[SSAValue]:
    """Return what a function returns, nothing for one that is only declared."""
    last = function.body.block.last_op if function.body.blocks else None
    return list(last.operands) if last is not None else []
