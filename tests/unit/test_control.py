"""Branches and loops that values decide: planned, checked and run, against the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels import levels, on_threads
from xdsl.dialects.builtin import ModuleOp

import rlx
from rlx.dialects import lir
from rlx.dialects.ops import i64_attr
from rlx.passes.barriers import insert_barriers
from rlx.passes.pipelines import run_to
from rlx.passes.source import context, parse
from rlx.passes.verify_plan import check_planned
from rlx.reference import Reference

IF = """
  func.func @main(%x: tensor<5x7xf32> {rlx.name = "x"}, %c: tensor<i1> {rlx.name = "c"})
      -> (tensor<5x7xf32> {rlx.name = "y"}, tensor<5x7xf32> {rlx.name = "z"}) {
    %e = mir.unary neg %x : tensor<5x7xf32>
    %y, %z = mir.if %c -> (tensor<5x7xf32>, tensor<5x7xf32>) {
      %a = mir.binary add %e, %x : tensor<5x7xf32>
      %b = mir.unary abs %a : tensor<5x7xf32>
      mir.yield %b, %e : tensor<5x7xf32>, tensor<5x7xf32>
    } else {
      %a = mir.binary mul %e, %x : tensor<5x7xf32>
      mir.yield %a, %a : tensor<5x7xf32>, tensor<5x7xf32>
    } : tensor<i1>
    %w = mir.binary sub %y, %e : tensor<5x7xf32>
    func.return %w, %z : tensor<5x7xf32>, tensor<5x7xf32>
  }
"""

WHILE = """
  func.func @main(%x: tensor<5x7xf32> {rlx.name = "x"}, %n: tensor<i32> {rlx.name = "n"})
      -> (tensor<5x7xf32> {rlx.name = "y"}, tensor<5x7xf32> {rlx.name = "z"},
          tensor<i32> {rlx.name = "i"}) {
    %zero = mir.constant dense<0> : tensor<i32>
    %one = mir.constant dense<1> : tensor<i32>
    %half = mir.constant dense<0.5> : tensor<5x7xf32>
    %i, %y, %z = mir.while (%zero, %x, %x) {
    ^bb0(%i: tensor<i32>, %y: tensor<5x7xf32>, %z: tensor<5x7xf32>):
      %c = mir.compare lt %i, %n : tensor<i32> -> tensor<i1>
      mir.yield %c : tensor<i1>
    } do {
    ^bb0(%i: tensor<i32>, %y: tensor<5x7xf32>, %z: tensor<5x7xf32>):
      %j = mir.binary add %i, %one : tensor<i32>
      %a = mir.binary mul %y, %half : tensor<5x7xf32>
      %b = mir.binary add %a, %x : tensor<5x7xf32>
      mir.yield %j, %z, %b : tensor<i32>, tensor<5x7xf32>, tensor<5x7xf32>
    } : (tensor<i32>, tensor<5x7xf32>, tensor<5x7xf32>)
      -> (tensor<i32>, tensor<5x7xf32>, tensor<5x7xf32>)
    func.return %y, %z, %i : tensor<5x7xf32>, tensor<5x7xf32>, tensor<i32>
  }
