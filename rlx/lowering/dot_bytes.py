"""
Products of bytes: operands that are widened into words of i32 before they are packed.

Where the target has vpdpbusd a word is four bytes that follow each other along k. It multiplies
bytes without a sign by signed ones: signed ones on the left get 128 added, and a panel of rhs
starts with -128 times the sums of its columns, which sums then start from. Elsewhere on x86 a word
is two 16-bit numbers for pmaddwd, and on other machines one number. All of them are exact: i32
sums wrap around, as the products' definition says.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.lowering.dot_matrix import Tiling, up
from rlx.lowering.emitter import Function, Module
from rlx.lowering.target import LINE
from rlx.lowering.values import Value, i64, vec


def along(module: Module, t: Tiling, left: bool) -> str:
    """Return a function that widens lines along k, into lines `row_bytes` apart."""
    lanes = t.lanes * t.group

    def body(f: Function) -> None:
        source, stride, out, lines, length = f.params
        rest = f.alloca(LINE)

        def line(i: Value, _: list[Value]) -> list[Value]:
            own, to = f.at(source, f.mul(i, stride)), f.at(out, i, t.row_bytes)

            def word(k: Value, v: Value) -> None:
                f.store(_widened(f, t, v, left), f.at(to, f.udiv(k, t.group), t.size))

            def whole(k: Value, _: list[Value]) -> list[Value]:
                word(k, f.load(vec(lanes, "i8"), f.at(own, k), align=1))
                return []

            def tail() -> list[Value]:
                f.store(f.zero(vec(lanes, "i8")), rest, align=16)
                f.for_(most, length, 1, [], lambda k, _: _copy(f, own, k, rest, f.sub(k, most)))
                word(most, f.load(vec(lanes, "i8"), rest, align=16))
                return []

            most = f.mul(f.udiv(length, lanes), lanes)
            f.for_(0, most, lanes, [], whole)
            return f.if_(f.icmp("ult", most, length), tail)

        f.for_(0, lines, 1, [], line)
        f.ret()

    params = [("ptr", "source"), ("i64", "stride"), ("ptr", "out")]
    params += [("i64", "lines"), ("i64", "length")]
    return module.once(f"dot.along_{t.name}_{'l' if left else 'r'}", params, body)


def across(module: Module, t: Tiling, left: bool) -> str:
    """Return a function that widens `[k][lines]` into words `[k / group][lines]`."""

    def body(f: Function) -> None:
        source, stride, out, out_stride, length, lines = f.params
        zeros, rest = f.alloca(LINE), f.alloca(t.group * LINE)
        f.store(f.zero(vec(t.lanes, "i8")), zeros, align=16)
        most = f.mul(f.udiv(lines, t.lanes), t.lanes)

        def words(w: Value, _: list[Value]) -> list[Value]:
            to = f.at(out, f.mul(w, out_stride))
            rows: list[tuple[Value, Value]] = []
            for i in range(t.group):
                k = f.add(f.mul(w, t.group), i)
                there = f.icmp("ult", k, length)
                row = f.select(there, f.at(source, f.mul(k, stride)), zeros)
                rows.append((row, f.select(there, i64(1), i64(0))))

            def store(j: Value, values: Sequence[Value]) -> None:
                f.store(_widened(f, t, _interleaved(f, values), left), f.at(to, j, t.size))

            def whole(j: Value, _: list[Value]) -> list[Value]:
                at = [f.at(row, f.mul(j, step)) for row, step in rows]
                store(j, [f.load(vec(t.lanes, "i8"), p, align=1) for p in at])
                return []

            def byte(j: Value, _: list[Value]) -> list[Value]:
                for i, (row, step) in enumerate(rows):
                    _copy(f, row, f.mul(j, step), f.at(rest, i * LINE), f.sub(j, most))
                return []

            def tail() -> list[Value]:
                f.for_(most, lines, 1, [], byte)
                at = [f.at(rest, i * LINE) for i in range(t.group)]
                store(most, [f.load(vec(t.lanes, "i8"), p, align=16) for p in at])
                return []

            f.for_(0, most, t.lanes, [], whole)
            return f.if_(f.icmp("ult", most, lines), tail)

        f.for_(0, up(f, length, t.group), 1, [], words)
        f.ret()

    params = [("ptr", "source"), ("i64", "stride"), ("ptr", "out"), ("i64", "out_stride")]
    params += [("i64", "length"), ("i64", "lines")]
    return module.once(f"dot.across_{t.name}_{'l' if left else 'r'}", params, body)


def _copy(f: Function, source: Value, at: Value, out: Value, to: Value) -> list[Value]:
    f.store(f.load("i8", f.at(source, at), align=1), f.at(out, to), align=1)
    return []


def _interleaved(f: Function, values: Sequence[Value]) -> Value:
    """Return the first lanes of all vectors, then the second ones, and so on."""
    while len(values) > 1:
        half, lanes = len(values) // 2, values[0].lanes
        order = [i for lane in range(lanes) for i in (lane, lanes + lane)]
        # Those half the number apart, so that what comes out is in order.
        values = [f.shuffle(values[i], values[half + i], order) for i in range(half)]
    return values[0]


def _widened(f: Function, t: Tiling, v: Value, left: bool) -> Value:
    """Return bytes as words."""
    if t.group == 4:
        if left and t.offset:
            v = f.xor(v, -128)
    else:
        opcode = "zext" if left and t.unsigned else "sext"
        v = f.cast(opcode, v, vec(v.lanes, f"i{32 // t.group}"))
    return v if v.type == t.vector else f.cast("bitcast", v, t.vector)


def correct(module: Module, t: Tiling) -> str:
    """Return a function that writes -128 times the sums of columns at the start of panels."""

    def body(f: Function) -> None:
        out, panels, words = f.params
        high = f.constant(t.vector, -0x7F7F7F80)

        def panel(p: Value, _: list[Value]) -> list[Value]:
            own = f.at(out, p, t.panel_bytes)

            def add(w: Value, sums: list[Value]) -> list[Value]:
                row = f.at(f.at(own, t.panel_row_bytes), w, t.panel_row_bytes)
                return [
                    t.multiply_add(f, high, f.load(t.vector, f.at(row, v * t.lanes * t.size)), s)
                    for v, s in enumerate(sums)
                ]

            sums = f.for_(0, words, 1, [f.zero(t.vector)] * t.vectors, add)
            for v, total in enumerate(sums):
                less = f.sub(f.zero(t.vector), total)
                f.store(less, f.at(own, v * t.lanes * t.size))
            return []

        f.for_(0, panels, 1, [], panel)
        f.ret()

    params = [("ptr", "out"), ("i64", "panels"), ("i64", "words")]
    return module.once(f"dot.correct_{t.name}", params, body)
