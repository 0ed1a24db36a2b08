"""`rlx-opt --bisect-numerics`: the first pass after which a program's outputs are others."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from typing import TypeAlias

import numpy as np
from xdsl.dialects.builtin import ModuleOp, StringAttr

from rlx.dialects.common import DimTable
from rlx.dialects.lir import ADVANCE
from rlx.errors import RlxError
from rlx.passes.program import Program
from rlx.tools.opt.program_io import is_planned
from rlx.tools.opt.run import Array, Trial, zero_state
from rlx.tools.opt.statistics import count

ALLOWED = {"reference": 1e-12, "jit": 1e-6}
"""Normalised mean squared errors that are allowed: float64 in another order, and float32."""
SHOWN, WIDTH = 4, 120
"""Outputs and changed lines that an error shows, and characters of such a line."""
STATE = "state "
"""What the name of a state begins with, among the outputs."""

Results: TypeAlias = dict[str, list[Array]]
"""What an output was at each step, and what a state holds at the end for each layer."""


class DivergenceError(RlxError):
    """Outputs differ from those of the input; the first line says after which pass."""


class Bisection:
    """
    The outputs of a program after each pass, compared with those of the module that is given.

    A program whose state `rlx.advance` moves on takes two steps, where the sizes allow it: the
    second reads what the first wrote.
    """

    def __init__(self, module: ModuleOp, args: Namespace):
        self._trial = Trial(module, args)
        self._allowed: float | None = args.threshold
        self._steps = [self._trial.sizes]
        self._wanted = self._run(module)
        following = _following(module, self._trial.sizes)
        if following != self._trial.sizes:
            self._steps.append(following)
            try:
                self._wanted = self._run(module)
            except RlxError:
                self._steps.pop()
        self._rows = [(_how(module), "input", ", ".join(self._wanted))]
        self._before = _Snapshot(module)

    def after(self, name: str, module: ModuleOp) -> None:
        """Run the module that a pass has made; raises DivergenceError where outputs differ."""
        snapshot = _Snapshot(module)
        changes = self._before.changes(snapshot)
        try:
            got = self._run(module)
        except Exception as e:
            raise DivergenceError(f"no run after pass '{name}'\n  {e}\n{changes}") from e
        allowed = ALLOWED[_how(module)] if self._allowed is None else self._allowed
        # Passes may drop a state that nothing reads, and compiled code keeps it to itself.
        keys = [k for k in self._wanted if k in got or not k.startswith(STATE)]
        errors = {key: _error(got.get(key), self._wanted[key]) for key in keys}
        wrong = [key for key in keys if not errors[key] <= allowed]
        if wrong:
            lines = [_explain(key, got.get(key), self._wanted[key]) for key in wrong[:SHOWN]]
            rule = f"  by the {_how(module)}, with an NMSE of {allowed:g} allowed (--threshold)"
            title = f"outputs diverge after pass '{name}'"
            raise DivergenceError("\n".join([title, *lines, *_more(wrong), rule, changes]))
        spelled = ", ".join(f"{key} {error:.2g}" for key, error in errors.items())
        self._rows.append((_how(module), name, spelled))
        self._before = snapshot

    def table(self) -> str:
        """Return a line for each module that was run: how, after which pass, and the errors."""
        width = max(len(name) for _, name, _ in self._rows)
        lines = [f"{how:9}  {name:{width}}  {errors}".rstrip() for how, name, errors in self._rows]
        return "\n".join(["// NMSE of outputs, against those of the input", *lines]) + "\n"

    def _run(self, module: ModuleOp) -> Results:
        state = zero_state(module)
        trial = self._trial
        run = trial.compiled(module) if is_planned(module) else trial.reference(module, state)
        results: Results = {}
        for sizes in self._steps:
            for name, array in run(sizes).items():
                results.setdefault(name, []).append(array)
        for (symbol, _), array in state.items():
            results.setdefault(f"{STATE}@{symbol}", []).append(array)
        return results


def _how(module: ModuleOp) -> str:
    return "jit" if is_planned(module) else "reference"


def _following(module: ModuleOp, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the step after one of `sizes`."""
    bound = DimTable.of(module).bind(sizes)
    steps = dict(Program(module).pairs(ADVANCE))
    return {dim: n + bound[steps[dim]] if dim in steps else n for dim, n in sizes.items()}


