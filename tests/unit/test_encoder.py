"""Encoders of texts from folders: against numpy, against transformers, and what can be wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from encoders import CLS, SEP, SIZES, bert_arrays, bert_config, embed, write_bert
from kernels import levels, nmse
from oracles import inputs

import rlx
from rlx import encoders
from rlx.errors import RlxError
from rlx.lowering import target
from rlx.lowering.target import Target, usable_cores
from rlx.runtime.encoder import TextEncoder, packed

pytestmark = pytest.mark.usefixtures("cache")


def load(folder: Path, **options: Any) -> TextEncoder:
    model = rlx.load(folder, **{"precision": "exact", **options})
    assert isinstance(model, TextEncoder)
    return model


def ragged(rng: np.random.Generator, count: int, longest: int, vocab: int = 40) -> list[list[int]]:
    lengths = rng.integers(1, longest + 1, count)
    return [rng.integers(0, vocab, n).tolist() for n in lengths]


def assert_near(got: np.ndarray, wanted: np.ndarray, limit: float = 2e-6) -> None:
    assert got.dtype == np.float32
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, atol=limit, rtol=0)


CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "wide": {"d": 64, "heads": 2, "layers": 1},
    "narrow": {"d": 12, "heads": 4, "ffn": 7, "layers": 3},
    "one": {"d": 16, "heads": 1, "types": 1, "hidden_act": "relu"},
    "tanh": {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_embeddings_are_those_of_numpy(tmp_path: Path, name: str):
    changes = CONFIGS[name]
    arrays = bert_arrays(3, **{k: v for k, v in changes.items() if k in SIZES})
    config = bert_config(**changes)
    model = load(write_bert(tmp_path / "m", arrays, config), verify=True)
    texts = ragged(np.random.default_rng(1), 30, SIZES["positions"])
    texts += [[1], list(range(32))]
    assert_near(model.encode(texts), embed(arrays, config, texts))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_weights_in_half_precision_and_a_prefix(tmp_path: Path, dtype: Any):
    arrays = bert_arrays(4, prefix="bert.", dtype=dtype)
    more = {"bert.pooler.dense.weight": np.zeros((2, 2), np.float32)}
    more["bert.embeddings.position_ids"] = np.arange(32)[None]
    more["cls.predictions.bias"] = np.zeros(3, np.float64)
    model = load(write_bert(tmp_path / "m", arrays | more))
    texts = ragged(np.random.default_rng(2), 9, 20)
    assert_near(model.encode(texts), embed(arrays, bert_config(), texts, prefix="bert."))


def test_the_first_token_may_stand_for_a_text(tmp_path: Path):
    mode = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    folder = write_bert(tmp_path / "m", **{"1_Pooling__config": mode})
    texts = ragged(np.random.default_rng(2), 9, 20)
    assert_near(load(folder).encode(texts), embed(bert_arrays(), bert_config(), texts, "", "cls"))


def test_several_calls_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An embedding is the same to the bit whatever is packed with it, and on any threads."""
    folder = write_bert(tmp_path / "m")
    texts = ragged(np.random.default_rng(5), 70, 32)
    one = load(folder, threads=1)
    wanted = one.encode(texts)
    assert one.stats.steps == 2 or sum(map(len, texts)) <= encoders.ROWS
    monkeypatch.setattr(encoders, "ROWS", 64)
    for threads in (1, min(2, usable_cores())):
        model = load(folder, threads=threads)
        seen: list[tuple[int, int]] = []
        np.testing.assert_array_equal(
            model.encode(texts, lambda done, total: seen.append((done, total))), wanted
        )
        assert model.stats.steps == len(seen) > 10
        assert seen[-1] == (70, 70)
        np.testing.assert_array_equal(model.encode(texts[::-1]), wanted[::-1])
        alone = [model.encode([text])[0] for text in texts[:5]]
        np.testing.assert_array_equal(alone, wanted[:5])


