"""
`mir.dot`: products of matrices in memory, with element-wise operations on the result.

The loops are those of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication",
2008, with the sides exchanged: columns of rhs are packed into the stack (and stay in L2), then
block after block of rows of lhs, and register tiles multiply the two. An element adds its products
in blocks of k, each in the order of k from zero, and adds the blocks in order: it depends neither
on other elements nor on threads, to the bit. `dot_tiles` has the blocks, `dot_few` what is better
for a few rows; here a kernel's share is cut into them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import f32 as f32_type
from xdsl.ir import Operation, SSAValue

from rlx.dialects.common import Dim, dims_of, element_of, spell
from rlx.dialects.moves import BroadcastOp
from rlx.dialects.primitives import BinaryOp, ConstantOp, DotOp, UnaryOp
from rlx.errors import RlxError
from rlx.lowering.body import Body
from rlx.lowering.dot_few import emit_few, few_rows
from rlx.lowering.dot_pack import Matrix, Tiling, lanes_below, load_part, store_part, up
from rlx.lowering.dot_tiles import Shapes, emit_block
from rlx.lowering.values import Value, f32, f64, i64
from rlx.lowering.vmath import BINARY, UNARY, emit_binary, emit_unary

ROWS = 768
"""Rows that a packed block of rhs is multiplied with, at most: their sums stay in L2."""


def refusal(
    ops: Sequence[Operation],
    yielded: Sequence[SSAValue],
    source: Callable[[SSAValue], SSAValue] = lambda v: v,
) -> str | None:
    """
    Return why one launch can't compute these operations and give these values, None if it can.

    It computes one `mir.dot` of values from outside, then `mir.unary` and `mir.binary` on values of
    the result's type: the result, values from outside, constants of one number, and broadcasts of
    vectors `[n]`, columns `[m, 1]`, matrices `[m, n]` and numbers, for all batches or each. They
    may still use results of kernels that they are part of: `source` gives what those yield.
    """
    dots = [op for op in ops if isinstance(op, DotOp)]
    if len(dots) != 1:
        return f"expected one mir.dot in a launch, got {len(dots)}"
    (dot,) = dots
    inside = {result for op in ops for result in op.results}
    if any(source(v) in inside for v in dot.operands):
        return "expected operands of mir.dot that come from outside the launch"
    for op in ops:
        why = _refused(op, dot, {source(v) for v in op.operands} & inside)
        if why is not None:
            return why
    if any(v.type != dot.result.type or v not in inside for v in yielded) or not yielded:
        return f"expected results {spell(dot.result.type)} that the launch computes"
    return None


def _refused(op: Operation, dot: DotOp, inner: AbstractSet[SSAValue]) -> str | None:
    """Return why an operation can't follow a product; `inner` are its operands of the launch."""
    match op:
        case DotOp():
            return None
        case ConstantOp():
            if not op.value.is_splat():
                return f"expected constants of one number, got {spell(op.result.type)}"
        case BroadcastOp():
            if any(not isinstance(v.owner, ConstantOp) for v in inner):
                return "expected broadcasts of constants, and of values from outside the launch"
            if _spread(op) is None:
                return (
                    f"can't broadcast {spell(op.input.type)} to {spell(op.result.type)} on the fly"
                )
        case UnaryOp() | BinaryOp():
            table = UNARY if isinstance(op, UnaryOp) else BINARY
            if op.kind.data not in table:
                return f"{op.name} {op.kind.data} can't follow mir.dot in a launch"
            if op.result.type != dot.result.type:
                wanted = spell(dot.result.type)
                return f"{op.name}: expected the product's {wanted}, got {spell(op.result.type)}"
        case _:
            return f"{op.name} can't follow mir.dot in a launch"
    return None


def _spread(op: BroadcastOp) -> tuple[bool, bool, bool] | None:
    """Return whether what is broadcast differs by batch, by row and by column."""
    to = dims_of(op.result.type)
    given = dims_of(op.input.type)
    given = (1,) * (len(to) - len(given)) + given
    if len(to) < 2:
        return None
    batches = given[:-2] == to[:-2]
    if not batches and any(d != 1 for d in given[:-2]):
        return None
    return batches, given[-2] == to[-2], given[-1] == to[-1]


