"""What follows `mir.dot` in its launch and has other elements, at every instruction-set level."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from bodies import Compiled, block_of, typed
from kernels import levels
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IntegerType, f16, f32
from xdsl.ir import Operation, SSAValue

import rlx
from rlx.dialects.common import tensor
from rlx.dialects.kinds import BinaryKind, CompareKind, UnaryKind
from rlx.dialects.moves import BroadcastOp
from rlx.dialects.primitives import BinaryOp, CastOp, CompareOp, ConstantOp, SelectOp, UnaryOp
from rlx.dialects.reductions import DotOp
from rlx.lowering.dot import emit_dot, refusal

LEVELS = levels()


class Steps:
    """Operations in order, each of which gives its result."""

    def __init__(self):
        self.ops: list[Operation] = []

    def __call__(self, op: Operation) -> SSAValue:
        self.ops.append(op)
        return op.results[0]

    def number(self, value: float, like: SSAValue) -> SSAValue:
        """Return a number in every element of a shape."""
        type_ = tensor((), like.type.element_type)
        constant = self(ConstantOp(DenseIntOrFPElementsAttr.from_list(type_, [value])))
        return self(BroadcastOp(constant, like.type))


def compiled(level: str, types: Sequence, build, dims: Sequence[str] = ()) -> Compiled:
    def ops(args):
        step = Steps()
        results = build(args, step)
        assert refusal(step.ops, results) is None
        return step.ops, results

    return Compiled(level, block_of(types, ops), emit_dot, dims)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("both", [False, True])
def test_bytes_that_are_quantised_again(level: str, both: bool):
    """clamp(round((x w + bias) * scale)) as i8, alone or with the numbers in f32."""
    k, n = 70, 45

    def build(args: Sequence[SSAValue], step: Steps):
        x, w, bias, scale = args
        total = step(DotOp(x, w))
        total = step(BinaryOp(BinaryKind.ADD, total, step(BroadcastOp(bias, total.type))))
        wide = step(CastOp(total, f32))
        y = step(BinaryOp(BinaryKind.MUL, wide, step(BroadcastOp(scale, wide.type))))
        y = step(UnaryOp(UnaryKind.ROUND, y))
        low, high = step.number(-128.0, y), step.number(127.0, y)
        y = step(BinaryOp(BinaryKind.MIN, step(BinaryOp(BinaryKind.MAX, y, low)), high))
        codes = step(CastOp(y, IntegerType(8)))
        return [codes, wide] if both else [codes]

    types = [typed(np.int8, "m", k), typed(np.int8, k, n), typed(np.int32, n)]
    kernel = compiled(level, [*types, typed(np.float32, n)], build, ("m",))
    rng = np.random.default_rng(1)
    for m in (1, 7, 130):
        x, w = (rng.integers(-128, 128, s).astype(np.int8) for s in ((m, k), (k, n)))
        bias = rng.integers(-1000, 1000, n).astype(np.int32)
        # Powers of two: there is one way to round.
        scale = (2.0 ** -rng.integers(4, 12, n)).astype(np.float32)
        total = (x.astype(np.int32) @ w + bias).astype(np.float32)
        expected = np.clip(np.round(total * scale), -128, 127).astype(np.int8)
        for threads in (1, 3):
            results = kernel([x, w, bias, scale], threads, 4, m=m)
            np.testing.assert_array_equal(results[0], expected, strict=True)
            if both:
                np.testing.assert_array_equal(results[1], total, strict=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(40, 1), (1, 40), (50, 70), (300, 530)])
def test_halves_and_masks(level: str, shape: tuple[int, int]):
    """where(x w > other, x w, mask ? y : 0) in f16, and where it was so."""
    m, n = shape

    def build(args: Sequence[SSAValue], step: Steps):
        x, w, other, y, mask = args
        total = step(DotOp(x, w))
        larger = step(CompareOp(CompareKind.GT, total, step(CastOp(other, f32))))
        y = step(SelectOp(mask, y, step.number(0.0, y)))
        chosen = step(SelectOp(larger, total, y))
        return [step(CastOp(chosen, f16)), larger]

    types = [typed(np.float32, m, 9), typed(np.float32, 9, n), typed(np.float16, m, n)]
    types += [typed(np.float32, m, n), typed(np.bool_, m, n)]
    rng = np.random.default_rng(2)
    x, w = (rng.integers(-9, 9, s).astype(np.float32) for s in ((m, 9), (9, n)))
    other = rng.integers(-200, 200, shape).astype(np.float16)
    y, mask = rng.standard_normal(shape).astype(np.float32), rng.random(shape) < 0.5
    larger = x @ w > other
    expected = np.where(larger, x @ w, np.where(mask, y, 0)).astype(np.float16)
    kernel = compiled(level, types, build)
    for threads in (1, 3):
        results = kernel([x, w, other, y, mask], threads)
        np.testing.assert_array_equal(results[0], expected, strict=True)
        np.testing.assert_array_equal(results[1], larger, strict=True)


TEXT = """
builtin.module {
  func.func @main(%x: tensor<9x40xi8> {rlx.name = "x"}, %w: tensor<40x33xi8> {rlx.name = "w"},
      %s: tensor<33xf32> {rlx.name = "s"}) -> (tensor<9x33xi8> {rlx.name = "y"}) {
    %d = mir.dot %x, %w : tensor<9x40xi8>, tensor<40x33xi8> -> tensor<9x33xi32>
    %f = mir.cast %d : tensor<9x33xi32> -> tensor<9x33xf32>
    %t = mir.broadcast %s : tensor<33xf32> -> tensor<9x33xf32>
    %p = mir.binary mul %f, %t : tensor<9x33xf32>
    %y = mir.cast %p : tensor<9x33xf32> -> tensor<9x33xi8>
    func.return %y : tensor<9x33xi8>
  }
}"""


def test_a_program_of_bytes_is_one_launch():
    f = rlx.compile(TEXT)
    assert f.ir("lir").count("lir.launch") == 1
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-128, 128, s).astype(np.int8) for s in ((9, 40), (40, 33)))
    s = (2.0 ** -rng.integers(12, 15, 33)).astype(np.float32)
    expected = np.trunc((x.astype(np.int32) @ w.astype(np.int32)) * s).astype(np.int8)
    np.testing.assert_array_equal(f(x, w, s), expected, strict=True)