def test_texts_are_cut_and_not_padded(tmp_path: Path):
    """The tokenizer's file says five tokens and 24 with padding: the folder's limit counts."""
    folder = write_bert(tmp_path / "m", sentence_bert_config={"max_seq_length": 9})
    model = load(folder)
    assert model.limit == 9
    assert model.tokenizer.encode(["the cats sat!", ""]) == [
        [CLS, 4, 6, 11, 8, 14, SEP],
        [CLS, SEP],
    ]
    long = "the cat sat on a mat . " * 3
    (cut,) = model.tokenizer.encode([long])
    assert len(cut) == 9
    assert cut[-1] == SEP
    texts = ["the cats sat!", "", long]
    wanted = embed(bert_arrays(), bert_config(), model.tokenizer.encode(texts))
    assert_near(model.encode(texts), wanted)
    assert model.stats.texts == 3
    assert model.stats.tokens == 7 + 2 + 9
    mixed: list[Any] = [list(range(20)), "", np.arange(4, dtype=np.uint8)]
    wanted = embed(bert_arrays(), bert_config(), [range(9), [CLS, SEP], range(4)])
    assert_near(model.encode(mixed), wanted)
    assert load(folder, max_context=32).limit == 32
    assert model.encode([]).shape == (0, SIZES["d"])


def test_calls_are_about_as_long_and_hold_all_texts():
    rng = np.random.default_rng(9)
    for rows in (7, 50, 512):
        for count in (0, 1, 2, 40, 300):
            lengths = rng.integers(1, rows + 1, count).tolist()
            calls = packed(lengths, rows)
            assert sorted(i for call in calls for i in call) == list(range(count))
            sums = [sum(lengths[i] for i in call) for call in calls]
            assert all(0 < s <= rows for s in sums)
            assert len(calls) <= 2 * -(-sum(lengths) // rows)
    even = [5 * len(call) for call in packed([5] * 103, 100)]
    assert even == [90, 85, 85, 85, 85, 85]


def test_the_stages_of_an_encoder(tmp_path: Path):
    model = load(write_bert(tmp_path / "m"))
    for stage, word in (
        ("hir", "hir.linear"), ("mir", "transformer.segment_attention"), ("lir", "lir.loop"),
        ("llvm", "define"),
    ):  # fmt: skip
        assert word in model.ir(stage)
    with pytest.raises(RlxError, match="stage: expected one of hir"):
        model.ir("c")


def test_what_changes_the_code_changes_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    host = Target.host()

    def key(*folder: Any, **options: Any) -> str:
        asked = {"precision": "exact", **options}
        return encoders.open_encoder(*folder, **asked).key("embed", host)

    first = write_bert(tmp_path / "a")
    same = write_bert(tmp_path / "b", bert_arrays(7))
    assert key(first) == key(same)
    keys = [
        key(first),
        key(first, precision="fast"),
        key(write_bert(tmp_path / "c", config=bert_config(layer_norm_eps=1e-3))),
        key(write_bert(tmp_path / "d", bert_arrays(dtype=np.float16))),
    ]
    monkeypatch.setattr(encoders, "ROWS", 64)
    keys.append(key(first))
    assert len(set(keys)) == len(keys)


def test_a_warm_start_imports_no_compiler(tmp_path: Path):
    folder = write_bert(tmp_path / "m")
    wanted = load(folder).encode([[1, 2, 3]])
    script = (
        "import rlx, sys; m = rlx.load(sys.argv[1], precision='exact'); e = m.encode([[1, 2, 3]]);"
        "print([n for n in ('xdsl', 'tokenizers') if n in sys.modules], m.stats.compilations,"
        "e.tobytes().hex())"
    )
    command = [sys.executable, "-c", script, folder]
    # The code of the threads may be in this process's memory alone.
    subprocess.run(command, capture_output=True, check=True)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == f"[] 0 {wanted.tobytes().hex()}\n", done.stderr


# What is wrong


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("a text", "texts: expected a list of texts or of token ids, got 'a text'"),
        (3, "texts: expected a list"),
        ([3], "text 0: expected a text or token ids, got 3"),
        (np.array(3), r"texts: expected a list of texts or of token ids, got array\(3\)"),
        ([np.array(3)], r"text 0: expected a text or token ids, got array\(3\)"),
        ([[1], []], "text 1: expected at least one token, got none"),
        ([[1], [2, 40]], "text 1: token 1: expected an integer from 0 to 39, got 40"),
        ([[-1]], "text 0: token 0: expected an integer from 0 to 39, got -1"),
        ([[1.5]], "text 0: token 0: expected an integer"),
        ([[1, "a"]], "text 0: token 1: expected an integer"),
        ([[[1]]], "text 0: token 0: expected an integer"),
        ([[1 << 70]], "text 0: token 0: expected an integer"),
        (["\ud800"], "texts: expected Unicode text"),
    ],
)
def test_texts_that_are_none(tmp_path: Path, texts: Any, message: str):
    with pytest.raises(RlxError, match=message):
        load(write_bert(tmp_path / "m")).encode(texts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "roberta"}, "model_type: expected bert, .* got 'roberta'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: expected"),
        ({"is_decoder": True}, "is_decoder: expected False"),
        ({"hidden_act": "silu"}, "hidden_act: expected one of gelu, .*'silu'"),
        ({"heads": 5}, "hidden_size 48: expected heads of at most 256 features, a multiple"),
        ({"heads": 0}, "num_attention_heads: expected a positive integer, got 0"),
        ({"heads": "3"}, "num_attention_heads: expected a positive integer, got '3'"),
        ({"layer_norm_eps": 0}, "layer_norm_eps: expected a number"),
        ({"layer_norm_eps": "x"}, "layer_norm_eps: expected a number"),
        ({"layers": 3}, r"expected a tensor 'encoder.layer.2.*', which is missing"),
        ({"layers": 1 << 40}, r"expected a tensor 'encoder.layer.2.*', which is missing"),
        ({"layers": 1}, r"tensor 'encoder.layer.1.* is no part of the plain BERT encoder of 1 "),
        ({"vocab": 41}, r"word_embeddings.weight': expected the shape \[41, 48\], got \[40, 48\]"),
        ({"ffn": 81}, r"expected the shape \[81, 48\], got \[80, 48\]"),
    ],
)
def test_a_configuration_that_does_not_fit(
    tmp_path: Path, changes: Mapping[str, Any], message: str
):
    folder = write_bert(tmp_path / "m", config=bert_config(**changes))
    with pytest.raises(RlxError, match=message) as caught:
        load(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "[]", "config.json: expected an object in JSON, got"),
        ("config.json", "{", "config.json: expected an object in JSON: "),
        ("config.json", "[" * 100_000, "config.json: expected an object in JSON: "),
        ("model.safetensors", "{}", "found one of 2 bytes"),
        ("sentence_bert_config.json", '{"max_seq_length": "9"}', "max_seq_length: expected an"),
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}', "expected one of pooling_"),
        ("1_Pooling/config.json", "{}", "expected one of pooling_mode_mean_tokens, .*got none"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, name: str, content: str, message: str):
    folder = write_bert(tmp_path / "m")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content)
    with pytest.raises(RlxError, match=message):
        load(folder)


