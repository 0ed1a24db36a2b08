"""How a matrix product is cut, what its numbers are, and parts of vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlx.lowering.emitter import Function
from rlx.lowering.target import LINE, Target
from rlx.lowering.values import Index, Value, vec

SIZES = {"float": 4, "double": 8, "i32": 4, "i64": 8}
"""What sums are made of, and its bytes."""


@dataclass(frozen=True)
class Tiling:
    """
    How a product is cut: register tiles of rows x vectors, blocks of k, blocks of rows.

    What is multiplied is packed into words as large as the sums. A word is an element, or holds
    `group` elements of one byte that follow each other along k.
    """

    element: str
    size: int
    lanes: int
    rows: int
    vectors: int
    group: int = 1
    bytes: bool = False
    """Operands are bytes: signed ones, and on the left without a sign where `unsigned`."""
    unsigned: bool = False

    @staticmethod
    def of(target: Target, element: str) -> Tiling:
        """Return the tiling of products of `element`: float, double, i32 or i64."""
        size = SIZES[element]
        lanes = target.vector_bits // (8 * size)
        if target.registers == 32:
            return Tiling(element, size, lanes, 6, 4)
        return Tiling(element, size, lanes, 6 if target.avx2 else 4, 2)

    @staticmethod
    def of_bytes(target: Target, unsigned: bool) -> Tiling:
        """Return the tiling of products of bytes, whose sums are i32."""
        group = 1
        if target.triple.startswith("x86"):
            group = 4 if target.has("avx512vnni") or target.has("avxvnni") else 2
        return replace(Tiling.of(target, "i32"), group=group, bytes=True, unsigned=unsigned)

    @property
    def name(self) -> str:
        """Return how functions for these operands are named."""
        if not self.bytes:
            return self.element
        return f"{'u' if self.unsigned else 'i'}8x{self.group}"

    @property
    def offset(self) -> bool:
        """
        Return whether 128 is added to lhs.

        vpdpbusd multiplies bytes without a sign by signed ones. A panel then starts with what its
        columns would be too large by.
        """
        return self.group == 4 and not self.unsigned

    @property
    def floats(self) -> bool:
        return self.element in ("float", "double")

    @property
    def vector(self) -> str:
        return vec(self.lanes, self.element)

    @property
    def source_size(self) -> int:
        """Return the bytes of an operand's element in memory."""
        return 1 if self.bytes else self.size

    @property
    def most_rows(self) -> int:
        """Return the rows of the highest tile of whole panels, where that is the only one."""
        return 7 if self.floats and self.vectors == 4 else self.rows

    @property
    def columns(self) -> int:
        """Return the columns of a panel."""
        return self.lanes * self.vectors

    @property
    def words(self) -> int:
        """Return how many words of k a block has at most."""
        return 128 if self.size == 4 else 96

    @property
    def depth(self) -> int:
        """Return how many of k a block has at most."""
        return self.words * self.group

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a packed row: an odd number of lines, so that rows don't collide."""
        return self.words * self.size + LINE

    @property
    def tile_bytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def block(self) -> int:
        """Return the rows of a packed block of lhs, at most."""
        return 96

    @property
    def panel_row_bytes(self) -> int:
        return self.columns * self.size

    @property
    def panel_bytes(self) -> int:
        return (self.words + self.offset) * self.panel_row_bytes

    @property
    def panels(self) -> int:
        """Return the panels of a packed block of rhs, at most: 256 KB of them."""
        return 256 * 1024 // (self.words * self.panel_row_bytes)

    def multiply_add(self, f: Function, a: Value, b: Value, total: Value) -> Value:
        """Return vectors of words multiplied and added to sums."""
        if self.floats:
            return f.fma(a, b, total)
        if self.group == 1:
            return f.add(total, f.mul(a, b))
        bits = 32 * self.lanes
        if self.group == 4:
            # The form with a prefix of 512 bits needs AVX-512; LLVM chooses for the others.
            return f.intrinsic(f"x86.avx512.vpdpbusd.{bits}", total.type, total, a, b)
        pairs = [f.cast("bitcast", v, vec(2 * self.lanes, "i16")) for v in (a, b)]
        stem = {128: "x86.sse2.pmadd.wd", 256: "x86.avx2.pmadd.wd", 512: "x86.avx512.pmaddw.d.512"}
        return f.add(total, f.intrinsic(stem[bits], total.type, *pairs))

    def add(self, f: Function, a: Value, b: Value) -> Value:
        return f.fadd(a, b) if self.floats else f.add(a, b)


@dataclass(frozen=True)
class Matrix:
    """A matrix in memory: where it starts, and bytes from one row in memory to the next."""

    pointer: Value
    stride: Value
    swapped: bool = False
    """Its rows in memory are its columns."""

    def at(self, f: Function, row: Index, column: Index, size: int) -> Value:
        """Return the address of an element."""
        first, second = (column, row) if self.swapped else (row, column)
        return f.at(f.at(self.pointer, f.mul(self.stride, first)), second, size)


def up(f: Function, n: Value, unit: int) -> Value:
    """Return n / unit, rounded up."""
    return f.udiv(f.add(n, unit - 1), unit)


def depth_of(f: Function, t: Tiling, k: Value) -> Value:
    """Return how many of k each block has: all about as many, at least 1; it depends on k alone."""
    blocks = f.umax(up(f, k, t.depth), 1)
    return f.umax(f.mul(up(f, f.udiv(f.add(k, f.sub(blocks, 1)), blocks), 16), 16), 16)


def load_part(f: Function, t: Tiling, pointer: Value, mask: Value | None) -> Value:
    """Return the lanes of a vector in memory that a mask tells, all without one."""
    if mask is None:
        return f.load(t.vector, pointer, align=t.size)
    return f.load_masked(t.vector, pointer, mask, align=t.size)


def store_part(f: Function, t: Tiling, value: Value, pointer: Value, mask: Value | None) -> None:
    """Store the lanes that a mask tells, all without one."""
    if mask is None:
        f.store(value, pointer, align=t.size)
    else:
        f.store_masked(value, pointer, mask, align=t.size)


def lanes_below(f: Function, lanes: int, left: Value) -> Value:
    """Return the mask of the first `left` (i64) lanes."""
    count = f.splat(f.cast("trunc", left, "i32"), lanes)
    return f.icmp("ult", f.vector("i32", range(lanes)), count)


def load_some(f: Function, t: Tiling, pointer: Value, left: Value) -> Value:
    """Return a vector of `left` elements (i64, more than lanes: all), zeros beyond."""

    def part() -> list[Value]:
        return [f.load_masked(t.vector, pointer, lanes_below(f, t.lanes, left), align=t.size)]

    whole = f.icmp("uge", left, t.lanes)
    return f.if_(whole, lambda: [f.load(t.vector, pointer, align=t.size)], part)[0]
