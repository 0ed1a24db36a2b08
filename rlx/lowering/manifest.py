"""
What the runtime must know of a compiled program: sizes, buffers to bind, weights to pack.

It is plain data that is kept as JSON beside the object code, so that a program runs from the cache
without its IR.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple, cast

from rlx.contract.derived import OPERATORS
from rlx.errors import RlxError

ALIGNMENT = 64
"""Bytes that the start of a place is a multiple of."""
MOST = 1 << 31
"""Elements of the smallest tensor that a program without bounds refuses."""


class Dimension(NamedTuple):
    """A dimension's bounds; `operator` and `operands` where it derives from others."""

    name: str
    low: int
    high: int
    operator: str = ""
    operands: tuple[str, ...] = ()

    @property
    def free(self) -> bool:
        return not self.operator and self.low != self.high


class Bound(NamedTuple):
    """The sum of `terms` is at most `limit`, or just that where it is `exact`."""

    terms: tuple[int | str, ...]
    limit: int | str
    what: str
    exact: bool = False

    def holds(self, sizes: Mapping[str, int]) -> bool:
        total = sum(_size(t, sizes) for t in self.terms)
        limit = _size(self.limit, sizes)
        return total == limit if self.exact else total <= limit

    def __str__(self) -> str:
        relation = "=" if self.exact else "<="
        return f"{' + '.join(map(str, self.terms))} {relation} {self.limit} ({self.what})"


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _size(dim: int | str, sizes: Mapping[str, int]) -> int:
    return dim if isinstance(dim, int) else sizes[dim]


class Io(NamedTuple):
    """A buffer that the caller binds; dimensions are numbers or names."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]
    index_bound: int = 0
    """Where not 0, elements are indices in [0, index_bound)."""


class Weight(NamedTuple):
    """A packed weight: its places in the weight segment and among the sources."""

    key: str
    format: str
    """Of the source, whose elements packing may round."""
    packed: str
    """Of what it becomes: of panels, or, where it isn't packed, of the source."""
    shape: tuple[int, ...]
    offset: int
    stride: int
    first: int
    last: int
    source: int

    def keys(self) -> list[str]:
        """Return the keys of the members, in order."""
        return [self.key.replace("{layer}", str(layer)) for layer in range(self.first, self.last)]


class Site(NamedTuple):
    """A launch of a kernel, with what it moves in bytes, or a barrier where `kernel` is empty."""

    kernel: str = ""
    weight_bytes: int = 0
    read: tuple[tuple[int, tuple[str, ...]], ...] = ()
    written: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """Beside weights: sums of a number times dimensions."""

    def moved(self, sizes: Mapping[str, int]) -> int:
        """Return the bytes of weights, of what is read and of what is written, together."""
        terms = (*self.read, *self.written)
        return self.weight_bytes + sum(n * prod(sizes[d] for d in names) for n, names in terms)


class Manifest(NamedTuple):
    """A compiled program; sizes in bytes."""

    name: str
    fingerprint: str
    arena_bytes: int
    arena_lower_bound_bytes: int
    state_bytes: int
    weight_segment_bytes: int
    weight_bytes_per_step: int
    barriers_per_step: int
    launches_per_step: int
    kernels: int
    dims: tuple[Dimension, ...]
    inputs: tuple[Io, ...]
    outputs: tuple[Io, ...]
    weights: tuple[Weight, ...]
    states: tuple[tuple[str, int, int], ...]
    """Name, offset and stride of each state."""
    bounds: tuple[Bound, ...]
    """What the sizes must satisfy beyond the dimensions' own bounds."""
    places: tuple[tuple[tuple[int, tuple[str, ...]], ...], ...] = ()
    """
    What lies in each place of the arena that has no bound: bytes, as a number times dimensions.

    They come after the `arena_bytes` that have one.
    """
    shapes: tuple[tuple[int | str, ...], ...] = ()
    """Shapes without a bound, of which each has fewer than `MOST` elements."""
    work: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """Operations on elements of a step, about, as sums of a number times dimensions."""
    carries: bool = False
    """Whether a step's token is the next step's input, so that one call may take several."""
    parts: int = 1
    """In how many parts a step can be run; see `parts.py`."""
    open_ended: bool = False
    """Whether a step has a loop whose turns are known only when it ends."""
    sites: tuple[Site, ...] = ()
    """What the marks of a step are numbered by; empty for a program without marks."""
    stack_bytes: int = 0
    """Of its code's frames: what a thread must have left of its stack."""

    @property
    def free(self) -> list[str]:
        return [d.name for d in self.dims if d.free]

    def most(self, dimension: str) -> int:
        """Return the upper bound of a dimension."""
        return next(d.high for d in self.dims if d.name == dimension)

    def bind(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """
        Return the size of every dimension, given those of the free ones.

        Raises RlxError for a size that is missing or outside its bounds.
        """
        values: dict[str, int] = {}
        for d in self.dims:
            if d.operator:
                a, b = (values[o] for o in d.operands)
                values[d.name] = OPERATORS[d.operator](a, b)
                continue
            value = sizes.get(d.name, d.low) if d.free else d.low
            if d.free and d.name not in sizes:
                raise RlxError(f"{self.name}: expected a size for dimension '{d.name}'")
            if not d.low <= value <= d.high:
                raise RlxError(
                    f"{self.name}: dimension '{d.name}' must be from {d.low} to {d.high}, "
                    f"got {value}"
                )
            values[d.name] = value
        for shape in self.shapes:
            if prod(_size(d, values) for d in shape) >= MOST:
                raise RlxError(
                    f"{self.name}: expected tensors of fewer than 2^31 elements, got one of "
                    f"{[_size(d, values) for d in shape]}: fix its sizes (in rlx.jit with "
                    "specialize=), or give its dimensions bounds"
                )
        for bound in self.bounds:
            if not bound.holds(values):
                names = dict.fromkeys(t for t in (*bound.terms, bound.limit) if isinstance(t, str))
                given = ", ".join(f"{n} = {values[n]}" for n in names)
                raise RlxError(f"{self.name}: expected {bound}, got {given}")
        return values

    def layout(self, sizes: Mapping[str, int]) -> tuple[list[int], int]:
        """Return the offset of each place for the sizes of all dimensions, and the arena's end."""
        offsets: list[int] = []
        end = _aligned(self.arena_bytes)
        for members in self.places:
            offsets.append(end)
            end += _aligned(max(n * prod(sizes[d] for d in names) for n, names in members))
        return offsets, end

    def to_json(self) -> str:
        return json.dumps(self)

    @staticmethod
    def from_json(text: str) -> Manifest:
        read = Manifest(*_tupled(json.loads(text)))
        return read._replace(
            dims=tuple(Dimension(*d) for d in read.dims),
            inputs=tuple(Io(*io) for io in read.inputs),
            outputs=tuple(Io(*io) for io in read.outputs),
            weights=tuple(Weight(*w) for w in read.weights),
            bounds=tuple(Bound(*b) for b in read.bounds),
            sites=tuple(Site(*s) for s in read.sites),
        )


def _tupled(data: Any) -> Any:
    """Return data with JSON's lists as the tuples they were."""
    return tuple(map(_tupled, cast(list[Any], data))) if isinstance(data, list) else data
