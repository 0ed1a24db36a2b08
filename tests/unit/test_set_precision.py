"""`set-precision`: what each policy rounds, by how much results differ, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from rlx.dialects import mir
from rlx.dialects.common import element_of
from rlx.errors import RlxError
from rlx.passes.diagnostics import verify
from rlx.passes.fuse_rows import FuseRowsPass
from rlx.passes.set_precision import GROUPS, POLICIES, STORED, Policy, SetPrecisionPass, group_of
from rlx.passes.source import context, parse
from rlx.reference import Reference

X, Y = "tensor<16x16xf32>", "tensor<16xf32>"
TEXT = f"""
builtin.module {{
  func.func @main(%x: {X} {{rlx.name = "x"}}, %w: {X} {{rlx.name = "w"}})
      -> ({X} {{rlx.name = "y"}}) {{
    %d = mir.dot %x, %w : {X}, {X} -> {X}
    %e = mir.unary tanh %d : {X}
    %t = mir.transpose %e [1, 0] : {X} -> {X}
    %m = mir.reduce max %t axes [1] : {X} -> {Y}
    %b = mir.broadcast %m : {Y} -> {X}
    %y = mir.binary sub %t, %b : {X}
    func.return %y : {X}
  }}
}}"""
UNIT = {"f16": 2.0**-11, "bf16": 2.0**-8}
"""Half the distance from 1 to the next number of a type: what a rounding changes, relatively."""


def module() -> ModuleOp:
    return parse(context(), TEXT.encode(), "precision.mlir")


def rounded(**options: str) -> ModuleOp:
    made = module()
    SetPrecisionPass(**options).apply(Context(), made)
    verify(made)
    return made


def run(made: ModuleOp) -> np.ndarray:
    rng = np.random.default_rng(5)
    inputs = {n: rng.standard_normal((16, 16)).astype(np.float32) / 4 for n in ("x", "w")}
    return Reference(made, {}).run(inputs)["y"]


def stored(made: ModuleOp) -> dict[str, str]:
    """What was rounded, by the operation that makes it -> the type."""
    casts = [op for op in made.walk() if isinstance(op, mir.CastOp)]
    down = [op for op in casts if element_of(op.result.type) in (STORED["f16"], STORED["bf16"])]
    # Each is cast up again, after a fusion in every kernel that reads it.
    assert len(casts) >= 2 * len(down)
    return {op.input.owner.name[4:]: str(element_of(op.result.type)) for op in down}


def test_f32_changes_nothing():
    for options in ({"policy": "always-f32"}, {}, {"policy": "custom", "compute": "f32"}):
        assert str(rounded(**options)) == str(module())


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (
            {"policy": "always-f16"},
            {"dot": "f16", "unary": "f16", "transpose": "f16", "reduce": "f16"},
        ),
        ({"policy": "auto-mixed"}, {"dot": "f16", "unary": "f16", "transpose": "f16"}),
        ({"policy": "auto-mixed-bf16"}, {"dot": "bf16", "unary": "bf16", "transpose": "bf16"}),
        ({"compute": "bf16", "reduction": "f16"}, {"dot": "bf16", "reduce": "f16"}),
        ({"policy": "custom", "elementwise": "bf16"}, {"unary": "bf16"}),
    ],
)
def test_what_is_rounded_and_by_how_much(options: dict[str, str], wanted: dict[str, str]):
    made = rounded(**options)
    assert stored(made) == wanted
    given, exact = run(made), run(module())
    # tanh and the maximum pass errors on at most as they are; values are below 2.
    most = sum(2 * UNIT[name] for name in wanted.values()) * 2
    assert 0 < np.abs(given - exact).max() <= most


def test_the_conservative_policy_leaves_what_reductions_read():
    made = rounded(policy="auto-mixed-conservative")
    (reduce,) = (op for op in made.walk() if isinstance(op, mir.ReduceOp))
    assert isinstance(reduce.input.owner, mir.TransposeOp)
    (reduce,) = (op for op in rounded(policy="auto-mixed").walk() if isinstance(op, mir.ReduceOp))
    assert isinstance(reduce.input.owner, mir.CastOp)


def test_twice_is_once():
    made = rounded(policy="auto-mixed")
    before = str(made)
    SetPrecisionPass(policy="auto-mixed").apply(Context(), made)
    assert str(made) == before


def test_a_pair_of_casts_in_one_kernel_still_rounds():
    made = rounded(elementwise="bf16", data_movement="bf16")
    before = run(made)
    FuseRowsPass().apply(Context(), made)
    verify(made)
    assert stored(made) == {"unary": "bf16", "transpose": "bf16"}
    np.testing.assert_array_equal(run(made), before)


def test_an_operation_has_one_group():
    groups = [op for ops in GROUPS.values() for op in ops]
    assert len(set(groups)) == len(groups)
    for name, ops in GROUPS.items():
        assert hasattr(Policy(), name)
        assert all(issubclass(op, tuple(mir.Mir.operations)) for op in ops)
    assert {group_of(op) for op in module().walk()} == {None, *GROUPS}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "fastest"}, r"expected a policy of always-f32, .*, custom, got 'fastest'"),
        ({"compute": "f64"}, r"expected compute to be one of f32, f16, bf16, got 'f64'"),
        ({"policy": "auto-mixed", "compute": "f16"}, r"go with policy=custom, got 'auto-mixed'"),
    ],
)
def test_options_that_are_not_known(options: dict[str, str], message: str):
    with pytest.raises(RlxError, match=message):
        rounded(**options)


def test_policies_are_the_contract_s():
    assert set(POLICIES) == {
        *("always-f32", "always-f16"),
        *("auto-mixed-conservative", "auto-mixed", "auto-mixed-bf16"),
    }
