"""The kernels of language models: products with packed weights, attention on a cache, and more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import bf16
from xdsl.ir import Operation, SSAValue

from rlx.dialects import mir
from rlx.dialects.common import (
    Dim,
    DimTable,
    dims_of,
    element_bytes,
    element_of,
    format_of,
    spell,
)
from rlx.errors import RlxError
from rlx.lowering.abi import COUNTER_OFFSET
from rlx.lowering.attention import (
    decode_scratch_bytes,
    emit_attention_decode,
    emit_attention_prefill,
    emit_attention_rows,
)
from rlx.lowering.attention_tiles import emit_attention_tiles, runs_on_tiles
from rlx.lowering.body import Body, width_of
from rlx.lowering.contract import Group
from rlx.lowering.formats import emit_unpack_row
from rlx.lowering.gemm import emit_gemm
from rlx.lowering.gemm_unit import ROUNDED
from rlx.lowering.gemv import emit_gemv, emit_gemv_ahead
from rlx.lowering.gemv_rows import emit_gemv_rows
from rlx.lowering.in_turn import TURNS_BYTES
from rlx.lowering.kernels import Ahead, Generator, no_family
from rlx.lowering.kv_cache import Attention
from rlx.lowering.pack import emit_pack
from rlx.lowering.panels import Panels
from rlx.lowering.rope import emit_rope_table
from rlx.lowering.rows import emit_rms_norm, load_chunk, row_map, store_chunk
from rlx.lowering.sampling import PARAMETERS_BYTES, emit_sample, sample_scratch_bytes
from rlx.lowering.scan import emit_gated_delta_net
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, i64

DRAWING = 8
"""Threads that draw tokens of several rows, at most: each needs memory."""

EPILOGUE = (*mir.ELEMENTWISE, mir.CastOp, mir.RopeOp, mir.AppendOp)


def generator(body: Body) -> Generator:
    """Return the generator of a kernel with an operation of `kernels.MODEL`."""
    kinds = {type(op) for op in body.ops}
    if mir.MatmulOp in kinds:
        return emit_contraction
    if mir.AttentionOp in kinds and kinds <= {mir.AttentionOp, mir.FirstRowsOp}:
        return emit_attention
    if len(body.ops) == 1 and type(body.ops[0]) in _BY_OPERATION:
        return _BY_OPERATION[type(body.ops[0])]
    if kinds <= set(EPILOGUE):
        return emit_panel_rows
    raise no_family(body)


def attention_scratch_bytes(op: mir.AttentionOp, table: DimTable) -> int:
    """Return the bytes that threads share: sums of queries on their own, turns of bf16 ones."""
    rows = dims_of(op.query.type)[0]
    if rows != 1 and op.places is None:
        return TURNS_BYTES if element_of(op.query.type) == bf16 else 0
    return table.size(rows) * decode_scratch_bytes(_attention_facts(op))


def _attention_facts(op: mir.AttentionOp) -> Attention:
    """Return the static facts of an attention; its keys are the first rows of a state."""
    rows = op.keys.owner
    if not isinstance(rows, mir.FirstRowsOp):
        raise RlxError("attention: expected the keys and values of a state")
    capacity = dims_of(rows.input.type)[0]
    head_dim = op.head_dim.value.data
    if not isinstance(capacity, int) or capacity % PANEL or head_dim % PANEL:
        raise RlxError(
            f"attention: expected a capacity and a head_dim that are multiples of {PANEL}, "
            f"got {spell(rows.input.type)} and head_dim {head_dim}"
        )
    heads, kv_heads = width_of(op.query) // head_dim, width_of(op.keys) // head_dim
    kept = format_of(rows.input.type)
    narrow = element_of(op.query.type) == bf16
    return Attention(heads, kv_heads, head_dim, capacity, op.scale.value.data, kept, narrow)


@dataclass(frozen=True)
class _Contraction:
    """A kernel's products of one input with packed weights."""

    source: SSAValue
    element: str
    """What the kernel multiplies, as `gemm_unit.Rows` has it."""
    rows: Dim
    k: int
    epilogue: Sequence[Operation]
    groups: list[list[mir.MatmulOp]]
    specs: list[Group]

    @staticmethod
    def of(ops: Sequence[Operation]) -> _Contraction:
        matmuls = [op for op in ops if isinstance(op, mir.MatmulOp)]
        inputs = {m.input for m in matmuls}
        if len(inputs) != 1:
            raise RlxError("matmul: expected products of one input in a kernel")
        source = inputs.pop()
        element = "bfloat" if element_of(source.type) == bf16 else "float"
        prologue = source.owner
        if isinstance(prologue, mir.CastOp):
            source, element = prologue.input, ROUNDED
        epilogue = [op for op in ops if isinstance(op, EPILOGUE) and op is not prologue]
        groups = _joint(matmuls, epilogue)
        specs = [
            Group(tuple(format_of(m.weight.type) for m in g), width_of(g[0].result)) for g in groups
        ]
        rows, k = dims_of(source.type)[0], width_of(source)
        return _Contraction(source, element, rows, k, epilogue, groups, specs)

    def weights(self, body: Body) -> list[list[Value]]:
        """Return where a function of the kernel has the weights of each group."""
        return [[body.pointers[m.weight] for m in g] for g in self.groups]


