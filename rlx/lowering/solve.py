"""
Kernels of linear algebra: factors of matrices, and triangular systems.

A thread takes whole matrices, and of the right-hand sides of triangular systems some columns. The
factors with pivots go by blocks of columns: what is right of a block and below it is changed once
for all of them, a few rows at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from rlx.dialects.common import Dim, dims_of, element_bytes, element_of
from rlx.lowering.body import Body
from rlx.lowering.target import LINE
from rlx.lowering.tensor_elements import memory_type
from rlx.lowering.values import Index, Value, f32, f64, i64, vec

if TYPE_CHECKING:
    from rlx.ops.linalg import CholeskyOp, LuOp, TriangularSolveOp

_BLOCK = 8
"""Columns that are factored before the rest of the matrix is changed."""
_ROWS = 4
"""Rows that are changed at a time."""


def emit(body: Body) -> None:
    """A factorisation or a triangular system as a launch of its own; see `rlx.ops.linalg`."""
    kernel = {"linalg.lu": _Lu, "linalg.cholesky": _Cholesky}.get(body.ops[0].name, _Triangular)
    kernel(body).run()


class _Matrices(ABC):
    """Square matrices `[batch..., n, n]` of floats, and loops over parts of their rows."""

    def __init__(self, body: Body):
        self.body, self.f, self.op = body, body.f, body.ops[0]
        type_ = self.op.operands[0].type
        self.batch: list[Dim] = list(dims_of(type_)[:-2])
        self.n = body.size(dims_of(type_)[-1])
        self.size, self.element = element_bytes(type_), memory_type(element_of(type_))
        self.lanes = LINE // self.size
        self.source = body.pointers[self.op.operands[0]]
        self.outs = dict(zip(body.yielded, body.outs, strict=True))

    @abstractmethod
    def run(self) -> None:
        """Emit what this thread does of all matrices."""

    def number(self, x: float) -> Value:
        return f32(x) if self.size == 4 else f64(x)

    def matrix(self, array: Value, item: Value) -> Value:
        f = self.f
        return f.at(array, f.mul(item, f.mul(self.n, self.n)), self.size)

    def row(self, matrix: Value, i: Index) -> Value:
        f = self.f
        return f.at(matrix, f.mul(i, self.n), self.size)

    def load(self, row: Value, i: Index, lanes: int = 1) -> Value:
        return self.f.load(vec(lanes, self.element), self.f.at(row, i, self.size), self.size)

    def store(self, v: Value, row: Value, i: Index) -> None:
        self.f.store(v, self.f.at(row, i, self.size), self.size)

    def each(self, first: Index, last: Value, body: Callable[[Value], None]) -> None:
        self.f.for_(first, last, 1, [], lambda i, _: body(i) or [])

    def chunks(self, first: Value, last: Value, body: Callable[[Value, int], None]) -> None:
        """Emit body(column, lanes) from one column to another: by lines, half lines, then ones."""
        f = self.f
        for lanes in (self.lanes, self.lanes // 2, 1):
            end = f.sub(last, f.binary("srem", f.sub(last, first), lanes))
            f.for_(first, end, lanes, [], lambda c, _, lanes=lanes: body(c, lanes) or [])
            first = end

    def less(self, factors: Sequence[Value], rows: Sequence[Value], v: Value) -> Value:
        """Return a value less products of factors and values."""
        f = self.f
        for factor, row in zip(factors, rows, strict=True):
            v = f.fma(f.splat(factor, v.lanes), row, v)
        return v


class _Lu(_Matrices):
    """A[order] = L U in place of a copy of A."""

    def run(self) -> None:
        op = cast("LuOp", self.op)
        values, order, sign = (self.outs.get(r) for r in op.res)
        f = self.f

        def one(item: Value) -> None:
            # Where nobody asks for the factors there is still the work of finding the others.
            assert values is not None
            m = self.matrix(values, item)
            start = self.matrix(self.source, item)
            self.chunks(
                i64(0), f.mul(self.n, self.n), lambda c, k: self.store(self.load(start, c, k), m, c)
            )
            places = f.at(order, f.mul(item, self.n), 8) if order else None
            if places:
                self.each(0, self.n, lambda i: f.store(i, f.at(places, i, 8), 8))
            turned = self._factor(m, places)
            if sign:
                self.store(turned, sign, item)

        self.body.for_rows(self.body.count(self.batch), one)

    def _factor(self, m: Value, places: Value | None) -> Value:
        """Emit the factors of a matrix, block after block; return the sign of the order."""
        f = self.f

        def block(k: Value, sign: list[Value]) -> list[Value]:
            end = f.intrinsic("smin", "i64", f.add(k, _BLOCK), self.n)
            sign = f.for_(k, end, 1, sign, lambda j, s: [self._column(m, places, j, end, s[0])])
            self.each(f.add(k, 1), end, lambda i: self._change(m, k, i, [i], end))
            full = f.icmp("eq", f.sub(end, k), _BLOCK)
            f.if_(full, lambda: self._rest(m, k, end) or [])
            return sign

        return f.for_(0, self.n, _BLOCK, [self.number(1.0)], block)[0]

    def _column(self, m: Value, places: Value | None, j: Value, end: Value, sign: Value) -> Value:
        """Emit the pivot of a column, and the change of those of its block."""
        f = self.f

        def larger(i: Value, best: list[Value]) -> list[Value]:
            x = f.intrinsic("fabs", self.element, self.load(self.row(m, i), j))
            more = f.fcmp("ogt", x, best[0])
            return [f.select(more, x, best[0]), f.select(more, i, best[1])]

        _, pivot = f.for_(j, self.n, 1, [self.number(-1.0), j], larger)
        swapped = f.icmp("ne", pivot, j)

        def swap() -> list[Value]:
            a, b = self.row(m, j), self.row(m, pivot)

            def part(c: Value, lanes: int) -> None:
                x, y = self.load(a, c, lanes), self.load(b, c, lanes)
                self.store(x, b, c)
                self.store(y, a, c)

            self.chunks(i64(0), self.n, part)
            if places:
                at, to = f.at(places, j, 8), f.at(places, pivot, 8)
                x, y = f.load("i64", at, 8), f.load("i64", to, 8)
                f.store(x, to, 8)
                f.store(y, at, 8)
            return [f.fneg(sign)]

        (sign,) = f.if_(swapped, swap, lambda: [sign])
        top = self.row(m, j)
        head = self.load(top, j)
        usable = f.fcmp("une", head, self.number(0.0))
        divisor = f.select(usable, head, self.number(1.0))

        def below(i: Value) -> None:
            row = self.row(m, i)
            factor = f.fdiv(self.load(row, j), divisor)
            self.store(factor, row, j)
            minus = f.fneg(factor)

            def change(c: Value, _: list[Value]) -> list[Value]:
                self.store(f.fma(minus, self.load(top, c), self.load(row, c)), row, c)
                return []

            f.for_(f.add(j, 1), end, 1, [], change)

        self.each(f.add(j, 1), self.n, below)
        return sign

    def _change(self, m: Value, k: Value, end: Value, rows: Sequence[Value], first: Value) -> None:
        """Emit the change of rows from a column on by the block's rows from k to `end`."""
        f = self.f
        places = [self.row(m, i) for i in rows]

        def part(c: Value, lanes: int) -> None:
            given = [self.load(row, c, lanes) for row in places]

            def one(j: Value, v: list[Value]) -> list[Value]:
                top = self.load(self.row(m, j), c, lanes)
                factors = (f.fneg(self.load(row, j)) for row in places)
                return [self.less([x], [top], y) for x, y in zip(factors, v, strict=True)]

            for row, v in zip(places, f.for_(k, end, 1, given, one), strict=True):
                self.store(v, row, c)

        self.chunks(first, self.n, part)

    def _rest(self, m: Value, k: Value, end: Value) -> None:
        """Emit the change of all rows below a whole block."""
        f = self.f
        count = f.sub(self.n, end)
        whole = f.sub(self.n, f.binary("srem", count, _ROWS))

        def some(i: Value, rows: int) -> None:
            self._change_all(m, k, end, [f.add(i, r) for r in range(rows)])

        f.for_(end, whole, _ROWS, [], lambda i, _: some(i, _ROWS) or [])
        f.for_(whole, self.n, 1, [], lambda i, _: some(i, 1) or [])

    def _change_all(self, m: Value, k: Value, end: Value, rows: Sequence[Value]) -> None:
        """Emit the change of rows right of a block by its rows, whose factors are in registers."""
        f = self.f
        places = [self.row(m, i) for i in rows]
        tops = [self.row(m, f.add(k, j)) for j in range(_BLOCK)]
        factors = [[f.fneg(self.load(row, f.add(k, j))) for j in range(_BLOCK)] for row in places]

        def part(c: Value, lanes: int) -> None:
            above = [self.load(top, c, lanes) for top in tops]
            for row, own in zip(places, factors, strict=True):
                self.store(self.less(own, above, self.load(row, c, lanes)), row, c)

        self.chunks(end, self.n, part)


