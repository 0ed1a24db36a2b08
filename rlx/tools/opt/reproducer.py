"""Reproducers: modules with the command that fails on them, `// RUN: rlx-opt %s -p ...`."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Sequence
from typing import cast

from xdsl.passes import ModulePass

from rlx.errors import RlxError
from rlx.tools.opt.options import parse_arguments

DECISIVE = (
    "allow_unregistered_dialect",
    "disable_verify",
    "target",
    "run",
    "run_with",
    "bisect_numerics",
    "threshold",
    "input",
    "dim",
    "seed",
)
"""The options that decide, beside the passes, how a run ends; none of them writes a file."""

_RUN = re.compile(r"^\s*//\s*RUN:\s*rlx-opt\b(.*?)(?:\s\|.*)?$", re.MULTILINE)


def reproducer(source: str, passes: Sequence[ModulePass], args: Namespace) -> str:
    """Return a module's text below the command that runs passes on it as `args` say."""
    words = ["rlx-opt %s"]
    if passes:
        words += ["-p", shlex.quote(",".join(map(str, passes)))]
    default = parse_arguments([])
    for name in DECISIVE:
        option, value = f"--{name.replace('_', '-')}", getattr(args, name)
        if value is True:
            words.append(option)
        elif value != getattr(default, name):
            values = cast(list[object], value) if isinstance(value, list) else [value]
            words += [shlex.quote(f"{option}={v}") for v in values]
    return f"// RUN: {' '.join(words)}\n{source}"


def command_of(data: bytes) -> Namespace:
    """Return the options of the first `// RUN: rlx-opt` of a text; raises RlxError without one."""
    match = _RUN.search(data.decode(errors="replace"))
    if match is None:
        raise RlxError("expected a pipeline: -p, or a line '// RUN: rlx-opt %s -p ...' in the file")
    try:
        return parse_arguments([word for word in shlex.split(match[1]) if word != "%s"])
    except (RlxError, ValueError) as e:
        raise RlxError(f"cannot read '{match[0].strip()}': {e}") from e


def with_command(args: Namespace, command: Namespace) -> Namespace:
    """Return options with the pipeline of a command, and what else decides how that ends."""
    merged = {**vars(args), "passes": command.passes, "pass_pipeline": command.pass_pipeline}
    default = parse_arguments([])
    for name in DECISIVE:
        if merged[name] == getattr(default, name):
            merged[name] = getattr(command, name)
    return Namespace(**merged)


def only_decisive(args: Namespace) -> Namespace:
    """Return options without those that trace or write."""
    kept = {name: getattr(args, name) for name in (*DECISIVE, "passes", "pass_pipeline")}
    return Namespace(**{**vars(parse_arguments([])), **kept})
