"""Programs whose dimensions have no bound: buffers get their places when sizes are bound."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.errors import RlxError
from rlx.flow.source import MapWeights
from rlx.functions import CompiledFunction, build
from rlx.lowering.manifest import Manifest
from rlx.lowering.target import Target
from rlx.passes.source import context, parse
from rlx.passes.verify_plan import check_planned
from rlx.runtime.program import Program

NM, N8 = "tensor<?x?xf32, #hir.dims<n, m>>", "tensor<?x8xf32, #hir.dims<n, _>>"
M8, V = "tensor<?x8xf32, #hir.dims<m, _>>", "tensor<8x8xf32>"
TEXT = f"""
builtin.module attributes {{rlx.dims = #hir.dim_table<n = 0 to any, m = 1 to any, nm = n * m>}} {{
  func.func @main(%x: {NM} {{rlx.name = "x"}}, %w: {M8} {{rlx.name = "w"}},
                  %v: {V} {{rlx.name = "v"}})
      -> ({N8} {{rlx.name = "y"}}, tensor<?xf32, #hir.dims<nm>> {{rlx.name = "flat"}}) {{
    %e = mir.unary exp %x : {NM}
    %vv = mir.dot %v, %v : {V}, {V} -> {V}
    %a = mir.dot %e, %w : {NM}, {M8} -> {N8}
    %b = mir.dot %a, %vv : {N8}, {V} -> {N8}
    %c = mir.dot %b, %v : {N8}, {V} -> {N8}
    %flat = mir.reshape %e : {NM} -> tensor<?xf32, #hir.dims<nm>>
    func.return %c, %flat : {N8}, tensor<?xf32, #hir.dims<nm>>
  }}
}}
"""


def wanted(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    e = np.exp(x.astype(np.float64))
    v = v.astype(np.float64)
    return e @ w @ (v @ v) @ v, e.ravel()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("again", [False, True], ids=["compiled", "from its LIR"])
def test_any_size_runs_in_one_program(threads: int, again: bool):
    text = rlx.compile(TEXT).ir("lir") if again else TEXT
    f = CompiledFunction(build(text, Target.host()), MapWeights({}), threads, poison=True)
    rng = np.random.default_rng(7)
    # Larger and smaller ones in turn: the arena grows, and places move.
    for n, m in ((3, 5), (100, 200), (1, 1), (0, 4), (900, 20), (2, 2), (17, 1001)):
        x, w, v = (rng.uniform(-1, 1, s).astype(np.float32) for s in ((n, m), (m, 8), (8, 8)))
        y, flat = f(x, w, v)
        expected = wanted(x, w, v)
        np.testing.assert_allclose(y, expected[0], rtol=1e-4, atol=1e-5 * m)
        np.testing.assert_allclose(flat, expected[1], rtol=1e-6)


def test_ctrl_c_while_the_arena_grows_leaves_the_one_before(monkeypatch: pytest.MonkeyPatch):
    """What the prologue makes of weights lies in the arena, and may not be in the new one yet."""
    text = f"""
    builtin.module attributes {{rlx.dims = #hir.dim_table<n = 0 to any>}} {{
      hir.weight @w "w" : {V}
      func.func @main(%x: {N8} {{rlx.name = "x"}}) -> ({N8} {{rlx.name = "y"}}) {{
        %w = hir.load_weight @w : {V}
        %ww = mir.dot %w, %w : {V}, {V} -> {V}
        %a = mir.dot %x, %ww : {N8}, {V} -> {N8}
        %b = mir.dot %a, %ww : {N8}, {V} -> {N8}
        func.return %b : {N8}
      }}
    }}"""
    rng = np.random.default_rng(3)
    w, x = (rng.uniform(-1, 1, s).astype(np.float32) for s in ((8, 8), (4000, 8)))
    f = CompiledFunction(build(text, Target.host()), MapWeights({"w": w}), 1, poison=True)
    expected = x @ np.linalg.matrix_power(w.astype(np.float64), 4)

    def check(n: int) -> None:
        np.testing.assert_allclose(f(x[:n]), expected[:n], rtol=1e-4, atol=1e-4)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    check(3)
    with monkeypatch.context() as m:
        m.setattr(Program, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            f(x)
    for n in (3, 4000, 2):
        check(n)


def test_the_plan_is_sound_and_shares_places():
    f = rlx.compile(TEXT)
    assert check_planned(parse(context(), f.ir("lir").encode(), "plan")) == []
    manifest = f.manifest
    assert manifest.places == (((4, ("m", "n")),), ((32, ("n",)),), ((32, ("n",)),))
    assert manifest.arena_bytes == 256
    assert manifest.layout({"n": 3, "m": 5, "nm": 15}) == ([256, 320, 448], 576)
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_tensors_of_2_31_elements_are_refused_before_they_are_touched():
    manifest = rlx.compile(TEXT).manifest
    with pytest.raises(RlxError, match=r"fewer than 2\^31 elements, got one of \[65536, 32768\]"):
        manifest.bind({"n": 65536, "m": 32768})


def test_a_view_that_may_leave_its_root_is_refused():
    text = rlx.compile(TEXT).ir("lir")
    slot = next(line for line in text.splitlines() if "lir.slot" in line and "<n, m>" in line)
    name = slot.split()[0]
    view = f"    %bad = lir.view {name} byte_offset 0 : {NM} -> tensor<?x?xf32, #hir.dims<m, m>>"
    with pytest.raises(RlxError, match="expected the first elements of its root"):
        rlx.compile(text.replace(slot, f"{slot}\n{view}"))


@pytest.mark.parametrize("n", [0, 3, 7])
def test_a_view_may_be_a_part_of_a_root_whose_sizes_are_products(n: int):
    def tiled(x: np.ndarray) -> tuple[np.ndarray, ...]:
        y = np.tile(x, (2, 2))
        return y, y[:1], y + y

    x = np.arange(n, dtype=np.float32)
    for got, want in zip(rlx.jit(tiled)(x), tiled(x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_no_elements_are_none_at_every_size():
    def empty(x: np.ndarray) -> tuple[np.ndarray, ...]:
        return x, x[:0].reshape(-1), x[:0, None] + x, x[:, :0].reshape(-1)

    for size in ((3, 5), (2, 2), (4, 1)):
        x = np.ones(size, np.float32)
        for got, want in zip(rlx.jit(empty)(x), empty(x), strict=True):
            np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("n", [0, 3, 40])
def test_a_size_is_known_in_every_loop_of_a_kernel(n: int):
    def parts(x: np.ndarray) -> tuple[np.ndarray, ...]:
        y = x[-2:1:-1]
        return y, y[::-1]

    x = np.arange(n)
    for got, want in zip(rlx.jit(parts)(x), parts(x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_buffers_that_live_together_have_places_of_their_own():
    # Seven results of one size, all of which the last kernel needs: equal places are not the same.
    w = "tensor<8x8xf32>"
    dots = "\n".join(f"%d{i} = mir.dot %x, %w{i} : {N8}, {w} -> {N8}" for i in range(7))
    sums = "\n".join(
        f"%s{i + 1} = mir.binary add %{'s' if i else 'd'}{i}, %d{i + 1} : {N8}" for i in range(6)
    )
    weights = ", ".join(f'%w{i}: {w} {{rlx.name = "w{i}"}}' for i in range(7))
    text = f"""
    builtin.module attributes {{rlx.dims = #hir.dim_table<n = 0 to any>}} {{
      func.func @main(%x: {N8} {{rlx.name = "x"}}, {weights}) -> ({N8} {{rlx.name = "y"}}) {{
        {dots}
        {sums}
        func.return %s6 : {N8}
      }}
    }}"""
    f = CompiledFunction(build(text, Target.host()), MapWeights({}), 1, poison=True)
    plan = f.ir("lir")
    assert check_planned(parse(context(), plan.encode(), "plan")) == []
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (21, 8)).astype(np.float32)
    ws = [rng.uniform(-1, 1, (8, 8)).astype(np.float32) for _ in range(7)]
    expected = sum(x @ v.astype(np.float64) for v in ws)
    np.testing.assert_allclose(f(x, *ws), expected, rtol=1e-4, atol=1e-5)


def test_any_prints_and_parses():
    module = parse(context(), TEXT.encode(), "any")
    assert "n = 0 to any, m = 1 to any, nm = n * m" in str(module)
    assert str(parse(context(), str(module).encode(), "any")) == str(module)
