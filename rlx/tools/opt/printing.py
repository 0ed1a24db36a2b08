"""The module before and after passes, for those who debug them: on stderr and in files."""

from __future__ import annotations

import sys
from argparse import Namespace
from io import StringIO
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.target import Target

from rlx.errors import RlxError
from rlx.tools.opt.pipeline import check_pass_names


class IrPrinter:
    """Shows the module around the passes that the options name; `form` says how it is spelled."""

    def __init__(self, args: Namespace, form: Target):
        check_pass_names([*args.print_ir_before, *args.print_ir_after])
        self._args = args
        self._form = form
        self._folder: Path | None = None
        self._count = 0
        self._seen = ""

    def begin(self, ctx: Context, module: ModuleOp, part: str) -> None:
        """Start with a module; `part` names the subfolder for its files, if there are several."""
        if self._args.print_ir_tree_dir:
            self._folder = Path(self._args.print_ir_tree_dir, part)
            self._count = 0
            self._write("input", self._text(ctx, module))

    def before(self, name: str, ctx: Context, module: ModuleOp) -> None:
        args = self._args
        shown = args.print_ir_before_all or name in args.print_ir_before
        if not shown and not args.print_ir_after_change:
            return
        self._seen = self._text(ctx, module)
        if shown:
            self._show("before", name, self._seen)

    def after(self, name: str, ctx: Context, module: ModuleOp) -> None:
        args = self._args
        shown = args.print_ir_after_all or name in args.print_ir_after
        if not shown and not args.print_ir_after_change and self._folder is None:
            return
        text = self._text(ctx, module)
        if shown or (args.print_ir_after_change and text != self._seen):
            self._show("after", name, text)
        if self._folder is not None:
            self._write(name, text)

    def _text(self, ctx: Context, module: ModuleOp) -> str:
        text = StringIO()
        self._form.emit(ctx, module, text)
        return text.getvalue()

    def _show(self, when: str, name: str, text: str) -> None:
        print(f"// IR {when} {name}\n{text}", file=sys.stderr, end="")

    def _write(self, name: str, text: str) -> None:
        assert self._folder is not None
        path = self._folder / f"{self._count:02}_{name}.mlir"
        self._count += 1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except (OSError, ValueError) as e:
            raise RlxError(f"cannot write {path}: {e}") from e
