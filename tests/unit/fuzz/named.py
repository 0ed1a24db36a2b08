"""Makers of HIR's named operations, on matrices of f32 whose rows are positions or anything."""

from __future__ import annotations

from fuzz.makers import maker
from fuzz.values import SINGLE, Body, Type, Value, is_rows, rounds

CAPACITY, HEAD_DIM = 64, 16
TABLE = Type((CAPACITY, HEAD_DIM))
ACTIVATIONS = ("neg", "silu", "sigmoid", "tanh", "gelu_tanh", "relu", "abs")
VOCABULARY = 19


@maker(is_rows, 1)
def activation(b: Body, x: Value) -> None:
    kind = b.choose(ACTIVATIONS)
    b.unary(kind, x, x.noise if kind in ("neg", "relu", "abs") else None)


@maker(is_rows, 2)
def residual(b: Body, x: Value) -> None:
    kind = b.choose(("add", "sub", "mul", "max", "min"))
    b.binary(kind, b.unary("tanh", x) if kind == "mul" else x, b.like(x))


def project(b: Body, x: Value, n: int) -> Value:
    """A product with a weight of `n` rows in any format."""
    k = int(x.dims[1])
    w = b.generator.load(b, (n, k), b.generator.format(k), SINGLE)
    type_ = Type((x.dims[0], n))
    return b.op(f"hir.linear {x}, {w} : {x.type}, {w.type} -> {type_}", type_, SINGLE)


@maker(is_rows, 4)
def linear(b: Body, x: Value) -> None:
    project(b, x, b.choose(b.generator.widths))


@maker(is_rows, 2)
def norm(b: Body, x: Value) -> None:
    w = b.generator.load(b, (int(x.dims[1]),), "f32", SINGLE)
    b.op(f"hir.rms_norm {x}, {w} eps 1.0e-05 : {x.type}, {w.type}", x.type, SINGLE)


@maker(is_rows, 2)
def glu(b: Body, x: Value) -> None:
    g, k = b.generator, int(x.dims[1])
    ffn = b.choose(g.widths)
    up, gate = (g.load(b, (ffn, k), g.format(k), SINGLE) for _ in range(2))
    down = g.load(b, (k, ffn), g.format(ffn), SINGLE)
    x = b.unary("tanh", x)
    types = ", ".join(str(v.type) for v in (x, up, gate, down))
    kind = b.choose(("silu", "gelu_tanh"))
    b.op(f"hir.glu {kind} {x} up {up} gate {gate} down {down} : {types}", x.type, SINGLE)


@maker(lambda x: x.name == "%ids", 4)
def embedding(b: Body, ids: Value) -> None:
    d = b.choose(b.generator.widths)
    table = b.generator.load(b, (VOCABULARY, d), b.generator.format(d), SINGLE)
    type_ = Type((*ids.dims, d))
    text = f"hir.embedding {ids}, {table} : {ids.type}, {table.type} -> {type_}"
    b.op(text, type_, SINGLE)


@maker(is_rows, 9)
def attention(b: Body, x: Value) -> None:
    """Attention over a state of its own; not in branches and loops, which may not run."""
    g = b.generator
    if b.layer is None or not b.layer.attends or b.depth or x.dims[0] != g.rows:
        return
    kv, group = b.choose((1, 2, 3)), b.choose((1, 2, 4))
    q, k, v = (project(b, x, n * HEAD_DIM) for n in (kv * group, kv, kv))
    q, k = (
        b.op(f'hir.rope {side}, %cos, %sin start "past" head_dim {HEAD_DIM} : '
             f"{side.type}, {TABLE}, {TABLE}", side.type, SINGLE)
        for side in (q, k)
    )  # fmt: skip
    width, kept = kv * HEAD_DIM, b.choose(("f32", "f32", "f16", "bf16"))
    view = Type(("keys", width), kept)
    views: list[str] = []
    for role, side in (("keys", k), ("values", v)):
        state = f"s{len(g.declarations)}"
        g.declarations.append(
            f"hir.state @{state} {role} head_dim {HEAD_DIM} : {Type((CAPACITY, width), kept)}"
        )
        views.append(g.fresh())
        b.lines.append(
            f'{views[-1]} = hir.append {side} to @{state} start "past" : {side.type} -> {view}'
        )
    text = f"hir.attention {q}, {views[0]}, {views[1]} head_dim {HEAD_DIM} scale 0.25 : "
    a = b.op(f"{text}{q.type}, {view}", q.type, rounds(q))
    project(b, a, int(x.dims[1]))


NAMED = ("activation", "residual", "linear", "norm", "glu", "attention")
"""The makers of programs that hold nothing but matrices of f32."""
