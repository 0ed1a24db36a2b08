"""Blocks of a transformer as one operation each, and products with what follows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops import dot_general, products
from rlx.ops.linear import flat, linear
from rlx.ops.norm import FusedResidualLnOp
from rlx.ops.products import ACTS, FusedMatmulBiasActOp, activated, add_bias, times, vector_of
from rlx.ops.record import CONTRACTION, FLOATS, Array, Case, Record
from rlx.ops.samples import Draw
from rlx.ops.transformer import AttentionOp, RopeOp, attend, rotate

B = BinaryKind


def _heads(w: Writer, x: SSAValue, heads: int) -> SSAValue:
    """`[batch..., n, heads * d]` -> `[batch..., heads, n, d]`."""
    *batch, n, width = dims_of(x.type)
    assert isinstance(width, int)
    apart = w.reshape(x, [*batch, n, heads, width // heads])
    return w.transpose(apart, _swapped(len(batch)))


def _joined(w: Writer, x: SSAValue) -> SSAValue:
    """`[batch..., heads, n, d]` -> `[batch..., n, heads * d]`."""
    x = w.transpose(x, _swapped(len(dims_of(x.type)) - 3))
    *lead, heads, d = dims_of(x.type)
    assert isinstance(heads, int)
    assert isinstance(d, int)
    return w.reshape(x, [*lead, heads * d])


def _swapped(at: int) -> list[int]:
    """Return the order of axes that swaps two of them before the last."""
    return [*range(at), at + 1, at, at + 2]


# Attention with its projections


@irdl_op_definition
class FusedAttentionBlockOp(NamedOp):
    """
    Attention of an input on itself with its projections, in the order of operands of the contract.

    `(x [batch..., n, width], qkv_w [width, 3 inner], out_w [inner, width], mask, (qkv_b [3 inner],
    out_b [width])?, (cos, sin [n, r])?) -> x`; inner is a multiple of `heads`. A mask `[batch...,
    n]` has 0.5 or more for the keys that are seen, one `[batch..., heads, n, n]` is added to the
    scores. `rope` says that the last two operands are tables of `transformer.rope`.
    """

    name = "fused.attention_block"
    KIND: ClassVar = OpKind.FUSED_ATTENTION_BLOCK
    OPTIONS: ClassVar = {"heads": 1, "rope": False, "style": "half"}
    CHOICES: ClassVar = RopeOp.CHOICES

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, *((6, 8) if o["rope"] else (4, 6)))
        x, qkv_w, out_w, mask = types[:4]
        qkv = times(cls, types, x, qkv_w)
        *batch, n, width = dims_of(qkv) if len(dims_of(x)) > 1 else (0, 0)
        heads = o["heads"]
        if not isinstance(width, int) or heads < 1 or width % (3 * heads) or width == 0:
            raise cls.refuse(
                f"[..., n, width] and a weight [width, 3 inner] of whole heads, {heads}", types
            )
        head_dim, element = width // 3 // heads, element_of(x)
        attended = tensor([*batch, n, width // 3], element)
        if times(cls, types, attended, out_w) != x or not _is_mask(mask, [*batch, n], heads):
            raise cls.refuse(
                "a weight [inner, width] for the result, and a mask [batch..., n] or "
                f"[batch..., {heads}, n, n]",
                types,
            )
        biases = types[4 : len(types) - 2 * o["rope"]]
        if any(b != w for b, w in zip(biases, (vector_of(qkv), vector_of(x)), strict=False)):
            raise cls.refuse("biases of the projections, [3 inner] and [width]", types)
        if o["rope"]:
            head = tensor([*batch, heads, n, head_dim], element)
            RopeOp.infer([head, *types[-2:]], {"head_dim": head_dim, "style": o["style"]})
        return types[:1]


def _is_mask(type_: Attribute, rows: Sequence[Dim], heads: int) -> bool:
    *batch, n = rows
    return dims_of(type_) in ((*batch, n), (*batch, heads, n, n))


def _kind_of_mask(rank: int, x_rank: int) -> str:
    return "custom" if rank == x_rank - 1 else "bias"


def _fused_attention_block(op: FusedAttentionBlockOp, *arrays: Array) -> Array:
    x, qkv_w, out_w, mask, *rest = arrays
    o = op.chosen
    tables = rest[-2:] if o["rope"] else []
    qkv_b, out_b = rest[:2] if len(rest) > len(tables) else (0, 0)
    qkv = x @ qkv_w + qkv_b
    d = qkv.shape[-1] // 3 // o["heads"]
    apart = qkv.reshape(*x.shape[:-1], 3, o["heads"], d)
    q, k, v = (apart[..., i, :, :].swapaxes(-2, -3) for i in range(3))
    if tables:
        q, k = (rotate({"head_dim": d, "style": o["style"]}, t, *tables) for t in (q, k))
    kind = _kind_of_mask(mask.ndim, x.ndim)
    y = attend({"mask": kind, "scale": 0.0, "softcap": 0.0}, q, k, v, mask)
    return y.swapaxes(-2, -3).reshape(*x.shape[:-1], -1) @ out_w + out_b


def _expand_fused_attention_block(w: Writer, op: FusedAttentionBlockOp) -> Sequence[SSAValue]:
    x, qkv_w, out_w, mask, *rest = op.args
    o = op.chosen
    tables = rest[-2:] if o["rope"] else []
    biases = rest[: len(rest) - len(tables)]
    *lead, _ = dims_of(x.type)
    width = dims_of(qkv_w.type)[1]
    assert isinstance(width, int)
    qkv = linear(w, flat(w, x), qkv_w)
    if biases:
        qkv = add_bias(w, qkv, biases[0])
    qkv = w.reshape(qkv, [*lead, width])
    inner, axis = width // 3, len(lead)
    q, k, v = (_heads(w, w.slice(qkv, axis, i * inner, inner), o["heads"]) for i in range(3))
    if tables:
        options: dict[str, Any] = {"head_dim": inner // o["heads"], "style": o["style"]}
        q, k = (w.add(RopeOp(t, *tables, **options)) for t in (q, k))
    kind = _kind_of_mask(len(dims_of(mask.type)), axis + 1)
    attended = w.add(AttentionOp(q, k, v, mask, mask=kind))
    y = linear(w, flat(w, _joined(w, attended)), out_w)
    if biases:
        y = add_bias(w, y, biases[1])
    return [w.reshape(y, dims_of(x.type))]


def _draw_block(draw: Draw) -> tuple[list[Array], int]:
    """Return x, qkv_w, out_w and a mask, and the number of heads."""
    batch = [draw.between(1, 3) for _ in range(draw.between(0, 1))]
    n, width, heads, d = draw.size(1, 17), draw.size(1, 33), draw.between(1, 3), draw.size(2, 17)
    inner = heads * d
    x = draw.array((*batch, n, width))
    qkv_w, out_w = (draw.array(s, -0.3, 0.3) for s in ((width, 3 * inner), (inner, width)))
    is_bias = draw.chance()
    mask = draw.array((*batch, heads, n, n) if is_bias else (*batch, n), 0.0, 1.0)
    return [x, qkv_w, out_w, mask], heads


def _sample_fused_attention_block(draw: Draw) -> Case:
    import numpy as np

    arrays, heads = _draw_block(draw)
    x, qkv_w = arrays[:2]
    options: dict[str, Any] = {"heads": heads, "rope": draw.chance()}
    if draw.chance():
        arrays += [draw.array(qkv_w.shape[1:]), draw.array(x.shape[-1:])]
    if options["rope"]:
        options["style"] = draw.choice(("half", "pairs"))
        r = draw.between(1, qkv_w.shape[1] // 3 // heads // 2)
        angles = draw.array((x.shape[-2], r), element="f64")
        arrays += [f(angles).astype(x.dtype) for f in (np.cos, np.sin)]
    return Case(arrays, lambda w, v: w.add_all(FusedAttentionBlockOp(*v, **options)))


# A layer


@irdl_op_definition
class FusedTransformerLayerOp(NamedOp):
    """
    A layer of an encoder (Vaswani et al., 2017), with norms after the residuals.

    h = LN(x + attention(x)), LN(h + act(h fc1) fc2), of the 14 operands x [batch..., n, width],
    qkv_w, qkv_b, out_w, out_b, ln1_gamma, ln1_beta, fc1_w [width, ffn], fc1_b, fc2_w [ffn, width],
    fc2_b, ln2_gamma, ln2_beta, mask, or of 10 without the biases qkv_b, out_b, fc1_b and fc2_b.
    Projections and the mask are those of `fused.attention_block`.
    """

    name = "fused.transformer_layer"
    KIND: ClassVar = OpKind.FUSED_TRANSFORMER_LAYER
    OPTIONS: ClassVar = {"heads": 1, "eps1": 1e-5, "eps2": 1e-5, "act": "gelu"}
    CHOICES: ClassVar = {"act": ACTS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 10, 14)
        x = types[0]
        p = _Parts(types)
        block = [x, *p.projections, types[-1], *p.projection_biases]
        FusedAttentionBlockOp.infer(block, {**FusedAttentionBlockOp.OPTIONS, "heads": o["heads"]})
        hidden = times(cls, types, x, p.fc1[0])
        wanted = [vector_of(hidden), vector_of(x)]
        biases = [*p.fc1[1:], *p.fc2[1:]]
        vectors = all(t == vector_of(x) for t in (*p.ln1, *p.ln2))
        if times(cls, types, hidden, p.fc2[0]) != x or not vectors or biases not in ([], wanted):
            raise cls.refuse(
                "weights [width, ffn] and [ffn, width] with biases, and norms [width]", types
            )
        return [x]


class _Parts:
    """The operands of a layer by what they are for, whether types, values or arrays."""

    def __init__(self, args: Sequence[Any]):
        x, *rest = args
        biased = len(args) == 14
        step = 2 if biased else 1
        self.x, self.mask = x, rest[-1]
        self.projections = rest[0 : 2 * step : step]
        self.projection_biases = rest[1 : 2 * step : 2] if biased else []
        rest = rest[2 * step :]
        self.ln1, self.fc1 = rest[:2], rest[2 : 2 + step]
        self.fc2, self.ln2 = rest[2 + step : 2 + 2 * step], rest[2 + 2 * step : 4 + 2 * step]


def _layer_norm(x: Array, eps: float, gamma: Array, beta: Array) -> Array:
    import numpy as np

    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * gamma + beta


def _fused_transformer_layer(op: FusedTransformerLayerOp, *arrays: Array) -> Array:
    p, o = _Parts(arrays), op.chosen
    block = FusedAttentionBlockOp(*_block_of(op), heads=o["heads"])
    attended = _fused_attention_block(block, p.x, *p.projections, p.mask, *p.projection_biases)
    h = _layer_norm(p.x + attended, o["eps1"], *p.ln1)
    hidden = activated(o["act"], h @ p.fc1[0] + sum(p.fc1[1:]))
    return _layer_norm(h + hidden @ p.fc2[0] + sum(p.fc2[1:]), o["eps2"], *p.ln2)


def _block_of(op: FusedTransformerLayerOp) -> Sequence[SSAValue]:
    p = _Parts(op.args)
    return [p.x, *p.projections, p.mask, *p.projection_biases]


def _expand_fused_transformer_layer(w: Writer, op: FusedTransformerLayerOp) -> Sequence[SSAValue]:
    p, o = _Parts(op.args), op.chosen
    attended = w.add(FusedAttentionBlockOp(*_block_of(op), heads=o["heads"]))
    h = w.add(FusedResidualLnOp(flat(w, attended), flat(w, p.x), *p.ln1, eps=o["eps1"]))
    if len(p.fc1) > 1:
        hidden = w.add(FusedMatmulBiasActOp(h, *p.fc1, act=o["act"]))
    else:
        hidden = products.activate(w, o["act"], linear(w, h, p.fc1[0]))
    back = linear(w, hidden, p.fc2[0])
    y = w.add(FusedResidualLnOp(back, h, *p.fc2[1:], *p.ln2, eps=o["eps2"]))
    return [w.reshape(y, dims_of(p.x.type))]


def _sample_fused_transformer_layer(draw: Draw) -> Case:
    (x, qkv_w, out_w, mask), heads = _draw_block(draw)
    width, ffn, biased = x.shape[-1], draw.size(1, 33), draw.chance()

    def vectors(*sizes: int) -> list[Array]:
        return [draw.array((n,)) for n in sizes]

    def with_bias(weight: Array) -> list[Array]:
        return [weight, *(vectors(weight.shape[1]) if biased else [])]

    arrays = [x, *with_bias(qkv_w), *with_bias(out_w), *vectors(width, width)]
    for shape in ((width, ffn), (ffn, width)):
        arrays += with_bias(draw.array(shape, -0.3, 0.3))
    arrays += [*vectors(width, width), mask]
    act = draw.choice(("gelu", "relu", "silu"))
    options: dict[str, Any] = {"heads": heads, "act": act, "eps1": 1e-3, "eps2": 1e-2}
    return Case(arrays, lambda w, v: w.add_all(FusedTransformerLayerOp(*v, **options)))


RECORDS = (
    *dot_general.RECORDS,
    *products.RECORDS,
    Record(
        FusedAttentionBlockOp,
        (OpKind.FUSED_ATTENTION_BLOCK,),
        CONTRACTION,
        FLOATS,
        _fused_attention_block,
        _sample_fused_attention_block,
        _expand_fused_attention_block,
    ),
    Record(
        FusedTransformerLayerOp,
        (OpKind.FUSED_TRANSFORMER_LAYER,),
        CONTRACTION,
        FLOATS,
        _fused_transformer_layer,
        _sample_fused_transformer_layer,
        _expand_fused_transformer_layer,
    ),
)

Fused = Dialect("fused", [r.op for r in RECORDS], [])
