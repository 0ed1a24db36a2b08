"""The sides of a product as a block of it asks for them: packed, from where their elements are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from rlx.lowering.dot_bytes import across, along, correct
from rlx.lowering.dot_matrix import Matrix, Tiling, up
from rlx.lowering.dot_pack import pack_lhs, pack_rhs
from rlx.lowering.emitter import Function
from rlx.lowering.target import LINE
from rlx.lowering.values import Value, i64

STEPS = 16
"""Words of k of a rhs that are made ready together."""


class Source(Protocol):
    """Where the elements of a side are; `lines` are rows of lhs, or columns of rhs."""

    @property
    def swapped(self) -> bool:
        """Whether lines are not along rows, or columns, of memory."""
        ...

    def block(self, f: Function, first: Value, count: Value, k0: Value, length: Value) -> Matrix:
        """Return lines from `first` on and k from `k0` on, as a matrix in memory."""
        ...


@dataclass(frozen=True)
class Stored:
    """A side in memory; `left` tells whether its lines are rows."""

    matrix: Matrix
    size: int
    left: bool

    @property
    def swapped(self) -> bool:
        return self.matrix.swapped

    def block(self, f: Function, first: Value, count: Value, k0: Value, length: Value) -> Matrix:
        place = (first, k0) if self.left else (k0, first)
        return replace(self.matrix, pointer=self.matrix.at(f, *place, self.size))

    def moved(self, f: Function, line: Value) -> Stored:
        """Return the lines from one on."""
        place = (line, 0) if self.left else (0, line)
        return replace(
            self, matrix=replace(self.matrix, pointer=self.matrix.at(f, *place, self.size))
        )


def pack_rows(
    f: Function,
    t: Tiling,
    source: Source,
    first: Value,
    count: Value,
    k0: Value,
    length: Value,
    out: Value,
) -> None:
    """Emit the packing of `count` rows of lhs, at most a block, and `length` of k."""
    m = source.block(f, first, count, k0, length)
    if t.bytes and not m.swapped:
        # Widened rows are packed rows.
        f.call(along(f.module, t, left=True), "void", m.pointer, m.stride, out, count, length)
        return
    if t.bytes:
        m = _words(f, t, m, t.words, t.block, length, count, left=True)
    size = count, up(f, length, t.group)
    f.call(pack_lhs(f.module, t, m.swapped), "void", m.pointer, m.stride, out, *size)


def pack_columns(
    f: Function,
    t: Tiling,
    source: Source,
    first: Value,
    count: Value,
    k0: Value,
    length: Value,
    out: Value,
) -> None:
    """Emit the packing of `count` columns of rhs, panels that fit, and `length` of k."""
    panels = f.at(out, t.panel_row_bytes) if t.offset else out

    def pack(m: Matrix, to: Value, columns: Value, words: Value) -> list[Value]:
        name = pack_rhs(f.module, t, m.swapped)
        f.call(name, "void", m.pointer, m.stride, to, words, columns)
        return []

    def columns_of(j: Value, _: list[Value]) -> list[Value]:
        here = f.umin(f.sub(count, j), t.columns)
        m = source.block(f, f.add(first, j), here, k0, length)
        if t.bytes:
            words = f.scratch("words", t.columns * t.row_bytes)
            f.call(along(f.module, t, left=False), "void", m.pointer, m.stride, words, here, length)
            m = Matrix(words, i64(t.row_bytes), swapped=True)
        to = f.at(panels, f.udiv(j, t.columns), t.panel_bytes)
        return pack(m, to, here, up(f, length, t.group))

    def rows_of(k: Value, _: list[Value]) -> list[Value]:
        here = f.umin(f.sub(length, k), STEPS * t.group)
        m = source.block(f, first, count, f.add(k0, k), here)
        if t.bytes:
            m = _words(f, t, m, STEPS, t.panels * t.columns, here, count, left=False)
        to = f.at(panels, f.udiv(k, t.group), t.panel_row_bytes)
        return pack(m, to, count, up(f, here, t.group))

    if source.swapped:
        f.for_(0, count, t.columns, [], columns_of)
    else:
        f.for_(0, length, STEPS * t.group, [], rows_of)
    if t.offset:
        size = up(f, count, t.columns), up(f, length, t.group)
        f.call(correct(f.module, t), "void", out, *size)


def _words(
    f: Function,
    t: Tiling,
    m: Matrix,
    rows: int,
    lines: int,
    length: Value,
    count: Value,
    left: bool,
) -> Matrix:
    """Return bytes `[k][lines]` as a matrix of words, of at most `rows` and `lines`."""
    stride = lines * t.size + LINE
    words = f.scratch("words", rows * stride)
    sizes = i64(stride), length, count
    f.call(across(f.module, t, left), "void", m.pointer, m.stride, words, *sizes)
    return Matrix(words, i64(stride), m.swapped)
