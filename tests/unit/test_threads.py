"""The barrier, the native worker loop and `Team`, with real threads."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rlx.errors import RlxError
from rlx.lowering.emitter import Module
from rlx.lowering.sync import BARRIER_SLEEPERS, emit_barrier, emit_team
from rlx.lowering.target import Target, cgroup_quota, usable_cores
from rlx.lowering.values import Value, i64
from rlx.runtime import cache_files
from rlx.runtime import threads as threads_module
from rlx.runtime.jit import Engine, assembly, compile_object
from rlx.runtime.once import once
from rlx.runtime.threads import Team

LINE = 8
"""i64 words in a cache line."""
MAX_THREADS = 8


@pytest.fixture(autouse=True)
def _cores(monkeypatch, tmp_path):
    """Let a team have as many threads as a test wants, and a cache of its own."""
    monkeypatch.setattr(threads_module, "usable_cores", lambda: MAX_THREADS)
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))


@cache
def engine() -> Engine:
    """
    Compile the jobs of these tests.

    `phases` takes {team, phases, delay, cells}: a cell of one cache line per thread, of a counter
    and a count of errors. In each phase a thread adds 1 to its own counter, in turn after `delay`
    steps of waste, and after a barrier compares everyone's with the phase; a second barrier ends
    it. `once` adds 1 to the counter of its cell; `nothing` returns.
    """
    module = Module(Target.host())
    barrier = emit_barrier(module)
    params = [("ptr", "ctx"), ("i64", "tid"), ("i64", "threads")]
    f = module.function("phases", params, exported=True)
    ctx, tid, threads = f.params
    team, cells = (f.load("ptr", f.at(ctx, 8 * i), 8) for i in (0, 3))
    phases, delay = (f.load("i64", f.at(ctx, 8 * i), 8) for i in (1, 2))

    def add(cell: Value, amount: Value) -> None:
        f.store(f.add(f.load("i64", cell, 8), amount), cell, 8)

    def phase(i: Value, _: list[Value]) -> list[Value]:
        mine = f.at(cells, tid, 8 * LINE)
        late = f.icmp("eq", f.binary("urem", i, threads), tid)
        waste = f.alloca(8, 8)

        def burn(j: Value, _: list[Value]) -> list[Value]:
            f.line(f"store volatile i64 {j.name}, ptr {waste.name}, align 8")
            return []

        f.for_(0, f.select(late, delay, i64(0)), 1, [], burn)
        add(mine, i64(1))
        f.call(barrier, "void", team, threads)

        def check(t: Value, _: list[Value]) -> list[Value]:
            count = f.load("i64", f.at(cells, t, 8 * LINE), 8)
            wrong = f.icmp("ne", count, f.add(i, 1))
            add(f.at(mine, 8), f.cast("zext", wrong, "i64"))
            return []

        f.for_(0, threads, 1, [], check)
        f.call(barrier, "void", team, threads)
        return []

    f.for_(0, phases, 1, [], phase)
    f.ret()

    f = module.function("once", params, exported=True)
    cell = f.at(f.params[0], f.params[1], 8 * LINE)
    f.store(f.add(f.load("i64", cell, 8), 1), cell, 8)
    f.ret()
    module.function("nothing", params, exported=True).ret()
    return Engine(compile_object(module.text, module.target))


def aligned_cells() -> np.ndarray:
    raw = np.zeros((MAX_THREADS + 1) * LINE, np.int64)
    start = -raw.ctypes.data % 64 // 8
    return raw[start : start + MAX_THREADS * LINE].reshape(MAX_THREADS, LINE)


def run_phases(team: Team, phases: int, delay: int) -> tuple[list[int], list[int]]:
    """Return the threads' counters and errors."""
    cells = aligned_cells()
    ctx = np.array([team.address, phases, delay, cells.ctypes.data], np.int64)
    team.run(engine().address("phases"), ctx.ctypes.data)
    return cells[: team.threads, 0].tolist(), cells[: team.threads, 1].tolist()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads can't be bound")
def test_threads_on_one_cpu_know_it_and_lose_no_phase():
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        team = Team(2)
        together = ctypes.c_int32.from_address(team.address + BARRIER_SLEEPERS + 4)
        # A thread may be preempted while it spins; where it sleeps it sees who woke it.
        while not together.value:
            assert run_phases(team, 50, 0) == ([50, 50], [0, 0])
        assert run_phases(team, 50, 100) == ([50, 50], [0, 0])
        team.close()
    finally:
        os.sched_setaffinity(0, cpus)


