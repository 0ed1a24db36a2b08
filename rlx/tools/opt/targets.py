"""What `rlx-opt -t` can print, by name; all but the module itself is imported when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.printer import Printer
from xdsl.utils.target import Target


@dataclass(frozen=True)
class MlirTarget(Target):
    """The module itself, as text that can be read again."""

    name = "mlir"
    generic: bool = False
    debuginfo: bool = False

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        printer = Printer(output, print_generic_format=self.generic, print_debuginfo=self.debuginfo)
        printer.print_op(module)
        output.write("\n")


def _lazy(cls: str) -> Callable[[], type[Target]]:
    return lambda: getattr(import_module("rlx.tools.opt.emitters"), cls)


TARGETS: dict[str, Callable[[], type[Target]]] = {
    "mlir": lambda: MlirTarget,
    "llvm": _lazy("LlvmTarget"),
    "asm": _lazy("AsmTarget"),
    "dot": _lazy("DotTarget"),
    "json": _lazy("JsonTarget"),
    "stats": _lazy("StatsTarget"),
}
"""Name -> factory of a target."""
