"""What benchmarks share: workers in processes of their own, the machine's floors, and tables."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

Handler = Callable[[dict[str, Any]], dict[str, Any]]
"""Does one job in a worker; jobs and answers are JSON objects."""


# Workers


class Worker:
    """
    A contestant in a process of its own, asleep between its jobs.

    `python` is its interpreter and `args` are its command line; it must call `serve`. Raises
    SystemExit, with the end of what it wrote to stderr, where it ends before it answers.
    """

    def __init__(self, python: str, args: Sequence[str]):
        self.idle_cpu_s = 0.0
        """CPU time that it used between jobs, which should be none."""
        self._name = " ".join(args)
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [python, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ask(self, **job: Any) -> dict[str, Any]:
        """Let it do a job, and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(job), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._process.wait()
            self._errors.seek(0)
            raise SystemExit(f"{self._name} failed:\n{self._errors.read()[-2000:].decode()}")
        result: dict[str, Any] = json.loads(answer)
        self.idle_cpu_s += result.pop("idle_cpu_s")
        return result

    def close(self) -> None:
        self._process.communicate()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(handler: Handler) -> None:
    """Answer the jobs that come over stdin until it ends; stdout is for the answers alone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    slept_at = time.process_time()
    for line in sys.stdin:
        idle = time.process_time() - slept_at
        answer = handler(json.loads(line))
        print(json.dumps({**answer, "idle_cpu_s": idle}), file=answers, flush=True)
        slept_at = time.process_time()


# Floors: what the machine gives to simple loops, with the threads that rlx would use


class Floors:
    """
    Reading and multiplying at their plainest: what a decode or a prefill could at best reach.

    Reading sums a buffer of `nbytes`: see `rlx.runtime.roofline`. The FMAs run on registers.
    """

    FMA_COUNT = 1_000_000
    """More than two milliseconds: threads have to wake, and cores that slept to speed up."""
    ACCUMULATORS = 12

    def __init__(self, threads: int, nbytes: int):
        import numpy as np

        from rlx.lowering.target import Target
        from rlx.runtime.jit import Engine, compile_object
        from rlx.runtime.memory import Segment
        from rlx.runtime.roofline import Roofline
        from rlx.runtime.threads import Team

        self._target = Target.host()
        self._engine = Engine(compile_object(self._code(), self._target))
        self._team = Team(threads)
        self._roofline = Roofline(self._team, nbytes)
        self._out = Segment(64 * threads)
        self._out.view(0, np.float32, [16 * threads])[:] = 1
        self._context = np.array([self._out.address], np.int64)

    def read(self) -> float:
        """Return GB/s of one pass over the buffer."""
        return self._roofline.read()

    def fma(self) -> float:
        """Return GFLOP/s of the team."""
        lanes = self._target.vector_bits // 32
        flops = self.FMA_COUNT * self.ACCUMULATORS * lanes * 2 * self._team.threads
        started = time.perf_counter()
        self._team.run(self._engine.address("fma"), self._context.ctypes.data)
        return flops / (time.perf_counter() - started) / 1e9

    def _code(self) -> str:
        from rlx.lowering.emitter import Module

        module = Module(self._target)
        self._emit_fma(module)
        return module.text

    def _emit_fma(self, module: Any) -> None:
        params = [("ptr", "context"), ("i64", "tid"), ("i64", "threads")]
        f = module.function("fma", params, exported=True)
        context, tid, _ = f.params
        out = f.at(f.load("ptr", context), tid, 64)
        x = f.splat(f.load("float", out), self._target.vector_bits // 32)
        total, *others = f.for_(
            0,
            self.FMA_COUNT,
            1,
            [x] * self.ACCUMULATORS,
            lambda _, sums: [f.fma(s, x, x) for s in sums],
        )
        for other in others:
            total = f.fadd(total, other)
        f.store(total, out)
        f.ret()


class Bf16Unit:
    """
    Products of bf16 at their plainest, with the threads that rlx would use: TFLOP/s.

    `loop` multiplies blocks that it loads from the L1 cache, which is what a product can at best do
    all the time: two by two tiles of the matrix unit, or, where there are only dot products, 12
    rows by two panels. `peak` multiplies what stays in registers. Raises SystemExit on a CPU that
    has neither.
    """

    K = 256
    """What rows and panels of `loop` are long: 32 KB of both, or less."""
    BLOCKS, PRODUCTS = 8_000, 64_000
    """Blocks of `loop`, and products of `peak`, for a thread: some 2 ms and 0.4 ms."""
    ROWS = 12
    """The rows of a block of dot products, and half of its sums."""

    def __init__(self, threads: int):
        import numpy as np

        from rlx.lowering.amx import TILE_BYTES, has_amx
        from rlx.lowering.bf16_products import has_bf16
        from rlx.lowering.target import Target
        from rlx.runtime.jit import Engine, compile_object
        from rlx.runtime.memory import Segment
        from rlx.runtime.threads import Team

        self._target = Target.host()
        if not has_bf16(self._target):
            raise SystemExit("this CPU has neither a matrix unit nor dot products of bf16")
        self.tiles = has_amx(self._target)
        self._steps = self.K // 32
        self._share = 4 * self._steps * TILE_BYTES
        self._engine = Engine(compile_object(self._code(), self._target))
        self._team = Team(threads)
        # Bytes of zero are numbers of zero, whose products take as long as others.
        self._operands = Segment(self._share * threads)
        self._context = np.array([self._operands.address], np.int64)

    def loop(self) -> float:
        rows = 32 if self.tiles else self.ROWS
        return self._rate("loop", self.BLOCKS * 2 * rows * 32 * self.K)

    def peak(self) -> float:
        each = 2 * 16 * 16 * 32 if self.tiles else 2 * 16 * 2 * 2 * self.ROWS
        return self._rate("peak", self.PRODUCTS * each)

    def _rate(self, name: str, flops: int) -> float:
        started = time.perf_counter()
        self._team.run(self._engine.address(name), self._context.ctypes.data)
        return flops * self._team.threads / (time.perf_counter() - started) / 1e12

    def _code(self) -> str:
        from rlx.lowering.emitter import Module

        module = Module(self._target)
        if self.tiles:
            self._emit_tiles(module)
        else:
            self._emit_dots(module)
        return module.text

    def _emit(self, module: Any, name: str, body: Callable[[Any, Any], None]) -> None:
        """Emit a function whose body gets it, and where a thread's operands are."""
        from rlx.lowering.bf16_products import all_tiles

        params = [("ptr", "context"), ("i64", "tid"), ("i64", "threads")]
        f = module.function(name, params, exported=True)
        context, tid, _ = f.params
        with all_tiles(f):
            body(f, f.at(f.load("ptr", context), tid, self._share))
        f.ret()

    def _emit_tiles(self, module: Any) -> None:
        from rlx.lowering import amx

        sums, rows, panels = (0, 1, 2, 3), (4, 5), (6, 7)

        def multiply(f: Any) -> None:
            for c in sums:
                amx.multiply(f, c, rows[c // 2], panels[c % 2])

        def block(f: Any, tiles: Any) -> None:
            for step in range(self._steps):
                for i, tile in enumerate((*rows, *panels)):
                    at = f.at(tiles, (4 * step + i) * amx.TILE_BYTES)
                    amx.load(f, tile, at, amx.ROW_BYTES)
                multiply(f)

        def blocks(f: Any, tiles: Any) -> None:
            f.for_(0, self.BLOCKS, 1, [], lambda _, none: block(f, tiles) or none)

        def products(f: Any, _: Any) -> None:
            count = self.PRODUCTS // len(sums)
            f.for_(0, count, 1, [], lambda _, none: multiply(f) or none)

        self._emit(module, "loop", blocks)
        self._emit(module, "peak", products)

    def _emit_dots(self, module: Any) -> None:
        from rlx.lowering.amx import TILE_BYTES
        from rlx.lowering.bf16_products import multiply_rows
        from rlx.lowering.values import Value, i64

        of_panel, of_row = self._steps * TILE_BYTES, 2 * self.K + 64
        vector, product = "<16 x float>", "x86.avx512bf16.dpbf16ps.512"

        def blocks(f: Any, operands: Any) -> None:
            panels = [f.at(operands, n * of_panel) for n in range(2)]
            rows, out = f.at(operands, 2 * of_panel), f.alloca(self.ROWS * 128)
            no = Value("i1", "false")

            def block(_: Any, none: list[Any]) -> list[Any]:
                sizes = i64(self.ROWS), i64(self._steps), no
                multiply_rows(f, rows, of_row, panels, TILE_BYTES, out, 128, *sizes)
                return none

            f.for_(0, self.BLOCKS, 1, [], block)

        def products(f: Any, operands: Any) -> None:
            x = f.load("<32 x bfloat>", operands)
            sums = [f.load(vector, operands)] * (2 * self.ROWS)

            def one(_: Any, sums: list[Any]) -> list[Any]:
                return [f.intrinsic(product, vector, s, x, x) for s in sums]

            total, *others = f.for_(0, self.PRODUCTS, 1, sums, one)
            for other in others:
                total = f.fadd(total, other)
            f.store(total, operands)

        self._emit(module, "loop", blocks)
        self._emit(module, "peak", products)


# Reports


def median(samples: Iterable[float]) -> float:
    return statistics.median(samples)


def geometric_mean(ratios: Iterable[float]) -> float:
    return statistics.geometric_mean(ratios)


def spread(samples: Sequence[float], digits: int = 1) -> list[str]:
    """Return the median and the best of some rates."""
    return [f"{median(samples):.{digits}f}", f"{max(samples):.{digits}f}"]


def machine() -> str:
    """Return a line about the machine, its load now included."""
    from rlx.lowering.target import Target

    target = Target.host()
    load = f", load average {os.getloadavg()[0]:.1f} at the start" if os.name == "posix" else ""
    return f"{_cpu_model()} ({target.cpu}), {target.cores} cores for this process{load}"


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is text, the others are numbers."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def update_section(readme: Path, name: str, text: str) -> None:
    """
    Replace what stands between the marks `name:begin` and `name:end` of a Markdown file.

    If there is a file beside it that is named as this CPU, such as `znver5.md`, it is that.
    """
    from rlx.lowering.target import Target

    own = readme.with_name(f"{Target.host().cpu}.md")
    readme = own if own.exists() else readme
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = readme.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"{readme}: expected the marks {begin} and {end}")
    readme.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}")


def write_json(path: str | None, result: Mapping[str, Any]) -> None:
    if path:
        Path(path).write_text(json.dumps(result, indent=1) + "\n")
