"""Residual sums and the norms after them, compiled: one launch, and the reference's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz.checking import check, parsed
from fuzz.programs import Case
from fuzz.weights import Weights

from rlx.dialects import mir
from rlx.passes.pipelines import run_to

NORMS = {
    "rms": "hir.rms_norm %s, %g eps 1.0e-05 : {x}, tensor<{d}xf32>",
    "layer": "mir.layer_norm %s, %g, %g eps 1.0e-05 : {x}, tensor<{d}xf32>",
}


def text(norm: str, rows: str, d: int) -> str:
    x = f"tensor<3x{d}xf32>" if rows == "3" else f"tensor<?x{d}xf32, #hir.dims<seq, _>>"
    return f"""
builtin.module attributes {{rlx.dims = #hir.dim_table<seq = 1 to 7>}} {{
  hir.weight @g "g" : tensor<{d}xf32>
  func.func @main(%x: {x} {{rlx.name = "x"}}, %y: {x} {{rlx.name = "y"}})
      -> ({x} {{rlx.name = "sum"}}, {x} {{rlx.name = "norm"}}) {{
    %g = hir.load_weight @g : tensor<{d}xf32>
    %s = mir.binary add %x, %y : {x}
    %n = {NORMS[norm].format(x=x, d=d)}
    func.return %s, %n : {x}, {x}
  }}
}}"""


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("rows", ["3", "seq"])
@pytest.mark.parametrize("d", [64, 19])
def test_a_sum_and_its_norm_are_one_launch(norm: str, rows: str, d: int):
    rng = np.random.default_rng(d)
    weights = Weights(rng)
    weights.add("g", (d,))
    count = 3 if rows == "3" else 5
    inputs = {n: rng.standard_normal((count, d)).astype(np.float32) for n in ("x", "y")}
    case = Case(text(norm, rows, d), weights, [({"seq": count}, inputs)])
    module = parsed(case.text)
    run_to(module, "mir")
    (kernel,) = (op for op in module.walk() if isinstance(op, mir.KernelOp))
    assert len(list(kernel.ops)) == len(kernel.results) == 2
    check(case)
