"""The gated delta net: its type rules, the oracle, and its kernel against the oracle in float64."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from kernels import Buffer, Kernel, compile_kernel, levels, module_of, nmse
from xdsl.dialects.builtin import f64
from xdsl.dialects.test import TestOp as Values
from xdsl.ir import Block, SSAValue
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import lir, mir
from rlx.dialects.common import Dim, DimDef, DimTable, tensor
from rlx.errors import RlxError
from rlx.lowering.body import Body
from rlx.lowering.emitter import Function
from rlx.lowering.scan import MAX_FEATURES, emit_gated_delta_net
from rlx.passes.pipelines import run_to
from rlx.passes.source import context, parse
from rlx.passes.verify_plan import check_planned
from rlx.reference.sequence import gated_delta_net
from rlx.runtime import jit

# batch, rows, key heads, heads, n, e
SHAPES = [
    ((), 9, 2, 4, 16, 32),
    ((2,), 5, 1, 3, 7, 17),
    ((2, 3), 2, 1, 1, 1, 1),
    ((), 1, 1, 1, 64, 128),
    ((), 0, 1, 2, 3, 5),
    # Chunks of rows, and some beyond them; 16 columns together, 32 with some beyond them.
    ((), 64, 2, 2, 99, 16),
    ((2,), 70, 1, 3, 96, 40),
    ((), 39, 1, 1, 101, 150),
]
Shape = tuple[tuple[int, ...], int, int, int, int, int]


def case(shape: Shape, seed: int, state: bool) -> list[np.ndarray]:
    """Inputs whose state neither vanishes nor grows, in float32."""
    batch, rows, key_heads, heads, n, e = shape
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, *batch, rows, key_heads, n))
    k /= np.sqrt((k * k).sum(-1, keepdims=True))
    v = rng.standard_normal((*batch, rows, heads, e))
    g = -rng.exponential(0.1, (*batch, rows, heads))
    beta = rng.uniform(0, 1, (*batch, rows, heads))
    given = [q, k, v, g, beta]
    if state:
        given.append(rng.standard_normal((*batch, heads, n, e)))
    return [x.astype(np.float32) for x in given]


# The oracle


def test_reference_is_the_recurrence_of_its_definition():
    q, k, v, g, beta, s0 = (x.astype(np.float64) for x in case(((), 6, 2, 4, 3, 5), 1, True))
    output, final = gated_delta_net(q, k, v, g, beta, s0)
    for head in range(4):
        s = s0[head]
        for t in range(6):
            s = s * math.exp(g[t, head])
            d = (v[t, head] - s.T @ k[t, head // 2]) * beta[t, head]
            s = s + np.outer(k[t, head // 2], d)
            np.testing.assert_allclose(output[t, head], s.T @ (q[t, head // 2] / math.sqrt(3)))
        np.testing.assert_allclose(final[head], s)


def test_reference_goes_on_where_it_stopped():
    given = [x.astype(np.float64) for x in case(((2,), 6, 1, 2, 3, 5), 2, False)]
    whole, end = gated_delta_net(*given)
    first, middle = gated_delta_net(*(x[:, :2] for x in given))
    second, last = gated_delta_net(*(x[:, 2:] for x in given), middle)
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole)
    np.testing.assert_allclose(last, end)


def test_a_row_is_remembered():
    """With beta 1 and no decay, what was stored under a unit key is what it reads back."""
    k = np.eye(4)[:, None, :]
    v = np.arange(8.0).reshape(4, 1, 2)
    zero, one = np.zeros((4, 1)), np.ones((4, 1))
    _, state = gated_delta_net(k, k, v, zero, one)
    np.testing.assert_allclose(state[0], v[:, 0])


# Types


def operation(
    q: tuple[Dim, ...], v: tuple[Dim, ...], g: tuple[Dim, ...], s: tuple[Dim, ...] | None = None
) -> mir.GatedDeltaNetOp:
    given = [q, q, v, g, g, *([s] if s else [])]
    return mir.GatedDeltaNetOp(*Values(result_types=[tensor(d) for d in given]).results)


def test_types_follow_from_the_operands():
    op = operation(("batch", "seq", 2, 8), ("batch", "seq", 4, 6), ("batch", "seq", 4))
    op.verify()
    assert op.output.type == tensor(["batch", "seq", 4, 6])
    assert op.final.type == tensor(["batch", 4, 8, 6])
    assert mir.kind_of(op).value == "GatedDeltaNet"


@pytest.mark.parametrize(
    ("q", "v", "g"),
    [
        ((3, 8), (3, 6), (3,)),
        ((3, 2, 8), (4, 2, 6), (4, 2)),
        ((3, 2, 8), (3, 3, 6), (3, 3)),
        ((3, 2, 8), (3, 2, 6), (3, 6)),
        ((3, 0, 8), (3, 2, 6), (3, 2)),
        ((3, 2, "n"), (3, 2, 6), (3, 2)),
        ((3, "h", 8), (3, "h", 6), (3, "h")),
    ],
)
def test_operands_that_do_not_fit(q: tuple[Dim, ...], v: tuple[Dim, ...], g: tuple[Dim, ...]):
    with pytest.raises(VerifyException, match=r"mir.gated_delta_net: expected queries and keys"):
        operation(q, v, g)


def test_state_and_elements_are_checked():
    with pytest.raises(VerifyException, match=r"expected a state \[2, 8, 6\] f32, got \[2, 6, 8\]"):
        operation((3, 2, 8), (3, 2, 6), (3, 2), (2, 6, 8)).verify()
    doubles = [tensor(d, f64) for d in ((3, 2, 8), (3, 2, 8), (3, 2, 6), (3, 2), (3, 2))]
    with pytest.raises(VerifyException, match="expected elements of f32"):
        mir.GatedDeltaNetOp(*Values(result_types=doubles).results)


# The kernel


class Scan:
    """The kernel of an operation whose number of rows is known when it runs."""

    def __init__(self, level: str, shape: Shape, state: bool, yields: str = "output final"):
        batch, _, key_heads, heads, n, e = shape
        rows = "seq"
        q, v, g = (*batch, rows, key_heads, n), (*batch, rows, heads, e), (*batch, rows, heads)
        s = [(*batch, heads, n, e)] if state else []
        self.block = Block(arg_types=[tensor(d) for d in (q, q, v, g, g, *s)])
        self.op = mir.GatedDeltaNetOp(*self.block.args)
        self.yields: list[SSAValue] = [getattr(self.op, name) for name in yields.split()]
        self.block.add_ops([self.op, mir.YieldOp(*self.yields)])
        pointers = [f"p{i}" for i in range(len(self.block.args) + len(self.yields))]
        self.params = [*(("ptr", p) for p in pointers), *(("i64", x) for x in "rtn")]
        self.kernel: Kernel | None = None
        if level:
            self.kernel = compile_kernel(level, self.params, self.emit)

    def emit(self, f: Function) -> None:
        *pointers, rows, tid, threads = f.params
        ins = dict(zip(self.block.args, pointers, strict=False))
        table = DimTable({"seq": DimDef("seq", 0, 64)})
        outs = pointers[len(ins) :]
        sizes = {"seq": rows}
        emit_gated_delta_net(
            Body(f, self.block, table, {**ins}, outs, None, sizes, tid, threads, [self.op])
        )

    def run(self, given: list[np.ndarray], threads: int = 1) -> list[np.ndarray]:
        rows = given[3].shape[-2]
        shapes = {self.op.output: given[2].shape}
        shapes[self.op.final] = (*given[2].shape[:-3], *self.op.final.type.get_shape()[-3:])
        outs = [Buffer(4 * math.prod(shapes[value])) for value in self.yields]
        assert self.kernel is not None
        for tid in reversed(range(threads)):
            self.kernel(*map(Buffer.of, given), *outs, rows, tid, threads)
        return [out.array(np.float32, *shapes[v]) for out, v in zip(outs, self.yields, strict=True)]


compiled = cache(Scan)
"""The kernel of a level, a shape and a state, which several tests run."""


@pytest.mark.sample(18)
@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernel_against_float64(shape: Shape, state: bool, level: str):
    given = case(shape, 3, state)
    expected = gated_delta_net(*(x.astype(np.float64) for x in given))
    for result, wanted in zip(compiled(level, shape, state).run(given), expected, strict=True):
        assert nmse(result, wanted) < 1e-12


def test_results_do_not_depend_on_threads():
    shape = ((2,), 39, 1, 3, 96, 40)
    given, scan = case(shape, 4, True), compiled("host", shape, True)
    one = scan.run(given)
    for threads in (2, 3, 7, 40):
        for a, b in zip(one, scan.run(given, threads), strict=True):
            np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def test_the_state_goes_on_to_the_bit():
    shape = ((), 8, 2, 4, 24, 33)
    given, with_state = case(shape, 5, False), compiled("host", shape, True)
    output, end = compiled("host", shape, False).run(given)
    first, state = compiled("host", shape, False).run([x[:3] for x in given])
    second, last = with_state.run([*(x[3:] for x in given), state])
    np.testing.assert_array_equal(np.concatenate([first, second]), output)
    np.testing.assert_array_equal(last, end)


def test_chunks_go_on_to_the_bit_where_they_end():
    shape = ((), 96, 1, 2, 96, 33)
    given, with_state = case(shape, 5, True), compiled("host", shape, True)
    output, end = with_state.run(given)
    first, state = with_state.run([*(x[:64] for x in given[:5]), given[5]])
    second, last = with_state.run([*(x[64:] for x in given[:5]), state])
    np.testing.assert_array_equal(np.concatenate([first, second]), output)
    np.testing.assert_array_equal(last, end)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("which", range(5))
def test_a_row_changes_none_before_it(which: int, value: float):
    shape = ((), 64, 1, 2, 96, 40)
    given, scan = case(shape, 8, True), compiled("host", shape, True)
    output, _ = scan.run(given)
    given[which][45] = value
    got, _ = scan.run(given)
    np.testing.assert_array_equal(got[:45], output[:45])
    assert not np.isfinite(got[45]).all()


def test_a_gate_of_minus_infinity_forgets():
    shape = ((), 64, 1, 2, 96, 40)
    given, scan = case(shape, 9, True), compiled("host", shape, True)
    for row in (3, 4, 40):
        given[3][row] = -np.inf
    got, end = scan.run(given)
    wanted, last = gated_delta_net(*(x.astype(np.float64) for x in given))
    assert nmse(got, wanted) < 1e-12
    assert nmse(end, last) < 1e-12


def test_the_state_is_changed_in_place():
    q, v, g, s = (f"tensor<{d}xf32>" for d in ("1x1x4", "1x2x3", "1x2", "2x4x3"))
    module = parse(
        context(),
        f"""builtin.module {{
          func.func @main(%q: {q} {{rlx.name = "q"}}, %v: {v} {{rlx.name = "v"}},
              %g: {g} {{rlx.name = "g"}}, %s: {s} {{rlx.name = "s"}})
              -> ({v} {{rlx.name = "o"}}, {s} {{rlx.name = "e"}}) {{
            %t = mir.unary neg %s : {s}
            %o, %f = mir.gated_delta_net %q, %q, %v, %g, %g state %t : {s} : {q}, {v}, {g} -> {s}
            %e = mir.unary neg %f : {s}
            func.return %o, %e : {v}, {s}
          }}
        }}""".encode(),
        "module",
    )
    run_to(module, "lir")
    assert check_planned(module) == []
    (launch,) = (
        op
        for op in module.walk()
        if isinstance(op, lir.LaunchOp) and "gated_delta_net" in op.kernel.root_reference.data
    )
    assert set(launch.ins) & set(launch.outs)


@pytest.mark.parametrize("yields", ["output", "final", "final output"])
def test_results_that_nobody_uses_are_not_stored(yields: str):
    shape = SHAPES[1]
    given = case(shape, 6, True)
    both = dict(zip(("output", "final"), compiled("host", shape, True).run(given), strict=True))
    for name, got in zip(yields.split(), Scan("host", shape, True, yields).run(given), strict=True):
        np.testing.assert_array_equal(got, both[name])


def test_strong_decay_and_long_memory():
    shape = ((), 400, 1, 1, 32, 16)
    given = case(shape, 7, True)
    given[3][::7] = -200.0
    expected = gated_delta_net(*(x.astype(np.float64) for x in given))
    for result, wanted in zip(compiled("host", shape, True).run(given), expected, strict=True):
        assert nmse(result, wanted) < 1e-11


@pytest.mark.parametrize(("cpu", "product"), [("aarch64", "fmla"), ("sapphirerapids", "vfmadd")])
def test_compiles_for_other_cpus(cpu: str, product: str):
    scan = Scan("", SHAPES[0], True)
    module = module_of(cpu, scan.params, scan.emit)
    assert product in jit.assembly(module.text, module.target)


def test_heads_are_bounded():
    scan = Scan("", ((), 1, 1, 1, MAX_FEATURES + 1, 4), False)
    with pytest.raises(RlxError, match="heads of at most 4096 features, got 4097"):
        module_of("host", scan.params, scan.emit)
