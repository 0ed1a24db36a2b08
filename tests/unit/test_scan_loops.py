"""hir.scan: what it means, its loop at every level and size, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import levels, on_threads
from xdsl.dialects.builtin import ModuleOp, f64
from xdsl.dialects.test import TestOp as Values
from xdsl.ir import Attribute, Block
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import lir
from rlx.dialects.common import Dim, tensor
from rlx.dialects.control import YieldOp
from rlx.dialects.kinds import BinaryKind
from rlx.dialects.scan_op import ScanOp
from rlx.dialects.writer import Writer
from rlx.passes.pipelines import run_to
from rlx.passes.source import context, parse
from rlx.passes.verify_plan import check_planned
from rlx.reference import Reference

RNG = np.random.default_rng(2)
TEXT = """builtin.module DIMS {
  func.func @main(%x: tensor<LENx3xf32ROWS> {rlx.name = "x"}, %v: tensor<LENxi64LINE>
      {rlx.name = "v"}, %w: tensor<3xf32> {rlx.name = "w"}) -> (tensor<3xf32> {rlx.name = "c"},
      tensor<LENx3xf32ROWS> {rlx.name = "y"}, tensor<LENxf32LINE> {rlx.name = "z"}) {
    %zero = mir.constant dense<0.0> : tensor<3xf32>
    %c, %y, %z = hir.scan(%zero) over (%x, %v) {
    ^bb0(%c: tensor<3xf32>, %e: tensor<3xf32>, %n: tensor<i64>):
      %p = mir.binary mul %c, %w : tensor<3xf32>
      %next = mir.binary add %p, %e : tensor<3xf32>
      %f = mir.cast %n : tensor<i64> -> tensor<f32>
      %s = mir.reduce sum %next axes [0] : tensor<3xf32> -> tensor<f32>
      %o = mir.binary mul %s, %f : tensor<f32>
      mir.yield %next, %c, %o : tensor<3xf32>, tensor<3xf32>, tensor<f32>
    } : (tensor<3xf32>) over (tensor<LENx3xf32ROWS>, tensor<LENxi64LINE>)
      -> (tensor<3xf32>, tensor<LENx3xf32ROWS>, tensor<LENxf32LINE>)
    func.return %c, %y, %z : tensor<3xf32>, tensor<LENx3xf32ROWS>, tensor<LENxf32LINE>
  }
}"""


def text(length: int | str) -> str:
    """Return the program for a length, or for one with a name and the range given."""
    words = {"LEN": str(length), "ROWS": "", "LINE": "", "DIMS": ""}
    if isinstance(length, str):
        words = {"LEN": "?", "ROWS": ", #hir.dims<n, _>", "LINE": ", #hir.dims<n>"}
        words["DIMS"] = f"attributes {{rlx.dims = #hir.dim_table<n = {length}>}}"
    made = TEXT
    for word, meant in words.items():
        made = made.replace(word, meant)
    return made


def case(n: int) -> dict[str, np.ndarray]:
    x, v = RNG.standard_normal((n, 3)).astype(np.float32), RNG.integers(-5, 5, n)
    return {"x": x, "v": v, "w": np.array([0.5, -0.9, 0.1], np.float32)}


def by_hand(x: np.ndarray, v: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    c, y, z = np.zeros(3), np.zeros((len(x), 3)), np.zeros(len(x))
    for i in range(len(x)):
        y[i] = c
        c = c * w + x[i]
        z[i] = c.sum() * v[i]
    return [c, y, z]


def parsed(source: str) -> ModuleOp:
    return parse(context(), source.encode(), "scan")


def test_the_reference_is_the_loop():
    given = case(7)
    got = Reference(parsed(text(7)), {}).run(given)
    for value, want in zip(got.values(), by_hand(**given), strict=True):
        np.testing.assert_allclose(value, want)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("length", [0, 1, 5, "0 to 40", "0 to any"])
def test_machine_code_of_a_scan(length: int | str, level: str):
    sizes = [length] if isinstance(length, int) else [0, 1, 2, 17, 40]
    for f in on_threads(text(length), level):
        for n in sizes:
            given = case(n)
            for value, want in zip(f(**given), by_hand(**given), strict=True):
                np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)


def test_a_scan_is_a_loop_that_writes_in_place():
    module = parsed(text("0 to any"))
    run_to(module, "lir")
    assert check_planned(module) == []
    (loop,) = (op for op in module.walk() if isinstance(op, lir.WhileOp))
    launches = [op for op in loop.walk() if isinstance(op, lir.LaunchOp)]
    scatters = [op for op in launches if "scatter_rows" in op.kernel.root_reference.data]
    assert len(scatters) == 2
    assert all(op.ins[0] is op.outs[0] for op in scatters)


def test_text_of_a_scan():
    for length in (4, "1 to 9"):
        module = parsed(text(length))
        module.verify()
        assert str(parsed(str(module))) == str(module)


def scan(
    inits: list[Attribute],
    xs: list[Attribute],
    arguments: list[Attribute],
    length: Dim | None = None,
) -> ScanOp:
    """A scan whose body yields its arguments."""
    body = Block(arg_types=arguments)
    body.add_op(YieldOp(*body.args))
    given = Values(result_types=[*inits, *xs]).results
    return ScanOp(given[: len(inits)], given[len(inits) :], body, length)


def test_types_of_a_scan():
    op = scan([tensor([2])], [tensor(["n", 3])], [tensor([2]), tensor([3])])
    op.verify()
    assert (op.length, list(op.res.types)) == ("n", [tensor([2]), tensor(["n", 3])])
    op = counting(5)
    op.verify()
    assert op.length == 5


def counting(length: int) -> ScanOp:
    """A scan over nothing, which stacks what it carries."""
    w, body = Writer(), Block(arg_types=[tensor([])])
    following = w.binary(BinaryKind.ADD, body.args[0], 1.0)
    body.add_ops([*w.made, YieldOp(following, following)])
    return ScanOp(Values(result_types=[tensor([])]).results, [], body, length)


@pytest.mark.parametrize(
    ("inits", "xs", "arguments", "message"),
    [
        ([], [[3, 2], [4]], [[2], []], "first axes of one length, got"),
        ([[2]], [], [[2]], "first axes of one length, got none"),
        ([[2]], [[3, 4]], [[2], [3]], r"expected the arguments \(\[2\] f32, \[4\] f32\)"),
        ([[2]], [[3, 4]], [[2]], "expected the arguments"),
    ],
)
def test_bodies_that_do_not_fit(
    inits: list[list[int]], xs: list[list[int]], arguments: list[list[int]], message: str
):
    with pytest.raises(VerifyException, match=message):
        scan(*(list(map(tensor, dims)) for dims in (inits, xs, arguments)), length=3).verify()


def test_a_body_yields_what_it_carries():
    body = Block(arg_types=[tensor([2]), tensor([4])])
    body.add_op(YieldOp(body.args[1], body.args[1]))
    given = Values(result_types=[tensor([2]), tensor([3, 4])]).results
    with pytest.raises(VerifyException, match=r"expected the yields \(\[2\] f32, \[4\] f32\), got"):
        ScanOp(given[:1], given[1:], body).verify()
    op = scan([tensor([2])], [tensor([3, 4])], [tensor([2]), tensor([4])])
    op.res[0]._type = tensor([2], f64)  # pyright: ignore: a type that the constructor would not give
    with pytest.raises(VerifyException, match="expected the results"):
        op.verify()
