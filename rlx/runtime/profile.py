"""Where the time of programs goes: by kernel and by barrier, against what memory could give."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from statistics import harmonic_mean
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from rlx.checks import choice
from rlx.errors import RlxError
from rlx.lowering import abi
from rlx.runtime.recorder import Recorded, Recorder, Spans
from rlx.runtime.replacing import replacing
from rlx.runtime.roofline import Roofline
from rlx.runtime.timeline import write_timeline
from rlx.wording import several

if TYPE_CHECKING:
    from rlx.runtime.language import LanguageModel

TOP = 12
"""Kernels in a table, those that take the longest."""
HEADER = (
    "kernel", "calls", "us", "share", "MB", "GB/s", "roofline",
    "barriers", "waiting us", "passing us",
)  # fmt: skip
ROUNDS = 2
"""Runs without marks and with them, by turns; the last counts, those before it warm up."""


def faster_half(rates: Sequence[float]) -> float:
    """Return the rate of the faster half of passes together, the middle one included."""
    return harmonic_mean(sorted(rates)[len(rates) // 2 :])


class Row(NamedTuple):
    """A kernel's launches, or the barriers after them: times are means of the threads'."""

    kernel: str
    calls: int = 1
    seconds: float = 0.0
    nbytes: int = 0
    """Read and written, of a kernel's launches."""
    waiting_s: float = 0.0
    """Of barriers: until the last thread came; the rest is what passing takes."""

    @property
    def gb_s(self) -> float:
        return self.nbytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass
class Section:
    """
    The steps of one program.

    The rows are of the faster half of the steps: what a busy machine does to some of them would
    hide where the time goes.
    """

    name: str
    steps: int
    mean_s: float
    """Of all steps."""
    counted: int
    """The steps that the rows are of."""
    weight_bytes: int
    """Of a step."""
    kernels: list[Row]
    barriers: list[Row]
    """Both with the longest first."""

    @property
    def seconds(self) -> float:
        """Return the time of the steps that count."""
        return sum(row.seconds for row in (*self.kernels, *self.barriers))

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.kernels)

    @property
    def barrier_s(self) -> float:
        return sum(row.seconds for row in self.barriers)

    def as_json(self, roofline: float) -> dict[str, Any]:
        def share(row: Row) -> float:
            return row.seconds / self.seconds

        return {
            "steps": self.steps,
            "mean_step_s": self.mean_s,
            "counted_steps": self.counted,
            "seconds": self.seconds,
            "barrier_s": self.barrier_s,
            "kernels_per_step": sum(r.calls for r in self.kernels) / self.counted,
            "barriers_per_step": sum(r.calls for r in self.barriers) / self.counted,
            "weight_bytes": self.weight_bytes * self.counted,
            "bytes": self.nbytes,
            "kernels": [
                {
                    "kernel": r.kernel,
                    "calls": r.calls,
                    "seconds": r.seconds,
                    "share": share(r),
                    "bytes": r.nbytes,
                    "gb_s": r.gb_s,
                    "of_roofline": r.gb_s / roofline,
                }
                for r in self.kernels
            ],
            "barriers": [
                {
                    "after": r.kernel,
                    "calls": r.calls,
                    "seconds": r.seconds,
                    "share": share(r),
                    "waiting_s": r.waiting_s,
                }
                for r in self.barriers
            ],
        }


def _sections(calls: Sequence[Recorded], tick_s: float) -> list[Section]:
    by_name: dict[str, list[Recorded]] = {}
    for call in calls:
        by_name.setdefault(call.manifest.name, []).append(call)
    return [_section(name, calls, tick_s) for name, calls in by_name.items()]


def _section(name: str, calls: Sequence[Recorded], tick_s: float) -> Section:
    spans = [Spans.of(call) for call in calls]
    times = [s.step_ticks(call.steps) * tick_s for s, call in zip(spans, calls, strict=True)]
    every = np.concatenate(times)
    counted = [t <= np.median(every) for t in times]
    rows = [
        row
        for call, s, steps in zip(calls, spans, counted, strict=True)
        for row in _rows(call, s, steps, tick_s)
    ]
    kernels, barriers = _summed(r for k, r in rows if k), _summed(r for k, r in rows if not k)
    counts = sum(int(c.sum()) for c in counted)
    weight_bytes = calls[0].manifest.weight_bytes_per_step
    return Section(name, len(every), every.mean(), counts, weight_bytes, kernels, barriers)


