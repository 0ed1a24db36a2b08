"""Pytrees: nests of tuples, lists, dicts and dataclasses as a list of leaves and a structure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, cast

import numpy as np

LEAF = "leaf"
"""The structure of what is no nest."""


class Nest(NamedTuple):
    """A structure: the class of a nest, what names its parts, and the parts' own structures."""

    cls: type
    names: tuple[Any, ...]
    """Fields of a dataclass; keys of a dict, each after its `identity`."""
    parts: tuple[Any, ...]


def identity(value: Any) -> Any:
    """
    Return a key of a value with a hash: 1, 1.0 and True have three, NaN has one.

    It goes into tuples, frozen sets and dataclasses.
    """
    key = _content(value)
    try:
        hash(key)
    except TypeError:
        # A field that has none, in a dataclass with a hash of its own.
        key = value
    return cast("type[Any]", type(value)), key


def _content(value: Any) -> Any:
    cls = cast("type[Any]", type(value))
    if isinstance(value, float):
        return value.hex()
    if cls is complex:
        return value.real.hex(), value.imag.hex()
    if isinstance(value, np.generic):
        return cast(Any, value).dtype, value.tobytes()
    if isinstance(value, tuple):
        return tuple(map(identity, cast("tuple[Any, ...]", value)))
    if isinstance(value, frozenset):
        return frozenset(map(identity, cast("frozenset[Any]", value)))
    if is_dataclass(cls) and cls.__eq__ is not object.__eq__:
        return tuple(identity(getattr(value, f.name)) for f in fields(cls) if f.compare)
    return value


def flatten(tree: object, leaves: list[Any]) -> Any:
    """Append the leaves of a nest to a list, in order; return its structure, which has a hash."""
    parts = _parts(tree)
    if parts is None:
        leaves.append(tree)
        return LEAF
    names, values = parts
    return Nest(type(tree), names, tuple(flatten(v, leaves) for v in values))


def _parts(tree: Any) -> tuple[tuple[Any, ...], Sequence[Any]] | None:
    cls = cast("type[Any]", type(tree))
    if cls is dict:
        return tuple((identity(k), k) for k in tree), list(tree.values())
    if cls is tuple or cls is list or hasattr(cls, "_fields"):
        return (), list(cast("Sequence[Any]", tree))
    if is_dataclass(cls):
        names = tuple(f.name for f in fields(cls) if f.init or hasattr(tree, f.name))
        return names, [getattr(tree, n) for n in names]
    if tree is None:
        return (), ()
    return None


def unflatten(structure: Any, leaves: Iterator[Any]) -> Any:
    """Return the nest of a structure with leaves taken in order."""
    if structure is LEAF or structure == LEAF:
        return next(leaves)
    cls, names, parts = structure
    values = [unflatten(part, leaves) for part in parts]
    if cls is dict:
        return dict(zip((key for _, key in names), values, strict=True))
    if cls is tuple or cls is list:
        return cast(Any, cls)(values)
    if names:
        return _dataclass(cls, dict(zip(names, values, strict=True)))
    return None if cls is type(None) else cls(*values)


def _dataclass(cls: Any, values: dict[str, Any]) -> Any:
    """Return an instance with all its fields as they were, those that `__init__` lacks too."""
    late = [f.name for f in fields(cls) if not f.init and f.name in values]
    result = cls(**{name: value for name, value in values.items() if name not in late})
    for name in late:
        object.__setattr__(result, name, values[name])
    return result
