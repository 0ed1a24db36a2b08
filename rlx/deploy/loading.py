"""Loads the model of a compiled folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from rlx.checks import integer
from rlx.deploy.facts import (
    ENCODER,
    FACTS,
    LANGUAGE,
    OBJECTS,
    TOKENIZER,
    WEIGHTS,
    Facts,
    digest,
    refuse,
)
from rlx.errors import RlxError
from rlx.files import read_regular
from rlx.frontends.tokenizer import Tokenizer
from rlx.frontends.tokenizer_json import JsonTokenizer
from rlx.lowering.target import Target
from rlx.runtime.cache import Stored, read_also
from rlx.runtime.compilations import counted
from rlx.runtime.compiled import Compiled
from rlx.runtime.language import LanguageModel
from rlx.runtime.memory import Block, Resident, Segment
from rlx.runtime.packed import PackedFile
from rlx.runtime.program import Program
from rlx.runtime.stages import shown
from rlx.runtime.threads import Team

if TYPE_CHECKING:
    from rlx.driver import Options
    from rlx.runtime.encoder import TextEncoder


def load_folder(folder: Path, options: Options) -> LanguageModel | TextEncoder:
    """
    Load a model that `write_folder` wrote; `options` that are given must be those of then.

    Raises RlxError for a folder that is incomplete or damaged, and where this CPU lacks what the
    code needs.
    """
    started = time.perf_counter()
    # The tokenizer is read later, when the process may be elsewhere.
    folder = folder.absolute()
    with shown(f"loading {folder.name}"), counted() as tally:
        facts = Facts.read(folder / FACTS)
        _check_options(folder, facts, options)
        _check_cpu(folder, facts)
        found = _Folder(folder, facts)
        found.object(facts.team)
        read_also(folder / OBJECTS)
        model = {LANGUAGE: _language, ENCODER: _encoder}[facts.kind](found, options)
    model.stats.load_s = time.perf_counter() - started
    model.stats.compilations = tally.count
    return model


class _Folder(NamedTuple):
    """A folder, and what it says of itself."""

    path: Path
    facts: Facts

    def program(self, name: str) -> Compiled:
        return Compiled.from_bytes(self.object(self.facts.programs[name]))

    def object(self, key: str) -> bytes:
        path = self.path / OBJECTS / key
        try:
            stored = Stored.read(path)
        except OSError as e:
            refuse(path, e)
        if stored is None:
            refuse(path)
        return stored.data

    def weights(self, program: Program) -> Block:
        """Map the weights of a program."""
        if not self.facts.weights:
            return Segment(64)
        nbytes = program.manifest.weight_segment_bytes
        file = PackedFile(self.path / WEIGHTS, self.facts.weights, nbytes, program.checksums)
        try:
            found = file.mapped()
        except OSError as e:
            refuse(file.path, e)
        if found is None:
            refuse(file.path)
        return found

    def tokenizer(self) -> Path:
        """Return the path of the tokenizer's file, which is checked. Raises RlxError for none."""
        path = self.path / TOKENIZER
        if not self.facts.tokenizer:
            raise RlxError(f"{self.path}: the model has no tokenizer: give token ids, and take ids")
        try:
            good = digest(read_regular(path)) == self.facts.tokenizer
        except OSError as e:
            refuse(path, e)
        if not good:
            refuse(path)
        return path

    def capacity(self, options: Options) -> int:
        return min(self.facts.capacity, options.max_context or self.facts.capacity)

    def refused(self, what: str) -> NoReturn:
        raise RlxError(
            f"{what}: {self.path} has compiled code alone: load the model's file for that"
        )


def _language(folder: _Folder, options: Options) -> LanguageModel:
    from rlx.driver import BATCH, PROGRAMS, joined, start, stats_of

    facts, team = folder.facts, Team(options.threads)
    # Read now, so that damage is known now; its code is loaded when it is asked for.
    batch = folder.program(BATCH)
    started = start([folder.program(name) for name in PROGRAMS], team, folder.weights)
    prefill, decode = started.programs

    def resident() -> Resident:
        found = Resident.of_process(started.weights.address, 0)
        return found._replace(resident_file_bytes=0)

    return LanguageModel(
        prefill,
        decode,
        make_tokenizer=lambda: Tokenizer.load(folder.tokenizer()),
        end_tokens=frozenset(facts.about["end_tokens"]),
        vocab=facts.vocab,
        capacity=folder.capacity(options),
        stats=stats_of(started, team, facts.about["kv_cache"]),
        marked=lambda _: folder.refused("profile"),
        resident=resident,
        print_ir=lambda stage, program: folder.refused(f"{stage} of {program}"),
        batch_program=lambda: joined(started, team, batch),
        reuse_prefix=options.reuse_prefix,
    )


def _encoder(folder: _Folder, options: Options) -> TextEncoder:
    from rlx.encoders import start_encoder
    from rlx.models.bert import PROGRAM

    facts, limit = folder.facts, folder.capacity(options)
    return start_encoder(
        folder.program(PROGRAM),
        Team(options.threads),
        folder.weights,
        make_tokenizer=lambda: JsonTokenizer(folder.tokenizer(), limit),
        vocab=facts.vocab,
        limit=limit,
        products=facts.about["products"],
        print_ir=lambda stage: folder.refused(stage),
    )


def _check_options(folder: Path, facts: Facts, options: Options) -> None:
    """Raise RlxError for an option that is not as the folder was compiled."""
    from rlx.driver import check_no_cache

    if options.max_context is not None:
        integer("max_context of a compiled model", options.max_context, 1, facts.capacity)
    if facts.kind == ENCODER:
        check_no_cache(options.kv_cache)
    if options.verify:
        raise RlxError(
            f"verify: {folder} has compiled code alone, and no plans to check: leave it out, or "
            "load the model's file with it"
        )
    for name, given, free, built in (
        ("precision", options.precision, "auto", facts.precision),
        ("kv_cache", options.kv_cache, "auto", facts.about.get("kv_cache")),
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
