"""How a model is compiled: the choices that are not the model's own."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar, cast, get_args, get_type_hints

from rlx.errors import RlxError
from rlx.files import read_bounded

T = TypeVar("T")

Skip: TypeAlias = bool | tuple[str, ...]
"""The fusion passes that don't run: all of them, none, or those named."""


@dataclass(frozen=True)
class FusionOptions:
    """
    Which fused operations are made.

    By the policy `direct` stages emit the operations that are named in HIR, by `fusable` what the
    fusion passes may join. `target` names the gate that decides whether a fusion pays, `auto` that
    of the backend. `assert_clean` makes a fusion that was missed an error.
    """

    policy: Literal["direct", "fusable"] = "fusable"
    target: str = "auto"
    assert_clean: bool = False
    skip: Skip = False


@dataclass(frozen=True)
class PassOptions:
    """Which of the general passes run, and whether they report what they do."""

    dce: bool = True
    constant_folding: bool = True
    verbose: bool = False


@dataclass(frozen=True)
class PrecisionOptions:
    """The type that kernels compute in, and whether passes may choose a narrower one."""

    compute: Literal["f32", "f16", "bf16"] = "f32"
    mixed: Literal["none", "auto"] = "none"


@dataclass(frozen=True)
class CompileProfile:
    """The options of a compilation, as a `*.rlx.toml` file states them."""

    fusion: FusionOptions = field(default_factory=FusionOptions)
    passes: PassOptions = field(default_factory=PassOptions)
    precision: PrecisionOptions = field(default_factory=PrecisionOptions)
    backend: str = "cpu"

    @property
    def narrows(self) -> bool:
        """Return whether values may be stored in fewer bits than f32 has."""
        return self.precision != PrecisionOptions()

    @staticmethod
    def prefill() -> CompileProfile:
        """Return the preset for reading prompts: fused operations as the author named them."""
        return CompileProfile(FusionOptions(policy="direct"))

    @staticmethod
    def decode() -> CompileProfile:
        """Return the preset for writing tokens: primitives, for the fusion passes to join."""
        return CompileProfile(FusionOptions(policy="fusable"))

    @staticmethod
    def of(given: object) -> CompileProfile | None:
        """Return a profile as it is, that of a TOML file by its path, or None for None."""
        if given is None or isinstance(given, CompileProfile):
            return given
        if not isinstance(given, str | os.PathLike):
            raise RlxError(f"profile: expected a CompileProfile or a path, got {given!r:.80}")
        return CompileProfile.from_toml(cast("str | os.PathLike[str]", given))

    @staticmethod
    def from_toml(path: str | os.PathLike[str]) -> CompileProfile:
        """
        Read a profile; what the file leaves out has its default.

        Raises RlxError, naming file and key, for a file that can't be read, an unknown key or
        an unexpected value.
        """
        # Imported here: a start without a profile needs none of it.
        import tomllib

        path = Path(path)
        try:
            with path.open("rb") as file:
                table = tomllib.loads(read_bounded(file, path).decode())
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise RlxError(f"{path}: expected a profile in TOML: {reason}") from error
        return _from_table(CompileProfile, table, str(path))


def _from_table(cls: type[T], table: dict[str, object], file: str, name: str = "") -> T:
    """Build an options class from a TOML table of this name, "" for the whole of a file."""
    kinds = get_type_hints(cls)
    unknown = next((key for key in table if key not in kinds), None)
    if unknown is not None:
        place = f" in [{name}]" if name else ""
        raise RlxError(f"{file}: unknown key '{unknown}'{place}: expected {', '.join(kinds)}")
    prefix = f"{name}." if name else ""
    values = {key: _value(kinds[key], value, file, prefix + key) for key, value in table.items()}
    return cls(**values)


def _value(kind: type, value: object, file: str, name: str) -> object:
    where = f"{file}: {name}"
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise RlxError(f"{where}: expected a table, got {value!r}")
        return _from_table(kind, cast(dict[str, object], value), file, name)
    if kind == Skip:
        return _skip(value, where)
    choices = get_args(kind)
    if choices and value not in choices:
        raise RlxError(f"{where}: expected one of {', '.join(choices)}, got {value!r}")
    if not choices and not isinstance(value, kind):
        wanted = "true or false" if kind is bool else "a string"
        raise RlxError(f"{where}: expected {wanted}, got {value!r}")
    return value


def _skip(value: object, where: str) -> Skip:
    if isinstance(value, bool):
        return value
    names = cast(list[object], value) if isinstance(value, list) else [None]
    if not all(isinstance(name, str) for name in names):
        raise RlxError(f"{where}: expected names of passes, or true or false, got {value!r}")
    return tuple(cast(list[str], names))
