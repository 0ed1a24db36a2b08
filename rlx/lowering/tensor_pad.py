"""
Elements of padded tensors: of the input where a place is inside of it, of the fill elsewhere.

Whether a place is inside along an axis that all lanes share is one question, asked where the index
is known; along the lanes most chunks lie inside as a whole, and are read like any others.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from rlx.lowering.target import PANEL
from rlx.lowering.tensor_access import ZERO, AnyAxis, At, Axis
from rlx.lowering.tensor_nodes import ONE, Node, Size
from rlx.lowering.values import Value, i64

if TYPE_CHECKING:
    from rlx.lowering.tensor_pull import Pull


def padded(pull: Pull, node: Node, at: At) -> Value:
    """Return elements of a `pad` node: a scalar where all lanes are at one place."""
    p, access = pull.places, pull.access
    source, fill = node.args
    outside = pull.whole(fill, At(()))
    outside = outside if at.uniform else p.splat(outside)
    inside = _Inside(pull)
    axes: list[AnyAxis] = []
    places = zip(at.axes, node.axes, node.steps, source.dims, node.dims, strict=True)
    for axis, low, step, size, given in places:
        if size == given and not low and step == 1:
            axes.append(axis)
            continue
        moved = access.plus(access.force(axis), Axis(i64(-low)))
        quotient, rest = access.divide(moved, Size(step))
        axes.append(quotient)
        inside.ask(quotient, size)
        if rest != ZERO:
            inside.ask(rest, ONE)

    def element(mask: Value | None) -> list[Value]:
        v = pull.pull_one(source, At(tuple(axes), mask))
        return [v if at.uniform else p.splat(v)]

    def some() -> list[Value]:
        """Return elements of which some lanes may be outside."""
        mask = inside.mask(at.mask)

        def selected() -> list[Value]:
            return [pull.f.select(mask, element(mask)[0], outside)]

        return p.branch(inside.any(mask), selected, lambda: [outside])

    def lanes() -> list[Value]:
        if not inside.mixed:
            return element(at.mask)
        if inside.ends is None:
            return some()
        return p.branch(inside.all(inside.ends), lambda: element(at.mask), some, eager=True)

    def chosen() -> list[Value]:
        if not inside.shared:
            return lanes()
        return p.branch(inside.all(inside.shared), lanes, lambda: [outside], eager=True)

    operands = [*at.values, *inside.sizes, outside]
    return p.place_all(("pad", node, at), operands, chosen)[0]


class _Inside:
    """What has to hold for a place to be inside: indices, as unsigned, below sizes."""

    def __init__(self, pull: Pull):
        self.places, self.access, self.f = pull.places, pull.access, pull.f
        self.shared: list[Value] = []
        """Of indices that all lanes share."""
        self.mixed: list[tuple[Axis, Value]] = []
        """Indices that differ from lane to lane, and their sizes."""
        self.ends: list[Value] | None = []
        """Of the first and the last lane, None where others may be outside when these are not."""
        self.sizes: list[Value] = []

    def ask(self, axis: Axis, size: Size) -> None:
        n = self.access.size(size)
        self.sizes.append(n)
        if axis.lanes == 0:
            self.shared.append(self._below(axis.base, n))
            return
        self.mixed.append((axis, n))
        if not isinstance(axis.lanes, int):
            self.ends = None
        elif self.ends is not None:
            last = self.places.add(axis.base, axis.lanes * (PANEL - 1))
            self.ends += [self._below(axis.base, n), self._below(last, n)]

    def _below(self, index: Value, n: Value) -> Value:
        key = ("below", index, n)
        return self.places.place(key, [index, n], lambda: self.f.icmp("ult", index, n))

    def all(self, conditions: list[Value]) -> Value:
        def both(a: Value, b: Value) -> Value:
            return self.places.place(("and", a, b), [a, b], lambda: self.f.and_(a, b))

        return reduce(both, conditions)

    def mask(self, live: Value | None) -> Value:
        """Return which lanes are inside, of those that count."""
        access = self.access
        masks = [
            self._below(access.vector(axis), self.places.splat(access.narrow(n)))
            for axis, n in self.mixed
        ]
        return self.all(masks if live is None else [*masks, live])

    def any(self, mask: Value) -> Value:
        bits = self.f.cast("bitcast", mask, f"i{PANEL}")
        return self.places.here([self.f.icmp("ne", bits, 0)])[0]
