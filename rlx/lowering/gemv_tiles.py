"""
Tiles of rows of digits times a packed panel, on the matrix unit: to the bit as `gemv_panels.py`.

A chunk of a panel is unpacked to a tile and multiplied with a tile of 16 rows' digits, one
instruction for each. Sums are i32 and exact; they are put together in f32 as those of one row are.
Where weights have 4 bits, a tile has them 16-fold too, and two digits are multiplied at a time:

    65536 S + 256 T + U  =  4096 H + L       in f32, all of these sums below 2^24: the same bits

What goes from registers of one kind to those of another goes through memory. So while one chunk is
multiplied, the sums of the one before are stored, the next one is unpacked, and what was stored
before is put together; of each two chunks the tiles are others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rlx.lowering import amx
from rlx.lowering.digit_tiles import TILE_ROWS, TileLayout
from rlx.lowering.digits import planes
from rlx.lowering.emitter import Function, Module
from rlx.lowering.formats import (
    CHUNK,
    FORMATS,
    GROUPS,
    Format,
    block_scale,
    chunk_pointers,
    chunk_scales,
    group_bytes,
    heads_at,
    load_words,
)
from rlx.lowering.gemv_panels import ask_ahead, join, scaled
from rlx.lowering.target import PANEL, Target
from rlx.lowering.values import Value, f32, i64

Step = Callable[[], None]
"""Emits some instructions of the matrix unit."""

_LINE = 4 * PANEL
_SUMS = TILE_ROWS * _LINE
"""Bytes of a tile of sums."""
_ROW, _INTS = f"<{PANEL} x float>", f"<{PANEL} x i32>"
_BYTES = f"<{_LINE} x i8>"


def on_tiles(target: Target, forms: Sequence[Format]) -> bool:
    """
    Return whether products with weights of some formats are faster on the matrix unit.

    Where 16 elements have a scale of their own there are twice as many.
    """
    quantised = [form for form in forms if form.quantised]
    simple = all(form.scales_in_chunk == 1 for form in quantised)
    return bool(quantised) and simple and amx.has_amx_bytes(target)


def in_pairs(module: Module, form: Format) -> bool:
    """Return whether two digits are multiplied with a format's weights at a time."""
    return planes(module) == 3 and form.bits == (4,)


def layout_of(module: Module, forms: Sequence[Format]) -> TileLayout:
    """Return how digits are laid out for products with some formats."""
    pairs = [in_pairs(module, form) for form in forms if form.quantised]
    return TileLayout(planes(module), not all(pairs), any(pairs))


def configure(f: Function, pairs: bool) -> None:
    """Set the tiles up for weights that are multiplied with pairs of digits, or with digits."""
    full = amx.ROWS, amx.ROW_BYTES
    if pairs:
        amx.configure(f, [full] * 8)
    else:
        amx.configure(f, [full] * 6 + [(amx.ROWS, CHUNK), (GROUPS, amx.ROW_BYTES)])


def tile_function(module: Module, name: str, layout: TileLayout, height: int) -> str:
    """
    Return a function of a tile's product with a panel of a quantised weight.

    `void (ptr digits, ptr panel, i64 blocks, ptr sums)`; it writes 16 f32 for each of the first
    `height` rows to `sums`. Tiles are those of `configure`.
    """

    def body(f: Function) -> None:
        _Kernel(f, FORMATS[name], layout, height, in_pairs(module, FORMATS[name])).emit()

    params = [("ptr", "digits"), ("ptr", "panel"), ("i64", "blocks"), ("ptr", "sums")]
    return module.once(f"gemv.tile_{name}_{height}_{layout.size}", params, body)


