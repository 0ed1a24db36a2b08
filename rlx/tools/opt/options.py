"""The command line of `rlx-opt`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from rlx.errors import RlxError
from rlx.passes.pipelines import DEFAULT, PIPELINES
from rlx.passes.registry import PASSES
from rlx.tools.opt.targets import TARGETS

SEPARATOR = "// -----"
_GIVEN = "_given"
"""Where the names of options are noted while a command line is read."""


class _ArgumentParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RlxError(f"{message} (--help lists the options)")


def _words(text: str) -> list[str]:
    return text.split(",")


class _Once(argparse.Action):
    """Takes the value of an option that may be given once."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        given = vars(namespace).setdefault(_GIVEN, set[str]())
        if self.dest in given:
            first = getattr(namespace, self.dest)
            both = f": write {option_string} '{first},{values}'" if self.dest == "passes" else ""
            parser.error(f"expected one {option_string}, got '{first}' and '{values}'{both}")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


class _Group:
    """Options that the help shows together."""

    def __init__(self, parser: argparse.ArgumentParser, title: str):
        self._group = parser.add_argument_group(title)

    def flag(self, *names: str, help: str) -> None:
        self._group.add_argument(*names, action="store_true", help=help)

    def value(self, *names: str, help: str, metavar: str, default: str = "") -> None:
        self._group.add_argument(*names, action=_Once, default=default, metavar=metavar, help=help)

    def values(self, *names: str, help: str, metavar: str) -> None:
        self._group.add_argument(*names, action="append", default=[], metavar=metavar, help=help)

    def names(self, name: str, help: str) -> None:
        self._group.add_argument(
            name, action="extend", type=_words, default=[], metavar="PASS,...", help=help
        )

    def choice(self, *names: str, help: str, choices: Sequence[str]) -> None:
        self._group.add_argument(
            *names, action=_Once, choices=choices, default=choices[0], help=help
        )

    def real(self, *names: str, help: str, metavar: str) -> None:
        self._group.add_argument(*names, action=_Once, type=float, metavar=metavar, help=help)

    def number(self, *names: str, help: str) -> None:
        self._group.add_argument(*names, action=_Once, type=int, default=0, metavar="N", help=help)


def parse_arguments(args: Sequence[str]) -> argparse.Namespace:
    """
    Return the options by name.

    Raises RlxError for what it does not know, and SystemExit when it has printed its help.
    """
    parser = _ArgumentParser(
        "rlx-opt",
        description="Reads a module, runs passes over it with a check after each, and prints it.",
        epilog=f"Passes: {', '.join(PASSES)}. Pipelines: "
        + "; ".join(f"{name} = {passes}" for name, passes in PIPELINES.items()),
    )
    parser.add_argument(
        "input_file", nargs="?", default="-", help="path of a module; - is the standard input"
    )
    _add_input(parser)
    _add_passes(parser)
    _add_output(parser)
    _add_tracing(parser)
    _add_running(parser)
    parsed = parser.parse_args(args)
    vars(parsed).pop(_GIVEN, None)
    _check(parsed)
    return parsed


def _add_input(parser: argparse.ArgumentParser) -> None:
    group = _Group(parser, "input")
    group.flag("--split-input-file", help=f"process the parts between {SEPARATOR} on their own")
    group.flag(
        "--verify-diagnostics",
        help="compare errors with the comments '// expected-error @+1 {{text}}' of a part; "
        "without such comments, print the error of a part as its output",
    )
    group.flag("--allow-unregistered-dialect", help="accept operations of unknown dialects")
    group.flag("--no-implicit-module", help="expect a builtin.module")


