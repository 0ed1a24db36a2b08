"""
Attention of `[rows, d]` on itself, and on the positions before it where there are some.

The stages here differ in where the keys before this step are: in the state of the program
(`SelfAttention`), in its inputs (`BoundAttention`), or nowhere (`SelfAttnPrefill`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from xdsl.dialects.builtin import i64

from rlx.contract.quant import KvFormat
from rlx.dialects import hir, mir
from rlx.dialects.common import Dim
from rlx.dialects.infer import STORED
from rlx.dialects.kinds import BinaryKind, CompareKind
from rlx.dialects.ops import StateRole
from rlx.errors import RlxError
from rlx.flow import tensors
from rlx.flow.context import KEYS, PAST, FlowCtx, FlowStage
from rlx.flow.state import DecodeBindings, FlowValue, HirNodeId

ATTN_MASK = "attn_mask"
"""The name under which `AttnMask` leaves the mask, `[rows, rows]`, to be added to scores."""
MASKED = -1e9
"""What is added to the score of a key that is not to be seen."""


# Positions


@dataclass(frozen=True)
class RopeTables:
    """Leaves tables of rotary embedding, `[positions, n_rot]`, to attention; passes x through."""

    base: float
    positions: int
    n_rot: int

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        tables = hir.RopeTableOp(self.base, self.positions, self.n_rot)
        ctx.insert(tables, "cos")
        tables.sin.name_hint = "sin"
        ctx.state.rope_cos, ctx.state.rope_sin = tables.cos, tables.sin
        return x


@dataclass(frozen=True)
class DecodeRopeParams:
    """
    `RopeTables` as parameters, for frequencies that are not powers of the base alone.

    Pair i turns by position * base^(-2i / n_rot) / factors[i], as models with a longer context
    than they were trained on ask for.
    """

    base: float
    positions: int
    factors: tuple[float, ...]

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        pairs = len(self.factors)
        rates = self.base ** (-np.arange(pairs) / pairs) / np.array(self.factors)
        angles = np.arange(self.positions)[:, None] * rates
        shape = (self.positions, 2 * pairs)
        cos = np.repeat(np.cos(angles), 2, axis=1).astype(np.float32)
        sin = np.stack([-np.sin(angles), np.sin(angles)], axis=2).astype(np.float32)
        ctx.state.rope_cos = ctx.synth_param("rope.cos", cos, shape)
        ctx.state.rope_sin = ctx.synth_param("rope.sin", sin.reshape(shape), shape)
        return x


@dataclass(frozen=True)
class RowPlaces:
    """
    Lets each row be of a sequence and at a position of its own, as an input `[rows, 2] i64` says.

    Behind it `Rope` turns rows by these positions, and `SelfAttention` appends each row to its
    sequence and lets it see that alone. Needs `RopeTables` before; passes x through.
    """

    input: str = "places"

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        rows = x.shape[0]
        places = ctx.input(self.input, (rows, 2), i64)
        positions = tensors.reshape(ctx, tensors.part(ctx, places, 1, 1, 1), (rows,))
        cos, sin = ctx.state.rope_cos, ctx.state.rope_sin
        if cos is None or sin is None:
            raise RlxError("RowPlaces: expected RopeTables before it")
        ctx.state.rope_cos, ctx.state.rope_sin = (
            ctx.insert(mir.GatherOp(table, positions.id, 0)).id for table in (cos, sin)
        )
        ctx.state.places = places.id
        return x


@dataclass(frozen=True)
class Rope:
    """
    Rotates the heads of x by their rows' positions (Su et al., 2021); needs `RopeTables` before.

    Row 0 is at the position `start`, a dimension, or at 0. `pairs` says which features turn
    together: neighbours, as in GGUF files of Llama, or those of the two halves, which are brought
    side by side. They stay there: scores don't depend on the order of features.
    """

    head_dim: int
    pairs: Literal["neighbours", "halves"] = "neighbours"
    start: str | None = PAST

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        cos, sin = ctx.state.rope_cos, ctx.state.rope_sin
        if ctx.state.decode is not None:
            cos, sin = ctx.state.decode.cos, ctx.state.decode.sin
        if cos is None or sin is None:
            raise RlxError("Rope: expected RopeTables before it")
        n_rot = ctx.node_shape(cos)[1]
        assert isinstance(n_rot, int)
        if self.pairs == "halves":
            x = self._interleaved(ctx, x, n_rot)
        start = self.start if ctx.state.decode is None else None
        start = ctx.origin() if start is None else start
        return ctx.insert(hir.RopeOp(x.id, cos, sin, start, self.head_dim))

    def _interleaved(self, ctx: FlowCtx, x: FlowValue, n_rot: int) -> FlowValue:
        """Return the first n_rot features of each head as pairs of their two halves."""
        split = tensors.split_heads(ctx, x, self.head_dim)
        (rows, heads, _), head_dim = split.shape, self.head_dim
        turned = split if n_rot == head_dim else tensors.part(ctx, split, 2, 0, n_rot)
        halves = tensors.reshape(ctx, turned, (rows, heads, 2, n_rot // 2))
        pairs = tensors.transpose(ctx, halves, 0, 1, 3, 2)
        turned = tensors.reshape(ctx, pairs, (rows, heads, n_rot))
        if n_rot < head_dim:
            rest = tensors.part(ctx, split, 2, n_rot, head_dim - n_rot)
            turned = tensors.concat(ctx, 2, [turned, rest], head_dim)
        return tensors.join_heads(ctx, turned)


@dataclass(frozen=True)
class HeadNorm:
    """Root-mean-square norm of each head's features, scaled by a weight `[head_dim]`."""

    key: str
    head_dim: int
    eps: float
    offset: float = 0.0
    """What is added to the weight: 1 for Gemma's own files."""

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        heads = tensors.split_heads(ctx, x, self.head_dim)
        norm = tensors.root_mean_square(ctx, heads, self.eps)
        weight = tensors.vector(ctx, self.key)
        if self.offset:
            weight = tensors.binary(ctx, BinaryKind.ADD, weight, self.offset)
        return tensors.join_heads(ctx, tensors.binary(ctx, BinaryKind.MUL, norm, weight))


