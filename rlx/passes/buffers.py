"""
Buffers of a program: which values share one, and from when to when each lives.

Values are visited in the order of launches. A result takes over the bytes of an operand where the
kernel reads each element before it writes it and the operand dies there. What a loop carries stays
in one buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from xdsl.ir import Attribute, Block, Operation, SSAValue

from rlx.dialects.common import PLACE, DimTable, dims_of, element_bytes


class Space(Enum):
    SLOT = auto()
    INPUT = auto()
    OUTPUT = auto()


@dataclass(eq=False)
class Buffer:
    """Bytes for one or more values of one size; `first` and `last` are launches, both inclusive."""

    type: Attribute
    size: int
    first: int
    last: int
    space: Space = Space.SLOT
    name: str = ""
    index: int = 0
    whole_run: bool = False
    zeroed: bool = False
    root: Buffer | None = None
    """The buffer whose bytes, from `offset` on, these are; None for one with bytes of its own."""
    offset: int = 0

    @property
    def base(self) -> Buffer:
        """Return the buffer that has the bytes."""
        return self.root or self

    def use(self, time: int) -> None:
        self.base.last = max(self.base.last, time)


def size_of(type_: Attribute, table: DimTable) -> int:
    """
    Return a tensor's bytes at the upper bounds of its dimensions.

    One of a dimension without a bound counts as `PLACE` bytes: see `rlx.passes.places`.
    """
    size, dims = element_bytes(type_), dims_of(type_)
    if not table.unbounded.isdisjoint(dims):
        return PLACE
    for dim in dims:
        size *= table.size(dim)
    return size


def dies_at(value: SSAValue, op: Operation) -> bool:
    """
    Return whether no operation after `op` uses a value of the same block.

    One of another block may be used after that block, or in the next turn of a loop.
    """
    block = op.parent
    assert isinstance(block, Block)
    home = value.owner if isinstance(value.owner, Block) else value.owner.parent
    if home is not block:
        return False
    for use in value.uses:
        user = block.find_ancestor_op_in_block(use.operation)
        if user is not None and user is not op and op.is_before_in_block(user):
            return False
    return True
