"""How products of tiles are cut into blocks: what stays in which cache meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.lowering import amx
from rlx.lowering.bf16_products import has_bf16
from rlx.lowering.contract import Group
from rlx.lowering.emitter import Function
from rlx.lowering.formats import BYTES, CHUNK, panel_bytes
from rlx.lowering.gemm_unit import LINE, SCRATCH, Rows, Units
from rlx.lowering.target import Target
from rlx.lowering.values import Value

HIGH = 2 * amx.ROWS
"""Rows of a block."""
CACHE_LINE = 64
_L1_TILES = 40 * 1024
"""Bytes of tiles that stay in the L1 cache while others go by: a unit's, or a block's of rows."""
_L2_ROWS = 768 * 1024
"""Bytes of rows that stay in the L2 cache while panels go by; on the stack."""
_L2_PANELS = 1280 * 1024
"""Bytes of all panels that stay in the L2 cache while rows go by."""
_APART = 64
"""Bytes between rows for dot products, so that they fall into all sets of the caches."""
_MOST_ROWS = 512
_MOST_K = 16384


def has_tiles(target: Target, k: int, bytes_: bool = False) -> bool:
    """Return whether rows of k, of bf16 or as bytes, are multiplied as tiles."""
    has = amx.has_amx_bytes if bytes_ else has_bf16
    return has(target) and k <= _MOST_K


def is_ready(name: str, k: int) -> bool:
    """Return whether panels of a format are tiles as they are packed: bytes, pairs of bf16."""
    return name == BYTES or (name == "bf16" and k % amx.BF16.depth == 0)


def are_ready(groups: Sequence[Group], k: int) -> bool:
    return all(is_ready(name, k) for group in groups for name in group.formats)


def element_of(rows: Rows) -> amx.Element:
    """Return what rows are multiplied as."""
    return amx.BYTES if rows.bytes else amx.BF16


@dataclass(frozen=True)
class RowCopies:
    """Where rows are copied to: `[rows / 16][steps][16]` lines, or one row behind the other."""

    steps: int
    tiles: bool
    """Whether they are tiles of the matrix unit, and not rows for dot products."""

    @property
    def row(self) -> int:
        """Return the bytes of a row, of which those of 16 are a multiple of a tile's."""
        return self.steps * amx.ROW_BYTES + (0 if self.tiles else _APART)

    @property
    def step(self) -> int:
        """Return the bytes from a row's line to its next."""
        return amx.TILE_BYTES if self.tiles else amx.ROW_BYTES

    @staticmethod
    def of(target: Target, rows: Rows) -> RowCopies:
        tiles = rows.bytes or amx.has_amx(target)
        return RowCopies(-(-rows.k // element_of(rows).depth), tiles)

    def at(self, f: Function, start: Value, row: Value) -> Value:
        """Return where a row's first line is."""
        if not self.tiles:
            return f.at(start, row, self.row)
        block = f.at(start, f.lshr(row, 4), self.steps * amx.TILE_BYTES)
        return f.at(block, f.and_(row, amx.ROWS - 1), amx.ROW_BYTES)


@dataclass(frozen=True)
class TileProduct(Units):
    """The product of rows with one group, as far as it is known when code is generated."""

    rows: Rows
    at_once: int
    """Rows that are multiplied with one unit after the other, a multiple of a block's."""
    passing: bool
    """Whether panels pass by a block of rows that stays in L1, rather than rows by a unit's."""

    @staticmethod
    def of(f: Function, rows: Rows, groups: Sequence[Group]) -> list[TileProduct]:
        """
        Return the products with all groups.

        Rows are many at once, so that panels are dequantised seldom and read once from memory. But
        panels that are tiles already, and stay in L2, pass by one block of rows after the other:
        its outputs lie close together, and their lines are written in order.
        """
        row_bytes = RowCopies.of(f.target, rows).row
        tile_bytes = -(-rows.k // element_of(rows).depth) * amx.TILE_BYTES
        panels = sum(group.panels * len(group.formats) for group in groups)
        fits = HIGH * row_bytes <= _L1_TILES and panels * tile_bytes <= _L2_PANELS
        passing = fits and are_ready(groups, rows.k)
        across = max(2, *(len(group.formats) for group in groups))
        most = min(_MOST_ROWS, _L2_ROWS // row_bytes, SCRATCH // (LINE * across))
        at_once = HIGH if passing else max(HIGH, most // HIGH * HIGH)
        neighbours = [2 if len(group.formats) == 1 else 1 for group in groups]
        return [
            TileProduct(f, rows.k, group, n, rows, at_once, passing)
            for group, n in zip(groups, neighbours, strict=True)
        ]

    @property
    def wide(self) -> int:
        """Return the panels of a tile block."""
        return 2 if self.across % 2 == 0 else 1

    @property
    def copies(self) -> RowCopies:
        return RowCopies.of(self.f.target, self.rows)

    @property
    def steps(self) -> int:
        """Return the tiles of a row."""
        return self.copies.steps

    @property
    def element(self) -> amx.Element:
        return element_of(self.rows)

    @property
    def per_k(self) -> int:
        """Return the bytes of 16 rows' tiles, and of a panel's, for each k."""
        return amx.ROWS * self.element.size

    @property
    def block(self) -> int:
        """Return k in even parts, whose tiles stay in the L1 cache."""
        most = self.whole_blocks(_L1_TILES // (self.per_k * self.across))
        parts = -(-self.k // most)
        up = max(CHUNK, self.element.depth) - 1
        return min(self.k, self.whole_blocks(-(-self.k // parts) + up))

    def steps_of(self, k: Value) -> Value:
        """Return the steps that so many of k take."""
        depth = self.element.depth
        return self.f.udiv(self.f.add(k, depth - 1), depth)

    def blocks_of(self, rows: Value) -> Value:
        """Return the blocks that so many rows are."""
        return self.f.lshr(self.f.add(rows, HIGH - 1), 5)

    @property
    def tile_bytes(self) -> int:
        """Return the bytes of a panel's tiles for a block of k."""
        return -(-self.block // self.element.depth) * amx.TILE_BYTES

    @property
    def rows_a_step(self) -> int:
        """Return the rows to hand on at each step, so that a block's are done in any block of k."""
        shortest = (self.k - 1) % self.block + 1
        return -(-HIGH // -(-shortest // self.element.depth))

    @property
    def waiting(self) -> int:
        """Return the rows whose sums there is room for: two blocks', or all between blocks of k."""
        return 2 * HIGH if self.block == self.k else self.at_once

    @property
    def lines(self) -> int:
        """Return the cache lines of the largest packed panel."""
        return -(-max(panel_bytes(name, self.k) for name in self.group.formats) // CACHE_LINE)
