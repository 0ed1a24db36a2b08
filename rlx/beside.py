"""
A program that is compiled beside this process, in one of its own.

A model has several programs, and two of them are compiled at once where two CPUs are there: LLVM's
part can't be in threads, as llvmlite holds one lock. The other process has all imports to do again,
so it is started only where this one has them before it, and is asked for one program. Whatever is
wrong with it, the program is compiled here.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.lowering.target import Target, usable_cores
from rlx.runtime.compilations import Compilations, is_allowed, note
from rlx.runtime.compiled import Compiled, dump_folder
from rlx.runtime.stages import stage

if TYPE_CHECKING:
    from rlx.driver import Model

_SCRIPT = "from rlx.beside import answer; answer()"


def pays() -> bool:
    """Return whether another process is likely to be quicker, and may be started."""
    return (
        "xdsl" not in sys.modules
        and usable_cores() > 1
        and dump_folder() is None
        and is_allowed()
        # Not the program that Python is embedded in.
        and Path(sys.executable or "").name.startswith("python")
    )


@contextmanager
def compiled_beside(
    model: Model, name: str, target: Target, key: str
) -> Generator[Callable[[], Compiled | None]]:
    """
    Let another process compile a program; give what waits for it, and returns None if that fails.

    The process ends with the block.
    """
    request = (
        os.fspath(model.file.path.absolute()), model.max_context, model.profile, model.kv_cache,
        dict(model.precision), model.marks, name, target,
    )  # fmt: skip
    process = None
    with suppress(OSError, pickle.PicklingError):
        process = _start(pickle.dumps(request))

    def wait() -> Compiled | None:
        with stage(f"waiting for the process that compiles {name}"):
            return _read(process, key) if process is not None else None

    try:
        yield wait
    finally:
        if process is not None:
            process.kill()
            process.communicate()


def _start(request: bytes) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.write(request)
        process.stdin.flush()
    return process


def _read(process: subprocess.Popen[bytes], key: str) -> Compiled | None:
    """Return the program that a process has compiled; None for one of another key."""
    assert process.stdout is not None
    data = process.stdout.read()
    try:
        found, seconds, program = pickle.loads(data)
    except (EOFError, ValueError, pickle.UnpicklingError):
        return None
    if found != key:
        return None
    note(1, seconds)
    return Compiled.from_bytes(program)


def answer() -> None:
    """Compile what stdin asks for, and write it to stdout, which is for that alone."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    path, max_context, profile, kv_cache, precision, marks, name, target = pickle.load(
        sys.stdin.buffer
    )
    from rlx.driver import open_model
    from rlx.model_programs import compile_one

    model = replace(
        open_model(path, max_context, profile, kv_cache), precision=precision, marks=marks
    )
    program = compile_one(model, name, target)
    pickle.dump((model.key(name, target), Compilations.seconds, program.to_bytes()), out)
    out.close()
