"""A compiled trace and the calls that it serves: sizes checked, arrays bound, the program run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from rlx.errors import RlxError
from rlx.jit.dims import COMPARISONS, Dim, evaluate
from rlx.jit.trace import Array, Shape, Trace
from rlx.jit.tree import LEAF, Nest, flatten, unflatten

if TYPE_CHECKING:
    from rlx.lowering.target import Target
    from rlx.runtime import calls
    from rlx.runtime.program import Program
    from rlx.runtime.recorder import Recorder


class Traced(NamedTuple):
    """A finished trace with what the function returned: arrays, sizes, and plain values."""

    trace: Trace
    structure: Any
    """Of what the function returned."""
    leaves: tuple[tuple[str, Any], ...]
    """`array` with its place among the results, `size` with a dimension, `value` with itself."""
    numbers: frozenset[int] = frozenset()
    """The arguments that are Python numbers."""

    @property
    def input_shapes(self) -> list[Shape]:
        """Return the shapes of the arguments as the call gave them names."""
        return [self.trace.types[v][1] for v in self.trace.main.arguments]

    @property
    def output_types(self) -> list[tuple[str, Shape]]:
        return [self.trace.type_of(v) for v in self.trace.main.results]


class Entry:
    """A compiled trace: one program, which serves the calls whose sizes hold to its guards."""

    def __init__(self, traced: Traced, program: Program | None, cached: bool):
        self.traced = traced
        self.program = program
        """The program; None where the function returns no array."""
        self.cached = cached
        """Whether the program came from the object cache."""

    def bind(self, shapes: Sequence[tuple[int, ...]]) -> Call | None:
        """Return the call for shapes of the arguments; None where the trace does not serve them."""
        sizes = self._sizes(shapes)
        if sizes is None:
            return None
        dims = self.traced.trace.dims
        for guard in dims.guards:
            left, right = (evaluate(dims.derived, sizes, d) for d in (guard.left, guard.right))
            if COMPARISONS[guard.relation](left, right) != guard.holds:
                return None
        for name in dims.hints:
            evaluate(dims.derived, sizes, name)
        return Call(self, sizes)

    def _sizes(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int] | None:
        """Return the sizes of free dimensions; None where one is not as the trace has it."""
        sizes: dict[str, int] = {}
        for names, shape in zip(self.traced.input_shapes, shapes, strict=True):
            for name, size in zip(names, shape, strict=True):
                # A size of 1 broadcasts: it has traces of its own.
                if (isinstance(name, int) and name != size) or (size == 1 and name != 1):
                    return None
                if isinstance(name, str):
                    sizes[name] = size
        return sizes


class Call:
    """A program prepared for the shapes of a call."""

    def __init__(self, entry: Entry, sizes: dict[str, int]):
        from rlx.runtime import calls

        self.entry = entry
        self.all_sizes = sizes
        traced, program = entry.traced, entry.program
        trace = traced.trace
        self._known = tuple(np.asarray(self.size(d), np.int64) for d in trace.sizes)
        arguments = [self._argument(i) for i in range(len(trace.main.arguments))]
        arguments += [calls.Argument(np.dtype(np.int64))] * len(self._known)
        self.captured = tuple(trace.captured)
        """Arrays of the surrounding code, which are read as they are at each call."""
        arguments += [calls.Argument(np.dtype(a.dtype.name), a.shape) for a in self.captured]
        self.native: calls.Call | None = None
        """None where the function returns no array."""
        self.sizes: dict[str, int] = {}
        """Sizes of the program's free dimensions."""
        if program is not None:
            self.sizes = {n: sizes[n] for n in program.manifest.free}
            every = program.manifest.bind(self.sizes)
            self.native = calls.Call(program, arguments, every, self.captured)
        self._arguments = arguments
        self.outputs = [
            (tuple(map(self.size, shape)), np.dtype(dtype)) for dtype, shape in traced.output_types
        ]
        self.result_bytes = sum(prod(shape) * dtype.itemsize for shape, dtype in self.outputs)
        kinds = [kind for kind, _ in traced.leaves]
        whole = kinds == ["array"] * len(kinds) and not self._known and bool(kinds)
        self.single = whole and traced.structure == LEAF
        several = whole and traced.structure == Nest(tuple, (), (LEAF,) * len(kinds))
        self.direct = self.single or several
        """Whether the native call takes just the arguments and gives the whole result."""

    def _argument(self, index: int) -> calls.Argument:
        from rlx.runtime.calls import Argument

        trace = self.entry.traced.trace
        value = trace.main.arguments[index]
        dtype, shape = trace.types[value]
        number = value in self.entry.traced.numbers and dtype == "float64"
        return Argument(np.dtype(dtype), tuple(map(self.size, shape)), number)

    def size(self, dim: Dim) -> int:
        """Return the size of a dimension in this call."""
        return dim if isinstance(dim, int) else self.all_sizes[dim]

    @property
    def free_sizes(self) -> NDArray[np.int64]:
        """Return the sizes of the program's free dimensions, in their order."""
        return np.array(list(self.sizes.values()), np.int64)

    def run(self, leaves: Sequence[Any], out: Any) -> Any:
        """Return the function's result on the arrays and numbers of the call."""
        given = (*leaves, *self._known, *self.captured)
        pairs = zip(given, self._arguments, strict=True)
        inputs = tuple(a.ready(x) for x, a in pairs)
        results = self._into(out, inputs) if out is not None else self._run(inputs, None)
        return results[0] if self.single else self._built(results)

    def _run(self, inputs: tuple[Any, ...], outs: tuple[Array, ...] | None) -> tuple[Array, ...]:
        native = self.native
        if native is None:
            return ()
        given = outs is not None
        outs = native.results() if outs is None else outs
        status = native.enter(native.address, inputs, outs, native.wait)
        results = native.again(status, inputs, outs, given) if status else outs
        if results is None:
            raise RlxError(
                f"{self.entry.traced.trace.name}: an array of the code around the function is "
                "no longer of the shape that it was traced with: give it as an argument"
            )
        return results

    def _built(self, results: Sequence[Array]) -> Any:
        """Return the nest that the function returned, with its arrays."""
        kinds: dict[str, Any] = {"array": results.__getitem__, "size": self.size}
        leaves = (kinds[k](x) if k in kinds else x for k, x in self.entry.traced.leaves)
        return unflatten(self.entry.traced.structure, iter(leaves))

    def _into(self, out: Any, inputs: tuple[Any, ...]) -> tuple[Array, ...]:
        """Run into the arrays of `out`; what can't be written as it lies goes through a copy."""
        given = self._outs(out)
        arrays: list[Array] = [x for x in inputs if type(x) is np.ndarray]
        results: list[Array] = []
        for i, array in enumerate(given):
            flags, (shape, dtype) = array.flags, self.outputs[i]
            others = (*arrays, *self.captured, *given[:i])
            direct = flags.c_contiguous and flags.aligned and array.dtype is dtype
            direct = direct and not any(np.may_share_memory(array, other) for other in others)
            results.append(array if direct else np.empty(shape, dtype))
        self._run(inputs, tuple(results))
        for array, result in zip(given, results, strict=True):
            if array is not result:
                array[...] = result
        return given

    def _outs(self, out: Any) -> tuple[Array, ...]:
        """Return the arrays of `out`, checked."""
        name = self.entry.traced.trace.name
        given: list[Any] = []
        flatten(out, given)
        if len(given) != len(self.outputs):
            raise RlxError(f"{name}: out: expected {len(self.outputs)} arrays, got {len(given)}")
        for array, (shape, dtype) in zip(given, self.outputs, strict=True):
            fits = type(array) is np.ndarray and array.shape == shape and array.flags.writeable
            if not fits or array.dtype.newbyteorder("=") != dtype:
                raise RlxError(
                    f"{name}: out: expected a writable array {list(shape)} {dtype}, got "
                    f"{_spell(array)}"
                )
        return tuple(given)


