"""From a kernel's operations to the body of its function: which family, with which parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import prod

from xdsl.dialects.builtin import i8
from xdsl.ir import Attribute, Operation, SSAValue

from rlx.dialects import lir, mir
from rlx.dialects.common import (
    Dim,
    DimTable,
    dims_of,
    element_bytes,
    format_of,
    spell,
    tensor,
)
from rlx.dialects.named import NamedOp
from rlx.errors import RlxError
from rlx.lowering.abi import COUNTER_OFFSET, KERNEL
from rlx.lowering.attention import (
    decode_scratch_bytes,
    emit_attention_decode,
    emit_attention_prefill,
)
from rlx.lowering.body import Body, Panels, width_of
from rlx.lowering.contract import Group
from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import emit_pack, emit_unpack_row
from rlx.lowering.gemm import emit_gemm
from rlx.lowering.gemv import emit_gemv
from rlx.lowering.kv_cache import Attention
from rlx.lowering.rope import emit_rope_table
from rlx.lowering.rows import emit_rms_norm, load_chunk, row_map, store_chunk
from rlx.lowering.sampling import emit_sample, sample_scratch_bytes
from rlx.lowering.scan import emit_gated_delta_net
from rlx.lowering.target import PANEL
from rlx.lowering.values import Value, i64
from rlx.ops.registry import record_of

EPILOGUE = (*mir.ELEMENTWISE, mir.RopeOp, mir.AppendOp)
REDUCING = (mir.ReduceOp, mir.SoftmaxOp, mir.LayerNormOp, mir.RmsNormOp)
"""The operations of tensor programs whose rows threads may share."""


@dataclass(frozen=True)
class Scratch:
    """Bytes that a kernel's threads share during a launch; `zeroed` once, and zero after each."""

    size: int
    zeroed: bool
    dims: tuple[Dim, ...] = ()
    """There are `size` bytes for each element of a tensor of these dimensions."""

    @property
    def type(self) -> Attribute:
        return tensor([self.size, *self.dims], i8)


def scratch_of(kernel: lir.KernelOp, table: DimTable) -> Scratch | None:
    """Return the scratch that a kernel's launches need at the upper bounds of dimensions."""
    for op in kernel.body.block.ops:
        if isinstance(op, mir.AttentionOp) and dims_of(op.query.type)[0] == 1:
            return Scratch(decode_scratch_bytes(attention_facts(op)), zeroed=True)
        if isinstance(op, mir.SampleOp):
            return Scratch(sample_scratch_bytes(width_of(op.logits)), zeroed=False)
        if isinstance(op, NamedOp):
            needed = getattr(import_module(record_of(op.name).kernel), "scratch", None)
            return needed(op, table) if needed is not None else None
    ops = [op for op in kernel.body.block.ops if not isinstance(op, mir.YieldOp)]
    if not _is_tensor_program(ops) or not any(isinstance(op, REDUCING) for op in ops):
        return None
    from rlx.lowering.tensor_split import scratch_bytes

    size = scratch_bytes(ops, table)
    return Scratch(size, zeroed=True) if size else None


def _is_tensor_program(ops: Sequence[Operation]) -> bool:
    """Return whether operations are maps, moves, reductions and norms, of any shapes."""
    kinds = {type(op) for op in ops}
    if len(ops) == 1 and kinds <= set(_SINGLE):
        return False
    return kinds <= {*mir.PRIMITIVES, mir.RmsNormOp} and not kinds & {mir.DotOp, mir.SdpaOp}


def attention_facts(op: mir.AttentionOp) -> Attention:
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
    return Attention(heads, kv_heads, head_dim, capacity, op.scale.value.data)


def emit_kernel(module: Module, kernel: lir.KernelOp, table: DimTable) -> None:
    """
    Define a kernel's function: `void name(ptr ins..., ptr outs..., [ptr scratch,] i64 free
    dimensions..., i64 tid, i64 threads)`.

    Raises RlxError for a combination of operations that no kernel family covers.
    """
    block = kernel.body.block
    scratch = scratch_of(kernel, table)
    ins, outs = len(block.args), len(kernel.yielded.arguments)
    params = [("ptr", f"in{i}") for i in range(ins)] + [("ptr", f"out{i}") for i in range(outs)]
    params += [("ptr", "scratch")] if scratch else []
    params += [("i64", name) for name in table.free] + [("i64", "tid"), ("i64", "threads")]
    f = module.function(KERNEL.format(kernel.sym_name.data), params)
    named = dict(zip(table.free, f.params[len(f.params) - 2 - len(table.free) :], strict=False))
    body = Body(
        f,
        block,
        table,
        dict(zip(block.args, f.params, strict=False)),
        f.params[ins : ins + outs],
        f.params[ins + outs] if scratch else None,
        _sizes(f, table, named),
        f.params[-2],
        f.params[-1],
        [op for op in block.ops if not isinstance(op, mir.YieldOp)],
    )
    _family(body)(body)
    f.ret()


def _sizes(f: Function, table: DimTable, free: dict[str, Value]) -> dict[str, Value]:
    """Return the size of every dimension, from those of the free ones."""
    sizes: dict[str, Value] = {}
    for d in table.dims.values():
        if d.operator:
            a, b = (sizes[o] for o in d.operands)
            sizes[d.name] = derived(f, d.operator, a, b)
        else:
            sizes[d.name] = free.get(d.name, i64(d.high))
    return sizes


def derived(f: Function, operator: str, a: Value, b: Value) -> Value:
    """Return a size that derives from two others, as `contract.derived` says."""
    match operator:
        case "+":
            return f.add(a, b)
        case "*":
            return f.mul(a, b)
        case "-":
            return f.intrinsic("smax", "i64", f.sub(a, b), i64(0))
        case "ceildiv":
            return f.udiv(f.add(a, f.sub(b, 1)), b)
        case _:
            return f.intrinsic("smin" if operator == "min" else "smax", "i64", a, b)


