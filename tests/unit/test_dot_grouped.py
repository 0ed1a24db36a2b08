"""`contraction.grouped_matmul` at every instruction-set level against float64 numpy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from bodies import Compiled, block_of, typed
from kernels import levels, nmse
from xdsl.utils.exceptions import VerifyException

from rlx.dialects.reductions import DotOp
from rlx.lowering.dot import emit_dot
from rlx.lowering.dot_grouped import emit
from rlx.ops.contraction import GroupedMatmulOp

LEVELS = levels()


@cache
def grouped(level: str, dtype: type, ids: type) -> Compiled:
    """Return a kernel whose dimensions are all arguments."""

    def build(args):
        op = GroupedMatmulOp(*args)
        return [op], op.res

    types = [typed(dtype, "m", "k"), typed(dtype, "e", "k", "n"), typed(ids, "m")]
    return Compiled(level, block_of(types, build), emit, ("m", "k", "n", "e"))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("dtype", "ids"), [(np.float32, np.int32), (np.float64, np.int64)])
def test_rows_by_their_matrices(level: str, dtype: type, ids: type):
    kernel, rng = grouped(level, dtype, ids), np.random.default_rng(1)
    sizes = [
        (0, 3, 5, 2), (1, 7, 33, 4), (8, 300, 70, 8), (9, 1, 1, 3), (64, 5, 17, 3),
        (300, 40, 600, 2), (5, 0, 9, 2), (6, 4, 20, 0), (100, 33, 64, 100),
    ]  # fmt: skip
    for m, k, n, e in sizes:
        x, w = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (e, k, n)))
        chosen = rng.integers(-2, e + 2, m).astype(ids)
        expected = np.zeros((m, n))
        for i, expert in enumerate(np.clip(chosen, 0, e - 1) if e else ()):
            expected[i] = x[i].astype(np.float64) @ w[expert]
        arrays = [x, w, chosen]
        (one,) = kernel(arrays, 1, 0, m=m, k=k, n=n, e=e)
        (three,) = kernel(arrays, 3, 8, m=m, k=k, n=n, e=e)
        assert one.shape == expected.shape
        assert nmse(one, expected) <= 1e-12
        np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize("level", LEVELS)
def test_an_element_is_that_of_a_product(level: str):
    """To the bit, however many rows have the same matrix."""
    rng = np.random.default_rng(2)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((150, 301), (3, 301, 70)))
    ids = np.where(np.arange(150) == 7, 2, rng.integers(0, 2, 150)).astype(np.int32)
    (result,) = grouped(level, np.float32, np.int32)([x, w, ids], 1, 0, m=150, k=301, n=70, e=3)
    types = [typed(np.float32, *s) for s in (x.shape, w.shape[1:])]
    dot = Compiled(level, block_of(types, lambda a: ([d := DotOp(*a)], [d.result])), emit_dot)
    for expert in range(3):
        own = ids == expert
        np.testing.assert_array_equal(result[own], dot([x, w[expert]])[0][own])


def test_types_that_do_not_fit():
    x, w, ids = typed(np.float32, "m", 4), typed(np.float32, 3, 4, 5), typed(np.int32, "m")
    for types in (
        (x, w, typed(np.int32, "n")),
        (x, typed(np.float64, 3, 4, 5), ids),
        (x, typed(np.float32, 3, 5, 5), ids),
        (x, w, typed(np.float32, "m")),
    ):
        with pytest.raises(VerifyException, match="grouped_matmul"):
            block_of(types, lambda a: ([op := GroupedMatmulOp(*a)], op.res))
