"""Operations on sixteen features of a row at a time, as products with packed weights give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.ir import Operation, SSAValue

from rlx.dialects import mir
from rlx.dialects.common import dims_of, element_bytes, element_of, format_of, spell
from rlx.errors import RlxError
from rlx.lowering.body import Body, width_of
from rlx.lowering.contract import store_panel
from rlx.lowering.kv_cache import Attention, store_k_panel, store_v_panel
from rlx.lowering.rope import rotate_interleaved
from rlx.lowering.rows import VECTOR
from rlx.lowering.target import LINE, PANEL
from rlx.lowering.tensor_elements import HALVES
from rlx.lowering.values import Value, f32, i64
from rlx.lowering.vmath import emit_binary, emit_unary
from rlx.lowering.vmath_cast import convert

_STREAMED = 4 << 20
"""Bytes of a result from which on it is not in a cache any more when it is read."""


@dataclass
class Panels:
    """Operations on sixteen features at a time, of the row and panel at hand."""

    body: Body
    ops: Sequence[Operation]

    def run(self, row: Value, panel: Value, values: dict[SSAValue, Value]) -> None:
        """Emit the operations, given the vectors of some values; store what is yielded."""
        f = self.body.f
        for op in self.ops:
            match op:
                case mir.UnaryOp():
                    value = self._load(op.input, row, panel, values)
                    values[op.result] = emit_unary(f, str(op.kind.data), value)
                case mir.BinaryOp():
                    a, b = (self._load(v, row, panel, values) for v in (op.lhs, op.rhs))
                    values[op.result] = emit_binary(f, str(op.kind.data), a, b)
                case mir.CastOp():
                    value = self._load(op.input, row, panel, values)
                    values[op.result] = convert(f, value, HALVES[element_of(op.result.type)])
                case mir.RopeOp():
                    value = self._load(op.input, row, panel, values)
                    values[op.result] = self._rope(op, row, panel, value)
                case mir.AppendOp():
                    self._append(op, row, panel, self._load(op.input, row, panel, values))
                case _:
                    raise RlxError(f"{op.name} can't be part of an epilogue")
        for out, value in zip(self.body.outs, self.body.yielded, strict=True):
            if value in values:
                self._store(out, row, panel, value, values[value])

    def _store(self, out: Value, row: Value, panel: Value, result: SSAValue, v: Value) -> None:
        """Store a panel; past the caches where the whole is large and nothing of it was read."""
        f, n, size = self.body.f, width_of(result), element_bytes(result.type)
        base = f.at(out, row, n * size)

        def plain() -> list[Value]:
            store_panel(f, base, n, panel, v)
            return []

        if not self._streams(result):
            plain()
            return

        def past() -> list[Value]:
            f.store(v, f.at(base, panel, LINE), align=LINE, streaming=True)
            return []

        lines = f.icmp("eq", f.and_(f.cast("ptrtoint", out, "i64"), LINE - 1), 0)
        f.if_(lines, past, plain)

    def _streams(self, result: SSAValue) -> bool:
        n, size = width_of(result), element_bytes(result.type)
        rows = dims_of(result.type)[0]
        bound = rows if isinstance(rows, int) else self.body.table.upper.get(rows, 0)
        whole = n % PANEL == 0 and size == 4 and bound * n * size >= _STREAMED
        return whole and not any(self._is_rows(v) for v in self.body.pointers)

    def ahead(self, row: Value, panel: Value) -> None:
        """Ask for the memory that `run` reads and writes of a row and a panel."""
        f, inside = self.body.f, {r for op in self.ops for r in op.results}
        written = {
            value: out
            for out, value in zip(self.body.outs, self.body.yielded, strict=True)
            if value in inside
        }
        read = {v: p for v, p in self.body.pointers.items() if self._is_rows(v)}
        for value, base in (*written.items(), *read.items()):
            if value in written and self._streams(value):
                continue
            size = element_bytes(value.type)
            at = f.at(f.at(base, row, width_of(value) * size), panel, PANEL * size)
            f.prefetch(at, write=value in written)

    def _is_rows(self, value: SSAValue) -> bool:
        """Return whether the operations read a value row by row: a residual."""
        return any(
            isinstance(op, mir.UnaryOp | mir.BinaryOp) and value in op.operands for op in self.ops
        )

    def _load(
        self, value: SSAValue, row: Value, panel: Value, values: dict[SSAValue, Value]
    ) -> Value:
        if value in values:
            return values[value]
        f, spread = self.body.f, value.owner
        if isinstance(spread, mir.BroadcastOp):
            # A bias, the same in all rows, or a number.
            return self._load(spread.input, i64(0), panel, values)
        if isinstance(spread, mir.ConstantOp):
            number = cast(float, next(iter(spread.value.iter_values())))
            return f.splat(f32(number), PANEL)
        n = width_of(value)
        pointer = f.at(f.at(self.body.pointers[value], row, n * 4), panel, 4 * PANEL)
        if n % PANEL == 0:
            return f.load(VECTOR, pointer)
        left = f.cast("trunc", f.sub(n, f.mul(panel, PANEL)), "i32")
        lanes = f.vector("i32", range(PANEL))
        return f.load_masked(VECTOR, pointer, f.icmp("slt", lanes, f.splat(left, PANEL)))

    def _rope(self, op: mir.RopeOp, row: Value, panel: Value, value: Value) -> Value:
        f, head_dim, n_rot = self.body.f, op.head_dim.value.data, width_of(op.cos)
        if head_dim % PANEL or n_rot % PANEL:
            raise RlxError(
                f"rope: expected head_dim and n_rot that are multiples of {PANEL}, "
                f"got {head_dim} and {n_rot}"
            )
        position = f.add(self.body.size(op.start.data), row)
        feature = f.mul(f.binary("urem", panel, head_dim // PANEL), PANEL)

        def rotated() -> list[Value]:
            cos, sin = (
                f.load(VECTOR, f.at(f.at(self.body.pointers[t], position, n_rot * 4), feature, 4))
                for t in (op.cos, op.sin)
            )
            return [rotate_interleaved(f, value, cos, sin)]

        if n_rot == head_dim:
            return rotated()[0]
        return f.if_(f.icmp("ult", feature, n_rot), rotated, lambda: [value])[0]

    def _append(self, op: mir.AppendOp, row: Value, panel: Value, value: Value) -> None:
        f, head_dim = self.body.f, op.head_dim.value.data
        capacity, width = dims_of(op.state.type)
        assert isinstance(capacity, int)
        assert isinstance(width, int)
        if head_dim % PANEL or capacity % PANEL:
            raise RlxError(
                f"append: expected a capacity and a head_dim that are multiples of {PANEL}, "
                f"got {spell(op.state.type)} and head_dim {head_dim}"
            )
        kv_heads = width // head_dim
        facts = Attention(kv_heads, kv_heads, head_dim, capacity, 1.0, format_of(op.state.type))
        position, state = f.add(self.body.size(op.start.data), row), self.body.pointers[op.state]
        if op.places is not None:
            place = f.at(self.body.pointers[op.places], row, 16)
            state = f.at(state, f.load("i64", place, align=8))
            position = f.load("i64", f.at(place, 8), align=8)
            position = f.add(position, self.body.size(op.start.data))
        store = store_k_panel if str(op.role.data) == "keys" else store_v_panel
        store(f, facts, state, position, panel, value)
