"""The IO profile of a graph and the gate that decides on a fusion."""

from dataclasses import dataclass, field

import pytest

from rlx.contract.benefit import (
    METADATA_KINDS,
    FusionBenefit,
    GraphIoProfile,
    IoFusionGate,
    fusion_benefit,
    host_sync_op_kinds,
    profile_graph_io,
    profile_graph_io_outputs,
)
from rlx.contract.opkind import OpKind

DENSE = GraphIoProfile(3, 0, 33554432, 184549376)
PEAKS = GraphIoProfile(4, 1, 1048576, 219152384)


@dataclass
class Node:
    id: int
    kind: OpKind
    inputs: tuple[int, ...] = ()
    nbytes: int = 0


@dataclass
class Graph:
    nodes: list[Node]
    outputs: list[int] = field(default_factory=list)


def test_defaults_are_zero():
    assert GraphIoProfile() == GraphIoProfile(0, 0, 0, 0)
    assert FusionBenefit() == FusionBenefit(0, 0, 0, 0)


def test_benefit_is_before_minus_after():
    benefit = fusion_benefit(GraphIoProfile(2, 1, 8192, 16384), GraphIoProfile(1, 1, 512, 16384))
    assert benefit == FusionBenefit(1, 0, 7680, 0)


def test_benefit_is_signed():
    assert fusion_benefit(DENSE, PEAKS) == FusionBenefit(-1, -1, 32505856, -34603008)


def test_metal_gate_fuses():
    gate = IoFusionGate(500, 5000, 200, 200, True, 2e6, 1000)
    benefit = fusion_benefit(DENSE, PEAKS)
    raw = benefit.score_ns(500, 5000, 200, 200, True)
    assert raw == pytest.approx(32327340.96, abs=1e-3)
    assert gate.score_ns(benefit) == pytest.approx(30327340.96, abs=1e-3)
    assert gate.should_fuse(DENSE, PEAKS)


def test_wgpu_gate_rejects_because_of_the_penalty():
    gate = IoFusionGate(3000, 30000, 100, 40, False, 25e6, 10000)
    benefit = fusion_benefit(DENSE, PEAKS)
    assert gate.score_ns(benefit) == pytest.approx(-24566383.68, abs=1e-3)
    assert not gate.should_fuse(DENSE, PEAKS)
    assert benefit.score_ns(3000, 30000, 100, 40, False) == pytest.approx(433616.32, abs=1e-3)
    assert benefit.should_fuse(3000, 30000, 100, 40, False, 10000)


def test_unified_memory_counts_a_readback_byte_as_a_nanosecond():
    # With the stated 200 GB/s instead of 1 the same rewrite would lose and be rejected.
    benefit = fusion_benefit(DENSE, PEAKS)
    at_200 = benefit.score_ns(500, 5000, 200, 200, False) - 2e6
    assert at_200 == pytest.approx(-2015986, abs=1)
    assert benefit.score_ns(500, 5000, 200, 200, True) - 2e6 > 1000


def test_bandwidth_below_one_counts_as_one():
    benefit = FusionBenefit(0, 0, 10, 20)
    assert benefit.score_ns(0, 0, 0, 0.5, False) == 30


def test_gain_equal_to_the_minimum_fuses():
    benefit = FusionBenefit(1, 0, 0, 0)
    assert benefit.should_fuse(50, 0, 1, 1, False, 50)
    assert not benefit.should_fuse(50, 0, 1, 1, False, 50.5)
    gate = IoFusionGate(50, 0, 1, 1, False, 0, 50)
    assert gate.should_fuse(GraphIoProfile(2), GraphIoProfile(1))


def test_saved_syncs_pay_no_penalty():
    gate = IoFusionGate(0, 10, 1, 1, False, 1000, 0)
    assert gate.score_ns(FusionBenefit(sync_points_saved=3)) == 30
    assert gate.score_ns(FusionBenefit(sync_points_saved=-3)) == -3030


def test_presets():
    presets = IoFusionGate.presets
    assert presets["metal"] == IoFusionGate(500, 5000, 200, 200, True, 2e6, 1000)
    assert presets["cuda"] == IoFusionGate(2000, 20000, 800, 50, False, 15e6, 5000)
    assert presets["wgpu"] == IoFusionGate(3000, 30000, 100, 40, False, 25e6, 10000)
    assert presets["cpu"] == IoFusionGate(50, 0, 50, 50, True, 0, 0)
    assert presets["mlx"] == presets["metal"]
    assert presets["rocm"] == presets["cuda"]
    assert presets["tpu"] == presets["wgpu"]


def test_kinds_of_host_sync_and_metadata():
    names = {"LogMel", "LogMelBackward", "Custom", "WelchPeaks"}
    assert {kind.value for kind in host_sync_op_kinds()} == names
    names = {"Input", "Param", "Constant", "Reshape", "Transpose", "Narrow"}
    assert {kind.value for kind in METADATA_KINDS} == names


def test_profile_counts_launches_traffic_and_output():
    graph = Graph(
        [
            Node(0, OpKind.INPUT, (), 100),
            Node(1, OpKind.PARAM, (), 40),
            Node(2, OpKind.MATMUL, (0, 1), 60),
            Node(3, OpKind.BINARY, (2, 2), 60),
            Node(4, OpKind.WELCH_PEAKS, (3,), 8),
        ],
        [4, 3, 4],
    )
    # An input read twice counts twice, an output named twice once.
    assert profile_graph_io(graph) == GraphIoProfile(3, 1, 68, 200 + 180 + 68)
    assert profile_graph_io_outputs(graph, [2]).host_output_bytes == 60
    assert profile_graph_io_outputs(graph, []).host_output_bytes == 0


def test_profile_of_metadata_outputs_and_dynamic_tensors_is_zero_bytes():
    graph = Graph(
        [
            Node(0, OpKind.INPUT, (), 64),
            Node(1, OpKind.RESHAPE, (0,), 64),
            Node(2, OpKind.ACTIVATION, (1,), 0),
        ],
        [0, 1, 2],
    )
    assert profile_graph_io(graph) == GraphIoProfile(1, 0, 0, 64)


def test_profile_saturates():
    huge = 2**63
    graph = Graph([Node(0, OpKind.INPUT, (), huge), Node(1, OpKind.BINARY, (0, 0, 0), huge)], [1])
    assert profile_graph_io(graph).device_traffic_bytes == 2**64 - 1
