"""Pytrees: nests of tuples, lists, dicts and dataclasses as a list of leaves and a structure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, cast

LEAF = "leaf"
"""The structure of what is no nest."""


class Nest(NamedTuple):
    """A structure: the class of a nest, what names its parts, and the parts' own structures."""

    cls: type
    names: tuple[Any, ...]
    parts: tuple[Any, ...]


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
        return tuple(tree), list(tree.values())
    if cls is tuple or cls is list or hasattr(cls, "_fields"):
        return (), list(cast("Sequence[Any]", tree))
    if is_dataclass(cls):
        names = tuple(f.name for f in fields(cls) if f.init)
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
        return dict(zip(names, values, strict=True))
    if cls is tuple or cls is list:
        return cast(Any, cls)(values)
    if names:
        return cls(**dict(zip(names, values, strict=True)))
    return None if cls is type(None) else cls(*values)


def map_leaves(function: Callable[[Any], Any], tree: object) -> Any:
    """Return a nest with a function of each of its leaves."""
    leaves: list[Any] = []
    structure = flatten(tree, leaves)
    return unflatten(structure, iter([function(leaf) for leaf in leaves]))
