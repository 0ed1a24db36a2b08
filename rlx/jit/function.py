"""The decorator `rlx.jit`, and what it makes of a function."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar, cast, overload

import numpy as np

from rlx.checks import choice, iterated
from rlx.errors import RlxError
from rlx.jit.checks import INT64, NUMBERS, axes_of, check_hashable, checked, class_of, signature_of
from rlx.jit.entry import Call, Entry, Traced, compile_trace
from rlx.jit.sizes import Size
from rlx.jit.trace import Trace, tracing, writing
from rlx.jit.tree import flatten, identity, unflatten
from rlx.runtime.kept import Calls

if TYPE_CHECKING:
    from rlx.jit.report import Benchmark, Explanation, Lowered
    from rlx.runtime.profile import Profile

P = ParamSpec("P")
R = TypeVar("R")

PRECISIONS = ("exact", "fast")
KEPT_CALLS = 1024
"""Calls by shape that a function remembers; beyond, it starts over."""


@dataclass
class Stats:
    """What a function's calls have cost so far."""

    compilations: int = 0
    """Programs that were made: one for each trace that differs."""
    cached: int = 0
    """How many of them were in the object cache."""
    traces: int = 0


@overload
def jit(
    fn: Callable[P, R], *, static_argnames: Iterable[str] = ...,
    specialize: Iterable[str] | Mapping[str, Sequence[int]] = ..., precision: str = ...,
    threads: int | None = ...,
) -> JitFunction[P, R]: ...  # fmt: skip
@overload
def jit(
    fn: None = None, *, static_argnames: Iterable[str] = ...,
    specialize: Iterable[str] | Mapping[str, Sequence[int]] = ..., precision: str = ...,
    threads: int | None = ...,
) -> Callable[[Callable[P, R]], JitFunction[P, R]]: ...  # fmt: skip
def jit(
    fn: Callable[..., Any] | None = None, *, static_argnames: Iterable[str] = (),
    specialize: Iterable[str] | Mapping[str, Sequence[int]] = (), precision: str = "exact",
    threads: int | None = None,
) -> Any:  # fmt: skip
    """
    Compile a function of numpy arrays: it is traced when it is first called, and runs fused.

    There is one compilation for each combination of dtypes, ranks, and axes of size 1; all other
    sizes may differ from call to call. `static_argnames` names arguments whose values the function
    needs while it is traced, each value being a compilation of its own. `specialize` names
    arguments whose sizes are fixed in the compiled code (all axes, or those that a mapping gives).
    `precision`: with `fast` exp, log, tanh and their like of f32 lose a few bits and take half the
    time or less (docs/jit.md says how many and how much). `threads` is clamped to the CPUs that
    this process may use.

    Raises RlxError for options that don't fit the function.
    """
    if fn is None:
        return partial(
            JitFunction[Any, Any], static_argnames=static_argnames, specialize=specialize,
            precision=precision, threads=threads,
        )  # fmt: skip
    return JitFunction(fn, static_argnames, specialize, precision, threads)


