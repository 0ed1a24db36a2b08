"""
Random numpy programs for `rlx.jit`: lists of instructions of small numbers, which shrink well.

An instruction is decoded against the values that there are: numpy runs while the program is
written, and what it refuses is left out. The steps that stay run on any arrays, numpy's or traced.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Instruction = tuple[int, int, int, int, int]
"""Which operation, which operands, and two numbers that it may use."""
Step = tuple[Callable[..., Any], tuple[int, ...]]

LARGE = 2.0**18
"""Exact programs stop short of numbers that f32 would round."""
SPECIAL = (0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan)


def inputs(sizes: tuple[int, int], seed: int, special: bool = False) -> list[np.ndarray]:
    """Arrays of several dtypes and ranks over two sizes: quarters of small numbers."""
    n, m = sizes
    rng = np.random.default_rng(seed)

    def quarters(*shape: int) -> np.ndarray:
        return rng.integers(-12, 13, shape) / 4

    floats = quarters(n, m).astype(np.float32)
    if special:
        floats = rng.choice(SPECIAL, (n, m)).astype(np.float32)
    return [
        floats,
        quarters(m).astype(np.float32),
        quarters(n, 1).astype(np.float32),
        quarters(n, m),
        rng.integers(-9, 10, (n, m)).astype(np.int32),
        rng.integers(-9, 10, (m,)),
        rng.integers(-9, 10, (n, m)).astype(np.int8),
        rng.random((n, m)) < 0.5,
        quarters(n, m).astype(np.float16),
        np.float32(rng.integers(-8, 9) / 4) + np.zeros((), np.float32),
    ]


Maker = Callable[[int, int], Callable[..., Any]]


def _unary(f: Callable[..., Any]) -> Maker:
    return lambda p, q: f


def _index(x: Any, p: int, q: int) -> Any:
    kinds = [
        slice(p - 3, None), slice(None, q - 3), slice(1, -1), slice(None, None, 1 + p % 3),
        slice(p % 3, None, 2), p % 2, -1 - q % 2, None, Ellipsis, slice(p - 2, q),
        slice(-p - 1, -1), slice(q, q + 2),
    ]  # fmt: skip
    return kinds[p % len(kinds)], kinds[q % len(kinds)]


def _sliced(p: int, q: int) -> Callable[..., Any]:
    def f(x: Any) -> Any:
        first, second = _index(x, p, q)
        return x[first] if x.ndim < 2 or q % 2 else x[first, second]

    return f


def _reversed(p: int, q: int) -> Callable[..., Any]:
    steps = [slice(None, None, -1), slice(None, None, -2), slice(p, None, -1), slice(-2, q % 3, -1)]
    return lambda x: x[steps[p % 4]] if q % 2 else x[..., steps[q % 4]]


def _scalar(op: Callable[..., Any]) -> Maker:
    numbers = [2, 0.5, -3, 1, True, 0, -0.25, 4]
    return lambda p, q: lambda x: op(x, numbers[p % 8]) if q % 2 else op(numbers[p % 8], x)


def _cast(p: int, q: int) -> Callable[..., Any]:
    dtypes = [np.float32, np.float64, np.int32, np.int64, np.int8, np.bool_, np.float16, np.int16]
    dtype = np.dtype(dtypes[p % len(dtypes)])

    def f(x: Any) -> Any:
        if x.dtype.kind == "f" and dtype.kind == "i":
            # What an integer can't hold is cast in no one way.
            x = np.where(np.isfinite(x), np.clip(x, -100, 100), 0)
        return x.astype(dtype)

    return f


def _reduction(name: str) -> Maker:
    def make(p: int, q: int) -> Callable[..., Any]:
        keep = q % 2 == 1
        axes = [None, 0, -1, (0,), 1]
        options = {} if name.startswith("arg") and not keep else {"keepdims": keep}
        return lambda x: getattr(np, name)(x, axis=axes[p % 4 if name.startswith("arg") else p % 5],
                                           **options)  # fmt: skip

    return make


def _join(p: int, q: int) -> Callable[..., Any]:
    return lambda x, y: np.concatenate([x, y], axis=-(q % 2) if x.ndim == 1 else q % 2)


def _stacked(p: int, q: int) -> Callable[..., Any]:
    return lambda x, y: np.stack([x, y], axis=q % 2)


def _reshape(p: int, q: int) -> Callable[..., Any]:
    return lambda x: [x.reshape(-1), x.reshape(-1, 1), x.reshape(1, -1), x.reshape((*x.shape, 1)),
                      np.expand_dims(x, q % 2)][p % 5]  # fmt: skip


def _transposed(p: int, q: int) -> Callable[..., Any]:
    return lambda x: [x.T, np.swapaxes(x, 0, -1), np.moveaxis(x, 0, -1), x[..., None]][p % 4]


def _where(p: int, q: int) -> Callable[..., Any]:
    return lambda x, y: np.where(x > (p - 3) / 4, x, y if q % 2 else p - 2)


def _gathered(p: int, q: int) -> Callable[..., Any]:
    ids = [[0], [0, -1, 0], [[0, -1], [-1, 0]], [1, 0]][p % 4]
    return lambda x: x[np.array(ids)] if q % 2 else x[..., np.array(ids)]


def _rolled(p: int, q: int) -> Callable[..., Any]:
    return lambda x: np.roll(x, p - 3, axis=q % 2)


def _repeated(p: int, q: int) -> Callable[..., Any]:
    return lambda x: np.repeat(x, 1 + p % 3, axis=0) if q % 2 else np.tile(x, (1 + p % 2, 2))


def _number(x: Any) -> Any:
    """What is NaN as 0: its sign is nobody's choice."""
    return np.where(np.isnan(x), 0, x)


