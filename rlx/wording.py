"""How numbers are told to people."""

from __future__ import annotations


def several(count: int, what: str, ending: str = "s") -> str:
    """Return a count with what it is of: `1 step`, `2 steps`, `3 launches`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}{ending}"
