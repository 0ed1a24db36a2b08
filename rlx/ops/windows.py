"""
Windows along the last axes of a tensor: what convolutions, pools and `im2col` have in common.

Spatial axes are all after the first two, `[n, channels, d...]`; there may be any number of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from xdsl.ir import Attribute, SSAValue
from xdsl.utils.exceptions import VerifyException

from rlx.dialects.common import dims_of, spell
from rlx.dialects.writer import Operand, Writer
from rlx.ops.record import Array

if TYPE_CHECKING:
    from rlx.ops.samples import Draw

LEAD = 2
"""Axes before the spatial ones: images and channels."""

OPTIONS = {"stride": (), "low": (), "high": (), "dilation": ()}
"""Options of windows; without them they lie next to each other, on elements side by side."""


def spatial(what: str, type_: Attribute) -> tuple[int, ...]:
    """Return the sizes of the spatial axes. Raises VerifyException unless they are numbers."""
    dims = dims_of(type_)[LEAD:]
    sizes = tuple(d for d in dims if isinstance(d, int))
    if not dims or len(sizes) < len(dims):
        raise VerifyException(
            f"{what}: expected [n, channels, d...] with numbers for d, got {spell(type_)}"
        )
    return sizes


@dataclass(frozen=True)
class Windows:
    """
    Windows of `size` elements, `dilation` apart, every `stride` elements of each spatial axis.

    `low` and `high` are the elements of padding before and after an axis.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    dilation: tuple[int, ...]

    @staticmethod
    def of(
        what: str, size: Sequence[int], o: Mapping[str, Any], stride: Sequence[int] = ()
    ) -> Windows:
        """
        Take the options of an operation; without `high` an axis ends as it begins.

        Raises VerifyException unless each has a number for each axis, from 1 or, of padding, 0.
        """
        ones = (1,) * len(size)
        stride = o["stride"] or stride or ones
        low = o["low"] or (0,) * len(size)
        found = Windows(tuple(size), tuple(stride), low, o["high"] or low, o["dilation"] or ones)
        counts = (found.size, found.stride, found.dilation)
        pads = (found.low, found.high)
        if any(len(n) != len(size) for n in (*counts, *pads)):
            raise VerifyException(
                f"{what}: expected a number for each of {len(size)} axes, got size {list(size)}, "
                + ", ".join(f"{name} {list(o[name])}" for name in OPTIONS)
            )
        if min((*(n for c in counts for n in c), 1)) < 1 or min((*pads[0], *pads[1], 0)) < 0:
            raise VerifyException(
                f"{what}: expected sizes, strides and dilations from 1 and padding from 0, got "
                f"size {list(size)}, " + ", ".join(f"{name} {list(o[name])}" for name in OPTIONS)
            )
        return found

    @property
    def extent(self) -> tuple[int, ...]:
        """The elements of each axis from the first to the last one of a window."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.size, self.dilation, strict=True))

    def counts(self, what: str, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return the windows of each axis. Raises VerifyException where none fits."""
        counts: list[int] = []
        for n, e, s, a, b in zip(sizes, self.extent, self.stride, self.low, self.high, strict=True):
            if a + n + b < e:
                raise VerifyException(
                    f"{what}: expected axes that hold a window of {list(self.extent)} elements, "
                    f"got {list(sizes)}, with {list(self.low)} before and {list(self.high)} after"
                )
            counts.append((a + n + b - e) // s + 1)
        return tuple(counts)

    def take(self, w: Writer, x: SSAValue, fill: Operand = 0) -> SSAValue:
        """
        Return the windows of the last axes as `[..., size..., counts...]`.

        x[.., d] --> y[.., j, i] = padded x[.., i * stride + j * dilation]
        """
        dims = dims_of(x.type)
        lead = len(dims) - len(self.size)
        counts = self.counts("windows", cast(Sequence[int], dims[lead:]))
        still = (0,) * lead
        x = w.pad(x, (*still, *self.low), (*still, *self.high), fill)
        elements: list[int] = []
        places: list[int] = []
        axis = lead
        for k, count, s, d in zip(self.size, counts, self.stride, self.dilation, strict=True):
            places.append(axis)
            if k > 1:
                x = w.window(x, axis, k, s, d)
                elements.append(axis + 1)
            elif dims_of(x.type)[axis] != count:
                x = w.slice(x, axis, 0, count, s)
            axis += 1 + (k > 1)
        x = w.transpose(x, [*range(lead), *elements, *places])
        return w.reshape(x, [*dims[:lead], *self.size, *counts])

    # Meanings and samples

    def shifted(self, padded: Array, counts: Sequence[int], offset: Sequence[int]) -> Array:
        """Return the element at an offset of each window of a padded array."""
        places = zip(offset, self.dilation, self.stride, counts, strict=True)
        return padded[(..., *(slice(j * d, j * d + (n - 1) * s + 1, s) for j, d, s, n in places))]

    def padded(self, x: Array, fill: Any = 0) -> Array:
        """Return an array with the padding around its last axes."""
        import numpy as np

        counts = [(0, 0)] * (x.ndim - len(self.size))
        pads = zip(self.low, self.high, strict=True)
        return np.pad(x, [*counts, *pads], constant_values=fill)


def draw_windows(draw: Draw, rank: int) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Return the size of windows for a sample, and their options."""

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.between(low, high) for _ in range(rank))

    size = each(1, 5 if rank == 1 else 3)
    options: dict[str, Any] = {}
    if draw.chance(0.6):
        options["stride"] = each(1, 3)
    if draw.chance(0.7):
        options["low"] = each(0, 2)
    if draw.chance(0.4):
        options["high"] = each(0, 3)
    if draw.chance(0.4):
        options["dilation"] = each(1, 2)
    return size, options


def draw_spatial(draw: Draw, size: Sequence[int], most: int) -> tuple[int, ...]:
    """Return sizes of spatial axes that hold the windows of `draw_windows` without padding."""
    room = max(int(most ** (1 / len(size))), 1)
    return tuple(draw.size(2 * (k - 1) + 1, max(room, 2 * (k - 1) + 1)) for k in size)
