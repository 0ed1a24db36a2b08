"""
The `rlx` command: lets a language model answer, embeds texts, prints what the compiler makes of a
model, plans memory.

Asking for help or the version imports neither numpy nor the compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rlx.checks import integer
from rlx.errors import RlxError
from rlx.tools.endings import ended, standard_input
from rlx.wording import several

if TYPE_CHECKING:
    from rlx.runtime.language import LanguageModel

MB = 1e6
PROFILED_TOKENS = 64
"""Of a prompt that nobody gave."""

_IMPORTED = time.perf_counter()


def process_age() -> float:
    """
    Return the seconds since this process started, to about 10 ms.

    Where the system doesn't tell (only Linux does), since this module was imported.
    """
    try:
        with open("/proc/self/stat", "rb") as f:
            # The name of the program, in parentheses, may hold anything.
            started = int(f.read().rpartition(b")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (AttributeError, OSError, ValueError, IndexError):
        return time.perf_counter() - _IMPORTED


# Options


class _ArgumentParser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise RlxError(f"{message} ({self.prog} --help lists the options)")


def _token_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected token ids as integers with commas between, got {text!r}"
        ) from None


def _parser() -> argparse.ArgumentParser:
    parser = _ArgumentParser("rlx", description="Compiles models for this machine and runs them.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_generate(commands.add_parser("generate", help="let a language model continue a text"))
    _add_embed(commands.add_parser("embed", help="print an embedding for each line of a text"))
    _add_compile(commands.add_parser("compile", help="compile a language model into a folder"))
    _add_profile(commands.add_parser("profile", help="show where a language model's time goes"))
    _add_inspect(commands.add_parser("inspect", help="print a model's IR at a stage"))
    _add_plan(commands.add_parser("plan", help="plan the memory of the buffers in a file"))
    _add_ops(commands.add_parser("ops", help="print the table of operations"))
    _add_cache(commands.add_parser("cache", help="list, clear or verify the cache folder"))
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="path of a GGUF file, or a folder of `rlx compile`")
    add("--max-context", type=int, metavar="N", help="tokens of prompt and answer together")
    add(
        "--kv-cache",
        default="auto",
        metavar="F",
        help="keys and values: f32, f16, bf16, or auto (default: f16 with --precision fast)",
    )
    add("--profile", metavar="FILE", help="how to compile, a *.rlx.toml file")
    add("--precision", default="auto", metavar="P", help="exact, fast or auto (default)")
    add("--debug", action="store_true", help="show the traceback of an error")


def _add_threads(parser: argparse.ArgumentParser) -> None:
    text = "default: every CPU that this process may use"
    parser.add_argument("--threads", type=int, metavar="T", help=text)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Streams the answer to stdout and prints figures to stderr. Rates are over the time inside "
        "compiled code, sampling included; the first token's time is since the process started."
    )
    _add_model(parser)
    add = parser.add_argument
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument(
        "--prompt",
        metavar="TEXT",
        help="the text to continue; - reads stdin, less its last newline",
    )
    prompt.add_argument(
        "--prompt-ids", "--ids", type=_token_ids, metavar="1,2,3",
        help="its token ids, in place of a text",
    )  # fmt: skip
    add("--chat", action="store_true", help="put the prompt, as a user's, in the chat template")
    add("-n", "--max-tokens", type=int, default=256, metavar="N", help="new tokens (default 256)")
    _add_threads(parser)
    add("--verify", action="store_true", help="check the memory plans before running them")
    add("--temperature", type=float, default=0.0, metavar="X", help="default 0: the likeliest")
    add("--top-k", type=int, default=0, metavar="K", help="draw from the K likeliest; 0 is off")
    add("--top-p", type=float, default=1.0, metavar="P", help="draw from the likeliest, P in sum")
    add("--seed", type=int, default=0, metavar="S", help="of the random numbers (default 0)")
    add("--no-stop", action="store_true", help="go on after a token that ends the answer")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    output.add_argument("-q", "--quiet", action="store_true", help="print no figures")
    output.add_argument(
        "-v", "--verbose", action="store_true", help="print more figures, and stages with times"
    )


def _add_compile(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compiles a model into a folder that runs with numpy and llvmlite alone, on this machine "
        "and on others whose CPU has what its code needs: rlx generate DIR --ids 1,2,3."
    )
    _add_model(parser)
    add = parser.add_argument
    add("-o", "--output", required=True, metavar="DIR", help="the folder, a new one")
    add("--target", default="host", metavar="CPU", help="a CPU like x86-64-v3 (default: this one)")
    _add_threads(parser)
    output = parser.add_mutually_exclusive_group()
    output.add_argument("-q", "--quiet", action="store_true", help="print nothing")
    output.add_argument("-v", "--verbose", action="store_true", help="print stages with times")


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Works on the folder of compiled programs and packed weights: list prints what is in it, "
        "clear removes what no process uses, verify checks every file and removes damaged ones."
    )
    parser.add_argument("action", metavar="ACTION", help="list, clear or verify")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def _add_embed(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints the embedding of each line of FILE as a line of numbers, and figures to stderr. "
        "MODEL is a folder with model.safetensors, config.json and tokenizer.json of a BERT model."
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="path of a model's folder")
    add("file", metavar="FILE", help="path of a text in UTF-8; - reads stdin")
    add("--max-context", type=int, metavar="N", help="tokens of a line, beyond which it is cut")
    add("--profile", metavar="FILE", help="how to compile, a *.rlx.toml file")
    add("--precision", default="auto", metavar="P", help="exact, fast, int8 or auto (default)")
    _add_threads(parser)
    add("-o", "--output", metavar="FILE", help="write a NumPy array (.npy), print no numbers")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    output.add_argument("-q", "--quiet", action="store_true", help="print no figures")
    add("--debug", action="store_true", help="show the traceback of an error")


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs a prompt and decode steps, and prints where the time of both goes: kernels, what "
        "they move and how fast, the barriers after them, and what a plain sum of as many bytes "
        "as the weights have reads on the same threads. Every launch of every thread goes into a "
        "file for ui.perfetto.dev or chrome://tracing."
    )
    _add_model(parser)
    add = parser.add_argument
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="default: 64 tokens of no meaning")
    prompt.add_argument(
        "--prompt-ids", type=_token_ids, metavar="1,2,3", help="its token ids, in place of a text"
    )
    parser.set_defaults(chat=False)
    add("-n", "--steps", type=int, default=32, metavar="N", help="decode steps (default 32)")
    _add_threads(parser)
    add(
        "-o", "--output", default="rlx-profile.json.gz", metavar="FILE",
        help="where the events go, compressed if it ends in .gz (default rlx-profile.json.gz)",
    )  # fmt: skip
    add("--json", action="store_true", help="print one JSON object in place of tables")


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.description = "Prints the IR of one of a model's programs, for this machine."
    _add_model(parser)
    add = parser.add_argument
    add("--stage", required=True, metavar="S", help="hir, mir, lir or llvm")
    add("--program", default="decode", metavar="P", help="prefill, batch or decode (default)")


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Places buffers with known lifetimes in one arena, and prints its size beside the least "
        "that it could be. FILE is CSV with the header id,lower,upper,size: a buffer lives from "
        "step lower until before step upper. The same arguments give the same plan."
    )
    add = parser.add_argument
    add("file", metavar="FILE", help="path of a CSV file")
    add("--effort", type=int, default=0, metavar="E", help="0 (default), 1: about 2 s, 2: 20 s")
    add("--alignment", type=int, default=1, metavar="N", help="of the offsets (default 1 byte)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object, offsets too")
    output.add_argument("--offsets", action="store_true", help="print every buffer's offset too")
    add("--debug", action="store_true", help="show the traceback of an error")


def _add_ops(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints every operation: the elements it computes on, the family of its kernels, whether "
        "it is written out in primitives, and the kinds of the contract that it is."
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array of objects")


# Commands


def _version() -> str:
    from importlib.metadata import version

    return f"rlx {version('rlx')} (xdsl {version('xdsl')}, llvmlite {version('llvmlite')})"


def _inspect(args: argparse.Namespace) -> None:
    from rlx.driver import open_model, print_ir

    model = open_model(args.model, args.max_context, args.profile, args.kv_cache, args.precision)
    print(print_ir(model, args.stage, args.program), end="")


def _profile(args: argparse.Namespace) -> None:
    from rlx.runtime.replacing import replacing
    from rlx.runtime.timeline import write_timeline

    text = _prompt_text(args)
    integer("steps", args.steps, 1)
    # Opened before the model is loaded, which may take seconds.
    with replacing(args.output) as file:
        model = _load(args, verify=False)
        ids = _prompt_ids(args, text, model)
        if ids is None:
            ids = [i % model.vocab for i in range(min(PROFILED_TOKENS, model.capacity // 2))]
        profile = model.profile(ids, args.steps)
        write_timeline(profile, file, args.output)
    if args.json:
        print(json.dumps({**profile.as_json(), "events": args.output}))
    else:
        print(f"{profile}\n\nevents    {args.output}")


def _embed(args: argparse.Namespace) -> None:
    from rlx.tools.embed import embed

    embed(args)


def _compile(args: argparse.Namespace) -> None:
    from rlx.deploy import write_folder
    from rlx.driver import open_model
    from rlx.lowering.target import Target
    from rlx.runtime.stages import recorded, shown

    target, folder = Target.named(args.target), Path(args.output)
    model = open_model(args.model, args.max_context, args.profile, args.kv_cache, args.precision)
    with recorded() as stages, shown(f"compiling {model.file.path.name}"):
        write_folder(model, folder, target, args.precision, args.threads)
    if args.verbose:
        print(stages.table(), file=sys.stderr)
    if not args.quiet:
        size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        print(f"{folder}: {size / MB:.1f} MB, for {target.cpu}")


def _cache(args: argparse.Namespace) -> None:
    from rlx.tools.cache import run

    run(args.action, args.json)


def _plan(args: argparse.Namespace) -> None:
    from rlx.tools.plan import plan_file

    report = plan_file(args.file, args.alignment, args.effort)
    print(json.dumps(report.as_json()) if args.json else report.as_text(args.offsets))


def _ops(args: argparse.Namespace) -> None:
    from rlx.tools import ops

    table = ops.rows()
    print(json.dumps(ops.as_json(table)) if args.json else ops.as_text(table))


def _prompt_text(args: argparse.Namespace) -> str | None:
    """Return the prompt's text; None where it was given as token ids."""
    if args.prompt is None:
        if args.chat:
            raise RlxError("--chat takes a text: give it with --prompt")
        return None
    text: str = args.prompt
    if text == "-":
        try:
            text = standard_input().read().decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as e:
            raise RlxError(f"stdin: expected a prompt in UTF-8: {e}") from e
    if not text:
        raise RlxError("the prompt is empty: expected at least one token")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RlxError("the prompt: expected text in UTF-8 (valid Unicode)") from None
    return text


