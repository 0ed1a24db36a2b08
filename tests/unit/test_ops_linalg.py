"""Linear algebra: residuals, singular matrices, sizes with names, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from by_hand import made, meaning
from kernels import levels, on_threads
from xdsl.dialects.builtin import f16, f64
from xdsl.utils.exceptions import VerifyException

import rlx
from rlx.dialects.common import tensor
from rlx.ops.linalg import (
    BatchedDenseSolveOp,
    CholeskyOp,
    DenseSolveOp,
    DetOp,
    LogDetOp,
    LuOp,
    TriangularSolveOp,
)

RNG = np.random.default_rng(5)
NAMED = """builtin.module attributes {rlx.dims = #hir.dim_table<b = 0 to 9, n = 0 to any>} {
  func.func @main(%a: tensor<?x?x?xf64, #hir.dims<b, n, n>> {rlx.name = "a"},
      %x: tensor<?x?x3xf64, #hir.dims<b, n, _>> {rlx.name = "b"}) -> (
      tensor<?x?x3xf64, #hir.dims<b, n, _>> {rlx.name = "x"}, tensor<?xf64, #hir.dims<b>>
      {rlx.name = "d"}, tensor<?xf64, #hir.dims<b>> {rlx.name = "l"}) {
    %y = linalg.batched_dense_solve(%a, %x) : (tensor<?x?x?xf64, #hir.dims<b, n, n>>,
      tensor<?x?x3xf64, #hir.dims<b, n, _>>) -> tensor<?x?x3xf64, #hir.dims<b, n, _>>
    %d = linalg.det(%a) : (tensor<?x?x?xf64, #hir.dims<b, n, n>>) -> tensor<?xf64, #hir.dims<b>>
    %l = linalg.logdet(%a) : (tensor<?x?x?xf64, #hir.dims<b, n, n>>) -> tensor<?xf64, #hir.dims<b>>
    func.return %y, %d, %l : tensor<?x?x3xf64, #hir.dims<b, n, _>>, tensor<?xf64, #hir.dims<b>>,
      tensor<?xf64, #hir.dims<b>>
  }
}"""


def test_factors_make_up_the_matrix():
    a = RNG.standard_normal((3, 7, 7))
    lu, order, sign = meaning(LuOp, a)
    low, high = np.tril(lu, -1) + np.eye(7), np.triu(lu)
    np.testing.assert_allclose(low @ high, np.take_along_axis(a, order[..., None], 1))
    assert np.abs(low).max() <= 1
    np.testing.assert_allclose(sign, [np.linalg.det(np.eye(7)[o]) for o in order])


def test_the_root_of_a_matrix():
    a = RNG.standard_normal((2, 5, 5))
    a = a @ a.swapaxes(1, 2) + np.eye(5)
    np.testing.assert_allclose(meaning(CholeskyOp, a), np.linalg.cholesky(a))
    np.testing.assert_array_equal(
        meaning(CholeskyOp, np.triu(a, 1) + np.tril(a)), meaning(CholeskyOp, a)
    )


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_one_triangle_is_read(lower: bool, transposed: bool):
    t, b = RNG.standard_normal((4, 4)) + 3 * np.eye(4), RNG.standard_normal((4, 2))
    part = np.tril(t) if lower else np.triu(t)
    x = meaning(TriangularSolveOp, t, b, lower=lower, transposed=transposed)
    np.testing.assert_allclose((part.T if transposed else part) @ x, b)
    unit = part - np.diag(np.diag(part)) + np.eye(4)
    x = meaning(TriangularSolveOp, t, b, lower=lower, transposed=transposed, unit=True)
    np.testing.assert_allclose((unit.T if transposed else unit) @ x, b)
    order = np.array([2, 0, 3, 1])
    x = meaning(TriangularSolveOp, t, b, order, lower=lower, transposed=transposed, ordered=True)
    np.testing.assert_allclose((part.T if transposed else part) @ x, b[order])


@pytest.mark.parametrize("level", levels())
def test_systems_whose_sizes_have_no_bound(level: str):
    for f in on_threads(NAMED, level):
        for b, n in ((0, 4), (3, 0), (1, 1), (5, 7), (2, 8), (1, 9), (3, 33), (1, 130)):
            # Its large elements are not on the diagonal, so that rows change places.
            a = RNG.uniform(-1, 1, (b, n, n)) + 3 * n**0.5 * np.eye(n)[RNG.permutation(n)]
            want = RNG.standard_normal((b, n, 3))
            x, det, log = f(a, a @ want)
            np.testing.assert_allclose(x, want, rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(det, np.linalg.det(a), rtol=1e-11)
            sign, size = np.linalg.slogdet(a)
            np.testing.assert_allclose(log, np.where(sign < 0, np.nan, size), rtol=1e-12)


def compiled(op: str, types: str, result: str, n_results: int = 1) -> rlx.CompiledFunction:
    args = types.split("; ")
    named = ", ".join(f'%x{i}: {t} {{rlx.name = "x{i}"}}' for i, t in enumerate(args))
    given = ", ".join(f"%x{i}" for i in range(len(args)))
    return rlx.compile(f"""builtin.module {{
      func.func @main({named}) -> ({result} {{rlx.name = "y"}}) {{
        %y = linalg.{op}({given}) : ({", ".join(args)}) -> {result}
        func.return %y : {result}
      }}
    }}""")


def test_singular_matrices_have_a_determinant_of_zero_and_no_solution():
    a = np.array([[1.0, 2], [2, 4]], np.float32)
    det = compiled("det", "tensor<2x2xf32>", "tensor<f32>")
    log = compiled("logdet", "tensor<2x2xf32>", "tensor<f32>")
    solve = compiled("dense_solve", "tensor<2x2xf32>; tensor<2xf32>", "tensor<2xf32>")
    assert det(a) == 0
    assert log(a) == -np.inf
    assert not np.isfinite(solve(a, np.array([1.0, 1], np.float32))).any()
    zero = np.zeros((2, 2), np.float32)
    assert det(zero) == 0
    assert np.isnan(solve(zero, np.zeros(2, np.float32))).all()
    assert np.isnan(det(a * np.float32(np.nan)))


def test_what_is_not_positive_definite_has_no_root():
    root = compiled("cholesky", "tensor<3x3xf64>", "tensor<3x3xf64>")
    a = np.diag([4.0, -1.0, 9.0])
    got = root(a)
    assert got[0, 0] == 2
    assert np.isnan(got[1, 1])
    np.testing.assert_array_equal(np.triu(got, 1), np.zeros((3, 3)))


def test_operands_that_do_not_fit():
    square = tensor([4, 4])
    cases = [
        (LuOp, [tensor([4, 5])], "square matrices"),
        (DetOp, [tensor([4])], "square matrices"),
        (LogDetOp, [tensor([4, 4], f16)], "expected elements of f32, f64"),
        (CholeskyOp, [square, square], "1 operands"),
        (DenseSolveOp, [tensor([2, 4, 4]), tensor([2, 4])], "one matrix"),
        (DenseSolveOp, [square, tensor([5])], r"\[batch..., n\] or"),
        (BatchedDenseSolveOp, [square, tensor([4], f64)], "of one element"),
        (TriangularSolveOp, [square, tensor([4])], r"\[batch..., n, m\]"),
        (TriangularSolveOp, [square, tensor([4, 4], f64)], "of one element"),
    ]
    for op, types, message in cases:
        with pytest.raises(VerifyException, match=message):
            made(op, types)
    with pytest.raises(VerifyException, match="an order"):
        made(TriangularSolveOp, [square, square, tensor([4])], ordered=True)
