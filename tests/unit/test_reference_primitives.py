"""What tensor primitives and control flow mean, against formulas written a second time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from references import ELEMENTS, close, program, run, same, typed

from rlx.dialects import infer, mir
from rlx.errors import RlxError
from rlx.passes.source import context, parse
from rlx.reference import Reference, constant, dense, fold, meanings

# Constants, reductions, norms and products


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("dense<[1.5, -2.0]> : tensor<2xf32>", [1.5, -2.0]),
        ("dense<0.1> : tensor<2x1xf64>", [[0.1], [0.1]]),
        ("dense<0.1> : tensor<f32>", float(np.float32(0.1))),
        ("dense<[0.1, 3.0]> : tensor<2xf16>", [float(np.float16(0.1)), 3.0]),
        ("dense<[0.1, -3.0]> : tensor<2xbf16>", [0.10009765625, -3.0]),
        ("dense<[[1, -1]]> : tensor<1x2xi8>", np.array([[1, -1]], np.int8)),
        ("dense<[300]> : tensor<1xi16>", np.array([300], np.int16)),
        ("dense<-5> : tensor<2xi32>", np.array([-5, -5], np.int32)),
        ("dense<9223372036854775807> : tensor<i64>", np.array(2**63 - 1)),
        ("dense<[true, false]> : tensor<2xi1>", [True, False]),
        ("dense<> : tensor<0x3xf32>", np.zeros((0, 3))),
    ],
)
def test_constant(text: str, wanted: object):
    type_ = text.split(" : ")[1]
    same(run(f"mir.constant {text}", type_), wanted)


def test_a_constant_with_one_value_fills_its_tensor():
    value = dense(np.array(2.0), mir.tensor([300, 300], infer.FLOATS[1]))
    one = type(value)(value.type, type(value.data)(value.data.data[:8]))
    (y,) = fold(mir.ConstantOp(one), [])
    same(y, np.full((300, 300), 2.0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64])
def test_iota(dtype: type):
    element = ELEMENTS[np.dtype(dtype)]
    wide = np.float64 if element == "f32" else dtype
    for axis in range(3):
        type_ = f"tensor<2x3x4x{element}>"
        same(
            run(f"mir.iota axis {axis} : {type_}", type_), np.indices((2, 3, 4))[axis].astype(wide)
        )
    same(run("mir.iota axis 0 : tensor<130xi8>", "tensor<130xi8>")[126:],
         np.array([126, 127, -128, -127], np.int8))  # fmt: skip


def reduced(kind: str, x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    kept = [d for i, d in enumerate(x.shape) if i not in axes]
    type_ = f"tensor<{''.join(f'{d}x' for d in kept)}{ELEMENTS[x.dtype]}>"
    return run(f"mir.reduce {kind} %x axes {list(axes)} : $x -> {type_}", type_, x=x)


@pytest.mark.parametrize("axes", [(), (0,), (2,), (0, 2), (2, 0), (0, 1, 2)])
def test_reduce(axes: tuple[int, ...]):
    rng = np.random.default_rng(7)
    for x in (rng.standard_normal((2, 3, 4)), rng.integers(-100, 100, (2, 3, 4)).astype(np.int8)):
        functions = {"sum": sum, "max": max, "min": min, "prod": math.prod}
        if x.dtype.kind == "f":
            functions["mean"] = lambda v: sum(v) / len(v)
        for kind, function in functions.items():
            y = reduced(kind, x, axes)
            kept = [range(1) if i in axes else range(d) for i, d in enumerate(x.shape)]
            for place in product(*kept):
                picked = tuple(slice(None) if i in axes else p for i, p in enumerate(place))
                wanted = function(x[picked].reshape(-1).tolist())
                got = y[tuple(p for i, p in enumerate(place) if i not in axes)]
                if x.dtype.kind == "f":
                    assert got == pytest.approx(wanted, rel=1e-12)
                else:
                    assert int(got) == (wanted + 128) % 256 - 128


def test_reduce_of_nothing_and_of_bools():
    x = np.zeros((2, 0), np.float32)
    wanted = {"sum": 0, "prod": 1, "max": -math.inf, "min": math.inf}
    for kind, value in wanted.items():
        assert reduced(kind, x, [1]).tolist() == [value] * 2
    assert np.isnan(reduced("mean", x, [1])).all()
    assert reduced("mean", x, [0]).shape == (0,)
    i = np.zeros((0,), np.int16)
    assert [int(reduced(k, i, [0])) for k in ("sum", "prod", "max", "min")] == [
        0, 1, -(2**15), 2**15 - 1
    ]  # fmt: skip
    b = np.array([[True, True], [True, False], [False, False]])
    same(reduced("max", b, [1]), [True, True, False])
    same(reduced("min", b, [1]), [True, False, False])
    none = np.zeros((0, 1), bool)
    assert (reduced("max", none, [0]).tolist(), reduced("min", none, [0]).tolist()) == ([0], [1])
    nan = np.array([1, math.nan, 2], np.float32)
    assert math.isnan(reduced("max", nan, [0]))


def test_softmax():
    x = np.random.default_rng(8).standard_normal((2, 3, 5)) * 10 + 500
    y = run("mir.softmax %x : $x", typed(x), x=x)
    e = np.array([[[math.exp(v - 500) for v in row] for row in rows] for rows in x])
    close(y, e / e.sum(2, keepdims=True), 1e-10)
    assert run("mir.softmax %x : $x", "tensor<2x0xf64>", x=np.zeros((2, 0))).shape == (2, 0)


def test_layer_norm():
    rng = np.random.default_rng(9)
    x, w, b = rng.standard_normal((2, 3, 6)) + 3, rng.standard_normal(6), rng.standard_normal(6)
    y = run("mir.layer_norm %x, %w, %b eps 0.5 : $x, $w", typed(x), x=x, w=w, b=b)
    for place in np.ndindex(2, 3):
        row = x[place]
        scaled = (row - np.mean(row)) / math.sqrt(np.var(row) + 0.5)
        close(y[place], scaled * w + b, 1e-11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("lhs_t", "rhs_t"), list(product((False, True), repeat=2)))
def test_dot(lhs_t: bool, rhs_t: bool, dtype: type):
    rng = np.random.default_rng(10)
    a = rng.standard_normal((2, 3, 5, 4) if lhs_t else (2, 3, 4, 5)).astype(dtype)
    b = rng.standard_normal((2, 3, 6, 5) if rhs_t else (2, 3, 5, 6)).astype(dtype)
    type_ = f"tensor<2x3x4x6x{ELEMENTS[np.dtype(dtype)]}>"
    sides = f"%a {'lhs_t' * lhs_t}, %b {'rhs_t' * rhs_t}"
    y = run(f"mir.dot {sides} : $a, $b -> {type_}", type_, a=a, b=b)
    letters = f"xy{'km' if lhs_t else 'mk'},xy{'nk' if rhs_t else 'kn'}->xymn"
    close(y, np.einsum(letters, a.astype(float), b.astype(float)), 1e-10)


def attended(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, causal: bool
) -> np.ndarray:
    """Attention of one query at a time, for a single batch: a softmax of the keys it may see."""
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    group, offset = len(q) // len(k), k.shape[1] - q.shape[1]
    for head, i in np.ndindex(*q.shape[:2]):
        seen = [j for j in range(k.shape[1]) if not causal or j <= i + offset]
        scores = {j: q[head, i] @ k[head // group, j] * 0.5 for j in seen}
        if mask is not None:
            scores = {j: s + mask[i, j] for j, s in scores.items() if mask[i, j] > -math.inf}
        total = sum(math.exp(s) for s in scores.values())
        for j, s in scores.items():
            out[head, i] += math.exp(s) / total * v[head // group, j]
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 5), (4, 4), (5, 3), (2, 0)])
def test_sdpa(m: int, n: int, masked: bool, causal: bool):
    rng = np.random.default_rng(11)
    q, k = rng.standard_normal((2, 4, m, 3)), rng.standard_normal((2, 2, n, 3))
    v, mask = rng.standard_normal((2, 2, n, 6)), rng.standard_normal((2, m, n))
    mask[rng.random(mask.shape) < 0.4] = -math.inf
    mask[0, 0] = -math.inf
    type_ = f"tensor<2x4x{m}x6xf64>"
    op = f"scale 0.5 {'causal' * causal} : $q, $k, $v -> {type_}"
    arrays = {"q": q, "k": k, "v": v, **({"p": mask} if masked else {})}
    y = run(f"mir.sdpa %q, %k, %v {'mask %p : $p' * masked} {op}", type_, **arrays)
    for batch in range(2):
        given = mask[batch] if masked else None
        wanted = attended(q[batch], k[batch], v[batch], given, causal)
        np.testing.assert_allclose(y[batch], wanted, rtol=1e-11, atol=1e-14)


# Moves


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.bool_, np.float16])
def test_moves(dtype: type):
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    element = ELEMENTS[np.dtype(dtype)]
    wide = np.dtype(np.float64) if element in ("f32", "f16") else x.dtype

    def check(op: str, wanted: np.ndarray) -> None:
        type_ = f"tensor<{''.join(f'{d}x' for d in wanted.shape)}{element}>"
        y = run(op.replace("$y", type_), type_, x=x)
        same(y, wanted.astype(wide))

    check("mir.reshape %x : $x -> $y", x.reshape(6, 1, 4))
    check("mir.transpose %x [2, 0, 1] : $x -> $y", np.moveaxis(x, 2, 0))
    check("mir.broadcast %x : $x -> $y", np.stack([x] * 5))
    check("mir.slice %x starts [1, 0, 1] steps [1, 2, 2] : $x -> $y", x[1:, ::2, 1::2])
    check("mir.slice %x starts [2, 0, 0] steps [9, 1, 1] : $x -> $y", x[2:])
    check("mir.concat axis 1 (%x, %x) : ($x, $x) -> $y", np.concatenate([x, x], 1))
    check("mir.concat axis 0 (%x) : ($x) -> $y", x)


def test_broadcast_of_a_dimension_of_one():
    x = np.array([[[1.0], [2.0]]])
    y = run("mir.broadcast %x : $x -> tensor<3x2x4xf64>", "tensor<3x2x4xf64>", x=x)
    same(y, np.ones((3, 1, 1)) * x * np.ones(4))


def test_gather_clamps():
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    ids = np.array([[2, -7], [9, 0]], np.int64)
    y = run(
        "mir.gather %x, %i axis 0 : $x, $i -> tensor<2x2x4xi32>", "tensor<2x2x4xi32>", x=x, i=ids
    )
    same(y, x[[[2, 0], [2, 0]]])
    y = run(
        "mir.gather %x, %i axis 1 : $x, $i -> tensor<3x2x2xi32>", "tensor<3x2x2xi32>", x=x, i=ids
    )
    same(y, x[:, [[2, 0], [3, 0]]])
    y = run("mir.gather %x, %i axis 0 : $x, $i -> tensor<4xi32>", "tensor<4xi32>", x=x,
            i=np.array(1, np.int32))  # fmt: skip
    same(y, x[1])


def test_gather_of_an_axis_without_elements_is_zero():
    x, ids = np.zeros((0, 4), np.int32), np.array([[2, -7], [9, 0]], np.int64)
    y = run("mir.gather %x, %i axis 0 : $x, $i -> tensor<2x2x4xi32>", "tensor<2x2x4xi32>", x=x,
            i=ids)  # fmt: skip
    same(y, np.zeros((2, 2, 4), np.int32))
    y = run("mir.gather %x, %i axis 0 : $x, $i -> tensor<0x2x4xi32>", "tensor<0x2x4xi32>", x=x,
            i=ids[:0])  # fmt: skip
    same(y, np.zeros((0, 2, 4), np.int32))


# Control flow


BRANCHES = """
%y = mir.if %c -> (tensor<i32>) {
  %n = mir.unary neg %a : tensor<i32>
  mir.yield %n : tensor<i32>
} else {
  %l = mir.while (%a) {
  ^bb0(%v: tensor<i32>):
    %limit = mir.constant dense<2000000> : tensor<i32>
    %k = mir.compare lt %v, %limit : tensor<i32> -> tensor<i1>
    mir.yield %k : tensor<i1>
  } do {
  ^bb0(%v: tensor<i32>):
    %w = mir.binary add %v, %a : tensor<i32>
    mir.yield %w : tensor<i32>
  } : (tensor<i32>) -> (tensor<i32>)
  mir.yield %l : tensor<i32>
} : tensor<i1>
"""


def test_a_branch_that_is_not_taken_does_not_run(monkeypatch: pytest.MonkeyPatch):
    module = program(BRANCHES, {"c": "tensor<i1>", "a": "tensor<i32>"}, "tensor<i32>")

    def answer(c: bool, a: int) -> int:
        inputs = {"c": np.array(c), "a": np.array(a, np.int32)}
        return int(Reference(module, {}).run(inputs)["y"])

    # With 0 the loop would not end.
    assert answer(True, 0) == 0
    assert answer(True, 5) == -5
    assert answer(False, 300_000) == 2_100_000
    assert answer(False, 2_000_000) == 2_000_000
    monkeypatch.setattr(meanings, "MAX_TURNS", 50)
    with pytest.raises(RlxError, match=r"mir\.while: its condition still holds after 50 turns"):
        answer(False, 0)


def test_a_loop_carries_values_that_change_places():
    body = """
    %zero = mir.constant dense<0> : tensor<i64>
    %n, %p, %y = mir.while (%zero, %a, %b) {
    ^bb0(%i: tensor<i64>, %u: tensor<2xf32>, %v: tensor<2xf32>):
      %k = mir.compare lt %i, %turns : tensor<i64> -> tensor<i1>
      mir.yield %k : tensor<i1>
    } do {
    ^bb0(%i: tensor<i64>, %u: tensor<2xf32>, %v: tensor<2xf32>):
      %one = mir.constant dense<1> : tensor<i64>
      %j = mir.binary add %i, %one : tensor<i64>
      %s = mir.binary add %u, %v : tensor<2xf32>
      mir.yield %j, %v, %s : tensor<i64>, tensor<2xf32>, tensor<2xf32>
    } : (tensor<i64>, tensor<2xf32>, tensor<2xf32>) -> (tensor<i64>, tensor<2xf32>, tensor<2xf32>)
    """
    pair = "tensor<2xf32>"
    module = program(body, {"turns": "tensor<i64>", "a": pair, "b": pair}, pair)
    given = {"a": np.array([0.0, 1.0]), "b": np.array([1.0, 1.0])}
    for turns, wanted in ((0, [1, 1]), (1, [1, 2]), (10, [89, 144])):
        run = Reference(module, {}).run({"turns": np.array(turns), **given})
        assert run["y"].tolist() == wanted


# Boundaries


def test_inputs_of_every_type():
    body = "%z = mir.cast %x : tensor<3xELEMENT> -> tensor<3xf64>\n%y = mir.unary neg %z : "
    cases = {
        "f16": np.array([0.5, 1, 65504], np.float16),
        "f64": np.array([0.1, 1, 1e300]),
        "i8": np.array([-128, 0, 127], np.int8),
        "i1": np.array([True, False, True]),
        "bf16": np.array([0x3F80, 0xC000, 0x3DCD], np.uint16),
    }
    for element, x in cases.items():
        text = body.replace("ELEMENT", element) + "tensor<3xf64>"
        module = program(text, {"x": f"tensor<3x{element}>"}, "tensor<3xf64>")
        values = np.array([1, -2, 0.10009765625]) if element == "bf16" else x
        same(Reference(module, {}).run({"x": x})["y"], -values.astype(float))
        if element != "f64":
            with pytest.raises(RlxError, match=f"input 'x': expected {element}, got complex"):
                Reference(module, {}).run({"x": x.astype(complex)})
    # What is given for f16 or bf16 in more digits is rounded.
    module = program("%y = mir.unary neg %x : tensor<f32>", {"x": "tensor<f32>"}, "tensor<f32>")
    assert Reference(module, {}).run({"x": np.array(0.1)})["y"] == -0.1
    module = program("%y = mir.reshape %x : tensor<1xf16> -> tensor<f16>", {"x": "tensor<1xf16>"},
                     "tensor<f16>")  # fmt: skip
    assert Reference(module, {}).run({"x": np.array([0.1])})["y"] == np.float16(0.1)


def test_weights_that_primitives_read_themselves():
    body = "%w = mir.load_weight @w : tensor<2x3xf16>\n%p = mir.pack %w : tensor<2x3xf16> -> "
    body += "tensor<2x3xf16>\n%y = mir.cast %p : tensor<2x3xf16> -> tensor<2x3xf32>"
    module = program(body, {}, "tensor<2x3xf32>")
    text = str(module).replace("func.func", 'hir.weight @w "w" : tensor<2x3xf16>\nfunc.func', 1)
    module = parse(context(), text.encode(), "test")
    w = np.random.default_rng(12).standard_normal((2, 3)).astype(np.float16)
    same(Reference(module, {"w": w}).run({})["y"], w.astype(float))


def test_sizes_by_name():
    rows, column = "tensor<?x2xf32, #hir.dims<n, _>>", "tensor<?x2x1xf32, #hir.dims<twice, _, _>>"
    body = f"""
    %i = mir.iota axis 0 : tensor<?xi32, #hir.dims<n>>
    %g = mir.gather %x, %i axis 0 : {rows}, tensor<?xi32, #hir.dims<n>> -> {rows}
    %c = mir.concat axis 0 (%g, %x) : ({rows}, {rows}) -> tensor<?x2xf32, #hir.dims<twice, _>>
    %y = mir.reshape %c : tensor<?x2xf32, #hir.dims<twice, _>> -> {column}
    """
    module = program(body, {"x": rows}, column, "n = 0 to 5, twice = n + n")
    for n in range(6):
        x = np.arange(2.0 * n).reshape(n, 2)
        y = Reference(module, {}).run({"x": x}, {"n": n})["y"]
        same(y, np.concatenate([x, x])[..., None])


# Folding


def folded(text: str, result: str, *arrays: np.ndarray) -> np.ndarray:
    types = {f"a{i}": typed(array) for i, array in enumerate(arrays)}
    module = program(f"%y = {text}", types, result)
    op = next(op for op in module.walk() if op.name.startswith("mir."))
    (y,) = fold(op, [a.astype(float) if a.dtype.kind == "f" else a for a in arrays])
    value = dense(y, op.results[0].type)
    np.testing.assert_array_equal(constant(value), y)
    return y


def test_fold_rounds_to_the_type():
    a, b = np.random.default_rng(13).standard_normal((2, 50)).astype(np.float32)
    for kind, wanted in {"add": a + b, "mul": a * b, "div": a / b}.items():
        y = folded(f"mir.binary {kind} %a0, %a1 : tensor<50xf32>", "tensor<50xf32>", a, b)
        same(y, wanted.astype(float))
    x = np.array([1 / 3, 1e-50])
    same(folded("mir.cast %a0 : tensor<2xf64> -> tensor<2xf32>", "tensor<2xf32>", x),
         x.astype(np.float32).astype(float))  # fmt: skip
    same(folded("mir.cast %a0 : tensor<2xf64> -> tensor<2xbf16>", "tensor<2xbf16>", x),
         [0.333984375, 0])  # fmt: skip
    i = np.array([127, -128], np.int8)
    same(folded("mir.binary add %a0, %a1 : tensor<2xi8>", "tensor<2xi8>", i, i), i + i)
    same(folded("mir.compare lt %a0, %a1 : tensor<2xi8> -> tensor<2xi1>", "tensor<2xi1>", i, i),
         [False, False])  # fmt: skip


def test_what_does_not_fold():
    rows = "tensor<?xf32, #hir.dims<n>>"
    module = program(f"%y = mir.iota axis 0 : {rows}", {}, rows, "n = 0 to 5")
    op = next(op for op in module.walk() if isinstance(op, mir.IotaOp))
    with pytest.raises(RlxError, match="expected a shape of numbers"):
        fold(op, [])
    load = mir.LoadWeightOp("w", mir.tensor([2]))
    with pytest.raises(RlxError, match=r"expected a tensor primitive, got mir\.load_weight"):
        fold(load, [])
