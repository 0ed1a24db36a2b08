"""
Rows of activations times packed weights.

Rows of f32 are multiplied in registers, or as digits where all weights are quantised and that is
faster; rows of bf16 as tiles where the target multiplies these, in registers elsewhere; rows that
become bytes on the matrix unit, or in registers without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.errors import RlxError
from rlx.lowering.contract import Group, check
from rlx.lowering.emitter import Function
from rlx.lowering.formats import BYTES, FORMATS
from rlx.lowering.gemm_bytes import emit_bytes
from rlx.lowering.gemm_registers import emit_registers
from rlx.lowering.gemm_tile_plan import has_tiles
from rlx.lowering.gemm_tiles import emit_tiles
from rlx.lowering.gemm_unit import AskRow, Rows, StoreRow
from rlx.lowering.gemv_row_lines import has_lines
from rlx.lowering.gemv_rows import emit_gemv_rows, tiles_at_once
from rlx.lowering.values import Value


def _nothing(_f: Function, _group: int, _row: Value, _panel: Value) -> None:
    """Ask for no memory."""


def emit_gemm(
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
    element: str = "float",
    ahead: AskRow = _nothing,
    turns: Value | None = None,
) -> None:
    """
    Emit `rows` (i64, may be 0) rows of k numbers times the groups' weights, on all threads.

    Row r is at a + r * a_stride_bytes, of f32, or of bf16 where `element` is `bfloat`; f32 is
    rounded to bf16 first where it is `ROUNDED`. `weights` are pointers to packed weights, for each
    group. With bf16 rows the weights are rounded to bf16 too where the target multiplies tiles of
    that; sums are f32. With weights of i8, which all are then, rows are rounded to bytes, and
    sums are exact until steps multiply them. What is added to an output, and in which order, is a
    matter of k alone: a row's result depends neither on the rows beside it nor on the number of
    threads, to the bit.
    `store(f, group, row, panel, values)` emits what is done with a row's outputs of a panel, and
    `ahead(f, group, row, panel)` may ask for the memory that this takes, some time before. Rows
    that aren't f32, and quantised weights, need `turns`, which `emit_in_turn` counts in: threads
    take parts of products of tiles as they are free, and have a share each of others. The
    stack used is at most 1.2 MB, once for all products in a function.
    """
    check(k, groups, weights)
    names = {name for group in groups for name in group.formats}
    bytes_ = BYTES in names
    if bytes_ and len(names) > 1:
        others = ", ".join(sorted(names - {BYTES}))
        raise RlxError(f"expected weights of {BYTES} beside none of other formats, got {others}")
    what = Rows(a, rows, k, a_stride_bytes, element, bytes_)
    quantised = not bytes_ and all(FORMATS[name].quantised for name in names)
    # Fast modules have digits for too few bits.
    digits = element == "float" and quantised and not f.module.fast
    if digits and (tiles_at_once(f.module, k, groups) or has_lines(f.target, k)):
        args = f, k, groups, a, a_stride_bytes, rows, weights, tid, nth, store
        emit_gemv_rows(*args, turns)
        return
    if element == "float" or not has_tiles(f.target, k, bytes_):
        emit = emit_bytes if bytes_ else emit_registers
        emit(f, groups, what, weights, tid, nth, store)
        return
    if turns is None:
        raise RlxError("a product of rows that aren't f32 needs memory for turns")
    emit_tiles(f, groups, what, weights, turns, nth, store, ahead)
