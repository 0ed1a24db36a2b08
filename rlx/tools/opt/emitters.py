"""What `rlx-opt -t` can print beside the module: code, a graph, facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.target import Target

from rlx.errors import RlxError


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


@dataclass(frozen=True)
class DotTarget(Target):
    """A graph of operations and values, for Graphviz."""

    name = "dot"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        from rlx.tools.opt.dot import to_dot

        output.write(to_dot(module))


@dataclass(frozen=True)
class JsonTarget(Target):
    """The manifest of a LIR module: what it takes, gives and needs, sizes in bytes."""

    name = "json"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        import json

        from rlx.lowering.extract import manifest_of

        _check_planned(module, self.name)
        output.write(json.dumps(_named(manifest_of(module)), indent=2) + "\n")


def _named(value: Any) -> Any:
    """Return named tuples as objects, which JSON would write as lists, inside of others too."""
    if isinstance(value, tuple):
        values = cast("tuple[Any, ...]", value)
        fields: Sequence[str] = getattr(values, "_fields", ())
        found = [_named(v) for v in values]
        return dict(zip(fields, found, strict=True)) if fields else found
    return value


@dataclass(frozen=True)
class StatsTarget(Target):
    """How many operations a module has, and the sizes of its plan."""

    name = "stats"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        from rlx.tools.opt.statistics import count, statistics

        output.write(statistics(module, {"operations": count(module)}))


def _llvm_ir(module: ModuleOp, target: str, cpu: str) -> str:
    from rlx.lowering.program import lower
    from rlx.lowering.target import Target as Machine

    machine = Machine.named(cpu)
    _check_planned(module, target)
    return lower(module, machine)


def _check_planned(module: ModuleOp, target: str) -> None:
    from rlx.dialects.lir import ProgramOp
    from rlx.passes.verify_stage import verify_stage

    if not any(isinstance(op, ProgramOp) for op in module.ops):
        raise RlxError(
            f"'{target}' takes a LIR module, and this one has no lir.program: "
            "lower it with -p rlx-default first"
        )
    verify_stage(module, "lir")
