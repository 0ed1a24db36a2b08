"""What launches cost a run: how many there are, and the bytes that they move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod

from xdsl.dialects.builtin import FixedBitwidthType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.traits import is_side_effect_free

from rlx.contract.benefit import GraphIoProfile
from rlx.contract.phase import LEAF_KINDS
from rlx.contract.quant import GGML_TYPES_BY_NAME
from rlx.contract.symbols import PAST_SEQ, SYMBOL_NAMES
from rlx.dialects import mir
from rlx.dialects.common import DimTable, dims_of, element_of, format_of
from rlx.dialects.primitives import is_splat
from rlx.passes.hoist_params import has_one_size
from rlx.passes.schedule import byte_offset

USUAL = 1024
"""The size to count with of a dimension that has no bound."""


@dataclass(frozen=True)
class Launch:
    """Operations that run as one launch, and the results that it writes."""

    ops: Sequence[Operation]
    yielded: Sequence[SSAValue]

    @property
    def is_dead(self) -> bool:
        """Whether it neither gives nor writes anything."""
        return not self.yielded and all(map(is_side_effect_free, self.ops))


def binding(table: DimTable) -> dict[str, int]:
    """Return the sizes to count with: a dimension's bound, `USUAL` without one, half the past."""
    past = table.dims.get(SYMBOL_NAMES[PAST_SEQ])
    sizes = {past.name: past.high // 2} if past else {}
    return table.bind({**dict.fromkeys(table.unbounded & {*table.free}, USUAL), **sizes})


def nbytes(type_: Attribute, sizes: Mapping[str, int]) -> int:
    """Return the bytes of a tensor; a packed weight has those of its format's blocks."""
    elements = prod(d if isinstance(d, int) else sizes[d] for d in dims_of(type_))
    element = element_of(type_)
    if isinstance(element, FixedBitwidthType):
        return elements * element.size
    block = GGML_TYPES_BY_NAME[format_of(type_)]
    return elements // block.elements * block.nbytes


def source(value: SSAValue) -> SSAValue:
    """Return the value that a kernel yields as `value`, else the value itself."""
    kernel = value.owner
    if not isinstance(kernel, mir.KernelOp):
        return value
    return kernel.yielded.arguments[kernel.results.index(value)]


def is_view(op: Operation) -> bool:
    """Whether an operation gives bytes of its input as they lie: a reshape, some leading rows."""
    return isinstance(op, mir.ReshapeOp | mir.SliceOp) and byte_offset(op) is not None


def is_leaf(op: Operation) -> bool:
    """Whether an operation has no operands that change; of kernels one of a single such."""
    if isinstance(op, mir.KernelOp):
        first, *more = islice(op.ops, 2)
        return not more and is_leaf(first)
    return mir.kind_of(op) in LEAF_KINDS


def _runs_for_nothing(op: Operation) -> bool:
    # A leaf runs once; one whose size each step gives, at every step.
    return is_view(op) or (is_leaf(op) and has_one_size(op))


def _bytes_read(op: Operation, index: int, sizes: Mapping[str, int]) -> int:
    """Return what an operation reads of an operand."""
    if isinstance(op, mir.AppendOp) and op.operands[index] is op.state:
        return 0
    whole = nbytes(op.operands[index].type, sizes)
    if isinstance(op, mir.RopeOp) and index > 0:
        # Of the tables the rows' positions only.
        rows, positions = (
            d if isinstance(d, int) else sizes[d]
            for d in (dims_of(op.input.type)[0], dims_of(op.cos.type)[0])
        )
        return whole * min(rows, positions) // max(positions, 1)
    if isinstance(op, mir.SliceOp | mir.NarrowOp | mir.GatherOp) and index == 0:
        return min(whole, nbytes(op.result.type, sizes))
    return whole


def _behind_views(value: SSAValue) -> SSAValue:
    value = source(value)
    while isinstance(value.owner, Operation) and is_view(value.owner):
        value = source(value.owner.operands[0])
    return value


def traffic(launch: Launch, sizes: Mapping[str, int]) -> int:
    """
    Return the bytes that a launch moves in a run.

    Each value from outside is read once and each result is written once, but for those of leaves,
    which an earlier run has written. An append writes its rows, whether or not the view that it
    gives is used. A constant that is not one value throughout is read where it is used.
    """
    inside = {r for op in launch.ops for r in op.results}
    reads: dict[SSAValue, int] = {}
    for op in launch.ops:
        if isinstance(op, mir.ConstantOp) and not is_splat(op):
            reads[op.result] = nbytes(op.result.type, sizes)
        for index, value in enumerate(map(source, op.operands)):
            if value not in inside:
                place = _behind_views(value)
                reads[place] = max(reads.get(place, 0), _bytes_read(op, index, sizes))
    writes = [r for r in launch.yielded if not isinstance(r.owner, mir.AppendOp)]
    writes += [op.input for op in launch.ops if isinstance(op, mir.AppendOp)]
    return sum(reads.values()) + sum(nbytes(w.type, sizes) for w in writes)


def profile(launches: Iterable[Launch], sizes: Mapping[str, int]) -> GraphIoProfile:
    """Return the contract's profile of launches; views and leaves run for nothing."""
    counted = [x for x in launches if not all(map(_runs_for_nothing, x.ops))]
    return GraphIoProfile(
        kernel_launches=len(counted),
        device_traffic_bytes=sum(traffic(launch, sizes) for launch in counted),
    )
