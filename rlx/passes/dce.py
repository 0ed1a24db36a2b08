"""Pass `dce`: what nothing needs is erased, down to the values that loops and layers carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, FunctionType, ModuleOp, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator

from rlx.dialects import hir, mir, ops
from rlx.passes.liveness import Liveness, returned

T = TypeVar("T")


def _take(values: Sequence[T], kept: Sequence[int]) -> list[T]:
    return [values[i] for i in kept]


def _end_with(block: Block, kept: Sequence[int]) -> None:
    """Let a block yield, or return, only some of its values."""
    last = block.last_op
    assert last is not None
    last.operands = _take(last.operands, kept)


def _drop_arguments(block: Block, kept: Sequence[int]) -> None:
    for argument in block.args[::-1]:
        if argument.index not in kept:
            block.erase_arg(argument)


def _replace(op: Operation, operands: Sequence[SSAValue], kept: Sequence[int]) -> None:
    """Let an operation have only some of its results, and these operands."""
    results = _take(op.results, kept)
    new = type(op).create(
        operands=operands,
        result_types=[result.type for result in results],
        properties=op.properties,
        attributes=op.attributes,
        regions=[op.detach_region(region) for region in list(op.regions)],
    )
    Rewriter.insert_op(new, InsertPoint.before(op))
    for old, result in zip(results, new.results, strict=True):
        result.name_hint = old.name_hint
        old.replace_all_uses_with(result)
    Rewriter.erase_op(op)


class _Sweeper:
    def __init__(self, live: Liveness):
        self.live = live
        called = [f for f in live.ops if isinstance(f, FuncOp) and f not in live.fixed]
        self.kept = {function: live.kept(function.args) for function in called}
        """By function that repeats call: the arguments that it keeps."""

    def function(self, function: FuncOp) -> None:
        if function not in self.kept:
            return self.block(function.body.block)
        block, args = function.body.block, self.kept[function]
        # A result is the next value of the argument in its place: they go together.
        results = [i for i in args if i < len(returned(function))]
        _end_with(block, results)
        self.block(block)
        _drop_arguments(block, args)
        old = function.function_type
        types = (_take(old.inputs.data, args), _take(old.outputs.data, results))
        function.properties["function_type"] = FunctionType.from_lists(*types)
        if function.arg_attrs is not None:
            function.properties["arg_attrs"] = ArrayAttr(_take(function.arg_attrs.data, args))
        if function.res_attrs is not None:
            function.properties["res_attrs"] = ArrayAttr(_take(function.res_attrs.data, results))

    def block(self, block: Block) -> None:
        """Erase from the last operation to the first: users go before what they use."""
        for op in reversed(list(block.ops)):
            if op.has_trait(IsTerminator):
                continue
            if op not in self.live.ops:
                Rewriter.erase_op(op)
            elif isinstance(op, mir.IfOp | mir.WhileOp | mir.KernelOp):
                self._regions(op)
            elif isinstance(op, ops.Repeat):
                self._repeat(op)

    def _regions(self, op: mir.IfOp | mir.WhileOp | mir.KernelOp) -> None:
        kept, inits = self.live.kept(op.results), list(op.operands)
        for region in op.regions:
            if not (isinstance(op, mir.WhileOp) and region is op.condition):
                _end_with(region.block, kept)
            self.block(region.block)
            if isinstance(op, mir.WhileOp):
                _drop_arguments(region.block, kept)
                inits = _take(op.inits, kept)
        if len(kept) < len(op.results):
            _replace(op, inits, kept)

    def _repeat(self, op: ops.Repeat) -> None:
        callee = self.live.callee(op)
        kept = self.kept.get(callee) if callee is not None else None
        if kept is not None and len(kept) < len(op.arguments):
            _replace(op, _take(op.arguments, kept), [i for i in kept if i < len(op.res)])


def _symbols(module: ModuleOp) -> set[str]:
    """Return the names that operations refer to."""
    found = (a for op in module.walk() for a in (*op.properties.values(), *op.attributes.values()))
    return {a.root_reference.data for a in found if isinstance(a, SymbolRefAttr)}


@dataclass(frozen=True)
class DcePass(ModulePass):
    """
    Erase what nothing needs: operations without effects, private functions that nothing calls,
    and the results of ifs, loops, kernels and layers, with what is carried or passed for them.

    %a, %b = mir.if %c { mir.yield %x, %y } else { ... }; use(%a)
        --> %a = mir.if %c { mir.yield %x } else { ... }; use(%a)

    A loop is taken to end. Declarations of weights and states stay, unless `remove-declarations`
    is given and no operation names them.
    """

    name = "dce"
    remove_declarations: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        live = Liveness(op)
        sweeper = _Sweeper(live)
        for function in [f for f in op.ops if isinstance(f, FuncOp)]:
            if function not in live.ops:
                Rewriter.erase_op(function)
            elif function.body.blocks:
                sweeper.function(function)
        if not self.remove_declarations:
            return
        named = _symbols(op)
        for declared in [d for d in op.ops if isinstance(d, hir.WeightOp | hir.StateOp)]:
            if declared.sym_name.data not in named:
                Rewriter.erase_op(declared)
