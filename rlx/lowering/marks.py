"""
LLVM IR for marks: the time at which a thread came to a place of a step, in memory of its own.

A program has them where its module has the attribute `rlx.marks`. The memory of a thread begins
with a count of its marks in a cache line of its own; each mark is two words, which place it was
(`abi.STEP_MARK`, or a number of `Manifest.sites` with the layer above it, from 1) and the clock.
Marks beyond `abi.MARKS` are counted, not written.
"""

from __future__ import annotations

from rlx.lowering import abi
from rlx.lowering.emitter import Function, Module
from rlx.lowering.sync import architecture
from rlx.lowering.values import Value, i32, i64


def emit_marks(module: Module) -> str:
    """
    Define `void mark(ptr marks, i64 tid, i64 place)` and return its name.

    It does nothing where `marks` is null. `i64 rlx_clock()` is exported beside it.
    """
    clock = module.function(abi.CLOCK, [], result="i64", exported=True)
    clock.ret(_clock(clock))
    f = module.function("mark", [("ptr", "marks"), ("i64", "tid"), ("i64", "place")])
    marks, tid, place = f.params

    def count() -> list[Value]:
        own = f.at(marks, tid, abi.MARKS_STRIDE)
        taken = f.load("i64", own, align=8)
        f.store(f.add(taken, 1), own, align=8)

        def write() -> list[Value]:
            mark = f.at(f.at(own, abi.MARKS_START), taken, 16)
            f.store(place, mark, align=8)
            f.store(_clock(f), f.at(mark, 8), align=8)
            return []

        return f.if_(f.icmp("ult", taken, abi.MARKS), write)

    f.if_(f.icmp("ne", marks, Value("ptr", "null")), count)
    f.ret()
    return f.name


def _clock(f: Function) -> Value:
    """
    Emit a clock that all cores share, after what comes before it is done; its unit is not known.

    It is x86's time stamp counter, elsewhere the system's monotonic clock, in nanoseconds.
    """
    if architecture(f) == "x86_64":
        f.intrinsic("x86.sse2.lfence", "void")
        return f.intrinsic("readcyclecounter", "i64", suffixes=[])
    monotonic = 6 if any(name in f.target.triple for name in ("darwin", "macos")) else 1
    time = f.alloca(16, align=8)
    f.call("clock_gettime", "i32", i32(monotonic), time)
    seconds = f.mul(f.load("i64", time, align=8), 1_000_000_000)
    return f.add(seconds, f.load("i64", f.at(time, 8), align=8))


def place_of(f: Function, site: int, layer: Value | None) -> Value:
    """Return the word for a numbered place, in a layer where a loop is over them."""
    if layer is None:
        return i64(site)
    return f.or_(f.binary("shl", f.add(layer, 1), 32), i64(site))