def _add_passes(parser: argparse.ArgumentParser) -> None:
    group = _Group(parser, "passes")
    group.value("-p", "--passes", metavar="PASSES", help="name{option=value ...},name,...")
    group.value(
        "--pass-pipeline", metavar="PIPELINE", help="as MLIR spells it: builtin.module(...)"
    )
    group.flag("--disable-verify", help="do not check the module after parsing and after each pass")
    # As in MLIR; it is what happens without --disable-verify.
    group.flag("--verify-each", help="check the module after each pass (the default)")
    group.flag("--list-passes", help="print the passes and pipelines, with a line about each")
    group.value("--help-pass", metavar="NAME", help="print what a pass or a pipeline does")
    group.flag("--print-pipeline", help="print the passes asked for, with pipelines expanded")
    group.flag("--print-default-pipeline", help=f"print {DEFAULT}, which the compiler runs")


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = _Group(parser, "output")
    group.value(
        "-o",
        "--output-file",
        metavar="FILE",
        default="-",
        help="path for the output; written on success only",
    )
    group.value(
        "-t", "--target", metavar="TARGET", default="mlir", help=f"one of {', '.join(TARGETS)}"
    )
    group.flag("--print-op-generic", "--mlir-print-op-generic", help="print the generic form")
    group.flag("--print-debuginfo", help="print where operations come from")
    group.flag("-v", "--version", help="print the versions of rlx and xDSL")


def _add_tracing(parser: argparse.ArgumentParser) -> None:
    group = _Group(parser, "tracing, to stderr")
    group.names("--print-ir-before", help="print the module before passes")
    group.names("--print-ir-after", help="print the module after passes")
    group.flag("--print-ir-before-all", help="print the module before each pass")
    group.flag(
        "--print-ir-after-all", "--print-between-passes", help="print the module after each pass"
    )
    group.flag("--print-ir-after-change", help="print the module after each pass that changed it")
    group.value(
        "--print-ir-tree-dir",
        metavar="DIR",
        help="write the input and the module after each pass to numbered files",
    )
    group.flag("--timing", "--time-passes", help="print how long parsing and each pass took")
    group.flag("--statistics", help="print how many operations there are, and sizes of a plan")
    group.value(
        "--crash-reproducer",
        metavar="FILE",
        help="where a pass breaks, write the module before it and the command that runs it",
    )
    group.flag("--run-reproducer", help="run the command that stands in the input, // RUN: ...")
    group.flag(
        "--reduce",
        help="make a module that fails with the passes, or with the command that stands in it, as "
        "small as it can be while it fails in the same way",
    )
    group.flag("--debug", help="show the traceback of an error")


def _add_running(parser: argparse.ArgumentParser) -> None:
    group = _Group(parser, "running")
    group.value(
        "--run",
        metavar="FUNCTION",
        help="run @main on random weights and print its results instead of the module",
    )
    group.choice(
        "--run-with", choices=("reference", "jit"), help="numpy in float64, or compiled code"
    )
    group.flag(
        "--bisect-numerics",
        help="run the module after each pass, planned ones as compiled code, and name the first "
        "pass after which the results differ; print the differences instead of the module",
    )
    group.real(
        "--threshold",
        metavar="NMSE",
        help="the error that --bisect-numerics allows: 1e-12 by the reference and 1e-6 by "
        "compiled code by default",
    )
    group.values("--input", metavar="NAME=FILE.npy", help="an input; others are random")
    group.values("--dim", metavar="NAME=SIZE", help="a size; others are the smallest allowed")
    group.number("--seed", help="of the random weights and inputs, 0 by default")


def _check(args: argparse.Namespace) -> None:
    if args.passes and args.pass_pipeline:
        raise RlxError("expected one of --passes and --pass-pipeline, got both")
    if args.run_reproducer and (args.passes or args.pass_pipeline):
        raise RlxError("--run-reproducer takes the passes from the input: leave --passes out")
    if args.reduce and (args.split_input_file or args.verify_diagnostics):
        raise RlxError("--reduce takes one module: leave --split-input-file out")
    if args.run and args.run != "main":
        raise RlxError(f"--run: expected main, which is the program, got '{args.run}'")
    if args.run and args.bisect_numerics:
        raise RlxError("expected one of --run and --bisect-numerics, got both")
    running = "--run" if args.run else "--bisect-numerics" if args.bisect_numerics else ""
    if running and args.target != "mlir":
        raise RlxError(
            f"expected one of {running} and --target, got both: {running} prints results"
        )
    # The input may ask for a run, too.
    running = running or args.reduce or args.run_reproducer
    for option in ("input", "dim"):
        if getattr(args, option) and not running:
            raise RlxError(f"--{option} is for --run main and --bisect-numerics, both are missing")
    if args.threshold is not None and not (args.bisect_numerics and args.threshold >= 0):
        raise RlxError("--threshold is for --bisect-numerics, and at least 0")
