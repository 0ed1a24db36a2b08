"""A profile as a file for Perfetto and chrome://tracing: JSON trace events, one track a thread."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from rlx.lowering import abi
from rlx.runtime.recorder import Recorded, Spans
from rlx.runtime.replacing import errors_of
from rlx.wording import several

if TYPE_CHECKING:
    from rlx.runtime.profile import Profile


def write_timeline(profile: Profile, file: BinaryIO, path: str) -> None:
    """Write a profile's events to the open file of `path`, compressed where that ends in .gz."""
    data = json.dumps({"traceEvents": list(events(profile)), "displayTimeUnit": "ns"}).encode()
    with errors_of(path):
        file.write(gzip.compress(data, 6) if path.endswith(".gz") else data)
        file.flush()


def events(profile: Profile) -> Iterator[dict[str, Any]]:
    """Give the events: times in microseconds from the first call on."""
    calls = profile.threads
    names = [*(f"thread {i}" for i in range(calls)), "native calls"]
    yield {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "rlx"}}
    for tid, name in enumerate(names):
        yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}}
    timeline = _Timeline(profile)
    for call in profile.calls:
        name = f"{call.manifest.name}, {several(call.steps, 'step')}"
        yield timeline.event(name, "call", calls, call.began, call.ended, {})
        yield from timeline.spans(call)


class _Timeline:
    def __init__(self, profile: Profile):
        self._profile = profile
        self._start = profile.calls[0].began if profile.calls else 0

    def event(
        self, name: str, kind: str, tid: int, begin: int, end: int, args: dict[str, Any]
    ) -> dict[str, Any]:
        # Whole nanoseconds, so that what follows each other doesn't overlap.
        unit = self._profile.tick_ns
        first, last = (round((t - self._start) * unit) for t in (begin, end))
        times = {"ts": first / 1e3, "dur": (last - first) / 1e3}
        return {"ph": "X", "name": name, "cat": kind, "pid": 1, "tid": tid, **times, "args": args}

    def spans(self, call: Recorded) -> Iterator[dict[str, Any]]:
        """Give the launches and barriers of a call, thread by thread."""
        spans, moved = Spans.of(call), call.moved_bytes()
        kernels = [site.kernel for site in call.manifest.sites]
        seconds = (spans.ends - spans.begins).mean(0) * self._profile.tick_ns / 1e9
        roofline = self._profile.roofline_gb_s
        named: list[tuple[str, str, dict[str, Any]]] = []
        for i in range(len(spans.sites)):
            number = int(spans.sites[i])
            args: dict[str, Any] = {"step": int(spans.steps[i])}
            if spans.layers[i] >= 0:
                args["layer"] = int(spans.layers[i])
            if kernels[number]:
                nbytes = int(moved[spans.steps[i], number])
                rate = nbytes / max(float(seconds[i]), 1e-9) / 1e9
                of_roofline = round(100 * rate / roofline, 1)
                args |= {"bytes": nbytes, "GB/s": round(rate, 2), "% of roofline": of_roofline}
                named.append((kernels[number], "kernel", args))
            else:
                after = int(spans.after[i])
                args["after"] = kernels[after] if after != abi.STEP_MARK else ""
                named.append(("barrier", "barrier", args))
        for tid, (begins, ends) in enumerate(zip(spans.begins, spans.ends, strict=True)):
            for (name, kind, args), begin, end in zip(
                named, begins.tolist(), ends.tolist(), strict=True
            ):
                yield self.event(name, kind, tid, begin, end, args)
