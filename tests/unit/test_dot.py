"""`mir.dot` kernels and their epilogues at every instruction-set level against float64 numpy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from bodies import Compiled, block_of, typed
from kernels import Buffer, levels
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, f32, f64

from rlx.dialects.common import tensor
from rlx.dialects.kinds import BinaryKind, ReduceKind, UnaryKind
from rlx.dialects.moves import BroadcastOp
from rlx.dialects.primitives import BinaryOp, ConstantOp, UnaryOp
from rlx.dialects.reductions import DotOp, ReduceOp
from rlx.errors import RlxError
from rlx.lowering.dot import emit_dot, refusal

LEVELS = levels()
TRANSPOSITIONS = [(a, b) for a in (False, True) for b in (False, True)]


@cache
def symbolic(
    level: str, dtype: type, transposed: tuple[bool, bool], m: int | str = "m"
) -> Compiled:
    """Return a kernel of one product whose dimensions are arguments, but for rows by number."""
    a = ("b", "k", m) if transposed[0] else ("b", m, "k")
    b = ("b", "n", "k") if transposed[1] else ("b", "k", "n")

    def build(args):
        dot = DotOp(*args, *transposed)
        return [dot], [dot.result]

    block = block_of([typed(dtype, *a), typed(dtype, *b)], build)
    names = ("b", "m", "n", "k") if m == "m" else ("b", "n", "k")
    return Compiled(level, block, emit_dot, names)


def operands(rng, dtype, transposed, b, m, n, k) -> list[np.ndarray]:
    """Return random operands as they are in memory."""
    shapes = [(b, k, m) if transposed[0] else (b, m, k), (b, n, k) if transposed[1] else (b, k, n)]
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def product(arrays, transposed) -> tuple[np.ndarray, np.ndarray]:
    """Return the product in float64, and that of the sizes of its terms."""
    a, b = (
        np.swapaxes(x, -1, -2) if t else x
        for x, t in zip((y.astype(np.float64) for y in arrays), transposed, strict=True)
    )
    return a @ b, np.abs(a) @ np.abs(b)


def check(result, expected, magnitude, k) -> None:
    """Assert the error bound of a sum of k products in the result's precision, and a small NMSE."""
    eps = np.finfo(result.dtype).eps
    bound = (k + 2) * eps * magnitude + np.finfo(result.dtype).tiny
    assert result.shape == expected.shape
    assert (np.abs(result - expected) <= bound).all()
    error = ((result - expected) ** 2).sum() / max((expected**2).sum(), 1e-300)
    assert error <= 4 * eps**2 * (1 + k / 8)


SIZES = [
    (1, 0, 5, 3), (1, 5, 0, 3), (1, 3, 5, 0), (0, 3, 5, 2), (1, 1, 1, 1), (1, 1, 100, 64),
    (1, 100, 1, 33), (1, 7, 16, 17), (1, 16, 17, 7), (1, 17, 33, 16), (3, 33, 7, 100),
    (2, 64, 64, 64), (1, 100, 100, 100), (2, 5, 49, 600), (1, 2, 700, 300), (1, 300, 48, 9),
    (1, 3, 1100, 5), (3, 8, 24, 1),
    (1, 130, 530, 140), (1, 800, 20, 130), (1, 300, 150, 140),
    (1, 29, 5, 150), (2, 13, 150, 150), (2, 13, 61, 40),
]  # fmt: skip


