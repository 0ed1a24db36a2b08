"""Encoders and attention without a cache, against numpy: by the reference and compiled."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flows import (
    Checked,
    RandomWeights,
    attention,
    check,
    flow_of,
    layer_norm,
    reference,
    rms_norm,
    rope,
    silu,
)
from xdsl.dialects.builtin import f32

from rlx.errors import RlxError
from rlx.flow.attention import (
    AttnMask,
    DecodeRopeParams,
    HeadNorm,
    Heads,
    Rope,
    RopeTables,
    SelfAttnPrefill,
)
from rlx.flow.context import FlowCtx
from rlx.flow.encoder import BertEncoderLayer, ClsTokenPool, NomicEncoderLayer, VitSelfAttn
from rlx.flow.feed_forward import VisionSwiGluFfn
from rlx.flow.layers import Repeat
from rlx.flow.model import ModelFlow
from rlx.flow.source import MapWeights
from rlx.flow.stages import (
    LayerNorm,
    LayerScale,
    Linear,
    Named,
    ResidualAdd,
    ResidualSave,
    Sequence,
)

ROWS, D, HEAD = 6, 32, 16
erf = np.vectorize(math.erf)


def x_of(rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, D))


def bert_shapes(prefix: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (n, k) in {
        "attention.self.query": (D, D),
        "attention.self.key": (D, D),
        "attention.self.value": (D, D),
        "attention.output.dense": (D, D),
        "intermediate.dense": (48, D),
        "output.dense": (D, 48),
    }.items():
        shapes |= {f"{prefix}{name}.weight": (n, k), f"{prefix}{name}.bias": (n,)}
    for name in ("attention.output.LayerNorm", "output.LayerNorm"):
        shapes |= {f"{prefix}{name}.weight": (D,), f"{prefix}{name}.bias": (D,)}
    return shapes


def bert(w: RandomWeights, p: str, x: np.ndarray, mask: np.ndarray | float = 0.0) -> np.ndarray:
    def linear(name: str, y: np.ndarray) -> np.ndarray:
        return y @ w[f"{p}{name}.weight"].T + w[f"{p}{name}.bias"]

    def norm(name: str, y: np.ndarray) -> np.ndarray:
        return layer_norm(y, w[f"{p}{name}.weight"], w[f"{p}{name}.bias"], 1e-12)

    q, k, v = (linear(f"attention.self.{n}", x) for n in ("query", "key", "value"))
    y = linear("attention.output.dense", attention(q, k, v, HEAD, mask=mask))
    x = norm("attention.output.LayerNorm", x + y)
    h = linear("intermediate.dense", x)
    y = linear("output.dense", h * (1 + erf(h / math.sqrt(2))) / 2)
    return norm("output.LayerNorm", x + y)


def test_bert_layer():
    w = RandomWeights(1, **bert_shapes(""))
    model = flow_of(BertEncoderLayer(HEAD, prefix=""), x=((ROWS, D), f32)).build(w)
    check(model, {"x": x_of()}, {"y": bert(w, "", x_of())})


def test_bert_layers_with_padding_of_any_length():
    """Two layers as one function, rows a dimension, and what is masked changes nothing."""
    names = [f"encoder.layer.{n}." for n in range(2)]
    w = RandomWeights(2, **bert_shapes(names[0]), **bert_shapes(names[1]))
    flow = ModelFlow("test")
    seq = flow.dim("seq", 1, 16)
    flow.input("x", (seq, D)).input("mask", (seq,)).stage(AttnMask())
    flow.stage(Named("y", Repeat(2, BertEncoderLayer(HEAD)))).output("y")
    checked = Checked(flow.build(w))
    for rows in (1, 5, 16):
        kept = np.ones(rows)
        kept[(rows + 1) // 2 :] = 0
        x = x_of(rows)
        expected = x
        for name in names:
            expected = bert(w, name, expected, (kept - 1) * 1e9)
        checked({"x": x, "mask": kept}, {"y": expected})


def test_nomic_layer():
    shapes = {"attn.Wqkv": (3 * D, D), "attn.out_proj": (D, D)}
    shapes |= {"mlp.fc11": (48, D), "mlp.fc12": (48, D), "mlp.fc2": (D, 48)}
    shapes = {f"{name}.weight": shape for name, shape in shapes.items()}
    shapes |= {f"norm{i}.{part}": (D,) for i in (1, 2) for part in ("weight", "bias")}
    w = RandomWeights(3, **shapes)
    stages = (RopeTables(1000.0, 16, HEAD), NomicEncoderLayer(HEAD, 1e-12, ""))
    model = flow_of(*stages, x=((ROWS, D), f32)).build(w)

    x = x_of()
    q, k, v = np.split(x @ w["attn.Wqkv.weight"].T, 3, axis=1)
    q, k = (rope(y, HEAD, 1000.0) for y in (q, k))
    y = attention(q, k, v, HEAD) @ w["attn.out_proj.weight"].T
    h = layer_norm(x + y, w["norm1.weight"], w["norm1.bias"], 1e-12)
    ffn = silu(h @ w["mlp.fc12.weight"].T) * (h @ w["mlp.fc11.weight"].T) @ w["mlp.fc2.weight"].T
    expected = layer_norm(h + ffn, w["norm2.weight"], w["norm2.bias"], 1e-12)
    check(model, {"x": x}, {"y": expected})


def test_vision_layer_and_its_pool():
    """A block of DINOv2: norms before, layer scale behind, SwiGLU, and the class token's row."""
    shapes: dict[str, tuple[int, ...]] = {"attn.qkv.weight": (3 * D, D), "attn.qkv.bias": (3 * D,)}
    shapes |= {"attn.proj.weight": (D, D), "attn.proj.bias": (D,), "ls1": (D,), "ls2": (D,)}
    shapes |= {f"norm{i}.{part}": (D,) for i in (1, 2) for part in ("weight", "bias")}
    shapes |= {"w12": (64, D), "b12": (64,), "w3": (D, 32), "b3": (D,)}
    w = RandomWeights(4, **shapes)
    stages = (
        ResidualSave(),
        LayerNorm("norm1.weight", "norm1.bias", 1e-6),
        VitSelfAttn(HEAD, "attn."),
        LayerScale("ls1"),
        ResidualAdd(),
        ResidualSave(),
        LayerNorm("norm2.weight", "norm2.bias", 1e-6),
        VisionSwiGluFfn("w12", "w3", "b12", "b3"),
        LayerScale("ls2"),
        ResidualAdd(),
        ClsTokenPool(),
    )
    model = flow_of(*stages, x=((ROWS, D), f32)).build(w)

    x = x_of()
    h = layer_norm(x, w["norm1.weight"], w["norm1.bias"], 1e-6)
    q, k, v = np.split(h @ w["attn.qkv.weight"].T + w["attn.qkv.bias"], 3, axis=1)
    y = attention(q, k, v, HEAD) @ w["attn.proj.weight"].T + w["attn.proj.bias"]
    x = x + y * w["ls1"]
    h = layer_norm(x, w["norm2.weight"], w["norm2.bias"], 1e-6) @ w["w12"].T + w["b12"]
    x = x + ((silu(h[:, :32]) * h[:, 32:]) @ w["w3"].T + w["b3"]) * w["ls2"]
    check(model, {"x": x_of()}, {"y": x[:1]})


