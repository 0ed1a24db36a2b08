"""
Dimensions of a trace: numbers, names, and what derives from them, with the facts that a trace uses.

A name has a size in the call that is traced, its hint. What the trace decides by hints is written
down as guards, so that it serves every call for which they hold; any other call is traced again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from rlx.contract.derived import BY_CONSTANT, OPERATORS

Dim: TypeAlias = int | str
Derivation: TypeAlias = tuple[str, Dim, Dim]
"""An operator and its operands."""

COMMUTATIVE = ("+", "*", "min", "max")
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    "%": lambda a, b: a % b == 0,
}
"""What a guard may say of two dimensions; `%` is that the second divides the first."""


class Guard(NamedTuple):
    """A fact about two dimensions that a trace relies on."""

    relation: str
    left: Dim
    right: Dim
    holds: bool = True


def evaluate(derived: Mapping[str, Derivation], sizes: dict[str, int], dim: Dim) -> int:
    """Return a dimension's size; `sizes` has those of the free ones, and keeps what is found."""
    if isinstance(dim, int):
        return dim
    if dim not in sizes:
        kind, a, b = derived[dim]
        sizes[dim] = OPERATORS[kind](evaluate(derived, sizes, a), evaluate(derived, sizes, b))
    return sizes[dim]


class Dims:
    """The dimensions of one trace."""

    def __init__(self) -> None:
        self.hints: dict[str, int] = {}
        """Every name, in order, with its size in the call that is traced."""
        self.derived: dict[str, Derivation] = {}
        """How names derive from others, as it was first written."""
        self.guards: list[Guard] = []
        self._parent: dict[str, Dim] = {}
        self._known: dict[Derivation, Dim] = {}

    def free(self, hint: int) -> str:
        """Return the name of a new dimension, which a caller's array gives a size."""
        name = f"d{len(self.hints)}"
        self.hints[name] = hint
        return name

    def hint(self, dim: Dim) -> int:
        return dim if isinstance(dim, int) else self.hints[dim]

    def find(self, dim: Dim) -> Dim:
        """Return what stands for a dimension and all that are equal to it."""
        while isinstance(dim, str) and dim in self._parent:
            dim = self._parent[dim]
        return dim

    def derive(self, kind: str, a: Dim, b: Dim) -> Dim:
        """Return the dimension `a kind b`; the right operand of `-` and `ceildiv` is a number."""
        a, b = self.find(a), self.find(b)
        if kind in BY_CONSTANT and isinstance(b, str):
            b = self.fix(b)
            a = self.find(a)
        a, b = _ordered(kind, a, b)
        simple = _simplified(kind, a, b)
        if simple is not None:
            return simple
        found = self._known.get((kind, a, b))
        if found is None:
            found = f"t{len(self.hints)}"
            self.hints[found] = OPERATORS[kind](self.hint(a), self.hint(b))
            self.derived[found] = (kind, a, b)
            self._known[kind, a, b] = found
        return self.find(found)

    def product(self, dims: Iterable[Dim]) -> Dim:
        total: Dim = 1
        for dim in dims:
            total = self.derive("*", total, dim)
        return total

    def decide(self, relation: str, a: Dim, b: Dim) -> bool:
        """Return whether a relation holds in the call that is traced; a guard keeps the answer."""
        a, b = self.find(a), self.find(b)
        holds = COMPARISONS[relation](self.hint(a), self.hint(b))
        if isinstance(a, str) or isinstance(b, str):
            guard = Guard(relation, a, b, holds)
            if guard not in self.guards and not (a == b and relation in ("==", "<=")):
                self.guards.append(guard)
        return holds

    def same(self, a: Dim, b: Dim) -> bool:
        """Return whether two dimensions have one size; if so they are one from here on."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return True
        if self.hint(a) != self.hint(b) or not self.decide("==", a, b):
            return False
        if a in self.derived and b in self.derived and self._same_operands(a, b):
            return True
        free = next((d for d in (b, a) if isinstance(d, str) and d not in self.derived), None)
        other = a if free == b else b
        if free is None or free in self.order([other]):
            # An equation such as n + m = 5 or n = n + m: the sizes of the call solve it.
            for name in [*self.leaves(a), *self.leaves(b)]:
                self.fix(name)
            return True
        self._parent[free] = other
        self._merge()
        return True

    def _same_operands(self, a: Dim, b: Dim) -> bool:
        """Join the operands of two dimensions that derive alike; return whether that could be."""
        kind, *ours = self.derived[str(a)]
        other, *theirs = self.derived[str(b)]
        pairs = list(zip(ours, theirs, strict=True))
        if kind != other or any(self.hint(x) != self.hint(y) for x, y in pairs):
            return False
        return all(self.same(x, y) for x, y in pairs)

    def fix(self, dim: Dim) -> int:
        """Make a dimension a number, the size that it has in the call that is traced."""
        dim = self.find(dim)
        if isinstance(dim, str):
            size = self.hints[dim]
            self.decide("==", dim, size)
            names = list(self.leaves(dim))
            self._parent[dim] = size
            for name in names:
                self.fix(name)
            self._merge()
            return size
        return dim

    def leaves(self, dim: Dim) -> Iterator[str]:
        """Yield the free dimensions that a dimension derives from, itself included."""
        for name in self.order([dim]):
            if self.definition(name) is None:
                yield name

    def definition(self, name: str) -> Derivation | None:
        """Return how a name derives from what stands for its operands; None for a free one."""
        if name not in self.derived:
            return None
        kind, a, b = self.derived[name]
        return kind, self.find(a), self.find(b)

    def order(self, dims: Iterable[Dim]) -> list[str]:
        """Return the names that dimensions need, operands before what derives from them."""
        found: dict[str, None] = {}

        def visit(dim: Dim) -> None:
            dim = self.find(dim)
            if isinstance(dim, int) or dim in found:
                return
            definition = self.definition(dim)
            for operand in definition[1:] if definition else ():
                visit(operand)
            found[dim] = None

        for dim in dims:
            visit(dim)
        return list(found)

    def _merge(self) -> None:
        """Join derived dimensions whose operands have become the same."""
        seen: dict[Derivation, str] = {}
        for name in self.derived:
            if name in self._parent:
                continue
            kind, a, b = self.derived[name]
            a, b = _ordered(kind, self.find(a), self.find(b))
            known = _simplified(kind, a, b)
            known = seen.setdefault((kind, a, b), name) if known is None else known
            if known != name:
                self._parent[name] = known
                return self._merge()


def _ordered(kind: str, a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """Return operands in one order, numbers last, where the order does not matter."""
    swap = kind in COMMUTATIVE and (isinstance(b, int), str(b)) < (isinstance(a, int), str(a))
    return (b, a) if swap else (a, b)


def _simplified(kind: str, a: Dim, b: Dim) -> Dim | None:
    """Return what `a kind b` comes to for numbers, neutral elements, and operands that are one."""
    if isinstance(a, int) and isinstance(b, int):
        return OPERATORS[kind](a, b)
    match kind, b:
        case ("+" | "-", 0) | ("*" | "ceildiv", 1) | ("max", 0):
            return a
        case ("*" | "min", 0):
            return 0
        case ("min" | "max", _) if a == b:
            return a
        case _:
            return None
