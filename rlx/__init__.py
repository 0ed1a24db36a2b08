"""
rlx: machine-learning models on CPUs, compiled from Python.

    import rlx
    model = rlx.load("model.gguf")
    for piece in model.generate("The capital of France is", max_tokens=20):
        print(piece, end="")

Names are imported when they are first used: `import rlx` alone imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlx.contract import DimBinding as DimBinding
    from rlx.contract import DType as DType
    from rlx.contract import FusionBenefit as FusionBenefit
    from rlx.contract import Graph as Graph
    from rlx.contract import GraphIoProfile as GraphIoProfile
    from rlx.contract import GraphModule as GraphModule
    from rlx.contract import HirModule as HirModule
    from rlx.contract import IoFusionGate as IoFusionGate
    from rlx.contract import LirBufferPlan as LirBufferPlan
    from rlx.contract import LirBufferSlot as LirBufferSlot
    from rlx.contract import LirFingerprint as LirFingerprint
    from rlx.contract import LirIoManifest as LirIoManifest
    from rlx.contract import LirModule as LirModule
    from rlx.contract import LirViewAlias as LirViewAlias
    from rlx.contract import MirModule as MirModule
    from rlx.contract import ModelPhase as ModelPhase
    from rlx.contract import ModelVariant as ModelVariant
    from rlx.contract import NodeId as NodeId
    from rlx.contract import Op as Op
    from rlx.contract import OpKind as OpKind
    from rlx.contract import Phase as Phase
    from rlx.contract import PhaseSchedule as PhaseSchedule
    from rlx.contract import Shape as Shape
    from rlx.contract import bind_graph as bind_graph
    from rlx.contract import derive_phases as derive_phases
    from rlx.contract import fusion_benefit as fusion_benefit
    from rlx.contract import host_sync_op_kinds as host_sync_op_kinds
    from rlx.contract import infer_bindings_from_inputs as infer_bindings_from_inputs
    from rlx.contract import profile_graph_io as profile_graph_io
    from rlx.contract import profile_graph_io_outputs as profile_graph_io_outputs
    from rlx.contract import sym as sym
    from rlx.driver import load as load
    from rlx.errors import RlxError as RlxError
    from rlx.flow.context import FlowCtx as FlowCtx
    from rlx.flow.profile import CompileProfile as CompileProfile
    from rlx.flow.source import WeightSource as WeightSource
    from rlx.flow.state import DecodeBindings as DecodeBindings
    from rlx.flow.state import FlowState as FlowState
    from rlx.flow.state import FlowValue as FlowValue
    from rlx.flow.state import GdnInputSlots as GdnInputSlots
    from rlx.functions import compile as compile
    from rlx.lowering.target import Target as Target
    from rlx.passes.plan_graph import plan_graph as plan_graph

__version__ = "0.1.0"

_NAMES = {
    "rlx.driver": "load",
    "rlx.functions": "compile",
    "rlx.errors": "RlxError",
    "rlx.lowering.target": "Target",
    "rlx.contract": "DType DimBinding FusionBenefit Graph GraphIoProfile GraphModule HirModule"
    " IoFusionGate LirBufferPlan LirBufferSlot LirFingerprint LirIoManifest LirModule LirViewAlias"
    " MirModule ModelPhase ModelVariant NodeId Op OpKind Phase PhaseSchedule Shape bind_graph"
    " derive_phases fusion_benefit host_sync_op_kinds infer_bindings_from_inputs profile_graph_io"
    " profile_graph_io_outputs sym",
    "rlx.passes.plan_graph": "plan_graph",
    "rlx.flow.context": "FlowCtx",
    "rlx.flow.profile": "CompileProfile",
    "rlx.flow.source": "WeightSource",
    "rlx.flow.state": "DecodeBindings FlowState FlowValue GdnInputSlots",
}

_EXPORTS = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'rlx' has no attribute '{name}'")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
