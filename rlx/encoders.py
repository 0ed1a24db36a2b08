"""From a folder to an encoder of texts: build, compile or find in the cache, pack, start."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rlx.checks import choice, integer
from rlx.deploy.facts import ENCODER
from rlx.driver import PRECISIONS, Precision
from rlx.errors import RlxError
from rlx.files import read_regular
from rlx.flow.profile import CompileProfile
from rlx.flow.source import WeightSource
from rlx.frontends.mapped import MappedFile
from rlx.frontends.safetensors import SafetensorsFile, SafetensorsWeights
from rlx.frontends.tokenizer_json import JsonTokenizer
from rlx.lowering.target import Target
from rlx.model_programs import Described, Programs, compiled_program, packed_in_cache
from rlx.models import bert
from rlx.models.bert import PROGRAM, BertConfig
from rlx.models.bert_bytes import ByteWeights, widened
from rlx.runtime.compilations import counted
from rlx.runtime.compiled import Compiled
from rlx.runtime.encoder import EncoderStats, TextEncoder, TextTokenizer
from rlx.runtime.memory import Block, Segment
from rlx.runtime.program import Program
from rlx.runtime.threads import Team

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

ROWS = 1024
"""Tokens that go through the program at a time; a single text of more makes it as long."""
ENCODER_PRECISIONS = (*PRECISIONS, "int8")
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"


@dataclass
class EncoderModel(Programs):
    """An open folder with what is asked of it."""

    kind: ClassVar[str] = ENCODER
    names: ClassVar[tuple[str, ...]] = (PROGRAM,)
    folder: Path
    file: SafetensorsFile
    config: BertConfig
    limit: int
    """Tokens of a text, at most."""
    rows: int
    profile: CompileProfile | None
    precision: Precision

    @property
    def label(self) -> str:
        return self.folder.name

    def build(self, program: str) -> ModuleOp:
        from rlx.dialects.lir import set_precision

        module = bert.build(self.built, self.source, self.rows, self.profile)
        set_precision(module, *self.precision)
        return module

    def facts(self, program: str) -> list[str | int]:
        tensors = [(t.name, t.shape, t.dtype) for t in self.file.tensors.values()]
        return [repr(self.built), repr(tensors), self.rows, repr(self.precision)]

    @property
    def built(self) -> BertConfig:
        """Return the configuration of the model that is built."""
        return widened(self.config) if self.precision.products.startswith("int8") else self.config

    @property
    def source(self) -> WeightSource:
        """Return the weights as the program wants them; what is made for it goes with them."""
        weights = SafetensorsWeights(self.file)
        return ByteWeights(weights, self.built) if self.built.factors else weights

    @property
    def mapped(self) -> MappedFile:
        return self.file.file

    def contents(self) -> str:
        found = super().contents()
        return f"{found} {ByteWeights.digest()}" if self.built.factors else found

    def for_target(self, precision: str, target: Target) -> EncoderModel:
        return replace(self, precision=_rounding(precision, target))

    def compiled(self, target: Target) -> dict[str, Compiled]:
        return {PROGRAM: compiled_program(self, PROGRAM, target)}

    def described(self) -> Described:
        about = {"products": self.precision.products}
        return Described(self.config.vocab, self.limit, about)

    def save_tokenizer(self, path: Path) -> bool:
        file = self.folder / TOKENIZER
        if not file.exists():
            return False
        try:
            content = read_regular(file)
        except OSError as e:
            raise RlxError(f"{file}: cannot read it: {e.strerror}") from e
        path.write_bytes(content)
        return True


def _rounding(precision: str, target: Target) -> Precision:
    """Return what a precision means: a text is read at once, as a prompt is."""
    rounding = Precision.of(precision, target)["prefill"]
    if rounding.products == "bf16":
        # Nothing else reads its weights.
        rounding = rounding._replace(products="bf16-weights")
    return rounding


def open_encoder(
    path: str | os.PathLike[str],
    precision: str = "auto",
    max_context: int | None = None,
    profile: object = None,
) -> EncoderModel:
    """
    Open and check a model's folder, to be compiled as the other arguments of `load` say.

    Raises RlxError for files that are missing, malformed or of an unsupported kind, and for a
    context that the model doesn't have.
    """
    choice("precision", precision, ENCODER_PRECISIONS)
    chosen = CompileProfile.of(profile)
    if precision == "exact" and chosen is not None and chosen.narrows:
        raise RlxError("precision: exact stores every value as f32, but the profile does not")
    rounding = _rounding(precision, Target.host())
    # The tokenizer is read later, when the process may be elsewhere.
    folder = Path(path).absolute()
    if not (folder / WEIGHTS).is_file():
        raise RlxError(
            f"{folder}: expected the folder of an encoder, with {WEIGHTS}, config.json and "
            f"{TOKENIZER}, or one of `rlx compile`: it has no {WEIGHTS}, and no rlx.json; a "
            "language model is a GGUF file"
        )
    file = SafetensorsFile.open(folder / WEIGHTS)
    config = bert.read_config(folder, file)
    limit = config.limit
    if max_context is not None:
        limit = integer("max_context", max_context, 1, config.positions)
    return EncoderModel(folder, file, config, limit, max(ROWS, limit), chosen, rounding)


def load_encoder(
    path: str | os.PathLike[str],
    precision: str = "auto",
    threads: int | None = None,
    max_context: int | None = None,
    verify: bool = False,
    profile: object = None,
) -> TextEncoder:
    """
    Load an encoder of texts from a folder and compile it for this machine.

    The folder is as Hugging Face's libraries write it: `model.safetensors` and `config.json` of a
    BERT model, and `tokenizer.json`, which is read when the first text comes. `max_context` bounds
    the tokens of a text (default: what the folder says, up to the model's positions). The other
    arguments are those of `rlx.load`. Raises RlxError for a folder or an option that rlx can't
    serve. `precision` `auto` and `fast` round what is multiplied to bf16 on a CPU that multiplies
    it faster, and let functions lose a few bits; `fast` does the latter on any CPU. `int8`
    rounds matrices and what they are multiplied with to bytes, each row with a scale of its own.
    """
    started = time.perf_counter()
    model = open_encoder(path, precision, max_context, profile)
    if verify:
        model.verify_plan(PROGRAM)
    with counted() as tally:
        team, target = Team(threads), Target.host()
        before = time.perf_counter()
        found = compiled_program(model, PROGRAM, target)
        compile_s = time.perf_counter() - before if tally.count else 0.0
    encoder = start_encoder(
        found,
        team,
        lambda program: packed_in_cache(model, program),
        make_tokenizer=lambda: JsonTokenizer(model.folder / TOKENIZER, model.limit),
        vocab=model.config.vocab,
        limit=model.limit,
        products=model.precision.products,
        print_ir=model.ir,
    )
    stats = encoder.stats
    stats.load_s, stats.compile_s = time.perf_counter() - started, compile_s
    stats.compilations = tally.count
    return encoder


def start_encoder(
    found: Compiled,
    team: Team,
    weights_of: Callable[[Program], Block],
    *,
    make_tokenizer: Callable[[], TextTokenizer],
    vocab: int,
    limit: int,
    products: str,
    print_ir: Callable[[str], str],
) -> TextEncoder:
    """Return a compiled encoder at work on a team; its program can pack weights."""
    manifest = found.manifest
    program = Program(manifest, found.code, team, Segment(64))
    weights = weights_of(program)
    program.start(weights)
    stats = EncoderStats(
        threads=team.threads,
        products=products,
        arena_bytes=manifest.arena_bytes,
        weight_bytes=manifest.weight_segment_bytes,
        packed_file_bytes=weights.mapped_bytes,
        barriers_per_step=manifest.barriers_per_step,
        kernels_per_step=manifest.launches_per_step,
        kernels=manifest.kernels,
    )
    return TextEncoder(program, make_tokenizer, vocab, limit, stats, print_ir)
