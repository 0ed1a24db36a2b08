"""From a model's file to a model at work: build, compile or find in the cache, pack, start."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from rlx import beside
from rlx.checks import boolean, choice, integer
from rlx.contract.quant import KV_FORMATS, KvFormat
from rlx.deploy.facts import LANGUAGE, is_compiled
from rlx.errors import RlxError
from rlx.flow.profile import CompileProfile
from rlx.flow.source import WeightSource
from rlx.frontends.gguf import GgufFile
from rlx.frontends.mapped import MappedFile
from rlx.frontends.tokenizer import Tokenizer
from rlx.frontends.weights import GgufWeights
from rlx.lowering.bf16_products import has_bf16
from rlx.lowering.target import Target
from rlx.model_programs import Described, Programs, compiled_program, packed_in_cache
from rlx.models.registry import Family, family
from rlx.runtime.cache import ObjectCache
from rlx.runtime.compilations import Tally, counted
from rlx.runtime.compiled import Compiled
from rlx.runtime.language import LanguageModel, Stats
from rlx.runtime.memory import Block, Resident, Segment, address_of
from rlx.runtime.program import Program, check_shared
from rlx.runtime.recorder import Recorder
from rlx.runtime.stages import shown, stage
from rlx.runtime.threads import Team

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from rlx.runtime.encoder import TextEncoder

PROGRAMS = ("prefill", "decode")
"""The programs of every model that is loaded."""
BATCH = "batch"
"""That of its batches, which the first of them compiles."""
PRECISIONS = ("exact", "fast", "auto")
CHUNK = 512
"""Tokens of a prompt that go through prefill at a time."""
DEFAULT_CONTEXT = 2048


class Precision(NamedTuple):
    """What a program may round."""

    functions: str = "exact"
    """`exact`, or `fast` for functions of f32 that may lose some bits."""
    products: str = "f32"
    """
    What products of many rows round their operands to: `f32`, not at all, `bf16`, or `int8`, with
    bf16 beside it or, of `int8-f32`, nothing.
    """

    @staticmethod
    def of(precision: str, target: Target) -> dict[str, Precision]:
        """Return what a precision of `load` means for each program on a machine."""
        exact, fast = Precision(), Precision("fast")
        narrow = Precision("fast", "bf16") if has_bf16(target) else fast
        match precision:
            case "exact":
                prefill, decode = exact, exact
            case "fast":
                prefill, decode = narrow, fast
            case "int8":
                bytes_ = "int8" if has_bf16(target) else "int8-f32"
                prefill, decode = Precision("fast", bytes_), fast
            case _:
                prefill, decode = narrow if has_bf16(target) else exact, exact
        return {"prefill": prefill, "decode": decode, BATCH: decode}


@dataclass
class Model(Programs):
    """An open model file with what is asked of it."""

    kind: ClassVar[str] = LANGUAGE
    names: ClassVar[tuple[str, ...]] = ("decode", "prefill", BATCH)
    file: GgufFile
    family: Family
    config: Any
    max_context: int
    profile: CompileProfile | None
    precision: Mapping[str, Precision]
    """What each program may round."""
    marks: bool = False
    """Whether threads note when they come to each launch and barrier."""
    kv_cache: KvFormat = "f32"
    """What the keys and values of earlier positions are kept in."""

    def build(self, program: str) -> ModuleOp:
        from rlx.dialects.lir import set_marks, set_precision

        module = self.family.build(
            self.config,
            self.source,
            program,
            self.max_context,
            CHUNK,
            self.profile,
            self.kv_cache,
        )
        set_precision(module, *self.precision[program])
        set_marks(module, self.marks)
        return module

    @property
    def label(self) -> str:
        return self.file.path.name

    def facts(self, program: str) -> list[str | int]:
        tensors = [(t.name, t.shape, t.ggml_type) for t in self.file.tensors.values()]
        return [
            repr(self.config),
            repr(tensors),
            self.max_context,
            CHUNK,
            repr(self.precision[program]),
            self.marks,
            self.kv_cache,
        ]

    @property
    def source(self) -> WeightSource:
        return GgufWeights(self.file)

    @property
    def mapped(self) -> MappedFile:
        return self.file.file

    def for_target(self, precision: str, target: Target) -> Model:
        return replace(self, precision=Precision.of(precision, target))

    def compiled(self, target: Target) -> dict[str, Compiled]:
        found = dict(zip(PROGRAMS, compiled(self, target), strict=True))
        return {**found, BATCH: compiled_program(self, BATCH, target)}

    def described(self) -> Described:
        about = {"end_tokens": sorted(end_tokens(self.file)), "kv_cache": self.kv_cache}
        return Described(self.config.vocab, self.max_context, about)

    def save_tokenizer(self, path: Path) -> bool:
        try:
            tokenizer = Tokenizer.from_gguf(self.file)
        except RlxError:
            return False
        tokenizer.save(path)
        return True


def open_model(
    path: object,
    max_context: int | None,
    profile: object = None,
    kv_cache: str = "auto",
    precision: str = "auto",
) -> Model:
    """
    Open and check a model's file, to be compiled as the other arguments of `load` say.

    Raises RlxError for a file that is missing, malformed, or of an unsupported kind, for a context
    that the model doesn't have, for a format that is none of a cache, and where precision and
    profile contradict each other.
    """
    fast = choice("precision", precision, PRECISIONS) == "fast"
    kept = choice("kv_cache", kv_cache, (*KV_FORMATS, "auto"))
    kept = cast(KvFormat, ("f16" if fast else "f32") if kept == "auto" else kept)
    profile = CompileProfile.of(profile)
    if precision == "exact" and profile is not None and profile.narrows:
        raise RlxError(
            "precision: exact stores every value as f32, but the profile asks for "
            f"{profile.precision}: leave out one of the two"
        )
    path = _checked_path(path)
    if os.path.exists(os.path.join(path, "rlx.json")):
        raise RlxError(
            f"{path}: expected a GGUF file, found a folder of `rlx compile`, which has compiled "
            "code alone: give the model's file"
        )
    file = GgufFile.open(path)
    architecture = file.value("general.architecture", str)
    fam = family(architecture)
    config = fam.read_config(file)
    limit: int = config.context_length
    if max_context is None:
        max_context = min(limit, DEFAULT_CONTEXT)
    max_context = integer("max_context", max_context, 1, limit)
    rounding = Precision.of(precision, Target.host())
    return Model(file, fam, config, max_context, profile, rounding, kv_cache=kept)


def open_any(
    path: str, max_context: int | None, profile: object, kv_cache: str, precision: str
) -> Programs:
    """Open a language model's file or the folder of an encoder; see `open_model`."""
    if not os.path.isdir(path) or is_compiled(path):
        return open_model(path, max_context, profile, kv_cache, precision)
    from rlx.encoders import open_encoder

    check_no_cache(kv_cache)
    return open_encoder(path, precision, max_context, profile)


