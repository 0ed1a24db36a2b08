"""Random expressions, traced and compiled, beside numpy."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from jit_programs import Instruction, Program, inputs, write
from kernels import Fenced

import rlx

SHARDS = 8 if os.environ.get("RLX_FUZZ") == "full" else 2
FULL, SAMPLE = 313, 7
SIZES = [(3, 5), (2, 2), (4, 1), (1, 6), (5, 17), (33, 3), (2, 64), (0, 3), (3, 0)]
number = st.integers(0, 11)
instructions = st.lists(
    st.tuples(st.integers(0, 70), number, number, number, number), min_size=1, max_size=14
)


def compare(got: Sequence[Any], want: Sequence[Any], exact: bool, scale: Sequence[float]) -> None:
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        w = np.asarray(w)
        assert g.dtype == w.dtype, f"result {i}: {g.dtype} instead of {w.dtype}"
        assert g.shape == w.shape, f"result {i}: {g.shape} instead of {w.shape}"
        if exact:
            np.testing.assert_array_equal(g, w, err_msg=f"result {i}")
        else:
            np.testing.assert_allclose(
                g.astype(np.float64), w.astype(np.float64), rtol=0, atol=scale[i], err_msg=f"{i}"
            )


def tolerance(program: Program, values: Sequence[np.ndarray]) -> list[float]:
    """What rounding in the narrower dtypes does to the results, measured against float64."""
    wide = [v.astype(np.float64) if v.dtype.kind == "f" else v for v in values]
    # What is rounded may be right by chance; next to it, it is not.
    beside = [np.nextafter(v, v + 1) if v.dtype in (np.float32, np.float16) else v for v in values]
    exact, narrow, moved = (program.run(*given) for given in (wide, values, beside))
    found: list[float] = []
    for e, n, m in zip(exact, narrow, moved, strict=True):
        e, n = np.asarray(e, np.float64), np.asarray(n)
        eps = np.finfo(n.dtype).eps if n.dtype.kind == "f" else np.finfo(np.float32).eps
        apart = max(np.abs(e - np.asarray(x, np.float64)).max(initial=0) for x in (n, m))
        size = np.abs(e).max(initial=1)
        found.append(float(20 * apart + 200 * eps * size))
    return found


def check(program: Program, seed: int, sizes: Sequence[tuple[int, int]], exact: bool) -> None:
    """
    Run a program at several sizes; what numpy refuses, the compiled function refuses too.

    It may read nothing behind its arguments.
    """
    jitted = rlx.jit(program.run)
    for size in sizes:
        values = inputs(size, seed, special=exact and seed % 4 == 0)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                want = program.run(*values)
            except (ValueError, IndexError) as e:
                with pytest.raises(type(e)):
                    jitted(*values)
                continue
            scale = [] if exact else tolerance(program, values)
        if not all(np.isfinite(scale)) or max(scale, default=0) > 1e3:
            continue
        fenced = [Fenced(value) for value in values]
        compare(jitted(*(f.array for f in fenced)), want, exact, scale)
    assert jitted.stats.compilations <= len(sizes)


Size = tuple[int, int]


def once(code: list[Instruction], seed: int, first: Size, second: Size, exact: bool) -> None:
    """Check the program of some instructions, written at the first size, at both."""
    values = inputs(first, seed, special=exact and seed % 4 == 0)
    check(write(code, values, exact), seed, [first, second], exact)


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "smooth"])
def test_random_expressions(
    shard: int, exact: bool, fuzz_count: Callable[[int, int], int],
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))

    @settings(
        max_examples=fuzz_count(FULL, SAMPLE), deadline=None, database=None, derandomize=False,
        suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    @given(instructions, st.integers(0, 2**16), st.sampled_from(SIZES), st.sampled_from(SIZES))
    def run(code: list[Instruction], seed: int, first: Size, second: Size):
        case = f"once({code}, {seed}, {first}, {second}, {exact})"
        note(f"once more: cd tests/unit && python -c 'from test_jit_fuzz import once; {case}'")
        once(code, seed, first, second, exact)

    run()


@pytest.mark.parametrize("size", [(5, 17), (16, 17), (33, 40), (5, 3)])
def test_rows_that_are_turned_are_read_to_their_end(size: tuple[int, int]):
    """Sixteen numbers are read at once only where a whole tile of the result is written."""
    m, n = size
    x = Fenced(np.arange(n, dtype=np.float32))
    y = Fenced(np.arange(m, dtype=np.float32)[:, None])
    result = rlx.jit(lambda x, y: (x * y).T)(x.array, y.array)
    np.testing.assert_array_equal(result, (x.array * y.array).T)
