"""
Products with weights of bf16 on the matrix unit, side by side with torch, which has oneDNN do them.

rlx takes rows of f32, rounds them to bf16 as a part of the product, and gives f32; its weights are
packed before. torch takes rows of bf16 and gives bf16, with weights as they are (`linear`) and with
weights that oneDNN has laid out before (`packed`). Every contestant works in a process of its own,
which sleeps while another works; the order alternates from round to round, and a ratio is the
median of those of the rounds. `--torch-python` names the interpreter of an environment with torch.

    python benchmarks/matrix.py [--threads 1,2] [--rounds 15] [--only NAME] [--json FILE] [--update]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import (
    Bf16Unit,
    Handler,
    Worker,
    geometric_mean,
    machine,
    median,
    serve,
    table,
    today,
    update_section,
    write_json,
)
from matmul import fall_asleep, sampled

HERE = Path(__file__).resolve().parent
CONTESTANTS = ("rlx", "linear", "packed")


@dataclass(frozen=True)
class Case:
    """A product of `m` rows of `k` with a weight `[n, k]`."""

    name: str
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    def arrays(self) -> tuple[Any, Any]:
        """Return rows `[m, k]` and a weight `[n, k]` whose elements are bf16 already, both f32."""
        import numpy as np

        rng = np.random.default_rng(self.m + self.n + self.k)
        x, w = (rng.standard_normal((r, self.k)).astype(np.float32) for r in (self.m, self.n))
        return x, rounded(w)


SHAPES = {
    "attention's result": (576, 576),
    "queries, keys, values": (960, 576),
    "gate and up": (3072, 576),
    "down": (576, 1536),
}
"""Products of a layer of SmolLM2 135M: n and k."""
CASES = [
    *(Case(name, m, n, k) for m in (502, 128, 64, 16) for name, (n, k) in SHAPES.items()),
    *(Case("cube", size, size, size) for size in (512, 1024, 2048)),
]
GROUPS: dict[str, Callable[[Case], bool]] = {
    "502 rows and cubes": lambda c: c.name == "cube" or c.m == 502,
    "16 to 128 rows": lambda c: c.name != "cube" and c.m < 502,
}
"""What has a geometric mean of its own."""


def rounded(x: Any) -> Any:
    """Return f32 rounded to bf16, ties to even, as f32."""
    import numpy as np

    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def check(case: Case, result: Any, tolerance: float) -> None:
    """Raise SystemExit where a product isn't that of bf16 rows, by float64."""
    import numpy as np

    x, w = case.arrays()
    exact = rounded(x).astype(np.float64) @ w.astype(np.float64).T
    error = np.abs(result - exact).max() / np.sqrt((exact**2).mean())
    if not error <= tolerance:
        raise SystemExit(f"{case}: the product is wrong by {error:.1e} of its mean square's root")


# The contestants, each in its worker


def program(n: int, k: int) -> str:
    rows = "tensor<?x{}xf32, #hir.dims<rows, _>>"
    x, y, w = rows.format(k), rows.format(n), f"tensor<{n}x{k}xbf16>"
    return f"""
    builtin.module attributes {{
      rlx.products = "bf16", rlx.dims = #hir.dim_table<rows = 1 to 2048>
    }} {{
      hir.weight @w "w" : {w}
      func.func @main(%x: {x} {{rlx.name = "x"}}) -> ({y} {{rlx.name = "y"}}) {{
        %w = hir.load_weight @w : {w}
        %y = hir.linear %x, %w : {x}, {w} -> {y}
        func.return %y : {y}
      }}
    }}"""


def rlx_worker(threads: int) -> Handler:
    import numpy as np

    import rlx
    from rlx.flow.source import MapWeights, WeightInfo
    from rlx.runtime.memory import aligned_array

    class Weight(MapWeights):
        """The one weight of a case, as bf16."""

        def __init__(self, case: Case):
            self._case = case

        def has(self, key: str) -> bool:
            return key == "w"

        def info(self, key: str) -> WeightInfo:
            return WeightInfo((self._case.n, self._case.k), "bf16")

        def raw(self, key: str) -> np.ndarray:
            words = self._case.arrays()[1].view(np.uint32) >> 16
            return words.astype(np.uint16).reshape(-1).view(np.uint8)

    def prepared(case: Case) -> Callable[[], Any]:
        f = rlx.compile(program(case.n, case.k), Weight(case), threads)
        # As torch's are, both arrays are aligned.
        x, out = (aligned_array((case.m, width), np.float32) for width in (case.k, case.n))
        x[:], out[:] = case.arrays()[0], np.nan
        f(x, out=[out])
        check(case, out, 1e-4)
        return lambda: f(x, out=[out])

    return handler(lambda case, _: prepared(case))


def torch_worker(threads: int) -> Handler:
    import torch  # pyright: ignore[reportMissingImports]: it is in an environment of its own

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    mkldnn = torch.ops.mkldnn

    def prepared(case: Case, name: str) -> Callable[[], Any]:
        x, w = (torch.from_numpy(a).bfloat16() for a in case.arrays())
        if name == "packed":
            packed = mkldnn._reorder_linear_weight(w, case.m)

            def call() -> Any:
                return mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        else:

            def call() -> Any:
                return torch.nn.functional.linear(x, w)

        check(case, call().float().numpy(), 0.05)
        return call

    return handler(prepared, torch.__version__)