def _load(args: argparse.Namespace, verify: bool) -> LanguageModel:
    if os.path.isdir(args.model):
        from rlx.deploy import is_compiled

        if not is_compiled(args.model):
            raise RlxError(
                f"{args.model}: expected a GGUF file, found a directory, which has no rlx.json "
                "of `rlx compile` either; name the file in it, or ask rlx embed where it is that "
                "of an encoder"
            )
    from rlx.driver import load
    from rlx.runtime.language import LanguageModel

    model = load(
        args.model,
        args.precision,
        args.threads,
        args.max_context,
        verify,
        args.profile,
        args.kv_cache,
    )
    assert isinstance(model, LanguageModel)
    return model


def _prompt_ids(
    args: argparse.Namespace, text: str | None, model: LanguageModel
) -> list[int] | None:
    """Return the prompt's tokens; None where there is no prompt."""
    if text is None:
        return args.prompt_ids
    if args.chat:
        text = model.tokenizer.chat([{"role": "user", "content": text}])
    return model.tokenizer.encode(text)


def _generate(args: argparse.Namespace) -> None:
    # What can be wrong without the model comes before loading it, which may take seconds.
    text = _prompt_text(args)
    from rlx.runtime.language import checked_count, checked_sampling
    from rlx.runtime.stages import recorded, stage

    sampling = (args.temperature, args.top_k, args.top_p, args.seed)
    checked_sampling(*sampling)
    checked_count(args.max_tokens)
    with recorded() as stages:
        stages.add("start of Python, numpy", process_age())
        model = _load(args, args.verify)
        with stage("tokenizer"):
            prompt_ids = _prompt_ids(args, text, model) or []
            stream = model.tokenizer.stream()
        ids_of = model.generate_ids(prompt_ids, args.max_tokens, *sampling, stop=not args.no_stop)
        with stage("prefill"):
            first = next(iter(ids_of))
    first_token_s = process_age()
    # An answer may have characters that the terminal's encoding has not.
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="replace")
    ids: list[int] = []
    pieces: list[str] = []

    def show(piece: str) -> None:
        pieces.append(piece)
        if not args.json:
            print(piece, end="", flush=True)

    for token in chain([first], ids_of):
        ids.append(token)
        show(stream.push(token))
    show(stream.flush())
    figures = _figures(model, first_token_s)
    if args.json:
        facts = {"prompt_ids": prompt_ids, "ids": ids, "text": "".join(pieces), **figures}
        print(json.dumps({**facts, "stages": stages.as_json()}))
        return
    print(flush=True)
    if not args.quiet:
        print(_table(figures, args.verbose), file=sys.stderr)
    if args.verbose:
        print(stages.table(), file=sys.stderr)


