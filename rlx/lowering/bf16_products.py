"""
What multiplies bf16: the matrix unit (`amx`), or AVX-512's dot products of pairs of them.

Both read the same tiles of panels. Rows needn't be tiles for dot products, which run in vector
registers: what multiplies a row's pair of numbers with the pairs of a panel's 16 rows is one
instruction, twice as much as one for f32 does. They round as the matrix unit does: to nearest,
subnormals to 0.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rlx.lowering import amx
from rlx.lowering.emitter import Function
from rlx.lowering.target import PANEL, Target
from rlx.lowering.values import Value, i64

_SUMS = f"<{PANEL} x float>"
_HEIGHTS = {1: (16, 8, 4, 2, 1), 2: (12, 8, 4, 2, 1)}
"""The rows of blocks in registers, by their panels: two of 12 are 24 sums, that don't wait."""
_UNROLL = 4
"""The pairs of a row that are multiplied between two jumps."""


def has_bf16(target: Target) -> bool:
    """Return whether a target multiplies bf16 faster than f32, and converts vectors of f32."""
    return target.avx512 and target.has("avx512bf16")


@contextmanager
def all_tiles(f: Function) -> Generator[None]:
    """Emit what is emitted meanwhile with all tiles at their full size, where there are any."""
    has = amx.has_amx(f.target)
    if has:
        amx.configure(f)
    yield
    if has:
        amx.release(f)


def joined(f: Function, first: Value, second: Value) -> Value:
    """Return 32 bf16: two vectors of 16 f32, rounded to nearest, subnormals to 0."""
    return f.intrinsic("x86.avx512bf16.cvtne2ps2bf16.512", "<32 x bfloat>", second, first)


def pairs(f: Function, first: Value, second: Value) -> Value:
    """Return two rows of b, 16 f32 each, as the pairs of bf16 that products take."""
    words = f.cast("bitcast", joined(f, first, second), "<32 x i16>")
    return f.shuffle(words, words, [lane for i in range(16) for lane in (i, 16 + i)])


def multiply_rows(
    f: Function,
    a: Value,
    a_stride: int,
    b: Sequence[Value],
    b_step: int,
    c: Value,
    c_stride: int,
    rows: Value,
    steps: Value,
    more: Value,
) -> None:
    """
    Emit c = a @ b by dot products, or c += a @ b where there are `more`.

    a is bf16 `[rows][32 steps]`, its rows `a_stride` bytes apart. b are one panel or two: tiles of
    32 of k, `b_step` bytes apart, each `[16][16][2]`. c is f32 `[rows][len(b)][16]`, its rows
    `c_stride` apart. Each sum is that of pairs in the order of k, one after the other.
    """
    wide = len(b)

    def body(f: Function) -> None:
        a, *b, c, rows, steps, more = f.params

        def block(row: Value, height: int) -> None:
            start, to = f.at(a, row, a_stride), f.at(c, row, c_stride)
            spots = [
                f.at(to, r * c_stride + w * 4 * PANEL) for r in range(height) for w in range(wide)
            ]

            def pair(at: Value, panels: Sequence[Value], sums: Sequence[Value]) -> list[Value]:
                lines = [f.load("<32 x bfloat>", panel, align=64) for panel in panels]
                result = list(sums)
                for r in range(height):
                    both = f.splat(f.load("i32", f.at(at, r * a_stride)), PANEL)
                    both = f.cast("bitcast", both, "<32 x bfloat>")
                    for w, line in enumerate(lines):
                        n = r * wide + w
                        result[n] = f.intrinsic(
                            "x86.avx512bf16.dpbf16ps.512", _SUMS, result[n], both, line
                        )
                return result

            def step(s: Value, sums: list[Value]) -> list[Value]:
                at, panels = f.at(start, s, amx.ROW_BYTES), [f.at(panel, s, b_step) for panel in b]

                def some(p: Value, sums: list[Value]) -> list[Value]:
                    for j in range(_UNROLL):
                        own = f.at(f.at(at, p, 4), 4 * j)
                        lines = [f.at(f.at(panel, p, amx.ROW_BYTES), 64 * j) for panel in panels]
                        sums = pair(own, lines, sums)
                    return sums

                return f.for_(0, amx.DEPTH // 2, _UNROLL, sums, some)

            sums = f.if_(
                more,
                lambda: [f.load(_SUMS, spot, align=64) for spot in spots],
                lambda: [f.zero(_SUMS)] * len(spots),
            )
            for spot, value in zip(spots, f.for_(0, steps, 1, sums, step), strict=True):
                f.store(value, spot, align=64)

        row = i64(0)
        for height in _HEIGHTS[wide]:

            def cover(carried: list[Value], height: int = height) -> list[Value]:
                block(carried[0], height)
                return [f.add(carried[0], height)]

            def fits(carried: list[Value], height: int = height) -> Value:
                return f.icmp("sle", f.add(carried[0], height), rows)

            (row,) = f.while_([row], fits, cover)
        f.ret()

    pointers = [("ptr", name) for name in ("a", *(f"b{w}" for w in range(wide)), "c")]
    params = [*pointers, ("i64", "rows"), ("i64", "steps"), ("i1", "more")]
    name = f"bf16.rows_{a_stride}_{wide}_{b_step}_{c_stride}"
    f.call(f.module.once(name, params, body), "void", a, *b, c, rows, steps, more)
