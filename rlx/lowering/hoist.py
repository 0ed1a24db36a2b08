"""
Code that is written where it belongs: each value in the outermost loop that its operands allow.

`Places.place` writes an instruction once, before the loops that it doesn't depend on, and gives the
same value when it is asked for again. So a generator asks for what it needs where it needs it: a
row's maximum, the address of a row and a constant's splat come out of the inner loops by
themselves. What is under a condition (`Places.branch`) stays under it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import gcd

from rlx.lowering.emitter import Function, Gap
from rlx.lowering.target import PANEL
from rlx.lowering.values import Index, Value, i64


@dataclass
class Scope:
    """A loop's or a branch's body while it is written: what it knows, and where to add to it."""

    guard: bool = False
    eager: bool = False
    """Whether arithmetic on indices may be done before a branch, taken or not."""
    known: dict[Hashable, list[Value]] = field(default_factory=dict[Hashable, list[Value]])
    gap: Gap | None = None


class Places:
    """The loops and branches around the place where code is written, and the values they hold."""

    def __init__(self, f: Function):
        self.f = f
        self._scopes: list[Scope] = [Scope()]
        self._levels: dict[str, int] = {}
        self._multiples: dict[str, int] = {}
        self.here(f.params)

    @property
    def depth(self) -> int:
        return len(self._scopes)

    # Values

    def level(self, *values: Value) -> int:
        """Return the innermost scope that one of some values depends on, counted from 0."""
        # What was not written here, such as a size, is known everywhere, whoever hands it out.
        return max((self._levels.setdefault(v.name, 0) for v in values), default=0)

    def place(self, key: Hashable, operands: Sequence[Value], emit: Callable[[], Value]) -> Value:
        """Return the one value of `place_all`."""
        return self.place_all(key, operands, lambda: [emit()])[0]

    def place_all(
        self,
        key: Hashable,
        operands: Sequence[Value],
        emit: Callable[[], list[Value]],
        pure: bool = False,
    ) -> list[Value]:
        """
        Return the values that `emit` writes, where the operands are known; once for each key.

        The key must tell apart all that `emit` depends on; `emit` may itself place values. What is
        `pure` can't trap, whatever its operands are.
        """
        known = self.find(key)
        if known is not None:
            return known
        guards = (i for i, s in enumerate(self._scopes) if s.guard and not (pure and s.eager))
        guard = max(guards, default=0)
        level = max(guard, self.level(*operands))
        with self._at(level):
            values = self.here(emit())
        self._scopes[level].known[key] = values
        return values

    def find(self, key: Hashable) -> list[Value] | None:
        """Return the values of a key, if the scopes around hold them."""
        return next((s.known[key] for s in reversed(self._scopes) if key in s.known), None)

    def remember(self, key: Hashable, values: list[Value]) -> None:
        """Make `find` give some values while the innermost scope is open."""
        self._scopes[-1].known[key] = values

    @contextmanager
    def _at(self, level: int) -> Generator[None]:
        """Write at the end of what a scope holds before the place where code is written now."""
        if level == len(self._scopes) - 1:
            yield
            return
        gap = self._scopes[level].gap
        assert gap is not None
        inner = self._scopes
        self._scopes = inner[: level + 1]
        with self.f.writing_in(gap):
            yield
        self._scopes = inner

    # Integers: i64 scalars, or vectors of 16

    def multiple(self, v: Value) -> int:
        """Return a number that a value is known to be a multiple of; 0 for the constant 0."""
        return self._multiples.get(v.name, 1) if v.constant is None else abs(v.constant)

    def add(self, a: Value, b: Index) -> Value:
        b = i64(b) if isinstance(b, int) else b
        value = self._binary("add", a, b, self.f.add)
        return self.know(value, gcd(self.multiple(a), self.multiple(b)))

    def sub(self, a: Value, b: Index) -> Value:
        b = i64(b) if isinstance(b, int) else b
        value = self._binary("sub", a, b, self.f.sub)
        return self.know(value, gcd(self.multiple(a), self.multiple(b)))

    def mul(self, a: Value, b: Index) -> Value:
        b = i64(b) if isinstance(b, int) else b
        if b.constant == 0:
            return b
        value = self._binary("mul", a, b, self.f.mul)
        return self.know(value, self.multiple(a) * self.multiple(b))

    def div(self, a: Value, b: Value) -> Value:
        """Return a / b, or anything where b is the constant 0."""
        if b.constant in (0, 1):
            return a
        if a.constant is not None and b.constant is not None:
            return i64(a.constant // b.constant)
        if a.constant == 0:
            return a
        value = self._binary("udiv", a, b, self.f.udiv)
        exact = b.constant is not None and self.multiple(a) % b.constant == 0
        return self.know(value, self.multiple(a) // b.constant) if exact and b.constant else value

    def rem(self, a: Value, b: Value) -> Value:
        """Return a % b, or anything where b is the constant 0."""
        if b.constant in (0, 1):
            return i64(0)
        if a.constant is not None and b.constant is not None:
            return i64(a.constant % b.constant)
        if a.constant == 0:
            return a
        value = self._binary("urem", a, b, lambda x, y: self.f.binary("urem", x, y))
        return self.know(value, gcd(self.multiple(a), self.multiple(b)))

    def least(self, a: Value, b: Value) -> Value:
        """Return the smaller."""
        if a.constant is not None and b.constant is not None:
            return i64(min(a.constant, b.constant))
        return self._binary("umin", a, b, self.f.umin)

    def splat(self, a: Value) -> Value:
        """Return a scalar in every lane; a vector as it is."""
        if a.lanes > 1:
            return a
        return self.place(("splat", a), [a], lambda: self.f.splat(a, PANEL))

    def _binary(
        self, name: str, a: Value, b: Value, emit: Callable[[Value, Value], Value]
    ) -> Value:
        pure = name in ("add", "sub", "mul")
        return self.place_all((name, a, b), [a, b], lambda: [emit(a, b)], pure)[0]

    def know(self, value: Value, multiple: int) -> Value:
        """Take note of what a value is a multiple of; return it."""
        if value.constant is None and multiple != 1:
            self._multiples.setdefault(value.name, multiple)
        return value

    # Control flow

    def loop(
        self,
        start: Index,
        stop: Index,
        step: int,
        init: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """Emit a loop like `Function.for_`; its counter is a multiple of its step and start."""
        begin = i64(start) if isinstance(start, int) else start

        def inside(i: Value, carried: list[Value]) -> Sequence[Value]:
            self.know(i, gcd(self.multiple(begin), step))
            with self._inside(i, *carried):
                return body(i, carried)

        with self._before():
            results = self.f.for_(start, stop, step, init, inside)
        return self.here(results)

    def branch(
        self,
        condition: Value,
        then: Callable[[], Sequence[Value]],
        otherwise: Callable[[], Sequence[Value]] | None = None,
        eager: bool = False,
    ) -> list[Value]:
        """Emit a branch like `Function.if_`; `eager` lets arithmetic on indices be done before."""

        def guarded(side: Callable[[], Sequence[Value]]) -> Callable[[], Sequence[Value]]:
            def inside() -> Sequence[Value]:
                with self._inside(guard=True, eager=eager):
                    return side()

            return inside

        with self._before():
            no = guarded(otherwise) if otherwise else None
            results = self.f.if_(condition, guarded(then), no)
        return self.here(results)

    def here(self, values: list[Value]) -> list[Value]:
        """Take note of values that were written in the innermost scope; return them."""
        level = len(self._scopes) - 1
        for v in values:
            # A loop that runs once hands out values of its body.
            if v.name[0] == "%":
                self._levels[v.name] = min(level, self._levels.get(v.name, level))
        return values

    @contextmanager
    def _before(self) -> Generator[None]:
        """Leave a gap before a loop or a branch, for what its body needs of the scope around it."""
        scope = self._scopes[-1]
        saved = scope.gap
        scope.gap = self.f.gap()
        yield
        scope.gap = saved

    @contextmanager
    def _inside(self, *values: Value, guard: bool = False, eager: bool = False) -> Generator[None]:
        self._scopes.append(Scope(guard, eager))
        self.here(list(values))
        yield
        self._scopes.pop()
