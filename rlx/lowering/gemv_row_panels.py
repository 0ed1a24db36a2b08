"""What both ways to multiply a few rows with packed panels have in common; see `gemv_rows.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlx.lowering.contract import Group
from rlx.lowering.emitter import Function
from rlx.lowering.formats import FORMATS, Format, panel_bytes
from rlx.lowering.gemm_unit import LINE, SUMS, StoreRow
from rlx.lowering.gemv_panels import panels_function
from rlx.lowering.values import Value, i64

Quantised = Callable[[str, Value, Value, Value], None]
"""Called with a format, a panel, its blocks and where sums go: multiplies rows with the panel."""


def forms_of(groups: Sequence[Group]) -> list[Format]:
    """Return the formats of all weights."""
    return [FORMATS[name] for group in groups for name in group.formats]


@dataclass(frozen=True)
class RowPanels:
    """What is multiplied: rows of k f32 at `a`, `stride` bytes apart, with groups of weights."""

    f: Function
    k: int
    groups: Sequence[Group]
    weights: Sequence[Sequence[Value]]
    a: Value
    stride: int
    store: StoreRow

    @property
    def forms(self) -> list[Format]:
        return forms_of(self.groups)

    def panel(
        self, g: int, p: Value, row0: Value, count: Value, high: int, kernel: Quantised
    ) -> None:
        """Multiply `count` rows, at most `high`, with the panels of a group, and hand them on."""
        f, formats = self.f, self.groups[g].formats
        sums = f.scratch("sums", len(formats) * high * LINE)
        places = [f.at(sums, i * high * LINE) for i in range(len(formats))]
        for name, weight, place in zip(formats, self.weights[g], places, strict=True):
            form, pointer = FORMATS[name], f.at(weight, p, panel_bytes(name, self.k))
            if form.quantised:
                kernel(name, pointer, i64(self.k // form.block), place)
            else:
                self._floats(name, pointer, row0, count, place)

        def finish(r: Value, _: list[Value]) -> list[Value]:
            values = [f.load(SUMS, f.at(place, r, LINE), align=64) for place in places]
            self.store(f, g, f.add(row0, r), p, values)
            return []

        f.for_(0, count, 1, [], finish)

    def _floats(self, name: str, panel: Value, row0: Value, count: Value, sums: Value) -> None:
        """Multiply rows with a panel of floats, which the first row brings near."""
        f, kernel = self.f, panels_function(self.f.module, name, 1)
        first, blocks = f.at(self.a, row0, self.stride), i64(self.k // FORMATS[name].block)

        def row(r: Value, _: list[Value]) -> list[Value]:
            out = f.at(sums, r, LINE)
            f.call(kernel, "void", f.at(first, r, self.stride), panel, panel, i64(0), blocks, out)
            return []

        f.for_(0, count, 1, [], row)
