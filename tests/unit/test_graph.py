"""Shapes and graphs of the contract: what they accept, what verification refuses, their plans."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
from graphs import GRAPHS, block, four_nodes, random_graph, symbolic, views

from rlx import (
    DimBinding,
    DType,
    Graph,
    LirBufferPlan,
    LirModule,
    LirViewAlias,
    Op,
    OpKind,
    RlxError,
    Shape,
    bind_graph,
    plan_graph,
    sym,
)
from rlx.contract.graph import Node
from rlx.passes import plan_check


def test_dtypes():
    sizes = {"bool": 1, "i8": 1, "u8": 1, "f16": 2, "bf16": 2, "i16": 2, "f32": 4, "i32": 4}
    sizes |= {"u32": 4, "f64": 8, "i64": 8, "c64": 8, "c128": 16}
    assert {d.value: d.bytes for d in DType} == sizes


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        ("f16", "f16", "f16"),
        ("f16", "bf16", "f32"),
        ("i8", "f64", "f64"),
        ("i64", "f16", "f64"),
        ("u8", "f16", "f32"),
        ("i32", "bf16", "f32"),
        ("bool", "u8", "u8"),
        ("bool", "f16", "f16"),
        ("i16", "i32", "i32"),
        ("i64", "u32", "i64"),
        ("f32", "f64", "f64"),
        ("f64", "c64", "c64"),
    ],
)
def test_promotion(a: str, b: str, result: str):
    assert DType(a).promote(DType(b)) is DType(result)
    assert DType(b).promote(DType(a)) is DType(result)


def test_shapes():
    shape = Shape([4, 15, 384])
    assert str(shape) == "[4, 15, 384] f32"
    assert (shape.rank, shape.dtype) == (3, DType.F32)
    assert (shape.num_elements(), shape.size_bytes()) == (23040, 92160)
    assert shape.is_static
    assert Shape([]).size_bytes() == 4
    dynamic = Shape([sym.SEQ, 4, sym(9), sym.SEQ, sym.BATCH], DType.F16)
    assert str(dynamic) == "[?seq, 4, ?9, ?seq, ?batch] f16"
    assert dynamic.dynamic_symbols == [0, 1, 9]
    assert not dynamic.is_static
    assert dynamic.num_elements() is dynamic.size_bytes() is None
    bound = dynamic.bind(DimBinding.from_pairs([(sym.SEQ, 3), (9, 5)]))
    assert bound == Shape([3, 4, 5, 3, sym.BATCH], DType.F16)
    assert bound.with_dim(4, 2).with_dtype(DType.I8).size_bytes() == 3 * 4 * 5 * 3 * 2
    # The symbol of number 1 is not the size 1.
    assert sym.SEQ == 1
    assert Shape([sym.SEQ]) != Shape([1])
    assert len({Shape([sym.SEQ]), Shape([1]), Shape([1], DType.F16), Shape((1,))}) == 3


def test_symbols():
    assert (sym.BATCH, sym.SEQ, sym.ROWS, sym.PAST_SEQ) == (0, 1, 2, 3)
    assert [repr(s) for s in (sym.BATCH, sym.PAST_SEQ, sym(12))] == ["?batch", "?past", "?12"]


def test_a_graph_counts_and_finds_its_nodes():
    graph = four_nodes()
    assert len(graph) == len(graph.nodes) == 4
    assert [n.id for n in graph.nodes] == [0, 1, 2, 3]
    assert graph.outputs == [3]
    assert [n.kind for n in graph.nodes] == ["Input", "Param", "MatMul", "Sample"]
    assert graph.node(3).op == Op(OpKind.SAMPLE, seed=0, temperature=1.0, top_p=1.0, top_k=0)
    assert graph.node(2).inputs == (0, 1)
    with pytest.raises(KeyError):
        graph.node(4)
    assert "%2 = MatMul(%0, %1) : [1, 4] f32" in str(graph)


@pytest.mark.parametrize("make", [four_nodes, views, block, symbolic])
def test_valid_graphs_verify(make: Callable[[], Graph]):
    assert make().verify() == []


def test_ops_compare_by_what_they_say():
    assert Op(OpKind.TOP_K, k=1) != Op(OpKind.TOP_K, k=True)
    assert Op(OpKind.TOP_K, k=1) != Op(OpKind.TOP_K, k=sym(1))
    assert Op(OpKind.CONSTANT, data=b"\x01") != Op(OpKind.CONSTANT, data=b"\x02")
    assert Op(OpKind.REDUCE, axes=[0, 1]) == Op(OpKind.REDUCE, axes=(0, 1))
    assert len({Op(OpKind.CAST), Op(OpKind.CAST), Op(OpKind.RESHAPE)}) == 2


def _missing(g: Graph, x: int) -> None:
    g.activation("relu", 99, [4, 4])


def _later(g: Graph, x: int) -> None:
    g.activation("relu", len(g) + 1, [4, 4])
    g.input("late", [4, 4])


INVALID: list[tuple[Callable[[Graph, int], object], str]] = [
    (_missing, "its input 99 is not a node"),
    (_later, "its input 2 does not come before it"),
    (lambda g, x: g.add_node(Op(OpKind.MATMUL), [x], [4, 4]), "expected 2 inputs, got 1"),
    (lambda g, x: g.attention(x, x, x, 1, 4, "bias", [4, 4]), "expected 4 inputs, got 3"),
    (lambda g, x: g.set_outputs([7]), "output 7 is not a node"),
    (lambda g, x: g.matmul(x, g.input("v", [4]), [4]), "two or more dimensions"),
    (lambda g, x: g.matmul(x, g.input("v", [5, 4]), [4, 4]), "with one k"),
    (lambda g, x: g.matmul(x, x, [4, 5]), r"expected the result \[4, 4\] f32"),
    (lambda g, x: g.add(x, g.input("v", [3]), [4, 4]), "broadcast"),
    (lambda g, x: g.add(x, g.input("v", [sym.SEQ, 4]), [4, 4]), "broadcast"),
    (lambda g, x: g.binary("plus", x, x, [4, 4]), "unknown function 'plus'"),
    (lambda g, x: g.activation("relu", x, Shape([4, 4], DType.F16)), "declared as"),
    (lambda g, x: g.reshape(x, [15]), "as many elements"),
    (lambda g, x: g.transpose(x, [0, 0], [4, 4]), "an order of the 2 dimensions"),
    (lambda g, x: g.narrow(x, 0, 3, 2, [2, 4]), "a range within"),
    (lambda g, x: g.narrow(x, 2, 0, 2, [2, 4]), "an axis of"),
    (lambda g, x: g.concat([x, x], 0, [4, 4]), r"\[8, 4\] f32"),
    (lambda g, x: g.concat([x, g.input("v", [4, 3])], 0, [8, 4]), "differ on axis 0 only"),
    (lambda g, x: g.reduce("sum", x, [0], True, [4]), r"\[1, 4\] f32"),
    (lambda g, x: g.cast(x, [4, 5]), "declared as"),
    (lambda g, x: g.topk(x, 2, [4, 3]), r"\[4, 2\] f32"),
    (lambda g, x: g.sample(x, 0, 1, 1, 0, [3]), r"\[4\] f32"),
    (lambda g, x: g.input("v", [-1]), "negative"),
]


@pytest.mark.parametrize(("wrong", "message"), INVALID)
def test_building_accepts_what_verification_refuses(
    wrong: Callable[[Graph, int], object], message: str
):
    graph = Graph("g")
    x = graph.input("x", [4, 4])
    assert graph.verify() == []
    wrong(graph, x)
    assert re.search(message, "\n".join(graph.verify()))


def test_one_element_has_any_rank():
    graph = Graph("g")
    x = graph.input("x", [1, 1])
    graph.activation("exp", x, [])
    assert graph.verify() == []


@pytest.mark.parametrize("make", GRAPHS)
def test_graphs_survive_json(make: Callable[[], Graph]):
    graph = make()
    again = Graph.from_json(graph.to_json())
    assert again == graph
    assert again.to_json() == graph.to_json()
    again.name = "other"
    assert again != graph


def test_nodes_are_values():
    node = Node(0, Op(OpKind.INPUT), (), Shape([2]), "x")
    assert node == views().node(0).__class__(0, Op(OpKind.INPUT), (), Shape([2]), "x")
    assert (node.kind, node.nbytes) == (OpKind.INPUT, 8)


def test_bind_reaches_attributes_and_refuses_what_is_not_whole():
    graph = Graph("g")
    x = graph.input("x", [8, sym.SEQ])
    graph.narrow(x, 1, 0, sym.SEQ, [8, sym.SEQ])
    bound = bind_graph(graph, DimBinding.from_pairs([(sym.SEQ, 3)]))
    assert bound.node(1).op == Op(OpKind.NARROW, axis=1, start=0, length=3)
    assert bound.verify() == []
    graph.reshape(x, [5, sym.ROWS])
    with pytest.raises(RlxError, match=r"reshape 2: 24 elements do not fill \[5, \?rows\] f32"):
        bind_graph(graph, DimBinding.from_pairs([(sym.SEQ, 3)]))


def test_plan_graph_views_of_three_kinds_only():
    graph = Graph("g")
    x = graph.input("x", [4, 4])
    graph.narrow(x, 1, 0, 2, [4, 2])
    graph.cast(x, Shape([4, 4], DType.F16))
    graph.transpose(x, [1, 0], [4, 4])
    wrong = graph.reshape(x, [5, 4])
    plan = plan_graph(graph)
    assert plan.view_aliases == {}
    assert plan.slot(wrong) is not None


def test_plan_graph_leaves_out_what_has_no_size_yet():
    plan = plan_graph(symbolic())
    assert sorted(plan.assignments) == [1]
    assert plan.dynamic_symbols == [0, 1, 2]
    assert plan.view_aliases == {3: LirViewAlias(2, 0)}
    bound = bind_graph(symbolic(), DimBinding.batch_seq(2, 16))
    assert sorted(plan_graph(bound).assignments) == [0, 1, 2]


def problems(graph: Graph, plan: LirBufferPlan) -> list[str]:
    """What the independent checker says of a plan; leaves are there before the first step."""
    leaves = [n.id for n in graph.nodes if n.kind in (OpKind.INPUT, OpKind.PARAM, OpKind.CONSTANT)]
    steps = [
        plan_check.Step(n.inputs, (n.id,))
        for n in graph.nodes
        if n.id not in leaves and not plan.is_view(n.id)
    ]
    return plan_check.check_plan(
        steps,
        [plan_check.PlannedSlot(i, s.offset, s.size) for i, s in plan.assignments.items()],
        plan.arena_size,
        views={
            i: plan_check.PlannedView(v.root, v.byte_offset, graph.node(i).nbytes)
            for i, v in plan.view_aliases.items()
        },
        outputs=graph.outputs,
        whole_run=leaves,
        alignment=plan.alignment,
    )


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_have_sound_plans(seed: int):
    graph = random_graph(seed)
    assert graph.verify() == []
    plan = plan_graph(graph, alignment=random.Random(seed).choice([1, 16, 64, 128]))
    assert problems(graph, plan) == []
    module = LirModule(graph, plan)
    assert LirModule.from_json(module.to_json()) == module
    assert LirModule.from_ir(module.to_ir()) == module


def test_the_checker_sees_a_broken_plan():
    graph = four_nodes()
    plan = plan_graph(graph)
    plan.assignments[2] = plan.assignments[0]
    assert problems(graph, plan)
