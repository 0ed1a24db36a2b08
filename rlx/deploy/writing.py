"""Compiles a model into a folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rlx.deploy.facts import FACTS, OBJECTS, TOKENIZER, WEIGHTS, Facts, digest, runtime_digest
from rlx.errors import RlxError
from rlx.files import read_regular
from rlx.lowering.target import Target
from rlx.model_programs import Programs, pack
from rlx.runtime.cache import Stored
from rlx.runtime.compiled import Compiled
from rlx.runtime.memory import Block, Segment
from rlx.runtime.packed import write
from rlx.runtime.program import Program, packed_key
from rlx.runtime.replacing import name_beside
from rlx.runtime.stages import stage
from rlx.runtime.threads import Team, native_object


def write_folder(
    model: Programs,
    folder: Path,
    target: Target,
    precision: str = "auto",
    threads: int | None = None,
) -> None:
    """
    Compile a model for a CPU into a folder, which is new, or one that this wrote before.

    `precision` is what was asked for, which means for each program what suits the CPU. This machine
    packs the weights, so it must run the CPU's code. The folder appears complete, or not at all.
    Raises RlxError where it can't be made.
    """
    if not target.runs_on(Target.host()):
        raise RlxError(
            f"target: this machine can't run code for '{target.name}', and packs the weights: "
            "compile on one that can"
        )
    if os.path.exists(folder) and not _is_ours(folder):
        raise RlxError(
            f"{folder}: expected a new folder, or one of nothing but what `rlx compile` made before"
        )
    if not folder.name:
        raise RlxError(f"{folder}: expected the folder's name, which is replaced as a whole")
    # What a link names is replaced, the link stays.
    folder = Path(os.path.realpath(folder))
    partial, before = Path(name_beside(str(folder))), Path(name_beside(str(folder)))
    try:
        (partial / OBJECTS).mkdir(parents=True)
        _fill(model.for_target(precision, target), partial, target, precision, threads)
        if folder.exists():
            folder.replace(before)
        partial.replace(folder)
    except OSError as e:
        raise RlxError(f"{folder}: cannot write the compiled model: {e.strerror}") from e
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if folder.exists():
            shutil.rmtree(before, ignore_errors=True)
        elif before.exists():
            before.replace(folder)


def _is_ours(folder: Path) -> bool:
    """Return whether a folder may be replaced: there is nothing else in it."""
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    return not names or (FACTS in names and names <= {FACTS, OBJECTS, WEIGHTS, TOKENIZER})


def _fill(
    model: Programs, folder: Path, target: Target, precision: str, threads: int | None
) -> None:
    found = model.compiled(target)
    programs: dict[str, str] = {}
    for name, program in found.items():
        data = program.to_bytes()
        programs[name] = _write_object(folder, digest(data), data, f"program {name}")
    team = _write_object(folder, *native_object(), "team of threads")
    first = next(iter(found.values()))
    with stage("packing weights"):
        weights = _write_weights(model, folder, first, threads)
    path = folder / TOKENIZER
    tokenizer = digest(read_regular(path)) if model.save_tokenizer(path) else ""
    what = model.described()
    facts = Facts(
        model.label,
        model.kind,
        programs,
        team,
        weights,
        tokenizer,
        what.vocab,
        what.capacity,
        what.about,
        precision,
        runtime_digest(),
        target.triple,
        target.cpu,
        sorted(target.features),
    )
    (folder / FACTS).write_text(facts.to_json() + "\n", encoding="utf-8")


def _write_object(folder: Path, key: str, data: bytes, label: str) -> str:
    (folder / OBJECTS / key).write_bytes(Stored(label, data).bytes_of(key))
    return key


def _write_weights(model: Programs, folder: Path, first: Compiled, threads: int | None) -> str:
    nbytes = first.manifest.weight_segment_bytes
    if nbytes == 0:
        return ""
    program = Program(first.manifest, first.code, Team(threads), Segment(64))
    key = packed_key(first.manifest, model.contents())
    path, label = folder / WEIGHTS, f"weights of {model.label}"

    def fill(block: Block) -> None:
        pack(model, program, block)

    write(path, key, nbytes, program.checksums, fill, label)
    return key
