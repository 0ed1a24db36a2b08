"""
Encoders of text and images: every row sees every other, or those that `AttnMask` leaves.

Layers of text are named as Hugging Face's files name them, by a prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import f32

from rlx.dialects import mir
from rlx.dialects.common import element_of
from rlx.dialects.kinds import BinaryKind, UnaryKind
from rlx.flow import tensors
from rlx.flow.attention import Rope, SegmentSelfAttn, SelfAttnPrefill
from rlx.flow.context import FlowCtx
from rlx.flow.feed_forward import GeluFfn, SwiGlu
from rlx.flow.source import LAYER
from rlx.flow.stages import Columns, LayerNorm, Linear, ResidualAdd, ResidualSave, Sequence
from rlx.flow.state import FlowValue


@dataclass(frozen=True)
class BertEmbeddings:
    """
    What BERT's layers take, of the ids of tokens: `[rows] i32 -> [rows, d]`.

    That is the norm of the sum of three tables' rows: of words, of positions, which the input
    `positions [rows]` i32 numbers, and of types, where all are of the first.
    """

    eps: float = 1e-12
    prefix: str = "embeddings."
    positions: str = "positions"

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        def gathered(table: str, ids: FlowValue) -> FlowValue:
            # Not an embedding, which reads panels: these are no operands of products.
            table_rows = ctx.load_weight(f"{self.prefix}{table}_embeddings.weight")
            return _as_f32(ctx, ctx.insert(mir.GatherOp(table_rows.id, ids.id, 0)))

        rows = gathered("word", x)
        positions = gathered("position", ctx.find_input(self.positions))
        types = ctx.load_weight(f"{self.prefix}token_type_embeddings.weight")
        first = tensors.part(ctx, types, 0, 0, 1)
        first = _as_f32(ctx, tensors.reshape(ctx, first, rows.shape[1:]))
        total = tensors.binary(ctx, BinaryKind.ADD, rows, first)
        total = tensors.binary(ctx, BinaryKind.ADD, total, positions)
        norm = f"{self.prefix}LayerNorm"
        return LayerNorm(f"{norm}.weight", f"{norm}.bias", self.eps).emit(ctx, total)


def _as_f32(ctx: FlowCtx, x: FlowValue) -> FlowValue:
    return x if element_of(x.id.type) == f32 else ctx.insert(mir.CastOp(x.id, f32))


@dataclass(frozen=True)
class BertEncoderLayer:
    """A layer of BERT (Devlin et al., 2019): norm(x + attention(x)), then norm(x + ffn(x))."""

    head_dim: int
    eps: float = 1e-12
    prefix: str = f"encoder.layer.{LAYER}."
    activation: str = "gelu"
    """The kind of map between the two products of the feed-forward part."""
    starts: str | None = None
    """The input `[segments]` that says where packed texts start; rows are one text without."""
    factors: bool = False
    """Whether inputs of feed-forward products are multiplied with weights, `*.dense.factors`."""

    def _linear(self, name: str) -> Linear:
        return Linear(f"{self.prefix}{name}.weight", f"{self.prefix}{name}.bias")

    def _norm(self, name: str) -> LayerNorm:
        return LayerNorm(f"{self.prefix}{name}.weight", f"{self.prefix}{name}.bias", self.eps)

    def _factors(self, name: str) -> str | None:
        return f"{self.prefix}{name}.dense.factors" if self.factors else None

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        query, key, value = (
            self._linear(f"attention.self.{name}") for name in ("query", "key", "value")
        )
        output = self._linear("attention.output.dense")
        if self.starts is None:
            attention = SelfAttnPrefill(
                query=query,
                key=key,
                value=value,
                output=output,
                head_dim=self.head_dim,
                causal=False,
            )
        else:
            attention = SegmentSelfAttn(
                query=query,
                key=key,
                value=value,
                output=output,
                head_dim=self.head_dim,
                starts=self.starts,
            )
        up, down = (self._linear(f"{name}.dense") for name in ("intermediate", "output"))
        stages = (
            ResidualSave(),
            attention,
            ResidualAdd(),
            self._norm("attention.output.LayerNorm"),
            ResidualSave(),
            GeluFfn(
                up.key,
                down.key,
                up.bias,
                down.bias,
                UnaryKind(self.activation),
                up_factors=self._factors("intermediate"),
                down_factors=self._factors("output"),
            ),
            ResidualAdd(),
            self._norm("output.LayerNorm"),
        )
        return Sequence(stages).emit(ctx, x)


@dataclass(frozen=True)
class JointSelfAttn:
    """Attention whose queries, keys and values are one product, by a weight `[3 d, d]`."""

    joint: Linear
    output: Linear
    head_dim: int
    rope: Rope | None = None

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        y = ctx.apply(self.joint, x)
        width = y.shape[1]
        assert isinstance(width, int)
        query, key, value = (Columns(i * (width // 3), width // 3) for i in range(3))
        attention = SelfAttnPrefill(
            query=query,
            key=key,
            value=value,
            output=self.output,
            head_dim=self.head_dim,
            rope=self.rope,
            causal=False,
        )
        return attention.emit(ctx, y)


@dataclass(frozen=True)
class NomicEncoderLayer:
    """
    A layer of Nomic Embed (Nussbaum et al., 2024): BERT's with rotary positions and SwiGLU.

    It has no biases but those of norms; `RopeTables` come before it.
    """

    head_dim: int
    eps: float = 1e-12
    prefix: str = f"encoder.layers.{LAYER}."

    def _key(self, name: str) -> str:
        return f"{self.prefix}{name}.weight"

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        norms = (
            LayerNorm(self._key(name), f"{self.prefix}{name}.bias", self.eps)
            for name in ("norm1", "norm2")
        )
        joint, output = (Linear(self._key(f"attn.{name}")) for name in ("Wqkv", "out_proj"))
        rope = Rope(self.head_dim, "halves", start=None)
        stages = (
            ResidualSave(),
            JointSelfAttn(joint, output, self.head_dim, rope),
            ResidualAdd(),
            next(norms),
            ResidualSave(),
            SwiGlu(self._key("mlp.fc11"), self._key("mlp.fc12"), self._key("mlp.fc2")),
            ResidualAdd(),
            next(norms),
        )
        return Sequence(stages).emit(ctx, x)


@dataclass(frozen=True)
class VitSelfAttn:
    """Attention of a vision transformer (Dosovitskiy et al., 2021), with weights as timm's."""

    head_dim: int
    prefix: str = f"blocks.{LAYER}.attn."

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        joint, output = (
            Linear(f"{self.prefix}{name}.weight", f"{self.prefix}{name}.bias")
            for name in ("qkv", "proj")
        )
        return JointSelfAttn(joint, output, self.head_dim).emit(ctx, x)


@dataclass(frozen=True)
class ClsTokenPool:
    """The first row of x, that of the class token: `[rows, d] -> [1, d]`."""

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        return ctx.insert(mir.GatherOp(x.id, tensors.indices(ctx, [0]).id, 0), "cls")


@dataclass(frozen=True)
class SegmentMean:
    """The mean row of each packed text: `[rows, d] -> [segments, d]`, by an input of starts."""

    starts: str

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        from rlx.ops.segments import SegmentMeanOp

        return ctx.insert(SegmentMeanOp(x.id, ctx.find_input(self.starts).id), "mean")


@dataclass(frozen=True)
class L2Norm:
    """Rows divided by their lengths, of which none is below `eps`."""

    eps: float = 1e-12

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        return tensors.root_mean_square(ctx, x, self.eps * self.eps, mean=False)
