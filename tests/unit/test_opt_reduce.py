"""`rlx-opt --reduce` and `--run-reproducer`: modules with the command that fails on them."""

import re

import pytest
from opt_passes import LAYERS, STATE, register

from rlx.passes.source import SourceError, context, parse
from rlx.tools.opt.options import parse_arguments
from rlx.tools.opt.pipeline import make_passes
from rlx.tools.opt.reduce import Failure, Reducer
from rlx.tools.opt.reductions import STEPS, Case
from rlx.tools.opt.reproducer import command_of, reproducer, with_command

NORM = "hir.rms_norm %{0}, %w eps 1.0e-5 : tensor<4x8xf32>, tensor<8xf32>"
CONTROL = """\
func.func @main(%x: tensor<4x8xf32> {rlx.name = "x"}, %w: tensor<8xf32> {rlx.name = "w"}, \
%c: tensor<i1> {rlx.name = "c"}) -> (tensor<4x8xf32> {rlx.name = "y"}) {
  %e = mir.unary exp %x : tensor<4x8xf32>
  %y = mir.while(%e) {
  ^bb0(%i: tensor<4x8xf32>):
    mir.yield %c : tensor<i1>
  } do {
  ^bb0(%i: tensor<4x8xf32>):
    %r = mir.if %c -> (tensor<4x8xf32>) {
      %a = mir.unary neg %i : tensor<4x8xf32>
      mir.yield %a : tensor<4x8xf32>
    } else {
      %b = hir.rms_norm %i, %w eps 1.0e-5 : tensor<4x8xf32>, tensor<8xf32>
      mir.yield %b : tensor<4x8xf32>
    } : tensor<i1>
    mir.yield %r : tensor<4x8xf32>
  } : (tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
"""


@pytest.fixture(autouse=True)
def _wrong(monkeypatch):
    register(monkeypatch)


def reduced(rlx_opt, text: str, *args: str) -> tuple[str, str, tuple[int, ...]]:
    """Return the command, the module, and the counts before and after of a reduction."""
    result = rlx_opt("--reduce", *args, stdin=text)
    assert result.code == 0, result.err
    again = rlx_opt("--reduce", *args, stdin=text)
    assert again == result
    command, module = result.out.split("\n", 1)
    match = re.fullmatch(
        r"// reduced operations from (\d+) to (\d+), passes from (\d+) to (\d+), "
        r"in \d+ tries\n",
        result.err,
    )
    assert match is not None, result.err
    # What is left is a module that fails as the one before, by the command that is in it.
    title, now = (
        rlx_opt(*a, stdin=t) for a, t in ((args, text), (["--run-reproducer"], result.out))
    )
    assert now.code == title.code == 1
    assert failure(now.err) == failure(title.err)
    # Nothing is left to reduce.
    assert rlx_opt("--reduce", stdin=result.out).out == result.out
    return command, module, tuple(map(int, match.groups()))


def failure(err: str) -> str:
    """Return the first line of an error without its place."""
    return re.sub(r"^.*?error: ", "", err.split("\n", 1)[0])


@pytest.mark.parametrize("passes", ["wrong{how=crash}", "cse,dce,wrong{how=crash},legalize-hir"])
def test_a_crash(rlx_opt, passes):
    command, module, (_, ops, _, left) = reduced(rlx_opt, LAYERS, "-p", passes)
    assert (ops, left) == (4, 1)
    assert command == "// RUN: rlx-opt %s -p 'wrong{how=\"crash\"}'"
    assert [op.name for op in parse(context(), module.encode(), "m").walk()] == [
        "builtin.module",
        "func.func",
        "hir.rms_norm",
        "func.return",
    ]


def test_the_passes_that_matter_stay(rlx_opt):
    passes = "cse,legalize-hir,fuse-epilogue,fuse-norm,hoist-params,verify-stage{stage=hir}"
    command, _, (_, ops, _, left) = reduced(rlx_opt, LAYERS, "-p", passes)
    # What is not allowed at the stage is what was legalised.
    assert command.startswith("// RUN: rlx-opt %s -p 'legalize-hir,")
    assert (ops, left) == (8, 2)


def test_control_flow_is_unpacked(rlx_opt):
    _, module, (before, ops, _, _) = reduced(rlx_opt, CONTROL, "-p", "wrong{how=crash}")
    assert (before, ops) == (12, 4)
    assert "mir.if" not in module
    assert "mir.while" not in module


def test_kernels_are_unpacked(rlx_opt):
    text = rlx_opt("-p", "legalize-hir,fuse-epilogue,fuse-norm", stdin=LAYERS).out
    assert "mir.kernel" in text
    _, module, (_, ops, _, _) = reduced(rlx_opt, text, "-p", "wrong{how=crash}")
    assert ops == 4
    assert "mir.kernel" not in module


