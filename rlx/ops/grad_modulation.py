"""Gradients of what a condition does in a diffusion transformer: modulated norms and gates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, ReduceKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.grad_norm import LayerNormBackwardOp, RmsNormBackwardOp
from rlx.ops.norm import AdaLayerNormOp, GatedResidualOp, normalised
from rlx.ops.record import FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw

B, R = BinaryKind, ReduceKind


def _summed(w: Writer, x: SSAValue, dims: Sequence[Dim]) -> SSAValue:
    """Return sums over the axes along which something of these dimensions was repeated."""
    axes = [i for i, (a, b) in enumerate(zip(dims_of(x.type), dims, strict=True)) if a != b]
    return w.reduce(R.SUM, x, axes, keep=True) if axes else x


def _by_modulation(function: Callable[[Array], Array], modulation: Array, upstream: Array) -> Array:
    from rlx.ops.derivative import pulled_back

    pairs = zip(modulation.shape[:-1], upstream.shape, strict=False)
    lead = next((i for i, (a, b) in enumerate(pairs) if a != b), modulation.ndim - 1)
    return pulled_back(function, modulation, upstream, modulation.ndim - lead)


def _draw_modulation(draw: Draw, shape: Sequence[int]) -> Array:
    return draw.array([*(d if draw.chance(0.4) else 1 for d in shape[:-1]), shape[-1]])


# Modulated norms


@irdl_op_definition
class AdaLayerNormBackwardOp(NamedOp):
    """
    Gradients of `norm.ada_layer_norm`, whose options it takes, by x, scale and shift.

    `(x [..., d], scale, shift, upstream [..., d]) -> x, scale, shift`.
    """

    name = "grad.ada_layer_norm"
    KIND: ClassVar = OpKind.ADA_LAYER_NORM_BACKWARD
    OPTIONS: ClassVar = AdaLayerNormOp.OPTIONS
    CHOICES: ClassVar = AdaLayerNormOp.CHOICES

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 4)
        AdaLayerNormOp.infer(types[:3], o)
        if types[3] != types[0]:
            raise cls.refuse("x, scale, shift and an upstream of the type of x", types)
        return types[:3]


def _ada_layer_norm(
    op: AdaLayerNormBackwardOp, x: Array, scale: Array, shift: Array, upstream: Array
) -> Sequence[Array]:
    import numpy as np

    from rlx.ops.derivative import pulled_back

    def modulated(x: Array, scale: Array, shift: Array) -> Array:
        if op.option("norm") == "layer":
            x = x - x.mean(axis=-1, keepdims=True)
        variance = (x * x).mean(axis=-1, keepdims=True)
        return x / np.sqrt(variance + op.option("eps")) * (1 + scale) + shift

    return (
        pulled_back(lambda v: modulated(v, scale, shift), x, upstream, 1),
        _by_modulation(lambda v: modulated(x, v, shift), scale, upstream),
        _by_modulation(lambda v: modulated(x, scale, v), shift, upstream),
    )


def _expand_ada_layer_norm(w: Writer, op: AdaLayerNormBackwardOp) -> Sequence[SSAValue]:
    x, scale, shift, upstream = op.args
    dims, eps, layer = dims_of(x.type), op.option("eps"), op.option("norm") == "layer"
    normal = normalised(w, x, [len(dims) - 1], eps, layer)
    factor = w.spread(w.binary(B.ADD, scale, 1.0), dims)
    ones = w.value(1.0, tensor(dims[-1:], element_of(x.type)))
    norm = LayerNormBackwardOp if layer else RmsNormBackwardOp
    by_x = w.add(norm(x, ones, w.binary(B.MUL, upstream, factor), eps=eps))
    by_scale = _summed(w, w.binary(B.MUL, upstream, normal), dims_of(scale.type))
    return [by_x, by_scale, _summed(w, upstream, dims_of(shift.type))]


def _sample_ada_layer_norm(draw: Draw) -> Case:
    *lead, d = draw.shape(2, 3)
    # Over few elements, with a small eps, little of a gradient may be left but rounding.
    options: dict[str, Any] = {
        "norm": draw.choice(("layer", "rms")),
        "eps": draw.choice((1e-5, 1e-3)) if d > 8 else 1.0,
    }
    shape = (*lead, d)
    modulations = [_draw_modulation(draw, shape) for _ in range(2)]
    arrays = [draw.array(shape), *modulations, draw.array(shape)]
    return Case(arrays, lambda w, v: w.add_all(AdaLayerNormBackwardOp(*v, **options)))


# Gates


@irdl_op_definition
class GatedResidualBackwardOp(NamedOp):
    """
    Gradients of `norm.gated_residual`, x + gate * y, by y and the gate; x gets the upstream.

    `(y [..., d], gate, upstream [..., d]) -> y, gate`.
    """

    name = "grad.gated_residual"
    KIND: ClassVar = OpKind.GATED_RESIDUAL_BACKWARD

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        y, gate, upstream = types
        GatedResidualOp.infer([upstream, y, gate], o)
        return [y, gate]


def _gated_residual(
    op: GatedResidualBackwardOp, y: Array, gate: Array, upstream: Array
) -> Sequence[Array]:
    from rlx.ops.derivative import pulled_back

    return (
        pulled_back(lambda v: gate * v, y, upstream, 1),
        _by_modulation(lambda v: v * y, gate, upstream),
    )


def _expand_gated_residual(w: Writer, op: GatedResidualBackwardOp) -> Sequence[SSAValue]:
    y, gate, upstream = op.args
    by_y = w.binary(B.MUL, upstream, w.spread(gate, dims_of(y.type)))
    return [by_y, _summed(w, w.binary(B.MUL, upstream, y), dims_of(gate.type))]


def _sample_gated_residual(draw: Draw) -> Case:
    shape = draw.shape(1, 2, 3)
    arrays = [draw.array(shape), _draw_modulation(draw, shape), draw.array(shape)]
    return Case(arrays, lambda w, v: w.add_all(GatedResidualBackwardOp(*v)))


RECORDS = (
    Record(
        AdaLayerNormBackwardOp,
        (OpKind.ADA_LAYER_NORM_BACKWARD,),
        ROWS,
        FLOATS,
        _ada_layer_norm,
        _sample_ada_layer_norm,
        _expand_ada_layer_norm,
        nmse=1e-11,
    ),
    Record(
        GatedResidualBackwardOp,
        (OpKind.GATED_RESIDUAL_BACKWARD,),
        ROWS,
        FLOATS,
        _gated_residual,
        _sample_gated_residual,
        _expand_gated_residual,
        nmse=1e-11,
    ),
)
