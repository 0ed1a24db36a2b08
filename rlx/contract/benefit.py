"""
What a fusion saves in launches, host round trips and bytes, and the gate that decides on it.

Times are in ns, sizes in bytes, bandwidths in bytes per ns (which is GB/s).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rlx.contract.opkind import OpKind

METADATA_KINDS = frozenset(
    {
        OpKind.INPUT,
        OpKind.PARAM,
        OpKind.CONSTANT,
        OpKind.RESHAPE,
        OpKind.TRANSPOSE,
        OpKind.NARROW,
    }
)
"""Kinds that launch nothing and move nothing."""

_HOST_SYNC_KINDS = frozenset(
    {OpKind.LOG_MEL, OpKind.LOG_MEL_BACKWARD, OpKind.CUSTOM, OpKind.WELCH_PEAKS}
)
_MAX_BYTES = 2**64 - 1


def host_sync_op_kinds() -> frozenset[OpKind]:
    """Return the kinds that a device runs by a round trip to the host."""
    return _HOST_SYNC_KINDS


@dataclass(frozen=True, slots=True)
class GraphIoProfile:
    """The cost of running a graph once: counts of launches and host syncs, and bytes moved."""

    kernel_launches: int = 0
    sync_points: int = 0
    host_output_bytes: int = 0
    device_traffic_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FusionBenefit:
    """What a rewrite saves: before minus after, so a negative number is a loss."""

    launches_saved: int = 0
    sync_points_saved: int = 0
    host_readback_bytes_saved: int = 0
    device_traffic_bytes_saved: int = 0

    def score_ns(
        self,
        dispatch_ns: float,
        roundtrip_ns: float,
        memory_bw: float,
        host_readback_bw: float,
        unified_memory: bool,
    ) -> float:
        """Return the time saved per run, in ns."""
        # With unified memory there is no copy to the host, yet the contract divides the saved
        # readback by 1: a byte counts as a whole ns. Its Metal decision (fuse) rests on that; at
        # the stated 200 GB/s the same rewrite would lose 2 ms. Kept so that decisions agree.
        readback_bw = 0.0 if unified_memory else host_readback_bw
        return (
            self.launches_saved * dispatch_ns
            + self.sync_points_saved * roundtrip_ns
            + self.device_traffic_bytes_saved / max(memory_bw, 1.0)
            + self.host_readback_bytes_saved / max(readback_bw, 1.0)
        )

    def should_fuse(
        self,
        dispatch_ns: float,
        roundtrip_ns: float,
        memory_bw: float,
        host_readback_bw: float,
        unified_memory: bool,
        min_gain_ns: float,
    ) -> bool:
        """Return whether the score reaches `min_gain_ns`."""
        score = self.score_ns(
            dispatch_ns, roundtrip_ns, memory_bw, host_readback_bw, unified_memory
        )
        return score >= min_gain_ns


def fusion_benefit(before: GraphIoProfile, after: GraphIoProfile) -> FusionBenefit:
    """Return what going from `before` to `after` saves."""
    return FusionBenefit(
        before.kernel_launches - after.kernel_launches,
        before.sync_points - after.sync_points,
        before.host_output_bytes - after.host_output_bytes,
        before.device_traffic_bytes - after.device_traffic_bytes,
    )


@dataclass(frozen=True, slots=True)
class IoFusionGate:
    """The cost model of a target: decides whether a rewrite pays there."""

    dispatch_ns: float
    roundtrip_ns: float
    memory_bw: float
    host_readback_bw: float
    unified_memory: bool
    host_thunk_penalty_ns: float
    min_gain_ns: float

    presets: ClassVar[dict[str, IoFusionGate]]
    """The gate of each known target, by its lower-case name."""

    def score_ns(self, benefit: FusionBenefit) -> float:
        """Return the ns saved per run, less the penalty for each host sync that was added."""
        score = benefit.score_ns(
            self.dispatch_ns,
            self.roundtrip_ns,
            self.memory_bw,
            self.host_readback_bw,
            self.unified_memory,
        )
        added_syncs = max(-benefit.sync_points_saved, 0)
        return score - self.host_thunk_penalty_ns * added_syncs

    def should_fuse(self, before: GraphIoProfile, after: GraphIoProfile) -> bool:
        """Return whether going from `before` to `after` saves at least `min_gain_ns`."""
        return self.score_ns(fusion_benefit(before, after)) >= self.min_gain_ns


_APPLE = IoFusionGate(500, 5_000, 200, 200, True, 2e6, 1_000)
_DISCRETE = IoFusionGate(2_000, 20_000, 800, 50, False, 15e6, 5_000)
_PORTABLE = IoFusionGate(3_000, 30_000, 100, 40, False, 25e6, 10_000)
_CPU = IoFusionGate(50, 0, 50, 50, True, 0, 0)
IoFusionGate.presets = {
    "metal": _APPLE,
    "mlx": _APPLE,
    "cuda": _DISCRETE,
    "rocm": _DISCRETE,
    "wgpu": _PORTABLE,
    "tpu": _PORTABLE,
    "cpu": _CPU,
}


class ProfileNode(Protocol):
    """What profiling needs to know of a node; `nbytes` is 0 for a result of dynamic shape."""

    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> OpKind: ...
    @property
    def inputs(self) -> Iterable[int]: ...
    @property
    def nbytes(self) -> int: ...


class ProfileGraph(Protocol):
    """Nodes in the order they run, and the ids of the results."""

    @property
    def nodes(self) -> Iterable[ProfileNode]: ...
    @property
    def outputs(self) -> Iterable[int]: ...


def profile_graph_io(graph: ProfileGraph) -> GraphIoProfile:
    """Return the cost of running `graph` for all of its outputs."""
    return profile_graph_io_outputs(graph, graph.outputs)


def profile_graph_io_outputs(graph: ProfileGraph, outputs: Iterable[int]) -> GraphIoProfile:
    """
    Return the cost of running `graph` when the host reads the nodes of `outputs`.

    A node's traffic is all its inputs, each as often as it is named, plus its output. As in the
    contract, an output that is a metadata node (a reshape, say) counts no bytes, and neither does
    a tensor of dynamic shape: profile under a binding to see those.
    """
    wanted = frozenset(outputs)
    nodes = list(graph.nodes)
    nbytes = {node.id: node.nbytes for node in nodes}
    launches = syncs = host_output = traffic = 0
    for node in nodes:
        if node.kind in METADATA_KINDS:
            continue
        launches += 1
        syncs += node.kind in _HOST_SYNC_KINDS
        host_output += node.nbytes if node.id in wanted else 0
        traffic += sum(nbytes[operand] for operand in node.inputs) + node.nbytes
    return GraphIoProfile(launches, syncs, min(host_output, _MAX_BYTES), min(traffic, _MAX_BYTES))