@pytest.mark.parametrize(
    ("threads", "phases", "delay"),
    [
        (1, 1000, 0),
        (2, 20000, 0),
        (2, 300, 300_000),  # The others outlast their spinning and sleep.
        (3, 1000, 100),
        (4, 1000, 0),
        (4, 100, 300_000),
        (8, 200, 0),
    ],
)
def test_barrier_separates_phases(threads: int, phases: int, delay: int) -> None:
    team = Team(threads)
    try:
        assert run_phases(team, phases, delay) == ([phases] * threads, [0] * threads)
    finally:
        team.close()


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_every_thread_runs_every_job_once(threads: int) -> None:
    team = Team(threads)
    cells = aligned_cells()
    for i in range(500):
        team.run(engine().address("once"), cells.ctypes.data)
        assert cells[:, 0].tolist() == [i + 1] * threads + [0] * (MAX_THREADS - threads)
    # Now with workers that have gone to sleep between the jobs.
    for i in range(20):
        time.sleep(0.002)
        team.run(engine().address("once"), cells.ctypes.data)
        assert cells[:threads, 0].tolist() == [501 + i] * threads
    team.close()


def test_python_threads_take_turns() -> None:
    team = Team(2)
    cells = aligned_cells()
    address = engine().address("once")

    def many() -> None:
        for _ in range(1000):
            team.run(address, cells.ctypes.data)

    callers = [threading.Thread(target=many) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert cells[:2, 0].tolist() == [3000, 3000]
    team.close()


def test_teams_are_independent() -> None:
    teams = [Team(2) for _ in range(3)]
    for _ in range(3):
        for team in teams:
            assert run_phases(team, 100, 0) == ([100, 100], [0, 0])
    for team in teams:
        team.close()


def test_an_idle_team_uses_no_cpu() -> None:
    team = Team(4)
    team.run(engine().address("nothing"), 0)
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.25
    team.close()


def workers() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("rlx-")}


def test_workers_start_at_the_first_run_and_stop_at_close() -> None:
    # Compiled functions that other tests keep have teams of their own.
    others = workers()
    team = Team(3)
    assert workers() <= others
    team.run(engine().address("nothing"), 0)
    assert len(workers() - others) == 2
    team.close()
    assert workers() <= others
    team.close()
    with pytest.raises(RlxError, match="closed"):
        team.run(engine().address("nothing"), 0)


def test_a_dropped_team_stops_its_workers() -> None:
    others = workers()
    team = Team(3)
    team.run(engine().address("nothing"), 0)
    del team
    gc.collect()
    assert workers() <= others


def test_a_refused_thread_is_an_error_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "rlx-3":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    started = set(threading.enumerate())
    with pytest.raises(RlxError, match="refused 4 threads"):
        Team(4).run(engine().address("nothing"), 0)
    for thread in set(threading.enumerate()) - started:
        thread.join()


@pytest.mark.parametrize("threads", [0, -1, 1.0, "2", True])
def test_threads_must_be_a_positive_int(threads: object) -> None:
    with pytest.raises(RlxError, match=r"threads .* expected an integer of at least 1"):
        Team(threads)


def test_threads_are_clamped_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module, "usable_cores", usable_cores)
    monkeypatch.setattr(cache_files, "_warned", set())
    assert Team().threads == usable_cores()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert Team(usable_cores()).threads == usable_cores()
        assert caught == []
        assert Team(1000).threads == usable_cores()
        assert Team(2000).threads == usable_cores()
    (warning,) = caught
    assert "1000 threads were asked for" in str(warning.message)