def projections(w: RandomWeights, x: np.ndarray) -> list[np.ndarray]:
    return [x @ w[name].T for name in "qkv"]


def attention_of(**fields: object) -> SelfAttnPrefill:
    query, key, value, output = (Linear(name) for name in "qkvo")
    given = {"query": query, "key": key, "value": value, "output": output, "head_dim": HEAD}
    return SelfAttnPrefill(**{**given, **fields})


SHAPES = {"q": (64, D), "k": (D, D), "v": (D, D), "o": (D, 64)}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_of_grouped_heads(causal: bool, softcap: float | None, masked: bool):
    w = RandomWeights(5, **SHAPES)
    before = (AttnMask(),) if masked else ()
    inputs = {"x": ((ROWS, D), f32), **({"mask": ((ROWS,), f32)} if masked else {})}
    stage = attention_of(causal=causal, softcap=softcap, scale=0.5)
    model = flow_of(*before, stage, **inputs).build(w)
    x, kept = x_of(), np.array([1, 1, 0, 1, 0, 1.0])
    expected = attention(
        *projections(w, x),
        HEAD,
        scale=0.5,
        causal=causal,
        mask=(kept - 1) * 1e9 if masked else 0.0,
        bound=(lambda s: softcap * np.tanh(s / softcap)) if softcap else (lambda s: s),
    )
    given = {"x": x, **({"mask": kept} if masked else {})}
    check(model, given, {"y": expected @ w["o"].T})


@pytest.mark.parametrize("pairs", ["neighbours", "halves"])
def test_rotation_of_both_kinds_of_pairs(pairs):
    """Scores are those of either rotation; what is rotated comes pair by pair."""
    w = RandomWeights(6, **SHAPES)
    stage = attention_of(rope=Rope(HEAD, pairs, None), causal=True)
    model = flow_of(RopeTables(1e4, 16, HEAD), stage, x=((ROWS, D), f32)).build(w)
    x = x_of()
    q, k, v = projections(w, x)
    q, k = (rope(y, HEAD, 1e4, halves=pairs == "halves") for y in (q, k))
    check(model, {"x": x}, {"y": attention(q, k, v, HEAD, causal=True) @ w["o"].T})