"""

NESTED = """
  hir.weight @w "w{layer}" : tensor<7x7xf32>
  func.func private @layer(%x: tensor<5x7xf32>, %n: tensor<i32>) -> tensor<5x7xf32> {
    %w = hir.load_weight @w : tensor<7x7xf32>
    %one = mir.constant dense<1> : tensor<i32>
    %two = mir.constant dense<2> : tensor<i32>
    %zero = mir.constant dense<0> : tensor<i32>
    %i, %y = mir.while (%zero, %x) {
    ^bb0(%i: tensor<i32>, %y: tensor<5x7xf32>):
      %c = mir.compare lt %i, %n : tensor<i32> -> tensor<i1>
      mir.yield %c : tensor<i1>
    } do {
    ^bb0(%i: tensor<i32>, %y: tensor<5x7xf32>):
      %j = mir.binary add %i, %one : tensor<i32>
      %m = mir.binary mod %i, %two : tensor<i32>
      %odd = mir.compare eq %m, %one : tensor<i32> -> tensor<i1>
      %r = mir.if %odd -> (tensor<5x7xf32>) {
        %d = mir.dot %y, %w : tensor<5x7xf32>, tensor<7x7xf32> -> tensor<5x7xf32>
        %t = mir.unary tanh %d : tensor<5x7xf32>
        mir.yield %t : tensor<5x7xf32>
      } else {
        %k, %v = mir.while (%zero, %y) {
        ^bb0(%k: tensor<i32>, %v: tensor<5x7xf32>):
          %c = mir.compare lt %k, %two : tensor<i32> -> tensor<i1>
          mir.yield %c : tensor<i1>
        } do {
        ^bb0(%k: tensor<i32>, %v: tensor<5x7xf32>):
          %l = mir.binary add %k, %one : tensor<i32>
          %s = mir.binary add %v, %x : tensor<5x7xf32>
          mir.yield %l, %s : tensor<i32>, tensor<5x7xf32>
        } : (tensor<i32>, tensor<5x7xf32>) -> (tensor<i32>, tensor<5x7xf32>)
        mir.yield %v : tensor<5x7xf32>
      } : tensor<i1>
      mir.yield %j, %r : tensor<i32>, tensor<5x7xf32>
    } : (tensor<i32>, tensor<5x7xf32>) -> (tensor<i32>, tensor<5x7xf32>)
    func.return %y : tensor<5x7xf32>
  }
  func.func @main(%x: tensor<5x7xf32> {rlx.name = "x"}, %n: tensor<i32> {rlx.name = "n"})
      -> (tensor<5x7xf32> {rlx.name = "y"}) {
    %three = mir.constant dense<3> : tensor<i32>
    %big = mir.compare gt %n, %three : tensor<i32> -> tensor<i1>
    %y = mir.if %big -> (tensor<5x7xf32>) {
      mir.yield %x : tensor<5x7xf32>
    } else {
      %r = hir.repeat @layer(%x, %n) layers 0 to 3 : (tensor<5x7xf32>, tensor<i32>)
        -> tensor<5x7xf32>
      mir.yield %r : tensor<5x7xf32>
    } : tensor<i1>
    func.return %y : tensor<5x7xf32>
  }
