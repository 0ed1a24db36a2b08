"""Rows rounded to bytes times weights rounded to bytes: exact sums at every level."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from kernels import (
    Buffer,
    Kernel,
    call_on_threads,
    compile_kernel,
    levels,
    module_of,
    nmse,
    on_threads,
)
from ml_dtypes import bfloat16
from test_narrow_products import PROGRAM

from rlx.errors import RlxError
from rlx.lowering.contract import Group, store_panel
from rlx.lowering.emitter import Function
from rlx.lowering.formats import BYTES, packed_bytes
from rlx.lowering.gemm import emit_gemm
from rlx.lowering.gemm_unit import ROUNDED
from rlx.lowering.in_turn import TURNS_BYTES
from rlx.lowering.pack import emit_pack
from rlx.lowering.values import Value

LEVELS = levels()


def step_of(span: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of spans [rows] f32, and their inverses."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(span < np.float32(2**-100), np.float32(0), np.float32(count) / span)
    return span / np.float32(count), inverse[:, None]


def rounded_weight(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the integers of rows [rows, k] i64, and their steps [rows], in f32's arithmetic."""
    steps, inverse = step_of(abs(x).max(1, initial=0), 127)
    return np.rint(x * inverse).astype(np.int64), steps


def rounded(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what rows' bytes are beyond their zeros, [rows, k] i64, and their steps."""
    low, high = (end[:, None] for end in (x.min(1, initial=0), x.max(1, initial=0)))
    steps, inverse = step_of((high - low)[:, 0], 254)
    zero = np.rint((-low * inverse).astype(np.float64))
    bytes_ = np.rint((x * inverse).astype(np.float64) + zero)
    assert ((bytes_ >= 0) & (bytes_ <= 255)).all()
    return (bytes_ - zero).astype(np.int64), steps


@cache
def packer(level: str, given: str, k: int) -> Kernel:
    def body(f: Function) -> None:
        src, dst, n, tid, nth = f.params
        emit_pack(f, BYTES, src, dst, n, k, tid, nth, given)

    names = [("ptr", "src"), ("ptr", "dst"), ("i64", "n"), ("i64", "tid"), ("i64", "nth")]
    return compile_kernel(level, names, body)


def packed(weight: np.ndarray, level: str = "host") -> Buffer:
    """Pack a weight [n, k] of f32, f16 or bf16 on two threads."""
    n, k = weight.shape
    given = {np.float32: "f32", np.float16: "f16", bfloat16: "bf16"}[weight.dtype.type]
    buffer = Buffer(packed_bytes(BYTES, n, k))
    for tid in range(2):
        packer(level, given, k)(Buffer.of(weight, offset=1), buffer, n, tid, 2)
    return buffer


class Products:
    """A kernel whose outputs are [rows, n] for each weight of each group."""

    def __init__(self, level: str, k: int, groups: Sequence[Group], stride: int, element: str):
        self.groups, self.stride = groups, stride
        self.dtype = np.dtype(bfloat16 if element == "bfloat" else np.float32)
        count = sum(len(g.formats) for g in groups)

        def body(f: Function) -> None:
            tid, nth, a, rows, turns = f.params[:5]
            given = iter(f.params[5:])
            weights, outs = ([[next(given) for _ in g.formats] for g in groups] for _ in range(2))

            def store(f: Function, g: int, row: Value, panel: Value, values: list[Value]) -> None:
                n = groups[g].n
                for out, value in zip(outs[g], values, strict=True):
                    store_panel(f, f.at(out, row, 4 * n), n, panel, value)

            emit_gemm(f, k, groups, a, stride, rows, weights, tid, nth, store, element, turns=turns)

        params = [("i64", "tid"), ("i64", "nth"), ("ptr", "a"), ("i64", "rows"), ("ptr", "turns")]
        params += [("ptr", f"p{i}") for i in range(2 * count)]
        module = module_of(level, params, body)
        self.kernel = Kernel(module.text, "kernel", module.target)

    def __call__(self, x: np.ndarray, weights: Sequence[Buffer], threads: int) -> list[np.ndarray]:
        apart = np.full((len(x), self.stride // self.dtype.itemsize), np.nan, self.dtype)
        apart[:, : x.shape[1]] = x
        widths = [g.n for g in self.groups for _ in g.formats]
        outs = [Buffer(4 * n * len(x), offset=4) for n in widths]
        rows = Buffer.of(apart, offset=4)
        turns = Buffer.of(np.zeros(TURNS_BYTES, np.uint8))
        buffers = turns, *weights, *outs
        call_on_threads(threads, lambda tid: self.kernel(tid, threads, rows, len(x), *buffers))
        assert not turns.bytes.any()
        return [out.array(np.float32, len(x), n) for out, n in zip(outs, widths, strict=True)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("given", [np.float32, np.float16, bfloat16])
def test_pack(given: type, level: str):
    """Four k of a row beside each other; then steps, and sums."""
    rng = np.random.default_rng(1)
    for n, k in ((1, 1), (17, 6), (40, 67), (16, 128)):
        weight = (rng.standard_normal((n, k)) * 10.0 ** rng.uniform(-2, 2, (n, 1))).astype(given)
        if n > 1:
            weight[1] = 0
        numbers, steps = rounded_weight(weight.astype(np.float32))
        wanted = np.zeros((-(-n // 16) * 16, -(-k // 64) * 64), np.int64)
        wanted[:n, :k] = numbers
        raw = packed(weight, level).bytes.reshape(-1, wanted.shape[1] * 16 + 128)
        found = raw[:, :-128].view(np.int8).reshape(len(raw), -1, 16, 4)
        np.testing.assert_array_equal(found.transpose(0, 2, 1, 3).reshape(wanted.shape), wanted)
        tails = np.ascontiguousarray(raw[:, -128:])
        np.testing.assert_array_equal(tails[:, :64].view(np.float32).reshape(-1)[:n], steps)
        sums = tails[:, 64:].view(np.int32).reshape(-1)
        np.testing.assert_array_equal(sums, wanted.sum(1))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ["float", "bfloat", ROUNDED])
@pytest.mark.parametrize("k", [1, 3, 47, 64, 130, 576, 1536, 1600])
def test_sums_are_exact(k: int, element: str, level: str):
    rng = np.random.default_rng(k)
    groups = [Group((BYTES,), 50), Group((BYTES, BYTES), 33), Group((BYTES,), 16)]
    size = 2 if element == "bfloat" else 4
    kernel = Products(level, k, groups, (k + 3) * size, element)
    widths = [g.n for g in groups for _ in g.formats]
    weights = [rng.standard_normal((n, k)).astype(np.float32) for n in widths]
    buffers = [packed(w) for w in weights]
    for m in (0, 1, 2, 15, 17, 33, 100, 300):
        x = (rng.standard_normal((m, k)) * 10.0 ** rng.uniform(-2, 2, (m, 1))).astype(np.float32)
        x[3:4] = 0
        x[5:6] = 127
        taken = x if element == "float" else x.astype(bfloat16).astype(np.float32)
        own, row_steps = rounded(taken)
        one, two, three = (kernel(x, buffers, threads) for threads in (1, 2, 3))
        for w, *results in zip(weights, one, two, three, strict=True):
            numbers, steps = rounded_weight(w)
            sums = (own @ numbers.T).astype(np.float32)
            for result in results:
                np.testing.assert_array_equal(result, sums * row_steps[:, None] * steps)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ["float", "bfloat"])
def test_largest_sums_and_numbers_that_are_not_finite(element: str, level: str):
    """No sum saturates; a row with NaN or infinity has no finite result, and others are theirs."""
    k, n = 8000, 17
    size = 2 if element == "bfloat" else 4
    kernel = Products(level, k, [Group((BYTES,), n)], k * size, element)
    weight = np.ones((n, k), np.float32)
    weight[1::2] = -1
    x = np.ones((40, k), np.float32)
    x[1::2] = -1
    x[11] = np.random.default_rng(0).standard_normal(k)
    x[5, 77], x[6, 3], x[7, 7999] = np.nan, np.inf, -np.inf
    x[8], x[9] = 1e-38, 1e38
    (result,) = kernel(x, [packed(weight)], 1)
    assert not np.isfinite(result[5:8]).any()
    own, row_steps = rounded(np.delete(x, [5, 6, 7], 0).astype(kernel.dtype).astype(np.float32))
    numbers, steps = rounded_weight(weight)
    assert abs(own @ numbers.T).max() == 254 * 127 * k
    with np.errstate(over="ignore"):
        wanted = (own @ numbers.T).astype(np.float32) * row_steps[:, None] * steps
    np.testing.assert_array_equal(np.delete(result, [5, 6, 7], 0), wanted)


def test_other_formats_are_refused():
    with pytest.raises(RlxError, match="expected weights of i8 beside none of other formats"):
        Products("host", 64, [Group((BYTES,), 16), Group(("f32",), 16)], 256, "float")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("n", "k"), [(96, 64), (33, 47), (1600, 384)])
def test_two_products(n: int, k: int, level: str):
    """From HIR on, with an activation and a residual in their epilogues."""
    rng = np.random.default_rng(n)
    up, down = (rng.standard_normal(s).astype(np.float32) / s[1] ** 0.5 for s in ((n, k), (k, n)))
    text = PROGRAM.format(products="int8", n=n, k=k)
    one, two = on_threads(text, level, weights={"up": up, "down": down})

    def product(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        a, own = rounded(x.astype(bfloat16).astype(np.float32))
        b, steps = rounded_weight(weight)
        return (a @ b.T).astype(np.float32) * own[:, None] * steps

    for m in (0, 1, 31, 33, 100, 600):
        x = rng.standard_normal((m, k)).astype(np.float32)
        given = one(x)
        np.testing.assert_array_equal(two(x), given)
        a = product(x, up)
        expected = x + product(a / (1 + np.exp(-a)), down)
        # A number that is nearly halfway between two may fall to either side.
        assert not m or nmse(given, expected) < 1e-5
