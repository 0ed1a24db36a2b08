"""Checks of what callers give: one clear RlxError that names the argument."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from numbers import Real
from operator import index
from typing import Any, SupportsIndex, cast

from rlx.errors import RlxError


def integer(what: str, value: object, low: int, high: float = inf) -> int:
    """Return an integer in [low, high], NumPy's among them; raises RlxError for anything else."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        try:
            number = index(value)
        # An array has the method too, and refuses.
        except TypeError:
            number = low - 1
        if low <= number <= high:
            return number
    bound = f"of at least {low}" if high == inf else f"from {low} to {high}"
    raise RlxError(f"{what}: expected an integer {bound}, got {value!r}")


def real(what: str, value: object, low: float, high: float, *, above: bool = False) -> float:
    """Return a number in [low, high], or (low, high] where `above`; raises RlxError otherwise."""
    if isinstance(value, Real):
        number = float(value)
        if low <= number <= high and not (above and number == low):
            return number
    bound = f"above {low:g} and up to {high:g}" if above else f"from {low:g} to {high:g}"
    raise RlxError(f"{what}: expected a number {bound}, got {value!r}")


def boolean(what: str, value: object) -> bool:
    """Return True or False, NumPy's among them; raises RlxError for anything else."""
    # By its name, as NumPy is not imported here.
    if type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise RlxError(f"{what}: expected True or False, got {value!r:.80}")


def iterated(what: str, value: object, wanted: str) -> Iterator[Any]:
    """
    Return the items of a sequence, of what is `wanted`; raises RlxError for anything else.

    Texts, bytes and mappings, which are iterated in another meaning, are anything else.
    """
    if not isinstance(value, str | bytes | Mapping):
        # An array without dimensions has the method, and refuses.
        with suppress(TypeError):
            return iter(cast(Iterable[Any], value))
    raise RlxError(f"{what}: expected {wanted}, got {value!r:.80}")


def choice(what: str, value: object, options: Sequence[str]) -> str:
    """Return one of some texts; raises RlxError for anything else, arrays among it."""
    if isinstance(value, str) and value in options:
        return str(value)
    raise RlxError(f"{what}: expected one of {', '.join(options)}, got {value!r:.80}")
