"""
Cases of the records of operations: modules made of them, memory to run them in, and their check.

Several cases are one module, side by side in @main, so that few modules are compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from fuzz.checking import Guarded
from kernels import Fenced
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IntegerType,
    ModuleOp,
    Signedness,
    StringAttr,
    f16,
    f32,
    f64,
    i1,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from rlx.dialects.common import DIMS, DimDef, DimTableAttr, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind
from rlx.dialects.writer import Writer
from rlx.flow.source import MapWeights
from rlx.functions import Built, CompiledFunction, build
from rlx.lowering.target import Target
from rlx.ops.record import Case, Record, Surroundings, nmse
from rlx.ops.samples import DTYPES, Draw
from rlx.passes.diagnostics import IrError
from rlx.passes.source import context, parse
from rlx.passes.verify_dims import check_dims
from rlx.reference import Reference

ELEMENTS: dict[str, Attribute] = {"f32": f32, "f64": f64, "f16": f16, "i1": i1}
ELEMENTS |= {f"i{n}": IntegerType(n) for n in (8, 16, 32, 64)}
ELEMENTS |= {f"u{n}": IntegerType(n, Signedness.UNSIGNED) for n in (8, 32)}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
BITS = {np.dtype(np.float64): 53, np.dtype(np.float32): 24, np.dtype(np.float16): 11}

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Drawn:
    """A case and where it came from; `python -m op_cases NAME SEED ELEMENT` checks it alone."""

    record: Record
    element: str
    seed: int
    case: Case

    @property
    def name(self) -> str:
        return f"{self.record.name} {self.seed} {self.element}"


def drawn(record: Record, element: str, seed: int) -> Drawn:
    return Drawn(record, element, seed, record.sample(Draw(seed, element)))


def type_of(array: np.ndarray) -> Attribute:
    return tensor(array.shape, ELEMENTS[NAMES[array.dtype]])


def module_of(cases: Sequence[Case], around: Surroundings | None = None) -> ModuleOp:
    """Return a module of cases: input i of case c is `x<c>_<i>`, and result i is `y<c>_<i>`."""
    around = around or Surroundings()
    types = list(around.types) or [type_of(a) for case in cases for a in case.arrays]
    block, writer = Block(arg_types=types), Writer()
    left, results = list(block.args), []
    ins: list[str] = []
    outs: list[str] = []
    for c, case in enumerate(cases):
        mine, left = left[: len(case.arrays)], left[len(case.arrays) :]
        made = list(case.build(writer, mine))
        results += made
        ins += [f"x{c}_{i}" for i in range(len(mine))]
        outs += [f"y{c}_{i}" for i in range(len(made))]
    block.add_ops([*writer.made, ReturnOp(*results)])
    main = FuncOp("main", (types, [r.type for r in results]), Region(block))
    main.arg_attrs, main.res_attrs = _named(ins), _named(outs)
    dims = {DIMS: DimTableAttr.of(around.dims)} if around.dims else {}
    module = ModuleOp([*(op.clone() for op in around.declared), main], dims)
    module.verify()
    return module


def _named(names: Sequence[str]) -> ArrayAttr[DictionaryAttr]:
    return ArrayAttr([DictionaryAttr({"rlx.name": StringAttr(name)}) for name in names])


@dataclass
class Batch:
    """Cases side by side in one module; one with surroundings is alone."""

    drawn: Sequence[Drawn]

    @cached_property
    def around(self) -> Surroundings:
        given = [d.case.around for d in self.drawn if d.case.around is not None]
        assert not given or len(self.drawn) == 1
        return given[0] if given else Surroundings()

    @cached_property
    def inputs(self) -> Arrays:
        cases = [d.case.arrays for d in self.drawn]
        return {f"x{c}_{i}": a for c, arrays in enumerate(cases) for i, a in enumerate(arrays)}

    @cached_property
    def module(self) -> ModuleOp:
        return module_of([d.case for d in self.drawn], self.around)

    def owner(self, result: str) -> Drawn:
        """Return the case of a result."""
        return self.drawn[int(result[1:].partition("_")[0])]

    @cached_property
    def wanted(self) -> Arrays:
        """What the reference gives in float64."""
        reference = Reference(self.module, dict(self.around.weights))
        return reference.run(self.inputs, self.around.sizes)

    def built(self, level: str) -> Built:
        return build(self.module, Target.named(level))

    def run(self, built: Built, threads: int) -> Arrays:
        """Run it in a poisoned arena; no byte around an array may change, and no input's."""
        function = CompiledFunction(built, MapWeights(self.around.weights), threads, poison=True)
        inputs = {name: Fenced(array) for name, array in self.inputs.items()}
        got = self._call(function, [fenced.array for fenced in inputs.values()])
        for name, fenced in inputs.items():
            assert fenced.array.tobytes() == self.inputs[name].tobytes(), f"input {name} changed"
        return got

    def run_strided(self, built: Built) -> Arrays:
        """Run it on inputs whose elements lie apart."""
        function = CompiledFunction(built, MapWeights(self.around.weights), 1, poison=True)
        return self._call(function, [_strided(array) for array in self.inputs.values()])

    def _call(self, function: CompiledFunction, inputs: Sequence[np.ndarray]) -> Arrays:
        manifest = function.manifest
        out = {
            name: Guarded(np.full(a.shape, 77, _dtype(a, io.dtype)))
            for (name, a), io in zip(self.wanted.items(), manifest.outputs, strict=True)
        }
        seen = {d for io in manifest.inputs for d in io.dims}
        dims = {d: n for d, n in self.around.sizes.items() if d not in seen}
        function(*inputs, dims=dims, out=[g.array for g in out.values()])
        for g in out.values():
            g.check()
        return {name: g.array.copy() for name, g in out.items()}

    def check(self, levels: Sequence[str], threads: Sequence[int] = (1, 2)) -> None:
        """Compare with the reference at each level, and threads and layouts bit by bit."""
        for level in levels:
            built = self.built(level)
            first, *others = (self.run(built, n) for n in threads)
            self.compare(first, level)
            if level == levels[0]:
                others.append(self.run_strided(built))
            for name, other in ((name, other) for other in others for name in first):
                where = f"{self.owner(name).name}: {level}, threads {threads} or strides"
                np.testing.assert_array_equal(other[name], first[name], where)

    def compare(self, got: Arrays, what: str) -> None:
        for name, value in got.items():
            d = self.owner(name)
            where = f"{d.name}: {what}, result {name}"
            assert_near(value, self.wanted[name], d.record.nmse, where)

    def check_text(self) -> None:
        """The module prints to what reads back as itself."""
        text = str(self.module)
        again = parse(context(), text.encode(), "case")
        again.verify()
        assert str(again) == text


