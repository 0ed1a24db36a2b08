"""What launches of a planned program read and write, in bytes: for figures, not for checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue, Use

from rlx.dialects import lir, mir
from rlx.dialects.common import (
    Dim,
    Monomial,
    PackedType,
    dims_of,
    element_bytes,
    element_of,
    format_of,
)
from rlx.lowering.formats import packed_bytes
from rlx.lowering.manifest import Site

Kernels = dict[str, lir.KernelOp]


def kernels_of(module: ModuleOp) -> Kernels:
    return {op.sym_name.data: op for op in module.ops if isinstance(op, lir.KernelOp)}


def weights_of(module: ModuleOp) -> set[str]:
    return {op.sym_name.data for op in module.ops if isinstance(op, lir.WeightOp)}


def numbered(program: lir.ProgramOp) -> dict[Operation, int]:
    """Return the number of every launch and barrier, as marks and `Manifest.sites` have it."""
    kinds = (lir.LaunchOp, lir.BarrierOp)
    return {op: i for i, op in enumerate(op for op in program.body.walk() if isinstance(op, kinds))}


def sites_of(module: ModuleOp, program: lir.ProgramOp) -> tuple[Site, ...]:
    """
    Return what stands at each number; last comes the barrier after a token is handed on.

    Launches that are not in a step have no marks: theirs are empty.
    """
    kernels, weights = kernels_of(module), weights_of(module)

    def site(op: Operation) -> Site:
        if isinstance(op, lir.LaunchOp) and op.job is lir.Job.STEP:
            return _site(op, kernels, weights)
        return Site()

    return (*map(site, numbered(program)), Site())


def _site(op: lir.LaunchOp, kernels: Kernels, weights: set[str]) -> Site:
    kernel = kernels[op.kernel.root_reference.data]
    given = list(zip(op.ins, kernel.body.block.args, strict=True))
    plain = [(v, argument) for v, argument in given if not _is_weight(v, weights)]
    read = [term for pair in plain for term in _read(*pair)]
    written = [_bytes(v, dims_of(v.type)) for v in op.outs]
    written += [term for pair in plain for term in _appended(*pair)]
    weight = weight_bytes(op, kernels, weights)
    return Site(kernel.sym_name.data, weight, _total(read), _total(written))


def weight_bytes(op: lir.LaunchOp, kernels: Kernels, weights: set[str]) -> int:
    """Return the bytes of weights that a launch reads: of a table, those of one row."""
    body = kernels[op.kernel.root_reference.data].body.block
    gathers = any(isinstance(inner, mir.EmbeddingOp) for inner in body.ops)
    total = 0
    for value in op.ins:
        dims = [d for d in dims_of(value.type) if isinstance(d, int)]
        if not _is_weight(value, weights):
            continue
        if not isinstance(element_of(value.type), PackedType):
            total += prod(dims) * element_bytes(value.type)
        elif len(dims) == 1:
            total += dims[0] * 4
        else:
            size = packed_bytes(format_of(value.type), dims[0], dims[1])
            total += size // dims[0] if gathers else size
    return total


def _is_weight(value: SSAValue, weights: set[str]) -> bool:
    ref = value.owner
    return isinstance(ref, lir.RefOp) and ref.symbol.root_reference.data in weights


def _read(value: SSAValue, argument: SSAValue) -> list[Monomial]:
    """Return the bytes of an operand that a kernel reads: all, where it is used as a whole."""
    parts = [_part(use) for use in argument.uses]
    shapes = [part for part in dict.fromkeys(parts) if part is not None]
    if None in parts:
        shapes = [dims_of(value.type)]
    return [_bytes(value, dims) for dims in shapes]


def _part(use: Use) -> tuple[Dim, ...] | None:
    """Return the shape of what a use reads of its operand; None for all of it."""
    match op := use.operation:
        case mir.AppendOp() if op.state is op.operands[use.index]:
            return (0,)
        case mir.RopeOp() if use.index > 0:
            return (dims_of(op.input.type)[0], *dims_of(op.cos.type)[1:])
        case mir.EmbeddingOp() | mir.GatherOp() if op.operands[use.index] is not op.ids:
            return dims_of(op.result.type)
        case mir.FirstRowsOp() | mir.LastRowsOp() | mir.SliceOp() | mir.NarrowOp():
            return dims_of(op.result.type)
        case _:
            return None


def _appended(value: SSAValue, argument: SSAValue) -> Iterator[Monomial]:
    """Give the bytes of a state that a kernel writes."""
    for use in argument.uses:
        op = use.operation
        if isinstance(op, mir.AppendOp) and op.operands[use.index] is op.state:
            yield _bytes(value, dims_of(op.input.type))


def _bytes(value: SSAValue, dims: Iterable[Dim]) -> Monomial:
    """Return the bytes of a shape of a value's elements."""
    dims = tuple(dims)
    number = element_bytes(value.type) * prod(d for d in dims if isinstance(d, int))
    return number, tuple(sorted(d for d in dims if isinstance(d, str)))


def _total(terms: Iterable[Monomial]) -> tuple[Monomial, ...]:
    total: Counter[tuple[str, ...]] = Counter()
    for number, names in terms:
        total[names] += number
    return tuple((number, names) for names, number in total.items() if number)
