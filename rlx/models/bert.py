"""
BERT encoders of text (Devlin et al., 2019) from a folder as Hugging Face's libraries write it.

A folder holds `model.safetensors`, `config.json` and `tokenizer.json`; where it is of Sentence
Transformers (Reimers and Gurevych, 2019), files beside them say how rows become one embedding.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlx.checks import choice
from rlx.errors import RlxError
from rlx.files import read_regular
from rlx.flow.profile import CompileProfile
from rlx.flow.source import LAYER, WeightSource
from rlx.frontends.safetensors import FORMATS, SafetensorsFile

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

PROGRAM = "embed"
CONFIG, POOLING, LIMITS = "config.json", "1_Pooling/config.json", "sentence_bert_config.json"

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""The functions of `hidden_act`, and the kinds of maps that they are."""
POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}

_HEADS = 12
"""What transformers takes where a configuration doesn't say."""
_MOST_HEAD = 256
"""Features of a head, at most."""


@dataclass(frozen=True)
class BertConfig:
    """The sizes of a BERT encoder, and how its rows become an embedding."""

    layers: int
    d: int
    ffn: int
    heads: int
    vocab: int
    positions: int
    types: int
    eps: float
    activation: str
    prefix: str
    """What the names of all tensors begin with."""
    pooling: str
    """`mean` of all rows of a text, or the row of its first token, `cls`."""
    limit: int
    """Tokens of a text beyond which it is cut, where the caller doesn't say."""
    factors: bool = False
    """Whether the inputs of feed-forward products are multiplied with factors: `bert_bytes`."""

    @property
    def head_dim(self) -> int:
        return self.d // self.heads

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Return every tensor that is used, `{layer}` in the names of layers', and its shape."""
        d, ffn = self.d, self.ffn
        for table, rows in (
            ("word", self.vocab), ("position", self.positions), ("token_type", self.types),
        ):  # fmt: skip
            yield f"{self.prefix}embeddings.{table}_embeddings.weight", (rows, d)
        layer = f"{self.prefix}encoder.layer.{LAYER}."
        products = {
            "attention.self.query": (d, d),
            "attention.self.key": (d, d),
            "attention.self.value": (d, d),
            "attention.output.dense": (d, d),
            "intermediate.dense": (ffn, d),
            "output.dense": (d, ffn),
        }
        for name, shape in products.items():
            yield f"{layer}{name}.weight", shape
            yield f"{layer}{name}.bias", shape[:1]
        for norm in (f"{self.prefix}embeddings.", f"{layer}attention.output.", f"{layer}output."):
            for part in ("weight", "bias"):
                yield f"{norm}LayerNorm.{part}", (d,)


# Reading


def read_config(folder: Path, file: SafetensorsFile) -> BertConfig:
    """
    Return the configuration of a folder, checked against the tensors of its file.

    Without a `config.json` sizes are those of the tensors, and a warning says what is assumed of
    the rest. Raises RlxError, naming the file and the key or tensor, for what is missing, doesn't
    fit, or isn't supported.
    """
    given = _json(folder / CONFIG)
    where = folder / CONFIG
    if given is None:
        given = {}
        assumed = {"num_attention_heads": _HEADS, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}
        warnings.warn(
            f"{where} is missing: assumed "
            f"{', '.join(f'{key} {value}' for key, value in assumed.items())}",
            stacklevel=2,
        )
    _check_supported(where, given)
    prefix = _prefix(file)
    config = _config(where, given, file, prefix, _pooling(folder), _json(folder / LIMITS))
    _check_tensors(file, config)
    return config


def _json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file, None where there is no file."""
    try:
        text = read_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RlxError(f"{path}: expected a readable file: {error.strerror}") from error
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RlxError(f"{path}: expected an object in JSON: {error}") from error
    if not isinstance(found, dict):
        raise RlxError(f"{path}: expected an object in JSON, got {found!r:.80}")
    return cast(dict[str, Any], found)


def _check_supported(where: Path, given: Mapping[str, Any]) -> None:
    """Raise RlxError for a configuration of another graph than BERT's encoder."""
    kind = given.get("model_type", "bert")
    if kind != "bert":
        raise RlxError(f"{where}: model_type: expected bert, which rlx builds, got {kind!r:.80}")
    for key, wanted in (("position_embedding_type", "absolute"), ("is_decoder", False)):
        value = given.get(key, wanted)
        if value != wanted:
            raise RlxError(f"{where}: {key}: expected {wanted!r:.80}, got {value!r:.80}")


def _prefix(file: SafetensorsFile) -> str:
    name = "embeddings.word_embeddings.weight"
    found = next((p for p in ("", "bert.") if p + name in file.tensors), None)
    if found is None:
        file.tensor(name)
    return found or ""


