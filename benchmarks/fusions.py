"""
What each fusion of a language model's decode step saves: launches, barriers and time.

    python benchmarks/fusions.py [--threads 2] [--rounds 9] [--json FILE] [--update]

The same model is compiled with all fusion passes, without one of them, and without any; the
contestants decode in turns in one process.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from common import machine, median, table, today, update_section, write_json
from llm import CONTEXT, model_path, prompt_ids

import rlx
from rlx.flow.profile import CompileProfile, FusionOptions, Skip
from rlx.passes.pipelines import DEFAULT, FUSION

HERE = Path(__file__).resolve().parent
PROMPT, NEW = 64, 17


def load(path: str, threads: int, skip: Skip) -> Any:
    profile = CompileProfile(FusionOptions(skip=skip))
    return rlx.load(path, "exact", threads, CONTEXT, profile=profile)


def measure(threads: int, rounds: int) -> dict[str, Any]:
    """Return what each contestant's step has, and samples of its milliseconds."""
    path = model_path()
    prompt = prompt_ids(path, PROMPT)
    passes = [name for name in DEFAULT.split(",") if name.startswith(FUSION)]
    skips: dict[str, Skip] = {"all": False, **{name: (name,) for name in passes}, "none": True}
    models = {name: load(path, threads, skip) for name, skip in skips.items()}
    # Passes that find nothing to do in this model leave the program as it is.
    whole = models["all"].ir("lir")
    models = {n: m for n, m in models.items() if n == "all" or m.ir("lir") != whole}
    samples: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds + 1):
        for name, model in models.items():
            list(model.generate_ids(prompt, NEW, stop=False))
            samples[name].append(1e3 / model.stats.decode_tok_s)
    return {
        name: {
            "launches": model.stats.kernels_per_step,
            "barriers": model.stats.barriers_per_step,
            "arena_bytes": model.stats.arena_bytes,
            "ms": samples[name][1:],
        }
        for name, model in models.items()
    }


def report(result: dict[str, Any]) -> str:
    found = result["fusions"]
    whole = found["all"]
    labels = {"all": "all", "none": "none"}
    rows = [
        [
            labels.get(name, f"all but `{name}`"),
            str(f["launches"]),
            str(f["barriers"]),
            f"{f['arena_bytes'] / 1e6:.1f}",
            f"{median(f['ms']):.2f}",
            f"{min(f['ms']):.2f}",
            "" if f is whole else f"{median(f['ms']) - median(whole['ms']):+.2f}",
        ]
        for name, f in found.items()
    ]
    header = ["fusions", "launches", "barriers", "arenas, MB", "ms a step", "best", "more"]
    settings = f"{result['threads']} threads, {PROMPT} prompt tokens, {NEW - 1} steps a sample"
    return f"{result['date']}; {result['machine']}. {settings}.\n\n{table(header, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--update", action="store_true", help="put the table into README.md")
    args = parser.parse_args()
    found = measure(args.threads, args.rounds)
    result = {"date": today(), "machine": machine(), "threads": args.threads, "fusions": found}
    write_json(args.json, result)
    text = report(result)
    print(text)
    if args.update:
        update_section(HERE / "README.md", "fusions", text)


if __name__ == "__main__":
    main()
