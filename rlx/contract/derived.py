"""Sizes that derive from two others, by operators that are monotone where they are used."""

from __future__ import annotations

from collections.abc import Callable
from operator import add, mul

OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": add,
    "*": mul,
    "-": lambda a, b: max(a - b, 0),
    "ceildiv": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
}
"""Operator -> the size. What is taken away, and what divides, is a constant of at least 0 or 1."""

BY_CONSTANT = ("-", "ceildiv")
"""Operators whose second operand is a constant, so that the bounds of the first give theirs."""