"""


def module_of(text: str) -> ModuleOp:
    return parse(context(), f"builtin.module {{\n{text}}}\n".encode(), "control")


def planned(text: str) -> ModuleOp:
    module = module_of(text)
    run_to(module, "lir")
    return module


def check(
    text: str, runs: Sequence[Mapping[str, Any]], weights: Mapping[str, Any] | None = None
) -> None:
    """Compare machine code at every level, and on several threads, with the reference."""
    module = module_of(text)
    reference = Reference(module, weights or {})
    wanted = [reference.run(inputs) for inputs in runs]
    assert check_planned(planned(text)) == []
    for level in levels():
        results = []
        for f in on_threads(module, level, weights=weights):
            bits: list[bytes] = []
            for inputs, want in zip(runs, wanted, strict=True):
                got = f(**inputs)
                got = got if isinstance(got, tuple) else (got,)
                for name, value in zip(want, got, strict=True):
                    np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-6)
                bits += [v.tobytes() for v in got]
            results.append(bits)
        assert all(r == results[0] for r in results)


def test_one_branch_runs():
    x = np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32)
    check(IF, [{"x": x, "c": np.array(holds)} for holds in (True, False)])


def test_a_loop_runs_as_long_as_its_condition_holds():
    x = np.random.default_rng(2).standard_normal((5, 7)).astype(np.float32)
    check(WHILE, [{"x": x, "n": np.array(turns, np.int32)} for turns in (-1, 0, 1, 2, 7)])


def test_branches_in_loops_in_layers_in_branches():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((5, 7)).astype(np.float32)
    weights = {f"w{i}": rng.standard_normal((7, 7)).astype(np.float32) for i in range(3)}
    check(NESTED, [{"x": x, "n": np.array(turns, np.int32)} for turns in range(5)], weights)


def test_a_branch_makes_its_result_where_it_is_wanted():
    (op,) = [op for op in planned(IF).walk() if isinstance(op, lir.IfOp)]
    kernels = [
        [o.kernel.root_reference.data for o in region.block.ops if isinstance(o, lir.LaunchOp)]
        for region in op.regions
    ]
    # The second value that the else branch yields is the first: it alone is copied.
    assert [sum(k == "copy" for k in names) for names in kernels] == [1, 1]


@pytest.mark.parametrize("text", [IF, WHILE, NESTED])
def test_every_barrier_is_needed(text: str):
    """Without any one barrier the check of the plan finds what may go wrong."""
    module = planned(text)
    barriers = [i for i, op in enumerate(module.walk()) if isinstance(op, lir.BarrierOp)]
    assert barriers
    found = 0
    for index in barriers:
        less = module.clone()
        op = list(less.walk())[index]
        op.detach()
        op.erase()
        found += any("missing barrier" in problem for problem in check_planned(less))
    # A loop's turn always ends in one, which the next turn may not need.
    loops = sum(isinstance(op, lir.WhileOp) for op in module.walk())
    assert len(barriers) - loops <= found <= len(barriers)


@pytest.mark.parametrize("text", [IF, WHILE])
def test_a_plan_that_passes_its_check_gives_the_same_results(text: str):
    """Every slot is moved onto every other one: the plan is refused, or it is as good as before."""
    module = planned(text)
    slots = [i for i, op in enumerate(module.walk()) if isinstance(op, lir.SlotOp)]
    rng = np.random.default_rng(4)
    x = rng.standard_normal((5, 7)).astype(np.float32)
    inputs = [{"c": np.array(c)} for c in (True, False)]
    if text is WHILE:
        inputs = [{"n": np.array(n, np.int32)} for n in (0, 1, 4)]
    wanted = [[v.tobytes() for v in rlx.compile(module)(x=x, **given)] for given in inputs]
    refused = 0
    for a in slots:
        for b in slots:
            moved = module.clone()
            ops = list(moved.walk())
            first, second = ops[a], ops[b]
            assert isinstance(first, lir.SlotOp)
            assert isinstance(second, lir.SlotOp)
            if second.offset == first.offset:
                continue
            first.offset = second.offset
            program = first.parent_op()
            assert isinstance(program, lir.ProgramOp)
            end = max(
                o.offset.value.data + o.size.value.data for o in ops if isinstance(o, lir.SlotOp)
            )
            program.arena_size = i64_attr(max(end, program.arena_size.value.data))
            if check_planned(moved):
                refused += 1
                continue
            f = rlx.compile(moved)
            assert [[v.tobytes() for v in f(x=x, **given)] for given in inputs] == wanted
    assert refused or text is IF


HANDED_ON = """
  lir.kernel @neg {
  ^bb0(%0: tensor<1xi32>):
    %1 = mir.unary neg %0 : tensor<1xi32>
    mir.yield %1 : tensor<1xi32>
  }
  lir.program @main arena 256 lower_bound 0 alignment 64 state 0 weights 0 fingerprint "" {
    %ids = lir.input "ids" index 0 : tensor<1xi32>
    %c = lir.input "c" index 1 : tensor<i1>
    %token = lir.output "token" index 0 : tensor<1xi32>
    %a = lir.slot offset 0 size 4 : tensor<1xi32>
    %b = lir.slot offset 64 size 4 : tensor<1xi32>
    lir.launch @neg steady_state ins(%ids : tensor<1xi32>) outs(%token : tensor<1xi32>)
    lir.loop 0 to 1 {
    ^bb0(%layer: index):
      lir.if %c : tensor<i1> {
        lir.launch @neg steady_state ins(%a : tensor<1xi32>) outs(%b : tensor<1xi32>)
        lir.launch @neg steady_state ins(%b : tensor<1xi32>) outs(%a : tensor<1xi32>)
      } else {
      ^bb1:
      }
    }
  }
"""


def test_a_barrier_that_a_branch_may_skip_does_not_end_a_step():
    module = module_of(HANDED_ON)
    (program,) = [op for op in module.ops if isinstance(op, lir.ProgramOp)]
    kernels = [op for op in module.ops if isinstance(op, lir.KernelOp)]
    insert_barriers(program.body.block, kernels, {"ids": "token"})
    assert sum(isinstance(op, lir.BarrierOp) for op in module.walk()) == 2
    # The input that the first launch reads is written when the step hands its token on.
    assert isinstance(program.body.block.last_op, lir.BarrierOp)


def test_the_example_that_iterates_until_it_settles():
    text = (Path(rlx.__file__).parent.parent / "examples" / "power.mlir").read_text()
    rng = np.random.default_rng(5)
    w = rng.standard_normal((64, 64)).astype(np.float32)
    x = rng.standard_normal((64, 1)).astype(np.float32)
    f = rlx.compile(text, {"w": w})
    turns = []
    for tolerance in (1.0, 1e-2):
        value, count = f(x, np.array(tolerance, np.float32))
        turns.append(int(count))
    np.testing.assert_allclose(value, np.linalg.norm(w, 2) ** 2, rtol=1e-2)
    assert 1 < turns[0] < turns[1] < 200