def test_partial_rotation_of_halves():
    """Of the 32 features of a head the first 16 turn; the others stay where they are."""
    w = RandomWeights(7, q=(64, D), k=(32, D), v=(32, D), o=(D, 64))
    stage = attention_of(head_dim=32, rope=Rope(32, "halves", None))
    model = flow_of(RopeTables(1e4, 16, 16), stage, x=((ROWS, D), f32)).build(w)
    x = x_of()
    q, k, v = projections(w, x)

    def partly(y: np.ndarray) -> np.ndarray:
        heads = y.reshape(ROWS, -1, 32)
        turned = rope(heads[:, :, :16].reshape(ROWS, -1), 16, 1e4).reshape(ROWS, -1, 16)
        return np.concatenate([turned, heads[:, :, 16:]], 2).reshape(y.shape)

    expected = attention(partly(q), partly(k), v, 32, causal=True) @ w["o"].T
    check(model, {"x": x}, {"y": expected})


def test_rotary_parameters_scale_their_frequencies():
    """With factors of 1 they are the tables'; a factor slows a pair down."""
    w = RandomWeights(8, **SHAPES)
    factors = (1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0, 8.0)
    stage = attention_of(rope=Rope(HEAD, "halves", None))
    x = x_of()
    for given in ((1.0,) * 8, factors):
        params = DecodeRopeParams(1e4, 16, given)
        model = flow_of(params, stage, x=((ROWS, D), f32)).build(w)
        assert model.params["rope.cos"].shape == (16, HEAD)
        q, k, v = projections(w, x)
        rates = 1e4 ** (-np.arange(8) / 8) / np.array(given)
        turn = np.exp(1j * np.arange(ROWS)[:, None] * rates)[:, None]

        def rotated(y: np.ndarray, turn: np.ndarray = turn) -> np.ndarray:
            heads = y.reshape(ROWS, -1, HEAD)
            both = (heads[..., :8] + 1j * heads[..., 8:]) * turn
            return np.concatenate([both.real, both.imag], 2).reshape(y.shape)

        expected = attention(rotated(q), rotated(k), v, HEAD, causal=True) @ w["o"].T
        np.testing.assert_allclose(
            model.params["rope.cos"][:ROWS, ::2], np.cos(np.arange(ROWS)[:, None] * rates), 1e-6
        )
        # The tables are rounded to float32.
        assert np.abs(reference(model, {"x": x})["y"] - expected).max() < 1e-6


def test_norms_of_heads():
    w = RandomWeights(9, g=(HEAD,))
    x = x_of()
    for offset in (0.0, 1.0):
        stage = HeadNorm("g", HEAD, 1e-6, offset)
        model = flow_of(stage, x=((ROWS, D), f32)).build(w)
        expected = rms_norm(x.reshape(ROWS, -1, HEAD), w["g"] + offset, 1e-6).reshape(x.shape)
        check(model, {"x": x}, {"y": expected})


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((attention_of(rope=Rope(HEAD)),), "Rope: expected RopeTables before it"),
        ((HeadNorm("q", 5, 1e-5),), "rows of whole heads of 5"),
        ((AttnMask("m"),), "expected an input 'm', the inputs are: x"),
        ((Sequence((Linear("odd"),)), attention_of()), "Linear"),
    ],
)
def test_errors(stages, message: str):
    w = RandomWeights(1, **SHAPES, odd=(3, D))
    with pytest.raises(RlxError, match=message):
        flow_of(*stages, x=((ROWS, D), f32)).build(w)


def test_a_dimension_of_the_origins_name_is_0():
    flow = ModelFlow("test")
    flow.dim("origin", 0, 4)
    flow.input("x", (ROWS, D)).stage(RopeTables(1e4, 16, HEAD))
    flow.stage(Named("y", Rope(HEAD, start=None))).output("y")
    with pytest.raises(RlxError, match="'origin' to be 0: origin = 0 to 4"):
        flow.build(MapWeights({}))


def test_softcap_on_a_part_of_causal_keys_is_refused():
    ctx = FlowCtx.define("test", MapWeights({}))
    q, k = ctx.input("q", (ROWS, D)), ctx.input("k", (9, D))
    with pytest.raises(RlxError, match="expected one query, or as many as keys, got 6 and 9"):
        Heads(1.0, True, 5.0).attend(ctx, q, k, k, HEAD, None)
