"""
What compiled code and the runtime agree on: the context of a program, and the words of sampling.

A program exports three functions, named below, that are jobs of a team (`void job(ptr ctx, i64 tid,
i64 threads)`, see `sync.py`). Its context is an array of 8-byte words, at these indices:
"""

from __future__ import annotations

import struct
from typing import NamedTuple

TEAM = 0
"""The team's memory, for barriers."""
ARENA, STATE, WEIGHTS = 1, 2, 3
"""Addresses of the three segments."""
SOURCES, INPUTS, OUTPUTS = 4, 5, 6
"""Addresses of arrays of addresses: weights in their files, and what the caller binds."""
STEPS = 7
"""Steps that `step` may take; more than one only where the program carries an output on."""
TAKEN = 8
"""Steps that it took."""
IDS = 9
"""Address of i32 [STEPS]: the token of each step, where the program carries one on."""
STOPS, STOP_COUNT = 10, 11
"""Address and number of i32 tokens after which `step` returns, as it does where there is none."""
LOCK = 12
"""i32, i32: taken by a thread that runs the program through `enter`, and how many wait."""
MARKS_AT = 13
"""Address of the memory for marks, or 0; only programs with marks read it: see `marks.py`."""
FROM, UNTIL = 14, 15
"""
The parts of a step that `step` runs: those from FROM on whose numbers are less than UNTIL.

They are 0 and the manifest's `parts` for a whole step, and for several.
"""
DIMS = 16
"""
From here on: the sizes of the free dimensions, in the order of the dimension table; after them the
offsets of the arena's places whose sizes have no bound.
"""

PACK, PROLOGUE, STEP = "rlx_pack", "rlx_prologue", "rlx_step"
CLOCK = "rlx_clock"
"""The function of programs with marks that returns the time as marks have it."""
CHECKSUMS = "rlx_checksums"
"""The job of programs with weights that checks what was packed: its context is `checksum.py`'s."""
KERNEL = "k_{}"
"""How the function of a kernel is named, so that it meets no other name."""
AHEAD = "k_{}.ahead"
"""How the function is named that asks for the bytes that a kernel reads first."""


MARKS = 1 << 18
"""Marks that a thread's memory has room for."""
MARKS_START = 64
MARKS_STRIDE = MARKS_START + 16 * MARKS
"""Bytes from the start of a thread's memory to its marks, and to the next thread's memory."""
STEP_MARK = -1
"""The place of the mark at which a step begins."""


class Sampling(NamedTuple):
    """How a token is drawn; `counter` grows by one with each draw."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    counter: int = 0

    def pack(self) -> bytes:
        """Return the 32 bytes that `hir.sample` reads."""
        return struct.pack(
            "<fifiQQ", self.temperature, self.top_k, self.top_p, 0, self.seed, self.counter
        )


COUNTER_OFFSET = 24
"""Bytes from the start of the packed sampling words to the counter."""
