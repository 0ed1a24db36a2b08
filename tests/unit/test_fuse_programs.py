"""The passes that group and move operations, on random programs with layers, branches and loops."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from primitive_programs import Program, inputs
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from rlx.dialects import mir
from rlx.passes.derive_phases import DerivePhasesPass
from rlx.passes.diagnostics import verify
from rlx.passes.fuse_attention import FuseAttentionPass
from rlx.passes.fuse_epilogue import FuseEpiloguePass
from rlx.passes.fuse_norm import FuseNormPass
from rlx.passes.fuse_residual_norm import FuseResidualNormPass
from rlx.passes.fuse_rows import FuseRowsPass
from rlx.passes.fuse_shared_input import FuseSharedInputPass
from rlx.passes.fusion_report import fusion_report
from rlx.passes.hoist_params import HoistParamsPass
from rlx.passes.pipelines import run_to
from rlx.passes.set_precision import SetPrecisionPass
from rlx.passes.source import context, parse
from rlx.passes.verify_stage import verify_stage
from rlx.reference import Reference

FUSIONS = (
    FuseAttentionPass,
    FuseSharedInputPass,
    FuseEpiloguePass,
    FuseNormPass,
    FuseResidualNormPass,
    FuseRowsPass,
)
PASSES = (*(p() for p in FUSIONS), HoistParamsPass(), DerivePhasesPass())


@cache
def _program(seed: int) -> ModuleOp:
    return Program(seed, exact=seed % 2 == 0, steps=16).module


def program(seed: int) -> ModuleOp:
    # A copy has none of the operations that were tried and then left out.
    return _program(seed).clone()


def apply(module: ModuleOp, *passes: ModulePass) -> ModuleOp:
    for p in passes:
        p.apply(Context(), module)
        verify(module)
    return module


def run(module: ModuleOp, seed: int, special: bool) -> dict[str, np.ndarray]:
    seq = 1 + seed % 8
    with np.errstate(all="ignore"):
        return Reference(module, {}).run(inputs(seed, seq, special), {"seq": seq})


@pytest.mark.parametrize("seed", range(24))
def test_programs_give_the_same_bits(seed: int):
    order = np.random.default_rng(seed).permutation(len(PASSES) - 1)
    module = apply(program(seed), *(PASSES[i] for i in order), DerivePhasesPass())
    verify_stage(module, "mir")
    for special in (False, True):
        wanted, given = run(program(seed), seed, special), run(module, seed, special)
        for name in wanted:
            np.testing.assert_array_equal(given[name], wanted[name], strict=True)


def test_programs_fuse_something_and_count_bytes_that_add_up():
    fused: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for seed in range(1, 24, 2):
        module = apply(program(seed), *(p(report=True) for p in FUSIONS))
        for entry in fusion_report(module):
            fused[entry.rule] += entry.fused
            if entry.fused:
                assert entry.score_ns >= 0
                assert entry.launches_after <= entry.launches_before
            else:
                reasons[entry.reason] += 1
    assert fused["fuse-rows"] > 40
    assert fused["fuse-epilogue"] > 0
    assert reasons["they stand in different blocks"] > 0


def test_the_order_of_a_kernel_is_one_of_its_operations():
    for seed in range(12):
        module = apply(program(seed), FuseRowsPass())
        kernels = [op for op in module.walk() if isinstance(op, mir.KernelOp)]
        for kernel in kernels:
            assert all(not op.regions for op in kernel.ops)
            assert kernel.results
        # Once more changes nothing.
        before = str(module)
        assert str(apply(module, FuseRowsPass())) == before


WEIGHTS = """
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1 to 8>} {
  hir.weight @w "w" : tensor<4x8xf32>
  func.func @main(%x: tensor<8x4xf32> {rlx.name = "x"}, %s: tensor<?xf32, #hir.dims<seq>>
      {rlx.name = "s"}) -> (tensor<8x4xf32> {rlx.name = "y"}, tensor<?xf32, #hir.dims<seq>>
      {rlx.name = "z"}) {
    %w = hir.load_weight @w : tensor<4x8xf32>
    %p = mir.pack %w : tensor<4x8xf32> -> tensor<4x8xf32>
    %e = mir.unary exp %p : tensor<4x8xf32>
    %n = mir.unary neg %e : tensor<4x8xf32>
    %t = mir.transpose %n [1, 0] : tensor<4x8xf32> -> tensor<8x4xf32>
    %y = mir.binary mul %x, %t : tensor<8x4xf32>
    %i = mir.iota axis 0 : tensor<?xf32, #hir.dims<seq>>
    %j = mir.unary exp %i : tensor<?xf32, #hir.dims<seq>>
    %z = mir.binary add %s, %j : tensor<?xf32, #hir.dims<seq>>
    func.return %y, %z : tensor<8x4xf32>, tensor<?xf32, #hir.dims<seq>>
  }
}"""


def test_what_weights_decide_stays_in_the_prologue():
    module = parse(context(), WEIGHTS.encode(), "weights.mlir")
    run_to(module, "mir")
    launches = [op for op in module.walk() if isinstance(op, mir.KernelOp | mir.BinaryOp)]
    kernels = [op for op in launches if isinstance(op, mir.KernelOp)]
    held = [[type(op) for op in kernel.ops] for kernel in kernels]
    # exp, neg and the transpose once; the product alone; what has the size of a step at each step.
    assert held == [
        [mir.UnaryOp, mir.UnaryOp, mir.TransposeOp],
        [mir.IotaOp, mir.UnaryOp, mir.BinaryOp],
    ]
    phases = [str(kernel.attributes[mir.PHASE].data) for kernel in kernels]
    assert phases == ["prologue", "steady_state"]


@pytest.mark.parametrize("policy", ["always-f16", "auto-mixed", "auto-mixed-bf16"])
def test_a_policy_before_the_fusions_stays_what_it_was(policy: str):
    for seed in range(6):
        rounded = apply(program(seed), SetPrecisionPass(policy))
        wanted = run(rounded, seed, special=False)
        given = run(apply(rounded, *PASSES), seed, special=False)
        for name in wanted:
            np.testing.assert_array_equal(given[name], wanted[name], strict=True)
