"""What the sizes of a step's dimensions must satisfy beyond their declared bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.ir import Operation

from rlx.dialects import lir, mir
from rlx.dialects.common import Dim, dims_of
from rlx.errors import RlxError


@dataclass(frozen=True)
class Bound:
    """The sum of `terms` is at most `limit`, or just that where it is `exact`."""

    terms: tuple[Dim, ...]
    limit: Dim
    what: str
    exact: bool = False

    def holds(self, sizes: Mapping[str, int]) -> bool:
        total = sum(_size(t, sizes) for t in self.terms)
        limit = _size(self.limit, sizes)
        return total == limit if self.exact else total <= limit

    def __str__(self) -> str:
        relation = "=" if self.exact else "<="
        return f"{' + '.join(map(str, self.terms))} {relation} {self.limit} ({self.what})"


def _size(dim: Dim, sizes: Mapping[str, int]) -> int:
    return dim if isinstance(dim, int) else sizes[dim]


@dataclass(frozen=True)
class Bounds:
    """All bounds of a program."""

    bounds: tuple[Bound, ...]

    def check(self, program: str, sizes: Mapping[str, int]) -> None:
        """Raise RlxError for the first bound that the sizes of a step break."""
        for bound in self.bounds:
            if not bound.holds(sizes):
                names = [t for t in (*bound.terms, bound.limit) if isinstance(t, str)]
                given = ", ".join(f"{n} = {sizes[n]}" for n in dict.fromkeys(names))
                raise RlxError(f"{program}: expected {bound}, got {given}")


def bounds_of(module: ModuleOp) -> Bounds:
    """Return the bounds of a planned module."""
    kernels = (op for op in module.ops if isinstance(op, lir.KernelOp))
    found = (b for kernel in kernels for op in kernel.body.block.ops for b in _bounds(op))
    return Bounds(tuple(dict.fromkeys(found)))


def _bounds(op: Operation) -> Iterator[Bound]:
    match op:
        case mir.RopeOp():
            rows, positions = dims_of(op.input.type)[0], dims_of(op.cos.type)[0]
            yield Bound((op.start.data, rows), positions, "positions in the table of rope")
        case mir.AppendOp():
            start, rows = op.start.data, dims_of(op.input.type)[0]
            yield Bound((start, rows), dims_of(op.state.type)[0], "positions in the state")
            filled = dims_of(op.result.type)[0]
            yield Bound((start, rows), filled, "positions filled by append", exact=True)
        case mir.FirstRowsOp():
            filled, capacity = dims_of(op.result.type)[0], dims_of(op.input.type)[0]
            yield Bound((filled,), capacity, "positions in the state")
        case mir.AttentionOp():
            rows, keys = dims_of(op.query.type)[0], dims_of(op.keys.type)[0]
            yield Bound((rows,), keys, "queries of an attention, which are the last keys")
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
