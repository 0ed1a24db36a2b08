"""What attention by products of bf16 has in common, whatever the layout of keys in memory."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.lowering import amx
from rlx.lowering.bf16_products import multiply_rows
from rlx.lowering.emitter import Function
from rlx.lowering.kv_cache import LINE
from rlx.lowering.rows import VECTOR
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, i64
from rlx.lowering.vmath_base import native_512, polynomial, scalef

SPAN = 256
"""Keys that are made into tiles at a time; a multiple of `HIGH`."""
HIGH = 2 * amx.ROWS
"""Queries of a block, which are multiplied with keys together: those of one head."""
WIDEST = 512
"""Features of a head, at most: what a thread has on its stack grows with them."""
SCORES, WEIGHTS = SPAN * 4 + LINE, SPAN * 2 + LINE
"""Bytes from a query's scores, or weights, to the next one's: not a power of two."""

_EXP2 = (0.99992661, 0.69580416, 0.22615288, 0.07796423)
"""Coefficients of a polynomial for 2^x from 0 to 1, to 7.6e-5: weights are rounded to 2^-9."""
_DOWN = 1
"""How `vreduceps` rounds: to the whole number below."""


@dataclass(frozen=True)
class Stack:
    """What a thread has on its stack for a work unit: some blocks of queries."""

    row: int
    """Bytes of a head's row of bf16; one of sums, in f32, has twice as many."""
    queries: Value
    """Of some blocks, one row behind the other."""
    key_tiles: Value
    """Of a span, `[SPAN / 16][head_dim / 32]`."""
    value_tiles: Value
    """Of a span, `[SPAN / 32][head_dim / 16]`."""
    scores: Value
    """Of a block on a span."""
    weights: Value
    """Of a block on a span."""
    sums: Value
    """Of all blocks."""
    state: Value
    """Of each block: largest scores so far, then the sums of weights, f32 [HIGH] each."""
    factors: Value
    """What a block's sums are multiplied with before a span is added, or at last, f32 [HIGH]."""

    @staticmethod
    def of(f: Function, head_dim: int, blocks: int, loaded: int) -> Stack:
        """Return room for so many blocks, with the queries of `loaded` of them."""
        row = head_dim * 2
        return Stack(
            row,
            queries=f.alloca(loaded * HIGH * row),
            key_tiles=f.alloca(SPAN * row),
            value_tiles=f.alloca(SPAN * row),
            scores=f.alloca(HIGH * SCORES),
            weights=f.alloca(HIGH * WEIGHTS),
            sums=f.alloca(blocks * HIGH * 2 * row),
            state=f.alloca(blocks * HIGH * 8),
            factors=f.alloca(HIGH * 4),
        )

    def dot_scores(self, f: Function, queries: Value, rows: Value, keys: Value) -> None:
        """Write the scores of a block's rows on so many keys, a multiple of 32, by dot products."""
        of_panel, steps = PANEL * self.row, i64(self.row // amx.ROW_BYTES)

        def two(j: Value, _: list[Value]) -> list[Value]:
            at = f.at(self.key_tiles, j, self.row)
            panels, to = [at, f.at(at, of_panel)], f.at(self.scores, j, 4)
            multiply_rows(
                f, queries, self.row, panels, amx.TILE_BYTES, to, SCORES,
                rows, steps, Value("i1", "false"),
            )  # fmt: skip
            return []

        f.for_(0, keys, 2 * PANEL, [], two)

    def dot_values(
        self, f: Function, sums: Value, chunk: int, rows: Value, keys: Value, first: Value
    ) -> None:
        """
        Add weights times values of so many keys to 32 features of a block's rows, by dot products.

        `sums` are the first row's, at the `chunk`-th 16 features.
        """
        panels = [f.at(self.value_tiles, (chunk + n) * amx.TILE_BYTES) for n in range(2)]
        of_step = self.row // (2 * PANEL) * amx.TILE_BYTES
        steps = f.lshr(keys, 5)
        multiply_rows(
            f, self.weights, WEIGHTS, panels, of_step, sums, 2 * self.row,
            rows, steps, f.xor(first, 1),
        )  # fmt: skip

    def rescale(self, f: Function, sums: Value, rows: int | Value) -> list[Value]:
        """Multiply the sums of a block's rows with their factors."""

        def row(r: Value, _: list[Value]) -> list[Value]:
            factor = f.splat(f.load("float", f.at(self.factors, r, 4)), PANEL)
            for c in range(self.row // (2 * PANEL)):
                at = f.at(f.at(sums, r, 2 * self.row), c * LINE)
                f.store(f.fmul(f.load(VECTOR, at), factor), at)
            return []

        return f.for_(0, rows, 1, [], row)


def exp2_of_weights(f: Function, x: Value) -> Value:
    """Return 2^x for x <= 0, -infinity too, to 7.6e-5."""
    # x less its floor, which is what `scalef` adds to the exponent.
    part = native_512(f, "mask.reduce.ps", x, _DOWN)
    return scalef(f, polynomial(f, _EXP2, part), x)