def _figures(model: LanguageModel, first_token_s: float) -> dict[str, Any]:
    """Return the figures of the last generation by name: bytes, seconds, tokens per second."""
    from dataclasses import asdict

    return {
        **asdict(model.stats),
        "prefill_tok_s": model.stats.prefill_tok_s,
        "decode_tok_s": model.stats.decode_tok_s,
        "first_token_s": first_token_s,
        **model.resident()._asdict(),
        "capacity": model.capacity,
    }


def _table(figures: dict[str, Any], verbose: bool) -> str:
    """Return the figures of a generation for people; `verbose` adds those of the compiler."""

    def mb(name: str) -> str:
        value = figures[name]
        return "unknown" if value is None else f"{value / MB:.1f} MB"

    f = figures
    mapped = f"{mb('resident_weight_bytes')} of the {mb('packed_file_bytes')} of packed weights"
    rows = [
        ("prefill", f"{f['prefill_tok_s']:.1f} tok/s ({several(f['prompt_tokens'], 'token')})"),
        ("decode", f"{f['decode_tok_s']:.1f} tok/s ({several(f['decode_steps'], 'step')})"),
        ("first token", f"{f['first_token_s']:.2f} s after the start of the process"),
        ("load", f"{f['load_s']:.2f} s, {f['compile_s']:.2f} s of it compiling"),
        ("memory", f"{mb('rss_anon_bytes')} of this process alone, {mapped}"),
        ("weights", f"{mb('weight_bytes')}, {mb('weight_bytes_per_step')} read in a step"),
        ("arena, state", f"{mb('arena_bytes')}, {mb('state_bytes')} in {f['kv_cache']}"),
        ("threads", f"{f['threads']}, {several(f['barriers_per_step'], 'barrier')} in a step"),
        ("kernels", f"{f['kernels']}, {several(f['kernels_per_step'], 'launch', 'es')} in a step"),
    ]
    if verbose:
        rows += [
            ("compilations", f"{f['compilations']}"),
            ("arena bound", f"{mb('arena_lower_bound_bytes')} is the least that it could be"),
            ("context", f"{f['prompt_tokens'] + f['new_tokens']} of {f['capacity']} tokens"),
        ]
    return "\n".join(f"{name:13} {value}" for name, value in rows)


