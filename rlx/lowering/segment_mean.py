"""The mean row of each packed sequence: `transformer.segment_mean`."""

from __future__ import annotations

from collections.abc import Callable

from rlx.dialects.common import dims_of, element_bytes, element_of
from rlx.lowering.body import Body, width_of
from rlx.lowering.segment_attention import bounds
from rlx.lowering.tensor_elements import memory_type
from rlx.lowering.values import Value, vec

_LANES = 16


def emit(body: Body) -> None:
    """Means of packed sequences, as a launch of its own: sixteen columns of one after the other."""
    f, op = body.f, body.ops[0]
    x, starts = op.operands
    rows, width = body.size(dims_of(x.type)[0]), width_of(x)
    size, element = element_bytes(x.type), memory_type(element_of(x.type))

    def columns(segment: Value, first: Value, end: Value, column: Value, lanes: int) -> None:
        type_ = vec(lanes, element)
        at = f.at(body.pointers[x], column, size)

        def row(r: Value, sums: list[Value]) -> list[Value]:
            return [f.fadd(sums[0], f.load(type_, f.at(at, r, width * size), align=size))]

        (total,) = f.for_(first, end, 1, [f.zero(type_)], row)
        count = f.cast("uitofp", f.umax(f.sub(end, first), 1), element)
        mean = f.binary("fdiv", total, f.splat(count, lanes) if lanes > 1 else count)
        out = f.at(f.at(body.outs[0], segment, width * size), column, size)
        f.store(mean, out, align=size)

    def segment(s: Value) -> None:
        first, end = bounds(body, starts, s, rows)

        def part(lanes: int) -> Callable[[Value, list[Value]], list[Value]]:
            return lambda c, _: columns(s, first, end, c, lanes) or []

        whole = width // _LANES * _LANES
        f.for_(0, whole, _LANES, [], part(_LANES))
        f.for_(whole, width, 1, [], part(1))

    body.for_rows(body.size(dims_of(starts.type)[0]), segment)
