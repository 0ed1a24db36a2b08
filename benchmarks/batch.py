"""
Batches: ragged prompts answered together and one after another, and steps of many sequences.

Both ways are of one model in one process and take turns, and every answer is held to be the same.

    python benchmarks/batch.py [--threads 1,2] [--rounds 5] [--json FILE] [--update]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import machine, median, table, today, update_section, write_json
from llm import model_path, prompt_ids, thread_counts

import rlx
from rlx.runtime.language import LanguageModel

README = Path(__file__).resolve().parent / "README.md"
CONTEXT = 1024
PROMPTS, SHORTEST, LONGEST, NEW = 16, 4, 40, 32
STEPS = 24
SEQUENCES = (1, 2, 4, 8, 16, 32, 64)
SHARED = 400
"""Tokens of a prompt that another one shares."""

Ids = list[list[int]]


def ragged(path: str) -> Ids:
    """Return prompts of other lengths, and of other parts of a text."""
    lengths = np.random.default_rng(0).integers(SHORTEST, LONGEST + 1, PROMPTS)
    text = prompt_ids(path, PROMPTS * LONGEST)
    return [text[i * LONGEST : i * LONGEST + n] for i, n in enumerate(lengths)]


def one_by_one(model: LanguageModel, prompts: Ids) -> Ids:
    return [list(model.generate_ids(p, NEW, stop=False)) for p in prompts]


def together(model: LanguageModel, prompts: Ids) -> tuple[Ids, dict[str, float]]:
    with model.batch(len(prompts)) as batch:
        answers = [batch.add(p, NEW, stop=False) for p in prompts]
        for _ in batch:
            pass
        stats = batch.stats
        parts = {"prefill": stats.prefill_s, "steps": stats.decode_s}
        return [answer.ids for answer in answers], parts


def contest(model: LanguageModel, prompts: Ids, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of both ways, by turns. Raises SystemExit where an answer differs."""
    wanted = one_by_one(model, prompts)
    samples: dict[str, list[float]] = {}
    for i in range(rounds + 1):
        for way in ("alone", "batch") if i % 2 else ("batch", "alone"):
            before, parts = time.perf_counter(), dict[str, float]()
            if way == "alone":
                answers = one_by_one(model, prompts)
            else:
                answers, parts = together(model, prompts)
            if answers != wanted:
                raise SystemExit("an answer of a batch is not that of its prompt alone")
            parts[way] = time.perf_counter() - before
            # The first round warms up.
            for name, seconds in parts.items() if i else ():
                samples.setdefault(name, []).append(seconds)
    return samples


def steps(model: LanguageModel, prompt: Sequence[int], rounds: int) -> dict[int, list[float]]:
    """Return the seconds of a step of so many sequences; 0 is a step of decode alone."""
    samples: dict[int, list[float]] = {count: [] for count in (0, *SEQUENCES)}
    for _ in range(rounds):
        list(model.generate_ids(prompt, STEPS, stop=False))
        samples[0].append(1 / model.stats.decode_tok_s)
        for count in SEQUENCES:
            with model.batch(count) as batch:
                for _ in range(count):
                    batch.add(prompt, STEPS, stop=False)
                for _ in batch:
                    pass
                samples[count].append(batch.stats.decode_s / batch.stats.steps)
    return samples


def prefixes(model: LanguageModel, ids: Sequence[int], rounds: int) -> dict[str, list[float]]:
    """Return the seconds to the first token of prompts that share all but their last tokens."""
    samples: dict[str, list[float]] = {"computed": [], "reused": []}
    for i in range(rounds):
        for name in samples:
            model.reuse_prefix = name == "reused"
            list(model.generate_ids([*ids, 100 + 2 * i, 5], 1))
            list(model.generate_ids([*ids, 101 + 2 * i, 6], 1))
            samples[name].append(model.stats.prefill_s)
    model.reuse_prefix = False
    return samples


# The report


def report(result: dict[str, Any]) -> str:
    lines = [
        f"{result['date']}; {result['machine']}. SmolLM2 135M, Q4_1, exact precision. "
        f"{PROMPTS} prompts of {SHORTEST} to {LONGEST} tokens, {NEW} new tokens each; "
        "every answer is the same in both ways.",
        "",
    ]
    rows: list[list[str]] = []
    for threads, s in result["contests"].items():
        ratio = median(s["batch"]) / median(s["alone"])
        cells = [f"{f(s[way]):.2f}" for way in ("alone", "batch") for f in (median, min)]
        parts = [f"{median(s[part]):.2f}" for part in ("prefill", "steps")]
        rows.append([str(threads), *cells, f"**{ratio:.2f}**", *parts])
    names = ["one by one, s", "best", "batch, s", "best", "batch / one by one"]
    lines += [table(["threads", *names, "of it prefill", "steps"], rows), ""]
    rows = []
    for threads, by_count in result["steps"].items():
        alone = median(by_count[0])
        for count in SEQUENCES:
            step = median(by_count[count])
            cells = [1e3 * step, 1e3 * min(by_count[count]), count / step]
            cells = [f"{cell:.1f}" for cell in cells]
            rows.append([f"{threads}, {count}", *cells, f"{step / (count * alone):.2f}"])
    names = ["step, ms", "best", "tok/s", "of as many steps alone"]
    lines += [table(["threads, sequences", *names], rows), ""]
    rows = [
        [str(threads), *(f"{1e3 * median(s[name]):.1f}" for name in ("computed", "reused"))]
        for threads, s in result["prefixes"].items()
    ]
    lines += [f"The first token of a prompt that shares {SHARED} tokens with the one before:", ""]
    return "\n".join([*lines, table(["threads", "computed again, ms", "reused, ms"], rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    add = parser.add_argument
    add("--threads", type=thread_counts, default="1,2", help="numbers of them (default 1,2)")
    add("--rounds", type=int, default=5)
    add("--json", metavar="FILE", help="write every sample")
    add("--update", action="store_true", help="put the tables in benchmarks/README.md")
    args = parser.parse_args()
    path = model_path()
    result: dict[str, Any] = {
        "date": today(), "machine": machine(), "contests": {}, "steps": {}, "prefixes": {},
    }  # fmt: skip
    text = prompt_ids(path, SHARED)
    for threads in args.threads:
        model = rlx.load(path, "exact", threads, CONTEXT, reuse_prefix=False)
        result["contests"][threads] = contest(model, ragged(path), args.rounds)
        result["steps"][threads] = steps(model, text[:8], max(args.rounds - 2, 1))
        result["prefixes"][threads] = prefixes(model, text, args.rounds)
    write_json(args.json, result)
    tables = report(result)
    print(tables)
    if args.update:
        update_section(README, "batch", tables)


if __name__ == "__main__":
    main()
