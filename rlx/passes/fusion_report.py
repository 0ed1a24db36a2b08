"""
The fusion report: what each fusion rule did and declined to do, and what it counted.

A fusion pass with `report=true` leaves its entries in the module attribute `rlx.fusion_report`,
an array of dictionaries that prints and parses; passes that follow append theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.dialects.builtin import (
    ArrayAttr,
    BoolAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    f64,
)
from xdsl.ir import Attribute, Operation
from xdsl.utils.hints import isa

from rlx.dialects.ops import i64_attr

FUSION_REPORT = "rlx.fusion_report"
"""The module attribute that holds the report."""


@dataclass(frozen=True)
class FusionEntry:
    """One fusion that was made (`reason` is empty) or declined; bytes are those of one run."""

    rule: str
    function: str
    op: str
    """What would move."""
    kernel: str
    """Where it would move to: the operations of that launch."""
    launches_before: int
    launches_after: int
    bytes_before: int
    bytes_after: int
    score_ns: float
    """What the target's gate makes of the launches and bytes saved."""
    reason: str = ""

    @property
    def fused(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        verdict = "fused" if self.fused else f"declined: {self.reason}"
        return (
            f"{self.rule} @{self.function}: {self.op} + {self.kernel}: {verdict} (launches "
            f"{self.launches_before} -> {self.launches_after}, bytes {self.bytes_before} -> "
            f"{self.bytes_after}, {self.score_ns:+.0f} ns saved)"
        )

    def to_attribute(self) -> DictionaryAttr:
        """Return the entry as a dictionary of the module attribute."""
        return DictionaryAttr(
            {
                "rule": StringAttr(self.rule),
                "function": StringAttr(self.function),
                "op": StringAttr(self.op),
                "kernel": StringAttr(self.kernel),
                "fused": BoolAttr.from_bool(self.fused),
                "launches": ArrayAttr(map(i64_attr, (self.launches_before, self.launches_after))),
                "bytes": ArrayAttr(map(i64_attr, (self.bytes_before, self.bytes_after))),
                "score_ns": FloatAttr(self.score_ns, f64),
                "reason": StringAttr(self.reason),
            }
        )

    @staticmethod
    def from_attribute(attribute: DictionaryAttr) -> FusionEntry:
        """Read what `to_attribute` wrote."""
        fields = attribute.data
        launches, nbytes, score = fields["launches"], fields["bytes"], fields["score_ns"]
        assert isa(launches, ArrayAttr[IntegerAttr])
        assert isa(nbytes, ArrayAttr[IntegerAttr])
        assert isa(score, FloatAttr)
        launches_before, launches_after = (n.value.data for n in launches)
        bytes_before, bytes_after = (n.value.data for n in nbytes)
        return FusionEntry(
            rule=_text(fields["rule"]),
            function=_text(fields["function"]),
            op=_text(fields["op"]),
            kernel=_text(fields["kernel"]),
            launches_before=launches_before,
            launches_after=launches_after,
            bytes_before=bytes_before,
            bytes_after=bytes_after,
            score_ns=score.value.data,
            reason=_text(fields["reason"]),
        )


def _text(attribute: Attribute) -> str:
    assert isinstance(attribute, StringAttr)
    return attribute.data


@dataclass
class FusionLog:
    """The entries of one run of a pass: every fusion, and the last answer on each one declined."""

    fused: list[FusionEntry] = field(default_factory=list[FusionEntry])
    declined: dict[Operation, FusionEntry] = field(default_factory=dict[Operation, FusionEntry])

    def add(self, op: Operation, entry: FusionEntry) -> None:
        """Record an entry about `op`; a pattern may have tried it before."""
        self.declined.pop(op, None)
        if entry.fused:
            self.fused.append(entry)
        else:
            self.declined[op] = entry

    def write(self, module: ModuleOp) -> None:
        """Append the entries to the module's report."""
        entries = [*fusion_report(module), *self.fused, *self.declined.values()]
        module.attributes[FUSION_REPORT] = ArrayAttr(e.to_attribute() for e in entries)


def fusion_report(module: ModuleOp) -> list[FusionEntry]:
    """Return the entries that passes with `report=true` left in a module."""
    report = module.attributes.get(FUSION_REPORT)
    if not isa(report, ArrayAttr[DictionaryAttr]):
        return []
    return [FusionEntry.from_attribute(entry) for entry in report]
