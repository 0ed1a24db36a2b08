"""The planner on random programs, checked independently, and plans broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import fuzz
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import lir, mir
from rlx.passes.barriers import range_of
from rlx.passes.diagnostics import verify
from rlx.passes.pipelines import run_to
from rlx.passes.source import context
from rlx.passes.verify_plan import VerifyPlanPass, check_planned
from rlx.passes.verify_stage import verify_stage

SEEDS = 12


@cache
def _planned(seed: int) -> ModuleOp:
    module = fuzz.parsed(fuzz.random_case(seed).text)
    run_to(module, "lir")
    return module


def planned(seed: int) -> ModuleOp:
    """Return a plan of a random program, to be changed at will."""
    return _planned(seed).clone()


def test_random_plans_hold(fuzz_count: Callable[[int, int], int]):
    for seed in range(1000, 1000 + fuzz_count(500, 8)):
        module = fuzz.parsed(fuzz.random_case(seed).text)
        run_to(module, "lir")
        verify(module)
        verify_stage(module, "lir")
        assert check_planned(module) == [], seed


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_plan_survives_its_text(seed: int):
    text = str(planned(seed))
    again = fuzz.parsed(text)
    verify_stage(again, "lir")
    assert check_planned(again) == []
    assert str(again) == text
    run_to(again, "lir")
    assert str(again) == text


def test_plans_do_not_depend_on_earlier_ones():
    assert [str(planned(s)) for s in range(4)] == [
        str(m)
        for m in (fuzz.parsed(fuzz.random_case(s).text) for s in range(4))
        if run_to(m, "lir") is None
    ]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_barrier_can_be_spared(seed: int):
    count = sum(isinstance(op, lir.BarrierOp) for op in planned(seed).walk())
    for i in range(count):
        module = planned(seed)
        barriers = [op for op in module.walk() if isinstance(op, lir.BarrierOp)]
        barriers[i].detach()
        assert any("missing barrier" in p for p in check_planned(module)), f"barrier {i}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_slot_can_lie_on_another_that_lives(seed: int):
    """Of two slots that one launch reads and writes, the one moved onto the other is reported."""
    module = planned(seed)
    for launch in [op for op in module.walk() if isinstance(op, lir.LaunchOp)]:
        slots = dict.fromkeys(v.owner for v in launch.operands if isinstance(v.owner, lir.SlotOp))
        for a, b in zip(slots, list(slots)[1:], strict=False):
            offset, a.offset = a.offset, b.offset
            assert range_of(a.result).meets(range_of(b.result))
            assert check_planned(module), f"{launch}"
            a.offset = offset
    assert check_planned(module) == []


def test_the_pass_raises_all_problems():
    module = planned(3)
    for op in [op for op in module.walk() if isinstance(op, lir.BarrierOp)]:
        op.detach()
    problems = check_planned(module)
    assert len(problems) > 1
    with pytest.raises(VerifyException) as caught:
        VerifyPlanPass().apply(context(), module)
    assert all(p in str(caught.value) for p in problems)


def test_a_slot_beyond_the_arena_is_reported():
    module = next(m for m in map(planned, range(SEEDS)) if "lir.slot" in str(m))
    program = next(op for op in module.ops if isinstance(op, lir.ProgramOp))
    program.arena_size = lir.i64_attr(0)
    assert any("out of arena" in p for p in check_planned(module))


LAYERS = """
builtin.module {{
  hir.weight @w "w.{{layer}}" : tensor<32x32xf32>
  func.func private @layer(%x: tensor<1x32xf32>) -> tensor<1x32xf32> {{
    %w = hir.load_weight @w : tensor<32x32xf32>
    %y = hir.linear %x, %w : tensor<1x32xf32>, tensor<32x32xf32> -> tensor<1x32xf32>
    %z = mir.binary add %x, %y : tensor<1x32xf32>
    func.return %z : tensor<1x32xf32>
  }}
  func.func @main(%x: tensor<1x32xf32>) -> tensor<1x32xf32> {{
    %y = hir.repeat @layer(%x) layers 0 to {layers} : (tensor<1x32xf32>) -> tensor<1x32xf32>
    func.return %y : tensor<1x32xf32>
  }}
}}
"""


def test_layers_are_planned_once():
    def operations(layers: int) -> int:
        module = fuzz.parsed(LAYERS.format(layers=layers))
        run_to(module, "lir")
        assert check_planned(module) == []
        return sum(1 for _ in module.walk())

    assert operations(2) == operations(100) == operations(10**6)


def test_equal_launches_share_a_kernel():
    module = fuzz.parsed(LAYERS.format(layers=3).replace("layers 0", "layers 1"))
    run_to(module, "lir")
    names = [op.sym_name.data for op in module.ops if isinstance(op, lir.KernelOp)]
    assert len(names) == len(set(names)) == 3
    kernel = next(op for op in module.ops if isinstance(op, lir.KernelOp) and "add" in str(op))
    assert [type(op) for op in kernel.body.block.ops] == [mir.MatmulOp, mir.BinaryOp, mir.YieldOp]
