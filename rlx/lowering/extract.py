"""The manifest of a planned module: what the runtime must know of it, read off the IR."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from rlx.dialects import lir, mir
from rlx.dialects.common import (
    PLACE,
    DimTable,
    Monomial,
    PhaseKind,
    dims_of,
    element_of,
    format_of,
    monomial,
)
from rlx.errors import RlxError
from rlx.lowering.bounds import bounds_of
from rlx.lowering.manifest import Dimension, Io, Manifest, Weight
from rlx.lowering.parts import part_count, parts_of
from rlx.lowering.traffic import kernels_of, sites_of, weight_bytes, weights_of
from rlx.lowering.work import work_of


def manifest_of(module: ModuleOp) -> Manifest:
    """Return the manifest of a planned module; raises RlxError where it has no program."""
    program = next((op for op in module.ops if isinstance(op, lir.ProgramOp)), None)
    if program is None:
        raise RlxError("expected a planned module with a lir.program: run plan-lir first")
    kernels, weights = kernels_of(module), weights_of(module)
    ops = list(program.body.block.ops)
    table = DimTable.of(module)
    launched = [(turns, op) for turns, op in _launches(ops) if _in_step(op)]
    return Manifest(
        name=program.sym_name.data,
        fingerprint=program.fingerprint.data,
        arena_bytes=_arena_bytes(program, table),
        arena_lower_bound_bytes=min(program.lower_bound.value.data, _arena_bytes(program, table)),
        state_bytes=program.state_size.value.data,
        weight_segment_bytes=program.weights_size.value.data,
        weight_bytes_per_step=sum(n * weight_bytes(op, kernels, weights) for n, op in launched),
        barriers_per_step=_barriers(ops) + (lir.CARRY in module.attributes),
        launches_per_step=sum(n for n, _ in launched),
        kernels=len(kernels),
        dims=tuple(
            Dimension(d.name, d.low, d.high, d.operator, d.operands) for d in table.dims.values()
        ),
        inputs=tuple(_io(op, kernels) for op in ops if isinstance(op, lir.InputOp)),
        outputs=tuple(_io(op, kernels) for op in ops if isinstance(op, lir.OutputOp)),
        weights=_weights(module, program),
        states=tuple(
            (op.sym_name.data, op.offset.value.data, op.stride.value.data)
            for op in module.ops
            if isinstance(op, lir.StateOp)
        ),
        bounds=bounds_of(module),
        places=_places(program, table),
        shapes=_shapes(kernels.values(), table),
        work=work_of(launched, kernels),
        carries=lir.CARRY in module.attributes,
        parts=part_count(parts_of(program)),
        open_ended=any(isinstance(op, lir.WhileOp) for op in program.walk()),
        sites=sites_of(module, program) if lir.MARKS in module.attributes else (),
    )


def _arena_bytes(program: lir.ProgramOp, table: DimTable) -> int:
    """Return the bytes of the arena that have a bound."""
    if not table.unbounded:
        return program.arena_size.value.data
    slots = [op for op in program.body.block.ops if isinstance(op, lir.SlotOp)]
    ends = (op.offset.value.data + op.size.value.data for op in slots if not _place(op))
    return max(ends, default=0)


def _place(op: lir.SlotOp) -> int:
    return op.offset.value.data // PLACE


def _places(
    program: lir.ProgramOp, table: DimTable
) -> tuple[tuple[tuple[int, tuple[str, ...]], ...], ...]:
    """Return what lies in each place without a bound: buffers, and what views of them need."""
    if not table.unbounded:
        return ()
    found: dict[int, dict[Monomial, None]] = {}
    for op in program.body.block.ops:
        if isinstance(op, lir.SlotOp) and _place(op):
            found.setdefault(_place(op) - 1, {})[monomial(op.result.type)] = None
    return tuple(tuple(found.get(i, {(0, ()): None})) for i in range(max(found, default=-1) + 1))


def _shapes(kernels: Iterable[lir.KernelOp], table: DimTable) -> tuple[tuple[int | str, ...], ...]:
    """Return the shapes without a bound of all values of kernels."""
    blocks = [k.body.block for k in kernels]
    values = [v for b in blocks for v in (*b.args, *(r for op in b.ops for r in op.results))]
    shapes = dict.fromkeys(dims_of(v.type) for v in values)
    return tuple(s for s in shapes if not table.unbounded.isdisjoint(s))


def _launches(ops: Iterable[Operation]) -> Iterator[tuple[int, lir.LaunchOp]]:
    """Give each launch with how often a step runs it: both branches, a `lir.while` once."""
    for op in ops:
        if isinstance(op, lir.LaunchOp):
            yield 1, op
            continue
        turns = op.last.value.data - op.first.value.data if isinstance(op, lir.LoopOp) else 1
        for region in op.regions:
            yield from ((turns * n, inner) for n, inner in _launches(region.block.ops))


def _in_step(op: lir.LaunchOp) -> bool:
    return op.phase.data is not PhaseKind.PROLOGUE


def _barriers(ops: Iterable[Operation]) -> int:
    """Return how many barriers a step passes: those after its first launch."""
    total, launched = 0, False
    for op in ops:
        if isinstance(op, lir.LaunchOp):
            launched = launched or _in_step(op)
        elif isinstance(op, lir.BarrierOp):
            total += launched
        elif any(_in_step(launch) for _, launch in _launches([op])):
            turns = op.last.value.data - op.first.value.data if isinstance(op, lir.LoopOp) else 1
            total += turns * sum(isinstance(o, lir.BarrierOp) for o in op.walk())
            launched = True
    return total


def _io(op: lir.InputOp | lir.OutputOp, kernels: dict[str, lir.KernelOp]) -> Io:
    bound = 0
    for use in op.result.uses:
        launch = use.operation
        if not isinstance(launch, lir.LaunchOp) or use.index >= len(launch.ins):
            continue
        argument = kernels[launch.kernel.root_reference.data].body.block.args[use.index]
        for inner in argument.uses:
            if isinstance(inner.operation, mir.EmbeddingOp) and inner.index == 0:
                vocab = dims_of(inner.operation.table.type)[0]
                bound = vocab if isinstance(vocab, int) else 0
    dtype = str(element_of(op.result.type))
    return Io(op.io_name.data, dtype, dims_of(op.result.type), bound)


def _weights(module: ModuleOp, program: lir.ProgramOp) -> tuple[Weight, ...]:
    """Return the weights, with the formats of their sources where these are packed."""
    sources = (op for op in program.body.walk() if isinstance(op, lir.SourceOp))
    formats = {op.symbol.root_reference.data: format_of(op.result.type) for op in sources}
    return tuple(_weight(op, formats) for op in module.ops if isinstance(op, lir.WeightOp))


def _weight(op: lir.WeightOp, formats: Mapping[str, str]) -> Weight:
    shape = tuple(d for d in dims_of(op.type) if isinstance(d, int))
    return Weight(
        op.key.data,
        formats.get(op.sym_name.data, format_of(op.type)),
        format_of(op.type),
        shape,
        op.offset.value.data,
        op.stride.value.data,
        op.first.value.data,
        op.last.value.data,
        op.source.value.data,
    )
