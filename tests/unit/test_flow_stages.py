"""The stages of models of every kind: each against numpy, by the reference and compiled."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flows import RandomWeights, check, flow_of, layer_norm, rms_norm, silu
from xdsl.dialects.builtin import f32, i32

from rlx.dialects import hir
from rlx.dialects.kinds import UnaryKind
from rlx.errors import RlxError
from rlx.flow.context import FlowStage
from rlx.flow.feed_forward import GeGlu, GeluFfn, SwiGlu, VisionSwiGluFfn
from rlx.flow.model import BuiltModel, ModelFlow
from rlx.flow.profile import CompileProfile
from rlx.flow.source import MapWeights
from rlx.flow.stages import (
    Activation,
    Columns,
    Embed,
    EmbedScale,
    GatherAdd,
    GatherFromInput,
    GemmaRmsNorm,
    LayerNorm,
    LayerScale,
    Linear,
    LogitSoftcap,
    Named,
    ZeroBeta,
)

ROWS, D = 5, 24
erf = np.vectorize(math.erf)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def rows(seed: int = 0, shape: tuple[int, ...] = (ROWS, D)) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def built(*stages: FlowStage, weights: MapWeights | None = None) -> BuiltModel:
    return flow_of(*stages, x=((ROWS, D), f32)).build(weights or MapWeights({}))


def test_linear_with_a_bias():
    w = RandomWeights(1, w=(7, D), b=(7,))
    x = rows()
    check(built(Linear("w", "b"), weights=w), {"x": x}, {"y": x @ w["w"].T + w["b"]})


def test_a_bias_in_half_precision_is_cast():
    class Half(RandomWeights):
        def info(self, key: str):
            return super().info(key)._replace(format="f16" if key == "b" else "f32")

        def raw(self, key: str) -> np.ndarray:
            data = self.arrays[key]
            return (data.astype(np.float16) if key == "b" else data).view(np.uint8).reshape(-1)

        def take(self, key: str, transpose: bool = False):
            data, shape = super().take(key, transpose)
            return (data.astype(np.float16).astype(np.float32) if key == "b" else data), shape

    w = Half(1, w=(7, D), b=(7,))
    x, b = rows(), w.arrays["b"].astype(np.float16).astype(np.float64)
    check(built(Linear("w", "b"), weights=w), {"x": x}, {"y": x @ w["w"].T + b})


@pytest.mark.parametrize("zero_beta", [None, D, D + 1])
def test_layer_norm_without_a_bias_takes_zeros(zero_beta: int | None):
    w = RandomWeights(2, g=(D,))
    before = () if zero_beta is None else (ZeroBeta(zero_beta),)
    model = built(*before, LayerNorm("g", eps=1e-3), weights=w)
    assert f"zeros.{D}" in model.params
    declared = [op for op in model.module.ops if isinstance(op, hir.WeightOp)]
    assert len(declared) == (3 if zero_beta == D + 1 else 2)
    x = rows()
    check(model, {"x": x}, {"y": layer_norm(x, w["g"], 0.0, 1e-3)})


def test_layer_norm_with_a_bias():
    w = RandomWeights(2, g=(D,), b=(D,))
    x = rows()
    expected = layer_norm(x, w["g"], w["b"], 1e-5)
    check(built(LayerNorm("g", "b"), weights=w), {"x": x}, {"y": expected})


def test_gemma_norm_adds_one_to_its_weight():
    w = RandomWeights(3, g=(D,))
    x = rows()
    expected = rms_norm(x, 1 + w["g"], 1e-6)
    check(built(GemmaRmsNorm("g", 1e-6), weights=w), {"x": x}, {"y": expected})


def test_layer_scale_columns_and_activation():
    w = RandomWeights(4, s=(D,))
    x = rows()
    stages = (LayerScale("s"), Columns(3, 8), Activation(UnaryKind.SILU))
    expected = silu((x * w["s"])[:, 3:11])
    check(built(*stages, weights=w), {"x": x}, {"y": expected})


def test_softcap_bounds_logits():
    x = 40 * rows()
    check(built(LogitSoftcap(30.0)), {"x": x}, {"y": 30 * np.tanh(x / 30)})


def test_embeddings_of_three_tables():
    """As BERT's: words, positions by number, and types by the ids of another input."""
    w = RandomWeights(5, word=(50, D), position=(ROWS, D), type=(2, D))
    stages = (Embed("word"), EmbedScale(4.5), GatherAdd("position"), GatherAdd("type", "types"))
    flow = flow_of(*stages, ids=((ROWS,), i32), types=((ROWS,), i32))
    ids = np.array([3, 49, 0, 7, 7], np.int32)
    types = np.array([0, 0, 1, 1, 0], np.int32)
    expected = w["word"][ids] * 4.5 + w["position"] + w["type"][types]
    check(flow.build(w), {"ids": ids, "types": types}, {"y": expected})


