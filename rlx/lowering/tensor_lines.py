"""
Rows of results in whole cache lines, and large results past the caches.

A store that fills a line without its old contents saves reading them: a third of what a copy moves.
It needs an address that is a multiple of the line, where numpy's arrays rarely start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.lowering.hoist import Places
from rlx.lowering.target import LINE, PANEL
from rlx.lowering.tensor_lanes import splits_lanes
from rlx.lowering.tensor_nodes import Node, product, reachable
from rlx.lowering.tensor_reduce import Program
from rlx.lowering.values import Value, i64

STREAMED = 4 << 20
"""
From how many bytes on results go past the caches, which would not keep them for their reader.

Twice as many where rows are reduced first: then a row's results come all at once, and a cache
takes them in faster than memory does.
"""
ALIGNED = 1024
"""From how many elements on a row is written from the first boundary of a cache line on."""


@dataclass
class Lines:
    """Rows that are long enough to be written in whole cache lines, and their results past them."""

    places: Places
    first: Value
    """The address of the first output, as an i64."""
    size: int
    """Bytes of an element."""
    unit: int
    """The alignment of a chunk."""
    aligned: Value
    """Whether the outputs lie alike in their lines, and rows are long."""
    streams: Value
    """Whether, besides, the outputs are large."""
    may_stream: bool
    """Whether the outputs of some call may be."""

    @staticmethod
    def of(program: Program, outputs: Sequence[tuple[Node, Value]], outer: int) -> Lines | None:
        """
        Return how rows of outputs of one shape are written, whose first dimensions are `outer`.

        None where rows are known to be short, or where chunks have to be at multiples of 16.
        """
        p, f = program.places, program.f
        nodes = [node for node, _ in outputs]
        sizes, row = {n.bytes for n in nodes}, product(nodes[0].dims[outer:])
        if len(sizes) > 1 or program.upper(row) < ALIGNED:
            return None
        if any(splits_lanes(n, outer) for n in nodes):
            return None
        (size,) = sizes
        unit = min(LINE, PANEL * size)
        addresses = [f.cast("ptrtoint", out, "i64") for _, out in outputs]
        apart = f.and_(addresses[0], size - 1)
        for other in addresses[1:]:
            apart = f.or_(apart, f.and_(f.xor(addresses[0], other), unit - 1))
        long = f.icmp("uge", program.access.size(row), ALIGNED)
        aligned = f.and_(f.icmp("eq", apart, 0), long)
        total = p.mul(program.access.size(nodes[0].count), size * len(nodes))
        least = STREAMED << any(n.op == "reduce" for n in reachable(*nodes))
        streams = f.and_(aligned, f.icmp("uge", total, least))
        p.here([*addresses, aligned, streams])
        may_stream = program.upper(nodes[0].count) * size * len(nodes) >= least
        return Lines(p, addresses[0], size, unit, aligned, streams, may_stream)

    def ahead(self, index: Value) -> Value:
        """Return how many elements lie between an index and the first line from there on."""
        p, f = self.places, self.places.f
        address = p.add(self.first, p.mul(index, self.size))

        def emit() -> Value:
            short = f.and_(f.sub(i64(0), address), self.unit - 1)
            short = f.lshr(short, self.size.bit_length() - 1)
            return f.select(self.aligned, short, i64(0))

        return p.place(("ahead", address), [address, self.aligned], emit)

    def streamed(self, start: Value, end: Value) -> Value:
        """Return up to where, from a start to an end, results go past the caches."""
        f = self.places.f
        key, operands = ("streamed", start, end), [start, end, self.streams]
        return self.places.place(key, operands, lambda: f.select(self.streams, end, start))
