"""What a program takes and gives, read off a module of any level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue

from rlx.dialects import hir, lir, ops
from rlx.dialects.common import DimTable, dims_of, element_of, format_of
from rlx.errors import RlxError
from rlx.lowering.extract import manifest_of
from rlx.lowering.manifest import Dimension, Io, Manifest, Weight
from rlx.passes.program import Program
from rlx.passes.verify_stage import verify_stage


def is_planned(module: ModuleOp) -> bool:
    return any(isinstance(op, lir.ProgramOp) for op in module.ops)


def io_of(module: ModuleOp) -> Manifest:
    """
    Return the manifest of a module; before it is planned, nothing in it speaks of a plan.

    Raises IrError where symbols or dimensions don't fit, and RlxError where there is no program.
    """
    if is_planned(module):
        verify_stage(module, "lir")
        return manifest_of(module)
    program = Program(module)
    program.check_module()
    for op in module.walk():
        program.check(op)
    main = program.symbols.get("main")
    if not isinstance(main, FuncOp):
        raise RlxError(f"expected a function @main, the program, got {_spell(program.symbols)}")
    if main.is_declaration:
        raise RlxError("expected a function @main with a body, it is only declared")
    inputs, outputs = program.io_names()
    results = main.function_type.outputs.data
    if len(set(inputs)) != len(main.args) or len(set(outputs)) != len(results):
        raise RlxError(
            "expected a different rlx.name on each argument and result of @main, got "
            f"{_spell(inputs)} for {len(main.args)} and {_spell(outputs)} for {len(results)}"
        )
    layers = layers_of(module)
    return Manifest(
        name=module.sym_name.data if module.sym_name is not None else "main",
        fingerprint="",
        arena_bytes=0,
        arena_lower_bound_bytes=0,
        state_bytes=0,
        weight_segment_bytes=0,
        weight_bytes_per_step=0,
        barriers_per_step=0,
        launches_per_step=0,
        kernels=0,
        dims=tuple(
            Dimension(d.name, d.low, d.high, d.operator, d.operands)
            for d in DimTable.of(module).dims.values()
        ),
        inputs=tuple(
            _io(name, arg.type, min(_index_bounds(arg, program), default=0))
            for name, arg in zip(inputs, main.args, strict=True)
        ),
        outputs=tuple(_io(name, type_) for name, type_ in zip(outputs, results, strict=True)),
        weights=tuple(
            _weight(op, layers if op.is_family else 1)
            for op in module.ops
            if isinstance(op, hir.WeightOp)
        ),
        states=(),
        bounds=(),
        carries=lir.CARRY in module.attributes,
    )


def layers_of(module: ModuleOp) -> int:
    """Return a number that is larger than every layer that a module repeats a function for."""
    repeats = (op for op in module.walk() if isinstance(op, ops.Repeat))
    return max((op.last.value.data for op in repeats), default=1)


def _spell(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(names) or "none"


def _io(name: str, type_: Attribute, index_bound: int = 0) -> Io:
    return Io(name, str(element_of(type_)), dims_of(type_), index_bound)


def _weight(op: hir.WeightOp, layers: int) -> Weight:
    shape = tuple(d for d in dims_of(op.type) if isinstance(d, int))
    return Weight(op.key.data, format_of(op.type), format_of(op.type), shape, 0, 0, 0, layers, 0)


def _index_bounds(value: SSAValue, program: Program) -> Iterator[int]:
    """Yield the rows of each table that a value's elements are indices of."""
    for use in value.uses:
        match use.operation:
            case ops.Embedding() as op if use.index == 0:
                yield from (d for d in dims_of(op.table.type)[:1] if isinstance(d, int))
            case ops.Repeat() as op:
                callee = program.lookup(op, op.callee, FuncOp)
                yield from _index_bounds(callee.args[use.index], program)
            case _:
                pass
