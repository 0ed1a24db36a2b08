"""`rlx-opt`: what it prints, and one clear message with exit code 1 for whatever it cannot do."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlx.passes.pipelines import DEFAULT
from rlx.passes.source import MAX_ELEMENTS
from rlx.tools.opt.pipeline import make_passes

HIR = """\
builtin.module attributes {rlx.dims = #hir.dim_table<rows = 1 to 8>} {
  hir.weight @w "w" : tensor<32x32x!hir.q<q4_1>>
  func.func @main(%x: tensor<?x32xf32, #hir.dims<rows, _>> {rlx.name = "x"}) \
-> (tensor<?x32xf32, #hir.dims<rows, _>> {rlx.name = "y"}) {
    %w = hir.load_weight @w : tensor<32x32x!hir.q<q4_1>>
    %l = hir.linear %x, %w : tensor<?x32xf32, #hir.dims<rows, _>>, \
tensor<32x32x!hir.q<q4_1>> -> tensor<?x32xf32, #hir.dims<rows, _>>
    %y = mir.binary add %x, %l : tensor<?x32xf32, #hir.dims<rows, _>>
    func.return %y : tensor<?x32xf32, #hir.dims<rows, _>>
  }
}
"""
UNARY = "%a = mir.unary exp %x : tensor<4xf32>"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.mlir"
    path.write_text(HIR)
    return path


def assert_fails(result, *parts: str) -> None:
    """One message that holds all the parts, nothing on the output, no traceback, exit code 1."""
    assert result.code == 1
    assert result.out == ""
    for part in parts:
        assert part in result.err
    assert "Traceback" not in result.err
    assert len(result.err.splitlines()) <= 14


# What works


def test_prints_what_it_reads(rlx_opt, source):
    result = rlx_opt(str(source))
    assert (result.code, result.out, result.err) == (0, HIR, "")
    assert rlx_opt(stdin=HIR).out == rlx_opt("-", stdin=HIR).out == HIR


def test_generic_form_reads_back(rlx_opt):
    generic = rlx_opt("--print-op-generic", stdin=HIR).out
    assert '"hir.linear"(' in generic
    assert rlx_opt("--mlir-print-op-generic", stdin=HIR).out == generic
    assert rlx_opt(stdin=generic).out == HIR


def test_default_pipeline_is_the_one_of_the_compiler(rlx_opt):
    assert rlx_opt("--print-default-pipeline").out == f"{DEFAULT}\n"
    by_name = rlx_opt("-p", "rlx-default", stdin=HIR)
    assert by_name.code == 0
    assert "lir.program" in by_name.out
    assert rlx_opt("-p", DEFAULT, stdin=HIR).out == by_name.out


def test_pipelines_mix_names_passes_and_options():
    passes = make_passes("cse,rlx-default,verify-stage{stage=lir}")
    assert [p.name for p in passes] == ["cse", *DEFAULT.split(","), "verify-stage"]
    assert passes[-1].stage == "lir"


@pytest.mark.parametrize("name", ["canonicalize", "cse", "dce", "verify-ssa"])
def test_passes_that_change_nothing_here(rlx_opt, name):
    assert rlx_opt("-p", name, stdin=HIR).out == HIR


def test_cse_merges(rlx_opt):
    twice = f"func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {{\n{UNARY}\n"
    twice += "%b = mir.unary exp %x : tensor<4xf32>\n%c = mir.binary add %a, %b : tensor<4xf32>\n"
    twice += "func.return %c : tensor<4xf32>\n}"
    assert rlx_opt("-p", "cse", stdin=twice).out.count("mir.unary") == 1


@pytest.mark.parametrize(
    ("cpu", "expected"), [("haswell", '"target-cpu"="haswell"'), ("x86-64-v4", "x86-64-v4")]
)
def test_llvm_for_a_cpu(rlx_opt, cpu, expected):
    lir = rlx_opt("-p", "rlx-default", stdin=HIR).out
    result = rlx_opt("-t", f"llvm{{cpu={cpu}}}", stdin=lir)
    assert result.code == 0, result.err
    assert expected in result.out
    assert result.out == rlx_opt("-p", "rlx-default", "-t", f"llvm{{cpu={cpu}}}", stdin=HIR).out


def test_assembly_for_another_architecture(rlx_opt):
    result = rlx_opt("-p", "rlx-default", "-t", "asm{cpu=neoverse-n1}", stdin=HIR)
    assert result.code == 0, result.err
    assert re.search(r"\bldr\b", result.out)


def test_output_file(rlx_opt, source, tmp_path):
    out = tmp_path / "out.mlir"
    assert rlx_opt(str(source), "-o", str(out)).out == ""
    assert out.read_text() == HIR


def test_a_failure_leaves_the_output_file_alone(rlx_opt, tmp_path):
    out = tmp_path / "out.mlir"
    out.write_text("precious")
    assert_fails(rlx_opt("-o", str(out), stdin="hir.weight"))
    assert out.read_text() == "precious"


def test_split_input_has_the_lines_of_the_whole(rlx_opt):
    text = f"{HIR}// -----\n\nhir.weight @w\n// -----\n{HIR}"
    assert_fails(rlx_opt("--split-input-file", stdin=text), "stdin:13:1")
    parts = rlx_opt("--split-input-file", "--verify-diagnostics", stdin=text).out
    first, second, third = parts.split("// -----\n")
    assert first == third == HIR
    assert re.match(r"stdin:13:\d+: error: attribute expected", second)


def test_traces_go_to_stderr(rlx_opt):
    result = rlx_opt("-p", "cse,dce", "--time-passes", "--print-between-passes", stdin=HIR)
    assert result.out == HIR
    assert re.search(r"^ +[\d.]+ +[\d.]+  cse$", result.err, re.MULTILINE)
    assert f"// IR after dce\n{HIR}" in result.err


def test_help_lists_passes_and_targets(rlx_opt):
    result = rlx_opt("--help")
    assert result.code == 0
    # Lines may end after a hyphen.
    text = result.out.replace("-\n", "-")
    for name in ("legalize-hir", "plan-lir", "verify-stage", "rlx-default", "llvm", "asm"):
        assert name in text


def test_locations_are_kept_and_printed_on_request(rlx_opt):
    printed = rlx_opt("--print-debuginfo", stdin=HIR).out
    assert 'loc("stdin":2:3)' in printed
    assert rlx_opt(stdin=printed).out == HIR


def test_unregistered_operations_only_on_request(rlx_opt):
    text = '"other.op"() : () -> ()'
    assert_fails(rlx_opt(stdin=text), "other.op is not registered")
    assert rlx_opt("--allow-unregistered-dialect", stdin=text).code == 0


def test_disable_verify_prints_what_is_invalid(rlx_opt):
    text = 'hir.weight @w "w" : tensor<8x33x!hir.q<q8_0>>'
    assert_fails(rlx_opt(stdin=text), "whole q8_0 blocks")
    assert text in rlx_opt("--disable-verify", stdin=text).out
    assert_fails(rlx_opt(stdin=text), "whole q8_0 blocks")


# What fails: the request


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["-p", "nope"], ["unknown pass 'nope'", "legalize-hir"]),
        (["-p", "cse,,dce"], ["cannot read 'cse,,dce'"]),
        (["-p", "cse{"], ["cannot read 'cse{'"]),
        (["-p", "cse;dce"], ["cannot read 'cse;dce'"]),
        (["-p", "plan-lir{effor=1}"], ["pass 'plan-lir'", "option 'effor': expected effort"]),
        (["-p", "plan-lir{effort=high}"], ["'effort': expected a whole number, got 'high'"]),
        (["-p", "plan-lir{effort}"], ["'effort': expected a whole number, got nothing"]),
        (["-p", "plan-lir{effort=1,2}"], ["'effort': expected a whole number, got '1,2'"]),
        (["-p", "plan-lir{effort=true}"], ["'effort': expected a whole number, got 'true'"]),
        (["-p", f"plan-lir{{effort={'9' * 5000}}}"], ["cannot read 'plan-lir{effort=999"]),
        (["-p", "dce{remove-declarations=3}"], ["expected true or false, got '3'"]),
        (["-p", "cse{x=3}"], ["pass 'cse': unknown option 'x': it takes none"]),
        (["-p", "bind-dims{x=3}"], ["pass 'bind-dims': unknown option 'x': expected sizes"]),
        (["-p", "bind-dims"], ["pass 'bind-dims': expected the option sizes"]),
        (["-p", "cse", "-p", "dce"], ["expected one -p, got 'cse' and 'dce': write -p 'cse,dce'"]),
        (["-o", "a", "--output-file", "b"], ["expected one --output-file, got 'a' and 'b'"]),
        (["--seed=1", "--seed=1"], ["expected one --seed, got '1' and '1'"]),
        (["-p", "verify-stage"], ["verify-stage", "stage"]),
        (["-p", "verify-stage{stage=xir}"], ["unknown stage 'xir'", "hir, mir, lir"]),
        (["-p", "rlx-default{effort=1}"], ["pipeline 'rlx-default' takes no options"]),
        (["-t", "wasm"], ["unknown target 'wasm'", "mlir, llvm, asm"]),
        (["-t", "mlir,llvm"], ["expected one target"]),
        (["-t", "llvm{gpu=a100}"], ["target 'llvm': unknown option 'gpu': expected cpu"]),
        (["-t", "llvm{cpu=z80}", "-p", "rlx-default"], ["unknown target cpu 'z80'", "haswell"]),
        (["-t", "llvm"], ["takes a LIR module", "-p rlx-default"]),
        (["-t", "asm"], ["takes a LIR module", "-p rlx-default"]),
        (["--nope"], ["--nope", "--help"]),
        (["-o", "/no/such/folder/out.mlir"], ["cannot write /no/such/folder/out.mlir"]),
    ],
)
def test_bad_requests(rlx_opt, args, parts):
    assert_fails(rlx_opt(*args, stdin=HIR), *parts)


def test_unreadable_files(rlx_opt, tmp_path):
    missing = tmp_path / "missing.mlir"
    assert_fails(rlx_opt(str(missing)), f"cannot read {missing}", "No such file")
    assert_fails(rlx_opt(str(tmp_path)), f"cannot read {tmp_path}", "directory")
    assert_fails(rlx_opt("a\0b"), "cannot read")


# What fails: the text

DEEP = 50_000
BLOCKS = "".join(f"^b{i}:\n  func.return\n" for i in range(200))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["stdin:1:1: error: expected a module, got an empty text"]),
        (b"\xff\xfe\x00junk", ["not UTF-8 text (byte 0xff at offset 0)"]),
        ("hir.weight @\xe9 ".encode("latin-1"), ["not UTF-8 text (byte 0xe9 at offset 12)"]),
        (b"\x00" * 1000, ["stdin:1:1: error: Unexpected character"]),
        (b"GGUF\x03\x00\x00\x00", ["stdin:1:"]),
        (HIR[:300], ["stdin:"]),
        ("builtin.module {" * DEEP, ["nested too deeply"]),
        ('"builtin.module"() ({' * DEEP, ["nested too deeply"]),
        ("builtin.module attributes {a = " + "[" * DEEP, ["nested too deeply"]),
        ("#a = " + "tuple<" * DEEP, ["stdin:1:"]),
        (f"hir.weight @w {'x' * 10**6}", ["stdin:1:"]),
        (
            f'hir.weight @w "w" : tensor<{"9" * 5000}xf32>',
            ["stdin:1:", "error: an integer of more than 4300 digits\n"],
        ),
        (f'hir.weight @w "w" : tensor<{"9" * 30}xf32>', ["beyond 2^63 - 1"]),
        ('hir.weight @w "w" : tensor<-3xf32>', ["stdin:1:28"]),
        ('hir.weight @w "w" : tensor<3xi99999999999>', ["integer type of more than"]),
        (f"#a = 1 : i{'9' * 5000}", ["integer type of more than"]),
        (
            "builtin.module attributes {a = dense<0> : tensor<100000x100000xi8>} {}",
            [f"a dense literal of more than {MAX_ELEMENTS} elements"],
        ),
        (
            "builtin.module attributes {rlx.dims = #hir.dim_table<a = 0 to 99999, "
            + ", ".join(f"{'a' * (i + 2)} = {'a' * (i + 1)} * {'a' * (i + 1)}" for i in range(60))
            + ">} {}",
            ["upper bound below 2^63"],
        ),
        ("#a = #a\n" + UNARY, ["undefined symbol alias"]),
        ("%a = mir.unary exp %a", ["stdin:1:"]),
        (f"func.func @f() {{\n{BLOCKS}}}", ["expected a region of one block"]),
        ('"builtin.module"() ({}) : () -> ()', ["expected a single block"]),
        ('"hir.weight"() : () -> ()', ["property 'sym_name' expected"]),
        ('"hir.linear"() : () -> ()', ["Expected 2 operands"]),
        (f'hir.weight @w "{"x" * 200}\n', ["stdin:1:15: error: expected a string that ends"]),
        (f'hir.weight @w "{"x" * 200}\\q"', ["stdin:1:15: error: expected a string", "escape"]),
        ('hir.weight @w "\\ED\\A0\\80" : tensor<3xf32>', ["stdin:1:"]),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, str | bytes) else "",
)
def test_hostile_text(rlx_opt, text, parts):
    assert_fails(rlx_opt(stdin=text), *parts)


WORDS = ("9" * 30, "-1", "0", "f32", "i32", "?", '"', "{", "<", "%x", "@main", "!hir.q<q8_0>")


def mutate(text: str, rng: random.Random) -> str:
    """Cut, swap, drop, repeat or replace something in a module's text."""
    for _ in range(rng.randint(1, 3)):
        words = re.split(r"(\W)", text)
        i, j = rng.randrange(len(words)), rng.randrange(len(words))
        match rng.randrange(6):
            case 0:
                words[i] = rng.choice(WORDS)
            case 1:
                words[i] = words[j]
            case 2:
                words[i], words[j] = words[j], words[i]
            case 3:
                del words[i : i + rng.randint(1, 9)]
            case 4:
                words = words[: max(i, j)]
            case _:
                lines = text.split("\n")
                words = ["\n".join(rng.sample(lines, len(lines)))]
        text = "".join(words)
    return text


@pytest.mark.parametrize("passes", ["", DEFAULT.rsplit(",", 1)[0], DEFAULT])
def test_mutated_text(rlx_opt, fuzz_count, passes):
    """Whatever the text, `rlx-opt` ends with a module or with one message: it never crashes."""
    text = rlx_opt("-p", passes, stdin=HIR).out
    rejected = 0
    for seed in range(fuzz_count(2000, 60)):
        mutated = mutate(text, random.Random(seed))
        result = rlx_opt("-p", "" if "lir." in text else "rlx-default", stdin=mutated)
        rejected += result.code
        assert "internal error" not in result.err, f"seed {seed}:\n{mutated}\n{result.err}"
        assert result.code == 0 or len(result.err.splitlines()) <= 14
    assert rejected > 20


@pytest.mark.parametrize("cut", range(20, len(HIR) - 3, 23))
def test_text_that_is_cut(rlx_opt, cut):
    assert_fails(rlx_opt(stdin=HIR[:cut]), "stdin:")


def test_a_parse_error_shows_the_place(rlx_opt):
    result = rlx_opt(stdin=HIR.replace("@w :", "@w ;"))
    assert_fails(result, "stdin:4:29: error:", "%w = hir.load_weight @w ; tensor")
    line, caret = result.err.splitlines()[1:3]
    assert line[caret.index("^")] == ";"


def test_a_long_line_is_not_printed_whole(rlx_opt):
    result = rlx_opt(stdin='hir.weight @w "' + "x" * 10**6 + '" : tensor<-3xf32>')
    assert_fails(result, "tensor<-3xf32>")
    assert len(result.err) < 600


def test_a_verify_error_shows_the_operations_around(rlx_opt):
    lines = [f"    %v{i} = mir.unary exp %x : tensor<4x32xf32>" for i in range(1000)]
    lines[500] = "    %bad = hir.last_rows %x : tensor<4x32xf32> -> tensor<5x32xf32>"
    body = "\n".join(lines)
    text = f"func.func @main(%x: tensor<4x32xf32>) {{\n{body}\n    func.return\n}}"
    result = rlx_opt(stdin=text)
    assert_fails(result, "stdin:502:5: error: hir.last_rows: expected at most 4 rows")
    shown = result.err.splitlines()
    assert shown[1] == "  in func.func @main:"
    assert shown[6].startswith("  > %bad = hir.last_rows %x")
    assert [line.split()[0] for line in shown[2:6]] == [f"%v{i}" for i in range(496, 500)]
    assert len(shown) == 12


def test_an_undefined_value_shows_its_first_use(rlx_opt):
    text = "func.func @main() {\n  %a = mir.unary exp %x : tensor<4xf32>\n  func.return\n}"
    assert_fails(rlx_opt(stdin=text), "stdin:2:3: error: mir.unary uses %x, which is not defined")


def test_errors_of_passes_name_the_pass(rlx_opt):
    text = "func.func @other() {\n  func.return\n}"
    assert_fails(rlx_opt("-p", "plan-lir", stdin=text), "stdin: error: pass 'plan-lir'", "@main")
    result = rlx_opt("-p", "rlx-default,verify-stage{stage=hir}", stdin=HIR)
    assert_fails(result, "pass 'verify-stage': lir.weight: not allowed in builtin.module")


def test_what_a_pass_makes_is_checked_as_a_program_of_its_stage(rlx_opt):
    plain = HIR.replace("!hir.q<q4_1>", "f32")
    result = rlx_opt("-p", "plan-lir", stdin=plain)
    assert_fails(result, "pass 'plan-lir': plan-lir: expected MIR, got hir.load_weight")
    text = "func.func @main() {\n  func.call @main() : () -> ()\n  func.return\n}"
    result = rlx_opt("-p", "legalize-hir", stdin=text)
    assert_fails(result, "stdin:2:3", "func.call: not allowed in func.func at stage mir")
    assert rlx_opt("-p", "legalize-hir", "--disable-verify", stdin=text).code == 0


def test_debug_shows_the_traceback(rlx_opt):
    with pytest.raises(Exception, match="attribute expected"):
        rlx_opt("--debug", stdin="hir.weight @w")


# As a process


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "rlx.tools.opt", *args]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)


