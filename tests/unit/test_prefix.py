"""Prompts that share a beginning with what is in a model's state: the same bits, computed once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from models import write_llama

import rlx
from rlx.runtime.language import LanguageModel
from rlx.runtime.prefix import Prefix

pytestmark = pytest.mark.usefixtures("cache")
VOCAB, CONTEXT = 301, 640


@pytest.fixture(scope="module", params=["exact", "fast"])
def models(
    cache: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LanguageModel, LanguageModel]:
    """A model that reuses what it has, and one that doesn't."""
    path = tmp_path_factory.mktemp("models") / "small.gguf"
    write_llama(path, layers=2, d=64, ffn=96, heads=4, kv_heads=2, vocab=VOCAB, ctx=CONTEXT, seed=7)
    reusing, plain = (
        rlx.load(path, request.param, max_context=CONTEXT, reuse_prefix=on) for on in (True, False)
    )
    return reusing, plain


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def answer(model: LanguageModel, ids: list[int], count: int = 4) -> tuple[list[int], np.ndarray]:
    """An answer, and the logits of its first token and of those that decode gives, to the bit."""
    rows: list[np.ndarray] = []
    found: list[int] = []
    for token in model.generate_ids(ids, count, stop=False):
        rows.append(model._buffers.logits.copy())
        found.append(token)
    return found, np.concatenate(rows)


def same(models: tuple[LanguageModel, LanguageModel], ids: list[int], reused: int) -> None:
    reusing, plain = models
    (ids_a, logits_a), (ids_b, logits_b) = (answer(m, ids) for m in models)
    assert ids_a == ids_b
    np.testing.assert_array_equal(logits_a, logits_b)
    assert reusing.stats.reused_tokens == reused
    assert (reusing.stats.prompt_tokens, plain.stats.reused_tokens) == (len(ids), 0)


def test_a_prompt_again_feeds_its_last_token_alone(models: tuple[LanguageModel, LanguageModel]):
    for prompt in (tokens(70), tokens(530), [5]):
        list(models[0].generate_ids([300], 1))
        same(models, prompt, 0)
        for _ in range(2):
            same(models, prompt, len(prompt) - 1)


@pytest.mark.parametrize("shared", [1, 15, 16, 17, 63, 64, 65, 127, 300, 511, 512, 513])
def test_prompts_that_share_a_beginning(models: tuple[LanguageModel, LanguageModel], shared: int):
    start = tokens(shared, seed=1)
    same(models, [*start, 1, *tokens(20, seed=2)], models[0]._prefix.shared([*start, 1, 9]))
    same(models, [*start, 2, *tokens(90, seed=3)], shared)
    same(models, start, shared - 1)
    same(models, [*start, 3], shared)


def test_what_decode_wrote_is_not_reused(models: tuple[LanguageModel, LanguageModel]):
    prompt = tokens(40, seed=4)
    list(models[0].generate_ids([300], 1))
    ids, _ = answer(models[0], prompt, 9)
    same(models, [*prompt, *ids[:-1], 7, 8], len(prompt))
    # Tokens that are fed singly go through decode.
    models[0].extend(prompt, restart=True)
    models[0].extend([9])
    models[0].extend([10, 11])
    same(models, [*prompt, 9, 10, 11, 12], len(prompt))


@pytest.mark.parametrize(
    "between",
    [
        lambda model: model.logits(tokens(6, seed=5)),
        lambda model: model.extend(tokens(3, seed=5), restart=True),
        lambda model: model.extend([4], restart=True),
        lambda model: next(model.generate_ids(tokens(30, seed=5), 5)),
        lambda model: model.generate_batch([tokens(5), tokens(9)], 3),
    ],
)
def test_what_else_the_model_did_is_noticed(
    models: tuple[LanguageModel, LanguageModel], between: Callable[[LanguageModel], object]
):
    prompt = tokens(25, seed=6)
    same(models, prompt, models[0]._prefix.shared(prompt))
    between(models[0])
    same(models, prompt, models[0]._prefix.shared(prompt))


def test_an_interrupted_prompt_is_not_taken_for_whole(
    models: tuple[LanguageModel, LanguageModel], monkeypatch: pytest.MonkeyPatch
):
    """Ctrl-C comes after some of the layers: those of the others are of another prompt."""
    reusing, _ = models
    prompt, other = tokens(50, seed=8), [*tokens(20, seed=8), *tokens(40, seed=9)]
    list(reusing.generate_ids(other, 1))
    program = reusing._prefill
    with monkeypatch.context() as patch:
        run, calls = program._run, list[int]()

        def interrupted(first: int, end: int) -> None:
            calls.append(first)
            if len(calls) > 1:
                raise KeyboardInterrupt
            run(first, end)

        patch.setattr(program, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(reusing.generate_ids(prompt, 1))
    same(models, other, 20)
    same(models, prompt, 20)


def test_it_can_be_switched_off(models: tuple[LanguageModel, LanguageModel]):
    reusing, prompt = models[0], tokens(20, seed=10)
    list(reusing.generate_ids(prompt, 1))
    reusing.reuse_prefix = False
    try:
        list(reusing.generate_ids(prompt, 1))
        assert reusing.stats.reused_tokens == 0
    finally:
        reusing.reuse_prefix = True
    list(reusing.generate_ids(prompt, 1))
    assert reusing.stats.reused_tokens == 19
    assert reusing.stats.prefill_tok_s == 1 / reusing.stats.prefill_s


def test_a_profile_computes_all_of_the_prompt(models: tuple[LanguageModel, LanguageModel]):
    reusing, prompt = models[0], tokens(20, seed=11)
    list(reusing.generate_ids(prompt, 1))
    prefills = [c for c in reusing.profile(prompt, 2).calls if c.manifest.name == "prefill"]
    assert [size["seq"] for c in prefills for size in c.sizes()] == [20]


def test_the_tokens_are_those_of_a_state():
    """Against a list of what wrote each position, and after what."""
    random = np.random.default_rng(12)
    prefix, state = Prefix(), list[int | None]()
    for _ in range(300):
        past = int(random.integers(0, min(6, len(state)) + 1))
        ids = random.integers(0, 2, random.integers(0, 6)).tolist()
        prefix.cut(past)
        whole = all(token is not None for token in state[:past])
        # Empty: decode has fed a token.
        state[past:] = ids if ids and whole else [None] * max(len(ids), 1)
        prefix.fed(past, ids)
        for prompt in ([0], [1, 0, 1], [*(t for t in state if t is not None), 0]):
            count = 0
            while count < min(len(prompt) - 1, len(state)) and prompt[count] == state[count]:
                count += 1
            assert prefix.shared(prompt) == count
