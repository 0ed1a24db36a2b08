"""`rlx-opt --reduce`: a module that fails as the given one does, and is as small as can be."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from rlx.errors import RlxError
from rlx.passes.diagnostics import verify
from rlx.passes.verify_stage import STAGES, verify_stage
from rlx.tools.opt.reductions import STEPS, Case, Step

Run = Callable[[ModuleOp, Sequence[ModulePass]], Exception | None]
"""Runs passes on a copy of a module and returns the error that it ends in, if any."""


@dataclass(frozen=True)
class Failure:
    """What errors of one kind have in common: the type, and the first line without its details."""

    kind: str
    title: str

    @staticmethod
    def of(error: Exception) -> Failure:
        title = str(error).split("\n", 1)[0].partition("error: ")[2]
        # Places in a text, names of values, addresses and numbers are those of one module.
        title = re.sub(r"[^\s(]+:\d+:\d+|%\w+|0x[0-9a-f]+|\b\d[\d.]*\b", "_", title)
        return Failure(type(error.__cause__ or error).__name__, title)


class Reducer:
    """Makes a case smaller as long as it is valid and fails in the same way."""

    def __init__(self, case: Case, run: Run, check: bool):
        error = run(case.module, case.passes)
        if error is None:
            raise RlxError("--reduce: expected a module that fails, and this one does not")
        self.case = case
        self.tries = 0
        self._run = run
        self._failure = Failure.of(error)
        self._check = check
        self._stage = next((s for s in STAGES if _is_valid(case.module, s)), None)

    def reduce(self) -> Case:
        """Apply every step until none makes the case smaller, and return it."""
        size = None
        while size != self.case.size:
            size = self.case.size
            for step in STEPS:
                self._apply(step)
        return self.case

    def _apply(self, step: Step) -> None:
        smaller = step(self.case)
        candidate = next(smaller, None)
        while candidate is not None:
            fails = candidate.size < self.case.size and self._fails(candidate)
            if fails:
                self.case = candidate
            try:
                candidate = smaller.send(fails)
            except StopIteration:
                return

    def _fails(self, case: Case) -> bool:
        self.tries += 1
        if self._check and not _is_valid(case.module, self._stage):
            return False
        error = self._run(case.module, case.passes)
        return error is not None and Failure.of(error) == self._failure


def _is_valid(module: ModuleOp, stage: str | None) -> bool:
    """Say whether a module prints and passes the checks, those of a stage if one is given."""
    try:
        str(module)
        verify(module)
        if stage is not None:
            verify_stage(module, stage)
    except Exception:
        return False
    return True
