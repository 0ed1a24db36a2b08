"""Products of many rows with bf16 operands, from HIR to what the program gives."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import levels, nmse, on_threads
from ml_dtypes import bfloat16

from rlx.lowering.gemm_tile_plan import has_tiles
from rlx.lowering.target import Target

PROGRAM = """
builtin.module attributes {{
  rlx.products = "{products}", rlx.dims = #hir.dim_table<m = 0 to 600>
}} {{
  hir.weight @up "up" : tensor<{n}x{k}xf32>
  hir.weight @down "down" : tensor<{k}x{n}xf32>
  func.func @main(%x : tensor<?x{k}xf32, #hir.dims<m, _>> {{hir.name = "x"}})
      -> (tensor<?x{k}xf32, #hir.dims<m, _>> {{hir.name = "y"}}) {{
    %u = hir.load_weight @up : tensor<{n}x{k}xf32>
    %d = hir.load_weight @down : tensor<{k}x{n}xf32>
    %a = hir.linear %x, %u : tensor<?x{k}xf32, #hir.dims<m, _>>, tensor<{n}x{k}xf32>
        -> tensor<?x{n}xf32, #hir.dims<m, _>>
    %b = mir.unary silu %a : tensor<?x{n}xf32, #hir.dims<m, _>>
    %c = hir.linear %b, %d : tensor<?x{n}xf32, #hir.dims<m, _>>, tensor<{k}x{n}xf32>
        -> tensor<?x{k}xf32, #hir.dims<m, _>>
    %y = mir.binary add %x, %c : tensor<?x{k}xf32, #hir.dims<m, _>>
    func.return %y : tensor<?x{k}xf32, #hir.dims<m, _>>
  }}
}}
"""


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(bfloat16).astype(np.float64)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("products", ["bf16", "bf16-weights"])
@pytest.mark.parametrize(("n", "k"), [(96, 64), (33, 47), (1600, 384)])
def test_two_products(products: str, n: int, k: int, level: str):
    rng = np.random.default_rng(n)
    up, down = (rng.standard_normal(s).astype(np.float32) / s[1] ** 0.5 for s in ((n, k), (k, n)))
    text = PROGRAM.format(products=products, n=n, k=k)
    one, two = on_threads(text, level, weights={"up": up, "down": down})
    tiles = has_tiles(Target.named(level), k)
    weights = [rounded(w) if tiles or products != "bf16" else w for w in (up, down)]
    for m in (0, 1, 31, 33, 100, 600):
        x = rng.standard_normal((m, k)).astype(np.float32)
        given = one(x)
        np.testing.assert_array_equal(two(x), given)
        a = rounded(x) @ weights[0].T
        expected = x + rounded(a / (1 + np.exp(-a))) @ weights[1].T
        # A number that is nearly halfway between two of bf16 may fall to either side.
        assert not m or nmse(given, expected) < 1e-7


@pytest.mark.parametrize("level", levels())
def test_a_product_as_bf16_whose_last_panel_is_not_full(level: str):
    """Rounded on the way to a store that LLVM takes apart, in a block of its own."""
    text = """
builtin.module {
  hir.weight @w "w" : tensor<301x32xf32>
  func.func @main(%x: tensor<4x32xf32> {hir.name = "x"})
      -> (tensor<4x301xf32> {hir.name = "y"}, tensor<4x301xf32> {hir.name = "z"}) {
    %w = hir.load_weight @w : tensor<301x32xf32>
    %y = hir.linear %x, %w : tensor<4x32xf32>, tensor<301x32xf32> -> tensor<4x301xf32>
    %b = mir.cast %y : tensor<4x301xf32> -> tensor<4x301xbf16>
    %z = mir.cast %b : tensor<4x301xbf16> -> tensor<4x301xf32>
    func.return %y, %z : tensor<4x301xf32>, tensor<4x301xf32>
  }
}"""
    rng = np.random.default_rng(1)
    one, _ = on_threads(text, level, weights={"w": rng.standard_normal((301, 32), np.float32)})
    y, z = one(rng.standard_normal((4, 32), np.float32))
    np.testing.assert_array_equal(z, rounded(y))


ATTENTION = """
builtin.module attributes {{rlx.products = "bf16"}} {{
  func.func @main(%x: tensor<5x{d}xf32>, %s: tensor<1xi32>) -> tensor<5x{d}xf32> {{
    %y = transformer.segment_attention(%x, %x, %x, %s) head_dim {d}
        : (tensor<5x{d}xf32>, tensor<5x{d}xf32>, tensor<5x{d}xf32>, tensor<1xi32>)
        -> tensor<5x{d}xf32>
    func.return %y : tensor<5x{d}xf32>
  }}
}}
"""


@pytest.mark.parametrize("d", [544, 4096])
def test_heads_that_are_too_wide_for_tiles_stay_f32(d: int):
    x = np.random.default_rng(d).standard_normal((5, d), np.float32)
    (function,) = on_threads(ATTENTION.format(d=d), counts=[1])
    scores = x.astype(np.float64) @ x.T / d**0.5
    weights = np.exp(scores - scores.max(1, keepdims=True))
    expected = weights / weights.sum(1, keepdims=True) @ x
    assert nmse(function(x, np.zeros(1, np.int32)), expected) < 1e-12
