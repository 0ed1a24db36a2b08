"""
The stages that models are composed of.

A stage is a frozen dataclass: what it is made of, and `emit`, which builds its HIR. Weights are
named by the keys of the source; a key with `{layer}` is a layer's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from xdsl.ir import Operation

from rlx.dialects import hir, mir
from rlx.dialects.common import Dim, tensor
from rlx.dialects.ops import StateRole
from rlx.dialects.primitives import BinaryKind, UnaryKind
from rlx.errors import RlxError
from rlx.flow.context import PAST, FlowCtx, FlowStage
from rlx.flow.source import LAYER, WeightInfo
from rlx.flow.state import FlowValue


@dataclass(frozen=True)
class Sequence:
    """Stages one after the other."""

    stages: tuple[FlowStage, ...]

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        for stage in self.stages:
            x = ctx.apply(stage, x)
        return x


@dataclass(frozen=True)
class Named:
    """A stage whose result later stages and the outputs of the model know by a name."""

    name: str
    stage: FlowStage

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        y = ctx.apply(self.stage, x)
        ctx.state.named[self.name] = y.id
        return y


@dataclass(frozen=True)
class Emit:
    """The escape hatch: appends any operation; `ctx` gives weights, state and inputs."""

    ctx: FlowCtx

    def __call__(self, op: Operation, hint: str | None = None) -> FlowValue:
        return self.ctx.insert(op, hint)


@dataclass(frozen=True)
class Custom:
    """A stage made of a function that emits operations of its own."""

    build: Callable[[Emit, FlowValue], FlowValue]

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        return self.build(Emit(ctx), x)


@dataclass(frozen=True)
class Repeat:
    """
    A stage for each of `count` layers, each layer taking what the one before gives.

    The stage becomes one function, called once for each layer. Where the weights of layers differ
    in shape or format, each run of equal layers gets a function of its own.
    """

    count: int
    stage: FlowStage
    name: str = "layer"

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        if self.count < 1:
            raise RlxError(f"Repeat: expected at least one layer, got {self.count}")
        outlined = ctx.outline(self.name, 0, self.stage, x)
        keys = outlined.keys

        def signature(layer: int) -> list[WeightInfo]:
            return [ctx.weights.info(key.replace(LAYER, str(layer))) for key in keys]

        for _, group in groupby(range(self.count), signature):
            layers = list(group)
            first, last = layers[0], layers[-1] + 1
            if first > 0:
                outlined = ctx.outline(self.name, first, self.stage, x)
            arguments = [x.id, *outlined.captured]
            x = ctx.insert(hir.RepeatOp(outlined.function, first, last, arguments, 1), "x")
        ctx.state.hidden_shape = x.shape
        return x


@dataclass(frozen=True)
class Embed:
    """Rows of a table chosen by ids: `[rows] i32 -> [rows, d]`. `LmHead` may read the table."""

    key: str

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        table = ctx.load_weight(self.key).id
        y = ctx.insert(hir.EmbeddingOp(x.id, table), "x")
        ctx.state.embed_weight = table
        ctx.state.hidden_shape = y.shape
        return y


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
class RmsNorm:
    """Root-mean-square norm over the last dimension, scaled by an f32 weight."""

    key: str
    eps: float

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        weight = ctx.load_weight(self.key)
        return ctx.insert(hir.RmsNormOp(x.id, weight.id, self.eps), "norm")


@dataclass(frozen=True)
class Linear:
    """`[rows, k] -> [rows, n]` by a weight `[n, k]`, in the weight's own format."""

    key: str
    hint: str = "y"

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        return ctx.insert(hir.LinearOp(x.id, ctx.load_weight(self.key).id), self.hint)


@dataclass(frozen=True)
class ResidualSave:
    """Keeps x for the next `ResidualAdd`; passes it through."""

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        ctx.state.residual_skip, ctx.state.residual_shape = x.id, x.shape
        return x


@dataclass(frozen=True)
class ResidualAdd:
    """Adds what `ResidualSave` kept."""

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        skip = ctx.state.residual_skip
        if skip is None:
            raise RlxError("ResidualAdd: expected a ResidualSave before it")
        if ctx.state.residual_shape != x.shape:
            raise RlxError(
                f"ResidualAdd: expected the shape that was kept, {ctx.state.residual_shape}, "
                f"got {x.shape}"
            )
        ctx.state.residual_skip = ctx.state.residual_shape = None
        return ctx.insert(mir.BinaryOp(BinaryKind.ADD, skip, x.id), "sum")


