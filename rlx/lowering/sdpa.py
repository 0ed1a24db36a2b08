"""`mir.sdpa`: attention on tensors in memory, by blocks of queries and keys."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from rlx.dialects.common import dims_of, element_of
from rlx.dialects.reductions import SdpaOp
from rlx.errors import RlxError
from rlx.lowering.attention_blocks import QUERIES, Blocks, up_to
from rlx.lowering.attention_units import in_turn
from rlx.lowering.body import Body
from rlx.lowering.dot_blocks import Shapes
from rlx.lowering.dot_matrix import Matrix, up
from rlx.lowering.values import Value


def emit_sdpa(body: Body) -> None:
    """
    Attention of the queries of one `mir.sdpa`, alone in its launch.

    A work unit is 96 queries of the heads that share a head of keys. It uses at most 370 KB of
    stack. The result must not share memory with an operand.
    """
    op = body.ops[0]
    if len(body.ops) != 1 or not isinstance(op, SdpaOp) or list(body.yielded) != [op.result]:
        names = ", ".join(op.name for op in body.ops)
        raise RlxError(f"sdpa: expected one mir.sdpa and its result in a launch, got {names}")
    f, a = body.f, _Attention.of(body, op)
    blocks = up(f, a.queries, QUERIES)
    units = f.mul(body.count(dims_of(op.keys.type)[:-2]), blocks)

    def unit(u: Value) -> list[Value]:
        heads = f.udiv(u, blocks)
        # From the last queries on: where attention is causal, they take longest.
        block = f.sub(f.sub(blocks, 1), f.sub(u, f.mul(heads, blocks)))
        a.unit(heads, f.mul(block, QUERIES))
        return []

    in_turn(f, units, body.tid, body.threads, unit)


@dataclass
class _Attention:
    """The attention of a kernel. `queries` are those of the heads that share a head of keys."""

    body: Body
    op: SdpaOp
    blocks: Blocks
    kv_heads: int
    queries: Value
    m: Value
    n: Value

    @staticmethod
    def of(body: Body, op: SdpaOp) -> _Attention:
        f = body.f
        q, v = dims_of(op.query.type), dims_of(op.values.type)
        heads, kv_heads = q[-3], v[-3]
        assert isinstance(heads, int)
        assert isinstance(kv_heads, int)
        element = "float" if element_of(op.query.type) == f32 else "double"
        m, n, d, e = (body.size(x) for x in (q[-2], v[-2], q[-1], v[-1]))
        blocks = Blocks.of(f, element, op.scale.value.data, d, e)
        return _Attention(body, op, blocks, kv_heads, f.mul(m, heads // kv_heads), m, n)

    def unit(self, heads: Value, first: Value) -> None:
        """Emit the attention of the queries from `first` on, of a head of keys (of any batch)."""
        f, t, b = self.body.f, self.blocks.tiling, self.blocks
        count = f.umin(f.sub(self.queries, first), QUERIES)
        q = self._matrix(self.op.query, f.add(f.mul(heads, self.queries), first), b.d)
        k = self._matrix(self.op.keys, f.mul(heads, self.n), b.d, swapped=True)
        v = self._matrix(self.op.values, f.mul(heads, self.n), b.e)
        row = f.mul(f.add(f.mul(heads, self.queries), first), b.e)
        out = Matrix(f.at(self.body.outs[0], row, t.size), f.mul(b.e, t.size))
        n = None if self.op.causal is not None else self.n.constant
        known = self.queries.constant
        shapes = Shapes.of(t, known, n), Shapes.of(t, known, b.e.constant)

        def position(row: Value) -> Value:
            return f.binary("urem", f.add(first, row), self.m)

        def seen(row: Value, k0: Value, length: Value) -> Value:
            last = f.add(f.sub(f.add(position(row), 1), self.m), f.sub(self.n, k0))
            return up_to(f, last, length)

        def mask_at(row: Value, k0: Value) -> Value:
            assert self.op.mask is not None
            index = f.add(f.mul(f.udiv(heads, self.kv_heads), self.m), position(row))
            return f.at(self._matrix(self.op.mask, index, self.n).pointer, k0, t.size)

        b.attend(
            q, k, v, out, count, self._seen(first, count), shapes,
            seen if self.op.causal is not None else None,
            mask_at if self.op.mask is not None else None,
        )  # fmt: skip

    def _matrix(self, source: SSAValue, row: Value, width: Value, swapped: bool = False) -> Matrix:
        """Return the matrix that starts at a row of an operand."""
        f, size = self.body.f, self.blocks.tiling.size
        start = f.at(self.body.pointers[source], f.mul(row, width), size)
        return Matrix(start, f.mul(width, size), swapped)

    def _seen(self, first: Value, count: Value) -> Value:
        """Return how many keys are seen by one of the queries or more."""
        f = self.body.f
        if self.op.causal is None:
            return self.n
        end = f.add(f.binary("urem", first, self.m), count)
        # Where the queries are of more than one head, the last of a head is among them.
        last = f.umin(end, self.m)
        return up_to(f, f.add(f.sub(last, self.m), self.n), self.n)
