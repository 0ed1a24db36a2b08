"""
Programs as functions of numpy arrays: `rlx.compile` takes IR of any level, compiles it and runs it.

    f = rlx.compile(text, {"w": w})
    y = f(x)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rlx.checks import choice
from rlx.compiler import STAGES, compile_program, compile_text
from rlx.errors import RlxError
from rlx.flow.profile import CompileProfile
from rlx.flow.source import MapWeights, WeightInfo, WeightSource
from rlx.lowering.manifest import Io, Manifest
from rlx.lowering.target import Target
from rlx.runtime.compilations import check_allowed, counted
from rlx.runtime.memory import Segment, aligned_array
from rlx.runtime.program import Program
from rlx.runtime.stages import shown
from rlx.runtime.threads import Team

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


Array = NDArray[Any]

PRECISIONS = ("exact", "fast")
_DTYPES = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "i32": np.int32,
    "i64": np.int64,
    "i16": np.int16,
    "i8": np.int8,
    "ui32": np.uint32,
    "ui8": np.uint8,
    "i1": np.bool_,
}


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
            if io.dtype not in _DTYPES:
                raise RlxError(
                    f"{what} '{io.name}': expected elements of {', '.join(_DTYPES)}, which numpy "
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
        module = parse(context(), module.encode(), "module")
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
        _check_weights(self._manifest, weights)
        self._state = Segment(max(self._manifest.state_bytes, 64))
        self._program = Program(self._manifest, built.code, Team(threads), self._state, poison)
        packed = Segment(max(self._manifest.weight_segment_bytes, 64), huge=True)
        if self._manifest.weights:
            self._program.pack(weights.raw, packed)
        self._program.start(packed)
        self._lock = threading.Lock()
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
        with self._lock:
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
        that no input has. The arrays of `out`, one for each output, take the results, else new
        ones are made, which start at a multiple of 64 bytes: many MB of results are written past
        the caches then, which is faster. Returns the array of a single output, or a tuple of them
        in order.

        An input that isn't contiguous is copied. Raises RlxError for a wrong number, dtype or shape
        of arrays, a size out of its bounds, and an index that is out of its table.
        """
        inputs = self._named(args, named)
        sizes = self._sizes(inputs, dims or {})
        for io in self._manifest.inputs:
            _check_array(f"input '{io.name}'", io, inputs[io.name], sizes)
            _check_indices(io, inputs[io.name])
        results = self._results(out, list(inputs.values()), sizes)
        with self._lock:
            self._run(inputs, results, sizes)
        return results[0] if len(results) == 1 else tuple(results)

    def _run(
        self, inputs: Mapping[str, Array], results: Sequence[Array], sizes: Mapping[str, int]
    ) -> None:
        program, manifest = self._program, self._manifest
        for name, array in inputs.items():
            ready = np.require(array, requirements=["C", "A"])
            program.bind_input(name, ready.copy() if name in self._built.written else ready)
        for io, result in zip(manifest.outputs, results, strict=True):
            program.bind_output(io.name, result)
        if manifest.carries:
            program.bind_steps(np.zeros(1, np.int32), ())
        program.step({name: sizes[name] for name in manifest.free})

    def _named(self, args: Sequence[Array], named: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs by name, all of them."""
        wanted = [io.name for io in self._manifest.inputs]
        given = [*wanted[: len(args)], *named]
        if len(args) > len(wanted) or sorted(given) != sorted(wanted):
            got = ", ".join([*(f"array {i}" for i in range(len(args))), *named]) or "nothing"
            raise RlxError(
                f"{self._manifest.name}: expected the inputs {', '.join(wanted) or 'none'}, "
                f"in this order or by name, got {got}"
            )
        arrays = {**dict(zip(wanted, args, strict=False)), **named}
        for name, array in cast(dict[str, object], arrays).items():
            if not isinstance(array, np.ndarray):
                raise RlxError(
                    f"input '{name}': expected a numpy array, got {type(array).__name__}: "
                    "numpy.asarray makes one"
                )
        return {name: arrays[name] for name in wanted}

    def _sizes(self, inputs: Mapping[str, Array], dims: Mapping[str, int]) -> dict[str, int]:
        """Return the size of every dimension, from the inputs' shapes and from `dims`."""
        if not isinstance(cast(object, dims), Mapping):
            raise RlxError(f"dims: expected sizes by name, got {dims!r:.80}")
        manifest = self._manifest
        free = manifest.free
        for name in dims:
            if name not in free:
                raise RlxError(
                    f"{manifest.name}: dims: expected sizes of {', '.join(free) or 'nothing'}, "
                    f"got one of '{name}'"
                )
        sizes, source = dict(dims), dict.fromkeys(dims, "dims")
        for io in manifest.inputs:
            shape = inputs[io.name].shape
            if len(shape) != len(io.dims):
                raise RlxError(_unlike(f"input '{io.name}'", io, inputs[io.name]))
            for dim, size in zip(io.dims, shape, strict=True):
                if not isinstance(dim, str) or dim not in free:
                    continue
                if sizes.setdefault(dim, size) != size:
                    raise RlxError(
                        f"{manifest.name}: dimension '{dim}' is {sizes[dim]} in {source[dim]}, "
                        f"and {size} in input '{io.name}'"
                    )
                source.setdefault(dim, f"input '{io.name}'")
        return manifest.bind(sizes)

    def _results(
        self, out: Sequence[Array] | None, inputs: Sequence[Array], sizes: Mapping[str, int]
    ) -> list[Array]:
        """Return the arrays that take the results: those given, or new ones."""
        outputs = self._manifest.outputs
        if out is None:
            return [aligned_array(_shape(io, sizes), _DTYPES[io.dtype]) for io in outputs]
        if len(out) != len(outputs):
            names = ", ".join(io.name for io in outputs)
            raise RlxError(f"out: expected {len(outputs)} arrays ({names}), got {len(out)}")
        for i, (io, array) in enumerate(zip(outputs, out, strict=True)):
            what = f"out '{io.name}'"
            if not isinstance(cast(object, array), np.ndarray):
                raise RlxError(f"{what}: expected a numpy array, got {type(array).__name__}")
            _check_array(what, io, array, sizes)
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned and flags.writeable):
                raise RlxError(f"{what}: expected a contiguous, aligned and writable array")
            if any(np.may_share_memory(array, other) for other in (*inputs, *out[:i])):
                raise RlxError(f"{what}: expected memory of its own, it is that of another array")
        return list(out)


