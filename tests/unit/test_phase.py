"""Phases, the phase rule, and the memory plan that carries them."""

from dataclasses import dataclass, field

import pytest

from rlx.contract.opkind import OpKind
from rlx.contract.phase import Phase, PhaseSchedule, derive_phases
from rlx.contract.plan import LirBufferPlan, LirBufferSlot, LirIoManifest, LirViewAlias

P, S, E = Phase.PROLOGUE, Phase.STEADY_STATE, Phase.EPILOGUE


@dataclass
class Node:
    id: int
    kind: OpKind
    name: str = ""


@dataclass
class Graph:
    nodes: list[Node]
    outputs: list[int] = field(default_factory=list)


def phases_of(*kinds: OpKind) -> list[Phase | None]:
    # Ids that are not steps: the rule goes by place, its answer is by id.
    graph = Graph([Node(10 * step + 3, kind) for step, kind in enumerate(kinds)])
    schedule = derive_phases(graph)
    assert len(schedule) == len(kinds)
    return [schedule.get(node.id) for node in graph.nodes]


def test_order_is_strictly_increasing():
    assert [phase.order() for phase in Phase] == [0, 1, 2]
    assert P.order() < S.order() < E.order()
    assert len({P, S, E}) == 3


def test_matmul_then_sample():
    kinds = (OpKind.INPUT, OpKind.PARAM, OpKind.MATMUL, OpKind.SAMPLE)
    assert phases_of(*kinds) == [P, P, S, E]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((), []),
        # Neither compute nor sampling: nothing ends the step.
        ((OpKind.INPUT, OpKind.CONSTANT, OpKind.BINARY, OpKind.CONV), [P, P, S, S]),
        # Compute alone: what follows the last of it is the epilogue.
        (
            (OpKind.ACTIVATION, OpKind.MATMUL, OpKind.BINARY, OpKind.ATTENTION, OpKind.SOFTMAX),
            [S, S, S, S, E],
        ),
        # Sampling alone.
        ((OpKind.BINARY, OpKind.TOP_K, OpKind.BINARY), [S, E, E]),
        # Work between the last compute and the sampling is the epilogue too.
        ((OpKind.DEQUANT_MATMUL, OpKind.SOFTMAX, OpKind.SAMPLE, OpKind.CAST), [S, E, E, E]),
        # A routing TopK before compute is called epilogue, and so is all compute after it.
        ((OpKind.TOP_K, OpKind.GROUPED_MATMUL, OpKind.BINARY), [E, E, E]),
        # Leaves are the prologue wherever they stand.
        ((OpKind.MATMUL, OpKind.SAMPLE, OpKind.PARAM), [S, E, P]),
        # Convolutions and selective scans are not compute.
        ((OpKind.SELECTIVE_SCAN, OpKind.CONV, OpKind.QMATMUL, OpKind.REDUCE), [S, S, S, S]),
    ],
)
def test_phase_rule(kinds: tuple[OpKind, ...], expected: list[Phase]):
    assert phases_of(*kinds) == expected


@pytest.mark.parametrize(
    "kind",
    [
        "MatMul", "FusedMatMulBiasAct", "Attention", "FusedAttentionBlock",
        "FusedTransformerLayer", "DotGeneral", "GroupedMatMul", "DequantGroupedMatMul",
        "DequantMoEWeights", "LoraMatMul", "DequantMatMul", "GatedDeltaNet",
    ],
)  # fmt: skip
def test_every_compute_kind_ends_the_step(kind: str):
    assert phases_of(OpKind(kind), OpKind.BINARY) == [S, E]


def test_schedule_set_get_iterate():
    schedule = PhaseSchedule()
    assert schedule.is_empty()
    assert schedule == PhaseSchedule({})
    schedule.set(7, P)
    schedule.set(2, S)
    schedule.set(7, E)
    assert not schedule.is_empty()
    assert len(schedule) == 2
    assert schedule.get(7) is E
    assert schedule.get(1) is None
    assert list(schedule) == [(2, S), (7, E)]
    assert schedule == PhaseSchedule({7: E, 2: S})
    assert schedule != PhaseSchedule({7: S, 2: S})


