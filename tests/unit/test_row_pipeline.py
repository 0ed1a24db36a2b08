"""Large results of rows that are reduced: a row is written while the next one is reduced."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from kernels import Fenced, levels
from row_texts import COLUMN, ROW, VECTOR, normal, program, within

from rlx.flow.source import MapWeights
from rlx.functions import CompiledFunction, build
from rlx.lowering import tensor_pipeline
from rlx.lowering.target import Target
from rlx.lowering.tensor_pipeline import Pipeline

KEEP = "tensor<?x1xf32, #hir.dims<r, _>>"


def over(kind: str, source: str, name: str) -> str:
    """Return the text of a row's reduction, in every element of the row."""
    return f"""%{name}r = mir.reduce {kind} %{source} axes [1] : {ROW} -> {COLUMN}
    %{name}k = mir.reshape %{name}r : {COLUMN} -> {KEEP}
    %{name} = mir.broadcast %{name}k : {KEEP} -> {ROW}"""


def op(name: str, kind: str, *args: str) -> str:
    """Return the text of a map."""
    which = "unary" if len(args) == 1 else "binary"
    return f"%{name} = mir.{which} {kind} {', '.join('%' + a for a in args)} : {ROW}"


def lines(*texts: str) -> str:
    return "\n    ".join(texts)


class Case(NamedTuple):
    text: str
    reductions: tuple[int, int] | None
    """How many reductions of a row are early and in the middle; None where rows are alone."""
    element: type = np.float32
    vectors: int = 0
    rank: int = 2


F64, CUBE = ROW.replace("f32", "f64"), "tensor<?x?x?xf32, #hir.dims<q, r, n>>"
CENTRED = lines(over("mean", "x0", "m"), op("c", "sub", "x0", "m"), op("s", "mul", "c", "c"))
EXPS = lines(over("max", "x0", "m"), op("c", "sub", "x0", "m"), op("e", "exp", "c"))
TANH = op("t", "tanh", "x0")

CASES = {
    "softmax": Case(program([ROW], [ROW], f"%y0 = mir.softmax %x0 : {ROW}"), (1, 0)),
    "softmax of f64": Case(
        program([F64], [F64], f"%y0 = mir.softmax %x0 : {F64}"), (1, 0), np.float64
    ),
    "softmax of a cube": Case(
        program([CUBE], [CUBE], f"%y0 = mir.softmax %x0 : {CUBE}", "qrn"), (1, 0), rank=3
    ),
    "layer norm": Case(
        program(
            [ROW, VECTOR, VECTOR],
            [ROW],
            f"%y0 = mir.layer_norm %x0, %x1, %x2 eps 1.0e-05 : {ROW}, {VECTOR}",
        ),
        (1, 0),
        vectors=2,
    ),
    "one reduction": Case(
        program([ROW], [ROW], lines(TANH, over("sum", "t", "s"), op("y0", "div", "t", "s"))),
        (0, 0),
    ),
    "logarithms": Case(
        program(
            [ROW],
            [ROW],
            lines(EXPS, over("sum", "e", "s"), op("l", "log", "s"), op("y0", "sub", "c", "l")),
        ),
        (1, 0),
    ),
    "two results": Case(
        program(
            [ROW],
            [ROW, ROW],
            lines(EXPS, over("sum", "e", "s"), op("y0", "div", "e", "s"), op("y1", "neg", "c")),
        ),
        (1, 0),
    ),
    "one after the other": Case(
        program(
            [ROW],
            [ROW],
            lines(
                CENTRED,
                over("mean", "s", "v"),
                op("d", "div", "c", "v"),
                over("max", "d", "k"),
                op("y0", "mul", "d", "k"),
            ),
        ),
        (1, 1),
    ),
    "three of what is given": Case(
        program(
            [ROW],
            [ROW],
            lines(
                over("min", "x0", "a"),
                over("sum", "x0", "b"),
                EXPS,
                over("sum", "e", "s"),
                op("p", "div", "e", "s"),
                op("u", "add", "a", "b"),
                op("y0", "add", "p", "u"),
            ),
        ),
        (2, 1),
    ),
    "kept for three stages": Case(
        program(
            [ROW],
            [ROW],
            lines(
                TANH,
                over("mean", "t", "m"),
                op("c", "sub", "t", "m"),
                over("max", "c", "k"),
                op("y0", "mul", "c", "k"),
            ),
        ),
        None,
    ),
    "kept and used elsewhere": Case(
        program(
            [ROW],
            [ROW],
            lines(
                EXPS,
                over("sum", "e", "s"),
                op("p", "div", "e", "s"),
                f"%b = mir.reverse %e axes [1] : {ROW}",
                op("y0", "add", "p", "b"),
            ),
        ),
        None,
    ),
    "sums of other rows": Case(
        program(
            [ROW],
            [ROW],
            lines(
                over("sum", "x0", "s"),
                f"%b = mir.reverse %s axes [0] : {ROW}",
                op("c", "sub", "x0", "b"),
                op("y0", "mul", "c", "s"),
            ),
        ),
        (0, 0),
    ),
}  # fmt: skip


