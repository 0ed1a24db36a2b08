"""Llama models in HIR: their form, what they compute, and the models that are refused."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import write_llama
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func, FuncOp
from xdsl.parser import Parser

from rlx.dialects import hir, mir
from rlx.dialects.common import DimTable, format_of
from rlx.errors import RlxError
from rlx.flow.source import LAYER
from rlx.frontends.gguf import GgufFile
from rlx.frontends.weights import GgufWeights
from rlx.models.llama import LlamaConfig, build, read_config
from rlx.models.registry import FAMILIES, family
from rlx.reference.interpreter import Reference
from rlx.reference.weights import GgufWeights as ReferenceWeights

SIZES = {"layers": 2, "d": 64, "ffn": 96, "heads": 4, "kv_heads": 2, "vocab": 300}
MAX_CONTEXT = 40


@pytest.fixture
def model(tmp_path: Path) -> Iterator[GgufFile]:
    with GgufFile.open(write_llama(tmp_path / "tiny.gguf", **SIZES)) as file:
        yield file


def program(file: GgufFile, name: Any, max_context: int = MAX_CONTEXT, **kwargs: Any) -> ModuleOp:
    return build(read_config(file), GgufWeights(file), name, max_context, **kwargs)


def parse(text: str) -> ModuleOp:
    context = Context()
    for dialect in (Builtin, Func, hir.Hir, mir.Mir):
        context.load_dialect(dialect)
    return Parser(context, text).parse_module()


def replace_tensor(file: GgufFile, key: str, **fields: Any) -> None:
    file.tensors[key] = file.tensors[key]._replace(**fields)


# Form


def test_config(model: GgufFile):
    assert read_config(model) == LlamaConfig(
        layers=2,
        d=64,
        ffn=96,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocab=300,
        context_length=2048,
        rope_base=1e5,
        n_rot=16,
        eps=float(np.float32(1e-5)),
        tied=True,
    )


def test_defaults_of_the_metadata(model: GgufFile):
    for key in ("attention.head_count_kv", "rope.freq_base", "rope.dimension_count"):
        del model.metadata[f"llama.{key}"]
    for layer in range(2):
        for name in "kv":
            replace_tensor(model, f"blk.{layer}.attn_{name}.weight", shape=(64, 64))
    config = read_config(model)
    assert (config.kv_heads, config.rope_base, config.n_rot) == (4, 10000.0, 16)


@pytest.mark.parametrize("name", ["prefill", "decode"])
@pytest.mark.parametrize("rope_base", [1e5, 123456.75, 283461213.0])
def test_prints_and_parses_to_the_same_text(tmp_path: Path, name: str, rope_base: float):
    path = write_llama(tmp_path / "m.gguf", **SIZES, rope_base=rope_base)
    with GgufFile.open(path) as file:
        module = program(file, name)
    module.verify()
    again = parse(str(module))
    again.verify()
    assert str(again) == str(module)
    (norm, *_) = [op for op in again.walk() if isinstance(op, hir.RmsNormOp)]
    assert norm.eps.value.data == float(np.float32(1e-5))
    (table,) = [op for op in again.walk() if isinstance(op, hir.RopeTableOp)]
    assert table.base.value.data == float(np.float32(rope_base))


def test_decode_program(model: GgufFile):
    module = program(model, "decode")
    assert module.sym_name is not None
    assert module.sym_name.data == "decode"
    assert {k: str(v) for k, v in module.attributes.items()} == {
        "rlx.dims": "#hir.dim_table<seq = 1, past = 0 to 39, keys = past + seq>",
        "rlx.carry": '{tokens = "id"}',
        "rlx.advance": '{past = "seq"}',
    }
    text = str(module)
    assert (
        'func.func @main(%tokens: tensor<1xi32> {rlx.name = "tokens"}, %sampling: tensor<8xi32> '
        '{rlx.name = "sampling"}) -> (tensor<1xi32> {rlx.name = "id"}, tensor<1x300xf32> '
        '{rlx.name = "logits"})'
    ) in text
    assert "hir.repeat @layer(%x, %cos, %sin) layers 0 to 2 :" in text
    assert "hir.state @k_cache keys head_dim 16 : tensor<48x32xf32>" in text
    assert "hir.state @v_cache values head_dim 16 : tensor<48x32xf32>" in text
    assert 'hir.weight @attn_q "blk.{layer}.attn_q.weight" : tensor<64x64x!hir.q<q4_1>>' in text
    assert 'hir.weight @token_embd "token_embd.weight" : tensor<300x64x!hir.q<q8_0>>' in text
    assert "func.return %id, %logits" in text
    assert "hir.last_rows" not in text


@pytest.mark.parametrize("kept", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_keys_and_values_kept_in_half_the_bits(model: GgufFile, name: str, kept: Any):
    module = program(model, name, kv_cache=kept)
    module.verify()
    text = str(module)
    assert f"hir.state @k_cache keys head_dim 16 : tensor<48x32x{kept}>" in text
    assert f"hir.state @v_cache values head_dim 16 : tensor<48x32x{kept}>" in text
    (attention,) = [op for op in module.walk() if isinstance(op, hir.AttentionOp)]
    assert format_of(attention.keys.type) == format_of(attention.values.type) == kept
    assert format_of(attention.query.type) == format_of(attention.result.type) == "f32"


def test_prefill_program(model: GgufFile):
    module = program(model, "prefill", chunk=8)
    assert str(module.attributes["rlx.dims"]) == (
        "#hir.dim_table<seq = 1 to 8, past = 0 to 39, keys = past + seq, out = 0 to 8>"
    )
    assert set(module.attributes) == {"rlx.dims"}
    text = str(module)
    assert 'tensor<?xi32, #hir.dims<seq>> {rlx.name = "tokens"}' in text
    assert 'tensor<?x300xf32, #hir.dims<out, _>> {rlx.name = "logits"}' in text
    assert "hir.last_rows" in text


def test_both_programs_declare_the_same_weights_and_states(model: GgufFile):
    def declarations(module: ModuleOp) -> list[str]:
        return [str(op) for op in module.ops if not isinstance(op, FuncOp)]

    decode = declarations(program(model, "decode"))
    assert decode == declarations(program(model, "prefill"))
    assert len(decode) == 11 + 2


def test_chunk_is_at_most_the_context(model: GgufFile):
    assert DimTable.of(program(model, "prefill", 40)).upper["seq"] == 40
    assert DimTable.of(program(model, "prefill", 2048)).upper["seq"] == 512
    one = program(model, "prefill", 1)
    one.verify()
    assert DimTable.of(one).upper == {"seq": 1, "past": 0, "keys": 1, "out": 1}


def test_120_layers_are_no_more_operations_than_30(tmp_path: Path):
    counts: dict[int, int] = {}
    for layers in (30, 120):
        path = write_llama(tmp_path / f"{layers}.gguf", **SIZES | {"layers": layers, "ffn": 32})
        with GgufFile.open(path) as file:
            module = program(file, "decode")
        module.verify()
        counts[layers] = sum(1 for _ in module.walk())
        assert f"layers 0 to {layers} :" in str(module)
    assert counts[30] == counts[120]


def test_mixed_formats_give_several_functions(tmp_path: Path):
    path = write_llama(tmp_path / "m.gguf", **SIZES | {"layers": 6})
    with GgufFile.open(path) as file:
        for layer in (2, 3):
            replace_tensor(file, f"blk.{layer}.ffn_down.weight", ggml_type="q8_0")
        module = program(file, "decode")
    module.verify()
    functions = [op.sym_name.data for op in module.ops if isinstance(op, FuncOp)]
    assert functions == ["layer", "layer_1", "layer_2", "main"]
    runs = re.findall(r"hir.repeat @(\w+)\(.*\) layers (\d) to (\d)", str(module))
    assert runs == [("layer", "0", "2"), ("layer_1", "2", "4"), ("layer_2", "4", "6")]
    downs = re.findall(r'@(\w+) "blk.{layer}.ffn_down.weight" : .*<(q\w+)>', str(module))
    assert downs == [("ffn_down", "q4_1"), ("ffn_down_1", "q8_0"), ("ffn_down_2", "q4_1")]
    assert str(module).count("hir.state") == 2
    assert str(parse(str(module))) == str(module)


def test_untied(tmp_path: Path):
    path = write_llama(tmp_path / "m.gguf", **SIZES, tied=False)
    with GgufFile.open(path) as file:
        assert not read_config(file).tied
        module = program(file, "decode")
    module.verify()
    assert 'hir.weight @output "output.weight"' in str(module)


def test_config_lists_every_tensor(model: GgufFile):
    keys = {
        key.replace(LAYER, str(layer)) for key, _ in read_config(model).shapes() for layer in (0, 1)
    }
    assert keys == set(model.tensors)


# What the programs compute


def numpy_llama(file: GgufFile, config: LlamaConfig, ids: np.ndarray) -> np.ndarray:
    """The logits `[n, vocab]` of ids `[n]`, from the formulas, in float64."""
    source = GgufWeights(file)
    n, head_dim = len(ids), config.head_dim

    def weight(key: str) -> np.ndarray:
        return source.take(key)[0].astype(np.float64)

    def norm(x: np.ndarray, key: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(1, keepdims=True) + config.eps) * weight(key)

    def rotate(x: np.ndarray) -> np.ndarray:
        """Pairs as complex numbers, turned by their angle."""
        rates = config.rope_base ** (-np.arange(0, head_dim, 2) / head_dim)
        turn = np.exp(1j * np.arange(n)[:, None] * rates)
        pairs = x.reshape(n, -1, head_dim // 2, 2) @ [1, 1j] * turn[:, None]
        return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)

    def heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(n, -1, head_dim).transpose(1, 0, 2)

    x = weight("token_embd.weight")[ids]
    for layer in range(config.layers):
        block = f"blk.{layer}"
        h = norm(x, f"{block}.attn_norm.weight")
        q, k, v = (h @ weight(f"{block}.attn_{name}.weight").T for name in "qkv")
        group = config.heads // config.kv_heads
        k, v = (np.repeat(heads(t), group, 0) for t in (rotate(k), v))
        scores = heads(rotate(q)) @ k.transpose(0, 2, 1) / np.sqrt(head_dim)
        scores += np.triu(np.full((n, n), -np.inf), 1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        attention = (scores / scores.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(n, -1)
        x = x + attention @ weight(f"{block}.attn_output.weight").T
        h = norm(x, f"{block}.ffn_norm.weight")
        gate = h @ weight(f"{block}.ffn_gate.weight").T
        h = gate / (1 + np.exp(-gate)) * (h @ weight(f"{block}.ffn_up.weight").T)
        x = x + h @ weight(f"{block}.ffn_down.weight").T
    head = "token_embd" if config.tied else "output"
    return norm(x, "output_norm.weight") @ weight(f"{head}.weight").T


GREEDY = np.zeros(8, np.int32)
"""Sampling parameters: a temperature of 0."""


@pytest.mark.parametrize("tied", [True, False])
def test_prefill_and_decode_compute_a_llama(tmp_path: Path, tied: bool):
    path = write_llama(tmp_path / "m.gguf", **SIZES, tied=tied, seed=5)
    ids = np.random.default_rng(11).integers(0, 300, 9).astype(np.int32)
    with GgufFile.open(path) as file:
        expected = numpy_llama(file, read_config(file), ids)
        weights = ReferenceWeights(file)

        whole = Reference(program(file, "prefill"), weights)
        dims = {"seq": 9, "past": 0, "out": 9}
        at_once = whole.run({"tokens": ids, "sampling": GREEDY}, dims)
        np.testing.assert_allclose(at_once["logits"], expected, rtol=1e-9, atol=1e-9)
        assert at_once["id"] == expected[-1].argmax()

        decode = Reference(program(file, "decode"), weights)
        for past, token in enumerate(ids):
            step = decode.run({"tokens": ids[past : past + 1], "sampling": GREEDY}, {"past": past})
            np.testing.assert_allclose(step["logits"][0], expected[past], rtol=1e-9, atol=1e-9)
            assert step["id"] == expected[past].argmax(), token

        # A prompt in two pieces, then a token, on one state.
        pieces = Reference(program(file, "prefill"), weights)
        first = {"seq": 5, "past": 0, "out": 1}
        pieces.run({"tokens": ids[:5], "sampling": GREEDY}, first)
        second = {"seq": 3, "past": 5, "out": 2}
        result = pieces.run({"tokens": ids[5:8], "sampling": GREEDY}, second)
        np.testing.assert_allclose(result["logits"], expected[6:8], rtol=1e-9, atol=1e-9)
        follow = Reference(program(file, "decode"), weights, state=pieces.state)
        result = follow.run({"tokens": ids[8:], "sampling": GREEDY}, {"past": 8})
        np.testing.assert_allclose(result["logits"], expected[8:], rtol=1e-9, atol=1e-9)


# What is refused


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", "gpt2", "general.architecture: expected llama, got 'gpt2'"),
        ("llama.attention.head_count", 3, "embedding_length: expected a multiple of llama.att"),
        ("llama.attention.head_count", 0, "multiple of llama.attention.head_count, 0, got 64"),
        ("llama.attention.head_count_kv", 3, "head_count: expected a multiple of .*_kv, 3, got 4"),
        ("llama.attention.head_count_kv", 0, "head_count_kv: expected a positive number, got 0"),
        ("llama.attention.head_count", [4, 4], "'llama.attention.head_count' to be of type int"),
        ("llama.block_count", 0, "llama.block_count: expected a positive number, got 0"),
        ("llama.block_count", 3, "expected a tensor 'blk.2.attn_norm.weight', which is missing"),
        ("llama.block_count", 1 << 60, "expected a tensor 'blk.2.attn_norm.weight'"),
        ("llama.block_count", 1, r"the tensors 'blk\.1\..* are not part of the plain Llama graph"),
        ("llama.embedding_length", 128, r"'token_embd.weight': expected the shape \(300, 128\)"),
        ("llama.feed_forward_length", 64, r"ffn_gate.weight': expected the shape \(64, 64\), got"),
        ("llama.context_length", 0, "llama.context_length: expected a positive number"),
        ("llama.rope.freq_base", float("nan"), "rope.freq_base: expected a positive number, got n"),
        ("llama.rope.freq_base", "1e5", "'llama.rope.freq_base' to be of type float, found str"),
        ("llama.rope.dimension_count", 15, "dimension_count: expected a multiple of 16, got 15"),
        ("llama.rope.dimension_count", 32, "at most the head's 16 features, got 32"),
        ("llama.attention.layer_norm_rms_epsilon", 0.0, "rms_epsilon: expected a positive number"),
        ("llama.attention.key_length", 32, r"attn_q.weight': expected the shape \(128, 64\)"),
        ("llama.attention.key_length", 0, "attention.value_length|key_length: expected a positive"),
        ("llama.attention.value_length", 8, "value_length: expected .* head, 16, got 8"),
        ("llama.rope.scaling.type", "yarn", "llama.rope.scaling.type = 'yarn' is not supported"),
        ("llama.rope.scaling.factor", 8.0, r"llama.rope.scaling.factor = 8.0 is not supported"),
        ("llama.rope.scale_linear", 4.0, "llama.rope.scale_linear = 4.0 is not supported"),
        ("llama.attention.sliding_window", 64, "sliding_window = 64 is not supported: expected 0"),
        ("llama.attention.causal", False, "llama.attention.causal = False is not supported"),
        ("llama.expert_count", 8, "llama.expert_count = 8 is not supported"),
    ],
)
def test_metadata_refused(model: GgufFile, key: str, value: object, message: str):
    model.metadata[key] = value
    with pytest.raises(RlxError, match=message):
        read_config(model)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.rope.scaling.type", "none"),
        ("llama.rope.scaling.factor", 1.0),
        ("llama.rope.scale_linear", 1.0),
        ("llama.expert_count", 0),
        ("llama.attention.value_length", 16),
    ],
)
def test_trivial_metadata_accepted(model: GgufFile, key: str, value: object):
    expected = read_config(model)
    model.metadata[key] = value
    assert read_config(model) == expected


@pytest.mark.parametrize(
    "key",
    [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    ],
)
def test_missing_metadata(model: GgufFile, key: str):
    del model.metadata[key]
    with pytest.raises(RlxError, match=f"expected the metadata key '{key}', which is missing"):
        read_config(model)


@pytest.mark.parametrize(
    "key", ["token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight", "blk.1.ffn_up.weight"]
)
def test_missing_tensors(model: GgufFile, key: str):
    del model.tensors[key]
    with pytest.raises(RlxError, match=f"expected a tensor '{key}', which is missing"):
        read_config(model)


@pytest.mark.parametrize(
    ("key", "fields", "message"),
    [
        ("blk.1.ffn_up.weight", {"ggml_type": "iq4_nl"}, "format iq4_nl is not supported: expecte"),
        (
            "blk.0.attn_q.weight",
            {"ggml_type": "mxfp4"},
            "expected f32, f16, bf16, q4_0, q4_1, q5_0",
        ),
        ("output_norm.weight", {"ggml_type": "f16"}, "format f16 is not supported: expected f32$"),
        ("blk.1.attn_k.weight", {"shape": (64, 64)}, r"expected the shape \(32, 64\), got \(64, 6"),
        ("token_embd.weight", {"shape": ()}, r"expected the shape \(0, 64\), got \(\)"),
    ],
)
def test_tensors_refused(model: GgufFile, key: str, fields: dict[str, Any], message: str):
    replace_tensor(model, key, **fields)
    with pytest.raises(RlxError, match=message) as error:
        read_config(model)
    assert f"tensor '{key}'" in str(error.value)


@pytest.mark.parametrize("extra", ["blk.0.attn_q.bias", "blk.1.ffn_up.bias", "rope_freqs.weight"])
def test_extra_tensors_refused(model: GgufFile, extra: str):
    model.tensors[extra] = model.tensors["output_norm.weight"]._replace(name=extra)
    with pytest.raises(RlxError, match=f"the tensors '{extra}' are not part .*no biases"):
        read_config(model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_context": 0}, r"max_context: expected 1 to 2048 \(llama.context_length\), got 0"),
        ({"max_context": 2049}, "max_context: expected 1 to 2048 .* got 2049"),
        ({"chunk": 0}, "chunk: expected at least 1 token, got 0"),
        ({"name": "train"}, "expected the program prefill, decode or batch, got 'train'"),
    ],
)
def test_build_refused(model: GgufFile, arguments: dict[str, Any], message: str):
    with pytest.raises(RlxError, match=message):
        program(model, **{"name": "prefill", **arguments})


def test_registry():
    assert list(FAMILIES) == ["llama"]
    assert family("llama").read_config is read_config
    with pytest.raises(
        RlxError, match=r"'mamba' \(general.architecture\) is not supported: .*llama"
    ):
        family("mamba")
