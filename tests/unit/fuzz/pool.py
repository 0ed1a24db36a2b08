"""Runs seeds in processes of their own, so that a crash or a hang has a seed, and ends no other."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

PATIENCE = 120
"""Seconds after which a module hangs; one takes a second or two."""
FOLDER = Path(__file__).parents[1]
COMMAND = (sys.executable, "-W", "error", "-m", "fuzz", "--worker")
RERUN = f"cd {FOLDER.relative_to(FOLDER.parents[1])} && python -m fuzz"


class Worker:
    """A process that checks one seed at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            COMMAND, cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.seed: int | None = None
        self.until = 0.0

    def start(self, seed: int) -> None:
        assert self.process.stdin is not None
        self.seed, self.until = seed, time.monotonic() + PATIENCE
        self.process.stdin.write(f"{seed}\n".encode())
        self.process.stdin.flush()

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def run(seeds: Iterable[int], workers: int | None = None) -> list[dict[str, object]]:
    """Return the answers for seeds (see `fuzz.__main__.answer`), those that went wrong only."""
    left, wrong = deque(seeds), list[dict[str, object]]()
    count = min(workers or os.cpu_count() or 1, len(left))
    team = [Worker() for _ in range(count)]
    try:
        for i, worker in enumerate(team):
            if left:
                worker.start(left.popleft())
        while any(w.seed is not None for w in team):
            busy = {w.process.stdout: i for i, w in enumerate(team) if w.seed is not None}
            ready, _, _ = select.select(list(busy), [], [], 1.0)
            for i in [busy[stream] for stream in ready] + [
                i
                for i, w in enumerate(team)
                if w.seed is not None
                and w.process.stdout not in ready
                and time.monotonic() > w.until
            ]:
                team[i], got = _answer(team[i], team[i].process.stdout in ready)
                wrong += [got] if len(got) > 1 else []
                if left:
                    team[i].start(left.popleft())
    finally:
        for worker in team:
            worker.stop()
    return sorted(wrong, key=lambda got: str(got["seed"]))


def _answer(worker: Worker, ready: bool) -> tuple[Worker, dict[str, object]]:
    """Return what a worker answered, and the worker, another one where it is dead or hangs."""
    seed = worker.seed
    assert worker.process.stdout is not None
    line = worker.process.stdout.readline() if ready else b""
    if line.endswith(b"\n"):
        worker.seed = None
        return worker, json.loads(line)
    worker.stop()
    what = f"the process ended with {worker.process.returncode}" if ready else "it hangs"
    return Worker(), {"seed": seed, "failed": what}


def report(wrong: list[dict[str, object]]) -> str:
    """Return what went wrong, refusals counted by their message, with the seeds."""
    refusals: dict[str, list[object]] = {}
    lines: list[str] = []
    for got in wrong:
        if "refused" in got:
            refusals.setdefault(str(got["refused"]), []).append(got["seed"])
        else:
            lines.append(f"seed {got['seed']}: {got['failed']}")
    for message, seeds in sorted(refusals.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(map(str, seeds[:8]))
        lines.append(f"refused {len(seeds)} times (seeds {shown}): {message}")
    seeds = " ".join(str(got["seed"]) for got in wrong[:8])
    return "\n".join([*lines, f"{len(wrong)} modules; once more: {RERUN} {seeds}"])
