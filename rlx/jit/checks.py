"""What `rlx.jit` takes: functions, options and arguments, each checked with a clear message."""

from __future__ import annotations

import inspect
from typing import Any, cast

import numpy as np

from rlx.checks import iterated
from rlx.errors import RlxError
from rlx.jit.trace import DTYPES

_ARRAYS = (np.ndarray, np.memmap)
INT64 = range(-(1 << 63), 1 << 63)
NUMBERS: dict[type, type | None] = {bool: None, int: int, float: float}
"""Python's numbers, and as which their dtype gives way to those of arrays."""


def class_of(x: object) -> type:
    return type(x)


def signature_of(function: Any) -> inspect.Signature:
    """Return the arguments of what can be traced; raises RlxError for anything else."""
    if not callable(function):
        raise RlxError(f"rlx.jit: expected a function, got {function!r:.80}")
    for what in (function, getattr(function, "__call__", None)):
        if inspect.isgeneratorfunction(what) or inspect.isasyncgenfunction(what):
            raise RlxError(
                f"rlx.jit: expected a function that returns arrays, got a generator, {function!r}: "
                "return a list, or use rlx.scan"
            )
        if inspect.iscoroutinefunction(what):
            raise RlxError(
                f"rlx.jit: expected a function, got a coroutine, {function!r}: decorate the "
                "functions of arrays that it calls"
            )
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise RlxError(
            f"rlx.jit: expected a function of Python, got {function!r:.80}, whose arguments are "
            "not known: call it in a function of your own"
        ) from None


def axes_of(name: str, axes: object) -> tuple[int, ...]:
    wanted = f"axes of argument '{name}', as (0,) or (0, 1)"
    found = tuple(iterated("specialize", axes, wanted))
    if not all(isinstance(axis, int) for axis in found):
        raise RlxError(f"specialize: expected {wanted}, got {axes!r:.80}")
    return cast("tuple[int, ...]", found)


def check_hashable(function: str, name: str, value: object) -> None:
    try:
        hash(value)
    except TypeError:
        raise RlxError(
            f"{function}: static argument '{name}': expected a value with a hash, got "
            f"{type(value).__name__}: give a tuple instead of a list, an array as a plain argument"
        ) from None


def checked(what: str, x: Any) -> Any:
    """Return a leaf that can be an input; raises RlxError for any other."""
    if class_of(x) is int and x not in INT64:
        raise RlxError(
            f"{what}: expected an integer of int64, from -2^63 to 2^63 - 1, got one of "
            f"{x.bit_length()} bits: give a float"
        )
    if type(x) in NUMBERS:
        return x
    if type(x) in _ARRAYS or isinstance(cast(object, x), np.generic):
        if x.dtype.newbyteorder("=") in DTYPES:
            return x
        names = ", ".join(d.name for d in DTYPES)
        raise RlxError(
            f"{what}: expected an array of {names}, got {x.dtype}: convert it with astype"
        )
    kind = class_of(x).__name__
    first = "convert it with numpy.asarray"
    if what.endswith("'self'"):
        first = f"make {kind} a dataclass or a named tuple of arrays"
    raise RlxError(
        f"{what}: expected a numpy array or a number, got {kind}: {first}, or name the argument in "
        "static_argnames"
    )
