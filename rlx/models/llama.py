"""
The Llama family (Touvron et al., 2023) from GGUF files: Llama, SmolLM2 and what shares their graph.

GGUF `llama` weights are stored for rotary embedding on interleaved pairs, which `hir.rope` rotates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlx.checks import choice
from rlx.contract.quant import KV_FORMATS, WEIGHT_FORMATS, KvFormat
from rlx.errors import RlxError
from rlx.flow.profile import CompileProfile
from rlx.flow.source import LAYER, WeightSource
from rlx.frontends.gguf import GgufFile

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

ARCHITECTURE = "llama"

MOST_ROWS = 64
"""Sequences of a batch, at most."""
_STEP = 16
"""What a head, the rotated part of one, and a cache's capacity are multiples of, for kernels."""


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of a Llama model. Raises RlxError where they don't fit each other."""

    layers: int
    d: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context_length: int
    rope_base: float
    n_rot: int
    eps: float
    tied: bool

    def __post_init__(self) -> None:
        for key, value in (
            ("block_count", self.layers),
            ("embedding_length", self.d),
            ("feed_forward_length", self.ffn),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("context_length", self.context_length),
            ("rope.freq_base", self.rope_base),
            ("rope.dimension_count", self.n_rot),
            ("attention.layer_norm_rms_epsilon", self.eps),
        ):
            # A NaN is not above 0 either.
            if not 0 < value < float("inf"):
                raise RlxError(f"{_key(key)}: expected a positive number, got {value}")
        if self.heads % self.kv_heads:
            raise RlxError(
                f"{_key('attention.head_count')}: expected a multiple of "
                f"{_key('attention.head_count_kv')}, {self.kv_heads}, got {self.heads}"
            )
        for key, value in (
            ("attention.key_length", self.head_dim),
            ("rope.dimension_count", self.n_rot),
        ):
            if value % _STEP:
                raise RlxError(f"{_key(key)}: expected a multiple of {_STEP}, got {value}")
        if self.n_rot > self.head_dim:
            raise RlxError(
                f"{_key('rope.dimension_count')}: expected at most the head's {self.head_dim} "
                f"features, got {self.n_rot}"
            )

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Return every weight's key, `{layer}` in those of layers, and its row-major shape."""
        d, ffn = self.d, self.ffn
        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "token_embd.weight", (self.vocab, d)
        yield "output_norm.weight", (d,)
        if not self.tied:
            yield "output.weight", (self.vocab, d)
        for name, shape in (
            ("attn_norm", (d,)),
            ("attn_q", (q_width, d)),
            ("attn_k", (kv_width, d)),
            ("attn_v", (kv_width, d)),
            ("attn_output", (d, q_width)),
            ("ffn_norm", (d,)),
            ("ffn_gate", (ffn, d)),
            ("ffn_up", (ffn, d)),
            ("ffn_down", (d, ffn)),
        ):
            yield f"blk.{LAYER}.{name}.weight", shape


def _key(name: str) -> str:
    return f"{ARCHITECTURE}.{name}"


def _check_supported(file: GgufFile) -> None:
    """Raise RlxError for metadata that ask for more than the plain Llama graph."""
    architecture = file.value("general.architecture", str)
    if architecture != ARCHITECTURE:
        raise RlxError(
            f"{file.path}: general.architecture: expected {ARCHITECTURE}, got {architecture!r:.80}"
        )
    trivial: dict[str, tuple[object, ...]] = {
        "rope.scaling.type": ("none", ""),
        "rope.scaling.factor": (1.0, 0.0),
        "rope.scale_linear": (1.0, 0.0),
        "attention.sliding_window": (0,),
        "attention.causal": (True,),
        "expert_count": (0,),
    }
    for name, values in trivial.items():
        value = file.value(_key(name), type(values[0]), values[0])
        if value not in values:
            raise RlxError(
                f"{file.path}: {_key(name)} = {value!r:.80} is not supported: expected "
                f"{values[0]!r} or no such key; choose a model without it"
            )


def _head_dim(file: GgufFile, d: int, heads: int) -> int:
    """Return the features of a head, of queries, keys and values alike."""
    head_dim = file.value(_key("attention.key_length"), int, None)
    if head_dim is None:
        if heads < 1 or d % heads:
            raise RlxError(
                f"{file.path}: {_key('embedding_length')}: expected a multiple of "
                f"{_key('attention.head_count')}, {heads}, got {d}"
            )
        head_dim = d // heads
    value_length = file.value(_key("attention.value_length"), int, head_dim)
    if value_length != head_dim:
        raise RlxError(
            f"{file.path}: {_key('attention.value_length')}: expected the features of a key's "
            f"head, {head_dim}, got {value_length}"
        )
    return head_dim


def read_config(file: GgufFile) -> LlamaConfig:
    """
    Return the configuration of a GGUF file, checked against its tensors.

    Raises RlxError, naming the key or the tensor, for what is missing, doesn't fit or isn't
    supported: RoPE scaling, mixtures of experts, biases, other weight formats.
    """
    _check_supported(file)
    d = file.value(_key("embedding_length"), int)
    heads = file.value(_key("attention.head_count"), int)
    head_dim = _head_dim(file, d, heads)
    config = LlamaConfig(
        layers=file.value(_key("block_count"), int),
        d=d,
        ffn=file.value(_key("feed_forward_length"), int),
        heads=heads,
        kv_heads=file.value(_key("attention.head_count_kv"), int, heads),
        head_dim=head_dim,
        vocab=next(iter(file.tensor("token_embd.weight").shape), 0),
        context_length=file.value(_key("context_length"), int),
        rope_base=file.value(_key("rope.freq_base"), float, 10000.0),
        n_rot=file.value(_key("rope.dimension_count"), int, head_dim),
        eps=file.value(_key("attention.layer_norm_rms_epsilon"), float),
        tied="output.weight" not in file.tensors,
    )
    _check_tensors(file, config)
    return config


