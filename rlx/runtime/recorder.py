"""The marks that profiled programs leave: memory for them, and what each native call left there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlx.lowering import abi
from rlx.lowering.manifest import Manifest
from rlx.runtime.memory import Segment

CALIBRATION_NS = 20_000_000
"""How far apart two readings of both clocks are at least, which tell the unit of the marks'."""


class Recorded(NamedTuple):
    """What a native call of a program left."""

    manifest: Manifest
    steps: int
    began: int
    ended: int
    """By the clock of the marks, in Python: before and after the call."""
    places: NDArray[np.int32]
    """The place of each mark, a number of `manifest.sites` or `abi.STEP_MARK`."""
    layers: NDArray[np.int32]
    """Its layer, -1 outside of loops over them."""
    ticks: NDArray[np.int64]
    """`[threads, marks]`: when each thread came to each place."""
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    """The sizes of free dimensions at the first step, and after the last."""

    def sizes(self) -> Iterator[dict[str, int]]:
        """Give the sizes of all dimensions in each step: they grow evenly."""
        free = self.manifest.free
        for step in range(self.steps):
            now = self.before + (self.after - self.before) * step // self.steps
            yield self.manifest.bind(dict(zip(free, now[: len(free)].tolist(), strict=True)))

    def total_bytes(self) -> int:
        """Return the bytes that all launches of the call move."""
        spans = Spans.of(self)
        return int(self.moved_bytes()[spans.steps, spans.sites].sum())

    def moved_bytes(self) -> NDArray[np.int64]:
        """Return the bytes that a launch at each place moves: `[steps, sites]`."""
        sites = self.manifest.sites
        return np.array([[s.moved(sizes) for s in sites] for sizes in self.sizes()], np.int64)


class Spans(NamedTuple):
    """A call's marks as spans, each from the mark before it: `[threads, spans]`, or `[spans]`."""

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    sites: NDArray[np.int32]
    layers: NDArray[np.int32]
    steps: NDArray[np.int64]
    after: NDArray[np.int32]
    """The place of the mark before."""

    def step_ticks(self, steps: int) -> NDArray[np.float64]:
        """Return how long each step took, the mean of the threads."""
        ticks = (self.ends - self.begins).mean(0)
        return np.bincount(self.steps, ticks, steps).astype(np.float64)

    @staticmethod
    def of(call: Recorded) -> Spans:
        steps = np.cumsum(call.places == abi.STEP_MARK) - 1
        real = call.places[1:] != abi.STEP_MARK
        return Spans(
            call.ticks[:, :-1][:, real],
            call.ticks[:, 1:][:, real],
            call.places[1:][real],
            call.layers[1:][real],
            steps[1:][real],
            call.places[:-1][real],
        )


class Recorder:
    """
    Memory for the marks of a team of threads, and the calls that were taken from it.

    `lost` counts marks that the memory had no room for.
    """

    def __init__(self, threads: int):
        self._memory = Segment(threads * abi.MARKS_STRIDE)
        self.address = self._memory.address
        words = self._memory.view(0, np.int64, [threads, abi.MARKS_STRIDE // 8])
        self._counts = words[:, 0]
        self._marks = words[:, abi.MARKS_START // 8 :].reshape(threads, abi.MARKS, 2)
        self._clock: Callable[[], int] | None = None
        self._first = (0, 0)
        self._began = 0
        self.calls: list[Recorded] = []
        self.lost = 0

    def use_clock(self, clock: Callable[[], int]) -> None:
        """Take the time from a program's own clock; all programs have the same."""
        if self._clock is None:
            self._clock = clock
            self._first = self._both()

    def clear(self) -> None:
        """Forget all calls."""
        self.calls, self.lost = [], 0

    def now(self) -> int:
        """Return the time by the clock of the marks."""
        assert self._clock is not None
        return self._clock()

    def begin(self) -> None:
        """Note that a native call begins."""
        self._counts[:] = 0
        self._began = self.now()

    def take(
        self, manifest: Manifest, steps: int, before: NDArray[np.int64], after: NDArray[np.int64]
    ) -> None:
        """Keep the marks of the call that has ended."""
        ended = self.now()
        # A program with little to do runs on the first thread alone.
        ran = int(np.count_nonzero(self._counts))
        count = int(self._counts[0])
        kept = min(count, abi.MARKS)
        self.lost += (count - kept) * ran
        marks = self._marks[:ran, :kept].copy()
        words = marks[0, :, 0]
        self.calls.append(
            Recorded(
                manifest,
                steps,
                self._began,
                ended,
                words.astype(np.int32),
                (words >> 32).astype(np.int32) - 1,
                marks[:, :, 1],
                before.copy(),
                after.copy(),
            )
        )

    def tick_ns(self) -> float:
        """Return the nanoseconds of the system's monotonic clock in a tick of the marks'."""
        tick, ns = self._both()
        while ns - self._first[1] < CALIBRATION_NS:
            time.sleep(CALIBRATION_NS / 1e9)
            tick, ns = self._both()
        return (ns - self._first[1]) / (tick - self._first[0])

    def _both(self) -> tuple[int, int]:
        """Return the times of both clocks, read as close to each other as they come."""
        tries: list[tuple[int, int, int]] = []
        for _ in range(8):
            before = time.monotonic_ns()
            tick = self.now()
            after = time.monotonic_ns()
            tries.append((after - before, tick, (before + after) // 2))
        return min(tries)[1:]
