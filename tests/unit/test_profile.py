"""Profiles: the marks of threads, what is made of them, and the file of events."""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels import levels
from models import TINY_VOCAB, write_llama

import rlx
from rlx.compiler import compile_text
from rlx.dialects import lir
from rlx.driver import open_model
from rlx.errors import RlxError
from rlx.lowering import abi, marks
from rlx.lowering.emitter import Module
from rlx.lowering.extract import manifest_of
from rlx.lowering.manifest import Manifest
from rlx.lowering.target import Target, usable_cores
from rlx.passes.pipelines import run_to
from rlx.runtime.jit import Engine, assembly, compile_object
from rlx.runtime.language import LanguageModel
from rlx.runtime.profile import Profile, faster_half
from rlx.runtime.recorder import Recorder
from rlx.runtime.roofline import Roofline
from rlx.runtime.threads import Team
from rlx.tools import cli

LAYERS, KV = 2, 16
SHAPE = {"layers": LAYERS, "d": 32, "ffn": 64, "heads": 2, "kv_heads": 1, "vocab": TINY_VOCAB}
PROMPT, STEPS = [5, 6, 7, 8, 9], 6


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llama(tmp_path_factory.mktemp("models") / "model.gguf", **SHAPE, ctx=64))


@pytest.fixture(scope="module", params=[1, 2])
def profile(path: str, request: pytest.FixtureRequest) -> Profile:
    return rlx.load(path, "exact", min(request.param, usable_cores())).profile(PROMPT, STEPS)


def planned(path: str, program: str) -> tuple[Manifest, Counter[str]]:
    """Return a program's manifest, with sites, and how often a step launches each kernel."""
    model = open_model(path, None, precision="exact")
    model.marks = True
    module = model.build(program)
    run_to(module, "lir", None)
    counts: Counter[str] = Counter()
    for op in module.walk():
        if isinstance(op, lir.LaunchOp) and op.job is lir.Job.STEP:
            counts[op.kernel.root_reference.data] += (
                LAYERS if isinstance(op.parent_op(), lir.LoopOp) else 1
            )
    return manifest_of(module), counts


def events_of(profile: Profile, folder: Path) -> list[dict[str, Any]]:
    profile.write(folder / "events.json")
    return json.loads((folder / "events.json").read_text())["traceEvents"]


# What is recorded


def test_every_kernel_of_the_plan_occurs_as_often_as_it_is_launched(profile: Profile, path: str):
    for section, program, steps in zip(
        profile.sections, ("prefill", "decode"), (1, STEPS), strict=True
    ):
        manifest, counts = planned(path, program)
        assert (section.name, section.steps) == (program, steps)
        found = {row.kernel: row.calls for row in section.kernels}
        assert found == {kernel: n * section.counted for kernel, n in counts.items()}
        barriers = sum(row.calls for row in section.barriers)
        assert barriers == manifest.barriers_per_step * section.counted
        assert sum(counts.values()) == manifest.launches_per_step


