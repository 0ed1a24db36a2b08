"""`rlx ops`: the table of all operations, with what each computes on and which kernels it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from rlx.contract.opkind import OpKind
from rlx.ops.record import FLOATS, INTEGERS
from rlx.ops.registry import all_records

_GROUPS = {"floats": FLOATS, "integers": INTEGERS}

ELSEWHERE: Mapping[OpKind, str] = {
    OpKind.INPUT: "an argument of @main",
    OpKind.ELEMENTWISE_REGION: "mir.kernel, which fusion makes of maps",
    OpKind.TRANSFORM_REGION: "mir.kernel, which fusion makes of maps and moves",
    OpKind.BATCH_ELEMENTWISE_REGION: "mir.kernel, which fusion makes of maps",
    OpKind.CUSTOM: "operations of one's own, written by a stage of rlx.flow (Custom)",
    OpKind.CUSTOM_FN: "a function of the module, called by hir.repeat",
    OpKind.LINEAR_FUSED: "hir.linear, with what fuse-epilogue moves behind it",
    OpKind.RESIDUAL_RMS_NORM: "a sum and hir.rms_norm, which fuse-norm makes one launch",
    OpKind.QWEN35_MTP_HEAD: "norms, hir.linear and a decoder layer of rlx.flow",
}
"""Kinds that are no operation of their own, and what they are instead."""


@dataclass(frozen=True)
class Row:
    """An operation of the table."""

    name: str
    elements: tuple[str, ...]
    family: str
    lowering: str
    """`kernel`, or `primitives` for what is written out in them."""
    kinds: tuple[str, ...]


def rows() -> list[Row]:
    """Return every operation, by dialect."""
    return [
        Row(
            r.name,
            r.elements,
            r.family,
            "kernel" if r.expand is None else "primitives",
            tuple(kind.value for kind in r.kinds),
        )
        for r in all_records()
    ]


def missing() -> list[OpKind]:
    """Return the kinds that nothing has."""
    found = {kind for record in all_records() for kind in record.kinds}
    return [kind for kind in OpKind if kind not in found and kind not in ELSEWHERE]


def as_json(table: Sequence[Row]) -> list[dict[str, object]]:
    return [asdict(row) for row in table]


def as_text(table: Sequence[Row]) -> str:
    """Return the table for people, and the kinds that are no operation of their own."""
    head = ("operation", "elements", "kernels", "lowered to", "kinds")
    cells = [
        (row.name, _spell(row.elements), row.family, row.lowering, ", ".join(row.kinds))
        for row in table
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in (head, *cells)]
    others = [f"{kind.value}: {what}" for kind, what in ELSEWHERE.items()]
    left = ", ".join(kind.value for kind in missing()) or "none"
    tail = ["", f"{len(table)} operations. Other kinds:", *others, f"Not there: {left}"]
    return "\n".join([*lines, *tail])


def _spell(elements: Iterable[str]) -> str:
    """Return names of elements, those of a whole group as the group's."""
    left = list(elements)
    words: list[str] = []
    for name, group in _GROUPS.items():
        if set(group) <= set(left):
            words.append(name)
            left = [e for e in left if e not in group]
    return " ".join([*words, *left])
