"""
What a load or a compilation is doing: stages with their times, and a line on a terminal.

    with recorded() as stages, stage("loading"):
        with stage("prologue"):
            ...
    print(stages.table())

Stages nest. Without a `recorded` around them they cost a microsecond, and are shown on a terminal
where the outermost one takes long.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import TextIO, cast

SHOWN_AFTER_S = 1.0
"""How long a load or a compilation takes before a terminal shows what it is doing."""
_EVERY_S = 0.1
_WIDTH = 78


@dataclass
class Stage:
    """A stage that is over, or under way while `seconds` is below 0."""

    depth: int
    name: str
    seconds: float = -1.0


class Stages:
    """Stages in the order in which they began."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self._open: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        entry = Stage(len(self._open), name)
        self.stages.append(entry)
        self._open.append(name)
        started = time.perf_counter()
        try:
            yield
        finally:
            entry.seconds = time.perf_counter() - started
            self._open.pop()

    def add(self, name: str, seconds: float) -> None:
        """Note a stage that is over, with its time."""
        self.stages.append(Stage(len(self._open), name, seconds))

    def as_json(self) -> list[dict[str, object]]:
        return [asdict(s) for s in self.stages]

    def now(self) -> str:
        """Return what is under way, the outermost first."""
        return ": ".join(self._open)

    def table(self) -> str:
        """Return the stages with their times as text: milliseconds, inner stages indented."""
        width = max((2 * s.depth + len(s.name) for s in self.stages), default=0)
        rows = [f"{'  ' * s.depth + s.name:{width}} {s.seconds * 1e3:9.1f} ms" for s in self.stages]
        return "\n".join(rows)


_current: ContextVar[Stages | None] = ContextVar("stages", default=None)


@contextmanager
def recorded() -> Generator[Stages]:
    """Keep the stages of this thread, inner ones of a `recorded` around it too."""
    stages = Stages()
    before = _current.set(stages)
    try:
        yield stages
    finally:
        _current.reset(before)


@contextmanager
def stage(name: str) -> Generator[None]:
    """Say what this thread is doing, for who records it and for a terminal."""
    stages = _current.get()
    if stages is None:
        yield
        return
    with stages.stage(name):
        yield


@contextmanager
def shown(name: str) -> Generator[None]:
    """
    Do the work of a stage that may take long: a terminal shows what it is doing from a second on.

    Nothing is shown where stderr is not a terminal, nor of a stage inside another one that is.
    """
    stages, terminal = _current.get(), cast("TextIO | None", sys.stderr)
    if terminal is None or not terminal.isatty() or (stages is not None and stages.now()):
        with stage(name):
            yield
        return
    stages = stages or Stages()
    before = _current.set(stages)
    over = threading.Event()
    ticker = threading.Thread(target=_tick, args=(stages, terminal, over), daemon=True)
    ticker.start()
    try:
        with stages.stage(name):
            yield
    finally:
        _current.reset(before)
        over.set()
        ticker.join()


def _tick(stages: Stages, terminal: TextIO, over: threading.Event) -> None:
    """Write what is under way in one line, again and again, and clear the line in the end."""
    started = time.perf_counter()
    if over.wait(SHOWN_AFTER_S):
        return
    try:
        while True:
            text = f"rlx: {time.perf_counter() - started:.1f} s: {stages.now()}"
            terminal.write(f"\r{text[:_WIDTH]:{_WIDTH}}")
            terminal.flush()
            if over.wait(_EVERY_S):
                break
        terminal.write(f"\r{'':{_WIDTH}}\r")
        terminal.flush()
    except (OSError, ValueError):
        # The terminal is gone; the work goes on.
        return
