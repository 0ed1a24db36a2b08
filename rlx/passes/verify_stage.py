"""
What a module of each stage may hold, as data, and the checks that need the whole program.

The verifiers of operations see one operation at a time. Here symbols are looked up, dimensions are
looked up in the module's table, and what a call or a launch passes is compared with what is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import NoReturn

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FixedBitwidthType,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from rlx.dialects import hir, lir, mir, ops
from rlx.dialects.common import DIMS, DimTable, DimTableAttr, dims_of, element_of, format_of, spell
from rlx.errors import RlxError
from rlx.passes.diagnostics import IrError

_LIR_STEPS = "lir.slot lir.view lir.ref lir.source lir.launch lir.barrier lir.loop"

STAGES: dict[str, dict[str, str]] = {
    "hir": {
        "builtin.module": "hir.weight hir.state func.func",
        "func.func": "hir.* !hir.weight !hir.state func.return",
    },
    "mir": {
        "builtin.module": "hir.weight hir.state func.func",
        "func.func": "mir.* !mir.yield func.return",
        "mir.kernel": "mir.* !mir.kernel !mir.repeat",
    },
    "lir": {
        "builtin.module": "lir.weight lir.state lir.kernel lir.program",
        "lir.kernel": "mir.* !mir.kernel !mir.repeat !mir.load_weight !mir.load_state",
        "lir.program": f"lir.input lir.output {_LIR_STEPS}",
        "lir.loop": _LIR_STEPS,
    },
}
"""Stage -> operation with a region -> what may stand in it; `!` excludes from a dialect's `*`."""


def verify_stage(module: ModuleOp, stage: str) -> None:
    """
    Check that a valid module is a whole program of a stage: `hir`, `mir` or `lir`.

    Raises IrError at the first operation that is not, RlxError for a stage that is not known.
    """
    if stage not in STAGES:
        raise RlxError(f"unknown stage '{stage}': expected one of {', '.join(STAGES)}")
    program = _Program(module, stage)
    for op in module.walk():
        program.check(op)
    program.check_module()


def _allowed(rule: str, name: str) -> bool:
    words = rule.split()
    return f"!{name}" not in words and (name in words or f"{name.split('.')[0]}.*" in words)


def _fail(op: Operation, message: str) -> NoReturn:
    raise IrError(op, f"{op.name}: {message}")


def _spell_all(types: list[Attribute]) -> str:
    return f"({', '.join(map(spell, types))})"


