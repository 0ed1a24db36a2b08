"""Element-wise operations on a block of a product, as the kernels of products emit them."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Attribute, SSAValue

from rlx.dialects.common import dims_of, element_bytes, element_of, tensor
from rlx.dialects.infer import is_unsigned
from rlx.dialects.moves import BroadcastOp
from rlx.dialects.primitives import BinaryOp, CastOp, CompareOp, ConstantOp, SelectOp, UnaryOp
from rlx.dialects.reductions import DotOp
from rlx.lowering.body import Body
from rlx.lowering.dot_matrix import Matrix, Tiling, lanes_below, load_part
from rlx.lowering.target import LINE
from rlx.lowering.tensor_elements import constant_of, converted, loaded, memory_type, stored
from rlx.lowering.values import Value, i64, vec
from rlx.lowering.vmath import emit_binary, emit_compare, emit_unary


def spread_of(op: BroadcastOp) -> tuple[bool, bool, bool] | None:
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


@dataclass
class Epilogue:
    """What follows a product of `m` rows and `n` columns for each of its batches."""

    body: Body
    dot: DotOp
    turned: bool
    """What is computed is the transpose of what the operations are on."""
    tiling: Tiling
    m: Value
    n: Value

    @property
    def sums(self) -> Value | None:
        """
        Return where the product goes: to its own result, or where one made of it goes later.

        None where all results have other sizes: blocks of it are then on the stack.
        """
        outs = dict(zip(self.body.yielded, self.body.outs, strict=True))
        fits = (out for v, out in outs.items() if element_bytes(v.type) == self.tiling.size)
        return outs.get(self.dot.result) or next(fits, None)

    def sums_at(self, batch: Value, row: Value, column: Value) -> Matrix:
        """Return where the sums of a block go."""
        f, t = self.body.f, self.tiling
        if self.sums is None:
            stride = t.panels * t.panel_row_bytes + LINE
            return Matrix(f.scratch("sums", t.block * stride), i64(stride))
        whole = Matrix(self.sums, f.mul(self.n, t.size))
        return Matrix(whole.at(f, f.add(f.mul(batch, self.m), row), column, t.size), whole.stride)

    def finish(self, batch: Value, rows: tuple[Value, Value], columns: tuple[Value, Value]) -> None:
        """Emit the operations on a block of the product, (first, count) of rows and columns."""
        f, t = self.body.f, self.tiling
        outs = list(zip(self.body.outs, self.body.yielded, strict=True))
        if all(value == self.dot.result for _, value in outs):
            return
        sums = self.sums_at(batch, rows[0], columns[0])

        def vector(row: Value, column: Value, mask: Value | None) -> list[Value]:
            own = sums.at(f, row, column, t.size)
            at = _Place(self, own, batch, f.add(rows[0], row), f.add(columns[0], column), mask)
            values = [at.value(v) for _, v in outs]
            for (out, v), value in zip(outs, values, strict=True):
                at.store(value, out, element_of(v.type))
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
        self,
        product: Epilogue,
        sums: Value,
        batch: Value,
        row: Value,
        column: Value,
        mask: Value | None,
    ):
        self.product = product
        self.f = product.body.f
        self.sums = sums
        """Where the product's own vector is."""
        self.index = batch, row, column
        self.mask = mask
        self.values: dict[SSAValue, Value] = {}

    def value(self, v: SSAValue) -> Value:
        """Emit a value at this place, once."""
        if v not in self.values:
            self.values[v] = self._emit(v)
        return self.values[v]

    def _emit(self, v: SSAValue) -> Value:
        p, f = self.product, self.f
        match v.owner:
            case DotOp():
                return load_part(f, p.tiling, self.sums, self.mask)
            case UnaryOp() as op:
                signed = not is_unsigned(element_of(v.type))
                return emit_unary(f, str(op.kind.data), self.value(op.input), signed)
            case BinaryOp() as op:
                a, b = self.value(op.lhs), self.value(op.rhs)
                signed = not is_unsigned(element_of(v.type))
                return emit_binary(f, str(op.kind.data), a, b, signed)
            case CompareOp() as op:
                a, b = self.value(op.lhs), self.value(op.rhs)
                signed = not is_unsigned(element_of(op.lhs.type))
                return emit_compare(f, str(op.kind.data), a, b, signed)
            case SelectOp() as op:
                return f.select(*(self.value(x) for x in op.operands))
            case CastOp() as op:
                elements = element_of(op.input.type), element_of(v.type)
                return converted(f, self.value(op.input), *elements)
            case ConstantOp() as op:
                return self._constant(op)
            case BroadcastOp() as op:
                spread = spread_of(op)
                if isinstance(op.input.owner, ConstantOp):
                    return self._constant(op.input.owner)
                assert spread is not None
                batches, rows, columns = spread
                spread = (batches, columns, rows) if p.turned else spread
                return self._load(op.input, spread)
            case _:
                return self._load(v, (True, True, True))

    def _constant(self, op: ConstantOp) -> Value:
        element = element_of(op.result.type)
        scalar = constant_of(element, op.value.data.data[: element_bytes(op.result.type)])
        return self.f.splat(scalar, self.product.tiling.lanes)

    def _address(self, pointer: Value, size: int, spread: tuple[bool, bool, bool]) -> Value:
        p, f = self.product, self.f
        rows, columns = (
            size if own else i64(1) for size, own in zip((p.m, p.n), spread[1:], strict=True)
        )
        strides = f.mul(rows, columns), columns, i64(1)
        place = i64(0)
        for index, stride, own in zip(self.index, strides, spread, strict=True):
            if own:
                place = f.add(place, f.mul(index, stride))
        return f.at(pointer, place, size)

    def _load(self, v: SSAValue, spread: tuple[bool, bool, bool]) -> Value:
        f, lanes, size = self.f, self.product.tiling.lanes, element_bytes(v.type)
        at, element = self._address(self.product.body.pointers[v], size, spread), element_of(v.type)
        type_ = memory_type(element)
        if not spread[2]:
            return loaded(f, element, f.splat(f.load(type_, at, align=size), lanes))
        if self.mask is None:
            return loaded(f, element, f.load(vec(lanes, type_), at, align=size))
        return loaded(f, element, f.load_masked(vec(lanes, type_), at, self.mask, align=size))

    def store(self, value: Value, pointer: Value, element: Attribute) -> None:
        """Emit the storing of a result's vector."""
        value = stored(self.f, element, value)
        size = element_bytes(tensor((), element))
        at = self._address(pointer, size, (True, True, True))
        if self.mask is None:
            self.f.store(value, at, align=size)
        else:
            self.f.store_masked(value, at, self.mask, align=size)
