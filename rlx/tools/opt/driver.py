"""The machinery of `rlx-opt`: from its command line and its input to its output."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from xdsl.passes import ModulePass

from rlx.errors import RlxError
from rlx.files import read_bounded
from rlx.passes.source import SourceError
from rlx.runtime.replacing import errors_of, reason, replacing
from rlx.tools.endings import ended, standard_input, standard_output
from rlx.tools.opt.options import SEPARATOR, parse_arguments
from rlx.tools.opt.pipeline import (
    help_pass,
    list_passes,
    make_nested_passes,
    make_passes,
    spell_pipeline,
)
from rlx.tools.opt.session import Session


class _Tool:
    """A run of `rlx-opt`; every error is an RlxError, and nothing is written then."""

    def __init__(self, args: Namespace):
        self.args = args
        # What is wrong with the request is said before anything is read.
        self.session = Session(args, _passes(args))
        self.mismatches: list[str] = []

    def run(self) -> None:
        """Process the input, and write the results."""
        path = self.args.output_file
        if path == "-":
            standard_output().write(self._results())
            standard_output().flush()
            return
        # Opened before the work, which may take minutes.
        with replacing(path, self.args.input_file) as file:
            text = self._results()
            with errors_of(path):
                file.write(text.encode())
                file.flush()

    def _results(self) -> str:
        """Return what the input becomes, each part on its own if it is split."""
        data = self._read()
        self._take_command(data)
        parts = data.split(SEPARATOR.encode()) if self.args.split_input_file else [data]
        results: list[str] = []
        first_line = 1
        for i, part in enumerate(parts, 1):
            label = f"part_{i}" if len(parts) > 1 else ""
            results.append(self._process(part, first_line, label))
            first_line += part.count(b"\n")
        if self.args.timing:
            sys.stderr.write(self.session.timing.table())
        if self.mismatches:
            raise SourceError("\n".join(self.mismatches))
        return f"{SEPARATOR}\n".join(results)

    def _take_command(self, data: bytes) -> None:
        """Take the pipeline and what belongs to it from the input, where it is wanted."""
        given = self.args.passes or self.args.pass_pipeline
        if self.args.run_reproducer or (self.args.reduce and not given):
            from rlx.tools.opt.reproducer import command_of, with_command

            self.args = with_command(self.args, command_of(data))
            self.session = Session(self.args, _passes(self.args))

    def _read(self) -> bytes:
        path = self.args.input_file
        try:
            if path == "-":
                return read_bounded(standard_input(), path)
            with open(path, "rb") as f:
                return read_bounded(f, path)
        except (OSError, ValueError) as e:
            raise RlxError(f"cannot read {self.session.name}: {reason(e)}") from e

    def _process(self, data: bytes, first_line: int, label: str) -> str:
        """Return what a module becomes, or its error where errors are the expected output."""
        if not self.args.verify_diagnostics:
            return self.session.compile(data, first_line, label)
        from rlx.tools.opt.expected import expectations, mismatches

        name = self.session.name
        expected = expectations(data, name, first_line)
        error: SourceError | None = None
        try:
            result = self.session.compile(data, first_line, label)
        except SourceError as e:
            result, error = f"{e}\n", e
        if not expected:
            return result
        self.mismatches += mismatches(expected, error, name)
        return ""


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
