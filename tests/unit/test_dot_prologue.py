"""`mir.dot` whose operands are computed in its launch, at every instruction-set level."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from bodies import Compiled, block_of, typed
from kernels import levels
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IntegerType, f32, f64
from xdsl.ir import Operation, SSAValue

from rlx.dialects.common import tensor
from rlx.dialects.kinds import BinaryKind, ReduceKind, UnaryKind
from rlx.dialects.moves import BroadcastOp, PadOp, ReshapeOp, SliceOp, TransposeOp, WindowOp
from rlx.dialects.primitives import BinaryOp, CastOp, ConstantOp, UnaryOp
from rlx.dialects.reductions import DotOp, ReduceOp
from rlx.lowering.dot import emit_dot, refusal

LEVELS = levels()
Step = Callable[[Operation], SSAValue]


def compiled(level: str, types: Sequence, build, dims: Sequence[str] = ()) -> Compiled:
    """Compile a kernel whose operations `build` adds, from arguments and a function that adds."""

    def ops(args):
        added: list[Operation] = []

        def step(op: Operation) -> SSAValue:
            added.append(op)
            return op.results[0]

        results = build(args, step)
        assert refusal(added, results) is None
        return added, results

    return Compiled(level, block_of(types, ops), emit_dot, dims)


def check(kernel: Compiled, arrays, expected: np.ndarray, **sizes: int) -> None:
    (one,) = kernel(arrays, 1, 0, **sizes)
    (three,) = kernel(arrays, 3, arrays[0].itemsize, **sizes)
    np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_scaled_bytes_on_either_side(level: str, swapped: bool, left: bool):
    """The bytes of a matrix become numbers, with a scale for each of its rows in memory."""
    rng = np.random.default_rng(1)
    for other, lines, k in ((3, 5, 7), (1, 70, 300), (100, 1, 33), (130, 530, 70)):
        shape = [lines, k] if left != swapped else [k, lines]

        def build(args: Sequence[SSAValue], step: Step, shape=shape):
            codes, scale, x = args
            wide = step(CastOp(codes, f32))
            spread = step(BroadcastOp(scale, wide.type))
            side = step(BinaryOp(BinaryKind.MUL, wide, spread))
            sides = ((side, x), (swapped, False)) if left else ((x, side), (False, swapped))
            return [step(DotOp(*sides[0], *sides[1]))]

        free = [k, other] if left else [other, k]
        types = [typed(np.int8, *shape), typed(np.float32, shape[0], 1), typed(np.float32, *free)]
        codes = rng.integers(-128, 128, shape).astype(np.int8)
        scale, x = (rng.random(s).astype(np.float32) for s in ([shape[0], 1], free))
        side = codes * scale.astype(np.float64) / 100
        side = side.T if swapped else side
        check(
            compiled(level, types, build),
            [codes, scale / np.float32(100), x],
            side @ x if left else x @ side,
        )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("width", [3, 16, 21, 40])
def test_axes_that_were_merged(level: str, width: int):
    """Rows of k are of channels and heights, columns of rows and columns of an image."""
    c, h, places = 5, 4, 7
    shape = (2, c, places, width, h)

    def build(args: Sequence[SSAValue], step: Step):
        x, weight = args
        turned = step(TransposeOp(x, [0, 1, 4, 2, 3]))
        rhs = step(ReshapeOp(turned, typed(np.float32, 2, c * h, places * width)))
        whole = step(BroadcastOp(weight, typed(np.float32, 2, 9, c * h)))
        return [step(DotOp(whole, rhs))]

    rng = np.random.default_rng(2)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (shape, (9, c * h)))
    kernel = compiled(level, [typed(np.float32, *shape), typed(np.float32, 9, c * h)], build)
    rhs = x.transpose(0, 1, 4, 2, 3).reshape(2, c * h, places * width)
    check(kernel, [x, w], w.astype(np.float64) @ rhs)


@pytest.mark.parametrize("level", LEVELS)
def test_a_slice_of_f64_with_names_and_an_epilogue(level: str):
    """(x[:, 3:3 + k] * 0.5) y + bias, where x has names for its rows."""
    k, n = 300, 37

    def build(args: Sequence[SSAValue], step: Step):
        x, y, bias = args
        part = step(SliceOp(x, [0, 3], typed(np.float64, "m", k)))
        half = DenseIntOrFPElementsAttr.from_list(tensor((), f64), [0.5])
        spread = step(BroadcastOp(step(ConstantOp(half)), part.type))
        product = step(DotOp(step(BinaryOp(BinaryKind.MUL, part, spread)), y))
        total = step(BroadcastOp(bias, product.type))
        return [step(BinaryOp(BinaryKind.ADD, product, total))]

    types = [typed(np.float64, "m", k + 5), typed(np.float64, k, n), typed(np.float64, n)]
    kernel = compiled(level, types, build, ("m",))
    rng = np.random.default_rng(3)
    for m in (0, 1, 2, 97, 200):
        x, y, bias = (rng.standard_normal(s) for s in ((m, k + 5), (k, n), (n,)))
        check(kernel, [x, y, bias], x[:, 3 : 3 + k] * 0.5 @ y + bias, m=m)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("transposed", [(a, b) for a in (False, True) for b in (False, True)])
def test_bytes_that_are_made_of_other_integers(level: str, transposed: tuple[bool, bool]):
    m, n, k = 40, 131, 570
    shapes = [(k, m) if transposed[0] else (m, k), (n, k) if transposed[1] else (k, n)]

    def build(args: Sequence[SSAValue], step: Step):
        sides = [step(CastOp(a, IntegerType(8))) for a in args]
        return [step(DotOp(*sides, *transposed))]

    kernel = compiled(level, [typed(np.int32, *s) for s in shapes], build)
    rng = np.random.default_rng(4)
    arrays = [rng.integers(-128, 128, s).astype(np.int32) for s in shapes]
    a, b = (x.T if t else x for x, t in zip(arrays, transposed, strict=True))
    for threads in (1, 2):
        np.testing.assert_array_equal(kernel(arrays, threads)[0], a @ b)


def test_what_cannot_make_an_operand():
    square = typed(np.float32, 4, 4)

    def reason(build) -> str | None:
        ops = list(block_of([square, square], build).ops)
        return refusal(ops[:-1], ops[-1].operands)

    def reduced(args):
        total = ReduceOp(ReduceKind.SUM, args[0], [0])
        spread = BroadcastOp(total.result, square)
        dot = DotOp(spread.result, args[1])
        return [total, spread, dot], [dot.result]

    def used_after(args):
        negative = UnaryOp(UnaryKind.NEG, args[0])
        dot = DotOp(negative.result, args[1])
        total = BinaryOp(BinaryKind.ADD, dot.result, negative.result)
        return [negative, dot, total], [total.result]

    def given(args):
        negative = UnaryOp(UnaryKind.NEG, args[0])
        dot = DotOp(negative.result, args[1])
        return [negative, dot], [dot.result, negative.result]

    for build, words in (
        (reduced, "mir.reduce can't make an operand"),
        (used_after, "not at hand after it"),
        (given, "that the launch computes"),
    ):
        assert words in (reason(build) or ""), build


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("lead", [(), ("b", 1), (1, "c"), ("b", "c")])
@pytest.mark.parametrize("left", [False, True])
def test_matrices_that_are_repeated(level: str, lead: tuple, left: bool):
    """With a bias for each column and another for each row, which is the same in all batches."""
    n, k = 33, 20

    def build(args: Sequence[SSAValue], step: Step):
        few, x, bias, column = args
        wide = typed(np.float32, "b", "c", *((n, k) if left else (k, n)))
        spread = step(BroadcastOp(few, wide))
        product = step(DotOp(spread, x, rhs_t=True) if left else DotOp(x, spread))
        total = step(BroadcastOp(bias, product.type))
        total = step(BinaryOp(BinaryKind.ADD, product, total))
        results = [total]
        if not left:
            other = step(BroadcastOp(column, product.type))
            results.append(step(BinaryOp(BinaryKind.ADD, total, other)))
        return results

    own = (n, k) if left else (k, n)
    last = "m" if left else n
    types = [typed(np.float32, *lead, *own), typed(np.float32, "b", "c", "m", k)]
    types += [typed(np.float32, last), typed(np.float32, "m", 1)]
    kernel = compiled(level, types, build, ("b", "c", "m"))
    rng = np.random.default_rng(5)
    for b, c, m in ((3, 2, 1), (2, 5, 7), (1, 1, 130), (0, 2, 3), (2, 3, 0)):
        sizes = {"b": b, "c": c, "m": m}
        shapes = [[sizes.get(d, d) for d in (*lead, *own)], (b, c, m, k)]
        shapes += [(sizes.get(last, last),), (m, 1)]
        arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
        few, x, bias, column = (a.astype(np.float64) for a in arrays)
        expected = [(few @ x.swapaxes(-1, -2) if left else x @ few) + bias]
        expected += [] if left else [expected[0] + column]
        ours = kernel(arrays, 1, 0, **sizes)
        for got, wanted, other in zip(ours, expected, kernel(arrays, 3, 4, **sizes), strict=True):
            np.testing.assert_allclose(got, np.broadcast_to(wanted, got.shape), 1e-5, 1e-4)
            np.testing.assert_array_equal(got, other)


def test_rows_of_all_batches_are_one_product():
    """To the bit, and what is added for each row of all batches."""
    rng = np.random.default_rng(6)
    x, w, y = (
        rng.standard_normal(s).astype(np.float32) for s in ((9, 5, 40), (40, 70), (9, 5, 70))
    )

    def build(args: Sequence[SSAValue], step: Step):
        spread = step(BroadcastOp(args[1], typed(np.float32, 9, 40, 70)))
        return [step(BinaryOp(BinaryKind.ADD, step(DotOp(args[0], spread)), args[2]))]

    def flat(args: Sequence[SSAValue], step: Step):
        return [step(BinaryOp(BinaryKind.ADD, step(DotOp(args[0], args[1])), args[2]))]

    (got,) = compiled("host", [typed(np.float32, *a.shape) for a in (x, w, y)], build)([x, w, y])
    arrays = [x.reshape(45, 40), w, y.reshape(45, 70)]
    (wanted,) = compiled("host", [typed(np.float32, *a.shape) for a in arrays], flat)(arrays)
    np.testing.assert_array_equal(got.reshape(45, 70), wanted)


def windows(x: np.ndarray, size: int, stride: int, step: int, pad: int) -> np.ndarray:
    """Return `[b, c * size * size, places]` of images `[b, c, h, w]`."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    span = (size - 1) * step + 1
    seen = np.lib.stride_tricks.sliding_window_view(x, (span, span), (2, 3))
    seen = seen[:, :, ::stride, ::stride, ::step, ::step]
    b, c, h, w, *_ = seen.shape
    return seen.transpose(0, 1, 4, 5, 2, 3).reshape(b, c * size * size, h * w)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
