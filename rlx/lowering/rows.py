"""
Row programs: loops over one row of k floats in 16-lane chunks, the last one masked.

`row_map` is the loop of every element-wise program, `row_reduce` that of every reduction; both know
k when the code is written. A reduction's shape depends on k alone: chunk c goes to accumulator
c mod 4, then the four are added in pairs, then the lanes by halves.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.lowering.emitter import Function
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, f32, vec

VECTOR = vec(PANEL, "float")
"""The type of a chunk."""

_ACCUMULATORS = 4


def tail_mask(f: Function, k: int) -> Value | None:
    """Return the mask of the last, partial chunk of a row of k; None where k fills it."""
    live = k % PANEL
    return f.vector("i1", [int(lane < live) for lane in range(PANEL)]) if live else None


def load_chunk(f: Function, row: Value, column: Value, mask: Value | None) -> Value:
    """Return row[column : column + 16], zero where masked off."""
    pointer = f.at(row, column, 4)
    return f.load_masked(VECTOR, pointer, mask) if mask else f.load(VECTOR, pointer)


def store_chunk(f: Function, v: Value, row: Value, column: Value, mask: Value | None) -> None:
    """Store row[column : column + 16] where not masked off."""
    pointer = f.at(row, column, 4)
    if mask:
        f.store_masked(v, pointer, mask)
    else:
        f.store(v, pointer)


def row_map(
    f: Function, k: int, body: Callable[[Value, Value | None], None], unroll: int = 2
) -> None:
    """
    Emit body(column, mask) for each chunk of a row of k elements.

    `column` is the i64 index of the chunk's first element; `mask` is None except in a partial tail.
    """

    def step(column: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
        body(column, mask)
        return carried

    _chunks(f, k, unroll, [[] for _ in range(unroll)], step)


def row_reduce(
    f: Function,
    k: int,
    init: Value,
    body: Callable[[Value, Value | None, Value], Value],
    combine: str = "fadd",
) -> Value:
    """
    Return a reduction over a row of k elements, as a scalar.

    `init` is the neutral vector, `body` that of `row_accumulate`, `combine` a kind of
    `Function.reduce`.
    """
    return f.reduce(combine, fold(f, combine, row_accumulate(f, k, init, body)))


def row_accumulate(
    f: Function, k: int, init: Value, body: Callable[[Value, Value | None, Value], Value]
) -> list[Value]:
    """
    Return the four accumulators of a reduction over a row of k elements.

    body(column, mask, accumulator) returns the accumulator with one chunk taken in; lanes that are
    masked off must leave it as it was.
    """
    lanes = [[init] for _ in range(_ACCUMULATORS)]
    return [end[0] for end in _chunks(f, k, _ACCUMULATORS, lanes, lambda c, m, a: [body(c, m, *a)])]


def fold(f: Function, combine: str, values: list[Value]) -> Value:
    """Return values of one type combined in pairs; `combine` is a kind of `Function.reduce`."""
    while len(values) > 1:
        a, b, *rest = values
        binary = combine in ("fadd", "fmul", "add", "mul", "or", "and", "xor")
        values = [
            *rest,
            f.binary(combine, a, b) if binary else f.intrinsic(combine, a.type, a, b),
        ]
    return values[0]


def _chunks(
    f: Function,
    k: int,
    unroll: int,
    carried: list[list[Value]],
    step: Callable[[Value, Value | None, list[Value]], list[Value]],
) -> list[list[Value]]:
    """Run `step` over the chunks; chunk c carries the c mod unroll-th list of values."""
    width = len(carried[0])
    group = unroll * PANEL
    body_end = k // group * group

    def unrolled(column: Value, flat: list[Value]) -> list[Value]:
        result: list[Value] = []
        for i in range(unroll):
            own = flat[i * width : (i + 1) * width]
            result += step(f.add(column, i * PANEL), None, own)
        return result

    flat = f.for_(0, body_end, group, [v for values in carried for v in values], unrolled)
    ends = [flat[i * width : (i + 1) * width] for i in range(unroll)]
    for i, start in enumerate(range(body_end, k, PANEL)):
        mask = None if start + PANEL <= k else tail_mask(f, k)
        ends[i] = step(Value("i64", str(start)), mask, ends[i])
    return ends


def emit_rms_norm(
    f: Function, x: Value, weight: Value | None, out: Value, k: int, eps: float
) -> None:
    """
    Emit out = x / sqrt(mean(x^2) + eps) * weight for one row of k floats; `out` may be `x`.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

    def square(column: Value, mask: Value | None, total: Value) -> Value:
        v = load_chunk(f, x, column, mask)
        return f.fma(v, v, total)

    total = row_reduce(f, k, f.zero(VECTOR), square)
    mean = f.fmul(total, f32(1.0 / k))
    root = f.intrinsic("sqrt", "float", f.fadd(mean, f32(eps)))
    factor = f.splat(f.fdiv(f32(1.0), root), PANEL)

    def scale(column: Value, mask: Value | None) -> None:
        v = f.fmul(load_chunk(f, x, column, mask), factor)
        if weight:
            v = f.fmul(v, load_chunk(f, weight, column, mask))
        store_chunk(f, v, out, column, mask)

    row_map(f, k, scale)
