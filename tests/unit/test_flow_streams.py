"""Several streams and gated delta nets, against numpy: by the reference and compiled."""

from __future__ import annotations

import math
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
from flows import Checked, RandomWeights, attention, check, flow_of, layer_norm
from xdsl.dialects.builtin import f32

from rlx.dialects import hir, mir
from rlx.dialects.kinds import UnaryKind
from rlx.errors import RlxError
from rlx.flow.gdn import NORM_EPS, GdnGate, GdnInputs, GdnScan
from rlx.flow.layers import Repeat
from rlx.flow.model import ModelFlow
from rlx.flow.stages import (
    Activation,
    LayerNorm,
    Linear,
    Named,
    ResidualAdd,
    ResidualSave,
    Sequence,
)
from rlx.flow.streams import DualStream, JointAttention, LoadStream, StoreStream, StreamAttention
from rlx.reference.sequence import gated_delta_net

D, HEAD, IMG, TXT = 32, 16, 5, 3
EXAMPLE = Path(__file__).parents[2] / "examples" / "two_streams.py"


def x_of(rows: int, seed: int = 0, width: int = D) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width))


# Streams


def test_streams_are_kept_and_found():
    w = RandomWeights(1, a=(D, D), b=(D, D))
    stages = (
        StoreStream("first"),
        Linear("a"),
        StoreStream("second"),
        LoadStream("first"),
        ResidualSave(),
        LoadStream("second"),
        Linear("b"),
        ResidualAdd(),
    )
    model = flow_of(*stages, x=((IMG, D), f32)).build(w)
    x = x_of(IMG)
    check(model, {"x": x}, {"y": x + x @ w["a"].T @ w["b"].T})


def test_two_streams_go_through_their_own_stages():
    w = RandomWeights(2, a=(D, D), b=(D, D))
    stages = (DualStream("img", "txt", Linear("a"), Linear("b")), Named("img_out", Sequence(())))
    flow = flow_of(*stages, LoadStream("txt"), img=((IMG, D), f32), txt=((TXT, D), f32))
    flow.output("img_out")
    img, txt = x_of(IMG), x_of(TXT, 1)
    expected = {"y": txt @ w["b"].T, "img_out": img @ w["a"].T}
    check(flow.build(w), {"img": img, "txt": txt}, expected)


def attention_weights(stream: str) -> StreamAttention:
    return StreamAttention(*(Linear(f"blk.{{layer}}.{stream}.{n}") for n in "qkvo"))


def test_layers_carry_streams():
    """Two layers of joint attention as one function that takes and gives both streams."""
    names = [f"blk.{n}.{s}.{m}" for n in range(2) for s in ("img", "txt") for m in "qkvo"]
    w = RandomWeights(3, **dict.fromkeys(names, (D, D)))
    joint = JointAttention("img", "txt", attention_weights("img"), attention_weights("txt"), HEAD)
    stages = (
        StoreStream("img"),
        LoadStream("txt"),
        StoreStream("txt"),
        LoadStream("img"),
        Repeat(2, joint, streams=("img", "txt")),
        Named("img_out", LoadStream("img")),
        LoadStream("txt"),
    )
    flow = flow_of(*stages, img=((IMG, D), f32), txt=((TXT, D), f32)).output("img_out")
    model = flow.build(w)
    (repeat,) = [op for op in model.module.walk() if isinstance(op, hir.RepeatOp)]
    assert len(repeat.res) == 3
    img, txt = x_of(IMG), x_of(TXT, 1)
    given = {"img": img, "txt": txt}
    for n in range(2):

        def of(stream: str, name: str, x: np.ndarray, n: int = n) -> np.ndarray:
            return x @ w[f"blk.{n}.{stream}.{name}"].T

        q, k, v = (np.concatenate([of("img", m, img), of("txt", m, txt)]) for m in "qkv")
        y = attention(q, k, v, HEAD)
        img, txt = of("img", "o", y[:IMG]), of("txt", "o", y[IMG:])
    check(model, given, {"y": txt, "img_out": img})


def test_the_example_of_two_streams_is_right():
    error = run_path(str(EXAMPLE))["main"]()
    assert error < 1e-10


def test_streams_that_are_missing():
    with pytest.raises(RlxError, match="expected a stream 'txt', the streams are: img"):
        flow_of(StoreStream("img"), LoadStream("txt"), x=((1, D), f32)).build(RandomWeights(0))
    stage = Repeat(1, Sequence(()), streams=("img",))
    with pytest.raises(RlxError, match="expected a stream 'img', the streams are: none"):
        flow_of(stage, x=((1, D), f32)).build(RandomWeights(0))


