"""What `rlx-opt -t` can print: the module, LLVM IR, assembly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.printer import Printer
from xdsl.utils.target import Target

from rlx.errors import RlxError


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


@dataclass(frozen=True)
class LlvmTarget(Target):
    """LLVM IR of a LIR module, for a CPU by its name; `host` is this machine."""

    name = "llvm"
    cpu: str = "host"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        output.write(_llvm_ir(module, self.name, self.cpu))


@dataclass(frozen=True)
class AsmTarget(Target):
    """Assembly of a LIR module, for a CPU by its name; `host` is this machine."""

    name = "asm"
    cpu: str = "host"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        from rlx.lowering.target import Target as Machine
        from rlx.runtime.jit import assembly

        output.write(assembly(_llvm_ir(module, self.name, self.cpu), Machine.named(self.cpu)))


def _llvm_ir(module: ModuleOp, target: str, cpu: str) -> str:
    from rlx.dialects.lir import ProgramOp
    from rlx.lowering.program import lower
    from rlx.lowering.target import Target as Machine
    from rlx.passes.verify_stage import verify_stage

    machine = Machine.named(cpu)
    if not any(isinstance(op, ProgramOp) for op in module.ops):
        raise RlxError(
            f"'{target}' takes a LIR module, and this one has no lir.program: "
            "lower it with -p rlx-default first"
        )
    verify_stage(module, "lir")
    return lower(module, machine)


TARGETS: dict[str, Callable[[], type[Target]]] = {
    "mlir": lambda: MlirTarget,
    "llvm": lambda: LlvmTarget,
    "asm": lambda: AsmTarget,
}
"""Name -> factory of a target."""
