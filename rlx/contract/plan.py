"""The memory plan of a program as plain data: slots, views, schedule, phases, IO manifest."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlx.contract.opkind import OpKind
from rlx.contract.phase import Phase, PhaseSchedule


@dataclass(frozen=True, slots=True)
class LirBufferSlot:
    """Where a buffer lies in the arena, in bytes."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class LirViewAlias:
    """A value that lies inside the buffer of `root`, `byte_offset` bytes after its start."""

    root: int
    byte_offset: int


class IoNode(Protocol):
    """What `LirIoManifest.collect` needs to know of a node; `name` counts for inputs and params."""

    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> OpKind: ...
    @property
    def name(self) -> str: ...


class IoGraph(Protocol):
    """Nodes in the order they run, and the ids of the results."""

    @property
    def nodes(self) -> Iterable[IoNode]: ...
    @property
    def outputs(self) -> Iterable[int]: ...


@dataclass(slots=True)
class LirIoManifest:
    """What goes in and out of a program: (name, id) of inputs and params, ids of outputs."""

    inputs: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    params: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    outputs: list[int] = field(default_factory=list[int])

    @classmethod
    def collect(cls, graph: IoGraph) -> LirIoManifest:
        """Read the manifest off `graph`, in node order."""
        manifest = cls(outputs=list(graph.outputs))
        for node in graph.nodes:
            if node.kind is OpKind.INPUT:
                manifest.inputs.append((node.name, node.id))
            elif node.kind is OpKind.PARAM:
                manifest.params.append((node.name, node.id))
        return manifest


@dataclass(slots=True)
class LirBufferPlan:
    """
    Everything decided about the memory of a program before it runs.

    Sizes, offsets and the alignment are in bytes; all keys are node ids. A node has a slot in
    `assignments`, or is a view in `view_aliases`, or lives outside the arena.
    """

    arena_size: int = 0
    assignments: dict[int, LirBufferSlot] = field(default_factory=dict[int, LirBufferSlot])
    schedule: list[int] = field(default_factory=list[int])
    view_aliases: dict[int, LirViewAlias] = field(default_factory=dict[int, LirViewAlias])
    phases: PhaseSchedule = field(default_factory=PhaseSchedule)
    io: LirIoManifest = field(default_factory=LirIoManifest)
    alignment: int = 64
    dynamic_symbols: list[int] = field(default_factory=list[int])

    def total_unshared_bytes(self) -> int:
        """Return the bytes that the buffers would take if none shared memory."""
        return sum(slot.size for slot in self.assignments.values())

    def bytes_saved(self) -> int:
        """Return the bytes that sharing saves, never below 0 (padding can cost more)."""
        return max(self.total_unshared_bytes() - self.arena_size, 0)

    def slot(self, node: int) -> LirBufferSlot | None:
        """Return the slot of `node`, or None for views and what lives outside the arena."""
        return self.assignments.get(node)

    def is_view(self, node: int) -> bool:
        """Return whether `node` lies inside another node's buffer."""
        return node in self.view_aliases

    def phase_of(self, node: int) -> Phase | None:
        """Return the phase of `node`, or None when it has none."""
        return self.phases.get(node)

    def nodes_in_phase(self, phase: Phase) -> list[int]:
        """Return the nodes of `phase` in the order of the schedule."""
        return self.phases.nodes_in_ordered(phase, self.schedule)

    def to_json(self) -> str:
        """Return the whole plan as a JSON object; `from_json` gives an equal plan."""
        return json.dumps(
            {
                "arena_size": self.arena_size,
                "assignments": {id: [s.offset, s.size] for id, s in self.assignments.items()},
                "schedule": self.schedule,
                "view_aliases": {
                    id: [v.root, v.byte_offset] for id, v in self.view_aliases.items()
                },
                "phases": {node: phase.value for node, phase in self.phases},
                "inputs": self.io.inputs,
                "params": self.io.params,
                "outputs": self.io.outputs,
                "alignment": self.alignment,
                "dynamic_symbols": self.dynamic_symbols,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> LirBufferPlan:
        """Read what `to_json` wrote; KeyError or ValueError on anything else."""
        data: dict[str, Any] = json.loads(text)
        return cls(
            arena_size=data["arena_size"],
            assignments={int(id): LirBufferSlot(*s) for id, s in data["assignments"].items()},
            schedule=data["schedule"],
            view_aliases={int(id): LirViewAlias(*v) for id, v in data["view_aliases"].items()},
            phases=PhaseSchedule({int(id): Phase(name) for id, name in data["phases"].items()}),
            io=LirIoManifest(
                inputs=[(name, id) for name, id in data["inputs"]],
                params=[(name, id) for name, id in data["params"]],
                outputs=data["outputs"],
            ),
            alignment=data["alignment"],
            dynamic_symbols=data["dynamic_symbols"],
        )
