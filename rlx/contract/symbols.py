"""Symbolic dimensions: their numbers in the contract, their names in the IR, their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from rlx.errors import RlxError


class sym(int):
    """
    A symbol: the number of a dimension whose size is bound later, `sym(7)` or `sym.SEQ`.

    It compares and hashes as the number, and prints as `?seq` or `?7`. In a `Shape` it stands for
    the size, where a plain int is the size itself.
    """

    __slots__ = ()

    BATCH: ClassVar[sym]
    SEQ: ClassVar[sym]
    ROWS: ClassVar[sym]
    PAST_SEQ: ClassVar[sym]

    def __repr__(self) -> str:
        return f"?{SYMBOL_NAMES.get(int(self), int(self))}"


BATCH = sym.BATCH = sym(0)
SEQ = sym.SEQ = sym(1)
ROWS = sym.ROWS = sym(2)
PAST_SEQ = sym.PAST_SEQ = sym(3)

SYMBOL_NAMES: dict[int, str] = {BATCH: "batch", SEQ: "seq", ROWS: "rows", PAST_SEQ: "past"}
"""The name in the IR of each well-known symbol."""

SYMBOL_NUMBERS = {name: symbol for symbol, name in SYMBOL_NAMES.items()}
"""The inverse of `SYMBOL_NAMES`."""


class DimBinding:
    """A size for each bound symbol; iterates as (symbol, size) in ascending order of symbols."""

    __slots__ = ("_sizes",)

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[int, int]]) -> DimBinding:
        """Bind each (symbol, size); the last pair of a symbol wins."""
        binding = cls()
        for symbol, size in pairs:
            binding.set(symbol, size)
        return binding

    @classmethod
    def batch_seq(cls, batch: int, seq: int) -> DimBinding:
        """Bind BATCH and SEQ, and for a real batch (more than 1) also ROWS = batch * seq."""
        binding = cls.from_pairs([(BATCH, batch), (SEQ, seq)])
        if batch > 1:
            binding.set(ROWS, batch * seq)
        return binding

    @classmethod
    def batch_past_seq(cls, batch: int, past_seq: int) -> DimBinding:
        """Bind BATCH and PAST_SEQ only."""
        return cls.from_pairs([(BATCH, batch), (PAST_SEQ, past_seq)])

    def set(self, symbol: int, size: int) -> None:
        """Bind `symbol` to `size` elements, replacing an earlier size."""
        if size < 0:
            name = SYMBOL_NAMES.get(symbol, f"symbol {symbol}")
            raise RlxError(f"dimension {name}: expected a size of 0 or more, got {size}")
        self._sizes[symbol] = size

    def get(self, symbol: int) -> int | None:
        """Return the size of `symbol`, or None when it is not bound."""
        return self._sizes.get(symbol)

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(sorted(self._sizes.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DimBinding) and self._sizes == other._sizes

    def __repr__(self) -> str:
        sizes = ", ".join(f"{SYMBOL_NAMES.get(s, int(s))}={size}" for s, size in self)
        return f"DimBinding({sizes})"
