"""
Products of f32 matrices, side by side with torch: squares, and shapes that are awkward to tile.

rlx runs each product twice, by `rlx.jit`: with `specialize`, compiled for its sizes, and compiled
for all sizes, of which it knows only those that are 1. Every contestant works in a process of its
own, which sleeps while another works; the order alternates from round to round, and a ratio is the
median of those of the rounds. `--torch-python` names the interpreter of an environment with torch.

    python benchmarks/matmul.py [--threads 1,2] [--rounds 15] [--only NAME] [--json FILE] [--update]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from math import exp, log, prod
from pathlib import Path
from typing import Any

from common import (
    Floors,
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
SAMPLE_S = 0.01
"""Seconds of calls that make one sample, whose mean is taken."""


@dataclass(frozen=True)
class Case:
    """A product: sizes of the result and of what is summed over, which sides are transposed."""

    name: str
    m: int
    n: int
    k: int
    lhs_t: bool = False
    rhs_t: bool = False
    batch: int = 0

    @property
    def shapes(self) -> tuple[list[int], list[int], list[int]]:
        """Return those of lhs and rhs as they are in memory, and of the result."""
        batch = [self.batch] if self.batch else []
        lhs = [self.k, self.m] if self.lhs_t else [self.m, self.k]
        rhs = [self.n, self.k] if self.rhs_t else [self.k, self.n]
        return [*batch, *lhs], [*batch, *rhs], [*batch, self.m, self.n]

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * max(1, self.batch)

    @property
    def bytes(self) -> int:
        return 4 * sum(map(prod, self.shapes))


CASES = [
    Case("256", 256, 256, 256),
    Case("1024", 1024, 1024, 1024),
    Case("2048", 2048, 2048, 2048),
    Case("small primes", 127, 131, 137),
    Case("primes", 509, 503, 499),
    Case("large primes", 1021, 1019, 1031),
    Case("tall, skinny", 4096, 16, 256),
    Case("tall, skinny, primes", 10007, 31, 37),
    Case("short, wide", 16, 4096, 512),
    Case("short, wide, primes", 7, 3001, 701),
    Case("k = 1", 1000, 1000, 1),
    Case("k = 3", 1000, 1000, 3),
    Case("k = 17", 777, 1111, 17),
    Case("m = 1", 1, 4096, 1024),
    Case("n = 1", 4096, 1, 1024),
    Case("m = 1, rhs transposed", 1, 4096, 1024, rhs_t=True),
    Case("lhs transposed", 700, 600, 800, lhs_t=True),
    Case("rhs transposed", 700, 600, 800, rhs_t=True),
    Case("both transposed", 500, 700, 300, lhs_t=True, rhs_t=True),
    Case("batch of 12, rhs transposed", 128, 128, 64, rhs_t=True, batch=12),
    Case("batch of 96, primes", 33, 65, 49, batch=96),
]


# The contestants, each in its worker


def sampled(call: Callable[[], Any]) -> list[float]:
    """Return the seconds of a call, the mean of a sample of them."""
    call()
    count, took = 1, timed(call, 1)
    if took < SAMPLE_S / 2:
        count = round(SAMPLE_S / max(took, 1e-7))
        took = timed(call, count)
    fall_asleep()
    return [took / count]


def timed(call: Callable[[], Any], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - started


def fall_asleep() -> None:
    """Return when no thread of this process works: OpenMP's spin for some ms after their work."""
    while True:
        used = time.process_time()
        time.sleep(0.005)
        if time.process_time() - used < 0.0005:
            return


def arrays(case: Case) -> list[Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in case.shapes]


def rlx_worker(threads: int) -> Handler:
    import numpy as np

    import rlx

    ready: dict[tuple[str, bool], Callable[[], Any]] = {}

    def prepared(case: Case, named: bool) -> Callable[[], Any]:
        def product(a: Any, b: Any) -> Any:
            a = a.swapaxes(-1, -2) if case.lhs_t else a
            return a @ (b.swapaxes(-1, -2) if case.rhs_t else b)

        a, b, c = arrays(case)
        f = rlx.jit(product, specialize=() if named else ("a", "b"), threads=threads)
        f(a, b, out=c)
        if np.abs(c - product(a.astype(np.float64), b.astype(np.float64))).max() > 1e-3:
            raise SystemExit(f"{case.name}: the product is wrong")
        fall_asleep()
        return lambda: f(a, b, out=c)

    def handle(job: dict[str, Any]) -> dict[str, Any]:
        case = CASES[job["case"]]
        key = case.name, bool(job["named"])
        if key not in ready:
            ready[key] = prepared(case, job["named"])
        return {"samples": sampled(ready[key])}

    return handle


