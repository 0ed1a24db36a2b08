"""Writes small GGUF models with random weights, for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import gguf
import numpy as np
from gguf import GGMLQuantizationType, TokenType

from rlx.tools.random_data import random_blocks

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("o", "r"))
TINY_VOCAB = len(CONTROL) + 256 + len(MERGES)
"""The fewest tokens of the tiny vocabulary; ids beyond are fillers that no text gives."""


def tiny_tokens(vocab: int = TINY_VOCAB) -> tuple[list[str], list[TokenType]]:
    """Control tokens, one token for each byte, one for each merge, and fillers up to `vocab`."""
    if vocab < TINY_VOCAB:
        raise ValueError(f"the tiny vocabulary needs {TINY_VOCAB} tokens, got {vocab}")
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(68)]
    fillers = [f"[PAD{i}]" for i in range(vocab - TINY_VOCAB)]
    tokens = [*CONTROL, *alphabet, *(left + right for left, right in MERGES), *fillers]
    types = [TokenType.CONTROL] * len(CONTROL) + [TokenType.NORMAL] * (256 + len(MERGES))
    return tokens, types + [TokenType.UNUSED] * len(fillers)


def add_tiny_tokenizer(writer: gguf.GGUFWriter, vocab: int = TINY_VOCAB, pre: str = "smollm"):
    """A byte-level BPE tokenizer that can encode every text."""
    tokens, types = tiny_tokens(vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([f"{left} {right}" for left, right in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class _Weights:
    """Adds random tensors to a file: weights about N(0, 1/sqrt(K)), norms near 1."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int):
        self.writer = writer
        self.rng = np.random.default_rng(seed)

    def matrix(self, name: str, rows: int, columns: int, ggml_type: str) -> None:
        kind = GGMLQuantizationType[ggml_type.upper()]
        if ggml_type.endswith("_k"):
            # The package has no quantisers for these.
            stored = random_blocks(self.rng, (rows, columns), ggml_type).reshape(rows, -1)
        else:
            values = self.rng.standard_normal((rows, columns), np.float32)
            stored = gguf.quants.quantize(values / np.float32(columns**0.5), kind)
        self.writer.add_tensor(f"{name}.weight", stored, raw_dtype=kind)

    def norm(self, name: str, size: int) -> None:
        values = 1 + self.rng.standard_normal(size, np.float32) / 10
        self.writer.add_tensor(f"{name}.weight", values.astype(np.float32))


def write_llama(
    path: str | Path,
    *,
    layers: int,
    d: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    weight_type: str = "q4_1",
    embed_type: str = "q8_0",
    tied: bool = True,
    seed: int = 0,
    ctx: int = 2048,
    tokenizer: Literal["tiny"] | None = "tiny",
    rope_base: float = 1e5,
) -> Path:
    """
    A Llama-architecture model of random weights, with the keys and names of real files.

    Types by their lower-case names: f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k to q6_k.
    With `tied=False` there is an `output.weight`, of `embed_type`.
    """
    writer = gguf.GGUFWriter(path, "llama")
    head_dim = d // heads
    writer.add_name(f"random llama, {layers} layers")
    writer.add_block_count(layers)
    writer.add_context_length(ctx)
    writer.add_embedding_length(d)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    writer.add_rope_dimension_count(head_dim)
    if tokenizer == "tiny":
        add_tiny_tokenizer(writer, vocab)

    weights = _Weights(writer, seed)
    weights.matrix("token_embd", vocab, d, embed_type)
    for layer in range(layers):
        block = f"blk.{layer}"
        weights.norm(f"{block}.attn_norm", d)
        weights.matrix(f"{block}.ffn_down", d, ffn, weight_type)
        weights.matrix(f"{block}.ffn_gate", ffn, d, weight_type)
        weights.matrix(f"{block}.ffn_up", ffn, d, weight_type)
        weights.norm(f"{block}.ffn_norm", d)
        weights.matrix(f"{block}.attn_k", kv_heads * head_dim, d, weight_type)
        weights.matrix(f"{block}.attn_output", d, heads * head_dim, weight_type)
        weights.matrix(f"{block}.attn_q", heads * head_dim, d, weight_type)
        weights.matrix(f"{block}.attn_v", kv_heads * head_dim, d, weight_type)
    weights.norm("output_norm", d)
    if not tied:
        weights.matrix("output", vocab, d, embed_type)
    finish(writer)
    return Path(path)
