"""
How near to float64 exact precision comes, and how near to exact precision fast comes.

Products of one row with weights of each format, beside dot products of f32; the logits of a text,
beside a float32 evaluation in numpy; and texts of 500 tokens, one token after the other, in both
precisions with keys and values in each format.

    python benchmarks/accuracy.py [--only products,logits,texts] [--json FILE] [--update]
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from common import machine, table, today, update_section, write_json
from formats import RandomBlocks, program
from llm import model_path

import rlx
from rlx.contract.quant import GGML_TYPES_BY_NAME, KV_FORMATS, WEIGHT_FORMATS
from rlx.driver import open_model
from rlx.frontends.quants import dequantize
from rlx.reference import GgufWeights, Reference, kernels
from rlx.runtime.language import LanguageModel

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "tests" / "golden" / "smollm2.json"
PARTS = ("products", "logits", "texts")

ROWS, SIZES, TRIES = 256, (576, 1536, 4096), 4
"""Rows of a weight, elements of a row, and how many rows of activations of each kind."""
LANES = {"sequential": 1, "16 lanes": 16}
"""The f32 dot products beside ours, by how many sums they have."""
AT_MOST = {"sequential": 1.0, "16 lanes": 4.0}
"""How many times their error ours may be."""
LOGITS_HELD_TO = {"exact, decode": ("sequential", "16 lanes"), "exact, prefill": ("16 lanes",)}
"""Prefill's products are the sequential sums to the bit: its error is theirs, give or take."""

TOKENS, CONTEXT = 500, 512
PROSE = ("docs/tour.md", "docs/design.md")
OWN_PROMPT, OWN_SEED = "The history of the bicycle begins in", 1
AGREEMENT, TOP_DIFFERENCE, NLL_DIFFERENCE = 0.98, 0.1, 0.015
"""What fast precision promises: at least, at most, at most."""


def rms_error(result: np.ndarray, exact: np.ndarray) -> float:
    """Return the root mean square of the error over that of what is exact."""
    return float(np.sqrt(((result - exact) ** 2).sum() / (exact**2).sum()))


