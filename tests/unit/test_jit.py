"""`rlx.jit` as its callers see it: arguments, results, sizes, compilations, the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.errors import RlxError
from rlx.jit.function import JitFunction
from rlx.runtime import kept


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng()


def randn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@rlx.jit
def scaled(x, y):
    return np.tanh(x * y) + 0.5


# Compilations


def test_sizes_are_open_and_ones_are_not(rng: np.random.Generator):
    f = rlx.jit(lambda x, y: x * y + 1.0)
    for n, m in ((3, 4), (1000, 2), (2, 1000), (7, 0)):
        x, y = randn(rng, n, m), randn(rng, n, m)
        np.testing.assert_allclose(f(x, y), x * y + 1, rtol=1e-6)
    assert f.stats.compilations == 1
    x, y = randn(rng, 5, 4), randn(rng, 1, 4)
    np.testing.assert_allclose(f(x, y), x * y + 1, rtol=1e-6)
    assert f.stats.compilations == 2
    assert f(x, randn(rng, 4)).shape == (5, 4)
    assert f.stats.compilations == 3
    assert f(x.astype(np.float64), y).dtype == np.float64
    assert f.stats.compilations == 4
    for _ in range(3):
        f(x, y), f(x, x)
    assert f.stats.compilations == 4


def test_derived_sizes_are_open_too(rng: np.random.Generator):
    def f(x, y):
        joined = np.concatenate([x, y])
        return joined[1:] - joined[:-1], joined[-3:], joined[::2], joined.reshape(-1, 1)

    jitted = rlx.jit(f)
    for n, m in ((5, 3), (40, 2), (2, 90), (3, 3)):
        x, y = randn(rng, n), randn(rng, m)
        for got, want in zip(jitted(x, y), f(x, y), strict=True):
            np.testing.assert_array_equal(got, want)
    assert jitted.stats.compilations == 1


def test_derived_sizes_that_are_what_is_wanted(rng: np.random.Generator):
    def f(x, count):
        return np.broadcast_to(np.pad(x, ((0, 1),)), (2, count))

    jitted = rlx.jit(f, static_argnames="count")
    for n, count in ((0, 3), (2, 3), (0, 1), (0, 3)):
        x = randn(rng, n)
        np.testing.assert_array_equal(jitted(x, count), f(x, count))
    for n, count in ((1, 3), (1, 1)):
        with pytest.raises(ValueError, match=r"broadcast together|don't fit: \(2,\) to \(2,1\)"):
            jitted(randn(rng, n), count)


def test_a_size_that_decides_otherwise_is_traced_again(rng: np.random.Generator):
    def f(x):
        return x[0] if x.shape[0] > 4 else x.sum(axis=0)

    jitted = rlx.jit(f)
    for n in (3, 2, 9, 10, 4):
        x = randn(rng, n, 3)
        np.testing.assert_allclose(jitted(x), f(x), rtol=1e-5)
    assert jitted.stats.compilations == 2


def test_specialised_sizes_are_numbers(rng: np.random.Generator):
    @rlx.jit(specialize={"x": (0,)})
    def f(x):
        total = x[0]
        for row in x[1:]:
            total = total + row
        return total

    for n, m in ((3, 4), (3, 9), (2, 4)):
        x = randn(rng, n, m)
        np.testing.assert_allclose(f(x), x.sum(axis=0), rtol=1e-5, atol=1e-6)
    assert f.stats.compilations == 2
    assert "tensor<3x?xf32" in f.ir("hir", randn(rng, 3, 4))
    whole = rlx.jit(lambda x: x + 1, specialize=["x"])
    assert "tensor<3x4xf32>" in whole.ir("hir", randn(rng, 3, 4))


def test_static_arguments(rng: np.random.Generator):
    @rlx.jit(static_argnames=("power", "name"))
    def f(x, power, *, name="none"):
        assert name in ("none", "double")
        return x**power * (2 if name == "double" else 1)

    x = randn(rng, 6)
    np.testing.assert_allclose(f(x, 2), x**2, rtol=1e-6)
    np.testing.assert_allclose(f(x, 3), x**3, rtol=1e-5)
    np.testing.assert_allclose(f(x, power=2, name="double"), 2 * x**2, rtol=1e-6)
    assert f.stats.compilations == 3
    f(x[:3], 2)
    assert f.stats.compilations == 3
    f(x, 1), f(x, True), f(x, 1.0)
    assert f.stats.compilations == 6
    with pytest.raises(RlxError, match=r"static argument 'power'.*a tuple instead of a list"):
        f(x, [2])
    with pytest.raises(RlxError, match=r"static_argnames: expected arguments of .*\(x\), got 'y'"):
        rlx.jit(lambda x: x, static_argnames="y")


def test_numbers_are_inputs_of_a_weak_type(rng: np.random.Generator):
    f = rlx.jit(lambda x, s: x * s)
    x = randn(rng, 5)
    for s in (2.0, -0.5, 1e-3):
        got = f(x, s)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, x * np.float32(s), rtol=1e-6)
    assert f.stats.compilations == 1
    whole = np.arange(4, dtype=np.int8)
    assert f(whole, 3).dtype == np.int8
    assert f(whole, 0.5).dtype == np.float64
    assert f(x, np.float64(2)).dtype == np.float64
    assert f(whole, True).dtype == np.int8


def test_functions_in_functions_are_one_program(rng: np.random.Generator):
    inner = rlx.jit(lambda x: x * 2)
    outer = rlx.jit(lambda x: inner(x) + 1)
    x = randn(rng, 4)
    np.testing.assert_allclose(outer(x), x * 2 + 1, rtol=1e-6)
    assert inner.stats.compilations == 0


def test_calls_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept, "KEPT_BYTES", 4000)
    f = rlx.jit(lambda x: x + 1.0)
    for n in (*range(2, 400, 7), 3, 2000):
        np.testing.assert_array_equal(f(np.ones(n)), np.full(n, 2.0))
    assert len(f._calls) < 10
    assert f.stats.compilations == 1


def test_a_result_that_was_given_another_shape_is_not_given_out_again(rng: np.random.Generator):
    f = rlx.jit(lambda x: x + 1)
    x = randn(rng, 100)
    for _ in range(2):
        y = f(x)
        y.shape = (10, 10)
        del y
        np.testing.assert_array_equal(f(x), x + 1)


def test_results_may_be_given_as_they_were_returned(rng: np.random.Generator):
    f = rlx.jit(lambda x: (x + 1, x * 2))
    x = randn(rng, 100)
    pair = f(x)
    assert f(x, out=pair) is pair
    pair[0].shape = (10, 10)
    with pytest.raises(RlxError, match=r"out: expected a writable array \[100\]"):
        f(x, out=pair)
    assert f(x)[0].shape == (100,)


# Arguments and results


@dataclass
class Layer:
    weight: np.ndarray
    bias: np.ndarray


class Pair(NamedTuple):
    first: Any
    second: Any


def test_nests_of_arguments_and_results(rng: np.random.Generator):
    @rlx.jit
    def f(layers, x, *, options):
        for layer in layers:
            x = np.tanh(x @ layer.weight + layer.bias) * options["scale"][0]
        return {"y": x, "more": Pair(x.sum(), [x.shape[0], None, "text", 3])}

    layers = [Layer(randn(rng, 4, 6), randn(rng, 6)), Layer(randn(rng, 6, 2), randn(rng, 2))]
    x = randn(rng, 5, 4)
    got = f(layers, x, options={"scale": (0.5,)})
    want = x
    for layer in layers:
        want = np.tanh(want @ layer.weight + layer.bias) * np.float32(0.5)
    np.testing.assert_allclose(got["y"], want, rtol=1e-5, atol=1e-6)
    assert isinstance(got["more"], Pair)
    np.testing.assert_allclose(got["more"].first, want.sum(), rtol=1e-4, atol=1e-5)
    assert got["more"].second == [5, None, "text", 3]
    assert f(layers, x[:2], options={"scale": (0.25,)})["more"].second[0] == 2
    assert f.stats.compilations == 1


def test_out_takes_the_results(rng: np.random.Generator):
    x, y = randn(rng, 30, 7), randn(rng, 30, 7)
    out = np.empty_like(x)
    assert scaled(x, y, out=out) is out
    want = np.tanh(x * y) + np.float32(0.5)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
    both = rlx.jit(lambda x, y: (x + y, x - y))
    outs = np.empty_like(x), np.empty_like(x)
    got = both(x, y, out=outs)
    assert got[0] is outs[0]
    np.testing.assert_array_equal(outs[1], x - y)
    # What can't be written as it lies: a strided array, one that is an input, the other order.
    wide = np.zeros((30, 14), np.float32)
    scaled(x, y, out=wide[:, ::2])
    np.testing.assert_allclose(wide[:, ::2], want, rtol=1e-5, atol=1e-6)
    assert not wide[:, 1::2].any()
    swapped = np.zeros_like(x).astype(">f4")
    scaled(x, y, out=swapped)
    np.testing.assert_allclose(swapped, want, rtol=1e-5, atol=1e-6)
    flipped = x[::-1].copy()
    both(flipped, y, out=(flipped, outs[1]))
    np.testing.assert_array_equal(flipped, x[::-1] + y)
    for wrong in (out[:3], out.astype(np.float64), out.tolist(), (out, out)):
        with pytest.raises(RlxError, match="out: expected"):
            scaled(x, y, out=wrong)
    out.flags.writeable = False
    with pytest.raises(RlxError, match=r"out: expected a writable array.*read-only"):
        scaled(x, y, out=out)


def test_results_are_new_while_they_are_held(rng: np.random.Generator):
    x = randn(rng, 50)
    held = [scaled(x, x * i) for i in range(8)]
    for i, result in enumerate(held):
        np.testing.assert_allclose(
            result, np.tanh(x * (x * i)) + np.float32(0.5), rtol=1e-5, atol=1e-6
        )


def test_arrays_of_every_layout(rng: np.random.Generator):
    base = randn(rng, 12, 10)
    odd = np.zeros(4 * 120 + 1, np.uint8)[1:].view(np.float32).reshape(12, 10)
    odd[:] = base
    read_only = base.copy()
    read_only.flags.writeable = False
    views = {
        "transposed": base.T, "reversed": base[::-1, ::-1], "strided": base[::2, 1::3],
        "broadcast": np.broadcast_to(base[0], (12, 10)), "misaligned": odd, "empty": base[:0],
        "read-only": read_only, "swapped": base.astype(">f4"), "fortran": np.asfortranarray(base),
        "scalar": base[0, 0], "0-d": np.array(base[0, 0]), "one": base[:1, :1],
    }  # fmt: skip
    for name, x in views.items():
        y = randn(rng, *x.shape)
        want = np.tanh(x * y) + np.float32(0.5)
        got = scaled(x, y)
        assert got.shape == want.shape, name
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=name)


@dataclass
class Scale:
    factor: np.ndarray

    @rlx.jit
    def of(self, x):
        return x * self.factor


def test_methods_and_mapped_files(tmp_path: Path, rng: np.random.Generator):
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(4, 5))
    mapped[:] = randn(rng, 4, 5)
    scale = Scale(np.float32(2.0))
    np.testing.assert_array_equal(scale.of(mapped), np.asarray(mapped) * 2)
    np.testing.assert_array_equal(scale.of(mapped.T), np.asarray(mapped).T * 2)
    assert Scale.of.stats.compilations == 1


def test_special_numbers_are_numpys():
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, 3e38], np.float32)
    x, y = (np.ascontiguousarray(a) for a in np.broadcast_arrays(special[:, None], special))

    def f(x, y):
        return x + y, x * y, x / y, np.maximum(x, y), x < y, np.where(x > y, x, y), np.isnan(x)

    with np.errstate(all="ignore"):
        for got, want in zip(rlx.jit(f)(x, y), f(x, y), strict=True):
            np.testing.assert_array_equal(got, want)


def test_integer_edges_are_numpys():
    x = np.array([-128, -7, -1, 0, 1, 7, 127], np.int8)
    grid, other = x[:, None] + 0 * x, x + 0 * x[:, None]

    def f(a, b):
        return a + b, a * b, a // b, a % b, np.fmod(a, b), -a, abs(a), a**3, a / b, a & b, a < 300

    with np.errstate(all="ignore"):
        for got, want in zip(rlx.jit(f)(grid, other), f(grid, other), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)


def test_captured_arrays_are_read_where_they_are(rng: np.random.Generator):
    weight, small = randn(rng, 40, 3), np.array([1.0, 2.0, 3.0], np.float32)
    f = rlx.jit(lambda x: x @ weight + small)
    x = randn(rng, 5, 40)
    np.testing.assert_allclose(f(x), x @ weight + small, rtol=1e-4, atol=1e-5)
    weight *= 2
    np.testing.assert_allclose(f(x), x @ weight + small, rtol=1e-4, atol=1e-5)


def test_nothing_is_read_that_was_not_written(rng: np.random.Generator):
    def f(x, w):
        h = rnp.gelu(x @ w) @ w.T
        return rnp.softmax(h) - h.mean(axis=0), np.sinh(np.tanh(np.arcsinh(x)))

    x, w = randn(rng, 9, 33), randn(rng, 33, 20)
    call = rlx.jit(f).lower(x, w).compile(poison=True).bind([x.shape, w.shape])
    assert call is not None
    first, second = call.run([x, w], None)
    assert np.isfinite(first).all()
    np.testing.assert_allclose(second, np.sinh(np.tanh(np.arcsinh(x))), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_results(threads: int, rng: np.random.Generator):
    def f(x):
        return rnp.softmax(x) + x.mean(axis=0), x.sum()

    x = randn(rng, 300, 500)
    ones, others = rlx.jit(f, threads=1)(x), rlx.jit(f, threads=threads)(x)
    for a, b in zip(ones, others, strict=True):
        np.testing.assert_array_equal(a, b)


# The cache, and what is imported


SCRIPT = """
import sys
import numpy as np
import rlx
from rlx.runtime import kept
assert not {"xdsl", "llvmlite"} & set(sys.modules)

