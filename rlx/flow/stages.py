"""
The stages that models of every kind are composed of.

A stage is a frozen dataclass: what it is made of, and `emit`, which builds its HIR. Weights are
named by the keys of the source; a key with `{layer}` is a layer's own. `docs/flow.md` lists all
stages; those of attention, decoders, encoders, streams and delta nets are in files of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import f32, i32

from rlx.dialects import hir, mir
from rlx.dialects.common import Dim, DimTable, element_of, spell, tensor
from rlx.dialects.kinds import BinaryKind, UnaryKind
from rlx.errors import RlxError
from rlx.flow import tensors
from rlx.flow.context import FlowCtx, FlowStage
from rlx.flow.state import FlowValue

ZEROS = "zeros"
"""The name of the parameter that `ZeroBeta` makes, followed by its length."""
ONES = "ones"
"""The name of the parameter that scales nothing, followed by its length."""


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
class Activation:
    """An element-wise function of x."""

    kind: UnaryKind

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        return tensors.unary(ctx, self.kind, x)


# Tables and rows


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
class EmbedScale:
    """x times a number: Gemma multiplies what it embeds by sqrt(d)."""

    scale: float

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        return tensors.binary(ctx, BinaryKind.MUL, x, self.scale, "x")


@dataclass(frozen=True)
class GatherFromInput:
    """
    Rows chosen by the ids of an input, `[n] i32`: those of the table `key`, or else of x.

    Gives `[n, d]`. An id beyond the rows of x means its first or last one.
    """

    input: str
    key: str | None = None

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        ids = _ids(ctx, self.input)
        if self.key is not None:
            return ctx.insert(hir.EmbeddingOp(ids.id, ctx.load_weight(self.key).id))
        return ctx.insert(mir.GatherOp(x.id, ids.id, 0))


@dataclass(frozen=True)
class GatherAdd:
    """
    x plus the rows of a table: those of an input's ids `[rows] i32`, or row i for row i of x.

    Without an input these are learned positions, and the table has a row for each of x.
    """

    key: str
    input: str | None = None

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        table = ctx.load_weight(self.key)
        if self.input is not None:
            ids = _ids(ctx, self.input)
        else:
            ids = tensors.iota(ctx, x.shape[:1], 0)
            most, positions = DimTable(ctx.dims).size(x.shape[0]), table.shape[0]
            if isinstance(positions, int) and most > positions:
                raise RlxError(
                    f"{self}: expected a position for each of up to {most} rows, "
                    f"got {spell(table.id.type)}"
                )
        rows = ctx.insert(hir.EmbeddingOp(ids.id, table.id))
        if rows.shape != x.shape:
            raise RlxError(f"{self}: expected rows {list(x.shape)}, got {spell(rows.id.type)}")
        return tensors.binary(ctx, BinaryKind.ADD, x, rows)


def _ids(ctx: FlowCtx, name: str) -> FlowValue:
    """Return an input of indices by name."""
    value = ctx.find_input(name)
    if element_of(value.id.type) != i32:
        raise RlxError(f"input {name!r}: expected i32, got {spell(value.id.type)}")
    return value


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
class Columns:
    """Some columns of x, `[rows, n] -> [rows, width]`: a part of what a joint product gives."""

    start: int
    width: int

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        return tensors.part(ctx, x, 1, self.start, self.width)


# Norms


@dataclass(frozen=True)
class ZeroBeta:
    """Leaves f32 zeros `[length]` to the norms that have no bias of their own; passes x through."""

    length: int

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        ctx.state.zero_beta = ctx.synth_zeros(f"{ZEROS}.{self.length}", self.length)
        return x


@dataclass(frozen=True)
class RmsNorm:
    """Root-mean-square norm over the last dimension, scaled by a weight of f32, f16 or bf16."""

    key: str
    eps: float

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        loaded = ctx.load_weight(self.key)
        if element_of(loaded.id.type) == f32:
            return ctx.insert(hir.RmsNormOp(x.id, loaded.id, self.eps), "norm")
        return _scaled_norm(ctx, x, self.eps, tensors.vector(ctx, self.key))


@dataclass(frozen=True)
class GemmaRmsNorm:
    """Root-mean-square norm scaled by 1 + weight, as Gemma's own files store it."""

    key: str
    eps: float

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        weight = tensors.vector(ctx, self.key)
        scale = tensors.binary(ctx, BinaryKind.ADD, weight, 1.0)
        return _scaled_norm(ctx, x, self.eps, scale)


def _scaled_norm(ctx: FlowCtx, x: FlowValue, eps: float, scale: FlowValue) -> FlowValue:
    """Return the norm of x times a computed `[d]`: the operation itself takes weights alone."""
    (d,) = scale.shape
    assert isinstance(d, int)
    norm = ctx.insert(hir.RmsNormOp(x.id, ctx.synth_ones(f"{ONES}.{d}", d), eps))
    return tensors.binary(ctx, BinaryKind.MUL, norm, scale, "norm")


@dataclass(frozen=True)
class LayerNorm:
    """Norm to mean 0 and variance 1 over the last dimension; without a bias, by zeros."""

    key: str
    bias: str | None = None
    eps: float = 1e-5

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        weight = tensors.vector(ctx, self.key)
        bias = self._zeros(ctx, weight) if self.bias is None else tensors.vector(ctx, self.bias)
        return ctx.insert(mir.LayerNormOp(x.id, weight.id, bias.id, self.eps), "norm")

    def _zeros(self, ctx: FlowCtx, weight: FlowValue) -> FlowValue:
        zeros = ctx.state.zero_beta
        if zeros is None or ctx.node_shape(zeros) != weight.shape:
            (length,) = weight.shape
            assert isinstance(length, int)
            zeros = ctx.synth_zeros(f"{ZEROS}.{length}", length)
        return ctx.wrap(zeros, weight.shape)


# Products and sums


@dataclass(frozen=True)
class Linear:
    """`[rows, k] -> [rows, n]` by a weight `[n, k]` in its own format, and a bias `[n]` or none."""

    key: str
    bias: str | None = None
    hint: str = "y"

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        y = ctx.insert(hir.LinearOp(x.id, ctx.load_weight(self.key).id), self.hint)
        if self.bias is None:
            return y
        return tensors.binary(ctx, BinaryKind.ADD, y, tensors.vector(ctx, self.bias), self.hint)


@dataclass(frozen=True)
class LayerScale:
    """x times a weight for each feature (Touvron et al., 2021)."""

    key: str

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        return tensors.binary(ctx, BinaryKind.MUL, x, tensors.vector(ctx, self.key))


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


# Heads


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
class LogitSoftcap:
    """c * tanh(x / c), which bounds logits by c."""

    cap: float

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        return tensors.softcap(ctx, x, self.cap)


@dataclass(frozen=True)
class Sample:
    """Draws a token `[1] i32` from the last row of logits; `params` is an input `[8] i32`."""

    params: str = "sampling"

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        return ctx.insert(hir.SampleOp(x.id, ctx.find_input(self.params).id), "id")
