"""The text of a random program while it is written: types, values, and bodies of operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fuzz.programs import Generator

FLOATS = ("f32", "f64")
STORAGE = ("f16", "bf16")
UNSIGNED = ("ui8", "ui32")
INTEGERS = ("i8", "i16", "i32", "i64", *UNSIGNED)
MAX_SEQ = 9
MAX_ELEMENTS = 3000
EXACT, DOUBLE, SINGLE = 0, 1, 2
"""How a value comes out: the same everywhere, or rounded as f64 or as f32 on its way."""


@dataclass(frozen=True)
class Type:
    """A tensor's dimensions, numbers or names, and its elements."""

    dims: tuple[int | str, ...]
    element: str = "f32"

    def __str__(self) -> str:
        shape = "".join(f"{d if isinstance(d, int) else '?'}x" for d in self.dims)
        names = ", ".join(d if isinstance(d, str) else "_" for d in self.dims)
        named = any(isinstance(d, str) for d in self.dims)
        return f"tensor<{shape}{self.element}{f', #hir.dims<{names}>' if named else ''}>"

    @property
    def rank(self) -> int:
        return len(self.dims)

    def of(self, element: str) -> Type:
        return Type(self.dims, element)

    def at(self, axis: int, *dims: int | str) -> Type:
        """Return the type with other dimensions in the place of an axis."""
        return Type((*self.dims[:axis], *dims, *self.dims[axis + 1 :]), self.element)


@dataclass(frozen=True)
class Value:
    """A value of the program: its name, its type, and how exact it is."""

    name: str
    type: Type
    noise: int

    def __str__(self) -> str:
        return self.name

    @property
    def element(self) -> str:
        return self.type.element

    @property
    def dims(self) -> tuple[int | str, ...]:
        return self.type.dims


def is_float(x: Value) -> bool:
    return x.element in FLOATS


def is_integer(x: Value) -> bool:
    return x.element in INTEGERS


def is_rows(x: Value) -> bool:
    """A matrix of f32 whose width is a number: what the named operations take."""
    return x.element == "f32" and x.type.rank == 2 and isinstance(x.dims[1], int) and x.dims[1] > 0


@dataclass
class Layer:
    """A function that repeats can call: types of what it carries and of what it keeps."""

    name: str
    carried: list[Type]
    kept: list[Type]
    attends: bool
    families: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)
    used: range = range(0)


@dataclass
class Body:
    """A block's operations while they are written, and the values that it can use."""

    generator: Generator
    values: list[Value]
    lines: list[str] = field(default_factory=list)
    layer: Layer | None = None
    depth: int = 0

    @property
    def rng(self) -> np.random.Generator:
        return self.generator.rng

    def choose(self, options: Sequence) -> object:
        return self.generator.choose(options)

    def inner(self, values: Sequence[Value] = ()) -> Body:
        """Return the body of a region of an operation here."""
        return Body(self.generator, [*self.values, *values], [], self.layer, self.depth + 1)

    def op(self, text: str, type_: Type, noise: int) -> Value:
        """Add an operation with one result."""
        value = Value(self.generator.fresh(), type_, noise)
        self.lines.append(f"{value} = {text}")
        self.values.append(value)
        return value

    def pick(self, fits: Callable[[Value], bool] = lambda _: True) -> Value | None:
        """Return a value that fits, recent ones more often: chains are longer then."""
        choices = [v for v in self.values if fits(v)]
        if not choices:
            return None
        weights = np.arange(1, len(choices) + 1) ** 2.0
        return choices[self.rng.choice(len(choices), p=weights / weights.sum())]

    def like(self, x: Value) -> Value:
        """Return a value of the same type, often another one."""
        return self.pick(lambda v: v.type == x.type) or x

    def fits(self, type_: Type) -> bool:
        """Whether a value of a type is small enough at every size, and of few axes."""
        sizes = [self.generator.upper(d) for d in type_.dims]
        return type_.rank <= 4 and prod(sizes) <= MAX_ELEMENTS

    # Pieces of which operations are made

    def unary(self, kind: str, x: Value, noise: int | None = None) -> Value:
        noise = rounds(x) if noise is None else noise
        return self.op(f"mir.unary {kind} {x} : {x.type}", x.type, noise)

    def binary(self, kind: str, x: Value, y: Value, noise: int | None = None) -> Value:
        noise = max(rounds(x), rounds(y)) if noise is None else noise
        return self.op(f"mir.binary {kind} {x}, {y} : {x.type}", x.type, noise)

    def constant(self, number: float, type_: Type) -> Value:
        """Return a value that is one number everywhere."""
        element = type_.element
        number = abs(number) if element in UNSIGNED else number
        text = str(bool(number)).lower() if element == "i1" else str(int(number))
        text = f"{float(number)!r}" if element in (*FLOATS, *STORAGE) else text
        whole = all(isinstance(d, int) for d in type_.dims)
        first = type_ if whole and self.rng.random() < 0.5 else Type((), element)
        value = self.op(f"mir.constant dense<{text}> : {first}", first, EXACT)
        return value if first == type_ else self.move("broadcast", value, type_)

    def full(self, x: Value, number: float) -> Value:
        """Return a value of the type of another that is one number everywhere."""
        return self.constant(number, x.type)

    def move(self, kind: str, x: Value, type_: Type) -> Value:
        return self.op(f"mir.{kind} {x} : {x.type} -> {type_}", type_, x.noise)

    def cast(self, x: Value, element: str, noise: int) -> Value:
        return self.move("cast", Value(x.name, x.type, noise), x.type.of(element))

    def bounded(self, x: Value) -> Value:
        """Return a function of a float that lies between -1 and 1."""
        return self.unary(self.choose(("tanh", "softsign", "erf")), x)

    def positive(self, x: Value) -> Value:
        """Return a function of a float that is at least a half."""
        magnitude = self.unary("abs", x, x.noise)
        return self.binary("add", magnitude, self.full(x, 0.5))


def rounds(x: Value) -> int:
    """Return how exact a result is that is rounded to the type of an operand."""
    if x.element not in FLOATS:
        return EXACT
    return max(x.noise, SINGLE if x.element == "f32" else DOUBLE)