def _rows(
    call: Recorded, spans: Spans, counted: NDArray[np.bool_], tick_s: float
) -> Iterator[tuple[bool, Row]]:
    """Give a row, with whether it is a kernel's, for each span of the steps that count."""
    sites, moved = call.manifest.sites, call.moved_bytes()
    ticks = (spans.ends - spans.begins).mean(0) * tick_s
    waiting = (spans.begins.max(0) - spans.begins.mean(0)) * tick_s
    for i in np.flatnonzero(counted[spans.steps]).tolist():
        number, after = int(spans.sites[i]), int(spans.after[i])
        kernel = sites[number].kernel
        if kernel:
            yield True, Row(kernel, 1, ticks[i], int(moved[spans.steps[i], number]))
        else:
            before = sites[after].kernel if after != abi.STEP_MARK else ""
            yield False, Row(before, 1, ticks[i], 0, waiting[i])


def _summed(rows: Iterable[Row]) -> list[Row]:
    """Return the sums of rows of the same kernel, the longest first."""
    by_kernel: dict[str, list[Row]] = {}
    for row in rows:
        by_kernel.setdefault(row.kernel, []).append(row)
    totals = [
        Row(
            kernel,
            len(group),
            sum(row.seconds for row in group),
            sum(row.nbytes for row in group),
            sum(row.waiting_s for row in group),
        )
        for kernel, group in by_kernel.items()
    ]
    return sorted(totals, key=lambda row: -row.seconds)


@dataclass
class Profile:
    """
    Where the time of some runs went, from the marks of their threads.

    `rates` has steps per second, of a language model's decode, with marks and without.
    """

    calls: list[Recorded]
    tick_ns: float
    roofline_nbytes: int
    roofline_samples: list[float]
    """GB/s of sums of a buffer of that size, between the calls."""
    rates: tuple[float, float] = (0.0, 0.0)
    lost: int = 0
    """Marks that there was no room for: what came after them is not seen."""
    sections: list[Section] = field(init=False)

    def __post_init__(self) -> None:
        self.sections = _sections(self.calls, self.tick_ns / 1e9)

    @property
    def threads(self) -> int:
        return max(len(call.ticks) for call in self.calls)

    @property
    def roofline_gb_s(self) -> float:
        """Return the rate of the faster half of the sums, as steps are the faster half of them."""
        return faster_half(self.roofline_samples)

    def write(self, path: str | os.PathLike[str]) -> None:
        """
        Write a file that Perfetto and chrome://tracing read, compressed where it ends in .gz.

        Raises RlxError where it can't be written.
        """
        if not isinstance(cast(object, path), str | os.PathLike):
            raise RlxError(f"path: expected that of a file to write, got {path!r}")
        name = os.fspath(path)
        with replacing(name) as file:
            write_timeline(self, file, name)

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON has them: seconds, bytes, GB/s; totals of all steps."""
        return {
            "threads": self.threads,
            "roofline_gb_s": self.roofline_gb_s,
            "roofline_bytes": self.roofline_nbytes,
            "roofline_samples_gb_s": self.roofline_samples,
            "steps_per_s": self.rates[0],
            "steps_per_s_without_marks": self.rates[1],
            "lost_marks": self.lost,
            "programs": {s.name: s.as_json(self.roofline_gb_s) for s in self.sections},
        }

    def __str__(self) -> str:
        lines = list(self.heading())
        for section in self.sections:
            lines += ["", *self.table(section.name)]
        return "\n".join(lines)

    def table(self, program: str) -> Iterator[str]:
        """Give the lines of a program's table. Raises RlxError for one that it isn't of."""
        names = [section.name for section in self.sections]
        section = self.sections[names.index(choice("program of a profile", program, names))]
        return _table(section, self.roofline_gb_s)

    def heading(self) -> list[str]:
        """Return the lines before the tables."""
        with_marks, without = self.rates
        lines = [
            f"roofline  {self.roofline_gb_s:.1f} GB/s on {self.threads} threads (the faster half "
            f"of {len(self.roofline_samples)} sums of {self.roofline_nbytes / 1e6:.1f} MB)",
            f"rate      {with_marks:.1f} steps/s, {without:.1f} without marks",
        ]
        if self.lost:
            lines.append(f"lost      {several(self.lost, 'mark')}: profile fewer steps")
        return lines


def _table(section: Section, roofline: float) -> Iterator[str]:
    """Give the lines of a program's table, in microseconds and megabytes of a step."""
    steps, total = section.counted, section.seconds
    yield (
        f"{section.name}: {several(section.steps, 'step')} of {section.mean_s * 1e3:.3f} ms; the "
        f"faster half takes {total / steps * 1e3:.3f} ms, of which"
    )

    def us(seconds: float) -> str:
        return f"{seconds / steps * 1e6:.1f}"

    rows: list[Sequence[str]] = [HEADER]
    for kernel, barriers in _paired(section)[:TOP]:
        rows.append(
            (
                kernel.kernel or barriers.kernel or "(start)",
                f"{kernel.calls / steps:g}",
                us(kernel.seconds),
                f"{kernel.seconds / total:.1%}",
                f"{kernel.nbytes / steps / 1e6:.2f}",
                f"{kernel.gb_s:.1f}",
                f"{kernel.gb_s / roofline:.0%}",
                f"{barriers.calls / steps:g}",
                us(barriers.waiting_s),
                us(barriers.seconds - barriers.waiting_s),
            )
        )
    yield from _aligned(rows)
    kernels, barriers = (sum(r.calls for r in rs) for rs in (section.kernels, section.barriers))
    rate = section.nbytes / total / 1e9
    yield (
        f"{kernels / steps:g} kernels, {barriers / steps:g} barriers ({us(section.barrier_s)} us, "
        f"{section.barrier_s / total:.1%}), {section.nbytes / steps / 1e6:.2f} MB "
        f"({section.weight_bytes / 1e6:.2f} of weights) at {rate:.1f} GB/s, "
        f"{rate / roofline:.0%} of the roofline"
    )