def _dtype(array: np.ndarray, element: str) -> np.dtype:
    """Return the dtype of a result, from its element as the manifest spells it."""
    return np.dtype(DTYPES[element.replace("ui", "u")]) if array.dtype.kind == "f" else array.dtype


def _strided(array: np.ndarray) -> np.ndarray:
    """Return a view with the elements of an array, and as many between them."""
    return np.repeat(array[..., None], 2, axis=-1)[..., 0]


def assert_near(got: np.ndarray, want: np.ndarray, limit: float, where: str) -> None:
    """
    Assert that integers are the same, and that the squared error of floats is within a limit.

    The limit is that of f32; rounding of another type is smaller or larger by its digits.
    """
    assert got.shape == want.shape, where
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, where)
        return
    beyond = np.isfinite(want) & (np.abs(want) > np.finfo(got.dtype).max)
    assert (got[beyond] == np.copysign(np.inf, want[beyond])).all(), where
    error = nmse(got[~beyond], want[~beyond])
    allowed = limit * 4.0 ** (BITS[np.dtype(np.float32)] - BITS[got.dtype])
    assert error <= allowed, f"{where}: NMSE {error:.2e}, allowed {allowed:.2e}"


def batches(cases: Sequence[Drawn], size: int = 8) -> list[Batch]:
    """Return cases in batches; those with surroundings are alone."""
    plain = [d for d in cases if d.case.around is None]
    alone = [Batch([d]) for d in cases if d.case.around is not None]
    return [Batch(plain[i : i + size]) for i in range(0, len(plain), size)] + alone


def of_any_size(d: Drawn, names: int) -> Drawn | None:
    """
    Return a case whose first `names` dimensions have names, in all inputs that begin with them.

    None where the operation takes numbers for them, or has no such dimensions.
    """
    first = d.case.arrays[0].shape[:names] if d.case.arrays else ()
    sizes = {f"d{i}": n for i, n in enumerate(first)}
    if d.case.around is not None or len(sizes) < names or 0 in sizes.values():
        return None
    types = [_renamed(array, sizes) for array in d.case.arrays]
    dims = [DimDef(name, 1, n + 5) for name, n in sizes.items()]
    case = replace(d.case, around=Surroundings(dims=dims, sizes=sizes, types=types))
    again = replace(d, case=case)
    try:
        check_dims(parse(context(), str(Batch([again]).module).encode(), "case"))
    except (VerifyException, IrError):
        return None
    return again


def among_others(d: Drawn) -> Drawn:
    """
    Return a case whose operands are results of others, and whose results are operands.

    Each is multiplied by one, which the program doesn't know: fusion may take the operation, and
    the plan may let it run in place.
    """

    def build(w: Writer, v: Sequence[SSAValue]) -> Sequence[SSAValue]:
        *given, one = v
        results = d.case.build(w, [_times(w, x, one) for x in given])
        return [_times(w, x, one) for x in results]

    arrays = [*d.case.arrays, np.array(1, np.float32)]
    around = d.case.around
    if around is not None and around.types:
        around = replace(around, types=[*around.types, tensor([])])
    return replace(d, case=replace(d.case, arrays=arrays, build=build, around=around))


def _times(w: Writer, x: SSAValue, one: SSAValue) -> SSAValue:
    element = element_of(x.type)
    if element == f16:
        return x  # It has no arithmetic.
    ones = w.spread(w.cast(one, element), dims_of(x.type))
    return w.binary(BinaryKind.AND if element == i1 else BinaryKind.MUL, x, ones)


def _renamed(array: np.ndarray, sizes: dict[str, int]) -> Attribute:
    element, dims = ELEMENTS[NAMES[array.dtype]], list[int | str](array.shape)
    if dims[: len(sizes)] == list(sizes.values()):
        dims[: len(sizes)] = sizes
    return tensor(dims, element)


def main() -> int:
    from rlx.ops.registry import all_records

    name, seed, element = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    record = next(r for r in all_records() if r.name == name)
    batch = Batch([drawn(record, element, seed)])
    print(batch.module)
    batch.check_text()
    batch.check(["host"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
