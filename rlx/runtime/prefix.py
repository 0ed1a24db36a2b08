"""What of a prompt is in a model's state already, so that it need not be computed again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile


class Prefix:
    """
    The tokens whose keys and values prefill has written into a state, from position 0 on.

    What prefill gives does not depend on how a prompt is split, to the bit. Decode agrees with it
    to rounding only, so tokens that it has fed do not count: reuse changes no bit of an answer.
    """

    def __init__(self) -> None:
        self._ids: list[int] = []

    def shared(self, ids: Sequence[int]) -> int:
        """Return how many tokens of a prompt are there; its last one always has to be fed."""
        pairs = zip(self._ids, ids[:-1], strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def cut(self, past: int) -> None:
        """Note that positions from `past` on are about to be written."""
        del self._ids[past:]

    def fed(self, past: int, ids: Sequence[int]) -> None:
        """Note that prefill has written tokens from `past` on, where it began behind its own."""
        if len(self._ids) == past:
            self._ids += ids