def handler(prepare: Callable[[Case, str], Callable[[], Any]], version: str = "") -> Handler:
    """Return what samples a case's call, which is prepared at the first time."""
    ready: dict[tuple[int, str], Callable[[], Any]] = {}

    def handle(job: dict[str, Any]) -> dict[str, Any]:
        if "case" not in job:
            return {"version": version}
        key = job["case"], job["name"]
        if key not in ready:
            ready[key] = prepare(CASES[job["case"]], job["name"])
            fall_asleep()
        return {"samples": sampled(ready[key])}

    return handle


WORKERS = {"rlx": rlx_worker, "torch": torch_worker}


# The run


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    add = parser.add_argument
    add("--threads", default="1,2", metavar="N,M", help="default 1,2; or none")
    add("--rounds", type=int, default=15, metavar="N", help="default 15")
    add("--only", metavar="TEXT", help="cases whose name contains this")
    add("--torch-python", default=sys.executable, metavar="PYTHON")
    add("--json", metavar="FILE", help="keep every sample")
    add("--add", metavar="FILE", help="report what such a file holds too")
    add("--update", action="store_true", help="put the tables into README.md")
    add("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    return parser.parse_args()


def run(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    """Return the samples, in seconds, of every case and contestant, and the unit's rates."""
    script = [str(Path(__file__).resolve()), "--threads", str(threads), "--worker"]
    unit = Bf16Unit(threads)
    with ExitStack() as stack:
        ours = stack.enter_context(Worker(sys.executable, [*script, "rlx"]))
        torch = stack.enter_context(Worker(args.torch_python, [*script, "torch"]))
        workers = dict(zip(CONTESTANTS, (ours, torch, torch), strict=True))
        result: dict[str, Any] = {"torch": torch.ask()["version"], "cases": {}, "peak": []}
        for i, case in enumerate(CASES):
            if args.only and args.only not in case.name:
                continue
            samples: dict[str, list[float]] = {name: [] for name in (*CONTESTANTS, "loop")}
            # One round more: the first warms up.
            for turn in range(args.rounds + 1):
                for name in CONTESTANTS if turn % 2 else CONTESTANTS[::-1]:
                    got = workers[name].ask(case=i, name=name)["samples"]
                    samples[name] += got if turn else []
                samples["loop"] += [median(unit.loop() for _ in range(5))] if turn else []
            result["peak"].append(unit.peak())
            result["cases"][str(i)] = samples
            found = " ".join(f"{ratio:.2f}" for ratio in ratios(samples))
            print(f"{threads} threads, {case}: {found}", file=sys.stderr)
    return result


def ratios(samples: dict[str, list[float]]) -> list[float]:
    """
    Return torch's times over ours, of `linear` and of `packed`: the medians of those of a round.

    What slows the machine for a while slows all that run in a round.
    """
    return [
        median(t / own for t, own in zip(samples[name], samples["rlx"], strict=True))
        for name in CONTESTANTS[1:]
    ]


def case_row(case: Case, samples: dict[str, list[float]]) -> list[str]:
    own, loop = samples["rlx"], median(samples["loop"])
    times = [f(samples[name]) for name in CONTESTANTS for f in (median, min)]
    rates = [f"{case.flops / time / 1e12:.2f}" for time in times]
    share = case.flops / median(own) / 1e12 / loop
    sizes = f"{case.m} x {case.n} x {case.k}"
    linear, packed = (f"{ratio:.2f}" for ratio in ratios(samples))
    return [case.name, sizes, *rates, f"**{linear}**", packed, f"{loop:.2f}", f"{share:.0%}"]


def means(cases: dict[str, dict[str, list[float]]]) -> list[list[str]]:
    """Return the geometric means of the ratios, for each group of cases."""
    rows: list[list[str]] = []
    for name, belongs in GROUPS.items():
        found = [ratios(samples) for i, samples in cases.items() if belongs(CASES[int(i)])]
        if found:
            columns = zip(*found, strict=True)
            linear, packed = (f"{geometric_mean(column):.2f}" for column in columns)
            blank = [""] * 7
            rows.append([f"geometric mean, {name}", *blank, f"**{linear}**", packed, "", ""])
    return rows


def report(result: dict[str, Any]) -> str:
    parts = [f"{result['date']}; {result['machine']}. torch {result['torch']}."]
    header = ["bf16 product", "m x n x k", "rlx, TFLOP/s", "best", "torch linear", "best"]
    header += ["torch packed", "best", "rlx / linear", "rlx / packed", "loop", "rlx of loop"]
    for threads, run_ in result["runs"].items():
        peak = run_["peak"]
        rows = [case_row(CASES[int(i)], samples) for i, samples in run_["cases"].items()]
        parts.append(
            f"Threads: {threads}. Products that stay in registers: {median(peak):.2f} TFLOP/s, "
            f"best {max(peak):.2f}."
        )
        parts.append(table(header, rows + means(run_["cases"])))
    return "\n\n".join(parts)


def main() -> None:
    args = parse()
    if args.worker:
        serve(WORKERS[args.worker](int(args.threads)))
        return
    result: dict[str, Any] = json.loads(Path(args.add).read_text()) if args.add else {"runs": {}}
    result |= {"date": today(), "machine": machine()}
    for threads in map(int, filter(None, args.threads.split(","))):
        got = run(args, threads)
        result["torch"] = got.pop("torch")
        result["runs"][str(threads)] = got
    write_json(args.json, result)
    text = report(result)
    print(text)
    if args.update:
        update_section(HERE / "README.md", "matrix", text)


if __name__ == "__main__":
    main()