def test_weights_add_up_to_the_modules_own_count(profile: Profile, path: str):
    for section in profile.sections:
        manifest, _ = planned(path, section.name)
        weights = {s.kernel: s.weight_bytes for s in manifest.sites if s.kernel}
        turns = {row.kernel: row.calls // section.counted for row in section.kernels}
        total = sum(weights[kernel] * n for kernel, n in turns.items())
        assert total == section.weight_bytes == manifest.weight_bytes_per_step


def test_a_cache_is_read_as_far_as_it_is_filled_and_written_where_it_grows(path: str):
    manifest, _ = planned(path, "decode")
    attention = next(s for s in manifest.sites if s.kernel == "attention")
    assert dict(map(reversed, attention.read)) == {("keys",): 2 * 4 * KV, (): 4 * 32}
    (append,) = (s for s in manifest.sites if s.kernel.endswith("append"))
    rows, table = 2 * 4 * KV, 2 * 4 * KV
    assert append.written == ((4 * 32 + rows, ()),)
    assert append.read == ((4 * 32 + table, ()),)


def test_bytes_of_a_launch_grow_with_the_steps_of_a_call(profile: Profile, path: str):
    manifest, _ = planned(path, "decode")
    sites = [s.kernel for s in manifest.sites]
    past = len(PROMPT)
    for call in profile.calls[1:]:
        moved = call.moved_bytes()[:, sites.index("attention")]
        keys = np.arange(past + 1, past + 1 + call.steps)
        assert moved.tolist() == (keys * 2 * 4 * KV + 2 * 4 * 32).tolist()
        past += call.steps
    assert past == len(PROMPT) + STEPS


def test_marks_follow_each_other_within_their_call(profile: Profile):
    assert profile.lost == 0
    for call in profile.calls:
        assert (np.diff(call.ticks, axis=1) >= 0).all()
        assert call.began <= call.ticks.min()
        assert call.ticks.max() <= call.ended
        assert np.count_nonzero(call.places == abi.STEP_MARK) == call.steps
        assert set(call.layers.tolist()) <= {-2, -1, *range(LAYERS)}


def test_the_clock_of_marks_is_the_systems(path: str):
    model = rlx.load(path, "exact", 1)
    recorder = Recorder(1)
    marked = model.with_marks(recorder)
    since, start = recorder.now(), time.monotonic()
    before = time.monotonic() - start
    list(marked.generate_ids(PROMPT, 2))
    after = time.monotonic() - start
    unit = recorder.tick_ns()
    for call in recorder.calls:
        began, ended = ((tick - since) * unit / 1e9 for tick in (call.began, call.ended))
        assert before <= began < ended <= after


def test_an_answer_is_the_same_with_marks_and_after_them(path: str):
    model = rlx.load(path, "exact")
    plain = list(model.generate_ids(PROMPT, 20, stop=False))
    marked = model.with_marks(Recorder(model.team.threads))
    assert list(marked.generate_ids(PROMPT, 20, stop=False)) == plain
    model.profile(PROMPT, 3)
    assert list(model.generate_ids(PROMPT, 20, stop=False)) == plain
    half_read = model.generate_ids(PROMPT, 20, stop=False)
    next(half_read)
    with pytest.raises(RlxError, match="generating already"):
        model.profile(PROMPT, 3)


def test_marks_that_have_no_room_are_counted(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(abi, "MARKS", 12)
    monkeypatch.setattr(abi, "MARKS_STRIDE", abi.MARKS_START + 16 * 12)
    model = rlx.load(path, "exact", 2)
    recorder = Recorder(model.team.threads)
    list(model.with_marks(recorder).generate_ids(PROMPT, 2, stop=False))
    manifests = [planned(path, program)[0] for program in ("prefill", "decode")]
    left = [m.launches_per_step + m.barriers_per_step + 1 for m in manifests]
    assert recorder.lost == sum(n - 12 for n in left) * model.team.threads
    assert {call.ticks.shape for call in recorder.calls} == {(model.team.threads, 12)}


# Code


def text_of(path: str, with_marks: bool, target: Target) -> str:
    model = open_model(path, None, precision="exact")
    model.marks = with_marks
    return compile_text(model.build("decode"), target)[1]


def test_without_marks_the_code_has_none(path: str):
    host = Target.host()
    assert "@mark(" not in text_of(path, False, host)
    assert abi.CLOCK not in text_of(path, False, host)
    assert "call void @mark(" in text_of(path, True, host)


@pytest.mark.parametrize("level", levels())
def test_marks_compile_for_every_level(path: str, level: str):
    target = Target.named(level)
    assert compile_object(text_of(path, True, target), target)


@pytest.mark.parametrize(("cpu", "clock"), [("haswell", "rdtsc"), ("aarch64", "clock_gettime")])
def test_the_clock_is_one_that_programs_may_read(path: str, cpu: str, clock: str):
    target = Target.named(cpu)
    assert clock in assembly(text_of(path, True, target), target)


def test_the_systems_clock_serves_where_the_cpu_has_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(marks, "architecture", lambda _: "another")
    module = Module(Target.host())
    marks.emit_marks(module)
    engine = Engine(compile_object(module.text, module.target))
    clock = ctypes.CFUNCTYPE(ctypes.c_int64)(engine.address(abi.CLOCK))
    assert time.monotonic_ns() <= clock() <= time.monotonic_ns()


def test_a_program_with_marks_runs_without_a_recorder():
    text = """
builtin.module @f attributes {rlx.marks} {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %sum = mir.binary add %x, %x : tensor<4xf32>
    func.return %sum : tensor<4xf32>
  }
}
"""
    assert rlx.compile(text)(np.ones(4, np.float32)).tolist() == [2, 2, 2, 2]


# The file


def test_events_have_the_fields_that_viewers_need(profile: Profile, tmp_path: Path):
    events = events_of(profile, tmp_path)
    assert {e["ph"] for e in events} == {"M", "X"}
    for event in events:
        assert {"name", "ph", "pid", "tid", "args"} <= event.keys()
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
    tracks = {e["tid"] for e in events if e["name"] == "thread_name"}
    assert tracks == {e["tid"] for e in events} == set(range(profile.threads + 1))


def test_events_of_a_thread_do_not_overlap(profile: Profile, tmp_path: Path):
    events = [e for e in events_of(profile, tmp_path) if e["ph"] == "X"]
    for tid in range(profile.threads + 1):
        own = [e for e in events if e["tid"] == tid]
        assert own
        for event, after in pairwise(own):
            end = round(1000 * event["ts"]) + round(1000 * event["dur"])
            assert end <= round(1000 * after["ts"])


def test_events_have_every_launch_of_every_step(profile: Profile, path: str, tmp_path: Path):
    events = [e for e in events_of(profile, tmp_path) if e["ph"] == "X"]
    counts = {name: planned(path, name)[1] for name in ("prefill", "decode")}
    expected = counts["prefill"] + Counter({k: n * STEPS for k, n in counts["decode"].items()})
    for tid in range(profile.threads):
        own = [e for e in events if e["tid"] == tid and e["cat"] == "kernel"]
        assert Counter(e["name"] for e in own) == expected
        total = sum(call.total_bytes() for call in profile.calls)
        assert sum(e["args"]["bytes"] for e in own) == total
        layers = Counter(e["args"].get("layer") for e in own if e["name"] == "attention")
        assert layers == dict.fromkeys(range(LAYERS), STEPS + 1)


def test_a_file_is_compressed_if_its_name_says_so(profile: Profile, tmp_path: Path):
    profile.write(tmp_path / "events.json.gz")
    data = gzip.decompress((tmp_path / "events.json.gz").read_bytes())
    assert json.loads(data)["traceEvents"] == events_of(profile, tmp_path)
    profile.write(os.devnull)
    for path in (b"events.json", None, 5):
        with pytest.raises(RlxError, match=r"^path: expected that of a file"):
            profile.write(path)  # pyright: ignore[reportArgumentType]: wrong ones are the point
    assert not Path(os.devnull).is_file()


# The command


@pytest.fixture
def rlx_profile(path: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """`rlx_profile(*args)` runs the command; it returns the exit code and what was printed."""

    def run(*args: object) -> tuple[int, str]:
        code = cli.main(["profile", path, *map(str, args)])
        captured = capsys.readouterr()
        return code, captured.out if code == 0 else captured.err

    return run


def test_tables_and_json_say_the_same(
    rlx_profile: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    code, text = rlx_profile("--prompt", "hello", "-n", 3)
    assert code == 0
    assert text.endswith("rlx-profile.json.gz\n")
    assert os.listdir(tmp_path) == ["rlx-profile.json.gz"]
    assert all(word in text for word in ("prefill: 1 step of", "decode: 3 steps", "attention"))
    code, text = rlx_profile("--json", "-n", 3, "-o", "events.json")
    figures = json.loads(text)
    assert figures["events"] == "events.json"
    assert figures["lost_marks"] == 0
    assert figures["steps_per_s"] > 0
    assert figures["steps_per_s_without_marks"] > 0
    assert figures["roofline_gb_s"] == pytest.approx(faster_half(figures["roofline_samples_gb_s"]))
    for section in figures["programs"].values():
        rows = [*section["kernels"], *section["barriers"]]
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        assert sum(row["seconds"] for row in rows) == pytest.approx(section["seconds"])
        assert sum(row["bytes"] for row in section["kernels"]) == section["bytes"]
        for row in section["kernels"]:
            assert row["gb_s"] == pytest.approx(row["bytes"] / row["seconds"] / 1e9)
        for row in section["barriers"]:
            assert 0 <= row["waiting_s"] <= row["seconds"]


def test_a_place_that_cannot_be_written_is_one_error(
    rlx_profile: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for place in ("missing/events.json", "events\0.json", str(tmp_path), ""):
        code, message = rlx_profile("-o", place)
        assert code == 1
        assert message.startswith("rlx: error: cannot write ")
        assert message.count("\n") == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "args",
    [
        ("-n", 0),
        ("--prompt", ""),
        ("--prompt-ids", "1,100000"),
        ("--threads", 0),
        ("--precision", "best"),
    ],
)
def test_an_error_leaves_the_file_as_it_was(
    rlx_profile: Callable[..., tuple[int, str]], tmp_path: Path, args: tuple[object, ...]
):
    file = tmp_path / "events.json"
    file.write_text("before")
    code, message = rlx_profile("-o", file, *args)
    assert code == 1
    assert message.count("\n") == 1
    assert file.read_text() == "before"
    assert os.listdir(tmp_path) == ["events.json"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is always full")
def test_a_full_disk_is_one_error(rlx_profile: Callable[..., tuple[int, str]]):
    code, message = rlx_profile("-n", 1, "-o", "/dev/full")
    assert code == 1
    assert "cannot write /dev/full: No space left on device" in message


# Functions


def test_a_functions_profile_has_its_launches_and_bytes():
    @rlx.jit
    def f(x: Any, w: Any) -> Any:
        return rlx.numpy.tanh(x @ w)

    x, w = np.ones((64, 32), np.float32), np.ones((32, 48), np.float32)
    profile = f.profile(x, w)
    (section,) = profile.sections
    assert section.nbytes == section.counted * 4 * (64 * 32 + 32 * 48 + 64 * 48)
    assert section.barriers == []
    assert "tanh" in str(profile)
    with pytest.raises(RlxError, match="nothing to profile"):
        rlx.jit(lambda x: x.shape[0]).profile(x)


def test_a_profile_of_nothing_has_a_roofline(recwarn: pytest.WarningsRecorder):
    profile = rlx.jit(lambda x: x + 1).profile(np.ones(0, np.float32))
    assert profile.roofline_gb_s > 0
    assert "nan" not in str(profile)
    assert not recwarn.list


def test_a_loop_is_recorded_as_often_as_it_turns():
    @rlx.jit
    def f(x: Any) -> Any:
        return rlx.fori_loop(0, 5, lambda _, y: rlx.numpy.sin(y) + rlx.numpy.mean(y), x)

    (section,) = f.profile(np.ones(1000, np.float32)).sections
    assert any(row.calls == 5 * section.counted for row in section.kernels)


# What memory gives


@pytest.mark.parametrize("nbytes", [0, 1, 64, 1000, 1 << 20])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_roofline_reads_all_of_its_buffer(nbytes: int, threads: int):
    roofline = Roofline(Team(threads), nbytes)
    assert roofline.nbytes >= nbytes
    assert roofline.read() > 0
    assert roofline.total() == roofline.nbytes // 4 * 0x01010101 % (1 << 32)


def test_the_faster_half_of_passes():
    assert faster_half([5.0]) == 5.0
    assert faster_half([1.0, 2.0]) == 2.0
    assert faster_half([1.0, 3.0, 6.0]) == pytest.approx(4.0)


def test_a_profile_is_a_models_method(path: str):
    model: LanguageModel = rlx.load(path)
    with pytest.raises(RlxError, match="the prompt is empty"):
        model.profile([])
    with pytest.raises(RlxError, match="steps"):
        model.profile(PROMPT, 0)
    with pytest.raises(RlxError, match=r"holds 64 tokens, 5 of .*: expected at most 59 steps, got"):
        model.profile(PROMPT, 60)


def test_the_table_of_a_program_that_there_is_not(profile: Profile):
    with pytest.raises(RlxError, match="expected one of prefill, decode, got 'nope'"):
        profile.table("nope")


def test_one_step_is_no_steps(rlx_profile: Callable[..., tuple[int, str]], tmp_path: Path):
    code, text = rlx_profile("-n", 1, "-o", tmp_path / "events.json")
    assert code == 0
    assert "decode: 1 step of" in text


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM to send")
def test_a_process_that_is_ended_leaves_no_file(path: str, tmp_path: Path):
    events = tmp_path / "events.json"
    command = [sys.executable, "-m", "rlx.tools.cli", "profile", path, "-n", "50", "-o", events]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not list(tmp_path.iterdir()) and child.poll() is None:
        time.sleep(0.01)
    child.terminate()
    _, err = child.communicate()
    assert (child.returncode, err) == (143, b"")
    assert list(tmp_path.iterdir()) == []