@dataclass(frozen=True)
class SwiGlu:
    """(silu(x @ gate^T) * (x @ up^T)) @ down^T, of three weights by key."""

    up: str
    gate: str
    down: str

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        up, gate, down = (ctx.load_weight(key).id for key in (self.up, self.gate, self.down))
        return ctx.insert(hir.GluOp(UnaryKind.SILU, x.id, up, gate, down), "ffn")


@dataclass(frozen=True)
class SelfAttention:
    """
    Causal attention of x `[rows, d]` on the positions so far, with rotary embedding.

    Appends the rows' keys and values to the states `k_cache` and `v_cache`, so that the same
    stage serves prompts and single tokens. Needs `RopeTables` before it. `query`, `key`, `value`
    and `output` are weights by key; how many heads there are follows from their shapes.
    """

    query: str
    key: str
    value: str
    output: str
    head_dim: int
    capacity: int

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        cos, sin = ctx.state.rope_cos, ctx.state.rope_sin
        if cos is None or sin is None:
            raise RlxError("SelfAttention: expected RopeTables before it")

        def rotate(y: FlowValue, hint: str) -> FlowValue:
            return ctx.insert(hir.RopeOp(y.id, cos, sin, PAST, self.head_dim), hint)

        q = Linear(self.query, "q").emit(ctx, x)
        k = Linear(self.key, "k").emit(ctx, x)
        v = Linear(self.value, "v").emit(ctx, x)
        q, k = rotate(q, "q_rot"), rotate(k, "k_rot")
        keys = ctx.append("k_cache", StateRole.KEYS, self.capacity, self.head_dim, k)
        values = ctx.append("v_cache", StateRole.VALUES, self.capacity, self.head_dim, v)
        scale = 1 / math.sqrt(self.head_dim)
        attention = hir.AttentionOp(q.id, keys.id, values.id, self.head_dim, scale)
        return Linear(self.output, "o").emit(ctx, ctx.insert(attention, "attn"))


@dataclass(frozen=True)
class LlamaDecodeLayer:
    """
    A decoder layer of Llama (Touvron et al., 2023), with weights named as GGUF files name them.

    x + attention(norm(x)), then x + swiglu(norm(x)).
    """

    head_dim: int
    capacity: int
    eps: float
    prefix: str = f"blk.{LAYER}."

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        def key(name: str) -> str:
            return f"{self.prefix}{name}.weight"

        heads = (key(f"attn_{name}") for name in ("q", "k", "v", "output"))
        ffn = (key(f"ffn_{name}") for name in ("up", "gate", "down"))
        stages = (
            ResidualSave(),
            RmsNorm(key("attn_norm"), self.eps),
            SelfAttention(*heads, head_dim=self.head_dim, capacity=self.capacity),
            ResidualAdd(),
            ResidualSave(),
            RmsNorm(key("ffn_norm"), self.eps),
            SwiGlu(*ffn),
            ResidualAdd(),
        )
        return Sequence(stages).emit(ctx, x)


@dataclass(frozen=True)
class LastRows:
    """The last rows of x: `[rows, d] -> [out, d]`, `out` a number or a dimension up to rows."""

    out: Dim

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        if x.shape[0] == self.out:
            return x
        type_ = tensor([self.out, *x.shape[1:]])
        return ctx.insert(hir.LastRowsOp(x.id, type_), "last")


@dataclass(frozen=True)
class GatherLastToken:
    """The last row of x: `[rows, d] -> [1, d]`."""

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        return LastRows(1).emit(ctx, x)


@dataclass(frozen=True)
class LmHead:
    """Logits `[rows, vocab]` of x `[rows, d]`; without a key, by the table of `Embed` (tied)."""

    key: str | None = None

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        weight = ctx.state.embed_weight if self.key is None else ctx.load_weight(self.key).id
        if weight is None:
            raise RlxError("LmHead: expected a key, or an Embed before it whose table is used")
        return ctx.insert(hir.LinearOp(x.id, weight), "logits")


@dataclass(frozen=True)
class Sample:
    """Draws a token `[1] i32` from the last row of logits; `params` is an input `[8] i32`."""

    params: str = "sampling"

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        if self.params not in ctx.state.inputs:
            known = ", ".join(ctx.state.inputs) or "none"
            raise RlxError(f"Sample: expected an input {self.params!r}, the inputs are: {known}")
        params, _ = ctx.state.inputs[self.params]
        return ctx.insert(hir.SampleOp(x.id, params), "id")
