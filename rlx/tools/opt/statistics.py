"""How long the parts of a run took, and what a module holds, as tables."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from xdsl.dialects.builtin import ModuleOp


class Timing:
    """Seconds by what they went into; what happens several times is added up."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, what: str) -> Generator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[what] = self._seconds.get(what, 0.0) + time.perf_counter() - start

    def table(self) -> str:
        """Return a line for each part, in order, and one for all of them."""
        total = sum(self._seconds.values())
        lines = ["// timing", f"{'ms':>12} {'percent':>8}"]
        for what, seconds in [*self._seconds.items(), ("total", total)]:
            share = 100 * seconds / total if total > 0 else 0.0
            lines.append(f"{1000 * seconds:12.1f} {share:8.1f}  {what}")
        return "\n".join(lines) + "\n"


def count(module: ModuleOp) -> Counter[str]:
    """Return how many operations of each name are in a module, itself left out."""
    return Counter(op.name for op in module.walk() if op is not module)


def statistics(module: ModuleOp, counts: Mapping[str, Counter[str]]) -> str:
    """Return counts under their titles, by dialect and by operation, and what a plan needs."""
    lines = ["".join(f"{title:>12}" for title in counts)]
    names = sorted({name for c in counts.values() for name in c})
    dialects = Counter(name.partition(".")[0] for name in names)

    def row(what: str, prefix: str) -> None:
        numbers = (
            sum(n for name, n in c.items() if name.startswith(prefix)) for c in counts.values()
        )
        lines.append("".join(f"{n:12}" for n in numbers) + f"  {what}")

    for dialect in dialects:
        row(f"{dialect}, all", f"{dialect}.")
        for name in names:
            if name.startswith(f"{dialect}."):
                lines.append("".join(f"{c[name]:12}" for c in counts.values()) + f"  {name}")
    row("all", "")
    return "\n".join([*lines, *_plan(module)]) + "\n"


def _plan(module: ModuleOp) -> list[str]:
    """Return what a planned module needs: nothing for another."""
    # A module without LIR must not load it.
    if not any(op.name == "lir.program" for op in module.ops):
        return []
    from rlx.lowering.extract import manifest_of

    m = manifest_of(module)
    bound = m.arena_lower_bound_bytes
    ratio = f", {m.arena_bytes / bound:.3f} times the bound" if bound else ""
    return [
        "plan:",
        f"  {m.kernels} kernels",
        f"  {m.launches_per_step} launches per step",
        f"  {m.barriers_per_step} barriers per step",
        f"  arena of {m.arena_bytes} bytes, lower bound {bound}{ratio}",
        f"  weights of {m.weight_segment_bytes} bytes, {m.weight_bytes_per_step} read per step",
        f"  state of {m.state_bytes} bytes",
    ]