def test_operations_that_are_not_known(rlx_opt):
    text = """\
"other.outer"() ({
  %x, %w = "other.make"() : () -> (tensor<4x8xf32>, tensor<8xf32>)
  "other.inner"(%x) ({
    %y = hir.rms_norm %x, %w eps 1.0e-5 : tensor<4x8xf32>, tensor<8xf32>
    "other.use"(%y) : (tensor<4x8xf32>) -> ()
  }) : (tensor<4x8xf32>) -> ()
  "other.use"(%w) : (tensor<8xf32>) -> ()
}) : () -> ()
"""
    args = ["--allow-unregistered-dialect", "-p", "wrong{how=crash}"]
    command, module, (_, ops, _, _) = reduced(rlx_opt, text, *args)
    assert "--allow-unregistered-dialect" in command
    assert "rms_norm" in module
    assert "other.use" not in module
    assert ops <= 5


def test_a_numeric_mismatch(rlx_opt):
    args = ["--bisect-numerics", "-p", "legalize-hir,fuse-norm,wrong{how=silu-to-relu},dce"]
    command, module, (_, ops, _, passes) = reduced(rlx_opt, LAYERS, *args)
    assert command == "// RUN: rlx-opt %s -p 'wrong{how=\"silu-to-relu\"}' --bisect-numerics"
    assert (ops, passes) == (4, 1)
    assert "mir.unary silu" in module


def test_a_mismatch_in_a_layer_keeps_one_layer(rlx_opt):
    text = LAYERS.replace("mir.unary silu", "mir.unary tanh").replace(
        "mir.binary add", "mir.binary mul"
    )
    text = text.replace(
        "%h = hir", "%s = mir.unary silu %x : tensor<?x64xf32, #hir.dims<rows, _>>\n    %h = hir"
    ).replace("%h = hir.rms_norm %x", "%h = hir.rms_norm %s")
    args = ["--bisect-numerics", "--dim=rows=3", "-p", "wrong{how=silu-to-relu}"]
    command, module, (_, ops, _, _) = reduced(rlx_opt, text, *args)
    assert command.endswith("--bisect-numerics --dim=rows=3")
    assert "layers 0 to 1" in module
    assert "hir.weight" not in module
    assert ops == 7


def test_a_mismatch_of_a_program_with_state(rlx_opt):
    args = ["--bisect-numerics", "-p", "legalize-hir,wrong{how=clobber}"]
    _, module, (before, ops, _, _) = reduced(rlx_opt, STATE, *args)
    assert ops < before
    assert module.count("hir.append") == module.count("hir.state") == 1
    assert "hir.attention" not in module


def test_a_target_that_refuses(rlx_opt):
    command, _, (_, ops, _, passes) = reduced(rlx_opt, LAYERS, "-p", "cse,dce", "-t", "llvm")
    assert command == "// RUN: rlx-opt %s --target=llvm"
    assert (ops, passes) == (1, 0)


def test_a_run_that_fails(rlx_opt):
    args = ["--run=main", "--dim=rows=65", "-p", "legalize-hir"]
    command, _, (_, ops, _, passes) = reduced(rlx_opt, LAYERS, *args)
    assert command == "// RUN: rlx-opt %s --run=main --dim=rows=65"
    assert (ops, passes) == (3, 0)


def test_nothing_to_reduce(rlx_opt):
    result = rlx_opt("--reduce", "-p", "legalize-hir", stdin=LAYERS)
    assert (result.code, result.out) == (1, "")
    assert (
        result.err
        == "stdin: error: --reduce: expected a module that fails, and this one does not\n"
    )


@pytest.mark.parametrize(
    ("args", "text", "message"),
    [
        (["--reduce"], LAYERS, "expected a pipeline: -p, or a line '// RUN: rlx-opt %s"),
        (["--run-reproducer"], LAYERS, "expected a pipeline"),
        (["--run-reproducer", "-p", "cse"], LAYERS, "leave --passes out"),
        (["--reduce", "--split-input-file", "-p", "cse"], LAYERS, "takes one module"),
        (["--reduce", "-p", "cse"], "hir.weight @w", "stdin:1:1"),
        (["--reduce"], "// RUN: rlx-opt %s -p 'cse\n", "No closing quotation"),
        (["--reduce"], "// RUN: rlx-opt %s --nope\n", "cannot read '// RUN: rlx-opt %s --nope'"),
        (["--reduce"], "// RUN: rlx-opt %s -p nope\n", "unknown pass 'nope'"),
    ],
)
def test_bad_requests(rlx_opt, args, text, message):
    result = rlx_opt(*args, stdin=text)
    assert (result.code, result.out) == (1, "")
    assert message in result.err
    assert "internal error" not in result.err


# Reproducers


@pytest.mark.parametrize("how", ["crash", "silu-to-relu"])
def test_a_reproducer_holds_its_command(rlx_opt, tmp_path, how):
    path = tmp_path / "crash.mlir"
    extra = ["--bisect-numerics", "--seed=3"] if how != "crash" else []
    passes = f"cse,wrong{{how={how}}},dce"
    args = ["-p", passes, f"--crash-reproducer={path}", *extra]
    result = rlx_opt(*args, stdin=LAYERS)
    assert result.code == 1
    assert result.err.endswith(f"\n  reproducer: {path}\n")
    again = rlx_opt(str(path), "--run-reproducer")
    assert again.code == 1
    assert failure(again.err) == failure(result.err)
    small = rlx_opt(str(path), "--reduce")
    assert small.code == 0, small.err
    assert len(small.out.splitlines()) <= 8


