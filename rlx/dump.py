"""
RLX_DUMP: what each stage of a compilation made, as files.

    RLX_DUMP=DIR python program.py

For each program that is compiled, `DIR/NAME` gets `hir.mlir`, `mir.mlir`, `lir.mlir`, `llvm.ll`
and `asm.s`, from the stage on that it was given in, and `kernels` the LLVM IR and the assembly of
each function. Of several programs of one name, the later ones have numbers. Nothing is taken from
the cache of programs then, as nothing would be compiled.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.errors import RlxError
from rlx.runtime.compiled import dump_folder

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from rlx.lowering.target import Target

KERNELS = "kernels"
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
_DEFINED = re.compile(r'^define [^@]*@"?([^"(]+)"?\(.*?^}', re.MULTILINE | re.DOTALL)
_LABEL = re.compile(r'^"?([A-Za-z_$][^":\s]*)"?:', re.MULTILINE)
_END = re.compile(r"^\.L(?:func_)?end\d*:|^\s*\.size\s", re.MULTILINE)

_counts: Counter[str] = Counter()


class Dump:
    """The folder of one program's stages. Raises RlxError where it can't be written to."""

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            (folder / KERNELS).mkdir(parents=True, exist_ok=True)
            for left in [*folder.glob("*.*"), *(folder / KERNELS).glob("*.*")]:
                if left.suffix in (".mlir", ".ll", ".s"):
                    left.unlink()
        except OSError as e:
            raise _unusable(folder, e) from None

    @staticmethod
    def of(name: str) -> Dump | None:
        """Return the dump of a program of this name; None where RLX_DUMP is not set."""
        folder = dump_folder()
        if folder is None:
            return None
        name = _UNFIT.sub("_", name)[:80].strip(".") or "program"
        _counts[name] += 1
        count = _counts[name]
        return Dump(folder / (name if count == 1 else f"{name}-{count}"))

    def stage(self, name: str, module: ModuleOp) -> None:
        """Write a module at a stage."""
        self._write(f"{name}.mlir", str(module) + "\n")

    def code(self, text: str, target: Target) -> None:
        """Write LLVM IR and its assembly, and both of each function."""
        from rlx.runtime.jit import assembly

        self._write("llvm.ll", text)
        lines = assembly(text, target)
        self._write("asm.s", lines)
        functions = {m[1]: m[0] for m in _DEFINED.finditer(text)}
        for name, body in functions.items():
            self._write(f"{KERNELS}/{_UNFIT.sub('_', name)}.ll", f"{body}\n")
        for name, body in _functions_of(lines):
            if name in functions:
                self._write(f"{KERNELS}/{_UNFIT.sub('_', name)}.s", body)

    def _write(self, name: str, text: str) -> None:
        try:
            (self.folder / name).write_text(text, encoding="utf-8")
        except OSError as e:
            raise _unusable(self.folder / name, e) from None


def _functions_of(text: str) -> Iterator[tuple[str, str]]:
    """Return each function of a module's assembly, from its label to its end."""
    for label in _LABEL.finditer(text):
        end = _END.search(text, label.end())
        yield label[1], text[label.start() : end.start() if end else len(text)]


def _unusable(path: Path, error: OSError) -> RlxError:
    return RlxError(f"RLX_DUMP: {path}: {error.strerror}: name a folder that can be written to")
