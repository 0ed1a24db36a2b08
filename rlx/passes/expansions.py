"""
Composite operations written out in basic ones, by the formulas of their docstrings.

The sums are those of the formulas, so a result may differ from that of the composite operation in
its last digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi, sqrt
from typing import Any, cast

from xdsl.dialects.builtin import f32, i64
from xdsl.ir import Operation, SSAValue

from rlx.dialects import infer, mir, ops
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind, UnaryKind
from rlx.dialects.writer import Writer

B, C, R, U = BinaryKind, CompareKind, ReduceKind, UnaryKind

_LOWEST = {f32: -3.4028234663852886e38}
"""The least finite number of f32; that of f64 is the default below."""


Expansion = Callable[[Writer, SSAValue], SSAValue]


def _silu(w: Writer, x: SSAValue) -> SSAValue:
    return w.binary(B.MUL, x, w.unary(U.SIGMOID, x))


def _gelu(w: Writer, x: SSAValue) -> SSAValue:
    erf = w.unary(U.ERF, w.binary(B.MUL, x, sqrt(0.5)))
    return w.binary(B.MUL, w.binary(B.MUL, x, 0.5), w.binary(B.ADD, erf, 1.0))


def _gelu_tanh(w: Writer, x: SSAValue) -> SSAValue:
    cube = w.binary(B.MUL, w.binary(B.MUL, x, x), x)
    inner = w.binary(B.ADD, x, w.binary(B.MUL, cube, 0.044715))
    tanh = w.unary(U.TANH, w.binary(B.MUL, inner, sqrt(2 / pi)))
    return w.binary(B.MUL, w.binary(B.MUL, x, 0.5), w.binary(B.ADD, tanh, 1.0))


def _relu(w: Writer, x: SSAValue) -> SSAValue:
    return w.binary(B.MAX, x, 0.0)


def _elu(w: Writer, x: SSAValue) -> SSAValue:
    zero = w.value(0.0, x.type)
    below = w.binary(B.SUB, w.unary(U.EXP, w.binary(B.MIN, x, zero)), 1.0)
    return w.add(mir.SelectOp(w.add(mir.CompareOp(C.GT, x, zero)), x, below))


def _softplus(w: Writer, x: SSAValue) -> SSAValue:
    # By way of exp(-|x|), which can't overflow.
    small = w.unary(U.EXP, w.unary(U.NEG, w.unary(U.ABS, x)))
    return w.binary(B.ADD, _relu(w, x), w.unary(U.LOG, w.binary(B.ADD, small, 1.0)))


def _log_sigmoid(w: Writer, x: SSAValue) -> SSAValue:
    return w.unary(U.NEG, _softplus(w, w.unary(U.NEG, x)))


def _softsign(w: Writer, x: SSAValue) -> SSAValue:
    return w.binary(B.DIV, x, w.binary(B.ADD, w.unary(U.ABS, x), 1.0))


def _hard_sigmoid(w: Writer, x: SSAValue) -> SSAValue:
    clipped = w.binary(B.MIN, _relu(w, w.binary(B.ADD, x, 3.0)), 6.0)
    return w.binary(B.DIV, clipped, 6.0)


def _hard_swish(w: Writer, x: SSAValue) -> SSAValue:
    return w.binary(B.MUL, x, _hard_sigmoid(w, x))


def _mish(w: Writer, x: SSAValue) -> SSAValue:
    return w.binary(B.MUL, x, w.unary(U.TANH, _softplus(w, x)))


_UNARY: dict[UnaryKind, Expansion] = {
    U.SILU: _silu,
    U.GELU: _gelu,
    U.GELU_TANH: _gelu_tanh,
    U.RELU: _relu,
    U.ELU: _elu,
    U.SOFTPLUS: _softplus,
    U.LOG_SIGMOID: _log_sigmoid,
    U.SOFTSIGN: _softsign,
    U.HARD_SIGMOID: _hard_sigmoid,
    U.HARD_SWISH: _hard_swish,
    U.MISH: _mish,
}


def _softmax(w: Writer, x: SSAValue) -> SSAValue:
    e = w.unary(U.EXP, w.binary(B.SUB, x, w.last(R.MAX, x)))
    return w.binary(B.DIV, e, w.last(R.SUM, e))


def _rms_norm(w: Writer, x: SSAValue, weight: SSAValue, eps: float) -> SSAValue:
    mean = w.last(R.MEAN, w.binary(B.MUL, x, x))
    normal = w.binary(B.DIV, x, w.unary(U.SQRT, w.binary(B.ADD, mean, eps)))
    return w.binary(B.MUL, normal, w.spread(weight, dims_of(x.type)))


def _layer_norm(w: Writer, op: mir.LayerNormOp) -> SSAValue:
    x = op.input
    centred = w.binary(B.SUB, x, w.last(R.MEAN, x))
    scaled = _rms_norm(w, centred, op.weight, op.eps.value.data)
    return w.binary(B.ADD, scaled, w.spread(op.bias, dims_of(x.type)))


def _all_heads(w: Writer, x: SSAValue, heads: int) -> SSAValue:
    """`[batch..., kv_heads, n, d]` -> `[batch..., heads, n, d]`, each head once for its group."""
    *batch, kv_heads, n, d = dims_of(x.type)
    assert isinstance(kv_heads, int)
    if kv_heads == heads:
        return x
    apart = w.reshape(x, [*batch, kv_heads, 1, n, d])
    groups = w.spread(apart, [*batch, kv_heads, heads // kv_heads, n, d])
    return w.reshape(groups, [*batch, heads, n, d])


def _from_the_end(w: Writer, dims: Sequence[Dim], axis: int) -> SSAValue:
    """Return each element's index along an axis less that of the last one."""
    places = w.add(mir.IotaOp(axis, tensor(dims, i64)))
    last = w.add(mir.ReduceOp(R.MAX, places, list(range(len(dims)))))
    return w.binary(B.SUB, places, w.spread(last, dims))


