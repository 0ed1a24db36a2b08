"""
Where an element of a tensor comes from: indices in sixteen lanes, and how moves change them.

An index along an axis is a scalar plus what each lane adds: 0, 1, 2, ... times a number, or a
vector. What divides an index (a reshape that takes a dimension apart) is a `Part`, which stays a
description until it is needed: parts that come together again cost nothing, and an address that
goes through all elements in order is one contiguous load.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from rlx.lowering.hoist import Places
from rlx.lowering.target import LINE, PANEL
from rlx.lowering.tensor_nodes import ONE, Node, Size, cuts, product
from rlx.lowering.values import Value, i64, vec


class Axis(NamedTuple):
    """An index along an axis: an i64 scalar, plus the lane's number times `lanes`, or a vector."""

    base: Value
    lanes: int | Value = 0


class Part(NamedTuple):
    """An index divided: whole / after % size, out of before * size * after."""

    whole: Axis
    before: Size
    size: Size
    after: Size


AnyAxis: TypeAlias = Axis | Part
ZERO = Axis(i64(0))
SPREAD = 4
"""Up to how many elements apart lanes are loaded with what lies between them."""
_AHEAD = 2 * LINE
"""
Bytes from a store to what is fetched for later ones.

A store across two cache lines waits for both, one after the other, unless L1 has them: 3.5 ns each
time they are in L2. numpy's arrays start anywhere, so that most of an output's stores are such.
"""


class At(NamedTuple):
    """A place in a tensor, or sixteen: an index for each axis, and the lanes that count."""

    axes: tuple[AnyAxis, ...]
    mask: Value | None = None

    @property
    def uniform(self) -> bool:
        """Return whether all lanes are at one place."""
        return all(whole(a).lanes == 0 for a in self.axes)

    @property
    def values(self) -> list[Value]:
        """Return the values that it depends on."""
        found = [v for a in self.axes for v in whole(a) if isinstance(v, Value)]
        return found if self.mask is None or self.uniform else [*found, self.mask]


def whole(axis: AnyAxis) -> Axis:
    return axis.whole if isinstance(axis, Part) else axis


