"""
Elements of tensors, pulled: computed at the places that ask for them, back to loads.

Maps compute with the elements of their operands at the same place; moves ask their operand at
another place, so they cost no buffer and no copy.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import f32, f64, i1

from rlx.dialects.common import dims_of
from rlx.dialects.infer import is_unsigned
from rlx.lowering import vmath
from rlx.lowering.body import Body
from rlx.lowering.hoist import Places
from rlx.lowering.target import PANEL
from rlx.lowering.tensor_access import Access, At, Axis
from rlx.lowering.tensor_elements import (
    constant_of,
    converted,
    loaded,
    memory_type,
    register_type,
    stored,
)
from rlx.lowering.tensor_nodes import Graph, Node, Size, is_splat
from rlx.lowering.tensor_pad import padded
from rlx.lowering.tensor_tiles import transpose
from rlx.lowering.values import Value, i64, vec
from rlx.lowering.vmath_base import has_fma

_FIRST = i64(0)


@dataclass
class Tile:
    """Sixteen rows of nodes in memory, of sixteen elements; the place and number of one of them."""

    rows: dict[Node, Value]
    place: At | None = None
    row: Value = _FIRST


class Pull(ABC):
    """The values of a kernel's nodes at places, while it is written; reductions are `Program`'s."""

    def __init__(self, body: Body):
        self.body = body
        self.f = body.f
        self.places = Places(body.f)
        self.graph = Graph(body.table)
        self.pointers = {self.graph.node(v): p for v, p in body.pointers.items()}
        for op in body.ops:
            self.graph.add(op)
        self.access = Access(self.places, body.sizes, _lane_type(body))
        self.kept: set[Node] = set()
        """The nodes whose rows are worth keeping between the stages of a row."""
        self._tile: Tile | None = None

    @contextmanager
    def tile(self, nodes: set[Node], columns: Sequence[At]) -> Generator[Tile]:
        """Compute sixteen columns of some nodes, whose rows are then pulled at the tile's place."""
        self._tile = tile = Tile({})
        for node in nodes:
            values = [self.places.splat(v) for v in self.pull(node, columns)]
            rows = transpose(self.f, [stored(self.f, node.element, v) for v in values])
            tile.rows[node] = self.f.alloca(PANEL * PANEL * node.bytes)
            for i, row in enumerate(rows):
                self.f.store(row, self.f.at(tile.rows[node], i, PANEL * node.bytes))
        yield tile
        self._tile = None

    # Values at places

    def pull(self, node: Node, ats: Sequence[At]) -> list[Value]:
        """Return a tensor's elements at each place: a scalar where all lanes are at one."""
        found = [self.places.find((node, at)) for at in ats]
        if all(found):
            return [v[0] for v in found if v]
        values = self._of_tile(node, ats) or self._pull(node, ats)
        for at, value in zip(ats, values, strict=True):
            self.places.remember((node, at), [value])
        return values

    def _of_tile(self, node: Node, ats: Sequence[At]) -> list[Value]:
        """Return a row of the tile, or nothing for what isn't in it."""
        tile = self._tile
        if tile is None or node not in tile.rows or list(ats) != [tile.place]:
            return []
        pointer = self.f.at(tile.rows[node], tile.row, PANEL * node.bytes)
        v = self.f.load(vec(PANEL, memory_type(node.element)), pointer)
        return self.places.here([loaded(self.f, node.element, v)])

    def _pull(self, node: Node, ats: Sequence[At]) -> list[Value]:
        match node.op:
            case "input":
                return [self._load(self.pointers[node], node, at) for at in ats]
            case "constant":
                return [self._constant(node, at) for at in ats]
            case "iota":
                return [self._iota(node, at) for at in ats]
            case "unary" | "binary" | "compare" | "select" | "cast":
                joined = self._joined(node)
                args = [self.pull(arg, ats) for arg in joined.args]
                return [self._map(joined, values) for values in zip(*args, strict=True)]
            case "reshape":
                return self.pull(node.args[0], [self.access.reshape(node, at) for at in ats])
            case "broadcast":
                return self.pull(node.args[0], [self.access.broadcast(node, at) for at in ats])
            case "transpose":
                return self.pull(node.args[0], [self.access.transpose(node, at) for at in ats])
            case "slice":
                return self.pull(node.args[0], [self.access.slice(node, at) for at in ats])
            case "window":
                return self.pull(node.args[0], [self.access.window(node, at) for at in ats])
            case "reverse":
                return self.pull(node.args[0], [self.access.reverse(node, at) for at in ats])
            case "pad":
                return [padded(self, node, at) for at in ats]
            case "narrow":
                return self.pull(node.args[0], [self.access.narrow_axis(node, at) for at in ats])
            case "concat":
                return [self._concat(node, at) for at in ats]
            case "gather":
                return [self._gather(node, at) for at in ats]
            case _:
                return self.reduce(node, ats)

    @abstractmethod
    def reduce(self, node: Node, ats: Sequence[At]) -> list[Value]:
        """Return a reduction's elements at each place."""

    def pull_one(self, node: Node, at: At) -> Value:
        return self.pull(node, [at])[0]

    def whole(self, node: Node, at: At) -> Value:
        """Return elements as a vector, or as a scalar where the place has no lanes."""
        value = self.pull_one(node, at)
        return value if at.uniform else self.places.splat(value)

    def _load(self, pointer: Value, node: Node, at: At) -> Value:
        type_, size = memory_type(node.element), node.bytes
        v = self.access.load(pointer, type_, size, at, node.dims)
        if node.element != i1:
            return v
        return self.places.place(("bool", v), [v], lambda: loaded(self.f, i1, v))

    def _constant(self, node: Node, at: At) -> Value:
        data = node.data
        if is_splat(node):
            return constant_of(node.element, data[: node.bytes])
        name = f"constant.{hashlib.sha256(data).hexdigest()[:24]}"
        pointer = self.f.module.table(name, "i8", [str(b) for b in data])
        return self._load(pointer, node, at)

    def _iota(self, node: Node, at: At) -> Value:
        axis = self.access.force(at.axes[node.axis])
        v = axis.base if axis.lanes == 0 else self.access.vector(axis)
        type_ = vec(v.lanes, register_type(node.element))
        if node.element in (f32, f64):
            opcode = "uitofp"
        else:
            wide, narrow = int(v.element[1:]), int(register_type(node.element)[1:])
            if wide == narrow:
                return v
            opcode = "zext" if wide < narrow else "trunc"
        return self.places.place((opcode, type_, v), [v], lambda: self.f.cast(opcode, v, type_))

    def _joined(self, node: Node) -> Node:
        """
        Return a sum or difference with a product of f32 as one operation, in a fast program.

        A product that is kept has been computed.
        """
        contracts = self.f.module.fast and node.element == f32 and has_fma(self.f)
        if not contracts or node.op != "binary" or node.kind not in ("add", "sub"):
            return node
        a, b = node.args
        if a.op == "binary" and a.kind == "mul" and a not in self.kept:
            kind, args = ("fma" if node.kind == "add" else "fms"), (*a.args, b)
        elif b.op == "binary" and b.kind == "mul" and b not in self.kept:
            kind, args = ("fma" if node.kind == "add" else "fnma"), (*b.args, a)
        else:
            return node
        return replace(node, kind=kind, args=args)

    def _map(self, node: Node, values: Sequence[Value]) -> Value:
        if len({v.lanes for v in values}) > 1:
            values = [self.places.splat(v) for v in values]
        key = (node.op, node.kind, node.element, node.args[0].element, *values)
        return self.places.place(key, values, lambda: self._operation(node, values))

    def _operation(self, node: Node, values: Sequence[Value]) -> Value:
        f, element = self.f, node.args[0].element
        signed = not is_unsigned(element)
        match node.op:
            case "unary":
                return vmath.emit_unary(f, node.kind, values[0], signed)
            case "binary" if len(values) == 3:
                a, b, c = values
                a = f.fneg(a) if node.kind == "fnma" else a
                return f.fma(a, b, f.fneg(c) if node.kind == "fms" else c)
            case "binary":
                return vmath.emit_binary(f, node.kind, values[0], values[1], signed)
            case "compare":
                return vmath.emit_compare(f, node.kind, values[0], values[1], signed)
            case "select":
                return f.select(*values)
            case _:
                return converted(f, values[0], element, node.element)

    # Moves that read one of several places

    def _concat(self, node: Node, at: At) -> Value:
        axis = self.access.force(at.axes[node.axis])
        ends: list[Value] = []
        total = i64(0)
        for part in node.args:
            total = self.places.add(total, self.access.size(part.dims[node.axis]))
            ends.append(total)
        starts = [i64(0), *ends[:-1]]
        parts = [
            (part, self._moved(node, at, Axis(self.places.sub(axis.base, start), axis.lanes)))
            for part, start in zip(node.args, starts, strict=True)
        ]
        operands = [*at.values, *ends]
        key = ("concat", node, at)
        if axis.lanes == 0:

            def choose(first: int, last: int) -> list[Value]:
                if first == last:
                    return [self.whole(*parts[first])]
                middle = (first + last) // 2
                return self.places.branch(
                    self.f.icmp("slt", axis.base, ends[middle]),
                    lambda: choose(first, middle),
                    lambda: choose(middle + 1, last),
                )

            return self.places.place_all(key, operands, lambda: choose(0, len(parts) - 1))[0]
        return self.places.place(
            key, operands, lambda: self._blend(node, axis, parts, starts, ends)
        )

    def _moved(self, node: Node, at: At, axis: Axis) -> At:
        axes = list(at.axes)
        axes[node.axis] = axis
        return At(tuple(axes), at.mask)

    def _blend(
        self,
        node: Node,
        axis: Axis,
        parts: Sequence[tuple[Node, At]],
        starts: Sequence[Value],
        ends: Sequence[Value],
    ) -> Value:
        """Return lanes of different parts of a concatenation."""
        f, p, access = self.f, self.places, self.access
        v = access.vector(axis)
        result = f.zero(vec(PANEL, register_type(node.element)))
        for (part, at), start, end in zip(parts, starts, ends, strict=True):
            low, high = (p.splat(access.narrow(x)) for x in (start, end))
            mask = f.and_(f.icmp("sge", v, low), f.icmp("slt", v, high))
            if at.mask is not None:
                mask = f.and_(mask, at.mask)
            any_ = f.icmp("ne", f.cast("bitcast", mask, "i16"), 0)
            inside = At(at.axes, self.places.here([mask])[0])
            taken = result

            def then(part: Node = part, at: At = inside, taken: Value = taken) -> list[Value]:
                assert at.mask is not None
                return [f.select(at.mask, p.splat(self.pull_one(part, at)), taken)]

            result = p.branch(any_, then, lambda taken=taken: [taken])[0]
        return result

    def _gather(self, node: Node, at: At) -> Value:
        source, ids = node.args
        k, rank = node.axis, len(ids.dims)
        id_ = self.pull_one(ids, At(at.axes[k : k + rank], at.mask))
        n = source.dims[k]
        type_ = register_type(node.element)
        zero = self.f.zero(type_ if at.uniform else vec(PANEL, type_))
        if n.number == 0:
            return zero
        axis = self._clamped(id_, self.access.size(n))
        inside = At((*at.axes[:k], axis, *at.axes[k + rank :]), at.mask)
        if not self._may_be_empty(n):
            return self.pull_one(source, inside)
        count = self.access.size(n)
        operands = [*inside.values, *at.values, count]

        def element() -> list[Value]:
            value = self.pull_one(source, inside)
            return [value if at.uniform else self.places.splat(value)]

        def guarded() -> list[Value]:
            return self.places.branch(self.f.icmp("ne", count, 0), element, lambda: [zero])

        return self.places.place_all(("gather", node, inside), operands, guarded)[0]

    def _may_be_empty(self, size: Size) -> bool:
        dims = self.body.table.dims
        return any(dims[n].operator != "" or dims[n].low == 0 for n in size.names)

    def _clamped(self, id_: Value, count: Value) -> Axis:
        """Return an index that is within 0 to count - 1."""
        f, p = self.f, self.places
        if id_.lanes == 1:

            def scalar() -> Value:
                wide = id_ if id_.type == "i64" else f.cast("sext", id_, "i64")
                low = f.intrinsic("smax", "i64", wide, i64(0))
                return f.intrinsic("smin", "i64", low, p.sub(count, 1))

            return Axis(p.place(("clamp", id_, count), [id_, count], scalar))
        element = id_.element
        last = p.sub(count, 1)
        if element == "i32":
            last = p.place(("last", last), [last], lambda: f.umin(last, (1 << 31) - 1))
            last = p.place(("i32", last), [last], lambda: f.cast("trunc", last, "i32"))
        high = p.splat(last)

        def vector() -> Value:
            low = f.intrinsic("smax", id_.type, id_, f.zero(id_.type))
            v = f.intrinsic("smin", id_.type, low, high)
            if element == self.access.element:
                return v
            return f.cast(
                "sext" if element == "i32" else "trunc", v, vec(PANEL, self.access.element)
            )

        return Axis(i64(0), p.place(("clamp", id_, high), [id_, high], vector))


def _lane_type(body: Body) -> str:
    """Return i32 for vectors of indices where every tensor has fewer than 2^31 elements."""
    values = [*body.block.args, *(op.results[0] for op in body.ops)]
    upper = body.table.upper
    for v in values:
        count = 1
        for d in dims_of(v.type):
            count *= max(1, d if isinstance(d, int) else upper[d])
        if count >= 1 << 31:
            return "i64"
    return "i32"
