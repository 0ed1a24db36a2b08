"""
What the operations of HIR and MIR mean, in numpy.

Named operations have their meaning in their record; those of `rlx.dialects.signal` have it in
`signal.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import bf16
from xdsl.ir import Operation

from rlx.dialects import hir, mir, ops
from rlx.dialects.common import dims_of, element_of, format_of
from rlx.dialects.infer import STORAGE
from rlx.dialects.named import NamedOp
from rlx.errors import RlxError
from rlx.ops.registry import record_of
from rlx.reference import kernels
from rlx.reference.elements import Array, rounded
from rlx.reference.primitives import compute
from rlx.reference.sampling import sample
from rlx.reference.scope import Scope, evaluate, named
from rlx.reference.sequence import gated_delta_net

MAX_TURNS = 1_000_000
"""Turns after which a loop is taken for one that never ends."""


@evaluate.register
def _(op: NamedOp, scope: Scope, *args: Array) -> Sequence[Array]:
    meaning = record_of(op.name).meaning
    assert meaning is not None
    given: Any = meaning(op, *args)
    results: Sequence[Any] = [*given] if len(op.res) > 1 else [given]
    arrays = [
        np.asarray(value).astype(scope.dtype(r.type), copy=False)
        for value, r in zip(results, op.res, strict=True)
    ]
    elements = [element_of(r.type) for r in op.res]
    return [rounded(x, e) if e in STORAGE else x for x, e in zip(arrays, elements, strict=True)]


@evaluate.register
def _(op: ops.LoadWeight, scope: Scope) -> Sequence[Array]:
    return [scope.weight(op.weight.string_value())]


@evaluate.register
def _(op: ops.Embedding, scope: Scope, ids: Array, table: Array) -> Sequence[Array]:
    if ids.size and not 0 <= ids.min() <= ids.max() < len(table):
        raise RlxError(
            f"reference: embedding: expected ids from 0 to {len(table) - 1}, "
            f"got {ids.min()} to {ids.max()}"
        )
    return [table[ids]]


@evaluate.register
def _(op: ops.RmsNorm, scope: Scope, x: Array, weight: Array) -> Sequence[Array]:
    return [kernels.rms_norm(x, weight, op.eps.value.data)]


@evaluate.register
def _(op: hir.LinearOp, scope: Scope, x: Array, weight: Array) -> Sequence[Array]:
    return [kernels.linear(x, weight)]


@evaluate.register
def _(op: mir.MatmulOp, scope: Scope, x: Array, weight: Array) -> Sequence[Array]:
    if format_of(op.weight.type) == "i8":
        x = kernels.activation_bytes(x)
    return [kernels.linear(x, weight)]


@evaluate.register
def _(
    op: hir.GluOp, scope: Scope, x: Array, up: Array, gate: Array, down: Array
) -> Sequence[Array]:
    return [kernels.glu(op.kind.data, x, up, gate, down)]


@evaluate.register
def _(op: mir.PackOp, scope: Scope, weight: Array) -> Sequence[Array]:
    if op.panels and format_of(op.result.type) == "i8":
        weight = kernels.weight_bytes(weight)
    return [weight]


@evaluate.register
def _(op: ops.RopeTable, scope: Scope) -> Sequence[Array]:
    positions, n_rot = (scope.size(d) for d in dims_of(op.cos.type))
    tables = kernels.rope_table(positions, n_rot, op.base.value.data)
    return [table.astype(scope.reference.dtype) for table in tables]


@evaluate.register
def _(op: ops.Rope, scope: Scope, x: Array, cos: Array, sin: Array) -> Sequence[Array]:
    start = scope.size(op.start.data)
    if start + len(x) > len(cos):
        raise RlxError(
            f"reference: {op.name}: expected positions below {len(cos)}, the rows of the table, "
            f"got {start} to {start + len(x) - 1}"
        )
    return [kernels.rope(x, cos, sin, start, op.head_dim.value.data)]


@evaluate.register
def _(op: hir.AppendOp, scope: Scope, rows: Array, places: Array | None = None) -> Sequence[Array]:
    state = scope.state(op.state.string_value())
    return [scope.append(rows, state, op.start.data, op.result.type, places)]


@evaluate.register
def _(op: mir.LoadStateOp, scope: Scope) -> Sequence[Array]:
    return [scope.state(op.state.string_value())]


@evaluate.register
def _(
    op: mir.AppendOp, scope: Scope, rows: Array, state: Array, places: Array | None = None
) -> Sequence[Array]:
    return [scope.append(rows, state, op.start.data, op.state.type, places)]


@evaluate.register
def _(op: mir.FirstRowsOp, scope: Scope, x: Array) -> Sequence[Array]:
    return [x[: scope.size(dims_of(op.result.type)[0])]]


@evaluate.register
def _(
    op: ops.Attention, scope: Scope, q: Array, k: Array, v: Array, places: Array | None = None
) -> Sequence[Array]:
    facts = op.head_dim.value.data, op.scale.value.data
    if places is not None:
        rows: list[Array] = []
        for r, (number, position) in enumerate(places):
            keys, values = (scope.sequence(x, int(number))[: position + 1] for x in (k, v))
            rows.append(kernels.attention(q[r : r + 1], keys, values, *facts))
        return [np.concatenate(rows)]
    result = kernels.attention(q, k, v, *facts)
    element = element_of(op.result.type)
    return [rounded(result, element) if element == bf16 else result]


@evaluate.register
def _(op: mir.GatedDeltaNetOp, scope: Scope, *args: Array) -> Sequence[Array]:
    return gated_delta_net(*args)


@evaluate.register
def _(op: ops.LastRows, scope: Scope, x: Array) -> Sequence[Array]:
    rows = scope.size(dims_of(op.result.type)[0])
    return [x[max(len(x) - rows, 0) :]]


@evaluate.register
def _(op: ops.Sample, scope: Scope, logits: Array, params: Array) -> Sequence[Array]:
    drawn = zip(logits, params, strict=True) if params.ndim == 2 else [(logits[-1], params)]
    return [np.array([sample(*row) for row in drawn], np.int32)]


@evaluate.register
def _(op: ops.Repeat, scope: Scope, *args: Array) -> Sequence[Array]:
    function = named(scope.reference.functions, op.callee.string_value(), "function")
    carried, fixed = list(args[: len(op.res)]), args[len(op.res) :]
    for layer in range(op.first.value.data, op.last.value.data):
        carried = scope.call(function, [*carried, *fixed], layer)
    return carried


@evaluate.register
def _(op: mir.KernelOp, scope: Scope) -> Sequence[Array]:
    return scope.run(op.body.block)


@evaluate.register
def _(op: mir.IfOp, scope: Scope, condition: Array) -> Sequence[Array]:
    return scope.run((op.then if condition else op.otherwise).block)


@evaluate.register
def _(op: mir.WhileOp, scope: Scope, *inits: Array) -> Sequence[Array]:
    carried: Sequence[Array] = inits
    for _ in range(MAX_TURNS):
        (more,) = scope.enter("condition of mir.while", op.condition.block, carried)
        if not more:
            return carried
        carried = scope.enter("body of mir.while", op.body.block, carried)
    raise RlxError(f"reference: mir.while: its condition still holds after {MAX_TURNS} turns")


@evaluate.register
def _(op: hir.ScanOp, scope: Scope, *args: Array) -> Sequence[Array]:
    count = len(op.inits)
    carried, xs = list(args[:count]), args[count:]
    stacked = [np.zeros(scope.shape(r.type), scope.dtype(r.type)) for r in op.res[count:]]
    for i in range(scope.size(op.length)):
        elements = [np.asarray(x[i]) for x in xs]
        made = scope.enter("body of hir.scan", op.body.block, [*carried, *elements])
        carried = made[:count]
        for stack, output in zip(stacked, made[count:], strict=True):
            stack[i] = output
    return [*carried, *stacked]


def _primitive(op: Operation, scope: Scope, *args: Array) -> Sequence[Array]:
    shape = scope.shape(op.results[0].type)
    return [np.asarray(compute(op, shape, scope.reference.dtype, *args))]


for _primitive_class in mir.PRIMITIVES:
    evaluate.register(_primitive_class)(_primitive)


@evaluate.register
def _(op: mir.NarrowOp, scope: Scope, x: Array) -> Sequence[Array]:
    axis, step = op.axis.value.data, op.step.value.data
    start, count = scope.size(op.start.data), scope.shape(op.result.type)[axis]
    places = start + np.arange(count) * step
    if count and places[-1] >= x.shape[axis]:
        raise RlxError(
            f"reference: mir.narrow: expected elements of an axis of {x.shape[axis]}, "
            f"got {count} from {start} on, {step} apart"
        )
    return [x.take(places, axis=axis)]