@pytest.mark.parametrize(
    ("shape", "size", "stride", "step", "pad"),
    [
        ((2, 3, 9, 11), 3, 1, 1, 1),
        ((1, 5, 20, 40), 3, 2, 1, 0),
        ((1, 2, 24, 25), 2, 1, 3, 2),
        ((1, 40, 7, 7), 3, 1, 1, 1),
    ],
)
def test_windows_of_images(level: str, dtype: type, shape, size, stride, step, pad):
    rng = np.random.default_rng(7)
    x, w = (rng.integers(-100, 100, s).astype(dtype) for s in (shape, (9, shape[1] * size**2)))
    columns = windows(x, size, stride, step, pad).astype(np.int32)
    b, k, places = columns.shape

    def build(args: Sequence[SSAValue], step_: Step):
        element = args[0].type.element_type
        zero = DenseIntOrFPElementsAttr.from_list(tensor((), element), [0])
        fill = step_(ConstantOp(zero))
        value = step_(PadOp(args[0], fill, [0, 0, pad, pad], [0, 0, pad, pad]))
        for axis in (2, 4):
            value = step_(WindowOp(value, axis, size, stride, step))
        value = step_(TransposeOp(value, [0, 1, 3, 5, 2, 4]))
        value = step_(ReshapeOp(value, typed(dtype, b, k, places)))
        spread = step_(BroadcastOp(args[1], typed(dtype, b, 9, k)))
        return [step_(DotOp(spread, value))]

    kernel = compiled(level, [typed(dtype, *shape), typed(dtype, 9, k)], build)
    # All sums are integers that f32 holds exactly.
    for threads, offset in ((1, 0), (3, x.itemsize)):
        (result,) = kernel([x, w], threads, offset)
        np.testing.assert_array_equal(result, w.astype(np.int32) @ columns)
