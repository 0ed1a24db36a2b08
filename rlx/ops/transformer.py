"""Attention with every kind of mask, and rotary positions, on tensors with an axis of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, ClassVar

from xdsl.dialects.builtin import f32, i64
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.reductions import SdpaOp
from rlx.dialects.writer import Writer
from rlx.ops import segments
from rlx.ops.record import ATTENTION, FLOATS, ROWS, Array, Case, Record
from rlx.ops.samples import Draw

B, C, R, U = BinaryKind, CompareKind, ReduceKind, UnaryKind

MASKS = ("none", "causal", "sliding_window", "custom", "bias")
WITH_OPERAND = ("custom", "bias")
"""Masks that are an operand."""
ATTENTION_OPTIONS = {"mask": "none", "window": 0, "scale": 0.0, "softcap": 0.0}


# Attention


@irdl_op_definition
class AttentionOp(NamedOp):
    """
    Scaled dot-product attention: softmax(mask(cap(q k^T * scale))) v (Vaswani et al., 2017).

    `(q [batch..., heads, m, d], k [batch..., kv_heads, n, d], v [batch..., kv_heads, n, e]) ->
    [batch..., heads, m, e]`; query heads share the keys' heads in groups. `scale 0` stands for
    1 / sqrt(d). `softcap c` replaces a score s by c * tanh(s / c), which 0 does not. By `mask`:

    - `causal`: query i, at the position p = i + n - m, sees the keys up to p;
    - `sliding_window`: the keys from p - `window` to p;
    - `custom`: a fourth operand `[batch..., n]` has 0.5 or more for the keys that are seen;
    - `bias`: a fourth operand `[batch..., heads, m, n]` is added to the scores.

    A query that sees no key gives zeros. With a softcap m is a number where heads share keys.
    """

    name = "transformer.attention"
    KIND: ClassVar = OpKind.ATTENTION
    OPTIONS: ClassVar = ATTENTION_OPTIONS
    CHOICES: ClassVar = {"mask": MASKS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        return [check_attention(cls, types, o)]


def check_attention(
    cls: type[NamedOp], types: Sequence[Attribute], o: Mapping[str, Any]
) -> Attribute:
    """Return the type of attention, of operands that are checked."""
    cls.expect_count(types, 4 if o["mask"] in WITH_OPERAND else 3)
    result = infer.sdpa(cls.name, *types[:3])
    (*batch, heads, m, d), n = dims_of(types[0]), dims_of(types[1])[-2]
    if not isinstance(d, int) or d < 1:
        raise cls.refuse("a number from 1 for d, the features of a head", types)
    masks = {"custom": (*batch, n), "bias": (*batch, heads, m, n)}
    if any(t != tensor(masks[o["mask"]], element_of(result)) for t in types[3:]):
        wanted = tensor(masks[o["mask"]], element_of(result))
        raise cls.refuse(f"a mask {wanted} of kind {o['mask']}", types)
    if o["softcap"] < 0 or o["window"] < 0:
        raise cls.refuse(f"a softcap and a window from 0, got {o['softcap']}, {o['window']}", types)
    return result


def attend(o: Mapping[str, Any], q: Array, k: Array, v: Array, *mask: Array) -> Array:
    """Return attention by its definition, of complex numbers too."""
    import numpy as np

    (kv, n), (m, d) = k.shape[-3:-1], q.shape[-2:]
    heads = q.shape[-3]
    scores = q @ k.repeat(heads // kv, axis=-3).swapaxes(-1, -2) * scale_of(o, d)
    if o["softcap"]:
        scores = o["softcap"] * np.tanh(scores / o["softcap"])
    seen = np.ones(scores.shape, np.bool_)
    if o["mask"] in ("causal", "sliding_window"):
        low = o["window"] if o["mask"] == "sliding_window" else n
        for i in range(m):
            for j in range(n):
                seen[..., i, j] = i + n - m - low <= j <= i + n - m
    elif o["mask"] == "custom":
        seen &= (mask[0] >= 0.5)[..., None, None, :]
    elif o["mask"] == "bias":
        scores = scores + mask[0]
        seen &= np.real(scores) > -np.inf
    top = np.where(seen, np.real(scores), -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.where(seen, np.exp(np.where(seen, scores - np.where(top > -np.inf, top, 0), 0)), 0)
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total) @ v.repeat(heads // kv, axis=-3)


def _attention(op: AttentionOp, *arrays: Array) -> Array:
    return attend(op.chosen, *arrays)


def _behind(w: Writer, m: Dim, n: Dim) -> SSAValue:
    """Return how far each key is behind each query, `[m, n]`: (i + n - m) - j."""

    def from_the_end(axis: int) -> SSAValue:
        places = w.iota(axis, [m, n], i64)
        size = (m, n)[axis]
        if isinstance(size, int):
            return w.binary(B.SUB, places, size - 1)
        # The size of a dimension with a name is known when the program runs.
        last = w.reduce(R.MAX, places, [0, 1])
        return w.binary(B.SUB, places, w.spread(last, [m, n]))

    return w.binary(B.SUB, from_the_end(0), from_the_end(1))


def _visible(w: Writer, o: Mapping[str, Any], m: Dim, n: Dim) -> SSAValue:
    """Return which keys a query sees by their positions, `[m, n]`."""
    behind = _behind(w, m, n)
    visible = w.compare(C.GE, behind, 0)
    if o["mask"] == "causal":
        return visible
    return w.binary(B.AND, visible, w.compare(C.LE, behind, o["window"]))


def _custom(w: Writer, mask: SSAValue, dims: Sequence[Dim]) -> SSAValue:
    """Spread whether keys are seen, `[batch..., n]`, over the dimensions before the last."""
    *batch, n = dims_of(mask.type)
    kept = w.compare(C.GE, mask, 0.5)
    return w.spread(w.reshape(kept, [*batch, *[1] * (len(dims) - len(batch) - 1), n]), dims)


def _expand_attention(w: Writer, op: AttentionOp) -> Sequence[SSAValue]:
    o = op.chosen
    if o["softcap"]:
        shares = Shares.write(w, o, op.args)
        return [w.reshape(w.dot(shares.shares, shares.v), dims_of(op.res[0].type))]
    q, k, v, *mask = op.args
    (*batch, heads, m, d), n = dims_of(q.type), dims_of(k.type)[-2]
    scale, element = scale_of(o, d), element_of(q.type)
    if o["mask"] == "bias":
        # A mask is one for all heads of a batch: here each head is a batch of its own.
        q = w.reshape(q, [*batch, heads, 1, m, d])
        k, v = (_for_each_head(w, x, heads) for x in (k, v))
        attended = w.add(SdpaOp(q, k, v, scale, mask[0]))
        return [w.reshape(attended, dims_of(op.res[0].type))]
    added = None
    if o["mask"] == "sliding_window":
        # Keys after the query are left out by `causal`, so that blocks of them are not read.
        near = w.compare(C.LE, _behind(w, m, n), o["window"])
        added = w.spread(_hiding(w, near, element), [*batch, m, n])
    elif o["mask"] == "custom":
        added = _hiding(w, _custom(w, mask[0], [*batch, m, n]), element)
    causal = o["mask"] in ("causal", "sliding_window")
    return [w.add(SdpaOp(q, k, v, scale, added, causal))]


def _for_each_head(w: Writer, x: SSAValue, heads: Dim) -> SSAValue:
    """`[batch..., kv_heads, n, d]` -> `[batch..., heads, 1, n, d]`."""
    *batch, kv, n, d = dims_of(x.type)
    assert isinstance(heads, int)
    assert isinstance(kv, int)
    if kv < heads:
        apart = w.reshape(x, [*batch, kv, 1, n, d])
        x = w.spread(apart, [*batch, kv, heads // kv, n, d])
    return w.reshape(x, [*batch, heads, 1, n, d])


def _hiding(w: Writer, visible: SSAValue, element: Attribute) -> SSAValue:
    """Return 0 where something is visible, and minus infinity elsewhere."""
    zeros = w.value(0.0, tensor(dims_of(visible.type), element))
    return w.select(visible, zeros, -inf)


def scale_of(o: Mapping[str, Any], d: Dim) -> float:
    """Return the factor of the scores, of heads of d features."""
    return o["scale"] or 1 / sqrt(int(d))


def _lowest(type_: Attribute) -> float:
    """Return the least finite number of a tensor's elements."""
    return -3.4028234663852886e38 if element_of(type_) == f32 else -1.7976931348623157e308


