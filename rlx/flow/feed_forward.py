"""Feed-forward stages of `[rows, d]`: gated ones (Shazeer, 2020), and plain ones with GELU."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.dialects import hir
from rlx.dialects.kinds import BinaryKind, UnaryKind
from rlx.errors import RlxError
from rlx.flow import tensors
from rlx.flow.context import FlowCtx
from rlx.flow.stages import LayerScale, Linear
from rlx.flow.state import FlowValue


@dataclass(frozen=True)
class SwiGlu:
    """(silu(x @ gate^T) * (x @ up^T)) @ down^T, of three weights by key."""

    up: str
    gate: str
    down: str

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        return _glu(ctx, UnaryKind.SILU, x, self.up, self.gate, self.down)


@dataclass(frozen=True)
class GeGlu:
    """(gelu(x @ gate^T) * (x @ up^T)) @ down^T; `kind` is the form of GELU."""

    up: str
    gate: str
    down: str
    kind: UnaryKind = UnaryKind.GELU_TANH

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        return _glu(ctx, self.kind, x, self.up, self.gate, self.down)


def _glu(ctx: FlowCtx, kind: UnaryKind, x: FlowValue, up: str, gate: str, down: str) -> FlowValue:
    """Emit the named operation, or under the policy `fusable` what the fusion passes may join."""
    # Loaded first, so that programs of either policy declare them in the same order.
    weights = [ctx.load_weight(key).id for key in (up, gate, down)]
    if ctx.profile.fusion.policy == "direct":
        return ctx.insert(hir.GluOp(kind, x.id, *weights), "ffn")
    gate_rows = Linear(gate, hint="gate").emit(ctx, x)
    up_rows = Linear(up, hint="up").emit(ctx, x)
    product = tensors.binary(ctx, BinaryKind.MUL, tensors.unary(ctx, kind, gate_rows), up_rows)
    return Linear(down, hint="ffn").emit(ctx, product)


@dataclass(frozen=True)
class GeluFfn:
    """
    gelu(x @ up^T + b) @ down^T + b, of two weights and their biases, which may be none.

    What each weight is multiplied with may have a factor for each feature, a weight of its own.
    """

    up: str
    down: str
    up_bias: str | None = None
    down_bias: str | None = None
    kind: UnaryKind = UnaryKind.GELU
    up_factors: str | None = None
    down_factors: str | None = None

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        x = _scaled(ctx, x, self.up_factors)
        wide = tensors.unary(ctx, self.kind, Linear(self.up, self.up_bias).emit(ctx, x))
        wide = _scaled(ctx, wide, self.down_factors)
        return Linear(self.down, self.down_bias, "ffn").emit(ctx, wide)


def _scaled(ctx: FlowCtx, x: FlowValue, factors: str | None) -> FlowValue:
    return x if factors is None else LayerScale(factors).emit(ctx, x)


@dataclass(frozen=True)
class VisionSwiGluFfn:
    """
    SwiGLU whose gate and up weights are one, `[2 h, d]`, gate first, with biases (DINOv2, 2023).

    (silu(y[:, :h]) * y[:, h:]) @ down^T + b where y = x @ both^T + b.
    """

    both: str
    down: str
    both_bias: str | None = None
    down_bias: str | None = None

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        y = Linear(self.both, self.both_bias).emit(ctx, x)
        width = y.shape[1]
        if not isinstance(width, int) or width % 2:
            raise RlxError(f"{self}: expected a weight of two halves, got {width} rows")
        half = width // 2
        gate, up = (tensors.part(ctx, y, 1, start, half) for start in (0, half))
        gated = tensors.unary(ctx, UnaryKind.SILU, gate)
        product = tensors.binary(ctx, BinaryKind.MUL, gated, up)
        return Linear(self.down, self.down_bias, "ffn").emit(ctx, product)
