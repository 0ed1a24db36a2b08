"""Records of the tensor primitives that compute (`rlx.dialects.primitives`)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from xdsl.dialects.builtin import bf16, f32
from xdsl.ir import Attribute, SSAValue

from rlx.contract.opkind import OpKind
from rlx.dialects import infer, primitives, reductions
from rlx.dialects.common import element_of
from rlx.dialects.kinds import (
    BOOL_BINARY,
    FLOAT_BINARY,
    FLOAT_UNARY,
    INTEGER_BINARY,
    INTEGER_UNARY,
    BinaryKind,
    CompareKind,
    ReduceKind,
    UnaryKind,
)
from rlx.dialects.writer import Writer
from rlx.ops.record import (
    ATTENTION,
    CONTRACTION,
    FLOATS,
    INTEGERS,
    ROWS,
    Array,
    Case,
    Record,
)
from rlx.ops.samples import Draw

ARITHMETIC = (*FLOATS, *INTEGERS, "i1")
ALL = (*FLOATS, "f16", *INTEGERS, "i1")
KINDS_AT_ONCE = 6
"""How many members of a family a case has."""

# Leaves


def _sample_constant(draw: Draw) -> Case:
    """Some elements of a constant, since a result can't be one alone."""
    shape = draw.shape(0, 1, 2, low=0)
    if prod(shape) * 8 > primitives.MAX_CONSTANT_BYTES:
        shape = shape[-1:]
    values = draw.array(shape)
    arrays = [draw.array(shape), draw.array(shape, element="i1")]

    def build(w: Writer, v: Sequence[SSAValue]) -> Sequence[SSAValue]:
        made = w.constant(values.reshape(-1).tolist(), values.shape, element_of(v[0].type))
        return [w.select(v[1], made, v[0])]

    return Case(arrays, build)


def _sample_iota(draw: Draw) -> Case:
    x = draw.array(draw.shape(1, 2, 3), 0.0, 100.0)
    axis = draw.between(0, x.ndim - 1)

    def build(w: Writer, v: Sequence[SSAValue]) -> Sequence[SSAValue]:
        places = w.iota(axis, x.shape, element_of(v[0].type))
        return [w.binary(BinaryKind.ADD, v[0], places)]

    return Case([x], build)


# Maps


def _some(draw: Draw, kinds: tuple[Any, ...]) -> list[Any]:
    """Return some members of a family, in their order."""
    count = min(KINDS_AT_ONCE, len(kinds))
    return [kinds[i] for i in sorted(draw.rng.choice(len(kinds), count, replace=False))]


_POSITIVE = (UnaryKind.SQRT, UnaryKind.RSQRT, UnaryKind.LOG)


def _sample_unary(draw: Draw) -> Case:
    integers = (UnaryKind.NOT,) if draw.element == "i1" else INTEGER_UNARY
    kinds = _some(draw, FLOAT_UNARY if draw.is_float else integers)
    x = draw.array(draw.shape(0, 1, 2, 3, low=0), -6.0, 6.0)
    positive = draw.array(x.shape, 0.01, 9.0)
    return Case([x, positive], lambda w, v: [w.unary(kind, v[kind in _POSITIVE]) for kind in kinds])


def _sample_binary(draw: Draw) -> Case:
    integers = BOOL_BINARY if draw.element == "i1" else INTEGER_BINARY
    kinds = _some(draw, FLOAT_BINARY if draw.is_float else integers)
    x = draw.array(draw.shape(0, 1, 2, 3, low=0))
    y, positive = draw.array(x.shape), draw.array(x.shape, 0.1, 3.0)

    def build(w: Writer, v: Sequence[SSAValue]) -> Sequence[SSAValue]:
        return [w.binary(k, v[2] if k is BinaryKind.POW else v[0], v[1]) for k in kinds]

    return Case([x, y, positive], build)


def _alike(draw: Draw, x: Array) -> Array:
    """Return an array of the same shape, that has some elements in common."""
    import numpy as np

    return np.where(draw.rng.random(x.shape) < 0.3, x, draw.array(x.shape))


def _sample_compare(draw: Draw) -> Case:
    x = draw.array(draw.shape(0, 1, 2, 3, low=0))
    y = _alike(draw, x)
    return Case([x, y], lambda w, v: [w.compare(kind, *v) for kind in CompareKind])


def _sample_select(draw: Draw) -> Case:
    x = draw.array(draw.shape(0, 1, 2, 3, low=0))
    arrays = [draw.array(x.shape, element="i1"), x, draw.array(x.shape)]
    return Case(arrays, lambda w, v: [w.select(*v)])


def _sample_cast(draw: Draw) -> Case:
    targets = [e for e in infer.ELEMENTS if e != bf16]
    chosen: list[Attribute] = _some(draw, tuple(targets))
    x = draw.array(draw.shape(0, 1, 2, 3, low=0), -300.0, 300.0)

    def build(w: Writer, v: Sequence[SSAValue]) -> Sequence[SSAValue]:
        # The element itself would be the input as a result.
        results = [w.cast(v[0], e) for e in chosen if e != element_of(v[0].type)]
        # No caller has bf16, so it comes back as f32.
        return [*results, w.cast(w.cast(v[0], bf16), f32)]

    return Case([x], build)


