"""
The kernel of random numbers: blocks of Philox in the lanes of vectors, put in their order.

Numbers come in groups of as many blocks as there are lanes, which begin at multiples of their size
in the key's sequence; the first and the last group of a result may be part of it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import TYPE_CHECKING, cast

from rlx.dialects.common import dims_of
from rlx.lowering.body import Body
from rlx.lowering.philox import emit_philox, halves
from rlx.lowering.values import Value, f32, f64, i64, vec
from rlx.lowering.vmath import UNARY

if TYPE_CHECKING:
    from rlx.ops.random import NormalOp, UniformOp


def emit(body: Body) -> None:
    """Random numbers as a launch of its own; see `random.uniform` and `random.normal`."""
    op = cast("UniformOp | NormalOp", body.ops[0])
    seed, f = body.pointers[op.args[0]], body.f
    wide = op.option("element") == "f64"
    kernel = _Groups(body, f.load("i64", seed, 8), wide, op.name == "random.normal")
    offset = f.load("i64", f.at(seed, 8), 8)
    kernel.run(offset, body.count(dims_of(op.res[0].type)))


class _Groups:
    def __init__(self, body: Body, key: Value, wide: bool, normal: bool):
        self.body, self.f = body, body.f
        self.wide, self.normal = wide, normal
        self.blocks, self.each = (8, 2) if wide else (16, 4)
        self.count = self.blocks * self.each
        self.type, self.size = ("double", 8) if wide else ("float", 4)
        self.key = [self.f.splat(k, self.blocks) for k in halves(self.f, key)]

    def run(self, offset: Value, count: Value) -> None:
        """Emit `count` numbers from a place of the sequence on; groups are shared by threads."""
        f, out = self.f, self.body.outs[0]
        skipped = f.and_(offset, self.count - 1)
        first_block = f.mul(f.lshr(offset, self.count.bit_length() - 1), self.blocks)
        end = f.add(skipped, count)
        part = f.scratch("random_group", self.count * self.size)

        def group(g: Value) -> None:
            numbers = self._numbers(f.add(first_block, f.mul(g, self.blocks)))
            start = f.mul(g, self.count)
            low = f.intrinsic("smax", "i64", start, skipped)
            high = f.intrinsic("smin", "i64", f.add(start, self.count), end)

            def whole() -> list[Value]:
                f.store(numbers, f.at(out, f.sub(start, skipped), self.size), self.size)
                return []

            def copied() -> list[Value]:
                f.store(numbers, part, 64)
                f.for_(low, high, 1, [], copy)
                return []

            def copy(i: Value, _: list[Value]) -> list[Value]:
                number = f.load(self.type, f.at(part, f.sub(i, start), self.size), self.size)
                f.store(number, f.at(out, f.sub(i, skipped), self.size), self.size)
                return []

            f.if_(f.icmp("eq", f.sub(high, low), self.count), whole, copied)

        groups = f.udiv(f.add(end, self.count - 1), self.count)
        self.body.for_rows(f.select(f.icmp("eq", count, 0), i64(0), groups), group)

    def _numbers(self, block: Value) -> Value:
        """Return the numbers of a group, in order, given its first block."""
        f, lanes = self.f, self.blocks
        counter = f.add(f.splat(block, lanes), f.vector("i64", range(lanes)))
        zero = f.zero(vec(lanes, "i32"))
        words = emit_philox(f, [*halves(f, counter), zero, zero], self.key)
        if self.wide:
            words = [self._joint(*words[:2]), self._joint(*words[2:])]
        even, odd = (self._beside(words[i::2]) for i in (0, 1))
        make = self._pairs if self.normal else self._fractions
        even, odd = make(even, odd)
        # Lane [i, b] of the even and the odd ones is number 2 i, or 2 i + 1, of block b.
        order = [
            (i % 2) * even.lanes + (i // 2) * lanes + b
            for b in range(lanes)
            for i in range(self.each)
        ]
        return f.shuffle(even, odd, order)

    def _joint(self, low: Value, high: Value) -> Value:
        f, type_ = self.f, vec(low.lanes, "i64")
        return f.or_(f.shl(f.cast("zext", high, type_), 32), f.cast("zext", low, type_))

    def _beside(self, vectors: Sequence[Value]) -> Value:
        if len(vectors) == 1:
            return vectors[0]
        a, b = vectors
        return self.f.shuffle(a, b, list(range(a.lanes + b.lanes)))

    def _scaled(self, number: Value, by: float) -> Value:
        factor = f64(by) if self.wide else f32(by)
        return self.f.fmul(number, self.f.splat(factor, number.lanes))

    def _fractions(self, *words: Value) -> list[Value]:
        f, (dropped, kept) = self.f, (11, 53) if self.wide else (8, 24)
        return [
            self._scaled(f.cast("sitofp", f.lshr(w, dropped), vec(w.lanes, self.type)), 2.0**-kept)
            for w in words
        ]

    def _pairs(self, u: Value, v: Value) -> list[Value]:
        """Return normal numbers in pairs, of uniform ones."""
        f, type_ = self.f, vec(u.lanes, self.type)
        bits = 53 if self.wide else 32
        if self.wide:
            u, v = f.lshr(u, 11), f.ashr(v, 11)
        half = f.splat(f64(0.5) if self.wide else f32(0.5), u.lanes)
        above = f.fadd(f.cast("uitofp", u, type_), half)
        # Exact in every program, so that a seed's numbers are the same in all.
        log = UNARY["log"](f, self._scaled(above, 2.0**-bits))
        radius = UNARY["sqrt"](f, self._scaled(log, -2.0))
        # Words with a sign are angles from -pi to pi, of the same sine and cosine.
        angle = self._scaled(f.cast("sitofp", v, type_), 2 * pi * 2.0**-bits)
        return [f.fmul(radius, UNARY[kind](f, angle)) for kind in ("cos", "sin")]
