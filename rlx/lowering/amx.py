"""
The tile registers of x86's matrix unit (AMX): eight tiles of 16 rows of 64 bytes.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18. Tiles
are named by number, and no compiler pass allocates them: what is in them lasts until `configure`
or `release`. A tile's unused rows and columns are as if they were not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.lowering.emitter import Function
from rlx.lowering.target import Target
from rlx.lowering.values import Index, Value, i64

ROWS = 16
"""Rows of a tile."""
ROW_BYTES = 64
TILE_BYTES = ROWS * ROW_BYTES
DEPTH = 32
"""How many of k a product of two full bf16 tiles takes in."""

_COLUMNS_AT, _ROWS_AT = 16, 48


@dataclass(frozen=True)
class Element:
    """What is multiplied: sums of bf16 are f32, those of bytes i32."""

    size: int
    product: str
    """The instruction for c += a @ b: a is `[rows][depth]`, b words of its rows, `[16][16]`."""

    @property
    def depth(self) -> int:
        """Return how many of k a product of two full tiles takes in."""
        return ROW_BYTES // self.size


BF16, BYTES = Element(2, "x86.tdpbf16ps"), Element(1, "x86.tdpbusd")
SIGNED, SIGNED_A = Element(1, "x86.tdpbssd"), Element(1, "x86.tdpbsud")


def has_amx(target: Target) -> bool:
    """Return whether a target multiplies tiles of bf16, and converts vectors of f32 to bf16."""
    return target.avx512 and target.has("amx-tile", "amx-bf16", "avx512bf16")


def has_amx_bytes(target: Target) -> bool:
    """Return whether a target multiplies tiles of bytes."""
    return target.avx512 and target.has("amx-tile", "amx-int8")


def configure(f: Function, shapes: Sequence[tuple[Index, int]] = ((ROWS, ROW_BYTES),) * 8) -> None:
    """Give each tile its rows and their bytes, all zero."""
    place = f.scratch("tiles", ROW_BYTES)
    f.store(Value("<64 x i8>", "zeroinitializer"), place, align=64)
    f.store(_i8(1), place, align=1)
    for tile, (rows, row_bytes) in enumerate(shapes):
        f.store(Value("i16", str(row_bytes)), f.at(place, _COLUMNS_AT + 2 * tile), align=2)
        count = f.cast("trunc", rows, "i8") if isinstance(rows, Value) else _i8(rows)
        f.store(count, f.at(place, _ROWS_AT + tile), align=1)
    f.intrinsic("x86.ldtilecfg", "void", place)


def release(f: Function) -> None:
    """Say that no tile is in use: a thread with tiles costs more to switch away from."""
    f.intrinsic("x86.tilerelease", "void")


def zero(f: Function, tile: int) -> None:
    f.intrinsic("x86.tilezero", "void", _i8(tile))


def load(f: Function, tile: int, pointer: Value, stride: Index, once: bool = False) -> None:
    """Load a tile from rows `stride` bytes apart; `once` leaves the caches to others."""
    stem = "x86.tileloaddt164" if once else "x86.tileloadd64"
    f.intrinsic(stem, "void", _i8(tile), pointer, _stride(stride))


def store(f: Function, tile: int, pointer: Value, stride: Index) -> None:
    f.intrinsic("x86.tilestored64", "void", _i8(tile), pointer, _stride(stride))


def multiply(f: Function, c: int, a: int, b: int, element: Element = BF16) -> None:
    """Emit c += a @ b: a is `[rows][depth]`, b words of its rows, `[16][16][4 / size]`."""
    f.intrinsic(element.product, "void", _i8(c), _i8(a), _i8(b))


def _i8(n: int) -> Value:
    return Value("i8", str(n))


def _stride(stride: Index) -> Value:
    return stride if isinstance(stride, Value) else i64(stride)