# Masks and inputs


@dataclass(frozen=True)
class AttnMask:
    """
    Lets attention see only the rows that an input `[rows]` marks by 1, not those by 0.

    The mask is left to stages of attention behind it; passes x through.
    """

    input: str = "mask"

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        kept = ctx.find_input(self.input)
        half = tensors.filled(ctx, 0.5, kept.shape)
        seen = ctx.insert(mir.CompareOp(CompareKind.GE, kept.id, half.id))
        zero, masked = (tensors.filled(ctx, number, kept.shape) for number in (0.0, MASKED))
        mask = ctx.insert(mir.SelectOp(seen.id, zero.id, masked.id))
        mask = tensors.broadcast(ctx, mask, (x.shape[0], *kept.shape))
        ctx.state.named[ATTN_MASK] = mask.id
        return x


@dataclass(frozen=True)
class BindDecodeInputs:
    """
    Declares the inputs of a step whose keys the caller keeps; passes x `[rows, d]` through.

    `cos` and `sin` `[rows, n_rot]` are the rows of the rotary tables for this step, and `past_k<i>`
    and `past_v<i>` `[past, kv_width]` are what layer i gave as `k<i>` and `v<i>` in earlier steps.
    A `mask` `[rows, keys]` is added to scores and says alone what a row sees; without one that is
    all up to itself. Attention behind it reads them.
    """

    layers: int
    kv_width: int
    n_rot: int
    past: Dim = PAST
    mask: bool = False

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        rows = x.shape[0]
        cos, sin = (ctx.input(name, (rows, self.n_rot)).id for name in ("cos", "sin"))
        mask = ctx.input("mask", (rows, _keys(self.past, rows))).id if self.mask else None
        k, v = (
            [ctx.input(f"past_{n}{i}", (self.past, self.kv_width)).id for i in range(self.layers)]
            for n in "kv"
        )
        ctx.state.decode = DecodeBindings(cos, sin, mask, k, v)
        return x


def _keys(past: Dim, rows: Dim) -> Dim:
    """Return the dimension of the keys that a step sees."""
    return past + rows if isinstance(past, int) and isinstance(rows, int) else KEYS


# Attention


