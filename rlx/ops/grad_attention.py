"""Gradients of attention and of rotary positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects.common import dims_of
from rlx.dialects.kinds import BinaryKind, ReduceKind, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.record import CONTRACTION, FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw
from rlx.ops.transformer import (
    ATTENTION_OPTIONS,
    MASKS,
    RopeOp,
    Shares,
    attend,
    check_attention,
    check_rope,
    draw_attention,
    draw_rope,
    rotate,
)

B, R, U = BinaryKind, ReduceKind, UnaryKind


# Attention


@irdl_op_definition
class AttentionBackwardOp(NamedOp):
    """
    Gradients of `transformer.attention`, whose options it takes, by q, k, v or all three.

    `(q, k, v, mask?, upstream [batch..., heads, m, e]) -> q | k | v | all`; the shares of the keys
    are computed anew. Where heads share keys m is a number.
    """

    name = "grad.attention"
    KIND: ClassVar = OpKind.ATTENTION_BACKWARD
    OPTIONS: ClassVar = {"wrt": "all", **ATTENTION_OPTIONS}
    CHOICES: ClassVar = {"wrt": ("query", "keys", "values", "all"), "mask": MASKS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        if len(types) < 4:
            raise cls.refuse("q, k, v, a mask of some kinds and an upstream", types)
        wanted = check_attention(cls, types[:-1], o)
        (heads, m), kv = dims_of(types[0])[-3:-1], dims_of(types[1])[-3]
        if types[-1] != wanted or (heads != kv and not isinstance(m, int)):
            raise cls.refuse(
                f"an upstream of the type of attention, {wanted}, and a number of queries where "
                "heads share keys",
                types,
            )
        names = ("query", "keys", "values")
        return [t for name, t in zip(names, types, strict=False) if o["wrt"] in (name, "all")]


def _attention(op: AttentionBackwardOp, *arrays: Array) -> Any:
    from rlx.ops.derivative import pulled_back

    q, k, v, *mask, upstream = arrays
    o, kv, heads = op.chosen, k.shape[-3], q.shape[-3]
    by_key_head = (*q.shape[:-3], kv, heads // kv)

    def of_keys(keys: Array, values: Array) -> Array:
        """Attention with the heads of a group after the key's head that they share."""
        y = attend(o, q, keys, values, *mask)
        return y.reshape(*by_key_head, *y.shape[-2:])

    grouped = upstream.reshape(*by_key_head, *upstream.shape[-2:])
    functions = {
        "query": lambda: pulled_back(lambda x: attend(o, x, k, v, *mask), q, upstream, 1),
        "keys": lambda: pulled_back(lambda x: of_keys(x, v), k, grouped, 2),
        "values": lambda: pulled_back(lambda x: of_keys(k, x), v, grouped, 2),
    }
    wrt = op.option("wrt")
    return [f() for f in functions.values()] if wrt == "all" else functions[wrt]()


def _expand_attention(w: Writer, op: AttentionBackwardOp) -> Sequence[SSAValue]:
    """
    With p the shares and u the upstream: v gets p^T u, and a score p (u v^T - its mean by p).

    The scores pass it on to q and k by way of the softcap, whose derivative is 1 - tanh^2.
    """
    *args, upstream = op.args
    o, wrt = op.chosen, op.option("wrt")
    kept = Shares.write(w, o, args)
    u = Shares.rows(w, upstream, dims_of(kept.k.type)[-3])
    results: list[SSAValue] = []
    if wrt != "values":
        by_share = w.dot(u, kept.v, y_t=True)
        mean = w.last(R.SUM, w.binary(B.MUL, by_share, kept.shares))
        by_score = w.binary(B.MUL, kept.shares, w.binary(B.SUB, by_share, mean))
        if kept.tanh is not None:
            slope = w.binary(B.SUB, 1.0, w.binary(B.MUL, kept.tanh, kept.tanh))
            by_score = w.binary(B.MUL, by_score, slope)
        by_score = w.binary(B.MUL, by_score, kept.scale)
        if wrt in ("query", "all"):
            results.append(w.reshape(w.dot(by_score, kept.k), dims_of(args[0].type)))
        if wrt in ("keys", "all"):
            results.append(w.dot(by_score, kept.q, x_t=True))
    if wrt in ("values", "all"):
        results.append(w.dot(kept.shares, u, x_t=True))
    return results


def _sample_attention(draw: Draw) -> Case:
    arrays, options = draw_attention(draw, most=9)
    q, _, v = arrays[:3]
    options["wrt"] = draw.choice(AttentionBackwardOp.CHOICES["wrt"])
    upstream = draw.array((*q.shape[:-1], v.shape[-1]))
    return Case([*arrays, upstream], lambda w, v: w.add_all(AttentionBackwardOp(*v, **options)))


# Rotary positions


@irdl_op_definition
class RopeBackwardOp(NamedOp):
    """
    The gradient of `transformer.rope`, whose options it takes: the upstream, turned back.

    `(cos, sin, upstream) -> upstream`.
    """

    name = "grad.rope"
    KIND: ClassVar = OpKind.ROPE_BACKWARD
    OPTIONS: ClassVar = RopeOp.OPTIONS
    CHOICES: ClassVar = RopeOp.CHOICES

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        return [check_rope(cls, [types[2], *types[:2]], o)]


def _rope(op: RopeBackwardOp, cos: Array, sin: Array, upstream: Array) -> Array:
    import numpy as np

    from rlx.ops.derivative import pulled_back

    anywhere = np.zeros_like(upstream)
    return pulled_back(lambda x: rotate(op.chosen, x, cos, sin), anywhere, upstream, 1)


def _expand_rope(w: Writer, op: RopeBackwardOp) -> Sequence[SSAValue]:
    cos, sin, upstream = op.args
    return [w.add(RopeOp(upstream, cos, w.unary(U.NEG, sin), **op.chosen))]


def _sample_rope(draw: Draw) -> Case:
    (x, *tables), options = draw_rope(draw)
    return Case([*tables, x], lambda w, v: w.add_all(RopeBackwardOp(*v, **options)))


RECORDS = (
    Record(
        AttentionBackwardOp,
        (OpKind.ATTENTION_BACKWARD, OpKind.ATTENTION_BACKWARD_ALL),
        CONTRACTION,
        FLOATS,
        _attention,
        _sample_attention,
        _expand_attention,
        nmse=1e-11,
    ),
    Record(
        RopeBackwardOp, (OpKind.ROPE_BACKWARD,), ROWS, FLOATS, _rope, _sample_rope, _expand_rope
    ),
)
