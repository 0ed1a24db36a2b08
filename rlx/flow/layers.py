"""Stages of many layers: one function called for each, or each layer in line."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from rlx.dialects import hir
from rlx.dialects.common import dims_of
from rlx.errors import RlxError
from rlx.flow.context import FlowCtx, FlowStage
from rlx.flow.source import LAYER, WeightInfo
from rlx.flow.state import FlowValue


@dataclass(frozen=True)
class Repeat:
    """
    A stage for each of `count` layers, each layer taking what the one before gives.

    The stage becomes one function, called once for each layer. Where the weights of layers differ
    in shape or format, each run of equal layers gets a function of its own. `streams` are carried
    from layer to layer beside x.
    """

    count: int
    stage: FlowStage
    name: str = "layer"
    streams: tuple[str, ...] = ()

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        if self.count < 1:
            raise RlxError(f"Repeat: expected at least one layer, got {self.count}")
        for stream in self.streams:
            ctx.stream(stream)
        outlined = ctx.outline(self.name, 0, self.stage, x, self.streams)
        keys = outlined.keys

        def signature(layer: int) -> list[WeightInfo]:
            return [ctx.weights.info(key.replace(LAYER, str(layer))) for key in keys]

        for _, group in groupby(range(self.count), signature):
            layers = list(group)
            first, last = layers[0], layers[-1] + 1
            if first > 0:
                outlined = ctx.outline(self.name, first, self.stage, x, self.streams)
            carried = [x.id, *(ctx.stream(stream).id for stream in self.streams)]
            arguments = [*carried, *outlined.captured]
            op = hir.RepeatOp(outlined.function, first, last, arguments, len(carried))
            x = ctx.insert(op, "x")
            for stream, result in zip(self.streams, op.results[1:], strict=True):
                result.name_hint = stream
                ctx.state.streams[stream] = FlowValue(result, dims_of(result.type))
        ctx.state.hidden_shape = x.shape
        return x


@dataclass(frozen=True)
class Unroll:
    """
    `count` layers in line, for those with inputs and outputs of their own, as `LlamaKvTap`.

    The program grows with the layers: where they have none, `Repeat` them.
    """

    count: int
    stage: FlowStage

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue:
        for layer in range(self.count):
            with ctx.in_line(layer):
                x = ctx.apply(self.stage, x)
        ctx.state.hidden_shape = x.shape
        return x
