"""
A few rows of f32 activations times packed weights, each as `gemv.py` takes its one: to the bit.

A panel of weights is read, and where registers are wide enough unpacked, once for all rows of a
tile, of 16 rows on the matrix unit (`gemv_tiles.py`) where there are enough. The sums of a row are
put together by the very operations of a single one, so that what a row gives depends neither on the
rows beside it nor on their number.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.errors import RlxError
from rlx.lowering.contract import Group, check
from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import CHUNK
from rlx.lowering.gemm_unit import StoreRow
from rlx.lowering.gemv_row_lines import emit_lines
from rlx.lowering.gemv_row_panels import RowPanels, forms_of
from rlx.lowering.gemv_row_parts import emit_parts
from rlx.lowering.gemv_tiles import layout_of, on_tiles
from rlx.lowering.values import Value

_TILE_STACK = 512 * 1024
"""Bytes that digits of tiles may take."""
_MOST_TILES = 16
_FEW = 7
"""Rows up to which the products of registers are as fast as those of the matrix unit."""


def emit_gemv_rows(
    f: Function,
    k: int,
    groups: Sequence[Group],
    a: Value,
    a_stride_bytes: int,
    rows: Value,
    weights: Sequence[Sequence[Value]],
    tid: Value,
    nth: Value,
    store: StoreRow,
    turns: Value | None,
) -> None:
    """
    Emit `rows` (i64, may be 0) rows of k f32 times the groups' panels, on all threads.

    The arguments are those of `emit_gemm`. On the matrix unit threads take parts in turn, else each
    has its share of the panels, with digits of all rows for itself, or of many rows a share.
    """
    check(k, groups, weights)
    what = RowPanels(f, k, groups, weights, a, a_stride_bytes, store)
    tiles = tiles_at_once(f.module, k, groups)
    if not tiles:
        emit_lines(what, rows, tid, nth)
        return
    if turns is None:
        raise RlxError("a product of rows on the matrix unit needs memory for turns")

    def lines() -> list[Value]:
        emit_lines(what, rows, tid, nth)
        return []

    def on_unit() -> list[Value]:
        emit_parts(what, tiles, rows, turns, nth)
        return []

    f.if_(f.icmp("ule", rows, _FEW), lines, on_unit)


def tiles_at_once(module: Module, k: int, groups: Sequence[Group]) -> int:
    """Return how many tiles of rows are in digits at a time on the matrix unit; 0 is without it."""
    forms = forms_of(groups)
    if not on_tiles(module.target, forms):
        return 0
    return min(_MOST_TILES, _TILE_STACK // (k // CHUNK * layout_of(module, forms).size))
