"""From a module of any level to LLVM IR and object code, in a file that loads quickly."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlx.runtime.compiled import Compiled

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from rlx.flow.profile import CompileProfile
    from rlx.lowering.manifest import Manifest
    from rlx.lowering.target import Target


STAGES = ("hir", "mir", "lir", "llvm")


@contextmanager
def collector_paused() -> Generator[None]:
    """
    Keep Python's garbage collector from running.

    Classes and IR are many objects that live on: to visit them over and over again takes a
    twentieth of a compilation, more where a process holds much, and frees nothing.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@collector_paused()
def compile_text(
    module: ModuleOp, target: Target, profile: CompileProfile | None = None
) -> tuple[Manifest, str]:
    """Lower a module of any level; return its manifest and its LLVM IR. The module is rewritten."""
    from rlx.lowering.extract import manifest_of
    from rlx.lowering.program import lower
    from rlx.passes.pipelines import run_to

    run_to(module, "lir", profile)
    return manifest_of(module), lower(module, target)


def compile_program(
    module: ModuleOp, target: Target, profile: CompileProfile | None = None
) -> Compiled:
    """Compile a module of any level to object code."""
    from rlx.runtime.jit import compile_object

    manifest, text = compile_text(module, target, profile)
    return Compiled(manifest, compile_object(text, target))