def _check_tensors(file: GgufFile, config: LlamaConfig) -> None:
    expected: set[str] = set()
    # The first layer that is missing ends the loops, however many the file claims to have.
    for template, shape in config.shapes():
        for layer in range(config.layers if LAYER in template else 1):
            key = template.replace(LAYER, str(layer))
            _check_tensor(file, key, shape)
            expected.add(key)
    extra = [key for key in file.tensors if key not in expected]
    if extra:
        names = ", ".join(f"{key!r:.80}" for key in extra[:5])
        raise RlxError(
            f"{file.path}: the tensors {names} are not part of the plain Llama graph (no biases, "
            "no RoPE factors, no experts), which is what rlx builds"
        )


def _check_tensor(file: GgufFile, key: str, shape: tuple[int, ...]) -> None:
    tensor = file.tensor(key)
    if tensor.shape != shape:
        raise RlxError(
            f"{file.path}: tensor {key!r:.80}: expected the shape {shape}, got {tensor.shape}"
        )
    formats = WEIGHT_FORMATS if len(shape) > 1 else ("f32",)
    if tensor.ggml_type not in formats:
        raise RlxError(
            f"{file.path}: tensor {key!r:.80}: the format {tensor.ggml_type} is not supported: "
            f"expected {', '.join(formats)}"
        )


def build(
    config: LlamaConfig,
    source: WeightSource,
    program: Literal["prefill", "decode", "batch"],
    max_context: int,
    chunk: int = 512,
    profile: CompileProfile | None = None,
    kv_cache: KvFormat = "f32",
) -> ModuleOp:
    """
    Return a program of the model in HIR.

    `prefill` and `decode` take `tokens [seq] i32` and `sampling [8] i32`, give `id [1] i32`, drawn
    from the last row of logits, and `logits`. All programs share the states `k_cache` and `v_cache`
    in the format `kv_cache`, with room for `max_context` positions, rounded up to 16. `past`
    positions are there already.
    `prefill` takes up to `chunk` tokens and gives logits `[out, vocab]` of the last `out` of them;
    `decode` takes one and gives `[1, vocab]`.

    `batch` takes a token of each of up to `MOST_ROWS` sequences: `tokens [rows]`, `sampling
    [rows, 8]` and `places [rows, 2] i64`, which say where a sequence's states begin, in bytes
    behind those of the program, and at which position its token is. It gives `id [rows]` and
    `logits [rows, vocab]`, of each row what `decode` gives, to the bit.

    `profile` is that of the program's kind unless one is
    given. Raises RlxError for sizes out of range and for another format.
    """
    if program not in ("prefill", "decode", "batch"):
        raise RlxError(f"expected the program prefill, decode or batch, got {program!r}")
    if not 1 <= max_context <= config.context_length:
        raise RlxError(
            f"max_context: expected 1 to {config.context_length} ({_key('context_length')}), "
            f"got {max_context}"
        )
    choice("kv_cache", kv_cache, KV_FORMATS)
    if chunk < 1:
        raise RlxError(f"chunk: expected at least 1 token, got {chunk}")
    # A model that is compiled already is configured without loading xDSL.
    from xdsl.dialects.builtin import i32

    from rlx.flow import stages
    from rlx.flow.attention import RopeTables, RowPlaces
    from rlx.flow.context import KEYS, PAST
    from rlx.flow.decoder import LlamaDecodeLayer, LlamaDecoder
    from rlx.flow.model import ModelFlow

    decode, batch = program == "decode", program == "batch"
    capacity = -(-max_context // _STEP) * _STEP

    flow = ModelFlow(program)
    if batch:
        seq = out = flow.dim("rows", 1, MOST_ROWS)
    else:
        seq = flow.dim("seq", 1, 1 if decode else min(chunk, max_context))
        flow.dim(PAST, 0, max_context - 1)
        flow.dim_sum(KEYS, PAST, "seq")
        out = seq if decode else flow.dim("out", 0, min(chunk, max_context))
    flow.input("tokens", (seq,), i32).input("sampling", (seq, 8) if batch else (8,), i32)
    flow.stage(stages.Embed("token_embd.weight"))
    flow.stage(RopeTables(config.rope_base, capacity, config.n_rot))
    if batch:
        flow.few_rows().stage(RowPlaces())
    layer = LlamaDecodeLayer(config.head_dim, capacity, config.eps, cache=kv_cache)
    flow.stage(LlamaDecoder(config.layers, layer))
    flow.stage(stages.LastRows(out))
    flow.stage(stages.RmsNorm("output_norm.weight", config.eps))
    flow.stage(stages.Named("logits", stages.LmHead(None if config.tied else "output.weight")))
    flow.stage(stages.Named("id", stages.Sample()))
    flow.output("id").output("logits")
    if decode:
        flow.carry("tokens", "id").advance(PAST, "seq")
    preset = CompileProfile.prefill() if program == "prefill" else CompileProfile.decode()
    return flow.build(source, profile or preset).module