class _Program:
    """A module's symbols and dimensions, and the checks that use them."""

    def __init__(self, module: ModuleOp, stage: str):
        self.module = module
        self.stage = stage
        self.symbols: dict[str, Operation] = {}
        for op in module.ops:
            name = op.properties.get("sym_name")
            if isinstance(name, StringAttr):
                self.symbols[name.data] = op
        self.dims: Mapping[str, int] = DimTable.of(module).upper
        self.known_types: set[Attribute] = set()
        self.callers: dict[str, set[str]] = {}
        for op in module.walk():
            if isinstance(op, ops.Repeat):
                callee = op.callee.root_reference.data
                self.callers.setdefault(callee, set()).add(_function_of(op))

    def check(self, op: Operation) -> None:
        if (parent := op.parent_op()) is not None:
            rule = STAGES[self.stage].get(parent.name)
            if rule is None or not _allowed(rule, op.name):
                _fail(op, f"not allowed in {parent.name} at stage {self.stage}")
        self.check_dims(op)
        for kind, check in CHECKS:
            if isinstance(op, kind):
                check(self, op)

    def check_dims(self, op: Operation) -> None:
        """Every name of a dimension, in a type or as the start of rows, is declared."""
        types = [r.type for r in op.results]
        types += [a.type for region in op.regions for block in region.blocks for a in block.args]
        names = [n for t in types if t not in self.known_types for n in _names(t)]
        start = op.properties.get("start")
        if isinstance(start, StringAttr):
            names.append(start.data)
        for name in names:
            if name not in self.dims:
                known = ", ".join(self.dims) or "nothing"
                _fail(op, f"dimension '{name}' is not declared: {DIMS} declares {known}")
        self.known_types.update(types)

    def check_module(self) -> None:
        """Check the module's own attributes and the order of calls."""
        attributes = self.module.attributes
        if DIMS in attributes and not isinstance(attributes[DIMS], DimTableAttr):
            _fail(self.module, f"expected {DIMS} to be a #hir.dim_table, got {attributes[DIMS]}")
        for dim, step in self.pairs(lir.ADVANCE):
            for name in (dim, step):
                if name not in self.dims:
                    _fail(self.module, f"{lir.ADVANCE} names '{name}', a dimension not declared")
        inputs, outputs = self.io_names()
        for name, source in self.pairs(lir.CARRY):
            if name not in inputs or source not in outputs:
                _fail(
                    self.module,
                    f"{lir.CARRY} feeds output '{source}' to input '{name}': expected outputs "
                    f"{outputs} and inputs {inputs}",
                )
        for callee in self.callers:
            if callee in self.all_callers(callee):
                _fail(self.symbols[callee], f"@{callee} repeats itself")

    def pairs(self, attribute: str) -> Iterator[tuple[str, str]]:
        """Yield the entries of a module attribute that maps names to names."""
        given = self.module.attributes.get(attribute, DictionaryAttr({}))
        if not isinstance(given, DictionaryAttr):
            _fail(self.module, f"expected {attribute} to be a dictionary of strings, got {given}")
        for name, value in given.data.items():
            if not isinstance(value, StringAttr):
                _fail(self.module, f"expected {attribute}.{name} to be a string, got {value}")
            yield name, value.data

    def io_names(self) -> tuple[list[str], list[str]]:
        """Return the names of the program's inputs and outputs."""
        if self.stage == "lir":
            io = list(self.module.walk())
            return (
                [op.io_name.data for op in io if isinstance(op, lir.InputOp)],
                [op.io_name.data for op in io if isinstance(op, lir.OutputOp)],
            )
        main = self.symbols.get("main")
        if not isinstance(main, FuncOp):
            return [], []
        return _io_names(main.arg_attrs), _io_names(main.res_attrs)

    def all_callers(self, name: str) -> set[str]:
        """Return the functions from which a function is reached."""
        found: set[str] = set()
        todo = [name]
        while todo:
            new = self.callers.get(todo.pop(), set()) - found
            found |= new
            todo += new
        return found

    def lookup(self, op: Operation, symbol: SymbolRefAttr, kind: type[Operation]) -> Operation:
        """Return the declaration of a symbol; fail unless it is of the kind that is wanted."""
        name = symbol.root_reference.data
        found = self.symbols.get(name)
        if not isinstance(found, kind):
            got = f"it is a {found.name}" if found is not None else "there is none"
            _fail(op, f"expected a {kind.name} @{name}, {got}")
        return found

    def bytes_of(self, op: Operation, type_: Attribute) -> int:
        """Return the size of a tensor of plain numbers at the upper bounds of its dimensions."""
        element = element_of(type_)
        if not isinstance(element, FixedBitwidthType):
            _fail(op, f"expected elements of plain numbers, got {spell(type_)}")
        sizes = (d if isinstance(d, int) else self.dims[d] for d in dims_of(type_))
        return prod(sizes) * element.size


def _function_of(op: Operation) -> str:
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, FuncOp):
        parent = parent.parent_op()
    return parent.sym_name.data if parent is not None else ""


def _names(type_: Attribute) -> list[str]:
    try:
        return [d for d in dims_of(type_) if isinstance(d, str)]
    except VerifyException:
        return []


def _io_names(attributes: Attribute | None) -> list[str]:
    if not isa(attributes, ArrayAttr[DictionaryAttr]):
        return []
    names = (a.data.get("rlx.name") for a in attributes)
    return [n.data for n in names if isinstance(n, StringAttr)]


def _check_load_weight(program: _Program, op: ops.LoadWeight) -> None:
    weight = program.lookup(op, op.weight, hir.WeightOp)
    assert isinstance(weight, hir.WeightOp)
    if op.result.type != weight.type:
        _fail(
            op,
            f"@{weight.sym_name.data} is declared as {spell(weight.type)}, "
            f"got {spell(op.result.type)}",
        )
    function = _function_of(op)
    if weight.is_family and function not in program.callers:
        _fail(
            op,
            f"@{weight.sym_name.data} is a family ({weight.key}), which only a repeated function "
            f"can load; nothing repeats @{function}",
        )


def _check_load_state(program: _Program, op: mir.LoadStateOp) -> None:
    state = program.lookup(op, op.state, hir.StateOp)
    assert isinstance(state, hir.StateOp)
    if op.result.type != state.type:
        _fail(
            op,
            f"@{state.sym_name.data} is declared as {spell(state.type)}, "
            f"got {spell(op.result.type)}",
        )


def _check_append(program: _Program, op: hir.AppendOp) -> None:
    state = program.lookup(op, op.state, hir.StateOp)
    assert isinstance(state, hir.StateOp)
    if dims_of(op.input.type)[-1] != dims_of(state.type)[-1]:
        _fail(
            op,
            f"expected rows as wide as @{state.sym_name.data}, {spell(state.type)}, "
            f"got {spell(op.input.type)}",
        )


