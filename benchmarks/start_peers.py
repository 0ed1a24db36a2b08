"""
The peers of `startup.py`: from a process's start to the first token of SmolLM2 after its prompt.

    python benchmarks/start_peers.py prepare FOLDER MODEL   # torch, transformers, gguf: bf16
    python benchmarks/start_peers.py export FOLDER          # torch, transformers, onnxscript: f32
    python benchmarks/start_peers.py PEER FOLDER            # print the seconds, and the token

Each peer keeps what it may in the folder of START_CACHE: so a second process finds it there.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPT = list(range(100, 116))
"""Sixteen tokens."""
CONFIG, TENSORS, ONNX = "config.json", "model.safetensors", "model.onnx"
CACHE = "START_CACHE"


def told(token: Any) -> None:
    """Print the seconds since this process started, to its first token."""
    from rlx.tools.age import process_age

    seconds = process_age()
    print(json.dumps({"first_token_s": seconds, "token": int(token)}), flush=True)


# What the peers load


def prepare(folder: Path, model: str) -> None:
    """Write the weights of a GGUF file as bf16 safetensors, as transformers reads them."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    path = Path(model)
    loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
    config = LlamaConfig(**loaded.config.to_dict())
    # What was read counts as quantised, and is not saved.
    del config.quantization_config
    plain = LlamaForCausalLM(config)
    plain.load_state_dict(loaded.state_dict())
    plain.to(torch.bfloat16).save_pretrained(folder)


def export(folder: Path) -> None:
    """Write the graph from token ids to the logits after the last of them, in f32, as ONNX."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any) -> Any:
            return self.model(ids, use_cache=False, logits_to_keep=1).logits[:, -1]

    torch.onnx.export(
        Last(),
        (torch.tensor([PROMPT]),),
        folder / ONNX,
        input_names=["ids"],
        output_names=["logits"],
        dynamic_shapes={"ids": {1: torch.export.Dim("seq", min=2, max=2048)}},
        dynamo=True,
    )


# The peers


def torch_eager(folder: Path, compiled: bool = False) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    forward = torch.compile(model, dynamic=True) if compiled else model
    with torch.no_grad():
        logits = forward(torch.tensor([PROMPT]), use_cache=False, logits_to_keep=1).logits
    told(logits[0, -1].argmax())


def torch_compiled(folder: Path) -> None:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ[CACHE]
    torch_eager(folder, compiled=True)


def jax_jit(folder: Path) -> None:
    """The architecture in JAX: one layer, scanned over the weights of all."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ[CACHE]
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    import jax
    import jax.numpy as jnp
    import numpy as np

    config = json.loads((folder / CONFIG).read_text())
    tensors = read_tensors(folder / TENSORS)
    count, eps = config["num_hidden_layers"], config["rms_norm_eps"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config["hidden_size"] // heads
    base = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    first = "model.layers.0."
    layers = {
        name.removeprefix(first): np.stack(
            [tensors[name.replace(first, f"model.layers.{i}.")] for i in range(count)]
        )
        for name in tensors
        if name.startswith(first)
    }

    def norm(x: Any, weight: Any) -> Any:
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + eps)
        return wide.astype(x.dtype) * weight

    def rotated(x: Any, angles: Any) -> Any:
        a, b = jnp.split(x.astype(jnp.float32), 2, -1)
        sin, cos = jnp.sin(angles), jnp.cos(angles)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)

    @jax.jit
    def token(ids: Any, embedding: Any, last: Any, layers: Any) -> Any:
        n = ids.shape[0]
        places = jnp.arange(n)[:, None, None]
        angles = places / base ** (jnp.arange(0, dim, 2) / dim)
        allowed = jnp.tril(jnp.ones((n, n), bool))

        def layer(x: Any, w: Any) -> Any:
            h = norm(x, w["input_layernorm.weight"])
            q, k, v = ((h @ w[f"self_attn.{p}_proj.weight"].T).reshape(n, -1, dim) for p in "qkv")
            q, k = rotated(q, angles), rotated(k, angles)
            k, v = (jnp.repeat(t, heads // kv_heads, 1) for t in (k, v))
            scores = jnp.einsum("qhd,khd->hqk", q, k).astype(jnp.float32) / dim**0.5
            weights = jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf)).astype(x.dtype)
            mixed = jnp.einsum("hqk,khd->qhd", weights, v).reshape(n, -1)
            x = x + mixed @ w["self_attn.o_proj.weight"].T
            h = norm(x, w["post_attention_layernorm.weight"])
            gate, up = (h @ w[f"mlp.{p}_proj.weight"].T for p in ("gate", "up"))
            return x + (jax.nn.silu(gate) * up) @ w["mlp.down_proj.weight"].T, None

        x, _ = jax.lax.scan(layer, embedding[ids], layers)
        return (norm(x[-1], last) @ embedding.T).argmax()

    embedding, last = tensors["model.embed_tokens.weight"], tensors["model.norm.weight"]
    told(token(np.array(PROMPT, np.int32), embedding, last, layers))


def read_tensors(path: Path) -> dict[str, Any]:
    """Return the bf16 tensors of a safetensors file, mapped."""
    import ml_dtypes
    import numpy as np

    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        head = json.loads(file.read(size))
    data = np.memmap(path, np.uint8, "r", offset=8 + size)
    return {
        name: data[slice(*fact["data_offsets"])].view(ml_dtypes.bfloat16).reshape(fact["shape"])
        for name, fact in head.items()
        if name != "__metadata__"
    }


def openvino(folder: Path) -> None:
    import numpy as np
    import openvino

    model = openvino.Core().compile_model(
        folder / ONNX, "CPU", {"CACHE_DIR": os.environ[CACHE], "PERFORMANCE_HINT": "LATENCY"}
    )
    told(model([np.array([PROMPT])])[0].argmax())


def onnxruntime(folder: Path) -> None:
    import numpy as np
    import onnxruntime

    kept, options = Path(os.environ[CACHE], ONNX), onnxruntime.SessionOptions()
    full = kept.exists()
    if full:
        # What the first process optimised.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(kept if full else folder / ONNX, options)
    told(session.run(None, {"ids": np.array([PROMPT])})[0].argmax())
    if not full:
        options.optimized_model_filepath = str(kept)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", "weights"
        )
        onnxruntime.InferenceSession(folder / ONNX, options)


RUNS: dict[str, Callable[..., None]] = {
    "prepare": prepare,
    "export": export,
    "torch": torch_eager,
    "torch.compile": torch_compiled,
    "JAX": jax_jit,
    "OpenVINO": openvino,
    "ONNX Runtime": onnxruntime,
}

if __name__ == "__main__":
    RUNS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
