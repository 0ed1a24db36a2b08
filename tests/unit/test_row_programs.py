"""Row programs with a name for every size: long rows, large results, columns, kept rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from row_texts import COLUMN, ROW, VECTOR, normal, program, within

from rlx.flow.source import MapWeights
from rlx.functions import Built, CompiledFunction, build
from rlx.lowering.target import Target
from rlx.lowering.tensor_lines import STREAMED
from rlx.lowering.tensor_reduce import ROW_BYTES
from rlx.lowering.tensor_rows import STRIPE_BYTES
from rlx.lowering.tensor_split import LENGTH, ROWS


@cache
def built(text: str) -> Built:
    return build(text, Target.host())


@cache
def compiled(text: str, threads: int) -> CompiledFunction:
    return CompiledFunction(built(text), MapWeights({}), threads)


SUM = program([ROW], [COLUMN], f"%y0 = mir.reduce sum %x0 axes [1] : {ROW} -> {COLUMN}")
TOTAL = program(
    [ROW], ["tensor<f32>"], f"%y0 = mir.reduce sum %x0 axes [0, 1] : {ROW} -> tensor<f32>"
)
SOFTMAX = program([ROW], [ROW], f"%y0 = mir.softmax %x0 : {ROW}")
NORM = program(
    [ROW, VECTOR, VECTOR],
    [ROW],
    f"%y0 = mir.layer_norm %x0, %x1, %x2 eps 1.0e-05 : {ROW}, {VECTOR}",
)
LOG_SUM = program(
    [ROW],
    [COLUMN],
    f"""%e = mir.unary exp %x0 : {ROW}
    %s = mir.reduce sum %e axes [1] : {ROW} -> {COLUMN}
    %y0 = mir.unary log %s : {COLUMN}""",
)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def layer_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w + b


OVER_ROWS: dict[str, tuple[str, int, Callable[..., Any]]] = {
    "sum": (SUM, 0, lambda x: x.sum(1)),
    "total": (TOTAL, 0, lambda x: x.sum()),
    "softmax": (SOFTMAX, 0, softmax),
    "layer norm": (NORM, 2, layer_norm),
    "log of a sum": (LOG_SUM, 0, lambda x: np.log(np.exp(x).sum(1))),
}
KEPT = ROW_BYTES // 4 - 64


@pytest.mark.parametrize("name", OVER_ROWS)
@pytest.mark.parametrize(
    "shape",
    [
        (1, LENGTH - 1), (1, LENGTH), (2, LENGTH + 4465), (ROWS, LENGTH + 1), (ROWS + 1, LENGTH),
        (3, 4 * LENGTH + 17), (5, KEPT), (5, KEPT + 1), (3, 16), (2, 1), (300, 257),
    ],
    ids=str,
)  # fmt: skip
def test_long_rows_give_the_same_bits_with_any_threads(name: str, shape: tuple[int, int]):
    text, vectors, meaning = OVER_ROWS[name]
    args = normal(shape, *[shape[1:]] * vectors)
    first = np.asarray(compiled(text, 1)(*args))
    for _ in range(3):
        assert np.asarray(compiled(text, 2)(*args)).tobytes() == first.tobytes()
    expected = meaning(*(a.astype(np.float64) for a in args))
    scale = max(1.0, float(np.abs(args[0]).sum(1).max()) if name in ("sum", "total") else 1.0)
    scale *= shape[0] if name == "total" else 1
    np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize("name", OVER_ROWS)
def test_rows_of_nothing_and_no_rows(name: str):
    text, vectors, _ = OVER_ROWS[name]
    for threads in (1, 2):
        for shape in ((0, LENGTH), (2, 0), (0, 0)):
            args = normal(shape, *[shape[1:]] * vectors)
            y = np.asarray(compiled(text, threads)(*args))
            if name in ("sum", "total"):
                assert not y.any()


VARIANCE = program(
    [ROW],
    [COLUMN, COLUMN],
    f"""%m = mir.reduce mean %x0 axes [1] : {ROW} -> {COLUMN}
    %k = mir.reshape %m : {COLUMN} -> tensor<?x1xf32, #hir.dims<r, _>>
    %w = mir.broadcast %k : tensor<?x1xf32, #hir.dims<r, _>> -> {ROW}
    %d = mir.binary sub %x0, %w : {ROW}
    %q = mir.binary mul %d, %d : {ROW}
    %y0 = mir.reduce mean %q axes [1] : {ROW} -> {COLUMN}
    %h = mir.reduce max %x0 axes [1] : {ROW} -> {COLUMN}
    %y1 = mir.binary add %h, %y0 : {COLUMN}""",
)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [0, 1, 16, 37, 64, 65, 200, 1025])
def test_a_row_is_reduced_to_the_same_bits_alone_and_with_others(n: int, threads: int):
    total, variance = (compiled(text, threads) for text in (SUM, VARIANCE))

    def results(x: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(y) for y in (total(x), *variance(x))]

    for rows in (1, 3, 4, 5, 8, 11):
        (x,) = normal((rows, n))
        together = results(x)
        for i in range(rows):
            for alone, y in zip(results(x[i : i + 1]), together, strict=True):
                assert alone.tobytes() == y[i : i + 1].tobytes()
        if n:
            wide = x.astype(np.float64)
            expected = wide.sum(1), wide.var(1), wide.max(1) + wide.var(1)
            for y, z in zip(together, expected, strict=True):
                np.testing.assert_allclose(y, z, rtol=1e-4, atol=1e-4)


def test_an_empty_row_beside_a_long_one():
    text = program(
        ["tensor<?xf32, #hir.dims<r>>", "tensor<?xf32, #hir.dims<n>>"],
        ["tensor<f32>"],
        """%s = mir.reduce sum %x0 axes [0] : tensor<?xf32, #hir.dims<r>> -> tensor<f32>
    %t = mir.reduce sum %x1 axes [0] : tensor<?xf32, #hir.dims<n>> -> tensor<f32>
    %y0 = mir.binary add %s, %t : tensor<f32>""",
    )
    (x,), empty = normal((LENGTH + 1,)), np.zeros(0, np.float32)
    for threads in (1, 2):
        for args in ((x, empty), (empty, x)):
            y = np.asarray(compiled(text, threads)(*args))
            np.testing.assert_allclose(y, x.astype(np.float64).sum(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("offsets", [(0, 0), (1, 1), (4, 4), (15, 15), (3, 8)], ids=str)
def test_large_results_may_lie_anywhere(offsets: tuple[int, int], threads: int):
    text = program(
        [VECTOR, VECTOR],
        [VECTOR, VECTOR],
        f"%y0 = mir.binary add %x0, %x1 : {VECTOR}\n    %y1 = mir.binary mul %y0, %x0 : {VECTOR}",
        "n",
    )
    large = STREAMED // 8
    for n in (0, 1, 16, 1000, 1023, 1024, 1037, 5000, large - 1, large, large + 13):
        a, b = normal((n,), (n,))
        (m0, y0), (m1, y1) = (within(n, offset) for offset in offsets)
        compiled(text, threads)(a, b, out=[y0, y1])
        assert y0.tobytes() == (a + b).tobytes()
        assert y1.tobytes() == ((a + b) * a).tobytes()
        for memory in (m0, m1):
            assert (memory == 7).sum() >= 96, "written beside the results"


@pytest.mark.parametrize("threads", [1, 2])
def test_large_rows_may_lie_anywhere(threads: int):
    for shape in ((64, 33000), (2100, 1027)):
        (x,) = normal(shape)
        memory, y = within(x.size, 5)
        y = y.reshape(shape)
        compiled(SOFTMAX, threads)(x, out=[y])
        np.testing.assert_allclose(y, softmax(x.astype(np.float64)), rtol=1e-5, atol=1e-9)
        assert (memory == 7).sum() == 96


@pytest.mark.parametrize("n", [1, 15, 16, 100, 1024, 1029, 5000, 70000])
@pytest.mark.parametrize("element", ["f32", "f64"])
def test_softmax_of_what_is_not_finite(element: str, n: int):
    row = ROW.replace("f32", element)
    text = program([row], [row], f"%y0 = mir.softmax %x0 : {row}")
    x = np.repeat(normal((1, n))[0], 12, 0).astype(np.float64 if element == "f64" else np.float32)
    x *= np.array([1, 1, 1, 1, 1, 1, 1, 1, 30, 1e4, 1e30, 0])[:, None].astype(x.dtype)
    x[0, 0], x[1, n // 2], x[2, -1] = np.nan, np.nan, np.nan
    x[3, n // 2], x[4, n - 1] = np.inf, -np.inf
    x[5, : n // 2], x[6, n // 2 :], x[7] = -np.inf, -np.inf, -np.inf
    with np.errstate(all="ignore"):
        expected = softmax(x.astype(np.float64))
    for threads in (1, 2):
        y = np.asarray(compiled(text, threads)(x))
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-30)


KINDS: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
def test_columns_of_any_size(kind: str, axes: tuple[int, ...]):
    dims = ["p", "r", "n"]
    left = [d for i, d in enumerate(dims) if i not in axes]
    cube = "tensor<?x?x?xf32, #hir.dims<p, r, n>>"
    out = f"tensor<{'?x' * len(left)}f32, #hir.dims<{', '.join(left)}>>"
    text = program(
        [cube], [out], f"%y0 = mir.reduce {kind} %x0 axes {list(axes)} : {cube} -> {out}", "prn"
    )
    stripe = STRIPE_BYTES // 4
    for shape in (
        (1, 1, 1), (3, 5, 16), (4, 7, 63), (5, 4, 65), (9, 2, 200), (2, 9, stripe - 1),
        (3, 2, stripe + 17), (6, 1, 2 * stripe + 64), (1, 3, 100), (5, 700, 13),
    ):  # fmt: skip
        (x,) = normal(shape)
        first = np.asarray(compiled(text, 1)(x))
        assert np.asarray(compiled(text, 2)(x)).tobytes() == first.tobytes()
        expected = KINDS[kind](x.astype(np.float64), axis=axes)
        np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-4)


def test_columns_of_other_elements():
    for element, dtype, kind in (("f64", np.float64, "sum"), ("i1", np.bool_, "max"),
                                 ("i8", np.int8, "max"), ("i64", np.int64, "sum")):  # fmt: skip
        rows, row = (
            f"tensor<{'?x' * len(d)}{element}, #hir.dims<{', '.join(d)}>>" for d in ("rn", "n")
        )
        text = program([rows], [row], f"%y0 = mir.reduce {kind} %x0 axes [0] : {rows} -> {row}")
        for shape in ((0, 70), (1, 64), (6, 83), (9, 3000)):
            x = (4 * normal(shape)[0]).astype(dtype)
            if kind == "max" and not shape[0]:
                continue
            y = np.asarray(compiled(text, 2)(x))
            expected = getattr(x, kind)(0)
            np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_what_follows_columns_is_computed_with_them():
    text = program(
        [ROW, VECTOR],
        [VECTOR, VECTOR],
        f"""%s = mir.reduce sum %x0 axes [0] : {ROW} -> {VECTOR}
    %m = mir.reduce max %x0 axes [0] : {ROW} -> {VECTOR}
    %y0 = mir.binary mul %s, %x1 : {VECTOR}
    %y1 = mir.binary add %y0, %m : {VECTOR}""",
    )
    for shape in ((7, 50), (7, 129), (5, 9001)):
        x, w = normal(shape, shape[1:])
        y, z = compiled(text, 2)(x, w)
        np.testing.assert_allclose(y, x.astype(np.float64).sum(0) * w, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(z, y + x.max(0), rtol=1e-6)


def test_long_rows_of_weights_are_reduced_before_the_first_step():
    weight = f"tensor<{LENGTH + 9}xf32>"
    text = f"""builtin.module attributes {{rlx.dims = #hir.dim_table<n = 0 to any>}} {{
  hir.weight @w "w" : {weight}
  func.func @main(%x: {VECTOR} {{rlx.name = "x"}}) -> ({VECTOR} {{rlx.name = "y"}}) {{
    %w = hir.load_weight @w : {weight}
    %s = mir.reduce sum %w axes [0] : {weight} -> tensor<f32>
    %b = mir.broadcast %s : tensor<f32> -> {VECTOR}
    %y = mir.binary add %x, %b : {VECTOR}
    func.return %y : {VECTOR}
  }}
}}"""
    (x,), (w,) = normal((5,)), normal((LENGTH + 9,))
    built = build(text, Target.host())
    for threads in (1, 2):
        f = CompiledFunction(built, MapWeights({"w": w}), threads, poison=True)
        np.testing.assert_allclose(f(x), x + w.astype(np.float64).sum(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("name", "reductions"), [("sum", 1), ("total", 1), ("softmax", 2)])
def test_threads_meet_for_each_reduction_of_a_long_row_and_at_the_end(name: str, reductions: int):
    text = compiled(OVER_ROWS[name][0], 1).ir("llvm")
    assert text.count("call void @barrier(ptr %scratch") == reductions + 1


@pytest.mark.parametrize("outputs", [1, 2])
def test_lines_are_fetched_before_results_that_lie_across_them(outputs: int):
    body = f"%y0 = mir.unary abs %x0 : {VECTOR}\n    %y1 = mir.unary exp %y0 : {VECTOR}"
    text = program([VECTOR], [VECTOR] * outputs, "\n".join(body.split("\n")[:outputs]))
    code = compiled(text, 1).ir("llvm").splitlines()
    stores = [i for i, line in enumerate(code) if "store <16 x float>" in line]
    plain = [i for i in stores if "nontemporal" not in code[i]]
    assert 0 < len(plain) < len(stores)
    for i in stores:
        fetched = "@llvm.prefetch" in code[i - 1] and "i32 1, i32 3, i32 1" in code[i - 1]
        assert fetched == (i in plain and outputs > 1)
