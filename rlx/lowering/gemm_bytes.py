"""
Products of rows as bytes by tiles of vector registers: where there is no matrix unit for them.

Rows are rounded to bytes in chunks that stay in L2, panels are read as they are packed: a vector
has four k of each of 16 rows. Sums are i32. x86 multiplies them by
- vpdpbusd, four bytes at a time;
- pmaddwd elsewhere, two 16-bit numbers at a time: rows are kept as words of k, k + 2 and of k + 1,
  k + 3, and panels are taken apart in the same way.
Other machines multiply one number after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rlx.lowering.byte_rows import Activations, over
from rlx.lowering.contract import SPLIT_ROWS, Group, shares
from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import BYTES_DEPTH
from rlx.lowering.gemm_unit import LINE, OF_ROW, Rows, StorePanel, StoreRow, Units
from rlx.lowering.target import PANEL, Target
from rlx.lowering.values import Value, i64, vec

_L2_ROWS = 512 * 1024
"""Bytes of rows that stay in the L2 cache while panels go by; on the stack."""
_MOST_ROWS = 512
_QUAD = 4


@dataclass(frozen=True)
class _Form:
    """How a target multiplies bytes."""

    target: Target

    @property
    def dots(self) -> bool:
        """Whether four bytes are multiplied by one instruction."""
        return self.target.has("avx512vnni") or self.target.has("avxvnni")

    @property
    def words(self) -> int:
        """Return the i32 words that four numbers of a row take."""
        return 1 if self.dots or not self.target.triple.startswith("x86") else 2

    @property
    def lanes(self) -> int:
        return self.target.vector_bits // 32

    @property
    def vector(self) -> str:
        return vec(self.lanes, "i32")

    @property
    def heights(self) -> tuple[int, ...]:
        """Return the rows of the register tiles: the largest leaves registers for the operands."""
        if self.target.avx512:
            return 12, 8, 4, 2, 1
        return (4, 2, 1) if self.target.registers == 32 or self.target.avx2 else (2, 1)

    def row_bytes(self, k: int) -> int:
        return -(-k // BYTES_DEPTH) * BYTES_DEPTH * self.words

    def store_row(self, f: Function, part: Value, at: Value) -> int:
        """Store numbers of a row as they are multiplied; return how many bytes they take."""
        count = part.lanes * self.words
        if self.words == 1:
            f.store(part, at, align=part.lanes)
            return count
        low, high = (
            f.cast("bitcast", v, vec(part.lanes // 4, "i32")) for v in _apart(f, part, signed=False)
        )
        order = [lane for i in range(low.lanes) for lane in (i, low.lanes + i)]
        f.store(f.shuffle(low, high, order), at, align=part.lanes)
        return count

    def panel(self, f: Function, word: Value) -> list[Value]:
        """Return a vector of a panel as `multiply` takes it."""
        if self.words == 1:
            return [word]
        return [f.cast("bitcast", v, word.type) for v in _apart(f, word, signed=True)]

    def row(self, f: Function, at: Value) -> list[Value]:
        """Load four numbers of a row, in all lanes, as `multiply` takes them."""
        words = [f.load("i32", f.at(at, 4 * i)) for i in range(self.words)]
        return [f.splat(word, self.lanes) for word in words]

    def multiply(self, f: Function, sums: Value, a: Sequence[Value], b: Sequence[Value]) -> Value:
        """Return sums with the products of a row's numbers and a panel's."""
        if self.dots:
            # The form with a prefix of 512 bits needs AVX-512; LLVM chooses for the others.
            stem = f"x86.avx512.vpdpbusd.{32 * self.lanes}"
            return f.intrinsic(stem, self.vector, sums, a[0], b[0])
        if self.words == 1:
            for byte in range(_QUAD):
                x, y = (f.shl(v, 24 - 8 * byte) for v in (a[0], b[0]))
                sums = f.add(sums, f.mul(f.lshr(x, 24), f.ashr(y, 24)))
            return sums
        names = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}
        for pair in zip(a, b, strict=True):
            halves = [f.cast("bitcast", v, vec(2 * self.lanes, "i16")) for v in pair]
            product = f.intrinsic(f"x86.{names[self.lanes]}", self.vector, *halves)
            sums = f.add(sums, product)
        return sums


def _apart(f: Function, v: Value, signed: bool) -> tuple[Value, Value]:
    """Return the even bytes of a vector, and the odd ones, as i16 lanes."""
    pairs = f.cast("bitcast", v, vec(v.lanes // 2 if v.element == "i8" else 2 * v.lanes, "i16"))
    down = f.ashr if signed else f.lshr
    return down(f.shl(pairs, 8), 8), down(pairs, 8)


@dataclass(frozen=True)
class _Product(Units):
    """The product of rows with one group, as far as it is known when code is generated."""

    rows: Rows

    @property
    def form(self) -> _Form:
        return _Form(self.f.target)

    @property
    def wide(self) -> int:
        """Return the panels of a tile."""
        return 2 if self.f.target.avx512 and self.across % 2 == 0 else 1


def emit_bytes(
    f: Function,
    groups: Sequence[Group],
    rows: Rows,
    weights: Sequence[Sequence[Value]],
    tid: Value,
    nth: Value,
    store: StoreRow,
) -> None:
    """
    Emit the product of rows with this thread's share of the groups' panels.

    Where there are many rows, threads share these, and each reads all panels.
    """

    def product(group: Group) -> _Product:
        lone = f.target.avx512 and len(group.formats) == 1
        return _Product(f, rows.k, group, 2 if lone else 1, rows)

    products = [product(group) for group in groups]
    stride = _Form(f.target).row_bytes(rows.k)
    at_once = max(1, min(_MOST_ROWS, _L2_ROWS // stride))
    many = f.icmp("uge", rows.count, f.mul(nth, SPLIT_ROWS))
    bounds = [f.udiv(f.mul(rows.count, i), nth) for i in (tid, f.add(tid, 1))]
    first_row, end_row = f.select(many, bounds[0], i64(0)), f.select(many, bounds[1], rows.count)
    tid, nth = f.select(many, i64(0), tid), f.select(many, i64(1), nth)
    split = shares(f, [p.count for p in products], [p.across for p in products], tid, nth)
    copies, steps = f.scratch("rows", at_once * stride), f.scratch("steps", at_once * OF_ROW)
    tallest = _Form(f.target).heights[0]
    sums = f.scratch("sums", max(tallest * p.across * LINE for p in products))

    def part(r0: Value, _: list[Value]) -> list[Value]:
        count = f.umin(f.sub(end_row, r0), at_once)
        start = f.at(rows.start, r0, rows.stride)
        f.call(_rounder(f.module, rows), "void", start, copies, count, steps)
        for g, (p, own, (first, last)) in enumerate(zip(products, weights, split, strict=True)):
            kernel = _Kernel(p, own, (copies, steps, sums), r0, count, partial(store, f, g))
            f.for_(first, last, 1, [], lambda u, _, kernel=kernel: kernel.unit(u))
        return []

    f.for_(first_row, end_row, at_once, [], part)


def _rounder(module: Module, rows: Rows) -> str:
    """Return a function that rounds rows to bytes, as they are multiplied."""

    def body(f: Function) -> None:
        form, activations = _Form(f.target), Activations(f, rows)
        a, out, count, steps = f.params

        def row(r: Value, _: list[Value]) -> list[Value]:
            source, to = f.at(a, r, rows.stride), f.at(out, r, form.row_bytes(rows.k))
            how = activations.kept(source, f.at(steps, r, OF_ROW))

            def line(i: Value, live: int, none: list[Value]) -> list[Value]:
                at = f.at(to, i, BYTES_DEPTH * form.words)
                for values in activations.parts(source, i, live, how):
                    at = f.at(at, form.store_row(f, values, at))
                return none

            return over(f, rows.k, BYTES_DEPTH, [], line)

        f.for_(0, count, 1, [], row)
        f.ret()

    params = [("ptr", "a"), ("ptr", "out"), ("i64", "count"), ("ptr", "steps")]
    return module.once(f"gemm.bytes_{rows.k}_{rows.stride}_{rows.element}", params, body)


@dataclass(frozen=True)
class _Kernel:
    """A group's product with some rows while it is written."""

    p: _Product
    weights: Sequence[Value]
    scratch: tuple[Value, Value, Value]
    """The rows as bytes, their steps, and a tile's sums."""
    row0: Value
    """The number of the first row."""
    count: Value
    store: StorePanel

    def unit(self, unit: Value) -> list[Value]:
        """Cover the rows with tiles, the largest first."""
        p, f = self.p, self.p.f
        panels = [source for _, source in p.sources(unit, self.weights)]
        steps, row = p.steps_at(unit, self.weights), i64(0)
        for height in p.form.heights:

            def cover(carried: list[Value], height: int = height) -> list[Value]:
                self._tiles(unit, panels, steps, carried[0], height)
                return [f.add(carried[0], height)]

            def fits(carried: list[Value], height: int = height) -> Value:
                return f.icmp("sle", f.add(carried[0], height), self.count)

            (row,) = f.while_([row], fits, cover)
        return []

    def _tiles(
        self, unit: Value, panels: Sequence[Value], steps: Sequence[Value], row: Value, height: int
    ) -> None:
        """Multiply `height` rows with a unit's panels, and hand the products on."""
        p, f = self.p, self.p.f
        copies, row_steps, sums = self.scratch
        a = f.at(copies, row, p.form.row_bytes(p.k))
        for tile in range(p.across // p.wide):
            own = panels[tile * p.wide : (tile + 1) * p.wide]
            c = f.at(sums, tile * p.wide * LINE)
            f.call(_tile(p, height), "void", a, c, *own)

        def finish(r: Value, _: list[Value]) -> list[Value]:
            own = f.at(row_steps, f.add(row, r), OF_ROW)
            values = p.loaded(f.at(sums, r, p.across * LINE), own, steps)
            p.finish(unit, f.add(f.add(self.row0, row), r), values, self.store)
            return []

        f.for_(0, height, 1, [], finish)


def _tile(p: _Product, height: int) -> str:
    """Return a function that leaves the sums of `height` rows and `p.wide` panels at c."""
    form = p.form
    vectors = PANEL // form.lanes
    quads = -(-p.k // _QUAD)
    stride = form.row_bytes(p.k)

    def body(f: Function) -> None:
        a, c, *panels = f.params
        places = [(panel, v * 4 * form.lanes) for panel in panels for v in range(vectors)]

        def step(q: Value, sums: list[Value]) -> list[Value]:
            columns = [
                form.panel(f, f.load(form.vector, f.at(f.at(panel, q, 4 * PANEL), at)))
                for panel, at in places
            ]
            result: list[Value] = []
            for r in range(height):
                x = form.row(f, f.at(f.at(a, q, 4 * form.words), r * stride))
                own = sums[r * len(places) : (r + 1) * len(places)]
                result += [form.multiply(f, s, x, y) for s, y in zip(own, columns, strict=True)]
            return result

        sums = f.for_(0, quads, 1, [f.zero(form.vector)] * (len(places) * height), step)
        for i, value in enumerate(sums):
            r, place = divmod(i, len(places))
            w, v = divmod(place, vectors)
            f.store(value, f.at(c, (r * p.across + w) * LINE + v * 4 * form.lanes))
        f.ret()

    params = [("ptr", "a"), ("ptr", "c"), *(("ptr", f"panel{i}") for i in range(p.wide))]
    return p.f.module.once(f"gemm.bytes_{height}x{p.wide}_{p.k}_{p.across}", params, body)
