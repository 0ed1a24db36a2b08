"""What `rlx-opt` does with one module: passes with a check after each, then its text or results."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import DiagnosticException

from rlx.errors import RlxError
from rlx.passes.diagnostics import IrError, verify
from rlx.passes.source import SourceError, context, parse
from rlx.runtime.replacing import errors_of, replacing
from rlx.tools.opt.pipeline import make_target
from rlx.tools.opt.printing import IrPrinter
from rlx.tools.opt.statistics import Timing, count, statistics
from rlx.tools.opt.targets import MlirTarget

if TYPE_CHECKING:
    from rlx.tools.opt.bisect import Bisection


BOUNDARIES = {"legalize-hir": "mir", "plan-lir": "lir"}
"""Pass -> the stage of the module that it makes."""


class InternalError(SourceError):
    """A fault of ours, whatever the module; its message ends in what to do about it."""


class Session:
    """The passes and options of a run, for one module or several; every error is an RlxError."""

    def __init__(self, args: Namespace, passes: Sequence[ModulePass]):
        self.args = args
        self.passes = passes
        form = MlirTarget(generic=args.print_op_generic, debuginfo=args.print_debuginfo)
        target = make_target(args.target)
        self.target = form if isinstance(target, MlirTarget) else target
        self.printer = IrPrinter(args, form)
        self.timing = Timing()
        self.name = "stdin" if args.input_file == "-" else args.input_file

    def compile(self, data: bytes, first_line: int, label: str) -> str:
        """Return what a text becomes, which begins at a line of the input; `label` names it."""
        # A context of its own for each part: what one declares must not change the next.
        ctx = context(self.args.allow_unregistered_dialect)
        implicit = not self.args.no_implicit_module
        with self.timing.measure("parse"):
            module = parse(ctx, data, self.name, first_line=first_line, implicit_module=implicit)
        self._verify(module, "")
        if self.args.reduce:
            return self._reduce(ctx, module)
        with self._placed("input"):
            self.printer.begin(ctx, module, label)
        return self.transform(ctx, module, self.passes)

    def transform(self, ctx: Context, module: ModuleOp, passes: Sequence[ModulePass]) -> str:
        """Run passes on a valid module, and return what the options ask for."""
        before = count(module) if self.args.statistics else None
        bisection = self._bisection(module)
        for pass_ in passes:
            self._apply(pass_, ctx, module, bisection)
        if before is not None:
            counts = {"before": before, "after": count(module)}
            with self._placed("--statistics"):
                sys.stderr.write(f"// statistics\n{statistics(module, counts)}")
        if bisection is not None:
            return bisection.table()
        try:
            return self._run(module) if self.args.run else self._emit(ctx, module)
        except InternalError as e:
            if self.args.crash_reproducer:
                self._reproduce(source_of(ctx, module), [], e)
            raise

    def _emit(self, ctx: Context, module: ModuleOp) -> str:
        with self._placed(f"target '{self.target.name}'"), self.timing.measure("print"):
            text = StringIO()
            self.target.emit(ctx, module, text)
            return text.getvalue()

    def _run(self, module: ModuleOp) -> str:
        from rlx.tools.opt.run import run_program

        with self._placed("--run"), self.timing.measure("run"):
            return run_program(module, self.args)

    def _bisection(self, module: ModuleOp) -> Bisection | None:
        if not self.args.bisect_numerics:
            return None
        from rlx.tools.opt.bisect import Bisection

        with self._placed("--bisect-numerics"), self.timing.measure("bisect"):
            return Bisection(module, self.args)

    def _reduce(self, ctx: Context, module: ModuleOp) -> str:
        from rlx.tools.opt.reduce import Reducer
        from rlx.tools.opt.reductions import Case
        from rlx.tools.opt.reproducer import only_decisive, reproducer

        # Candidates are run without what traces or writes.
        quiet = Session(only_decisive(self.args), [])

        def run(module: ModuleOp, passes: Sequence[ModulePass]) -> Exception | None:
            try:
                quiet.transform(ctx, module.clone(), passes)
            except SourceError as e:
                return e
            return None

        with self._placed(""), self.timing.measure("reduce"):
            case = Case(module, tuple(self.passes))
            reducer = Reducer(case, run, check=not self.args.disable_verify)
            small = reducer.reduce()
        sizes = zip(("operations", "passes"), case.size, small.size, strict=False)
        changes = ", ".join(f"{what} from {a} to {b}" for what, a, b in sizes)
        print(f"// reduced {changes}, in {reducer.tries} tries", file=sys.stderr)
        return reproducer(source_of(ctx, small.module), small.passes, self.args)

    def _apply(
        self, pass_: ModulePass, ctx: Context, module: ModuleOp, bisection: Bisection | None
    ) -> None:
        # An invalid module, which --disable-verify lets through, may not even print.
        with self._placed(f"before pass '{pass_.name}'"):
            self.printer.before(pass_.name, ctx, module)
            source = source_of(ctx, module) if self.args.crash_reproducer else ""
        applied = False
        try:
            with self._placed(f"pass '{pass_.name}'"), self.timing.measure(pass_.name):
                pass_.apply(ctx, module)
            applied = True
            self._verify(module, f"after pass '{pass_.name}'", BOUNDARIES.get(pass_.name))
            if bisection is not None:
                with self._placed("--bisect-numerics"), self.timing.measure("bisect"):
                    bisection.after(pass_.name, module)
        except SourceError as e:
            # An invalid module is the pass's fault; what else a pass says is about its input.
            if source and (applied or isinstance(e, InternalError)):
                self._reproduce(source, [pass_], e)
            raise
        with self._placed(f"after pass '{pass_.name}'"):
            self.printer.after(pass_.name, ctx, module)

    def _reproduce(self, source: str, passes: Sequence[ModulePass], error: SourceError) -> None:
        """Write a module and the command that fails on it; raise the error with their place."""
        from rlx.tools.opt.reproducer import reproducer

        path = self.args.crash_reproducer
        try:
            with replacing(path, self.args.input_file) as file, errors_of(path):
                file.write(reproducer(source, passes, self.args).encode())
                file.flush()
        except RlxError as e:
            raise SourceError(f"{error}\n  no reproducer: {e}") from error
        raise SourceError(f"{error}\n  reproducer: {path}") from error

    def _verify(self, module: ModuleOp, when: str, stage: str | None = None) -> None:
        if self.args.disable_verify:
            return
        with self._placed(when), self.timing.measure("verify"):
            verify(module)
            if stage is not None:
                from rlx.passes.verify_stage import verify_stage

                verify_stage(module, stage)

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


def source_of(ctx: Context, module: ModuleOp) -> str:
    """Return the text of a module, which reads back."""
    text = StringIO()
    MlirTarget().emit(ctx, module, text)
    return text.getvalue()