def test_nodes_in_sorts_by_id_and_ordered_follows_the_schedule():
    schedule = PhaseSchedule({9: S, 1: S, 4: E, 5: S})
    assert schedule.nodes_in(S) == [1, 5, 9]
    assert schedule.nodes_in(P) == []
    assert schedule.nodes_in_ordered(S) == [1, 5, 9]
    # 1 is absent and dropped, 9 is repeated and kept, 4 is of another phase, 8 has none.
    assert schedule.nodes_in_ordered(S, [9, 4, 8, 5, 9]) == [9, 5, 9]
    assert schedule.nodes_in_ordered(S, []) == []


def test_schedule_survives_json():
    schedule = PhaseSchedule({12: P, 3: S, 40: E})
    assert '"steady_state"' in schedule.to_json()
    assert PhaseSchedule.from_json(schedule.to_json()) == schedule
    with pytest.raises(ValueError, match="afterwards"):
        PhaseSchedule.from_json('{"1": "afterwards"}')


def test_manifest_in_node_order():
    nodes = [
        Node(0, OpKind.INPUT, "x"),
        Node(1, OpKind.PARAM, "w"),
        Node(2, OpKind.INPUT, "mask"),
        Node(3, OpKind.MATMUL),
    ]
    manifest = LirIoManifest.collect(Graph(nodes, [3]))
    assert manifest == LirIoManifest([("x", 0), ("mask", 2)], [("w", 1)], [3])
    assert LirIoManifest.collect(Graph([])) == LirIoManifest()


def test_plan_defaults():
    plan = LirBufferPlan()
    assert (plan.arena_size, plan.alignment) == (0, 64)
    assert not plan.assignments
    assert not plan.schedule
    assert not plan.view_aliases
    assert plan.phases.is_empty()
    assert plan.io == LirIoManifest()
    assert plan.dynamic_symbols == []
    assert plan.total_unshared_bytes() == plan.bytes_saved() == 0
    # Defaults are not shared between plans.
    plan.schedule.append(1)
    assert LirBufferPlan().schedule == []


def sample_plan() -> LirBufferPlan:
    return LirBufferPlan(
        arena_size=192,
        assignments={4: LirBufferSlot(0, 128), 1: LirBufferSlot(128, 64), 5: LirBufferSlot(0, 64)},
        schedule=[1, 4, 3, 5],
        view_aliases={3: LirViewAlias(4, 32)},
        phases=PhaseSchedule({1: P, 4: S, 3: S, 5: E}),
        io=LirIoManifest([("x", 0)], [("w", 1)], [5, 3]),
        alignment=32,
        dynamic_symbols=[1, 3],
    )


def test_plan_queries():
    plan = sample_plan()
    assert plan.total_unshared_bytes() == 256
    assert plan.bytes_saved() == 64
    plan.arena_size = 1000
    assert plan.bytes_saved() == 0
    assert plan.slot(4) == LirBufferSlot(0, 128)
    assert plan.slot(3) is None
    assert plan.is_view(3)
    assert not plan.is_view(4)
    assert plan.phase_of(5) is E
    assert plan.phase_of(0) is None
    assert plan.nodes_in_phase(S) == [4, 3]


def test_plan_survives_json():
    plan = sample_plan()
    again = LirBufferPlan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()
    again.phases.set(1, S)
    assert again != plan
    assert LirBufferPlan.from_json(LirBufferPlan().to_json()) == LirBufferPlan()


def test_op_kinds_are_named_after_their_values():
    for kind in OpKind:
        assert kind.name.replace("_", "") == kind.value.upper()
    assert OpKind("WelchPeaks") is OpKind.WELCH_PEAKS
