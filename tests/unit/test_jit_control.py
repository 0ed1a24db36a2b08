"""Branches and loops of traced functions: what runs, what is carried, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.errors import RlxError

X = np.random.default_rng(5).standard_normal((6, 4)).astype(np.float32)


def test_cond_takes_one_branch():
    @rlx.jit
    def f(x, flag):
        scale = x.max()
        return rlx.cond(
            flag,
            lambda v: {"y": v / scale, "n": 1},
            lambda v: {"y": v * 2.0, "n": 2},
            x,
        )

    for flag in (True, False):
        got = f(X, np.array(flag))
        np.testing.assert_allclose(got["y"], X / X.max() if flag else X * 2, rtol=1e-6)
        assert got["n"] == (1 if flag else 2)
    assert f.stats.compilations == 1
    nested = rlx.jit(
        lambda x: rlx.cond(
            x.sum() > 0, lambda: rlx.cond(x.sum() > 1, lambda: 2, lambda: 1), lambda: 0
        )
    )
    for total, want in ((5.0, 2), (0.5, 1), (-3.0, 0)):
        assert nested(np.full(1, total)) == want


def test_a_branch_has_the_dtype_of_both():
    f = rlx.jit(lambda x: rlx.cond(x.sum() > 0, lambda: x, lambda: x.astype(np.float64)))
    assert f(X).dtype == np.float64
    with pytest.raises(RlxError, match=r"rlx\.cond: the branches: expected arrays of one shape"):
        rlx.jit(lambda x: rlx.cond(x.sum() > 0, lambda: x, lambda: x[0]))(X)
    with pytest.raises(RlxError, match=r"expected branches of one structure"):
        rlx.jit(lambda x: rlx.cond(x.sum() > 0, lambda: x, lambda: (x, x)))(X)
    with pytest.raises(RlxError, match="expected one condition, an array of rank 0"):
        rlx.jit(lambda x: rlx.cond(x > 0, lambda: x, lambda: x))(X)


def test_while_loop_ends_when_its_condition_fails():
    @rlx.jit
    def steps(x, limit):
        return rlx.while_loop(lambda s: s[0] > limit, lambda s: (s[0] / 2, s[1] + 1), (x, 0))

    for x, want in ((100.0, 7), (0.5, 0), (3.0, 2)):
        value, count = steps(x, 1.0)
        assert (value, count) == (x / 2**want, want)
        assert count.dtype == np.int64
    assert steps.stats.compilations == 1


def test_fori_loop_counts_as_python_does():
    @rlx.jit
    def power(x, n):
        return rlx.fori_loop(0, n, lambda i, y: y * x + i, rnp.ones_like(x))

    for n in (0, 1, 5):
        want = np.ones_like(X)
        for i in range(n):
            want = want * X + i
        np.testing.assert_allclose(power(X, n), want, rtol=1e-5, atol=1e-5)
    assert power.stats.compilations == 1
    with pytest.raises(RlxError, match=r"rlx\.fori_loop: expected integers"):
        rlx.jit(lambda x: rlx.fori_loop(0, x.sum(), lambda i, y: y, x))(X)


def test_what_is_carried_keeps_its_type():
    with pytest.raises(RlxError, match=r"a body that keeps the dtypes \(float32\).*\(float64\)"):
        rlx.jit(lambda x: rlx.while_loop(lambda y: y.sum() < 9, lambda y: y + np.ones(4), x))(X)
    with pytest.raises(RlxError, match="expected arrays of one shape"):
        rlx.jit(lambda x: rlx.while_loop(lambda y: y.sum() < 9, lambda y: y.sum(0), x))(X)
    with pytest.raises(RlxError, match="keeps the structure"):
        rlx.jit(lambda x: rlx.while_loop(lambda y: True, lambda y: (y, y), x))(X)


def test_scan_goes_along_the_first_axis():
    @rlx.jit
    def f(xs, start):
        def body(total, x):
            total = total * 0.5 + x
            return total, (total.sum(), x[0])

        return rlx.scan(body, start, xs)

    start = np.ones(4, np.float32)
    for n in (6, 3, 0):
        total, sums = start, []
        for x in X[:n]:
            total = total * np.float32(0.5) + x
            sums.append(total.sum())
        got, (outs, firsts) = f(X[:n], start)
        np.testing.assert_allclose(got, total, rtol=1e-5)
        np.testing.assert_allclose(outs, sums, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(firsts, X[:n, 0])
    assert f.stats.compilations == 1
    counted = rlx.jit(lambda x: rlx.scan(lambda c, _: (c * 2, c), x, None, length=4))
    last, all_ = counted(3.0)
    assert last == 48
    np.testing.assert_array_equal(all_, [3, 6, 12, 24])
    with pytest.raises(RlxError, match="xs of one length"):
        rlx.jit(lambda x: rlx.scan(lambda c, r: (c, r), 0, (x, x[1:])))(X)


def test_newtons_method_in_a_loop():
    @rlx.jit
    def root(x, tolerance):
        def far(state):
            y, turns = state
            return (np.abs(y * y - x).max() > tolerance * x.max()) & (turns < 100)

        return rlx.while_loop(far, lambda s: ((s[0] + x / s[0]) / 2, s[1] + 1), (x, 0))

    x = np.abs(X).astype(np.float64) + 0.1
    got, turns = root(x, 1e-12)
    np.testing.assert_allclose(got, np.sqrt(x), rtol=1e-6)
    assert 0 < turns < 20


def test_values_of_a_region_stay_there():
    kept = []

    def then():
        kept.append(X_like[0] * 2)
        return kept[0]

    X_like: list = []

    def f(x):
        X_like[:] = [x]
        rlx.cond(x.sum() > 0, then, lambda: x)
        return kept[0] + 1

    with pytest.raises(RlxError, match=r"was used after the function .or the branch or loop"):
        rlx.jit(f)(X)
