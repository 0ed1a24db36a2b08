"""`rlx-opt --run main`: a program's results on random weights, by the reference or compiled."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from rlx.dialects import hir
from rlx.errors import RlxError
from rlx.lowering.manifest import Io, Manifest
from rlx.tools.opt.program_io import io_of, is_planned, layers_of
from rlx.tools.random_data import RandomWeights, dtype_of, random_input

SHOWN = 8
"""Values that are printed of each result."""

Array: TypeAlias = NDArray[Any]
State: TypeAlias = dict[tuple[str, int], Array]
"""Symbol and layer -> what a state holds."""
Run: TypeAlias = Callable[[Mapping[str, int]], dict[str, Array]]
"""A step of a program for the sizes of its free dimensions, giving its results by name."""


def run_program(module: ModuleOp, args: Namespace) -> str:
    """
    Run @main of a module of any level once, and return a line about each of its results.

    Raises RlxError for inputs and sizes that are not as the program declares them, and for a
    program that the reference or the compiler cannot run.
    """
    if args.run_with == "reference" and is_planned(module):
        raise RlxError(
            "--run-with reference takes a module of HIR or MIR, and this one is planned: "
            "leave plan-lir out, or use --run-with jit"
        )
    trial = Trial(module, args)
    run = trial.compiled(module) if args.run_with == "jit" else trial.reference(module)
    results = run(trial.sizes)
    return "".join(_describe(io, results[io.name]) for io in trial.outputs)


class Trial:
    """
    Weights and inputs of a program, given or random, on which any form of it can be run.

    Sizes that `--dim` or an input doesn't give are the smallest that are allowed.
    """

    def __init__(self, module: ModuleOp, args: Namespace):
        manifest = io_of(module)
        self.outputs = manifest.outputs
        self._weights = RandomWeights(manifest, args.seed)
        files = _pairs("--input", args.input, [io.name for io in manifest.inputs])
        self._inputs = {name: _load(name, path) for name, path in files.items()}
        self.sizes = _sizes(manifest, args.dim, self._inputs)
        bound = manifest.bind(self.sizes)
        for io in manifest.inputs:
            shape = tuple(bound[d] if isinstance(d, str) else d for d in io.dims)
            if io.name in self._inputs:
                _check_input(io, shape, self._inputs[io.name])
            else:
                self._inputs[io.name] = random_input(io, shape, args.seed)

    def reference(self, module: ModuleOp, state: State | None = None) -> Run:
        """Return what runs a step of a module of HIR or MIR in float64, on a state if given."""
        from rlx.reference import Reference

        state = zero_state(module) if state is None else state
        program = Reference(module, self._weights, state=state)
        return lambda sizes: program.run(self._inputs, sizes)

    def compiled(self, module: ModuleOp) -> Run:
        """Return what runs a step of a module of any level as compiled code."""
        from rlx.functions import compile

        function = compile(module, self._weights)
        ordered = [self._inputs[io.name] for io in function.manifest.inputs]

        def run(sizes: Mapping[str, int]) -> dict[str, Array]:
            results = function(*ordered, dims=sizes)
            results = results if isinstance(results, tuple) else (results,)
            return {io.name: r for io, r in zip(function.manifest.outputs, results, strict=True)}

        return run


def zero_state(module: ModuleOp) -> State:
    """Return the state that a program of HIR or MIR begins with, as compiled code has it."""
    # Where nothing is written yet, the reference's own state is NaN.
    return {
        (op.sym_name.data, layer): np.zeros(op.type.get_shape())
        for op in module.ops
        if isinstance(op, hir.StateOp)
        for layer in range(layers_of(module))
    }


def _pairs(option: str, given: Iterable[str], known: list[str]) -> dict[str, str]:
    """Return what `NAME=VALUE` says, by name."""
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise RlxError(f"{option}: expected NAME=VALUE, got '{text}'")
        if name not in known:
            kind = {"--dim": "free dimension", "--input": "input"}[option]
            if not known:
                raise RlxError(f"{option} {text}: the program has no {kind}")
            raise RlxError(f"{option} {text}: expected a name of {', '.join(known)}, got '{name}'")
        pairs[name] = value
    return pairs


def _load(name: str, path: str) -> Array:
    try:
        # Not `np.load`, which takes archives too. A pickle in the file could run anything.
        with open(path, "rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    # A damaged header may raise anything: errors of Python's syntax, or that memory is too small.
    except Exception as e:
        raise RlxError(f"--input {name}: cannot read {path} as .npy: {e!s:.200}") from e


def _sizes(manifest: Manifest, given: Iterable[str], arrays: Mapping[str, Array]) -> dict[str, int]:
    """Return the sizes of the free dimensions: as given, as in an array, or the smallest."""
    sizes = {d.name: d.low for d in manifest.dims if d.free}
    for io in manifest.inputs:
        # A shape of another rank is refused later, when all sizes are known.
        for dim, size in zip(io.dims, getattr(arrays.get(io.name), "shape", ()), strict=False):
            if dim in sizes:
                sizes[str(dim)] = size
    for name, text in _pairs("--dim", given, list(sizes)).items():
        try:
            sizes[name] = int(text)
        except ValueError as e:
            raise RlxError(f"--dim {name}: expected a whole number, got '{text}'") from e
    return sizes


def _check_input(io: Io, shape: tuple[int, ...], array: Array) -> None:
    dtype = dtype_of(io)
    if array.shape != shape or array.dtype != dtype:
        raise RlxError(
            f"--input {io.name}: expected {list(shape)} {dtype}, "
            f"got {list(array.shape)} {array.dtype}"
        )
    wrong = array[(array < 0) | (array >= io.index_bound)] if io.index_bound else array[:0]
    if wrong.size:
        raise RlxError(
            f"--input {io.name}: expected indices from 0 to {io.index_bound - 1}, got {wrong[0]}"
        )


def _describe(io: Io, result: Array) -> str:
    """Return shape, sum and norm, which are comparable across dtypes, and the first values."""
    values = result.reshape(-1).astype(np.float64)
    with np.errstate(all="ignore"):
        total, norm = values.sum(), np.sqrt((values * values).sum())
    digits = "g" if io.dtype.startswith("i") else ".5g"
    first = " ".join(format(v, digits) for v in values[:SHOWN])
    more = " ..." if values.size > SHOWN else ""
    shape = ", ".join(map(str, result.shape))
    return f"{io.name}: [{shape}] {io.dtype}, sum {total:.5g}, norm {norm:.5g}: {first}{more}\n"