@pytest.mark.sample(10)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("transposed", TRANSPOSITIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_of_every_size(level: str, transposed: tuple[bool, bool], dtype: type):
    rng = np.random.default_rng(1)
    kernel = symbolic(level, dtype, transposed)
    for b, m, n, k in SIZES:
        arrays = operands(rng, dtype, transposed, b, m, n, k)
        expected, magnitude = product(arrays, transposed)
        sizes = {"b": b, "m": m, "n": n, "k": k}
        (one,) = kernel(arrays, 1, 0, **sizes)
        check(one, expected, magnitude, k)
        (three,) = kernel(arrays, 3, np.dtype(dtype).itemsize, **sizes)
        np.testing.assert_array_equal(one, three)
        (fenced,) = kernel(arrays, 2, None, **sizes)
        np.testing.assert_array_equal(one, fenced)


def splat(number: float, *dims: int) -> ConstantOp:
    return ConstantOp(DenseIntOrFPElementsAttr.from_list(tensor(dims, f32), [number]))


@pytest.mark.parametrize("level", LEVELS)
def test_epilogue_with_operands_of_every_kind(level: str):
    """relu(dot + bias) * scale + other / column, the product too; b, m by name, n a number."""
    b, m, n, k = "b", "m", 37, 19
    result = typed(np.float32, b, m, n)

    def build(args):
        x, w, bias, other, column, matrix = args
        dot = DotOp(x, w)
        number = splat(1.5)
        ops = [dot, number]

        def step(op):
            ops.append(op)
            return op.result

        total = step(BinaryOp(BinaryKind.ADD, dot.result, step(BroadcastOp(bias, result))))
        total = step(UnaryOp(UnaryKind.RELU, total))
        total = step(BinaryOp(BinaryKind.MUL, total, step(BroadcastOp(number.result, result))))
        ratio = step(BinaryOp(BinaryKind.DIV, other, step(BroadcastOp(column, result))))
        total = step(BinaryOp(BinaryKind.ADD, total, ratio))
        total = step(BinaryOp(BinaryKind.SUB, total, step(BroadcastOp(matrix, result))))
        assert refusal(ops, [total, dot.result]) is None
        return ops, [total, dot.result]

    shapes = [(b, m, k), (b, k, n), (n,), (b, m, n), (b, m, 1), (m, n)]
    block = block_of([typed(np.float32, *s) for s in shapes], build)
    kernel = Compiled(level, block, emit_dot, ("b", "m"))
    rng = np.random.default_rng(2)
    for sizes in ({"b": 3, "m": 11}, {"b": 1, "m": 1}, {"b": 2, "m": 0}):
        given = [[sizes.get(d, d) for d in s] for s in shapes]
        arrays = [rng.standard_normal(s).astype(np.float32) for s in given]
        arrays[4] = np.abs(arrays[4]) + np.float32(0.5)
        x, w, bias, other, column, matrix = (a.astype(np.float64) for a in arrays)
        dot = x @ w
        expected = np.maximum(dot + bias, 0) * 1.5 + other / column - matrix
        ours = kernel(arrays, 1, 0, **sizes)
        np.testing.assert_allclose(ours[0], expected, rtol=1e-5, atol=3e-5)
        np.testing.assert_allclose(ours[1], dot, rtol=1e-5, atol=1e-5)
        for a, c in zip(ours, kernel(arrays, 3, 4, **sizes), strict=True):
            np.testing.assert_array_equal(a, c)


@pytest.mark.parametrize("level", LEVELS)
def test_epilogue_after_several_blocks(level: str):
    """Rows, columns and k beyond one block, all of them numbers; only the last value is given."""
    m, n, k = 530, 1090, 300
    result = typed(np.float32, m, n)

    def build(args):
        dot, half = DotOp(args[0], args[1], rhs_t=True), splat(0.5, m, n)
        scaled = BinaryOp(BinaryKind.MUL, dot.result, half.result)
        total = BinaryOp(BinaryKind.ADD, args[2], scaled.result)
        return [half, dot, scaled, total], [total.result]

    block = block_of([typed(np.float32, m, k), typed(np.float32, n, k), result], build)
    rng = np.random.default_rng(3)
    x, w, y = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k), (m, n)))
    kernel = Compiled(level, block, emit_dot)
    (one,), (two,) = kernel([x, w, y]), kernel([x, w, y], threads=2)
    expected = y + x.astype(np.float64) @ w.T.astype(np.float64) / 2
    np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("level", LEVELS)
