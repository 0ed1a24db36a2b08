"""The contract: phases, variants, plans and the fusion gate, as plain data without the IR."""

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
from rlx.contract.phase import Phase, PhaseSchedule, derive_phases
from rlx.contract.plan import LirBufferPlan, LirBufferSlot, LirIoManifest, LirViewAlias
from rlx.contract.symbols import (
    BATCH,
    PAST_SEQ,
    ROWS,
    SEQ,
    SYMBOL_NAMES,
    SYMBOL_NUMBERS,
    DimBinding,
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
    "DimBinding",
    "FusionBenefit",
    "GraphIoProfile",
    "IoFusionGate",
    "LirBufferPlan",
    "LirBufferSlot",
    "LirIoManifest",
    "LirViewAlias",
    "ModelPhase",
    "ModelVariant",
    "OpKind",
    "Phase",
    "PhaseSchedule",
    "derive_phases",
    "fusion_benefit",
    "host_sync_op_kinds",
    "profile_graph_io",
    "profile_graph_io_outputs",
]
