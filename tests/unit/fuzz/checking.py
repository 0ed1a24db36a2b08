"""Runs of a program by the reference and compiled, and the comparison of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from kernels import Fenced, nmse
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import SSAValue

from fuzz.programs import DTYPES, Case, Inputs, Step
from fuzz.values import DOUBLE, EXACT, SINGLE
from fuzz.weights import Weights
from rlx.dialects.common import element_of
from rlx.functions import CompiledFunction, build
from rlx.lowering.target import Target
from rlx.passes.pipelines import run_to
from rlx.passes.source import context, parse
from rlx.reference import Reference

TINY = 1e-15
LIMITS = {SINGLE: 1e-10, DOUBLE: 1e-20}
"""Normalised mean squared errors of what is rounded as f32, and as f64."""
MOST = 1e-4
"""What no program may lose by its nature: a wrong result loses more."""


def parsed(text: str) -> ModuleOp:
    return parse(context(), text.encode(), "case")


def expected(
    module: ModuleOp, weights: Weights, steps: Sequence[Step], dtype: type = np.float64
) -> list[Inputs]:
    """Return what the reference gives for each step, in float64 or in another precision."""
    reference = Reference(module, weights.stored, dtype)
    return [reference.run(inputs, sizes) for sizes, inputs in steps]


class Shaken(Reference):
    """The reference in float64 with the noise of float32 on the result of every operation."""

    noise = np.random.default_rng(1)

    def seen(self, result: SSAValue, value: np.ndarray) -> np.ndarray:
        if value.dtype.kind != "f" or element_of(result.type) != f32:
            return value
        return value * (1 + 2.0**-24 * self.noise.standard_normal(value.shape))


def shaken(case: Case, module: ModuleOp, want: Sequence[Inputs]) -> list[Inputs]:
    """Return the worst that noise makes of each result, where float32 may have been lucky."""
    worst = [dict(w) for w in want]
    for _ in range(16):
        reference = Shaken(module, case.weights.stored)
        for (sizes, inputs), found, w in zip(case.steps, worst, want, strict=True):
            for name, value in reference.run(inputs, sizes).items():
                if w[name].dtype.kind == "f" and nmse(value, w[name]) > nmse(found[name], w[name]):
                    found[name] = value
    return worst


def run_steps(function: CompiledFunction, steps: Sequence[Step]) -> list[Inputs]:
    """Run the steps in order; no byte around outputs may change, and none behind inputs be read."""
    results: list[Inputs] = []
    manifest = function.manifest
    for sizes, inputs in steps:
        fenced = {name: Fenced(array) for name, array in inputs.items()}
        seen = {d for io in manifest.inputs for d in io.dims}
        dims = {name: size for name, size in sizes.items() if name not in seen}
        bound = manifest.bind(sizes)
        shapes = [
            [bound[d] if isinstance(d, str) else d for d in io.dims] for io in manifest.outputs
        ]
        out = {
            io.name: Guarded(np.full(shape, 77, DTYPES[io.dtype]))
            for io, shape in zip(manifest.outputs, shapes, strict=True)
        }
        function(
            dims=dims,
            out=[g.array for g in out.values()],
            **{name: f.array for name, f in fenced.items()},
        )
        for g in out.values():
            g.check()
        results.append({name: g.array.copy() for name, g in out.items()})
    return results


class Guarded:
    """A copy of an array with bytes around it that nothing may write."""

    def __init__(self, array: np.ndarray):
        self._memory = np.full(array.nbytes + 512, 0xA5, np.uint8)
        # Off any vector's alignment, as a caller's array may be.
        self._start = 256 + (8 - self._memory.ctypes.data) % 64
        self._size = array.nbytes
        data = self._memory[self._start : self._start + array.nbytes]
        self.array = data.view(array.dtype).reshape(array.shape)
        self.array[...] = array

    def check(self) -> None:
        assert (self._memory[: self._start] == 0xA5).all(), "written before an array"
        assert (self._memory[self._start + self._size :] == 0xA5).all(), "written behind an array"


def assert_close(
    got: Sequence[Inputs],
    want: Sequence[Inputs],
    limit: float,
    what: str,
    single: Sequence[Inputs] | None = None,
    noise: Mapping[str, int] | None = None,
) -> None:
    """
    Check every output of every step: that it is the same, or its normalised mean squared error.

    A program may lose digits by its nature (x - tanh x of a small x). `single` is what the
    reference gives in float32: up to a hundred times its error is allowed too. Our functions have
    2 ulp where numpy's have half of one, which is 16 times the squared error, more by chance for a
    single number: one seed has 62 times, and 2 ulp of noise in its tanh explain 30 to 200 times.
    """
    assert len(got) == len(want)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert g.keys() == w.keys()
        for name in w:
            where = f"{what}: step {i}, output {name}"
            assert g[name].shape == w[name].shape, where
            if w[name].dtype.kind != "f" or (noise is not None and noise[name] == EXACT):
                np.testing.assert_array_equal(g[name], w[name], where)
                continue
            assert np.isfinite(w[name]).all(), f"{where}: the reference isn't finite"
            if np.abs(w[name]).max(initial=0) < TINY:
                # Products of small values may have been subnormal: f32 has no precision there.
                assert np.abs(g[name]).max(initial=0) < 10 * TINY, where
                continue
            # The oracle's range is wider: beyond that of the type a result is infinite, and where
            # float32 has overflowed on the way it may be.
            beyond = np.abs(w[name]) > np.finfo(g[name].dtype).max
            assert np.isinf(g[name][beyond]).all(), where
            narrow = w[name] if single is None else single[i][name]
            kept = np.isfinite(narrow) & ~beyond
            error = nmse(g[name][kept].astype(np.float64), w[name][kept])
            allowed = limit
            if noise is not None and noise[name] == DOUBLE:
                allowed = min(limit, LIMITS[DOUBLE])
            elif single is not None:
                allowed = min(max(limit, 100 * nmse(narrow[kept], w[name][kept])), MOST)
            assert error <= allowed, f"{where}: NMSE {error:.2e}, allowed {allowed:.2e}"


def check(
    case: Case,
    levels: Sequence[str] = ("host",),
    limit: float = LIMITS[SINGLE],
    threads: Sequence[int] = (1, 2),
) -> None:
    """Compare a case: reference of HIR, of MIR, and the compiled program, whose plan is checked."""
    module = parsed(case.text)
    want, single = answers(case, module)
    mir = module.clone()
    run_to(mir, "mir")
    assert_close(expected(mir, case.weights, case.steps), want, 1e-24, "MIR", None, case.noise)
    check_compiled(case, module, want, single, levels, limit, threads)


def answers(case: Case, module: ModuleOp) -> tuple[list[Inputs], list[Inputs]]:
    """Return what the reference gives in float64 and in float32."""
    wide, narrow = (
        expected(module, case.weights, case.steps, dtype) for dtype in (np.float64, np.float32)
    )
    return wide, narrow


def check_compiled(
    case: Case,
    module: ModuleOp,
    want: Sequence[Inputs],
    single: Sequence[Inputs],
    levels: Sequence[str],
    limit: float = LIMITS[SINGLE],
    threads: Sequence[int] = (1, 2),
) -> None:
    """Compare compiled programs with the reference, and those for numbers of threads bit by bit."""
    lir = module.clone()
    run_to(lir, "lir")
    for level in levels:
        # A plan that is given is checked, and refused unless it is sound.
        built = build(lir, Target.named(level))
        first: list[Inputs] | None = None
        for n in threads:
            got = run_steps(CompiledFunction(built, case.weights, n, poison=True), case.steps)
            what = f"{level}, {n} threads"
            try:
                assert_close(got, want, limit, what, single, case.noise)
            except AssertionError:
                assert_close(got, want, limit, what, shaken(case, module, want), case.noise)
            first = first or got
            for a, b in zip(got, first, strict=True):
                for name in a:
                    np.testing.assert_array_equal(a[name], b[name], f"{what}, {name}")
