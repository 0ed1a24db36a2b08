"""Whether a team's threads run the next steps together, or one of them does it alone."""

from __future__ import annotations

CROWDED = 0.65
"""The share of CPU time below which threads that work together are thought to be kept from it."""
TRIAL, TRIAL_ALONE, STAY = 2, 6, 16
"""
Native calls that a way is tried for, and those before another is tried again.

Where one thread works alone it may take the system 100 ms to leave it a CPU.
"""
GAIN = 0.8
"""The part of the time alone that threads together must take, to be taken again."""


class Pace:
    """
    Chooses between together and alone by the time that a step takes.

    Threads that meet at a hundred barriers in a step need all their CPUs at the same time. Where
    other programs want the CPUs too, one thread alone may be faster than several that wait for each
    other. So where threads together get too little CPU time, one alone is tried, and the faster way
    taken for a while. Results are the same.
    """

    def __init__(self) -> None:
        self.alone = False
        self._took = [0.0, 0.0]
        self._share = 1.0
        self._calls = 0
        self._stay = 1
        self._trial = False

    def note(self, seconds: float, share: float) -> None:
        """Take in what a step of the last call took, and the threads' part of their CPUs' time."""
        way = self.alone
        if not way:
            # One call may have met what is over at once.
            self._share += (share - self._share) / 4
        self._took[way] = (self._took[way] + seconds) / 2 if self._calls else seconds
        self._calls += 1
        if self._calls < self._stay:
            return
        if self._trial:
            together, alone = self._took
            self.alone = alone < together if way else alone * GAIN < together
            self._begin(STAY, False)
        elif way or self._share < CROWDED:
            self.alone = not way
            self._begin(TRIAL_ALONE if self.alone else TRIAL, True)

    def _begin(self, calls: int, trial: bool) -> None:
        self._calls, self._stay, self._trial = 0, calls, trial
