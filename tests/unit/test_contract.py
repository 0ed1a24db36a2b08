"""
The contract, item by item: every public name of its five parts, with the values it fixes.

Sections are its parts. What a part needs beyond its own words (rules of phases on every kind of
graph, stages of a flow) is tested next to the code: test_phase, test_variant, test_benefit,
test_flow, test_derive_phases.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fuzz
import numpy as np
import pytest
from graphs import GRAPHS, block, four_nodes, hand_made, planned_views, rank_one, symbolic, views
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

import rlx
from rlx import (
    CompileProfile,
    DecodeBindings,
    DimBinding,
    DType,
    FlowCtx,
    FlowState,
    FlowValue,
    FusionBenefit,
    GdnInputSlots,
    Graph,
    GraphIoProfile,
    GraphModule,
    HirModule,
    IoFusionGate,
    LirBufferPlan,
    LirBufferSlot,
    LirFingerprint,
    LirIoManifest,
    LirModule,
    LirViewAlias,
    MirModule,
    ModelPhase,
    ModelVariant,
    Op,
    OpKind,
    Phase,
    PhaseSchedule,
    RlxError,
    Shape,
    bind_graph,
    derive_phases,
    fusion_benefit,
    host_sync_op_kinds,
    infer_bindings_from_inputs,
    plan_graph,
    profile_graph_io,
    profile_graph_io_outputs,
    sym,
)
from rlx.dialects import mir
from rlx.dialects.common import tensor
from rlx.dialects.kinds import UnaryKind
from rlx.flow.source import MapWeights
from rlx.passes.pipelines import run_to

P, S, E = Phase.PROLOGUE, Phase.STEADY_STATE, Phase.EPILOGUE

PUBLIC = """
Phase PhaseSchedule derive_phases ModelPhase ModelVariant DimBinding sym LirBufferSlot LirViewAlias
LirIoManifest LirBufferPlan LirFingerprint LirModule MirModule HirModule GraphModule GraphIoProfile
FusionBenefit fusion_benefit IoFusionGate host_sync_op_kinds profile_graph_io
profile_graph_io_outputs FlowCtx FlowState FlowValue DecodeBindings GdnInputSlots CompileProfile
WeightSource Graph Shape DType NodeId Op OpKind
""".split()


def run_python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


# The package


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_is_importable_from_rlx(name: str):
    assert getattr(rlx, name).__name__ in (name, "int")
    assert name in dir(rlx)


def test_importing_rlx_loads_nothing_heavy():
    heavy = "print([m for m in ('numpy', 'xdsl', 'llvmlite') if m in sys.modules])"
    assert run_python(f"import sys, rlx; {heavy}") == "[]"
    # Nor do graphs, plans and fingerprints.
    use = "rlx.LirModule(rlx.Graph('g'), rlx.LirBufferPlan()).fingerprint()"
    assert run_python(f"import sys, rlx; {use}; {heavy}") == "[]"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Fase'"):
        getattr(rlx, "Fase")


# A1: phases


def test_phase():
    assert [p.order() for p in (P, S, E)] == [0, 1, 2]
    assert P.order() < S.order() < E.order()
    assert len({P, S, E, Phase.PROLOGUE}) == 3
    assert json.loads(json.dumps(list(Phase))) == ["prologue", "steady_state", "epilogue"]


def test_phase_schedule():
    schedule = PhaseSchedule()
    assert schedule.is_empty()
    assert len(schedule) == 0
    assert schedule.get(3) is None
    for node, phase in ((7, S), (3, P), (5, S), (3, S)):
        schedule.set(node, phase)
    assert schedule.get(3) is S
    assert list(schedule) == [(3, S), (5, S), (7, S)]
    assert (len(schedule), schedule.is_empty()) == (3, False)
    assert schedule.nodes_in(S) == schedule.nodes_in_ordered(S) == [3, 5, 7]
    assert schedule.nodes_in_ordered(S, [7, 9, 3, 7]) == [7, 3, 7]
    assert schedule.nodes_in(E) == []
    assert PhaseSchedule.from_json(schedule.to_json()) == schedule != PhaseSchedule()


def test_derive_phases_of_four_nodes():
    phases = derive_phases(four_nodes())
    assert [phases.get(i) for i in range(4)] == [P, P, S, E]
    assert derive_phases(Graph("empty")).is_empty()


def test_derive_phases_gives_every_node_one():
    assert len(derive_phases(block())) == len(block())


# A2: variants


def test_model_variants():
    variant = ModelVariant.decode(1, 64, 1).with_extra(9, 5).with_extra(9, 6)
    assert variant == ModelVariant(1, 1, 64, ModelPhase.DECODE, [(9, 5), (9, 6)])
    assert ModelVariant.prefill(2, 128) == ModelVariant(2, 128, None, ModelPhase.PREFILL)
    assert ModelVariant.encoder(2, 128) == ModelVariant(2, 128, None, ModelPhase.ENCODER)
    assert {p.value for p in ModelPhase} == {"prefill", "decode", "encoder", "inference"}
    with pytest.raises(TypeError):
        hash(variant)


def test_variants_bind_dimensions():
    prefill = ModelVariant.prefill(2, 128).dim_binding()
    assert (prefill.get(sym.BATCH), prefill.get(sym.SEQ)) == (2, 128)
    decode = ModelVariant.decode(1, 64, 1)
    assert list(decode.dim_binding()) == [(sym.BATCH, 1), (sym.SEQ, 1), (sym.PAST_SEQ, 64)]
    assert decode.with_extra(sym.SEQ, 4).with_extra(7, 1).with_extra(7, 2).dim_binding() == (
        DimBinding.from_pairs([(0, 1), (1, 4), (3, 64), (7, 2)])
    )


def test_cache_keys():
    prefill, decode = ModelVariant.prefill(1, 8), ModelVariant.decode(1, 7, 1)
    assert prefill.cache_key() != decode.cache_key()
    assert replace(decode, past_seq=None).cache_key() != replace(decode, past_seq=0).cache_key()
    in_order, swapped = [(5, 1), (6, 1)], [(6, 1), (5, 1)]
    keys = [replace(prefill, extra=e).cache_key() for e in ([], in_order, swapped)]
    assert len(set(keys)) == 3
    code = "from rlx import ModelVariant as V; print(V.prefill(1, 8).cache_key())"
    assert int(run_python(code)) == prefill.cache_key()


def test_dim_binding():
    binding = DimBinding()
    binding.set(sym.ROWS, 5)
    assert (binding.get(2), binding.get(0), len(binding)) == (5, None, 1)
    assert list(DimBinding.batch_seq(1, 7)) == [(0, 1), (1, 7)]
    assert list(DimBinding.batch_seq(3, 7)) == [(0, 3), (1, 7), (2, 21)]
    assert list(DimBinding.batch_past_seq(3, 7)) == [(0, 3), (3, 7)]


def test_bind_graph():
    graph = symbolic()
    assert graph.has_dynamic_dims()
    assert graph.dynamic_symbols() == [0, 1, 2]
    bound = bind_graph(graph, DimBinding.batch_seq(2, 16))
    assert bound.node(2).shape == Shape([2, 16, 8])
    assert bound.node(3).shape == Shape([32, 8])
    assert [n.id for n in bound.nodes] == [n.id for n in graph.nodes]
    assert bound.verify() == []
    assert not bound.has_dynamic_dims()
    # A batch of 1 binds no rows; the reshape says how many there are.
    assert bind_graph(graph, DimBinding.batch_seq(1, 16)).node(3).shape == Shape([16, 8])
    assert graph == symbolic()
    half = bind_graph(graph, DimBinding.from_pairs([(sym.BATCH, 2)]))
    assert half.dynamic_symbols() == [sym.SEQ, sym.ROWS]


def test_infer_bindings():
    graph = Graph("g")
    graph.input("x", [3, sym.SEQ, 64])
    assert list(infer_bindings_from_inputs(graph, {"x": 24576})) == [(sym.SEQ, 128)]
    graph.input("ids", Shape([sym.SEQ], DType.I32))
    graph.input("scale", [4])
    sizes = {"x": 24576, "ids": 128, "scale": 4}
    assert list(infer_bindings_from_inputs(graph, sizes)) == [(sym.SEQ, 128)]
    for change, message in [
        ({"x": 24577}, "24577 elements do not fill"),
        ({"ids": 127}, r"127 elements give \?seq = 127, input 'x' gave 128"),
        ({"scale": 5}, "5 elements do not fill"),
        ({"y": 5}, "no input 'y': expected x, ids, scale"),
    ]:
        with pytest.raises(RlxError, match=message):
            infer_bindings_from_inputs(graph, {**sizes, **change})
    with pytest.raises(RlxError, match="expected its number of elements"):
        infer_bindings_from_inputs(graph, {"x": 24576})
    with pytest.raises(RlxError, match="expected one symbol, got 2"):
        infer_bindings_from_inputs(symbolic(), {"x": 64})


# A3: plans and modules


def test_slots_and_views():
    assert LirBufferSlot(64, 8) == LirBufferSlot(offset=64, size=8)
    assert LirViewAlias(2, 32) == LirViewAlias(root=2, byte_offset=32)


def test_manifest_with_a_rank_one_operand():
    graph = rank_one()
    expected = LirIoManifest(inputs=[("x", 0)], params=[("w", 1)], outputs=[2])
    assert LirIoManifest.collect(graph) == expected
    assert plan_graph(graph).io == expected
    assert LirModule(graph, plan_graph(graph)).fingerprint().value
    assert graph.verify() == [
        "node 2 MatMul: expected operands of two or more dimensions, got [4] f32 and [4, 4] f32"
    ]
    assert LirIoManifest.collect(Graph("empty")) == LirIoManifest()


def test_plan_defaults_and_queries():
    empty = LirBufferPlan()
    assert (empty.arena_size, empty.alignment) == (0, 64)
    assert empty.assignments == empty.view_aliases == {}
    assert empty.schedule == empty.dynamic_symbols == []
    assert empty.phases.is_empty()
    assert empty.io == LirIoManifest()
    plan = LirBufferPlan(
        arena_size=100,
        assignments={0: LirBufferSlot(0, 64), 2: LirBufferSlot(0, 96)},
        schedule=[2, 0, 1],
        view_aliases={1: LirViewAlias(0, 16)},
        phases=PhaseSchedule({0: S, 1: E, 2: S}),
    )
    assert (plan.total_unshared_bytes(), plan.bytes_saved()) == (160, 60)
    assert replace(plan, arena_size=161).bytes_saved() == 0
    assert (plan.slot(2), plan.slot(1)) == (LirBufferSlot(0, 96), None)
    assert (plan.is_view(1), plan.is_view(0)) == (True, False)
    assert (plan.phase_of(1), plan.phase_of(3)) == (E, None)
    assert plan.nodes_in_phase(S) == [2, 0]


def test_plan_graph_aliases_views():
    plan = plan_graph(views())
    assert plan.view_aliases == {
        3: LirViewAlias(2, 0),
        4: LirViewAlias(2, 0),
        5: LirViewAlias(2, 32),
    }
    assert views().node(5).nbytes == 64
    assert sorted(plan.assignments) == [0, 1, 2]
    assert plan.schedule == [0, 1, 2, 3, 4, 5]
    assert plan.phases == derive_phases(views())
    assert (plan.arena_size, plan.alignment) == (320, 64)


def test_fingerprint_of_a_hand_made_plan():
    module = hand_made()
    first = module.fingerprint()
    assert first == module.fingerprint() == LirFingerprint.of(hand_made())
    assert 0 <= first.value < 2**64
    assert int(str(first), 16) == int(first) == first.value


def test_fingerprint_is_the_same_in_another_process():
    graph = block()
    here = LirModule(graph, plan_graph(graph)).fingerprint()
    code = (
        "import sys; sys.path.insert(0, 'tests/unit'); from test_contract import block;"
        "from rlx import *; import rlx;"
        "print(rlx.LirModule(block(), rlx.plan_graph(block())).fingerprint())"
    )
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[2]
    other = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout
    assert other.strip() == str(here)


def _node(module: LirModule, at: int, **changes: Any) -> None:
    graph = module.as_graph()
    graph.nodes[at] = replace(graph.nodes[at], **changes)


CHANGES: dict[str, Callable[[LirModule], object]] = {
    "name": lambda m: setattr(m.mir.graph, "name", "other"),
    "node count": lambda m: m.as_graph().input("y", [2]),
    "id": lambda m: _node(m, 5, id=55),
    "kind": lambda m: _node(m, 2, op=Op(OpKind.DOT_GENERAL)),
    "attribute": lambda m: _node(m, 5, op=Op(OpKind.NARROW, axis=0, start=8, length=15)),
    "constant": lambda m: _node(m, 6, op=Op(OpKind.CONSTANT, data=b"\0\1\0\0")),
    "dims": lambda m: _node(m, 2, shape=Shape([4, 8])),
    "symbol for size": lambda m: _node(m, 6, shape=Shape([sym.SEQ])),
    "dtype": lambda m: _node(m, 2, shape=Shape([8, 4], DType.I32)),
    "input": lambda m: _node(m, 2, inputs=(1, 0)),
    "input count": lambda m: _node(m, 2, inputs=(0, 1, 1)),
    "input name": lambda m: _node(m, 0, name="z"),
    "outputs": lambda m: m.as_graph().set_outputs([4]),
    "arena": lambda m: setattr(m.plan, "arena_size", 640),
    "alignment": lambda m: setattr(m.plan, "alignment", 32),
    "offset": lambda m: m.plan.assignments.update({0: LirBufferSlot(256, 128)}),
    "slot size": lambda m: m.plan.assignments.update({0: LirBufferSlot(0, 64)}),
    "slot": lambda m: m.plan.assignments.pop(0),
    "view": lambda m: m.plan.view_aliases.update({5: LirViewAlias(2, 28)}),
    "view root": lambda m: m.plan.view_aliases.update({5: LirViewAlias(0, 32)}),
    "schedule length": lambda m: m.plan.schedule.pop(),
    "schedule order": lambda m: m.plan.schedule.reverse(),
    "phase": lambda m: m.plan.phases.set(2, P),
    "manifest": lambda m: m.plan.io.inputs.append(("w", 1)),
    "dynamic symbols": lambda m: m.plan.dynamic_symbols.append(1),
}


@pytest.mark.parametrize("what", CHANGES)
def test_fingerprint_and_equality_see_every_change(what: str):
    module = planned_views()
    CHANGES[what](module)
    assert module.fingerprint() != planned_views().fingerprint()
    assert module != planned_views()
    again = LirModule.from_json(module.to_json())
    assert again == module
    assert again.fingerprint() == module.fingerprint()


def test_equal_modules_have_equal_fingerprints_whatever_the_order_of_keys():
    module, other = planned_views(), planned_views()
    slots = list(other.plan.assignments.items())
    other.plan.assignments = dict(reversed(slots))
    assert module == other
    assert module.fingerprint() == other.fingerprint()


def test_lir_module():
    module = planned_views()
    assert (module.name, module.arena_size) == ("views", module.buffers.arena_size)
    assert module.plan is module.buffers
    assert module.as_graph() is module.mir.graph
    graph = module.into_graph()
    assert graph == module.as_graph()
    graph.set_outputs([])
    assert module == planned_views()
    assert module.is_fully_static()
    assert not module.has_dynamic_dims()
    dynamic = LirModule(symbolic(), plan_graph(symbolic()))
    assert dynamic.has_dynamic_dims()
    assert not dynamic.is_fully_static()
    assert dynamic.dynamic_symbols == dynamic.plan.dynamic_symbols == [0, 1, 2]


@pytest.mark.parametrize("make", GRAPHS)
def test_lir_modules_survive_json_and_ir(make: Callable[[], Graph]):
    module = LirModule(make(), plan_graph(make()))
    again = LirModule.from_json(module.to_json())
    assert again == module
    assert again.to_json() == module.to_json()
    read = LirModule.from_ir(module.to_ir())
    assert read == module
    assert read.plan == module.plan
    assert read.to_ir() == module.to_ir()


def test_a_hand_made_plan_survives_json_and_ir():
    module = hand_made()
    assert LirModule.from_json(module.to_json()) == module
    assert LirModule.from_ir(module.to_ir()) == module
    assert "slot 0 size 8" in module.to_ir()


def decode_program() -> ModuleOp:
    return fuzz.parsed(fuzz.random_case(3).text)


def test_graph_module_goes_down_the_levels():
    module = GraphModule.from_ir(decode_program())
    assert module.stage() == "hir"
    with pytest.raises(RlxError, match="expected it at the level mir, it is hir"):
        module.mir()
    mir = module.lower()
    assert mir.stage() == "mir"
    assert module.stage() == "hir"
    names = [node.name for node in mir.mir().graph.nodes if node.kind is OpKind.INPUT]
    planned = mir.lower()
    assert planned.stage() == "lir"
    assert [name for name, _ in planned.lir().plan.io.inputs] == names
    whole = decode_program()
    run_to(whole, "lir")
    assert planned.lir() == LirModule.from_ir(whole)
    assert GraphModule.from_ir(whole) == planned
    with pytest.raises(RlxError, match="the last level"):
        planned.lower()
    with pytest.raises(RlxError, match="expected it at the level hir, it is lir"):
        planned.hir()


def test_graph_module_of_every_stage():
    new = GraphModule.define("model")
    assert (new.name, new.stage()) == ("model", "hir")
    assert new == GraphModule.from_hir(HirModule.define("model")) != GraphModule.define("other")
    graph = GraphModule.from_graph(views())
    assert graph == GraphModule.from_mir(MirModule(views()))
    assert (graph.name, graph.stage()) == ("views", "mir")
    lowered = graph.lower()
    assert lowered == GraphModule.from_lir(LirModule(views(), plan_graph(views())))
    assert lowered == GraphModule.from_ir(lowered.lir().to_ir())


def test_hir_and_mir_modules():
    ctx = FlowCtx(HirModule.define("m").module, {}, MapWeights({}))
    x = ctx.input("x", (2, 4))
    ctx.finish({"y": ctx.insert(mir.UnaryOp(UnaryKind.EXP, x.id)).id})
    module = HirModule(ctx.module)
    assert module.name == "m"
    lowered = module.lower()
    assert (lowered.name, [n.kind for n in lowered.graph.nodes]) == ("m", ["Input", "Activation"])
    assert lowered.as_graph() == lowered.into_graph()
    assert lowered.graph.outputs == [1]
    assert derive_phases(lowered.graph).get(1) is S
    assert MirModule.from_ir(lowered.ir or "") == lowered
    with pytest.raises(RlxError, match="expected a module of hir, got one of mir"):
        HirModule(fuzz.parsed(lowered.ir or ""))


# A4: fusion benefit


def test_fusion_benefit_values():
    one = fusion_benefit(GraphIoProfile(2, 1, 8192, 16384), GraphIoProfile(1, 1, 512, 16384))
    assert one == FusionBenefit(1, 0, 7680, 0)
    dense = GraphIoProfile(3, 0, 33554432, 184549376)
    fused = GraphIoProfile(4, 1, 1048576, 219152384)
    assert fusion_benefit(dense, fused) == FusionBenefit(-1, -1, 32505856, -34603008)
    assert GraphIoProfile() == GraphIoProfile(0, 0, 0, 0)
    metal = IoFusionGate(500, 5000, 200, 200, True, 2e6, 1000)
    wgpu = IoFusionGate(3000, 30000, 100, 40, False, 25e6, 10000)
    benefit = fusion_benefit(dense, fused)
    assert metal.score_ns(benefit) == pytest.approx(30327340.96, abs=1e-3)
    assert benefit.score_ns(500, 5000, 200, 200, True) == pytest.approx(32327340.96, abs=1e-3)
    assert metal.should_fuse(dense, fused)
    assert wgpu.score_ns(benefit) == pytest.approx(-24566383.68, abs=1e-3)
    assert not wgpu.should_fuse(dense, fused)
    # The penalty alone decides.
    without = replace(wgpu, host_thunk_penalty_ns=0)
    assert without.score_ns(benefit) == pytest.approx(433616.32, abs=1e-3)
    assert without.should_fuse(dense, fused)
    assert benefit.should_fuse(3000, 30000, 100, 40, False, 10000)


def test_profile_of_a_graph():
    graph = four_nodes()
    # matmul 32 + 128 + 16 bytes, sample 16 + 4; the host reads the 4 of the id.
    assert profile_graph_io(graph) == GraphIoProfile(2, 0, 4, 196)
    assert profile_graph_io_outputs(graph, [2, 3, 3]) == GraphIoProfile(2, 0, 20, 196)
    peaks = Graph("peaks")
    spectrum = peaks.input("spectrum", [4, 512])
    op = Op(OpKind.WELCH_PEAKS, k=16, n_segments=2)
    peaks.set_outputs([peaks.add_node(op, [spectrum], [2, 32])])
    assert profile_graph_io(peaks) == GraphIoProfile(1, 1, 256, 8192 + 256)


def test_profile_skips_metadata_and_what_has_no_size():
    # Reshape, narrow and the leaves cost nothing, not even as outputs.
    assert profile_graph_io(views()) == GraphIoProfile(2, 0, 0, 128 + 64 + 128 + 2 * 128)
    assert profile_graph_io(symbolic()) == GraphIoProfile(1, 0, 0, 128)
    bound = bind_graph(symbolic(), DimBinding.batch_seq(2, 16))
    assert profile_graph_io(bound).device_traffic_bytes == 512 + 128 + 1024


def test_host_sync_kinds():
    expected = {OpKind.LOG_MEL, OpKind.LOG_MEL_BACKWARD, OpKind.CUSTOM, OpKind.WELCH_PEAKS}
    assert host_sync_op_kinds() == expected


# A5: flow


def flow() -> FlowCtx:
    rng = np.random.default_rng(5)
    weights = {"w": rng.standard_normal((2, 3)).astype(np.float32)}
    return FlowCtx.define("flow", MapWeights(weights))


def test_gdn_slots_and_decode_bindings():
    ctx = flow()
    q, k, v, g, beta = (ctx.input(name, (1, 4)).id for name in "qkvgb")
    slots = GdnInputSlots(q=q, k=k, v=v, g=g, beta=beta)
    assert [slots.q, slots.k, slots.v, slots.g, slots.beta] == [q, k, v, g, beta]
    decode = DecodeBindings(cos=q, sin=k)
    assert (decode.mask, decode.past_k, decode.past_v) == (None, [], [])
    assert DecodeBindings(q, k, mask=v, past_k=[g], past_v=[beta]).past_k == [g]


def test_flow_state_has_every_field_empty():
    state = FlowState()
    alone = "rope_cos rope_sin zero_beta embed_weight hidden_shape decode residual_skip gdn"
    assert all(getattr(state, name) is None for name in (*alone.split(), "residual_shape"))
    assert state.streams == state.inputs == state.named == state.loaded_params == {}


def test_load_param_is_cached_by_key_and_orientation():
    ctx = flow()
    plain, turned = ctx.load_param("w"), ctx.load_param("w", transpose=True)
    assert ctx.load_param("w") is plain
    assert ctx.load_param("w", transpose=True) is turned
    assert ctx.state.loaded_params == {"w": plain, "w\0t": turned}
    # Neither overwrites the other's data.
    np.testing.assert_array_equal(ctx.params["w"].T, ctx.params["w.t"])
    assert (plain.type, turned.type) == (tensor([2, 3]), tensor([3, 2]))
    with pytest.raises(RlxError):
        ctx.load_param("nowhere")


def test_flow_ctx_makes_values():
    ctx = flow()
    x = ctx.input("x", (2, 4))
    assert ctx.state.inputs == {"x": (x.id, (2, 4))}
    assert ctx.wrap(x.id, (2, 4)) == FlowValue(x.id, (2, 4))
    assert ctx.node_shape(x.id) == (2, 4)
    ctx.synth_zeros("zeros", 3)
    np.testing.assert_array_equal(ctx.params["zeros"], np.zeros(3, np.float32))
    made = ctx.synth_param("made", np.arange(6, dtype=np.float32), (2, 3))
    assert made.type == tensor([2, 3])
    assert ctx.profile == CompileProfile()


def test_only_hir_is_built():
    ctx = flow()
    x = ctx.input("x", (2, 4))
    ctx.finish({"y": ctx.insert(mir.UnaryOp(UnaryKind.EXP, x.id)).id})
    assert isinstance(next(op for op in ctx.hir().ops if isinstance(op, FuncOp)), FuncOp)
    run_to(ctx.module, "mir")
    for use in (ctx.hir, lambda: ctx.node_shape(x.id), lambda: ctx.input("y", (1,))):
        with pytest.raises(RlxError, match="builds HIR, but the module is mir already"):
            use()


def test_compile_profile_is_read_from_toml(tmp_path: Path):
    path = tmp_path / "model.rlx.toml"
    path.write_text('backend = "cpu"\n[fusion]\npolicy = "direct"\n[passes]\ndce = false\n')
    profile = CompileProfile.from_toml(path)
    assert (profile.fusion.policy, profile.passes.dce, profile.backend) == ("direct", False, "cpu")
    assert (CompileProfile.prefill().fusion.policy, CompileProfile.decode().fusion.policy) == (
        "direct",
        "fusable",
    )
