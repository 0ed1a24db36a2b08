"""What the sizes of a step's dimensions must satisfy beyond their declared bounds."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.ir import Operation

from rlx.dialects import lir, mir
from rlx.dialects.common import dims_of
from rlx.lowering.manifest import Bound


def bounds_of(module: ModuleOp) -> tuple[Bound, ...]:
    """Return the bounds of a planned module."""
    kernels = (op for op in module.ops if isinstance(op, lir.KernelOp))
    found = (b for kernel in kernels for op in kernel.body.block.ops for b in _bounds(op))
    return tuple(dict.fromkeys(found))


def _bounds(op: Operation) -> Iterator[Bound]:
    match op:
        case mir.RopeOp():
            rows, positions = dims_of(op.input.type)[0], dims_of(op.cos.type)[0]
            yield Bound((op.start.data, rows), positions, "positions in the table of rope")
        case mir.AppendOp() if op.places is None:
            start, rows = op.start.data, dims_of(op.input.type)[0]
            yield Bound((start, rows), dims_of(op.state.type)[0], "positions in the state")
            filled = dims_of(op.result.type)[0]
            yield Bound((start, rows), filled, "positions filled by append", exact=True)
        case mir.FirstRowsOp():
            filled, capacity = dims_of(op.result.type)[0], dims_of(op.input.type)[0]
            yield Bound((filled,), capacity, "positions in the state")
        case mir.AttentionOp() if op.places is None:
            rows, keys = dims_of(op.query.type)[0], dims_of(op.keys.type)[0]
            yield Bound((rows,), keys, "queries of an attention, which are the last keys")
        case mir.NarrowOp():
            axis, step = op.axis.value.data, op.step.value.data
            size, taken = (dims_of(v.type)[axis] for v in (op.input, op.result))
            terms = (op.start.data, *[taken] * step, 1 - step)
            yield Bound(terms, size, "elements taken of an axis")
        case mir.LastRowsOp():
            rows, last = dims_of(op.input.type)[0], dims_of(op.result.type)[0]
            yield Bound((last,), rows, "last rows of a tensor")
        case _:
            pass


def written_inputs(module: ModuleOp) -> frozenset[str]:
    """Return the inputs that a step writes: what it carries on, and the counters of sampling."""
    carried = module.attributes.get(lir.CARRY)
    names = set(carried.data) if isinstance(carried, DictionaryAttr) else set[str]()
    kernels = {k.sym_name.data: k for k in module.ops if isinstance(k, lir.KernelOp)}
    for op in module.walk():
        if not isinstance(op, lir.LaunchOp):
            continue
        arguments = kernels[op.kernel.root_reference.data].body.block.args
        for value, argument in zip(op.ins, arguments, strict=True):
            samples = any(
                isinstance(use.operation, mir.SampleOp) and use.index == 1 for use in argument.uses
            )
            if samples and isinstance(value.owner, lir.InputOp):
                names.add(value.owner.io_name.data)
    return frozenset(names)
