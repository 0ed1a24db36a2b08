"""
Rows of activations times packed weights: of f32 in f32, of bf16 on the matrix unit.

A unit of panels (the weights of a group, or two neighbours of a single one) is dequantised into a
scratch and multiplied with all rows by tiles, of registers or of the matrix unit. What is added to
an output, and in which order, is a matter of k alone: a row's result depends neither on the rows
beside it nor on the number of threads, to the bit.

Where k is too large for the scratch, and for few rows, it is cut into blocks, for chunks of rows
whose sums wait in a second scratch between the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rlx.lowering.contract import Group, check, shares
from rlx.lowering.emitter import Function
from rlx.lowering.formats import panel_bytes
from rlx.lowering.gemm_product import LINE, SUMS, Product
from rlx.lowering.gemm_registers import FEW_ROWS, RegisterProduct
from rlx.lowering.gemm_tiles import TileProduct, has_tiles
from rlx.lowering.values import Value, i64

StoreRow = Callable[[Function, int, Value, Value, list[Value]], None]
"""An epilogue: called with the group, the row and panel (i64), an <16 x float> for each weight."""


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
) -> None:
    """
    Emit `rows` (i64, may be 0) rows of k numbers times this thread's share of the groups' panels.

    Row r is at a + r * a_stride_bytes, of f32, or of bf16 where `element` is `bfloat`; `weights`
    are pointers to packed weights, for each group. With bf16 rows the weights are rounded to bf16
    too where the target has a unit for such products; sums are f32.
    `store(f, group, row, panel, values)` emits what is done with a row's outputs of a panel. The
    stack used is at most 600 KB, once for all products in a function.
    """
    check(k, groups, weights)
    kind = TileProduct if element == "bfloat" and has_tiles(f.target, k) else RegisterProduct
    products: list[Product] = [kind(f, k, group, a_stride_bytes, element) for group in groups]
    panels = f.scratch("panels", max(p.panels_bytes for p in products))
    sums = f.scratch("sums", max(p.chunk * p.across * LINE for p in products))
    few = f.icmp("ule", rows, FEW_ROWS)
    split = shares(f, [p.units for p in products], [p.across for p in products], tid, nth)
    products[0].begin(rows)
    for g, (first, last) in enumerate(split):
        p = products[g]
        block = i64(p.block)
        if p.block_for_few < p.block:
            block = f.select(few, i64(p.block_for_few), block)

        def unit(u: Value, _: list[Value], g: int = g, block: Value = block) -> list[Value]:
            scratch = panels, sums, block
            _emit_unit(products[g], u, a, rows, weights[g], scratch, partial(store, f, g))
            return []

        f.for_(first, last, 1, [], unit)
    products[0].end()


def _emit_unit(
    p: Product,
    unit: Value,
    a: Value,
    rows: Value,
    weights: Sequence[Value],
    scratch: tuple[Value, Value, Value],
    store: Callable[[Value, Value, list[Value]], None],
) -> None:
    """
    Multiply all rows with a unit's panels, chunk by chunk, and hand the sums on.

    The scratch is for panels, for sums, and holds so many of k.
    """
    f = p.f
    panels, sums, block = scratch
    numbers = [f.add(f.mul(unit, p.neighbours), j) for j in range(p.neighbours)]
    # The neighbour of the last panel of an odd number is that panel again, and not stored.
    read = [f.umin(n, p.group.panels - 1) if p.group.panels % p.neighbours else n for n in numbers]
    sources = [
        (name, f.at(weight, number, panel_bytes(name, p.k)))
        for number in read
        for name, weight in zip(p.group.formats, weights, strict=True)
    ]

    def chunk(r0: Value, _: list[Value]) -> list[Value]:
        count = f.umin(f.sub(rows, r0), p.chunk)

        def k_block(carried: list[Value]) -> list[Value]:
            (k0,) = carried
            length = f.umin(f.sub(p.k, k0), block)
            # What is in the scratch serves the next chunk only where it is all of k.
            stale = f.or_(f.icmp("eq", r0, 0), f.icmp("ult", block, p.k))
            f.if_(stale, lambda: p.fill(sources, panels, k0, length) or [])
            start = f.at(f.at(a, r0, p.stride), k0, 4 if p.element == "float" else 2)
            operands = p.operands(sources, panels, k0)
            p.cover(start, operands, sums, count, length, f.icmp("ne", k0, 0), rows)
            return [f.add(k0, length)]

        f.while_([i64(0)], lambda carried: f.icmp("slt", carried[0], p.k), k_block)
        f.for_(0, count, 1, [], partial(finish, r0))
        return []

    def finish(r0: Value, r: Value, _: list[Value]) -> list[Value]:
        at = f.at(sums, r, p.across * LINE)
        values = [f.load(SUMS, f.at(at, i * LINE), align=64) for i in range(p.across)]
        each = len(p.group.formats)
        for j, number in enumerate(numbers):
            of_panel = partial(store, f.add(r0, r), number, values[j * each : (j + 1) * each])
            if j and p.group.panels % p.neighbours:
                f.if_(f.icmp("ult", number, p.group.panels), lambda: of_panel() or [])
            else:
                of_panel()
        return []

    f.for_(0, rows, p.chunk, [], chunk)
