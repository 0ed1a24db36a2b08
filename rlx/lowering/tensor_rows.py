"""
A row of results, chunk by chunk: in whole cache lines where it is long, or in stripes of columns.

What a row's elements share is computed before its loops, as `hoist` does it by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx.lowering.target import PANEL
from rlx.lowering.tensor_access import AnyAxis, At, Axis
from rlx.lowering.tensor_nodes import product
from rlx.lowering.tensor_reduce import tail_mask
from rlx.lowering.values import Value, i64

if TYPE_CHECKING:
    from rlx.lowering.tensor_program import Domain

STRIPE_BYTES = 16 << 10
"""Half of a small L1 cache: what is collected of columns while the rows pass by."""


class Row:
    """
    A row of a domain, while it is written.

    `outer` are the indices along its outer dimensions, but for those that are innermost loops.
    """

    def __init__(self, domain: Domain, outer: dict[int, AnyAxis]):
        self.domain = domain
        self.program = domain.program
        self.places = domain.places
        self.access = domain.access
        self.outer = outer

    def write(self, low: Value, high: Value) -> None:
        """Write the elements from `low` to `high`."""
        p, domain, lines = self.places, self.domain, self.domain.lines
        step = PANEL * domain.joint * domain.unroll
        start = self.line(low, high)
        span = p.sub(high, start)
        main, full = (p.add(start, p.mul(p.div(span, i64(n)), n)) for n in (step, PANEL))
        plain = start
        if lines:
            plain = lines.streamed(start, main)
            p.loop(start, plain, step, [], lambda c, _: self._group(c, lines.unit))
        p.loop(plain, main, step, [], lambda c, _: self._group(c))
        p.loop(main, full, PANEL, [], lambda c, _: self.chunks(c, 1))
        n = product(domain.inner).static
        if lines:
            self.part(low, start)
        elif n is not None and n % PANEL == 0:
            return
        elif low.constant is not None and high.constant is not None:
            self.chunks(full, 1, tail_mask(p.f, n % PANEL if n else 0))
            return
        self.part(full, high)

    def rest(self, start: Value, end: Value) -> None:
        """Write what is less than a group."""
        p = self.places
        full = p.add(start, p.mul(p.div(p.sub(end, start), i64(PANEL)), PANEL))
        p.loop(start, full, PANEL, [], lambda c, _: self.chunks(c, 1))
        self.part(full, end)

    def line(self, low: Value, high: Value) -> Value:
        """Return where whole cache lines begin in a part of the row."""
        lines, p = self.domain.lines, self.places
        if not lines:
            return low
        place = self._place({}, Axis(low))
        ahead = lines.ahead(self.access.join(place.axes, self.domain.dims).base)
        return p.add(low, p.least(ahead, p.sub(high, low)))

    def _place(self, inside: dict[int, AnyAxis], index: Axis, mask: Value | None = None) -> At:
        axes = {**self.outer, **inside}
        first = [axes[i] for i in range(len(axes))]
        return At((*first, *self.access.split(index, self.domain.inner)), mask)

    def _group(self, start: Value, align: int = 0) -> list[Value]:
        domain = self.domain
        for i in range(domain.unroll):
            c = self.places.add(start, i * domain.joint * PANEL)
            self.chunks(c, domain.joint, None, align)
        return []

    def chunks(
        self, start: Value, count: int, mask: Value | None = None, align: int = 0
    ) -> list[Value]:
        """Write some chunks together, for all indices of the innermost loops."""
        domain, p = self.domain, self.places
        lanes = [Axis(p.add(start, i * PANEL), 1) for i in range(count)]
        dims = [domain.dims[i] for i in domain.repeated]

        def one(indices: Sequence[AnyAxis]) -> list[Value]:
            inside = dict(zip(domain.repeated, indices, strict=True))
            domain.store([self._place(inside, c, mask) for c in lanes], align)
            return []

        if not dims:
            return one([])
        times = self.access.size(product(dims))
        return p.loop(0, times, 1, [], lambda i, _: one(self.access.split(Axis(i), dims)))

    def part(self, start: Value, end: Value) -> None:
        """Write what is less than a chunk."""
        p = self.places

        def masked() -> list[Value]:
            return self.chunks(start, 1, p.here([self.program.live(p.sub(end, start))])[0])

        p.branch(p.f.icmp("slt", start, end), masked)

    def stripes(self, low: Value, high: Value) -> None:
        """Write the elements from `low` to `high` in stripes of columns: see `Program.collect`."""
        p, program, columns = self.places, self.program, self.domain.columns
        width = STRIPE_BYTES // sum(n.bytes for n in columns) // PANEL * PANEL

        def place(c: Value) -> At:
            return self._place({}, Axis(c, 1))

        def stripe(start: Value) -> list[Value]:
            end = p.least(p.add(start, width), full)
            sums = [program.collect(n, place, start, end, width) for n in columns]

            def chunk(c: Value) -> list[Value]:
                for node, row in zip(columns, sums, strict=True):
                    program.give(node, place(c), row, p.sub(c, start))
                return self.chunks(c, 1)

            return p.loop(start, end, PANEL, [], lambda c, _: chunk(c))

        full = p.add(low, p.mul(p.div(p.sub(high, low), i64(PANEL)), PANEL))
        p.loop(low, full, width, [], lambda c, _: stripe(c))
        self.part(full, high)