def _config(
    where: Path,
    given: Mapping[str, Any],
    file: SafetensorsFile,
    prefix: str,
    pooling: str,
    limits: Mapping[str, Any] | None,
) -> BertConfig:
    def shape(name: str) -> tuple[int, ...]:
        return file.tensor(prefix + name).shape

    def size(key: str, derived: int) -> int:
        """Return a size of the configuration, or that of the tensors where it doesn't say."""
        value = given.get(key, derived)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RlxError(f"{where}: {key}: expected a positive integer, got {value!r:.80}")
        return value

    words = shape("embeddings.word_embeddings.weight")
    if len(words) != 2:
        raise RlxError(f"{file.path}: expected a table of words [vocab, d], got {list(words)}")
    first = "encoder.layer.{}.intermediate.dense.weight"
    layers = 0
    while f"{prefix}{first.format(layers)}" in file.tensors:
        layers += 1
    rows = [(*shape(f"embeddings.{t}_embeddings.weight"), 0)[0] for t in ("position", "token_type")]
    d, positions = size("hidden_size", words[1]), size("max_position_embeddings", rows[0])
    heads = size("num_attention_heads", _HEADS)
    if d % heads or d // heads > _MOST_HEAD:
        raise RlxError(
            f"{where}: hidden_size {d}: expected heads of at most {_MOST_HEAD} features, a "
            f"multiple of num_attention_heads, {heads}"
        )
    eps, act = given.get("layer_norm_eps", 1e-12), given.get("hidden_act", "gelu")
    if not isinstance(eps, int | float) or not 0 < eps < 1:
        raise RlxError(f"{where}: layer_norm_eps: expected a number from 0 to 1, got {eps!r:.80}")
    limit = (limits or {}).get("max_seq_length") or positions
    if not isinstance(limit, int) or limit < 1:
        raise RlxError(
            f"{where.parent / LIMITS}: max_seq_length: expected an integer, got {limit!r:.80}"
        )
    return BertConfig(
        layers=size("num_hidden_layers", layers),
        d=d,
        ffn=size("intermediate_size", (*shape(first.format(0)), 0)[0]),
        heads=heads,
        vocab=size("vocab_size", words[0]),
        positions=positions,
        types=size("type_vocab_size", rows[1]),
        eps=float(eps),
        activation=ACTIVATIONS[choice(f"{where}: hidden_act", act, list(ACTIVATIONS))],
        prefix=prefix,
        pooling=pooling,
        limit=min(limit, positions),
    )


def _pooling(folder: Path) -> str:
    """Return how rows become one embedding: by their mean, where the folder doesn't say."""
    given = _json(folder / POOLING)
    if given is None:
        return "mean"
    modes = [key for key, value in given.items() if key.startswith("pooling_mode_") and value]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise RlxError(
            f"{folder / POOLING}: expected one of {', '.join(POOLINGS)}, got "
            f"{', '.join(modes) or 'none':.80}"
        )
    return POOLINGS[modes[0]]


def _check_tensors(file: SafetensorsFile, config: BertConfig) -> None:
    """Raise RlxError for tensors that are missing, or of another shape or format."""
    # The first layer that is missing ends the loops, however many the configuration claims.
    for template, shape in config.shapes():
        for layer in range(config.layers if LAYER in template else 1):
            tensor = file.tensor(template.replace(LAYER, str(layer)))
            if tensor.shape != shape:
                raise RlxError(
                    f"{file.path}: tensor {tensor.name!r:.80}: expected the shape {list(shape)}, "
                    f"got {list(tensor.shape)}"
                )
            if tensor.dtype not in FORMATS:
                raise RlxError(
                    f"{file.path}: tensor {tensor.name!r:.80}: the dtype {tensor.dtype} is not "
                    f"supported: expected {', '.join(FORMATS)}"
                )
    _check_others(file, config)


def _check_others(file: SafetensorsFile, config: BertConfig) -> None:
    """
    Raise RlxError for tensors of the encoder that the graph has no place for.

    Others, as of a pooler or of a head for another task, are no part of an embedding.
    """
    parts = (f"{config.prefix}embeddings.", f"{config.prefix}encoder.")
    known = {template.replace(LAYER, "*") for template, _ in config.shapes()}
    known.add(f"{config.prefix}embeddings.position_ids")
    for name in file.tensors:
        words = name.split(".")
        numbered = [w for w in words if w.isdecimal()]
        template = ".".join("*" if w.isdecimal() else w for w in words)
        # More digits than a count has are beyond any, and more than Python converts.
        beyond = any(len(n) > 18 or int(n) >= config.layers for n in numbered)
        if name.startswith(parts) and (template not in known or beyond):
            raise RlxError(
                f"{file.path}: the tensor {name!r:.80} is no part of the plain BERT encoder of "
                f"{config.layers} layers, which is what rlx builds"
            )


# The program


def build(
    config: BertConfig,
    source: WeightSource,
    rows: int,
    profile: CompileProfile | None = None,
) -> ModuleOp:
    """
    Return the program of a model in HIR, for up to so many rows: the tokens of all texts.

    Texts lie one behind the other: `tokens [rows]` and `positions [rows]`, each token's in its own
    text, are i32, as is `starts [segments]`, the first row of each text. It gives `embeddings
    [segments, d]`, of length 1.
    """
    # A model that is compiled already is configured without loading xDSL.
    from xdsl.dialects.builtin import i32

    from rlx.flow import encoder, stages
    from rlx.flow.layers import Repeat
    from rlx.flow.model import ModelFlow

    flow = ModelFlow(PROGRAM)
    all_rows, segments = flow.dim("rows", 1, rows), flow.dim("segments", 1, rows)
    for name, dim in (("tokens", all_rows), ("positions", all_rows), ("starts", segments)):
        flow.input(name, (dim,), i32)
    flow.stage(encoder.BertEmbeddings(config.eps, f"{config.prefix}embeddings."))
    layer = encoder.BertEncoderLayer(
        config.head_dim,
        config.eps,
        f"{config.prefix}encoder.layer.{LAYER}.",
        config.activation,
        starts="starts",
        factors=config.factors,
    )
    flow.stage(Repeat(config.layers, layer))
    if config.pooling == "mean":
        flow.stage(encoder.SegmentMean("starts"))
    else:
        flow.stage(stages.GatherFromInput("starts"))
    flow.stage(stages.Named("embeddings", encoder.L2Norm())).output("embeddings")
    return flow.build(source, profile).module
