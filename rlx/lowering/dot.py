"""
`mir.dot`: products of matrices, with what makes the operands and what is done with the result.

The loops are those of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication",
2008, with the sides exchanged: columns of rhs are packed into the stack (and stay in L2), then
block after block of rows of lhs, and register tiles multiply the two. An element adds its products
in blocks of k, each in the order of k from zero, and adds the blocks in order: it depends neither
on other elements nor on threads, to the bit. `dot_blocks` has the blocks, `dot_few` what is better
for a few rows, `dot_pull` the operands that are computed while they are packed, `dot_epilogue` what
follows; here a kernel's share is cut into blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from rlx.dialects import infer
from rlx.dialects.common import dims_of, element_of, spell
from rlx.dialects.moves import BroadcastOp
from rlx.dialects.primitives import (
    MAPS,
    MOVES,
    BinaryOp,
    CastOp,
    CompareOp,
    ConstantOp,
    IotaOp,
    SelectOp,
    UnaryOp,
    is_splat,
)
from rlx.dialects.reductions import DotOp
from rlx.errors import RlxError
from rlx.lowering.body import Body
from rlx.lowering.dot_blocks import Shapes, block, emit_block
from rlx.lowering.dot_epilogue import Epilogue, spread_of
from rlx.lowering.dot_few import COLUMN_BYTES, emit_few, few_rows
from rlx.lowering.dot_matrix import Matrix, Tiling, up
from rlx.lowering.dot_pull import Pulled
from rlx.lowering.dot_sides import Stored
from rlx.lowering.target import Target
from rlx.lowering.tensor_elements import register_type
from rlx.lowering.values import Value, i64
from rlx.lowering.vmath import BINARY, UNARY

ROWS = 768
"""Rows that a packed block of rhs is multiplied with, at most: their sums stay in L2."""

_PACKING, _PULLING = 8, 32
"""Lines whose products take as long as to pack what they are multiplied with, or to compute it."""

_SHARING = 32
"""
Columns whose products take as long as to wait, in a row, for the line of the result that two
threads write to: the last column of one and the first of another are in the same.
"""

PULLED = (*MAPS, *MOVES, ConstantOp, IotaOp)
"""The operations that may make the operands of a product."""


def refusal(
    ops: Sequence[Operation],
    yielded: Sequence[SSAValue],
    source: Callable[[SSAValue], SSAValue] = lambda v: v,
) -> str | None:
    """
    Return why one launch can't compute these operations and give these values, None if it can.

    It computes one `mir.dot`. Its operands may come from moves, maps and constants of the launch,
    which are computed as they are packed. Then come maps of values of the result's shape: the
    result, values from outside, constants of one number, and broadcasts of vectors `[n]`, columns
    `[m, 1]`, matrices `[m, n]` and numbers, for all batches or each. They may still use results of
    kernels that they are part of: `source` gives what those yield.
    """
    dots = [op for op in ops if isinstance(op, DotOp)]
    if len(dots) != 1:
        return f"expected one mir.dot in a launch, got {len(dots)}"
    (dot,) = dots
    before = prologue(ops, dot, source)
    for op in before:
        if not isinstance(op, PULLED):
            return f"{op.name} can't make an operand of mir.dot in a launch"
    inside = {result for op in ops for result in op.results}
    own = {result for op in before for result in op.results if not is_splat(op)}
    for op in ops:
        if op in before:
            continue
        inner = {source(v) for v in op.operands} & inside
        if op is not dot and inner & own:
            return "what makes an operand of mir.dot is not at hand after it"
        why = _refused(op, dot, inner)
        if why is not None:
            return why
    shaped = all(dims_of(v.type) == dims_of(dot.result.type) for v in yielded)
    if not (shaped and yielded and inside - own >= set(yielded)):
        return f"expected results of the shape of {spell(dot.result.type)} that the launch computes"
    return None


def prologue(
    ops: Sequence[Operation], dot: DotOp, source: Callable[[SSAValue], SSAValue] = lambda v: v
) -> list[Operation]:
    """Return the operations that make the operands of a product, in order."""
    wanted = {source(v) for v in dot.operands}
    found: list[Operation] = []
    for op in reversed(ops):
        if op is not dot and wanted.intersection(op.results):
            wanted.update(source(v) for v in op.operands)
            found.append(op)
    return found[::-1]


def _refused(op: Operation, dot: DotOp, inner: AbstractSet[SSAValue]) -> str | None:
    """Return why an operation can't follow a product; `inner` are its operands of the launch."""
    match op:
        case DotOp():
            return None
        case ConstantOp():
            if not is_splat(op):
                return f"expected constants of one number, got {spell(op.result.type)}"
        case BroadcastOp():
            if any(not isinstance(v.owner, ConstantOp) for v in inner):
                return "expected broadcasts of constants, and of values from outside the launch"
            if spread_of(op) is None:
                return (
                    f"can't broadcast {spell(op.input.type)} to {spell(op.result.type)} on the fly"
                )
        case UnaryOp() | BinaryOp() | CompareOp() | SelectOp() | CastOp():
            tables = {UnaryOp: UNARY, BinaryOp: BINARY}
            if isinstance(op, UnaryOp | BinaryOp) and op.kind.data not in tables[type(op)]:
                return f"{op.name} {op.kind.data} can't follow mir.dot in a launch"
            if dims_of(op.result.type) != dims_of(dot.result.type):
                wanted = spell(dot.result.type)
                return f"{op.name}: expected the shape of {wanted}, got {spell(op.result.type)}"
        case _:
            return f"{op.name} can't follow mir.dot in a launch"
    return None


