"""Products of the last axis of a tensor of any rank with a matrix."""

from __future__ import annotations

from math import prod

from xdsl.ir import SSAValue

from rlx.dialects.common import dims_of
from rlx.dialects.writer import Writer


def flat(w: Writer, x: SSAValue) -> SSAValue:
    """
    Return `[..., k]` as one matrix, or as it is where the number of rows has no name.

    What follows a product is one launch with it as long as no reshape is between them.
    """
    *lead, k = dims_of(x.type)
    names = [d for d in lead if isinstance(d, str)]
    count = prod(d for d in lead if isinstance(d, int))
    if len(lead) == 1 or len(names) > 1 or (names and count != 1):
        return x
    return w.reshape(x, [names[0] if names else count, k])


def linear(w: Writer, x: SSAValue, weight: SSAValue, transposed: bool = False) -> SSAValue:
    """Return `[..., k] x [k, n] -> [..., n]`; `transposed` for a weight `[n, k]`."""
    lead = dims_of(x.type)[:-1]
    rows = flat(w, x)
    batch = dims_of(rows.type)[:-2]
    weight = w.spread(weight, [*batch, *dims_of(weight.type)])
    y = w.dot(rows, weight, y_t=transposed)
    return y if rows is x else w.reshape(y, [*lead, dims_of(y.type)[-1]])
