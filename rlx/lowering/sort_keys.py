"""What ways of sorting have in common: keys that order as elements do, and where results go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from rlx.dialects import infer
from rlx.dialects.common import element_bytes, element_of
from rlx.lowering.body import Body
from rlx.lowering.tensor_elements import memory_type
from rlx.lowering.values import Value, vec

if TYPE_CHECKING:
    from rlx.ops.sorting import SortRowsOp


class SortedRows(ABC):
    """What ways of sorting rows have in common: keys, and where results go."""

    def __init__(self, body: Body, op: SortRowsOp, n: Value, k: Value):
        self.body, self.f, self.op, self.n, self.k = body, body.f, op, n, k
        self.element = element_of(op.args[0].type)
        self.size = element_bytes(op.args[0].type)
        self.bits = 8 * self.size
        self.outs = dict(zip(body.yielded, body.outs, strict=True))

    @abstractmethod
    def row(self, r: Value) -> None:
        """Emit the sort of a row."""

    def source(self, r: Value) -> Value:
        f = self.f
        return f.at(self.body.pointers[self.op.args[0]], f.mul(r, self.n), self.size)

    def element_at(self, row: Value, i: Value, lanes: int = 1) -> Value:
        f = self.f
        return f.load(vec(lanes, memory_type(self.element)), f.at(row, i, self.size), self.size)

    def key(self, x: Value) -> Value:
        """Return signed integers that order as elements do: -0 as 0, NaN last."""
        f, ints = self.f, vec(x.lanes, f"i{self.bits}")
        descending = self.op.option("descending")
        most = (1 << (self.bits - 1)) - 1
        if self.element not in infer.FLOATS:
            unsigned = str(self.element).startswith("ui")
            flip = (-1 - most if unsigned else 0) ^ (-1 if descending else 0)
            return f.xor(x, flip) if flip else x
        number = f.fcmp("ord", x, x)
        bits = f.cast("bitcast", f.fadd(x, f.zero(x.type)), ints)
        key = f.xor(bits, f.and_(f.ashr(bits, self.bits - 1), most))
        key = f.xor(key, -1) if descending else key
        return f.select(number, key, f.constant(ints, most))

    def value(self, key: Value, otherwise: Callable[[], Value]) -> Value:
        """Return the element of a scalar key, or what is given where zeros or NaN share a key."""
        f, type_ = self.f, memory_type(self.element)
        if self.element not in infer.FLOATS:
            return self.key(key)
        most = (1 << (self.bits - 1)) - 1
        shared = f.icmp("eq", key, most)
        ascending = f.xor(key, -1) if self.op.option("descending") else key
        shared = f.or_(shared, f.icmp("eq", ascending, 0))
        bits = f.xor(ascending, f.and_(f.ashr(ascending, self.bits - 1), most))
        return f.if_(shared, lambda: [otherwise()], lambda: [f.cast("bitcast", bits, type_)])[0]

    def store(self, r: Value, place: Value, x: Value, index: Value) -> None:
        """Store an element and its index at their place of a row of the results."""
        f = self.f
        at = f.add(f.mul(r, self.k), place)
        for value, given, size in zip(self.op.res, (x, index), (self.size, 8), strict=True):
            if value in self.outs:
                f.store(given, f.at(self.outs[value], at, size), size)