EXACT: list[tuple[int, Maker]] = [
    *((2, _unary(f)) for f in (np.add, np.subtract, np.multiply, np.maximum, np.minimum)),
    *((2, _unary(f)) for f in (np.less, np.equal, np.greater_equal, np.not_equal)),
    *((2, _unary(f)) for f in (np.fmax, np.fmin, np.logical_and, np.logical_or)),
    (2, _unary(lambda x, y: np.copysign(x, _number(y)))),
    (2, _unary(np.floor_divide)), (2, _unary(np.remainder)), (2, _unary(np.fmod)),
    (2, _unary(np.bitwise_and)), (2, _unary(np.bitwise_xor)),
    *((1, _unary(f)) for f in (np.negative, np.abs, np.sign, np.floor, np.ceil, np.rint)),
    *((1, _unary(f)) for f in (np.trunc, np.logical_not, np.isnan, np.isfinite, np.isinf)),
    (1, _unary(np.square)), (1, _unary(lambda x: np.signbit(_number(x)))), (1, _unary(np.invert)),
    *((1, _scalar(f)) for f in (np.add, np.multiply, np.subtract, np.maximum, np.less)),
    *((1, _sliced),) * 5, (1, _reversed), (1, _reversed), (1, _cast), (1, _cast),
    *((1, _reduction(n)) for n in ("sum", "max", "min", "any", "all", "argmax", "argmin")),
    (1, _reduction("count_nonzero")), (2, _join), (2, _join), (2, _stacked), (1, _reshape),
    (1, _reshape), (1, _transposed), (2, _where), (2, _where), (1, _gathered), (1, _rolled),
    (1, _repeated),
]  # fmt: skip
"""Number of operands, and what makes an operation of two numbers: nothing here rounds."""

SMOOTH: list[tuple[int, Maker]] = [
    *((2, _unary(f)) for f in (np.add, np.subtract, np.multiply, np.hypot, np.arctan2)),
    (2, _unary(np.logaddexp)), (2, _unary(np.matmul)), (2, _unary(np.matmul)),
    *((1, _unary(f)) for f in (np.tanh, np.sin, np.cos, np.arctan, np.expm1, np.arcsinh)),
    (1, _unary(lambda x: np.exp(-np.abs(x)))), (1, _unary(lambda x: np.sqrt(np.abs(x) + 1))),
    (1, _unary(lambda x: np.log1p(np.abs(x)))), (1, _unary(lambda x: 1 / (np.abs(x) + 1))),
    (1, _unary(lambda x: np.cbrt(np.abs(x) + 1))), (1, _unary(lambda x: (np.abs(x) + 1) ** 0.3)),
    (1, _unary(lambda x: np.sinh(np.tanh(x)))), (1, _unary(lambda x: np.cosh(np.tanh(x)))),
    (1, _unary(lambda x: np.arcsin(np.sin(x) * 0.5))), (1, _unary(lambda x: x / x.shape[0])),
    (1, _unary(lambda x: np.einsum("ij,kj->ik", x, x))),
    *((1, _scalar(f)) for f in (np.add, np.multiply, np.subtract)),
    *((1, _sliced),) * 4, (1, _reversed),
    *((1, _reduction(n)) for n in ("sum", "mean", "var", "std", "max")),
    (2, _join), (2, _stacked), (1, _reshape), (1, _transposed), (1, _gathered), (1, _repeated),
]  # fmt: skip


@dataclass
class Program:
    """A program, written for arrays: `run` repeats it on others."""

    steps: list[Step] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    count: int = 0

    def run(self, *values: Any) -> tuple[Any, ...]:
        found = list(values)
        for f, operands in self.steps:
            found.append(f(*(found[i] for i in operands)))
        return tuple(found[i] for i in self.results)


def write(
    instructions: Sequence[Instruction], values: Sequence[np.ndarray], exact: bool
) -> Program:
    """Decode instructions for given arrays; every one that numpy takes becomes a step."""
    program = Program()
    found: list[Any] = list(values)
    table = EXACT if exact else SMOOTH
    for op, a, b, p, q in instructions:
        arity, make = table[op % len(table)]
        # Operands: recent values more often than the inputs.
        operands = tuple(
            (len(found) - 1 - i if i % 3 == 0 and len(found) > len(values) else i) % len(found)
            for i in (a, b)[:arity]
        )
        f = make(p, q)
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Of no elements there is no mean.
                made = f(*(found[i] for i in operands))
        except (TypeError, ValueError, IndexError, OverflowError):
            continue
        if not _kept(made, exact):
            continue
        program.steps.append((f, operands))
        found.append(np.asarray(made))
    new = range(len(values), len(found))
    program.results = list(new)[-4:] or [0]
    return program


def _kept(made: Any, exact: bool) -> bool:
    array = np.asarray(made)
    if array.dtype.kind not in "bif" or array.size > 4000 or array.ndim > 4 or array.ndim == 0:
        return array.ndim == 0 and array.dtype.kind in "bif"
    with np.errstate(all="ignore"):
        finite = np.where(np.isfinite(array), array, 0)
        limit = LARGE if array.dtype != np.float16 else 500
        return not exact or not array.size or float(np.abs(finite.astype(float)).max()) < limit