def _paired(section: Section) -> list[tuple[Row, Row]]:
    """Return the rows of kernels, each with that of the barriers after it, the longest first."""
    kernels = {row.kernel: row for row in section.kernels}
    barriers = {row.kernel: row for row in section.barriers}
    names = [*kernels, *(name for name in barriers if name not in kernels)]
    none = Row("", calls=0)
    pairs = [(kernels.get(n, none), barriers.get(n, none)) for n in names]
    return sorted(pairs, key=lambda pair: -sum(row.seconds for row in pair))


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [f"{c:>{w}}" for c, w in zip(others, widths[1:], strict=True)]
        yield "  ".join([f"{first:<{widths[0]}}", *cells])


def profile(model: LanguageModel, ids: list[int], steps: int) -> Profile:
    """Return where the time of a greedy answer goes: prefill, and decode steps after it."""
    recorder = Recorder(model.team.threads)
    model = copy(model)
    model.reuse_prefix = False
    marked = model.with_marks(recorder)
    roofline = Roofline(model.team, model.stats.weight_bytes)
    samples: list[float] = []
    for _ in range(ROUNDS):
        recorder.clear()
        samples = _generate(model, ids, steps, roofline)
        samples += _generate(marked, ids, steps, roofline)
    return Profile(
        recorder.calls,
        recorder.tick_ns(),
        roofline.nbytes,
        samples,
        (marked.stats.decode_tok_s, model.stats.decode_tok_s),
        recorder.lost,
    )


def _generate(model: LanguageModel, ids: list[int], steps: int, roofline: Roofline) -> list[float]:
    """Generate, with a sum of the roofline's buffer for each decode step after its native call."""
    samples: list[float] = []
    for _ in model.generate_ids(ids, steps + 1, stop=False):
        # As often as the steps have read the weights: caches then hold as much of either.
        samples += [roofline.read() for _ in range(model.stats.decode_steps - len(samples))]
    return samples or [roofline.read()]
