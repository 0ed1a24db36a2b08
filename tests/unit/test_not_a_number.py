"""Logits that are not numbers: an error that names the token, whichever way an answer is made."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from models import write_llama

import rlx
from rlx.errors import RlxError

pytestmark = pytest.mark.usefixtures("cache")

SHAPE = {"layers": 1, "d": 32, "ffn": 64, "heads": 2, "kv_heads": 1, "vocab": 301, "ctx": 64}
BAD = 77
"""The token whose embedding is NaN."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> rlx.LanguageModel:
    path = tmp_path_factory.mktemp("models") / "bad.gguf"
    write_llama(path, **SHAPE, embed_type="f32", tied=False)
    reader = gguf.GGUFReader(path, "r+")
    tensor(reader, "token_embd.weight").reshape(-1, SHAPE["d"])[BAD] = np.nan
    reader.data.flush()
    return rlx.load(path)


def tensor(reader: gguf.GGUFReader, name: str) -> np.ndarray:
    (found,) = (t.data for t in reader.tensors if t.name == name)
    return found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_first_token(model: rlx.LanguageModel, temperature: float) -> None:
    answer = model.generate_ids([1, BAD], 5, temperature)
    with pytest.raises(RlxError, match=r"^token 1 of the answer: .* are NaN: the model's weights"):
        next(answer)
    # The model goes on.
    assert len(list(model.generate_ids([1, 2, 3], 5, stop=False))) == 5


def test_a_token_of_decode(model: rlx.LanguageModel) -> None:
    """An answer comes to the bad token: it, and what was before it, are given first."""
    for seed in range(1000):
        drawn: list[int] = []
        try:
            drawn.extend(model.generate_ids([5, 6, 7], 50, 50.0, seed=seed, stop=False))
        except RlxError as error:
            message = str(error)
            break
        assert BAD not in drawn[:-1]
    assert drawn[-1] == BAD
    assert len(drawn) > 1
    assert message.startswith(f"token {len(drawn) + 1} of the answer: all logits before it are NaN")


def test_one_answer_of_a_batch(model: rlx.LanguageModel) -> None:
    wanted = list(model.generate_ids([1, 2, 3], 6, stop=False))
    with model.batch(3) as batch:
        good = batch.add([1, 2, 3], 6, stop=False)
        bad = [batch.add(prompt, 6, stop=False) for prompt in ([4, BAD], [BAD])]
        given: list[int] = []
        with pytest.raises(RlxError, match=r"^token 1 of the answer: all logits"):
            given.extend(token for _, token in batch)
        assert given == good.ids == wanted
        for answer in bad:
            assert answer.done
            assert answer.made == []
            with pytest.raises(RlxError, match=r"^token 1 of the answer: all logits"):
                _ = answer.ids
    with pytest.raises(RlxError, match=r"^token 1 of the answer: all logits"):
        model.generate_batch([[1, 2, 3], [BAD]], 6)


@pytest.mark.parametrize("name", ["attn_k", "attn_v"])
def test_what_f16_does_not_hold(tmp_path: Path, name: str) -> None:
    path = write_llama(tmp_path / "large.gguf", **SHAPE, weight_type="f32")
    reader = gguf.GGUFReader(path, "r+")
    tensor(reader, f"blk.0.{name}.weight")[:] *= 1e9
    reader.data.flush()
    for kv_cache in ("f32", "bf16"):
        model = rlx.load(path, kv_cache=kv_cache)
        assert len(list(model.generate_ids([1, 2, 3], 6, stop=False))) == 6
    advice = r"left the range of kv_cache='f16'.*load the model with kv_cache='f32' or 'bf16'"
    model = rlx.load(path, kv_cache="f16")
    with pytest.raises(RlxError, match=advice):
        next(model.generate_ids([1, 2, 3], 6))
    with pytest.raises(RlxError, match=advice):
        model.generate_batch([[1, 2, 3]], 6)


def test_logits_are_given_as_they_are(model: rlx.LanguageModel) -> None:
    logits = model.logits([1, 2, BAD, 3])
    assert np.isfinite(logits[:2]).all()
    assert np.isnan(logits[2:]).all()
