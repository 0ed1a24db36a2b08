"""
Element-wise chains, softmax, norms and sums, side by side with JAX, torch, numba and numexpr.

rlx is a function under `rlx.jit`: compiled once with a name for every size, called with `out=`.
Every contestant works in a process of its own, which sleeps while another works; the order
alternates from round to round. `--peers-python` names the interpreter of an environment that has
some of the others. A copy by plain 64-byte loads and stores, of as many bytes as the case reads and
writes, by the same threads in the same round, says what the memory gives.

    python benchmarks/elementwise.py [--threads 1,2] [--rounds 9] [--only NAME] [--json FILE]
        [--peers jax,torch,numba,numexpr] [--peers-python PYTHON] [--update]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from math import erf, prod, sqrt
from pathlib import Path
from typing import Any

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
SAMPLE_S = 0.02
"""Seconds of calls that make one sample, whose mean is taken."""
PEERS = ("jax", "torch", "numba", "numexpr")
M = 1 << 20
Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """A function at some shapes of f32; `axis` is that of a sum."""

    name: str
    function: str
    shapes: tuple[tuple[int, ...], ...]
    outs: tuple[tuple[int, ...], ...]
    axis: int = -1

    @property
    def bytes(self) -> int:
        """Return what it reads once and what it writes once."""
        return 4 * sum(map(prod, (*self.shapes, *self.outs)))


def chains(function: str, name: str, sizes: Sequence[int], outs: int) -> list[Case]:
    spelled = {1: "1", 4096: "4 K", M: "1 M", 16 * M: "16 M"}
    return [Case(f"{name}, {spelled[n]}", function, ((n,),) * 3, ((n,),) * outs) for n in sizes]


def rows(function: str, name: str, vectors: int) -> list[Case]:
    return [
        Case(f"{name}, {r}x{n}", function, ((r, n), *((n,),) * vectors), ((r, n),))
        for r, n in ((1024, 1024), (64, 49152))
    ]


def sums(shape: tuple[int, ...]) -> list[Case]:
    name = "x".join(map(str, shape))
    return [
        Case(f"sum over axis {a}, {name}", "sum", (shape,), (shape[:a] + shape[a + 1 :],), a)
        for a in range(len(shape))
    ]


CASES = [
    *chains("gelu", "GELU of x a + b", (1, 4096, M, 16 * M), 1),
    *chains("chain", "12 operations, 3 results", (4096, M, 16 * M), 3),
    *rows("softmax", "softmax", 0),
    *rows("layer_norm", "layer norm", 2),
    *sums((4096, 4096)),
    *sums((256, 256, 256)),
    Case("sum, 16 M", "sum", ((16 * M,),), ((),), 0),
]


def arrays(case: Case) -> list[Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, np.float32) for shape in case.shapes]


def empty(case: Case) -> list[Any]:
    """Return arrays for the results, whose pages are there."""
    import numpy as np

    return [np.zeros(shape, np.float32) for shape in case.outs]


def chain(xp: Any, x: Any, a: Any, b: Any) -> tuple[Any, Any, Any]:
    """Twelve operations with three results, by a module with numpy's names."""
    t = x * a
    s = t + b
    root = xp.sqrt(xp.abs(s))
    low = root - a
    u = xp.maximum(low, b)
    v = xp.minimum(u * u + s, x)
    return u, v, -v * low + t


# What each contestant calls, by the name of a function


def rlx_calls(case: Case, threads: int) -> tuple[Call, list[Any]]:
    import rlx
    from rlx import numpy as xp

    functions: dict[str, Callable[..., Any]] = {
        "gelu": lambda x, a, b: xp.gelu(x * a + b),
        "chain": lambda x, a, b: chain(xp, x, a, b),
        "softmax": lambda x: xp.softmax(x, axis=-1),
        "layer_norm": lambda x, w, b: xp.layer_norm(x, w, b),
        "sum": lambda x: xp.sum(x, axis=case.axis),
    }
    f = rlx.jit(functions[case.function], threads=threads)
    args, outs = arrays(case), empty(case)
    out = outs[0] if len(outs) == 1 else tuple(outs)
    return lambda: f(*args, out=out), outs


