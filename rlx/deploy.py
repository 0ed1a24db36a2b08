"""
Ahead-of-time deployment: a folder with a model's compiled programs, packed weights and tokenizer.

`rlx compile MODEL -o DIR` writes it, and `rlx.load(DIR)` runs it with numpy and llvmlite alone, on
any machine whose CPU has what the code needs: nothing is compiled there.

    rlx.json          what the model is, what its code needs, and the other files' sizes and keys
    objects/KEY       a compiled program, or other code, as in the cache folder
    weights.packed    the packed weights, as in the cache folder, which are mapped
    tokenizer.json    the tokenizer, where rlx has one for the model

Each file is checked when it is read: what anything has damaged is one error.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from rlx.checks import integer
from rlx.errors import RlxError
from rlx.frontends.tokenizer import Tokenizer
from rlx.lowering.target import Target
from rlx.runtime.cache import Stored, read_also
from rlx.runtime.compilations import counted
from rlx.runtime.compiled import Compiled
from rlx.runtime.language import LanguageModel
from rlx.runtime.memory import Block, Resident, Segment
from rlx.runtime.packed import PackedFile, write
from rlx.runtime.program import Program, packed_key
from rlx.runtime.replacing import name_beside
from rlx.runtime.stages import shown, stage
from rlx.runtime.threads import Team, native_object

if TYPE_CHECKING:
    from rlx.driver import Model, Options

FORMAT = 2
FACTS, OBJECTS, WEIGHTS, TOKENIZER = "rlx.json", "objects", "weights.packed", "tokenizer.json"


class Facts(NamedTuple):
    """What `rlx.json` says of a folder."""

    model: str
    """The name of the file that it was made of."""
    programs: dict[str, str]
    """The key of each program's object, by name, in the order in which the runtime wants them."""
    team: str
    """The key of the object that runs threads; another version of Python or LLVM makes its own."""
    weights: str
    """The key of the packed weights; empty where the programs have none."""
    tokenizer: str
    """A digest of its file; empty where there is none."""
    end_tokens: list[int]
    vocab: int
    capacity: int
    precision: str
    kv_cache: str
    triple: str
    cpu: str
    features: list[str]
    """What the CPU must have."""

    def to_json(self) -> str:
        facts = self._asdict()
        return json.dumps({"format": FORMAT, "digest": _digest(_text(facts)), **facts}, indent=1)

    @staticmethod
    def read(path: Path) -> Facts:
        """Return the facts of a folder's file. Raises RlxError where it has none, or damaged."""
        try:
            facts: dict[str, Any] = json.loads(path.read_bytes())
            form, digest = facts.pop("format"), facts.pop("digest")
        except OSError as e:
            _refuse(path, e)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            _refuse(path)
        if form != FORMAT:
            raise RlxError(
                f"{path}: expected format {FORMAT}, which this version of rlx reads, found "
                f"{form!r:.80}: compile the model again with it"
            )
        if digest != _digest(_text(facts)):
            _refuse(path)
        return Facts(**facts)


def _text(facts: dict[str, Any]) -> str:
    return json.dumps(facts, sort_keys=True)


def _digest(data: str | bytes) -> str:
    data = data.encode() if isinstance(data, str) else data
    return blake2b(data, digest_size=16).hexdigest()


def _refuse(path: Path, error: OSError | None = None) -> NoReturn:
    """Raise RlxError for a file of a folder that is missing, can't be read, or is damaged."""
    if error is None:
        what = "it is damaged"
    elif isinstance(error, FileNotFoundError):
        what = "expected it in a folder of `rlx compile`, it is missing"
    else:
        raise RlxError(f"{path}: cannot read it: {error.strerror}") from None
    raise RlxError(f"{path}: {what}: copy the folder again, or compile the model again") from None


# Writing


