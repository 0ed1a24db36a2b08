"""
What both ways to multiply rows with packed weights have in common: rows, and units of panels.

A unit is a panel of each weight of a group, or two neighbours of a single one. It is dequantised
into a scratch and multiplied with all rows by tiles, of registers or of the matrix unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rlx.lowering.contract import Group
from rlx.lowering.emitter import Function
from rlx.lowering.formats import BYTES, BYTES_DEPTH, BYTES_TAIL, CHUNK, FORMATS, panel_bytes
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, vec

SCRATCH = 256 * 1024
"""Bytes of dequantised panels at a time: inside every L2 cache, and a thread's stack."""
LINE = 4 * PANEL
"""Bytes of a panel's sums of one row."""
ROUNDED = "rounded"
SUMS = f"<{PANEL} x float>"
OF_ROW = 8
"""The bytes of what is kept of a row of bytes: its step, an f32, and its zero, an i32."""

StoreRow = Callable[[Function, int, Value, Value, list[Value]], None]
"""An epilogue: called with the group, the row and panel (i64), an <16 x float> for each weight."""
AskRow = Callable[[Function, int, Value, Value], None]
"""Called with the group, the row and panel: asks for the memory that the epilogue wants then."""
StorePanel = Callable[[Value, Value, list[Value]], None]
"""The epilogue of one group."""
Source: TypeAlias = tuple[str, Value]
"""The format of a packed panel, and where it is."""


@dataclass(frozen=True)
class Rows:
    """What is multiplied: `count` rows of k numbers, `stride` bytes apart."""

    start: Value
    count: Value
    k: int
    stride: int
    element: str
    """`float`, `bfloat`, or `ROUNDED`: f32 that is rounded to bf16 before it is multiplied."""
    bytes: bool = False
    """Whether each is rounded to bytes then, for panels of bytes."""

    @property
    def size(self) -> int:
        """Return the bytes of a number."""
        return 2 if self.element == "bfloat" else 4


@dataclass(frozen=True)
class Units:
    """The units of a group's panels."""

    f: Function
    k: int
    group: Group
    neighbours: int
    """The panels of one weight in a unit."""

    @property
    def across(self) -> int:
        """Return the panels of a unit."""
        return len(self.group.formats) * self.neighbours

    @property
    def count(self) -> int:
        return -(-self.group.panels // self.neighbours)

    def whole_blocks(self, k: int) -> int:
        """Return how many of k elements are whole blocks of all formats: one at least."""
        blocks = [BYTES_DEPTH if n == BYTES else FORMATS[n].block for n in self.group.formats]
        step = max(CHUNK, *blocks)
        return max(step, k // step * step)

    def numbers(self, unit: Value) -> list[Value]:
        """Return the numbers of a unit's panels, of which the last may be one too many."""
        return [self.f.add(self.f.mul(unit, self.neighbours), j) for j in range(self.neighbours)]

    def sources(self, unit: Value, weights: Sequence[Value]) -> list[Source]:
        """Return a unit's panels."""
        f, panels = self.f, self.group.panels
        # The neighbour of the last panel of an odd number is that panel again, and not stored.
        odd = panels % self.neighbours
        read = [f.umin(n, panels - 1) if odd else n for n in self.numbers(unit)]
        return [
            (name, f.at(weight, number, panel_bytes(name, self.k)))
            for number in read
            for name, weight in zip(self.group.formats, weights, strict=True)
        ]

    def steps_at(self, unit: Value, weights: Sequence[Value]) -> list[Value]:
        """Return where the steps of a unit's panels are, of bytes."""
        at = panel_bytes(BYTES, self.k) - BYTES_TAIL
        return [self.f.at(panel, at) for _, panel in self.sources(unit, weights)]

    def loaded(self, sums: Value, row: Value | None, steps: Sequence[Value]) -> list[Value]:
        """
        Return the sums of one row, [across][16] f32, or, of bytes, i32.

        What sums of bytes stand for takes the row's step and zero, and those of the panels.
        """
        f, at = self.f, [self.f.at(sums, i * LINE) for i in range(self.across)]
        if row is None:
            return [f.load(SUMS, a, align=64) for a in at]
        step = f.splat(f.load("float", row), PANEL)
        zero, whole = f.splat(f.load("i32", f.at(row, 4)), PANEL), vec(PANEL, "i32")
        values: list[Value] = []
        for place, panel in zip(at, steps, strict=True):
            sum_of_panel = f.load(whole, f.at(panel, LINE), align=64)
            number = f.sub(f.load(whole, place, align=64), f.mul(zero, sum_of_panel))
            value = f.fmul(f.cast("sitofp", number, SUMS), step)
            values.append(f.fmul(value, f.load(SUMS, panel, align=64)))
        return values

    def finish(self, unit: Value, row: Value, values: Sequence[Value], store: StorePanel) -> None:
        """Hand the products of one row, f32 of 16 for each panel, on to the epilogue."""
        f, each = self.f, len(self.group.formats)
        for j, number in enumerate(self.numbers(unit)):
            own = [*values[j * each : (j + 1) * each]]

            def of_panel(number: Value = number, own: list[Value] = own) -> list[Value]:
                store(row, number, own)
                return []

            if j and self.group.panels % self.neighbours:
                f.if_(f.icmp("ult", number, self.group.panels), of_panel)
            else:
                of_panel()
