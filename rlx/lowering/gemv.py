"""
One row of f32 activations times packed weights, at the speed of bytes.

The row is written as digits (`digits.py`). These are multiplied with the quantised weights in
integers, exactly, while the weights are in registers, whatever the instruction set; a block's sums
are then put together in f32:

    d (65536 S + (256 T + U))      S, T, U: the sums of weight times digit; d: the power of two

256 T + U is exact in i32. A block with an infinity or a NaN gives NaN. Activations below 2^-104
lose bits to underflow. Modules that are `fast` have two digits, d (256 S + T).

Float weights are multiplied with the activations in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rlx.lowering.contract import Group, check, shares
from rlx.lowering.digits import DIGITS, digits_function
from rlx.lowering.emitter import Function
from rlx.lowering.formats import CHUNK, FORMATS, panel_bytes
from rlx.lowering.gemv_dots import panels_at_once
from rlx.lowering.gemv_panels import SUMS, panels_function
from rlx.lowering.target import PANEL, Target
from rlx.lowering.values import Value, i64

Store = Callable[[Function, int, Value, list[Value]], None]
"""An epilogue: called with the group, the panel (i64) and an <16 x float> for each weight."""

_ROW = f"<{PANEL} x float>"

_FIRST = 16384  # bytes: what memory gives while a thread waits, and makes the digits


def emit_gemv(
    f: Function,
    k: int,
    groups: Sequence[Group],
    row: Value,
    weights: Sequence[Sequence[Value]],
    tid: Value,
    nth: Value,
    store: Store,
) -> None:
    """
    Emit one row of k f32 at `row` times this thread's share of the groups' panels.

    `weights` are pointers to packed weights, for each group. `store(f, group, panel, values)`
    emits what is done with a panel's outputs. The digits are made by every thread for itself, in
    5 k bytes of its stack, once for all products in a function.
    """
    check(k, groups, weights)
    digits = row
    forms = [FORMATS[name] for group in groups for name in group.formats]
    if any(form.quantised for form in forms):
        digits = f.scratch("digits", k // CHUNK * DIGITS)
        f.call(digits_function(f.module, forms), "void", row, digits, i64(k // CHUNK))
    products = _Products(f, k, groups, weights, row, digits, split(f, k, groups, tid, nth))
    for g, (first, last) in enumerate(products.shares):
        body = partial(products.tile, g, store)
        f.while_([first], lambda v, last=last: f.icmp("ult", v[0], last), body)


@dataclass(frozen=True)
class _Products:
    """A row's products with a thread's shares of groups, a tile of panels after the other."""

    f: Function
    k: int
    groups: Sequence[Group]
    weights: Sequence[Sequence[Value]]
    row: Value
    digits: Value
    shares: Sequence[tuple[Value, Value]]

    def tile(self, g: int, store: Store, at: list[Value]) -> list[Value]:
        """Emit as many panels as are taken together, from the one at hand on; return the next."""
        f, group, p = self.f, self.groups[g], at[0]
        widths = _widths(f.target, group)
        sums = f.scratch("products", widths[0] * len(group.formats) * SUMS)
        width = self._widest(g, widths, p, sums)

        def panel(i: Value, _: list[Value]) -> list[Value]:
            values = [
                f.load(_ROW, f.at(sums, f.add(f.mul(width, j), i), SUMS))
                for j in range(len(group.formats))
            ]
            store(f, g, f.add(p, i), values)
            return []

        f.for_(0, width, 1, [], panel)
        return [f.add(p, width)]

    def _widest(self, g: int, widths: Sequence[int], p: Value, sums: Value) -> Value:
        """Emit the products of the most panels that are left; return how many these were."""
        f = self.f
        width, *others = widths

        def these() -> list[Value]:
            self._call(g, width, p, sums)
            return [i64(width)]

        if not others:
            return these()[0]
        enough = f.icmp("uge", f.sub(self.shares[g][1], p), width)
        return f.if_(enough, these, lambda: [self._widest(g, others, p, sums)])[0]

    def _call(self, g: int, width: int, p: Value, sums: Value) -> None:
        """Emit `width` panels' products, to `sums`: [weights of the group][width] outputs."""
        f, k, formats = self.f, self.k, self.groups[g].formats
        at = [self._panel(g, i, p) for i in range(len(formats))]
        at.append(self._after(g, f.add(p, width), at[0]))
        for i, name in enumerate(formats):
            form, stride = FORMATS[name], panel_bytes(name, k)
            own, count = f.at(sums, i * width * SUMS), i64(k // form.block)
            if form.quantised:
                kernel = panels_function(f.module, name, width)
                f.call(kernel, "void", self.digits, at[i], at[i + 1], i64(stride), count, own)
                continue
            kernel = panels_function(f.module, name, 1)
            for j in range(width):
                args = f.at(at[i], j * stride), at[i + 1], i64(stride), count, f.at(own, j * SUMS)
                f.call(kernel, "void", self.row, *args)

    def _panel(self, g: int, weight: int, p: Value) -> Value:
        name = self.groups[g].formats[weight]
        return self.f.at(self.weights[g][weight], p, panel_bytes(name, self.k))

    def _after(self, g: int, p: Value, here: Value) -> Value:
        """Return what is read after a group's panels up to p: in the end, what is there already."""
        f, (_, last) = self.f, self.shares[g]
        end = here if g + 1 == len(self.groups) else self._panel(g + 1, 0, self.shares[g + 1][0])
        return f.select(f.icmp("ult", p, last), self._panel(g, 0, p), end)


def emit_gemv_ahead(
    f: Function,
    k: int,
    groups: Sequence[Group],
    weights: Sequence[Sequence[Value]],
    tid: Value,
    nth: Value,
) -> None:
    """Emit prefetches of what `emit_gemv` reads first: it asks only for what is further ahead."""
    check(k, groups, weights)

    def ask(g: int, first: Value) -> list[Value]:
        stride = panel_bytes(groups[g].formats[0], k)
        width = _widths(f.target, groups[g])[0]
        start = f.at(weights[g][0], first, stride)

        def line(offset: Value, _: list[Value]) -> list[Value]:
            for i in range(width):
                f.prefetch(f.at(f.at(start, i * stride), offset), locality=2)
            return []

        return f.for_(0, _FIRST // width, 64, [], line)

    asked = Value("i1", "false")
    for g, (first, last) in enumerate(split(f, k, groups, tid, nth)):
        here = f.icmp("ult", first, last)
        f.if_(f.icmp("ult", asked, here), partial(ask, g, first))
        asked = f.or_(asked, here)


def split(
    f: Function, k: int, groups: Sequence[Group], tid: Value, nth: Value
) -> list[tuple[Value, Value]]:
    """Return this thread's first panel of each group, and where its last one ends."""
    costs = [sum(panel_bytes(name, k) for name in group.formats) // 64 for group in groups]
    return shares(f, [group.panels for group in groups], costs, tid, nth)


def _widths(target: Target, group: Group) -> tuple[int, ...]:
    """Return how many panels of a group are taken together, the most first; 1 is the last."""
    return min((panels_at_once(target, FORMATS[name]) for name in group.formats), key=len)
