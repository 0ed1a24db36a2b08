"""
Rotary position embedding (Su et al., "RoFormer", 2021): its table, and the rotation of pairs.

A table has a row of n_rot floats for each position, ready for pairs (2i, 2i + 1): that of cosines
has each twice, that of sines has them as (-sin, +sin).
"""

from __future__ import annotations

from rlx.lowering.emitter import Function
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, f64


def emit_rope_table(
    f: Function,
    cos: Value,
    sin: Value,
    positions: int,
    n_rot: int,
    base: float,
    tid: Value,
    nth: Value,
) -> None:
    """
    Emit the tables of `positions` positions, f32 [positions][n_rot] each, split over threads.

    Angles, sines and cosines are float64, rounded once: at position 10,000 a float32 angle would be
    wrong in the third digit. Pair i turns by position * base^(-2i / n_rot).
    """
    rates = [f64(base ** (-2.0 * i / n_rot)).name for i in range(n_rot // 2)]
    table = f.module.table(f"rope_rates_{n_rot}_{f64(base).name}", "double", rates)

    def angle(position: Value, i: Value) -> None:
        rate = f.load("double", f.at(table, i, 8), align=8)
        turn = f.fmul(f.cast("sitofp", position, "double"), rate)
        for name, out in (("cos", cos), ("sin", sin)):
            x = f.cast("fptrunc", f.intrinsic(name, "double", turn), "float")
            pair = f.at(f.at(out, position, n_rot * 4), i, 8)
            f.store(f.fneg(x) if name == "sin" else x, pair)
            f.store(x, f.at(pair, 4))

    def each_position(position: Value, _: list[Value]) -> list[Value]:
        f.for_(0, n_rot // 2, 1, [], lambda i, _: angle(position, i) or [])
        return []

    first = f.udiv(f.mul(tid, positions), nth)
    last = f.udiv(f.mul(f.add(tid, 1), positions), nth)
    f.for_(first, last, 1, [], each_position)


def rotate_interleaved(f: Function, v: Value, cos: Value, sin: Value) -> Value:
    """Return 16 features rotated in pairs (2i, 2i + 1); cos and sin are from a table row."""
    swapped = f.shuffle(v, v, [lane ^ 1 for lane in range(PANEL)])
    return f.fma(swapped, sin, f.fmul(v, cos))
