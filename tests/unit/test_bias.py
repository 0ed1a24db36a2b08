"""Products with biases, numbers and activations: one launch, and the reference's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz.checking import check, parsed
from fuzz.programs import Case
from fuzz.weights import Weights

from rlx.dialects import mir
from rlx.passes.pipelines import run_to


def text(rows: str, n: int) -> str:
    x, y = (
        f"tensor<1x{d}xf32>" if rows == "1" else f"tensor<?x{d}xf32, #hir.dims<seq, _>>"
        for d in (32, n)
    )
    w, v, b = f"tensor<{n}x32xf32>", f"tensor<{n}xf32>", f"tensor<1x{n}xf32>"
    return f"""
builtin.module attributes {{rlx.dims = #hir.dim_table<seq = 1 to 7>}} {{
  hir.weight @w "w" : {w}
  func.func @main(%x: {x} {{rlx.name = "x"}}, %v: {v} {{rlx.name = "v"}},
      %u: {b} {{rlx.name = "u"}})
      -> ({y} {{rlx.name = "y"}}) {{
    %w = hir.load_weight @w : {w}
    %d = hir.linear %x, %w : {x}, {w} -> {y}
    %vb = mir.broadcast %v : {v} -> {y}
    %s = mir.binary add %d, %vb : {y}
    %g = mir.unary gelu %s : {y}
    %c = mir.constant dense<0.3> : tensor<f32>
    %cb = mir.broadcast %c : tensor<f32> -> {y}
    %m = mir.binary mul %cb, %g : {y}
    %ub = mir.broadcast %u : {b} -> {y}
    %y = mir.binary sub %m, %ub : {y}
    func.return %y : {y}
  }}
}}"""


@pytest.mark.parametrize("rows", ["1", "seq"])
@pytest.mark.parametrize("n", [32, 24, 5])
def test_biases_and_numbers_are_read_in_the_epilogue(rows: str, n: int):
    rng = np.random.default_rng(n)
    weights = Weights(rng)
    weights.add("w", (n, 32))
    count = 1 if rows == "1" else 5
    inputs = {
        "x": rng.standard_normal((count, 32)).astype(np.float32),
        "v": rng.standard_normal(n).astype(np.float32),
        "u": rng.standard_normal((1, n)).astype(np.float32),
    }
    case = Case(text(rows, n), weights, [({"seq": count}, inputs)])
    module = parsed(case.text)
    run_to(module, "mir")
    kernels = [op for op in module.walk() if isinstance(op, mir.KernelOp)]
    assert len(kernels) == 1
    # Of one row a bias is a view; of several its broadcast is part of the kernel.
    inside = [op for op in module.walk() if isinstance(op, mir.BroadcastOp | mir.BinaryOp)]
    assert len(inside) >= 4
    assert all(op.parent_op() is kernels[0] for op in inside)
    check(case)