# The process


def _run(args: Sequence[str]) -> None:
    parsed = _parser().parse_args(args)
    if parsed.version:
        print(_version())
    elif parsed.command == "generate":
        _generate(parsed)
    elif parsed.command == "embed":
        _embed(parsed)
    elif parsed.command == "profile":
        _profile(parsed)
    elif parsed.command == "inspect":
        _inspect(parsed)
    elif parsed.command == "plan":
        _plan(parsed)
    elif parsed.command == "ops":
        _ops(parsed)
    elif parsed.command == "compile":
        _compile(parsed)
    elif parsed.command == "cache":
        _cache(parsed)
    else:
        raise RlxError(
            "expected a command, generate, embed, compile, profile, inspect, plan, ops or cache "
            "(rlx --help lists the options)"
        )


def _say(kind: str, message: object) -> None:
    """Print a message in one line, on stderr."""
    print(f"rlx: {kind}: {' '.join(str(message).split())}", file=sys.stderr)


def _warn(message: Warning | str, *_: object) -> None:
    _say("warning", message)


def main(args: Sequence[str] | None = None) -> int:
    """Run with the given arguments, those of the process by default, and return the exit code."""
    given = list(sys.argv[1:] if args is None else args)
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        return ended(lambda: _run(given), lambda text, _: _say("error", text), "--debug" in given)


if __name__ == "__main__":
    sys.exit(main())