def check_no_cache(kv_cache: str) -> None:
    if kv_cache != "auto":
        raise RlxError(f"kv_cache: an encoder keeps no keys and values, got {kv_cache!r}")


def _checked_path(path: object) -> str | os.PathLike[str]:
    if not isinstance(path, str | os.PathLike):
        raise RlxError(f"path: expected that of a model, got {path!r:.80}")
    path = cast("str | os.PathLike[str]", path)
    if not os.fspath(path):
        raise RlxError("path: expected that of a model, got an empty one")
    return path


def compiled(model: Model, target: Target) -> list[Compiled]:
    """Return a model's programs from the cache; those that aren't there are compiled, and kept."""
    keys = {name: model.key(name, target) for name in PROGRAMS}
    *_, last = PROGRAMS
    if any(map(ObjectCache().has, keys.values())) or not beside.pays():
        return [compiled_program(model, name, target, key) for name, key in keys.items()]
    with beside.compiled_beside(model, last, target, keys[last]) as wait:
        return [
            compiled_program(model, name, target, key, wait if name == last else None)
            for name, key in keys.items()
        ]


def end_tokens(file: GgufFile) -> frozenset[int]:
    """Return the tokens that end an answer, also where the tokenizer's kind is not supported."""
    try:
        return Tokenizer.from_gguf(file).eos_ids
    except RlxError:
        end = file.value("tokenizer.ggml.eos_token_id", int, None)
        return frozenset() if end is None else frozenset([end])


def load(
    path: str | os.PathLike[str],
    precision: str = "auto",
    threads: int | None = None,
    max_context: int | None = None,
    verify: bool = False,
    profile: CompileProfile | str | os.PathLike[str] | None = None,
    kv_cache: str = "auto",
    reuse_prefix: bool = True,
) -> LanguageModel | TextEncoder:
    """
    Load a model and compile it for this machine: a language model from a GGUF file, or an encoder
    of texts from a folder (see `rlx.encoders`).

    The folder that `rlx compile` made of either is loaded as it is: nothing is compiled, and
    options that are given must be those that it was compiled with.

    `precision`: `exact` has f32's accuracy in activations and products. `fast` rounds activations
    to 16 bits before the products of decode with quantised weights (`lowering/digits.py`), rounds
    what prefill multiplies to bf16 where the CPU has products for that, and functions such as
    silu lose a few bits (`vmath_fast`). Weights are as they are in the file. `auto` is the decode
    of `exact` and, on a CPU with such products, the prefill of `fast`. `threads` is clamped to the
    CPUs that this process may use. `max_context` bounds prompt and answer together (default: the
    model's, up to 2048).
    `verify` checks the memory plans first, by an analysis of its own. `profile`, or the path of a
    `*.rlx.toml` file, says which passes run, and how values are stored between operations.
    `kv_cache` is what the keys and values of earlier positions are kept in: `f32` loses nothing;
    `f16` and `bf16` take half the memory, and half the time to read, and are rounded once to 11 or
    8 digits (f16 has none beyond 65,504: larger ones become infinite). `auto` is f32, and f16 where
    the precision is fast.
    With `reuse_prefix` what a prompt shares with the one before it is not computed again; that
    changes no bit of an answer (`LanguageModel.reuse_prefix` is the same, to be set at any time).
    `int8` is a precision of encoders alone (`rlx.encoders`).
    Raises RlxError for a file or an option that rlx can't serve.
    """
    started = time.perf_counter()
    boolean("verify", verify)
    boolean("reuse_prefix", reuse_prefix)
    options = Options(precision, threads, max_context, verify, profile, kv_cache, reuse_prefix)
    path = _checked_path(path)
    if os.path.isdir(path):
        if is_compiled(path):
            from rlx.deploy.loading import load_folder

            return load_folder(Path(path), options)
        from rlx.encoders import load_encoder

        check_no_cache(kv_cache)
        return load_encoder(path, precision, threads, max_context, verify, profile)
    with shown(f"loading {Path(path).name}"), counted() as tally:
        return _load(path, options, tally, started)


