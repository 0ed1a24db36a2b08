"""What tests of golden files share: one run of an operation, and the parts of larger layers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from op_cases import module_of
from xdsl.ir import SSAValue

from rlx.dialects.common import dims_of
from rlx.dialects.kinds import BinaryKind, ReduceKind, UnaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.flow.source import MapWeights
from rlx.functions import CompiledFunction
from rlx.functions import build as build_module
from rlx.lowering.target import Target
from rlx.ops.record import Case, nmse
from rlx.ops.registry import record_of

sys.path.insert(0, str(Path(__file__).parents[1] / "oracle"))
inputs = import_module("oracle_inputs")

Arrays = Mapping[str, np.ndarray]
Values = Mapping[str, SSAValue]
Build = Callable[[Writer, Values], Sequence[SSAValue]]


def run(arrays: Arrays, build: Build) -> list[np.ndarray]:
    """Compile what `build` writes for arrays by name, and return its results on them."""
    names = list(arrays)

    def written(w: Writer, values: Sequence[SSAValue]) -> Sequence[SSAValue]:
        return build(w, dict(zip(names, values, strict=True)))

    module = module_of([Case(list(arrays.values()), written)])
    built = build_module(module, Target.host())
    function = CompiledFunction(built, MapWeights({}), 2, poison=True)
    given = function(*arrays.values())
    return list(given) if isinstance(given, tuple) else [given]


def named(name: str, *args: SSAValue, **options: Any) -> NamedOp:
    """Return an operation by its name."""
    op = record_of(name).op
    assert issubclass(op, NamedOp)
    return op(*args, **options)


def assert_golden(got: np.ndarray, wanted: np.ndarray, limit: float = 1e-11) -> None:
    assert got.shape == wanted.shape
    error = nmse(got, wanted)
    assert error <= limit, f"NMSE {error:.1e}"


def windows(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as our operations name them."""
    return {"low" if name == "padding" else name: value for name, value in options.items()}


# Parts of layers, as transformers' are


class Layer:
    """Writes a layer whose parameters are values by their names, on rows `[rows, d]`."""

    def __init__(self, w: Writer, values: Values):
        self.w, self.values = w, values

    def linear(self, x: SSAValue, name: str) -> SSAValue:
        return self.w.dot(x, self.values[f"{name}.weight"], y_t=True)

    def add(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.w.binary(BinaryKind.ADD, x, y)

    def mul(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.w.binary(BinaryKind.MUL, x, y)

    def row(self, name: str, like: SSAValue) -> SSAValue:
        """Return a vector repeated for each row of another value."""
        return self.w.spread(self.values[name], dims_of(like.type))

    def rms(self, x: SSAValue, eps: float, mean: bool = True) -> SSAValue:
        """Divide by the root of the mean, or of the sum, of squares over the last axis."""
        kind = ReduceKind.MEAN if mean else ReduceKind.SUM
        squares = self.w.last(kind, self.mul(x, x))
        return self.mul(
            x, self.w.unary(UnaryKind.RSQRT, self.w.binary(BinaryKind.ADD, squares, eps))
        )

    def norm_of_one(self, x: SSAValue, name: str, eps: float) -> SSAValue:
        """A norm whose weight is added to one."""
        weight = self.w.binary(BinaryKind.ADD, self.row(f"{name}.weight", x), 1.0)
        return self.mul(self.rms(x, eps), weight)

    def columns(self, x: SSAValue, *sizes: int) -> list[SSAValue]:
        """Cut the last axis into parts of some sizes."""
        axis, start, parts = len(dims_of(x.type)) - 1, 0, []
        for size in sizes:
            parts.append(self.w.slice(x, axis, start, size))
            start += size
        return parts

    def silu(self, x: SSAValue) -> SSAValue:
        return self.w.unary(UnaryKind.SILU, x)

    def swiglu(self, x: SSAValue, name: str) -> SSAValue:
        gate = self.silu(self.linear(x, f"{name}.gate_proj"))
        up = self.linear(x, f"{name}.up_proj")
        return self.linear(self.mul(gate, up), f"{name}.down_proj")
