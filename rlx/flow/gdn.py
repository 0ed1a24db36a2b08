"""Gated delta nets (Yang et al., 2024): what goes into one, and the scan over the rows."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.dialects import mir
from rlx.dialects.kinds import BinaryKind, UnaryKind
from rlx.errors import RlxError
from rlx.flow import tensors
from rlx.flow.context import FlowCtx, FlowStage
from rlx.flow.state import FlowValue, GdnInputSlots

NORM_EPS = 1e-6
"""What is added to the squared length of a query or a key before its root."""


@dataclass(frozen=True)
class GdnInputs:
    """
    Leaves the inputs of `GdnScan`, made of x `[rows, d]` by a stage each; passes x through.

    Queries and keys come as `[rows, key_heads * n]`, values as `[rows, heads * e]`, the logarithm
    of the decay and beta as `[rows, heads]`. Queries and keys are brought to length 1, unless
    `normalise` is False.
    """

    query: FlowStage
    key: FlowStage
    value: FlowStage
    gate: FlowStage
    beta: FlowStage
    key_dim: int
    value_dim: int
    normalise: bool = True

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        q, k = (self._heads(ctx, stage, x, self.key_dim) for stage in (self.query, self.key))
        if self.normalise:
            q, k = (tensors.root_mean_square(ctx, y, NORM_EPS, mean=False) for y in (q, k))
        v = self._heads(ctx, self.value, x, self.value_dim)
        g, beta = (ctx.apply(stage, x) for stage in (self.gate, self.beta))
        ctx.state.gdn = GdnInputSlots(q.id, k.id, v.id, g.id, beta.id)
        return x

    def _heads(self, ctx: FlowCtx, stage: FlowStage, x: FlowValue, width: int) -> FlowValue:
        return tensors.split_heads(ctx, ctx.apply(stage, x), width)


@dataclass(frozen=True)
class GdnGate:
    """The logarithm of a decay, -exp(a) * softplus(x + b), by weights `[heads]` (as in Mamba)."""

    a: str
    b: str

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        rate = tensors.unary(ctx, UnaryKind.EXP, tensors.vector(ctx, self.a))
        step = tensors.binary(ctx, BinaryKind.ADD, x, tensors.vector(ctx, self.b))
        step = tensors.unary(ctx, UnaryKind.SOFTPLUS, step)
        fall = tensors.binary(ctx, BinaryKind.MUL, step, rate)
        return tensors.unary(ctx, UnaryKind.NEG, fall, "g")


@dataclass(frozen=True)
class GdnScan:
    """
    The scan of what `GdnInputs` left: `[rows, heads * e]`.

    It starts from the input `state`, `[heads, n, e]`, or from zeros; `final` names the state after
    the last row.
    """

    state: str | None = None
    final: str | None = None

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        slots = ctx.state.gdn
        if slots is None:
            raise RlxError("GdnScan: expected GdnInputs before it")
        state = None if self.state is None else ctx.find_input(self.state).id
        op = mir.GatedDeltaNetOp(slots.q, slots.k, slots.v, slots.g, slots.beta, state)
        y = ctx.insert(op, "gdn")
        op.final.name_hint = "gdn_state"
        if self.final is not None:
            ctx.state.named[self.final] = op.final
        ctx.state.gdn = None
        return tensors.join_heads(ctx, y)
