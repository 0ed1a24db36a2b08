"""`rlx.jit` on uint8 and uint32 against numpy: maps, comparisons, casts, shifts, reductions."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.errors import RlxError

SAME = {
    "add": lambda a, b: a + b,
    "subtract wraps": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "negative": lambda a, b: -a,
    "invert": lambda a, b: ~a,
    "abs and sign": lambda a, b: abs(a) + np.sign(b),
    "divide": lambda a, b: a / (b | 1),
    "floor_divide": lambda a, b: a // (b | 1),
    "remainder": lambda a, b: a % (b | 1),
    "fmod": lambda a, b: np.fmod(a, b | 1),
    "power": lambda a, b: a**3,
    "less": lambda a, b: a < b,
    "greater than a half": lambda a, b: a >= 200,
    "numbers beyond": lambda a, b: (a < 300) & (b > -1),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "clip": lambda a, b: np.clip(a, 3, 200),
    "left_shift": lambda a, b: a << (b & 3),
    "right_shift": lambda a, b: (a >> (b & 7)) + (b >> 2),
    "bits": lambda a, b: (a & b) | (a ^ 5),
    "to float32": lambda a, b: a.astype(np.float32) * np.float32(0.5),
    "to float64": lambda a, b: a.astype(np.float64),
    "to int8": lambda a, b: a.astype(np.int8),
    "to int64": lambda a, b: a.astype(np.int64) - b.astype(np.int64),
    "to uint8": lambda a, b: a.astype(np.uint8),
    "from int64": lambda a, b: (a.astype(np.int64) - 300).astype(np.uint32),
    "to bool": lambda a, b: a.astype(bool) & np.logical_not(b),
    "with int8": lambda a, b: a + b.astype(np.int8),
    "with float32": lambda a, b: a * b.astype(np.float32),
    "where": lambda a, b: np.where(a > b, a, 7),
    "concatenate": lambda a, b: np.concatenate([a, b]),
    "matmul": lambda a, b: a @ b.T,
    "max": lambda a, b: a.max(axis=0),
    "min": lambda a, b: a.min(axis=1),
    "sum as itself": lambda a, b: a.sum(axis=1, dtype=a.dtype),
    "mean": lambda a, b: a.mean(axis=1),
    "argmax": lambda a, b: a.argmax(axis=1),
    "any": lambda a, b: (a & 128).any(axis=1),
    "sort": lambda a, b: np.sort(a, axis=1),
}


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32])
@pytest.mark.parametrize("name", SAME)
def test_unsigned_integers_as_numpy(name: str, dtype):
    rng = np.random.default_rng(list(name.encode()))
    f = rlx.jit(SAME[name])
    for shape in ((5, 37), (3, 70)):
        a, b = (rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True) for _ in "ab")
        got, wanted = f(a, b), np.asarray(SAME[name](a, b))
        assert got.dtype == wanted.dtype
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(got, wanted, rtol=1e-6)
        else:
            np.testing.assert_array_equal(got, wanted)
    assert f.stats.compilations == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32])
def test_sums_are_int64(dtype):
    a = np.random.default_rng(3).integers(0, np.iinfo(dtype).max, (6, 50), dtype)
    total, each = rlx.jit(lambda a: (a.sum(axis=1), np.cumsum(a, axis=1)))(a)
    assert total.dtype == each.dtype == np.int64
    assert np.array_equal(total, a.sum(axis=1))
    assert np.array_equal(each, np.cumsum(a, axis=1))


def test_places_and_constants():
    table = np.arange(256.0)[::-1].copy()
    places = np.array([0, 255, 128], np.uint8)
    more = np.array([250, 251, 252], np.uint8)
    f = rlx.jit(lambda t, i: (t[i], rnp.take(t, i), i + more))
    first, second, third = f(table, places)
    assert np.array_equal(first, table[places])
    assert np.array_equal(second, table[places])
    assert third.dtype == np.uint8
    assert np.array_equal(third, places + more)


def test_what_is_not_there():
    x = np.ones(3)
    with pytest.raises(RlxError, match=r"expected an array of bool, .*uint32.*got uint16"):
        rlx.jit(lambda x: x)(x.astype(np.uint16))
    with pytest.raises(RlxError, match=r"expected one of bool, .*got uint64\n  at"):
        rlx.jit(lambda x: x.sum(dtype=np.uint64))(x)
    with pytest.raises(OverflowError):
        rlx.jit(lambda x: x + 256)(x.astype(np.uint8))