def test_process():
    good = run("-p", "cse", stdin=HIR)
    assert (good.returncode, good.stdout, good.stderr) == (0, HIR, "")
    bad = run("-p", "cse", stdin=HIR[:300])
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.startswith("stdin:")
    assert "Traceback" not in bad.stderr


def test_a_reader_that_leaves(tmp_path):
    path = tmp_path / "in.mlir"
    path.write_text("// -----\n".join([HIR] * 300))
    command = f"{sys.executable} -m rlx.tools.opt --split-input-file {path} | head -c 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (result.stdout, result.stderr) == ("b", "")


def test_version_loads_no_compiler():
    code = (
        "import sys; from rlx.tools.opt import main; main(['--version']); "
        "sys.exit(any(m.split('.')[0] in ('xdsl', 'llvmlite', 'numpy') for m in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"rlx-opt .+ \(xdsl [\d.]+\)\n", result.stdout)


def test_a_small_pass_loads_no_more_than_it_needs():
    code = (
        "import io, sys; from rlx.tools.opt import main; sys.stdin = "
        "io.TextIOWrapper(io.BytesIO(b'hir.weight @w \"w\" : tensor<3xf32>')); main(['-p', 'dce']);"
        "sys.exit(any(m in sys.modules for m in ('rlx.dialects.lir', 'llvmlite', 'numpy')))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("shell", "message"),
    [
        ("- <&-", "standard input: expected it open"),
        ("FILE >&-", "standard output: expected it open"),
        ("FILE >/dev/full", "No space left on device"),
        ("--version >/dev/full", "No space left on device"),
        ("--print-default-pipeline >/dev/full", "No space left on device"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="uses /dev/full")
def test_streams_that_do_not_work(tmp_path: Path, shell: str, message: str):
    (tmp_path / "m.mlir").write_text("builtin.module {}")
    command = f"{sys.executable} -m rlx.tools.opt {shell.replace('FILE', str(tmp_path / 'm.mlir'))}"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
