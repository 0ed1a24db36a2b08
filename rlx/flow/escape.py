"""The escape hatch: stages that emit operations of HIR and primitives of MIR directly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.ir import Operation

from rlx.flow.context import FlowCtx
from rlx.flow.state import FlowValue


@dataclass(frozen=True)
class Emit:
    """Appends any operation; `ctx` gives weights, state and inputs."""

    ctx: FlowCtx

    def __call__(self, op: Operation, hint: str | None = None) -> FlowValue:
        return self.ctx.insert(op, hint)


@dataclass(frozen=True)
class Custom:
    """A stage made of a function that emits operations of its own."""

    build: Callable[[Emit, FlowValue], FlowValue]

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        return self.build(Emit(ctx), x)
