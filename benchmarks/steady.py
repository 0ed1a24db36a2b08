"""
A language model in hard use: idle, beside a program that wants all CPUs, interrupted, in a batch,
and for thousands of generations.

    python benchmarks/steady.py [--threads N] [--generations 2000] [--seconds 10] [--rounds 4]
                                [--json FILE] [--update]

The burner is a program of a session of its own. Memory is RssAnon.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import machine, median, table, today, update_section, write_json
from llm import model_path, prompt_ids

HERE = Path(__file__).resolve().parent
CONTEXT = 1024
NEW = 65
INTERRUPTS = 20
BURN = "import os, sys\nany(os.fork() == 0 for _ in range(int(sys.argv[1])))\nwhile True: pass"


def idle(model: Any, seconds: float) -> list[str]:
    list(model.generate_ids([1, 2, 3], NEW, stop=False))
    used = time.process_time()
    time.sleep(seconds)
    share = (time.process_time() - used) / seconds
    return [f"CPU of an idle model, over {seconds:.0f} s", f"{share:.4%} of one"]


@contextmanager
def burning(count: int) -> Iterator[None]:
    """Let as many processes of one program as there are CPUs do nothing but work."""
    command = [sys.executable, "-c", BURN, str(count - 1)]
    burner = subprocess.Popen(command, start_new_session=True)
    time.sleep(0.3)
    try:
        yield
    finally:
        os.killpg(burner.pid, signal.SIGKILL)
        burner.wait()


def crowded(model: Any, prompt: list[int], rounds: int) -> list[str]:
    """Return the rates of decode, alone and beside burners, alternated."""

    def rate() -> float:
        list(model.generate_ids(prompt, NEW, stop=False))
        return model.stats.decode_tok_s

    quiet: list[float] = []
    beside: list[float] = []
    for _ in range(rounds):
        # Burners that have ended are noticed after some calls.
        for _ in range(3):
            rate()
        quiet += [rate() for _ in range(5)]
        with burning(model.stats.threads):
            beside += [rate() for _ in range(5)]
    kept = median(beside) / median(quiet)
    rates = f"{median(beside):.0f} of {median(quiet):.0f} tok/s, {kept:.0%}"
    return ["decode beside a program that wants all CPUs", rates]


def interrupts(model: Any, prompt: list[int], what: str) -> list[str]:
    """Return how long Ctrl-C takes, sent at random times of a generation."""
    list(model.generate_ids(prompt, NEW, stop=False))
    before = time.perf_counter()
    wanted = list(model.generate_ids(prompt, NEW, stop=False))
    whole = time.perf_counter() - before
    delays: list[float] = []
    for i in range(INTERRUPTS):
        sent = 0.0

        def send() -> None:
            nonlocal sent
            sent = time.perf_counter()
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(whole * (i + 0.5) / INTERRUPTS, send)
        try:
            timer.start()
            while True:
                list(model.generate_ids(prompt, NEW, stop=False))
        except KeyboardInterrupt:
            delays.append(time.perf_counter() - sent)
        if list(model.generate_ids(prompt, NEW, stop=False)) != wanted:
            raise SystemExit("after Ctrl-C the model gives other tokens")
    text = f"{median(delays) * 1e3:.0f} ms, at most {max(delays) * 1e3:.0f} ms"
    return [f"Ctrl-C in {what}", text]


def batch(model: Any, prompt: list[int]) -> list[str]:
    prompts = [prompt[:n] for n in (3, 17, 64, 200)]
    alone = ["".join(model.generate(p, NEW)) for p in prompts]
    same = model.generate_batch(prompts, NEW) == alone
    return ["a batch of 4 prompts gives what each gives alone", "yes" if same else "NO"]


def facts() -> tuple[int, int, int, int]:
    from rlx.runtime.compilations import Compilations
    from rlx.runtime.memory import rss_anon

    files = len(os.listdir("/proc/self/fd"))
    return rss_anon() or 0, Compilations.count, threading.active_count(), files


def again(model: Any, prompt: list[int], count: int) -> list[str]:
    """Return what has grown after many generations of random lengths, from a tenth of them on."""
    draw = random.Random(0)
    before = facts()
    for i in range(count):
        ids = prompt[: draw.randint(1, 64)]
        list(model.generate_ids(ids, draw.randint(1, 16), draw.choice([0.0, 0.8]), stop=False))
        if i == count // 10:
            before = facts()
    memory, *others = (now - then for now, then in zip(facts(), before, strict=True))
    names = ("compilations", "threads", "files")
    text = [f"{n:+d} {name}" for n, name in zip(others, names, strict=True)]
    return [f"{count} generations", ", ".join([f"{memory / 1e6:+.2f} MB", *text])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--threads", type=int, help="default: every CPU that this process may use")
    add("--generations", type=int, default=2000)
    add("--seconds", type=float, default=10.0, help="to be idle for")
    add("--rounds", type=int, default=4, help="of alone and beside")
    add("--json", metavar="FILE")
    add("--update", action="store_true", help="put the table into README.md")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import rlx

    path = model_path()
    prompt = prompt_ids(path, 900)
    model = rlx.load(path, "exact", args.threads, CONTEXT)
    rows = [
        idle(model, args.seconds),
        crowded(model, prompt[:8], args.rounds),
        interrupts(model, prompt[:8], "an answer"),
        interrupts(model, prompt, "an answer to 900 tokens"),
        batch(model, prompt),
        again(model, prompt, args.generations),
    ]
    head = f"{today()}; {machine()}. SmolLM2 135M, Q4_1, exact, {model.stats.threads} threads."
    write_json(args.json, {"about": head, **dict(rows)})
    text = f"{head}\n\n{table(['what', 'found'], rows)}"
    print(text)
    if args.update:
        update_section(HERE / "README.md", "steady", text)


if __name__ == "__main__":
    main()
