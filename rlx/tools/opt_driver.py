"""The machinery of `rlx-opt`: text to module, passes with a check after each, module to text."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from io import StringIO
from typing import NoReturn, TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Dialect
from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ArgSpec, ArgSpecConvertible, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException
from xdsl.utils.target import Target

from rlx.errors import RlxError
from rlx.passes.diagnostics import IrError, verify
from rlx.passes.pipelines import DEFAULT, PIPELINES
from rlx.passes.registry import PASSES
from rlx.tools.source import SourceError, parse
from rlx.tools.targets import TARGETS, MlirTarget

DIALECTS = {
    "builtin": ("xdsl.dialects.builtin", "Builtin"),
    "func": ("xdsl.dialects.func", "Func"),
    "hir": ("rlx.dialects.hir", "Hir"),
    "mir": ("rlx.dialects.mir", "Mir"),
    "lir": ("rlx.dialects.lir", "Lir"),
    "graph": ("rlx.dialects.graph", "Graph"),
}
"""Name -> module and attribute of a dialect; it is loaded when a text first names it."""

SEPARATOR = "// -----"

SpecT = TypeVar("SpecT", bound=ArgSpecConvertible)


def context(allow_unregistered: bool = False) -> Context:
    """Return a context that knows the dialects of rlx."""
    ctx = Context(allow_unregistered=allow_unregistered)
    for name, (module, attribute) in DIALECTS.items():
        ctx.register_dialect(name, _dialect(module, attribute))
    ctx.load_registered_dialect("builtin")
    return ctx


def _dialect(module: str, attribute: str) -> Callable[[], Dialect]:
    return lambda: getattr(import_module(module), attribute)


def _specs(text: str) -> Iterator[ArgSpec]:
    """Read a pipeline or a target, `name{option=value other=1,2},name`; expand named pipelines."""
    try:
        specs = list(parse_pipeline(text))
    except ArgSpecParseError as e:
        raise RlxError(f"cannot read '{text}': expected name{{option=value ...}},name,...") from e
    for spec in specs:
        if spec.name not in PIPELINES:
            yield spec
        elif spec.parameters:
            raise RlxError(f"the pipeline '{spec.name}' takes no options")
        else:
            yield from _specs(PIPELINES[spec.name])


def _make(what: str, known: dict[str, Callable[[], type[SpecT]]], spec: ArgSpec) -> SpecT:
    """Return the pass or target that is asked for, with its options."""
    if spec.name not in known:
        names = ", ".join(known)
        raise RlxError(f"unknown {what} '{spec.name}': expected one of {names}")
    try:
        return known[spec.name]().from_spec(spec)
    except ValueError as e:
        raise RlxError(f"{what} '{spec.name}': {e}") from e


def make_passes(text: str) -> list[ModulePass]:
    """
    Return the passes of a pipeline in text.

    Raises RlxError for text that cannot be read, an unknown pass and an unknown option.
    """
    return [_make("pass", PASSES, spec) for spec in _specs(text)]


def make_target(text: str) -> Target:
    """Return a target in text, as `llvm{cpu=haswell}`; errors as for passes."""
    specs = list(_specs(text))
    if len(specs) != 1:
        raise RlxError(f"expected one target, got '{text}'")
    return _make("target", TARGETS, specs[0])


class _ArgumentParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RlxError(f"{message} (--help lists the options)")


def _parser() -> argparse.ArgumentParser:
    parser = _ArgumentParser(
        "rlx-opt",
        description="Reads a module, runs passes over it with a check after each, and prints it.",
        epilog=f"Passes: {', '.join(PASSES)}. Pipelines: "
        + "; ".join(f"{name} = {passes}" for name, passes in PIPELINES.items()),
    )
    add = parser.add_argument
    add("input_file", nargs="?", default="-", help="path of a module; - is the standard input")
    add("-o", "--output-file", default="-", help="path for the output; written on success only")
    add("-p", "--passes", default="", help="passes with options: name{option=value ...},name,...")
    add("-t", "--target", default="mlir", help=f"what to print: {', '.join(TARGETS)}")

    def flag(*names: str, help: str) -> None:
        add(*names, action="store_true", help=help)

    flag("--split-input-file", help=f"process the parts between lines {SEPARATOR} on their own")
    flag("--verify-diagnostics", help="print the error of a module as output and go on")
    flag("--print-op-generic", "--mlir-print-op-generic", help="print the generic form")
    flag("--print-debuginfo", help="print where operations come from")
    flag("--print-between-passes", help="print the module after each pass, to stderr")
    flag("--time-passes", help="print how long each pass took, to stderr")
    flag("--allow-unregistered-dialect", help="accept operations of unknown dialects")
    flag("--no-implicit-module", help="expect a builtin.module")
    flag("--disable-verify", help="do not check the module after parsing and after each pass")
    flag("--print-default-pipeline", help=f"print {DEFAULT}, which the compiler runs")
    flag("--debug", help="show the traceback of an error")
    flag("-v", "--version", help="print the versions of rlx and xDSL")
    return parser


class _Tool:
    """A run of `rlx-opt`; every error is an RlxError, and nothing is written then."""

    def __init__(self, args: Sequence[str]):
        self.args = _parser().parse_args(args)
        self.passes = make_passes(self.args.passes)
        self.target = make_target(self.args.target)
        if isinstance(self.target, MlirTarget):
            generic, debuginfo = self.args.print_op_generic, self.args.print_debuginfo
            self.target = replace(self.target, generic=generic, debuginfo=debuginfo)
        self.name = "stdin" if self.args.input_file == "-" else self.args.input_file

    def run(self) -> None:
        """Process the input, each part on its own if it is split, and write the results."""
        data = self._read()
        parts = data.split(SEPARATOR.encode()) if self.args.split_input_file else [data]
        results: list[str] = []
        first_line = 1
        for part in parts:
            results.append(self._process(part, first_line))
            first_line += part.count(b"\n")
        self._write(f"{SEPARATOR}\n".join(results))

    def _read(self) -> bytes:
        path = self.args.input_file
        try:
            if path == "-":
                return sys.stdin.buffer.read()
            with open(path, "rb") as f:
                return f.read()
        except (OSError, ValueError) as e:
            raise RlxError(f"cannot read {path}: {_reason(e)}") from e

    def _write(self, text: str) -> None:
        path = self.args.output_file
        if path == "-":
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        try:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        except (OSError, ValueError) as e:
            raise RlxError(f"cannot write {path}: {_reason(e)}") from e

    def _process(self, data: bytes, first_line: int) -> str:
        """Return what a module becomes, or its error where errors are the expected output."""
        # A context of its own for each part: what one declares must not change the next.
        ctx = context(self.args.allow_unregistered_dialect)
        implicit = not self.args.no_implicit_module
        try:
            module = parse(ctx, data, self.name, first_line=first_line, implicit_module=implicit)
            self._verify(module, "")
            for pass_ in self.passes:
                self._apply(pass_, ctx, module)
            with self._placed(f"target '{self.target.name}'"):
                return self._print(ctx, module)
        except SourceError as e:
            if not self.args.verify_diagnostics:
                raise
            return f"{e}\n"

    def _apply(self, pass_: ModulePass, ctx: Context, module: ModuleOp) -> None:
        start = time.perf_counter()
        with self._placed(f"pass '{pass_.name}'"):
            pass_.apply(ctx, module)
        if self.args.time_passes:
            seconds = time.perf_counter() - start
            print(f"{pass_.name}: {1000 * seconds:.1f} ms", file=sys.stderr)
        self._verify(module, f"after pass '{pass_.name}'")
        if self.args.print_between_passes:
            print(f"// IR after {pass_.name}", file=sys.stderr)
            MlirTarget().emit(ctx, module, sys.stderr)

    def _verify(self, module: ModuleOp, when: str) -> None:
        if self.args.disable_verify:
            return
        with self._placed(when):
            verify(module)

    def _print(self, ctx: Context, module: ModuleOp) -> str:
        text = StringIO()
        self.target.emit(ctx, module, text)
        return text.getvalue()

    @contextmanager
    def _placed(self, doing: str) -> Generator[None]:
        """Turn every error into a SourceError that says where and in doing what it came up."""
        prefix = f"{self.name}: error: {doing}: " if doing else f"{self.name}: error: "
        try:
            yield
        except IrError as e:
            raise SourceError(e.report(self.name, doing)) from e
        except (RlxError, DiagnosticException) as e:
            raise SourceError(f"{prefix}{e}") from e
        except RecursionError as e:
            raise SourceError(f"{prefix}nested too deeply") from e
        except Exception as e:
            message = f"{prefix}internal error, {type(e).__name__}: {e} (--debug shows where)"
            raise SourceError(message) from e


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def run(args: Sequence[str]) -> int:
    """Run `rlx-opt` and return its exit code; the one message of an error goes to stderr."""
    try:
        _Tool(args).run()
    except SystemExit:
        # argparse has printed its help.
        return 0
    except BrokenPipeError:
        # The reader of our output is gone: the interpreter must not try to flush it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except RlxError as e:
        if "--debug" in args:
            raise
        print(e if isinstance(e, SourceError) else f"rlx-opt: error: {e}", file=sys.stderr)
        return 1
    return 0
