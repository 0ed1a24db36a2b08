"""Writes small encoder models with random weights, and computes them in numpy, for the tests."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "float64": "F64"}


def safetensors_bytes(
    arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None, pad: int = 0
) -> bytes:
    """A safetensors file of arrays, with `pad` spaces behind its header."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, array in arrays.items():
        ends = [at, at + array.nbytes]
        dtype = _DTYPES[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": ends}
        at += array.nbytes
    text = json.dumps(header).encode() + b" " * pad
    return len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in arrays.values())


WORDS = "[PAD] [UNK] [CLS] [SEP] the a cat dog sat on mat ##s run ##ning ! .".split()
CLS, SEP = 2, 3
SIZES = {"layers": 2, "d": 48, "ffn": 80, "heads": 3, "vocab": 40, "positions": 32, "types": 2}


def bert_arrays(
    seed: int = 0,
    prefix: str = "",
    dtype: Any = np.float32,
    **sizes: int,
) -> dict[str, np.ndarray]:
    """Random weights of a BERT encoder by name; `sizes` as `SIZES`."""
    s = {**SIZES, **sizes}
    rng = np.random.default_rng(seed)
    d, ffn = s["d"], s["ffn"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (s["vocab"], d),
        "embeddings.position_embeddings.weight": (s["positions"], d),
        "embeddings.token_type_embeddings.weight": (s["types"], d),
        "embeddings.LayerNorm.weight": (d,),
        "embeddings.LayerNorm.bias": (d,),
    }
    for layer in range(s["layers"]):
        names = {"attention.self.query": (d, d), "attention.self.key": (d, d)}
        names |= {"attention.self.value": (d, d), "attention.output.dense": (d, d)}
        names |= {"intermediate.dense": (ffn, d), "output.dense": (d, ffn)}
        names |= {"attention.output.LayerNorm": (d,), "output.LayerNorm": (d,)}
        for name, shape in names.items():
            shapes[f"encoder.layer.{layer}.{name}.weight"] = shape
            shapes[f"encoder.layer.{layer}.{name}.bias"] = shape[:1]

    def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
        x = rng.standard_normal(shape)
        return 1 + x / 10 if name.endswith("LayerNorm.weight") else x / max(shape[-1], 1) ** 0.5

    return {f"{prefix}{name}": drawn(name, shape).astype(dtype) for name, shape in shapes.items()}


def bert_config(**changes: Any) -> dict[str, Any]:
    """The configuration of a model of `SIZES`."""
    names = {
        "layers": "num_hidden_layers", "d": "hidden_size", "ffn": "intermediate_size",
        "heads": "num_attention_heads", "vocab": "vocab_size",
        "positions": "max_position_embeddings", "types": "type_vocab_size",
    }  # fmt: skip
    sizes = {names.get(key, key): value for key, value in {**SIZES, **changes}.items()}
    return {"model_type": "bert", "layer_norm_eps": 1e-12, "hidden_act": "gelu", **sizes}


def tokenizer_json() -> str:
    """A tokenizer of `WORDS` that says how to cut and to pad, which nobody should follow."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {word: i for i, word in enumerate(WORDS)}
    t = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [("[CLS]", CLS), ("[SEP]", SEP)]
    t.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, special)
    t.enable_truncation(5)
    t.enable_padding(length=24)
    return t.to_str()


def write_bert(
    folder: Path,
    arrays: Mapping[str, np.ndarray] | None = None,
    config: Mapping[str, Any] | None = None,
    **files: Any,
) -> Path:
    """Write a model's folder; `files` are more of it, in JSON."""
    folder.mkdir(exist_ok=True)
    given = bert_arrays() if arrays is None else arrays
    (folder / "model.safetensors").write_bytes(safetensors_bytes(given))
    (folder / "config.json").write_text(json.dumps(config or bert_config()))
    (folder / "tokenizer.json").write_text(tokenizer_json())
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


_erf = np.vectorize(math.erf)
ACTIVATIONS = {
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    "gelu_new": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
}


def embed(
    arrays: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
    texts: Sequence[Sequence[int]],
    prefix: str = "",
    pooling: str = "mean",
) -> np.ndarray:
    """The embeddings of token ids in float64, by the definition of BERT."""
    w = {name.removeprefix(prefix): a.astype(np.float64) for name, a in arrays.items()}
    found = [_embedding(w, config, ids, pooling) for ids in texts]
    return np.array(found)


def _embedding(
    w: Mapping[str, np.ndarray], config: Mapping[str, Any], ids: Sequence[int], pooling: str
) -> np.ndarray:
    heads, act = config["num_attention_heads"], ACTIVATIONS[config["hidden_act"]]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        x = x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + config["layer_norm_eps"])
        return x * w[f"{name}.LayerNorm.weight"] + w[f"{name}.LayerNorm.bias"]

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][list(ids)]
    x = x + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm("embeddings", x + w["embeddings.token_type_embeddings.weight"][0])
    for layer in range(config["num_hidden_layers"]):
        p = f"encoder.layer.{layer}."
        q, k, v = (
            linear(f"{p}attention.self.{n}", x).reshape(len(ids), heads, -1).transpose(1, 0, 2)
            for n in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        y = (e / e.sum(axis=-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(x.shape)
        x = norm(f"{p}attention.output", x + linear(f"{p}attention.output.dense", y))
        y = linear(f"{p}output.dense", act(linear(f"{p}intermediate.dense", x)))
        x = norm(f"{p}output", x + y)
    row = x[0] if pooling == "cls" else x.mean(axis=0)
    return row / np.linalg.norm(row)