def test_gather_from_an_input():
    w = RandomWeights(6, table=(9, 4))
    flow = ModelFlow("test").input("x", (ROWS, D)).input("ids", (3,), i32)
    flow.stage(Named("rows", GatherFromInput("ids", "table")))
    model = flow.output("rows").build(w)
    x, ids = rows(), np.array([8, 0, 8], np.int32)
    check(model, {"x": x, "ids": ids}, {"rows": w["table"][ids]})
    own = ModelFlow("test").input("x", (ROWS, D)).input("ids", (3,), i32)
    model = own.stage(Named("y", GatherFromInput("ids"))).output("y").build(MapWeights({}))
    ids = np.array([4, 1, 4], np.int32)
    check(model, {"x": x, "ids": ids}, {"y": x[ids]})


@pytest.mark.parametrize("policy", ["direct", "fusable"])
@pytest.mark.parametrize(
    ("stage", "activation"),
    [
        (SwiGlu("up", "gate", "down"), silu),
        (GeGlu("up", "gate", "down"), gelu_tanh),
        (GeGlu("up", "gate", "down", UnaryKind.GELU), gelu),
    ],
)
def test_gated_feed_forward(stage: FlowStage, activation, policy: str):
    w = RandomWeights(7, up=(40, D), gate=(40, D), down=(D, 40))
    profile = CompileProfile.prefill() if policy == "direct" else CompileProfile.decode()
    model = flow_of(stage, x=((ROWS, D), f32)).build(w, profile)
    named = [op for op in model.module.walk() if isinstance(op, hir.GluOp)]
    assert len(named) == (1 if policy == "direct" else 0)
    x = rows()
    expected = (activation(x @ w["gate"].T) * (x @ w["up"].T)) @ w["down"].T
    check(model, {"x": x}, {"y": expected})


@pytest.mark.parametrize("biases", [False, True])
def test_gelu_feed_forward(biases: bool):
    w = RandomWeights(8, up=(40, D), down=(D, 40), ub=(40,), db=(D,))
    stage = GeluFfn("up", "down", "ub", "db") if biases else GeluFfn("up", "down")
    x = rows()
    expected = gelu(x @ w["up"].T + biases * w["ub"]) @ w["down"].T + biases * w["db"]
    check(built(stage, weights=w), {"x": x}, {"y": expected})


def test_vision_swiglu_has_gate_and_up_in_one():
    w = RandomWeights(9, both=(64, D), down=(D, 32), bb=(64,), db=(D,))
    x = rows()
    y = x @ w["both"].T + w["bb"]
    expected = (silu(y[:, :32]) * y[:, 32:]) @ w["down"].T + w["db"]
    model = built(VisionSwiGluFfn("both", "down", "bb", "db"), weights=w)
    check(model, {"x": x}, {"y": expected})


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (VisionSwiGluFfn("fives", "down"), "two halves, got 5 rows"),
        (GatherAdd("w", "ids"), "expected an input 'ids', the inputs are: x"),
        (GatherAdd("w", "x"), r"input 'x': expected i32, got \[5, 24\] f32"),
        (GatherAdd("fifth"), r"expected a position for each of up to 5 rows, got \[4, 24\]"),
        (GatherAdd("odd"), r"expected rows \[5, 24\], got \[5, 23\] f32"),
        (LayerScale("odd"), r"LayerScale\(key='odd'\)"),
        (Linear("w", "odd"), r"Linear\(key='w', bias='odd'"),
        (Columns(20, 8), r"Columns\(start=20, width=8\)"),
        (LayerNorm("quant"), "expected f32, f16 or bf16 for maps"),
    ],
)
def test_stage_errors(stage: FlowStage, message: str):
    class Some(RandomWeights):
        def info(self, key: str):
            return super().info(key)._replace(format="q8_0" if key == "quant" else "f32")

    w = Some(10, w=(9, D), odd=(5, D - 1), fifth=(4, D), fives=(5, D), quant=(32,))
    with pytest.raises(RlxError, match=message):
        built(stage, weights=w)
