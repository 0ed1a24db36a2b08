"""
Errors that a text says it has: `// expected-error @+1 {{text}}`, as MLIR spells them.

The error is on the line of the comment, or on the line that `@+2`, `@-1`, `@above` or `@below`
names; `@unknown` is for one that has no place in the text. Its first line holds the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlx.passes.source import SourceError

_COMMENT = re.compile(r"//\s*expected-error\b(.*)")
_DIRECTIVE = re.compile(r"\s*(?:@([+-]\d+|above|below|unknown))?\s*\{\{(.+?)\}\}\s*")
_OFFSETS = {"above": -1, "below": 1}


@dataclass(frozen=True)
class Expected:
    """An error that a comment announces: the comment's line, the error's, and what it says."""

    comment: int
    line: int | None
    text: str


def expectations(data: bytes, name: str, first_line: int) -> list[Expected]:
    """
    Return the errors that the comments of a part announce; it begins at `first_line` of `name`.

    Raises SourceError for a comment that says `expected-error` and no more that can be read.
    """
    found: list[Expected] = []
    for number, line in enumerate(data.decode(errors="replace").split("\n"), first_line):
        comment = _COMMENT.search(line)
        if comment is None:
            continue
        directive = _DIRECTIVE.fullmatch(comment[1])
        if directive is None:
            raise SourceError(
                f"{name}:{number}:{comment.start() + 1}: error: expected "
                "'// expected-error {{text}}', or with one of @+N, @-N, @above, @below, @unknown "
                f"before the text, got '{comment[0].strip()}'"
            )
        found.append(Expected(number, _target(directive[1], number), directive[2]))
    return found


def _target(where: str | None, line: int) -> int | None:
    if where == "unknown":
        return None
    return line + (_OFFSETS[where] if where in _OFFSETS else int(where or 0))


def mismatches(expected: list[Expected], error: SourceError | None, name: str) -> list[str]:
    """Return what differs between the errors that are expected and the one that came, if any."""
    left = list(expected)
    messages: list[str] = []
    if error is not None:
        title = str(error).split("\n", 1)[0]
        line = _line_of(title, name)
        message = title.partition("error: ")[2]
        hit = next((e for e in left if e.line == line and e.text in message), None)
        if hit is None:
            messages.append(f"unexpected error: {title}")
        else:
            left.remove(hit)
    for e in left:
        place = f"line {e.line}" if e.line is not None else "an unknown place"
        messages.append(f"{name}:{e.comment}: expected an error at {place} that holds '{e.text}'")
    return messages


def _line_of(title: str, name: str) -> int | None:
    match = re.match(rf"{re.escape(name)}:(\d+):\d+: error: ", title)
    return int(match[1]) if match is not None else None