@pytest.mark.parametrize("content", [None, "{}", "\0", '{"normalizer": {"type": "Precompiled"}}'])
def test_a_tokenizer_that_is_none(tmp_path: Path, content: str | None):
    """It matters when the first text comes: token ids need none."""
    folder = write_bert(tmp_path / "m")
    path = folder / "tokenizer.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    model = load(folder)
    assert model.encode([[1]]).shape == (1, SIZES["d"])
    with pytest.raises(RlxError, match=r"tokenizer.json: expected a tokenizer"):
        model.encode(["a"])
    path.unlink(missing_ok=True)
    path.symlink_to(os.devnull)
    with pytest.raises(RlxError, match=r"expected a tokenizer: expected a regular file: give"):
        load(folder).encode(["a"])
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(os.devnull)
    with pytest.raises(RlxError, match=r"config.json: expected a readable file: expected a reg"):
        load(folder)


@pytest.mark.parametrize(
    ("part", "name"), [("post_processor", "special_tokens"), ("model", "vocab")]
)
def test_a_tokenizer_that_encodes_nothing(tmp_path: Path, part: str, name: str):
    """The library panics, or raises what is no error of its own."""
    folder = write_bert(tmp_path / "m")
    path = folder / "tokenizer.json"
    saved = json.loads(path.read_text())
    saved[part][name] = {}
    path.write_text(json.dumps(saved))
    with pytest.raises(RlxError, match=r"tokenizer.json: it can't encode texts, it is damaged: "):
        load(folder).encode(["a"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("encoder.layer.0.output.dense.bias", "expected a tensor 'encoder.layer.0.output.dense.b"),
        ("embeddings.word_embeddings.weight", "expected a tensor 'embeddings.word_embeddings"),
        ("+encoder.layer.0.extra.weight", "'encoder.layer.0.extra.weight' is no part"),
        ("+encoder.layer.2.output.dense.bias", "'encoder.layer.2.output.dense.bias' is no part"),
        (f"+encoder.layer.{'9' * 5000}.output.dense.bias", "'encoder.layer.999.* is no part"),
    ],
)
def test_tensors_that_are_missing_or_more(tmp_path: Path, change: str, message: str):
    arrays = bert_arrays()
    if change.startswith("+"):
        arrays[change[1:]] = np.zeros(3, np.float32)
    else:
        del arrays[change]
    with pytest.raises(RlxError, match=message):
        load(write_bert(tmp_path / "m", arrays))


