"""The options of the `rlx` command."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from rlx.errors import RlxError


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


def parser() -> argparse.ArgumentParser:
    """Return what parses the arguments of `rlx`; a wrong one raises RlxError."""
    top = _ArgumentParser("rlx", description="Compiles models for this machine and runs them.")
    top.add_argument("--version", action="store_true", help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    _add_generate(commands.add_parser("generate", help="let a language model continue a text"))
    _add_embed(commands.add_parser("embed", help="print an embedding for each line of a text"))
    _add_compile(commands.add_parser("compile", help="compile a model into a folder"))
    _add_profile(commands.add_parser("profile", help="show where a language model's time goes"))
    _add_inspect(commands.add_parser("inspect", help="print a model's IR at a stage"))
    _add_plan(commands.add_parser("plan", help="plan the memory of the buffers in a file"))
    _add_ops(commands.add_parser("ops", help="print the table of operations"))
    _add_cache(commands.add_parser("cache", help="list, clear or verify the cache folder"))
    return top


def _add_model(
    parser: argparse.ArgumentParser, *, compiled: bool = False, encoders: bool = False
) -> None:
    """Add a language model's file, or what a command takes beside it, and how it is compiled."""
    also = ", or a folder of `rlx compile`" if compiled else ""
    text = int8 = ""
    if encoders:
        also, text, int8 = ", or the folder of an encoder", ", or of a text", ", int8 (an encoder)"
    add = parser.add_argument
    add("model", metavar="MODEL", help=f"path of a GGUF file{also}")
    add("--max-context", type=int, metavar="N", help=f"tokens of prompt and answer together{text}")
    add(
        "--kv-cache",
        default="auto",
        metavar="F",
        help="keys and values: f32, f16, bf16, or auto (default: f16 with --precision fast)",
    )
    add("--profile", metavar="FILE", help="how to compile, a *.rlx.toml file")
    add("--precision", default="auto", metavar="P", help=f"exact, fast{int8} or auto (default)")
    add("--debug", action="store_true", help="show the traceback of an error")


def _add_threads(parser: argparse.ArgumentParser) -> None:
    text = "default: every CPU that this process may use"
    parser.add_argument("--threads", type=int, metavar="T", help=text)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Streams the answer to stdout and prints figures to stderr. Rates are over the time inside "
        "compiled code, sampling included; the first token's time is since the process started."
    )
    _add_model(parser, compiled=True)
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
        "and on others whose CPU has what its code needs: rlx generate DIR --ids 1,2,3, or, of an "
        "encoder, rlx embed DIR FILE."
    )
    _add_model(parser, encoders=True)
    add = parser.add_argument
    add(
        "-o", "--output", required=True, metavar="DIR",
        help="the folder, a new one, or one of `rlx compile`, which is replaced",
    )  # fmt: skip
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
        "MODEL is a folder with model.safetensors, config.json and tokenizer.json of a BERT model, "
        "or one that `rlx compile` made of it."
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
    _add_model(parser, encoders=True)
    add = parser.add_argument
    add("--stage", required=True, metavar="S", help="hir, mir, lir or llvm")
    add("--program", metavar="P", help="prefill, batch or decode (default); of an encoder embed")


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