def emit_contraction(body: Body) -> Ahead | None:
    """
    Rows times packed weights, after a norm of the one row or none, before any epilogue.

    The product of one row waits for its weights, so they are asked for ahead.
    """
    f, c = body.f, _Contraction.of(body.ops)
    weights = c.weights(body)
    programs = [Panels(body, _reached(group, c.epilogue)) for group in c.groups]

    def store(g: int, row: Value, panel: Value, values: list[Value]) -> None:
        products: list[SSAValue] = [m.result for m in c.groups[g]]
        programs[g].run(row, panel, dict(zip(products, values, strict=True)))

    if c.rows == 1:
        row = _normalised(body, c.source, c.k)
        emit_gemv(
            f, c.k, c.specs, row, weights, body.tid, body.threads,
            lambda _, g, panel, values: store(g, i64(0), panel, values),
        )  # fmt: skip
        return lambda ahead: emit_gemv_ahead(
            ahead.f, c.k, c.specs, c.weights(ahead), ahead.tid, ahead.threads
        )
    if c.source not in body.pointers:
        raise RlxError("matmul: a norm is part of a product's kernel for a single row only")
    if f.module.few_rows:
        emit_gemv_rows(
            f, c.k, c.specs, body.pointers[c.source], c.k * 4, body.size(c.rows), weights,
            body.tid, body.threads,
            lambda _, g, row, panel, values: store(g, row, panel, values), body.scratch,
        )  # fmt: skip
        return None
    emit_gemm(
        f, c.k, c.specs, body.pointers[c.source], c.k * element_bytes(c.source.type),
        body.size(c.rows), weights, body.tid, body.threads,
        lambda _, g, row, panel, values: store(g, row, panel, values),
        element=c.element,
        ahead=lambda _, g, row, panel: programs[g].ahead(row, panel),
        turns=body.scratch,
    )  # fmt: skip
    return None


def _normalised(body: Body, source: SSAValue, k: int) -> Value:
    """Return the row that is multiplied: an argument, or its norm, which each thread makes."""
    if source in body.pointers:
        return body.pointers[source]
    norm = source.owner
    if not isinstance(norm, mir.RmsNormOp) or norm.input not in body.pointers:
        raise RlxError("matmul: expected an argument or the norm of one as the kernel's input")
    row = body.f.alloca(k * 4)
    weight = body.pointers[norm.weight]
    emit_rms_norm(body.f, body.pointers[norm.input], weight, row, k, norm.eps.value.data)
    return row


def _joint(
    matmuls: Sequence[mir.MatmulOp], epilogue: Sequence[Operation]
) -> list[list[mir.MatmulOp]]:
    """Group the products whose results meet in an operation of the epilogue."""
    group_of: dict[SSAValue, int] = {m.result: i for i, m in enumerate(matmuls)}
    for op in epilogue:
        met = {group_of[v] for v in op.operands if v in group_of}
        if not met:
            raise RlxError(f"{op.name}: expected an epilogue that depends on a product")
        target = min(met)
        group_of = {v: target if g in met else g for v, g in group_of.items()}
        for result in op.results:
            group_of[result] = target
    members: dict[int, list[mir.MatmulOp]] = {}
    for m in matmuls:
        members.setdefault(group_of[m.result], []).append(m)
    for group in members.values():
        if len({width_of(m.result) for m in group}) > 1:
            raise RlxError("matmul: expected products of one width where an epilogue joins them")
    return [members[g] for g in sorted(members)]


