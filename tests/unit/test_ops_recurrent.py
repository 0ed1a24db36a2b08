"""Recurrent layers and the selective scan: by hand, in parts, and for sizes with names."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from by_hand import expanded, made, meaning
from kernels import levels, nmse, on_threads
from xdsl.dialects.builtin import f16, f64
from xdsl.utils.exceptions import VerifyException

import rlx
from rlx.dialects.common import tensor
from rlx.errors import RlxError
from rlx.ops.recurrent import GruOp, LstmOp, RnnOp, StepsOp
from rlx.ops.selective_scan import SelectiveScanOp

RNG = np.random.default_rng(3)


def random(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# What they mean, one unit at a time


def by_units(
    cell: str, x: np.ndarray, w: np.ndarray, r: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """A layer of one direction with gates in PyTorch's order, number by number."""
    t, batch, _ = x.shape
    n = r.shape[-1]
    out = np.zeros((t, batch, n))
    for b in range(batch):
        h, c = [0.0] * n, [0.0] * n
        for step in range(t):
            own = [float(w[0, k] @ x[step, b] + bias[0, 0, k]) for k in range(len(w[0]))]
            other = [float(r[0, k] @ np.array(h) + bias[0, 1, k]) for k in range(len(w[0]))]
            new = list(h)
            for j in range(n):
                if cell == "lstm":
                    i, f, g, o = (own[k * n + j] + other[k * n + j] for k in range(4))
                    c[j] = sigmoid(f) * c[j] + sigmoid(i) * math.tanh(g)
                    new[j] = sigmoid(o) * math.tanh(c[j])
                elif cell == "gru":
                    reset, z = (sigmoid(own[k * n + j] + other[k * n + j]) for k in range(2))
                    candidate = math.tanh(own[2 * n + j] + reset * other[2 * n + j])
                    new[j] = (1 - z) * candidate + z * h[j]
                else:
                    new[j] = math.tanh(own[j] + other[j])
            h = new
            out[step, b] = h
    return out


LAYERS = {"lstm": (LstmOp, 4), "gru": (GruOp, 3), "rnn": (RnnOp, 1)}


@pytest.mark.parametrize("cell", LAYERS)
def test_a_layer_number_by_number(cell: str):
    op, gates = LAYERS[cell]
    x, w, r, bias = (
        random(4, 2, 3),
        *(random(1, gates * 5, k) for k in (3, 5)),
        random(1, 2, gates * 5),
    )
    output, *ends = meaning(op, x, w, r, bias, bias=True)
    np.testing.assert_allclose(output, by_units(cell, x, w, r, bias))
    np.testing.assert_allclose(ends[0][0], output[-1])


@pytest.mark.parametrize("cell", LAYERS)
def test_both_directions_are_one_each_way(cell: str):
    op, gates = LAYERS[cell]
    x, w, r = random(4, 2, 3), random(2, gates * 5, 3), random(2, gates * 5, 5)
    both, end, *_ = meaning(op, x, w, r)
    there, *_ = meaning(op, x, w[:1], r[:1])
    back, *_ = meaning(op, x, w[1:], r[1:], reverse=True)
    np.testing.assert_allclose(both, np.concatenate([there, back], -1))
    np.testing.assert_allclose(end, [there[-1], back[0]])
    turned, *_ = meaning(op, x[::-1].copy(), w[1:], r[1:])
    np.testing.assert_allclose(back, turned[::-1])


def test_the_order_of_gates():
    x, w, r, b = random(3, 2, 4), random(1, 12, 4), random(1, 12, 3), random(1, 2, 12)
    i, f, g, o = (slice(3 * k, 3 * k + 3) for k in range(4))
    order = np.r_[i, o, f, g]
    a, *_ = meaning(LstmOp, x, w, r, b, bias=True)
    c, *_ = meaning(LstmOp, x, w[:, order], r[:, order], b[:, :, order], bias=True, order="iofg")
    np.testing.assert_allclose(a, c)
    w, r, b, order = w[:, :9], r[:, :9], b[:, :, :9], np.r_[f, i, g]
    a, *_ = meaning(GruOp, x, w, r, b, bias=True)
    c, *_ = meaning(GruOp, x, w[:, order], r[:, order], b[:, :, order], bias=True, order="zrn")
    np.testing.assert_allclose(a, c)


def test_a_gru_that_resets_before_the_product():
    x, w, r, h = random(1, 1, 2), random(1, 9, 2), random(1, 9, 3), random(1, 1, 3)
    output, _ = meaning(GruOp, x, w, r, h, state=True, reset_after=False)
    own, old = w[0] @ x[0, 0], h[0, 0]
    reset, z = (1 / (1 + np.exp(-(own[k] + r[0, k] @ old))) for k in (slice(3), slice(3, 6)))
    new = np.tanh(own[6:] + r[0, 6:] @ (reset * old))
    np.testing.assert_allclose(output[0, 0], (1 - z) * new + z * old)


