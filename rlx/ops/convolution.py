"""
Convolutions, `[n, channels, d...]` with any number of spatial axes, as products of matrices.

The columns of a window and its places, `[n, groups, channels * size, places]`, are multiplied by
the weights from the left, so that the product is the result as it lies in memory and its last axis
runs along the places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar, cast

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, ReduceKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.record import CONTRACTION, FLOATS, Array, Case, Record
from rlx.ops.samples import Draw
from rlx.ops.windows import LEAD, OPTIONS, Windows, draw_spatial, draw_windows, spatial


def add_bias(w: Writer, x: SSAValue, bias: Sequence[SSAValue]) -> SSAValue:
    """Add a number for each channel, where there is one."""
    dims = dims_of(x.type)
    for b in bias:
        x = w.binary(BinaryKind.ADD, x, w.along(b, 1, dims))
    return x


def products(w: Writer, x: SSAValue, weight: SSAValue, windows: Windows) -> SSAValue:
    """Return the sums over windows: `[n, c, d...], [groups, o, c / groups, k...]`."""
    n, c, *_ = dims_of(x.type)
    groups, o, inner, *kernel = cast(Sequence[int], dims_of(weight.type))
    columns = windows.take(w, x)
    places = dims_of(columns.type)[-len(kernel) :]
    if inner == o == 1:
        # A row program: products of one row would read what it makes once and only once.
        each = w.reshape(weight, [c, *kernel, *[1] * len(kernel)])
        each = w.spread(each, dims_of(columns.type))
        axes = range(LEAD, LEAD + len(kernel))
        return w.reduce(ReduceKind.SUM, w.binary(BinaryKind.MUL, columns, each), list(axes))
    rows, columns = operands(w, columns, weight)
    return w.reshape(w.dot(rows, columns), [n, groups * o, *places])


def operands(w: Writer, columns: SSAValue, weight: SSAValue) -> tuple[SSAValue, SSAValue]:
    """
    Return what to multiply, for each image and group, `[o, k]` and `[k, places]`.

    That is of windows as `Windows.take` gives them, and weights `[groups, o, c / groups, k...]`.
    """
    n, _, *sizes = dims_of(columns.type)
    groups, o, *inner = cast(Sequence[int], dims_of(weight.type))
    k, places = prod(inner), prod(cast(Sequence[int], sizes[len(inner) - 1 :]))
    rows = w.spread(w.reshape(weight, [1, groups, o, k]), [n, groups, o, k])
    return rows, w.reshape(columns, [n, groups, k, places])


# Convolution


@irdl_op_definition
class ConvOp(NamedOp):
    """
    Sums over windows: `[n, c, d...], [o, c / groups, k...], [o]? -> [n, o, p...]`, floats.

    y[b, m, p] = bias[m] + sum over j and q of w[m, j, q] * x[b, g * c / groups + j,
    p * stride + q * dilation - low], where x is 0 beyond its ends and g = m / (o / groups), rounded
    down. Channels and spatial sizes are numbers.
    """

    name = "vision.conv"
    KIND: ClassVar = OpKind.CONV
    OPTIONS: ClassVar = {**OPTIONS, "groups": 1}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2, 3)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        return [convolved(cls, types, o, o["groups"])]


def convolved(
    cls: type[NamedOp], types: Sequence[Attribute], o: Mapping[str, Any], groups: int
) -> Attribute:
    """Return the type of a convolution, of its first operand's elements."""
    sizes = spatial(cls.name, types[0])
    n, c, *_ = dims_of(types[0])
    weight = dims_of(types[1])
    fits = groups > 0 and len(weight) == LEAD + len(sizes)
    fits = fits and all(isinstance(d, int) for d in (c, *weight))
    m, inner, *kernel = cast(Sequence[int], weight) if fits else (0, 0)
    fits = fits and m % groups == 0 and inner * groups == c
    if not fits or any(dims_of(b) != (m,) for b in types[2:3]):
        raise cls.refuse(
            f"[n, c, d...], [o, c / groups, k...] and a bias [o] with c and o multiples of "
            f"{groups} groups",
            types,
        )
    if any(element_of(t) != element_of(types[0]) for t in types):
        raise cls.refuse("operands of one element type", types)
    counts = Windows.of(cls.name, kernel, o).counts(cls.name, sizes)
    return tensor([n, m, *counts], element_of(types[0]))


