"""From a module of any level to LLVM IR and object code, in a file that loads quickly."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlx.errors import RlxError
from rlx.runtime.compiled import Compiled, dump_folder
from rlx.runtime.stack import MOST
from rlx.runtime.stages import stage

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from rlx.dump import Dump
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
    module: ModuleOp,
    target: Target,
    profile: CompileProfile | None = None,
    dump: Dump | None = None,
) -> tuple[Manifest, str]:
    """
    Lower a module of any level; return its manifest and its LLVM IR. The module is rewritten.

    Raises RlxError for a program that threads have no room for on their stacks.
    """
    with stage("imports"):
        from rlx.lowering.extract import manifest_of
        from rlx.lowering.frames import stack_bytes
        from rlx.lowering.program import lower
        from rlx.passes.pipelines import run_to

    run_to(module, "lir", profile, dump.stage if dump is not None else None)
    with stage("emission"):
        manifest, text = manifest_of(module), lower(module, target)
        taken = stack_bytes(text)
        if taken > MOST:
            raise RlxError(
                f"program {manifest.name}: its kernels take {taken} bytes of a thread's stack, "
                f"expected at most {MOST}: what they keep of a row, or of a head, is too wide"
            )
        return manifest._replace(stack_bytes=taken), text


def compile_program(
    module: ModuleOp, target: Target, profile: CompileProfile | None = None, what: str = ""
) -> Compiled:
    """
    Compile a module of any level to object code; `what` it is stands in messages.

    Raises RlxError inside of `rlx.no_compile()`.
    """
    from rlx.runtime.compilations import check_allowed
    from rlx.runtime.jit import compile_object

    what = what or f"the program {_name(module)}"
    check_allowed(what)
    dump = _dump(what)
    manifest, text = compile_text(module, target, profile, dump)
    if dump is not None:
        dump.code(text, target)
    return Compiled(manifest, compile_object(text, target, what))


def _name(module: ModuleOp) -> str:
    return module.sym_name.data if module.sym_name is not None else "without a name"


def _dump(what: str) -> Dump | None:
    """Return where the stages of a program go, where RLX_DUMP asks for them."""
    if dump_folder() is None:
        return None
    from rlx.dump import Dump

    return Dump.of(what)
