"""Models that are used hard: interrupted, forked, shared by threads, in parts, again and again."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, SimpleNamespace

import numpy as np
import pytest
from models import write_llama

import rlx
from rlx.errors import RlxError
from rlx.lowering.target import usable_cores
from rlx.runtime import language
from rlx.runtime.compilations import Compilations
from rlx.runtime.language import LanguageModel
from rlx.runtime.memory import rss_anon
from rlx.runtime.pace import Pace, idle_seconds
from rlx.runtime.program import Program
from rlx.runtime.threads import Team

VOCAB = 301
LAYERS = 3
PROMPT = list(range(20, 60))
SHAPE = {"layers": LAYERS, "vocab": VOCAB, "ctx": 800, "d": 64, "ffn": 96, "heads": 4}
WEIGHTS = {"kv_heads": 2, "weight_type": "q4_1", "embed_type": "q8_0", "seed": 7}
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "m.gguf", **SHAPE, **WEIGHTS)


@pytest.fixture(scope="module")
def model(cache: Path, path: Path) -> LanguageModel:
    return rlx.load(path, "exact", max_context=700)


def answer(model: LanguageModel, count: int = 30, prompt: list[int] = PROMPT) -> list[int]:
    return list(model.generate_ids(prompt, count, stop=False))


def random_prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


def jobs_run(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> list[int]:
    """Let `before` see the number of each native call to come; return a list that they are in."""
    run, seen = Team.run, list[int]()

    def spy(team: Team, job: int, ctx: int, alone: bool = False) -> None:
        before(len(seen))
        seen.append(job)
        run(team, job, ctx, alone)

    monkeypatch.setattr(Team, "run", spy)
    return seen


# Parts


def test_a_step_in_parts_gives_the_same_bits(
    model: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    call_seconds: Callable[[float], None],
) -> None:
    ids = random_prompt(0, 40)
    logits = {}
    for seconds in (1e9, 0.0):
        call_seconds(seconds)
        with monkeypatch.context() as patch:
            calls = jobs_run(patch, lambda _: None)
            logits[seconds] = [model.logits(ids), model.extend([5]), model.extend([6])]
            # Before the layers, the layers, after them; a single token is one call of decode.
            assert len(calls) == (LAYERS + 2 if seconds == 0.0 else 3) + 2
        logits[seconds].append(np.array(answer(model)))
    for given, wanted in zip(*logits.values(), strict=True):
        np.testing.assert_array_equal(given, wanted)


def test_calls_grow_to_the_time_that_they_may_take(
    model: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    call_seconds: Callable[[float], None],
) -> None:
    """The first parts go alone, for they say what the others take."""
    given: list[tuple[int, int]] = []

    def note(_: Program, first: int, end: int) -> None:
        given.append((first, end))

    monkeypatch.setattr(Program, "_run", note)
    some = model._prefill
    monkeypatch.setattr(some, "manifest", some.manifest._replace(parts=40))
    for seconds, wanted in (
        (1e9, [(0, 1), (1, 2), (2, 6), (6, 22), (22, 40)]),
        (0.0, [(i, i + 1) for i in range(40)]),
    ):
        given.clear()
        call_seconds(seconds)
        some.step({"seq": 3, "past": 0, "out": 1}, in_calls=True)
        assert given == wanted


def test_slow_decode_steps_are_several_calls(
    model: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    call_seconds: Callable[[float], None],
) -> None:
    wanted = answer(model)
    call_seconds(0.0)
    calls = jobs_run(monkeypatch, lambda _: None)
    assert answer(model) == wanted
    assert len(calls) == 30 * (LAYERS + 2)


# Other programs on the CPUs


class Others:
    """What a pace sees: the seconds and the share of CPU of its calls, and how idle CPUs are."""

    def __init__(self, idle: float | None, threads: int = 2):
        self.idle_cpus, self.now, self.gone = idle, 0.0, ""
        self.pace = Pace(threads, self.idle, lambda: self.now)

    def idle(self) -> float | None:
        return None if self.idle_cpus is None else self.now * self.idle_cpus

    def calls(self, count: int, together: tuple[float, float], alone: float) -> str:
        """Return how each of some calls went, `a`lone or `t`ogether, of those seconds a step."""
        begin = len(self.gone)
        for _ in range(count):
            self.now += 0.03
            way = self.pace.alone
            self.gone += "a" if way else "t"
            self.pace.note(*((alone, 0.5) if way else together))
        return self.gone[begin:]


QUIET, SLOW = (1.0, 0.95), (3.0, 0.4)
"""Of threads together: the seconds of a step, and the share of CPU that they got."""


def test_threads_that_get_their_cpus_stay_together() -> None:
    others = Others(0.0)
    assert others.calls(100, QUIET, 2.0) == "t" * 100
    # Also where a single call doesn't.
    for _ in range(10):
        assert others.calls(1, (3.0, 0.4), 2.0) + others.calls(7, QUIET, 2.0) == "t" * 8


def test_crowded_threads_leave_the_work_to_one_that_is_faster() -> None:
    others = Others(0.0)
    others.calls(20, QUIET, 2.0)
    # As long as no CPU is idle meanwhile.
    assert others.calls(300, SLOW, 2.0) == "tt" + "a" * 298
    others.idle_cpus, others.now = 0.9, 0.0
    others.pace._since = 0.0, 0.0
    assert others.calls(30, QUIET, 2.0).lstrip("a") == "t" * 24


def test_crowded_threads_stay_together_where_that_is_faster() -> None:
    others = Others(0.0)
    assert others.calls(60, SLOW, 4.0) == "tt" + "a" * 8 + "t" * 50
    # What one alone can do has been seen: it does it where threads together get slower than that.
    assert others.calls(50, (5.0, 0.4), 4.0) == "t" + "a" * 49


def test_one_alone_counts_at_its_best() -> None:
    """As it may share its CPU for some calls, until the system moves the others."""
    others = Others(0.0)
    assert others.calls(2, SLOW, 2.0) + others.calls(7, SLOW, 6.0) == "tt" + "a" * 7
    assert others.calls(50, SLOW, 2.0) == "a" * 50


def test_threads_are_together_again_where_enough_cpus_are_idle() -> None:
    # With how idle they are unknown, they are tried.
    assert Others(None).calls(30, SLOW, 2.0) == ("tt" + "a" * 8) * 3
    # Of four CPUs, the others leave one that works alone and 1.4 more: less than 65 %.
    few, many = Others(1.4, 4), Others(1.8, 4)
    assert few.calls(50, SLOW, 2.0) == "tt" + "a" * 48
    assert many.calls(30, SLOW, 2.0) == ("tt" + "a" * 8) * 3


def test_how_long_cpus_were_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    found = idle_seconds()
    assert found is None or found >= 0
    text = "cpu 9 9 9 9\ncpu0 1 2 3 100 20 6\ncpu1 0 0 0 7 0\ncpu2 0 0 0 900 0 0\nintr 5\n\nx\n"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 9}, raising=False)
    monkeypatch.setattr(Path, "read_text", lambda _: text)
    assert idle_seconds() == pytest.approx(127 / os.sysconf("SC_CLK_TCK"))
    for damaged in ("", "cpu0\n", "cpu0 1 2 3 x y\n", "nothing\n"):
        monkeypatch.setattr(Path, "read_text", lambda _, text=damaged: text)
        assert idle_seconds() is None
    monkeypatch.delattr(os, "sched_getaffinity")
    assert idle_seconds() is None


def test_one_thread_alone_gives_the_same(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = answer(model)
    pace = Pace(2)
    monkeypatch.setattr(model, "_pace", pace)
    for way in (True, False, True):
        given: list[int] = []
        for token in model.generate_ids(PROMPT, 30, stop=False):
            pace.alone = way if way else not pace.alone
            given.append(token)
        assert given == wanted


def test_a_clock_that_stands_still(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = answer(model)
    still = SimpleNamespace(perf_counter=lambda: 1.0, process_time=lambda: 1.0)
    monkeypatch.setattr(language, "time", still)
    monkeypatch.setattr(model, "_pace", Pace(2, lambda: 1.0, lambda: 1.0))
    monkeypatch.setattr(model.stats, "threads", 2)
    for alone in (False, True):
        model._pace.alone = alone
        assert answer(model) == wanted


# Ctrl-C


def test_an_interrupt_between_any_native_calls(
    model: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    call_seconds: Callable[[float], None],
) -> None:
    wanted, logits = answer(model, 4), model.logits(PROMPT)
    call_seconds(0.0)

    def interrupt(number: int) -> None:
        if number == last:
            raise KeyboardInterrupt

    last, done = 0, False
    while not done:
        with monkeypatch.context() as patch:
            jobs_run(patch, interrupt)
            try:
                assert answer(model, 4) == wanted
                done = True
            except KeyboardInterrupt:
                last += 1
        assert answer(model, 4) == wanted
    assert last == 4 * (LAYERS + 2)
    np.testing.assert_array_equal(model.logits(PROMPT), logits)


def interrupted_at(number: int, work: Callable[[], object]) -> bool:
    """Do some work, with a KeyboardInterrupt at the start of a function that it calls, if it is."""
    left = number

    def trace(_: FrameType, event: str, __: object) -> None:
        nonlocal left
        if event == "call":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupt_at_the_start_of_any_function(model: LanguageModel) -> None:
    """A turn or a lock that is not given back would hang what comes next, or refuse it."""
    wanted, number = answer(model, 3), 0
    while interrupted_at(number, lambda: answer(model, 3)):
        assert answer(model, 3) == wanted
        number += 1
    assert number > 100


SIGNALS = """
import os, signal, sys, threading, time
import rlx
signal.signal(signal.SIGINT, signal.default_int_handler)
model = rlx.load(sys.argv[1], max_context=700)
prompt = list(range(20, 260))
wanted = list(model.generate_ids(prompt, 200, stop=False))
before = time.perf_counter()
list(model.generate_ids(prompt, 200, stop=False))
whole = time.perf_counter() - before
interrupted = 0
for i in range(20):
    timer = threading.Timer(whole * i / 20, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        for _ in range(1000):
            list(model.generate_ids(prompt, 200, stop=False))
    except KeyboardInterrupt:
        interrupted += 1
    assert list(model.generate_ids(prompt, 200, stop=False)) == wanted
print(interrupted)
"""


def test_ctrl_c_leaves_a_model_that_works(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS, str(path)], capture_output=True, text=True, timeout=300
    )
    assert (done.stdout, done.stderr) == ("20\n", "")


def test_an_answer_that_is_left_early(model: LanguageModel) -> None:
    wanted = answer(model)
    for count in (1, 2, 7, 29):
        taken: list[int] = []
        for token in model.generate_ids(PROMPT, 30, stop=False):
            taken.append(token)
            if len(taken) == count:
                break
        del token
        assert taken == wanted[:count]
        assert answer(model) == wanted


# Several users


def test_two_models_at_once(model: LanguageModel, tmp_path: Path) -> None:
    other_path = write_llama(tmp_path / "o.gguf", **{**SHAPE, "d": 128}, **{**WEIGHTS, "seed": 8})
    other = rlx.load(other_path, "exact", max_context=300)
    wanted = answer(model), answer(other)
    assert wanted[0] != wanted[1]
    # Token by token, and in threads.
    both = (m.generate_ids(PROMPT, 30, stop=False) for m in (model, other))
    pairs = list(zip(*both, strict=True))
    assert ([a for a, _ in pairs], [b for _, b in pairs]) == wanted
    with ThreadPoolExecutor(4) as pool:
        for given in pool.map(lambda m: (m, answer(m)), [model, other] * 10):
            assert given[1] == wanted[given[0] is other]


def test_threads_that_generate_at_once(model: LanguageModel) -> None:
    prompts = [random_prompt(seed, 5 + 7 * seed) for seed in range(12)]
    wanted = [answer(model, 20, prompt) for prompt in prompts]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda prompt: answer(model, 20, prompt), prompts)) == wanted


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("used", [False, True])
def test_children_of_a_loaded_model(path: Path, used: bool) -> None:
    """As servers fork their workers, before or after the parent's first answer."""
    shared = rlx.load(path, "exact", max_context=700)
    wanted = answer(rlx.load(path, "exact", max_context=700))
    if used:
        assert answer(shared) == wanted
    children: list[int] = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os._exit(0 if all(answer(shared) == wanted for _ in range(3)) else 1)
        children.append(child)
    assert answer(shared) == wanted
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert ends == [0, 0, 0]
    assert answer(shared) == wanted


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_an_answer(model: LanguageModel) -> None:
    """Both the parent and the child go on with it."""
    wanted = answer(model)
    running = model.generate_ids(PROMPT, 30, stop=False)
    started = [next(running), next(running), next(running)]
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if [*started, *running] == wanted and answer(model) == wanted else 1)
    assert [*started, *running] == wanted
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_batch_gives_each_prompt_what_it_gets_alone(model: LanguageModel) -> None:
    prompts = [random_prompt(seed, length) for seed, length in enumerate((3, 40, 1, 523))]
    for options in ({}, {"temperature": 0.9, "seed": 4, "top_k": 40}):
        wanted = ["".join(model.generate(prompt, 20, **options)) for prompt in prompts]
        assert model.generate_batch(prompts, 20, **options) == wanted
    assert len(set(wanted)) == len(prompts)
    assert model.generate_batch([], 20) == []
    with pytest.raises(RlxError, match="the prompt is empty"):
        model.generate_batch([prompts[0], []], 20)