@dataclass(frozen=True, kw_only=True)
class _Attention(ABC):
    """
    What attention has in common: the stages of its projections, and the features of a head.

    How many heads there are, and how many of keys, follows from what the projections give. With
    `tap` the keys and values of these rows are named: `k<i>` and `v<i>` in layer i of `Unroll`,
    else `k` and `v`.
    """

    query: FlowStage
    key: FlowStage
    value: FlowStage
    output: FlowStage
    head_dim: int
    rope: FlowStage | None = None
    scale: float | None = None
    """What scores are multiplied by; 1 / sqrt(head_dim) where None."""
    tap: bool = False

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        q, k, v = (
            _hinted(ctx.apply(stage, x), hint)
            for stage, hint in ((self.query, "q"), (self.key, "k"), (self.value, "v"))
        )
        if self.rope is not None:
            q = _hinted(ctx.apply(self.rope, q), "q_rot")
            k = _hinted(ctx.apply(self.rope, k), "k_rot")
        if self.tap:
            _expose(ctx, k, v)
        scale = 1 / math.sqrt(self.head_dim) if self.scale is None else self.scale
        return ctx.apply(self.output, _hinted(self.attend(ctx, q, k, v, scale), "attn"))

    @abstractmethod
    def attend(
        self, ctx: FlowCtx, q: FlowValue, k: FlowValue, v: FlowValue, scale: float
    ) -> FlowValue:
        """
        Emit the attention of queries `[rows, width]` on the keys and values of these rows.

        What it sees beside them is what the classes below differ in.
        """


def _hinted(x: FlowValue, hint: str) -> FlowValue:
    x.id.name_hint = hint
    return x


def _expose(ctx: FlowCtx, k: FlowValue, v: FlowValue) -> None:
    if ctx.repeated:
        raise RlxError("keys and values of a repeated layer have no names: Unroll the layers")
    layer = "" if ctx.layer is None else str(ctx.layer)
    ctx.state.named[f"k{layer}"], ctx.state.named[f"v{layer}"] = k.id, v.id


@dataclass(frozen=True, kw_only=True)
class SelfAttention(_Attention):
    """
    Causal attention on the positions so far.

    Appends the rows' keys and values to the states `k_cache` and `v_cache`, of `capacity`
    positions in the format `cache`, so that the same stage serves prompts and single tokens.
    """

    capacity: int
    cache: KvFormat = "f32"

    def attend(
        self, ctx: FlowCtx, q: FlowValue, k: FlowValue, v: FlowValue, scale: float
    ) -> FlowValue:
        keys, values = (
            ctx.append(
                name, role, self.capacity, self.head_dim, x, STORED[self.cache], ctx.state.places
            )
            for name, role, x in (
                ("k_cache", StateRole.KEYS, k),
                ("v_cache", StateRole.VALUES, v),
            )
        )
        places = ctx.state.places
        return ctx.insert(hir.AttentionOp(q.id, keys.id, values.id, self.head_dim, scale, places))


@dataclass(frozen=True, kw_only=True)
class SelfAttnPrefill(_Attention):
    """
    Attention of rows on each other alone, on those before only or, unless `causal`, on all.

    Adds the mask of `AttnMask` where there is one. `softcap` bounds the scores.
    """

    causal: bool = True
    softcap: float | None = None

    def attend(
        self, ctx: FlowCtx, q: FlowValue, k: FlowValue, v: FlowValue, scale: float
    ) -> FlowValue:
        mask = ctx.state.named.get(ATTN_MASK)
        heads = Heads(scale, self.causal, self.softcap)
        return heads.attend(ctx, q, k, v, self.head_dim, mask)


@dataclass(frozen=True, kw_only=True)
class SegmentSelfAttn(_Attention):
    """Attention of packed texts, each on itself: the input `starts [segments]` i32 parts them."""

    starts: str

    def attend(
        self, ctx: FlowCtx, q: FlowValue, k: FlowValue, v: FlowValue, scale: float
    ) -> FlowValue:
        # A file of rare operations: other attention goes without it.
        from rlx.ops.segments import SegmentAttentionOp

        starts = ctx.find_input(self.starts).id
        operands = q.id, k.id, v.id, starts
        return ctx.insert(SegmentAttentionOp(*operands, head_dim=self.head_dim, scale=scale))


