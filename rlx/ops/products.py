"""Products of rows with matrices: of low rank, of one input, and with what follows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import bf16, f16
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, tensor
from rlx.dialects.kinds import FLOAT_UNARY, BinaryKind, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.linear import flat, linear
from rlx.ops.record import CONTRACTION, FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw

B, U = BinaryKind, UnaryKind

ACTS = ("none", *FLOAT_UNARY)


def activated(act: str, x: Array) -> Array:
    """Return an element-wise function of an array, or itself for `none`."""
    from rlx.reference.elements import UNARY

    return x if act == "none" else UNARY[UnaryKind(act)](x)


def activate(w: Writer, act: str, x: SSAValue) -> SSAValue:
    return x if act == "none" else w.unary(UnaryKind(act), x)


def add_bias(w: Writer, x: SSAValue, bias: SSAValue) -> SSAValue:
    """Add a vector along the last axis."""
    return w.binary(B.ADD, x, w.spread(bias, dims_of(x.type)))


def times(cls: type[NamedOp], types: Sequence[Attribute], x: Attribute, weight: Attribute) -> Any:
    """Return the type of `[..., k] x [k, n] -> [..., n]`. Raises VerifyException for others."""
    infer.check_softmax(cls.name, x)
    matrix = dims_of(weight)
    if len(matrix) != 2 or matrix[0] != dims_of(x)[-1] or element_of(x) != element_of(weight):
        raise cls.refuse("[..., k] and a weight [k, n] of one element type", types)
    return tensor([*dims_of(x)[:-1], matrix[1]], element_of(x))


def vector_of(type_: Attribute) -> Attribute:
    """Return the type of a vector along the last axis."""
    return tensor(dims_of(type_)[-1:], element_of(type_))


def draw_rows(draw: Draw) -> tuple[int, ...]:
    """Return dimensions for rows of products."""
    return tuple(draw.size(1, 33) for _ in range(draw.between(0, 2)))


# Of low rank


@irdl_op_definition
class LoraMatmulOp(NamedOp):
    """
    x W + scale * x A B, with a correction of low rank (Hu et al., 2021).

    `(x [..., k], w [k, n], a [k, r], b [r, n]) -> [..., n]`.
    """

    name = "fused.lora_matmul"
    KIND: ClassVar = OpKind.LORA_MATMUL
    OPTIONS: ClassVar = {"scale": 1.0}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 4)
        x, weight, a, b = types
        result = times(cls, types, x, weight)
        if times(cls, types, times(cls, types, x, a), b) != result:
            raise cls.refuse("x [..., k], w [k, n], a [k, r] and b [r, n]", types)
        return [result]


def _lora_matmul(op: LoraMatmulOp, x: Array, weight: Array, a: Array, b: Array) -> Array:
    return x @ (weight + op.option("scale") * (a @ b))


def _expand_lora_matmul(w: Writer, op: LoraMatmulOp) -> Sequence[SSAValue]:
    x, weight, a, b = op.args
    x = flat(w, x)
    # The factor goes to what is small: the rank.
    low = w.binary(B.MUL, linear(w, x, a), op.option("scale"))
    y = w.binary(B.ADD, linear(w, x, weight), linear(w, low, b))
    return [w.reshape(y, dims_of(op.res[0].type))]


def _sample_lora_matmul(draw: Draw) -> Case:
    rows, k, n, r = draw_rows(draw), draw.size(1, 64), draw.size(1, 64), draw.size(1, 8)
    shapes = ((*rows, k), (k, n), (k, r), (r, n))
    return Case(
        [draw.array(s) for s in shapes], lambda w, v: w.add_all(LoraMatmulOp(*v, scale=0.5))
    )


# Two of one input


@irdl_op_definition
class SharedLinearPairOp(NamedOp):
    """Two products of one input: `(x [..., k], v [k, n], w [k, m]) -> [..., n], [..., m]`."""

    name = "fused.shared_linear_pair"
    KIND: ClassVar = OpKind.SHARED_LINEAR_PAIR

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        return [times(cls, types, types[0], weight) for weight in types[1:]]


def _shared_linear_pair(op: SharedLinearPairOp, x: Array, *weights: Array) -> Sequence[Array]:
    return [x @ weight for weight in weights]


def _expand_shared_linear_pair(w: Writer, op: SharedLinearPairOp) -> Sequence[SSAValue]:
    x, *weights = op.args
    return [linear(w, x, weight) for weight in weights]


def _sample_shared_linear_pair(draw: Draw) -> Case:
    k = draw.size(1, 64)
    arrays = [draw.array((*draw_rows(draw), k))]
    arrays += [draw.array((k, draw.size(1, 64))) for _ in range(2)]
    return Case(arrays, lambda w, v: w.add_all(SharedLinearPairOp(*v)))


# With what follows


@irdl_op_definition
class FusedMatmulBiasActOp(NamedOp):
    """act(x w + bias): `(x [..., k], w [k, n], bias [n]) -> [..., n]`, `act` of `mir.unary`."""

    name = "fused.matmul_bias_act"
    KIND: ClassVar = OpKind.FUSED_MATMUL_BIAS_ACT
    OPTIONS: ClassVar = {"act": "none"}
    CHOICES: ClassVar = {"act": ACTS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        result = times(cls, types, *types[:2])
        if types[2] != vector_of(result):
            raise cls.refuse("x [..., k], a weight [k, n] and a bias [n]", types)
        return [result]


def _fused_matmul_bias_act(op: FusedMatmulBiasActOp, x: Array, weight: Array, b: Array) -> Array:
    return activated(op.option("act"), x @ weight + b)


def _expand_fused_matmul_bias_act(w: Writer, op: FusedMatmulBiasActOp) -> Sequence[SSAValue]:
    x, weight, bias = op.args
    y = activate(w, op.option("act"), add_bias(w, linear(w, flat(w, x), weight), bias))
    return [w.reshape(y, dims_of(op.res[0].type))]


def _sample_fused_matmul_bias_act(draw: Draw) -> Case:
    k, n = draw.size(1, 64), draw.size(1, 64)
    act = draw.choice(("none", "relu", "gelu", "silu", "tanh", "sigmoid"))
    arrays = [draw.array((*draw_rows(draw), k)), draw.array((k, n)), draw.array((n,))]
    return Case(arrays, lambda w, v: w.add_all(FusedMatmulBiasActOp(*v, act=act)))


@irdl_op_definition
class FusedMatmulResidualOp(NamedOp):
    """x w + bias + residual: `(x [..., k], w [k, n], residual [..., n], bias [n]?) -> [..., n]`."""

    name = "fused.matmul_residual"
    KIND: ClassVar = OpKind.FUSED_MATMUL_RESIDUAL

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3, 4)
        result = times(cls, types, *types[:2])
        if types[2] != result or any(t != vector_of(result) for t in types[3:]):
            raise cls.refuse("x [..., k], a weight [k, n], a residual [..., n], a bias [n]", types)
        return [result]


def _fused_matmul_residual(op: NamedOp, x: Array, w: Array, residual: Array, *b: Array) -> Array:
    return x @ w + residual + (b[0] if b else 0)


def _expand_fused_matmul_residual(w: Writer, op: FusedMatmulResidualOp) -> Sequence[SSAValue]:
    x, weight, residual, *bias = op.args
    y = linear(w, flat(w, x), weight)
    for b in bias:
        y = add_bias(w, y, b)
    return [w.reshape(w.binary(B.ADD, y, flat(w, residual)), dims_of(residual.type))]


def _sample_fused_matmul_residual(draw: Draw) -> Case:
    rows, k, n = draw_rows(draw), draw.size(1, 64), draw.size(1, 64)
    arrays = [draw.array((*rows, k)), draw.array((k, n)), draw.array((*rows, n))]
    arrays += [draw.array((n,))] if draw.chance() else []
    return Case(arrays, lambda w, v: w.add_all(FusedMatmulResidualOp(*v)))


# Gates


@irdl_op_definition
class FusedSwigluOp(NamedOp):
    """
    silu(gate) * up of the two halves of the last axis (Shazeer, 2020): `[..., 2n] -> [..., n]`.

    Up comes first, without `gate_first`. `cast_to` f16 or bf16 stores the result as that.
    """

    name = "fused.swiglu"
    KIND: ClassVar = OpKind.FUSED_SWIGLU
    OPTIONS: ClassVar = {"gate_first": False, "cast_to": "none"}
    CHOICES: ClassVar = {"cast_to": ("none", "f16", "bf16")}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        infer.check_softmax(cls.name, types[0])
        *lead, last = dims_of(types[0])
        if not isinstance(last, int) or last % 2:
            raise cls.refuse("[..., 2n] with a number for n", types)
        element = {"f16": f16, "bf16": bf16}.get(o["cast_to"], element_of(types[0]))
        return [tensor([*lead, last // 2], element)]


def _fused_swiglu(op: FusedSwigluOp, x: Array) -> Array:
    n = x.shape[-1] // 2
    up, gate = x[..., :n], x[..., n:]
    if op.option("gate_first"):
        up, gate = gate, up
    y = activated("silu", gate) * up
    if op.option("cast_to") == "none":
        return y
    from rlx.reference.elements import rounded

    return rounded(y, element_of(op.res[0].type))


def _expand_fused_swiglu(w: Writer, op: FusedSwigluOp) -> Sequence[SSAValue]:
    (x,) = op.args
    *lead, n = dims_of(op.res[0].type)
    assert isinstance(n, int)
    up, gate = (w.slice(x, len(lead), start, n) for start in (0, n))
    if op.option("gate_first"):
        up, gate = gate, up
    y = w.binary(B.MUL, w.unary(U.SILU, gate), up)
    return [w.cast(y, element_of(op.res[0].type))]


def _sample_fused_swiglu(draw: Draw) -> Case:
    *lead, n = draw.shape(1, 2, 3)
    options: dict[str, Any] = {"gate_first": draw.chance()}
    options["cast_to"] = draw.choice(("none", "none", "f16"))
    x = draw.array((*lead, 2 * n))
    return Case([x], lambda w, v: w.add_all(FusedSwigluOp(*v, **options)))


def _record(op: type[NamedOp], family: str, meaning: Any, sample: Any, expand: Any) -> Record:
    return Record(op, (op.KIND,), family, FLOATS, meaning, sample, expand)


RECORDS = (
    _record(LoraMatmulOp, CONTRACTION, _lora_matmul, _sample_lora_matmul, _expand_lora_matmul),
    _record(
        SharedLinearPairOp,
        CONTRACTION,
        _shared_linear_pair,
        _sample_shared_linear_pair,
        _expand_shared_linear_pair,
    ),
    _record(
        FusedMatmulBiasActOp,
        CONTRACTION,
        _fused_matmul_bias_act,
        _sample_fused_matmul_bias_act,
        _expand_fused_matmul_bias_act,
    ),
    _record(
        FusedMatmulResidualOp,
        CONTRACTION,
        _fused_matmul_residual,
        _sample_fused_matmul_residual,
        _expand_fused_matmul_residual,
    ),
    _record(FusedSwigluOp, ROWS, _fused_swiglu, _sample_fused_swiglu, _expand_fused_swiglu),
)
