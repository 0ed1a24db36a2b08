"""
GEMV and GEMM kernels: bytes or FLOPs per second, one and two threads, medians and bests.

Beside them stand their floors: for a GEMV a plain sum over a buffer of the same size, for a GEMM
the rate of FMAs on registers. Run: python benchmarks/contract.py [--cpu NAME] [gemv] [gemm]
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np

from rlx.lowering.contract import Group, store_panel
from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import packed_bytes
from rlx.lowering.gemm import emit_gemm
from rlx.lowering.gemv import emit_gemv
from rlx.lowering.target import Target
from rlx.lowering.values import Value, f32
from rlx.runtime import jit

TOTAL = 98 << 20
GEMV_SHAPES = [(576, (576, 192, 192)), (576, (1536, 1536)), (1536, (576,)), (576, (49152,))]
GEMM_SHAPES = [(576, 576), (576, 1536), (1536, 576)]
ROWS = 502

Native = Callable[[int, int], None]
"""Called with a thread and the number of threads."""


def aligned(size: int) -> np.ndarray:
    buffer = np.zeros(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size]


def random_weights(name: str, size: int) -> np.ndarray:
    """Return packed bytes in which every number is a normal one: as integers they are the same."""
    weights = aligned(size)
    if name in ("f32", "bf16", "f16"):
        dtype = np.float16 if name == "f16" else np.float32
        some = np.random.default_rng(0).standard_normal(1 << 20).astype(dtype)
        bits = some.view(np.uint8)
        if name == "bf16":
            bits = (some.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        weights[:] = np.resize(bits, size)
    else:
        weights[:] = np.random.default_rng(0).integers(0x20, 0x30, size, np.uint8)
    return weights


def compiled(module: Module, *types: type) -> Callable[..., None]:
    start = time.perf_counter()
    engine = jit.Engine(jit.compile_object(module.text, module.target))
    function = ctypes.CFUNCTYPE(None, *types)(engine.address("kernel"))
    function.engine, function.ms = engine, (time.perf_counter() - start) * 1e3
    return function


def measure(call: Native, threads: int, repeats: int) -> list[float]:
    """Return the wall times of `repeats` runs by a team that a barrier starts."""
    times: list[float] = []
    start, end = threading.Barrier(threads), threading.Barrier(threads)

    def work(tid: int) -> None:
        for _ in range(repeats):
            start.wait()
            began = time.perf_counter()
            call(tid, threads)
            end.wait()
            if tid == 0:
                times.append(time.perf_counter() - began)

    team = [threading.Thread(target=work, args=(tid,)) for tid in range(1, threads)]
    for thread in team:
        thread.start()
    work(0)
    for thread in team:
        thread.join()
    return times


def report(name: str, unit: str, amount: float, call: Native, repeats: int, note: str = "") -> None:
    rates: list[str] = []
    for threads in (1, 2):
        times = measure(call, threads, repeats)
        rates.append(f"{amount / statistics.median(times):7.1f} {amount / min(times):7.1f}")
    print(f"{name:34} {unit:8} {'  '.join(rates)}  {note}")


def gemv_program(target: Target, name: str, k: int, ns: tuple[int, ...], total: int) -> None:
    """Run one GEMV over and over along a buffer of weights, as the layers of a model would."""
    sizes = [packed_bytes(name, n, k) for n in ns]
    layers = max(1, total // sum(sizes))
    module = Module(target)
    params = [("i64", "tid"), ("i64", "nth"), ("ptr", "row"), ("ptr", "w"), ("ptr", "out")]
    f = module.function("kernel", params, exported=True)
    tid, nth, row, w, out = f.params
    groups = [Group((name, name), ns[0])] if ns == (1536, 1536) else [Group((name,), n) for n in ns]

    def layer(i: Value, _: list[Value]) -> list[Value]:
        at = f.at(w, i, sum(sizes))
        flat = [f.at(at, sum(sizes[:j])) for j in range(len(ns))]
        weights = [flat] if len(groups) == 1 else [[x] for x in flat]

        def store(f: Function, g: int, panel: Value, values: list[Value]) -> None:
            for j, value in enumerate(values):
                store_panel(f, f.at(out, (g + j) * 4 * max(ns)), groups[g].n, panel, value)

        emit_gemv(f, k, groups, row, weights, tid, nth, store)
        return []

    f.for_(0, layers, 1, [], layer)
    f.ret()
    call = compiled(module, *[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 3)
    rng = np.random.default_rng(0)
    weights = random_weights(name, layers * sum(sizes))
    x, y = rng.standard_normal(k).astype(np.float32), aligned(4 * len(ns) * max(ns))
    pointers = [b.ctypes.data for b in (x, weights, y)]
    report(
        f"gemv {name} {k} -> {'+'.join(map(str, ns))}",
        "GB/s",
        len(weights) / 1e9,
        lambda t, n: call(t, n, *pointers),
        15,
        f"compiled in {call.ms:.0f} ms",
    )


def read_floor(target: Target) -> None:
    module = Module(target)
    params = [("i64", "tid"), ("i64", "nth"), ("ptr", "w"), ("i64", "size"), ("ptr", "out")]
    f = module.function("kernel", params, exported=True)
    tid, nth, w, size, out = f.params
    share = f.and_(f.udiv(size, nth), -256)
    base = f.at(w, f.mul(share, tid))
    sums = f.for_(
        0,
        share,
        256,
        [f.zero("<16 x i32>")] * 4,
        lambda i, acc: [
            f.add(a, f.load("<16 x i32>", f.at(f.at(base, i), 64 * j))) for j, a in enumerate(acc)
        ],
    )
    f.store(f.add(f.add(sums[0], sums[1]), f.add(sums[2], sums[3])), f.at(out, tid, 64))
    f.ret()
    ints, pointers = [ctypes.c_int64] * 2, ctypes.c_void_p
    call = compiled(module, *ints, pointers, ctypes.c_int64, pointers)
    weights, y = aligned(TOTAL), aligned(256)
    weights[:] = 1
    args = weights.ctypes.data, TOTAL, y.ctypes.data
    report("floor: read", "GB/s", TOTAL / 1e9, lambda t, n: call(t, n, *args), 15)


def fma_floor(target: Target) -> None:
    module = Module(target)
    f = module.function("kernel", [("i64", "n"), ("ptr", "out")], exported=True)
    n, out = f.params
    x = f.splat(f.load("float", out), 16)
    sums = f.for_(
        0,
        n,
        1,
        [f.splat(f32(i), 16) for i in range(12)],
        lambda _, acc: [f.fma(a, x, x) for a in acc],
    )
    for i, value in enumerate(sums):
        f.store(value, f.at(out, 64 * i))
    f.ret()
    call = compiled(module, ctypes.c_int64, ctypes.c_void_p)
    outs = [aligned(64 * 12) for _ in range(2)]
    count = 200_000
    flops = count * 12 * 16 * 2 / 1e9
    for threads in (1, 2):
        times = measure(lambda t, _: call(count, outs[t].ctypes.data), threads, 15)
        median, best = (threads * flops / t for t in (statistics.median(times), min(times)))
        print(f"{f'floor: fma, {threads} threads':34} GFLOP/s  {median:7.1f} {best:7.1f}")


def gemm_program(target: Target, name: str, k: int, n: int, rows: int, pair: bool = False) -> None:
    module = Module(target)
    params = [("i64", "tid"), ("i64", "nth"), ("ptr", "a"), ("i64", "rows"), ("ptr", "w")]
    f = module.function("kernel", [*params, ("ptr", "v"), ("ptr", "out")], exported=True)
    tid, nth, a, count, w, v, out = f.params
    formats, weights = ((name, name), [w, v]) if pair else ((name,), [w])

    def store(f: Function, g: int, row: Value, panel: Value, values: list[Value]) -> None:
        value = f.fmul(*values) if pair else values[0]
        store_panel(f, f.at(out, row, 4 * n), n, panel, value)

    emit_gemm(f, k, [Group(formats, n)], a, 4 * k, count, [weights], tid, nth, store)
    f.ret()
    types = ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 3
    call = compiled(module, *[ctypes.c_int64] * 2, *types)
    rng = np.random.default_rng(0)
    ws = [random_weights(name, packed_bytes(name, n, k)) for _ in range(2)]
    x, y = aligned(4 * rows * k), aligned(4 * rows * n)
    x.view(np.float32)[:] = rng.standard_normal(rows * k)
    args = x.ctypes.data, rows, ws[0].ctypes.data, ws[1].ctypes.data, y.ctypes.data
    flops = 2 * rows * k * n * len(weights) / 1e9
    report(
        f"gemm {name}{' pair' if pair else ''} {rows} x {k} x {n}",
        "GFLOP/s",
        flops,
        lambda t, n: call(t, n, *args),
        30,
        f"compiled in {call.ms:.0f} ms",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["gemv", "gemm"])
    parser.add_argument("--cpu", default="host")
    args = parser.parse_args()
    target = Target.named(args.cpu)
    print(f"{'':43} 1 thread: median, best; 2 threads: median, best")
    if "gemv" in args.what:
        read_floor(target)
        for k, ns in GEMV_SHAPES:
            gemv_program(target, "q4_1", k, ns, TOTAL)
        for name in ("q4_0", "q8_0", "f16", "bf16", "f32"):
            gemv_program(target, name, 576, (1536,), TOTAL)
        read_floor(target)
    if "gemm" in args.what:
        fma_floor(target)
        for k, n in GEMM_SHAPES:
            gemm_program(target, "q4_1", k, n, ROWS)
        gemm_program(target, "q4_1", 576, 1536, ROWS, pair=True)
        for rows in (1, 2, 4, 8, 13, 29, 64, 128):
            gemm_program(target, "q4_1", 576, 576, rows)
        for name in ("q4_0", "q8_0", "f32"):
            gemm_program(target, name, 576, 576, ROWS)
        gemm_program(target, "q4_1", 8960, 576, ROWS)
        fma_floor(target)


if __name__ == "__main__":
    main()