def _shape(io: Io, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[d] if isinstance(d, str) else d for d in io.dims)


def _spell(shape: Sequence[int | str], dtype: object) -> str:
    return f"[{', '.join(map(str, shape))}] {dtype}"


def _unlike(what: str, io: Io, array: Array, sizes: Mapping[str, int] | None = None) -> str:
    wanted = _spell(io.dims, _DTYPES[io.dtype].__name__)
    if sizes is not None and any(isinstance(d, str) for d in io.dims):
        wanted += f", here {list(_shape(io, sizes))}"
    return f"{what}: expected {wanted}, got {_spell(array.shape, array.dtype)}"


def _check_array(what: str, io: Io, array: Array, sizes: Mapping[str, int]) -> None:
    if array.dtype != _DTYPES[io.dtype]:
        raise RlxError(f"{_unlike(what, io, array)}: nothing is converted silently, use astype")
    if array.shape != _shape(io, sizes):
        raise RlxError(_unlike(what, io, array, sizes))


def _check_indices(io: Io, array: Array) -> None:
    if not io.index_bound or not array.size:
        return
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= io.index_bound:
        wrong = low if low < 0 else high
        raise RlxError(
            f"input '{io.name}': expected indices from 0 to {io.index_bound - 1}, got {wrong}"
        )


def _check_weights(manifest: Manifest, source: WeightSource) -> None:
    """Raise RlxError unless the source has every weight as the program declares it."""
    for weight in manifest.weights:
        wanted = WeightInfo(weight.shape, weight.format)
        for key in weight.keys():
            got = source.info(key)
            if (tuple(got.shape), got.format) != wanted:
                raise RlxError(f"weight '{key}': expected {_spell(*wanted)}, got {_spell(*got)}")