def test_a_selective_scan_number_by_number():
    x, delta, a = random(3, 2), RNG.uniform(0, 1, (3, 2)), -RNG.uniform(0, 2, (2, 4))
    b, c, d, z, s = random(3, 4), random(3, 4), random(2), random(3, 2), random(2, 4)
    y, end = meaning(SelectiveScanOp, x, delta, a, b, c, d, z, s, skip=True, gate=True, state=True)
    s = s.copy()
    for t in range(3):
        for i in range(2):
            for j in range(4):
                s[i, j] = math.exp(delta[t, i] * a[i, j]) * s[i, j]
                s[i, j] += delta[t, i] * b[t, j] * x[t, i]
            want = (s[i] @ c[t] + d[i] * x[t, i]) * z[t, i] * sigmoid(z[t, i])
            np.testing.assert_allclose(y[t, i], want)
    np.testing.assert_allclose(end, s)


# The kernels


DIMS = "attributes {rlx.dims = #hir.dim_table<t = 0 to any, b = 0 to any>}"


def text_of(
    op: str, types: list[str], results: list[str], options: str = "", head: str = ""
) -> str:
    args = ", ".join(f'%x{i}: tensor<{t}> {{rlx.name = "x{i}"}}' for i, t in enumerate(types))
    outs = ", ".join(f'tensor<{t}> {{rlx.name = "y{i}"}}' for i, t in enumerate(results))
    given, made_ = (
        ", ".join(f"%{c}{i}" for i in range(len(s))) for c, s in (("x", types), ("y", results))
    )
    ins, res = (", ".join(f"tensor<{t}>" for t in s) for s in (types, results))
    return f"""builtin.module {head} {{
      func.func @main({args}) -> ({outs}) {{
        {made_} = recurrent.{op}({given}) {options} : ({ins}) -> ({res})
        func.return {made_} : {res}
      }}
    }}"""


@pytest.mark.sample(5)
@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("cell", LAYERS)
def test_layers_whose_sizes_have_no_bound(cell: str, dtype: str, level: str):
    op, gates = LAYERS[cell]
    total, e = 19 * gates, f"f{8 * int(dtype[1])}"
    weights = [random(2, total, 5), random(2, total, 19), random(2, 2, total)]
    weights = [(w / 3).astype(dtype) for w in weights]
    types = [f"2x{total}x5x{e}", f"2x{total}x19x{e}", f"2x2x{total}x{e}"]
    results = [f"?x?x38x{e}, #hir.dims<t, b, _>", f"2x?x19x{e}, #hir.dims<_, b, _>"]
    results += results[1:] * (cell == "lstm")
    types = [f"?x?x5x{e}, #hir.dims<t, b, _>", *types]
    text = text_of(cell, types, results, "bias true", DIMS)
    runs = on_threads(text, level)
    for t, b in ((0, 2), (2, 0), (1, 1), (5, 3), (2, 9)):
        x = random(t, b, 5).astype(dtype)
        want = meaning(op, *(v.astype(np.float64) for v in (x, *weights)), bias=True)[0]
        one, two = (f(x, *weights)[0] for f in runs)
        assert nmse(one, want) < (1e-12 if dtype == "f4" else 1e-28)
        np.testing.assert_array_equal(one, two)


def test_a_layer_goes_on_where_it_stopped():
    n = 20
    w, r = (random(1, 4 * n, k).astype("f4") for k in (3, n))
    x = random(6, 2, 3).astype("f4")
    weights, state = [f"1x{4 * n}x3xf32", f"1x{4 * n}x{n}xf32"], [f"1x2x{n}xf32"] * 2

    def run(part: np.ndarray, *states: Any) -> Any:
        types = [f"{len(part)}x2x3xf32", *weights, *state[: len(states)]]
        results = [f"{len(part)}x2x{n}xf32", *state]
        options = "state true" if states else ""
        return rlx.compile(text_of("lstm", types, results, options))(part, w, r, *states)

    whole, *ends = run(x)
    first, *middle = run(x[:2])
    second, *last = run(x[2:], *middle)
    np.testing.assert_array_equal(np.concatenate([first, second]), whole)
    np.testing.assert_array_equal(last, ends)


