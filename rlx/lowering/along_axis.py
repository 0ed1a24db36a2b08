"""A tensor as kernels see it that go along one axis: rows or columns, shared by threads."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from xdsl.ir import Attribute

from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_bytes, element_of
from rlx.lowering.body import Body
from rlx.lowering.target import LINE
from rlx.lowering.tensor_elements import memory_type
from rlx.lowering.values import Value, f32, f64, i64, vec


class AlongAxis:
    """A tensor `[outer, n, inner]` whose axis of `n` elements a kernel goes along."""

    def __init__(self, body: Body, type_: Attribute, axis: int):
        dims = dims_of(type_)
        axis %= len(dims)
        self.body, self.f = body, body.f
        self.outer, self.inner = body.count(dims[:axis]), body.count(dims[axis + 1 :])
        self.n = body.size(dims[axis])
        self.is_last = all(d == 1 for d in dims[axis + 1 :])
        """Whether elements of the axis lie side by side."""
        element = element_of(type_)
        self.size = element_bytes(type_)
        self.is_float = element in infer.FLOATS
        self.unsigned = str(element).startswith("ui")
        self.type = memory_type(element) if self.is_float else f"i{8 * self.size}"

    def emit(
        self, row: Callable[[Value], None], columns: Callable[[Value, Value, Value], None]
    ) -> None:
        """Emit row(r) for this thread's rows of n elements, or, unless `is_last`, its columns."""
        if self.is_last:
            self.body.for_rows(self.outer, row)
        else:
            self.columns(columns)

    def number(self, x: float) -> Value:
        """Return a constant; an infinity is the least or the largest integer where it isn't one."""
        if self.is_float:
            return f32(x) if self.type == "float" else f64(x)
        low = 0 if self.unsigned else -1 << (8 * self.size - 1)
        high = low + (1 << 8 * self.size) - 1
        return Value(self.type, str(low if x == -inf else high if x == inf else int(x)))

    def chunks(
        self, first: Value, last: Value, lanes: int, body: Callable[[Value, int], None]
    ) -> None:
        """Emit body(column, lanes) from first to last: whole vectors, then one by one."""
        f = self.f
        count = f.sub(last, first)
        whole = f.add(first, f.sub(count, f.binary("srem", count, lanes)))
        f.for_(first, whole, lanes, [], lambda c, _: body(c, lanes) or [])
        f.for_(whole, last, 1, [], lambda c, _: body(c, 1) or [])

    def columns(self, part: Callable[[Value, Value, Value], None]) -> None:
        """Emit part(o, first, last) for this thread's columns of each slice `[n, inner]`."""
        f, step = self.f, LINE // self.size
        blocks = f.umax(f.udiv(f.add(self.inner, step - 1), step), 1)
        first, last = self.body.share(f.mul(self.outer, blocks))

        def slice_(o: Value, _: list[Value]) -> list[Value]:
            start = f.mul(o, blocks)
            low = f.intrinsic("smax", "i64", f.sub(first, start), i64(0))
            high = f.intrinsic("smin", "i64", f.sub(last, start), blocks)
            end = f.umin(f.mul(high, step), self.inner)
            part(o, f.mul(low, step), end)
            return []

        end = f.udiv(f.add(last, f.sub(blocks, 1)), blocks)
        f.for_(f.udiv(first, blocks), end, 1, [], slice_)

    def load(self, row: Value, column: Value, lanes: int) -> Value:
        at = self.f.at(row, column, self.size)
        return self.f.load(vec(lanes, self.type), at, self.size)

    def store(self, v: Value, row: Value, column: Value) -> None:
        self.f.store(v, self.f.at(row, column, self.size), self.size)
