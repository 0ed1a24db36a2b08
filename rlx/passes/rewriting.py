"""The one driver for rewrite patterns: it ends, and an error of a pattern stays as it was said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, Region
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriterListener,
    PatternRewriteWalker,
    RewritePattern,
)

from rlx.passes.diagnostics import IrError

REWRITES, REWRITES_PER_OPERATION = 10_000, 64
"""How many rewrites a module may take: so many, and more for each operation it begins with."""

Patterns: TypeAlias = Sequence[RewritePattern]
AfterWalk: TypeAlias = Callable[[Region, PatternRewriterListener], bool]


def rewrite(
    module: ModuleOp,
    patterns: Patterns | Callable[[Operation], Patterns],
    *,
    after_walk: AfterWalk | None = None,
) -> bool:
    """
    Apply patterns, or those for each operation, until nothing changes; return whether any did.

    At an operation the first pattern counts that changes something. `after_walk` runs after each
    walk and says whether it changed something. Raises what a pattern raises, and IrError, which
    names the patterns, where the rewriting does not come to an end.
    """
    counted = _Counted(patterns, sum(1 for _ in module.walk()))
    try:
        return PatternRewriteWalker(counted, post_walk_func=after_walk).rewrite_module(module)
    except _Stop as e:
        raise e.error from e.error.__cause__


class _Stop(BaseException):
    """Carries an error past xDSL's walker, which would print the whole module into its text."""

    def __init__(self, error: Exception):
        super().__init__(str(error))
        self.error = error


class _Counted(RewritePattern):
    """Patterns of which the first that fits is applied, and how often each was."""

    def __init__(self, patterns: Patterns | Callable[[Operation], Patterns], size: int):
        self._patterns = patterns
        self._size = size
        self._counts: Counter[str] = Counter()

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        around, name = op.parent_op(), op.name
        for pattern in self._patterns(op) if callable(self._patterns) else self._patterns:
            try:
                pattern.match_and_rewrite(op, rewriter)
            except Exception as e:
                raise _Stop(e) from None
            if rewriter.has_done_action:
                self._count(type(pattern).__name__, op if op.parent else around or op, name)
                return

    def _count(self, pattern: str, place: Operation, name: str) -> None:
        self._counts[pattern] += 1
        total = self._counts.total()
        if total <= REWRITES + REWRITES_PER_OPERATION * self._size:
            return
        # Those that go round in circles have a large share each.
        names = sorted(p for p, n in self._counts.items() if n * 10 >= total)
        verb = "was" if len(names) == 1 else "were"
        error = IrError(
            place,
            f"rewriting does not end: {' and '.join(names)} {verb} applied {total:,} times in a "
            f"module of {self._size} operations, last to {name}: a pattern must not match what "
            "it or another pattern makes",
        )
        raise _Stop(error)
