"""How old this process is, for figures that count from its start."""

from __future__ import annotations

import os
import time

_IMPORTED = time.perf_counter()


def process_age() -> float:
    """
    Return the seconds since this process started, to about 10 ms.

    Where the system doesn't tell (only Linux does), since this module was imported.
    """
    try:
        with open("/proc/self/stat", "rb") as f:
            # The name of the program, in parentheses, may hold anything.
            started = int(f.read().rpartition(b")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (AttributeError, OSError, ValueError, IndexError):
        return time.perf_counter() - _IMPORTED