def test_weights_of_another_dtype(tmp_path: Path):
    arrays = bert_arrays()
    name = "encoder.layer.1.output.dense.bias"
    arrays[name] = arrays[name].astype(np.float64)
    with pytest.raises(RlxError, match=f"'{name}': the dtype F64 is not supported: expected F32"):
        load(write_bert(tmp_path / "m", arrays))


@pytest.mark.parametrize("level", levels()[:-1])
def test_every_precision_on_lesser_cpus(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(target, "_host", lambda: Target.named(level))
    folder, texts = write_bert(tmp_path / "m"), [[1, 2], [3, 7, 4], [5, 6, 7, 2, 9]]
    exact = load(folder, precision="exact").encode(texts)
    for precision, limit in (("auto", 1e-12), ("fast", 1e-9), ("int8", 1e-2)):
        assert nmse(load(folder, precision=precision).encode(texts), exact) < limit


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_precisions_share_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any):
    """The weights that one has packed are not those of another, even where their size is."""
    folder, texts = write_bert(tmp_path / "m", bert_arrays(0, dtype=dtype)), [[1, 2], [3, 7, 4]]

    def encoded(precision: str, cache: str) -> np.ndarray:
        monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / cache))
        return load(folder, precision=precision).encode(texts)

    for order in (encoders.ENCODER_PRECISIONS, encoders.ENCODER_PRECISIONS[::-1]):
        for precision in order:
            shared = encoded(precision, f"after {order[0]}")
            np.testing.assert_array_equal(shared, encoded(precision, precision))


@pytest.mark.parametrize("precision", ["exact", "int8"])
def test_embeddings_that_are_not_finite(tmp_path: Path, precision: str):
    """A token's embedding is NaN: the error names the first text that has it."""
    arrays = bert_arrays()
    arrays["embeddings.word_embeddings.weight"][7] = np.nan
    model = load(write_bert(tmp_path / "m", arrays), precision=precision)
    with pytest.raises(RlxError, match=r"^text 1: its embedding is not finite"):
        model.encode([[1, 2], [3, 7, 4], [5, 6, 7]])
    assert np.isfinite(model.encode([[1, 2], [5, 6]])).all()


def test_options_that_an_encoder_does_not_have(tmp_path: Path):
    folder = write_bert(tmp_path / "m")
    for options, message in (
        ({"kv_cache": "f16"}, "kv_cache: an encoder keeps no keys"),
        ({"max_context": 33}, "max_context: expected an integer from 1 to 32, got 33"),
        ({"precision": "int4"}, "precision: expected one of exact, fast, auto, int8, got 'int4'"),
    ):
        with pytest.raises(RlxError, match=message):
            load(folder, **options)
    with pytest.raises(RlxError, match=r"expected the folder of an encoder.*no model.safetensors"):
        load(tmp_path)


def test_without_a_configuration_sizes_are_those_of_tensors(tmp_path: Path):
    arrays = bert_arrays(8, heads=12, d=48)
    folder = write_bert(tmp_path / "m", arrays)
    (folder / "config.json").unlink()
    texts = ragged(np.random.default_rng(1), 5, 30)
    with pytest.warns(UserWarning, match=r"is missing: assumed num_attention_heads 12, layer_norm"):
        model = load(folder)
    assert_near(model.encode(texts), embed(arrays, bert_config(heads=12), texts))


# The command


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    from rlx.tools.cli import main

    folder = str(write_bert(tmp_path / "m"))
    texts = ["the cat", "", "a dog\x0c sat"]
    file = tmp_path / "lines.txt"
    file.write_bytes("\r\n".join(texts).encode() + b"\n")
    wanted = load(Path(folder)).encode(texts)

    def run(*args: str) -> tuple[str, str]:
        assert main(["embed", folder, *args, "--precision", "exact"]) == 0
        captured = capfd.readouterr()
        return captured.out, captured.err

    out, err = run(str(file))
    np.testing.assert_array_equal(np.float32([line.split() for line in out.splitlines()]), wanted)
    assert "3 texts, 11 tokens" in err
    assert "\r" not in err
    out, err = run(str(file), "--json", "--threads", "1")
    found = json.loads(out)
    np.testing.assert_array_equal(np.float32(found["embeddings"]), wanted)
    assert (found["texts"], found["tokens"], found["threads"]) == (3, 11, 1)
    assert err == ""
    assert run(str(file), "-q", "-o", str(tmp_path / "e.npy")) == ("", "")
    np.testing.assert_array_equal(np.load(tmp_path / "e.npy"), wanted)
    (tmp_path / "none.txt").write_bytes(b"")
    assert run(str(tmp_path / "none.txt"), "-q") == ("", "")