def _reached(group: Sequence[mir.MatmulOp], epilogue: Sequence[Operation]) -> list[Operation]:
    """Return the operations of an epilogue that depend on a group's products, in order."""
    known: set[SSAValue] = {m.result for m in group}
    reached: list[Operation] = []
    for op in epilogue:
        if any(v in known for v in op.operands):
            known.update(op.results)
            reached.append(op)
    return reached


def emit_attention(body: Body) -> None:
    """Causal attention on a cache: of one query, or of many."""
    op = next(op for op in body.ops if isinstance(op, mir.AttentionOp))
    facts = _attention_facts(op)
    k, v = _state(body, op.keys), _state(body, op.values)
    rows, keys = dims_of(op.query.type)[0], body.size(dims_of(op.keys.type)[0])
    q, out = body.pointers[op.query], body.outs[0]
    if op.places is not None:
        assert body.scratch is not None
        emit_attention_rows(
            body.f, facts, q, k, v, out, body.scratch, body.pointers[op.places], body.size(rows),
            body.tid, body.threads,
        )  # fmt: skip
        return
    if rows == 1:
        assert body.scratch is not None
        emit_attention_decode(
            body.f, facts, q, k, v, out, body.scratch, keys, body.tid, body.threads
        )
        return
    f, past = body.f, body.f.sub(keys, body.size(rows))
    operands = q, k, v, out, body.size(rows), past
    if runs_on_tiles(f.target, facts):
        assert body.scratch is not None
        emit_attention_tiles(f, facts, *operands, body.scratch, body.threads)
        return
    emit_attention_prefill(f, facts, *operands, body.tid, body.threads)


def _state(body: Body, value: SSAValue) -> Value:
    rows = value.owner
    assert isinstance(rows, mir.FirstRowsOp)
    return body.pointers[rows.input]


