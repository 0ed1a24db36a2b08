"""Looking inside: the stages of a traced function, what became of it, and how fast it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.checks import choice
from rlx.errors import RlxError
from rlx.jit.entry import Call, Entry, Traced, compile_trace
from rlx.jit.trace import Trace

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from rlx.passes.fusion_report import FusionEntry
    from rlx.runtime.profile import Profile

STAGES = ("hir", "mir", "lir", "llvm", "asm")
LEAST_SECONDS, LEAST_RUNS = 0.2, 5
"""How long a benchmark goes on, and how many runs it has at least."""
MOST_PROFILED = 200
"""Runs of a profile, whose marks are all kept."""


class Lowered:
    """A traced function whose stages can be printed."""

    def __init__(self, traced: Traced, precision: str, threads: int | None):
        self._traced = traced
        self._precision = precision
        self._threads = threads

    @property
    def trace(self) -> Trace:
        """The operations that the function does, as a plain list."""
        return self._traced.trace

    def ir(self, stage: str) -> str:
        """
        Return the program's text at a stage: `hir`, `mir`, `lir`, `llvm` or `asm`.

        Raises RlxError for any other stage.
        """
        from rlx.compiler import compile_text
        from rlx.jit.build import build, refusals
        from rlx.lowering.target import Target
        from rlx.passes.pipelines import run_to

        choice("stage", stage, STAGES)
        with refusals(f"the function {self.trace.name}"):
            module = build(self.trace, self._precision)
            if stage not in ("llvm", "asm"):
                run_to(module, stage)
                return str(module) + "\n"
            text = compile_text(module, Target.host())[1]
        if stage == "llvm":
            return text
        from rlx.runtime.jit import assembly

        return assembly(text, Target.host())

    def compile(self, poison: bool = False) -> Entry:
        """
        Return the compiled program, from the object cache where it is there.

        With `poison` what nothing has written between its kernels is NaN.
        """
        made = compile_trace(self.trace, self._precision, self._threads, poison)
        return Entry(self._traced, *made)

    def __repr__(self) -> str:
        return f"<lowered {self.trace.name}, {len(self.trace.main.nodes)} operations>"


@dataclass(frozen=True)
class Explanation:
    """What became of a call; sizes in bytes, for the sizes of the call."""

    kernels: tuple[str, ...]
    """The operations of each launch, in order; a loop's or a branch's once."""
    fused: tuple[str, ...]
    """What was fused, a line each, and why."""
    declined: tuple[str, ...]
    """What could have been fused, and why it was not."""
    moved: int
    """Bytes that the launches read and write: each operand of each launch once."""
    least: int
    """Bytes that any program must move: inputs read once, outputs written once."""
    arena: int
    """Bytes of what lies between the launches."""

    def __str__(self) -> str:
        ratio = f"{self.moved / self.least:.2f}" if self.least else "-"
        lines = [
            f"{len(self.kernels)} launches, {self.moved} bytes moved, at least {self.least} are "
            f"needed (ratio {ratio}), arena {self.arena} bytes",
            *(f"  launch {i}: {kernel}" for i, kernel in enumerate(self.kernels)),
            *(f"  {line}" for line in (*self.fused, *self.declined)),
        ]
        return "\n".join(lines)


def explain(call: Call) -> Explanation:
    """Return what became of a call's trace: it is compiled again, with a report."""
    from rlx.jit.build import build

    entry = call.entry
    trace = entry.traced.trace
    sizes = call.sizes
    module = build(trace)
    entries = _report(module)
    kernels, moved = _launches(module, sizes)
    program = entry.program
    manifest = program.manifest if program is not None else None
    arena = manifest.layout(manifest.bind(sizes))[1] if manifest is not None else 0
    return Explanation(
        tuple(kernels),
        tuple(str(e) for e in entries if e.fused),
        tuple(str(e) for e in entries if not e.fused),
        moved,
        _least(trace, call),
        arena,
    )


def _report(module: ModuleOp) -> list[FusionEntry]:
    """Bring a module to LIR with passes that report; return what they did and did not."""
    from xdsl.context import Context
    from xdsl.utils.arg_spec import parse_pipeline

    from rlx.passes.fusion_report import fusion_report
    from rlx.passes.pipelines import DEFAULT, FUSION, PLAN
    from rlx.passes.registry import PASSES

    found: list[FusionEntry] = []
    for spec in parse_pipeline(DEFAULT):
        if spec.name == PLAN:
            found = fusion_report(module)
        if spec.name.startswith(FUSION):
            spec = type(spec)(spec.name, {**spec.parameters, "report": (True,)})
        PASSES[spec.name]().from_spec(spec).apply(Context(), module)
    return found


