"""Native calls with arrays: what is taken as it is, what is refused, and who waits for whom."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest

from rlx.functions import Built, build
from rlx.lowering import enter
from rlx.lowering.target import Target
from rlx.runtime import calls
from rlx.runtime.calls import Argument, Call, shared_team
from rlx.runtime.memory import Segment
from rlx.runtime.program import Program
from rlx.runtime.threads import native

T, S = "tensor<?x?xf32, #hir.dims<n, m>>", "tensor<f32>"
M = "tensor<?x?xf32, #hir.dims<m, m>>"
# Two products, so that a buffer without a bound lies between two kernels.
TEXT = f"""
builtin.module attributes {{rlx.dims = #hir.dim_table<n = 0 to any, m = 0 to any>}} {{
  func.func @main(%x: {T} {{rlx.name = "x"}}, %w: {M} {{rlx.name = "w"}},
                  %s: {S} {{rlx.name = "s"}}) -> ({T} {{rlx.name = "y"}}, {T} {{rlx.name = "z"}}) {{
    %a = mir.dot %x, %w : {T}, {M} -> {T}
    %b = mir.dot %a, %w : {T}, {M} -> {T}
    %t = mir.broadcast %s : {S} -> {T}
    %z = mir.binary mul %x, %t : {T}
    func.return %b, %z : {T}, {T}
  }}
}}
"""
F32 = np.dtype(np.float32)


@cache
def built() -> Built:
    return build(TEXT, Target.host())


def program(threads: int | None = None) -> Program:
    b = built()
    made = Program(b.manifest, b.code, shared_team(threads), Segment(64), poison=True)
    made.start(Segment(64))
    return made


def prepared(p: Program, n: int, m: int) -> Call:
    shapes = [Argument(F32, (n, m)), Argument(F32, (m, m)), Argument(F32, number=True)]
    return Call(p, shapes, p.manifest.bind({"n": n, "m": m}))


def inputs(n: int, m: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return tuple(rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((n, m), (m, m)))


def run(call: Call, *args: object, outs: tuple[np.ndarray, ...] | None = None):
    outs = call.results() if outs is None else outs
    status = call.enter(call.address, args, outs, call.wait)
    results = call.again(status, args, outs) if status else outs
    assert results is not None
    return results


def check(outs: tuple[np.ndarray, ...], x: np.ndarray, w: np.ndarray, s: float) -> None:
    wide = w.astype(np.float64)
    np.testing.assert_allclose(outs[0], x @ wide @ wide, rtol=1e-4, atol=1e-5 * len(w))
    np.testing.assert_array_equal(outs[1], x * np.float32(s))


@pytest.mark.parametrize("threads", [1, None])
def test_calls_of_several_shapes_take_turns_in_one_program(threads: int | None):
    p = program(threads)
    shapes = [(3, 5), (200, 150), (1, 1), (0, 4), (64, 300)]
    made = {shape: prepared(p, *shape) for shape in shapes}
    assert (made[200, 150].team is None) == (threads == 1 or len(os.sched_getaffinity(0)) == 1)
    assert made[3, 5].team is None
    for _ in range(2):
        for shape, call in made.items():
            x, w = inputs(*shape)
            check(run(call, x, w, 0.5), x, w, 0.5)


def test_what_is_not_as_prepared_is_refused_and_nothing_is_written():
    p = program(1)
    call = prepared(p, 4, 6)
    x, w = inputs(4, 6)
    y, z = (np.full((4, 6), 7, np.float32) for _ in range(2))
    strided, wide = np.zeros((4, 12), np.float32)[:, ::2], x.astype(np.float64)
    bytes_ = np.zeros(4 * 6 * 4 + 1, np.uint8)
    misaligned = bytes_[1:].view(np.float32).reshape(4, 6)
    frozen = np.zeros((4, 6), np.float32)
    frozen.flags.writeable = False

    class Sub(np.ndarray):
        pass

    for args, outs in (
        ((x, w), (y, z)),
        ((x, w, 1.0, 2.0), (y, z)),
        ((x, w, 1), (y, z)),
        ((x, w, np.float32(1)), (y, z)),
        ((x, w, None), (y, z)),
        ((w, x, 1.0), (y, z)),
        ((wide, w, 1.0), (y, z)),
        ((strided, w, 1.0), (y, z)),
        ((misaligned, w, 1.0), (y, z)),
        ((x.astype(">f4"), w, 1.0), (y, z)),
        ((x[:3], w, 1.0), (y, z)),
        ((x[0], w, 1.0), (y, z)),
        ((x.view(Sub), w, 1.0), (y, z)),
        ((x.tolist(), w, 1.0), (y, z)),
        ((x, w, 1.0), (y,)),
        ((x, w, 1.0), (frozen, z)),
        ((x, w, 1.0), (wide, z)),
        ((x, w, 1.0), (y, y)),
        ((x, w, 1.0), (x, z)),
        ((x, w, 1.0), (y, x)),
        ((x, w, 1.0), (w[:4], z)),
    ):
        assert call.enter(call.address, args, outs, 0) == enter.OTHER
    assert (y == 7).all()
    assert (z == 7).all()
    check(run(call, x, w, 1.0, outs=(y, z)), x, w, 1.0)


def test_results_are_given_out_again_only_when_nobody_has_them():
    call = prepared(program(1), 40, 40)
    x, w = inputs(40, 40)
    first = run(call, x, w, 1.0)
    places = {a.ctypes.data for a in first}
    kept = first[1]
    copy = kept.copy()
    del first
    second = run(call, x, w, 2.0)
    assert places.isdisjoint(a.ctypes.data for a in second)
    np.testing.assert_array_equal(kept, copy)
    part = second[0][3:5]
    before = part.copy()
    del second, kept
    third = run(call, x, w, 3.0)
    np.testing.assert_array_equal(part, before)
    assert {a.ctypes.data for a in third} == places
    assert all(a.ctypes.data % 64 == 0 for a in third)


def test_a_result_may_be_the_next_argument():
    call = prepared(program(1), 20, 20)
    x, w = inputs(20, 20)
    y = run(call, x, w, 0.5)[1]
    for _ in range(6):
        y = run(call, y, w, 0.5)[1]
    np.testing.assert_array_equal(y, x * np.float32(0.5**7))


def test_threads_that_call_one_program_at_once_get_their_own_results():
    p = program()
    small, large = prepared(p, 8, 8), prepared(p, 300, 128)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(20):
                call, shape = (small, (8, 8)) if (seed + i) % 2 else (large, (300, 128))
                x, w = inputs(*shape, seed=seed * 100 + i)
                outs = tuple(np.empty(shape, np.float32) for _ in range(2))
                check(run(call, x, w, float(seed), outs=outs), x, w, float(seed))
        except BaseException as e:  # It is shown below.
            failures.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_calls_what_its_parent_prepared():
    p = program()
    call = prepared(p, 300, 128)
    x, w = inputs(300, 128)
    check(run(call, x, w, 2.0), x, w, 2.0)
    with p.held():
        # As if another thread of the parent were in the program.
        pid = os.fork()
        if pid == 0:
            try:
                check(run(call, x, w, 3.0), x, w, 3.0)
                os._exit(0)
            except BaseException:
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    check(run(call, x, w, 4.0), x, w, 4.0)


def test_results_that_a_user_gave_another_shape_are_not_given_out_again():
    call = prepared(program(1), 40, 40)
    x, w = inputs(40, 40)
    for change in ("shape", "dtype", "flag"):
        kept = [run(call, x, w, 1.0) for _ in range(2)]
        for y, _ in kept:
            if change == "shape":
                y.shape = (1600,)
            elif change == "dtype":
                y.dtype = np.int32
            else:
                y.flags.writeable = False
        for outs in kept:
            assert call.enter(call.address, (x, w, 1.0), outs, 0) == enter.OTHER
            assert call.again(enter.OTHER, (x, w, 1.0), outs, given=True) is None
        del kept, outs, y
        for _ in range(3):
            check(run(call, x, w, 2.0), x, w, 2.0)


def test_arrays_without_elements_share_no_memory():
    p = program(1)
    call = prepared(p, 0, 4)
    w = inputs(0, 4)[1]
    outs = w[2:2], w[1:1]
    assert run(call, w[3:3], w, 1.0, outs=outs) is outs


def test_what_takes_long_lets_other_threads_run(monkeypatch: pytest.MonkeyPatch):
    # All of this is of programs that any stack has room for.
    monkeypatch.setattr(calls, "guarded", lambda enter, _: enter)
    p = program(1)
    small, large = prepared(p, 3, 5), prepared(p, 200, 150)
    assert (small.enter, small.wait) == (native().enter_at_once, 0)
    # Alone, as the team is.
    assert large.team is None
    assert (large.enter, large.wait) == (native().enter, 1)
    loop = """
    builtin.module {
      func.func @main(%x: tensor<f32> {rlx.name = "x"}) -> (tensor<f32> {rlx.name = "y"}) {
        %ten = mir.constant dense<1.000000e+01> : tensor<f32>
        %y = mir.while (%x) {
        ^bb0(%a: tensor<f32>):
          %c = mir.compare lt %a, %ten : tensor<f32> -> tensor<i1>
          mir.yield %c : tensor<i1>
        } do {
        ^bb0(%a: tensor<f32>):
          %b = mir.binary add %a, %a : tensor<f32>
          mir.yield %b : tensor<f32>
        } : (tensor<f32>) -> (tensor<f32>)
        func.return %y : tensor<f32>
      }
    }
    """
    b = build(loop, Target.host())
    assert b.manifest.open_ended
    assert not built().manifest.open_ended
    endless = Program(b.manifest, b.code, shared_team(1), Segment(64))
    endless.start(Segment(64))
    call = Call(endless, [Argument(F32)], {})
    assert (call.enter, call.wait) == (native().enter, 1)
    assert run(call, np.array(3, np.float32))[0] == 12


STEP = """
builtin.module attributes {rlx.dims = #hir.dim_table<past = 0 to 9, n = 1 to 4>} {
  func.func @main(%x: tensor<4x16xf32> {rlx.name = "x"})
      -> (tensor<4x16xf32> {rlx.name = "y"}, tensor<?x16xf32, #hir.dims<n, _>> {rlx.name = "z"}) {
    %cos, %sin = hir.rope_table base 1.0e+04 : tensor<16x16xf32>, tensor<16x16xf32>
    %y = hir.rope %x, %cos, %sin start "past" head_dim 16
        : tensor<4x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>
    %z = hir.last_rows %y : tensor<4x16xf32> -> tensor<?x16xf32, #hir.dims<n, _>>
    func.return %y, %z : tensor<4x16xf32>, tensor<?x16xf32, #hir.dims<n, _>>
  }
}
"""


def test_a_call_is_made_of_another_one_for_sizes_that_no_shape_tells():
    b = build(STEP, Target.host())
    p = Program(b.manifest, b.code, shared_team(1), Segment(64), poison=True)
    p.start(Segment(64))
    x = np.random.default_rng(5).standard_normal((4, 16)).astype(np.float32)

    def fresh(past: int, n: int) -> Call:
        return Call(p, [Argument(F32, x.shape)], b.manifest.bind({"past": past, "n": n}))

    first = fresh(1, 2)
    other = first.resized(b.manifest.bind({"past": 7, "n": 2}))
    assert other is not None
    assert first.resized(b.manifest.bind({"past": 1, "n": 3})) is None
    for call, past in ((first, 1), (other, 7), (first, 1)):
        wanted = tuple(a.copy() for a in run(fresh(past, 2), x))
        for got, want in zip(run(call, x), wanted, strict=True):
            np.testing.assert_array_equal(got, want)
    place = run(first, x)[0].ctypes.data
    assert run(other, x)[0].ctypes.data == place


ROWS, SUMS = "tensor<?x?xf32, #hir.dims<n, m>>", "tensor<?xf32, #hir.dims<n>>"
REDUCED = f"""
builtin.module attributes {{rlx.dims = #hir.dim_table<n = 0 to any, m = 0 to any>}} {{
  func.func @main(%x: {ROWS} {{rlx.name = "x"}}) -> ({SUMS} {{rlx.name = "y"}}) {{
    %y = mir.reduce sum %x axes [1] : {ROWS} -> {SUMS}
    func.return %y : {SUMS}
  }}
}}
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("within", [False, True])
def test_a_child_does_not_go_on_with_half_a_call_of_its_parent(within: bool):
    """As a fork finds the arena while a thread is in a call: counters of shared rows not zero."""
    b = build(REDUCED, Target.host())
    p = Program(b.manifest, b.code, shared_team(None), Segment(64))
    p.start(Segment(64))
    x = np.ones((1, 1 << 20), np.float32)
    sizes = p.manifest.bind({"n": 1, "m": x.shape[1]})
    call = Call(p, [Argument(F32, x.shape)], sizes)
    assert run(call, x)[0] == x.size
    arena = p._arena.view(0, np.uint8, [p._arena.nbytes])
    before = arena.copy()
    with p.held() if within else nullcontext():
        if within:
            arena[:] = 1
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            os._exit(int(run(call, x)[0][0] != x.size))
        arena[:] = before
    assert os.waitpid(pid, 0)[1] == 0
    assert run(call, x)[0] == x.size


@pytest.mark.parametrize("size", [3, 1000])
@pytest.mark.parametrize(
    "keep",
    [
        lambda a: a,
        lambda a: a[1:2],
        lambda a: a.T,
        lambda a: a.reshape(1, -1),
        lambda a: a.base if a.base is not None else a,
        lambda a: a.view(np.uint32)[::2],
        memoryview,
    ],
    ids=["array", "slice", "transpose", "reshape", "base", "view", "memoryview"],
)
def test_what_a_user_holds_is_never_written_again(size: int, keep: Callable[[np.ndarray], Any]):
    call = prepared(program(1), 1, size)
    x, w = inputs(1, size)
    # Calls by turns, of which one result each is kept in some form.
    kept = [keep(run(call, x, w, float(i))[i % 2]) for i in range(5)]
    copies = [np.array(k) for k in kept]
    for i in range(5):
        run(call, x, w, 100.0 + i)
    for now, then in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(np.array(now), then)
    del kept, now
    used = {tuple(a.ctypes.data for a in run(call, x, w, 1.0)) for _ in range(8)}
    assert len(used) <= calls.POOL