def _check_repeat(program: _Program, op: ops.Repeat) -> None:
    callee = program.lookup(op, op.callee, FuncOp)
    assert isinstance(callee, FuncOp)
    taken = list(callee.function_type.inputs)
    given = list(op.operand_types)
    if given != taken:
        _fail(op, f"@{callee.sym_name.data} takes {_spell_all(taken)}, got {_spell_all(given)}")
    returned = list(callee.function_type.outputs)
    results = list(op.result_types)
    if results != returned:
        _fail(
            op, f"@{callee.sym_name.data} returns {_spell_all(returned)}, got {_spell_all(results)}"
        )


def _check_launch(program: _Program, op: lir.LaunchOp) -> None:
    kernel = program.lookup(op, op.kernel, lir.KernelOp)
    assert isinstance(kernel, lir.KernelOp)
    for what, wanted, given in (
        ("reads", kernel.body.block.arg_types, op.ins.types),
        ("writes", kernel.yielded.operand_types, op.outs.types),
    ):
        if list(wanted) != list(given):
            _fail(
                op,
                f"@{kernel.sym_name.data} {what} {_spell_all(list(wanted))}, "
                f"got {_spell_all(list(given))}",
            )


def _check_member(program: _Program, op: lir.RefOp | lir.SourceOp) -> None:
    """A reference's type is that of its declaration; its layer is one that there is."""
    found = program.symbols.get(op.symbol.root_reference.data)
    is_source = isinstance(op, lir.SourceOp)
    if not isinstance(found, lir.WeightOp | lir.StateOp) or (
        is_source and isinstance(found, lir.StateOp)
    ):
        wanted = "lir.weight" if is_source else "lir.weight or lir.state"
        _fail(op, f"expected a {wanted} {op.symbol}")
    same = op.result.type == found.type
    if is_source:  # the declared type is the packed one
        same = (dims_of(op.result.type), format_of(op.result.type)) == (
            dims_of(found.type),
            format_of(found.type),
        )
    if not same:
        _fail(
            op, f"{op.symbol} is declared as {spell(found.type)}, got {spell(op.result.type)}"
        )
    layers = found.layers.value.data
    if op.layer is None:
        if layers > 1:
            _fail(op, f"{op.symbol} has {layers} members: expected a layer")
        return
    assert isinstance(op.layer, BlockArgument)
    loop = op.layer.owner.parent_op()
    assert isinstance(loop, lir.LoopOp)
    if loop.last.value.data > layers:
        _fail(op, f"{op.symbol} has {layers} members, the loop ends at {loop.last.value.data}")


def _check_slot(program: _Program, op: lir.SlotOp) -> None:
    needed = program.bytes_of(op, op.result.type)
    if op.size.value.data < needed:
        _fail(
            op,
            f"expected {needed} bytes for {spell(op.result.type)} at the upper bounds of its "
            f"dimensions, got {op.size.value.data}",
        )


def _check_view(program: _Program, op: lir.ViewOp) -> None:
    end = op.byte_offset.value.data + program.bytes_of(op, op.result.type)
    size = program.bytes_of(op, op.root.type)
    if end > size:
        _fail(
            op,
            f"{spell(op.result.type)} at byte {op.byte_offset.value.data} ends at {end}, beyond "
            f"the {size} bytes of {spell(op.root.type)}",
        )


def _check_program(program: _Program, op: lir.ProgramOp) -> None:
    """Every member of a weight or state starts, and of a state ends, inside its segment."""
    for found in program.symbols.values():
        if isinstance(found, lir.ProgramOp) and found is not op:
            _fail(found, f"expected one program in a module, there is also {op.sym_name}")
        if not isinstance(found, lir.WeightOp | lir.StateOp):
            continue
        is_state = isinstance(found, lir.StateOp)
        size = (op.state_size if is_state else op.weights_size).value.data
        end = found.offset.value.data + (found.layers.value.data - 1) * found.stride.value.data
        end += program.bytes_of(found, found.type) if is_state else 1
        if end > size:
            segment = "state" if is_state else "weights"
            _fail(found, f"ends at byte {end} of the {segment} segment, which has {size}")


CHECKS: list[tuple[type[Operation], Callable[[_Program, Operation], None]]] = [
    (ops.LoadWeight, _check_load_weight),
    (mir.LoadStateOp, _check_load_state),
    (hir.AppendOp, _check_append),
    (ops.Repeat, _check_repeat),
    (lir.LaunchOp, _check_launch),
    (lir.RefOp, _check_member),
    (lir.SourceOp, _check_member),
    (lir.SlotOp, _check_slot),
    (lir.ViewOp, _check_view),
    (lir.ProgramOp, _check_program),
]


@dataclass(frozen=True)
class VerifyStagePass(ModulePass):
    """
    Check that a module is a program of a stage; it stays as it is.

    verify-stage{stage=mir}
    """

    name = "verify-stage"
    stage: str

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        verify_stage(op, self.stage)