# Again and again


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_nothing_grows_with_generations(model: LanguageModel) -> None:
    random = np.random.default_rng(0)

    def some(count: int) -> tuple[int, int, int, int]:
        for _ in range(count):
            prompt = random.integers(0, VOCAB, random.integers(1, 200)).tolist()
            options = {"temperature": float(random.choice([0.0, 0.8])), "seed": 1}
            tokens = model.generate_ids(prompt, int(random.integers(1, 30)), **options)
            # Some are left half read.
            for _ in range(int(random.integers(1, 40))):
                next(tokens, None)
        del tokens
        gc.collect()
        return rss_anon() or 0, Compilations.count, threading.active_count(), open_files()

    memory, *others = some(100)
    more, *same = some(300)
    assert same == others
    assert more - memory < 2 << 20


@pytest.mark.skipif(usable_cores() < 2, reason="one usable core")
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs /proc")
def test_the_threads_of_an_idle_model_sleep(path: Path) -> None:
    """Asleep in the kernel: its threads run no more, not even now and then."""
    script = """
import os, sys, threading, time
import rlx
model = rlx.load(sys.argv[1], max_context=700)
list(model.generate_ids([1, 2, 3], 50, stop=False))
(worker,) = [t.native_id for t in threading.enumerate() if t.name == "rlx-1"]
def state():
    with open(f"/proc/self/task/{worker}/status") as f:
        fields = dict(line.split(":", 1) for line in f)
    switches = fields["voluntary_ctxt_switches"], fields["nonvoluntary_ctxt_switches"]
    return fields["State"].split()[0], *(int(s) for s in switches)
while state()[0] != "S":
    time.sleep(0.01)
before = state()
time.sleep(0.3)
print(before == state())
"""
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("True\n", "")
