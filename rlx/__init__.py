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
    from rlx import numpy as numpy
    from rlx.contract.benefit import FusionBenefit as FusionBenefit
    from rlx.contract.benefit import GraphIoProfile as GraphIoProfile
    from rlx.contract.benefit import IoFusionGate as IoFusionGate
    from rlx.contract.benefit import fusion_benefit as fusion_benefit
    from rlx.contract.benefit import host_sync_op_kinds as host_sync_op_kinds
    from rlx.contract.benefit import profile_graph_io as profile_graph_io
    from rlx.contract.benefit import profile_graph_io_outputs as profile_graph_io_outputs
    from rlx.contract.bind import bind_graph as bind_graph
    from rlx.contract.bind import infer_bindings_from_inputs as infer_bindings_from_inputs
    from rlx.contract.graph import Graph as Graph
    from rlx.contract.graph import NodeId as NodeId
    from rlx.contract.graph import Op as Op
    from rlx.contract.module import GraphModule as GraphModule
    from rlx.contract.module import HirModule as HirModule
    from rlx.contract.module import LirFingerprint as LirFingerprint
    from rlx.contract.module import LirModule as LirModule
    from rlx.contract.module import MirModule as MirModule
    from rlx.contract.opkind import OpKind as OpKind
    from rlx.contract.phase import Phase as Phase
    from rlx.contract.phase import PhaseSchedule as PhaseSchedule
    from rlx.contract.phase import derive_phases as derive_phases
    from rlx.contract.plan import LirBufferPlan as LirBufferPlan
    from rlx.contract.plan import LirBufferSlot as LirBufferSlot
    from rlx.contract.plan import LirIoManifest as LirIoManifest
    from rlx.contract.plan import LirViewAlias as LirViewAlias
    from rlx.contract.shape import DType as DType
    from rlx.contract.shape import Shape as Shape
    from rlx.contract.symbols import DimBinding as DimBinding
    from rlx.contract.symbols import sym as sym
    from rlx.contract.variant import ModelPhase as ModelPhase
    from rlx.contract.variant import ModelVariant as ModelVariant
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
    from rlx.jit.control import cond as cond
    from rlx.jit.control import fori_loop as fori_loop
    from rlx.jit.control import scan as scan
    from rlx.jit.control import while_loop as while_loop
    from rlx.jit.function import JitFunction as JitFunction
    from rlx.jit.function import jit as jit
    from rlx.lowering.target import Target as Target
    from rlx.passes.plan_graph import plan_graph as plan_graph
    from rlx.runtime.compilations import no_compile as no_compile

__version__ = "0.1.0"

_NAMES = {
    "rlx.driver": "load",
    "rlx.functions": "compile",
    "rlx.jit": "JitFunction cond fori_loop scan while_loop",
    "rlx.errors": "RlxError",
    "rlx.lowering.target": "Target",
    "rlx.contract.benefit": "FusionBenefit GraphIoProfile IoFusionGate fusion_benefit"
    " host_sync_op_kinds profile_graph_io profile_graph_io_outputs",
    "rlx.contract.bind": "bind_graph infer_bindings_from_inputs",
    "rlx.contract.graph": "Graph NodeId Op",
    "rlx.contract.module": "GraphModule HirModule LirFingerprint LirModule MirModule",
    "rlx.contract.opkind": "OpKind",
    "rlx.contract.phase": "Phase PhaseSchedule derive_phases",
    "rlx.contract.plan": "LirBufferPlan LirBufferSlot LirIoManifest LirViewAlias",
    "rlx.contract.shape": "DType Shape",
    "rlx.contract.symbols": "DimBinding sym",
    "rlx.contract.variant": "ModelPhase ModelVariant",
    "rlx.passes.plan_graph": "plan_graph",
    "rlx.runtime.compilations": "no_compile",
    "rlx.flow.context": "FlowCtx",
    "rlx.flow.profile": "CompileProfile",
    "rlx.flow.source": "WeightSource",
    "rlx.flow.state": "DecodeBindings FlowState FlowValue GdnInputSlots",
}

_EXPORTS = {name: module for module, names in _NAMES.items() for name in names.split()}


_MODULES = ("jit", "numpy")
"""Names that are modules; `rlx.jit` is one that can be called."""


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"rlx.{name}")
    if name not in _EXPORTS:
        raise AttributeError(f"module 'rlx' has no attribute '{name}'")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS, *_MODULES])
