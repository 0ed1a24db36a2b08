"""Texts that say what operations say: equal ones share it, others don't."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from xdsl.dialects.builtin import (
    BytesAttr,
    DenseIntOrFPElementsAttr,
    FloatAttr,
    ModuleOp,
    TensorType,
    f32,
    f64,
)

from rlx.dialects import mir
from rlx.passes.source import context, parse
from rlx.passes.structure import structure_of

NORM = """
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8xf32>) -> tensor<4x8xf32> {
  %n = mir.rms_norm %x, %w eps 1.0e-5 : tensor<4x8xf32>, tensor<8xf32>
  %e = mir.unary exp %n : tensor<4x8xf32>
  %y = mir.binary sub %e, %x : tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
"""
CHANGES = [
    ("exp", "log"),
    ("%e, %x", "%x, %e"),
    ("%e, %x", "%e, %n"),
    ("8xf32", "9xf32"),
    ("1.0e-5", "1.0e-6"),
]


def module_of(text: str) -> ModuleOp:
    return parse(context(), text.encode(), "test")


def structure(text: str) -> str:
    return structure_of(module_of(text).ops)


def test_names_of_values_are_nothing():
    renamed = NORM.replace("%x", "%a").replace("%n", "%norm")
    assert renamed != NORM
    assert structure(renamed) == structure(NORM)


def test_what_operations_say_is_all():
    texts = [NORM, *(NORM.replace(old, new) for old, new in CHANGES)]
    for a, b in combinations(map(structure, texts), 2):
        assert a != b


@pytest.mark.parametrize(("a", "b"), [(0.0, -0.0), (1.0, 1.0 + 2**-52)])
def test_numbers_differ_by_their_bits(a: float, b: float):
    def of(eps: float) -> str:
        module = module_of(NORM)
        for op in module.walk():
            if isinstance(op, mir.RmsNormOp):
                op.eps = FloatAttr(eps, f64)
        return structure_of(module.ops)

    assert of(a) != of(b)


def test_tensors_differ_by_their_bits():
    bits = [[0, 0], [0, 1 << 31], [1 << 31, 0], [0x7F800001, 0], [0x7FC00001, 0]]
    tensors = [np.array(words, np.uint32).tobytes() for words in bits]
    type_ = TensorType(f32, [2])
    ops = [mir.ConstantOp(DenseIntOrFPElementsAttr(type_, BytesAttr(data))) for data in tensors]
    assert len({structure_of([op]) for op in ops}) == len(bits)
