"""Programs for sizes: built from a symbolic one when a variant first asks for them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from rlx.contract.symbols import BATCH, PAST_SEQ, SEQ, SYMBOL_NAMES, DimBinding
from rlx.contract.variant import ModelVariant
from rlx.errors import RlxError

T = TypeVar("T")


class Buckets:
    """Sizes that stand for those below them: each size counts as the smallest that holds it."""

    def __init__(self, sizes: Iterable[int]) -> None:
        self.sizes = sorted(set(sizes))

    @classmethod
    def powers_of_two(cls, low: int, high: int) -> Buckets:
        """Return `low`, its doubles below `high`, and `high`; both at least 1."""
        if not 1 <= low <= high:
            raise RlxError(f"buckets: expected 1 <= low <= high, got {low} and {high}")
        doublings = range((high // low).bit_length())
        return cls([*(low << i for i in doublings), high])

    def of(self, size: int) -> int:
        """Return the size to build for. Raises RlxError for one above the largest."""
        place = bisect_left(self.sizes, size)
        if place == len(self.sizes):
            largest = self.sizes[-1] if self.sizes else "none"
            raise RlxError(f"expected a size of at most {largest}, the largest bucket, got {size}")
        return self.sizes[place]


class Specializations(Generic[T]):
    """
    What `build` makes of the sizes of a variant, each made once.

    With `buckets` for a symbol, variants whose sizes share a bucket share what is built; the
    caller pads inputs to the sizes of `bucket(variant)` and takes the rows it needs. Beyond
    `capacity`, the one that was built first goes.
    """

    def __init__(
        self,
        build: Callable[[DimBinding], T],
        buckets: Mapping[int, Buckets] | None = None,
        capacity: int = 16,
    ) -> None:
        if capacity < 1:
            raise RlxError(f"specialisations: expected a capacity of at least 1, got {capacity}")
        self._build = build
        self._buckets = dict(buckets or {})
        self._capacity = capacity
        self._built: dict[int, T] = {}

    def bucket(self, variant: ModelVariant) -> ModelVariant:
        """Return the variant to build for. Raises RlxError for a size above all buckets."""
        past = variant.past_seq
        return replace(
            variant,
            batch=self._round(BATCH, variant.batch),
            seq=self._round(SEQ, variant.seq),
            past_seq=None if past is None else self._round(PAST_SEQ, past),
            extra=[(symbol, self._round(symbol, size)) for symbol, size in variant.extra],
        )

    def get(self, variant: ModelVariant) -> T:
        """Return the program for a variant, built if there is none. Raises what `build` does."""
        wanted = self.bucket(variant)
        key = wanted.cache_key()
        if key not in self._built:
            built = self._build(wanted.dim_binding())
            if len(self._built) == self._capacity:
                del self._built[next(iter(self._built))]
            self._built[key] = built
        return self._built[key]

    def __len__(self) -> int:
        return len(self._built)

    def _round(self, symbol: int, size: int) -> int:
        if symbol not in self._buckets:
            return size
        try:
            return self._buckets[symbol].of(size)
        except RlxError as error:
            name = SYMBOL_NAMES.get(symbol, f"symbol {int(symbol)}")
            raise RlxError(f"dimension {name}: {error}") from error