@rlx.jit
def f(x, a):
    return rlx.numpy.gelu(x * a + 1.0), x[1:].sum()

f(np.ones((3, 4), np.float32), np.ones(4, np.float32))
print(f.stats.cached, "xdsl" in sys.modules)
"""


def test_a_call_with_a_warm_cache_needs_no_xdsl(tmp_path: Path):
    environment = {**os.environ, "RLX_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, check=True, capture_output=True,
            text=True,
        ).stdout.split()
        for _ in range(2)
    ]  # fmt: skip
    assert said == [["0", "True"], ["1", "False"]]


def test_the_same_operations_are_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    x = np.ones((3, 4), np.float32)

    def make(scale: float) -> JitFunction:
        def f(x):
            return x * scale

        return rlx.jit(f)

    first, second, third = make(2.0), make(2.0), make(3.0)
    assert [f(x)[0, 0] for f in (first, second, third)] == [2, 2, 3]
    assert [f.stats.cached for f in (first, second, third)] == [0, 1, 0]


# Looking inside


def test_stages_and_reports(rng: np.random.Generator):
    @rlx.jit
    def f(x, w):
        return rnp.gelu(x @ w + 1.0)

    x, w = randn(rng, 32, 16), randn(rng, 16, 8)
    for stage, text in (
        ("hir", "mir.dot"), ("mir", "mir.kernel"), ("lir", "lir.launch"), ("llvm", "define"),
        ("asm", ".text"),
    ):  # fmt: skip
        assert text in f.ir(stage, x, w)
    with pytest.raises(RlxError, match="stage: expected one of hir, mir, lir, llvm, asm"):
        f.ir("wat", x, w)
    assert f.lower(x, w).trace.main.nodes[0].op == "dot"
    told = f.explain(x, w)
    assert len(told.kernels) == 1
    assert told.least == told.moved == 4 * (32 * 16 + 16 * 8 + 32 * 8)
    assert any("gelu" in line for line in told.fused)
    assert "1 launches" in str(told)
    measured = f.benchmark(x, w)
    assert measured.runs >= 5
    assert 0 < measured.best <= measured.seconds
    assert f.__name__ == "f"


def test_arrays_of_the_code_around_are_read_at_each_call():
    rng = np.random.default_rng(5)
    table, x = rng.standard_normal(20000), rng.standard_normal(10000)
    for view in (table[:10000], table[::2], table[10000:][::-1]):
        f = rlx.jit(lambda x, view=view: x * 2 + view)
        f(x)
        table[:] = rng.standard_normal(20000)
        np.testing.assert_array_equal(f(x), x * 2 + view)
        wanted = x * 2 + view
        f(x, out=view)
        np.testing.assert_array_equal(view, wanted)


def test_an_array_around_that_was_resized_is_an_error():
    table = np.arange(10000.0)
    f = rlx.jit(lambda x: x + table)
    x = np.ones(10000)
    f(x)
    table.resize(10, refcheck=False)
    with pytest.raises(RlxError, match="no longer of the shape that it was traced with"):
        f(x)
