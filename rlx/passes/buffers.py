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
from xdsl.utils.exceptions import VerifyException

from rlx.dialects.common import DimTable, dims_of, element_of, spell


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

    def use(self, time: int) -> None:
        self.last = max(self.last, time)


def size_of(type_: Attribute, table: DimTable) -> int:
    """Return a tensor's bytes at the upper bounds of its dimensions."""
    size = element_bytes(type_)
    for dim in dims_of(type_):
        size *= table.size(dim)
    return size


def element_bytes(type_: Attribute) -> int:
    """Return the bytes of one element of a tensor that is not a weight."""
    element = str(element_of(type_))
    if element not in _BYTES:
        raise VerifyException(
            f"expected elements of one of {', '.join(_BYTES)}, got {spell(type_)}"
        )
    return _BYTES[element]


_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1}


def dies_at(value: SSAValue, op: Operation) -> bool:
    """Return whether no operation after `op` in its block uses a value."""
    block = op.parent
    assert isinstance(block, Block)
    for use in value.uses:
        user = block.find_ancestor_op_in_block(use.operation)
        if user is not None and user is not op and op.is_before_in_block(user):
            return False
    return True