class _Cholesky(_Matrices):
    """L row after row: each element takes the product of two rows of L."""

    def run(self) -> None:
        op = cast("CholeskyOp", self.op)
        out = self.outs[op.res[0]]
        self.body.for_rows(self.body.count(self.batch), lambda item: self._factor(item, out))

    def _factor(self, item: Value, out: Value) -> None:
        f = self.f
        source, m = self.matrix(self.source, item), self.matrix(out, item)

        def row(i: Value) -> None:
            own, given = self.row(m, i), self.row(source, i)

            def element(j: Value) -> None:
                other = self.row(m, j)
                left = f.fsub(self.load(given, j), self._product(own, other, j))
                self.store(f.fdiv(left, self.load(other, j)), own, j)

            self.each(0, i, element)
            left = f.fsub(self.load(given, i), self._product(own, own, i))
            self.store(f.intrinsic("sqrt", self.element, left), own, i)
            zero = self.number(0.0)
            self.chunks(f.add(i, 1), self.n, lambda c, k: self.store(f.splat(zero, k), own, c))

        self.each(0, self.n, row)

    def _product(self, a: Value, b: Value, count: Value) -> Value:
        """Return the sum of products of the first elements of two rows."""
        f = self.f
        whole = f.sub(count, f.binary("srem", count, self.lanes))

        def some(c: Value, total: list[Value], lanes: int) -> list[Value]:
            return [f.fma(self.load(a, c, lanes), self.load(b, c, lanes), total[0])]

        zero = f.zero(vec(self.lanes, self.element))
        (wide,) = f.for_(0, whole, self.lanes, [zero], lambda c, t: some(c, t, self.lanes))
        total = [f.reduce("fadd", wide)]
        return f.for_(whole, count, 1, total, lambda c, t: some(c, t, 1))[0]