def emit_panel_rows(body: Body) -> None:
    """Rotations and appends, with element-wise operations, by rows and panels."""
    f = body.f
    shaped = body.ops[0].operands[0]
    rows, panels = body.size(dims_of(shaped.type)[0]), -(-width_of(shaped) // PANEL)
    program = Panels(body, body.ops)

    def unit(u: Value) -> None:
        row = f.udiv(u, panels)
        program.run(row, f.sub(u, f.mul(row, panels)), {})

    body.for_rows(f.mul(rows, panels), unit)


def _emit_norm(body: Body) -> None:
    op = body.ops[0]
    assert isinstance(op, mir.RmsNormOp)
    f, k = body.f, width_of(op.input)
    x, weight, out = body.pointers[op.input], body.pointers[op.weight], body.outs[0]

    def row(r: Value) -> None:
        emit_rms_norm(f, f.at(x, r, k * 4), weight, f.at(out, r, k * 4), k, op.eps.value.data)

    body.for_rows(body.size(dims_of(op.input.type)[0]), row)


def _emit_embedding(body: Body) -> None:
    op = body.ops[0]
    assert isinstance(op, mir.EmbeddingOp)
    f, d = body.f, width_of(op.table)
    vocab = dims_of(op.table.type)[0]
    ids, table, out = body.pointers[op.ids], body.pointers[op.table], body.outs[0]

    def row(r: Value) -> None:
        # The boundary has checked the ids; this keeps a wrong one from reading elsewhere.
        last = f.sub(body.size(vocab), 1)
        token = f.umin(f.cast("zext", f.load("i32", f.at(ids, r, 4)), "i64"), last)
        emit_unpack_row(f, format_of(op.table.type), table, token, d, f.at(out, r, d * 4))

    body.for_rows(body.size(dims_of(op.ids.type)[0]), row)


def _emit_rope_table(body: Body) -> None:
    op = body.ops[0]
    assert isinstance(op, mir.RopeTableOp)
    positions = dims_of(op.cos.type)[0]
    assert isinstance(positions, int)
    (cos, sin), base = body.outs, op.base.value.data
    n_rot = width_of(op.cos)
    emit_rope_table(body.f, cos, sin, positions, n_rot, base, body.tid, body.threads)


def _emit_last_rows(body: Body) -> None:
    op = body.ops[0]
    assert isinstance(op, mir.LastRowsOp)
    f, d = body.f, width_of(op.input)
    count = body.size(dims_of(op.result.type)[0])
    skipped = f.sub(body.size(dims_of(op.input.type)[0]), count)
    first = f.at(body.pointers[op.input], skipped, d * 4)

    def row(r: Value) -> None:
        source, out = f.at(first, r, d * 4), f.at(body.outs[0], r, d * 4)
        row_map(f, d, lambda c, m: store_chunk(f, load_chunk(f, source, c, m), out, c, m))

    body.for_rows(count, row)


def _emit_sample(body: Body) -> None:
    op = body.ops[0]
    assert isinstance(op, mir.SampleOp)
    f, n = body.f, width_of(op.logits)
    rows = body.size(dims_of(op.logits.type)[0])
    assert body.scratch is not None
    scratch = f.at(body.scratch, body.tid, sample_scratch_bytes(n))

    def draw(row: Value, params: Value, out: Value) -> list[Value]:
        logits = f.at(body.pointers[op.logits], row, n * 4)
        f.store(emit_sample(f, logits, n, params, scratch), out)
        counter = f.at(params, COUNTER_OFFSET)
        f.store(f.add(f.load("i64", counter, align=4), 1), counter, align=4)
        return []

    def each(row: Value) -> list[Value]:
        params = f.at(body.pointers[op.params], row, PARAMETERS_BYTES)
        return draw(row, params, f.at(body.outs[0], row, 4))

    if op.single:
        here = f.and_(f.icmp("eq", body.tid, 0), f.icmp("ne", rows, 0))
        f.if_(here, lambda: draw(f.sub(rows, 1), body.pointers[op.params], body.outs[0]))
        return
    drawing = f.umin(body.threads, _drawing(op, body.table))
    first = f.select(f.icmp("ult", body.tid, drawing), body.tid, rows)
    f.while_(
        [first],
        lambda v: f.icmp("slt", v[0], rows),
        lambda v: [f.add(v[0], drawing), *each(v[0])],
    )


def _drawing(op: mir.SampleOp, table: DimTable) -> int:
    """Return how many threads draw tokens at most."""
    return 1 if op.single else min(table.size(dims_of(op.logits.type)[0]), DRAWING)


def sampling_scratch_bytes(op: mir.SampleOp, table: DimTable) -> int:
    """Return the bytes that drawing takes: as many for each thread that draws."""
    return _drawing(op, table) * sample_scratch_bytes(width_of(op.logits))


def _emit_pack(body: Body) -> None:
    op = body.ops[0]
    assert isinstance(op, mir.PackOp)
    f, dims, name = body.f, dims_of(op.input.type), format_of(op.input.type)
    source, out = body.pointers[op.input], body.outs[0]
    if not op.panels:
        count = prod(d for d in dims if isinstance(d, int))
        _copy_bytes(body, source, out, count * element_bytes(op.input.type))
        return
    k = width_of(op.input)
    if len(dims) == 1 and name == "f32":
        body.on_first_thread(
            lambda: row_map(
                f, k, lambda c, m: store_chunk(f, load_chunk(f, source, c, m), out, c, m)
            )
        )
        return
    if len(dims) != 2:
        raise RlxError(f"pack: expected a matrix or a vector of f32, got {spell(op.input.type)}")
    panels = format_of(op.result.type)
    emit_pack(f, panels, source, out, body.size(dims[0]), k, body.tid, body.threads, name)


def _copy_bytes(body: Body, source: Value, out: Value, size: int) -> None:
    """Copy bytes that may lie anywhere, each thread its part."""
    f = body.f
    first, last = (f.mul(part, 64) for part in body.share(i64(-(-size // 64))))
    last = f.umin(last, size)
    arguments = f.at(out, first), f.at(source, first), f.sub(last, first), Value("i1", "false")
    f.intrinsic("memcpy", "void", *arguments, suffixes=["ptr", "ptr", "i64"])


_BY_OPERATION: dict[type[Operation], Callable[[Body], None]] = {
    mir.RmsNormOp: _emit_norm,
    mir.EmbeddingOp: _emit_embedding,
    mir.RopeTableOp: _emit_rope_table,
    mir.LastRowsOp: _emit_last_rows,
    mir.SampleOp: _emit_sample,
    mir.PackOp: _emit_pack,
    mir.GatedDeltaNetOp: emit_gated_delta_net,
}
