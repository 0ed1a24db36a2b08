"""
SmolLM2 reading a prompt with code for CPUs without a matrix unit, side by side with llama.cpp.

    python benchmarks/targets.py [--targets x86-64-v4,x86-64-v3,x86-64] [--threads 1,2]
        [--tokens 502] [--rounds 3] [--llama-python PYTHON] [--json FILE] [--update]

Each target's folder is made by `rlx compile`. Contestants and samples are those of `prefill.py`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common import machine, median, table, today, update_section, write_json
from llm import model_path, prompt_ids
from prefill import CONTEXT, HERE, expected, numbers, ratio, spawn

PEER = "llama.cpp"
INSTRUCTIONS = {"x86-64-v4": "AVX-512", "x86-64-v3": "AVX2", "x86-64": "SSE2"}
Samples = dict[str, list[list[float]]]


def compiled(path: str, target: str, threads: int, folder: str) -> str:
    """Return the folder of a target and a number of threads, made in another."""
    made = str(Path(folder, f"{target}-{threads}"))
    options = ["--target", target, "--threads", str(threads), "--max-context", str(CONTEXT)]
    command = [sys.executable, "-m", "rlx.tools.cli", "compile", path, "-q", "-o", made, *options]
    subprocess.run(command, check=True)
    return made


def side_by_side(
    args: argparse.Namespace, path: str, threads: int, folder: str, right: list[int | str]
) -> Samples:
    """Return what each contestant's prompts took, by round."""
    ids = prompt_ids(path, args.tokens)
    samples: Samples = {name: [] for name in (PEER, *args.targets)}
    with ExitStack() as stack:
        workers = {PEER: spawn(PEER, args.llama_python, path=path, threads=threads)}
        for target in args.targets:
            made = compiled(path, target, threads, folder)
            workers[target] = spawn("rlx", path=made, threads=threads, precision="auto")
        for worker in workers.values():
            stack.enter_context(worker)
        for turn in range(args.rounds):
            for name in list(workers)[:: 1 if turn % 2 else -1]:
                got = workers[name].ask(what="read", prompt=ids, warm=turn == 0)
                if got["first"] not in right:
                    raise SystemExit(
                        f"{name}: expected one of {right} to follow, got {got['first']!r}"
                    )
                samples[name].append(got["samples"])
    return samples


def report(tokens: int, runs: dict[str, Samples]) -> str:
    rows: list[list[str]] = []
    for threads, samples in runs.items():
        for name, rounds in samples.items():
            rate = f"{tokens / median(map(median, rounds)):.0f}"
            best = f"{tokens / min(map(min, rounds)):.0f}"
            beside = "" if name == PEER else f"**{ratio(samples, PEER, name):.1f}**"
            what = f"{name}, {INSTRUCTIONS[name]}" if name in INSTRUCTIONS else name
            rows.append([threads, what, rate, best, beside])
    return table(["threads", "code for", "tok/s", "best", f"of {PEER}"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    add = parser.add_argument
    add("--targets", default=[*INSTRUCTIONS], type=lambda text: text.split(","), metavar="A,B")
    add("--threads", type=numbers, default=[1, 2], metavar="N,M", help="default 1,2")
    add("--tokens", type=int, default=502)
    add("--rounds", type=int, default=3)
    add("--llama-python", default=sys.executable, metavar="PYTHON")
    add("--json", metavar="FILE", help="keep every sample")
    add("--update", action="store_true", help="put the table into README.md")
    args = parser.parse_args()
    path = model_path()
    result: dict[str, Any] = {"date": today(), "machine": machine(), "runs": {}}
    right = expected(path, [args.tokens])[str(args.tokens)]
    with tempfile.TemporaryDirectory() as folder:
        for threads in args.threads:
            samples = side_by_side(args, path, threads, folder, right)
            result["runs"][str(threads)] = samples
            write_json(args.json, result)
    text = f"{result['date']}; {result['machine']}. {args.tokens} tokens.\n\n"
    text += report(args.tokens, result["runs"])
    print(text)
    if args.update:
        update_section(HERE / "README.md", "targets", text)


if __name__ == "__main__":
    main()
