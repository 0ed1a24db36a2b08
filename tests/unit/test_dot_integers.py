"""`mir.dot` of integers at every instruction-set level: exact, sums wrap around."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from bodies import Compiled, block_of, typed
from kernels import levels
from xdsl.utils.exceptions import VerifyException

import rlx
from rlx.dialects.reductions import DotOp
from rlx.lowering.dot import emit_dot
from rlx.passes.source import context, parse
from rlx.reference import Reference

LEVELS = levels()
TRANSPOSITIONS = [(a, b) for a in (False, True) for b in (False, True)]
PAIRS = [
    (np.int8, np.int8, np.int32),
    (np.uint8, np.int8, np.int32),
    (np.int32, np.int32, np.int32),
    (np.int64, np.int64, np.int64),
]
SIZES = [
    (1, 0, 5, 3), (1, 5, 0, 3), (1, 3, 5, 0), (0, 3, 5, 2), (1, 1, 1, 1), (1, 1, 100, 64),
    (1, 100, 1, 33), (2, 7, 16, 17), (1, 16, 17, 7), (1, 17, 33, 16), (3, 33, 7, 101),
    (1, 4, 65, 3), (1, 3, 66, 2), (1, 40, 100, 700), (1, 200, 530, 40), (1, 9, 24, 1100),
]  # fmt: skip


@cache
def symbolic(level: str, left: type, right: type, transposed: tuple[bool, bool]) -> Compiled:
    a = ("b", "k", "m") if transposed[0] else ("b", "m", "k")
    b = ("b", "n", "k") if transposed[1] else ("b", "k", "n")

    def build(args):
        dot = DotOp(*args, *transposed)
        return [dot], [dot.result]

    block = block_of([typed(left, *a), typed(right, *b)], build)
    return Compiled(level, block, emit_dot, ("b", "m", "n", "k"))


def operand(rng, dtype: type, shape: tuple[int, ...], swapped: bool) -> np.ndarray:
    """Return random numbers as they are in memory, the largest and smallest among them."""
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    x[rng.random(shape) < 0.2] = info.min
    x[rng.random(shape) < 0.2] = info.max
    return np.ascontiguousarray(np.swapaxes(x, -1, -2)) if swapped else x


@pytest.mark.sample(16)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("transposed", TRANSPOSITIONS)
@pytest.mark.parametrize(("left", "right", "total"), PAIRS)
def test_products_of_every_size(level, transposed, left, right, total):
    rng = np.random.default_rng(1)
    kernel = symbolic(level, left, right, transposed)
    for b, m, n, k in SIZES:
        x = operand(rng, left, (b, m, k), transposed[0])
        y = operand(rng, right, (b, k, n), transposed[1])
        a, c = (np.swapaxes(v, -1, -2) if t else v for v, t in zip((x, y), transposed, strict=True))
        # Arithmetic on arrays of numpy wraps around.
        expected = a.astype(total) @ c.astype(total)
        sizes = {"b": b, "m": m, "n": n, "k": k}
        for threads, offset in ((1, 0), (3, x.itemsize)):
            (result,) = kernel([x, y], threads, offset, **sizes)
            np.testing.assert_array_equal(result, expected, strict=True)


TEXT = """
builtin.module {
  func.func @main(%a: tensor<7x90xi8> {rlx.name = "a"}, %b: tensor<33x90xi8> {rlx.name = "b"})
      -> (tensor<7x33xi32> {rlx.name = "c"}) {
    %c = mir.dot %a, %b rhs_t : tensor<7x90xi8>, tensor<33x90xi8> -> tensor<7x33xi32>
    func.return %c : tensor<7x33xi32>
  }
}"""


def test_a_program_agrees_with_the_reference():
    rng = np.random.default_rng(2)
    a, b = operand(rng, np.int8, (7, 90), False), operand(rng, np.int8, (33, 90), False)
    expected = a.astype(np.int64) @ b.T.astype(np.int64)
    module = parse(context(), TEXT.encode(), "dot.mlir")
    result = Reference(module, {}).run({"a": a, "b": b}, {})["c"]
    np.testing.assert_array_equal(result, expected.astype(np.int32), strict=True)
    np.testing.assert_array_equal(rlx.compile(TEXT)(a, b), result, strict=True)


def test_types_that_do_not_multiply():
    def multiply(left: type, right: type) -> None:
        block_of(
            [typed(left, 2, 2), typed(right, 2, 2)],
            lambda args: ([dot := DotOp(*args)], [dot.result]),
        )

    multiply(np.uint8, np.int8)
    for left, right in ((np.int8, np.uint8), (np.int32, np.int64), (np.float32, np.float64)):
        with pytest.raises(VerifyException, match="of one element type"):
            multiply(left, right)
