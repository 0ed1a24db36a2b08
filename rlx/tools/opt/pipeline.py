"""Pipelines and targets of `rlx-opt`: from text to passes, and what there is to choose from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, fields
from inspect import getdoc
from typing import Any, TypeVar, get_type_hints

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import (
    ArgSpec,
    ArgSpecConvertible,
    ParameterListType,
    parse_pipeline,
)
from xdsl.utils.exceptions import ArgSpecParseError
from xdsl.utils.hints import isa
from xdsl.utils.target import Target

from rlx.errors import RlxError
from rlx.passes.pipelines import PIPELINES
from rlx.passes.registry import PASSES
from rlx.tools.opt.targets import TARGETS

SpecT = TypeVar("SpecT", bound=ArgSpecConvertible)

ANCHOR = "builtin.module"
"""The operation that all passes run on."""
_NESTED = r"\s*builtin\.module\s*\(\s*(.*?)\s*\)\s*"


def _specs(text: str) -> Iterator[ArgSpec]:
    """Read a pipeline or a target, `name{option=value other=1,2},name`; expand named pipelines."""
    try:
        specs = list(parse_pipeline(text))
    except (ArgSpecParseError, ValueError) as e:  # ValueError: a number of thousands of digits
        raise RlxError(
            f"cannot read '{text:.200}': expected name{{option=value ...}},name,..."
        ) from e
    for spec in specs:
        if spec.name not in PIPELINES:
            yield spec
        elif spec.parameters:
            raise RlxError(f"the pipeline '{spec.name}' takes no options")
        else:
            yield from _specs(PIPELINES[spec.name])


def _find(
    what: str, known: dict[str, Callable[[], type[SpecT]]], name: str
) -> Callable[[], type[SpecT]]:
    if name not in known:
        raise RlxError(f"unknown {what} '{name}': expected one of {', '.join(known)}")
    return known[name]


def _make(what: str, known: dict[str, Callable[[], type[SpecT]]], spec: ArgSpec) -> SpecT:
    """Return the pass or target that is asked for, with its options."""
    cls = _find(what, known, spec.name)()
    _check_options(f"{what} '{spec.name}'", cls, spec)
    try:
        return cls.from_spec(spec)
    except ValueError as e:
        raise RlxError(f"{what} '{spec.name}': {e}") from e


_WORDS = {int: "a whole number", bool: "true or false", str: "a word", tuple[str, ...]: "words"}
"""What an option of a type is given as."""


def _check_options(what: str, cls: type[ArgSpecConvertible], spec: ArgSpec) -> None:
    """Raise RlxError for an option that is unknown, missing, or of another type."""
    types = {f.name: get_type_hints(cls)[f.name] for f in fields(cls) if f.init}
    given = spec.normalize_parameter_names().parameters
    for name, values in given.items():
        if name not in types:
            known = f"expected {', '.join(types)}" if types else "it takes none"
            raise RlxError(f"{what}: unknown option '{name}': {known}")
        if not _fits(values, types[name]):
            words = (str(v).lower() if isinstance(v, bool) else str(v) for v in values)
            got = f"'{','.join(words)}'" if values else "nothing"
            raise RlxError(f"{what}: option '{name}': expected {_WORDS[types[name]]}, got {got}")
    missing = sorted(cls.required_fields() - given.keys())
    if missing:
        raise RlxError(f"{what}: expected the option {', '.join(missing)}")


def _fits(values: ParameterListType, type_: Any) -> bool:
    if len(values) != 1:
        return isa(values, type_)
    number = type_ is int and isinstance(values[0], bool)
    return (isa(values[0], type_) and not number) or isa(values, type_)


def make_passes(text: str) -> list[ModulePass]:
    """
    Return the passes of a pipeline in text.

    Raises RlxError for text that cannot be read, an unknown pass and an unknown option.
    """
    return [_make("pass", PASSES, spec) for spec in _specs(text)]


def make_nested_passes(text: str) -> list[ModulePass]:
    """Return the passes of a pipeline in MLIR's spelling, `builtin.module(a,b{x=1})`."""
    match = re.fullmatch(_NESTED, text, re.DOTALL)
    if match is None:
        raise RlxError(f"cannot read '{text}': expected {ANCHOR}(name{{option=value ...}},...)")
    # Strings of options may hold parentheses.
    if "(" in re.sub(r'"[^"]*"', "", match[1]):
        raise RlxError(
            f"cannot read '{text}': every pass runs on {ANCHOR}, so nothing nests inside it"
        )
    return make_passes(match[1])


def make_target(text: str) -> Target:
    """Return a target in text, as `llvm{cpu=haswell}`; errors as for passes."""
    specs = list(_specs(text))
    if len(specs) != 1:
        raise RlxError(f"expected one target, got '{text}'")
    return _make("target", TARGETS, specs[0])


def check_pass_names(names: Sequence[str]) -> None:
    """Raise RlxError for a name that is no pass's."""
    for name in names:
        _find("pass", PASSES, name)


def spell_pipeline(passes: Sequence[ModulePass]) -> str:
    """Return passes as text that `make_nested_passes` reads."""
    return f"{ANCHOR}({','.join(map(str, passes))})"


def list_passes() -> str:
    """Return a line for each pass, with the first of its documentation, and for each pipeline."""
    width = max(map(len, PASSES)) + 2
    lines = ["passes:"]
    for name in PASSES:
        lines.append(f"  {name:{width}}{_documentation(name).partition(chr(10))[0]}".rstrip())
    lines.append("pipelines:")
    lines += [f"  {name:{width}}{passes}" for name, passes in PIPELINES.items()]
    return "\n".join(lines) + "\n"


def help_pass(name: str) -> str:
    """Return what a pass does and its options with types and defaults, or a pipeline's passes."""
    if name in PIPELINES:
        return f"{name}\n  {PIPELINES[name]}\n\n  no options\n"
    options = fields(_find("pass", PASSES, name)())
    lines = [name, *(f"  {line}".rstrip() for line in _documentation(name).splitlines())]
    lines += ["", "  options:" if options else "  no options"]
    lines += [f"    {_spell_option(option)}" for option in options]
    return "\n".join(lines) + "\n"


def _spell_option(option: Field[Any]) -> str:
    type_ = option.type if isinstance(option.type, str) else option.type.__name__
    default = option.default
    if default is MISSING:
        return f"{option.name}: {type_}, required"
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return f"{option.name}: {type_}, default {text}"


def _documentation(name: str) -> str:
    cls = PASSES[name]()
    # A dataclass without a docstring gets its signature for one, which says nothing.
    if cls.__doc__ is None or cls.__doc__.startswith(f"{cls.__name__}("):
        return ""
    return getdoc(cls) or ""
