"""Records of the operations of HIR (`rlx.dialects.hir`): those of language models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region, SSAValue

from rlx.contract.opkind import OpKind
from rlx.dialects import hir
from rlx.dialects.common import DimDef, tensor
from rlx.dialects.infer import STORED
from rlx.dialects.kinds import BinaryKind, UnaryKind
from rlx.dialects.ops import StateRole
from rlx.dialects.writer import Writer
from rlx.ops.record import (
    ATTENTION,
    CONTRACTION,
    MOVE,
    ROWS,
    SAMPLING,
    Array,
    Case,
    Record,
    Surroundings,
)
from rlx.ops.samples import Draw

EPS = 1e-5


def _weights(**arrays: Array) -> Surroundings:
    """Return a module's weights by key, each declared under its key."""
    declared = [hir.WeightOp(key, key, tensor(a.shape)) for key, a in arrays.items()]
    return Surroundings(declared, arrays)


def _load(w: Writer, key: str, array: Array) -> SSAValue:
    return w.add(hir.LoadWeightOp(key, tensor(array.shape)))


def _scaled(draw: Draw, *shape: int) -> Array:
    """Return a matrix that keeps the size of what it multiplies, about."""
    return draw.array(shape) / draw.dtype(shape[-1] ** 0.5)


# Embeddings and products


def _sample_embedding(draw: Draw) -> Case:
    table = draw.array((draw.size(1, 97), draw.size(1, 257)))
    ids = draw.ids((draw.size(1, 33),), len(table), "i32")
    return Case(
        [ids],
        lambda w, v: [w.add(hir.EmbeddingOp(v[0], _load(w, "table", table)))],
        _weights(table=table),
    )


def _sample_linear(draw: Draw) -> Case:
    rows, k, n = draw.size(1, 33), draw.size(1, 257), draw.size(1, 257)
    x, weight = draw.array((rows, k)), _scaled(draw, n, k)
    return Case(
        [x],
        lambda w, v: [w.add(hir.LinearOp(v[0], _load(w, "weight", weight)))],
        _weights(weight=weight),
    )


def _sample_glu(draw: Draw) -> Case:
    rows, d, ffn = draw.size(1, 17), draw.size(1, 97), draw.size(1, 128)
    kind = draw.choice([UnaryKind.SILU, UnaryKind.GELU, UnaryKind.GELU_TANH, UnaryKind.RELU])
    weights = {
        "up": _scaled(draw, ffn, d),
        "gate": _scaled(draw, ffn, d),
        "down": _scaled(draw, d, ffn),
    }

    def build(w: Writer, v: Sequence[SSAValue]) -> Sequence[SSAValue]:
        loaded = [_load(w, key, array) for key, array in weights.items()]
        return [w.add(hir.GluOp(kind, v[0], *loaded))]

    return Case([draw.array((rows, d))], build, _weights(**weights))


# Norms and rotations


def _sample_rms_norm(draw: Draw) -> Case:
    x = draw.array((draw.size(1, 33), draw.size(1, 1021)))
    weight = draw.array(x.shape[1:])
    return Case(
        [x],
        lambda w, v: [w.add(hir.RmsNormOp(v[0], _load(w, "weight", weight), EPS))],
        _weights(weight=weight),
    )


def _sample_rope_table(draw: Draw) -> Case:
    positions, n_rot = draw.size(1, 97), 2 * draw.size(1, 33)
    x = draw.array((positions, n_rot))

    def build(w: Writer, v: Sequence[SSAValue]) -> Sequence[SSAValue]:
        tables = w.add_all(hir.RopeTableOp(10000.0, positions, n_rot))
        return [w.binary(BinaryKind.MUL, v[0], table) for table in tables]

    return Case([x], build)


