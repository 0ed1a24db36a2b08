"""How much of a thread's stack a module's functions take, read off its LLVM IR."""

from __future__ import annotations

import re
from collections import defaultdict

_NAME = re.compile(r'@"?([^"(]+)"?\(')
_ALLOCATED = re.compile(r"alloca \[(\d+) x i8\], align (\d+)")
_SPILLED, _OF_A_LINE = 4 << 10, 8
"""
Bytes of a frame for what registers don't hold: of any function, and for each of its lines.

Most are 5 of a line, in steps with hundreds of arguments; 2 where vectors of f64 are.
"""


def stack_bytes(text: str) -> int:
    """
    Return the bytes of stack that the deepest call into a module takes, those of its callers aside.

    They are at most that: LLVM alone knows what it spills. No function calls itself, by whatever
    way.
    """
    frames = defaultdict[str, int](lambda: _SPILLED)
    callees = defaultdict[str, set[str]](set)
    name = ""
    for line in text.splitlines():
        frames[name] += _OF_A_LINE
        if line.startswith("define ") and (found := _NAME.search(line)):
            name = found[1]
        elif found := _ALLOCATED.search(line) if " alloca [" in line else None:
            frames[name] += int(found[1]) + int(found[2])
        elif " call " in line and (found := _NAME.search(line)):
            callees[name].add(found[1])
    depths: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in depths:
            below = max((depth(other) for other in callees[name] if other in frames), default=0)
            depths[name] = frames[name] + below
        return depths[name]

    return max(map(depth, list(frames)), default=0)
