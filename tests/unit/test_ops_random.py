"""Random numbers: the published words, distributions, and what a number depends on."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from by_hand import made, meaning
from kernels import levels
from xdsl.dialects.builtin import i32, i64
from xdsl.utils.exceptions import VerifyException

from rlx.dialects.common import tensor
from rlx.flow.source import MapWeights
from rlx.functions import Built, CompiledFunction, build
from rlx.lowering.target import Target
from rlx.ops.random import NormalOp, UniformOp, philox

ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
KNOWN = [
    ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (*PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]
"""Counter, key and words: the vectors that Random123, its authors' library, publishes."""
KEY = -7190245013423219


@cache
def compiled(name: str, shape: tuple[int, ...], element: str, level: str) -> Built:
    dims = "".join(f"{d}x" for d in shape)
    text = f"""builtin.module {{
      func.func @main(%s: tensor<2xi64> {{rlx.name = "s"}}) -> (
          tensor<{dims}{element}> {{rlx.name = "y"}}) {{
        %y = random.{name}(%s) shape {list(shape)} element {element}
          : (tensor<2xi64>) -> tensor<{dims}{element}>
        func.return %y : tensor<{dims}{element}>
      }}
    }}"""
    return build(text, Target.named(level))


def drawing(
    name: str, shape: tuple[int, ...], element: str, level: str = "host", threads: int = 1
) -> CompiledFunction:
    return CompiledFunction(compiled(name, shape, element, level), MapWeights({}), threads)


def seed(key: int, offset: int) -> np.ndarray:
    return np.array([key, offset], np.int64)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_published_words(counter: tuple, key: tuple, words: tuple):
    assert philox(np.array(counter, np.uint64), key).tolist() == list(words)


@pytest.mark.parametrize("level", levels())
def test_uniform_numbers_are_the_published_words(level: str):
    words = np.array(KNOWN[0][2])
    want = (words >> 8) / 2.0**24
    assert meaning(UniformOp, seed(0, 0), shape=(4,)).tolist() == want.tolist()
    assert drawing("uniform", (4,), "f32", level)(seed(0, 0)).tolist() == want.tolist()
    low, high, more, most = (int(w) for w in words)
    doubles = [(w >> 11) / 2.0**53 for w in (high << 32 | low, most << 32 | more)]
    assert drawing("uniform", (2,), "f64", level)(seed(0, 0)).tolist() == doubles


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("name", ["uniform", "normal"])
def test_a_number_is_a_function_of_its_key_and_place(name: str, element: str):
    """Whatever the offset, the shape, the threads; the places of a long run show it all."""
    whole = drawing(name, (50, 20), element)(seed(KEY, 0)).reshape(-1)
    for threads in (1, 2):
        for count in (1, 15, 64, 200):
            f = drawing(name, (count,), element, threads=threads)
            for offset in (0, 1, 3, 30, 63, 64, 129, 799):
                got = f(seed(KEY, offset))
                np.testing.assert_array_equal(got, whole[offset : offset + count])
    empty = drawing(name, (3, 0, 2), element)(seed(KEY, 5))
    assert empty.shape == (3, 0, 2)
    scalar = drawing(name, (), element)(seed(KEY, 77))
    assert scalar == whole[77]


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("element", ["f32", "f64"])
def test_numbers_past_any_offset(level: str, element: str):
    """Offsets have no sign: the last ones go on where 64 bits end."""
    for name, op in (("uniform", UniformOp), ("normal", NormalOp)):
        f = drawing(name, (300,), element, level)
        for offset in (2**34 - 7, 2**62, 2**63 - 100, -(2**63), -3):
            want = meaning(op, seed(KEY, offset), shape=(300,), element=element)
            np.testing.assert_allclose(f(seed(KEY, offset)), want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("element", ["f32", "f64"])
def test_how_the_numbers_are_distributed(element: str):
    n = 1 << 20
    for key in (0, 1, KEY):
        u = drawing("uniform", (n,), element)(seed(key, 0)).astype(np.float64)
        assert 0 <= u.min() < 1e-4
        assert 1 - 1e-4 < u.max() < 1
        counts = np.histogram(u, 64, (0, 1))[0]
        # Chi-squared of 63 degrees of freedom: 130 is exceeded once in a million.
        assert np.square(counts - n / 64).sum() / (n / 64) < 130
        z = drawing("normal", (n,), element)(seed(key, 0)).astype(np.float64)
        moments = [np.mean(z**k) for k in (1, 2, 3, 4)]
        np.testing.assert_allclose(moments, [0, 1, 0, 3], atol=6 * np.sqrt(96 / n))
        assert abs(np.mean(z[::2] * z[1::2])) < 6 / np.sqrt(n / 2)
        assert 4.5 < np.abs(z).max() < 9
        assert np.isfinite(z).all()


def test_other_keys_give_other_numbers():
    f = drawing("uniform", (64,), "f32")
    rows = np.stack([f(seed(key, 0)) for key in (0, 1, 2**32, -1, KEY)])
    assert len(np.unique(rows)) > 300


def test_what_is_refused():
    for types in ([], [tensor([2], i32)], [tensor([3], i64)], [tensor([2], i64)] * 2):
        with pytest.raises(VerifyException, match="a key and an offset, tensor<2xi64>"):
            made(UniformOp, types, shape=(3,))
    with pytest.raises(VerifyException, match="sizes as `shape`"):
        made(NormalOp, [tensor([2], i64)], shape=(3, -1))
    with pytest.raises(VerifyException, match="element: expected one of f32, f64"):
        made(NormalOp, [tensor([2], i64)], element="f16")
