"""
Ways to make a failing module smaller, in terms of regions, blocks and symbols of any dialect.

A step yields smaller cases, is told whether each still fails and goes on from there. It tries to
drop everything, then halves, and so on down to single things (Zeller and Hildebrandt, 2002,
"Simplifying and Isolating Failure-Inducing Input").
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import IsTerminator

from rlx.dialects.ops import i64_attr

T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """A module and the passes that fail on it; neither is changed."""

    module: ModuleOp
    passes: tuple[ModulePass, ...]

    @property
    def size(self) -> tuple[int, ...]:
        """What steps make smaller: operations before passes, layers, values, attributes."""
        ops = list(self.module.walk())
        blocks = [block for op in ops for region in op.regions for block in region.blocks]
        values = sum(len(op.operands) for op in ops) + sum(len(block.args) for block in blocks)
        layers = sum(max(last - first, 0) for first, last in map(_layers, ops))
        return len(ops), len(self.passes), layers, values, sum(len(op.attributes) for op in ops)


Step: TypeAlias = Callable[[Case], Generator[Case, bool, None]]


def _chunks(count: Callable[[Case], int], without: Callable[[Case, slice], Case]) -> Step:
    """Return a step that drops things of a case, as many at once as it can."""

    def step(case: Case) -> Generator[Case, bool, None]:
        size = count(case)
        while size:
            start = 0
            while start < count(case):
                smaller = without(case, slice(start, start + size))
                if (yield smaller):
                    case = smaller
                else:
                    start += size
            size //= 2

    return step


def _each(find: Callable[[ModuleOp], Sequence[T]], drop: Callable[[T], None]) -> Step:
    """Return a step that drops things of a module; what cannot be dropped stays."""

    def without(case: Case, chunk: slice) -> Case:
        module = case.module.clone()
        for thing in find(module)[chunk]:
            drop(thing)
        return Case(module, case.passes)

    return _chunks(lambda case: len(find(case.module)), without)


# Passes


def _without_passes(case: Case, chunk: slice) -> Case:
    passes = list(case.passes)
    del passes[chunk]
    return Case(case.module, tuple(passes))


# Operations, users first


def _operations(module: ModuleOp) -> list[Operation]:
    ops = [op for op in module.walk() if op is not module and not _is_terminator(op)]
    return ops[::-1]


def _is_terminator(op: Operation) -> bool:
    return op.has_trait(IsTerminator, value_if_unregistered=False)


def _drop(op: Operation, find: Callable[[Operation, Attribute], SSAValue | None]) -> None:
    """Erase an operation, with others of their types for its results, where there are any."""
    used = [result for result in op.results if result.first_use is not None]
    values = [find(op, result.type) for result in used]
    found = [value for value in values if value is not None]
    if len(found) == len(used):
        for result, value in zip(used, found, strict=True):
            result.replace_all_uses_with(value)
        op.detach()
        op.erase(safe_erase=False)


def _first_value(op: Operation, type_: Attribute) -> SSAValue | None:
    """Return a value that an operation or its regions use, else an argument of its function."""
    return next((v for v in (*_outer_values(op), *_arguments(op)) if v.type == type_), None)


def _last_value(op: Operation, type_: Attribute) -> SSAValue | None:
    return next((v for v in _outer_values(op)[::-1] if v.type == type_), None)


def _outer_values(op: Operation) -> list[SSAValue]:
    return [v for inner in op.walk() for v in inner.operands if not op.is_ancestor(v.owner)]


def _arguments(op: Operation) -> Sequence[SSAValue]:
    function = _function_of(op)
    return function.args if function is not None else ()


def _new_argument(op: Operation, type_: Attribute) -> SSAValue | None:
    """Return a new argument of an operation's function, which its callers take from their own."""
    function, module = _function_of(op), op.get_toplevel_object()
    if function is None or not isinstance(module, ModuleOp):
        return None
    name = function.sym_name.data
    arg = function.body.block.insert_arg(type_, len(function.args))
    if function.arg_attrs is not None:
        names = {f"{attributes.data.get('rlx.name')}" for attributes in function.arg_attrs}
        new = next(n for i in range(len(names) + 1) if f'"{(n := f"new{i}")}"' not in names)
        attributes = DictionaryAttr({"rlx.name": StringAttr(new)})
        function.arg_attrs = ArrayAttr([*function.arg_attrs, attributes])
    function.update_function_type()
    for caller in _callers(module, name):
        if (value := _new_argument(caller, type_)) is None:
            return None
        caller.operands = [*caller.operands, value]
    return arg


def _function_of(op: Operation) -> FuncOp | None:
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, FuncOp):
        parent = parent.parent_op()
    return parent


def _callers(module: ModuleOp, name: str) -> list[Operation]:
    return [
        op
        for op in module.walk()
        if isinstance(callee := op.properties.get("callee"), SymbolRefAttr)
        and callee.root_reference.data == name
    ]


# Regions


def _regions(module: ModuleOp) -> list[tuple[Operation, int]]:
    ops = (op for op in module.walk() if _function_of(op) is not None)
    return [(op, i) for op in ops for i in range(len(op.regions))]