def write_folder(
    model: Model, folder: Path, target: Target, precision: str = "auto", threads: int | None = None
) -> None:
    """
    Compile a model for a CPU into a folder, which is new, or one that this wrote before.

    `precision` is what was asked for, which means for each program what suits the CPU. This machine
    packs the weights, so it must run the CPU's code. The folder appears complete, or not at all.
    Raises RlxError where it can't be made.
    """
    from rlx.driver import Precision

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
    model = replace(model, precision=Precision.of(precision, target))
    # What a link names is replaced, the link stays.
    folder = Path(os.path.realpath(folder))
    partial, before = Path(name_beside(str(folder))), Path(name_beside(str(folder)))
    try:
        (partial / OBJECTS).mkdir(parents=True)
        _fill(model, partial, target, precision, threads)
        if folder.exists():
            folder.replace(before)
        partial.replace(folder)
    except OSError as e:
        raise RlxError(f"{folder}: cannot write the compiled model: {e.strerror}") from e
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if folder.exists():
            shutil.rmtree(before, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    """Return whether a folder may be replaced: there is nothing else in it."""
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    return not names or (FACTS in names and names <= {FACTS, OBJECTS, WEIGHTS, TOKENIZER})


def _fill(model: Model, folder: Path, target: Target, precision: str, threads: int | None) -> None:
    from rlx.driver import PROGRAMS, compiled, end_tokens

    found = dict(zip(PROGRAMS, compiled(model, target), strict=True))
    programs: dict[str, str] = {}
    for name, program in found.items():
        data = program.to_bytes()
        programs[name] = _write_object(folder, _digest(data), data, f"program {name}")
    team = _write_object(folder, *native_object(), "team of threads")
    first = next(iter(found.values()))
    with stage("packing weights"):
        weights = _write_weights(model, folder, first, threads)
    facts = Facts(
        model.file.path.name,
        programs,
        team,
        weights,
        _write_tokenizer(model, folder / TOKENIZER),
        sorted(end_tokens(model.file)),
        model.config.vocab,
        model.max_context,
        precision,
        model.kv_cache,
        target.triple,
        target.cpu,
        sorted(target.features),
    )
    (folder / FACTS).write_text(facts.to_json() + "\n", encoding="utf-8")


def _write_object(folder: Path, key: str, data: bytes, label: str) -> str:
    (folder / OBJECTS / key).write_bytes(Stored(label, data).bytes_of(key))
    return key


def _write_weights(model: Model, folder: Path, first: Compiled, threads: int | None) -> str:
    from rlx.model_programs import digest_of, pack

    nbytes = first.manifest.weight_segment_bytes
    if nbytes == 0:
        return ""
    program = Program(first.manifest, first.code, Team(threads), Segment(64))
    key = packed_key(first.manifest, digest_of(model.file.file))
    path, label = folder / WEIGHTS, f"weights of {model.label}"

    def fill(block: Block) -> None:
        pack(model.file.file, model.source, program, block)

    write(path, key, nbytes, program.checksums, fill, label)
    return key


def _write_tokenizer(model: Model, path: Path) -> str:
    """Write a model's tokenizer and return its digest; nothing where rlx has none of its kind."""
    try:
        tokenizer = Tokenizer.from_gguf(model.file)
    except RlxError:
        return ""
    tokenizer.save(path)
    return _digest(path.read_bytes())


# Loading


def is_compiled(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder is one of `rlx compile`, perhaps an incomplete one."""
    return any(os.path.exists(os.path.join(path, name)) for name in (FACTS, OBJECTS, WEIGHTS))


def load_folder(folder: Path, options: Options) -> LanguageModel:
    """
    Load a model that `write_folder` wrote; `options` that are given must be those of then.

    Raises RlxError for a folder that is incomplete or damaged, and where this CPU lacks what the
    code needs.
    """
    started = time.perf_counter()
    with shown(f"loading {folder.name}"), counted() as tally:
        model = _load(folder, options)
    model.stats.load_s = time.perf_counter() - started
    model.stats.compilations = tally.count
    return model


def _load(folder: Path, options: Options) -> LanguageModel:
    from rlx.driver import start, stats_of

    facts = Facts.read(folder / FACTS)
    _check_options(folder, facts, options)
    _check_cpu(folder, facts)
    _read_object(folder / OBJECTS / facts.team)
    read_also(folder / OBJECTS)
    found = [
        Compiled.from_bytes(_read_object(folder / OBJECTS / key)) for key in facts.programs.values()
    ]
    team = Team(options.threads)
    started = start(found, team, lambda program: _map_weights(folder, facts, program))
    prefill, decode = started.programs

    def tokenizer() -> Tokenizer:
        path = folder / TOKENIZER
        if not facts.tokenizer:
            raise RlxError(f"{folder}: the model has no tokenizer: give token ids, and take ids")
        try:
            good = _digest(path.read_bytes()) == facts.tokenizer
        except OSError as e:
            _refuse(path, e)
        if not good:
            _refuse(path)
        return Tokenizer.load(path)

    def resident() -> Resident:
        found = Resident.of_process(started.weights.address, 0)
        return found._replace(resident_file_bytes=0)

    def refused(what: str) -> NoReturn:
        raise RlxError(f"{what}: {folder} has compiled code alone: load the model's file for that")

    return LanguageModel(
        prefill,
        decode,
        make_tokenizer=tokenizer,
        end_tokens=frozenset(facts.end_tokens),
        vocab=facts.vocab,
        capacity=min(facts.capacity, options.max_context or facts.capacity),
        stats=stats_of(started, team, facts.kv_cache),
        marked=lambda _: refused("profile"),
        resident=resident,
        print_ir=lambda stage, program: refused(f"{stage} of {program}"),
        batch_program=lambda: refused("the program of batches"),
        reuse_prefix=options.reuse_prefix,
    )


def _check_options(folder: Path, facts: Facts, options: Options) -> None:
    """Raise RlxError for an option that is not as the folder was compiled."""
    if options.max_context is not None:
        integer("max_context of a compiled model", options.max_context, 1, facts.capacity)
    if options.verify:
        raise RlxError(
            f"verify: {folder} has compiled code alone, and no plans to check: leave it out, or "
            "load the model's file with it"
        )
    for name, given, free, built in (
        ("precision", options.precision, "auto", facts.precision),
        ("kv_cache", options.kv_cache, "auto", facts.kv_cache),
        ("profile", options.profile, None, None),
    ):
        if given != free and (built is None or given != built):
            known = f" with {built}" if built is not None else ""
            raise RlxError(
                f"{name}: {folder} was compiled{known}, and is not compiled again for "
                f"{given!r:.80}: leave it out, or compile the model's file with it"
            )


def _check_cpu(folder: Path, facts: Facts) -> None:
    """Raise RlxError unless this machine runs the folder's code."""
    host = Target.host()
    here, there = (text.split("-")[0] for text in (host.triple, facts.triple))
    lacking = sorted(set(facts.features) - host.features)
    if here != there or lacking:
        lacks = f"lacks {', '.join(lacking)}" if here == there else f"is a {here}"
        raise RlxError(
            f"{folder}: its code is for {facts.cpu} ({there}), but this machine ({host.cpu}) "
            f"{lacks}: compile the model for it, with `rlx compile --target`"
        )


def _read_object(path: Path) -> bytes:
    try:
        stored = Stored.read(path)
    except OSError as e:
        _refuse(path, e)
    if stored is None:
        _refuse(path)
    return stored.data


def _map_weights(folder: Path, facts: Facts, program: Program) -> Block:
    nbytes = program.manifest.weight_segment_bytes
    if not facts.weights:
        return Segment(64)
    file = PackedFile(folder / WEIGHTS, facts.weights, nbytes, program.checksums)
    try:
        found = file.mapped()
    except OSError as e:
        _refuse(file.path, e)
    if found is None:
        _refuse(file.path)
    return found
