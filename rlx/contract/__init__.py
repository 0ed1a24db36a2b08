"""
The contract: graphs, phases, variants, plans and the fusion gate, as plain data without IR.

Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlx.contract.benefit import (
        METADATA_KINDS as METADATA_KINDS,
    )
    from rlx.contract.benefit import (
        FusionBenefit as FusionBenefit,
    )
    from rlx.contract.benefit import (
        GraphIoProfile as GraphIoProfile,
    )
    from rlx.contract.benefit import (
        IoFusionGate as IoFusionGate,
    )
    from rlx.contract.benefit import (
        fusion_benefit as fusion_benefit,
    )
    from rlx.contract.benefit import (
        host_sync_op_kinds as host_sync_op_kinds,
    )
    from rlx.contract.benefit import (
        profile_graph_io as profile_graph_io,
    )
    from rlx.contract.benefit import (
        profile_graph_io_outputs as profile_graph_io_outputs,
    )
    from rlx.contract.bind import (
        bind_graph as bind_graph,
    )
    from rlx.contract.bind import (
        infer_bindings_from_inputs as infer_bindings_from_inputs,
    )
    from rlx.contract.graph import Graph as Graph
    from rlx.contract.graph import Node as Node
    from rlx.contract.graph import NodeId as NodeId
    from rlx.contract.graph import Op as Op
    from rlx.contract.module import (
        GraphModule as GraphModule,
    )
    from rlx.contract.module import (
        HirModule as HirModule,
    )
    from rlx.contract.module import (
        LirFingerprint as LirFingerprint,
    )
    from rlx.contract.module import (
        LirModule as LirModule,
    )
    from rlx.contract.module import (
        MirModule as MirModule,
    )
    from rlx.contract.opkind import OpKind as OpKind
    from rlx.contract.phase import (
        Phase as Phase,
    )
    from rlx.contract.phase import (
        PhaseSchedule as PhaseSchedule,
    )
    from rlx.contract.phase import (
        derive_phases as derive_phases,
    )
    from rlx.contract.plan import (
        LirBufferPlan as LirBufferPlan,
    )
    from rlx.contract.plan import (
        LirBufferSlot as LirBufferSlot,
    )
    from rlx.contract.plan import (
        LirIoManifest as LirIoManifest,
    )
    from rlx.contract.plan import (
        LirViewAlias as LirViewAlias,
    )
    from rlx.contract.shape import DType as DType
    from rlx.contract.shape import Shape as Shape
    from rlx.contract.symbols import (
        BATCH as BATCH,
    )
    from rlx.contract.symbols import (
        PAST_SEQ as PAST_SEQ,
    )
    from rlx.contract.symbols import (
        ROWS as ROWS,
    )
    from rlx.contract.symbols import (
        SEQ as SEQ,
    )
    from rlx.contract.symbols import (
        SYMBOL_NAMES as SYMBOL_NAMES,
    )
    from rlx.contract.symbols import (
        SYMBOL_NUMBERS as SYMBOL_NUMBERS,
    )
    from rlx.contract.symbols import (
        DimBinding as DimBinding,
    )
    from rlx.contract.symbols import (
        sym as sym,
    )
    from rlx.contract.variant import ModelPhase as ModelPhase
    from rlx.contract.variant import ModelVariant as ModelVariant

_NAMES = {
    "benefit": "FusionBenefit GraphIoProfile IoFusionGate METADATA_KINDS fusion_benefit host_sync_op_kinds profile_graph_io profile_graph_io_outputs",
    "bind": "bind_graph infer_bindings_from_inputs",
    "graph": "Graph Node NodeId Op",
    "module": "GraphModule HirModule LirFingerprint LirModule MirModule",
    "opkind": "OpKind",
    "phase": "Phase PhaseSchedule derive_phases",
    "plan": "LirBufferPlan LirBufferSlot LirIoManifest LirViewAlias",
    "shape": "DType Shape",
    "symbols": "BATCH DimBinding PAST_SEQ ROWS SEQ SYMBOL_NAMES SYMBOL_NUMBERS sym",
    "variant": "ModelPhase ModelVariant",
}
"""Module -> the names that it offers here."""

_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'rlx.contract' has no attribute '{name}'")
    return getattr(import_module(f"rlx.contract.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
