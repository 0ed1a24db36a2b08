"""Sorts, gathers and scatters: what must hold of them, sizes with names, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from by_hand import made, meaning
from kernels import levels, on_threads
from xdsl.dialects.builtin import f16, i8, i64
from xdsl.utils.exceptions import VerifyException

import rlx
from rlx.dialects.common import tensor
from rlx.lowering.sort import MAX_STACK, SLOTS
from rlx.ops.indexing import GatherElementsOp, GatherNdOp
from rlx.ops.scattering import ScatterAddOp, ScatterElementsOp, ScatterNdOp, ScatterRowsOp
from rlx.ops.sorting import ArgSortOp, SortOp, SortRowsOp, TopKIdsOp, TopKOp

RNG = np.random.default_rng(11)
DIMS = "attributes {rlx.dims = #hir.dim_table<b = 0 to 40, n = 0 to any>}"
NAMED = f"""builtin.module {DIMS} {{
  func.func @main(%x: tensor<?x?xELEMENT, #hir.dims<b, n>> {{rlx.name = "x"}}) -> (
      tensor<?x?xELEMENT, #hir.dims<b, n>> {{rlx.name = "v"}},
      tensor<?x?xi64, #hir.dims<b, n>> {{rlx.name = "i"}}) {{
    %v, %i = indexing.sort(%x) descending DOWN : (tensor<?x?xELEMENT, #hir.dims<b, n>>)
      -> (tensor<?x?xELEMENT, #hir.dims<b, n>>, tensor<?x?xi64, #hir.dims<b, n>>)
    func.return %v, %i : tensor<?x?xELEMENT, #hir.dims<b, n>>, tensor<?x?xi64, #hir.dims<b, n>>
  }}
}}"""
STATIC = """builtin.module {
  func.func @main(%x: tensor<ROWSxNxELEMENT> {rlx.name = "x"}) -> (
      tensor<ROWSxKxELEMENT> {rlx.name = "v"}, tensor<ROWSxKxi64> {rlx.name = "i"}) {
    %v, %i = indexing.topk(%x) k K : (tensor<ROWSxNxELEMENT>)
      -> (tensor<ROWSxKxELEMENT>, tensor<ROWSxKxi64>)
    func.return %v, %i : tensor<ROWSxKxELEMENT>, tensor<ROWSxKxi64>
  }
}"""


def ordered(x: np.ndarray, descending: bool) -> np.ndarray:
    """The stable order of rows, element by element."""
    number = [
        [(v != v, -v if descending else v, i) for i, v in enumerate(row.tolist())] for row in x
    ]
    return np.array([[i for *_, i in sorted(row, key=_key)] for row in number]).reshape(x.shape)


def _key(item: tuple[bool, float, int]) -> tuple[bool, float, int]:
    late, v, i = item
    return late, 0.0 if late else v, i


def keys(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype[0] == "i":
        info = np.iinfo(dtype)
        x = RNG.integers(info.min, info.max, shape, dtype, endpoint=True)
        return np.where(RNG.random(shape) < 0.5, x, x % 3).astype(dtype)
    x = RNG.standard_normal(shape).astype(dtype)
    for value in (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0):
        x[RNG.random(shape) < 0.05] = value
    return x


# What they mean


def test_equal_elements_stay_in_their_order_either_way():
    x = np.array([2.0, np.nan, 1.0, -0.0, 0.0, 2.0, -np.inf, np.nan, 1.0])
    assert meaning(ArgSortOp, x).tolist() == [6, 3, 4, 2, 8, 0, 5, 1, 7]
    assert meaning(ArgSortOp, x, descending=True).tolist() == [0, 5, 2, 8, 3, 4, 6, 1, 7]
    values, order = meaning(SortOp, x)
    np.testing.assert_array_equal(values, np.sort(x))
    np.testing.assert_array_equal(x[order], values)


def test_the_least_integer_is_last_in_descending_order():
    x = np.array([5, -128, 127, -128], np.int8)
    assert meaning(SortOp, x, descending=True)[0].tolist() == [127, 5, -128, -128]


def test_a_sort_along_another_axis():
    x = RNG.integers(0, 9, (4, 5, 3))
    for axis in (-3, -2, 0, 1, 2):
        values, order = meaning(SortOp, x, axis=axis)
        np.testing.assert_array_equal(values, np.sort(x, axis))
        np.testing.assert_array_equal(order, np.argsort(x, axis, kind="stable"))


def test_ties_of_the_largest_go_to_smaller_indices():
    x = np.array([[1.0, 3.0, 3.0, 0.0, 3.0]])
    values, order = meaning(TopKOp, x, k=2)
    assert (values.tolist(), order.tolist()) == ([[3.0, 3.0]], [[1, 2]])
    assert meaning(TopKIdsOp, x, k=3, largest=False).tolist() == [[3, 0, 1]]


def test_gathers_by_hand():
    x = np.arange(12.0).reshape(3, 4)
    assert meaning(GatherNdOp, x, np.array([[0, 1], [-1, -1], [9, -9]])).tolist() == [1, 11, 8]
    assert meaning(GatherNdOp, x, np.array([[2], [-3]])).tolist() == [x[2].tolist(), x[0].tolist()]
    assert meaning(GatherNdOp, x, np.array([[1], [0], [3]]), batch=1).tolist() == [1, 4, 11]
    ids = np.array([[0, -1], [2, 1]])
    assert meaning(GatherElementsOp, x, ids, axis=1).tolist() == [[0, 3], [6, 5]]
    assert meaning(GatherElementsOp, x, ids, axis=0).tolist() == [[0, 9], [8, 5]]


def test_scatters_by_hand():
    x = np.zeros((3, 2))
    updates = np.array([[1.0, 2], [3, 4], [5, 6], [7, 8]])
    ids = np.array([1, -1, 3, 1])
    assert meaning(ScatterRowsOp, x, ids, updates).tolist() == [[0, 0], [7, 8], [3, 4]]
    added = meaning(ScatterRowsOp, x, ids, updates, kind="add")
    assert added.tolist() == [[0, 0], [8, 10], [3, 4]]
    assert meaning(ScatterAddOp, updates, ids, rows=3).tolist() == added.tolist()
    places = np.array([[0, 1], [2, 0], [0, -3], [0, 1]])
    got = meaning(ScatterNdOp, x, places, np.array([1.0, 2, 3, 4]), kind="max")
    assert got.tolist() == [[0, 4], [0, 0], [2, 0]]
    got = meaning(ScatterElementsOp, x, np.array([[1, -2]]), np.array([[5.0, 6]]), axis=1)
    assert got.tolist() == [[6, 5], [0, 0], [0, 0]]


# The kernels


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "i4", "i8"])
@pytest.mark.parametrize("down", [False, True])
def test_rows_whose_sizes_have_no_bound(dtype: str, down: bool, level: str):
    element = {"f": "f", "i": "i"}[dtype[0]] + str(8 * int(dtype[1]))
    text = NAMED.replace("ELEMENT", element).replace("DOWN", str(down).lower())
    for f in on_threads(text, level):
        for shape in ((0, 5), (3, 0), (1, 1), (5, 300), (SLOTS + 3, 37), (2, 2000)):
            x = keys(shape, dtype)
            values, order = f(x)
            np.testing.assert_array_equal(order, ordered(x, down))
            # The bits of zeros and NaN are kept too.
            assert values.tobytes() == np.take_along_axis(x, order, -1).tobytes()


@pytest.mark.sample(16)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "i2", "i4", "i8"])
@pytest.mark.parametrize("n", [1, 48, 49, 128, 192, 193, 600, MAX_STACK // 16 + 5])
def test_the_first_of_rows_of_all_sizes(n: int, dtype: str, fuzz_count: Callable[[int, int], int]):
    element = f"{dtype[0]}{8 * int(dtype[1])}"
    x = keys((2, n), dtype)
    counts = sorted({1, min(n, 5), n // 2 + 1, n})
    # A sample has every second of them.
    turn, step = n + "1248".index(dtype[1]), fuzz_count(1, 2)
    for k in counts[turn % step :: step] or counts:
        text = STATIC.replace("ELEMENT", element).replace("ROWS", "2")
        f = rlx.compile(text.replace("xNx", f"x{n}x").replace("K", str(k)), threads=2)
        values, order = f(x)
        np.testing.assert_array_equal(order, ordered(x, True)[:, :k])
        np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "i8"])
def test_rows_so_long_that_they_are_spread_over_buckets(dtype: str):
    """Most keys in few buckets, many buckets of few, and all of one key."""
    element, n = f"{dtype[0]}{8 * int(dtype[1])}", (1 << 16) + 1
    text = NAMED.replace("ELEMENT", element)
    rows = [keys((n,), dtype), (RNG.standard_normal(n) * 100).astype(dtype), np.full(n, 3, dtype)]
    for down in (False, True):
        f = rlx.compile(text.replace("DOWN", str(down).lower()), threads=2)
        x = np.stack(rows)
        values, order = f(x)
        np.testing.assert_array_equal(order, ordered(x, down))
        assert values.tobytes() == np.take_along_axis(x, order, -1).tobytes()


SCATTER = """builtin.module {
  func.func @main(%x: tensor<9xWIDTHxf32> {rlx.name = "x"}, %i: tensor<50xi64> {rlx.name = "i"},
      %u: tensor<50xWIDTHxf32> {rlx.name = "u"}) -> (tensor<9xWIDTHxf32> {rlx.name = "y"}) {
    %y = indexing.scatter_rows(%x, %i, %u) kind add
      : (tensor<9xWIDTHxf32>, tensor<50xi64>, tensor<50xWIDTHxf32>) -> tensor<9xWIDTHxf32>
    func.return %y : tensor<9xWIDTHxf32>
  }
}"""


@pytest.mark.parametrize("width", [1, 15, 16, 33, 513, 1000])
def test_sums_at_indices_are_in_order_whatever_the_threads(width: int):
    """By rows or by columns: the sum of floats in another order would differ in its last bits."""
    x = RNG.standard_normal((9, width)).astype(np.float32)
    u = (RNG.standard_normal((50, width)) * 10.0 ** RNG.integers(-4, 5, (50, 1))).astype(np.float32)
    ids = RNG.integers(-11, 12, 50)
    want = x.copy()
    for i, row in zip(ids, u, strict=True):
        if -9 <= i < 9:
            want[i] += row
    for f in on_threads(SCATTER.replace("WIDTH", str(width))):
        np.testing.assert_array_equal(f(x, ids, u), want)


# What is refused


def refused(message: str, *args: object, **options: object) -> None:
    with pytest.raises(VerifyException, match=message):
        made(*args, **options)  # pyright: ignore: wrong operands are the point


def test_operands_that_do_not_fit():
    x, ids = tensor([4, 5]), tensor([3], i64)
    refused("indexing.sort: expected an axis of 2 dimensions", SortOp, [x], axis=2)
    refused("from `k` 6 on", TopKOp, [x], k=6)
    refused("from `k` 0 on|from `k` -1 on", TopKOp, [x], k=-1)
    refused("an axis of a number of elements", SortRowsOp, [tensor(["n"])], k=1)
    refused("expected elements of f32", SortOp, [tensor([3], f16)])
    refused("a dimension or more", SortRowsOp, [tensor([])])
    refused("indices: expected elements of i32, i64", GatherNdOp, [x, tensor([3, 1], i8)])
    refused(r"indices \[batch..., m..., q\]", GatherNdOp, [x, tensor([3, 3], i64)])
    refused("not larger along axes other than 0", GatherElementsOp, [x, tensor([9, 6], i64)])
    refused(r"updates \[m..., rest...\]", ScatterRowsOp, [x, ids, tensor([3, 4])])
    refused("`axes` 3", ScatterRowsOp, [x, ids, tensor([3])], axes=3)
    refused("kind: expected one of set, add", ScatterRowsOp, [x, ids, tensor([3, 5])], kind="div")
    half = tensor([4, 5], f16)
    made(ScatterRowsOp, [half, ids, tensor([3, 5], f16)])
    refused("expected elements of f32", ScatterRowsOp, [half, ids, tensor([3, 5], f16)], kind="add")
    refused("of one shape", ScatterElementsOp, [x, tensor([4, 5], i64), tensor([4, 4])])
