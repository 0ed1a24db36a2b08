"""Texts that are not modules: a valid module with one thing in it that must be refused."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

TYPE = re.compile(r"tensor<[^<>]*(?:#hir\.dims<[^<>]*>)?>")
NUMBER = re.compile(r"(?<![\w.%#@-])\d+(?![\w.])")
SIZE = re.compile(r"(?<=[<x])\d+(?=x)")
USE = re.compile(r"(?<=[(, ])%\w+(?=[,)\s])")
HUGE = ("9" * 19, "9" * 30, "9" * 5000, str(2**63), "-1", "-" + "9" * 40, "0x" + "f" * 3000)
DEPTH = 3000


def _replace(text: str, rng: random.Random, pattern: re.Pattern[str], choices: list[str]) -> str:
    """Put one of some texts in the place of a match that is not the same."""
    matches = list(pattern.finditer(text))
    if not matches:
        return text
    match = rng.choice(matches)
    other = [c for c in choices if c != match[0]] or [""]
    return text[: match.start()] + rng.choice(other) + text[match.end() :]


def cut(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(1, len(text.rstrip()))]


def swapped_types(text: str, rng: random.Random) -> str:
    types = sorted({m[0] for m in TYPE.finditer(text)})
    return _replace(text, rng, TYPE, [*types, "tensor<*xf32>", "f32", "tensor<4xf8>", "index"])


def use_before_definition(text: str, rng: random.Random) -> str:
    """Move an operation up or down, over others that may need it or that it needs."""
    lines = text.split("\n")
    i, j = rng.randrange(1, len(lines) - 1), rng.randrange(1, len(lines) - 1)
    lines.insert(j, lines.pop(i))
    return "\n".join(lines)


def unknown_names(text: str, rng: random.Random) -> str:
    names = [m[0] for m in USE.finditer(text)]
    return _replace(
        text, rng, USE, ["%nothing", "%0", "@main", *rng.sample(names, min(5, len(names)))]
    )


def wrong_counts(text: str, rng: random.Random) -> str:
    """Take one of several things in a list away, or put one more in."""
    if rng.random() < 0.5:
        return _replace(text, rng, re.compile(r", [^,()\[\]<>{}]+"), [""])
    return _replace(text, rng, re.compile(r", "), [", %x0, ", ", 1, ", ", tensor<f32>, ", ",, "])


def absurd_shapes(text: str, rng: random.Random) -> str:
    return _replace(text, rng, SIZE, [*HUGE, "0", "1", "?", "2147483648", "1099511627776"])


def huge_integers(text: str, rng: random.Random) -> str:
    return _replace(text, rng, NUMBER, [*HUGE, "1.0e999"])


def deep_nesting(text: str, rng: random.Random) -> str:
    """Put something nested thousands of levels deep before a random line, open or closed."""
    opening, closing = rng.choice(
        [
            ("builtin.module {\n", "}\n"),
            ("mir.if %c -> () {\n", "mir.yield } else { mir.yield } : tensor<i1>\n"),
            ("%k = mir.kernel -> (tensor<f32>) {\n", "mir.yield %x0 : tensor<f32> }\n"),
            ("mir.while () {\n", "} do { mir.yield } : () -> ()\n"),
            ('"mir.if"(%c) ({\n', "}) : (tensor<i1>) -> ()\n"),
            ("func.func @f() attributes {a = ", "} { func.return }"),
            ("#a = [", "]"),
            ("%c = mir.constant dense<[", "]> : tensor<1xf32>"),
            ("%c = mir.constant dense<1.0> : tensor<4x", "f32>"),
            ("!t = tuple<", ">"),
            ("(", ")"),
        ]
    )
    depth = rng.choice((200, DEPTH))
    lines = text.split("\n")
    inner = "1" if opening.endswith(("[", "= ")) else ""
    closed = closing * depth if rng.random() < 0.5 else ""
    lines.insert(rng.randrange(len(lines)), opening * depth + inner + closed)
    return "\n".join(lines)


MUTATIONS: tuple[Callable[[str, random.Random], str], ...] = (
    cut,
    swapped_types,
    use_before_definition,
    unknown_names,
    wrong_counts,
    absurd_shapes,
    huge_integers,
    deep_nesting,
)
