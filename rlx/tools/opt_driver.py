"""The machinery of `rlx-opt`: text to module, passes with a check after each, module to text."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from io import StringIO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import DiagnosticException

from rlx.errors import RlxError
from rlx.passes.diagnostics import IrError, verify
from rlx.passes.source import SourceError, context, parse
from rlx.tools.endings import ended, standard_input, standard_output
from rlx.tools.opt_options import SEPARATOR, parse_arguments
from rlx.tools.opt_pipeline import (
    help_pass,
    list_passes,
    make_nested_passes,
    make_passes,
    make_target,
    spell_pipeline,
)
from rlx.tools.opt_printing import IrPrinter
from rlx.tools.opt_statistics import Timing, count, statistics
from rlx.tools.targets import MlirTarget


class InternalError(SourceError):
    """A fault of ours, whatever the module; its message ends in what to do about it."""


class _Tool:
    """A run of `rlx-opt`; every error is an RlxError, and nothing is written then."""

    def __init__(self, args: Namespace):
        self.args = args
        self.passes = _passes(args)
        form = MlirTarget(generic=args.print_op_generic, debuginfo=args.print_debuginfo)
        target = make_target(args.target)
        self.target = form if isinstance(target, MlirTarget) else target
        self.printer = IrPrinter(args, form)
        self.timing = Timing()
        self.name = "stdin" if args.input_file == "-" else args.input_file
        self.mismatches: list[str] = []

    def run(self) -> None:
        """Process the input, each part on its own if it is split, and write the results."""
        data = self._read()
        parts = data.split(SEPARATOR.encode()) if self.args.split_input_file else [data]
        results: list[str] = []
        first_line = 1
        for i, part in enumerate(parts, 1):
            label = f"part_{i}" if len(parts) > 1 else ""
            results.append(self._process(part, first_line, label))
            first_line += part.count(b"\n")
        if self.args.timing:
            sys.stderr.write(self.timing.table())
        if self.mismatches:
            raise SourceError("\n".join(self.mismatches))
        self._write(f"{SEPARATOR}\n".join(results))

    def _read(self) -> bytes:
        path = self.args.input_file
        try:
            if path == "-":
                return standard_input().read()
            with open(path, "rb") as f:
                return f.read()
        except (OSError, ValueError) as e:
            raise RlxError(f"cannot read {path}: {_reason(e)}") from e

    def _write(self, text: str) -> None:
        path = self.args.output_file
        if path == "-":
            standard_output().write(text)
            standard_output().flush()
            return
        self._write_file(path, text)

    def _write_file(self, path: str, text: str) -> None:
        try:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        except (OSError, ValueError) as e:
            raise RlxError(f"cannot write {path}: {_reason(e)}") from e

    def _process(self, data: bytes, first_line: int, label: str) -> str:
        """Return what a module becomes, or its error where errors are the expected output."""
        if not self.args.verify_diagnostics:
            return self._compile(data, first_line, label)
        from rlx.tools.opt_expected import expectations, mismatches

        expected = expectations(data, self.name, first_line)
        error: SourceError | None = None
        try:
            result = self._compile(data, first_line, label)
        except SourceError as e:
            result, error = f"{e}\n", e
        if not expected:
            return result
        self.mismatches += mismatches(expected, error, self.name)
        return ""

    def _compile(self, data: bytes, first_line: int, label: str) -> str:
        # A context of its own for each part: what one declares must not change the next.
        ctx = context(self.args.allow_unregistered_dialect)
        implicit = not self.args.no_implicit_module
        with self.timing.measure("parse"):
            module = parse(ctx, data, self.name, first_line=first_line, implicit_module=implicit)
        self._verify(module, "")
        before = count(module) if self.args.statistics else None
        with self._placed("input"):
            self.printer.begin(ctx, module, label)
        for pass_ in self.passes:
            self._apply(pass_, ctx, module)
        if before is not None:
            counts = {"before": before, "after": count(module)}
            with self._placed("--statistics"):
                sys.stderr.write(f"// statistics\n{statistics(module, counts)}")
        if self.args.run:
            return self._run(module)
        with self._placed(f"target '{self.target.name}'"), self.timing.measure("print"):
            text = StringIO()
            self.target.emit(ctx, module, text)
            return text.getvalue()

    def _run(self, module: ModuleOp) -> str:
        from rlx.tools.opt_run import run_program

        with self._placed("--run"), self.timing.measure("run"):
            return run_program(module, self.args)

    def _apply(self, pass_: ModulePass, ctx: Context, module: ModuleOp) -> None:
        # An invalid module, which --disable-verify lets through, may not even print.
        with self._placed(f"before pass '{pass_.name}'"):
            self.printer.before(pass_.name, ctx, module)
            source = self._source(ctx, module) if self.args.crash_reproducer else ""
        applied = False
        try:
            with self._placed(f"pass '{pass_.name}'"), self.timing.measure(pass_.name):
                pass_.apply(ctx, module)
            applied = True
            self._verify(module, f"after pass '{pass_.name}'")
        except SourceError as e:
            # An invalid module is the pass's fault; what else a pass says is about its input.
            if source and (applied or isinstance(e, InternalError)):
                self._reproduce(source, pass_, e)
            raise
        with self._placed(f"after pass '{pass_.name}'"):
            self.printer.after(pass_.name, ctx, module)

    def _source(self, ctx: Context, module: ModuleOp) -> str:
        text = StringIO()
        MlirTarget().emit(ctx, module, text)
        return text.getvalue()

    def _reproduce(self, source: str, pass_: ModulePass, error: SourceError) -> None:
        """Write the module before a pass, and the command; raise the error with their place."""
        from shlex import quote

        flags = [
            flag
            for flag in ("--allow-unregistered-dialect", "--disable-verify")
            if getattr(self.args, flag[2:].replace("-", "_"))
        ]
        command = " ".join(["rlx-opt %s -p", quote(str(pass_)), *flags])
        path = self.args.crash_reproducer
        try:
            self._write_file(path, f"// RUN: {command}\n{source}")
        except RlxError as e:
            raise SourceError(f"{error}\n  no reproducer: {e}") from error
        raise SourceError(f"{error}\n  reproducer: {path}") from error

    def _verify(self, module: ModuleOp, when: str) -> None:
        if self.args.disable_verify:
            return
        with self._placed(when), self.timing.measure("verify"):
            verify(module)

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
            raise InternalError(message) from e


def _passes(args: Namespace) -> list[ModulePass]:
    if args.pass_pipeline:
        return make_nested_passes(args.pass_pipeline)
    return make_passes(args.passes)


def _answer(args: Namespace) -> str:
    """Return what is asked about the tool itself, without any input."""
    if args.list_passes:
        return list_passes()
    if args.help_pass:
        return help_pass(args.help_pass)
    if args.print_pipeline:
        return spell_pipeline(_passes(args)) + "\n"
    return ""


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def run(args: Sequence[str]) -> int:
    """Run `rlx-opt` and return its exit code; the one message of an error goes to stderr."""

    def body() -> None:
        parsed = parse_arguments(args)
        answer = _answer(parsed)
        if answer:
            standard_output().write(answer)
        else:
            _Tool(parsed).run()

    return ended(body, _say, "--debug" in args)


def _say(message: str, error: Exception) -> None:
    placed = isinstance(error, SourceError)
    print(message if placed else f"rlx-opt: error: {message}", file=sys.stderr)
