"""`rlx-opt --run main`: the reference and compiled code on the same random data."""

import re
from pathlib import Path

import numpy as np
import pytest

from rlx.frontends.quants import dequantize
from rlx.lowering.manifest import Io, Manifest, Weight
from rlx.tools.random_data import RandomWeights, random_input

RESIDUAL = str(Path(__file__).parents[2] / "examples" / "residual.mlir")
ADD = """\
func.func @main(%x: tensor<2x3xf32> {rlx.name = "x"}, %y: tensor<2x3xf32> {rlx.name = "y"})
    -> (tensor<2x3xf32> {rlx.name = "sum"}) {
  %z = mir.binary add %x, %y : tensor<2x3xf32>
  func.return %z : tensor<2x3xf32>
}
"""
EMBEDDING = """\
builtin.module attributes {rlx.dims = #hir.dim_table<rows = 2 to 9>} {
  hir.weight @t "t" : tensor<7x32x!hir.q<q4_0>>
  func.func @main(%i: tensor<?xi32, #hir.dims<rows>> {rlx.name = "i"})
      -> (tensor<?x32xf32, #hir.dims<rows, _>> {rlx.name = "e"}) {
    %t = hir.load_weight @t : tensor<7x32x!hir.q<q4_0>>
    %e = hir.embedding %i, %t : tensor<?xi32, #hir.dims<rows>>, tensor<7x32x!hir.q<q4_0>> \
-> tensor<?x32xf32, #hir.dims<rows, _>>
    func.return %e : tensor<?x32xf32, #hir.dims<rows, _>>
  }
}
"""
STATE = """\
builtin.module attributes {rlx.dims = #hir.dim_table<seq = 1, past = 0 to 8, keys = past + seq>} {
  hir.state @k keys head_dim 16 : tensor<16x16xf32>
  hir.state @v values head_dim 16 : tensor<16x16xf32>
  func.func @main(%x: tensor<1x16xf32> {rlx.name = "x"})
      -> (tensor<1x16xf32> {rlx.name = "y"}) {
    %k = hir.append %x to @k start "past" : tensor<1x16xf32> \
-> tensor<?x16xf32, #hir.dims<keys, _>>
    %v = hir.append %x to @v start "past" : tensor<1x16xf32> \
-> tensor<?x16xf32, #hir.dims<keys, _>>
    %y = hir.attention %x, %k, %v head_dim 16 scale 0.25 : tensor<1x16xf32>, \
tensor<?x16xf32, #hir.dims<keys, _>>
    func.return %y : tensor<1x16xf32>
  }
}
"""


def numbers(text: str) -> np.ndarray:
    """Return the sum, the norm and the first values of a result."""
    match = re.fullmatch(r".*\] \w+, sum (\S+), norm (\S+): (.*)\n", text)
    assert match is not None, text
    words = [match[1], match[2], *match[3].removesuffix(" ...").split()]
    return np.array([float(word) for word in words])


@pytest.mark.parametrize("passes", ["", "legalize-hir,fuse-epilogue,fuse-norm"])
def test_reference_and_compiled_code_agree(rlx_opt, passes):
    args = [RESIDUAL, "-p", passes, "--run", "main", "--dim", "rows=5", "--seed=3"]
    reference = rlx_opt(*args)
    assert reference.code == 0, reference.err
    assert reference.out.startswith("y: [5, 64] f32, sum ")
    compiled = rlx_opt(*args, "--run-with", "jit")
    assert compiled.code == 0, compiled.err
    np.testing.assert_allclose(numbers(compiled.out), numbers(reference.out), rtol=1e-4, atol=1e-4)
    planned = rlx_opt(RESIDUAL, "-p", "rlx-default", *args[3:], "--run-with=jit")
    assert planned.out == compiled.out