def _sdpa(w: Writer, op: mir.SdpaOp) -> SSAValue:
    *batch, heads, m, _ = dims_of(op.query.type)
    assert isinstance(heads, int)
    keys, values = (_all_heads(w, x, heads) for x in (op.keys, op.values))
    scores = w.add(mir.DotOp(op.query, keys, rhs_t=True))
    scores = w.binary(B.MUL, scores, op.scale.value.data)
    dims = dims_of(scores.type)
    n = dims[-1]
    lowest = _LOWEST.get(cast(Any, element_of(scores.type)), -1.7976931348623157e308)
    if op.mask is not None:
        mask = w.reshape(op.mask, [*batch, 1, m, n])
        scores = w.binary(B.ADD, scores, w.spread(mask, dims))
    visible = None
    if op.causal is not None:
        places = (_from_the_end(w, [m, n], axis) for axis in (1, 0))
        visible = w.spread(w.add(mir.CompareOp(C.LE, *places)), dims)
        scores = w.add(mir.SelectOp(visible, scores, w.value(lowest, scores.type)))
    # Where a query sees no key, all is 0: a finite maximum keeps exp(-inf - max) from being NaN.
    top = w.binary(B.MAX, w.last(R.MAX, scores), lowest)
    e = w.unary(U.EXP, w.binary(B.SUB, scores, top))
    if visible is not None:
        e = w.add(mir.SelectOp(visible, e, w.value(0.0, e.type)))
    total = w.last(R.SUM, e)
    none = w.add(mir.CompareOp(C.EQ, total, w.value(0.0, total.type)))
    total = w.add(mir.SelectOp(none, w.value(1.0, total.type), total))
    return w.add(mir.DotOp(w.binary(B.DIV, e, total), values))


EXPANDED = (mir.UnaryOp, mir.SoftmaxOp, mir.LayerNormOp, ops.RmsNorm, mir.SdpaOp)
"""Operations some or all of which are written out."""


def expansion(op: Operation) -> list[Operation] | None:
    """Return basic operations of which the last gives a composite one's result, None for others."""
    w = Writer()
    match op:
        case mir.UnaryOp() if (function := _UNARY.get(op.kind.data)) is not None:
            function(w, op.input)
        case mir.SoftmaxOp():
            _softmax(w, op.input)
        case mir.LayerNormOp():
            _layer_norm(w, op)
        # A weight that is packed, or stored in another type, has no arithmetic.
        case ops.RmsNorm() if element_of(op.weight.type) in infer.FLOATS:
            _rms_norm(w, op.input, op.weight, op.eps.value.data)
        case mir.SdpaOp():
            _sdpa(w, op)
        case _:
            return None
    return w.made
