"""
The `rlx` command: lets a language model answer, embeds texts, prints what the compiler makes of a
model, plans memory.

Asking for help or the version imports neither numpy nor the compiler.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from rlx.checks import integer
from rlx.errors import RlxError
from rlx.tools.endings import ended, standard_output
from rlx.tools.options import parser

PROFILED_TOKENS = 64
"""Of a prompt that nobody gave."""

# Commands


def _version() -> str:
    from importlib.metadata import version

    return f"rlx {version('rlx')} (xdsl {version('xdsl')}, llvmlite {version('llvmlite')})"


def _generate(args: argparse.Namespace) -> None:
    from rlx.tools.generate import generate

    generate(args)


def _inspect(args: argparse.Namespace) -> None:
    from rlx.driver import open_any

    model = open_any(args.model, args.max_context, args.profile, args.kv_cache, args.precision)
    print(model.ir(args.stage, args.program), end="")


def _profile(args: argparse.Namespace) -> None:
    from rlx.runtime.replacing import replacing
    from rlx.runtime.timeline import write_timeline
    from rlx.tools.generate import load_language, prompt_ids_of, prompt_text

    text = prompt_text(args)
    integer("steps", args.steps, 1)
    # Opened before the model is loaded, which may take seconds.
    with replacing(args.output, args.model, args.profile or "") as file:
        model = load_language(args, verify=False)
        ids = prompt_ids_of(args, text, model)
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
    from rlx.deploy.writing import write_folder
    from rlx.driver import open_any
    from rlx.lowering.target import Target
    from rlx.runtime.stages import recorded, shown

    target, folder = Target.named(args.target), Path(args.output)
    model = open_any(args.model, args.max_context, args.profile, args.kv_cache, args.precision)
    with recorded() as stages, shown(f"compiling {model.label}"):
        write_folder(model, folder, target, args.precision, args.threads)
    if args.verbose:
        print(stages.table(), file=sys.stderr)
    if not args.quiet:
        size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        print(f"{folder}: {size / 1e6:.1f} MB, for {target.cpu}")


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


# The process


_COMMANDS = {
    "generate": _generate,
    "embed": _embed,
    "compile": _compile,
    "profile": _profile,
    "inspect": _inspect,
    "plan": _plan,
    "ops": _ops,
    "cache": _cache,
}
_QUIET = ("compile", "embed")
"""Those that may have nothing to print."""


def _run(args: Sequence[str]) -> None:
    parsed = parser().parse_args(args)
    if parsed.version:
        print(_version())
    elif parsed.command is None:
        *names, last = _COMMANDS
        raise RlxError(
            f"expected a command, {', '.join(names)} or {last} (rlx --help lists the options)"
        )
    else:
        if parsed.command not in _QUIET:
            # Said before the work, which may take minutes.
            standard_output()
        _COMMANDS[parsed.command](parsed)


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
