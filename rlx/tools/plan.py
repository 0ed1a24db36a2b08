"""
`rlx plan`: plans the memory of buffers that a CSV file lists.

The format is that of minimalloc's examples: a header with the columns id, lower, upper and size,
in any order, then a line per buffer, which lives in the half-open interval [lower, upper).
"""

from __future__ import annotations

import csv
import io
import re
import time
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlx.errors import RlxError
from rlx.files import read_bounded
from rlx.passes.arena import Buffer, Placement, plan

_COLUMNS = ("id", "lower", "upper", "size")
_MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Report:
    """
    A checked plan: sizes and `offsets`, which are by id, in bytes; `seconds` are of the planning.

    `ratio` is that of `peak` to `lower_bound`, the largest sum of sizes that live at one time.
    """

    buffers: int
    alignment: int
    effort: int
    peak: int
    lower_bound: int
    ratio: float
    seconds: float
    offsets: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    def as_text(self, offsets: bool = False) -> str:
        """Return a table for people; `offsets` adds those, by id."""
        rows = [
            ("buffers", f"{self.buffers}"),
            ("peak", f"{self.peak} bytes"),
            ("lower bound", f"{self.lower_bound} bytes"),
            ("ratio", f"{self.ratio:.4f}"),
            ("planned in", f"{self.seconds:.3f} s, effort {self.effort}"),
        ]
        if offsets:
            rows += [("", ""), ("id", "offset")]
            rows += [(id, str(offset)) for id, offset in self.offsets.items()]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:{width}}  {value}".rstrip() for name, value in rows)


def plan_file(path: str, alignment: int = 1, effort: int = 0) -> Report:
    """
    Plan the buffers of the CSV file at `path`, at multiples of `alignment` bytes.

    Effort 0 is instant, 1 takes about 2 s and 2 about 20 s. Raises `RlxError` where the file can't
    be read or lists what is no buffer.
    """
    found = read_buffers(path)
    buffers = list(found.values())
    started = time.perf_counter()
    try:
        placement = plan(buffers, alignment, effort)
    except RlxError as e:
        raise RlxError(f"{path}: {e}") from e
    seconds = time.perf_counter() - started
    check(buffers, placement, alignment)
    peak, bound = placement.peak, placement.lower_bound
    offsets = {id: placement.offsets[b.id] for id, b in found.items()}
    ratio = peak / bound if bound else 1.0
    return Report(len(buffers), alignment, effort, peak, bound, ratio, seconds, offsets)


def check(buffers: Sequence[Buffer], placement: Placement, alignment: int) -> None:
    """
    Check a plan without the planner's help: raise `RlxError` where it isn't sound.

    A walk through time holds what lives, by offset; a birth between two that overlap neither of it
    overlaps nothing.
    """
    by_death = sorted((b for b in buffers if b.size), key=lambda b: b.upper, reverse=True)
    live: list[tuple[int, int]] = []
    for b in sorted(by_death, key=lambda b: b.lower):
        while by_death[-1].upper <= b.lower:
            dead = by_death.pop()
            offset = placement.offsets[dead.id]
            live.remove((offset, offset + dead.size))
        offset = placement.offsets[b.id]
        end = offset + b.size
        at = bisect(live, (offset, end))
        free = (not at or live[at - 1][1] <= offset) and (at == len(live) or end <= live[at][0])
        if not free or offset < 0 or end > placement.peak or offset % alignment:
            raise RlxError(
                f"the planner is wrong, please report it: buffer {b.id} at [{offset}, {end}) of "
                f"{placement.peak} bytes is misaligned or not free during [{b.lower}, {b.upper})"
            )
        live.insert(at, (offset, end))


# The file


def read_buffers(path: str) -> dict[str, Buffer]:
    """Return the buffers of a CSV file by the ids it gives them, numbered in its order."""
    buffers: dict[str, Buffer] = {}
    for where, row in _rows(path):
        id = row["id"].strip()
        if not id:
            raise RlxError(f"{where}: expected an id in column 'id', got nothing")
        if id in buffers:
            raise RlxError(f"{where}: expected one buffer per id, got {_short(id)} again")
        lower, upper, size = (_number(where, row, name) for name in _COLUMNS[1:])
        if lower >= upper:
            raise RlxError(
                f"{where}: expected a lifetime [lower, upper) with lower < upper, "
                f"got [{lower}, {upper})"
            )
        buffers[id] = Buffer(len(buffers), lower, upper, size)
    if not buffers:
        raise RlxError(f"{path}: expected a line per buffer below the header, got none")
    return buffers


def _rows(path: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the rows by column, each with its place in the file for messages."""
    lines = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        first = next(lines, None) or [""]
        header = [name.strip() for name in first]
        # A column that we don't know, alignment say, might make a plan without it wrong.
        if sorted(header) != sorted(_COLUMNS):
            raise RlxError(
                f"{path}: expected a CSV file with the header {','.join(_COLUMNS)}, "
                f"got {_short(','.join(header))}"
            )
        for line in lines:
            where = f"{path}, line {lines.line_num}"
            if len(line) == len(header):
                yield where, dict(zip(header, line, strict=True))
            elif line:
                raise RlxError(f"{where}: expected {len(header)} fields, got {len(line)}")
    except csv.Error as e:
        raise RlxError(f"{path}, line {lines.line_num}: expected a line of CSV: {e}") from e


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = read_bounded(file, path)
    except (OSError, ValueError) as e:
        # A ValueError is of a path with a zero byte.
        raise RlxError(f"{path}: {getattr(e, 'strerror', None) or e}") from e
    if not data.strip():
        raise RlxError(f"{path}: expected a CSV file of buffers, got an empty file")
    if b"\0" in data:
        raise RlxError(f"{path}: expected a CSV file, got binary data")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise RlxError(f"{path}: expected a CSV file in UTF-8: {e}") from e


def _number(where: str, row: Mapping[str, str], name: str) -> int:
    text = row[name].strip()
    if not re.fullmatch("-?[0-9]+", text):
        raise RlxError(f"{where}: expected an integer in column {name!r}, got {_short(text)}")
    # Python refuses to convert thousands of digits.
    if text[0] == "-" or len(text) > 4000 or int(text) > _MAX_NUMBER:
        raise RlxError(f"{where}: expected 0 to 2**63 - 1 in column {name!r}, got {_short(text)}")
    return int(text)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
