"""Plans and IR as one: hand-made plans written to IR, planned modules read as plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fuzz
import pytest
from graphs import planned_views

from rlx import (
    DType,
    Graph,
    LirBufferSlot,
    LirIoManifest,
    LirModule,
    LirViewAlias,
    OpKind,
    Phase,
    RlxError,
    Shape,
    plan_graph,
    sym,
)
from rlx.dialects import lir
from rlx.passes.pipelines import run_to

S, E = Phase.STEADY_STATE, Phase.EPILOGUE


def _node(module: LirModule, at: int, **changes: Any) -> None:
    graph = module.as_graph()
    graph.nodes[at] = replace(graph.nodes[at], **changes)


def test_names_of_any_letters_survive_ir():
    graph = Graph('größe "1"\\n')
    graph.input("ids\n\t£", Shape([sym(12)], DType.C128))
    module = LirModule(graph, plan_graph(graph))
    assert LirModule.from_ir(module.to_ir()) == module


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: _node(m, 2, inputs=(0, 9)), "node 2 MatMul has no form"),
        (lambda m: m.as_graph().nodes.append(m.as_graph().node(2)), "node 2 MatMul has no form"),
        (lambda m: m.plan.phases.set(40, S), "places node 40, which is not in the graph"),
    ],
)
def test_what_ssa_cannot_hold_is_refused(change: Callable[[LirModule], object], message: str):
    module = planned_views()
    change(module)
    with pytest.raises(RlxError, match=message):
        module.to_ir()
    assert LirModule.from_json(module.to_json()) == module


@pytest.mark.parametrize("seed", range(6))
def test_a_planned_module_is_its_plan(seed: int):
    module = fuzz.parsed(fuzz.random_case(seed).text)
    run_to(module, "lir")
    view = LirModule.from_ir(module)
    program = next(op for op in module.ops if isinstance(op, lir.ProgramOp))
    walked = list(program.body.walk())
    ops = [op for op in module.ops if isinstance(op, lir.WeightOp | lir.StateOp)] + walked
    plan = view.plan
    assert plan.arena_size == view.arena_size == program.arena_size.value.data
    assert plan.alignment == 64
    slots = {i: op for i, op in enumerate(ops) if isinstance(op, lir.SlotOp)}
    assert plan.assignments == {
        i: LirBufferSlot(op.offset.value.data, op.size.value.data) for i, op in slots.items()
    }
    launches = [i for i, op in enumerate(ops) if isinstance(op, lir.LaunchOp)]
    assert plan.schedule == launches
    for i in launches:
        op = ops[i]
        assert isinstance(op, lir.LaunchOp)
        assert plan.phase_of(i) == op.phase.data.value
    assert len(plan.phases) == len(launches)
    inputs = [(op.io_name.data, i) for i, op in enumerate(ops) if isinstance(op, lir.InputOp)]
    assert plan.io.inputs == inputs
    assert plan.io.outputs == [i for i, op in enumerate(ops) if isinstance(op, lir.OutputOp)]
    assert len(plan.io.params) == sum(isinstance(op, lir.WeightOp) for op in ops)
    assert plan.io == LirIoManifest.collect(view.as_graph())


@pytest.mark.parametrize("seed", range(6))
def test_a_view_survives_json_and_text(seed: int):
    module = fuzz.parsed(fuzz.random_case(seed).text)
    run_to(module, "lir")
    view = LirModule.from_ir(module)
    assert view.to_ir() == str(module)
    assert LirModule.from_ir(view.to_ir()) == view
    assert LirModule.from_json(view.to_json()) == view
    assert LirModule.from_json(view.to_json()).fingerprint() == view.fingerprint()


VIEWS = """
builtin.module @program attributes {
    rlx.dims = #hir.dim_table<seq = 1 to 4, room = 0 to 4, one = 1>} {
  lir.kernel @exp {
  ^bb0(%a: tensor<?x8xf32, #hir.dims<seq, _>>):
    %b = mir.unary exp %a : tensor<?x8xf32, #hir.dims<seq, _>>
    mir.yield %b : tensor<?x8xf32, #hir.dims<seq, _>>
  }
  lir.program @p arena 256 lower_bound 256 alignment 64 state 0 weights 0 fingerprint "" {
    %0 = lir.slot offset 128 size 128 : tensor<8x4xf32>
    %1 = lir.view %0 byte_offset 32 : tensor<8x4xf32> -> tensor<?x8xf32, #hir.dims<one, _>>
    %2 = lir.view %1 byte_offset 16 : tensor<?x8xf32, #hir.dims<one, _>>
      -> tensor<?xf32, #hir.dims<room>>
    %3 = lir.output "y" index 0 : tensor<?x8xf32, #hir.dims<seq, _>>
    lir.launch @exp epilogue ins(%3 : tensor<?x8xf32, #hir.dims<seq, _>>)
      outs(%3 : tensor<?x8xf32, #hir.dims<seq, _>>)
  }
}
"""


def test_views_symbols_and_epilogue_of_the_ir():
    view = LirModule.from_ir(VIEWS)
    assert view.name == "program"
    assert view.plan.assignments == {0: LirBufferSlot(128, 128)}
    assert view.plan.view_aliases == {1: LirViewAlias(0, 32), 2: LirViewAlias(0, 48)}
    assert view.plan.nodes_in_phase(E) == [4]
    assert view.as_graph().node(4).kind is OpKind.ACTIVATION
    # Free dimensions are symbols: the known ones by number, others from 4 on; `one` is a size.
    assert view.dynamic_symbols == [sym.SEQ, 4]
    shapes = [str(node.shape) for node in view.as_graph().nodes]
    assert shapes[:4] == ["[8, 4] f32", "[1, 8] f32", "[?4] f32", "[?seq, 8] f32"]


@pytest.mark.parametrize(
    "change",
    [
        ("exp %a", "silu %a"),
        ("offset 128", "offset 64"),
        ("epilogue", "steady_state"),
        ("byte_offset 32", "byte_offset 0"),
        ('"y" index 0', '"z" index 0'),
        ("seq = 1 to 4", "seq = 1 to 5"),
    ],
)
def test_fingerprint_covers_the_ir(change: tuple[str, str]):
    changed = LirModule.from_ir(VIEWS.replace(*change))
    assert changed.fingerprint() != LirModule.from_ir(VIEWS).fingerprint()


def test_ir_that_is_no_plan_is_refused():
    with pytest.raises(RlxError, match="run plan-lir first"):
        LirModule.from_ir("builtin.module {}")
    with pytest.raises(RlxError, match="expected a module of rlx's IR"):
        LirModule.from_ir("builtin.module {")
    with pytest.raises(RlxError, match="expected a module of rlx's IR"):
        LirModule.from_ir(VIEWS.replace("launch @exp", "launch @sin"))
    text = planned_views().to_ir().replace('"MatMul"', '"MadMul"')
    with pytest.raises(RlxError, match=r"cannot read it: 'MadMul' is not a valid OpKind"):
        LirModule.from_ir(text)
