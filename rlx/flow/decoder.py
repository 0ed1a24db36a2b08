"""
Decoders: layers of a family, stacks of them, and layers that give their keys and values.

The keys before this step are where the model puts them. With `capacity` positions they are state of
the program; behind `BindDecodeInputs` they are its inputs, and each layer gives those of its rows;
with neither, a layer reads a whole text at once. Weights are named as GGUF files name them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rlx.contract.quant import KvFormat
from rlx.errors import RlxError
from rlx.flow.attention import BoundAttention, HeadNorm, Rope, SelfAttention, SelfAttnPrefill
from rlx.flow.context import PAST, FlowCtx, FlowStage
from rlx.flow.feed_forward import GeGlu, SwiGlu
from rlx.flow.layers import Repeat, Unroll
from rlx.flow.source import LAYER
from rlx.flow.stages import GemmaRmsNorm, Linear, ResidualAdd, ResidualSave, RmsNorm, Sequence
from rlx.flow.state import FlowValue


@dataclass(frozen=True)
class LlamaDecodeLayer:
    """
    A layer of Llama (Touvron et al., 2023): x + attention(norm(x)), then x + swiglu(norm(x)).

    Layers of other families say what is different in theirs.
    """

    head_dim: int
    capacity: int | None
    eps: float
    prefix: str = f"blk.{LAYER}."
    tap: bool = False
    """Whether the keys and values of these rows are named: see `LlamaKvTap`."""
    cache: KvFormat = "f32"
    """What the keys and values of `capacity` positions are kept in."""
    pairs: ClassVar[Literal["neighbours", "halves"]] = "neighbours"

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        stages = (
            ResidualSave(),
            self.norm("attn_norm"),
            self.attention(ctx),
            ResidualAdd(),
            ResidualSave(),
            self.norm("ffn_norm"),
            self.feed_forward(),
            ResidualAdd(),
        )
        return Sequence(stages).emit(ctx, x)

    def key(self, name: str) -> str:
        return f"{self.prefix}{name}.weight"

    def norm(self, name: str) -> FlowStage:
        return RmsNorm(self.key(name), self.eps)

    def projection(self, name: str) -> FlowStage:
        return Linear(self.key(f"attn_{name}"))

    def feed_forward(self) -> FlowStage:
        return SwiGlu(self.key("ffn_up"), self.key("ffn_gate"), self.key("ffn_down"))

    def attention(
        self, ctx: FlowCtx, scale: float | None = None, softcap: float | None = None
    ) -> FlowStage:
        """Return the attention of this layer, on whatever keys the model has."""
        bound = ctx.state.decode is not None
        placed = bound or ctx.state.places is not None
        start = PAST if self.capacity is not None and not placed else None
        query, key, value = (self.projection(name) for name in "qkv")
        output = Linear(self.key("attn_output"), hint="o")
        rope = Rope(self.head_dim, self.pairs, start)
        if bound:
            return BoundAttention(
                query=query, key=key, value=value, output=output, head_dim=self.head_dim,
                rope=rope, scale=scale, softcap=softcap, tap=True,
            )  # fmt: skip
        if self.capacity is None:
            return SelfAttnPrefill(
                query=query, key=key, value=value, output=output, head_dim=self.head_dim,
                rope=rope, scale=scale, softcap=softcap, tap=self.tap,
            )  # fmt: skip
        if softcap is not None:
            raise RlxError(
                f"{self}: scores on cached keys have no soft cap: bind the keys as inputs "
                "(BindDecodeInputs), or leave out the capacity"
            )
        return SelfAttention(
            query=query, key=key, value=value, output=output, head_dim=self.head_dim,
            rope=rope, scale=scale, tap=self.tap, capacity=self.capacity, cache=self.cache,
        )  # fmt: skip


@dataclass(frozen=True)
class Qwen3DecodeLayer(LlamaDecodeLayer):
    """A layer of Qwen3 (2025): as Llama's, with norms of the heads of queries and keys."""

    pairs: ClassVar[Literal["neighbours", "halves"]] = "halves"

    def projection(self, name: str) -> FlowStage:
        linear = super().projection(name)
        if name == "v":
            return linear
        return Sequence((linear, HeadNorm(self.key(f"attn_{name}_norm"), self.head_dim, self.eps)))


@dataclass(frozen=True)
class GemmaDecodeLayer(LlamaDecodeLayer):
    """
    A layer of Gemma 2 or 3 (2024, 2025): norms before and behind each half, GeGLU.

    Gemma 2 bounds scores by `softcap`; Gemma 3 has `head_norms` of queries and keys in its place.
    `scale` is 1 / sqrt(query_pre_attn_scalar). Weights of norms are stored less 1, as in Gemma's
    own files, unless `offset` is False, as in GGUF files.
    """

    softcap: float | None = None
    scale: float | None = None
    head_norms: bool = False
    offset: bool = True
    pairs: ClassVar[Literal["neighbours", "halves"]] = "halves"

    def norm(self, name: str) -> FlowStage:
        return GemmaRmsNorm(self.key(name), self.eps) if self.offset else super().norm(name)

    def projection(self, name: str) -> FlowStage:
        linear = super().projection(name)
        if name == "v" or not self.head_norms:
            return linear
        key, offset = self.key(f"attn_{name}_norm"), float(self.offset)
        return Sequence((linear, HeadNorm(key, self.head_dim, self.eps, offset)))

    def feed_forward(self) -> FlowStage:
        return GeGlu(self.key("ffn_up"), self.key("ffn_gate"), self.key("ffn_down"))

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        stages = (
            ResidualSave(),
            self.norm("attn_norm"),
            self.attention(ctx, self.scale, self.softcap),
            self.norm("post_attention_norm"),
            ResidualAdd(),
            ResidualSave(),
            self.norm("ffn_norm"),
            self.feed_forward(),
            self.norm("post_ffw_norm"),
            ResidualAdd(),
        )
        return Sequence(stages).emit(ctx, x)


@dataclass(frozen=True)
class LlamaKvTap(LlamaDecodeLayer):
    """
    A layer whose keys and values, `[rows, kv_width]`, are named, for outputs of the model.

    They are `k<i>` and `v<i>` in layer i of `Unroll`, keys after rotation, as `BindDecodeInputs`
    takes them in later steps.
    """

    tap: bool = True


@dataclass(frozen=True)
class GemmaKvTap(GemmaDecodeLayer):
    """A Gemma layer whose keys and values are named, as those of `LlamaKvTap`."""

    tap: bool = True


@dataclass(frozen=True)
class LlamaDecoder:
    """`count` layers: one function for all, or in line where layers have outputs of their own."""

    count: int
    layer: LlamaDecodeLayer

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        if ctx.state.decode is not None or self.layer.tap:
            return Unroll(self.count, self.layer).emit(ctx, x)
        return Repeat(self.count, self.layer).emit(ctx, x)


@dataclass(frozen=True)
class Qwen3Decoder(LlamaDecoder):
    """The layers of a Qwen3."""

    layer: Qwen3DecodeLayer
