"""Random inputs for the records of operations: sizes that kernels stumble over, and values."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SIZES = (1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 31, 32, 33, 47, 64, 97)
"""One, the widths of vectors and their neighbours, and primes."""
LARGE = (127, 256, 257, 1021)

DTYPES: dict[str, Any] = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "i8": np.int8, "i16": np.int16,
    "i32": np.int32, "i64": np.int64, "u8": np.uint8, "u32": np.uint32, "i1": np.bool_,
}  # fmt: skip


class Draw:
    """Draws sizes and arrays; `element` is the one that the test asks for, such as `f32`."""

    def __init__(self, seed: int, element: str = "f32", most: int = 1 << 14):
        self.rng = np.random.default_rng(seed)
        self.element = element
        self.most = most
        """Elements of an array, about."""

    @property
    def dtype(self) -> type[Any]:
        return DTYPES[self.element]

    @property
    def is_float(self) -> bool:
        return self.element.startswith("f")

    def size(self, low: int = 1, high: int = 1 << 30) -> int:
        """Return a size that kernels stumble over, between bounds."""
        fits = [s for s in (*SIZES, *LARGE) if low <= s <= high] or [low]
        if low == 0 and self.chance(0.05):
            return 0
        return int(self.rng.choice(fits))

    def shape(self, *rank: int, low: int = 1) -> tuple[int, ...]:
        """Return a shape of one of the given ranks, of not too many elements."""
        dims = [self.size(low) for _ in range(int(self.rng.choice(rank)))]
        while prod(dims) > self.most:
            i = dims.index(max(dims))
            dims[i] = max(low, dims[i] // 2)
        return tuple(dims)

    def chance(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def choice(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def between(self, low: int, high: int) -> int:
        """Return an integer from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def array(
        self, shape: Sequence[int], low: float = -3.0, high: float = 3.0, element: str = ""
    ) -> Array:
        """Return numbers of the element, evenly between bounds (integers: their whole range)."""
        name = element or self.element
        dtype = DTYPES[name]
        if name == "i1":
            return self.rng.random(shape) < 0.5
        if name.startswith("f"):
            return self.rng.uniform(low, high, shape).astype(dtype)
        info = np.iinfo(dtype)
        return self.rng.integers(info.min, info.max, shape, dtype, endpoint=True)

    def ids(self, shape: Sequence[int], count: int, element: str = "i64") -> Array:
        """Return indices below a count."""
        return self.rng.integers(0, max(count, 1), shape).astype(DTYPES[element])