def emit_dot(body: Body) -> None:
    """
    Matrix products, what makes their operands, and element-wise operations on them.

    No result may share memory with an operand. Raises RlxError with the reason of `refusal`.
    """
    why = refusal(body.ops, body.yielded)
    if why is not None:
        raise RlxError(f"dot: {why}")
    f, dot = body.f, _dot(body)
    columns = body.size(dims_of(dot.result.type)[-1])
    computed = any(stored_as(body, v) is None for v in dot.operands)
    packed = computed or tiling_of(f.target, dot).bytes
    # A column is turned into a row where rows that are few are not packed.
    if columns.constant is not None or packed:
        _emit(body, turned=columns.constant == 1 and not packed)
    else:
        f.if_(
            f.icmp("eq", columns, 1),
            lambda: _emit(body, turned=True),
            lambda: _emit(body, turned=False),
        )


def stored_as(body: Body, value: SSAValue) -> SSAValue | None:
    """Return where a side is in memory: itself, or what a broadcast repeats for all batches."""
    owner = value.owner
    if isinstance(owner, BroadcastOp) and owner in body.ops:
        same = dims_of(owner.input.type)[-2:] == dims_of(value.type)[-2:]
        value = owner.input if same else value
    return value if value in body.pointers else None


def _dot(body: Body) -> DotOp:
    (dot,) = (op for op in body.ops if isinstance(op, DotOp))
    return dot


def tiling_of(target: Target, dot: DotOp) -> Tiling:
    """Return how a product is cut."""
    operand, result = element_of(dot.lhs.type), element_of(dot.result.type)
    if operand in (infer.I8, infer.U8):
        return Tiling.of_bytes(target, operand == infer.U8)
    return Tiling.of(target, register_type(result))


def _emit(body: Body, turned: bool) -> list[Value]:
    f, p = body.f, _Product.of(body, turned)
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
    return []


