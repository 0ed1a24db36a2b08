"""
The KV cache of an attention layer, for a capacity that is a multiple of 16 positions:

    K  [kv_head][position / 16][head_dim][position % 16]   a feature of 16 keys is a vector
    V  [kv_head][position][head_dim]

Elements are f32, f16 or bf16. What is stored is rounded once, to nearest, ties to even; what is
loaded is f32 in registers, so all arithmetic is f32's. Positions after the last one in use may hold
anything, NaN included.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.lowering.emitter import Function
from rlx.lowering.formats import load_float
from rlx.lowering.target import PANEL
from rlx.lowering.values import Index, Value, i64, vec
from rlx.lowering.vmath_cast import convert

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
    format: str = "f32"
    """The elements of the cache: f32, f16 or bf16."""
    narrow: bool = False
    """Whether queries and results are bf16, and not f32."""

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
        """Return the size of one head's row in f32."""
        return self.head_dim * 4

    @property
    def query_format(self) -> str:
        return "bf16" if self.narrow else "f32"

    @property
    def query_bytes(self) -> int:
        """Return the size of one head's row of a query or an output."""
        return self.head_dim * (2 if self.narrow else 4)

    @property
    def element_bytes(self) -> int:
        """Return the size of a number in the cache."""
        return 4 if self.format == "f32" else 2

    @property
    def chunk_bytes(self) -> int:
        """Return the size of 16 numbers in the cache."""
        return PANEL * self.element_bytes

    @property
    def cached_bytes(self) -> int:
        """Return the size of one head's row of a key or a value in the cache."""
        return self.head_dim * self.element_bytes

    @property
    def head_bytes(self) -> int:
        """Return the size of one kv head's K (or V) in the cache."""
        return self.capacity * self.cached_bytes

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
    start = _panel(f, a, cache, panel, PANEL * a.chunk_bytes)
    block = f.at(start, f.lshr(position, 4), PANEL * a.cached_bytes)
    first = f.at(block, f.and_(position, PANEL - 1), a.element_bytes)
    kept = _narrowed(f, a, v)
    for lane in range(PANEL):
        f.store(f.extract(kept, lane), f.at(first, lane * a.chunk_bytes), align=a.element_bytes)


def store_v_panel(
    f: Function, a: Attention, cache: Value, position: Value, panel: Index, v: Value
) -> None:
    """Store 16 consecutive features of a position, as `store_k_panel`, into V."""
    start = _panel(f, a, cache, panel, a.chunk_bytes)
    f.store(_narrowed(f, a, v), f.at(start, position, a.cached_bytes))


def load_cached(f: Function, a: Attention, pointer: Value) -> Value:
    """Load 16 numbers of the cache as f32."""
    return load_float(f, a.format, pointer, PANEL)


def _narrowed(f: Function, a: Attention, v: Value) -> Value:
    """Return f32 lanes as the cache has them, those of 16 bits as integers."""
    if a.format == "f32":
        return v
    short = convert(f, v, "half" if a.format == "f16" else "bfloat")
    return f.cast("bitcast", short, vec(PANEL, "i16"))


def _panel(f: Function, a: Attention, cache: Value, panel: Index, size: int) -> Value:
    """Return the address of a panel at position 0, `size` bytes for each panel of its kv head."""
    panel = i64(panel) if isinstance(panel, int) else panel
    if panel.constant is not None:
        head = i64(panel.constant // a.chunks)
    else:
        head = f.udiv(panel, a.chunks)
    within = f.sub(panel, f.mul(head, a.chunks))
    return f.at(f.at(cache, head, a.head_bytes), within, size)