class JitFunction(Generic[P, R]):
    """A compiled function; called as the function that it was made of, with `out=` besides."""

    def __init__(
        self,
        function: Callable[P, R],
        static_argnames: Iterable[str] = (),
        specialize: Iterable[str] | Mapping[str, Sequence[int]] = (),
        precision: str = "exact",
        threads: int | None = None,
    ):
        self._signature = signature_of(function)
        precision = choice("precision", precision, PRECISIONS)
        update_wrapper(self, function)
        self._function = function
        self._name = getattr(function, "__name__", "function").strip("<>")
        taken = self._signature.parameters.get("out")
        # numpy's functions mean the same by it.
        home = str(getattr(function, "__module__", "")).split(".")[0]
        numpys = isinstance(function, np.ufunc) or home == "numpy"
        if taken is not None and not (numpys and taken.default is None):
            raise RlxError(
                f"rlx.jit: {self._name} has an argument named out: that is where callers of a "
                "compiled function give the arrays for its results: give it another name"
            )
        self._static = frozenset(self._names("static_argnames", static_argnames))
        names = self._names("specialize", specialize)
        axes = cast("Mapping[str, object]", specialize)
        every = not isinstance(specialize, Mapping)
        self._fixed = {n: None if every else axes_of(n, axes[n]) for n in names}
        self._precision = precision
        self._threads = threads
        self._last: tuple[Any, bool] | None = None
        self._calls: Calls[Call] = Calls(KEPT_CALLS)
        self._entries: dict[Any, list[Entry]] = {}
        self._lock = threading.RLock()
        self.stats = Stats()

    def _names(self, what: str, names: Iterable[str]) -> list[str]:
        if isinstance(names, str):
            names = (names,)
        given = names.keys() if isinstance(names, Mapping) else names
        found: list[str] = list(iterated(what, given, "names of arguments"))
        for name in found:
            if not isinstance(cast(object, name), str) or name not in self._signature.parameters:
                known = ", ".join(self._signature.parameters) or "none"
                raise RlxError(
                    f"{what}: expected arguments of {self._name} ({known}), got {name!r}"
                )
        return found

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a method, whose instance must be a nest of arrays."""
        if instance is None:
            return self
        return partial(self, instance)

    def __call__(self, *args: Any, out: Any = None, **options: Any) -> Any:
        last = self._last
        if last is not None and not options:
            # The last call again: native code compares the arrays with what it was made for.
            native, single = last
            if out is None:
                outs: tuple[Any, ...] = native.results()
            else:
                outs = cast("tuple[Any, ...]", out) if type(out) is tuple else (out,)
            given = args + native.more if native.more else args
            status = native.enter(native.address, given, outs, native.wait)
            results = native.again(status, given, outs, out is not None) if status else outs
            if results is not None:
                return results[0] if single else results
        return self._slow(args, out, options)

    def _slow(self, args: tuple[Any, ...], out: Any, options: dict[str, Any]) -> Any:
        if tracing():
            # Inside another traced function it is part of that one.
            return cast(Any, self._function)(*args, **options)
        key = None if options else _plain_key(args)
        call = self._calls.get(key) if key is not None else None
        leaves: Sequence[Any] = args
        if call is None:
            call, leaves = self._call(args, options)
            if key is not None and not self._static:
                self._calls.add(key, call)
        if key is not None and not self._static and call.direct and call.native is not None:
            self._last = call.native, call.single
        return call.run(leaves, out)

    # From arguments to a call

    def _call(self, args: Sequence[Any], options: Mapping[str, Any]) -> tuple[Call, list[Any]]:
        """Return the call for arguments, traced and compiled where there is none yet."""
        given = self._given(args, options)
        statics = tuple((name, identity(value)) for name, value in given.statics)
        key = (given.structures, statics, tuple(map(_leaf_key, given.leaves)))
        shapes = [np.shape(x) for x in given.leaves]
        whole = (key, tuple(shapes))
        call = self._calls.get(whole)
        if call is not None:
            return call, given.leaves
        with self._lock:
            for entry in self._entries.get(key, []):
                call = entry.bind(shapes)
                if call is not None:
                    break
            else:
                entry = self._compile(self._trace(given))
                self._entries.setdefault(key, []).append(entry)
                call = entry.bind(shapes)
                assert call is not None, "a trace serves the call that it was made for"
            self._calls.add(whole, call)
        return call, given.leaves

    def _given(self, args: Sequence[Any], options: Mapping[str, Any]) -> Given:
        try:
            bound = self._signature.bind(*args, **options)
        except TypeError as e:
            raise TypeError(f"{self._name}(): {e}") from None
        leaves: list[Any] = []
        names: list[str] = []
        structures: list[tuple[str, Any]] = []
        statics: list[tuple[str, Any]] = []
        for name, value in bound.arguments.items():
            if name in self._static:
                statics.append((name, value))
                continue
            structures.append((name, flatten(value, leaves)))
            names += [name] * (len(leaves) - len(names))
        for name, value in statics:
            check_hashable(self._name, name, value)
        for i, (name, leaf) in enumerate(zip(names, leaves, strict=True)):
            leaves[i] = checked(f"{self._name}: argument '{name}'", leaf)
        return Given(tuple(structures), tuple(statics), leaves, names)

    def _trace(self, given: Given) -> Traced:
        """Run the function on tracers of its arguments."""
        trace = Trace(self._name)
        with writing(trace):
            tracers = [
                self._argument(trace, leaf, name)
                for name, leaf in zip(given.names, given.leaves, strict=True)
            ]
            arguments = dict(given.statics)
            rest = iter(tracers)
            arguments |= {name: unflatten(s, rest) for name, s in given.structures}
            bound = inspect.BoundArguments(
                self._signature,
                cast(Any, {n: arguments[n] for n in self._signature.parameters if n in arguments}),
            )
            result = cast(Any, self._function)(*bound.args, **bound.kwargs)
            numbers = frozenset(t.number for t in tracers if t.weak is not None)
            traced = _finish(trace, result, self._name, numbers)
        self.stats.traces += 1
        return traced

    def _argument(self, trace: Trace, leaf: Any, name: str) -> Any:
        from rlx.jit.tracer import Tracer

        if type(leaf) in NUMBERS:
            number = trace.value(np.asarray(leaf).dtype, ())
            weak = NUMBERS.get(class_of(leaf))
        else:
            rank = len(leaf.shape)
            fixed = self._fixed.get(name, ())
            beyond = [a for a in fixed or () if not -rank <= a < rank]
            if beyond:
                raise RlxError(
                    f"{self._name}: specialize: argument '{name}' has {rank} axes, got axis "
                    f"{beyond[0]}"
                )
            axes = range(rank) if fixed is None else [a % rank for a in fixed]
            dims = tuple(
                size if size == 1 or i in axes else trace.dims.free(size)
                for i, size in enumerate(leaf.shape)
            )
            number, weak = trace.value(leaf.dtype.newbyteorder("="), dims), None
        trace.main.arguments.append(number)
        return Tracer(trace, number, weak, trace.main)

    def _compile(self, traced: Traced) -> Entry:
        if not traced.trace.main.results:
            return Entry(traced, None, False)
        program, cached = compile_trace(traced.trace, self._precision, self._threads)
        self.stats.compilations += 1
        self.stats.cached += cached
        return Entry(traced, program, cached)

    # Looking inside

    def lower(self, *args: P.args, **options: P.kwargs) -> Lowered:
        """Return the trace of a call, whose stages can be printed, without running it."""
        from rlx.jit.report import Lowered

        traced = self._trace(self._given(args, options))
        return Lowered(traced, self._precision, self._threads)

    def ir(self, stage: str, *args: P.args, **options: P.kwargs) -> str:
        """Return the program for a call at a stage: `hir`, `mir`, `lir`, `llvm` or `asm`."""
        return self.lower(*args, **options).ir(stage)

    def explain(self, *args: P.args, **options: P.kwargs) -> Explanation:
        """Return what became of a call: its kernels, fusions, bytes moved, and its arena."""
        from rlx.jit.report import explain

        call, _ = self._call(args, options)
        return explain(call)

    def benchmark(self, *args: P.args, **options: P.kwargs) -> Benchmark:
        """Return how long calls with these arguments take."""
        from rlx.jit.report import benchmark

        call, leaves = self._call(args, options)
        return benchmark(call, leaves)

    def profile(self, *args: P.args, **options: P.kwargs) -> Profile:
        """
        Return where the time of calls with these arguments goes: kernels, barriers, bytes.

        The function is compiled again, with marks. Raises RlxError where it returns no array.
        """
        from rlx.jit.report import profile

        call, leaves = self._call(args, options)
        return profile(call, leaves, self._precision, self._threads)

    def __repr__(self) -> str:
        return f"<rlx.jit function {self._name}, {self.stats.compilations} compilations>"


class Given(NamedTuple):
    """The arguments of a call: nests by name, static values, and the leaves with their names."""

    structures: tuple[tuple[str, Any], ...]
    statics: tuple[tuple[str, Any], ...]
    leaves: list[Any]
    names: list[str]


def _plain_key(args: Sequence[Any]) -> Any:
    """Return the key of a call with arrays and numbers alone; None for any other."""
    key: list[Any] = []
    for x in args:
        kind = class_of(x)
        if kind is np.ndarray:
            key.append((x.shape, x.dtype))
        elif kind in NUMBERS and (kind is not int or x in INT64):
            key.append(kind)
        else:
            return None
    return tuple(key)


def _leaf_key(x: Any) -> Any:
    kind = class_of(x)
    return kind if kind in NUMBERS else (x.dtype.newbyteorder("=").char, x.ndim)


def _finish(trace: Trace, result: Any, name: str, numbers: frozenset[int]) -> Traced:
    """Return the finished trace of a function that returned a nest."""
    from rlx.jit import core

    leaves: list[Any] = []
    structure = flatten(result, leaves)
    found: list[tuple[str, Any]] = []
    for leaf in leaves:
        if isinstance(leaf, Size):
            found.append(("size", leaf.name))
        elif isinstance(cast(object, leaf), core.Value | np.ndarray | np.generic):
            trace.main.results.append(core.lift(leaf, what=f"{name}: the result").number)
            found.append(("array", len(trace.main.results) - 1))
        elif isinstance(leaf, Iterator | Awaitable):
            raise RlxError(
                f"{name}: the result: expected arrays and nests of them, got "
                f"{class_of(cast(object, leaf)).__name__}: return a list"
            )
        else:
            found.append(("value", leaf))
    return Traced(trace, structure, tuple(found), numbers)