class Compiled(NamedTuple):
    functions: dict[int, CompiledFunction]
    """By number of threads."""
    taken: list[tuple[int, int]]
    """For each loop that takes rows in turn, its early and its middle reductions."""


@cache
def compiled(name: str, level: str = "host", in_turn: bool = True) -> Compiled:
    taken: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        given, emit = tensor_pipeline.Reductions.of, Pipeline.emit

        def counted(self: Pipeline, *args: object) -> None:
            taken.append((len(self.reductions.early), len(self.reductions.middle)))
            emit(self, *args)

        patch.setattr(Pipeline, "emit", counted)
        of = staticmethod(given if in_turn else lambda *_: None)
        patch.setattr(tensor_pipeline.Reductions, "of", of)
        built = build(CASES[name].text, Target.named(level))
    return Compiled({n: CompiledFunction(built, MapWeights({}), n) for n in (1, 2)}, taken)


def arguments(case: Case, rows: int, n: int) -> list[np.ndarray]:
    shape = (rows, n) if case.rank == 2 else (2, -(-rows // 2), n)
    return normal(shape, *[(n,)] * case.vectors, dtype=case.element)


@pytest.mark.parametrize("name", CASES)
def test_reductions_are_done_early_in_the_middle_or_last(name: str):
    expected = CASES[name].reductions
    assert set(compiled(name).taken) == ({expected} if expected else set())


@pytest.mark.sample(24)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(64, 33000), (2100, 1027), (35, 61007), (33, 65536)], ids=str)
def test_rows_in_turn_give_the_bits_of_rows_alone(name: str, shape: tuple[int, int]):
    args = arguments(CASES[name], *shape)
    expected = compiled(name, in_turn=False).functions[2](*args)
    for threads in (1, 2):
        results = compiled(name).functions[threads](*args)
        for y, z in zip(np.atleast_1d(results), np.atleast_1d(expected), strict=True):
            assert np.asarray(y).tobytes() == np.asarray(z).tobytes()


@pytest.mark.parametrize("name", CASES)
def test_rows_in_turn_read_nothing_behind_the_last(name: str):
    """Nor do rows that take in others: there is none before the first."""
    args = arguments(CASES[name], 33, 65536)
    expected = compiled(name, in_turn=False).functions[1](*args)
    fenced = [Fenced(array) for array in args]
    for threads in (1, 2):
        results = compiled(name).functions[threads](*(f.array for f in fenced))
        for y, z in zip(np.atleast_1d(results), np.atleast_1d(expected), strict=True):
            assert np.asarray(y).tobytes() == np.asarray(z).tobytes()


@pytest.mark.parametrize("offset", [1, 8, 15])
@pytest.mark.parametrize("shape", [(64, 33000), (2100, 1027), (2050, 1024)], ids=str)
def test_rows_in_turn_may_lie_anywhere(offset: int, shape: tuple[int, int]):
    (x,) = normal(shape)
    expected = compiled("softmax", in_turn=False).functions[1](x)
    for function in compiled("softmax").functions.values():
        memory, y = within(x.size, offset)
        function(x, out=[y.reshape(shape)])
        assert y.tobytes() == np.asarray(expected).tobytes()
        assert (memory == 7).sum() == 96, "written beside the results"


def hard(rows: int, n: int) -> np.ndarray:
    """Return rows of numbers of which most are hard to sum the exponentials of."""
    (x,) = normal((rows, n))
    x *= np.resize(np.array([1, 1, 1, 1, 1, 1, 1, 30, 1e4, 1e30, 0], np.float32), rows)[:, None]
    x[0::11, 0], x[1::11, n // 2], x[2::11, -1] = np.nan, np.inf, -np.inf
    x[3::11], x[4::11, : n - 7], x[5::11, 0] = -np.inf, -np.inf, -1e5
    x[6::11, n // 3] = 3e38
    return x


@pytest.mark.parametrize("name", ["softmax", "logarithms"])
def test_hard_rows_do_not_touch_those_beside_them(name: str):
    x = hard(70, 31003)
    alone = compiled(name, in_turn=False).functions[1]
    expected = np.concatenate([np.asarray(alone(x[i : i + 1])) for i in range(len(x))])
    assert np.isnan(expected[0::11]).all()
    assert not np.isnan(expected[5::11]).any()
    for function in compiled(name).functions.values():
        np.testing.assert_array_equal(np.asarray(function(x)), expected)


@pytest.mark.parametrize("name", ["softmax", "softmax of f64", "layer norm", "logarithms"])
@pytest.mark.parametrize("level", levels())
def test_rows_in_turn_at_each_level(name: str, level: str):
    args = arguments(CASES[name], 70, 31003)
    expected = compiled(name, level, in_turn=False).functions[1](*args)
    y = compiled(name, level).functions[2](*args)
    assert np.asarray(y).tobytes() == np.asarray(expected).tobytes()
