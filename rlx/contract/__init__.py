"""The contract: graphs, phases, variants, plans and the fusion gate, as plain data without IR."""

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
from rlx.contract.bind import bind_graph, infer_bindings_from_inputs
from rlx.contract.graph import Graph, Node, NodeId, Op
from rlx.contract.module import GraphModule, HirModule, LirFingerprint, LirModule, MirModule
from rlx.contract.opkind import OpKind
from rlx.contract.phase import Phase, PhaseSchedule, derive_phases
from rlx.contract.plan import LirBufferPlan, LirBufferSlot, LirIoManifest, LirViewAlias
from rlx.contract.shape import DType, Shape
from rlx.contract.symbols import (
    BATCH,
    PAST_SEQ,
    ROWS,
    SEQ,
    SYMBOL_NAMES,
    SYMBOL_NUMBERS,
    DimBinding,
    sym,
)
from rlx.contract.variant import ModelPhase, ModelVariant

__all__ = [
    "BATCH",
    "METADATA_KINDS",
    "PAST_SEQ",
    "ROWS",
    "SEQ",
    "SYMBOL_NAMES",
    "SYMBOL_NUMBERS",
    "DType",
    "DimBinding",
    "FusionBenefit",
    "Graph",
    "GraphIoProfile",
    "GraphModule",
    "HirModule",
    "IoFusionGate",
    "LirBufferPlan",
    "LirBufferSlot",
    "LirFingerprint",
    "LirIoManifest",
    "LirModule",
    "LirViewAlias",
    "MirModule",
    "ModelPhase",
    "ModelVariant",
    "Node",
    "NodeId",
    "Op",
    "OpKind",
    "Phase",
    "PhaseSchedule",
    "Shape",
    "bind_graph",
    "derive_phases",
    "fusion_benefit",
    "host_sync_op_kinds",
    "infer_bindings_from_inputs",
    "profile_graph_io",
    "profile_graph_io_outputs",
    "sym",
]