@dataclass(frozen=True)
class _Kernel:
    """The function while it is written."""

    f: Function
    form: Format
    layout: TileLayout
    height: int
    pairs: bool

    @property
    def digits(self) -> int:
        """Return the tiles of sums of a chunk."""
        return 2 if self.pairs else self.layout.planes

    def emit(self) -> None:
        """Write all chunks' products."""
        f = self.f
        count = f.mul(f.params[2], self.form.chunks)

        def turn(u: Value, odd: int) -> list[Step]:
            this, following = (f.umin(f.add(u, i), f.sub(count, 1)) for i in range(2))
            return [
                *self._multiply(this, odd),
                *self._store(1 - odd),
                lambda: self._unpack(following, 1 - odd),
            ]

        def two(u: Value, values: list[Value]) -> list[Value]:
            for odd in range(2):
                now = f.add(u, odd)
                values = self._add(f.sub(now, 2), odd, values, turn(now, odd))
            return values

        self._unpack(i64(0), 0)
        for odd in range(2):
            for step in turn(i64(odd), odd):
                step()
        values = f.for_(2, count, 2, [f.zero(_ROW)] * self.height, two)
        for step in self._store(1):
            step()
        last = f.and_(f.sub(count, 1), -2)
        values = self._add(last, 0, values)
        odd = f.icmp("ne", f.and_(count, 1), 0)
        values = f.if_(odd, lambda: values, lambda: self._add(f.add(last, 1), 1, values))
        for r, value in enumerate(values):
            f.store(value, f.at(f.params[3], r * _LINE), align=64)
        f.ret()

    def _weights(self, odd: int) -> Value:
        size = (2 if self.pairs else 1) * GROUPS * _LINE
        return self.f.at(self.f.scratch("weights", 2 * size), odd * size)

    def _sums(self, odd: int, digit: int) -> Value:
        size = self.digits * _SUMS
        return self.f.at(self.f.scratch("products", 2 * size), odd * size + digit * _SUMS)

    def _pointers(self, chunk: Value) -> tuple[Value, Value, Value]:
        """Return where a chunk is, where its block's head is, and its place there."""
        f, (_, panel, blocks, _) = self.f, self.f.params
        heads = f.at(panel, heads_at(f, self.form, blocks))
        return chunk_pointers(f, self.form, panel, heads, chunk)

    def _digits(self, chunk: Value) -> Value:
        return self.f.at(self.f.params[0], chunk, self.layout.size)

    def _unpack(self, chunk: Value, odd: int) -> None:
        """Write the bytes of a chunk's weights."""
        f, form = self.f, self.form
        words, _, _ = self._pointers(chunk)
        ask_ahead(f, words, form.block_step // form.chunks)
        loaded = load_words(f, form, words)
        for group in range(GROUPS):
            number = group_bytes(f, form, loaded, group)
            to = f.at(self._weights(odd), group * _LINE)
            if self.pairs:
                f.store(self._signed(f.shl(number, 4), 16 * form.zero), to, align=64)
                to = f.at(to, GROUPS * _LINE)
            f.store(self._signed(number, form.zero), to, align=64)

    def _signed(self, number: Value, zero: int) -> Value:
        f = self.f
        if not zero:
            return number
        less = f.constant(_BYTES, (zero + 128) % 256 - 128)
        return f.cast("bitcast", f.sub(f.cast("bitcast", number, _BYTES), less), _INTS)

    def _multiply(self, chunk: Value, odd: int) -> list[Step]:
        """Return what multiplies a chunk's weights with digits."""
        f, layout, at = self.f, self.layout, self._digits(chunk)
        element = amx.SIGNED if self.form.zero else amx.SIGNED_A
        first, a, b = odd * self.digits, 4 if self.pairs else 6, 6 + odd if self.pairs else 7

        def multiply(digit: int) -> None:
            if not digit:
                amx.load(f, b, self._weights(odd), _LINE)
            if self.pairs:
                tile, step = a + digit, 2 * CHUNK
                place = f.at(at, layout.pairs_at + digit * layout.pair_step)
            else:
                tile, step, place = a, CHUNK, f.at(at, digit * layout.digit_step)
            amx.load(f, tile, place, step)
            amx.zero(f, first + digit)
            amx.multiply(f, first + digit, tile, b, element)

        return [partial(multiply, digit) for digit in range(self.digits)]

    def _store(self, odd: int) -> list[Step]:
        """Return what stores the sums of a chunk."""
        f, first = self.f, odd * self.digits
        return [
            partial(amx.store, f, first + digit, self._sums(odd, digit), _LINE)
            for digit in range(self.digits)
        ]

    def _add(
        self, chunk: Value, odd: int, values: Sequence[Value], meanwhile: Sequence[Step] = ()
    ) -> list[Value]:
        """Return the rows' outputs with a chunk's products added; steps of others are between."""
        f, form, at = self.f, self.form, self._digits(chunk)
        _, head, place = self._pointers(chunk)
        (scale,) = chunk_scales(f, form, head, block_scale(f, form, head), place)
        result: list[Value] = []
        done = 0
        for r, value in enumerate(values):
            due = -(-len(meanwhile) * (r + 1) // self.height)
            for step in meanwhile[done:due]:
                step()
            done = due
            numbers = self.layout.numbers(f, at, r)
            power = f.splat(numbers.scale, PANEL)
            sums = [
                f.load(_INTS, f.at(self._sums(odd, digit), r * _LINE), align=64)
                for digit in range(self.digits)
            ]
            product = self._joined(sums)
            result.append(scaled(f, value, [product], [scale], power, numbers))
        return result

    def _joined(self, sums: Sequence[Value]) -> Value:
        f = self.f
        if not self.pairs:
            return join(f, sums)
        h, low = (f.cast("sitofp", total, _ROW) for total in sums)
        return f.fma(h, f.splat(f32(4096.0), PANEL), low)
