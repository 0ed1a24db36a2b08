"""Functions of arrays that were called before: the calls that run without a check in Python."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import functions
from rlx.errors import RlxError
from rlx.functions import CompiledFunction

TABLE = np.arange(160, dtype=np.float32).reshape(10, 16)
ROWS = "tensor<?x16xf32, #hir.dims<n, _>>"
TEXT = f"""
builtin.module @rows attributes {{rlx.dims = #hir.dim_table<n = 0 to 4096>}} {{
  hir.weight @t "t" : tensor<10x16xf32>
  func.func @main(%ids: tensor<?xi32, #hir.dims<n>> {{rlx.name = "ids"}},
                  %x: {ROWS} {{rlx.name = "x"}})
      -> ({ROWS} {{rlx.name = "y"}}) {{
    %t = hir.load_weight @t : tensor<10x16xf32>
    %e = hir.embedding %ids, %t : tensor<?xi32, #hir.dims<n>>, tensor<10x16xf32> -> {ROWS}
    %y = mir.binary add %e, %x : {ROWS}
    func.return %y : {ROWS}
  }}
}}
"""


def rows(threads: int | None = None) -> CompiledFunction:
    return rlx.compile(TEXT, {"t": TABLE}, threads)


def inputs(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 10, n).astype(np.int32), rng.standard_normal((n, 16), np.float32)


def check(y: Any, ids: np.ndarray, x: np.ndarray) -> None:
    np.testing.assert_array_equal(y, TABLE[ids] + x)


def warm(n: int = 6) -> CompiledFunction:
    f = rows()
    check(f(*inputs(n)), *inputs(n))
    return f


def test_later_calls_are_not_checked_in_python(monkeypatch: pytest.MonkeyPatch):
    """Each of these ways would otherwise pass through `_checked`, and cost ten times as much."""
    f = rows()
    calls = [inputs(n, n) for n in (6, 1, 400)]
    for ids, x in calls:
        f(ids, x)
    monkeypatch.setattr(CompiledFunction, "_checked", None)
    out = np.empty((6, 16), np.float32)
    for ids, x in calls:
        check(f(ids, x), ids, x)
        check(f(ids, x=x), ids, x)
        check(f(ids=ids, x=x), ids, x)
    ids, x = calls[0]
    assert f(ids, x, out=[out]) is out
    assert f(ids, x, out=(out,)) is out
    check(out, ids, x)


def test_an_index_out_of_its_table_is_refused_at_every_call():
    f = warm()
    ids, x = inputs(6)
    for wrong in (10, -1):
        ids[3] = wrong
        with pytest.raises(RlxError, match=f"'ids': expected indices from 0 to 9, got {wrong}"):
            f(ids, x)
        with pytest.raises(RlxError, match=f"got {wrong}"):
            f(ids, x, out=[np.empty_like(x)])
    ids[3] = 9
    check(f(ids, x), ids, x)


def test_arrays_that_are_not_as_those_before_are_taken_as_at_first():
    f = warm()
    ids, x = inputs(6)
    wide, twice = np.zeros((6, 32), np.float32), np.repeat(ids, 2)
    wide[:, ::2] = x
    unaligned = np.zeros(6 * 16 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(6, 16)
    unaligned[:] = x
    frozen = x.copy()
    frozen.flags.writeable = False

    class Sub(np.ndarray):
        pass

    for other in (wide[:, ::2], np.asfortranarray(x), unaligned, frozen, x.view(Sub)):
        check(f(twice[::2], other), ids, x)
        check(f(x=other, ids=ids), ids, x)
    for n in (0, 1, 5, 4096, 6):
        check(f(*inputs(n)), *inputs(n))
    check(f(*inputs(6), dims={"n": 6}), *inputs(6))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids, x: (ids.astype(np.int64), x), r"'ids': expected \[n\] int32"),
        (lambda ids, x: (ids.astype(object), x), r"'ids': expected \[n\] int32"),
        (lambda ids, x: (ids, x.astype(np.float64)), "'x': expected .* nothing is converted"),
        (lambda ids, x: (ids, x.astype(">f4")), "nothing is converted"),
        (lambda ids, x: (ids, x[:5]), "dimension 'n' is 6 in input 'ids', and 5 in input 'x'"),
        (lambda ids, x: (ids, x[:, :15]), "'x': expected"),
        (lambda ids, x: (ids, x[None]), "'x': expected"),
        (lambda ids, x: (ids, x.tolist()), "'x': expected a numpy array, got list"),
        (lambda ids, x: (x, ids), "'ids': expected"),
        (lambda ids, x: (ids,), "expected the inputs ids, x"),
        (lambda ids, x: (ids, x, x), "expected the inputs ids, x"),
    ],
)
def test_what_does_not_fit_is_refused_after_calls_that_did(change: Any, message: str):
    f = warm()
    with pytest.raises(RlxError, match=message):
        f(*change(*inputs(6)))
    check(f(*inputs(6)), *inputs(6))


def test_sizes_that_are_no_integers_are_refused():
    f = warm()
    for size in (6.0, "6", None, np.array([6, 6])):
        with pytest.raises(RlxError, match="rows: dims: expected integers, got"):
            f(*inputs(6), dims={"n": size})
    check(f(*inputs(6), dims={"n": np.int64(6)}), *inputs(6))
    for other in (np.array([6, 6]), np.zeros(0), 0, "", [], [6]):
        with pytest.raises(RlxError, match="dims: expected sizes by name, got"):
            f(*inputs(6), dims=other)
    check(f(*inputs(6), dims={}), *inputs(6))


def test_what_a_subclass_says_of_itself_is_not_believed():
    """Its extremes, which say that indices are in their table, its shape, and its dtype."""
    f = warm()
    ids, x = inputs(6)

    class Extremes(np.ndarray):
        def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
            return np.int32(0)

    class Shape(np.ndarray):
        shape = property(lambda _: (6,))

    class Type(np.ndarray):
        dtype = property(lambda _: np.dtype(np.int32))

    hidden = np.ma.array(np.full(6, 99, np.int32), mask=True)
    for wrong, message in (
        (np.full(6, 99, np.int32).view(Extremes), "expected indices from 0 to 9, got 99"),
        (hidden, "expected indices from 0 to 9, got 99"),
        (np.zeros(2, np.int32).view(Shape), "dimension 'n' is 2 in input 'ids', and 6"),
        (np.zeros(6, np.int64).view(Type), r"'ids': expected \[n\] int32, got \[6\] int64"),
    ):
        with pytest.raises(RlxError, match=message):
            f(wrong, x)
    with pytest.raises(RlxError, match=r"out 'y': expected .*float64"):
        f(ids, x, out=[np.empty((6, 16)).view(type("Float", (np.ndarray,), {"dtype": x.dtype}))])
    check(f(ids.view(Extremes), x.view(np.matrix)), ids, x)


def test_results_go_where_they_are_wanted():
    f = warm()
    ids, x = inputs(6)
    memory = np.zeros(2 * x.size, np.float32)
    offset = memory[1 : 1 + x.size].reshape(x.shape)

    class Sub(np.ndarray):
        pass

    for out in (offset, np.empty_like(x).view(Sub)):
        out[:] = np.nan
        assert f(ids, x, out=[out]) is out
        check(np.asarray(out), ids, x)
    assert memory[0] == 0
    assert not memory[1 + x.size :].any()
    for out in (x, np.empty((12, 16), np.float32)[::2], np.empty_like(x, np.float64), ids):
        with pytest.raises(RlxError, match="out 'y': expected"):
            f(ids, x, out=[out])
    # An array of one row more, of which the input is a part.
    both = np.zeros((7, 16), np.float32)
    both[1:] = x
    with pytest.raises(RlxError, match="expected memory of its own"):
        f(ids, both[1:], out=[both[:6]])
    with pytest.raises(RlxError, match="expected 1 arrays"):
        f(ids, x, out=[])
    own = np.empty_like(x)
    for out in (own, own[None], deque([own]), iter([own]), {"y": own}, 5):
        with pytest.raises(RlxError, match="out: expected a list or tuple of arrays, got"):
            f(ids, x, out=out)
    np.testing.assert_array_equal(both[1:], x)


@pytest.mark.parametrize("n", [2, 300])
def test_results_are_nobody_elses(n: int):
    f = warm()
    kept = [f(*inputs(n, i)) for i in range(6)]
    views = [f(*inputs(n, i))[:1] for i in range(6)]
    for i in range(20):
        f(*inputs(n, 100 + i))
    for i, (y, view) in enumerate(zip(kept, views, strict=True)):
        ids, x = inputs(n, i)
        check(y, ids, x)
        check(view, ids[:1], x[:1])


def test_what_a_function_remembers_is_bounded():
    f = rows()
    for n in (*range(3 * functions.KEPT_CALLS), 5):
        check(f(*inputs(n)), *inputs(n))
    assert len(f._calls) <= functions.KEPT_CALLS


@pytest.mark.parametrize("threads", [1, None])
def test_threads_that_call_at_once_get_their_own_results(threads: int | None):
    f = rows(threads)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(60):
                n = (5, 3000, 40)[(seed + i) % 3]
                ids, x = inputs(n, 100 * seed + i)
                check(f(ids, x), ids, x)
        except BaseException as e:  # It is shown below.
            failures.append(e)

    pool = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in pool:
        t.start()
    for t in pool:
        t.join()
    assert failures == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("within", [False, True])
def test_a_forked_child_calls_on(within: bool):
    f = warm(4096)
    check(f(*inputs(5)), *inputs(5))
    lock = f._program.held()
    if within:
        # As if another thread of the parent were in a call.
        lock.__enter__()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            for n in (5, 4096, 7):
                check(f(*inputs(n, 1)), *inputs(n, 1))
            f.reset()
            os._exit(0)
        except BaseException:
            os._exit(1)
    if within:
        lock.__exit__(None, None, None)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for n in (5, 4096):
        check(f(*inputs(n, 2)), *inputs(n, 2))


@pytest.mark.parametrize("module", ["\ud800", b"builtin.module {}", None])
def test_what_is_no_text(module: Any):
    with pytest.raises(RlxError, match=r"^module: expected IR as "):
        rlx.compile(module)