@dataclass(frozen=True)
class Shares:
    """
    Attention in primitives: what each query takes of each key, of queries that share their keys.

    Queries are `[batch..., kv_heads, rows, d]`, where rows are those of all heads of a group.
    """

    q: SSAValue
    k: SSAValue
    v: SSAValue
    shares: SSAValue
    """`[batch..., kv_heads, rows, n]`."""
    scale: float
    tanh: SSAValue | None
    """tanh(score / softcap)."""

    @staticmethod
    def rows(w: Writer, x: SSAValue, kv: Dim) -> SSAValue:
        """Return `[batch..., heads, m, ..]` as `[batch..., kv_heads, rows, ..]`."""
        *batch, heads, m, last = dims_of(x.type)
        if heads == kv:
            return x
        assert isinstance(heads, int)
        assert isinstance(kv, int)
        assert isinstance(m, int)
        return w.reshape(x, [*batch, kv, heads // kv * m, last])

    @staticmethod
    def write(w: Writer, o: Mapping[str, Any], args: Sequence[SSAValue]) -> Shares:
        q, k, v, *mask = args
        (*batch, heads, m, d), (kv, n) = dims_of(q.type), dims_of(k.type)[-3:-1]
        scale, tanh = scale_of(o, d), None
        rows = Shares.rows(w, q, kv)
        scores = w.binary(B.MUL, w.dot(rows, k, y_t=True), scale)
        dims = dims_of(scores.type)
        if o["softcap"]:
            tanh = w.unary(U.TANH, w.binary(B.DIV, scores, o["softcap"]))
            scores = w.binary(B.MUL, tanh, o["softcap"])
        if o["mask"] == "bias":
            scores = w.binary(B.ADD, scores, Shares.rows(w, mask[0], kv))
        elif o["mask"] == "custom":
            scores = w.select(_custom(w, mask[0], dims), scores, -inf)
        elif o["mask"] != "none":
            visible = w.spread(_visible(w, o, m, n), [*batch, heads, m, n])
            scores = w.select(Shares.rows(w, visible, kv), scores, -inf)
        # A finite maximum: a query that sees no key has exp(-inf) = 0 for each of them.
        top = w.binary(B.MAX, w.last(R.MAX, scores), _lowest(scores.type))
        e = w.unary(U.EXP, w.binary(B.SUB, scores, top))
        total = w.last(R.SUM, e)
        total = w.select(w.compare(C.EQ, total, 0.0), w.value(1.0, total.type), total)
        return Shares(rows, k, v, w.binary(B.DIV, e, total), scale, tanh)


def draw_attention(draw: Draw, most: int = 40) -> tuple[list[Array], dict[str, Any]]:
    """Return operands and options of attention."""
    batch = [draw.between(1, 2) for _ in range(draw.between(0, 2))]
    kv, group = draw.between(1, 3), draw.choice((1, 1, 2, 3))
    m, n = draw.size(1, most), draw.size(1, most)
    d, e = draw.size(1, most), draw.size(1, most)
    kind = draw.choice(MASKS)
    arrays = [
        draw.array((*batch, kv * group, m, d), -1.0, 1.0),
        draw.array((*batch, kv, n, d), -1.0, 1.0),
        draw.array((*batch, kv, n, e)),
    ]
    if kind == "custom":
        arrays.append(draw.array((*batch, n), 0.0, 1.0))
    elif kind == "bias":
        bias = draw.array((*batch, kv * group, m, n))
        bias[draw.rng.random(bias.shape) < 0.2] = -inf
        arrays.append(bias)
    options: dict[str, Any] = {"mask": kind}
    if kind == "sliding_window":
        options["window"] = draw.between(0, n)
    if draw.chance(0.4):
        options["softcap"] = draw.choice((0.5, 2.0))
    if draw.chance(0.4):
        options["scale"] = 0.3
    return arrays, options


def _sample_attention(draw: Draw) -> Case:
    arrays, options = draw_attention(draw)
    return Case(arrays, lambda w, v: w.add_all(AttentionOp(*v, **options)))


# Rotary positions


@irdl_op_definition
class RopeOp(NamedOp):
    """
    Turns pairs of the first features of each head by angles of their row (Su et al., 2021).

    `(x [..., m, heads * head_dim], cos [..., m, r], sin [..., m, r]) -> x`; tables may lack leading
    dimensions of x. Pair i of r is (i, i + r) by the style `half`, (2i, 2i + 1) by `pairs`, and
    (a, b) becomes (a cos - b sin, b cos + a sin). Features from 2r on stay.
    """

    name = "transformer.rope"
    KIND: ClassVar = OpKind.ROPE
    OPTIONS: ClassVar = {"head_dim": 2, "style": "half"}
    CHOICES: ClassVar = {"style": ("half", "pairs")}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        return [check_rope(cls, types, o)]


def check_rope(cls: type[NamedOp], types: Sequence[Attribute], o: Mapping[str, Any]) -> Attribute:
    """Return the type of the first operand, where the others are tables for it."""
    cls.expect_count(types, 3)
    infer.check_element(cls.name, types[0], infer.FLOATS)
    (x, cos), head_dim = (dims_of(t) for t in types[:2]), o["head_dim"]
    fits = 2 <= len(cos) <= len(x) and types[1] == types[2] and head_dim > 0
    fits = fits and element_of(types[0]) == element_of(types[1])
    width, r = (x[-1], cos[-1]) if fits else (0, 0)
    fits = fits and isinstance(width, int) and isinstance(r, int) and width % head_dim == 0
    if not fits or 2 * int(r) > head_dim or cos[:-1] != x[len(x) - len(cos) : -1]:
        raise cls.refuse(
            f"x [..., m, heads * {head_dim}] and two tables [..., m, r] with r at most "
            f"{head_dim // 2}",
            types,
        )
    return types[0]


def _rope(op: RopeOp, x: Array, cos: Array, sin: Array) -> Array:
    return rotate(op.chosen, x, cos, sin)


def rotate(o: Mapping[str, Any], x: Array, cos: Array, sin: Array) -> Array:
    """Return an array with its pairs turned, one after the other, of complex numbers too."""
    result, r = x.copy(), cos.shape[-1]
    for head in range(0, x.shape[-1], o["head_dim"]):
        for i in range(r):
            a, b = (i, i + r) if o["style"] == "half" else (2 * i, 2 * i + 1)
            a, b = head + a, head + b
            result[..., a] = x[..., a] * cos[..., i] - x[..., b] * sin[..., i]
            result[..., b] = x[..., b] * cos[..., i] + x[..., a] * sin[..., i]
    return result


def _expand_rope(w: Writer, op: RopeOp) -> Sequence[SSAValue]:
    x, cos, sin = op.args
    (*lead, width), (*rows, r) = dims_of(x.type), dims_of(cos.type)
    head_dim = op.option("head_dim")
    assert isinstance(width, int)
    assert isinstance(r, int)
    heads = w.reshape(x, [*lead, width // head_dim, head_dim])
    last, half = len(lead) + 1, op.option("style") == "half"
    dims = [*lead, width // head_dim, r]
    cos, sin = (w.spread(w.reshape(t, [*rows, 1, r]), dims) for t in (cos, sin))
    if half:
        a, b = (w.slice(heads, last, start, r) for start in (0, r))
    else:
        a, b = (w.slice(heads, last, start, r, 2) for start in (0, 1))
    turned = [
        w.binary(B.SUB, w.binary(B.MUL, a, cos), w.binary(B.MUL, b, sin)),
        w.binary(B.ADD, w.binary(B.MUL, b, cos), w.binary(B.MUL, a, sin)),
    ]
    if not half:
        pairs = w.concat(last + 1, [w.reshape(t, [*dims, 1]) for t in turned])
        turned = [w.reshape(pairs, [*dims[:-1], 2 * r])]
    if 2 * r < head_dim:
        turned.append(w.slice(heads, last, 2 * r, head_dim - 2 * r))
    joined = w.concat(last, turned) if len(turned) > 1 else turned[0]
    return [w.reshape(joined, dims_of(x.type))]


def draw_rope(draw: Draw) -> tuple[list[Array], dict[str, Any]]:
    """Return operands and options of rope."""
    lead, m = [draw.between(1, 3) for _ in range(draw.between(0, 2))], draw.size(1, 33)
    head_dim = draw.size(2, 33)
    r = draw.between(1, head_dim // 2)
    x = draw.array((*lead, m, draw.between(1, 3) * head_dim))
    angles = draw.array((*lead[draw.between(0, len(lead)) :], m, r), element="f64")
    tables = [f(angles).astype(x.dtype) for f in _circle()]
    return [x, *tables], {"head_dim": head_dim, "style": draw.choice(("half", "pairs"))}


def _circle() -> tuple[Any, Any]:
    import numpy as np

    return np.cos, np.sin


def _sample_rope(draw: Draw) -> Case:
    arrays, options = draw_rope(draw)
    return Case(arrays, lambda w, v: w.add_all(RopeOp(*v, **options)))


RECORDS = (
    Record(
        AttentionOp,
        (OpKind.ATTENTION,),
        ATTENTION,
        FLOATS,
        _attention,
        _sample_attention,
        _expand_attention,
    ),
    Record(RopeOp, (OpKind.ROPE,), ROWS, FLOATS, _rope, _sample_rope, _expand_rope),
    *segments.RECORDS,
)

Transformer = Dialect("transformer", [r.op for r in RECORDS], [])
