"""The three phases of a program, and the rule that gives every node of a graph its phase."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Protocol

from rlx.contract.opkind import OpKind


class Phase(StrEnum):
    """When a node runs: once after loading, once per step, or on the results of a step."""

    PROLOGUE = "prologue"
    STEADY_STATE = "steady_state"
    EPILOGUE = "epilogue"

    def order(self) -> int:
        """Return 0, 1 or 2: the order in which the phases run."""
        return _ORDER[self]


_ORDER = {Phase.PROLOGUE: 0, Phase.STEADY_STATE: 1, Phase.EPILOGUE: 2}


class PhaseSchedule:
    """The phase of each node id; iterates as (id, phase) in ascending order of ids."""

    __slots__ = ("_phases",)

    def __init__(self, phases: Mapping[int, Phase] | None = None) -> None:
        self._phases: dict[int, Phase] = dict(phases or {})

    def set(self, node: int, phase: Phase) -> None:
        """Give `node` its phase, replacing an earlier one."""
        self._phases[node] = phase

    def get(self, node: int) -> Phase | None:
        """Return the phase of `node`, or None when it has none."""
        return self._phases.get(node)

    def is_empty(self) -> bool:
        """Return whether no node has a phase."""
        return not self._phases

    def nodes_in(self, phase: Phase) -> list[int]:
        """Return the nodes of `phase`, sorted by id."""
        return [node for node, p in self if p is phase]

    def nodes_in_ordered(self, phase: Phase, schedule: Iterable[int] | None = None) -> list[int]:
        """
        Return the nodes of `phase` in the order of `schedule`.

        Nodes that `schedule` lacks are dropped and those it repeats are repeated. Without a
        schedule the order is by id.
        """
        if schedule is None:
            return self.nodes_in(phase)
        return [node for node in schedule if self._phases.get(node) is phase]

    def to_json(self) -> str:
        """Return a JSON object from node id (a string, as JSON asks) to the phase's name."""
        return json.dumps({str(node): phase.value for node, phase in self})

    @classmethod
    def from_json(cls, text: str) -> PhaseSchedule:
        """Read what `to_json` wrote; ValueError on a name that is no phase."""
        return cls({int(node): Phase(name) for node, name in json.loads(text).items()})

    def __len__(self) -> int:
        return len(self._phases)

    def __iter__(self) -> Iterator[tuple[int, Phase]]:
        return iter(sorted(self._phases.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PhaseSchedule) and self._phases == other._phases

    def __repr__(self) -> str:
        return f"PhaseSchedule({dict(self)})"


class PhaseNode(Protocol):
    """What `derive_phases` needs to know of a node."""

    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> OpKind: ...


class PhaseGraph(Protocol):
    """Nodes in the order they run."""

    @property
    def nodes(self) -> Iterable[PhaseNode]: ...


LEAF_KINDS = frozenset({OpKind.INPUT, OpKind.PARAM, OpKind.CONSTANT})
SAMPLING_KINDS = frozenset({OpKind.SAMPLE, OpKind.TOP_K})
COMPUTE_KINDS = frozenset(
    {
        OpKind.MATMUL,
        OpKind.FUSED_MATMUL_BIAS_ACT,
        OpKind.ATTENTION,
        OpKind.FUSED_ATTENTION_BLOCK,
        OpKind.FUSED_TRANSFORMER_LAYER,
        OpKind.DOT_GENERAL,
        OpKind.GROUPED_MATMUL,
        OpKind.DEQUANT_GROUPED_MATMUL,
        OpKind.DEQUANT_MOE_WEIGHTS,
        OpKind.LORA_MATMUL,
        OpKind.DEQUANT_MATMUL,
        OpKind.GATED_DELTA_NET,
    }
)


def derive_phases(graph: PhaseGraph) -> PhaseSchedule:
    """
    Give every node a phase from its kind and its place.

    Leaves are the prologue. Sampling, and all that comes after the last sampling node or after the
    last compute node, is the epilogue. The rest is the steady state. The rule is the contract's,
    with its limits: a TopK that routes a mixture of experts counts as sampling, and convolutions
    and selective scans do not count as compute.
    """
    nodes = list(graph.nodes)
    last_sample = _last_step(nodes, SAMPLING_KINDS)
    last_compute = _last_step(nodes, COMPUTE_KINDS)
    # Past the last sampling node is past the end of the step, wherever the compute stood.
    ends = [step for step in (last_sample, last_compute) if step is not None]
    schedule = PhaseSchedule()
    for step, node in enumerate(nodes):
        if node.kind in LEAF_KINDS:
            phase = Phase.PROLOGUE
        elif node.kind in SAMPLING_KINDS or (ends and step > min(ends)):
            phase = Phase.EPILOGUE
        else:
            phase = Phase.STEADY_STATE
        schedule.set(node.id, phase)
    return schedule


def _last_step(nodes: list[PhaseNode], kinds: frozenset[OpKind]) -> int | None:
    return max((step for step, node in enumerate(nodes) if node.kind in kinds), default=None)
