"""Whether a team's threads run the next steps together, or one of them does it alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from math import inf
from pathlib import Path

CROWDED = 0.65
"""The share of CPU time below which threads that work together are thought to be kept from it."""
CHECK = 8
"""Native calls alone between two looks: it may take the system 100 ms to leave a thread a CPU."""


def idle_seconds() -> float | None:
    """Return for how long the CPUs of this process have been idle, all together; None: unknown."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        names = {f"cpu{n}" for n in os.sched_getaffinity(0)}
        # Ticks as user, of low priority, in the system, idle, and waiting for a disk: proc_stat(5).
        rows = [line.split() for line in lines if line.partition(" ")[0] in names]
        ticks = [int(n) for row in rows for n in row[4:6]]
        return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None
    except (OSError, AttributeError, ValueError):
        return None


class Pace:
    """
    Chooses between together and alone by the time that a step takes.

    Threads that meet at a hundred barriers in a step need all their CPUs at the same time. Where
    other programs want the CPUs too, one thread alone may be faster than several that wait for each
    other. So where threads together get too little CPU time, one alone is tried, and goes on where
    it is faster at its best, until the others leave CPUs idle. Results are the same.
    """

    def __init__(
        self, threads: int, idle: Callable[[], float | None] = idle_seconds,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self.alone = False
        self._threads, self._idle, self._clock = threads, idle, clock
        self._share, self._together = 1.0, 0.0
        self._best = 0.0
        """The seconds of a step alone, at its best when it was tried last."""
        self._calls = 0
        """Those alone."""
        self._since: tuple[float, float | None] = (0.0, None)

    def note(self, seconds: float, share: float) -> None:
        """Take in what a step of the last call took, and the threads' part of their CPUs' time."""
        if self.alone:
            self._calls += 1
            self._best = min(self._best, seconds)
            tried = self._calls == CHECK and self._best >= self._together
            if tried or (self._calls % CHECK == 0 and self._room()):
                self.alone, self._share = False, 1.0
            return
        # One call may have met what is over at once.
        self._share += (share - self._share) / 2
        self._together = max(seconds, (self._together + seconds) / 2)
        if self._share < CROWDED and self._together > self._best:
            self.alone, self._calls, self._best = True, 0, inf
            self._since = self._clock(), self._idle()

    def _room(self) -> bool:
        """Return whether threads together would have had enough of the CPUs since the last look."""
        before, idle = self._since
        self._since = now, idle_now = self._clock(), self._idle()
        if idle is None or idle_now is None:
            return True
        return 1 + (idle_now - idle) / max(now - before, 1e-9) >= CROWDED * self._threads
