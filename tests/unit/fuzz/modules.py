"""What is checked of a random module: its text, the passes in any order, and compiled code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO

import numpy as np
from kernels import levels
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from fuzz.checking import answers, assert_close, check_compiled, expected, parsed
from fuzz.programs import Case, Inputs, random_program
from rlx.errors import RlxError
from rlx.passes.diagnostics import verify
from rlx.passes.registry import PASSES
from rlx.passes.verify_stage import verify_stage

LEVELS = tuple(level for level in levels() if level != "alderlake")
MAX_PASSES = 14
NEED_MIR = ("fuse-", "hoist-params", "derive-phases", "set-precision", "unfuse")
"""How the names of passes begin that take MIR only; the others take both levels."""
ROUND = ("constant-fold", "unfuse")
"""Passes whose constants have the digits of their types, where the reference has more."""
ALLOWED_REFUSALS: tuple[str, ...] = ()
"""Regular expressions of refusals by the compiler that are known and left."""


class RefusedError(Exception):
    """The compiler said that it can't compile a module."""


def pass_names() -> list[str]:
    """Return the passes that keep what a program of HIR or MIR means, without the lowering."""
    left_out = ("verify-", "plan-lir", "legalize-hir", "bind")
    return [name for name in PASSES if not name.startswith(left_out)]


def random_passes(rng: np.random.Generator) -> list[ModulePass]:
    """Return passes in any order with the lowering among them, each after it that needs it."""
    names = [str(n) for n in rng.choice(pass_names(), int(rng.integers(0, MAX_PASSES)))]
    at = int(rng.integers(0, len(names) + 1))
    early = [n for n in names[:at] if not n.startswith(NEED_MIR)]
    chosen = [*early, "legalize-hir", *names[at:]]
    return [
        PASSES[name]()(expand=True) if name == "unfuse" and rng.random() < 0.5 else PASSES[name]()()
        for name in chosen
    ]


def check_text(module: ModuleOp) -> None:
    """A module is valid, and both of its forms read back as it is."""
    verify(module)
    verify_stage(module, "hir")
    text, out = str(module), StringIO()
    again = parsed(text)
    assert str(again) == text
    Printer(out, print_generic_format=True).print_op(again)
    assert str(parsed(out.getvalue())) == text


def check_passes(
    case: Case,
    module: ModuleOp,
    passes: Sequence[ModulePass],
    want: list[Inputs],
    single: list[Inputs],
) -> None:
    """Passes leave a valid module of MIR with the same results."""
    module = module.clone()
    for p in passes:
        p.apply(Context(), module)
        verify(module)
    verify_stage(module, "mir")
    after = expected(module, case.weights, case.steps)
    if any(p.name in ROUND for p in passes):
        assert_close(after, want, 1e-10, "after passes", single, case.noise)
    else:
        assert_close(after, want, 1e-20, "after passes", None, case.noise)


def check_module(seed: int, level: str | None = None) -> None:
    """Check the module of a seed; RefusedError where the compiler doesn't take it."""
    case = random_program(seed)
    module = parsed(case.text)
    check_text(module)
    want, single = answers(case, module)
    passes = random_passes(np.random.default_rng([seed, 1]))
    try:
        check_passes(case, module, passes, want, single)
    except Exception as e:
        e.add_note(f"after the passes {','.join(map(str, passes))}")
        raise
    level = level or LEVELS[seed % len(LEVELS)]
    try:
        check_compiled(case, module, want, single, [level])
    except (RlxError, VerifyException) as e:
        if any(re.search(pattern, str(e)) for pattern in ALLOWED_REFUSALS):
            return
        if "is not sound" in str(e):
            raise
        raise RefusedError(str(e)) from e