def test_a_scan_goes_on_where_it_stopped():
    d, n = 33, 5
    x, delta, a = random(7, d), RNG.uniform(0, 1, (7, d)), -RNG.uniform(0, 2, (d, n))
    x, delta, a, b, c = (v.astype("f4") for v in (x, delta, a, random(7, n), random(7, n)))

    def run(part: slice, *state: np.ndarray) -> Any:
        rows = len(x[part])
        types = [f"{rows}x{d}xf32"] * 2 + [f"{d}x{n}xf32"] + [f"{rows}x{n}xf32"] * 2
        types += [f"{d}x{n}xf32"] * len(state)
        text = text_of("selective_scan", types, [types[0], types[2]], "state true" * len(state))
        return rlx.compile(text)(x[part], delta[part], a, b[part], c[part], *state)

    whole, end = run(slice(None))
    first, middle = run(slice(3))
    second, last = run(slice(3, None), middle)
    np.testing.assert_array_equal(np.concatenate([first, second]), whole)
    np.testing.assert_array_equal(last, end)


@pytest.mark.parametrize("cell", ["lstm", "gru", "gru_before", "tanh", "relu"])
def test_a_row_of_the_batch_does_not_depend_on_the_others(cell: str):
    gates = {"lstm": 4, "gru": 3, "gru_before": 3}.get(cell, 1)

    def run(rows: slice) -> np.ndarray:
        given = [v.astype("f4") for v in (x[:, rows], panels, h[:, rows])]
        given += [h[:, rows].astype("f4")] * (cell == "lstm") + [h[:, 0].astype("f4")] * (
            cell == "gru"
        )
        types = ["x".join(map(str, v.shape)) + "xf32" for v in given]
        results = ["x".join(map(str, (*given[0].shape[:3], 40))) + "xf32"]
        results += [types[2]] * (2 if cell == "lstm" else 1)
        return compiled(text_of("steps", types, results, f"cell {cell}"))(*given)[0]

    compiled = cache(rlx.compile)
    x, panels, h = random(3, 7, 1, 40 * gates), random(1, 3, 40, gates, 16) / 6, random(1, 7, 40)
    whole = run(slice(None))
    for i in range(7):
        np.testing.assert_array_equal(run(slice(i, i + 1)), whole[:, i : i + 1])


def test_nan_and_infinity_stay_in_their_row():
    x = random(3, 3, 1, 16)
    x[0, 1] = np.nan
    x[1, 2] = np.inf
    given = [v.astype("f4") for v in (x, random(1, 1, 16, 1, 16) / 4, random(1, 3, 16))]
    types = ["3x3x1x16xf32", "1x1x16x1x16xf32", "1x3x16xf32"]
    y, _ = rlx.compile(text_of("steps", types, [types[0], types[2]], "cell tanh"))(*given)
    assert np.isfinite(y[:, 0]).all()
    assert np.isnan(y[:, 1]).all()
    np.testing.assert_array_equal(y[1, 2], 1)


# What is refused, and how layers are lowered


def test_one_product_for_all_steps():
    x, w, r = tensor([9, 4, 3]), tensor([1, 64, 3]), tensor([1, 64, 16])
    names = expanded(LstmOp, [x, w, r])
    assert names.count("dot") == 1
    assert names.count("recurrent.steps") == 1
    named = [tensor(["t", "b", 3]), w, r]
    assert expanded(LstmOp, named).count("dot") == 1


def test_operands_that_do_not_fit():
    x, w, r = tensor([9, 4, 3]), tensor([1, 20, 3]), tensor([1, 20, 5])
    cases: list[tuple[Any, list[Any], dict[str, Any], str]] = [
        (LstmOp, [x, w], {}, "3 operands"),
        (LstmOp, [x, w, r], {"state": True}, "5 operands"),
        (GruOp, [x, w, r], {}, r"weights \[dirs, gates \* h, i\]"),
        (LstmOp, [x, tensor([1, 20, 4]), r], {}, r"x \[t, batch, i\]"),
        (LstmOp, [x, w, tensor([1, 20, 5], f64)], {}, "all of one element"),
        (LstmOp, [tensor([9, 4, 3], f16), w, r], {}, "expected elements of f32, f64"),
        (LstmOp, [x, tensor([3, 20, 3]), tensor([3, 20, 5])], {}, "1 or 2"),
        (RnnOp, [x, tensor([1, 5, 3]), tensor([1, 5, 5])], {"activation": "sin"}, "one of tanh"),
        (StepsOp, [x, w, r, r], {}, "panels"),
        (SelectiveScanOp, [x, x, w, w, w], {}, r"A \[d, n\]"),
    ]
    for op, types, options, message in cases:
        with pytest.raises(VerifyException, match=message):
            made(op, types, **options)


def test_states_of_a_channel_are_bounded():
    types = ["1x1xf32", "1x1xf32", "1x4000xf32", "1x4000xf32", "1x4000xf32"]
    with pytest.raises(RlxError, match="at most 3072 states of a channel, got 4000"):
        rlx.compile(text_of("selective_scan", types, ["1x1xf32", "1x4000xf32"]))
