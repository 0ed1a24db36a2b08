"""Batches: each sequence as alone, to the bit, whatever is beside it, comes or goes."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Sequence
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
from rlx.lowering.target import Target, usable_cores
from rlx.reference import GgufWeights, Reference
from rlx.runtime import language
from rlx.runtime.batch import Answer, Batch
from rlx.runtime.compilations import Compilations
from rlx.runtime.language import LanguageModel
from rlx.runtime.memory import rss_anon
from rlx.runtime.program import Program

pytestmark = pytest.mark.usefixtures("cache")
VOCAB, CONTEXT, LAYERS = 301, 640, 2
SHAPES = {
    "f32": {"weight_type": "f32", "embed_type": "f32", "d": 64, "ffn": 101, "kv_heads": 2},
    "f16": {"weight_type": "f16", "embed_type": "bf16", "d": 64, "ffn": 100, "kv_heads": 1},
    "q4_1": {"weight_type": "q4_1", "embed_type": "q8_0", "d": 128, "ffn": 96, "kv_heads": 2},
    "q5_0": {"weight_type": "q5_0", "embed_type": "q5_1", "d": 64, "ffn": 160, "kv_heads": 4},
    "q4_k": {"weight_type": "q4_k", "embed_type": "q6_k", "d": 256, "ffn": 256, "kv_heads": 2},
}


def write(path: Path, name: str) -> Path:
    more = {"layers": LAYERS, "vocab": VOCAB, "ctx": CONTEXT, "heads": 4, "seed": 7}
    return write_llama(path, **SHAPES[name], **more, tied=name != "f16")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "m.gguf", "q4_1")


@pytest.fixture(scope="module")
def model(cache: Path, path: Path) -> LanguageModel:
    return rlx.load(path, max_context=CONTEXT)


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def alone(model: LanguageModel, prompt: Sequence[int], ids: Sequence[int]) -> np.ndarray:
    """The logits after each token of an answer, from prefill and then decode."""
    rows = [model.extend(prompt, restart=True)[-1:]]
    if len(prompt) == 1:
        # A prompt goes through prefill, of whatever length.
        rows = [model.logits(prompt)]
    rows += [model.extend([token]) for token in ids[:-1]]
    return np.concatenate(rows)


def logits_of(batch: Batch, answers: Sequence[Answer]) -> list[np.ndarray]:
    """Run a batch to its end; return the logits of all steps of each answer."""
    rows: dict[int, list[np.ndarray]] = {id(answer): [] for answer in answers}
    while batch.busy:
        running = [s.answer for s in batch._queue if not s.free and s.answer and s.answer.ids]
        batch.step()
        for row, answer in enumerate(running):
            rows[id(answer)].append(batch._logits[row].copy())
    return [np.array(rows[id(answer)]) for answer in answers]


PROMPTS = [tokens(n, seed=n) for n in (3, 40, 1, 17, 523, 128, 2, 64, 300)]


@pytest.mark.sample(4)
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_those_of_decode_to_the_bit(name: str, precision: str, tmp_path: Path):
    path = write(tmp_path / "m.gguf", name)
    model = rlx.load(path, precision, max_context=CONTEXT)
    with model.batch(len(PROMPTS)) as batch:
        answers = [batch.add(p, 6 + i, stop=False) for i, p in enumerate(PROMPTS)]
        rows = logits_of(batch, answers)
    for answer, prompt, got in zip(answers, PROMPTS, rows, strict=True):
        assert answer.ids == list(model.generate_ids(prompt, len(answer.ids), stop=False))
        np.testing.assert_array_equal(got, alone(model, prompt, answer.ids)[1:])


@pytest.mark.parametrize("kept", ["f32", "f16", "bf16"])
def test_a_step_is_that_of_the_reference(path: Path, kept: Any):
    """Its program alone, from the first token of each sequence on, in float64."""
    opened = open_model(path, CONTEXT, kv_cache=kept)
    reference = Reference(opened.build("batch"), GgufWeights(GgufFile.open(path)))
    model = rlx.load(path, max_context=CONTEXT, kv_cache=kept)
    program, rows = model._batch_program, 5
    stride = program.manifest.state_bytes
    state = np.full(rows * stride + 64, 0xFF, np.uint8)
    start = state.ctypes.data + -state.ctypes.data % 64
    out = np.full((rows, VOCAB), np.nan, np.float32)
    ids = np.full(rows, -1, np.int32)
    random = np.random.default_rng(0)
    lengths = np.zeros(rows, np.int64)
    for count in (5, 3, 5, 1, 4, 5):
        order = random.permutation(rows)[:count]
        given = random.integers(0, VOCAB, count).astype(np.int32)
        places = np.stack([order * stride, lengths[order]], 1)
        lengths[order] += 1
        sampling = np.zeros((count, 8), np.int32)
        inputs = {"tokens": given, "sampling": sampling, "places": places}
        wanted = reference.run(inputs, {"rows": count})
        for name, array in inputs.items():
            program.bind_input(name, array)
        program.bind_output("logits", out)
        program.bind_output("id", ids)
        with program.on_state(start):
            program.step({"rows": count})
        error = np.sum((out[:count] - wanted["logits"]) ** 2) / np.sum(wanted["logits"] ** 2)
        assert error < (1e-10 if kept == "f32" else 1e-5)
        if kept == "f32":
            assert ids[:count].tolist() == wanted["id"].tolist()
        assert sampling[:, 6].tolist() == [1] * count


def test_draws_are_those_of_each_alone(model: LanguageModel):
    options: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "seed": 4},
        {"temperature": 0.9, "seed": 5, "top_k": 40},
        {"temperature": 1.4, "seed": 4, "top_p": 0.7},
        {"temperature": 0.9, "seed": 2**64 - 1},
    ]
    prompt = tokens(12)
    with model.batch(5) as batch:
        answers = [batch.add(prompt, 30, **o, stop=False) for o in options]
        assert list(batch)[-1][0] in answers
    for answer, o in zip(answers, options, strict=True):
        assert answer.ids == list(model.generate_ids(prompt, 30, **o, stop=False))
    assert len({tuple(a.ids) for a in answers}) == 5


def test_sequences_come_and_go(model: LanguageModel):
    """At random, for many more than there are slots: compiled once, and each as alone."""
    random = np.random.default_rng(3)
    prompts = [tokens(int(random.integers(1, 90)), seed=100 + i) for i in range(40)]
    counts = random.integers(1, 25, len(prompts)).tolist()
    model.batch(1).close()
    compiled = Compilations.count
    with model.batch(6) as batch:
        answers: list[Answer] = []
        left: set[int] = set()
        while len(answers) < len(prompts) or batch.busy:
            for _ in range(int(random.integers(0, 4))):
                if batch.free and len(answers) < len(prompts):
                    n = len(answers)
                    answers.append(batch.add(prompts[n], counts[n], stop=False))
            seen = {id(a): len(a.ids) for a in answers}
            given = batch.step()
            assert len({id(a) for a, _ in given}) <= 6
            for answer, token in given:
                assert answer.ids[-1] == token
            for answer in answers:
                mine = [token for a, token in given if a is answer]
                assert answer.ids[seen[id(answer)] :] == mine
            if random.random() < 0.1:
                n = int(random.integers(0, len(answers))) if answers else 0
                if answers and not answers[n].done:
                    answers[n].leave()
                    left.add(n)
    assert left
    assert Compilations.count == compiled
    for n, (answer, prompt) in enumerate(zip(answers, prompts, strict=True)):
        wanted = list(model.generate_ids(prompt, counts[n], stop=False))
        assert answer.done
        assert answer.ids == wanted[: len(answer.ids)] if n in left else answer.ids == wanted


def test_what_is_done_to_the_ids_of_an_answer_is_no_matter(model: LanguageModel):
    wanted = list(model.generate_ids(tokens(5), 6, stop=False))
    with model.batch(1) as batch:
        answer = batch.add(tokens(5), 6, stop=False)
        for _ in batch:
            answer.ids.clear()
    assert answer.ids == wanted


def test_an_end_token_ends_an_answer(model: LanguageModel, monkeypatch: pytest.MonkeyPatch):
    prompts = [tokens(9, seed=n) for n in range(4)]
    free = [list(model.generate_ids(p, 30, stop=False)) for p in prompts]
    monkeypatch.setattr(model, "end_tokens", frozenset([free[0][7], free[2][3]]))
    wanted = [list(model.generate_ids(p, 30)) for p in prompts]
    assert len(wanted[0]) <= 8
    with model.batch(5) as batch:
        answers = [batch.add(p, 30) for p in prompts]
        longer = batch.add(prompts[0], 30, stop=False)
        for _ in batch:
            pass
    assert [a.ids for a in answers] == wanted
    assert longer.ids == free[0]
    texts = ["".join(model.generate(p, 30)) for p in prompts]
    assert model.generate_batch(prompts, 30) == texts


def test_many_prompts_take_turns_in_the_slots(model: LanguageModel):
    prompts = [tokens(1 + n % 7, seed=n) for n in range(language.BATCH_SLOTS + 9)]
    wanted = ["".join(model.generate(p, 4)) for p in prompts]
    assert model.generate_batch(prompts, 4) == wanted
    stats = model.stats
    assert stats.prompt_tokens == sum(map(len, prompts))
    assert stats.new_tokens == stats.decode_steps + len(prompts)
    assert stats.decode_s > 0 < stats.prefill_s


def test_the_context_ends_an_answer(model: LanguageModel):
    for length in (CONTEXT - 3, CONTEXT - 1, CONTEXT):
        prompt = tokens(length, seed=length)
        with model.batch(2) as batch:
            long, short = batch.add(prompt, 100, stop=False), batch.add(prompt[:5], 9, stop=False)
            for _ in batch:
                pass
        assert long.ids == list(model.generate_ids(prompt, 100, stop=False))
        assert len(long.ids) == CONTEXT - length + 1
        assert len(short.ids) == 9


def test_a_long_prompt_does_not_stop_the_others(model: LanguageModel):
    with model.batch(2) as batch:
        short = batch.add(tokens(4), 20, stop=False)
        batch.step()
        long = batch.add(tokens(600), 3, stop=False)
        assert [a for a, _ in batch.step()] == [short]
        assert [a for a, _ in batch.step()] == [long, short]


def test_slots_reuse_what_a_prompt_shares(path: Path):
    reusing, plain = (rlx.load(path, max_context=CONTEXT, reuse_prefix=on) for on in (True, False))
    start = tokens(90, seed=5)
    prompts = [[*start, *tokens(8, seed=n)] for n in range(6)]
    for model, reused in ((reusing, 4 * 90 + 1), (plain, 0)):
        with model.batch(2) as batch:
            for first in range(0, 6, 2):
                pair = [batch.add(p, 5, stop=False) for p in prompts[first : first + 2]]
                for _ in batch:
                    pass
                for answer, prompt in zip(pair, prompts[first:], strict=False):
                    assert answer.ids == list(plain.generate_ids(prompt, 5, stop=False))
            batch.add([start[0], 300], 1)
            batch.step()
            assert batch.stats.reused_tokens == reused
            assert batch.stats.prompt_tokens == 6 * 98 + 2


@pytest.mark.skipif(usable_cores() < 2, reason="one usable core")
def test_answers_do_not_depend_on_the_threads(path: Path):
    rows: list[list[np.ndarray]] = []
    for threads in (1, 2):
        model = rlx.load(path, max_context=CONTEXT, threads=threads)
        with model.batch(4) as batch:
            answers = [batch.add(p, 5, temperature=1.0, stop=False) for p in PROMPTS[:4]]
            rows.append([*logits_of(batch, answers), np.array([a.ids for a in answers])])
    for one, two in zip(*rows, strict=True):
        np.testing.assert_array_equal(one, two)


def test_interrupts_between_native_calls(
    model: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    call_seconds: Callable[[float], None],
):
    """Ctrl-C after any number of calls, in prefill or in a step: the next one goes on."""
    prompts = [tokens(9, seed=n) for n in range(3)]
    wanted = [list(model.generate_ids(p, 4, temperature=1.0, stop=False)) for p in prompts]
    run, calls = Program._run, 0
    call_seconds(0.0)

    def interrupted(program: Program, first: int, end: int) -> None:
        nonlocal calls
        calls += 1
        if calls % period == 0:
            raise KeyboardInterrupt
        run(program, first, end)

    monkeypatch.setattr(Program, "_run", interrupted)
    for period in (1000, 13, 7, 6, 5):
        calls, caught = 0, 0
        with model.batch(3) as batch:
            answers = [batch.add(p, 4, temperature=1.0, stop=False) for p in prompts]
            while batch.busy and caught < 100:
                try:
                    batch.step()
                except KeyboardInterrupt:
                    caught += 1
        assert [a.ids for a in answers] == wanted
        assert (caught > 0) == (period < 1000)


def test_turns(model: LanguageModel):
    prompt, other = tokens(5), tokens(30, seed=1)
    wanted = [list(model.generate_ids(p, 12, stop=False)) for p in (prompt, other)]
    with model.batch(2) as batch:
        answer = batch.add(prompt, 12, stop=False)
        batch.step()
        assert list(model.generate_ids(other, 12, stop=False)) == wanted[1]
        half_read = model.generate_ids(other, 12, stop=False)
        next(half_read)
        with pytest.raises(RlxError, match="generating already"):
            batch.step()
        half_read.close()
        given: list[list[int]] = []
        thread = threading.Thread(
            target=lambda: given.append(list(model.generate_ids(other, 12, stop=False)))
        )
        thread.start()
        for _ in batch:
            pass
        thread.join()
        # The state of `extend` is the model's own.
        model.extend(other, restart=True)
        row = model.extend([3])
        batch.add(prompt, 12, stop=False)
        model.extend(other, restart=True)
        batch.step()
        np.testing.assert_array_equal(model.extend([3]), row)
    assert [answer.ids, *given] == wanted


def test_threads_add_while_one_steps(model: LanguageModel):
    prompts = [tokens(6, seed=n) for n in range(24)]
    wanted = [list(model.generate_ids(p, 7, stop=False)) for p in prompts]
    with model.batch(24) as batch:
        answers: dict[int, Answer] = {}

        def add(first: int) -> None:
            for n in range(first, 24, 3):
                answers[n] = batch.add(prompts[n], 7, stop=False)

        threads = [threading.Thread(target=add, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        while batch.busy or any(t.is_alive() for t in threads):
            batch.step()
    assert [answers[n].ids for n in range(24)] == wanted


def test_a_batch_closes_beside_a_half_read_generator(model: LanguageModel):
    with model.batch(1) as batch:
        batch.add([1, 2, 3], 9, stop=False)
        batch.step()
        half_read = model.generate_ids([5], 9, stop=False)
        next(half_read)
    half_read.close()


def test_errors(model: LanguageModel):
    for slots in (0, 65, 1.5, "2"):
        with pytest.raises(RlxError, match="slots: expected an integer from 1 to 64"):
            model.batch(slots)  # pyright: ignore[reportArgumentType]: not all are numbers
    with model.batch(1) as batch:
        assert batch.step() == []
        for options, message in (
            ({"prompt": []}, "the prompt is empty"),
            ({"prompt": [VOCAB]}, "token 0 of the prompt: expected an integer from 0 to 300"),
            ({"prompt": tokens(CONTEXT + 1)}, "the context holds 640"),
            ({"prompt": [1], "max_tokens": 0}, "max_tokens: expected an integer of at least 1"),
            ({"prompt": [1], "top_p": 0.0}, "top_p"),
            ({"prompt": 5}, "token ids: expected a sequence"),
        ):
            with pytest.raises(RlxError, match=message):
                batch.add(**options)
        assert batch.free == batch.slots == 1
        answer = batch.add([1, 2], 3, stop=False)
        with pytest.raises(RlxError, match="all 1 slots of this batch are taken"):
            batch.add([1])
        assert "not done" in repr(answer)
    for call in (lambda: batch.add([1]), batch.step):
        with pytest.raises(RlxError, match="this batch is closed"):
            call()
    assert answer.done
    batch.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_a_slot_takes_what_its_tokens_need(model: LanguageModel):
    model.generate_batch([tokens(20), tokens(9)], 3)
    gc.collect()
    before = rss_anon() or 0
    with model.batch(64) as batch:
        assert batch._state is not None
        assert batch._state.nbytes >= 40 << 20
        answers = [batch.add(tokens(20, seed=n), 4, stop=False) for n in range(8)]
        for _ in batch:
            pass
        assert all(answer.done for answer in answers)
        assert (rss_anon() or 0) - before < 8 << 20


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_nothing_grows_with_sequences(model: LanguageModel):
    random = np.random.default_rng(0)

    def some(count: int) -> int:
        with model.batch(4) as batch:
            for n in range(count):
                while not batch.free:
                    batch.step()
                batch.add(tokens(int(random.integers(1, 100)), seed=n), 4, stop=False)
        gc.collect()
        return rss_anon() or 0

    some(150)
    memory = some(150)
    assert some(600) - memory < 2 << 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_goes_on_with_a_batch(model: LanguageModel):
    prompt = tokens(7)
    wanted = list(model.generate_ids(prompt, 9, stop=False))
    with model.batch(2) as batch:
        answer = batch.add(prompt, 9, stop=False)
        batch.step()
        child = os.fork()
        for _ in batch:
            pass
        if child == 0:
            os._exit(0 if answer.ids == wanted else 1)
    assert answer.ids == wanted
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_plans_are_checked_and_compile_for_every_target(path: Path):
    rlx.load(path, max_context=CONTEXT, verify=True)
    opened = open_model(path, CONTEXT)
    for name in ("generic", "haswell", "alderlake", "x86-64-v4", "sapphirerapids"):
        assert compile_text(opened.build("batch"), Target.named(name))[1]
