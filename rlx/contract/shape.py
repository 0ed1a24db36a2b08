"""Element types, and shapes whose dimensions are sizes or symbols."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from rlx.contract.symbols import DimBinding, sym


class DType(StrEnum):
    """The type of a tensor's elements."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F64 = "f64"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U8 = "u8"
    U32 = "u32"
    BOOL = "bool"
    C64 = "c64"
    C128 = "c128"

    @property
    def bytes(self) -> int:
        """Return the bytes of one element."""
        return _BYTES[self]

    @property
    def is_int(self) -> bool:
        return self[0] in "iu"

    @property
    def is_float(self) -> bool:
        return self in (DType.F32, DType.F16, DType.BF16, DType.F64)

    def promote(self, other: DType) -> DType:
        """
        Return the type in which elements of the two types meet.

        An integer meets a float in f32, or in f64 where either has 64 bits. Of two types of one
        rank, such as u8 and i8, the first is kept.
        """
        if self is other:
            return self
        if {self, other} == {DType.F16, DType.BF16}:
            return DType.F32
        if (self.is_int and other.is_float) or (self.is_float and other.is_int):
            return DType.F64 if {self, other} & {DType.F64, DType.I64} else DType.F32
        return self if _RANKS[self] >= _RANKS[other] else other


_BYTES = {
    DType.BOOL: 1,
    DType.I8: 1,
    DType.U8: 1,
    DType.F16: 2,
    DType.BF16: 2,
    DType.I16: 2,
    DType.F32: 4,
    DType.I32: 4,
    DType.U32: 4,
    DType.F64: 8,
    DType.I64: 8,
    DType.C64: 8,
    DType.C128: 16,
}
_RANKS = {
    DType.BOOL: 0,
    DType.U8: 1,
    DType.I8: 1,
    DType.I16: 2,
    DType.BF16: 2,
    DType.F16: 3,
    DType.U32: 4,
    DType.I32: 4,
    DType.I64: 5,
    DType.F32: 6,
    DType.F64: 7,
    DType.C64: 8,
    DType.C128: 9,
}


@dataclass(frozen=True, init=False, eq=False, slots=True)
class Shape:
    """
    The dimensions of a tensor, outermost first, and its element type; prints `[4, ?seq] f32`.

    A dimension is a size in elements or a `sym`. Nothing is checked here: `Graph.verify` does.
    """

    dims: tuple[int, ...]
    dtype: DType

    def __init__(self, dims: Iterable[int], dtype: DType | str = DType.F32) -> None:
        object.__setattr__(self, "dims", tuple(dims))
        object.__setattr__(self, "dtype", DType(dtype))

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def is_static(self) -> bool:
        """Return whether every dimension is a size."""
        return not any(isinstance(d, sym) for d in self.dims)

    @property
    def dynamic_symbols(self) -> list[int]:
        """Return the symbols, sorted, each once."""
        return sorted({d for d in self.dims if isinstance(d, sym)})

    def num_elements(self) -> int | None:
        """Return the number of elements, or None while a dimension is a symbol."""
        return prod(self.dims) if self.is_static else None

    def size_bytes(self) -> int | None:
        """Return the size in bytes, or None while a dimension is a symbol."""
        return prod(self.dims) * self.dtype.bytes if self.is_static else None

    def bind(self, binding: DimBinding) -> Shape:
        """Return this shape with a size for each symbol that is bound; the others stay."""
        return Shape((bind_dim(d, binding) for d in self.dims), self.dtype)

    def with_dim(self, axis: int, dim: int) -> Shape:
        """Return this shape with another dimension at `axis`. Raises IndexError beyond the rank."""
        dims = list(self.dims)
        dims[axis] = dim
        return Shape(dims, self.dtype)

    def with_dtype(self, dtype: DType) -> Shape:
        return Shape(self.dims, dtype)

    # As ints, a symbol equals the size of its number: shapes compare as they print.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.dims))}] {self.dtype}"

    def __repr__(self) -> str:
        return f"Shape({list(self.dims)}, '{self.dtype}')"


def bind_dim(dim: int, binding: DimBinding) -> int:
    """Return the size of a dimension, or the dimension itself where it is a symbol not bound."""
    if not isinstance(dim, sym):
        return dim
    size = binding.get(dim)
    return dim if size is None else size


def spell_dim(dim: int) -> int | str:
    """Return a dimension for JSON: a size, or `?` and a symbol's number."""
    return f"?{int(dim)}" if isinstance(dim, sym) else int(dim)


def read_dim(spelled: int | str) -> int:
    """Read what `spell_dim` gave. Raises ValueError on anything else."""
    if isinstance(spelled, int):
        return spelled
    if not spelled.startswith("?"):
        raise ValueError(f"expected a size or a symbol such as '?1', got {spelled!r}")
    return sym(spelled[1:])
