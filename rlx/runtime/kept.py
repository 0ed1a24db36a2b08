"""The calls that a function remembers: found by what they were prepared for, and bounded."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

KEPT_BYTES = 256 << 20
"""Of results of calls that a function remembers, as large as they are together."""


class Kept(Protocol):
    """What a function remembers of a call."""

    @property
    def result_bytes(self) -> int: ...


C = TypeVar("C", bound=Kept)


class Calls(Generic[C]):
    """
    Calls of a function by what they were prepared for, with the arrays of their pools.

    Beyond `most` of them, or `KEPT_BYTES` of results, it starts over.
    """

    def __init__(self, most: int):
        self._most = most
        self._calls: dict[Any, C] = {}
        self._bytes = 0
        self.get = self._calls.get

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, key: Any, call: C) -> None:
        """Remember a call. Threads that do so at once may count a few bytes too little."""
        self._bytes += call.result_bytes
        if len(self._calls) >= self._most or self._bytes > KEPT_BYTES:
            self._calls.clear()
            self._bytes = call.result_bytes
        self._calls[key] = call