class Access:
    """Arithmetic on indices, written to a kernel's function; vectors have `element` lanes."""

    def __init__(self, places: Places, sizes: dict[str, Value], element: str):
        self.places = places
        self.f = places.f
        self.element = element
        self._sizes = sizes

    def size(self, size: Size) -> Value:
        """Return a size as i64."""
        total = i64(size.number)
        for name in size.names if size.number else ():
            total = self.places.mul(self._sizes[name], total)
        return total

    # Vectors

    def lanes(self, axis: Axis) -> Value:
        """Return what each lane adds to an index's scalar, as a vector."""
        if isinstance(axis.lanes, Value):
            return axis.lanes
        return self.f.vector(self.element, [axis.lanes * i for i in range(PANEL)])

    def narrow(self, v: Value) -> Value:
        """Return an i64 scalar as a lane's type."""
        if self.element == "i64":
            return v
        if v.constant is not None:
            return Value(self.element, v.name)
        return self.places.place(("narrow", v), [v], lambda: self.f.cast("trunc", v, self.element))

    def vector(self, axis: Axis) -> Value:
        """Return an index as a vector."""
        lanes = self.lanes(axis)
        if axis.base.constant == 0:
            return lanes
        return self.places.add(self.places.splat(self.narrow(axis.base)), lanes)

    def force(self, axis: AnyAxis) -> Axis:
        """Return an index whose division is carried out."""
        if isinstance(axis, Axis):
            return axis
        quotient = axis.whole if axis.after.is_one else self.divide(axis.whole, axis.after)[0]
        return quotient if axis.before.is_one else self.divide(quotient, axis.size)[1]

    def divide(self, axis: Axis, by: Size) -> tuple[Axis, Axis]:
        """Return an index divided, and the remainder."""
        p, n = self.places, self.size(by)
        if by.is_one:
            return axis, ZERO
        if axis.lanes == 0:
            return Axis(p.div(axis.base, n)), Axis(p.rem(axis.base, n))
        aligned = by.static is not None and by.static % PANEL == 0
        if axis.lanes == 1 and aligned and p.multiple(axis.base) % PANEL == 0:
            return Axis(p.div(axis.base, n)), Axis(p.rem(axis.base, n), 1)
        v, divisor = self.vector(axis), p.splat(self.narrow(n))
        if by.static == 0:
            return axis, axis

        def divided(opcode: str) -> Axis:
            key = (opcode, v, divisor)
            result = p.place(key, [v, divisor], lambda: self.f.binary(opcode, v, divisor))
            return Axis(i64(0), result)

        return divided("udiv"), divided("urem")

    # Linear arithmetic

    def plus(self, a: Axis, b: Axis) -> Axis:
        base = self.places.add(a.base, b.base)
        if isinstance(a.lanes, int) and isinstance(b.lanes, int):
            return Axis(base, a.lanes + b.lanes)
        if a.lanes == 0 or b.lanes == 0:
            return Axis(base, a.lanes if b.lanes == 0 else b.lanes)
        return Axis(base, self.places.add(self.lanes(a), self.lanes(b)))

    def times(self, a: Axis, n: Value) -> Axis:
        base = self.places.mul(a.base, n)
        if a.lanes == 0 or n.constant == 1:
            return Axis(base, a.lanes)
        if n.constant is not None and isinstance(a.lanes, int):
            return Axis(base, a.lanes * n.constant)
        lanes, factor = self.lanes(a), self.places.splat(self.narrow(n))
        product_ = self.places.place(
            ("mul", lanes, factor), [lanes, factor], lambda: self.f.binary("mul", lanes, factor)
        )
        return Axis(base, product_)

    def join(self, axes: Sequence[AnyAxis], dims: Sequence[Size]) -> Axis:
        """Return the row-major index of indices along dimensions."""
        merged: list[tuple[AnyAxis, Size]] = []
        for axis, dim in zip(axes, dims, strict=True):
            if dim.is_one:
                continue
            last = merged[-1][0] if merged else None
            if (
                isinstance(last, Part)
                and isinstance(axis, Part)
                and last.whole == axis.whole
                and dim == axis.size
                and last.after == axis.size * axis.after
            ):
                part = Part(last.whole, last.before, last.size * axis.size, axis.after)
                through = part.before.is_one and part.after.is_one
                merged[-1] = (part.whole if through else part, merged[-1][1] * dim)
            else:
                through = isinstance(axis, Part) and axis.before.is_one and axis.after.is_one
                merged.append((whole(axis) if through else axis, dim))
        total = ZERO
        terms: list[Axis] = []
        stride = ONE
        for axis, dim in reversed(merged):
            terms.append(self.times(self.force(axis), self.size(stride)))
            stride = stride * dim
        # What the outer loops know is added first, so that the sum of it stays there.
        for term in sorted(terms, key=lambda t: self.places.level(t.base)):
            total = self.plus(total, term)
        return total

    def split(self, axis: Axis, dims: Sequence[Size]) -> list[AnyAxis]:
        """Return the indices along dimensions of a row-major index."""
        parts: list[AnyAxis] = []
        for i, dim in enumerate(dims):
            before, after = product(dims[:i]), product(dims[i + 1 :])
            through = before.is_one and after.is_one
            parts.append(
                ZERO if dim.is_one else axis if through else Part(axis, before, dim, after)
            )
        return parts

    # Moves: from a place in the result to the place in the operand

    def reshape(self, node: Node, at: At) -> At:
        given, wanted = node.dims, node.args[0].dims
        axes: list[AnyAxis] = []
        i = j = 0
        for i2, j2 in cuts(given, wanted):
            outer, inner = at.axes[i:i2], wanted[j:j2]
            long = [k for k in range(i, i2) if not given[k].is_one]
            if len(long) == 1 and [d for d in inner if not d.is_one] == [given[long[0]]]:
                axes += [ZERO if d.is_one else at.axes[long[0]] for d in inner]
            elif inner:
                axes += self.split(self.join(outer, given[i:i2]), inner)
            i, j = i2, j2
        return At(tuple(axes), at.mask)

    def broadcast(self, node: Node, at: At) -> At:
        wanted = node.args[0].dims
        axes = at.axes[len(at.axes) - len(wanted) :]
        return At(
            tuple(ZERO if d.is_one else a for d, a in zip(wanted, axes, strict=True)), at.mask
        )

    def transpose(self, node: Node, at: At) -> At:
        axes = list(at.axes)
        for i, axis in enumerate(node.axes):
            axes[axis] = at.axes[i]
        return At(tuple(axes), at.mask)

    def slice(self, node: Node, at: At) -> At:
        axes: list[AnyAxis] = []
        for axis, start, step in zip(at.axes, node.axes, node.steps, strict=True):
            moved = axis
            if (start, step) != (0, 1):
                moved = self.plus(self.times(self.force(axis), i64(step)), Axis(i64(start)))
            axes.append(moved)
        return At(tuple(axes), at.mask)

    def narrow_axis(self, node: Node, at: At) -> At:
        """Return where the elements of a `narrow` are: from the size of a dimension on."""
        axes = list(at.axes)
        moved = self.times(self.force(axes[node.axis]), i64(node.steps[0]))
        axes[node.axis] = self.plus(moved, Axis(self.start(node.kind)))
        return At(tuple(axes), at.mask)

    def window(self, node: Node, at: At) -> At:
        k, (stride, step) = node.axis, node.steps
        first, offset = (
            self.times(self.force(axis), i64(n))
            for axis, n in zip(at.axes[k : k + 2], (stride, step), strict=True)
        )
        return At((*at.axes[:k], self.plus(first, offset), *at.axes[k + 2 :]), at.mask)

    def reverse(self, node: Node, at: At) -> At:
        axes = list(at.axes)
        for i in node.axes:
            base, lanes = self.force(axes[i])
            last = self.places.sub(self.size(node.dims[i]), 1)
            if isinstance(lanes, Value):
                key, zero = ("neg", lanes), self.f.zero(lanes.type)
                back = self.places.place(key, [lanes], partial(self.f.binary, "sub", zero, lanes))
            else:
                back = -lanes
            axes[i] = Axis(self.places.sub(last, base), back)
        return At(tuple(axes), at.mask)

    def start(self, name: str) -> Value:
        return self._sizes[name]

    # Memory

    def load(self, pointer: Value, type_: str, size: int, at: At, dims: Sequence[Size]) -> Value:
        """Load elements of `size` bytes of a dense tensor: a scalar where all lanes are at one."""
        f, place = self.f, self.join(at.axes, dims)
        align = min(size, 4)
        mask = at.mask if place.lanes != 0 else None
        operands = [v for v in (pointer, *place, mask) if isinstance(v, Value)]

        def emit() -> Value:
            first = f.at(pointer, place.base, size)
            if place.lanes == 0:
                return f.load(type_, first, align=align)
            if place.lanes == 1:
                vector = vec(PANEL, type_)
                if mask is None:
                    return f.load(vector, first, align=align)
                return f.load_masked(vector, first, mask, align=align)
            if place.lanes == -1:
                return self._backwards(type_, first, size, mask)
            if isinstance(place.lanes, int) and 0 < place.lanes <= SPREAD and mask is None:
                return self._spread(type_, first, size, place.lanes)
            every = mask or f.vector("i1", [1] * PANEL)
            return f.load_gathered(type_, first, self.lanes(place), every)

        return self.places.place(("load", pointer, type_, place, mask), operands, emit)

    def _backwards(self, type_: str, first: Value, size: int, mask: Value | None) -> Value:
        """Load sixteen elements that lie one before the other."""
        f, vector, order = self.f, vec(PANEL, type_), range(PANEL - 1, -1, -1)
        start, align = f.at(first, i64(1 - PANEL), size), min(size, 4)
        if mask is None:
            v = f.load(vector, start, align=align)
        else:
            v = f.load_masked(vector, start, f.shuffle(mask, mask, order), align=align)
        return f.shuffle(v, v, order)

    def _spread(self, type_: str, first: Value, size: int, step: int) -> Value:
        """Load sixteen elements that lie a small step apart, with those between them."""
        f, v = self.f, None
        for part in range(step):
            # The last one ends with the last element: nothing is read beyond it.
            start = min(part * PANEL, (PANEL - 1) * (step - 1))
            loaded = f.load(vec(PANEL, type_), f.at(first, i64(start), size), align=min(size, 4))
            lanes = [i * step - start + PANEL for i in range(PANEL)]
            found = [min(i * step // PANEL, step - 1) for i in range(PANEL)]
            mask = [lane if part == by else i for i, (lane, by) in enumerate(zip(lanes, found))]
            v = f.shuffle(v or loaded, loaded, mask)
        assert v is not None
        return v

    def store(
        self,
        v: Value,
        pointer: Value,
        size: int,
        at: At,
        dims: Sequence[Size],
        align: int = 0,
        fetches: bool = True,
    ) -> None:
        """
        Store an element, or sixteen that lie side by side.

        `align`, where not 0, is that of what goes past the caches. `fetches` says whether the lines
        of later elements are fetched.
        """
        f, place = self.f, self.join(at.axes, dims)
        target = f.at(pointer, place.base, size)
        if align:
            f.store(v, target, align, streaming=True)
            return
        align = min(size, 4)
        if place.lanes == 0:
            f.store(v, target, align=align)
            return
        assert place.lanes == 1
        if at.mask is None:
            if fetches:
                f.prefetch_lines(f.at(target, _AHEAD), PANEL * size, write=True)
            f.store(v, target, align=align)
        else:
            f.store_masked(v, target, at.mask, align=align)
