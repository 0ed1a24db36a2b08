"""
What the format of the KV cache does: rates of decode at two contexts, and what logits lose.

The models of all formats are in one process and take turns, token by token. All read the same text,
this project's own; quality is that of every token of it, beside the cache of f32.

    python benchmarks/kv_cache.py [--threads 1,2] [--contexts 512,2000] [--json FILE] [--update]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import machine, median, spread, table, today, update_section, write_json
from llm import model_path, thread_counts
from numpy.typing import NDArray

import rlx
from rlx.contract.quant import KV_FORMATS
from rlx.runtime.language import LanguageModel

HERE = Path(__file__).resolve().parent
TEXT = HERE.parent / "docs" / "design.md"
PART = 250
"""Tokens that are fed at a time, whose logits are compared."""

Models = dict[str, LanguageModel]


def load(threads: int, tokens: int) -> Models:
    return {
        kept: rlx.load(model_path(), "exact", threads, tokens, kv_cache=kept) for kept in KV_FORMATS
    }


def text_ids(model: LanguageModel, count: int) -> list[int]:
    ids = model.tokenizer.encode(TEXT.read_text())
    if len(ids) < count:
        raise SystemExit(f"{TEXT} has {len(ids)} tokens, expected {count}")
    return ids[:count]


# Quality


def log_shares(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def quality(models: Models, ids: list[int]) -> dict[str, dict[str, float]]:
    """Return means over the tokens of a text, of each format beside f32."""
    names = ("same first token", "log share of it", "nll", "divergence")
    sums = {kept: dict.fromkeys(names, 0.0) for kept in models}
    for start in range(0, len(ids), PART):
        part, following = ids[start : start + PART], ids[start + 1 : start + PART + 1]
        shares = {
            kept: log_shares(model.extend(part, restart=start == 0))
            for kept, model in models.items()
        }
        wide = shares["f32"]
        first, rows = wide.argmax(axis=1), np.arange(len(part))
        for kept, own in shares.items():
            found = sums[kept]
            found["same first token"] += float((own.argmax(axis=1) == first).sum())
            found["log share of it"] += float(np.abs(own - wide)[rows, first].sum())
            found["nll"] -= float(own[rows[: len(following)], following].sum())
            found["divergence"] += float((np.exp(wide) * (wide - own)).sum())
    return {
        kept: {name: total / (len(ids) - (name == "nll")) for name, total in found.items()}
        for kept, found in sums.items()
    }


# Rates


def rates(models: Models, ids: list[int], rounds: int, steps: int) -> dict[str, list[float]]:
    """Return tokens per second of decode behind a text, in rounds of some steps."""
    samples: dict[str, list[float]] = {kept: [] for kept in models}
    for model in models.values():
        list(model.generate_ids(ids, 1, stop=False))
    for i in range(rounds):
        for kept in list(models)[:: 1 if i % 2 else -1]:
            started = time.perf_counter()
            for _ in range(steps):
                models[kept].extend([5])
            samples[kept].append(steps / (time.perf_counter() - started))
    return samples


# The report


def report(result: dict[str, Any]) -> str:
    lines = [f"{result['date']}; {result['machine']}. SmolLM2 135M, Q4_1, exact precision.", ""]
    rows: list[list[str]] = []
    for threads, contexts in result["rates"].items():
        for context, samples in contexts.items():
            wide = median(samples["f32"])
            cells = spread(samples["f32"])
            for kept in KV_FORMATS[1:]:
                ratio = f"**{median(samples[kept]) / wide:.2f}**"
                cells += [*spread(samples[kept]), ratio]
            rows.append([f"{threads}, {context}", *cells])
    header = ["threads, context", "f32, tok/s", "best"]
    header += [c for kept in KV_FORMATS[1:] for c in (f"{kept} median", "best", "of f32")]
    lines += [table(header, rows), ""]
    rows = [
        [
            kept,
            f"{result['state_bytes'][kept] / 1e6:.1f}",
            f"{found['same first token']:.2%}",
            f"{found['log share of it']:.5f}",
            f"{found['nll'] - result['quality']['f32']['nll']:+.5f}",
            f"{found['divergence']:.1e}",
        ]
        for kept, found in result["quality"].items()
    ]
    names = ["state, MB", "same first token", "its log share differs by", "NLL", "KL divergence"]
    lines += [f"Over {result['tokens']} tokens, beside f32:", "", table(["cache", *names], rows)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    add = parser.add_argument
    add("--threads", type=thread_counts, default="1,2", help="numbers of them (default 1,2)")
    add("--contexts", default="512,2000", help="tokens before decode (default 512,2000)")
    add("--rounds", type=int, default=20)
    add("--steps", type=int, default=4, help="tokens of a round (default 4)")
    add("--json", metavar="FILE", help="write every sample")
    add("--update", action="store_true", help="put the tables in benchmarks/README.md")
    args = parser.parse_args()
    contexts = [int(n) for n in args.contexts.split(",")]
    tokens = max(contexts)
    result: dict[str, Any] = {
        "date": today(), "machine": machine(), "tokens": tokens, "rates": {},
    }  # fmt: skip
    for threads in args.threads:
        models = load(threads, tokens + args.rounds * args.steps)
        ids = text_ids(models["f32"], tokens)
        result["rates"][threads] = {
            n: rates(models, ids[:n], args.rounds, args.steps) for n in contexts
        }
        result["state_bytes"] = {kept: model.stats.state_bytes for kept, model in models.items()}
        # Results don't depend on the threads.
        result["quality"] = result.get("quality") or quality(models, ids)
    write_json(args.json, result)
    text = report(result)
    print(text)
    if args.update:
        update_section(HERE / "README.md", "kv-cache", text)


if __name__ == "__main__":
    main()
