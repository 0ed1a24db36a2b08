"""Convolutions with what models put around them, of a channel's past, and of long signals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar, cast

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.kinds import FLOAT_UNARY, BinaryKind, ReduceKind, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.signal import FftKind, FftOp
from rlx.dialects.writer import Writer
from rlx.ops.convolution import ConvOp, convolved, correlate, draw_conv, windows_of, with_bias
from rlx.ops.record import CONTRACTION, FFT, FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw
from rlx.ops.windows import LEAD, Windows

# With what follows it


@irdl_op_definition
class FusedConvBiasActOp(NamedOp):
    """
    act(conv(x, w) + bias + residual): `[n, c, d...], [o, c / groups, k...], [o], [n, o, p...]?`.

    The options are those of `vision.conv`, and `act`, the kind of a `mir.unary`, or `none`.
    """

    name = "vision.fused_conv_bias_act"
    KIND: ClassVar = OpKind.FUSED_CONV_BIAS_ACT
    OPTIONS: ClassVar = {**ConvOp.OPTIONS, "act": "none"}
    CHOICES: ClassVar = {"act": ("none", *FLOAT_UNARY)}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3, 4)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        result = convolved(cls, types[:3], o, o["groups"])
        if any(t != result for t in types[3:]):
            raise cls.refuse(f"a residual of the convolution's {result}", types)
        return [result]


def _conv_of(op: FusedConvBiasActOp, *args: SSAValue) -> ConvOp:
    options = {name: value for name, value in op.chosen.items() if name != "act"}
    return ConvOp(*args, **options)


def _fused_conv_bias_act(op: FusedConvBiasActOp, x: Array, w: Array, b: Array, *r: Array) -> Array:
    from rlx.reference.elements import UNARY

    y = with_bias(correlate(x, w, windows_of(op), op.option("groups")), [b])
    y = y + r[0] if r else y
    return y if op.option("act") == "none" else UNARY[UnaryKind(op.option("act"))](y)


def _expand_fused_conv_bias_act(w: Writer, op: FusedConvBiasActOp) -> Sequence[SSAValue]:
    y = w.add(_conv_of(op, *op.args[:3]))
    for residual in op.args[3:]:
        y = w.binary(BinaryKind.ADD, y, residual)
    return [y if op.option("act") == "none" else w.unary(UnaryKind(op.option("act")), y)]


def _sample_fused_conv_bias_act(draw: Draw) -> Case:
    arrays, options = draw_conv(draw)
    x, weight = arrays[:2]
    arrays = [x, weight, draw.array(weight.shape[:1])]
    if draw.chance():
        windows = Windows.of("sample", weight.shape[LEAD:], {**ConvOp.OPTIONS, **options})
        counts = windows.counts("sample", x.shape[LEAD:])
        arrays.append(draw.array((x.shape[0], weight.shape[0], *counts)))
    act = draw.choice(("none", "relu", "silu", "gelu", "sigmoid"))
    return Case(arrays, lambda w, v: w.add_all(FusedConvBiasActOp(*v, act=act, **options)))


# Of the past, a channel at a time


@irdl_op_definition
class DepthwiseConv1dCausalOp(NamedOp):
    """
    Sums over each channel's past: `[n, t, c], [c, k], [n, k - 1, c]? -> [n, t, c]`, floats.

    y[b, i, j] = sum over q of w[j, q] * x[b, i - (k - 1) + q, j]. What lies before the first row
    is the third operand, or 0. Rows are a number.
    """

    name = "vision.depthwise_conv1d_causal"
    KIND: ClassVar = OpKind.DEPTHWISE_CONV1D_CAUSAL

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2, 3)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        x, weight = dims_of(types[0]), dims_of(types[1])
        k = weight[1] if len(weight) == 2 else 0
        fits = len(x) == 3 and isinstance(x[1], int) and isinstance(k, int) and k > 0
        fits = fits and weight[0] == x[2]
        if not fits or any(dims_of(past) != (x[0], cast(int, k) - 1, x[2]) for past in types[2:]):
            raise cls.refuse("[n, t, c], [c, k] and perhaps [n, k - 1, c] with a number t", types)
        if any(element_of(t) != element_of(types[0]) for t in types):
            raise cls.refuse("operands of one element type", types)
        return types[:1]


def _depthwise_conv1d_causal(
    op: DepthwiseConv1dCausalOp, x: Array, weight: Array, *past: Array
) -> Array:
    import numpy as np

    k = weight.shape[1]
    before = past[0] if past else np.zeros((x.shape[0], k - 1, x.shape[2]), x.dtype)
    seen = np.concatenate([before, x], axis=1)
    y = np.zeros_like(x)
    for i in range(x.shape[1]):
        for q in range(k):
            y[:, i] += weight[:, q] * seen[:, i + q]
    return y


def _expand_depthwise_conv1d_causal(w: Writer, op: DepthwiseConv1dCausalOp) -> Sequence[SSAValue]:
    x, weight, *past = op.args
    k = cast(int, dims_of(weight.type)[1])
    if past and k > 1:
        x = w.concat(1, [past[0], x])
    else:
        x = w.pad(x, [0, k - 1, 0], [0, 0, 0])
    seen = w.window(x, 1, k)
    weights = w.spread(w.transpose(weight, [1, 0]), dims_of(seen.type))
    return [w.reduce(ReduceKind.SUM, w.binary(BinaryKind.MUL, seen, weights), [2])]


def _sample_depthwise_conv1d_causal(draw: Draw) -> Case:
    n, t, c = draw.between(1, 3), draw.size(1, 64), draw.size(1, 64)
    k = draw.between(1, 5)
    arrays = [draw.array((n, t, c)), draw.array((c, k))]
    if draw.chance():
        arrays.append(draw.array((n, k - 1, c)))
    return Case(arrays, lambda w, v: w.add_all(DepthwiseConv1dCausalOp(*v)))


# Of long signals


@irdl_op_definition
class PartitionedConvOp(NamedOp):
    """
    The whole convolution of signals with one response: `[..., n], [m] -> [..., n + m - 1]`, floats.

    y[t] = sum over j of h[j] x[t - j]. Both are cut into blocks of `block` elements, whose spectra
    are multiplied and added up for each distance of blocks (Stockham, 1966), so that the work for
    an element is about that of two transforms and of m / block products. n and m are numbers.
    """

    name = "vision.partitioned_conv"
    KIND: ClassVar = OpKind.PARTITIONED_CONV
    OPTIONS: ClassVar = {"block": 256}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2)
        infer.check_element(cls.name, types[0], infer.FLOATS)
        *lead, n = dims_of(types[0]) or (0,)
        (m,) = dims_of(types[1]) if len(dims_of(types[1])) == 1 else (0,)
        if not (isinstance(n, int) and isinstance(m, int)) or min(n, m, o["block"]) < 1:
            raise cls.refuse(f"[..., n] and [m] of numbers, and blocks from 1, not {o}", types)
        if element_of(types[1]) != element_of(types[0]):
            raise cls.refuse("operands of one element type", types)
        return [tensor([*lead, n + m - 1], element_of(types[0]))]


def _partitioned_conv(op: PartitionedConvOp, x: Array, response: Array) -> Array:
    import numpy as np

    return np.apply_along_axis(np.convolve, -1, x, response)


def _expand_partitioned_conv(w: Writer, op: PartitionedConvOp) -> Sequence[SSAValue]:
    x, response = op.args
    *lead, total = cast(Sequence[int], dims_of(op.res[0].type))
    block, axis = op.option("block"), len(lead)
    spectra, parts = (_spectra(w, v, block) for v in (x, response))
    count = cast(int, dims_of(parts.type)[0])
    # Block k of the result has the sum over j of block k - j of the signal and part j.
    ends = [count - 1 if i == axis else 0 for i in range(axis + 2)]
    seen = w.window(w.pad(spectra, ends, ends), axis, count)
    sums = _complex_sums(w, seen, w.reverse(parts, [0] if count > 1 else []), block)
    blocks = w.add(FftOp(FftKind.INVERSE, sums))
    first, second = (w.slice(blocks, axis + 1, start, block) for start in (0, block))
    one = [1 if i == axis else 0 for i in range(axis + 2)]
    none = [0] * (axis + 2)
    y = w.binary(BinaryKind.ADD, w.pad(first, none, one), w.pad(second, one, none))
    size = prod(cast(Sequence[int], dims_of(y.type)[axis:]))
    return [w.slice(w.reshape(y, [*lead, size]), axis, 0, total)]


def _spectra(w: Writer, x: SSAValue, block: int) -> SSAValue:
    """Return the spectra of blocks with as many zeros behind: `[..., n] -> [..., k, 4 block]`."""
    *lead, n = dims_of(x.type)
    count = -(-cast(int, n) // block)
    still = [0] * len(lead)
    x = w.pad(x, [*still, 0], [*still, count * block - cast(int, n)])
    x = w.reshape(x, [*lead, count, block])
    # Behind the block are its zeros, and the imaginary parts.
    return w.add(FftOp(FftKind.FORWARD, w.pad(x, [*still, 0, 0], [*still, 0, 3 * block])))


def _complex_sums(w: Writer, x: SSAValue, y: SSAValue, block: int) -> SSAValue:
    """Return the sums of complex products: `[..., k, j, 4 block], [j, 4 block]` over j."""
    dims = dims_of(x.type)
    last, half = len(dims) - 1, 2 * block
    y = w.spread(y, dims)
    x_parts, y_parts = ([w.slice(v, last, at, half) for at in (0, half)] for v in (x, y))

    def product(i: int, j: int) -> SSAValue:
        return w.binary(BinaryKind.MUL, x_parts[i], y_parts[j])

    real = w.binary(BinaryKind.SUB, product(0, 0), product(1, 1))
    imaginary = w.binary(BinaryKind.ADD, product(0, 1), product(1, 0))
    sums = [w.reduce(ReduceKind.SUM, v, [last - 1]) for v in (real, imaginary)]
    return w.concat(last - 1, sums)


def _sample_partitioned_conv(draw: Draw) -> Case:
    n, m, block = draw.size(1, 257), draw.size(1, 97), draw.choice((1, 8, 16, 25, 64))
    lead = draw.choice(((), (2,), (3, 2)))
    arrays = [draw.array((*lead, n)), draw.array((m,))]
    if block == 1:
        arrays = [draw.array((*lead, 9)), draw.array((5,))]
    return Case(arrays, lambda w, v: w.add_all(PartitionedConvOp(*v, block=block)))


RECORDS = (
    Record(
        FusedConvBiasActOp, (OpKind.FUSED_CONV_BIAS_ACT,), CONTRACTION, FLOATS,
        _fused_conv_bias_act, _sample_fused_conv_bias_act, _expand_fused_conv_bias_act,
    ),
    Record(
        DepthwiseConv1dCausalOp, (OpKind.DEPTHWISE_CONV1D_CAUSAL,), ROWS, FLOATS,
        _depthwise_conv1d_causal, _sample_depthwise_conv1d_causal, _expand_depthwise_conv1d_causal,
    ),
    Record(
        PartitionedConvOp, (OpKind.PARTITIONED_CONV,), FFT, FLOATS, _partitioned_conv,
        _sample_partitioned_conv, _expand_partitioned_conv,
    ),
)  # fmt: skip
