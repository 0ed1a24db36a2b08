"""Build flows on random weights, run them by the reference and compiled, and compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from kernels import nmse
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

import rlx
from rlx.dialects import hir
from rlx.dialects.common import DimTable, dims_of
from rlx.flow.context import FlowStage
from rlx.flow.model import BuiltModel, ModelFlow
from rlx.flow.source import MapWeights
from rlx.flow.stages import Named, Sequence
from rlx.passes.diagnostics import verify
from rlx.passes.verify_stage import verify_stage
from rlx.reference.interpreter import Reference

Arrays = dict[str, np.ndarray]


class RandomWeights(MapWeights):
    """Arrays of the given shapes, small enough that what they multiply stays of its size."""

    def __init__(self, seed: int, **shapes: tuple[int, ...]):
        rng = np.random.default_rng(seed)
        self.arrays = {
            key: (rng.standard_normal(shape) / max(shape[-1], 1) ** 0.5).astype(np.float32)
            for key, shape in shapes.items()
        }
        super().__init__(self.arrays)

    def __getitem__(self, key: str) -> np.ndarray:
        return self.arrays[key].astype(np.float64)


def flow_of(*stages: FlowStage, **inputs: tuple[tuple[int | str, ...], Attribute]) -> ModelFlow:
    """A flow of stages from its first input to the output `y`."""
    flow = ModelFlow("test")
    for name, (shape, element) in inputs.items():
        flow.input(name, shape, element)
    return flow.stage(Named("y", Sequence(stages))).output("y")


def reference(built: BuiltModel, inputs: Arrays, dims: Mapping[str, int] | None = None) -> Arrays:
    """The outputs by the reference in float64."""
    weights: Arrays = {}
    for op in built.module.ops:
        if isinstance(op, hir.WeightOp):
            layers = range(100) if op.is_family else range(1)
            keys = [op.key.data.replace("{layer}", str(n)) for n in layers]
            weights |= {key: built.weights.take(key)[0] for key in keys if built.weights.has(key)}
    return Reference(built.module, weights).run(inputs, dims)


class Checked:
    """A valid model, compiled once, whose results are compared with what is expected of them."""

    def __init__(self, built: BuiltModel):
        verify(built.module)
        verify_stage(built.module, "hir")
        self.built = built
        self.compiled = rlx.compile(built.module, built.weights, threads=2)

    def __call__(
        self,
        inputs: Arrays,
        expected: Mapping[str, np.ndarray],
        dims: Mapping[str, int] | None = None,
    ) -> Arrays:
        """Assert that reference and compiled program give what is expected; return the former."""
        results = reference(self.built, inputs, _free(self.built, inputs, dims))
        for name, wanted in expected.items():
            np.testing.assert_allclose(results[name], wanted, rtol=1e-9, atol=1e-9)
        outputs = self.compiled(**{name: _single(a) for name, a in inputs.items()}, dims=dims)
        names = [io.name for io in self.compiled.manifest.outputs]
        given = outputs if isinstance(outputs, tuple) else (outputs,)
        for name, result in zip(names, given, strict=True):
            assert nmse(result, results[name]) < 1e-10, name
        return results


def check(built: BuiltModel, inputs: Arrays, expected: Mapping[str, np.ndarray]) -> None:
    """Assert that the reference and the compiled program give what is expected."""
    Checked(built)(inputs, expected)


def _single(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float32) if a.dtype == np.float64 else a


def _free(built: BuiltModel, inputs: Arrays, dims: Mapping[str, int] | None) -> dict[str, int]:
    """The sizes of the free dimensions: those given, and those that inputs have."""
    free = DimTable.of(built.module).free
    functions = [op for op in built.module.ops if isinstance(op, FuncOp)]
    (main,) = [f for f in functions if f.sym_name.data == "main"]
    sizes = dict(dims or {})
    for arg, given in zip(main.args, inputs.values(), strict=True):
        shape = zip(dims_of(arg.type), given.shape, strict=True)
        sizes |= {dim: size for dim, size in shape if isinstance(dim, str) and dim in free}
    return sizes


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | float, eps: float
) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    head_dim: int,
    *,
    scale: float | None = None,
    causal: bool = False,
    mask: np.ndarray | float = 0.0,
    bound: Callable[[np.ndarray], np.ndarray] = lambda s: s,
) -> np.ndarray:
    """Attention head by head: q `[m, heads * head_dim]`, k and v `[n, kv_heads * head_dim]`."""
    heads, kv_heads = q.shape[1] // head_dim, k.shape[1] // head_dim
    result = np.empty_like(q)
    for h in range(heads):
        own = slice(h * head_dim, (h + 1) * head_dim)
        kv = h // (heads // kv_heads)
        shared = slice(kv * head_dim, (kv + 1) * head_dim)
        scores = bound(q[:, own] @ k[:, shared].T * (scale or head_dim**-0.5)) + mask
        if causal:
            later = np.arange(len(k))[None, :] > np.arange(len(q))[:, None] + len(k) - len(q)
            scores = np.where(later, -np.inf, scores)
        result[:, own] = softmax(scores) @ v[:, shared]
    return result


def rope(
    x: np.ndarray, head_dim: int, base: float, start: int = 0, halves: bool = True
) -> np.ndarray:
    """Rotation of pairs, as complex numbers: (i, i + half) or (2i, 2i + 1) of each head."""
    rows, half = len(x), head_dim // 2
    angles = (start + np.arange(rows))[:, None] * base ** (-np.arange(half) / half)
    heads = x.reshape(rows, -1, head_dim)
    if halves:
        turned = heads[..., :half] + 1j * heads[..., half:]
    else:
        turned = heads[..., ::2] + 1j * heads[..., 1::2]
    turned = turned * np.exp(1j * angles)[:, None]
    parts = [turned.real, turned.imag]
    both = np.concatenate(parts, 2) if halves else np.stack(parts, 3)
    return both.reshape(x.shape)
