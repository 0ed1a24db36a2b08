"""The builder of models: inputs, stages, outputs, and the dimensions of the program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr, f32
from xdsl.ir import Attribute

from rlx.dialects.common import DIMS, Dim, DimDef, DimTableAttr
from rlx.dialects.lir import ADVANCE, CARRY, set_few_rows
from rlx.errors import RlxError
from rlx.flow.context import FlowCtx, FlowStage
from rlx.flow.layers import Repeat
from rlx.flow.profile import CompileProfile
from rlx.flow.source import ChainWeights, MapWeights, WeightSource
from rlx.flow.state import HirNodeId, Shape


@dataclass(frozen=True)
class BuiltModel:
    """A program in HIR, the data of its own parameters, and the source of all its weights."""

    module: ModuleOp
    params: dict[str, NDArray[np.float32]]
    weights: WeightSource
    profile: CompileProfile


class ModelFlow:
    """
    A model as a flow of stages: the first input goes through all of them in order.

    Outputs are values that `Named` stages have named. Every method but `dim`, `dim_sum` and
    `build` returns the flow, for chaining.
    """

    def __init__(self, name: str):
        self.name = name
        self._dims: dict[str, DimDef] = {}
        self._inputs: list[tuple[str, Shape, Attribute]] = []
        self._stages: list[FlowStage] = []
        self._outputs: list[str] = []
        self._carry: dict[str, str] = {}
        self._advance: dict[str, str] = {}
        self._few_rows = False

    def dim(self, name: str, low: int, high: int) -> Dim:
        """
        Declare a dimension from `low` to `high`; return what stands for it in shapes.

        That is its name, or the number when there is only one.
        """
        if not 0 <= low <= high:
            raise RlxError(f"dimension {name!r}: expected 0 <= low <= high, got {low} to {high}")
        self._add_dim(DimDef(name, low, high))
        return low if low == high else name

    def dim_sum(self, name: str, a: str, b: str) -> Dim:
        """Declare a dimension that is the sum of two declared ones; return its name."""
        missing = next((d for d in (a, b) if d not in self._dims), None)
        if missing is not None:
            raise RlxError(f"dimension {name!r}: expected {missing!r} to be declared before it")
        self._add_dim(DimDef(name, operator="+", operands=(a, b)))
        return name

    def _add_dim(self, dim: DimDef) -> None:
        if dim.name in self._dims:
            raise RlxError(f"dimension {dim.name!r} is declared twice")
        self._dims[dim.name] = dim

    def input(self, name: str, shape: Shape, element: Attribute = f32) -> Self:
        """Add an input of the program; the first one is what the first stage takes."""
        self._inputs.append((name, shape, element))
        return self

    def stage(self, stage: FlowStage) -> Self:
        """Add a stage behind the others."""
        self._stages.append(stage)
        return self

    def repeat_layers(self, count: int, stage: FlowStage) -> Self:
        """Add a stage for each of `count` layers; see `Repeat`."""
        return self.stage(Repeat(count, stage))

    def output(self, name: str) -> Self:
        """Make the value of this name an output, behind the others."""
        self._outputs.append(name)
        return self

    def carry(self, input: str, output: str) -> Self:
        """Let an output of a step be an input of the next one."""
        self._carry[input] = output
        return self

    def advance(self, dim: str, by: str) -> Self:
        """Let a dimension grow after a step by another one."""
        self._advance[dim] = by
        return self

    def few_rows(self) -> Self:
        """Let each row times a packed weight be what it is alone, in a program of one row."""
        self._few_rows = True
        return self

    def build(self, weights: WeightSource, profile: CompileProfile | None = None) -> BuiltModel:
        """
        Run the stages; return the program.

        Raises RlxError for weights that are missing, shapes that don't fit, and outputs that no
        stage has named.
        """
        ctx = FlowCtx.define(self.name, weights, profile)
        ctx.dims.update(self._dims)
        if not self._inputs or not self._outputs:
            raise RlxError(f"flow {self.name!r}: expected at least one input and one output")
        x, *_ = [ctx.input(*given) for given in self._inputs]
        for stage in self._stages:
            x = ctx.apply(stage, x)
        ctx.finish({name: self._named(ctx, name) for name in self._outputs})
        attributes = ctx.module.attributes
        if self._few_rows:
            set_few_rows(ctx.module)
        attributes[DIMS] = DimTableAttr.of(ctx.dims.values())
        for key, links in ((CARRY, self._carry), (ADVANCE, self._advance)):
            if links:
                attributes[key] = DictionaryAttr({k: StringAttr(v) for k, v in links.items()})
        source = ChainWeights([MapWeights(ctx.params), weights]) if ctx.params else weights
        return BuiltModel(ctx.module, ctx.params, source, ctx.profile)

    def _named(self, ctx: FlowCtx, name: str) -> HirNodeId:
        if name not in ctx.state.named:
            known = ", ".join(ctx.state.named) or "none"
            raise RlxError(f"flow {self.name!r}: no value is named {name!r}; named are: {known}")
        return ctx.state.named[name]