class Options(NamedTuple):
    """What `load` was asked for, beside a path."""

    precision: str
    threads: int | None
    max_context: int | None
    verify: bool
    profile: CompileProfile | str | os.PathLike[str] | None
    kv_cache: str
    reuse_prefix: bool = True


def _load(
    path: str | os.PathLike[str], options: Options, tally: Tally, started: float
) -> LanguageModel:
    with stage("reading the file's head"):
        model = open_model(
            path, options.max_context, options.profile, options.kv_cache, options.precision
        )
    for program in (*PROGRAMS, BATCH) if options.verify else ():
        model.verify_plan(program)
    team, target = Team(options.threads), Target.host()
    before = time.perf_counter()
    with stage("programs"):
        found = compiled(model, target)
    compile_s = time.perf_counter() - before
    started_up = start(found, team, lambda p: packed_in_cache(model, p))
    (prefill, decode), weights = started_up.programs, started_up.weights
    stats = stats_of(started_up, team, model.kv_cache)
    stats.compilations = tally.count
    stats.compile_s = compile_s if tally.count else 0.0

    def marked(recorder: Recorder) -> tuple[Program, Program]:
        """Return the programs compiled with marks, on the same threads, weights and state."""
        with_marks = replace(model, marks=True)
        with counted() as tally:
            found = compiled(with_marks, target)
        stats.compilations += tally.count
        prefill, decode = (
            Program(p.manifest, p.code, team, started_up.state, False, recorder) for p in found
        )
        for program in (prefill, decode):
            program.start(weights)
        return prefill, decode

    def batch_program() -> Program:
        """Return the program of batches, whose states are those of each batch."""
        with counted() as tally:
            found = compiled_program(model, BATCH, target)
        stats.compilations += tally.count
        return joined(started_up, team, found)

    def resident() -> Resident:
        data = model.file.file.data
        return Resident.of_process(weights.address, address_of(data))

    ends = end_tokens(model.file)
    stats.load_s = time.perf_counter() - started
    return LanguageModel(
        prefill,
        decode,
        make_tokenizer=lambda: Tokenizer.from_gguf(model.file),
        end_tokens=ends,
        vocab=model.config.vocab,
        capacity=model.max_context,
        stats=stats,
        marked=marked,
        resident=resident,
        print_ir=model.ir,
        batch_program=batch_program,
        reuse_prefix=options.reuse_prefix,
    )


class Started(NamedTuple):
    """Programs of a model that are ready to run, with the segments that they share."""

    programs: list[Program]
    state: Segment
    weights: Block


def start(found: Sequence[Compiled], team: Team, weights_of: Callable[[Program], Block]) -> Started:
    """Return compiled programs of a model at work on a team; the first one can pack weights."""
    state = Segment(max(found[0].manifest.state_bytes, 64))
    with stage("loading the code"):
        programs = [Program(p.manifest, p.code, team, state) for p in found]
    check_shared(programs)
    with stage("weights"):
        weights = weights_of(programs[0])
    with stage("prologues"):
        for program in programs:
            program.start(weights)
    return Started(programs, state, weights)


def joined(started: Started, team: Team, found: Compiled) -> Program:
    """Return one more program of a model at work, with the weights of the others."""
    program = Program(found.manifest, found.code, team, started.state)
    check_shared([started.programs[0], program])
    program.start(started.weights)
    return program


def stats_of(started: Started, team: Team, kv_cache: str) -> Stats:
    """Return the facts of a model's programs, of which the last one decodes."""
    manifests = [p.manifest for p in started.programs]
    decode = manifests[-1]
    return Stats(
        threads=team.threads,
        kv_cache=kv_cache,
        arena_bytes=sum(m.arena_bytes for m in manifests),
        arena_lower_bound_bytes=sum(m.arena_lower_bound_bytes for m in manifests),
        state_bytes=decode.state_bytes,
        weight_bytes=decode.weight_segment_bytes,
        packed_file_bytes=started.weights.mapped_bytes,
        weight_bytes_per_step=decode.weight_bytes_per_step,
        barriers_per_step=decode.barriers_per_step,
        kernels_per_step=decode.launches_per_step,
        kernels=sum(m.kernels for m in manifests),
    )