class _Triangular(_Matrices):
    """T X = B, sixteen columns of B or fewer at a time."""

    def run(self) -> None:
        op = cast("TriangularSolveOp", self.op)
        f, out = self.f, self.outs[op.res[0]]
        self.width = self.body.size(dims_of(op.args[1].type)[-1])
        self.unit, self.transposed = op.option("unit"), op.option("transposed")
        self.forwards = op.option("lower") != self.transposed
        given, order = self.body.pointers[op.args[1]], None
        if op.option("ordered"):
            order = self.body.pointers[op.args[2]]
        parts = f.udiv(f.add(self.width, self.lanes - 1), self.lanes)

        def part(u: Value) -> None:
            # Without a column there is no part, but the division must not trap.
            item = f.udiv(u, f.umax(parts, 1))
            first = f.mul(f.sub(u, f.mul(item, parts)), self.lanes)
            last = f.intrinsic("smin", "i64", f.add(first, self.lanes), self.width)
            start = f.mul(item, f.mul(self.n, self.width))
            b, x = (f.at(array, start, self.size) for array in (given, out))
            places = f.at(order, f.mul(item, self.n), 8) if order else None
            t = self.matrix(self.source, item)
            self.chunks(first, last, lambda c, lanes: self._columns(t, b, x, places, c, lanes))

        self.body.for_rows(f.mul(self.body.count(self.batch), parts), part)

    def _columns(
        self, t: Value, b: Value, x: Value, order: Value | None, column: Value, lanes: int
    ) -> None:
        """Emit the solution for columns from one on."""
        f = self.f

        def at(array: Value, row: Value) -> Value:
            return f.at(array, f.add(f.mul(row, self.width), column), self.size)

        def row(step: Value) -> None:
            i = step if self.forwards else f.sub(f.sub(self.n, 1), step)
            place = f.load("i64", f.at(order, i, 8), 8) if order else i
            own = self.row(t, i)

            def known(s: Value, v: list[Value]) -> list[Value]:
                j = s if self.forwards else f.sub(f.sub(self.n, 1), s)
                factor = self.load(self.row(t, j), i) if self.transposed else self.load(own, j)
                return [self.less([f.fneg(factor)], [self.load(at(x, j), 0, lanes)], v[0])]

            start = [self.load(at(b, place), 0, lanes)]
            (v,) = f.for_(0, step, 1, start, known)
            if not self.unit:
                v = f.fdiv(v, f.splat(self.load(own, i), lanes))
            self.store(v, at(x, i), 0)

        self.each(0, self.n, row)