# Reductions and norms


def _sample_reduce(draw: Draw) -> Case:
    x = draw.array(draw.shape(1, 2, 3, low=0), 0.5, 1.5)
    axes = [i for i in range(x.ndim) if draw.chance(0.6)] or [x.ndim - 1]
    kinds = {"i1": (ReduceKind.MAX, ReduceKind.MIN)}.get(draw.element, tuple(ReduceKind))
    kinds = [k for k in kinds if draw.is_float or k is not ReduceKind.MEAN]
    if prod(x.shape[i] for i in axes) > 200:
        kinds = [k for k in kinds if k is not ReduceKind.PROD]  # It would leave the range.
    return Case([x], lambda w, v: [w.reduce(kind, v[0], axes) for kind in kinds])


def _sample_softmax(draw: Draw) -> Case:
    x = draw.array(draw.shape(1, 2, 3, low=0), -9.0, 9.0)
    return Case([x], lambda w, v: [w.add(reductions.SoftmaxOp(v[0]))])


def _sample_layer_norm(draw: Draw) -> Case:
    x = draw.array(draw.shape(1, 2, 3))
    weight, bias = draw.array(x.shape[-1:]), draw.array(x.shape[-1:])
    return Case(
        [x, weight, bias], lambda w, v: [w.add(reductions.LayerNormOp(v[0], v[1], v[2], 1e-5))]
    )


# Products


def _sample_dot(draw: Draw) -> Case:
    batch = draw.choice([(), (), (2,), (3,), (2, 2)])
    m, k, n = (draw.size(0 if draw.chance(0.1) else 1, 64) for _ in range(3))
    lhs_t, rhs_t = draw.chance(), draw.chance()
    x = draw.array((*batch, *((k, m) if lhs_t else (m, k))))
    # Sums of bytes are of 32 bits.
    element = {"u8": "i8"}.get(draw.element, draw.element)
    y = draw.array((*batch, *((n, k) if rhs_t else (k, n))), element=element)
    return Case([x, y], lambda w, v: [w.dot(v[0], v[1], lhs_t, rhs_t)])


def _sample_sdpa(draw: Draw) -> Case:
    batch = draw.choice([(), (2,)])
    kv_heads, group = draw.between(1, 2), draw.between(1, 3)
    m, n, d, e = draw.size(1, 33), draw.size(1, 64), draw.size(1, 32), draw.size(1, 32)
    causal = draw.chance() and m <= n
    arrays = [
        draw.array((*batch, kv_heads * group, m, d)),
        draw.array((*batch, kv_heads, n, d)),
        draw.array((*batch, kv_heads, n, e)),
    ]
    if draw.chance():
        arrays.append(draw.array((*batch, m, n)))

    def build(w: Writer, v: Sequence[SSAValue]) -> Sequence[SSAValue]:
        mask = v[3] if len(v) > 3 else None
        return [w.add(reductions.SdpaOp(v[0], v[1], v[2], d**-0.5, mask, causal))]

    return Case(arrays, build)


def _record(op: Any, kind: OpKind, family: str, elements: tuple[str, ...], sample: Any) -> Record:
    return Record(op, (kind,), family, elements, None, sample)


RECORDS = (
    _record(primitives.ConstantOp, OpKind.CONSTANT, ROWS, ALL, _sample_constant),
    _record(primitives.IotaOp, OpKind.CONSTANT, ROWS, (*FLOATS, *INTEGERS), _sample_iota),
    _record(primitives.UnaryOp, OpKind.ACTIVATION, ROWS, ARITHMETIC, _sample_unary),
    _record(primitives.BinaryOp, OpKind.BINARY, ROWS, ARITHMETIC, _sample_binary),
    _record(primitives.CompareOp, OpKind.COMPARE, ROWS, ARITHMETIC, _sample_compare),
    _record(primitives.SelectOp, OpKind.WHERE, ROWS, ALL, _sample_select),
    _record(primitives.CastOp, OpKind.CAST, ROWS, ALL, _sample_cast),
    _record(reductions.ReduceOp, OpKind.REDUCE, ROWS, ARITHMETIC, _sample_reduce),
    _record(reductions.SoftmaxOp, OpKind.SOFTMAX, ROWS, FLOATS, _sample_softmax),
    _record(reductions.LayerNormOp, OpKind.LAYER_NORM, ROWS, FLOATS, _sample_layer_norm),
    Record(
        reductions.DotOp,
        (OpKind.MATMUL, OpKind.DOT_GENERAL),
        CONTRACTION,
        (*FLOATS, "i8", "u8", "i32", "i64"),
        None,
        _sample_dot,
    ),
    _record(reductions.SdpaOp, OpKind.ATTENTION, ATTENTION, FLOATS, _sample_sdpa),
)