def windows_of(op: NamedOp, weight: int = 1) -> Windows:
    """Return the windows of a convolution, from its options and its weight."""
    kernel = cast(Sequence[int], dims_of(op.args[weight].type)[LEAD:])
    return Windows.of(op.name, kernel, op.chosen)


def correlate(x: Array, weight: Array, windows: Windows, groups: int) -> Array:
    """Return the sums over windows, element by element of a window."""
    import numpy as np

    n, o = x.shape[0], weight.shape[0]
    counts = windows.counts("conv", x.shape[LEAD:])
    padded = windows.padded(x)
    y = np.zeros((n, groups, o // groups, *counts), x.dtype)
    w = weight.reshape(groups, o // groups, *weight.shape[1:])
    for offset in np.ndindex(*windows.size):
        seen = windows.shifted(padded, counts, offset)
        seen = seen.reshape(n, groups, weight.shape[1], *counts)
        y += np.einsum("ngc...,goc->ngo...", seen, w[(..., *offset)])
    return y.reshape(n, o, *counts)


def with_bias(y: Array, bias: Sequence[Array]) -> Array:
    """Add a number for each channel, where there is one."""
    return y + bias[0].reshape(-1, *[1] * (y.ndim - LEAD)) if bias else y


def _conv(op: ConvOp, x: Array, weight: Array, *bias: Array) -> Array:
    return with_bias(correlate(x, weight, windows_of(op), op.option("groups")), bias)


def _expand_conv(w: Writer, op: ConvOp) -> Sequence[SSAValue]:
    x, weight, *bias = op.args
    groups = op.option("groups")
    o, *inner = cast(Sequence[int], dims_of(weight.type))
    weight = w.reshape(weight, [groups, o // groups, *inner])
    return [add_bias(w, products(w, x, weight, windows_of(op)), bias)]


def draw_conv(draw: Draw, transposed: bool = False) -> tuple[list[Array], dict[str, Any]]:
    """Return an input, a weight and perhaps a bias, and options."""
    rank = draw.choice((1, 2, 2, 3))
    size, options = draw_windows(draw, rank)
    if draw.chance(0.2):
        size = (1,) * rank
    groups = draw.choice((1, 1, 1, 2, 3))
    depthwise = groups > 1 and draw.chance()
    inner, outer = (1, 1) if depthwise else (draw.between(1, 9), draw.between(1, 9))
    options["groups"] = groups
    n = 0 if draw.chance(0.05) else draw.between(1, 3)
    x = draw.array((n, groups * inner, *draw_spatial(draw, size, draw.most // 32)))
    lead = (groups * inner, outer) if transposed else (groups * outer, inner)
    arrays = [x, draw.array((*lead, *size))]
    if draw.chance():
        arrays.append(draw.array((groups * outer,)))
    return arrays, options


def _sample_conv(draw: Draw) -> Case:
    arrays, options = draw_conv(draw)
    return Case(arrays, lambda w, v: w.add_all(ConvOp(*v, **options)))


# Transposed convolution


@irdl_op_definition
class ConvTransposeOp(NamedOp):
    """
    Adds windows up: `[n, c, d...], [c, o / groups, k...], [o]? -> [n, o, p...]`, floats.

    The transpose of `vision.conv` as a linear map: element i of the input adds w[q] times itself to
    element i * stride + q * dilation - low of the result. An axis of the result has (d - 1) *
    stride + (k - 1) * dilation + 1 - low - high elements, and `extra` more at its end.
    """

    name = "vision.conv_transpose"
    KIND: ClassVar = OpKind.CONV_TRANSPOSE2D
    OPTIONS: ClassVar = {**OPTIONS, "extra": (), "groups": 1}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2, 3)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        sizes, groups = spatial(cls.name, types[0]), o["groups"]
        n, c, *_ = dims_of(types[0])
        weight = dims_of(types[1])
        fits = groups > 0 and len(weight) == LEAD + len(sizes) and weight[0] == c
        fits = fits and all(isinstance(d, int) for d in weight)
        inner, m, *kernel = cast(Sequence[int], weight) if fits else (0, 0)
        same = all(element_of(t) == element_of(types[0]) for t in types)
        if not (fits and same and inner % groups == 0) or (
            any(dims_of(b) != (m * groups,) for b in types[2:3])
        ):
            raise cls.refuse(
                "[n, c, d...], [c, o / groups, k...] and a bias [o], of one element type, with c a "
                f"multiple of {groups} groups",
                types,
            )
        windows = Windows.of(cls.name, kernel, o)
        counts = _grown(windows, sizes, o["extra"])
        if len(o["extra"]) not in (0, len(sizes)) or min((*o["extra"], *counts)) < 0:
            raise cls.refuse(
                f"sizes of results from 0, with `extra` {o['extra']}, sizes {counts}", types
            )
        return [tensor([n, m * groups, *counts], element_of(types[0]))]


def _grown(windows: Windows, sizes: Sequence[int], extra: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes that a transposed convolution makes of others."""
    ends = zip(windows.low, windows.high, extra or (0,) * len(sizes), strict=True)
    places = zip(sizes, windows.stride, windows.extent, ends, strict=True)
    return tuple((n - 1) * s + e - low - high + x for n, s, e, (low, high, x) in places)


def _conv_transpose(op: ConvTransposeOp, x: Array, weight: Array, *bias: Array) -> Array:
    import numpy as np

    windows, groups = windows_of(op), op.option("groups")
    n, sizes = x.shape[0], x.shape[LEAD:]
    counts = cast(Sequence[int], dims_of(op.res[0].type)[LEAD:])
    # What falls before the beginning or after the end is cut off.
    whole = [low + c + high for low, c, high in zip(windows.low, counts, windows.high, strict=True)]
    y = np.zeros((n, groups, weight.shape[1], *whole), x.dtype)
    given = x.reshape(n, groups, weight.shape[0] // groups, *sizes)
    w = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    for offset in np.ndindex(*windows.size):
        added = np.einsum("ngc...,gco->ngo...", given, w[(..., *offset)])
        windows.shifted(y, sizes, offset)[...] += added
    cut = tuple(slice(low, low + c) for low, c in zip(windows.low, counts, strict=True))
    return with_bias(y.reshape(n, groups * weight.shape[1], *whole)[(..., *cut)], bias)


def _expand_conv_transpose(w: Writer, op: ConvTransposeOp) -> Sequence[SSAValue]:
    """
    Write it as a convolution of stride 1.

    Of a stride s, the results at each place modulo s see every s-th element of the window only:
    they are channels of their own, which are interleaved at the end. With a dilation too, zeros are
    put between the elements of the input instead.
    """
    x, weight, *bias = op.args
    windows, groups = windows_of(op), op.option("groups")
    c, o, *kernel = cast(Sequence[int], dims_of(weight.type))
    extra = op.option("extra") or (0,) * len(kernel)
    axes = list(zip(windows.stride, windows.dilation, kernel, strict=True))
    phases = [s if d == 1 else 1 for s, d, _ in axes]
    reach = [-(-k // p) for p, (_, _, k) in zip(phases, axes, strict=True)]
    ends = [
        [e - 1 - a for e, a in zip(windows.extent, side, strict=True)]
        for side in (windows.low, [b - n for b, n in zip(windows.high, extra, strict=True)])
    ]
    low, high = (
        [q - 1 if p > 1 else n for p, q, n in zip(phases, reach, side, strict=True)]
        for side in ends
    )
    x = _put_apart(w, x, low, high, [0 if p > 1 else s - 1 for p, (s, *_) in zip(phases, axes)])
    weight = _by_phase(w, w.reshape(weight, [groups, c // groups, o, *kernel]), phases, reach)
    zeros, ones = (0,) * len(kernel), (1,) * len(kernel)
    dense = Windows(tuple(reach), ones, zeros, zeros, windows.dilation)
    y = products(w, x, weight, dense)
    return [add_bias(w, _interleaved(w, y, phases, windows.low, dims_of(op.res[0].type)), bias)]


def _by_phase(w: Writer, weight: SSAValue, phases: Sequence[int], reach: Sequence[int]) -> SSAValue:
    """
    Turn weights around, with those of each phase as channels.

    `[groups, c, o, k...] --> [groups, o * phases, c, reach...]`
    """
    groups, c, o, *kernel = cast(Sequence[int], dims_of(weight.type))
    rank = len(kernel)
    missing = [q * p - k for q, p, k in zip(reach, phases, kernel, strict=True)]
    weight = w.pad(weight, [0] * (3 + rank), [0, 0, 0, *missing])
    apart = [n for pair in zip(reach, phases, strict=True) for n in pair]
    weight = w.reshape(weight, [groups, c, o, *apart])
    weight = w.reverse(weight, [3 + 2 * i for i, q in enumerate(reach) if q > 1])
    order = [0, 2, *(4 + 2 * i for i in range(rank)), 1, *(3 + 2 * i for i in range(rank))]
    return w.reshape(w.transpose(weight, order), [groups, o * prod(phases), c, *reach])


def _interleaved(
    w: Writer, y: SSAValue, phases: Sequence[int], low: Sequence[int], dims: Sequence[Dim]
) -> SSAValue:
    """
    Put channels of phases between the places of the others, and cut off the padding.

    `[n, o * phases, d...] --> [n, o, d * phases...]`
    """
    if max(phases) == 1:
        return y
    n, o = dims[:LEAD]
    sizes = cast(Sequence[int], dims_of(y.type)[LEAD:])
    rank = len(sizes)
    y = w.reshape(y, [n, o, *phases, *sizes])
    y = w.transpose(y, [0, 1, *(LEAD + i + side for i in range(rank) for side in (rank, 0))])
    y = w.reshape(y, [n, o, *(d * p for d, p in zip(sizes, phases, strict=True))])
    for axis, (p, a) in enumerate(zip(phases, low, strict=True), LEAD):
        size, there = (cast(int, v[axis]) for v in (dims, dims_of(y.type)))
        if p > 1 and (a, size) != (0, there):
            after = [max(a + size - there, 0) if i == axis else 0 for i in range(LEAD + rank)]
            y = w.slice(w.pad(y, [0] * (LEAD + rank), after), axis, a, size)
    return y


def _put_apart(
    w: Writer, x: SSAValue, low: Sequence[int], high: Sequence[int], between: Sequence[int]
) -> SSAValue:
    """Put zeros between the elements of spatial axes and around them; fewer than 0 cut off some."""
    lead = (0,) * LEAD
    before, after = ((*lead, *(max(n, 0) for n in ends)) for ends in (low, high))
    x = w.pad(x, before, after, between=(*lead, *between))
    for axis, (a, b) in enumerate(zip(low, high, strict=True), LEAD):
        cut = max(-a, 0), max(-b, 0)
        if any(cut):
            size = cast(int, dims_of(x.type)[axis])
            x = w.slice(x, axis, cut[0], size - sum(cut))
    return x


def _sample_conv_transpose(draw: Draw) -> Case:
    arrays, options = draw_conv(draw, transposed=True)
    rank = arrays[0].ndim - LEAD
    windows = Windows.of("sample", arrays[1].shape[LEAD:], {**ConvTransposeOp.OPTIONS, **options})
    if draw.chance(0.3):
        options["extra"] = tuple(draw.between(0, 1) for _ in range(rank))
    if min(_grown(windows, arrays[0].shape[LEAD:], options.get("extra", ()))) < 1:
        options["low"] = options["high"] = (0,) * rank
    return Case(arrays, lambda w, v: w.add_all(ConvTransposeOp(*v, **options)))


RECORDS = (
    Record(
        ConvOp, (OpKind.CONV, OpKind.CONV3D), CONTRACTION, FLOATS, _conv, _sample_conv,
        _expand_conv,
    ),
    Record(
        ConvTransposeOp, (OpKind.CONV_TRANSPOSE2D, OpKind.CONV_TRANSPOSE3D), CONTRACTION, FLOATS,
        _conv_transpose, _sample_conv_transpose, _expand_conv_transpose,
    ),
)  # fmt: skip