def _family(body: Body) -> Callable[[Body], None]:
    """
    Return the generator of a kernel, by what its operations are.

    Those that a language model does without are imported when a kernel needs them.
    """
    kinds = {type(op) for op in body.ops}
    if mir.MatmulOp in kinds:
        return emit_contraction
    if mir.AttentionOp in kinds and kinds <= {mir.AttentionOp, mir.FirstRowsOp}:
        return emit_attention
    if len(body.ops) == 1 and body.ops[0].__class__ in _SINGLE:
        return _SINGLE[body.ops[0].__class__]
    if mir.DotOp in kinds and kinds <= set(mir.PRIMITIVES):
        from rlx.lowering.dot import emit_dot

        return emit_dot
    if mir.SdpaOp in kinds and kinds <= set(mir.PRIMITIVES):
        from rlx.lowering.sdpa import emit_sdpa

        return emit_sdpa
    if _is_tensor_program(body.ops):
        from rlx.lowering.tensor_program import emit_tensor_program

        return emit_tensor_program
    if kinds <= set(EPILOGUE):
        return emit_panel_rows
    if len(body.ops) == 1 and isinstance(body.ops[0], NamedOp):
        return import_module(record_of(body.ops[0].name).kernel).emit
    if len(body.ops) == 1 and body.ops[0].name in mir.KINDS_BY_NAME:
        from rlx.lowering.signal import generator

        return generator(body.ops[0])
    names = ", ".join(op.name for op in body.ops)
    raise RlxError(f"no kernel family computes {names} in one launch: fuse less, or one at a time")


# Families


def emit_contraction(body: Body) -> None:
    """Rows times packed weights, after a norm of the one row or none, before any epilogue."""
    f = body.f
    matmuls = [op for op in body.ops if isinstance(op, mir.MatmulOp)]
    inputs = {m.input for m in matmuls}
    if len(inputs) != 1:
        raise RlxError("matmul: expected products of one input in a kernel")
    source = inputs.pop()
    k = width_of(source)
    rows = dims_of(source.type)[0]
    epilogue = [op for op in body.ops if isinstance(op, EPILOGUE)]
    groups = _joint(matmuls, epilogue)
    specs = [
        Group(tuple(format_of(m.weight.type) for m in g), width_of(g[0].result)) for g in groups
    ]
    weights = [[body.pointers[m.weight] for m in g] for g in groups]
    programs = [Panels(body, _reached(group, epilogue)) for group in groups]

    def store(g: int, row: Value, panel: Value, values: list[Value]) -> None:
        products: list[SSAValue] = [m.result for m in groups[g]]
        programs[g].run(row, panel, dict(zip(products, values, strict=True)))

    if rows == 1:
        row = _normalised(body, source, k)
        emit_gemv(
            f, k, specs, row, weights, body.tid, body.threads,
            lambda _, g, panel, values: store(g, i64(0), panel, values),
        )  # fmt: skip
        return
    if source not in body.pointers:
        raise RlxError("matmul: a norm is part of a product's kernel for a single row only")
    emit_gemm(
        f, k, specs, body.pointers[source], k * 4, body.size(rows), weights, body.tid,
        body.threads, lambda _, g, row, panel, values: store(g, row, panel, values),
    )  # fmt: skip


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
    facts = attention_facts(op)
    k, v = _state(body, op.keys), _state(body, op.values)
    rows, keys = dims_of(op.query.type)[0], body.size(dims_of(op.keys.type)[0])
    q, out = body.pointers[op.query], body.outs[0]
    if rows == 1:
        assert body.scratch is not None
        emit_attention_decode(
            body.f, facts, q, k, v, out, body.scratch, keys, body.tid, body.threads
        )
        return
    past = body.f.sub(keys, body.size(rows))
    emit_attention_prefill(
        body.f, facts, q, k, v, out, body.size(rows), past, body.tid, body.threads
    )


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
    params, scratch = body.pointers[op.params], body.scratch
    assert scratch is not None

    def draw() -> list[Value]:
        logits = f.at(body.pointers[op.logits], f.sub(rows, 1), n * 4)
        f.store(emit_sample(f, logits, n, params, scratch), body.outs[0])
        counter = f.at(params, COUNTER_OFFSET)
        f.store(f.add(f.load("i64", counter, align=4), 1), counter, align=4)
        return []

    here = f.and_(f.icmp("eq", body.tid, 0), f.icmp("ne", rows, 0))
    f.if_(here, draw)


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
    emit_pack(f, name, source, out, body.size(dims[0]), k, body.tid, body.threads)


def _copy_bytes(body: Body, source: Value, out: Value, size: int) -> None:
    """Copy bytes that may lie anywhere, each thread its part."""
    f = body.f
    first, last = (f.mul(part, 64) for part in body.share(i64(-(-size // 64))))
    last = f.umin(last, size)
    arguments = f.at(out, first), f.at(source, first), f.sub(last, first), Value("i1", "false")
    f.intrinsic("memcpy", "void", *arguments, suffixes=["ptr", "ptr", "i64"])


_SINGLE: dict[type[Operation], Callable[[Body], None]] = {
    mir.RmsNormOp: _emit_norm,
    mir.EmbeddingOp: _emit_embedding,
    mir.RopeTableOp: _emit_rope_table,
    mir.LastRowsOp: _emit_last_rows,
    mir.SampleOp: _emit_sample,
    mir.PackOp: _emit_pack,
    mir.GatedDeltaNetOp: emit_gated_delta_net,
}