def test_results_are_those_of_the_seed(rlx_opt):
    first, again, other = (
        rlx_opt(RESIDUAL, "--run=main", f"--seed={seed}").out for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("how", ["reference", "jit"])
def test_inputs_from_files(rlx_opt, tmp_path, how):
    rng = np.random.default_rng(7)
    x, y = (rng.integers(-9, 9, (2, 3)).astype(np.float32) for _ in range(2))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    files = [f"--input={name}={tmp_path / name}.npy" for name in ("x", "y")]
    result = rlx_opt("--run=main", f"--run-with={how}", *files, stdin=ADD)
    z = (x + y).astype(np.float64)
    assert result.code == 0, result.err
    want = [z.sum(), np.linalg.norm(z), *z.reshape(-1)]
    np.testing.assert_allclose(numbers(result.out), want, rtol=1e-4)


@pytest.mark.parametrize("how", ["reference", "jit"])
def test_sizes_come_from_options_files_or_the_least_allowed(rlx_opt, tmp_path, how):
    def shape(*args: str) -> str:
        result = rlx_opt("--run=main", f"--run-with={how}", *args, stdin=EMBEDDING)
        assert result.code == 0, result.err
        return result.out.split(" f32")[0]

    np.save(tmp_path / "i.npy", np.arange(6, dtype=np.int32))
    assert shape() == "e: [2, 32]"
    assert shape("--dim=rows=4") == "e: [4, 32]"
    assert shape(f"--input=i={tmp_path / 'i.npy'}") == "e: [6, 32]"


def test_state_starts_as_zero_with_either(rlx_opt):
    reference, compiled = (
        rlx_opt("--run=main", "--dim=past=3", f"--run-with={how}", stdin=STATE)
        for how in ("reference", "jit")
    )
    assert (reference.code, compiled.code) == (0, 0), reference.err + compiled.err
    got = numbers(compiled.out)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, numbers(reference.out), rtol=1e-3, atol=1e-4)
    unlike = rlx_opt("--run=main", "--dim=past=0", stdin=STATE).out
    assert abs(numbers(unlike) - got).max() > 0.01


def test_a_program_that_cannot_be_planned_runs_by_the_reference(rlx_opt):
    # A weight cannot be an output of compiled code.
    text = EMBEDDING.replace("return %e : tensor<?x32xf32, #hir.dims<rows, _>>", "RETURN")
    text = text.replace(
        "tensor<?x32xf32, #hir.dims<rows, _>> {rlx", "tensor<7x32x!hir.q<q4_0>> {rlx"
    )
    text = text.replace("RETURN", "return %t : tensor<7x32x!hir.q<q4_0>>")
    result = rlx_opt("--run=main", stdin=text)
    assert result.code == 0, result.err
    assert result.out.startswith("e: [7, 32] !hir.q<q4_0>, sum ")
    assert rlx_opt("--run=main", "--run-with=jit", stdin=text).code == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--run=other"], "expected main"),
        (["--run=main", "-t", "llvm"], "got both"),
        (["--dim=rows=4"], "--dim is for --run main"),
        (["--input=i=x.npy"], "--input is for --run main"),
        (["--run=main", "--dim=rows"], "expected NAME=VALUE, got 'rows'"),
        (["--run=main", "--dim=rows=many"], "expected a whole number, got 'many'"),
        (["--run=main", "--dim=rows=10"], "dimension 'rows' must be from 2 to 9, got 10"),
        (["--run=main", "--dim=cols=4"], "expected a name of rows, got 'cols'"),
        (["--run=main", "--input=x=x.npy"], "expected a name of i, got 'x'"),
        (["--run=main", "--input=i=/no/such.npy"], "cannot read /no/such.npy"),
        (["--run=main", f"--input=i={__file__}"], "cannot read"),
        (["--run=main", "--run-with=gpu"], "invalid choice"),
        (["--run=main", "-p", "rlx-default"], "use --run-with jit"),
    ],
)
def test_bad_requests(rlx_opt, args, message):
    result = rlx_opt(*args, stdin=EMBEDDING)
    assert (result.code, result.out) == (1, "")
    assert message in result.err
    assert "internal error" not in result.err
    assert len(result.err.splitlines()) == 1


def test_a_program_without_free_dimensions_or_inputs_says_so(rlx_opt):
    text = """
func.func @main() -> (tensor<f32> {rlx.name = "y"}) {
  %y = mir.constant dense<1.0> : tensor<f32>
  func.return %y : tensor<f32>
}"""
    result = rlx_opt("--run=main", "--dim=n=3", stdin=text)
    assert "--dim n=3: the program has no free dimension\n" in result.err
    result = rlx_opt("--run=main", "--input=x=x.npy", stdin=text)
    assert "--input x=x.npy: the program has no input\n" in result.err
    result = rlx_opt("--run=main", stdin="func.func private @main(tensor<4xf32>)")
    assert "expected a function @main with a body" in result.err


