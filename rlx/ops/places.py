"""Places of elements in row-major order, from indices along axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from rlx.dialects.common import Dim, dims_of
from rlx.dialects.kinds import BinaryKind, CompareKind
from rlx.dialects.writer import Writer

B, C = BinaryKind, CompareKind


def wrapped_ids(w: Writer, ids: SSAValue, sizes: SSAValue) -> SSAValue:
    """Return indices i64 with those below 0 counted from the end of axes of given sizes."""
    below = w.compare(C.LT, ids, 0)
    return w.select(below, w.binary(B.ADD, ids, sizes), ids)


def strides_of(dims: Sequence[int]) -> list[int]:
    """Return how far apart elements along each axis are, in row-major order."""
    return [prod(dims[i + 1 :]) for i in range(len(dims))]


def covers(dims: Sequence[Dim], ids: Sequence[Dim], axis: int) -> bool:
    """Return whether indices along an axis have an element of a tensor for each of theirs."""
    if len(dims) != len(ids):
        return False
    return all(
        i == axis or a == b or (isinstance(a, int) and isinstance(b, int) and b <= a)
        for i, (a, b) in enumerate(zip(dims, ids, strict=True))
    )


def flat_places(w: Writer, ids: SSAValue, axis: int, strides: Sequence[int]) -> SSAValue:
    """Return places in row-major order, of indices along an axis and one's own along others."""
    dims = dims_of(ids.type)
    flat = w.binary(B.MUL, ids, strides[axis])
    for i in range(len(dims)):
        if i != axis:
            flat = w.binary(B.ADD, flat, w.binary(B.MUL, w.iota(i, dims, i64), strides[i]))
    return flat
