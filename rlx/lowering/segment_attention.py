"""
Attention of packed sequences, each on itself: `transformer.segment_attention`.

A work unit is a head of some queries of a sequence. Sequences are taken as they are, without
padding and without a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from xdsl.dialects.builtin import bf16, f32
from xdsl.ir import SSAValue

from rlx.dialects.common import dims_of, element_of
from rlx.lowering.attention_blocks import QUERIES, Blocks
from rlx.lowering.body import Body, width_of
from rlx.lowering.dot_blocks import Shapes
from rlx.lowering.dot_matrix import Matrix
from rlx.lowering.values import Value, i64

if TYPE_CHECKING:
    from rlx.ops.segments import SegmentAttentionOp


def emit(body: Body) -> None:
    """Attention of packed sequences, as a launch of its own; it uses at most 700 KB of stack."""
    op = cast("SegmentAttentionOp", body.ops[0])
    if element_of(op.args[0].type) == bf16:
        _emit_tiles(body, op)
    else:
        _emit_blocks(body, op)


def _emit_tiles(body: Body, op: SegmentAttentionOp) -> None:
    # Not every program multiplies bf16.
    from rlx.lowering.bf16_products import all_tiles
    from rlx.lowering.segment_tiles import TileAttention

    tiles = TileAttention.of(body, op)
    heads = width_of(op.args[0]) // op.option("head_dim")
    rows = body.size(dims_of(op.args[0].type)[0])
    with all_tiles(body.f):
        for_units(body, op.args[3], rows, heads, tiles.most, tiles.unit)


def _emit_blocks(body: Body, op: SegmentAttentionOp) -> None:
    """Attention in f32 or f64."""
    head_dim, width = op.option("head_dim"), width_of(op.args[0])
    f, size = body.f, i64(head_dim)
    element = "float" if element_of(op.args[0].type) == f32 else "double"
    blocks = Blocks.of(f, element, op.scale, size, size)
    t = blocks.tiling
    shapes = Shapes.of(t, None, None), Shapes.of(t, None, head_dim)

    def matrix(pointer: Value, row: Value, head: Value, swapped: bool = False) -> Matrix:
        start = f.at(f.at(pointer, row, width * t.size), head, head_dim * t.size)
        return Matrix(start, i64(width * t.size), swapped)

    def block(first: Value, end: Value, query: Value, head: Value) -> None:
        q, k, v = (body.pointers[x] for x in op.args[:3])
        count = f.umin(f.sub(end, query), QUERIES)
        blocks.attend(
            matrix(q, query, head), matrix(k, first, head, True), matrix(v, first, head),
            matrix(body.outs[0], query, head), count, f.sub(end, first), shapes,
        )  # fmt: skip

    rows = body.size(dims_of(op.args[0].type)[0])
    for_units(body, op.args[3], rows, width // head_dim, QUERIES, block)


def bounds(body: Body, starts: SSAValue, segment: Value, rows: Value) -> tuple[Value, Value]:
    """Return the first row of a segment and that behind its last, which are rows in any case."""
    f, at = body.f, body.pointers[starts]
    count = body.size(dims_of(starts.type)[0])

    def start_of(s: Value) -> Value:
        return f.umin(f.cast("zext", f.load("i32", f.at(at, s, 4)), "i64"), rows)

    first, behind = start_of(segment), f.add(segment, 1)
    (end,) = f.if_(f.icmp("ult", behind, count), lambda: [start_of(behind)], lambda: [rows])
    return first, f.umax(first, end)


def for_units(
    body: Body,
    starts: SSAValue,
    rows: Value,
    heads: int,
    queries: int,
    unit: Callable[[Value, Value, Value, Value], None],
) -> None:
    """
    Emit `unit(first, end, query, head)` for this thread's part of all work.

    That is of each segment, rows `first` to before `end`, of each block of so many queries from
    `query` on, and of each head. Threads take runs of neighbouring heads in turn, whose rows are
    next to each other.
    """
    f = body.f
    run = f.umax(f.udiv(i64(heads), body.threads), 1)
    runs = f.udiv(f.add(run, heads - 1), run)

    def segment(s: Value, before: list[Value]) -> list[Value]:
        first, end = bounds(body, starts, s, rows)

        def block(query: Value, before: list[Value]) -> list[Value]:
            # As many runs as threads, less those since this thread's turn.
            past = f.binary("urem", before[0], body.threads)
            turn = f.sub(f.add(body.tid, body.threads), past)
            own = f.binary("urem", turn, body.threads)

            def one(carried: list[Value]) -> list[Value]:
                head = f.mul(carried[0], run)
                last = f.umin(f.add(head, run), heads)
                f.for_(head, last, 1, [], lambda h, _: unit(first, end, query, h) or [])
                return [f.add(carried[0], body.threads)]

            f.while_([own], lambda v: f.icmp("ult", v[0], runs), one)
            return [f.add(before[0], runs)]

        return f.for_(first, end, queries, before, block)

    count = body.size(dims_of(starts.type)[0])
    f.for_(0, count, 1, [i64(0)], segment)