def test_the_command_says_what_is_wrong(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    from rlx.tools.cli import main

    folder = str(write_bert(tmp_path / "m"))
    (tmp_path / "latin.txt").write_bytes(b"\xe9")
    for args, message in (
        (["embed", folder, str(tmp_path / "none.txt")], "none.txt: No such file or directory"),
        (["embed", folder, str(tmp_path / "latin.txt")], "expected text in UTF-8"),
        (["embed", str(tmp_path), __file__], "expected the folder of an encoder"),
        (["embed", f"{folder}/model.safetensors", __file__], "safetensors file: name the folder"),
        (["generate", f"{folder}/config.json", "--prompt", "x"], "JSON file: name the folder"),
        (["embed", "", __file__], "path: expected that of a model, got an empty one"),
        (["embed", folder, __file__, "-o", ""], "cannot write a file: expected its path"),
        (["embed", folder, __file__, "-o", "/no/where.npy"], "cannot write /no/where.npy: No such"),
        (["embed", folder, __file__, "-o", "/dev/full"], "cannot write /dev/full: No space left"),
        (["generate", folder, "--prompt", "x"], "expected a GGUF file, found a directory"),
    ):
        assert main(args) == 1
        err = capfd.readouterr().err
        assert err.startswith("rlx: error: ")
        assert err.count("\n") == 1
        assert message in err


def test_an_array_replaces_another_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from rlx.tools import cli, embed

    folder, file = str(write_bert(tmp_path / "m")), tmp_path / "lines.npy"
    file.write_bytes(b"before")

    def fail(file: Any, _: object) -> None:
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(embed.np, "save", fail)
    assert cli.main(["embed", folder, __file__, "-o", str(file), "-q"]) == 1
    assert file.read_bytes() == b"before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lines.npy", "m"]


def test_a_bar_is_for_terminals_alone(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    from rlx.tools.embed import Progress

    Progress()(1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bar = Progress()
    bar(2, 2)
    bar.end()
    err = capsys.readouterr().err
    assert "] 2/2, " in err
    assert err.endswith("\r\033[K")


# A real model


@pytest.fixture(scope="module")
def minilm() -> TextEncoder:
    return load(inputs.encoder_folder())


@pytest.fixture(scope="module")
def wanted() -> Mapping[str, np.ndarray]:
    """What transformers gives for the texts of the oracle."""
    with np.load(inputs.GOLDEN / "minilm.npz") as file:
        return dict(file)


def test_tokens_of_a_real_model(minilm: TextEncoder, wanted: Mapping[str, np.ndarray]):
    ids = minilm.tokenizer.encode(inputs.TEXTS)
    assert [len(i) for i in ids] == wanted["lengths"].tolist()
    np.testing.assert_array_equal(np.concatenate(ids), wanted["ids"])


def test_embeddings_of_a_real_model(minilm: TextEncoder, wanted: Mapping[str, np.ndarray]):
    assert minilm.d == 384
    assert_near(minilm.encode(inputs.TEXTS), wanted["embeddings"], 1e-6)


@pytest.mark.parametrize(
    ("precision", "least", "empty"),
    [("auto", 0.9999, 0.9999), ("fast", 0.9999, 0.9999), ("int8", 0.9995, 0.998)],
)
def test_a_real_model_with_less_precision(
    precision: str, least: float, empty: float, wanted: Mapping[str, np.ndarray]
):
    """With bytes an empty text, of two rows like no others, comes out less near than others do."""
    one, two = (load(inputs.encoder_folder(), precision=precision, threads=n) for n in (1, 2))
    embeddings = one.encode(inputs.TEXTS)
    cosines = (embeddings * wanted["embeddings"]).sum(axis=1)
    assert all(
        c > (least if text else empty) for c, text in zip(cosines, inputs.TEXTS, strict=True)
    )
    np.testing.assert_array_equal(two.encode(inputs.TEXTS), embeddings)