def _one_matrix(body: Body, dot: DotOp) -> bool:
    """Whether all rows of all batches are multiplied with the same matrix, as one product."""
    right = stored_as(body, dot.rhs)
    if right is None or dot.lhs not in body.pointers or dot.transposed[0]:
        return False
    if any(d != 1 for d in dims_of(right.type)[:-2]):
        return False
    before = prologue(body.ops, dot)
    spreads = (spread_of(op) for op in body.ops if isinstance(op, BroadcastOp) and op not in before)
    return all(spread is None or spread[0] == spread[1] for spread in spreads)


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
    def of(body: Body, turned: bool) -> _Product:
        dot = _dot(body)
        dims = dims_of(dot.result.type)
        inner = dims_of(dot.lhs.type)[-2 if dot.transposed[0] else -1]
        m, n, k = (body.size(d) for d in (*dims[-2:], inner))
        if turned:
            m, n = i64(1), m
        t, batches = tiling_of(body.f.target, dot), body.count(dims[:-2])
        if _one_matrix(body, dot) and not turned:
            batches, m = i64(1), body.f.mul(batches, m)
        return _Product(body, dot, turned, t, batches, m, n, k)

    @property
    def sides(self) -> tuple[tuple[SSAValue, bool], tuple[SSAValue, bool]]:
        """Return lhs and rhs, and whether they are swapped in memory."""
        a, b = zip((self.dot.lhs, self.dot.rhs), self.dot.transposed, strict=True)
        return ((b[0], not b[1]), (a[0], not a[1])) if self.turned else (a, b)

    def units(self) -> tuple[Value, Value]:
        """
        Return whether threads share the rows, not the columns, and how many parts there are.

        Those are shared that leave the thread with most of them less to do: its part, the packing
        of the other side, which each of them does for itself, and lines that two of them write to.
        """
        f, t = self.body.f, self.tiling
        rows, columns = up(f, self.m, t.rows), up(f, self.n, t.columns)

        def cost(parts: Value, step: int, other: Value, side: SSAValue, more: int) -> Value:
            most = f.udiv(f.add(parts, f.sub(self.body.threads, 1)), self.body.threads)
            more += _PACKING if stored_as(self.body, side) is not None else _PULLING
            return f.mul(f.add(f.mul(most, step), more), other)

        (lhs, _), (rhs, _) = self.sides
        by_rows = f.icmp(
            "ule",
            cost(rows, t.rows, self.n, rhs, 0),
            cost(columns, t.columns, self.m, lhs, _SHARING),
        )
        return by_rows, f.select(by_rows, rows, columns)

    def _matrix(
        self, pointer: Value, batch: Value, swapped: bool, bytes_: int, *size: Value
    ) -> Matrix:
        f = self.body.f
        stride = f.mul(size[0] if swapped else size[1], bytes_)
        start = f.at(pointer, f.mul(batch, f.mul(size[0], size[1])), bytes_)
        return Matrix(start, stride, swapped)

    def _side(self, index: int, batch: Value) -> Stored | Pulled:
        """Return lhs or rhs, of a batch."""
        value, swapped = self.sides[index]
        size, source = self.tiling.source_size, stored_as(self.body, value)
        if source is not None:
            sizes = (self.k, self.n) if index else (self.m, self.k)
            batch = self._batch_in(source, value, batch)
            matrix = self._matrix(self.body.pointers[source], batch, swapped, size, *sizes)
            return Stored(matrix, size, left=not index)
        ops = prologue(self.body.ops, self.dot)
        return Pulled(self.body, ops, value, batch, self.tiling, not index, swapped)

    def _batch_in(self, source: SSAValue, value: SSAValue, batch: Value) -> Value:
        """Return which matrix of a value that is repeated is that of a batch."""
        if source is value:
            return batch
        f, (given, wanted) = self.body.f, (dims_of(v.type)[:-2] for v in (source, value))
        found, stride = i64(0), i64(1)
        for own, dim in zip(reversed(given), reversed(wanted), strict=False):
            size = self.body.size(dim)
            if own == dim and own != 1:
                found = f.add(found, f.mul(f.binary("urem", batch, size), stride))
                stride = f.mul(stride, size)
            batch = f.udiv(batch, size)
        return found

    def multiply(
        self, batch: Value, rows: tuple[Value, Value], columns: tuple[Value, Value]
    ) -> None:
        """Emit the product of some rows and columns of a batch: block after block."""
        f, t = self.body.f, self.tiling
        a, b = (self._side(i, batch) for i in range(2))
        after = Epilogue(self.body, self.dot, self.turned, t, self.m, self.n)
        stacked, single = after.sums is None, self.m.constant == 1
        height = self._even(f.sub(rows[1], rows[0]), t.block if stacked else ROWS, t.rows)
        # A single row has its sums in L1, and reads the longer parts of rows of rhs the faster.
        most = t.panels * t.columns if stacked or not single else COLUMN_BYTES // t.size
        width = self._even(f.sub(columns[1], columns[0]), most, t.columns)

        def part(r: Value, j: Value) -> list[Value]:
            here, wide = f.umin(f.sub(rows[1], r), height), f.umin(f.sub(columns[1], j), width)
            sums = after.sums_at(batch, r, j)
            self._block(a.moved(f, r), b.moved(f, j), sums, here, wide)
            after.finish(batch, (r, here), (j, wide))
            return [f.add(j, width)]

        def blocks(carried: list[Value]) -> list[Value]:
            (r,) = carried
            f.while_(
                [columns[0]], lambda v: f.icmp("slt", v[0], columns[1]), lambda v: part(r, v[0])
            )
            return [f.add(r, height)]

        f.while_([rows[0]], lambda v: f.icmp("slt", v[0], rows[1]), blocks)

    def _even(self, count: Value, most: int, unit: int) -> Value:
        """Return the size of parts of a count that have about as many units each."""
        f, units = self.body.f, up(self.body.f, count, unit)
        parts = f.umax(up(f, units, most // unit), 1)
        return f.mul(f.udiv(f.add(units, f.sub(parts, 1)), parts), unit)

    def _block(
        self, a: Stored | Pulled, b: Stored | Pulled, c: Matrix, rows: Value, columns: Value
    ) -> None:
        f, t, m = self.body.f, self.tiling, self.m.constant
        shapes = Shapes.of(t, m, self.n.constant)
        if not (isinstance(a, Stored) and isinstance(b, Stored)):
            block(f, t, shapes, a, b, c, rows, columns, self.k)
            return
        left, right = a.matrix, b.matrix
        most = few_rows(t, right, known=m is not None)

        def few() -> list[Value]:
            emit_few(f, t, m, left, right, c, rows, columns, self.k)
            return []

        def many() -> list[Value]:
            emit_block(f, t, shapes, left, right, c, rows, columns, self.k)
            return []

        if t.bytes or (m is not None and m > most):
            many()
        elif m is not None:
            few()
        else:
            f.if_(f.icmp("ule", self.m, most), few, many)
