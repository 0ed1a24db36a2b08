"""Gradients of convolutions and of pools of maxima, `[n, channels, d...]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import Any, ClassVar, cast

from xdsl.dialects.builtin import i32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.convolution import ConvTransposeOp, convolved
from rlx.ops.record import CONTRACTION, FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw
from rlx.ops.windows import LEAD, OPTIONS, Windows, draw_spatial, draw_windows, spatial

B, C, R = BinaryKind, CompareKind, ReduceKind


def _sizes(type_: Attribute) -> tuple[int, ...]:
    return cast("tuple[int, ...]", dims_of(type_)[LEAD:])


def _left(windows: Windows, sizes: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    """Return the elements at the end of each padded axis that no window reaches."""
    axes = zip(
        sizes, counts, windows.stride, windows.extent, windows.low, windows.high, strict=True
    )
    return tuple(a + n + b - (p - 1) * s - e for n, p, s, e, a, b in axes)


# Convolution


@irdl_op_definition
class ConvBackwardOp(NamedOp):
    """
    Gradients of `vision.conv`, whose options it takes, by its input, its weight or both.

    `(x [n, c, d...], weight [o, c / groups, k...], upstream [n, o, p...]) -> x | weight | both`.
    """

    name = "grad.conv"
    KIND: ClassVar = OpKind.CONV2D_BACKWARD_INPUT
    OPTIONS: ClassVar = {"wrt": "input", **OPTIONS, "groups": 1}
    CHOICES: ClassVar = {"wrt": ("input", "weight", "all")}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        result = convolved(cls, types[:2], o, o["groups"])
        if types[2] != result:
            raise cls.refuse(f"an upstream of the convolution's type, {result}", types)
        return {"input": types[:1], "weight": types[1:2]}.get(o["wrt"], types[:2])

    @property
    def windows(self) -> Windows:
        return Windows.of(self.name, _sizes(self.args[1].type), self.chosen)


def _conv(op: ConvBackwardOp, x: Array, weight: Array, upstream: Array) -> Any:
    """Return the gradients, from each product of an element and a weight that a result has."""
    import numpy as np

    windows, groups = op.windows, op.option("groups")
    o, *counts = upstream.shape[1:]
    padded = windows.padded(x)
    by_padded, by_weight = np.zeros_like(padded), np.zeros_like(weight)
    inner, outer = weight.shape[1], o // groups
    for offset in np.ndindex(*windows.size):
        seen = windows.shifted(padded, counts, offset)
        changed = windows.shifted(by_padded, counts, offset)
        for m in range(o):
            first = m // outer * inner
            for j in range(inner):
                at = (m, j, *offset)
                by_weight[at] = (seen[:, first + j] * upstream[:, m]).sum()
                changed[:, first + j] += weight[at] * upstream[:, m]
    cut = [slice(a, a + d) for a, d in zip(windows.low, x.shape[LEAD:], strict=True)]
    by_input = by_padded[(..., *cut)]
    return {"input": by_input, "weight": by_weight}.get(op.option("wrt"), (by_input, by_weight))


def _by_input(w: Writer, op: ConvBackwardOp) -> SSAValue:
    x, weight, upstream = op.args
    windows = op.windows
    extra = _left(windows, _sizes(x.type), _sizes(upstream.type))
    options = {name: op.option(name) for name in (*OPTIONS, "groups")}
    return w.add(ConvTransposeOp(upstream, weight, extra=extra, **options))


def _by_weight(w: Writer, op: ConvBackwardOp) -> SSAValue:
    """One product for each group, in which images and places are summed over together."""
    x, weight, upstream = op.args
    windows, groups = op.windows, op.option("groups")
    n = dims_of(x.type)[0]
    o, inner, *kernel = cast(Sequence[int], dims_of(weight.type))
    places = prod(_sizes(upstream.type))
    columns = w.reshape(windows.take(w, x), [n, groups, inner * prod(kernel), places])
    rows = w.reshape(upstream, [n, groups, o // groups, places])
    if isinstance(n, int):
        sides = (w.transpose(v, [1, 2, 0, 3]) for v in (rows, columns))
        rows, columns = (w.reshape(v, [*dims_of(v.type)[:2], n * places]) for v in sides)
        product = w.dot(rows, columns, y_t=True)
    else:
        product = w.reduce(R.SUM, w.dot(rows, columns, y_t=True), [0])
    return w.reshape(product, [o, inner, *kernel])


def _expand_conv(w: Writer, op: ConvBackwardOp) -> Sequence[SSAValue]:
    functions = {"input": _by_input, "weight": _by_weight}
    return [f(w, op) for name, f in functions.items() if op.option("wrt") in (name, "all")]


def _sample_conv(draw: Draw) -> Case:
    rank = draw.choice((1, 2, 2, 3))
    size, options = draw_windows(draw, rank)
    groups = draw.choice((1, 1, 1, 2, 3))
    inner, outer = draw.between(1, 6), draw.between(1, 6)
    x = draw.array((draw.between(1, 3), groups * inner, *draw_spatial(draw, size, draw.most // 64)))
    weight = draw.array((groups * outer, inner, *size))
    counts = Windows.of("sample", size, {**OPTIONS, **options}).counts("sample", x.shape[LEAD:])
    upstream = draw.array((x.shape[0], groups * outer, *counts))
    options |= {"groups": groups, "wrt": draw.choice(ConvBackwardOp.CHOICES["wrt"])}
    return Case([x, weight, upstream], lambda w, v: w.add_all(ConvBackwardOp(*v, **options)))


# Pool of maxima


@irdl_op_definition
class MaxPoolBackwardOp(NamedOp):
    """
    The gradient of `vision.pool` of kind `max`, whose options it takes.

    `(x [n, c, d...], upstream [n, c, p...]) -> x`: what a window's result gets goes to its first
    element, in row-major order, that is the maximum.
    """

    name = "grad.max_pool"
    KIND: ClassVar = OpKind.MAX_POOL2D_BACKWARD
    OPTIONS: ClassVar = {"size": (), **OPTIONS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        sizes = spatial(cls.name, types[0])
        if len(o["size"]) != len(sizes):
            raise cls.refuse(f"a number in `size` {o['size']} for each spatial axis", types)
        counts = _pool_windows(o).counts(cls.name, sizes)
        wanted = tensor([*dims_of(types[0])[:LEAD], *counts], element_of(types[0]))
        if types[1] != wanted:
            raise cls.refuse(f"an upstream of the pool's type, {wanted}", types)
        return types[:1]


def _pool_windows(o: Mapping[str, Any]) -> Windows:
    return Windows.of(MaxPoolBackwardOp.name, o["size"], o, stride=o["size"])


def _max_pool(op: MaxPoolBackwardOp, x: Array, upstream: Array) -> Array:
    import numpy as np

    windows = _pool_windows(op.chosen)
    padded = windows.padded(x, -np.inf)
    result = np.zeros_like(padded)
    for place in np.ndindex(*upstream.shape[LEAD:]):
        starts = [p * s for p, s in zip(place, windows.stride, strict=True)]
        axes = zip(starts, windows.extent, windows.dilation, strict=True)
        window = (..., *(slice(a, a + e, d) for a, e, d in axes))
        seen, changed = padded[window], result[window]
        for image in np.ndindex(*x.shape[:LEAD]):
            changed[image].flat[seen[image].argmax()] += upstream[(*image, *place)]
    cut = [slice(a, a + d) for a, d in zip(windows.low, x.shape[LEAD:], strict=True)]
    return result[(..., *cut)]


def _expand_max_pool(w: Writer, op: MaxPoolBackwardOp) -> Sequence[SSAValue]:
    """
    Each element asks the windows that hold it whether it is their first maximum.

    These lie stride apart: with as many elements put between the results, they are windows too,
    in which the element's place in its window counts from the end.
    """
    x, upstream = op.args
    windows = _pool_windows(op.chosen)
    lead, counts = dims_of(x.type)[:LEAD], _sizes(upstream.type)
    count = prod(windows.size)
    flat = [*lead, count, *counts]
    taken = w.reshape(windows.take(w, x, -inf), flat)
    top = w.spread(w.reduce(R.MAX, taken, [LEAD], keep=True), flat)
    place = w.iota(LEAD, flat, i32)
    first = w.reduce(R.MIN, w.select(w.compare(C.EQ, taken, top), place, count), [LEAD])
    holders = [
        w.reshape(_holders(w, v, windows, _sizes(x.type), fill), [*lead, count, *_sizes(x.type)])
        for v, fill in ((first, count), (upstream, 0.0))
    ]
    asked = w.binary(B.SUB, count - 1, w.iota(LEAD, dims_of(holders[0].type), i32))
    mine = w.select(w.compare(C.EQ, holders[0], asked), holders[1], 0.0)
    return [w.reduce(R.SUM, mine, [LEAD])]


def _holders(
    w: Writer, x: SSAValue, windows: Windows, sizes: Sequence[int], fill: float
) -> SSAValue:
    """Return the windows' values `[..., p...]` around each element, `[..., size..., d...]`."""
    lead = (0,) * LEAD
    low = [e - 1 - a for e, a in zip(windows.extent, windows.low, strict=True)]
    # As many at the end as make a window for each element.
    left = _left(windows, sizes, _sizes(x.type))
    ends = zip(windows.extent, windows.high, left, strict=True)
    high = [e - 1 - b + n for e, b, n in ends]
    between = [s - 1 for s in windows.stride]
    before, after = ((*lead, *(max(n, 0) for n in ends)) for ends in (low, high))
    x = w.pad(x, before, after, fill, between=(*lead, *between))
    for axis, (a, b) in enumerate(zip(low, high, strict=True), LEAD):
        if a < 0 or b < 0:
            size = cast(int, dims_of(x.type)[axis])
            x = w.slice(x, axis, max(-a, 0), size - max(-a, 0) - max(-b, 0))
    zeros, ones = (0,) * len(sizes), (1,) * len(sizes)
    return Windows(windows.size, ones, zeros, zeros, windows.dilation).take(w, x)


def _sample_max_pool(draw: Draw) -> Case:
    size, options = draw_windows(draw, draw.choice((1, 2, 2, 3)))
    x = draw.array(
        (draw.between(1, 3), draw.between(1, 4), *draw_spatial(draw, size, draw.most // 32))
    )
    if draw.chance(0.3):
        x = x.round()
    windows = _pool_windows({"size": size, **OPTIONS, **options})
    upstream = draw.array((*x.shape[:LEAD], *windows.counts("sample", x.shape[LEAD:])))
    return Case([x, upstream], lambda w, v: w.add_all(MaxPoolBackwardOp(*v, size=size, **options)))


RECORDS = (
    Record(
        ConvBackwardOp,
        (OpKind.CONV2D_BACKWARD_INPUT, OpKind.CONV2D_BACKWARD_WEIGHT),
        CONTRACTION,
        FLOATS,
        _conv,
        _sample_conv,
        _expand_conv,
    ),
    Record(
        MaxPoolBackwardOp,
        (OpKind.MAX_POOL2D_BACKWARD,),
        ROWS,
        FLOATS,
        _max_pool,
        _sample_max_pool,
        _expand_max_pool,
    ),
)
