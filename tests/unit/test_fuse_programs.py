"""The passes that group and move operations, on random programs with layers, branches and loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from primitive_programs import Program, inputs
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

import rlx
from rlx.dialects import mir
from rlx.errors import RlxError
from rlx.lowering.tensor_program import refusal
from rlx.passes.derive_phases import DerivePhasesPass
from rlx.passes.diagnostics import verify
from rlx.passes.fuse_attention import FuseAttentionPass
from rlx.passes.fuse_common import MAX_OPERATIONS
from rlx.passes.fuse_epilogue import FuseEpiloguePass
from rlx.passes.fuse_norm import FuseNormPass
from rlx.passes.fuse_prologue import FuseProloguePass
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
    FuseProloguePass,
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
def test_a_policy_before_the_fusions_stays_what_it_was(
    policy: str, fuzz_count: Callable[[int, int], int]
):
    for seed in range(fuzz_count(6, 3)):
        rounded = apply(program(seed), SetPrecisionPass(policy))
        wanted = run(rounded, seed, special=False)
        given = run(apply(rounded, *PASSES), seed, special=False)
        for name in wanted:
            np.testing.assert_array_equal(given[name], wanted[name], strict=True)


# Programs that would fuse without an end


def compiled(body: list[str], result: str, dims: str) -> tuple[ModuleOp, Callable[..., np.ndarray]]:
    """A program of one input of some dimensions: after the fusions, and compiled."""
    type_ = f"tensor<{dims}xf32>"
    text = (
        f'func.func @main(%x: {type_} {{rlx.name = "x"}}) -> ({type_} {{rlx.name = "y"}}) {{\n'
        + "\n".join(body)
        + f"\nfunc.return %{result} : {type_}\n}}"
    )
    module = apply(parse(context(), text.encode(), "test"), FuseRowsPass())
    for kernel in module.walk():
        if isinstance(kernel, mir.KernelOp):
            assert len(list(kernel.ops)) <= MAX_OPERATIONS
            assert refusal(list(kernel.ops), kernel.yielded.arguments) is None
    return module, rlx.compile(text, threads=1)


def kernels(module: ModuleOp) -> int:
    return sum(isinstance(op, mir.KernelOp) for op in module.walk())


def test_parts_of_parts_of_concatenations_are_several_kernels():
    # One kernel would hold 2^12 branches.
    body: list[str] = []
    whole, half, last = "tensor<8x8xf32>", "tensor<8x4xf32>", "x"
    for i in range(12):
        cut = f"mir.slice %{last} starts [0, {{}}] steps [1, 1] : {whole} -> {half}"
        body += [
            f"%s{i} = {cut.format(4)}",
            f"%u{i} = {cut.format(0)}",
            f"%t{i} = mir.concat axis 1 (%s{i}, %u{i}) : ({half}, {half}) -> {whole}",
            f"%a{i} = mir.binary sub %{last}, %t{i} : {whole}",
        ]
        last = f"a{i}"
    module, run_ = compiled(body, last, "8x8")
    assert 2 <= kernels(module) <= 12
    x = np.random.default_rng(12).standard_normal((8, 8)).astype(np.float32)
    wanted = x
    for _ in range(12):
        wanted = wanted - np.roll(wanted, 4, axis=1)
    np.testing.assert_array_equal(run_(x), wanted)


def test_a_long_chain_of_maps_is_several_kernels(fuzz_count: Callable[[int, int], int]):
    # Sines take long to compile: a sample has few.
    sine = fuzz_count(2, 20)
    body = [
        f"%c{i} = mir.unary {'neg' if i % sine else 'sin'} %{f'c{i - 1}' if i else 'x'} "
        ": tensor<64xf32>"
        for i in range(600)
    ]
    module, run_ = compiled(body, "c599", "64")
    assert 600 / MAX_OPERATIONS <= kernels(module) <= 2 * 600 / MAX_OPERATIONS
    x = np.random.default_rng(600).standard_normal(64).astype(np.float32)
    wanted = x.astype(np.float64)
    for i in range(600):
        wanted = -wanted if i % sine else np.sin(wanted)
    np.testing.assert_allclose(run_(x), wanted, rtol=1e-4)


def test_what_lies_between_launches_is_not_looked_at(monkeypatch: pytest.MonkeyPatch):
    looked = 0

    def captures(op: Operation) -> list[SSAValue]:
        nonlocal looked
        looked += 1
        return found(op)

    found = mir.captures
    monkeypatch.setattr(mir, "captures", captures)
    type_, counts = "tensor<64xf32>", list[int]()
    for n in (32, 128):
        # A sum of n values, each of which is made far before it is used.
        body = [f"%a{i} = mir.unary neg %x : {type_}" for i in range(n)]
        for i in range(1, n):
            body.append(f"%a{n + i - 1} = mir.binary add %a{2 * i - 2}, %a{2 * i - 1} : {type_}")
        text = f"func.func @main(%x: {type_}) -> {type_} {{\n" + "\n".join(
            [*body, f"func.return %a{2 * n - 2} : {type_}", "}"]
        )
        looked = 0
        apply(parse(context(), text.encode(), "test"), FuseRowsPass())
        counts.append(looked)
    assert counts[1] <= 5 * counts[0]


@pytest.mark.parametrize("n", [400, 2000])
def test_a_kernel_by_hand_that_is_too_large_is_an_error_that_says_so(n: int):
    body = ["%k = mir.kernel -> (tensor<64xf32>) {"]
    body += [
        f"%c{i} = mir.unary abs %{f'c{i - 1}' if i else 'x'} : tensor<64xf32>" for i in range(n)
    ]
    body += [f"mir.yield %c{n - 1} : tensor<64xf32>", "}"]
    type_ = "tensor<64xf32>"
    text = (
        f'func.func @main(%x: {type_} {{rlx.name = "x"}}) -> ({type_} {{rlx.name = "y"}}) {{\n'
        + "\n".join([*body, f"func.return %k : {type_}", "}"])
    )
    with pytest.raises(RlxError, match=f"kernel of {n} operations.*too many operations"):
        rlx.compile(text, threads=1)
