"""
The float32 KV cache of an attention layer, for a capacity that is a multiple of 16 positions:

    K  [kv_head][position / 16][head_dim][position % 16]   a feature of 16 keys is a vector
    V  [kv_head][position][head_dim]

Positions after the last one in use may hold anything, NaN included.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.lowering.emitter import Function
from rlx.lowering.target import PANEL
from rlx.lowering.values import Index, Value, i64

LINE = 64
"""Bytes of a vector of 16 floats, and of a cache line."""


@dataclass(frozen=True)
class Attention:
    """The static facts of an attention: `heads` queries share `kv_heads` keys and values."""

    heads: int
    kv_heads: int
    head_dim: int
    """Features of a head, a multiple of 16."""
    capacity: int
    """Positions in the cache, a multiple of 16."""
    scale: float
    """What a query's dot product with a key is multiplied with, often head_dim^(-1/2)."""

    def __post_init__(self) -> None:
        assert self.head_dim % PANEL == 0, "head_dim must be a multiple of 16"
        assert self.capacity % PANEL == 0, "capacity must be a multiple of 16"
        assert self.heads % self.kv_heads == 0, "kv_heads must divide heads"

    @property
    def group(self) -> int:
        """Return the number of heads that share a kv head."""
        return self.heads // self.kv_heads

    @property
    def chunks(self) -> int:
        """Return the number of vectors in a head's row."""
        return self.head_dim // PANEL

    @property
    def row_bytes(self) -> int:
        """Return the size of one head's row: of a query, an output, a key, a value."""
        return self.head_dim * 4

    @property
    def head_bytes(self) -> int:
        """Return the size of one kv head's K (or V) in the cache."""
        return self.capacity * self.row_bytes

    @property
    def cache_bytes(self) -> int:
        """Return the size of a layer's K cache; V's is the same."""
        return self.kv_heads * self.head_bytes


def store_k_panel(
    f: Function, a: Attention, cache: Value, position: Value, panel: Index, v: Value
) -> None:
    """
    Store 16 consecutive features of a position into K.

    They are the `panel`-th 16 of the row [kv_heads * head_dim]. On x86 this is 16 stores, each to
    its own line.
    """
    block = f.at(_panel(f, a, cache, panel, PANEL * LINE), f.lshr(position, 4), PANEL * a.row_bytes)
    first = f.at(block, f.and_(position, PANEL - 1), 4)
    for lane in range(PANEL):
        f.store(f.extract(v, lane), f.at(first, lane * LINE))


def store_v_panel(
    f: Function, a: Attention, cache: Value, position: Value, panel: Index, v: Value
) -> None:
    """Store 16 consecutive features of a position, as `store_k_panel`, into V."""
    f.store(v, f.at(_panel(f, a, cache, panel, LINE), position, a.row_bytes))


def _panel(f: Function, a: Attention, cache: Value, panel: Index, size: int) -> Value:
    """Return the address of a panel at position 0, `size` bytes for each panel of its kv head."""
    panel = i64(panel) if isinstance(panel, int) else panel
    if panel.constant is not None:
        head = i64(panel.constant // a.chunks)
    else:
        head = f.udiv(panel, a.chunks)
    within = f.sub(panel, f.mul(head, a.chunks))
    return f.at(f.at(cache, head, a.head_bytes), within, size)