def _inline(place: tuple[Operation, int]) -> None:
    """Put a region's operations in the place of the operation that has it."""
    op, index = place
    home = op.parent
    if home is None or len(op.regions[index].blocks) != 1:
        return
    block = op.regions[index].block
    last = block.last_op
    # What a block takes and what it gives come last among operands: a condition may be before.
    inputs = op.operands[len(op.operands) - len(block.args) :]
    yielded = last.operands[-len(op.results) :] if last is not None and op.results else ()
    if last is None or not (_same(inputs, block.args) and _same(yielded, op.results)):
        return
    for arg, value in zip(block.args, inputs, strict=True):
        arg.replace_all_uses_with(value)
    values = last.operands[-len(op.results) :] if op.results else ()
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    for inner in list(block.ops)[:-1]:
        inner.detach()
        home.insert_op_before(inner, op)
    op.detach()
    op.erase(safe_erase=False)


def _same(values: Sequence[SSAValue], wanted: Sequence[SSAValue]) -> bool:
    return [v.type for v in values] == [v.type for v in wanted]


# Layers


def _layers(op: Operation) -> tuple[int, int]:
    """Return what an operation repeats its function or its region for, as `first` and `last`."""
    first, last = op.properties.get("first"), op.properties.get("last")
    if isinstance(first, IntegerAttr) and isinstance(last, IntegerAttr):
        return first.value.data, last.value.data
    return 0, 0


def _repeats(module: ModuleOp) -> list[Operation]:
    return [op for op in module.walk() if _layers(op)[1] - _layers(op)[0] > 1]


def _keep_first(op: Operation) -> None:
    op.properties["last"] = i64_attr(_layers(op)[0] + 1)


def _keep_last(op: Operation) -> None:
    op.properties["first"] = i64_attr(_layers(op)[1] - 1)


# Outputs, arguments, attributes


def _functions(module: ModuleOp) -> list[FuncOp]:
    return [op for op in module.ops if isinstance(op, FuncOp) and not op.is_declaration]


def _outputs(module: ModuleOp) -> list[tuple[ReturnOp, int]]:
    """Return the results of the functions that nothing calls, the last ones first."""
    free = (f for f in _functions(module) if not _callers(module, f.sym_name.data))
    ends = (op for f in free if isinstance(op := f.body.block.last_op, ReturnOp))
    return [(end, i) for end in ends for i in reversed(range(len(end.operands)))]


def _drop_output(output: tuple[ReturnOp, int]) -> None:
    end, index = output
    function = _function_of(end)
    assert function is not None
    end.operands = _without(end.operands, index)
    if function.res_attrs is not None:
        function.res_attrs = ArrayAttr(_without(function.res_attrs.data, index))
    function.update_function_type()


def _earlier_outputs(module: ModuleOp) -> list[tuple[ReturnOp, int, SSAValue]]:
    """Return what the operation takes that makes an output: it could be the output instead."""
    makers = ((end, i, end.operands[i].owner) for end, i in _outputs(module))
    return [(end, i, v) for end, i, op in makers if isinstance(op, Operation) for v in op.operands]


def _give_earlier(place: tuple[ReturnOp, int, SSAValue]) -> None:
    end, index, value = place
    maker, function = end.operands[index].owner, _function_of(end)
    assert function is not None
    end.operands[index] = value
    function.update_function_type()
    if isinstance(maker, Operation) and all(r.first_use is None for r in maker.results):
        maker.detach()
        maker.erase(safe_erase=False)


def _unused_arguments(module: ModuleOp) -> list[BlockArgument]:
    return [a for f in _functions(module) for a in reversed(f.args) if a.first_use is None]


def _drop_argument(arg: BlockArgument) -> None:
    function, index = arg.owner.parent_op(), arg.index
    assert isinstance(function, FuncOp)
    module = function.get_toplevel_object()
    assert isinstance(module, ModuleOp)
    arg.owner.erase_arg(arg)
    if function.arg_attrs is not None:
        function.arg_attrs = ArrayAttr(_without(function.arg_attrs.data, index))
    function.update_function_type()
    for caller in _callers(module, function.sym_name.data):
        caller.operands = _without(caller.operands, index)


def _without(things: Sequence[T], index: int) -> list[T]:
    return [thing for i, thing in enumerate(things) if i != index]


def _attributes(module: ModuleOp) -> list[tuple[Operation, str]]:
    return [(op, name) for op in module.walk() for name in op.attributes]


def _drop_attribute(place: tuple[Operation, str]) -> None:
    del place[0].attributes[place[1]]


STEPS: tuple[Step, ...] = (
    _chunks(lambda case: len(case.passes), _without_passes),
    _each(_operations, lambda op: _drop(op, _first_value)),
    _each(_operations, lambda op: _drop(op, _last_value)),
    _each(_operations, lambda op: _drop(op, _new_argument)),
    _each(_regions, _inline),
    _each(_repeats, _keep_first),
    _each(_repeats, _keep_last),
    _each(_outputs, _drop_output),
    _each(_earlier_outputs, _give_earlier),
    _each(_unused_arguments, _drop_argument),
    _each(_attributes, _drop_attribute),
)
"""Tried in this order, again and again, until none makes the case smaller."""
