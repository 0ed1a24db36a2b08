"""How much a step computes, about: products and attention are by far the most of it."""

from __future__ import annotations

from math import prod

import pytest

from rlx.functions import build
from rlx.lowering.target import Target


def work(text: str, **sizes: int) -> int:
    manifest = build(text, Target.host()).manifest
    bound = manifest.bind(sizes)
    return sum(n * prod(bound[d] for d in names) for n, names in manifest.work)


@pytest.mark.parametrize("element", ["f32", "bf16"])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_product_takes_a_row_of_the_weight_for_each_element(element: str, rows: int):
    x, y, w = f"tensor<{rows}x64xf32>", f"tensor<{rows}x96xf32>", f"tensor<96x64x{element}>"
    text = f"""
    builtin.module {{
      hir.weight @w "w" : {w}
      func.func @main(%x: {x} {{rlx.name = "x"}}) -> ({y} {{rlx.name = "y"}}) {{
        %w = hir.load_weight @w : {w}
        %y = hir.linear %x, %w : {x}, {w} -> {y}
        func.return %y : {y}
      }}
    }}"""
    assert work(text) == rows * 96 * 64


def test_attention_takes_all_keys_for_each_query():
    row, view = "tensor<1x32xf32>", "tensor<?x32xf32, #hir.dims<keys, _>>"
    text = f"""
    builtin.module attributes {{
      rlx.dims = #hir.dim_table<one = 1, past = 0 to 8000, keys = past + one>
    }} {{
      hir.state @k keys head_dim 32 : tensor<8016x32xf32>
      hir.state @v values head_dim 32 : tensor<8016x32xf32>
      func.func @main(%x: {row} {{rlx.name = "x"}}) -> ({row} {{rlx.name = "y"}}) {{
        %k = hir.append %x to @k start "past" : {row} -> {view}
        %v = hir.append %x to @v start "past" : {row} -> {view}
        %y = hir.attention %x, %k, %v head_dim 32 scale 0.5 : {row}, {view}
        func.return %y : {row}
      }}
    }}"""
    few, many = work(text, past=9), work(text, past=7009)
    assert many - few == 7000 * 32 * 2


def test_an_operation_with_a_kernel_of_its_own_reads_its_operands():
    x, w, ids, y = (f"tensor<{t}>" for t in ("1x64xf32", "8x64x96xf32", "1xi32", "1x96xf32"))
    text = f"""
    builtin.module {{
      func.func @main(%x: {x} {{rlx.name = "x"}}, %w: {w} {{rlx.name = "w"}},
                      %ids: {ids} {{rlx.name = "ids"}}) -> ({y} {{rlx.name = "y"}}) {{
        %y = contraction.grouped_matmul(%x, %w, %ids) : ({x}, {w}, {ids}) -> {y}
        func.return %y : {y}
      }}
    }}"""
    assert work(text) >= 64 * 96