@pytest.mark.parametrize("how", ["reference", "jit"])
@pytest.mark.parametrize(
    "array", [np.zeros((2, 2), np.float32), np.zeros((2, 3), np.int32), np.zeros(6, np.float32)]
)
def test_inputs_of_another_shape_or_dtype(rlx_opt, tmp_path, how, array):
    np.save(tmp_path / "x.npy", array)
    args = ["--run=main", f"--run-with={how}", f"--input=x={tmp_path / 'x.npy'}"]
    result = rlx_opt(*args, stdin=ADD)
    assert (result.code, result.out) == (1, "")
    shape = ", ".join(map(str, array.shape))
    assert f"--input x: expected [2, 3] float32, got [{shape}] {array.dtype}" in result.err


@pytest.mark.parametrize(
    ("found", "put", "message"),
    [
        (b"}", b" ", ""),
        (b"(2, 3), }" + b" " * 15, b"(2, 3000000000000000), }", "Unable to allocate"),
        (b"\x93NUMPY", b"PK\x03\x04\x14\x00", "the magic string is not correct"),
    ],
)
def test_inputs_that_are_no_array(rlx_opt, tmp_path, found, put, message):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((2, 3), np.float32))
    path.write_bytes(path.read_bytes().replace(found, put))
    result = rlx_opt("--run=main", f"--input=x={path}", stdin=ADD)
    assert (result.code, result.out) == (1, "")
    assert f"--input x: cannot read {path} as .npy: {message}" in result.err


@pytest.mark.parametrize("how", ["reference", "jit"])
def test_indices_that_are_out_of_their_table(rlx_opt, tmp_path, how):
    np.save(tmp_path / "i.npy", np.array([0, 7], np.int32))
    args = ["--run=main", f"--run-with={how}", f"--input=i={tmp_path / 'i.npy'}"]
    result = rlx_opt(*args, stdin=EMBEDDING)
    assert (result.code, result.out) == (1, "")
    assert "--input i: expected indices from 0 to 6, got 7" in result.err


# The data


def source(format_: str, shape: tuple[int, ...], seed: int = 0) -> RandomWeights:
    weight = Weight("w.{layer}", format_, format_, shape, 0, 0, 0, 2, 0)
    empty = dict.fromkeys(Manifest._fields, ())
    return RandomWeights(Manifest(**{**empty, "weights": (weight,)}), seed)


@pytest.mark.parametrize("format_", ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_random_weights_keep_the_size_of_products(format_):
    weights = source(format_, (64, 256))
    values = weights.array("w.1")
    assert values.shape == (64, 256)
    assert np.isfinite(values).all()
    assert 0.1 < values.std() * 16 < 2
    np.testing.assert_array_equal(values, dequantize(format_, weights.raw("w.1"), (64, 256)))
    np.testing.assert_array_equal(weights.take("w.1", transpose=True)[0], values.T)
    assert (weights.array("w.0") != values).mean() > 0.5
    assert (source(format_, (64, 256), 1).array("w.1") != values).mean() > 0.5


@pytest.mark.parametrize(("format_", "nbytes"), [("q4_1", 20), ("q5_1", 24)])
def test_both_scales_of_a_block_matter(format_, nbytes):
    blocks = source(format_, (64, 256)).raw("w.1").reshape(-1, nbytes)
    added = np.ascontiguousarray(blocks[:, 2:4]).view(np.float16)
    assert 0.3 < added.std() * 16 < 1


def test_random_vectors_are_near_one():
    values = source("f32", (256,)).array("w.0")
    assert abs(values.mean() - 1) < 0.05
    assert 0.05 < values.std() < 0.25


def test_random_indices_are_in_range():
    values = random_input(Io("i", "i32", ("rows",), 7), (1000,), 0)
    assert sorted(set(values)) == list(range(7))
    assert not random_input(Io("i", "i32", (8,)), (8,), 0).any()
    truths = random_input(Io("c", "i1", (64,)), (64,), 0)
    assert truths.dtype == bool
    assert 10 < truths.sum() < 54