@pytest.mark.parametrize(
    ("groups", "files", "wanted"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "1000 100000\n"}, 1),
        # The least of a group and its parents counts, whichever of them it is.
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "100000 100000"}, 1),
        # A container that sees its own group as the root, under its outer name.
        ("0::/docker/1\n", {"cpu.max": "200000 100000"}, 2),
        ("3:cpuset:/\n1:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "-1\n"}, None),
        (
            "4:cpu,cpuacct:/x\n0::/\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "250000\n"},
            3,
        ),
        ("1:name=systemd:/a:b\n0::/a:b\n", {"a:b/cpu.max": "400000 100000"}, 4),
        ("0::/\n", {"cpu.max": "what is this"}, None),
        ("0::/\n", {"cpu.max": "100000 0"}, None),
    ],
)
def test_quotas_of_control_groups(
    tmp_path: Path, groups: str, files: dict[str, str], wanted: int | None
) -> None:
    listed = tmp_path / "cgroup"
    listed.write_text(groups)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name.endswith("cfs_quota_us"):
            path.with_name("cpu.cfs_period_us").write_text("100000\n")
    assert cgroup_quota(listed, tmp_path / "fs") == wanted


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path / "none", tmp_path) is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinities")
def test_teams_are_as_large_as_the_affinity() -> None:
    """Also where the process has more threads than that, which is said once."""
    script = """
import os, sys, warnings
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
from rlx.runtime.threads import Team
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print([Team(n).threads for n in (None, 1, 3, 4)], len(caught))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[1, 1, 1, 1] 1\n", "")


SCRIPT = """
import ctypes, os, sys, time, warnings
from rlx.runtime import threads
threads.usable_cores = lambda: 4
seen = []
job = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
    lambda ctx, tid, n: seen.append((tid, n))
)
address = ctypes.cast(job, ctypes.c_void_p).value
team = threads.Team(4)
team.run(address, 0)
everyone = [(0, 4), (1, 4), (2, 4), (3, 4)]
assert sorted(seen) == everyone
"""


def python(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script after `SCRIPT`; the time limit only turns a hang into a failure."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT + script]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "ending",
    [
        "",  # The workers spin.
        "time.sleep(0.1)",  # They sleep.
        "sys.exit(0)",
        "del team; time.sleep(0.1)",
        "import threading; t = threading.Thread(target=team.run, args=(address, 0), daemon=True)\n"
        "t.start()",
    ],
)
def test_the_interpreter_exits_cleanly(ending: str) -> None:
    done = python(f"{ending}\nprint('end')")
    assert (done.returncode, done.stdout.replace("end\n", ""), done.stderr) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_runs_and_exits() -> None:
    done = python(
        """
address_before = team.address
seen.clear()
if pid := os.fork():
    _, status = os.waitpid(pid, 0)
    assert status == 0
    team.run(address, 0)
    assert sorted(seen) == everyone
    print("parent done")
else:
    assert team.address == address_before
    team.run(address, 0)
    team.run(address, 0)
    assert sorted(seen) == sorted(2 * everyone)
    sys.exit(0)
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "parent done\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_during_a_run_leaves_the_child_usable() -> None:
    done = python(
        """
import threading
slow = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
    lambda ctx, tid, n: time.sleep(0.3)
)
slow_address = ctypes.cast(slow, ctypes.c_void_p).value
caller = threading.Thread(target=team.run, args=(slow_address, 0))
caller.start()
time.sleep(0.1)
seen.clear()
if pid := os.fork():
    _, status = os.waitpid(pid, 0)
    assert status == 0
    caller.join()
    print("parent done")
else:
    team.run(address, 0)
    assert sorted(seen) == everyone
    os._exit(0)
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "parent done\n", "")


def test_ctrl_c_reaches_the_caller_after_the_run() -> None:
    """Also where this process ignores it, as the background jobs of a shell do."""
    done = python(
        """
import signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
nap = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
    lambda ctx, tid, n: time.sleep(0.2) if tid else None
)
try:
    team.run(ctypes.cast(nap, ctypes.c_void_p).value, 0)
    time.sleep(10)
except KeyboardInterrupt:
    seen.clear()
    team.run(address, 0)
    assert sorted(seen) == everyone
    print("interrupted")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_the_native_code_comes_from_the_cache_the_second_time(tmp_path) -> None:
    count = "from rlx.runtime.compilations import Compilations; print(Compilations.count)"
    assert [python(count).stdout for _ in range(2)] == ["1\n", "0\n"]


def test_running_a_team_imports_no_xdsl() -> None:
    assert python("print([m for m in sys.modules if m.startswith('xdsl')])").stdout == "[]\n"


@pytest.mark.parametrize("cpu", ["generic", "haswell", "aarch64", "neoverse-n1"])
def test_the_team_compiles_for_other_cpus(cpu: str) -> None:
    module = Module(Target.named(cpu))
    emit_team(module)
    text = assembly(module.text, module.target)
    assert "syscall" in text
    assert ("isb" if module.target.triple.startswith("aarch64") else "pause") in text


@pytest.mark.parametrize(
    ("triple", "call"),
    [("arm64-apple-darwin", "usleep"), ("x86_64-pc-windows-msvc", "Sleep")],
)
def test_targets_without_futexes_poll(triple: str, call: str) -> None:
    cpu = "aarch64" if triple.startswith("arm64") else "x86-64"
    target = dataclasses.replace(Target.named(cpu), triple=triple)
    module = Module(target)
    emit_team(module)
    text = assembly(module.text, target)
    assert call in text
    assert "syscall" not in text


def test_threads_that_ask_at_once_get_the_same():
    made, together = list[int](), threading.Barrier(8)

    @once
    def slow(number: int) -> object:
        made.append(number)
        time.sleep(0.01)
        return object()

    def ask(_: int) -> tuple[object, object]:
        together.wait()
        return slow(1), slow(2)

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(ask, range(8)))
    assert len(found) == 1
    assert made == [1, 2]
