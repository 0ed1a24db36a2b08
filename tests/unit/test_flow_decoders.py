"""Decoders against numpy: whole texts at once, on cached keys, and on keys that are inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from flows import Checked, RandomWeights, attention, check, rms_norm, rope, silu
from kernels import nmse
from xdsl.dialects.func import FuncOp

import rlx
from rlx.contract.quant import KV_FORMATS, KvFormat
from rlx.dialects.infer import STORED
from rlx.errors import RlxError
from rlx.flow.attention import BindDecodeInputs, RopeTables
from rlx.flow.context import KEYS, PAST
from rlx.flow.decoder import (
    GemmaDecodeLayer,
    GemmaKvTap,
    LlamaDecodeLayer,
    LlamaDecoder,
    LlamaKvTap,
    Qwen3DecodeLayer,
    Qwen3Decoder,
)
from rlx.flow.layers import Repeat, Unroll
from rlx.flow.model import BuiltModel, ModelFlow
from rlx.flow.stages import Named
from rlx.reference.elements import rounded

D, FFN, HEAD, KV = 48, 80, 16, 32
BASE, EPS, LAYERS, CAPACITY = 500.0, 1e-5, 2, 32


def shapes(*norms: str) -> dict[str, tuple[int, ...]]:
    own = {
        "attn_q": (64, D),
        "attn_k": (KV, D),
        "attn_v": (KV, D),
        "attn_output": (D, 64),
        "ffn_up": (FFN, D),
        "ffn_gate": (FFN, D),
        "ffn_down": (D, FFN),
        **{name: (HEAD if "_q_" in name or "_k_" in name else D,) for name in norms},
    }
    return {f"blk.{n}.{name}.weight": s for n in range(LAYERS) for name, s in own.items()}


@dataclass(frozen=True)
class Family:
    """A family: its layer, the norms that it has, and its formulas."""

    layer: LlamaDecodeLayer
    tap: LlamaDecodeLayer
    norms: tuple[str, ...]
    halves: bool = True
    offset: float = 0.0
    activation: Callable[[np.ndarray], np.ndarray] = silu
    softcap: float | None = None
    scale: float | None = None
    cache: KvFormat = "f32"

    @property
    def weights(self) -> RandomWeights:
        return RandomWeights(1, **shapes(*self.norms))

    def layers(self, x: np.ndarray, start: int = 0, past=None) -> tuple[np.ndarray, list]:
        """What the layers give, and the keys and values of every row of each."""
        kept = []
        for n in range(LAYERS):
            before = None if past is None else past[n]
            x, kv = self.layer_of(n, x, start, before)
            kept.append(kv)
        return x, kept

    def layer_of(self, n: int, x: np.ndarray, start: int, past):
        """What layer n gives, and the keys and values that it sees, `past` ones before."""
        w = self.weights

        def of(name: str) -> np.ndarray:
            return w[f"blk.{n}.{name}.weight"]

        def norm(name: str, y: np.ndarray) -> np.ndarray:
            return rms_norm(y, of(name) + self.offset, EPS) if name in self.norms else y

        def heads(name: str, y: np.ndarray) -> np.ndarray:
            rows = y.reshape(len(y), -1, HEAD)
            return norm(name, rows).reshape(y.shape)

        h = norm("attn_norm", x)
        q, k, v = (h @ of(f"attn_{name}").T for name in "qkv")
        q, k = heads("attn_q_norm", q), heads("attn_k_norm", k)
        q, k = (rope(y, HEAD, BASE, start, self.halves) for y in (q, k))
        if past is not None:
            k, v = (np.concatenate([p, y]) for p, y in zip(past, (k, v), strict=True))
        if self.cache != "f32":
            k, v = (rounded(y, STORED[self.cache]) for y in (k, v))
        cap = self.softcap
        bound = (lambda s: cap * np.tanh(s / cap)) if cap else (lambda s: s)
        y = attention(q, k, v, HEAD, scale=self.scale, causal=True, bound=bound)
        x = x + norm("post_attention_norm", y @ of("attn_output").T)
        h = norm("ffn_norm", x)
        y = self.activation(h @ of("ffn_gate").T) * (h @ of("ffn_up").T) @ of("ffn_down").T
        return x + norm("post_ffw_norm", y), (k, v)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


_PLAIN = ("attn_norm", "ffn_norm")
_HEADS = ("attn_q_norm", "attn_k_norm")
_GEMMA = (*_PLAIN, "post_attention_norm", "post_ffw_norm")


def pair(layer: type, tap: type, **fields: object) -> tuple[LlamaDecodeLayer, LlamaDecodeLayer]:
    """A layer, and the same with its keys and values named."""
    given = {"head_dim": HEAD, "capacity": None, "eps": EPS, **fields}
    return layer(**given), replace(layer(**given), tap=True) if tap is layer else tap(**given)


FAMILIES = {
    "llama": Family(*pair(LlamaDecodeLayer, LlamaKvTap), _PLAIN, halves=False),
    "qwen3": Family(*pair(Qwen3DecodeLayer, Qwen3DecodeLayer), (*_PLAIN, *_HEADS)),
    "gemma2": Family(
        *pair(GemmaDecodeLayer, GemmaKvTap, softcap=3.0, scale=0.25),
        _GEMMA,
        offset=1.0,
        activation=gelu_tanh,
        softcap=3.0,
        scale=0.25,
    ),
    "gemma3": Family(
        *pair(GemmaDecodeLayer, GemmaKvTap, head_norms=True, offset=False),
        (*_GEMMA, *_HEADS),
        activation=gelu_tanh,
    ),
}
families = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, D))


def functions(model: BuiltModel) -> list[str]:
    return [op.sym_name.data for op in model.module.ops if isinstance(op, FuncOp)]


@families
@pytest.mark.parametrize("count", [1, 7])
def test_a_whole_text_at_once(family: Family, count: int):
    flow = ModelFlow("test").input("x", (count, D)).stage(RopeTables(BASE, CAPACITY, HEAD))
    flow.stage(Named("y", LlamaDecoder(LAYERS, family.layer))).output("y")
    model = flow.build(family.weights)
    assert functions(model) == ["layer", "main"]
    check(model, {"x": rows(count)}, {"y": family.layers(rows(count))[0]})


@pytest.mark.parametrize("cache", KV_FORMATS)
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_cached_keys(name: str, cache: KvFormat):
    """A prompt in two parts, then single tokens: each row as in the whole text at once."""
    family = FAMILIES[name]
    flow = ModelFlow("test")
    seq = flow.dim("seq", 1, 8)
    flow.dim(PAST, 0, CAPACITY - 1)
    flow.dim_sum(KEYS, PAST, "seq")
    flow.input("x", (seq, D)).stage(RopeTables(BASE, CAPACITY, HEAD))
    layer = replace(family.layer, capacity=CAPACITY, cache=cache)
    flow.stage(Named("y", LlamaDecoder(LAYERS, layer))).output("y")
    model = flow.build(family.weights)
    x = rows(11)
    exact, expected = (replace(family, cache=c).layers(x)[0] for c in ("f32", cache))
    # A key between two numbers of 16 bits may be rounded to either: far less than what all lose.
    limit = max(1e-10, nmse(exact, expected) / 10)
    compiled = rlx.compile(model.module, model.weights, threads=2)
    for start, end in ((0, 5), (5, 8), (8, 9), (9, 10), (10, 11)):
        y = compiled(x[start:end].astype(np.float32), dims={PAST: start})
        assert nmse(y, expected[start:end]) < limit


@families
def test_taps_give_what_bound_inputs_take(family: Family):
    """A prompt gives its keys and values; steps take them as inputs and give their own."""
    prompt = ModelFlow("prompt").input("x", (4, D)).stage(RopeTables(BASE, CAPACITY, HEAD))
    prompt.stage(Named("y", LlamaDecoder(LAYERS, family.tap))).output("y")
    names = [f"{n}{i}" for i in range(LAYERS) for n in "kv"]
    for name in names:
        prompt.output(name)
    model = prompt.build(family.weights)
    x = rows(6)
    y, _ = family.layers(x[:4])
    state = Checked(model)({"x": x[:4]}, {"y": y})

    step = ModelFlow("step")
    step.dim("seq", 1, 1)
    past = step.dim(PAST, 0, 16)
    step.dim_sum(KEYS, PAST, "seq")
    step.input("x", (1, D)).stage(BindDecodeInputs(LAYERS, KV, HEAD, past))
    step.stage(Named("y", LlamaDecoder(LAYERS, family.layer))).output("y")
    for name in names:
        step.output(name)
    decode = step.build(family.weights)
    assert functions(decode) == ["main"]
    expected = family.layers(x)[0]
    checked = Checked(decode)
    for position in (4, 5):
        angles = position * BASE ** (-np.arange(HEAD // 2) / (HEAD // 2))
        inputs = {
            "x": x[position : position + 1],
            "cos": np.repeat(np.cos(angles), 2)[None],
            "sin": np.stack([-np.sin(angles), np.sin(angles)], 1).reshape(1, HEAD),
        }
        for n in "kv":
            inputs |= {f"past_{n}{i}": state[f"{n}{i}"] for i in range(LAYERS)}
        results = checked(inputs, {"y": expected[position : position + 1]})
        for name in names:
            state[name] = np.concatenate([state[name], results[name]])


def test_bound_inputs_with_a_mask():
    """A mask says alone what a row sees: here none but the first position and itself."""
    family = FAMILIES["llama"]
    flow = ModelFlow("step").input("x", (1, D)).stage(BindDecodeInputs(1, KV, HEAD, 3, mask=True))
    flow.stage(Named("y", Unroll(1, family.layer))).output("y")
    model = flow.build(family.weights)
    rng = np.random.default_rng(3)
    past = rng.standard_normal((2, 3, KV))
    mask = np.array([[0.0, -1e9, -1e9, 0.0]])
    angle = np.zeros(HEAD // 2)
    inputs = {
        "x": rows(1),
        "cos": np.repeat(np.cos(angle), 2)[None],
        "sin": np.zeros((1, HEAD)),
        "mask": mask,
        "past_k0": past[0],
        "past_v0": past[1],
    }
    expected, _ = family.layer_of(0, rows(1), 0, [past[0][:1], past[1][:1]])
    check(model, inputs, {"y": expected})


def test_bound_inputs_for_any_number_of_rows():
    """Chunks of a text whose keys so far are inputs: rows see their own positions and before."""
    family = FAMILIES["llama"]
    flow = ModelFlow("chunk")
    seq = flow.dim("seq", 1, 8)
    flow.dim(PAST, 0, 16)
    flow.dim_sum(KEYS, PAST, "seq")
    flow.input("x", (seq, D)).stage(BindDecodeInputs(LAYERS, KV, HEAD))
    flow.stage(Named("y", LlamaDecoder(LAYERS, family.layer))).output("y")
    names = [f"{n}{i}" for i in range(LAYERS) for n in "kv"]
    for name in names:
        flow.output(name)
    checked = Checked(flow.build(family.weights))
    x = rows(9)
    expected = family.layers(x)[0]
    state = {name: np.zeros((0, KV)) for name in names}
    for start, end in ((0, 4), (4, 9)):
        angles = np.arange(start, end)[:, None] * BASE ** (-np.arange(HEAD // 2) / (HEAD // 2))
        inputs = {
            "x": x[start:end],
            "cos": np.repeat(np.cos(angles), 2, axis=1),
            "sin": np.stack([-np.sin(angles), np.sin(angles)], 2).reshape(end - start, HEAD),
        }
        for n in "kv":
            inputs |= {f"past_{n}{i}": state[f"{n}{i}"] for i in range(LAYERS)}
        results = checked(inputs, {"y": expected[start:end]})
        state = {name: np.concatenate([state[name], results[name]]) for name in names}


def test_the_decoder_of_qwen3_is_a_stack_of_its_layers():
    layer = FAMILIES["qwen3"].layer
    assert isinstance(layer, Qwen3DecodeLayer)
    flow = ModelFlow("test").input("x", (2, D)).stage(RopeTables(BASE, CAPACITY, HEAD))
    flow.stage(Named("y", Qwen3Decoder(LAYERS, layer))).output("y")
    text = str(flow.build(FAMILIES["qwen3"].weights).module)
    assert "hir.repeat @layer(" in text
    assert "attn_q_norm" in text


def test_errors():
    weights = FAMILIES["llama"].weights
    flow = ModelFlow("test").input("x", (2, D)).stage(RopeTables(BASE, CAPACITY, HEAD))
    flow.stage(Named("y", Repeat(LAYERS, LlamaKvTap(HEAD, None, EPS)))).output("y")
    with pytest.raises(RlxError, match="of a repeated layer have no names: Unroll the layers"):
        flow.build(weights)

    flow = ModelFlow("test").input("x", (1, D)).stage(BindDecodeInputs(1, KV, HEAD, 3))
    flow.stage(Named("y", Unroll(2, LlamaDecodeLayer(HEAD, None, EPS)))).output("y")
    with pytest.raises(RlxError, match="expected inputs of layer 1, there are none"):
        flow.build(weights)

    capped = GemmaDecodeLayer(HEAD, CAPACITY, EPS, softcap=1.0)
    flow = ModelFlow("test").input("x", (1, D)).stage(RopeTables(BASE, CAPACITY, HEAD))
    flow.stage(Named("y", Repeat(1, capped))).output("y")
    with pytest.raises(RlxError, match="scores on cached keys have no soft cap: bind the keys"):
        flow.build(FAMILIES["gemma2"].weights)

    nested = Unroll(2, Unroll(2, LlamaDecodeLayer(HEAD, None, EPS)))
    flow = ModelFlow("test").input("x", (1, D)).stage(Named("y", nested)).output("y")
    with pytest.raises(RlxError, match="no layers within a layer"):
        flow.build(weights)
