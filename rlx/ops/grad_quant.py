"""Gradients of fake quantisation, which take rounding for something that has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.quant import LARGEST, SMALLEST_SCALE, scale_dims, spread_scale
from rlx.ops.record import FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw

B, C, R, U = BinaryKind, CompareKind, ReduceKind, UnaryKind

ESTIMATORS = ("identity", "clipped_identity", "tanh", "hard_tanh")


def _check(
    cls: type[NamedOp], types: Sequence[Attribute], o: Mapping[str, Any]
) -> Sequence[Attribute]:
    """Return the types of x and of its scale, from operands that are x, a scale and an upstream."""
    infer.check_element(cls.name, types[0], infer.FLOATS)
    if o["bits"] not in LARGEST:
        raise cls.refuse(f"{', '.join(map(str, LARGEST))} bits, got {o['bits']}", types)
    scale = tensor(scale_dims(cls, types, o["axis"]), element_of(types[0]))
    if types[-1] != types[0] or any(t != scale for t in types[1:-1]):
        raise cls.refuse(f"x, a scale {scale} and an upstream of the type of x", types)
    return [types[0], scale]


def _all_but(rank: int, axis: int) -> tuple[int, ...]:
    return tuple(i for i in range(rank) if i != axis)


def _draw(draw: Draw) -> tuple[list[Array], dict[str, Any]]:
    """Return x, a scale and an upstream, and the options that fake quantisations share."""
    shape = draw.shape(1, 2, 3, 4)
    axis = draw.between(-1, len(shape) - 1)
    bits = draw.choice(tuple(LARGEST))
    size = () if axis < 0 else (shape[axis],)
    scale = draw.rng.uniform(0.1, 2.0, size).astype(draw.dtype)
    # Neither near a code nor half way between two, so that there is a rounding error, and one.
    most = LARGEST[bits] * 3 // 2
    error = draw.rng.uniform(0.1, 0.4, shape) * draw.rng.choice([-1, 1], shape)
    codes = draw.rng.integers(-most, most, shape, endpoint=True) + error
    x = codes * scale.reshape([-1 if i == axis else 1 for i in range(len(shape))] if size else ())
    return [x.astype(draw.dtype), scale, draw.array(shape)], {"axis": axis, "bits": bits}


# Straight-through estimators


@irdl_op_definition
class FakeQuantizeBackwardOp(NamedOp):
    """
    The gradient of `quant.fake_quantize` by x, by an estimator (Bengio et al., 2013).

    `(x, scale?, upstream) -> x`; without a scale it is that of `per_batch`. With z = x / scale the
    upstream is multiplied by, according to `ste`:

    - `identity`: 1;
    - `clipped_identity`: 1 where |z| is at most the largest code q, and 0 elsewhere;
    - `tanh`: 1 - tanh(z)^2;
    - `hard_tanh`: max(1 - |z| / q, 0).
    """

    name = "grad.fake_quantize"
    KIND: ClassVar = OpKind.FAKE_QUANTIZE_BACKWARD
    OPTIONS: ClassVar = {"bits": 8, "axis": -1, "ste": "identity"}
    CHOICES: ClassVar = {"ste": ESTIMATORS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 2, 3)
        return _check(cls, types, o)[:1]


def _fake_quantize(op: FakeQuantizeBackwardOp, x: Array, *rest: Array) -> Array:
    import numpy as np

    *given, upstream = rest
    axis, q = op.option("axis"), LARGEST[op.option("bits")]
    result = np.zeros_like(x)
    for i in range(1 if axis < 0 else x.shape[axis]):
        part = (slice(None),) * axis + (i,) if axis >= 0 else ()
        here = x[part]
        scale = given[0] if axis < 0 and given else given[0][i] if given else abs(here).max() / q
        z = here / max(scale, SMALLEST_SCALE)
        factor = {
            "identity": np.ones_like(z),
            # The largest of a batch is the largest code, whatever rounding makes of it.
            "clipped_identity": abs(z) <= q * (1 + 1e-14),
            "tanh": 1 / np.cosh(z) ** 2,
            "hard_tanh": np.maximum(1 - abs(z) / q, 0),
        }[op.option("ste")]
        result[part] = upstream[part] * factor
    return result


def _expand_fake_quantize(w: Writer, op: FakeQuantizeBackwardOp) -> Sequence[SSAValue]:
    x, *given, upstream = op.args
    bits, axis, ste = op.chosen.values()
    if ste == "identity":
        return [upstream]
    dims, q = dims_of(x.type), LARGEST[bits]
    size = w.unary(U.ABS, x)
    if given:
        reach = w.binary(B.MUL, w.binary(B.MAX, given[0], SMALLEST_SCALE), q)
    else:
        # The largest |x| itself, so that it is not found beyond its own scale.
        others = _all_but(len(dims), axis)
        largest = w.reduce(R.MAX, size, others) if others else size
        reach = w.binary(B.MAX, largest, SMALLEST_SCALE * q)
    reach = spread_scale(w, reach, axis, dims)
    if ste == "clipped_identity":
        return [w.select(w.compare(C.LE, size, reach), upstream, 0.0)]
    if ste == "tanh":
        # 1 / cosh(z)^2: 1 - tanh(z)^2 has no digits left where codes are large.
        e = w.unary(U.EXP, w.binary(B.DIV, w.binary(B.MUL, size, -2 * q), reach))
        root = w.binary(B.ADD, e, 1.0)
        factor = w.binary(B.DIV, w.binary(B.MUL, e, 4.0), w.binary(B.MUL, root, root))
    else:
        factor = w.binary(B.MAX, w.binary(B.SUB, 1.0, w.binary(B.DIV, size, reach)), 0.0)
    return [w.binary(B.MUL, upstream, factor)]


def _sample_fake_quantize(draw: Draw) -> Case:
    (x, scale, upstream), options = _draw(draw)
    ste = draw.choice(ESTIMATORS)
    # An element that is the largest of a batch of its own would get nothing but rounding.
    alone = x.ndim == 1 and options["axis"] == 0
    arrays = [x, scale, upstream] if alone or draw.chance() else [x, upstream]
    return Case(arrays, lambda w, v: w.add_all(FakeQuantizeBackwardOp(*v, ste=ste, **options)))


# Learned step size


@irdl_op_definition
class FakeQuantizeLsqBackwardOp(NamedOp):
    """
    Gradients of `quant.fake_quantize_lsq`, by x, by its scale or both (Esser et al., 2020).

    `(x, scale, upstream) -> x | scale | both`. With z = x / scale and the largest code q, x gets
    the upstream where |z| <= q, and a scale the sum of it times round(z) - z where |z| <= q, and
    times q with the sign of z elsewhere. It is not made smaller for long sums: scale it outside.
    """

    name = "grad.fake_quantize_lsq"
    KIND: ClassVar = OpKind.FAKE_QUANTIZE_LSQ_BACKWARD_X
    OPTIONS: ClassVar = {"bits": 8, "axis": -1, "wrt": "all"}
    CHOICES: ClassVar = {"wrt": ("input", "scale", "all")}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        both = _check(cls, types, o)
        return {"input": both[:1], "scale": both[1:]}.get(o["wrt"], both)


def _fake_quantize_lsq(op: FakeQuantizeLsqBackwardOp, x: Array, scale: Array, up: Array) -> Any:
    """Return the derivatives of the function in which the rounding error is a constant."""
    import numpy as np

    from rlx.ops.derivative import pulled_back

    axis, q = op.option("axis"), LARGEST[op.option("bits")]
    shape = [-1 if i == axis else 1 for i in range(x.ndim)] if axis >= 0 else []
    z = x / scale.reshape(shape)
    error, beyond = np.rint(z) - z, abs(z) > q

    def quantized(x: Array, scale: Array) -> Array:
        s = scale.reshape(shape)
        return np.where(beyond, np.sign(z) * q, x / s + error) * s

    by_input = pulled_back(lambda x: quantized(x, scale), x, up, 0)
    by_scale = pulled_back(lambda s: quantized(x, s), scale, up, scale.ndim)
    return {"input": by_input, "scale": by_scale}.get(op.option("wrt"), (by_input, by_scale))


def _expand_fake_quantize_lsq(w: Writer, op: FakeQuantizeLsqBackwardOp) -> Sequence[SSAValue]:
    x, scale, upstream = op.args
    bits, axis, wrt = op.chosen.values()
    dims, q = dims_of(x.type), LARGEST[bits]
    z = w.binary(B.DIV, x, spread_scale(w, scale, axis, dims))
    inside = w.compare(C.LE, w.unary(U.ABS, z), q)
    results: list[SSAValue] = []
    if wrt in ("input", "all"):
        results.append(w.select(inside, upstream, 0.0))
    if wrt in ("scale", "all"):
        error = w.binary(B.SUB, w.unary(U.ROUND, z), z)
        slope = w.select(inside, error, w.binary(B.MUL, w.unary(U.SIGN, z), q))
        by_scale = w.binary(B.MUL, upstream, slope)
        others = _all_but(len(dims), axis)
        results.append(w.reduce(R.SUM, by_scale, others) if others else by_scale)
    return results


def _sample_fake_quantize_lsq(draw: Draw) -> Case:
    arrays, options = _draw(draw)
    options["wrt"] = draw.choice(FakeQuantizeLsqBackwardOp.CHOICES["wrt"])
    return Case(arrays, lambda w, v: w.add_all(FakeQuantizeLsqBackwardOp(*v, **options)))


NMSE = 1e-9
"""What rounding takes from a code of up to 254 is at most a half, and is what a scale gets."""

RECORDS = (
    Record(
        FakeQuantizeBackwardOp,
        (OpKind.FAKE_QUANTIZE_BACKWARD,),
        ROWS,
        FLOATS,
        _fake_quantize,
        _sample_fake_quantize,
        _expand_fake_quantize,
    ),
    Record(
        FakeQuantizeLsqBackwardOp,
        (OpKind.FAKE_QUANTIZE_LSQ_BACKWARD_X, OpKind.FAKE_QUANTIZE_LSQ_BACKWARD_SCALE),
        ROWS,
        FLOATS,
        _fake_quantize_lsq,
        _sample_fake_quantize_lsq,
        _expand_fake_quantize_lsq,
        nmse=NMSE,
    ),
)
