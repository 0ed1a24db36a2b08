"""The symbols and dimensions of a module, and the checks of HIR and MIR that use them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NoReturn, TypeVar

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation
from xdsl.utils.hints import isa

from rlx.dialects import hir, lir, mir, ops
from rlx.dialects.common import DimTable, PhaseAttr, dims_of, element_of, spell
from rlx.passes.diagnostics import IrError

OpT = TypeVar("OpT", bound=Operation)


def fail(op: Operation, message: str) -> NoReturn:
    raise IrError(op, f"{op.name}: {message}")


def spell_all(types: Iterable[Attribute]) -> str:
    return f"({', '.join(map(spell, types))})"


class Program:
    """A module's symbols and dimensions, and the checks that use them."""

    def __init__(self, module: ModuleOp):
        self.module = module
        self.symbols: dict[str, Operation] = {}
        for op in module.ops:
            name = op.properties.get("sym_name")
            if isinstance(name, StringAttr):
                self.symbols[name.data] = op
        self.table = DimTable.of(module)
        self.callers: dict[str, set[str]] = {}
        for op in module.walk():
            if isinstance(op, ops.Repeat):
                callee = op.callee.root_reference.data
                self.callers.setdefault(callee, set()).add(function_of(op))

    def check(self, op: Operation) -> None:
        """Raise IrError where an operation does not fit the symbols and dimensions."""
        phase = op.attributes.get(mir.PHASE)
        if not isinstance(phase, PhaseAttr | None):
            fail(op, f"expected {mir.PHASE} to be a phase, got {phase}")
        match op:
            case ops.LoadWeight():
                self._check_load_weight(op)
            case mir.LoadStateOp():
                self._check_load_state(op)
            case hir.AppendOp():
                self._check_append(op)
            case ops.Repeat():
                self._check_repeat(op)
            case _:
                pass

    def check_module(self) -> None:
        """Check the module's own attributes and the order of calls."""
        for dim, step in self.pairs(lir.ADVANCE):
            for name in (dim, step):
                if name not in self.table.dims:
                    fail(self.module, f"{lir.ADVANCE} names '{name}', a dimension not declared")
        inputs, outputs = self.io_names()
        for name, source in self.pairs(lir.CARRY):
            if name not in inputs or source not in outputs:
                fail(
                    self.module,
                    f"{lir.CARRY} feeds output '{source}' to input '{name}': expected outputs "
                    f"{outputs} and inputs {inputs}",
                )
        for callee in self.callers:
            if callee in self.all_callers(callee):
                fail(self.symbols[callee], f"@{callee} repeats itself")

    def pairs(self, attribute: str) -> Iterator[tuple[str, str]]:
        """Yield the entries of a module attribute that maps names to names."""
        given = self.module.attributes.get(attribute, DictionaryAttr({}))
        if not isinstance(given, DictionaryAttr):
            fail(self.module, f"expected {attribute} to be a dictionary of strings, got {given}")
        for name, value in given.data.items():
            if not isinstance(value, StringAttr):
                fail(self.module, f"expected {attribute}.{name} to be a string, got {value}")
            yield name, value.data

    def io_names(self) -> tuple[list[str], list[str]]:
        """Return the names of the program's inputs and outputs, at whatever stage."""
        main = self.symbols.get("main")
        if isinstance(main, FuncOp):
            return _io_names(main.arg_attrs), _io_names(main.res_attrs)
        inputs = [op.io_name.data for op in self.module.walk() if isinstance(op, lir.InputOp)]
        outputs = [op.io_name.data for op in self.module.walk() if isinstance(op, lir.OutputOp)]
        return inputs, outputs

    def all_callers(self, name: str) -> set[str]:
        """Return the functions from which a function is reached."""
        found: set[str] = set()
        todo = [name]
        while todo:
            new = self.callers.get(todo.pop(), set()) - found
            found |= new
            todo += new
        return found

    def lookup(self, op: Operation, symbol: SymbolRefAttr, kind: type[OpT]) -> OpT:
        """Return the declaration of a symbol; fail unless it is of the kind that is wanted."""
        name = symbol.root_reference.data
        found = self.symbols.get(name)
        if not isinstance(found, kind):
            got = f"that is a {found.name}" if found is not None else "there is none"
            fail(op, f"expected a {kind.name} @{name}, {got}")
        return found

    def _check_load_weight(self, op: ops.LoadWeight) -> None:
        weight = self.lookup(op, op.weight, hir.WeightOp)
        name = weight.sym_name.data
        if op.result.type != weight.type:
            fail(op, f"@{name} is declared as {spell(weight.type)}, got {spell(op.result.type)}")
        function = function_of(op)
        if weight.is_family and function not in self.callers:
            fail(
                op,
                f"@{name} is a family, one weight for each layer, which only a repeated function "
                f"can load; nothing repeats @{function}",
            )

    def _check_load_state(self, op: mir.LoadStateOp) -> None:
        state = self.lookup(op, op.state, hir.StateOp)
        if op.result.type != state.type:
            fail(
                op,
                f"@{state.sym_name.data} is declared as {spell(state.type)}, "
                f"got {spell(op.result.type)}",
            )

    def _check_append(self, op: hir.AppendOp) -> None:
        state = self.lookup(op, op.state, hir.StateOp)
        if element_of(op.result.type) != element_of(state.type):
            fail(
                op,
                f"@{state.sym_name.data} is declared as {spell(state.type)}, "
                f"got {spell(op.result.type)}",
            )
        if dims_of(op.input.type)[-1] != dims_of(state.type)[-1]:
            fail(
                op,
                f"expected rows as wide as @{state.sym_name.data}, {spell(state.type)}, "
                f"got {spell(op.input.type)}",
            )

    def _check_repeat(self, op: ops.Repeat) -> None:
        callee = self.lookup(op, op.callee, FuncOp)
        if callee.is_declaration:
            fail(op, f"expected a function with a body, @{callee.sym_name.data} is only declared")
        type_ = callee.function_type
        for verb, wanted, given in (
            ("takes", type_.inputs.data, op.operand_types),
            ("returns", type_.outputs.data, op.result_types),
        ):
            if wanted != tuple(given):
                name = callee.sym_name.data
                fail(op, f"@{name} {verb} {spell_all(wanted)}, got {spell_all(given)}")


def function_of(op: Operation) -> str:
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, FuncOp):
        parent = parent.parent_op()
    return parent.sym_name.data if parent is not None else ""


def _io_names(attributes: Attribute | None) -> list[str]:
    if not isa(attributes, ArrayAttr[DictionaryAttr]):
        return []
    names = (a.data.get("rlx.name") for a in attributes)
    return [n.data for n in names if isinstance(n, StringAttr)]
