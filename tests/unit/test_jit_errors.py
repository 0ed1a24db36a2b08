"""What `rlx.jit` refuses: one clear message, with the user's line, or numpy's own error."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.exceptions import AxisError
from xdsl.utils.exceptions import VerifyException

import rlx
import rlx.numpy as rnp
from rlx.errors import RlxError

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def in_place(x):
    x[0] = 1
    return x


def loop(x):
    return sum(row for row in x)


NEEDS_VALUES = [
    (lambda x: x if x.sum() > 0 else -x, r"a condition .*rlx\.numpy\.where.*rlx\.cond"),
    (lambda x: x * float(x[0, 0]), r"float\(\) needs the value .*static_argnames"),
    (lambda x: int(x.max()), r"int\(\) needs the value"),
    (lambda x: range(x.argmax()), r"an index or a count needs the value .*rlx\.fori_loop"),
    (lambda x: x[x > 0], r"a mask of traced values .*rlx\.numpy\.where"),
    (lambda x: x.tolist(), r"tolist\(\) needs the value"),
    (lambda x: np.asarray(x), r"a numpy array made of it needs the value"),
    (loop, r"iteration of a traced array whose length \(d0, d1\) differs .*rlx\.scan.*specialize"),
    (lambda x: len(x), r"len\(\) of a traced array .*x\.shape\[0\]"),
    (lambda x: range(x.shape[0]), r"the number of a size .*specialize"),
    (lambda x: np.zeros(x.shape), r"the number of a size .*specialize"),
    (lambda x: np.arange(x), r"needs the value"),
    (lambda x: x.sort(), r"can't be sorted in place: use rlx\.numpy\.sort"),
    (in_place, r"can't be changed in place: .*rlx\.numpy\.where"),
    (lambda x: np.nonzero(x), "numpy.nonzero would give an array whose size depends on values"),
    (lambda x: np.unique(x), "numpy.unique would give an array whose size depends on values"),
    (lambda x: np.linalg.svd(x), r"numpy\.linalg\.svd is not there for traced arrays"),
    (lambda x: np.divide.accumulate(x), r"numpy\.divide\.accumulate is not there"),
    (lambda x: np.add(x, x, out=np.zeros((3, 4))), r"numpy\.add: out= can't"),
    (lambda x: x + {}, r"unsupported|expected an array or a number, got dict"),
    (lambda x: rnp.einsum("...i->i", x), r"'\.\.\.' is not there"),
]


@pytest.mark.parametrize(("f", "message"), NEEDS_VALUES)
def test_what_needs_values_says_what_to_use(f, message: str):
    with pytest.raises((RlxError, TypeError), match=message) as caught:
        rlx.jit(f)(X)
    if isinstance(caught.value, RlxError):
        assert f"at {__file__}:" in str(caught.value)


def test_the_line_of_the_user_is_shown():
    def f(x):
        y = x * 2
        return y if y.any() else x

    with pytest.raises(RlxError, match=r"test_jit_errors\.py:\d+: return y if y\.any\(\) else x"):
        rlx.jit(f)(X)


LIKE_NUMPY = [
    lambda x: x + x[:2],
    lambda x: x @ x,
    lambda x: x[3],
    lambda x: x[:, -5],
    lambda x: x[0, 0, 0],
    lambda x: x[..., ...],
    lambda x: x[1.5],
    lambda x: x.reshape(5, -1),
    lambda x: x.reshape(3, 5),
    lambda x: x.reshape(-1, -1),
    lambda x: x.sum(axis=2),
    lambda x: x.sum(axis=(0, 0)),
    lambda x: np.concatenate([x, x[:, :2]]),
    lambda x: np.concatenate([x, x[0]]),
    lambda x: x[:0].max(),
    lambda x: np.argmin(x[:0]),
    lambda x: x.transpose(0, 0),
    lambda x: np.squeeze(x, axis=0),
    lambda x: x & 1,
    lambda x: -(x > 0),
    lambda x: (x > 0) - (x < 0),
    lambda x: x.astype(np.int8) + 300,
    lambda x: x.astype(np.int32) ** -2,
    lambda x: np.broadcast_to(x, (3, 5)),
    lambda x: np.split(x, 2),
    lambda x: np.take_along_axis(x, x, 1),
    lambda x: np.diagonal(x, 0, 1, 1),
    lambda x: np.moveaxis(x, (0, 0), (0, 1)),
    lambda x: np.moveaxis(x, (0, 1), (-1, 1)),
    lambda x: x[::0],
]


@pytest.mark.parametrize("f", LIKE_NUMPY)
def test_numpys_errors_are_numpys(f):
    try:
        f(X)
    except Exception as e:
        wanted = type(e)
    else:
        raise AssertionError("numpy takes this")
    with pytest.raises(wanted):
        rlx.jit(f)(X)


def test_what_the_compiler_refuses_is_one_error(monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> None:
        raise VerifyException("mir.unary: expected an element of it")

    monkeypatch.setattr("rlx.jit.build._Builder", refused)
    f = rlx.jit(lambda x: x - 54321)
    for use in (f, lambda x: f.ir("hir", x)):
        with pytest.raises(RlxError, match=r"^the function lambda: mir.unary: expected an el"):
            use(X)


def test_sizes_that_fitted_once_are_still_checked():
    f = rlx.jit(lambda x, y: x + y)
    f(X, X)
    with pytest.raises(ValueError, match=r"could not be broadcast together with shapes \(3,4\)"):
        f(X, X[:2])
    f(X[:2], X[:2])
    assert f.stats.compilations == 1
    with pytest.raises(AxisError):
        rlx.jit(lambda x: np.sum(x, axis=5))(X)


def test_arguments_that_are_no_arrays():
    f = rlx.jit(lambda x: x)
    for wrong, message in (
        ("text", "argument 'x': expected a numpy array or a number, got str: .*static_argnames"),
        (X.astype(complex), "expected an array of bool, .*got complex64.*astype|complex128"),
        (np.array(["a"]), "expected an array of bool"),
        (np.ma.masked_array(X), "expected a numpy array or a number, got MaskedArray"),
        (object(), "got object"),
    ):
        with pytest.raises(RlxError, match=message):
            f(wrong)
    with pytest.raises(TypeError, match=r"missing a required argument: 'x'"):
        f()
    with pytest.raises(TypeError, match="too many positional"):
        f(X, X)


def test_options_that_do_not_fit():
    with pytest.raises(RlxError, match=r"rlx.jit: expected a function, got 3"):
        rlx.jit(3)
    with pytest.raises(RlxError, match="precision: expected one of exact, fast, got 'best'"):
        rlx.jit(lambda x: x, precision="best")
    with pytest.raises(RlxError, match=r"expected one of exact, fast, got array\(\['fast'"):
        rlx.jit(lambda x: x, precision=np.array(["fast", "exact"]))
    with pytest.raises(RlxError, match="specialize: expected arguments of"):
        rlx.jit(lambda x: x, specialize=["z"])
    with pytest.raises(RlxError, match="has an argument named out"):
        rlx.jit(lambda x, out: x)
    with pytest.raises(RlxError, match="threads"):
        rlx.jit(lambda x: x, threads=0)(X)
    with pytest.raises(RlxError, match="has an argument named out"):
        rlx.jit(lambda x, out=None: x)
    with pytest.raises(RlxError, match=r"specialize: expected axes of argument 'x', .*got 5"):
        rlx.jit(lambda x: x, specialize={"x": 5})
    with pytest.raises(RlxError, match=r"specialize: expected axes of argument 'x', .*got 'ab'"):
        rlx.jit(lambda x: x, specialize={"x": "ab"})
    with pytest.raises(RlxError, match=r"static_argnames: expected names of arg.*got array\(5\)"):
        rlx.jit(lambda x: x, static_argnames=np.array(5))
    with pytest.raises(RlxError, match="static_argnames: expected names of arguments, got 5"):
        rlx.jit(lambda x: x, static_argnames=5)
    with pytest.raises(RlxError, match=r"static_argnames: expected arguments of .*got \['x'\]"):
        rlx.jit(lambda x: x, static_argnames=[["x"]])
    with pytest.raises(RlxError, match="specialize: argument 'x' has 2 axes, got axis -3"):
        rlx.jit(lambda x: x, specialize={"x": (0, -3)})(X)
    assert np.array_equal(rlx.jit(lambda x: x * 1, specialize={"x": (-2, 1)})(X), X)
    with pytest.raises(RlxError, match="got <built-in function max>, whose arguments"):
        rlx.jit(max)


def test_generators_and_coroutines():
    def generator(x):
        yield x

    async def coroutine(x):
        return x

    async def both(x):
        yield x

    class Called:
        def __call__(self, x):
            yield x

    for f, message in (
        (generator, "a generator"),
        (both, "a generator"),
        (Called(), "a generator"),
        (coroutine, "a coroutine"),
    ):
        with pytest.raises(RlxError, match=message):
            rlx.jit(f)
    with pytest.raises(RlxError, match=r"the result: expected arrays .* got generator"):
        rlx.jit(lambda x: generator(x))(X)
    with pytest.raises(RlxError, match=r"the result: expected arrays .* got map"):
        rlx.jit(lambda x: map(abs, [x]))(X)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**70, 10**400])
def test_integers_beyond_int64(number: int):
    f = rlx.jit(lambda a, b: a + b)
    for _ in range(2):
        with pytest.raises(RlxError, match=r"argument 'b': expected an integer of int64, .* bits"):
            f(np.ones(2), number)
        # Then with the calls of other numbers known.
        f(np.ones(2), 2**63 - 1)
        f(np.ones(2), -(2**63))
    with pytest.raises(OverflowError, match=r"expected a number of int64 \(from -92.* bits\n  at"):
        rlx.jit(lambda a: a + number)(np.ones(2, np.int64))
    with pytest.raises(OverflowError, match=r"expected a number of int64"):
        rlx.jit(lambda a: (a, rnp.asarray(number)))(np.ones(2))
    if number < 1 << 100:
        assert np.array_equal(rlx.jit(lambda a: a + number)(np.ones(2)), np.ones(2) + number)
    else:
        with pytest.raises(OverflowError, match=r"expected a number of float64"):
            rlx.jit(lambda a: a + number)(np.ones(2))


STATICS = [
    [(1,), (1.0,), (True,), (np.float32(1),), (np.int8(1),)],
    [0.0, -0.0, 0, False],
    [(2, (0.0,)), (2, (-0.0,)), (2.0, (0.0,))],
    [frozenset({1}), frozenset({1.0}), frozenset({True})],
    [1j, 1j * -1, complex(-0.0, 1)],
    [np.float64(1), 1.0],
]


@pytest.mark.parametrize("values", STATICS)
def test_statics_that_are_equal_are_not_the_same(values):
    seen = []

    def f(a, s):
        seen.append(s)
        return a * len(seen)

    f = rlx.jit(f, static_argnames="s")
    for _ in range(2):
        for i, value in enumerate(values, 1):
            assert np.array_equal(f(X, value), X * i)
    assert list(map(repr, seen)) == list(map(repr, values))
    assert f.stats.traces == len(values)


def test_statics_of_dataclasses_and_nan():
    @dataclass(frozen=True)
    class Options:
        scale: object
        parts: object = ()

    @dataclass
    class Own:
        parts: object

        def __hash__(self):
            return 0

    f = rlx.jit(lambda a, s: a * 2, static_argnames="s")
    for value in (float("nan"), (float("nan"),), np.float32("nan"), Options(float("nan"))):
        before = f.stats.traces
        f(X, value)
        f(X, type(value)([float("nan")]) if isinstance(value, tuple) else value)
        assert f.stats.traces == before + 1
    before = f.stats.traces
    f(X, float("inf") - float("inf"))
    f(X, Options(float("inf") - float("inf")))
    assert f.stats.traces == before
    g = rlx.jit(lambda a, s: a * s.scale, static_argnames="s")
    assert g(X[0].astype(np.int32), Options(2)).dtype == np.int32
    assert g(X[0].astype(np.int32), Options(2.0)).dtype == np.float64
    # A hash of its own serves, though the field has none.
    f(X, Own([1]))
    f(X, Own([1]))
    assert f.stats.traces == before + 1


def test_keys_of_dicts_that_are_equal_are_not_the_same():
    f = rlx.jit(lambda d: d)
    for key in (1, True, 1.0, (1,), (True,), 1):
        assert [repr(k) for k in f({key: X})] == [repr(key)]
    assert f.stats.traces == 5


def test_fields_without_init_are_carried():
    @dataclass(frozen=True)
    class State:
        x: object
        total: object = field(init=False, default=0.0)

        def __post_init__(self):
            object.__setattr__(self, "total", self.x * 0)

    given = State(X)
    object.__setattr__(given, "total", X[0])

    def f(s):
        result = State(s.x + 1)
        object.__setattr__(result, "total", s.total * 3)
        return result

    result = rlx.jit(f)(given)
    assert np.array_equal(result.x, X + 1)
    assert np.array_equal(result.total, X[0] * 3)


def test_a_method_of_a_plain_class():
    class Plain:
        @rlx.jit
        def f(self, x):
            return x

    with pytest.raises(RlxError, match=r"'self'.* make Plain a dataclass .*static_argnames"):
        Plain().f(X)


def test_tracers_do_not_escape():
    kept = []

    @rlx.jit
    def f(x):
        kept.append(x)
        return x

    f(X)
    with pytest.raises(RlxError, match="outside"):
        kept[0] + 1
    with pytest.raises(RlxError, match=r"was used after the function"):
        rlx.jit(lambda x: x + kept[0])(X)
    with pytest.raises(RlxError, match=r"exp: expected a call in a function that rlx\.jit traces"):
        rnp.exp(X)


def test_a_failed_trace_leaves_nothing_behind():
    f = rlx.jit(lambda x: x[5])
    with pytest.raises(IndexError):
        f(X)
    assert f.stats.compilations == 0
    assert f(np.ones((6, 2))).shape == (2,)
    with pytest.raises(RlxError, match=r"rlx.jit traces"):
        rnp.exp(X)


def test_more_elements_than_a_size_by_name_counts():
    f = rlx.jit(lambda a, b: (a[:, None] + b).sum())
    long = np.ones(70000, np.int8)
    with pytest.raises(RlxError, match=r"fewer than 2\^31 elements, .*rlx\.jit with specialize="):
        f(long, long)
    assert f(long[:3], long[:2]) == 12