def torch_worker(threads: int) -> Handler:
    import torch  # pyright: ignore[reportMissingImports]: it is in an environment of its own

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    ready: dict[str, Callable[[], Any]] = {}

    def prepared(case: Case) -> Callable[[], Any]:
        a, b, c = (torch.from_numpy(x) for x in arrays(case))
        a = a.transpose(-1, -2) if case.lhs_t else a
        b = b.transpose(-1, -2) if case.rhs_t else b
        return lambda: torch.matmul(a, b, out=c)

    def handle(job: dict[str, Any]) -> dict[str, Any]:
        if "case" not in job:
            return {"version": torch.__version__}
        case = CASES[job["case"]]
        if case.name not in ready:
            ready[case.name] = prepared(case)
        return {"samples": sampled(ready[case.name])}

    return handle


WORKERS = {"rlx": rlx_worker, "torch": torch_worker}


# The run


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    add = parser.add_argument
    add("--threads", default="1,2", metavar="N,M", help="default 1,2")
    add("--rounds", type=int, default=15, metavar="N", help="default 15")
    add("--only", metavar="TEXT", help="cases whose name contains this")
    add("--torch-python", default=sys.executable, metavar="PYTHON")
    add("--json", metavar="FILE", help="keep every sample")
    add("--update", action="store_true", help="put the tables into README.md")
    add("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    return parser.parse_args()


def run(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    """Return the samples, in seconds, of every case and contestant."""
    chosen = [i for i, c in enumerate(CASES) if not args.only or args.only in c.name]
    script = str(Path(__file__).resolve())
    common = [script, "--threads", str(threads), "--worker"]
    with ExitStack() as stack:
        ours = stack.enter_context(Worker(sys.executable, [*common, "rlx"]))
        torch = stack.enter_context(Worker(args.torch_python, [*common, "torch"]))
        contestants: list[tuple[str, Worker, dict[str, Any]]] = [
            ("sizes", ours, {"named": False}),
            ("torch", torch, {}),
            ("names", ours, {"named": True}),
        ]
        floors = Floors(threads, 64 << 20)
        result: dict[str, Any] = {"torch": torch.ask()["version"], "cases": {}, "fma": []}
        for i in chosen:
            samples: dict[str, list[float]] = {name: [] for name, *_ in contestants}
            # One round more: the first warms up.
            for turn in range(args.rounds + 1):
                order = contestants if turn % 2 else contestants[::-1]
                for name, worker, job in order:
                    got = worker.ask(case=i, **job)["samples"]
                    samples[name] += got if turn else []
                result["fma"].append(floors.fma())
            result["cases"][CASES[i].name] = samples
            print(f"{threads} threads, {CASES[i].name}: {ratios(samples)}", file=sys.stderr)
    return result


def ratios(samples: dict[str, list[float]]) -> list[float]:
    """
    Return torch's time over ours, for sizes and for names: the medians of those of a round.

    What slows the machine for a while slows all that run in a round.
    """
    return [
        median([torch / own for torch, own in zip(samples["torch"], samples[name], strict=True)])
        for name in ("sizes", "names")
    ]


def summary(cases: dict[str, dict[str, list[float]]]) -> list[list[str]]:
    """Return the geometric means and the worst of the ratios, of sizes and of names."""
    both = list(zip(*(ratios(s) for s in cases.values()), strict=True))
    means = [f"{exp(sum(map(log, column)) / len(column)):.2f}" for column in both]
    worst = [f"{min(column):.2f}" for column in both]
    blank = ["", "", "", ""]
    return [["geometric mean", *blank, *means], ["worst", *blank, *worst]]


def report(result: dict[str, Any]) -> str:
    parts = [f"{result['date']}; {result['machine']}. torch {result['torch']}."]
    header = ["f32 product", "m x n x k", "torch, us", "rlx, us", "rlx GFLOP/s"]
    header += ["torch / rlx", "with names"]
    by_name = {c.name: c for c in CASES}
    for threads, run_ in result["runs"].items():
        rows: list[list[str]] = []
        for name, samples in run_["cases"].items():
            case, own = by_name[name], median(samples["sizes"])
            sizes = f"{case.batch}x " * bool(case.batch) + f"{case.m} x {case.n} x {case.k}"
            rows.append(
                [name, sizes, f"{1e6 * median(samples['torch']):.1f}", f"{1e6 * own:.1f}"]
                + [f"{case.flops / own / 1e9:.0f}"]
                + [f"{ratio:.2f}" for ratio in ratios(samples)]
            )
        fma = run_["fma"]
        parts.append(
            f"Threads: {threads}. FMAs on registers: {median(fma):.0f} GFLOP/s, best {max(fma):.0f}"
        )
        parts.append(table(header, rows + summary(run_["cases"])))
    return "\n\n".join(parts)


def main() -> None:
    args = parse()
    if args.worker:
        serve(WORKERS[args.worker](int(args.threads)))
        return
    result: dict[str, Any] = {"date": today(), "machine": machine(), "runs": {}}
    for threads in map(int, args.threads.split(",")):
        got = run(args, threads)
        result["torch"] = got.pop("torch")
        result["runs"][str(threads)] = got
    write_json(args.json, result)
    text = report(result)
    print(text)
    if args.update:
        update_section(HERE / "README.md", "matmul", text)


if __name__ == "__main__":
    main()
