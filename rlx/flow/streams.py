"""
Models of several streams, such as images and texts: what each stream is, and where they meet.

A stream is a value `[rows, d]` that stages know by its name. `Repeat` carries those it is told to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlx.dialects.common import Dim
from rlx.errors import RlxError
from rlx.flow import tensors
from rlx.flow.attention import Heads
from rlx.flow.context import FlowCtx, FlowStage
from rlx.flow.state import FlowValue


@dataclass(frozen=True)
class StoreStream:
    """Makes x the stream of this name; passes it through."""

    name: str

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        ctx.state.streams[self.name] = x
        return x


@dataclass(frozen=True)
class LoadStream:
    """Gives the stream of this name, or an input of the model that no stage has changed."""

    name: str

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        if self.name not in ctx.state.streams and self.name in ctx.state.inputs:
            return FlowValue(*ctx.state.inputs[self.name])
        return ctx.stream(self.name)


@dataclass(frozen=True)
class DualStream:
    """Two streams, each through a stage of its own; gives the first one."""

    first: str
    second: str
    first_stage: FlowStage
    second_stage: FlowStage

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        for name, stage in ((self.first, self.first_stage), (self.second, self.second_stage)):
            stream = LoadStream(name).emit(ctx, x)
            ctx.state.streams[name] = ctx.apply(stage, stream)
        return ctx.stream(self.first)


@dataclass(frozen=True)
class StreamAttention:
    """What a stream brings to `JointAttention`: the stages of its projections."""

    query: FlowStage
    key: FlowStage
    value: FlowStage
    output: FlowStage


@dataclass(frozen=True)
class JointAttention:
    """
    Attention of two streams on the rows of both (Esser et al., 2024); gives the first stream.

    Each stream, `[rows, d]`, becomes its own rows of what attention gives, by its own projections.
    The rows of the streams are numbers.
    """

    first: str
    second: str
    first_weights: StreamAttention
    second_weights: StreamAttention
    head_dim: int

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        sides = ((self.first, self.first_weights), (self.second, self.second_weights))
        streams = [LoadStream(name).emit(ctx, x) for name, _ in sides]
        counts = [self._rows(stream) for stream in streams]
        joined: list[FlowValue] = []
        for projection in ("query", "key", "value"):
            parts = [
                ctx.apply(getattr(weights, projection), stream)
                for (_, weights), stream in zip(sides, streams, strict=True)
            ]
            joined.append(tensors.concat(ctx, 0, parts, sum(counts)))
        heads = Heads(1 / math.sqrt(self.head_dim), causal=False)
        q, k, v = joined
        y = heads.attend(ctx, q, k, v, self.head_dim, None)
        for (name, weights), start, rows in zip(sides, (0, counts[0]), counts, strict=True):
            own = tensors.part(ctx, y, 0, start, rows)
            ctx.state.streams[name] = ctx.apply(weights.output, own)
        return ctx.stream(self.first)

    def _rows(self, stream: FlowValue) -> int:
        rows: Dim = stream.shape[0]
        if not isinstance(rows, int):
            raise RlxError(f"{self}: expected streams of a number of rows, got {rows}")
        return rows