def emit_dot(body: Body) -> None:
    """
    Matrix products, and element-wise operations on them.

    No result may share memory with an operand. Raises RlxError with the reason of `refusal`.
    """
    why = refusal(body.ops, body.yielded)
    if why is not None:
        raise RlxError(f"dot: {why}")
    f, p = body.f, _Product.of(body)
    by_rows, units = p.units()
    first, last = body.share(f.mul(p.batches, units))

    def batch(carried: list[Value]) -> list[Value]:
        (unit,) = carried
        b = f.udiv(unit, units)
        start = f.sub(unit, f.mul(b, units))
        stop = f.umin(f.add(start, f.sub(last, unit)), units)

        def part(mine: Value, step: int, size: Value) -> tuple[Value, Value]:
            low, high = (f.umin(f.mul(at, step), size) for at in (start, stop))
            return f.select(mine, low, i64(0)), f.select(mine, high, size)

        rows = part(by_rows, p.tiling.rows, p.m)
        columns = part(f.xor(by_rows, 1), p.tiling.columns, p.n)
        p.multiply(b, rows, columns)
        return [f.add(unit, f.sub(stop, start))]

    f.while_([first], lambda v: f.icmp("slt", v[0], last), batch)


@dataclass
class _Product:
    """The product of a kernel."""

    body: Body
    dot: DotOp
    turned: bool
    """What is computed is the transpose: a result of one column becomes one of one row."""
    tiling: Tiling
    batches: Value
    m: Value
    n: Value
    k: Value

    @staticmethod
    def of(body: Body) -> _Product:
        (dot,) = (op for op in body.ops if isinstance(op, DotOp))
        dims = dims_of(dot.result.type)
        inner = dims_of(dot.lhs.type)[-2 if dot.transposed[0] else -1]
        element = "float" if element_of(dot.result.type) == f32_type else "double"
        turned = dims[-1] == 1
        m, n, k = (body.size(d) for d in (*dims[-2:], inner))
        if turned:
            m, n = n, m
        t = Tiling.of(body.f.target, element)
        return _Product(body, dot, turned, t, count_of(body, dims[:-2]), m, n, k)

    @property
    def sides(self) -> tuple[tuple[SSAValue, bool], tuple[SSAValue, bool]]:
        """Return lhs and rhs, and whether they are swapped in memory."""
        a, b = zip((self.dot.lhs, self.dot.rhs), self.dot.transposed, strict=True)
        return ((b[0], not b[1]), (a[0], not a[1])) if self.turned else (a, b)

    def units(self) -> tuple[Value, Value]:
        """Return whether threads share the rows, not the columns, and how many parts there are."""
        f, t = self.body.f, self.tiling
        rows, columns = up(f, self.m, t.rows), up(f, self.n, t.columns)
        by_rows = f.icmp("uge", rows, columns)
        return by_rows, f.select(by_rows, rows, columns)

    def _matrix(self, pointer: Value, batch: Value, swapped: bool, *size: Value) -> Matrix:
        f, t = self.body.f, self.tiling
        stride = f.mul(size[0] if swapped else size[1], t.size)
        start = f.at(pointer, f.mul(batch, f.mul(size[0], size[1])), t.size)
        return Matrix(start, stride, swapped)

    def multiply(
        self, batch: Value, rows: tuple[Value, Value], columns: tuple[Value, Value]
    ) -> None:
        """Emit the product of some rows and columns of a batch: block after block."""
        f, t, body = self.body.f, self.tiling, self.body
        (lhs, a_t), (rhs, b_t) = self.sides
        a = self._matrix(body.pointers[lhs], batch, a_t, self.m, self.k)
        b = self._matrix(body.pointers[rhs], batch, b_t, self.k, self.n)
        out = self.sums
        c = self._matrix(out, batch, False, self.m, self.n)
        height = self._even(f.sub(rows[1], rows[0]), ROWS, t.rows)
        width = self._even(f.sub(columns[1], columns[0]), t.panels * t.columns, t.columns)

        def block(r: Value, j: Value) -> list[Value]:
            here, wide = f.umin(f.sub(rows[1], r), height), f.umin(f.sub(columns[1], j), width)
            own = (
                replace(a, pointer=a.at(f, r, 0, t.size)),
                replace(b, pointer=b.at(f, 0, j, t.size)),
                replace(c, pointer=c.at(f, r, j, t.size)),
            )
            self._block(*own, here, wide)
            self.finish(batch, (r, here), (j, wide))
            return [f.add(j, width)]

        def blocks(carried: list[Value]) -> list[Value]:
            (r,) = carried
            f.while_(
                [columns[0]], lambda v: f.icmp("slt", v[0], columns[1]), lambda v: block(r, v[0])
            )
            return [f.add(r, height)]

        f.while_([rows[0]], lambda v: f.icmp("slt", v[0], rows[1]), blocks)

    def _even(self, count: Value, most: int, unit: int) -> Value:
        """Return the size of parts of a count that have about as many units each."""
        f, units = self.body.f, up(self.body.f, count, unit)
        parts = f.umax(up(f, units, most // unit), 1)
        return f.mul(f.udiv(f.add(units, f.sub(parts, 1)), parts), unit)

    def _block(self, a: Matrix, b: Matrix, c: Matrix, rows: Value, columns: Value) -> None:
        f, t, m = self.body.f, self.tiling, self.m.constant

        def few() -> list[Value]:
            emit_few(f, t, m, a, b, c, rows, columns, self.k)
            return []

        def many() -> list[Value]:
            shapes = Shapes.of(t, m, self.n.constant)
            emit_block(f, t, shapes, a, b, c, rows, columns, self.k)
            return []

        if m is not None and m > few_rows(b):
            many()
        elif m is not None:
            few()
        else:
            f.if_(f.icmp("ule", self.m, few_rows(b)), few, many)

    @property
    def sums(self) -> Value:
        """Return where the product goes: to its own result, or where one made of it goes later."""
        yielded = list(self.body.yielded)
        own = self.dot.result
        return self.body.outs[yielded.index(own) if own in yielded else 0]

    def finish(self, batch: Value, rows: tuple[Value, Value], columns: tuple[Value, Value]) -> None:
        """Emit the operations on a block of the product, (first, count) of rows and columns."""
        f, t = self.body.f, self.tiling
        outs = list(zip(self.body.outs, self.body.yielded, strict=True))
        if all(out == self.sums and value == self.dot.result for out, value in outs):
            return

        def vector(row: Value, column: Value, mask: Value | None) -> list[Value]:
            at = _Place(self, batch, f.add(rows[0], row), f.add(columns[0], column), mask)
            values = [at.value(v) for _, v in outs]
            for (out, _), value in zip(outs, values, strict=True):
                at.store(value, out)
            return []

        def row(r: Value, _: list[Value]) -> list[Value]:
            whole = f.mul(f.udiv(columns[1], t.lanes), t.lanes)
            f.for_(0, whole, t.lanes, [], lambda j, _: vector(r, j, None))
            rest = f.sub(columns[1], whole)
            mask = lanes_below(f, t.lanes, rest)
            return f.if_(f.icmp("ne", rest, 0), lambda: vector(r, whole, mask))

        f.for_(0, rows[1], 1, [], row)


class _Place:
    """A vector of the result, in the columns from one on, of which a mask tells those there are."""

    def __init__(
        self, product: _Product, batch: Value, row: Value, column: Value, mask: Value | None
    ):
        self.product = product
        self.index = batch, row, column
        self.mask = mask
        self.values: dict[SSAValue, Value] = {}

    def value(self, v: SSAValue) -> Value:
        """Emit a value at this place, once."""
        if v not in self.values:
            self.values[v] = self._emit(v)
        return self.values[v]

    def _emit(self, v: SSAValue) -> Value:
        p, f = self.product, self.product.body.f
        match v.owner:
            case DotOp():
                return self._load(p.sums, (True, True, True))
            case UnaryOp() as op:
                return emit_unary(f, str(op.kind.data), self.value(op.input))
            case BinaryOp() as op:
                a, b = self.value(op.lhs), self.value(op.rhs)
                return emit_binary(f, str(op.kind.data), a, b)
            case ConstantOp() as op:
                return self._constant(op)
            case BroadcastOp() as op:
                spread = _spread(op)
                if isinstance(op.input.owner, ConstantOp):
                    return self._constant(op.input.owner)
                assert spread is not None
                batches, rows, columns = spread
                spread = (batches, columns, rows) if p.turned else spread
                return self._load(p.body.pointers[op.input], spread)
            case _:
                return self._load(p.body.pointers[v], (True, True, True))

    def _constant(self, op: ConstantOp) -> Value:
        t, number = self.product.tiling, op.value.get_values()[0]
        assert isinstance(number, float)
        scalar = f32(number) if t.element == "float" else f64(number)
        return self.product.body.f.splat(scalar, t.lanes)

    def _address(self, pointer: Value, spread: tuple[bool, bool, bool]) -> Value:
        p, f = self.product, self.product.body.f
        rows, columns = (
            size if own else i64(1) for size, own in zip((p.m, p.n), spread[1:], strict=True)
        )
        strides = f.mul(rows, columns), columns, i64(1)
        place = i64(0)
        for index, stride, own in zip(self.index, strides, spread, strict=True):
            if own:
                place = f.add(place, f.mul(index, stride))
        return f.at(pointer, place, p.tiling.size)

    def _load(self, pointer: Value, spread: tuple[bool, bool, bool]) -> Value:
        f, t = self.product.body.f, self.product.tiling
        at = self._address(pointer, spread)
        if not spread[2]:
            return f.splat(f.load(t.element, at, align=t.size), t.lanes)
        return load_part(f, t, at, self.mask)

    def store(self, value: Value, pointer: Value) -> None:
        store_part(
            self.product.body.f,
            self.product.tiling,
            value,
            self._address(pointer, (True, True, True)),
            self.mask,
        )


def count_of(body: Body, dims: Sequence[Dim]) -> Value:
    """Return the product of the sizes of dimensions."""
    count = i64(1)
    for dim in dims:
        count = body.f.mul(count, body.size(dim))
    return count