def _spell(x: object) -> str:
    if not isinstance(x, np.ndarray):
        return type(x).__name__
    array = cast(Array, x)
    return f"{list(array.shape)} {array.dtype}" + ("" if array.flags.writeable else ", read-only")


def compile_trace(
    trace: Trace,
    precision: str,
    threads: int | None,
    poison: bool = False,
    recorder: Recorder | None = None,
) -> tuple[Program, bool]:
    """
    Return the program of a trace, and whether it was in the object cache.

    With `poison` its arena starts as NaN, so that a read of a byte that nothing has written shows.
    With a recorder it has marks.
    """
    from rlx.lowering.target import Target
    from rlx.runtime.calls import shared_team
    from rlx.runtime.compiled import Compiled, from_cache
    from rlx.runtime.memory import Segment
    from rlx.runtime.program import Program

    target, marks = Target.host(), recorder is not None
    what = f"the function {trace.name}"

    def make() -> Compiled:
        from rlx.compiler import collector_paused, compile_program

        with collector_paused():
            from rlx.jit.build import build, refusals

            with refusals(what):
                return compile_program(build(trace, precision, marks), target, what=what)

    compiled, cached = from_cache(_key(trace, target, precision, marks), what, make)
    team = shared_team(threads)
    program = Program(compiled.manifest, compiled.code, team, Segment(64), poison, recorder)
    program.start(Segment(64))
    return program, cached


def _key(trace: Trace, target: Target, precision: str, marks: bool) -> str:
    import llvmlite

    from rlx.runtime.cache import ObjectCache

    return ObjectCache.key(
        "jit", trace.name, trace.text(), precision, _digest(), llvmlite.__version__,
        target.triple, target.attributes, marks,
    )  # fmt: skip


@cache
def _digest() -> str:
    from rlx.runtime.compiled import source_digest

    return source_digest()
