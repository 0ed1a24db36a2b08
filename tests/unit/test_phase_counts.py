"""Phases decide how often a launch runs: phases set by hand, launches counted."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping

import numpy as np

from rlx.compiler import compile_text
from rlx.lowering.abi import Sampling
from rlx.lowering.target import Target
from rlx.passes.pipelines import run_to
from rlx.passes.source import context, parse
from rlx.runtime.jit import Engine, compile_object
from rlx.runtime.memory import Segment
from rlx.runtime.program import Program
from rlx.runtime.threads import Team

TEXT = """
builtin.module attributes {{rlx.dims = #hir.dim_table<past = 0 to 99, one = 1>,
    rlx.carry = {{ids = "token"}}, rlx.advance = {{past = "one"}}}} {{
  hir.weight @table "table" : tensor<8x16xf32>
  func.func @main(%ids: tensor<1xi32> {{rlx.name = "ids"}}, %p: tensor<8xi32> {{rlx.name = "p"}})
      -> (tensor<1xi32> {{rlx.name = "token"}}, tensor<1x16xf32> {{rlx.name = "last"}}) {{
    %w = mir.load_weight @table : tensor<8x16xf32>
    %packed = mir.pack %w : tensor<8x16xf32> -> tensor<8x16x!hir.packed<f32>>
    %cos, %sin = mir.rope_table base 100.0 : tensor<100x16xf32>, tensor<100x16xf32>
    %double = mir.binary add %cos, %cos : tensor<100x16xf32> {{phase = #mir<phase {double}>}}
    %x = mir.embedding %ids, %packed : tensor<1xi32>, tensor<8x16x!hir.packed<f32>>
        -> tensor<1x16xf32>
    %turned = mir.rope %x, %double, %sin start "past" head_dim 16 : tensor<1x16xf32>,
        tensor<100x16xf32>, tensor<100x16xf32>
    %last = mir.unary neg %turned : tensor<1x16xf32> {{phase = #mir<phase {last}>}}
    %token = mir.sample %turned, %p : tensor<1x16xf32>, tensor<8xi32> -> tensor<1xi32>
    func.return %token, %last : tensor<1xi32>, tensor<1x16xf32>
  }}
}}
"""


def counted(text: str) -> tuple[str, list[str]]:
    """Return LLVM IR whose kernels count their calls, and the kernels in the order of counts."""
    kernels: list[str] = []

    def count(match: re.Match[str]) -> str:
        kernels.append(match[1])
        place = f"getelementptr (i64, ptr @counts, i64 {len(kernels) - 1})"
        old = f"old{len(kernels)}"
        return f"{match[0]}  %{old} = atomicrmw add ptr {place}, i64 1 seq_cst\n"

    text = re.sub(r"define internal void @k_(\w+)\([^)]*\) #0 \{\nentry:\n", count, text)
    tail = f"""
@counts = internal global [{len(kernels)} x i64] zeroinitializer
define i64 @count(i64 %i) {{
  %p = getelementptr i64, ptr @counts, i64 %i
  %n = load i64, ptr %p
  ret i64 %n
}}
"""
    return text + tail, kernels


def run_counted(calls: list[int], **phases: str) -> Mapping[str, int]:
    """Run calls of so many steps each; return how often each kernel ran on one thread."""
    module = parse(context(), TEXT.format(**phases).encode(), "phases")
    target = Target.host()
    manifest, text = compile_text(module, target)
    text, kernels = counted(text)
    code = compile_object(text, target)
    team = Team(1)
    program = Program(manifest, code, team, Segment(64))
    weights = Segment(max(manifest.weight_segment_bytes, 64))
    table = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)
    program.pack(lambda _: table.reshape(-1).view(np.uint8), weights)
    program.start(weights)
    ids, token = np.array([3], np.int32), np.zeros(1, np.int32)
    last = np.zeros((1, 16), np.float32)
    program.bind_input("ids", ids)
    program.bind_input("p", np.frombuffer(Sampling(seed=1).pack(), np.int32).copy())
    program.bind_output("token", token)
    program.bind_output("last", last)
    tokens = np.zeros(64, np.int32)
    program.bind_steps(tokens, [])
    for i, steps in enumerate(calls):
        assert program.step({"past": sum(calls[:i])}, steps) == steps
    engine: Engine = program._engine
    count = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(engine.address("count"))
    return {kernel: count(i) for i, kernel in enumerate(kernels)}


def test_the_prologue_runs_once_and_each_step_its_own():
    counts = run_counted([1, 5, 2], double="prologue", last="epilogue")
    assert counts == {
        "pack": 1,
        "rope_table": 1,
        "add": 1,
        "embedding": 8,
        "rope": 8,
        "neg": 8,
        "sample": 8,
    }


def test_a_phase_set_by_hand_wins_over_the_rule():
    counts = run_counted([4], double="steady_state", last="epilogue")
    assert counts["add"] == 4
    assert counts["rope_table"] == 1


def test_the_epilogue_comes_after_the_steady_state():
    module = parse(context(), TEXT.format(double="prologue", last="epilogue").encode(), "phases")
    run_to(module, "lir")
    phases = re.findall(r"lir.launch @\w+ (\w+)", str(module))
    order = ["prologue", "steady_state", "epilogue"]
    assert phases == sorted(phases, key=order.index)
    assert re.search(r"lir.launch @neg epilogue", str(module))