def _sample_rope(draw: Draw) -> Case:
    rows, heads, head_dim = draw.size(1, 33), draw.between(1, 4), 16 * draw.between(1, 4)
    n_rot = 16 * draw.between(1, head_dim // 16)
    past = draw.between(0, 20)
    tables = [draw.array((rows + 20, n_rot)) for _ in range(2)]
    x = draw.array((rows, heads * head_dim))
    dims = [DimDef("past", 0, 20)]
    return Case(
        [x, *tables],
        lambda w, v: [w.add(hir.RopeOp(v[0], v[1], v[2], "past", head_dim))],
        Surroundings(dims=dims, sizes={"past": past}),
    )


# Attention and its state


def _sample_attention(draw: Draw) -> Case:
    """The rows of a text's beginning on the state that they are appended to."""
    rows, kv_heads, group = draw.between(1, 40), draw.between(1, 2), draw.between(1, 3)
    # The state is laid out for heads of whole vectors.
    head_dim = draw.choice([16, 32, 64])
    width, kv_width = kv_heads * group * head_dim, kv_heads * head_dim
    capacity, kept = 64, STORED[draw.choice(list(STORED))]
    declared = [
        hir.StateOp(role.value, role, head_dim, tensor([capacity, kv_width], kept))
        for role in StateRole
    ]
    dims = [DimDef("rows", 1, 40), DimDef("past", 0, 24), DimDef("keys", 0, 0, "+", _KEYS)]
    types: list[Attribute] = [tensor(["rows", n]) for n in (width, kv_width, kv_width)]
    arrays = [draw.array((rows, n)) for n in (width, kv_width, kv_width)]

    def build(w: Writer, v: Sequence[SSAValue]) -> Sequence[SSAValue]:
        filled = tensor(["keys", kv_width], kept)
        keys, values = (
            w.add(hir.AppendOp(x, role.value, "past", filled))
            for x, role in zip(v[1:], StateRole, strict=True)
        )
        return [w.add(hir.AttentionOp(v[0], keys, values, head_dim, head_dim**-0.5))]

    sizes = {"rows": rows, "past": 0}
    return Case(arrays, build, Surroundings(declared, {}, dims, sizes, types))


_KEYS = ("past", "rows")


# Rows, samples and layers


def _sample_last_rows(draw: Draw) -> Case:
    x = draw.array((draw.size(2, 33), draw.size(1, 257)))
    rows = draw.between(1, len(x))
    return Case([x], lambda w, v: [w.add(hir.LastRowsOp(v[0], tensor([rows, x.shape[1]])))])


def _sample_sample(draw: Draw) -> Case:
    """The likeliest token, or one that is drawn from the likeliest by a seed."""
    import numpy as np

    logits = draw.array((draw.between(1, 3), draw.size(2, 1021)))
    words = np.zeros(8, np.int32)
    if draw.chance():
        words[:3].view(np.float32)[[0, 2]] = draw.choice([0.5, 1.0]), draw.choice([0.6, 0.9, 1.0])
        words[1] = draw.choice([0, 3, 40])
        words[4:] = draw.rng.integers(0, 1 << 30, 4)
    return Case([logits, words], lambda w, v: [w.add(hir.SampleOp(*v))])


def _sample_repeat(draw: Draw) -> Case:
    """Layers that each have a weight of their own."""
    x = draw.array((draw.size(1, 17), draw.size(1, 97)))
    layers = draw.between(1, 4)
    keys = [f"layer.{i}" for i in range(layers)]
    arrays = {key: draw.array(x.shape[1:], 0.5, 1.5) for key in keys}
    row, whole = tensor(x.shape[1:]), tensor(x.shape)
    declared = [hir.WeightOp("weight", "layer.{layer}", row), _layer(row, whole)]
    return Case(
        [x],
        lambda w, v: w.add_all(hir.RepeatOp("layer", 0, layers, [v[0]], 1)),
        Surroundings(declared, arrays),
    )


def _layer(row: Attribute, whole: Attribute) -> FuncOp:
    block, w = Block(arg_types=[whole]), Writer()
    weight = w.add(hir.LoadWeightOp("weight", row))
    normed = w.add(hir.RmsNormOp(block.args[0], weight, EPS))
    block.add_ops([*w.made, ReturnOp(normed)])
    return FuncOp("layer", ([whole], [whole]), Region(block), visibility="private")


def _record(op: Any, kind: OpKind, family: str, sample: Any, elements: str = "f32") -> Record:
    return Record(op, (kind,), family, (elements,), None, sample)


RECORDS = (
    _record(hir.LoadWeightOp, OpKind.PARAM, MOVE, _sample_linear),
    _record(hir.EmbeddingOp, OpKind.GATHER, MOVE, _sample_embedding),
    _record(hir.LinearOp, OpKind.LINEAR, CONTRACTION, _sample_linear),
    _record(hir.GluOp, OpKind.SWIGLU, CONTRACTION, _sample_glu),
    _record(hir.RmsNormOp, OpKind.RMS_NORM, ROWS, _sample_rms_norm),
    _record(hir.RopeTableOp, OpKind.CONSTANT, ROWS, _sample_rope_table),
    _record(hir.RopeOp, OpKind.ROPE, ROWS, _sample_rope),
    _record(hir.AppendOp, OpKind.CONCAT, MOVE, _sample_attention),
    _record(hir.AttentionOp, OpKind.ATTENTION, ATTENTION, _sample_attention),
    _record(hir.LastRowsOp, OpKind.NARROW, MOVE, _sample_last_rows),
    _record(hir.SampleOp, OpKind.SAMPLE, SAMPLING, _sample_sample),
    _record(hir.RepeatOp, OpKind.LLAMA_DECODER_BLOCK, ROWS, _sample_repeat),
)