def test_a_target_that_breaks_has_a_reproducer(rlx_opt, tmp_path, monkeypatch):
    monkeypatch.setattr("rlx.tools.opt.dot.to_dot", lambda module: {}["no"])
    path = tmp_path / "crash.mlir"
    result = rlx_opt("-p", "cse", "-t", "dot", f"--crash-reproducer={path}", stdin=LAYERS)
    assert "target 'dot': internal error, KeyError: 'no'" in result.err
    assert path.read_text().startswith("// RUN: rlx-opt %s --target=dot\n")
    assert failure(rlx_opt(str(path), "--run-reproducer").err) == failure(result.err)


def test_a_pipeline_that_is_given_comes_first(rlx_opt):
    text = f"// RUN: rlx-opt %s -p 'wrong{{how=crash}}'\n{LAYERS}"
    assert "expected a module that fails" in rlx_opt("--reduce", "-p", "cse", stdin=text).err


def test_a_command_in_a_file_writes_no_files(rlx_opt, tmp_path):
    options = [f"-o {tmp_path / 'a'}", f"--print-ir-tree-dir {tmp_path / 'b'}"]
    options.append(f"--crash-reproducer {tmp_path / 'c'}")
    text = (
        f"// RUN: rlx-opt %s -p 'wrong{{how=crash}}' {' '.join(options)} | filecheck %s\n{LAYERS}"
    )
    assert rlx_opt("--run-reproducer", stdin=text).code == 1
    assert rlx_opt("--reduce", stdin=text).code == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "args",
    [
        ["-p", "cse,verify-stage{stage=mir}"],
        ["--pass-pipeline=builtin.module(cse)", "--disable-verify"],
        ["-p", "cse", "--bisect-numerics", "--dim=a=1", "--dim=b=2", "--threshold=0.5"],
        ["-p", "cse", "--run=main", "--run-with=jit", "--input=x=a b.npy", "--seed=7"],
        ["-p", "cse", "-t", "llvm{cpu=haswell}"],
    ],
)
def test_commands_read_back(args):
    given = parse_arguments(args)
    passes = make_passes("cse,verify-stage{stage=mir}")
    text = reproducer("builtin.module {}\n", passes, given)
    merged = with_command(parse_arguments([]), command_of(text.encode()))
    assert make_passes(merged.passes) == passes
    expected = {**vars(given), "passes": merged.passes, "pass_pipeline": ""}
    assert vars(merged) == expected


# The parts


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("m:1:2: error: a", "n:33:4: error: a", True),
        ("m:1:2: error: %a is bad", "m:1:2: error: %b_1 is bad", True),
        ("m: error: got 12 at 0xdeadbeef", "m: error: got 3 at 0xbeef", True),
        ("m: error: a\n  more", "m: error: a\n  other", True),
        ("m: error: a (m.mlir:3:4)", "m: error: a (m.mlir:5:6)", True),
        ("m: error: a", "m: error: b", False),
        ("m: error: mir.exp", "m: error: mir.neg", False),
        ("m: error: @main", "m: error: @f", False),
    ],
)
def test_failures_of_one_kind(one, other, same):
    assert (Failure.of(SourceError(one)) == Failure.of(SourceError(other))) == same


def test_failures_of_two_types_differ():
    errors = []
    for cause in (KeyError("a"), ValueError("a")):
        error = SourceError("m: error: a")
        error.__cause__ = cause
        errors.append(Failure.of(error))
    assert errors[0] != errors[1]


def case_of(text: str, passes: str = "") -> Case:
    return Case(parse(context(), text.encode(), "m"), tuple(make_passes(passes)))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("answer", [True, False])
def test_every_step_ends_and_leaves_the_case_alone(step, answer):
    for text in (LAYERS, STATE, CONTROL):
        case = case_of(text, "cse,dce")
        before = str(case.module)
        candidates = step(case)
        tries, candidate = 0, next(candidates, None)
        while candidate is not None:
            tries += 1
            assert tries < 1000
            try:
                candidate = candidates.send(answer and candidate.size < case.size)
            except StopIteration:
                break
        assert str(case.module) == before


def test_every_case_that_is_tried_is_valid_and_smaller_than_the_last():
    sizes = []

    def run(module, passes):
        case = Case(module, tuple(passes))
        module.verify()
        sizes.append(case.size)
        # A failure that many modules have: three operations or more.
        return SourceError("m: error: a") if case.size[0] > 3 else None

    reducer = Reducer(case_of(LAYERS, "cse,dce"), run, check=True)
    small = reducer.reduce()
    assert small.size[0] in (4, 5)
    assert small.passes == ()
    assert len(sizes) - 1 <= reducer.tries < 300