def jax_calls(case: Case, threads: int) -> tuple[Call, list[Any]]:
    import jax
    import jax.numpy as xp
    import numpy as np

    def layer_norm(x: Any, w: Any, b: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * w + b

    functions: dict[str, Callable[..., Any]] = {
        "gelu": lambda x, a, b: jax.nn.gelu(x * a + b, approximate=False),
        "chain": lambda x, a, b: chain(xp, x, a, b),
        "softmax": lambda x: jax.nn.softmax(x, axis=-1),
        "layer_norm": layer_norm,
        "sum": lambda x: xp.sum(x, axis=case.axis),
    }
    f = jax.jit(functions[case.function])
    args = [jax.device_put(a) for a in arrays(case)]
    found = f(*args)
    outs = [np.asarray(y) for y in (found if isinstance(found, tuple) else (found,))]
    return lambda: jax.block_until_ready(f(*args)), outs


def torch_calls(case: Case, threads: int) -> tuple[Call, list[Any]]:
    import torch
    from torch.nn import functional

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    args = [torch.from_numpy(a) for a in arrays(case)]
    outs = empty(case)
    into = [torch.from_numpy(y) for y in outs]
    spare = torch.empty_like(args[0])

    def gelu() -> None:
        torch.addcmul(args[2], args[0], args[1], out=spare)
        torch.ops.aten.gelu.out(spare, out=into[0])

    def long_chain() -> None:
        x, a, b = args
        u, v, w = into
        t = torch.mul(x, a)
        s = torch.add(t, b)
        low = torch.sub(s.abs().sqrt_(), a)
        torch.maximum(low, b, out=u)
        torch.minimum(torch.addcmul(s, u, u, out=spare), x, out=v)
        torch.addcmul(t, v, low, value=-1, out=w)

    def layer_norm() -> None:
        x, w, b = args
        into[0] = functional.layer_norm(x, x.shape[-1:], w, b)
        outs[0] = into[0].numpy()

    functions: dict[str, Call] = {
        "gelu": gelu,
        "chain": long_chain,
        "softmax": lambda: torch.softmax(args[0], -1, out=into[0]),
        "layer_norm": layer_norm,
        "sum": lambda: torch.sum(args[0], case.axis, out=into[0]),
    }
    return functions[case.function], outs


def numba_calls(case: Case, threads: int) -> tuple[Call, list[Any]]:
    import math

    import numba
    import numpy as np

    numba.set_num_threads(threads)
    f32 = np.float32
    half, one, root = f32(0.5), f32(1.0), f32(sqrt(0.5))

    def gelu(x: Any, a: Any, b: Any, y: Any) -> None:
        for i in numba.prange(x.size):
            s = x[i] * a[i] + b[i]
            y[i] = half * s * (one + f32(math.erf(s * root)))

    def twelve(x: Any, a: Any, b: Any, u: Any, v: Any, w: Any) -> None:
        for i in numba.prange(x.size):
            t = x[i] * a[i]
            s = t + b[i]
            low = np.sqrt(np.abs(s)) - a[i]
            u[i] = max(low, b[i])
            v[i] = min(u[i] * u[i] + s, x[i])
            w[i] = -v[i] * low + t

    def softmax(x: Any, y: Any) -> None:
        for r in numba.prange(x.shape[0]):
            top = x[r].max()
            total = f32(0.0)
            for i in range(x.shape[1]):
                y[r, i] = np.exp(x[r, i] - top)
                total += y[r, i]
            for i in range(x.shape[1]):
                y[r, i] /= total

    def layer_norm(x: Any, w: Any, b: Any, y: Any) -> None:
        n = x.shape[1]
        for r in numba.prange(x.shape[0]):
            total = f32(0.0)
            for i in range(n):
                total += x[r, i]
            mean, square = f32(total / n), f32(0.0)
            for i in range(n):
                square += (x[r, i] - mean) * (x[r, i] - mean)
            scale = one / np.sqrt(f32(square / n) + f32(1e-5))
            for i in range(n):
                y[r, i] = (x[r, i] - mean) * scale * w[i] + b[i]

    def sum_first(x: Any, y: Any) -> None:
        columns = x.shape[2]
        for part in numba.prange(-(-columns // 512)):
            low, high = part * 512, min(columns, part * 512 + 512)
            for i in range(low, high):
                y[0, i] = f32(0.0)
            for r in range(x.shape[1]):
                for i in range(low, high):
                    y[0, i] += x[0, r, i]

    def sum_middle(x: Any, y: Any) -> None:
        for p in numba.prange(x.shape[0]):
            for i in range(x.shape[2]):
                y[p, i] = f32(0.0)
            for r in range(x.shape[1]):
                for i in range(x.shape[2]):
                    y[p, i] += x[p, r, i]

    def sum_last(x: Any, y: Any) -> None:
        for p in numba.prange(x.shape[0]):
            total = f32(0.0)
            for i in range(x.shape[1]):
                total += x[p, i]
            y[p] = total

    args, outs = arrays(case), empty(case)
    ready = [*args, *outs]
    functions = {"gelu": gelu, "chain": twelve, "softmax": softmax, "layer_norm": layer_norm}
    function: Callable[..., None] | None = functions.get(case.function)
    if function is None:
        shape, axis = case.shapes[0], case.axis
        before, after = prod(shape[:axis]), prod(shape[axis + 1 :])
        if after == 1:
            # One long row is as many rows as there are threads; their sums are then added.
            count = before if before > 1 else threads
            part = np.zeros(count, np.float32)
            rows_ = args[0].reshape(count, -1)
            last = numba.njit(parallel=True, fastmath=True)(sum_last)
            into = outs[0].reshape(-1)

            def row_sums() -> None:
                last(rows_, part)
                into[:] = part if before > 1 else part.sum()

            return row_sums, outs
        function = sum_first if before == 1 else sum_middle
        ready = [args[0].reshape(before, shape[axis], after), outs[0].reshape(before, after)]
    # So that sums of rows are sums of vectors; NaN and infinity then mean nothing.
    compiled = numba.njit(parallel=True, fastmath=True)(function)
    return lambda: compiled(*ready), outs


def numexpr_calls(case: Case, threads: int) -> tuple[Call, list[Any]] | None:
    import numexpr

    numexpr.set_num_threads(threads)
    args, outs = arrays(case), empty(case)
    if case.function == "sum":
        x = args[0]
        into = outs[0]

        def total() -> None:
            into[...] = numexpr.evaluate(f"sum(x, axis={case.axis})", {"x": x})

        return total, outs
    if case.function != "chain":
        return None
    x, a, b = args
    u, v, w = outs
    names = {"x": x, "a": a, "b": b, "u": u, "v": v}
    low = "(sqrt(abs(x * a + b)) - a)"
    texts = [
        (f"where({low} > b, {low}, b)", u),
        ("where(u * u + (x * a + b) < x, u * u + (x * a + b), x)", v),
        (f"-v * {low} + x * a", w),
    ]

    def three() -> None:
        for text, out in texts:
            numexpr.evaluate(text, names, out=out)

    return three, outs


CALLS: dict[str, Callable[[Case, int], tuple[Call, list[Any]] | None]] = {
    "rlx": rlx_calls,
    "jax": jax_calls,
    "torch": torch_calls,
    "numba": numba_calls,
    "numexpr": numexpr_calls,
}


# What they should give


def expected(case: Case) -> list[Any]:
    """Return the results in f64."""
    import numpy as np

    args = [a.astype(np.float64) for a in arrays(case)]
    match case.function:
        case "gelu":
            x, a, b = args
            y = x * a + b
            tail = np.array([erf(v) for v in (y[:4096] * sqrt(0.5)).tolist()])
            return [y[:4096] * 0.5 * (1 + tail)]
        case "chain":
            return list(chain(np, *args))
        case "softmax":
            e = np.exp(args[0] - args[0].max(-1, keepdims=True))
            return [e / e.sum(-1, keepdims=True)]
        case "layer_norm":
            x, w, b = args
            variance = x.var(-1, keepdims=True)
            return [(x - x.mean(-1, keepdims=True)) / np.sqrt(variance + 1e-5) * w + b]
        case _:
            return [args[0].sum(case.axis)]


def check(name: str, case: Case, outs: Sequence[Any]) -> None:
    import numpy as np

    for got, wanted in zip(outs, expected(case), strict=True):
        got = got[: wanted.shape[0]] if wanted.ndim else got
        scale = max(1.0, float(np.abs(wanted).max()))
        if not np.allclose(got, wanted, rtol=1e-3, atol=2e-4 * scale):
            raise SystemExit(f"{name}: {case.name}: the result is wrong")


# The workers


def sampled(call: Call) -> list[float]:
    """Return the seconds of a call, as the mean of a sample of them."""
    started = time.perf_counter()
    call()
    count = max(1, round(SAMPLE_S / max(time.perf_counter() - started, 1e-7)))
    started = time.perf_counter()
    for _ in range(count):
        call()
    return [(time.perf_counter() - started) / count]


def worker(name: str, threads: int) -> Handler:
    os.environ["NUMBA_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    ready: dict[str, Call | None] = {}
    copies: dict[int, Copy] = {}

    def handle(job: dict[str, Any]) -> dict[str, Any]:
        if "case" not in job:
            return {"version": __import__(name).__version__ if name in PEERS else ""}
        case = CASES[job["case"]]
        if job.get("copy"):
            if case.bytes not in copies:
                copies.clear()
                copies[case.bytes] = Copy(case.bytes, threads)
            return {"samples": sampled(copies[case.bytes].run)}
        if case.name not in ready:
            ready.clear()
            found = CALLS[name](case, threads)
            if found is not None:
                call, outs = found
                call()
                check(name, case, outs)
            ready[case.name] = found and found[0]
        call = ready[case.name]
        return {"samples": sampled(call) if call else []}

    return handle


class Copy:
    """A copy by plain vector loads and stores: half of `nbytes` is read, the other half written."""

    LOADS = 8

    def __init__(self, nbytes: int, threads: int):
        import numpy as np

        from rlx.runtime.jit import Engine, compile_object
        from rlx.runtime.threads import Team

        step = 64 * self.LOADS * threads
        size = -(-nbytes // 2 // step) * step
        self._arrays = [np.zeros(size + 64, np.uint8) for _ in range(2)]
        addresses = [-(-a.ctypes.data // 64) * 64 for a in self._arrays]
        self._context = np.array([*addresses, size // threads], np.int64)
        self._engine = Engine(compile_object(*self._code()))
        self._team = Team(threads)

    def run(self) -> None:
        self._team.run(self._engine.address("copy"), self._context.ctypes.data)

    def _code(self) -> tuple[str, Any]:
        from rlx.lowering.emitter import Module
        from rlx.lowering.target import Target

        module = Module(Target.host())
        params = [("ptr", "context"), ("i64", "tid"), ("i64", "threads")]
        f = module.function("copy", params, exported=True)
        context, tid, _ = f.params
        share = f.load("i64", f.at(context, 16), 8)
        source, out = (f.load("ptr", f.at(context, i), 8) for i in (0, 8))
        source, out = (f.at(p, f.mul(share, tid)) for p in (source, out))

        def step(i: Any, _: list[Any]) -> list[Any]:
            lines = [f.at(source, f.add(i, 64 * j)) for j in range(self.LOADS)]
            values = [f.load("<16 x float>", p, 64) for p in lines]
            for j, v in enumerate(values):
                f.store(v, f.at(out, f.add(i, 64 * j)), 64)
            return []

        f.for_(0, share, 64 * self.LOADS, [], step)
        f.ret()
        return module.text, module.target


# The run


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    add = parser.add_argument
    add("--threads", default="2", metavar="N,M", help="default 2")
    add("--rounds", type=int, default=9, metavar="N", help="default 9")
    add("--only", metavar="TEXT", help="cases whose name contains this")
    add("--peers", default=",".join(PEERS), metavar="NAMES")
    add("--peers-python", default=sys.executable, metavar="PYTHON")
    add("--json", metavar="FILE", help="keep every sample")
    add("--update", action="store_true", help="put the tables into README.md")
    add("--worker", choices=(*CALLS, "which"), help=argparse.SUPPRESS)
    return parser.parse_args()


def run(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    """Return the samples, in seconds, of every case and contestant."""
    chosen = [i for i, c in enumerate(CASES) if not args.only or args.only in c.name]
    script = str(Path(__file__).resolve())
    common = [script, "--threads", str(threads), "--worker"]
    with ExitStack() as stack:
        ours = stack.enter_context(Worker(sys.executable, [*common, "rlx"]))
        others = {
            name: stack.enter_context(Worker(args.peers_python, [*common, name]))
            for name in installed(args)
        }
        contestants: list[tuple[str, Worker, dict[str, Any]]] = [
            ("rlx", ours, {}),
            *((name, worker_, {}) for name, worker_ in others.items()),
            ("copy", ours, {"copy": True}),
        ]
        versions = {name: w.ask()["version"] for name, w in others.items()}
        result: dict[str, Any] = {"versions": versions, "cases": {}}
        for i in chosen:
            samples: dict[str, list[float]] = {name: [] for name, *_ in contestants}
            # One round more: the first warms up.
            for turn in range(args.rounds + 1):
                order = contestants if turn % 2 else contestants[::-1]
                for name, worker_, job in order:
                    got = worker_.ask(case=i, **job)["samples"]
                    samples[name] += got if turn else []
            result["cases"][CASES[i].name] = samples
            spelled = ", ".join(f"{name} {1e6 * median(s):.1f}" for name, s in samples.items() if s)
            print(f"{threads} threads, {CASES[i].name}: {spelled} us", file=sys.stderr)
    return result


def installed(args: argparse.Namespace) -> list[str]:
    """Return the peers that the other interpreter can import."""
    wanted = [name for name in args.peers.split(",") if name]
    script = [str(Path(__file__).resolve()), "--worker", "which"]
    with Worker(args.peers_python, script) as which:
        return [name for name in wanted if name in which.ask(names=wanted)["found"]]


def report(result: dict[str, Any]) -> str:
    parts = [f"{result['date']}; {result['machine']}."]
    by_name = {c.name: c for c in CASES}
    for threads, run_ in result["runs"].items():
        peers = list(run_["versions"])
        versions = ", ".join(f"{n} {v}" for n, v in run_["versions"].items())
        header = ["f32, us", *peers, "rlx", "best other / rlx", "rlx, GB/s", "copy, GB/s", "share"]
        lines: list[list[str]] = []
        for name, samples in run_["cases"].items():
            own, size = median(samples["rlx"]), by_name[name].bytes
            times = {n: median(samples[n]) for n in peers if samples[n]}
            copy = median(samples["copy"])
            large = size >= 4 * M
            line = [name, *(f"{1e6 * times[n]:.1f}" if n in times else "" for n in peers)]
            line += [f"{1e6 * own:.1f}", f"{min(times.values()) / own:.2f}" if times else ""]
            rates = [f"{size / own / 1e9:.1f}", f"{size / copy / 1e9:.1f}"]
            lines.append([*line, *(rates if large else ["", ""])])
            lines[-1].append(f"{100 * copy / own:.0f}%" if large else "")
        parts += [f"Threads: {threads}. {versions}.", table(header, lines)]
    return "\n\n".join(parts)


def main() -> None:
    args = parse()
    if args.worker == "which":
        serve(lambda job: {"found": [n for n in job.get("names", []) if find_spec(n)]})
        return
    if args.worker:
        serve(worker(args.worker, int(args.threads)))
        return
    result: dict[str, Any] = {"date": today(), "machine": machine(), "runs": {}}
    for threads in map(int, args.threads.split(",")):
        result["runs"][str(threads)] = run(args, threads)
    write_json(args.json, result)
    text = report(result)
    print(text)
    if args.update:
        update_section(HERE / "README.md", "elementwise", text)


if __name__ == "__main__":
    main()
