"""Random modules: text, passes in any order, and compiled code at every instruction-set level."""

from __future__ import annotations

from collections.abc import Callable

from fuzz import pool


def test_random_modules(fuzz_count: Callable[[int, int], int]):
    wrong = pool.run(range(fuzz_count(2000, 100)))
    assert not wrong, pool.report(wrong)
