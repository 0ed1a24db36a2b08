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
    syncs_before: int = 0
    """Round trips to the host; few rules change them, or the bytes that the host reads."""
    syncs_after: int = 0
    host_bytes_before: int = 0
    host_bytes_after: int = 0

    @property
    def fused(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        verdict = "fused" if self.fused else f"declined: {self.reason}"
        host = (
            f"syncs {self.syncs_before} -> {self.syncs_after}, bytes to the host "
            f"{self.host_bytes_before} -> {self.host_bytes_after}, "
        )
        return (
            f"{self.rule} @{self.function}: {self.op} + {self.kernel}: {verdict} (launches "
            f"{self.launches_before} -> {self.launches_after}, bytes {self.bytes_before} -> "
            f"{self.bytes_after}, {host if any(self._host) else ''}{self.score_ns:+.0f} ns saved)"
        )

    @property
    def _host(self) -> tuple[int, int, int, int]:
        return self.syncs_before, self.syncs_after, self.host_bytes_before, self.host_bytes_after

    def to_attribute(self) -> DictionaryAttr:
        """Return the entry as a dictionary of the module attribute."""
        host: dict[str, Attribute] = {}
        if any(self._host):
            numbers = [i64_attr(n) for n in self._host]
            host = {"syncs": ArrayAttr(numbers[:2]), "host_bytes": ArrayAttr(numbers[2:])}
        return DictionaryAttr(
            {
                "rule": StringAttr(self.rule),
                "function": StringAttr(self.function),
                "op": StringAttr(self.op),
                "kernel": StringAttr(self.kernel),
                "fused": BoolAttr.from_bool(self.fused),
                "launches": ArrayAttr(map(i64_attr, (self.launches_before, self.launches_after))),
                "bytes": ArrayAttr(map(i64_attr, (self.bytes_before, self.bytes_after))),
                **host,
                "score_ns": FloatAttr(self.score_ns, f64),
                "reason": StringAttr(self.reason),
            }
        )

    @staticmethod
    def from_attribute(attribute: DictionaryAttr) -> FusionEntry:
        """Read what `to_attribute` wrote."""
        fields = attribute.data
        score = fields["score_ns"]
        assert isa(score, FloatAttr)
        launches, nbytes, syncs, host_bytes = (
            _pair(fields.get(name)) for name in ("launches", "bytes", "syncs", "host_bytes")
        )
        return FusionEntry(
            rule=_text(fields["rule"]),
            function=_text(fields["function"]),
            op=_text(fields["op"]),
            kernel=_text(fields["kernel"]),
            launches_before=launches[0],
            launches_after=launches[1],
            bytes_before=nbytes[0],
            bytes_after=nbytes[1],
            syncs_before=syncs[0],
            syncs_after=syncs[1],
            host_bytes_before=host_bytes[0],
            host_bytes_after=host_bytes[1],
            score_ns=score.value.data,
            reason=_text(fields["reason"]),
        )


def _pair(attribute: Attribute | None) -> tuple[int, int]:
    if attribute is None:
        return 0, 0
    assert isa(attribute, ArrayAttr[IntegerAttr])
    before, after = (n.value.data for n in attribute)
    return before, after


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
