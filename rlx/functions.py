"""
Programs as functions of numpy arrays: `rlx.compile` takes IR of any level, compiles it and runs it.

    f = rlx.compile(text, {"w": w})
    y = f(x)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rlx.arguments import check_input, check_weights, inputs_of, outs_of, outside, sizes_of
from rlx.checks import choice
from rlx.compiler import STAGES, compile_program, compile_text
from rlx.errors import RlxError
from rlx.flow.profile import CompileProfile
from rlx.flow.source import MapWeights, WeightSource
from rlx.lowering.manifest import Manifest
from rlx.lowering.target import Target
from rlx.runtime.calls import DTYPES, Argument, Call
from rlx.runtime.compilations import check_allowed, counted
from rlx.runtime.kept import Calls
from rlx.runtime.memory import Segment
from rlx.runtime.program import Program
from rlx.runtime.stages import shown
from rlx.runtime.threads import Team

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


Array = NDArray[Any]

PRECISIONS = ("exact", "fast")
KEPT_CALLS = 64
"""Calls by shapes that a function remembers; beyond, it starts over."""


def compile(
    module: ModuleOp | str,
    weights: Mapping[str, Array] | WeightSource | None = None,
    threads: int | None = None,
    target: Target | str | None = None,
    profile: CompileProfile | str | os.PathLike[str] | None = None,
    precision: str | None = None,
) -> CompiledFunction:
    """
    Compile a program for this machine, or for a lesser CPU whose code it runs.

    `module` is a module of `hir`, `mir` or `lir`, or its text; it stays as it is. `weights` gives
    the weights by key: arrays, or a source. `threads` is clamped to the CPUs that this process may
    use. `profile`, or the path of a `*.rlx.toml` file, says which passes run from HIR or MIR on,
    which for a planned module are none. `precision` is `exact`, or `fast` for functions of f32 that
    lose a few bits (`vmath_fast`) and activations of 8 bits in products of one row with quantised
    weights; None for what the module asks for.

    Raises RlxError for IR that isn't valid, for a weight that is missing or not as declared,
    and for what no kernel computes.
    """
    if target is None or isinstance(target, str):
        target = Target.named(target or "host")
    if not isinstance(cast(object, target), Target):
        raise RlxError(f"target: expected a CPU's name or a Target, got {target!r:.80}")
    if not target.runs_on(Target.host()):
        raise RlxError(
            f"target: this machine can't run code for '{target.name}'; `rlx-opt -t asm` prints it"
        )
    if not isinstance(cast(object, weights), Mapping | WeightSource | None):
        raise RlxError(f"weights: expected arrays by key, or a source, got {weights!r:.80}")
    if isinstance(weights, Mapping) or weights is None:
        weights = MapWeights(weights or {})
    if precision is not None:
        precision = choice("precision", precision, PRECISIONS)
    check_allowed("a module")
    with shown("compiling a module"), counted() as tally:
        built = build(module, target, CompileProfile.of(profile), precision)
        function = CompiledFunction(built, weights, threads)
    function.stats = Stats(tally.count, tally.seconds)
    return function


@dataclass
class Stats:
    """What a compiled program has cost: modules that LLVM compiled, and its seconds for them."""

    compilations: int = 0
    llvm_s: float = 0.0


@dataclass(frozen=True)
class Built:
    """A program compiled for a target, without its weights."""

    module: ModuleOp
    """As it was given, of the precision that was asked for."""
    target: Target
    manifest: Manifest
    code: bytes
    written: frozenset[str]
    """Inputs that a step writes: they are given copies."""
    profile: CompileProfile | None


def build(
    module: ModuleOp | str,
    target: Target,
    profile: CompileProfile | None = None,
    precision: str | None = None,
) -> Built:
    """Compile a module or a text; see `compile`."""
    from xdsl.utils.exceptions import VerifyException

    from rlx.dialects.lir import set_precision
    from rlx.lowering.bounds import written_inputs

    module = _checked(module)
    if precision is not None:
        set_precision(module, precision)
    planned = module.clone()
    try:
        manifest, code = compile_program(planned, target, profile)
    except VerifyException as e:
        raise _user_error(e) from e
    _check_dtypes(manifest)
    return Built(module, target, manifest, code, written_inputs(planned), profile)


def _check_dtypes(manifest: Manifest) -> None:
    """Raise RlxError where numpy has no dtype for what the caller would bind."""
    for what, ios in (("input", manifest.inputs), ("output", manifest.outputs)):
        for io in ios:
            if io.dtype not in DTYPES:
                raise RlxError(
                    f"{what} '{io.name}': expected elements of {', '.join(DTYPES)}, which numpy "
                    f"has, got {io.dtype}: cast it in the program"
                )


def _checked(module: ModuleOp | str) -> ModuleOp:
    """Return a valid module that is ours to rewrite."""
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.utils.exceptions import VerifyException

    from rlx.dialects.levels import stage_of
    from rlx.passes.diagnostics import verify
    from rlx.passes.source import context, parse
    from rlx.passes.verify_plan import check_planned
    from rlx.passes.verify_stage import verify_stage

    if not isinstance(cast(object, module), str | ModuleOp):
        raise RlxError(f"module: expected IR as a ModuleOp or as text, got {module!r:.80}")
    if isinstance(module, str):
        try:
            text = module.encode()
        except UnicodeEncodeError as e:
            raise RlxError(f"module: expected IR as text in Unicode: {e}") from e
        module = parse(context(), text, "module")
    else:
        module = module.clone()
    stage = stage_of(module)
    try:
        verify(module)
        verify_stage(module, stage)
    except VerifyException as e:
        raise _user_error(e) from e
    # A plan of ours is sound; one that is given may not be, and would write where it must not.
    problems = check_planned(module) if stage == "lir" else []
    if problems:
        raise RlxError("\n  ".join(["the plan of the module is not sound:", *problems]))
    return module


def _user_error(error: Exception) -> RlxError:
    from rlx.passes.diagnostics import IrError

    return RlxError(error.report("module") if isinstance(error, IrError) else str(error))


class CompiledFunction:
    """
    A compiled program, called with arrays; made by `rlx.compile`.

    With `poison` the arena starts as NaN, so that a read of a byte that nothing has written shows.

    State that the program keeps (a KV cache) is zero at first and persists across calls. Calls
    from several Python threads take turns.
    """

    def __init__(
        self, built: Built, weights: WeightSource, threads: int | None, poison: bool = False
    ):
        self._built = built
        self._manifest = built.manifest
        check_weights(self._manifest, weights)
        self._state = Segment(max(self._manifest.state_bytes, 64))
        self._program = Program(self._manifest, built.code, Team(threads), self._state, poison)
        packed = Segment(max(self._manifest.weight_segment_bytes, 64), huge=True)
        if self._manifest.weights:
            self._program.pack(weights.raw, packed)
        self._program.start(packed)
        # Where a program carries a token on, it notes it.
        self._program.bind_steps(np.zeros(1, np.int32), ())
        self._names = tuple(io.name for io in self._manifest.inputs)
        self._dtypes = tuple(np.dtype(DTYPES[io.dtype]) for io in self._manifest.inputs)
        self._indices = [(i, io) for i, io in enumerate(self._manifest.inputs) if io.index_bound]
        self._calls: Calls[Call] = Calls(KEPT_CALLS)
        self._latest: tuple[tuple[tuple[int, ...], ...], Call] | None = None
        self.stats = Stats()

    @property
    def manifest(self) -> Manifest:
        """What the program takes, gives and needs: names, shapes, sizes in bytes."""
        return self._manifest

    def ir(self, stage: str) -> str:
        """
        Return the program's text at a stage: `hir`, `mir`, `lir` or `llvm`.

        Raises RlxError for a stage before the one that the program was given in.
        """
        from rlx.dialects.levels import stage_of
        from rlx.passes.pipelines import run_to

        given = stage_of(self._built.module)
        reachable = STAGES[STAGES.index(given) :]
        choice("stage", stage, reachable)
        module = self._built.module.clone()
        if stage == "llvm":
            return compile_text(module, self._built.target, self._built.profile)[1]
        if stage != given:
            run_to(module, stage, self._built.profile)
        return str(module) + "\n"

    def reset(self) -> None:
        """Set the state to zero, as before the first call."""
        with self._program.held():
            self._state.view(0, np.uint8, [self._state.nbytes]).fill(0)

    def __call__(
        self,
        *args: Array,
        dims: Mapping[str, int] | None = None,
        out: Sequence[Array] | None = None,
        **named: Array,
    ) -> Array | tuple[Array, ...]:
        """
        Run one step on arrays, given in the order of the inputs or by their names.

        Sizes of dimensions come from the arrays' shapes; `dims` gives those of free dimensions
        that no input has. The arrays of `out`, one for each output, take the results, else the
        function has some that nobody else holds, which start at a multiple of 64 bytes unless they
        are small: many MB of results are written past the caches then, which is faster. Returns the
        array of a single output, or a tuple of them in order.

        An input that isn't contiguous is copied. Raises RlxError for a wrong number, dtype or shape
        of arrays, a size out of its bounds, and an index that is out of its table.
        """
        if named and tuple(named) == self._names[len(args) :]:
            args, named = (*args, *named.values()), {}
        call = None if named or not isinstance(out, _PLAIN) else self._known(args, dims)
        if call is not None:
            outs = call.results() if out is None else tuple(out)
            status = call.enter(call.address, args, outs, call.wait)
            results = call.again(status, args, outs, out is not None) if status else outs
            if results is not None:
                return results[0] if len(results) == 1 else results
        return self._checked(args, named, {} if dims is None else dims, out)

    def _known(self, args: Sequence[Array], dims: Mapping[str, int] | None) -> Call | None:
        """Return the call for arrays that a program may read as they are, if there was one."""
        if self._built.written or not (dims is None or _is_plain(dims)):
            return None
        shapes = tuple([x.shape if type(x) is np.ndarray else None for x in args])
        call = self._calls.get((shapes, tuple(dims.items()) if dims else ()))
        if call is not None:
            for i, io in self._indices:
                if args[i].dtype != self._dtypes[i] or outside(io, args[i]) is not None:
                    return None
        return call

    def _checked(
        self,
        args: Sequence[Array],
        named: Mapping[str, Array],
        dims: Mapping[str, int],
        out: Sequence[Array] | None,
    ) -> Array | tuple[Array, ...]:
        """Run a step on arrays of which nothing is known yet."""
        inputs = inputs_of(self._manifest, args, named)
        sizes = sizes_of(self._manifest, inputs, dims)
        for io in self._manifest.inputs:
            check_input(io, inputs[io.name], sizes)
        wanted = None
        if out is not None:
            wanted = outs_of(self._manifest, out, list(inputs.values()), sizes)
        call = self._call(inputs, dims, sizes)
        given = zip(inputs.items(), call.arguments, strict=True)
        taken = tuple(self._ready(name, array, argument) for (name, array), argument in given)
        if wanted is None:
            outs = call.results()
        else:
            # Types that are equal, as `long` and `long long` are, may be two.
            outs = tuple(x.view(d) for x, d in zip(wanted, call.dtypes, strict=True))
        status = call.enter(call.address, taken, outs, call.wait)
        results = call.again(status, taken, outs, out is not None) if status else outs
        assert results is not None, "arrays that were checked are taken"
        results = results if out is None else tuple(out)
        return results[0] if len(results) == 1 else results

    def _ready(self, name: str, array: Array, argument: Argument) -> Array:
        """Return an input as the program reads it, or a copy where the program writes it."""
        ready = argument.ready(array)
        return ready.copy() if name in self._built.written else ready

    def _call(
        self, inputs: Mapping[str, Array], dims: Mapping[str, int], sizes: Mapping[str, int]
    ) -> Call:
        """Return the call for the shapes of arrays, and sizes that were given."""
        shapes = tuple([x.shape for x in inputs.values()])
        key = shapes, tuple([(name, sizes[name]) for name in dims])
        call = self._calls.get(key)
        if call is None:
            call = self._prepared(shapes, sizes)
            self._calls.add(key, call)
            self._latest = shapes, call
        return call

    def _prepared(self, shapes: tuple[tuple[int, ...], ...], sizes: Mapping[str, int]) -> Call:
        """Return a new call, made of the latest where sizes differ that no shape tells."""
        if self._latest is not None and self._latest[0] == shapes:
            call = self._latest[1].resized(sizes)
            if call is not None:
                return call
        arguments = [Argument(*pair) for pair in zip(self._dtypes, shapes, strict=True)]
        return Call(self._program, arguments, sizes)


_PLAIN = (list, tuple, type(None))
"""What arrays for results come in as a rule."""


def _is_plain(dims: object) -> bool:
    """Return whether sizes by name are as a rule: a dictionary of integers."""
    return type(dims) is dict and all(type(x) is int for x in cast(dict[Any, Any], dims).values())
