"""
Normalisation over features, channels or groups, with what models put around it.

A variance is the mean of the squared distances from the mean, over all that is normalised together;
`eps` is added to it before the square root.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, ClassVar, cast

from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import Dim, dims_of, element_of
from rlx.dialects.kinds import BinaryKind, ReduceKind, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.reductions import LayerNormOp as MirLayerNormOp
from rlx.dialects.writer import Writer
from rlx.ops.record import FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw

EPS = {"eps": 1e-5}


def _check(cls: type[NamedOp], types: Sequence[Attribute], *counts: int, rank: int = 1) -> None:
    """Raise VerifyException unless there are so many operands, floats of one element type."""
    cls.expect_count(types, *counts)
    infer.check_element(cls.name, types[0], infer.FLOATS)
    if len(dims_of(types[0])) < rank:
        raise cls.refuse(f"{rank} dimensions or more", types)
    if any(element_of(t) != element_of(types[0]) for t in types):
        raise cls.refuse("operands of one element type", types)


def _check_vectors(cls: type[NamedOp], types: Sequence[Attribute], size: Dim) -> None:
    if any(dims_of(t) != (size,) for t in types[1:]):
        raise cls.refuse(f"vectors [{size}] after the first operand", types)


def normalised(
    w: Writer, x: SSAValue, axes: Sequence[int], eps: float, centre: bool = True
) -> SSAValue:
    """Return what has mean 0, with `centre`, and mean square 1 over axes."""
    dims = dims_of(x.type)

    def mean(of: SSAValue) -> SSAValue:
        return w.reduce(ReduceKind.MEAN, of, axes, keep=True)

    if centre:
        x = w.binary(BinaryKind.SUB, x, w.spread(mean(x), dims))
    variance = w.binary(BinaryKind.ADD, mean(w.binary(BinaryKind.MUL, x, x)), eps)
    return w.binary(BinaryKind.MUL, x, w.spread(w.unary(UnaryKind.RSQRT, variance), dims))


def affine(w: Writer, x: SSAValue, axis: int, gamma: SSAValue, beta: SSAValue) -> SSAValue:
    """Return x * gamma + beta, of vectors along an axis."""
    dims = dims_of(x.type)
    x = w.binary(BinaryKind.MUL, x, w.along(gamma, axis, dims))
    return w.binary(BinaryKind.ADD, x, w.along(beta, axis, dims))


def _normal(x: Array, axes: tuple[int, ...], eps: float, centre: bool = True) -> Array:
    import numpy as np

    mean = x.mean(axes, keepdims=True) if centre else np.zeros((), x.dtype)
    deviation = np.sqrt(np.square(x - mean).mean(axes, keepdims=True) + eps)
    return ((x - mean) / deviation).astype(x.dtype)


def _shaped(vector: Array, rank: int) -> Array:
    """Return a vector of channels, axis 1 of a rank."""
    return vector.reshape(-1, *[1] * (rank - 2))


def _draw_eps(draw: Draw) -> float:
    return draw.choice((1e-6, 1e-5, 1e-3))


# Over the last axes


class _OverLast(NamedOp):
    """A norm of an input over as many of its last axes as its weights have, which are numbers."""

    OPTIONS: ClassVar = EPS

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        _check(cls, types, 3)
        dims, last = dims_of(types[0]), dims_of(types[1])
        fits = last and all(isinstance(d, int) for d in last) and dims[-len(last) :] == last
        if not fits or types[1] != types[2]:
            raise cls.refuse("[..., d...] and two weights [d...] with numbers for d", types)
        return types[:1]


@irdl_op_definition
class LayerNormOp(_OverLast):
    """(x - mean) / sqrt(variance + eps) gamma + beta: `[..., d...], [d...], [d...]` over d...."""

    name = "norm.layer_norm"
    KIND: ClassVar = OpKind.LAYER_NORM


@irdl_op_definition
class RmsNormOp(_OverLast):
    """x / sqrt(mean of x^2 + eps) gamma + beta: `[..., d...], [d...], [d...]` over d...."""

    name = "norm.rms_norm"
    KIND: ClassVar = OpKind.RMS_NORM


def _over_last(op: _OverLast, x: Array, gamma: Array, beta: Array) -> Array:
    axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
    return _normal(x, axes, op.option("eps"), isinstance(op, LayerNormOp)) * gamma + beta


def _expand_over_last(w: Writer, op: _OverLast) -> Sequence[SSAValue]:
    x, gamma, beta = op.args
    dims, last = dims_of(x.type), cast(Sequence[int], dims_of(gamma.type))
    if len(last) > 1:
        x = w.reshape(x, [*dims[: -len(last)], prod(last)])
        gamma, beta = (w.reshape(v, [prod(last)]) for v in (gamma, beta))
    if isinstance(op, LayerNormOp):
        y = layer_norm(w, x, gamma, beta, op.option("eps"))
    else:
        y = rms_norm(w, x, gamma, beta, op.option("eps"))
    return [w.reshape(y, dims) if len(last) > 1 else y]


def layer_norm(w: Writer, x: SSAValue, gamma: SSAValue, beta: SSAValue, eps: float) -> SSAValue:
    """Return the layer norm over the last axis."""
    return w.add(MirLayerNormOp(x, gamma, beta, eps))


def rms_norm(w: Writer, x: SSAValue, gamma: SSAValue, beta: SSAValue, eps: float) -> SSAValue:
    """Return the RMS norm over the last axis."""
    last = len(dims_of(x.type)) - 1
    return affine(w, normalised(w, x, [last], eps, centre=False), last, gamma, beta)


def _sample_over_last(op: type[_OverLast], draw: Draw) -> Case:
    shape = draw.shape(1, 2, 3, 4)
    last = shape[-draw.between(1, min(2, len(shape))) :]
    arrays = [draw.array(shape), draw.array(last), draw.array(last)]
    eps = _draw_eps(draw)
    return Case(arrays, lambda w, v: w.add_all(op(*v, eps=eps)))


# Over groups of channels


@irdl_op_definition
class GroupNormOp(NamedOp):
    """
    A norm of each group of channels: `[n, c, d...], [c], [c] -> [n, c, d...]`, floats.

    Mean and variance are over the c / groups channels of a group and all of d..., which are
    numbers; gamma and beta are of each channel (Wu and He, 2018).
    """

    name = "norm.group_norm"
    KIND: ClassVar = OpKind.GROUP_NORM
    OPTIONS: ClassVar = {"groups": 1, **EPS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        _check(cls, types, 3, rank=2)
        _, c, *sizes = dims_of(types[0])
        groups = o["groups"]
        numbers = [d for d in (c, *sizes) if isinstance(d, int)]
        if len(numbers) <= len(sizes) or groups < 1 or numbers[0] % groups:
            raise cls.refuse(
                f"[n, c, d...] of numbers, with c a multiple of {groups} groups", types
            )
        _check_vectors(cls, types, c)
        return types[:1]


def _group_norm(op: GroupNormOp, x: Array, gamma: Array, beta: Array) -> Array:
    groups = op.option("groups")
    apart = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    y = _normal(apart, tuple(range(2, apart.ndim)), op.option("eps")).reshape(x.shape)
    return y * _shaped(gamma, x.ndim) + _shaped(beta, x.ndim)


def _expand_group_norm(w: Writer, op: GroupNormOp) -> Sequence[SSAValue]:
    x, gamma, beta = op.args
    n, *sizes = dims_of(x.type)
    groups = op.option("groups")
    apart = w.reshape(x, [n, groups, prod(cast(Sequence[int], sizes)) // groups])
    y = w.reshape(normalised(w, apart, [2], op.option("eps")), [n, *sizes])
    return [affine(w, y, 1, gamma, beta)]


def _sample_group_norm(draw: Draw) -> Case:
    groups = draw.choice((1, 2, 3, 4, 8))
    c = groups * draw.between(1, 6)
    sizes = draw.shape(0, 1, 2) if draw.chance(0.8) else (7, 9, 3)
    x = draw.array((draw.between(1, 3), c, *sizes))
    eps = _draw_eps(draw)
    arrays = [x, draw.array((c,)), draw.array((c,))]
    return Case(arrays, lambda w, v: w.add_all(GroupNormOp(*v, groups=groups, eps=eps)))


@irdl_op_definition
class LayerNorm2dOp(NamedOp):
    """A norm over the channels of each place: `[n, c, d...], [c], [c] -> [n, c, d...]`, floats."""

    name = "norm.layer_norm_2d"
    KIND: ClassVar = OpKind.LAYER_NORM2D
    OPTIONS: ClassVar = EPS

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        _check(cls, types, 3, rank=2)
        _check_vectors(cls, types, dims_of(types[0])[1])
        return types[:1]


def _layer_norm_2d(op: LayerNorm2dOp, x: Array, gamma: Array, beta: Array) -> Array:
    y = _normal(x, (1,), op.option("eps"))
    return y * _shaped(gamma, x.ndim) + _shaped(beta, x.ndim)


def _expand_layer_norm_2d(w: Writer, op: LayerNorm2dOp) -> Sequence[SSAValue]:
    x, gamma, beta = op.args
    return [affine(w, normalised(w, x, [1], op.option("eps")), 1, gamma, beta)]


def _sample_layer_norm_2d(draw: Draw) -> Case:
    shape, eps = draw.shape(3, 4, 5), _draw_eps(draw)
    arrays = [draw.array(shape), draw.array(shape[1:2]), draw.array(shape[1:2])]
    return Case(arrays, lambda w, v: w.add_all(LayerNorm2dOp(*v, eps=eps)))


# With statistics that are known


@irdl_op_definition
class BatchNormInferenceOp(NamedOp):
    """
    (x - mean) / sqrt(variance + eps) gamma + beta of each channel, with given statistics.

    `[n, c, d...]`, then gamma, beta, mean and variance `[c]` (Ioffe and Szegedy, 2015); floats.
    """

    name = "norm.batch_norm_inference"
    KIND: ClassVar = OpKind.BATCH_NORM_INFERENCE
    OPTIONS: ClassVar = EPS

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        _check(cls, types, 5, rank=2)
        _check_vectors(cls, types, dims_of(types[0])[1])
        return types[:1]


def _batch_norm_inference(op: BatchNormInferenceOp, x: Array, *vectors: Array) -> Array:
    import numpy as np

    gamma, beta, mean, variance = (_shaped(v, x.ndim) for v in vectors)
    return (x - mean) / np.sqrt(variance + op.option("eps")) * gamma + beta


def _expand_batch_norm_inference(w: Writer, op: BatchNormInferenceOp) -> Sequence[SSAValue]:
    x, gamma, beta, mean, variance = op.args
    dims = dims_of(x.type)
    deviation = w.unary(UnaryKind.RSQRT, w.binary(BinaryKind.ADD, variance, op.option("eps")))
    scale = w.binary(BinaryKind.MUL, gamma, deviation)
    return [affine(w, w.binary(BinaryKind.SUB, x, w.along(mean, 1, dims)), 1, scale, beta)]


def _sample_batch_norm_inference(draw: Draw) -> Case:
    shape, eps = draw.shape(2, 3, 4), _draw_eps(draw)
    c = shape[1:2]
    arrays = [draw.array(s) for s in (shape, c, c, c)] + [draw.array(c, 0.1, 3.0)]
    return Case(arrays, lambda w, v: w.add_all(BatchNormInferenceOp(*v, eps=eps)))


# Modulated by another network


def _check_like(cls: type[NamedOp], types: Sequence[Attribute], *modulations: Attribute) -> None:
    """A modulation has the last dimension of the input, and the others of it, or 1 instead."""
    dims = dims_of(types[0])
    for type_ in modulations:
        given = dims_of(type_)
        fits = len(given) == len(dims) and given[-1] == dims[-1]
        if not fits or any(g not in (1, d) for g, d in zip(given, dims, strict=True)):
            raise cls.refuse(
                "[..., d] and modulations of its rank, [..., d], or 1 for a size", types
            )


@irdl_op_definition
class AdaLayerNormOp(NamedOp):
    """
    norm(x) (1 + scale) + shift: `[..., d], [..., d], [..., d]`, over d, floats.

    Sizes of scale and shift before d may be 1 (Peebles and Xie, 2022). `norm` is `layer`, or `rms`
    without a mean.
    """

    name = "norm.ada_layer_norm"
    KIND: ClassVar = OpKind.ADA_LAYER_NORM
    OPTIONS: ClassVar = {"norm": "layer", **EPS}
    CHOICES: ClassVar = {"norm": ("layer", "rms")}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        _check(cls, types, 3)
        _check_like(cls, types, *types[1:])
        return types[:1]


def _ada_layer_norm(op: AdaLayerNormOp, x: Array, scale: Array, shift: Array) -> Array:
    y = _normal(x, (x.ndim - 1,), op.option("eps"), op.option("norm") == "layer")
    return y * (1 + scale) + shift


def _expand_ada_layer_norm(w: Writer, op: AdaLayerNormOp) -> Sequence[SSAValue]:
    x, scale, shift = op.args
    dims = dims_of(x.type)
    y = normalised(w, x, [len(dims) - 1], op.option("eps"), op.option("norm") == "layer")
    y = w.binary(BinaryKind.MUL, y, w.spread(w.binary(BinaryKind.ADD, scale, 1), dims))
    return [w.binary(BinaryKind.ADD, y, w.spread(shift, dims))]


def _draw_modulation(draw: Draw, shape: Sequence[int]) -> Array:
    return draw.array([*(d if draw.chance(0.4) else 1 for d in shape[:-1]), shape[-1]])


def _sample_ada_layer_norm(draw: Draw) -> Case:
    shape, eps, norm = draw.shape(2, 3), _draw_eps(draw), draw.choice(("layer", "rms"))
    arrays = [draw.array(shape), *(_draw_modulation(draw, shape) for _ in range(2))]
    return Case(arrays, lambda w, v: w.add_all(AdaLayerNormOp(*v, norm=norm, eps=eps)))


@irdl_op_definition
class GatedResidualOp(NamedOp):
    """x + gate y: `[..., d], [..., d], [..., d]`, floats; sizes of the gate may be 1 before d."""

    name = "norm.gated_residual"
    KIND: ClassVar = OpKind.GATED_RESIDUAL

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        _check(cls, types, 3)
        if types[0] != types[1]:
            raise cls.refuse("two operands of one shape, and a gate", types)
        _check_like(cls, types, types[2])
        return types[:1]


def _gated_residual(op: GatedResidualOp, x: Array, y: Array, gate: Array) -> Array:
    return x + gate * y


def _expand_gated_residual(w: Writer, op: GatedResidualOp) -> Sequence[SSAValue]:
    x, y, gate = op.args
    gated = w.binary(BinaryKind.MUL, y, w.spread(gate, dims_of(x.type)))
    return [w.binary(BinaryKind.ADD, x, gated)]


def _sample_gated_residual(draw: Draw) -> Case:
    shape = draw.shape(1, 2, 3)
    arrays = [draw.array(shape), draw.array(shape), _draw_modulation(draw, shape)]
    return Case(arrays, lambda w, v: w.add_all(GatedResidualOp(*v)))


# After a residual


class _AfterResidual(NamedOp):
    """A norm over d of a sum: `x [..., d], residual [..., d], bias [d]?, gamma [d], beta [d]`."""

    OPTIONS: ClassVar = EPS

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        _check(cls, types, 4, 5)
        if types[0] != types[1]:
            raise cls.refuse("an input and a residual of one shape", types)
        _check_vectors(cls, types[1:], dims_of(types[0])[-1])
        return types[:1]


@irdl_op_definition
class FusedResidualLnOp(_AfterResidual):
    """The layer norm of x + residual + bias: `[..., d], [..., d], [d]?, [d], [d]`, over d."""

    name = "norm.fused_residual_ln"
    KIND: ClassVar = OpKind.FUSED_RESIDUAL_LN


@irdl_op_definition
class FusedResidualRmsNormOp(_AfterResidual):
    """The RMS norm of x + residual + bias: `[..., d], [..., d], [d]?, [d], [d]`, over d."""

    name = "norm.fused_residual_rms_norm"
    KIND: ClassVar = OpKind.FUSED_RESIDUAL_RMS_NORM


def _after_residual(op: _AfterResidual, x: Array, residual: Array, *vectors: Array) -> Array:
    *bias, gamma, beta = vectors
    total = sum([residual, *bias], x)
    centre = isinstance(op, FusedResidualLnOp)
    return _normal(total, (x.ndim - 1,), op.option("eps"), centre) * gamma + beta


def _expand_after_residual(w: Writer, op: _AfterResidual) -> Sequence[SSAValue]:
    x, residual, *bias, gamma, beta = op.args
    x = w.binary(BinaryKind.ADD, x, residual)
    for b in bias:
        x = w.binary(BinaryKind.ADD, x, w.spread(b, dims_of(x.type)))
    norm = layer_norm if isinstance(op, FusedResidualLnOp) else rms_norm
    return [norm(w, x, gamma, beta, op.option("eps"))]


def _sample_after_residual(op: type[_AfterResidual], draw: Draw) -> Case:
    shape, eps = draw.shape(1, 2, 3), _draw_eps(draw)
    vectors = [draw.array(shape[-1:]) for _ in range(draw.between(2, 3))]
    arrays = [draw.array(shape), draw.array(shape), *vectors]
    return Case(arrays, lambda w, v: w.add_all(op(*v, eps=eps)))


def _record(
    op: type[NamedOp],
    meaning: Callable[..., Array],
    sample: Callable[[Draw], Case],
    expand: Callable[[Writer, Any], Sequence[SSAValue]],
) -> Record:
    return Record(op, (op.KIND,), ROWS, FLOATS, meaning, sample, expand)


RECORDS = (
    *(
        _record(op, _over_last, partial(_sample_over_last, op), _expand_over_last)
        for op in (LayerNormOp, RmsNormOp)
    ),
    _record(GroupNormOp, _group_norm, _sample_group_norm, _expand_group_norm),
    _record(LayerNorm2dOp, _layer_norm_2d, _sample_layer_norm_2d, _expand_layer_norm_2d),
    _record(
        BatchNormInferenceOp,
        _batch_norm_inference,
        _sample_batch_norm_inference,
        _expand_batch_norm_inference,
    ),
    _record(AdaLayerNormOp, _ada_layer_norm, _sample_ada_layer_norm, _expand_ada_layer_norm),
    _record(GatedResidualOp, _gated_residual, _sample_gated_residual, _expand_gated_residual),
    *(
        _record(op, _after_residual, partial(_sample_after_residual, op), _expand_after_residual)
        for op in (FusedResidualLnOp, FusedResidualRmsNormOp)
    ),
)

Norm = Dialect("norm", [r.op for r in RECORDS], [])
