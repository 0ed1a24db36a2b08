"""What object code asks of its process: read from its symbols, before any of it runs."""

from __future__ import annotations

import struct

import numpy as np

from rlx.errors import RlxError

_MAGIC = b"\x7fELF\x02\x01"
"""Of files of 64 bits, little-endian: other systems' are not read."""
_HEADER = struct.Struct("<40x Q 10x H H 2x")
"""The offset of the sections' headers, the size of one, and how many there are."""
_SYMBOLS = 2
_SECTION = np.dtype(
    {
        "names": ["type", "offset", "nbytes", "link"],
        "formats": ["<u4", "<u8", "<u8", "<u4"],
        "offsets": [4, 24, 32, 40],
        "itemsize": 64,
    }
)
_SYMBOL = np.dtype(
    {"names": ["name", "section"], "formats": ["<u4", "<u2"], "offsets": [0, 6], "itemsize": 24}
)


def undefined(data: bytes) -> list[str]:
    """
    Return the functions that an ELF object calls and doesn't have; none for other formats.

    Raises RlxError for one that is no whole file.
    """
    if not data.startswith(_MAGIC):
        return []
    try:
        start, size, count = _HEADER.unpack_from(data)
        if size != _SECTION.itemsize:
            raise ValueError
        sections = np.frombuffer(data, _SECTION, count, start)
        names: list[str] = []
        for table in sections[sections["type"] == _SYMBOLS]:
            strings = int(sections[int(table["link"])]["offset"])
            rows = int(table["nbytes"]) // _SYMBOL.itemsize
            symbols = np.frombuffer(data, _SYMBOL, rows, int(table["offset"]))
            lacking = symbols["name"][(symbols["section"] == 0) & (symbols["name"] != 0)]
            names += [_text(data, strings + int(name)) for name in lacking]
    except (struct.error, ValueError, IndexError, OverflowError):
        raise RlxError("compiled code: expected an object file, found a damaged one") from None
    return names


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode("latin-1")
