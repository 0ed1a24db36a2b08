"""Element-wise functions of integers of both signs and of i1, and all casts, exact."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from maps import DTYPES, LEVELS, TYPES, Map, Maps
from numpy.typing import NDArray

from rlx.lowering.vmath import emit_binary, emit_cast, emit_compare, emit_unary
from rlx.lowering.vmath_int import BINARY, BINARY_UNSIGNED, UNARY, UNARY_UNSIGNED

Array = NDArray[Any]
INTEGERS = ["i8", "i16", "i32", "i64", "u8", "u32"]
ELEMENTS = ["float", "double", "half", "bfloat", *INTEGERS, "i1"]
COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _shift(a: Array, b: Array, left: bool) -> Array:
    width = 8 * a.dtype.itemsize
    inside = (b >= 0) & (b < width)
    signs = not left and a.dtype.kind == "i"
    count = np.where(inside, b, width - 1 if signs else 0).astype(b.dtype)
    shifted = a << count if left else a >> count
    return shifted if signs else np.where(inside, shifted, 0).astype(a.dtype)


MEANINGS: dict[str, Callable[..., Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "not": np.invert,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.floor_divide,  # 0 where the divisor is 0
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.mod,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": lambda a, b: _shift(a, b, left=True),
    "shr": lambda a, b: _shift(a, b, left=False),
    **COMPARISONS,
}


def map_of(kind: str, element: str) -> Map:
    signed = element[0] != "u"
    if kind in UNARY:
        return [element], element, lambda f, v: emit_unary(f, kind, v, signed)
    if kind in COMPARISONS:
        return [element] * 2, "i1", lambda f, a, b: emit_compare(f, kind, a, b, signed)
    return [element] * 2, element, lambda f, a, b: emit_binary(f, kind, a, b, signed)


@cache
def compiled(level: str, element: str) -> Maps:
    kinds = MEANINGS if element != "i1" else ["not", "and", "or", "xor", *COMPARISONS]
    return Maps(level, {kind: map_of(kind, element) for kind in kinds})


@cache
def pairs(element: str) -> tuple[Array, Array]:
    """Return every pair of bytes; of wider integers every pair of edges, and random ones."""
    dtype = DTYPES[element]
    limits, rng = np.iinfo(dtype), np.random.default_rng(3)
    if element in ("i8", "u8"):
        values = np.arange(256).astype(dtype)
    else:
        powers = [1 << n for n in range(8 * np.dtype(dtype).itemsize - 1)]
        whole = [0, *powers, *(p - 1 for p in powers), limits.max]
        whole += [3, 10, *(-v - 1 for v in whole), -3, -10]
        values = np.array(whole).astype(dtype)
    a, b = (side.ravel() for side in np.meshgrid(values, values))
    some = [rng.integers(limits.min, limits.max, 4000, dtype, endpoint=True) for _ in range(2)]
    small = rng.integers(-70, 70, 4000).astype(dtype)
    return np.concatenate([a, some[0], some[1]]), np.concatenate([b, some[1], small])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", INTEGERS)
@pytest.mark.parametrize("kind", MEANINGS)
@np.errstate(all="ignore")
def test_integers_are_exact(kind: str, element: str, level: str):
    operands = pairs(element)[: 1 if kind in UNARY else 2]
    result = compiled(level, element)(kind, *operands)
    np.testing.assert_array_equal(result, MEANINGS[kind](*operands))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["not", "and", "or", "xor", *COMPARISONS])
def test_i1(kind: str, level: str):
    a, b = (side.ravel() for side in np.meshgrid([False, True] * 9, [False, True] * 5))
    operands = (a,) if kind == "not" else (a, b)
    np.testing.assert_array_equal(compiled(level, "i1")(kind, *operands), MEANINGS[kind](*operands))


def test_every_kind_is_tested():
    from rlx.dialects.kinds import INTEGER_BINARY, INTEGER_UNARY, CompareKind

    assert {str(kind) for kind in INTEGER_UNARY} == set(UNARY)
    assert {str(kind) for kind in INTEGER_BINARY} == set(BINARY)
    assert {str(kind) for kind in CompareKind} == set(COMPARISONS)
    assert set(UNARY_UNSIGNED) == set(UNARY)
    assert set(BINARY_UNSIGNED) == set(BINARY)
    assert set(MEANINGS) == {*UNARY, *BINARY, *COMPARISONS}


# Casts. bf16 has no numpy type: its values are computed in long double, which holds all others.


def _rounded(wide: Array, digits: int, least: int, largest: float) -> Array:
    """Return numbers rounded to even to a count of digits, at least 2^least apart."""
    _, exponent = np.frexp(np.where(np.isfinite(wide), wide, 0))
    unit = np.ldexp(np.longdouble(1), np.maximum(exponent - digits, least))
    result = np.rint(wide / unit) * unit
    return np.where(np.abs(result) > largest, np.copysign(np.inf, result), result)


def wide_of(array: Array, element: str) -> Array:
    """Return the values of an array of elements as long double."""
    if element == "half":
        return array.view(np.float16).astype(np.longdouble)
    if element == "bfloat":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.longdouble)
    return array.astype(np.longdouble)


def expected_cast(array: Array, source: str, target: str) -> Array:
    """Return what a cast gives; of half and bfloat the values as long double."""
    wide = wide_of(array, source)
    if target == "i1":
        return wide != 0
    if target == "half":
        return _rounded(wide, 11, -24, 65504.0)
    if target == "bfloat":
        return _rounded(wide, 8, -133, 2.0**128 - 2.0**120)
    dtype = DTYPES[target]
    if target in ("float", "double"):
        return wide.astype(dtype)
    if source in (*INTEGERS, "i1"):
        return array.astype(dtype)  # wraps
    limits = np.iinfo(dtype)
    low, high = np.longdouble(limits.min), np.longdouble(limits.max)
    return np.trunc(np.clip(np.where(np.isnan(wide), 0, wide), low, high)).astype(dtype)


@cache
def inputs(element: str) -> Array:
    """Return random bits, and numbers at and beside every place where a cast changes."""
    dtype, rng = DTYPES[element], np.random.default_rng(7)
    size = np.dtype(dtype).itemsize
    if element == "i1":
        return np.array([False, True] * 20)
    if element in ("half", "bfloat"):
        return np.arange(1 << 16).astype(np.uint16)
    bits = rng.integers(0, 256, (20000, size), np.uint8).view(dtype)[:, 0]
    if element in INTEGERS:
        powers = np.array([1 << n for n in range(8 * size - 1)])
        odd = rng.integers(0, 1 << 12, (200, 1)) * 2 + 1
        middle = (odd << rng.integers(0, 64, (200, 60))).ravel()
        around = [middle + d for d in (-1, 0, 1)] + [powers + d for d in (-1, 0, 1)]
        return np.concatenate([bits, *(part.astype(dtype) for part in around)])
    values = 2.0 ** rng.integers(-160, 140, 20000) * rng.choice([-1, 1], 20000)
    # Halfway between two short floats, and as near to it as the type can be.
    short = values * (1 + (2 * rng.integers(0, 1 << 10, 20000) + 1) / 2**11)
    shorter = values * (1 + (2 * rng.integers(0, 1 << 7, 20000) + 1) / 2**8)
    whole = np.concatenate([2.0 ** np.arange(65), 2.0 ** np.arange(65) - 0.5, [65519.99, 65520]])
    edges = np.concatenate([[0, 0.5, np.inf, np.nan, 3.39e38, 3.4e38], whole])
    exact = np.concatenate([short, shorter, edges, -edges]).astype(dtype)
    beside = [np.nextafter(exact, dtype(np.inf)), np.nextafter(exact, dtype(-np.inf))]
    return np.concatenate([bits, exact, *beside])


@cache
def casts(level: str, lanes: int = 16) -> Maps:
    def cast_map(source: str, target: str) -> Map:
        signed, to_signed, type_ = source[0] != "u", target[0] != "u", TYPES.get(target, target)
        return [source], target, lambda f, v: emit_cast(f, v, type_, signed, to_signed)

    return Maps(level, {f"{s}_{t}": cast_map(s, t) for s in ELEMENTS for t in ELEMENTS}, lanes)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("target", ELEMENTS)
@pytest.mark.parametrize("source", ELEMENTS)
@np.errstate(all="ignore")
def test_casts_round_once_and_saturate(source: str, target: str, level: str):
    x = inputs(source)
    result = casts(level)(f"{source}_{target}", x)
    expected = expected_cast(x, source, target)
    if target in ("half", "bfloat"):
        result = wide_of(result, target)
    np.testing.assert_array_equal(result, expected)
    if expected.dtype.kind == "f":
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(result[number]), np.signbit(expected[number]))


@pytest.mark.parametrize("level", [LEVELS[0], LEVELS[-1]])
def test_a_scalar_is_cast_as_a_vector_is(level: str):
    for source in ELEMENTS:
        x = inputs(source)[::17]
        for target in ELEMENTS:
            name = f"{source}_{target}"
            vector, scalar = (casts(level, lanes)(name, x) for lanes in (16, 1))
            np.testing.assert_array_equal(scalar, vector, err_msg=name)