def linear_in_lanes(x: np.ndarray, weight: np.ndarray, lanes: int) -> np.ndarray:
    """
    Return x @ weight^T, `[m, k], [n, k] -> [m, n]`, as dot products in f32 with `lanes` sums each.

    Each sum adds one product after the other by FMAs, which round once: the product of two f32 is
    exact in float64. The sums are put together by pairs.
    """
    (m, k), n = x.shape, len(weight)
    result = np.empty((m, n), np.float32)
    # As much at a time as stays in L2.
    rows, columns = 16, max(16, 4096 // lanes)
    for i in range(0, m, rows):
        steps = x[i : i + rows].T.astype(np.float64).reshape(k // lanes, lanes, -1, 1)
        for j in range(0, n, columns):
            other = weight[j : j + columns].T.astype(np.float64).reshape(k // lanes, lanes, 1, -1)
            sums = np.zeros((lanes, steps.shape[2], other.shape[3]), np.float32)
            product = np.empty(sums.shape)
            for a, b in zip(steps, other, strict=True):
                np.multiply(a, b, out=product)
                np.add(product, sums, out=product)
                sums[...] = product
            while len(sums) > 1:
                sums = sums[::2] + sums[1::2]
            result[i : i + rows, j : j + columns] = sums[0]
    return result


# Products of one row with weights of each format


def activations(k: int) -> Iterator[np.ndarray]:
    """Return rows: normal numbers, and their cubes, few of which are much larger than others."""
    rng = np.random.default_rng(1)
    for power in (1, 3):
        for _ in range(TRIES):
            yield rng.standard_normal((1, k)).astype(np.float32) ** power


def product_errors(format_: str, size: int) -> dict[str, Any]:
    """Return the errors of ours and of f32 dot products, and the most that ours is of theirs."""
    block = GGML_TYPES_BY_NAME[format_].elements
    k = -(-size // block) * block
    blocks = RandomBlocks(format_, ROWS, k)
    weight = dequantize(format_, blocks.raw("w"), (ROWS, k))
    ours = rlx.compile(program(format_, ROWS, k), blocks, precision="exact")
    errors: dict[str, list[float]] = {name: [] for name in ("ours", *LANES)}
    for x in activations(k):
        exact = x.astype(np.float64) @ weight.astype(np.float64).T
        errors["ours"].append(rms_error(ours(x), exact))
        for name, lanes in LANES.items():
            errors[name].append(rms_error(linear_in_lanes(x, weight, lanes), exact))
    most = {name: max(np.divide(errors["ours"], errors[name])) for name in LANES}
    medians = {name: float(np.median(found)) for name, found in errors.items()}
    return {"format": format_, "k": k, "errors": medians, "most": most}


def report_products(found: Sequence[dict[str, Any]]) -> str:
    header = ["format", "k", "exact", *LANES, *(f"of {name}, at most" for name in LANES)]
    rows = [
        [
            product["format"],
            f"{product['k']}",
            *(f"{1e8 * error:.1f}" for error in product["errors"].values()),
            *(f"{most:.2f}" for most in product["most"].values()),
        ]
        for product in found
    ]
    return f"Products of one row: relative errors, in 1e-8.\n\n{table(header, rows)}"


# Logits of a text


def reference_logits(path: str, ids: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the logits in float64, and those of f32 with products by BLAS and as dot products."""
    model = open_model(path, len(ids), precision="exact")
    module, weights = model.build("prefill"), GgufWeights(model.file)
    inputs = {"tokens": np.array(ids, np.int32), "sampling": np.zeros(8, np.int32)}
    dims = {"seq": len(ids), "past": 0, "out": len(ids)}

    def run(dtype: type[np.float32 | np.float64]) -> np.ndarray:
        return Reference(module, weights, dtype).run(inputs, dims)["logits"]

    logits = {"float64": run(np.float64), "numpy, float32": run(np.float32)}
    for name, lanes in LANES.items():
        with patch.object(kernels, "linear", partial(linear_in_lanes, lanes=lanes)):
            logits[name] = run(np.float32)
    return logits


def one_by_one(model: LanguageModel, ids: Sequence[int]) -> Iterator[np.ndarray]:
    """Give the logits `[vocab]` after each token of a text, by the decode program."""
    for i, token in enumerate(ids):
        yield model.extend([token], restart=i == 0)[0]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits - logits.max(axis=-1, keepdims=True).astype(np.float64)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def measure_logits(path: str, threads: int | None) -> dict[str, Any]:
    """Return for each contestant how far its logits of the golden text are from float64's."""
    golden = json.loads(GOLDEN.read_text())
    exact, fast = (rlx.load(path, p, threads, CONTEXT) for p in ("exact", "fast"))
    ids = exact.tokenizer.encode(golden["nll_text"])
    logits = reference_logits(path, ids)
    logits["exact, prefill"] = exact.logits(ids)
    logits["exact, decode"] = np.array([*one_by_one(exact, ids)])
    logits["fast, decode"] = np.array([*one_by_one(fast, ids)])
    truth = logits["float64"]
    return {
        "tokens": len(ids),
        "golden_nll": golden["nll"],
        "contestants": {
            name: {
                "error": rms_error(given, truth),
                "largest": float(abs(given - truth).max()),
                "nll": -float(log_softmax(given)[np.arange(len(ids) - 1), ids[1:]].mean()),
                "same_top": float((given.argmax(1) == truth.argmax(1)).mean()),
            }
            for name, given in logits.items()
        },
    }


def report_logits(found: dict[str, Any]) -> str:
    errors = {name: facts["error"] for name, facts in found["contestants"].items()}
    rows = [
        [
            name,
            f"{facts['error'] ** 2:.1e}",
            f"{1e6 * facts['error']:.2f}",
            *(f"{facts['error'] / errors[other]:.2f}" for other in LANES),
            f"{facts['largest']:.1e}",
            f"{facts['same_top']:.0%}",
            f"{facts['nll']:.6f}",
        ]
        for name, facts in found["contestants"].items()
    ]
    header = ["logits", "NMSE", "relative error, 1e-6", *(f"of {name}" for name in LANES)]
    header += ["largest difference", "same top token", "NLL"]
    return (
        f"SmolLM2 135M, Q4_1: the logits of the golden text, {found['tokens']} tokens, whose NLL "
        f"is {found['golden_nll']:.6f} there.\n\n{table(header, rows)}"
    )


# Texts, one token after the other


def prose(path: Path) -> str:
    """Return the sentences of a Markdown file, without code blocks and marks."""
    text = re.sub(r"```.*?```", " ", path.read_text(), flags=re.DOTALL)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[`*#|]|---+:?", " ", text).split())


def texts(exact: LanguageModel) -> dict[str, list[int]]:
    """Return texts of as many tokens: prose of this repository, and what the model says itself."""
    found = {name: exact.tokenizer.encode(prose(HERE.parent / name)) for name in PROSE}
    prompt = exact.tokenizer.encode(OWN_PROMPT)
    own = exact.generate_ids(prompt, TOKENS, temperature=1.0, seed=OWN_SEED, stop=False)
    found["the model's own"] = [*prompt, *own]
    assert all(len(ids) >= TOKENS for ids in found.values())
    return {name: ids[:TOKENS] for name, ids in found.items()}


class Followed(NamedTuple):
    """What a model thinks of a text, after each of its tokens."""

    top: np.ndarray
    """The token that it finds most probable."""
    watched: np.ndarray
    """The log-probability of the token that is watched there."""
    nll: float


def follow(model: LanguageModel, ids: Sequence[int], watch: np.ndarray | None = None) -> Followed:
    """Feed a text token by token; watch the given tokens, or the most probable ones."""
    top, watched, following = [], [], []
    for i, logits in enumerate(one_by_one(model, ids)):
        row = log_softmax(logits)
        top.append(int(row.argmax()))
        watched.append(row[top[i] if watch is None else watch[i]])
        following += [row[token] for token in ids[i + 1 : i + 2]]
    return Followed(np.array(top), np.array(watched), -float(np.mean(following)))


def measure_texts(path: str, threads: int | None) -> list[dict[str, Any]]:
    """Return how each precision with each format of keys and values differs from exact and f32."""
    found: list[dict[str, Any]] = []
    given: dict[str, list[int]] = {}
    truths: dict[str, Followed] = {}
    for precision in ("exact", "fast"):
        for kv_cache in KV_FORMATS:
            model = rlx.load(path, precision, threads, CONTEXT, kv_cache=kv_cache)
            given = given or texts(model)
            for name, ids in given.items():
                ours = follow(model, ids, truths[name].top if name in truths else None)
                truth = truths.setdefault(name, ours)
                found.append(
                    {
                        "text": name,
                        "precision": precision,
                        "kv_cache": kv_cache,
                        "agreement": float((ours.top == truth.top).mean()),
                        "top_difference": float(abs(ours.watched - truth.watched).mean()),
                        "nll": ours.nll,
                        "nll_difference": ours.nll - truth.nll,
                    }
                )
    return found


def report_texts(found: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            facts["text"],
            facts["precision"],
            facts["kv_cache"],
            f"{facts['agreement']:.1%}",
            f"{facts['top_difference']:.4f}",
            f"{facts['nll']:.4f}",
            f"{facts['nll_difference']:+.4f}",
        ]
        for facts in sorted(found, key=lambda facts: facts["text"])
    ]
    header = ["text", "precision", "keys and values", "same top token"]
    header += ["difference of its log-probability", "NLL", "NLL less exact's"]
    return (
        f"SmolLM2 135M, Q4_1, texts of {TOKENS} tokens, beside exact precision with keys and "
        f"values in f32.\n\n{table(header, rows)}"
    )


# Promises


def broken(result: dict[str, Any]) -> Iterator[str]:
    """Give a line for each promise that a measured part doesn't keep."""
    for product in result.get("products", ()):
        for name, most in product["most"].items():
            if most > AT_MOST[name]:
                yield f"{product['format']}, k = {product['k']}: {most:.2f} of {name}"
    logits = result.get("logits", {}).get("contestants", {})
    for ours, held_to in LOGITS_HELD_TO.items() if logits else ():
        for name in held_to:
            if logits[ours]["error"] > AT_MOST[name] * logits[name]["error"]:
                yield f"logits, {ours}: a larger error than that of {name} allows"
    for facts in result.get("texts", ()):
        if (
            facts["agreement"] < AGREEMENT
            or facts["top_difference"] > TOP_DIFFERENCE
            or abs(facts["nll_difference"]) > NLL_DIFFERENCE
        ):
            yield f"{facts['text']}: {facts['precision']} with {facts['kv_cache']} differs too much"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, of " + ", ".join(PARTS))
    parser.add_argument("--threads", type=int, help="default: all; results are the same")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--update", action="store_true", help="put the tables into README.md")
    args = parser.parse_args()
    path = model_path()
    measures: dict[str, tuple[Callable[[], Any], Callable[[Any], str]]] = {
        "products": (
            lambda: [product_errors(name, k) for name in WEIGHT_FORMATS for k in SIZES],
            report_products,
        ),
        "logits": (lambda: measure_logits(path, args.threads), report_logits),
        "texts": (lambda: measure_texts(path, args.threads), report_texts),
    }
    result: dict[str, Any] = {"date": today(), "machine": machine()}
    sections = [f"{result['date']}; {result['machine']}. rlx {rlx.__version__}."]
    for part in args.only.split(","):
        measure, report = measures[part]
        result[part] = measure()
        sections.append(report(result[part]))
        print(sections[-1], flush=True)
    result["broken"] = list(broken(result))
    sections += ["Broken promises: " + ("; ".join(result["broken"]) or "none") + "."]
    print(sections[-1])
    write_json(args.json, result)
    if args.update:
        update_section(HERE / "README.md", "accuracy", "\n\n".join(sections))
    if result["broken"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
