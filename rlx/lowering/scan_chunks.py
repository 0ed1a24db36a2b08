"""
Chunks of rows of the gated delta net as small products: what prefill gains over one row at a time.

For a chunk of rows, with c[t] the sum of the gates up to row t, and S the state before it:

    u[t] = beta[t] (v[t] - exp(c[t]) S^T k[t] - sum over s < t of exp(c[t] - c[s]) (k[t] k[s]) u[s])
    o[t] = (exp(c[t]) S^T q[t] + sum over s <= t of exp(c[t] - c[s]) (q[t] k[s]) u[s]) / sqrt(n)
    S    = exp(c[end]) S + sum over t of exp(c[end] - c[t]) k[t] u[t]^T

(Yang et al., "Gated Delta Networks", 2024, section 3.3.) The products of keys are made once for a
head, all others for some columns of values at a time, whose state is in the first cache. Sums of
gates, of which differences are taken, are in f64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rlx.lowering.body import Body
from rlx.lowering.emitter import Function
from rlx.lowering.rows import VECTOR
from rlx.lowering.target import PANEL
from rlx.lowering.values import Index, Value, f32, f64, i64, vec
from rlx.lowering.vmath import clamp_low, emit_unary

ROWS = 32
"""Rows of a chunk."""
_WIDTH = ROWS * 4
_UNROLL = 4
_LEAST = -1000.0


class Chunk:
    """
    Emits chunks of a head; `n` is the features of its keys.

    `keys` is the distance of rows of keys and queries in bytes, `gates` that of gates and betas;
    `lanes` is how many columns of values are taken together.
    """

    def __init__(self, body: Body, n: int, keys: int, gates: int, lanes: int):
        self.f, self.n, self.keys, self.gates, self.lanes = body.f, n, keys, gates, lanes
        target, f = body.f.target, body.f
        # Half of the registers hold sums of rows.
        self.block = max(1, target.registers * target.vector_bits // (2 * 32 * ROWS))
        sizes = {
            "k": ROWS * n * 4, "q": ROWS * n * 4, "turned": ROWS * n * 4, "solve": ROWS * _WIDTH,
            "read": ROWS * _WIDTH, "sums": ROWS * 8, "decay": _WIDTH, "left": _WIDTH,
            "beta": _WIDTH, "seen": ROWS * _WIDTH, "asked": ROWS * _WIDTH, "u": ROWS * _WIDTH,
        }  # fmt: skip
        start, at = f.scratch("delta_chunk", sum(sizes.values())), 0
        self.bytes, self.vector = 4 * lanes, vec(lanes, "float")
        self.at: dict[str, Value] = {}
        for name, size in sizes.items():
            self.at[name] = f.at(start, at)
            at += size

    @staticmethod
    def stack(n: int) -> int:
        """Return the bytes of stack that a chunk takes."""
        return 3 * ROWS * n * 4 + 5 * ROWS * _WIDTH + ROWS * (8 + 12)

    # What a head's columns share

    def prepare(self, q: Value, k: Value, g: Value, beta: Value) -> None:
        """Emit what depends on keys, queries and gates alone, from their first rows."""
        f = self.f
        scale = f32(1 / math.sqrt(self.n))

        def row(t: Value, total: list[Value]) -> list[Value]:
            # Below it the exponential is 0; differences of infinities would be NaN.
            gate = clamp_low(f, f.load("float", f.at(g, t, self.gates)), _LEAST)
            sum_ = f.fadd(total[0], f.cast("fpext", gate, "double"))
            f.store(sum_, f.at(self.at["sums"], t, 8))
            f.store(f.load("float", f.at(beta, t, self.gates)), f.at(self.at["beta"], t, 4))
            self._copy(f.at(k, t, self.keys), f.at(self.at["k"], t, self.n * 4), None)
            self._copy(f.at(q, t, self.keys), f.at(self.at["q"], t, self.n * 4), scale)
            return [sum_]

        (last,) = f.for_(0, ROWS, 1, [f64(0.0)], row)
        sums = f.load(vec(ROWS, "double"), self.at["sums"])
        since = f.fsub(f.splat(last, ROWS), sums)
        for name, v in (("decay", sums), ("left", since)):
            f.store(self._exp(v), self.at[name])
        self._turn()
        self._products()

    def _exp(self, v: Value) -> Value:
        return emit_unary(self.f, "exp", self.f.cast("fptrunc", v, vec(v.lanes, "float")))

    def _copy(self, source: Value, out: Value, scale: Value | None) -> None:
        """Copy a row of features, times a number where one is given."""
        f, whole = self.f, self.n - self.n % PANEL

        def some(i: Value, lanes: int) -> list[Value]:
            v = f.load(vec(lanes, "float"), f.at(source, i, 4))
            f.store(f.fmul(v, f.splat(scale, lanes)) if scale else v, f.at(out, i, 4))
            return []

        f.for_(0, whole, PANEL, [], lambda i, _: some(i, PANEL))
        f.for_(whole, self.n, 1, [], lambda i, _: some(i, 1))

    def _turn(self) -> None:
        """Write the keys as `[n][rows]`."""
        f, k, out = self.f, self.at["k"], self.at["turned"]
        whole = self.n - self.n % PANEL

        def square(i: Value, _: list[Value]) -> list[Value]:
            for t in range(0, ROWS, PANEL):
                places = (f.at(f.at(k, (t + r) * self.n * 4), i, 4) for r in range(PANEL))
                columns = transposed(f, [f.load(VECTOR, at) for at in places])
                for c, column in enumerate(columns):
                    f.store(column, f.at(f.at(out, f.add(i, c), _WIDTH), t * 4))
            return []

        def single(t: Value, _: list[Value]) -> list[Value]:
            for i in range(whole, self.n):
                v = f.load("float", f.at(f.at(k, t, self.n * 4), i * 4))
                f.store(v, f.at(f.at(out, i, _WIDTH), t, 4))
            return []

        f.for_(0, whole, PANEL, [], square)
        f.for_(0, ROWS, 1, [], single)

    def _products(self) -> None:
        """Emit what a row takes of each row before it; what is of others is not used."""
        f = self.f
        others = f.load(vec(ROWS, "double"), self.at["sums"])

        def rows(t: Value, lanes: int) -> list[Value]:
            for name, out in (("k", "solve"), ("q", "read")):
                given = self._rows(self.at[name], t, self.n * 4)
                sums = self._multiply(given, self.at["turned"], self.n, lanes=lanes)
                for r, sum_ in enumerate(sums):
                    finish(f.add(t, r), sum_, self.at[out], name == "k")
            return []

        def finish(t: Value, sum_: Value, out: Value, keys: bool) -> None:
            lanes = sum_.lanes
            own = f.splat(f.load("double", f.at(self.at["sums"], t, 8)), lanes)
            apart = f.fsub(own, f.shuffle(others, others, range(lanes)))
            v = f.fmul(sum_, self._exp(apart))
            if keys:
                beta = f.load("float", f.at(self.at["beta"], t, 4))
                v = f.fmul(v, f.splat(f.fneg(beta), lanes))
            f.store(v, f.at(out, t, _WIDTH))

        half = ROWS // 2
        f.for_(0, half, self.block, [], lambda t, _: rows(t, half))
        f.for_(half, ROWS, self.block, [], lambda t, _: rows(t, ROWS))

    # Columns of values

    def columns(
        self,
        state: Value,
        value: Callable[[Value], Value],
        put: Callable[[Value, Value], None] | None,
    ) -> None:
        """
        Emit a chunk of some columns, whose state is `[n][lanes]`.

        `value(t)` loads the columns of a row, `put(t, v)` stores those of the output, if there is
        one.
        """
        f = self.f
        wanted = [("k", "seen"), *([("q", "asked")] if put else [])]

        def look(t: Value, _: list[Value]) -> list[Value]:
            for source, out in wanted:
                sums = self._multiply(self._rows(self.at[source], t, self.n * 4), state, self.n)
                for r, sum_ in enumerate(sums):
                    decay = self._number("decay", f.add(t, r))
                    f.store(f.fmul(sum_, decay), f.at(self.at[out], f.add(t, r), self.bytes))
            return []

        f.for_(0, ROWS, self.block, [], look)
        for start in range(0, ROWS, self.block):
            self._solve(start, value)
        if put:
            for start in range(0, ROWS, self.block):
                self._read(start, put)
        self._renew(state)

    def _solve(self, start: int, value: Callable[[Value], Value]) -> None:
        """Emit the corrections of a block of rows, given those of all rows before it."""
        f, u = self.f, self.at["u"]
        given: list[Value] = []
        for r in range(start, start + self.block):
            v = f.fsub(value(i64(r)), f.load(self.vector, f.at(self.at["seen"], r * self.bytes)))
            given.append(f.fmul(v, self._number("beta", i64(r))))
        factors = self._rows(self.at["solve"], i64(start), _WIDTH)
        rows = self._multiply(factors, u, start, given)
        for r in range(self.block):
            f.store(rows[r], f.at(u, (start + r) * self.bytes))
            for later in range(r + 1, self.block):
                rows[later] = self._taken(factors[later], start + r, rows[r], rows[later])

    def _taken(self, factors: Value, t: int, v: Value, sum_: Value) -> Value:
        """Return a row's sum with another row, times the row's factor for it."""
        f = self.f
        return f.fma(f.splat(f.load("float", f.at(factors, t * 4)), self.lanes), v, sum_)

    def _read(self, start: int, put: Callable[[Value, Value], None]) -> None:
        """Emit the output of a block of rows. What comes after a row is not read, not even as 0."""
        f, u = self.f, self.at["u"]
        block = range(start, start + self.block)
        given = [f.load(self.vector, f.at(self.at["asked"], r * self.bytes)) for r in block]
        factors = self._rows(self.at["read"], i64(start), _WIDTH)
        for r, v in enumerate(self._multiply(factors, u, start, given)):
            for t in range(start, start + r + 1):
                own = f.load(self.vector, f.at(u, t * self.bytes))
                v = self._taken(factors[r], t, own, v)
            put(i64(start + r), v)

    def _renew(self, state: Value) -> None:
        """Emit the state after the chunk."""
        f, u = self.f, self.at["u"]

        def fade(t: Value, _: list[Value]) -> list[Value]:
            at = f.at(u, t, self.bytes)
            f.store(f.fmul(f.load(self.vector, at), self._number("left", t)), at)
            return []

        f.for_(0, ROWS, 1, [], fade)
        decay = self._number("decay", i64(ROWS - 1))

        def features(i: Value, count: int) -> list[Value]:
            places = [f.at(state, f.add(i, r), self.bytes) for r in range(count)]
            sums = [f.fmul(f.load(self.vector, at), decay) for at in places]
            rows = [f.at(self.at["turned"], f.add(i, r), _WIDTH) for r in range(count)]
            sums = self._multiply(rows, u, ROWS, sums)
            for at, v in zip(places, sums, strict=True):
                f.store(v, at)
            return []

        whole = self.n - self.n % self.block
        f.for_(0, whole, self.block, [], lambda i, _: features(i, self.block))
        f.for_(whole, self.n, 1, [], lambda i, _: features(i, 1))

    def _number(self, name: str, t: Value) -> Value:
        f = self.f
        return f.splat(f.load("float", f.at(self.at[name], t, 4)), self.lanes)

    def _rows(self, array: Value, t: Value, width: int) -> list[Value]:
        f = self.f
        first = f.at(array, t, width)
        return [f.at(first, r * width) for r in range(self.block)]

    def _multiply(
        self,
        rows: Sequence[Value],
        columns: Value,
        count: int,
        given: Sequence[Value] = (),
        lanes: int = 0,
    ) -> list[Value]:
        """
        Return sums over i of rows[i] columns[i][lanes], and what is given.

        With `lanes` the columns are the first ones of `[n][rows]`.
        """
        f, type_ = self.f, vec(lanes or self.lanes, "float")
        whole = count - count % _UNROLL
        width = _WIDTH if lanes else self.bytes

        def one(i: Index, sums: list[Value]) -> list[Value]:
            v = f.load(type_, f.at(columns, i, width))
            numbers = (f.splat(f.load("float", f.at(row, i, 4)), v.lanes) for row in rows)
            return [f.fma(x, v, sum_) for x, sum_ in zip(numbers, sums, strict=True)]

        def some(i: Value, sums: list[Value]) -> list[Value]:
            for j in range(_UNROLL):
                sums = one(f.add(i, j), sums)
            return sums

        sums = list(given) or [f.zero(type_)] * len(rows)
        sums = f.for_(0, whole, _UNROLL, sums, some)
        for i in range(whole, count):
            sums = one(i, sums)
        return sums


def transposed(f: Function, rows: Sequence[Value]) -> list[Value]:
    """Return the columns of as many rows as they have lanes (Eklundh, 1972)."""
    made, lanes = list(rows), range(len(rows))
    step = 1
    while step < len(rows):
        for i in (i for i in lanes if not i & step):
            a, b = made[i], made[i + step]
            made[i] = f.shuffle(a, b, [len(rows) + j - step if j & step else j for j in lanes])
            made[i + step] = f.shuffle(
                a, b, [len(rows) + j if j & step else j + step for j in lanes]
            )
        step *= 2
    return made