# What differs


def nmse(got: Array, wanted: Array) -> float:
    """
    Return the mean squared error of a result over the mean square of what was expected.

    It is infinite where infinities and NaN stand in different places.
    """
    g, w = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(w) & np.isfinite(g)
    if not np.array_equal(g[~finite], w[~finite], equal_nan=True):
        return np.inf
    g, w = g[finite], w[finite]
    with np.errstate(over="ignore"):
        error, scale = float(((g - w) ** 2).sum()), float((w**2).sum())
    return error / scale if scale else np.inf if error else 0.0


def _shapes(arrays: Sequence[Array]) -> list[list[int]]:
    return [list(a.shape) for a in arrays]


def _error(got: Sequence[Array] | None, wanted: Sequence[Array]) -> float:
    """Return the largest error of a result over its steps; infinite for another shape."""
    if got is None or _shapes(got) != _shapes(wanted):
        return np.inf
    return max(map(nmse, got, wanted), default=0.0)


def _explain(key: str, got: Sequence[Array] | None, wanted: Sequence[Array]) -> str:
    """Return how a result differs: its NMSE, and where the values stand that differ most."""
    if got is None:
        return f"  {key}: it is gone"
    if _shapes(got) != _shapes(wanted):
        return f"  {key}: expected the shape {_shapes(wanted)[0]}, got {_shapes(got)[0]}"
    errors = list(map(nmse, got, wanted))
    i = int(np.argmax(errors))
    g, w = got[i].astype(np.float64), wanted[i].astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.where((g == w) | (np.isnan(g) & np.isnan(w)), 0, np.abs(g - w))
    distance = np.nan_to_num(distance, nan=np.inf)
    place = np.unravel_index(int(distance.argmax()), distance.shape)
    part = f"layer {i}" if key.startswith(STATE) else f"step {i + 1}"
    at = f"{part}, {[int(n) for n in place]}" if len(got) > 1 else f"{[int(n) for n in place]}"
    values = f"expected {w[place]:.6g}, got {g[place]:.6g}"
    return f"  {key}: NMSE {errors[i]:.3g}, at {at} {values}"


# What changed


class _Snapshot:
    """A module as text, by symbol, and its operations, to see what a pass changes."""

    def __init__(self, module: ModuleOp):
        self.counts = count(module)
        self.texts: dict[str, list[str]] = {}
        for op in module.ops:
            name = op.properties.get("sym_name")
            key = f"@{name.data}" if isinstance(name, StringAttr) else op.name
            self.texts[key] = str(op).split("\n")

    def changes(self, after: _Snapshot) -> str:
        """Return the symbols that differ, which operations came and went, and the first lines."""
        before, now = self.texts, after.texts
        symbols = [s for s in {**before, **now} if before.get(s) != now.get(s)]
        diffs = (unified_diff(before.get(s, []), now.get(s, []), n=0, lineterm="") for s in symbols)
        # A diff begins with two lines of a title.
        lines = [line for diff in diffs for line in list(diff)[2:] if not line.startswith("@")]
        counts = [f"-{n} {name}" for name, n in (self.counts - after.counts).items()]
        counts += [f"+{n} {name}" for name, n in (after.counts - self.counts).items()]
        report = [f"  changed: {', '.join(symbols) or 'nothing'}"]
        report += [f"  operations: {', '.join(counts)}"] if counts else []
        report += [f"    {line}" for line in lines[:SHOWN]]
        return "\n".join([*(_cut(line) for line in report), *_more(lines)])


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[:WIDTH]} ..."


def _more(items: Sequence[str]) -> list[str]:
    return [f"    and {len(items) - SHOWN} more"] if len(items) > SHOWN else []
