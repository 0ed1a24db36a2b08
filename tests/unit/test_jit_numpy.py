"""Every function of `rlx.numpy`, and numpy's own on traced arrays, beside numpy in float64."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp

Array = np.ndarray


def arrays(dtype: str, *shapes: tuple[int, ...], low: float = -3, high: float = 3) -> list[Array]:
    """Random arrays: numbers of a range, integers of it, or bools."""
    rng = np.random.default_rng()
    found: list[Array] = []
    for shape in shapes:
        if dtype == "bool":
            found.append(rng.random(shape) < 0.5)
        elif dtype.startswith("int"):
            found.append(rng.integers(math.ceil(low), int(high) + 1, shape).astype(dtype))
        else:
            found.append(rng.uniform(low, high, shape).astype(dtype))
    return found


EPS = {"float16": 2**-10, "float32": 2**-20, "float64": 2**-48}


def check(ours: Callable[..., Any], theirs: Callable[..., Any], *values: Array) -> None:
    """Compare a traced function with numpy's: dtype and shape, and values beside float64's."""
    got = rlx.jit(ours)(*values)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = theirs(*values)
        wide = theirs(*(v.astype(np.float64) if v.dtype.kind == "f" else v for v in values))
    for i, (g, p, w) in enumerate(zip(*map(several, (got, plain, wide)), strict=True)):
        p, w = np.asarray(p), np.asarray(w)
        assert (g.dtype, g.shape) == (p.dtype, p.shape), f"result {i}"
        if g.dtype.kind in "bi":
            np.testing.assert_array_equal(g, p)
            continue
        # What narrower inputs are computed in is as wide as the result.
        eps = EPS[g.dtype.name]
        with np.errstate(all="ignore"):
            size = np.nanmax(np.abs(np.where(np.isfinite(w), w, 0)), initial=1e-30)
        np.testing.assert_allclose(
            g.astype(np.float64),
            w.astype(np.float64),
            rtol=8 * eps,
            atol=2 * eps * size + (2**-24 if eps > 2**-11 else 0),
        )


def several(result: Any) -> list[Any]:
    return list(result) if isinstance(result, list | tuple) else [result]


# Element by element

RANGES = {
    "log": (0.1, 5), "log2": (0.1, 5), "log10": (0.1, 5), "log1p": (-0.9, 5), "sqrt": (0, 5),
    "arcsin": (-1, 1), "arccos": (-1, 1), "arctanh": (-0.95, 0.95), "arccosh": (1, 9),
    "reciprocal": (0.5, 4), "power": (0.2, 3), "float_power": (0.2, 3), "tan": (-1.3, 1.3),
    "sinh": (-10, 10), "cosh": (-10, 10), "exp": (-10, 10), "expm1": (-10, 10),
}  # fmt: skip
DTYPES = ("float32", "float64", "float16", "int32", "int64", "int8", "bool")


def _ufuncs() -> list[str]:
    from rlx.jit.rules import RULES

    return sorted(RULES)


@pytest.mark.parametrize(("turn", "name"), list(enumerate(_ufuncs())))
def test_ufuncs(turn: int, name: str, fuzz_count: Callable[[int, int], int]):
    """
    One program for the dtypes that numpy takes: of numpy's ufunc, and of ours for the last.

    A sample has float32 and three of the others, in turn.
    """
    ufunc = getattr(np, name)
    low, high = RANGES.get(name, (-3, 3))
    taken: list[Array] = []
    first, *others = DTYPES
    others = [others[(turn + i) % len(others)] for i in range(fuzz_count(len(others), 3))]
    for dtype in (first, *others):
        values = arrays(dtype, *[(5, 37)] * ufunc.nin, low=low, high=high)
        if "shift" in name:
            values[1] = np.abs(values[1])
        if name == "power" and dtype[0] != "f":
            continue
        try:
            with np.errstate(all="ignore"):
                ufunc(*values)
        except TypeError:
            with pytest.raises(TypeError):
                rlx.jit(ufunc)(*values)
            continue
        if name in ("floor_divide", "remainder", "fmod") and dtype[0] == "f":
            # What a quotient near an integer is depends on the last bit: quarters have no such.
            values = [(np.round(v * 4) / 4).astype(dtype) for v in values]
        taken += values

    def each(last: Callable[..., Any]) -> Callable[..., Any]:
        groups = range(0, len(taken), ufunc.nin)
        return lambda *x: [
            *(ufunc(*x[i : i + ufunc.nin]) for i in groups), last(*x[-ufunc.nin :])
        ]  # fmt: skip

    check(each(getattr(rnp, name)), each(ufunc), *taken)


def test_second_names_are_the_functions_they_name():
    from rlx.jit.elementwise import ALIASES

    for name, ufunc in ALIASES.items():
        assert getattr(rnp, name) is not None
        assert getattr(np, name, getattr(np, ufunc)) is getattr(np, ufunc)
    (x,) = arrays("float32", (9,), low=0.1, high=0.9)
    check(lambda x: (rnp.acos(x), rnp.pow(x, 2.5), rnp.abs(x)),
          lambda x: (np.arccos(x), np.power(x, 2.5), np.abs(x)), x)  # fmt: skip


def test_operators_promote_as_numpy_does():
    values = [arrays(d, (3, 4), low=1, high=3)[0] for d in DTYPES]

    def all_of(x, y):
        return [x + y, x / y, x < y, np.maximum(x, y), np.where(x > y, x, y)]

    def alone(x):
        return [x + 1, 2 * x, x * 0.5, x + np.float32(1), 1.5 / (x + 1), x * True]

    def f(*values):
        pairs = [all_of(x, values[i]) for x in values for i in (0, 5, 6)]
        return [r for group in (*pairs, *map(alone, values)) for r in group]

    check(f, f, *values)


def test_powers():
    (x,) = arrays("float32", (40,), low=0.1, high=3)
    check(lambda x: (x**2, x**0.5, x**-1, x**3, 2**x, x**x, x**0, x**2.5),
          lambda x: (x**2, x**0.5, x**-1, x**3, 2**x, x**x, x**0, x**2.5), x)  # fmt: skip
    for dtype in ("int8", "int32", "int64"):
        (n,) = arrays(dtype, (40,), low=-5, high=5)
        check(lambda n: (n**2, n**3, n**0, n**2.0), lambda n: (n**2, n**3, n**0, n**2.0), n)


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf)(x)


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _norm(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


EXTRAS: dict[str, Callable[[Array], Array]] = {
    "sigmoid": _sigmoid,
    "log_sigmoid": lambda x: -_softplus(-x),
    "silu": lambda x: x * _sigmoid(x),
    "erf": _erf,
    "softplus": _softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "hard_sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x < 0, 0.01 * x, x),
    "gelu": lambda x: x * 0.5 * (1 + _erf(x / np.sqrt(2))),
    "softmax": _softmax,
    "log_softmax": lambda x: np.log(_softmax(x)),
    "layer_norm": _norm,
    "rms_norm": lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5),
}


@pytest.mark.parametrize(("turn", "name"), list(enumerate(EXTRAS)))
def test_functions_that_numpy_lacks(turn: int, name: str, fuzz_count: Callable[[int, int], int]):
    dtypes = ("float32", "float64", "float16")
    for i in range(turn, turn + fuzz_count(3, 2)):
        dtype = dtypes[i % 3]
        (x,) = arrays(dtype, (6, 29))
        wide = EXTRAS[name](x.astype(np.float64))
        got = rlx.jit(getattr(rnp, name))(x)
        assert got.dtype == dtype
        np.testing.assert_allclose(got, wide, rtol=8 * EPS[dtype], atol=8 * EPS[dtype])


def test_norms_with_parameters_and_other_axes():
    x, w, b = arrays("float32", (6, 29), (29,), (29,))

    def f(x, w, b):
        return rnp.layer_norm(x, w, b), rnp.rms_norm(x, w), rnp.softmax(x, 0), rnp.gelu(x, "tanh")

    got = rlx.jit(f)(x, w, b)
    x, w, b = (v.astype(np.float64) for v in (x, w, b))
    tanh = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    rms = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w
    for g, want in zip(got, (_norm(x) * w + b, rms, _softmax(x, 0), x / 2 * (1 + tanh)),
                       strict=True):  # fmt: skip
        np.testing.assert_allclose(g, want, rtol=1e-5, atol=1e-5)


def test_attention():
    q, k, v = arrays("float32", (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6))
    mask = np.random.default_rng().random((2, 5, 7)) < 0.7
    mask[..., 0] = True
    got = rlx.jit(lambda q, k, v, m: rnp.attention(q, k, v, m))(q, k, v, mask)
    q, k, v = (x.astype(np.float64) for x in (q, np.repeat(k, 2, 1), np.repeat(v, 2, 1)))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(8) + np.where(mask, 0, -np.inf)[:, None]
    np.testing.assert_allclose(got, _softmax(scores) @ v, rtol=1e-4, atol=1e-5)
    causal = rlx.jit(lambda q: rnp.attention(q, q, q, causal=True, scale=1.0))(got[:, :, :, :])
    x = got.astype(np.float64)
    scores = x @ x.swapaxes(-1, -2) + np.triu(np.full((5, 5), -np.inf), 1)
    np.testing.assert_allclose(causal, _softmax(scores) @ x, rtol=1e-4, atol=1e-5)


# Reductions

REDUCTIONS = "sum prod mean var std max min any all argmax argmin count_nonzero ptp nansum".split()


@pytest.mark.parametrize(("turn", "name"), list(enumerate(REDUCTIONS)))
def test_reductions(turn: int, name: str, fuzz_count: Callable[[int, int], int]):
    dtypes = ["float32", "float16", "int32", "bool"][: 3 if name == "ptp" else 4]
    step = fuzz_count(1, 2)
    dtypes = dtypes[turn % step :: step]
    values = [arrays(d, (3, 4, 7), low=-2, high=2)[0] for d in dtypes]
    axes: Any = (None, 0, -1) if name.startswith("arg") else (None, 1, (0, 2))
    can_be_empty = not name.startswith("arg") and name not in ("ptp", "max", "min")

    def all_of(function: Callable[..., Any], *values: Any) -> list[Any]:
        found = [
            function(x, axis=a, keepdims=k) for x in values for a in axes for k in (True, False)
        ]
        return found + [function(x[:0], axis=0) for x in values if can_be_empty]

    check(lambda *x: all_of(getattr(rnp, name), *x), lambda *x: all_of(getattr(np, name), *x),
          *values)  # fmt: skip

    def plain(x):
        return getattr(np, name)(x, axis=0)

    check(plain, plain, *arrays("float64", (3, 5)))


def test_reductions_with_options():
    x, w = arrays("float32", (5, 6), (6,), low=0.5, high=2)
    check(
        lambda x, w: (x.var(axis=0, ddof=1), np.std(x, ddof=1), x.sum(dtype=np.float64),
                      np.average(x, axis=1, weights=w), x.max(axis=0, initial=1.5),
                      x.mean(axis=1, dtype=np.float64), np.average(x)),
        lambda x, w: (x.var(axis=0, ddof=1), np.std(x, ddof=1), x.sum(dtype=np.float64),
                      np.average(x, axis=1, weights=w), x.max(axis=0, initial=1.5),
                      x.mean(axis=1, dtype=np.float64), np.average(x)),
        x, w,
    )  # fmt: skip
    got = rlx.jit(lambda x: rnp.logsumexp(x, axis=1))(x * 100)
    wide = x.astype(np.float64) * 100
    top = wide.max(1)
    np.testing.assert_allclose(got, top + np.log(np.exp(wide - top[:, None]).sum(1)), rtol=1e-5)
    np.testing.assert_allclose(rlx.jit(lambda x: rnp.var(x, correction=1))(x), x.var(ddof=1), 1e-5)


def test_extremes_with_nan():
    x = np.array([[1, np.nan, 3], [-np.inf, 5, 5]], np.float32)

    def f(x):
        return (x.max(1), x.min(1), x.argmax(1), x.argmin(1), np.fmax(x[0], x[1]), np.nansum(x))

    for got, want in zip(rlx.jit(f)(x), f(x), strict=True):
        np.testing.assert_array_equal(got, want)


# Moves

MOVES: list[Callable[[Any], Any]] = [
    lambda x: (x.reshape(2, -1), x.reshape(-1), x.ravel(), x.flatten(), x.reshape((4, 3, 2))),
    lambda x: (x.T, np.transpose(x, (1, 0, 2)), x.transpose(2, 0, 1), np.swapaxes(x, 0, 1)),
    lambda x: (np.moveaxis(x, 0, -1), np.moveaxis(x, (0, 1), (1, 2)), np.matrix_transpose(x)),
    lambda x: (np.expand_dims(x, 1), np.expand_dims(x, (0, -1)), x[None], x[..., None]),
    lambda x: (np.squeeze(x[:1]), np.squeeze(x[:, :1], axis=1), np.atleast_2d(x[0, 0])),
    lambda x: np.broadcast_to(x[0], (5, 3, 4)),
    lambda x: np.broadcast_arrays(x, x[0, 0]),
    lambda x: np.concatenate([x, x[:1], np.ones((1, 3, 4), np.float32)]),
    lambda x: (np.concatenate([x, x], axis=None), np.stack([x[0], x[1]], axis=-1)),
    lambda x: (np.hstack([x, x]), np.vstack([x[0], x[1]]), np.column_stack([x[0], x[1]])),
    lambda x: (*np.split(x, 2), *np.split(x, [1, 2], axis=1), *np.unstack(x)),
    lambda x: (np.roll(x, 1, axis=0), np.roll(x, -2, axis=(1, 2)), np.roll(x, 5)),
    lambda x: (np.tile(x, 2), np.tile(x, (2, 1, 1, 2)), np.repeat(x, 3, axis=1), np.repeat(x, 2)),
    lambda x: np.pad(x, ((1, 2), (0, 0), (3, 0)), constant_values=1.5),
    lambda x: (np.take(x, np.array([1, 0, -1]), axis=2), np.take(x, [[0], [5]])),
    lambda x: (np.tril(x), np.triu(x, 1), np.diagonal(x), np.trace(x)),
    lambda x: (np.diagonal(x.astype(np.float16)), np.diagonal(x > 0), np.diagonal(x, 0, 2, 0)),
    lambda x: (np.diff(x), np.diff(x, n=2, axis=1), x.clip(-1, 1), np.clip(x, None, 0.5)),
    lambda x: (np.round(x, 1), x.round(), np.around(x * 100, -1), np.isclose(x, x + 1e-9)),
    lambda x: (np.zeros_like(x), np.ones_like(x, dtype=np.int8), np.full_like(x, 2.5)),
    lambda x: (x.astype(np.int32), x.astype(bool), x.astype(np.float16), x.astype("f8")),
    lambda x: (x.size, x.ndim, np.shape(x), np.ndim(x), x.itemsize),
    lambda x: np.take_along_axis(x, np.argmax(x, axis=1, keepdims=True), axis=1),
    lambda x: np.take_along_axis(x, (np.argmax(x, axis=1, keepdims=True) - 3).astype("i1"), 1),
    lambda x: np.searchsorted(np.array([-1.0, 0.0, 1.0], np.float32), x[0]),
    lambda x: (np.linalg.norm(x), np.linalg.norm(x, axis=1), np.linalg.norm(x[0, 0], ord=np.inf)),
    lambda x: np.allclose(x, x),
]  # fmt: skip


@pytest.mark.parametrize("f", MOVES)
def test_moves(f: Callable[[Any], Any]):
    (x,) = arrays("float32", (2, 3, 4))
    got, want = rlx.jit(f)(x), f(x)
    for g, w in zip(several(got), several(want), strict=True):
        w = np.asarray(w)
        assert (np.asarray(g).dtype, np.shape(g)) == (w.dtype, w.shape)
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


INDICES: list[Any] = [
    np.s_[1], np.s_[-1], np.s_[:, 2], np.s_[..., 0], np.s_[1, :, -1], np.s_[None, ..., None],
    np.s_[2:], np.s_[:-2], np.s_[-3:-1], np.s_[1:4], np.s_[::2], np.s_[1::3], np.s_[:3:2],
    np.s_[9:], np.s_[:9], np.s_[-9:], np.s_[3:1], np.s_[:, 1:, ::2], np.s_[0:0],
    np.s_[[0, 2]], np.s_[:, [0, -1, 1]], np.s_[[0, 1], [1, 2]], np.s_[[0, 1], :, [1, 2]],
    np.s_[np.array([[0, 1], [2, -1]])], np.s_[0, :, [0, 1]], np.s_[[0, 1], None, [1, 2]],
    np.s_[[True, False, True, False, True]], np.s_[:, [True, False, True, True]],
    np.s_[[0, 1], 1:, 0], np.s_[np.int64(1)], np.s_[-5:5:2], np.s_[::-1], np.s_[:, ::-2],
    np.s_[3:0:-1], np.s_[-2::-1], np.s_[:-3:-1], np.s_[9::-2, ::-1], np.s_[1:-1:-1],
]  # fmt: skip


def test_indices():
    def f(x):
        return [x[i] for i in INDICES]

    (x,) = arrays("float32", (5, 4, 3))
    for i, (got, want) in enumerate(zip(rlx.jit(f)(x), f(x), strict=True)):
        np.testing.assert_array_equal(got, want, err_msg=str(INDICES[i]))


def test_slices_for_every_size():
    bounds = [None, 0, 1, 3, 6, -1, -3, -6]
    parts = [slice(a, b, s) for a in bounds for b in bounds for s in (1, 2, -1, -3)]
    f = rlx.jit(lambda x: [x[p] for p in parts[::5]])
    for n in (2, 3, 5, 6, 7, 0, 40):
        x = np.arange(n)
        for got, part in zip(f(x), parts[::5], strict=True):
            np.testing.assert_array_equal(got, x[part], err_msg=f"{n} {part}")
    assert f.stats.compilations <= 7


def test_arrays_of_indices_that_are_traced():
    x, i, j = arrays("float32", (6, 5))[0], *arrays("int32", (4,), (4,), low=-5, high=4)

    def f(x, i, j):
        return (x[i], x[:, j], x[i, j], x[i[:, None], j], x[i].sum(0))

    for got, want in zip(rlx.jit(f)(x, i, j), f(x, i, j), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


# Cumulative results, sorting


def test_cumulative():
    def f(x):
        return (
            np.cumsum(x), x.cumsum(axis=0), np.cumprod(x, axis=1), np.add.accumulate(x, axis=1),
            np.maximum.accumulate(x, axis=1), np.minimum.accumulate(x),
            np.cumulative_sum(x, axis=0), np.cumulative_prod(x[0], include_initial=True),
            np.isin(x, [1, 0, -2]),
        )  # fmt: skip

    for dtype in ("float32", "float16", "int32", "int8"):
        jitted = rlx.jit(f)
        for shape, low in (((5, 7), 1), ((2, 64), 0), ((3, 2), 1)):
            x = arrays(dtype, shape, low=low, high=2)[0].round()
            for got, want in zip(jitted(x), f(x), strict=True):
                assert got.dtype == want.dtype
                np.testing.assert_allclose(got, want, rtol=1e-3)
        assert jitted.stats.compilations == 1
    assert rlx.jit(lambda x: np.cumsum(x, axis=0))(np.ones((0, 3))).shape == (0, 3)


def test_sorting():
    def theirs(x):
        order = np.argsort(x, kind="stable")
        return np.sort(x), order, np.sort(x, axis=0), np.sort(x, axis=None), np.median(x, axis=0)

    def ours(x):
        return np.sort(x), x.argsort(), np.sort(x, axis=0), rnp.sort(x, axis=None), np.median(x, 0)

    for dtype in ("float32", "float64", "float16", "int64", "int8", "bool"):
        jitted = rlx.jit(ours)
        for shape in ((5, 7), (4, 2), (33, 3)):
            (x,) = arrays(dtype, shape)
            for got, want in zip(jitted(x), theirs(x), strict=True):
                assert got.dtype == want.dtype
                np.testing.assert_allclose(got, want, rtol=1e-3 if dtype == "float16" else 1e-6)
        assert jitted.stats.compilations == 1
    x = np.array([[3, np.nan, 1, 2.0], [0, 5, 5, -1]])
    values, places = rlx.jit(lambda x: rnp.top_k(x, 3))(x)
    np.testing.assert_array_equal(values, [[3, 2, 1], [5, 5, 0]])
    np.testing.assert_array_equal(places, [[0, 3, 2], [1, 2, 0]])
    np.testing.assert_array_equal(rlx.jit(lambda x: np.median(x, axis=1))(x), [np.nan, 2.5])
    down = rlx.jit(lambda x: rnp.sort(x, descending=True))(x)
    np.testing.assert_array_equal(down, [[3, 2, 1, np.nan], [5, 5, 0, -1]])


# Creation, products


def test_creation():
    def f(np_, x):
        n = x.shape[0]
        return (
            np_.zeros((n, 2)) + 1, np_.ones(n, dtype=np.float32), np_.full((2, n), 7),
            np_.eye(n), np_.eye(3, 4, k=1, dtype=np.float32), np_.arange(n) * 2,
            np_.arange(2, 11, 3), np_.arange(0.0, 1.0, 0.25), np_.linspace(0, 1, 5),
            np_.tri(n, 3), np_.asarray([1, 2, 3]), np_.identity(n), np_.array([[1.5]]),
            *np_.meshgrid(np_.arange(3), np_.arange(n)),
            *np_.meshgrid(np_.arange(3), np_.arange(n), indexing="ij"),
        )  # fmt: skip

    jitted = rlx.jit(lambda x: f(rnp, x))
    for n in (4, 9):
        x = np.zeros(n, np.float32)
        for got, want in zip(jitted(x), f(np, x), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
    assert jitted.stats.compilations == 1
    ids = np.array([[0, 2], [1, 1]])
    np.testing.assert_array_equal(rlx.jit(lambda i: rnp.one_hot(i, 3))(ids), np.eye(3)[ids])
    bounds = rlx.jit(lambda a, b: rnp.linspace(a, b, 6))
    np.testing.assert_allclose(bounds(1.0, 3.0), np.linspace(1, 3, 6))


Product = tuple[Callable[..., Any], list[tuple[int, ...]]]
PRODUCTS: list[Product] = [
    (np.matmul, [(5, 7), (7, 3)]), (np.matmul, [(7,), (7, 3)]), (np.matmul, [(5, 7), (7,)]),
    (np.matmul, [(7,), (7,)]), (np.matmul, [(2, 5, 7), (7, 3)]), (np.matmul, [(1, 7), (7, 1)]),
    (np.matmul, [(2, 1, 5, 7), (3, 7, 4)]), (np.dot, [(5, 7), (7, 3)]),
    (np.dot, [(2, 3, 4), (5, 4, 6)]),
    (np.inner, [(5, 7), (3, 7)]), (np.outer, [(5,), (3,)]), (np.vdot, [(3, 4), (3, 4)]),
    (np.vecdot, [(5, 7), (5, 7)]), (lambda a, b: np.tensordot(a, b, 2), [(2, 3, 4), (3, 4, 5)]),
    (lambda a, b: np.tensordot(a, b, ([0, 2], [1, 0])), [(2, 3, 4), (4, 2, 5)]),
    (lambda a, b: np.tensordot(a, b, 0), [(2, 3), (4,)]),
    (lambda a, b: a @ b.T, [(5, 7), (3, 7)]), (lambda a, b: a.T @ b, [(7, 5), (7, 3)]),
    (lambda a, b: np.einsum("bij,bjk->bik", a, b), [(2, 3, 4), (2, 4, 5)]),
    (lambda a, b: np.einsum("ij,jk", a, b), [(3, 4), (4, 5)]),
    (lambda a, b: np.einsum("ij,ij->i", a, b), [(3, 4), (3, 4)]),
    (lambda a, b: np.einsum("i,j->ji", a, b), [(3,), (4,)]),
    (lambda a, b: np.einsum("bhqd,bhkd->bhqk", a, b), [(2, 3, 4, 5), (2, 3, 6, 5)]),
    (lambda a, b: np.einsum("ii,ij->j", a, b), [(4, 4), (4, 5)]),
    (lambda a, b: np.einsum("ijk,lk->", a, b), [(2, 3, 4), (5, 4)]),
    (lambda a, b, c: np.einsum("ij,jk,kl->il", a, b, c), [(2, 3), (3, 4), (4, 5)]),
    (lambda a: np.einsum("ijk->ki", a), [(2, 3, 4)]),
]  # fmt: skip


@pytest.mark.parametrize(("turn", "product"), list(enumerate(PRODUCTS)))
def test_products(turn: int, product: Product, fuzz_count: Callable[[int, int], int]):
    f, shapes = product
    dtypes = ("float32", "float64", "int32")
    for i in range(turn, turn + fuzz_count(3, 2)):
        check(lambda *x: f(*x), f, *arrays(dtypes[i % 3], *shapes))


def test_constants_with_zeros_of_both_signs():
    """They are neither one number nor the same as others."""
    ones = np.ones((2, 2), np.float32)
    zeros = [np.array(x, np.float32) for x in ([[0, -0.0], [-0.0, 0]], [[-0.0, 0], [0, 0]])]
    zeros.append(np.zeros((2, 2), np.float32))

    @rlx.jit
    def products(x: Any) -> Any:
        return [*(x * z for z in zeros), *((x @ x) * z for z in zeros)]

    for got, want in zip(products(ones), [*zeros, *zeros], strict=True):
        assert got.tobytes() == want.tobytes()


def test_an_operand_of_a_product_that_is_used_after_it():
    (a,) = arrays("float32", (4, 4))
    for f in (
        lambda x: a @ x + a,
        lambda x: (x @ a) * a,
        lambda x: x @ a + a[0],
        lambda x: x @ x + x,
        lambda x: np.exp(x) @ a + np.exp(x),
    ):
        check(f, f, *arrays("float32", (4, 4)))


def test_constants_without_elements():
    empty, x = np.zeros((0, 20), np.float32), np.ones((20, 20), np.float32)
    attended = rlx.jit(lambda x: rnp.softmax(empty @ x.T + empty) @ x)
    for f in (rlx.jit(lambda x: empty @ x + empty), attended):
        assert f(x).shape == (0, 20)


@pytest.mark.parametrize("can_cast", [np.can_cast, rnp.can_cast])
def test_what_numpy_casts(can_cast: Callable[[Any, Any], bool]):
    def f(x, n):
        assert can_cast(x, np.float64)
        assert not can_cast(x, np.int64)
        assert not can_cast(n, np.int32)
        assert can_cast(np.int8, np.int16)
        return x

    rlx.jit(f)(np.ones(3, np.float32), np.arange(3))


def test_indices_that_hold_fewer_numbers_than_there_are_rows():
    x = np.random.default_rng(4).random((300, 3), np.float32)
    ids = np.random.default_rng(5).integers(-3, 3, (300, 2), np.int8)
    got = rlx.jit(lambda x, ids: np.take_along_axis(x, ids, 1))(x, ids)
    np.testing.assert_array_equal(got, np.take_along_axis(x, ids, 1))


def test_every_function_is_said_what_it_does():
    names = {n for n, f in vars(rnp).items() if inspect.isfunction(f) and n[0] != "_"}
    assert len(names) > 180
    for name in ("reshape", "exp", "argmax", "tensordot", "take_along_axis", "vecdot", "gelu"):
        assert name in names
        assert getattr(rnp, name).__doc__


@pytest.mark.parametrize("kind", [None, "stable", "quicksort", "mergesort", "heapsort"])
def test_a_sort_takes_the_names_of_algorithms(kind: Any):
    # All are stable: the same places only where no elements are equal.
    x = np.random.default_rng(7).permutation(60).reshape(4, 15).astype(np.float32)
    sort, places = rlx.jit(lambda x: (np.sort(x, 0, kind), np.argsort(x, kind=kind)))(x)
    np.testing.assert_array_equal(sort, np.sort(x, 0, kind))
    np.testing.assert_array_equal(places, np.argsort(x, kind=kind))
    with pytest.raises(ValueError, match="expected the kind stable"):
        rlx.jit(lambda x: np.sort(x, kind="bogo"))(x)
