"""What a process makes once, whatever its threads ask for at the same time."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from threading import RLock
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def once(make: Callable[P, T]) -> Callable[P, T]:
    """
    Return a function that gives what `make` gave at the first call with the same arguments.

    Unlike `functools.cache` it never makes two of which one is forgotten, perhaps while it works.
    """
    made: dict[Hashable, T] = {}
    lock = RLock()

    @wraps(make)
    def given(*args: P.args, **kwargs: P.kwargs) -> T:
        key = args, tuple(kwargs.items())
        if key not in made:
            with lock:
                if key not in made:
                    made[key] = make(*args, **kwargs)
        return made[key]

    return given
