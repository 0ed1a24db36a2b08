"""The programs of a model: built, compiled or found in the cache, checked, and printed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from rlx.checks import choice
from rlx.compiler import STAGES, collector_paused, compile_program, compile_text
from rlx.errors import RlxError
from rlx.flow.profile import CompileProfile
from rlx.flow.source import WeightSource
from rlx.frontends.mapped import MappedFile
from rlx.lowering.target import Target
from rlx.runtime.cache import ObjectCache
from rlx.runtime.compiled import Compiled, from_cache, source_digest
from rlx.runtime.contents import contents_digest
from rlx.runtime.memory import Block
from rlx.runtime.program import Program, packed_weights
from rlx.runtime.stages import stage

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


class Described(NamedTuple):
    """What the runtime must know of a model, beside its code and weights."""

    vocab: int
    capacity: int
    """Tokens of a prompt and its answer together, or of a text, at most."""
    about: dict[str, Any]
    """What only models of its kind have, for JSON."""


class Programs(ABC):
    """An open model with what is asked of it: what programs, or a folder of them, are made of."""

    kind: ClassVar[str]
    """What it is: `deploy.facts.LANGUAGE` or `ENCODER`."""
    names: ClassVar[tuple[str, ...]]
    """Those of its programs, that which works most first."""
    profile: CompileProfile | None
    """How to compile them; None for what suits each."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Return its name for people."""

    @abstractmethod
    def build(self, program: str) -> ModuleOp:
        """Return a program in HIR."""

    @abstractmethod
    def facts(self, program: str) -> Iterable[str | int]:
        """Return all that changes a program's code, but rlx, its tools, target and profile."""

    @property
    @abstractmethod
    def source(self) -> WeightSource:
        """Return its weights, as its programs want them."""

    @property
    @abstractmethod
    def mapped(self) -> MappedFile:
        """Return the file that its weights are in."""

    def contents(self) -> str:
        """Return what identifies its weights, whatever their layout."""
        return digest_of(self.mapped)

    @abstractmethod
    def for_target(self, precision: str, target: Target) -> Self:
        """Return the model with what a precision of `load` means on a machine."""

    @abstractmethod
    def compiled(self, target: Target) -> dict[str, Compiled]:
        """Return all programs by name; the first one packs the weights."""

    @abstractmethod
    def described(self) -> Described: ...

    @abstractmethod
    def save_tokenizer(self, path: Path) -> bool:
        """Write the tokenizer's file, and return whether there is one that rlx knows."""

    def key(self, program: str, target: Target) -> str:
        """Return the key of a compiled program: it covers all that can change its code."""
        import llvmlite

        return ObjectCache.key(
            type(self).__name__,
            program,
            source_digest(),
            llvmlite.__version__,
            target.triple,
            target.attributes,
            repr(self.profile),
            *self.facts(program),
        )

    def ir(self, stage: str, program: str | None = None) -> str:
        """
        Return a program's IR at a stage, for the machine that this process runs on.

        Without its name, it is the one that works most.
        """
        choice("stage", stage, STAGES)
        names = self.names
        program = choice(f"program of the {self.kind}", program or names[0], names)
        from rlx.passes.pipelines import run_to

        module = self.build(program)
        if stage == "llvm":
            return compile_text(module, Target.host(), self.profile)[1]
        run_to(module, stage, self.profile)
        return str(module) + "\n"

    def verify_plan(self, program: str) -> None:
        """Raise RlxError where a program's plan doesn't pass its check."""
        from rlx.passes.pipelines import run_to
        from rlx.passes.verify_plan import check_planned

        module = self.build(program)
        run_to(module, "lir", self.profile)
        problems = check_planned(module)
        if problems:
            raise RlxError(
                f"the plan of {program} is wrong, a defect of rlx: {'; '.join(problems)}"
            )


def compiled_program(
    model: Programs,
    name: str,
    target: Target,
    key: str | None = None,
    elsewhere: Callable[[], Compiled | None] | None = None,
) -> Compiled:
    """
    Return a program from the cache, or compile it and keep it there.

    `key` is given where it is known already. What is compiled `elsewhere`, if that gives anything,
    isn't here.
    """
    key = key or model.key(name, target)

    def make() -> Compiled:
        found = elsewhere() if elsewhere is not None else None
        return found or compile_one(model, name, target)

    return from_cache(key, _what(model, name), make)[0]


def _what(model: Programs, name: str) -> str:
    return f"{name} of {model.label}"


def compile_one(model: Programs, name: str, target: Target) -> Compiled:
    """Compile a program, whatever the cache has."""
    with collector_paused():
        with stage("imports and HIR"):
            module = model.build(name)
        return compile_program(module, target, model.profile, _what(model, name))


# Packed weights


def packed_in_cache(model: Programs, program: Program) -> Block:
    """Return a model's packed weights; the pages of its file are given back."""
    file = model.mapped
    what = f"weights of {model.label}"
    weights = packed_weights(program, model.contents(), lambda w: pack(model, program, w), what)
    file.release()
    return weights


def digest_of(file: MappedFile) -> str:
    """Return a digest of all bytes of a file."""
    with stage("digest of the file"):
        return contents_digest(file.data, file.stat)


def pack(model: Programs, program: Program, weights: Block) -> None:
    """Fill a segment with a model's packed weights; raises RlxError if its file changes."""
    file = model.mapped
    with stage("packing"):
        program.pack(model.source.raw, weights)
    if file.changed():
        raise RlxError(f"{file.path}: the file changed while it was read: load it again")