@dataclass(frozen=True, kw_only=True)
class BoundAttention(_Attention):
    """Causal attention on what `BindDecodeInputs` declared for this layer, and on these rows."""

    softcap: float | None = None

    def attend(
        self, ctx: FlowCtx, q: FlowValue, k: FlowValue, v: FlowValue, scale: float
    ) -> FlowValue:
        decode, layer = ctx.state.decode, ctx.layer or 0
        if decode is None:
            raise RlxError("BoundAttention: expected BindDecodeInputs before it")
        if layer >= len(decode.past_k):
            raise RlxError(f"BoundAttention: expected inputs of layer {layer}, there are none")

        def all_of(past: HirNodeId, rows: FlowValue) -> FlowValue:
            before = FlowValue(past, ctx.node_shape(past))
            size = _keys(before.shape[0], rows.shape[0])
            return tensors.concat(ctx, 0, [before, rows], size)

        keys, values = all_of(decode.past_k[layer], k), all_of(decode.past_v[layer], v)
        heads = Heads(scale, decode.mask is None, self.softcap)
        return heads.attend(ctx, q, keys, values, self.head_dim, decode.mask)


@dataclass(frozen=True)
class Heads:
    """How scores become shares: their scale, whether later keys are seen, and their bound."""

    scale: float
    causal: bool
    softcap: float | None = None

    def attend(
        self,
        ctx: FlowCtx,
        q: FlowValue,
        k: FlowValue,
        v: FlowValue,
        head_dim: int,
        mask: HirNodeId | None,
    ) -> FlowValue:
        """
        Emit attention of `[m, heads * head_dim]` on `[n, kv_heads * head_dim]` twice.

        `mask` `[m, n]` is added to every head's scores. Gives `[m, heads * head_dim]`.
        """
        q, k, v = (tensors.heads_first(ctx, x, head_dim) for x in (q, k, v))
        if self.softcap is None:
            sdpa = mir.SdpaOp(q.id, k.id, v.id, self.scale, mask, self.causal)
            y = ctx.insert(sdpa)
        else:
            y = self._capped(ctx, q, k, v, mask, self.softcap)
        return tensors.join_heads(ctx, tensors.transpose(ctx, y, 1, 0, 2))

    def _capped(
        self,
        ctx: FlowCtx,
        q: FlowValue,
        k: FlowValue,
        v: FlowValue,
        mask: HirNodeId | None,
        cap: float,
    ) -> FlowValue:
        (heads, m, d), (kv_heads, n, _) = q.shape, k.shape
        assert isinstance(heads, int)
        assert isinstance(kv_heads, int)
        group = heads // kv_heads
        q = tensors.reshape(ctx, q, (kv_heads, group, m, d))
        k, v = (
            tensors.broadcast(
                ctx, tensors.reshape(ctx, x, (kv_heads, 1, n, d)), (kv_heads, group, n, d)
            )
            for x in (k, v)
        )
        scores = ctx.insert(mir.DotOp(q.id, k.id, rhs_t=True))
        scores = tensors.binary(ctx, BinaryKind.MUL, scores, self.scale)
        scores = tensors.softcap(ctx, scores, cap)
        if mask is not None:
            given = FlowValue(mask, ctx.node_shape(mask))
            scores = tensors.binary(ctx, BinaryKind.ADD, scores, given)
        if self.causal and m != 1:
            scores = self._without_later(ctx, scores)
        shares = ctx.insert(mir.SoftmaxOp(scores.id))
        return tensors.reshape(ctx, ctx.insert(mir.DotOp(shares.id, v.id)), (heads, m, d))

    def _without_later(self, ctx: FlowCtx, scores: FlowValue) -> FlowValue:
        m, n = scores.shape[-2:]
        if m != n:
            raise RlxError(
                f"causal attention with a soft cap: expected one query, or as many as keys, got "
                f"{m} and {n}: give a mask, and don't ask for causal"
            )
        row, column = (tensors.iota(ctx, (m, n), axis) for axis in (0, 1))
        later = ctx.insert(mir.CompareOp(CompareKind.GT, column.id, row.id))
        later = tensors.broadcast(ctx, later, scores.shape)
        masked = tensors.filled(ctx, MASKED, scores.shape)
        return ctx.insert(mir.SelectOp(later.id, masked.id, scores.id))