def test_epilogue_of_float64(level: str):
    """tanh(dot - bias) * 0.3, with the exactness of float64."""
    result = typed(np.float64, 9, 21)

    def build(args):
        x, w, bias = args
        number = ConstantOp(DenseIntOrFPElementsAttr.from_list(tensor((9, 21), f64), [0.3]))
        dot, spread = DotOp(x, w, lhs_t=True), BroadcastOp(bias, result)
        less = BinaryOp(BinaryKind.SUB, dot.result, spread.result)
        bent = UnaryOp(UnaryKind.TANH, less.result)
        total = BinaryOp(BinaryKind.MUL, bent.result, number.result)
        return [number, dot, spread, less, bent, total], [total.result]

    rng = np.random.default_rng(6)
    arrays = [rng.standard_normal(s) for s in ((40, 9), (40, 21), (21,))]
    kernel = Compiled(
        level, block_of([typed(np.float64, *a.shape) for a in arrays], build), emit_dot
    )
    expected = np.tanh(arrays[0].T @ arrays[1] - arrays[2]) * 0.3
    for threads in (1, 3):
        np.testing.assert_allclose(kernel(arrays, threads)[0], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("swapped", [False, True])
def test_an_element_depends_on_its_row_and_column_alone(swapped: bool):
    kernel = symbolic("host", np.float32, (False, swapped))
    rng = np.random.default_rng(4)
    x, w = operands(rng, np.float32, (False, swapped), 1, 100, 130, 700)
    (whole,) = kernel([x, w], 1, 0, b=1, m=100, n=130, k=700)
    for rows, columns in ((1, 130), (3, 7), (60, 1), (9, 50), (17, 110), (60, 16)):
        own = w[:, -columns:] if swapped else np.ascontiguousarray(w[..., -columns:])
        (result,) = kernel([x[:, -rows:], own], 2, 0, b=1, m=rows, n=columns, k=700)
        np.testing.assert_array_equal(result, whole[:, -rows:, -columns:])


@pytest.mark.parametrize("size", [256, 1021, 1024])
def test_threads_share_the_rows_of_a_square(size: int):
    """Columns would do as well, but for a line in each row that two threads write to."""
    kernel = symbolic("host", np.float32, (False, False))
    ins = [Buffer.of(np.ones((size, size), np.float32)) for _ in range(2)]
    out = Buffer(4 * size * size)
    kernel.kernel(*ins, out, 1, size, size, size, 1, 2)
    rows = (out.array(np.float32, size, size) == size).sum(1)
    assert set(rows) == {0, size}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("transposed", TRANSPOSITIONS)
@pytest.mark.parametrize(("m", "n"), [(1, 75), (75, 1), (1, 1), (4, 40)])
def test_one_row_or_one_column_by_number(level, transposed, m, n):
    """With a bias and a column, several times as deep as a block."""
    k = 500
    result = typed(np.float32, 2, m, n)

    def build(args):
        dot = DotOp(args[0], args[1], *transposed)
        bias, column = (BroadcastOp(a, result) for a in args[2:4])
        total = BinaryOp(BinaryKind.ADD, dot.result, bias.result)
        total2 = BinaryOp(BinaryKind.MUL, total.result, column.result)
        last = BinaryOp(BinaryKind.ADD, total2.result, args[4])
        return [dot, bias, column, total, total2, last], [last.result]

    rng = np.random.default_rng(5)
    arrays = operands(rng, np.float32, transposed, 2, m, n, k)
    arrays += [rng.standard_normal(s).astype(np.float32) for s in ((n,), (2, m, 1), (2, m, n))]
    block = block_of([typed(np.float32, *a.shape) for a in arrays], build)
    kernel = Compiled(level, block, emit_dot)
    (one,), (two,), (fenced,) = (kernel(arrays, n, at) for n, at in ((1, 0), (3, 4), (2, None)))
    dot, _ = product(arrays[:2], transposed)
    bias, column, other = (a.astype(np.float64) for a in arrays[2:])
    np.testing.assert_allclose(one, (dot + bias) * column + other, rtol=1e-5, atol=2e-4)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, fenced)


@pytest.mark.sample(14)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("transposed", TRANSPOSITIONS)
@pytest.mark.parametrize(("dtype", "m"), [(np.float32, 2), (np.float32, 7), (np.float64, 5)])
def test_a_few_rows_by_number(level, transposed, dtype, m):
    """Tiles of their own give the same bits as those for any number of rows."""
    rng = np.random.default_rng(8)
    own, any_ = symbolic(level, dtype, transposed, m), symbolic(level, dtype, transposed)
    for b, n, k in ((1, 150, 300), (2, 64, 5), (1, 700, 140), (1, 3, 17), (2, 256, 0)):
        arrays = operands(rng, dtype, transposed, b, m, n, k)
        expected, magnitude = product(arrays, transposed)
        (one,) = own(arrays, 1, 0, b=b, n=n, k=k)
        check(one, expected, magnitude, k)
        (three,) = own(arrays, 3, np.dtype(dtype).itemsize, b=b, n=n, k=k)
        np.testing.assert_array_equal(one, three)
        (whole,) = any_(arrays, 1, 0, b=b, m=m, n=n, k=k)
        np.testing.assert_array_equal(one, whole)


def test_refusals():
    square = typed(np.float32, 4, 4)

    def reason(build) -> str | None:
        block = block_of([square, square, typed(np.float32, 4, 2)], build)
        ops = list(block.ops)
        return refusal(ops[:-1], ops[-1].operands)

    def two(args):
        ops = [DotOp(args[0], args[1]), DotOp(args[1], args[0])]
        return ops, [ops[0].result]

    def reduced(args):
        dot = DotOp(args[0], args[1])
        total = ReduceOp(ReduceKind.SUM, dot.result, [0])
        return [dot, total], [total.result]

    def numbers(args):
        dot = DotOp(args[0], args[1])
        values = DenseIntOrFPElementsAttr.from_list(square, [float(i) for i in range(16)])
        constant = ConstantOp(values)
        total = BinaryOp(BinaryKind.ADD, dot.result, constant.result)
        return [dot, constant, total], [total.result]

    def narrow(args):
        dot = DotOp(args[0], args[1])
        other = UnaryOp(UnaryKind.NEG, args[2])
        return [dot, other], [dot.result, other.result]

    def nothing(args):
        return [DotOp(args[0], args[1])], [args[0]]

    for build, words in (
        (two, "expected one mir.dot"),
        (reduced, "mir.reduce can't follow"),
        (numbers, "constants of one number"),
        (narrow, "expected the shape of"),
        (nothing, "that the launch computes"),
    ):
        assert words in (reason(build) or ""), build
    block = block_of([square, square, square], two)
    with pytest.raises(RlxError, match=r"dot: expected one mir\.dot in a launch, got 2"):
        Compiled("host", block, emit_dot)