def _launches(module: ModuleOp, sizes: dict[str, int]) -> tuple[list[str], int]:
    """Return the operations of each launch of a planned module, and the bytes that all move."""
    from rlx.dialects import lir
    from rlx.dialects.common import DimTable, monomial

    bound = DimTable.of(module).bind(sizes)
    bodies = {op.sym_name.data: op.body.block for op in module.ops if isinstance(op, lir.KernelOp)}
    kernels: list[str] = []
    moved = 0
    for op in module.walk():
        if not isinstance(op, lir.LaunchOp):
            continue
        body = bodies[op.kernel.root_reference.data]
        kernels.append(" ".join(o.name.removeprefix("mir.") for o in list(body.ops)[:-1]))
        for value in dict.fromkeys([*op.ins, *op.outs]):
            number, names = monomial(value.type)
            moved += number * prod(bound[n] for n in names)
    return kernels, moved


def _least(trace: Trace, call: Call) -> int:
    """Return the bytes of all inputs and of all outputs."""
    outputs = sum(prod(shape) * dtype.itemsize for shape, dtype in call.outputs)
    inputs = sum(
        prod(call.size(d) for d in shape) * np.dtype(dtype).itemsize
        for dtype, shape in map(trace.type_of, trace.inputs())
    )
    return inputs + outputs


@dataclass(frozen=True)
class Benchmark:
    """How long calls take, in seconds."""

    seconds: float
    """The median of all runs."""
    best: float
    runs: int
    least_bytes: int
    """Inputs read once and outputs written once."""

    @property
    def gigabytes_per_second(self) -> float:
        """Return the rate at which the inputs and outputs move, by the median."""
        return self.least_bytes / self.seconds / 1e9

    def __str__(self) -> str:
        return (
            f"{self.seconds * 1e6:.1f} us (median of {self.runs}, best {self.best * 1e6:.1f} us), "
            f"{self.gigabytes_per_second:.2f} GB/s of inputs and outputs"
        )


def benchmark(call: Call, leaves: Sequence[Any]) -> Benchmark:
    """Return how long a call takes, with its results written to the same arrays each time."""
    outs = tuple(np.empty(*o) for o in call.outputs)
    times: list[float] = []
    end = time.perf_counter() + LEAST_SECONDS
    while time.perf_counter() < end or len(times) < LEAST_RUNS:
        start = time.perf_counter()
        call.run(leaves, outs)
        times.append(time.perf_counter() - start)
    return Benchmark(median(times), min(times), len(times), _least(call.entry.traced.trace, call))


def profile(call: Call, leaves: Sequence[Any], precision: str, threads: int | None) -> Profile:
    """Return where the time of a call goes; raises RlxError where it has nothing to compute."""
    from rlx.runtime.calls import shared_team
    from rlx.runtime.profile import Profile
    from rlx.runtime.recorder import Recorder
    from rlx.runtime.roofline import Roofline

    traced = call.entry.traced
    if call.native is None:
        raise RlxError(f"{traced.trace.name}: it returns no array, so there is nothing to profile")
    recorder = Recorder(shared_team(threads).threads)
    made = compile_trace(traced.trace, precision, threads, recorder=recorder)
    marked = Call(Entry(traced, *made), call.all_sizes)
    outs = tuple(np.empty(*o) for o in call.outputs)

    def seconds(which: Call) -> float:
        start = time.perf_counter()
        which.run(leaves, outs)
        return time.perf_counter() - start

    def record() -> float:
        recorder.begin()
        taken = seconds(marked)
        recorder.take(made[0].manifest, 1, marked.free_sizes, marked.free_sizes)
        return taken

    record()
    moved = recorder.calls[0].total_bytes()
    roofline = Roofline(call.native.team or shared_team(1), moved)
    recorder.clear()
    times: list[tuple[float, float, float]] = []
    end = time.perf_counter() + LEAST_SECONDS
    while (time.perf_counter() < end and len(times) < MOST_PROFILED) or len(times) < LEAST_RUNS:
        times.append((record(), seconds(call), roofline.read()))
    with_marks, without, rates = zip(*times, strict=True)
    return Profile(
        recorder.calls,
        recorder.tick_ns(),
        roofline.nbytes,
        list(rates),
        (1 / median(with_marks), 1 / median(without)),
        recorder.lost,
    )
