"""Graphs of the contract that tests share, by hand and at random."""

from __future__ import annotations

import random

from rlx import (
    DType,
    Graph,
    LirBufferPlan,
    LirBufferSlot,
    LirModule,
    MirModule,
    Shape,
    plan_graph,
    sym,
)


def four_nodes() -> Graph:
    graph = Graph("step")
    x = graph.input("x", [1, 8])
    w = graph.param("w", [8, 4])
    logits = graph.matmul(x, w, [1, 4])
    graph.set_outputs([graph.sample(logits, 0, 1.0, 1.0, 0, [1])])
    return graph


def rank_one() -> Graph:
    """A product whose left operand has one dimension: built and planned, but not valid."""
    graph = Graph("rank_one")
    x = graph.input("x", [4])
    w = graph.param("w", [4, 4])
    graph.set_outputs([graph.matmul(x, w, [4, 4])])
    return graph


def views() -> Graph:
    graph = Graph("views")
    x = graph.input("x", [8, 4])
    w = graph.param("w", [4, 4])
    product = graph.matmul(x, w, [8, 4])
    flat = graph.reshape(product, [32])
    same = graph.cast(flat, [32])
    graph.set_outputs([graph.narrow(same, 0, 8, 16, [16])])
    return graph


def block() -> Graph:
    """Every function of the builder."""
    graph = Graph("block")
    x = graph.input("x", [2, 3, 8])
    mask = graph.input("mask", [2, 3])
    gamma = graph.param("gamma", [8])
    beta = graph.constant(bytes(32), [8])
    w = graph.param("w", [8, 8])
    normal = graph.rms_norm(x, gamma, beta, 1e-5, [2, 3, 8])
    q = graph.matmul(normal, w, [2, 3, 8])
    a = graph.attention(q, normal, normal, 2, 4, "custom", [2, 3, 8], mask_input=mask)
    a = graph.attention(a, a, a, 2, 4, "causal", [2, 3, 8])
    summed = graph.add(a, x, [2, 3, 8])
    act = graph.activation("silu", summed, [2, 3, 8])
    scaled = graph.binary("mul", act, gamma, [2, 3, 8])
    turned = graph.transpose(scaled, [0, 2, 1], [2, 8, 3])
    both = graph.concat([turned, turned], 1, [2, 16, 3])
    part = graph.narrow(both, 1, 4, 2, [2, 2, 3])
    mean = graph.reduce("mean", part, [-1], False, [2, 2])
    soft = graph.softmax(graph.layer_norm(mean, gamma, beta, 1e-5, [2, 2]), -1, [2, 2])
    best = graph.topk(soft, 1, [2, 1])
    half = graph.cast(best, Shape([2, 1], DType.F16))
    ids = graph.sample(soft, 5, 0.9, 0.7, 2**64 - 1, [2])
    graph.set_outputs([graph.reshape(half, Shape([2], DType.F16)), ids])
    return graph


def symbolic() -> Graph:
    graph = Graph("symbolic")
    x = graph.input("x", [sym.BATCH, sym.SEQ, 4])
    w = graph.param("w", [4, 8])
    y = graph.matmul(x, w, [sym.BATCH, sym.SEQ, 8])
    graph.set_outputs([graph.reshape(y, [sym.ROWS, 8])])
    return graph


def empty() -> Graph:
    return Graph("empty")


GRAPHS = [empty, four_nodes, rank_one, views, block, symbolic]


def random_graph(seed: int) -> Graph:
    rng = random.Random(seed)
    graph = Graph(f"random{seed}")
    rows = rng.choice([1, 2, 8])
    values = [graph.input("x", [rows, 16]), graph.param("w", [rows, 16])]
    for _ in range(rng.randrange(2, 25)):
        x, y = rng.choice(values), rng.choice(values)
        shape = graph.node(x).shape
        match rng.randrange(5):
            case 0:
                values.append(graph.add(x, y, shape))
            case 1:
                values.append(graph.activation("silu", x, shape))
            case 2:
                flat = graph.reshape(x, [rows * 16])
                values.append(graph.reshape(flat, shape))
            case 3:
                part = graph.narrow(x, 0, rows // 2, 1, [1, 16])
                values.append(graph.add(part, x, shape))
            case _:
                values.append(graph.cast(x, shape))
    graph.set_outputs(rng.sample(values, min(2, len(values))))
    return graph


def hand_made() -> LirModule:
    graph = Graph("hand")
    x = graph.input("x", [2])
    plan = LirBufferPlan(arena_size=8, schedule=[x])
    plan.assignments[x] = LirBufferSlot(0, 8)
    plan.io.inputs = [("x", x)]
    return LirModule(MirModule(graph), plan)


def planned_views() -> LirModule:
    graph = views()
    graph.constant(bytes(4), [1])
    return LirModule(graph, plan_graph(graph))
