"""`rlx-opt --run main`: a program's results on random weights, by the reference or compiled."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from rlx.dialects import lir
from rlx.errors import RlxError
from rlx.lowering.extract import manifest_of
from rlx.lowering.manifest import Io, Manifest
from rlx.passes.pipelines import run_to
from rlx.tools.random_data import RandomWeights, dtype_of, random_input

SHOWN = 8
"""Values that are printed of each result."""

Array = NDArray[Any]


def run_program(module: ModuleOp, args: Namespace) -> str:
    """
    Run @main of a module of any level once, and return a line about each of its results.

    Sizes that `--dim` does not give are the smallest that are allowed. Raises RlxError for a
    program that cannot be planned, and for inputs and sizes that are not as it declares.
    """
    planned = module.clone()
    run_to(planned, "lir")
    manifest = manifest_of(planned)
    weights = RandomWeights(manifest, args.seed)
    files = _pairs("--input", args.input, [io.name for io in manifest.inputs])
    arrays = {name: _load(name, path) for name, path in files.items()}
    sizes = _sizes(manifest, args.dim, arrays)
    bound = manifest.bind(sizes)
    for io in manifest.inputs:
        shape = tuple(bound[d] if isinstance(d, str) else d for d in io.dims)
        if io.name in arrays:
            _check_input(io, shape, arrays[io.name])
        else:
            arrays[io.name] = random_input(io, shape, args.seed)
    if args.run_with == "jit":
        results = _run_compiled(module, weights, arrays, sizes)
    else:
        results = _run_reference(module, planned, weights, arrays, sizes)
    return "".join(_describe(io, results[io.name]) for io in manifest.outputs)


def _run_reference(
    module: ModuleOp,
    planned: ModuleOp,
    weights: RandomWeights,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, int],
) -> dict[str, Array]:
    from rlx.reference import Reference

    if any(op.name == "lir.program" for op in module.ops):
        raise RlxError(
            "--run-with reference takes a module of HIR or MIR, and this one is planned: "
            "leave plan-lir out, or use --run-with jit"
        )
    # Where nothing is written yet, the reference's own state is NaN, and compiled code has zeros.
    state = {
        (op.sym_name.data, layer): np.zeros(op.type.get_shape())
        for op in planned.ops
        if isinstance(op, lir.StateOp)
        for layer in range(op.first.value.data, op.last.value.data)
    }
    return Reference(module, weights, state=state).run(inputs, sizes)


def _run_compiled(
    module: ModuleOp,
    weights: RandomWeights,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, int],
) -> dict[str, Array]:
    from rlx.functions import compile

    function = compile(module, weights)
    ordered = [inputs[io.name] for io in function.manifest.inputs]
    results = function(*ordered, dims=sizes)
    results = results if isinstance(results, tuple) else (results,)
    return {io.name: r for io, r in zip(function.manifest.outputs, results, strict=True)}


def _pairs(option: str, given: Iterable[str], known: list[str]) -> dict[str, str]:
    """Return what `NAME=VALUE` says, by name."""
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise RlxError(f"{option}: expected NAME=VALUE, got '{text}'")
        if name not in known:
            names = ", ".join(known) or "none, the program has no such"
            raise RlxError(f"{option} {text}: expected a name of {names}, got '{name}'")
        pairs[name] = value
    return pairs


def _load(name: str, path: str) -> Array:
    try:
        # A pickle in the file could run anything.
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as e:
        raise RlxError(f"--input {name}: cannot read {path} as .npy: {e}") from e


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
