"""Gradients against those of torch's autograd."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import oracles
import pytest
from oracles import Values, assert_golden, named, run, windows
from xdsl.ir import SSAValue

from rlx.dialects.kinds import UnaryKind
from rlx.dialects.writer import Writer

inputs = oracles.inputs


@pytest.mark.parametrize("name", inputs.CONVOLUTIONS)
def test_gradients_of_convolutions(name: str):
    want, arrays = inputs.golden(name), inputs.convolution(name)
    options = windows(inputs.CONVOLUTIONS[name]["options"])
    shape = want["y"].shape
    arrays["upstream"] = inputs.random(f"{name} upstream", {"y": shape})["y"]

    def build(w: Writer, v: Values) -> Sequence[SSAValue]:
        return w.add_all(named("grad.conv", *v.values(), wrt="all", **options))

    by_input, by_weight = run({k: arrays[k] for k in ("x", "w", "upstream")}, build)
    assert_golden(by_input, want["grad_x"])
    assert_golden(by_weight, want["grad_w"])


@pytest.mark.parametrize(
    ("name", "gamma", "options"),
    [
        ("layer", "last", {}),
        ("rms", "last", {}),
        ("group", "gamma", {"groups": inputs.GROUPS}),
    ],
)
def test_gradients_of_norms(name: str, gamma: str, options: dict[str, int]):
    want, arrays = inputs.golden("norms"), inputs.norms()
    used = {key: arrays[key] for key in ("x", gamma, "upstream")}
    given = {"wrt": "all", "eps": inputs.EPS, **options}
    op = f"grad.{name}_norm"
    got = run(used, lambda w, v: w.add_all(named(op, *v.values(), **given)))
    for key, value in zip(("x", "gamma", "beta"), got, strict=True):
        assert_golden(value, want[f"{name}_grad_{key}"])


@pytest.mark.parametrize("kind", inputs.UNARY)
def test_functions_and_their_gradients(kind: str):
    want = inputs.golden("unary")

    def build(w: Writer, v: Values) -> Sequence[SSAValue]:
        backward = named("grad.unary", v["x"], v["upstream"], of=kind)
        return [w.unary(UnaryKind(kind), v["x"]), w.add(backward)]

    value, gradient = run(inputs.unary(kind), build)
    assert_golden(value, want[kind])
    assert_golden(gradient, want[f"{kind}_grad"])


def test_cross_entropy():
    want, arrays = inputs.golden("cross_entropy"), inputs.cross_entropy()

    def build(w: Writer, v: Values) -> Sequence[SSAValue]:
        pair = v["logits"], v["labels"]
        return [
            w.add(named("loss.softmax_cross_entropy", *pair)),
            w.add(named("loss.softmax_cross_entropy", *pair, reduction="mean")),
            w.add(named("loss.softmax_cross_entropy_backward", *pair, v["upstream"])),
        ]

    for got, name in zip(run(arrays, build), ("losses", "mean", "grad_logits"), strict=True):
        assert_golden(got, want[name])


def test_gradients_of_pools():
    arrays = inputs.moved()
    pair = {name: arrays[name] for name in ("image", "pooled")}
    options = {"size": (2, 2), "stride": (2, 2), "low": (1, 0)}
    (got,) = run(pair, lambda w, v: w.add_all(named("grad.max_pool", *v.values(), **options)))
    assert_golden(got, inputs.golden("moved")["max_pool"])


def test_gradients_of_log_mel():
    (got,) = run(inputs.log_mel(), lambda w, v: w.add_all(named("grad.log_mel", *v.values())))
    assert_golden(got, inputs.golden("log_mel")["grad_spectrum"])


@pytest.mark.parametrize(("name", "mask"), [("all", "none"), ("causal", "causal")])
def test_attention_and_its_gradients(name: str, mask: str):
    want = inputs.golden("attention")

    def build(w: Writer, v: Values) -> Sequence[SSAValue]:
        q, k, k_values, upstream = v.values()
        attended = w.add(named("transformer.attention", q, k, k_values, mask=mask))
        return [attended, *w.add_all(named("grad.attention", q, k, k_values, upstream, mask=mask))]

    got = run(inputs.attention(), build)
    for key, value in zip(("y", "grad_q", "grad_k", "grad_v"), got, strict=True):
        assert_golden(value, want[f"{name}_{key}"])


def test_rotation_and_its_gradient():
    want, given = inputs.golden("moved"), inputs.moved()
    batch, rows, heads, width = given["turned"].shape
    upstream = np.float32(1) + given["turned"][::-1]
    arrays = {
        "x": given["turned"].reshape(batch, rows, heads * width),
        "cos": np.cos(given["angles"]),
        "sin": np.sin(given["angles"]),
        "upstream": np.ascontiguousarray(upstream).reshape(batch, rows, heads * width),
    }

    def build(w: Writer, v: Values) -> Sequence[SSAValue]:
        tables = v["cos"], v["sin"]
        return [
            w.add(named("transformer.rope", v["x"], *tables, head_dim=width)),
            w.add(named("grad.rope", *tables, v["upstream"], head_dim=width)),
        ]

    turned, back = (a.reshape(given["turned"].shape) for a in run(arrays, build))
    assert_golden(turned, want["rotated"])
    assert_golden(back, want["rotate"])


def test_gradients_of_rows_that_are_taken():
    given = inputs.moved()
    arrays = {"x": given["rows"], "ids": given["ids"], "upstream": given["taken"]}
    (got,) = run(arrays, lambda w, v: w.add_all(named("grad.gather", *v.values())))
    assert_golden(got, inputs.golden("moved")["gather"])


def test_gradients_of_sums_that_run():
    upstream = {"upstream": inputs.moved()["upstream"]}
    (got,) = run(upstream, lambda w, v: w.add_all(named("grad.cumsum", v["upstream"], axis=1)))
    assert_golden(got, inputs.golden("moved")["cumsum"])
