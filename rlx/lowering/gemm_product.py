"""What the two ways to multiply rows with a unit of panels have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rlx.lowering.contract import Group
from rlx.lowering.emitter import Function
from rlx.lowering.formats import CHUNK, FORMATS
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value

SCRATCH = 256 * 1024
"""Bytes of dequantised panels at a time: inside every L2 cache, and a thread's stack."""

LINE = 4 * PANEL
"""Bytes of a panel's sums of one row."""

Source: TypeAlias = tuple[str, Value]
"""The format of a packed panel, and where it is."""

SUMS = f"<{PANEL} x float>"


@dataclass(frozen=True)
class Product(ABC):
    """
    The product of rows with one group, as far as it is known when code is generated.

    A unit is `neighbours` panels of each of the group's weights. It is dequantised for a block of
    k at a time, and multiplied by tiles that are `wide` panels wide.
    """

    f: Function
    k: int
    group: Group
    stride: int
    """Bytes from a row to the next."""
    element: str
    """What the rows are of: `float` or `bfloat`."""

    @property
    @abstractmethod
    def neighbours(self) -> int:
        """Return the panels of one weight in a unit."""

    @property
    @abstractmethod
    def wide(self) -> int:
        """Return the panels of a tile."""

    @property
    @abstractmethod
    def per_k(self) -> int:
        """Return the bytes that a dequantised panel takes for each k."""

    @property
    @abstractmethod
    def block(self) -> int:
        """Return how many of k are dequantised at a time, at most."""

    @property
    def block_for_few(self) -> int:
        """Return how many of k are dequantised at a time for few rows."""
        return self.block

    @property
    @abstractmethod
    def chunk(self) -> int:
        """Return the rows whose sums are kept: many, where each chunk dequantises anew."""

    @abstractmethod
    def fill(self, sources: Sequence[Source], panels: Value, k0: Value, length: Value) -> None:
        """Dequantise [k0, k0 + length) of a unit's panels."""

    @abstractmethod
    def operands(self, sources: Sequence[Source], panels: Value, k0: Value) -> list[Value]:
        """Return where tiles find each panel from k0 on, once they are filled."""

    @abstractmethod
    def cover(
        self,
        a: Value,
        operands: Sequence[Value],
        sums: Value,
        rows: Value,
        length: Value,
        more: Value,
        all_rows: Value,
    ) -> None:
        """
        Multiply rows, some of `all_rows`, with a unit's dequantised panels, `length` of k.

        The sums, f32 `[rows][across][16]`, go on from what is there where `more`, else from zero.
        """

    def begin(self, rows: Value) -> None:
        """Emit what a thread does before its first unit, to multiply so many rows."""

    def end(self) -> None:
        """Emit what a thread does after its last unit."""

    @property
    def across(self) -> int:
        """Return the panels of a unit."""
        return len(self.group.formats) * self.neighbours

    @property
    def units(self) -> int:
        return -(-self.group.panels // self.neighbours)

    @property
    def panels_bytes(self) -> int:
        """Return the bytes of a unit's dequantised panels."""
        return -(-self.block // CHUNK) * CHUNK * self.across * self.per_k

    def whole_blocks(self, k: int) -> int:
        """Return how many of k elements are whole blocks of all formats: one at least."""
        step = max(CHUNK, *(FORMATS[name].block for name in self.group.formats))
        return max(step, k // step * step)