def test_a_stream_that_a_layer_changes_is_carried_or_refused():
    w = RandomWeights(6, **{"blk.0.w": (D, D), "blk.1.w": (D, D)})
    layer = Sequence((LoadStream("img"), Linear("blk.{layer}.w"), StoreStream("img")))
    lost = (StoreStream("img"), Repeat(2, layer), LoadStream("img"))
    with pytest.raises(RlxError, match="changes the stream 'img': name it in Repeat's streams"):
        flow_of(*lost, x=((IMG, D), f32)).build(w)
    kept = (StoreStream("img"), Repeat(2, layer, streams=("img",)), LoadStream("img"))
    x = x_of(IMG)
    expected = x @ w["blk.0.w"].T @ w["blk.1.w"].T
    check(flow_of(*kept, x=((IMG, D), f32)).build(w), {"x": x}, {"y": expected})


def test_streams_of_a_symbolic_number_of_rows_are_refused():
    w = RandomWeights(4, **{f"blk.0.{n}": (D, D) for n in "qkvo"})
    side = StreamAttention(*(Linear(f"blk.0.{n}") for n in "qkvo"))
    flow = ModelFlow("test")
    seq = flow.dim("seq", 1, 4)
    flow.input("img", (seq, D)).input("txt", (TXT, D))
    flow.stage(Named("y", JointAttention("img", "txt", side, side, HEAD))).output("y")
    with pytest.raises(RlxError, match="expected streams of a number of rows, got seq"):
        flow.build(w)


# Gated delta nets


HEADS, KEY_HEADS, N, E = 4, 2, 8, 24


def delta_net(**scan: str) -> tuple[GdnInputs, GdnScan]:
    gate = Sequence((Linear("g"), GdnGate("a", "dt")))
    beta = Sequence((Linear("beta"), Activation(UnaryKind.SIGMOID)))
    inputs = GdnInputs(Linear("q"), Linear("k"), Linear("v"), gate, beta, N, E)
    return inputs, GdnScan(**scan)


def delta_weights() -> RandomWeights:
    return RandomWeights(
        5,
        q=(KEY_HEADS * N, D),
        k=(KEY_HEADS * N, D),
        v=(HEADS * E, D),
        g=(HEADS, D),
        beta=(HEADS, D),
        a=(HEADS,),
        dt=(HEADS,),
        o=(D, HEADS * E),
        norm=(D,),
    )


def delta_rows(w: RandomWeights, x: np.ndarray) -> list[np.ndarray]:
    """The inputs of the scan by their formulas."""
    rows = len(x)
    q, k = ((x @ w[n].T).reshape(rows, KEY_HEADS, N) for n in "qk")
    q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + NORM_EPS) for y in (q, k))
    v = (x @ w["v"].T).reshape(rows, HEADS, E)
    g = -np.exp(w["a"]) * np.log1p(np.exp(x @ w["g"].T + w["dt"]))
    return [q, k, v, g, 1 / (1 + np.exp(-x @ w["beta"].T))]


def test_a_layer_with_a_delta_net():
    w = delta_weights()
    stages = (
        ResidualSave(),
        LayerNorm("norm", eps=1e-6),
        *delta_net(),
        Linear("o"),
        ResidualAdd(),
    )
    flow = ModelFlow("test")
    flow.dim("seq", 1, 16)
    flow.input("x", ("seq", D)).stage(Named("y", Sequence(stages))).output("y")
    model = flow.build(w)
    assert len([op for op in model.module.walk() if isinstance(op, mir.GatedDeltaNetOp)]) == 1
    checked = Checked(model)
    for rows in (1, 9):
        x = x_of(rows)
        h = layer_norm(x, w["norm"], 0.0, 1e-6)
        output, _ = gated_delta_net(*delta_rows(w, h))
        checked({"x": x}, {"y": x + output.reshape(rows, -1) @ w["o"].T})


def test_state_goes_from_step_to_step():
    w = delta_weights()
    flow = ModelFlow("test").input("x", (1, D)).input("state", (HEADS, N, E))
    flow.stage(Named("y", Sequence(delta_net(state="state", final="next"))))
    checked = Checked(flow.output("y").output("next").build(w))
    x, state = x_of(4), np.zeros((HEADS, N, E))
    whole, end = gated_delta_net(*delta_rows(w, x))
    for t in range(4):
        expected = {"y": whole[t].reshape(1, -1)}
        state = checked({"x": x[t : t + 1], "state": state}, expected)["next"]
    np.testing.assert_allclose(state, end, rtol=1e-9)
    assert math.isfinite(state.sum())


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (GdnScan(), "GdnScan: expected GdnInputs before it"),
        (Sequence(delta_net(state="s")), "expected an input 's', the inputs are: x"),
        (
            GdnInputs(*(Linear(n) for n in "qkvgg"), key_dim=5, value_dim=E),
            "rows of whole heads of 5",
        ),
    ],
)
def test_delta_net_errors(stage, message: str):
    with pytest.raises(RlxError, match=message):
        flow_of(stage, x=((2, D), f32)).build(delta_weights())
