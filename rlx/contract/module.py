"""
Programs at the three levels: HIR, MIR and LIR, and one handle for a program at any of them.

MIR is a graph, LIR a graph with its plan. Either is made by hand, or is the view of a module of
IR, whose text it keeps: then text, graph and plan are one thing. xDSL is loaded when IR is met.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

from rlx.contract.graph import Graph
from rlx.contract.plan import LirBufferPlan
from rlx.contract.symbols import SYMBOL_NAMES, DimBinding
from rlx.errors import RlxError

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


def _parse(text: str) -> ModuleOp:
    """Parse and check a module. Raises RlxError where it is no valid IR of ours."""
    from xdsl.parser import Parser
    from xdsl.utils.exceptions import ParseError, VerifyException

    from rlx.dialects.graph import ProgramOp
    from rlx.dialects.levels import stage_of
    from rlx.passes.diagnostics import verify
    from rlx.passes.source import context
    from rlx.passes.verify_stage import verify_stage

    try:
        module = Parser(context(), text).parse_module()
        verify(module)
        if not any(isinstance(op, ProgramOp) for op in module.ops):
            verify_stage(module, stage_of(module))
    except (ParseError, VerifyException) as error:
        raise RlxError(f"expected a module of rlx's IR: {error}") from error
    return module


class HirModule:
    """A program of block operations as its author writes it; `FlowCtx` and stages build it."""

    def __init__(self, module: ModuleOp) -> None:
        """Take a module of HIR. Raises RlxError for one of another level."""
        from rlx.dialects.levels import stage_of

        if stage_of(module) != "hir":
            raise RlxError(f"expected a module of hir, got one of {stage_of(module)}")
        self.module = module

    @classmethod
    def define(cls, name: str) -> HirModule:
        """Return an empty module."""
        from xdsl.dialects.builtin import ModuleOp, StringAttr

        return cls(ModuleOp([], sym_name=StringAttr(name)))

    @property
    def name(self) -> str:
        return self.module.sym_name.data if self.module.sym_name is not None else "main"

    def bind(self, binding: DimBinding) -> HirModule:
        """
        Return the module for sizes: of the dimensions that are free here those that are bound.

        Raises RlxError for a size outside a dimension's bounds.
        """
        from rlx.dialects.common import DimTable
        from rlx.passes.bind_dims import bind_dims

        bound = self.module.clone()
        free = DimTable.of(bound).free
        names = ((SYMBOL_NAMES.get(symbol, ""), size) for symbol, size in binding)
        bind_dims(bound, {name: size for name, size in names if name in free})
        return HirModule(bound)

    def lower(self) -> MirModule:
        """Return the MIR that the default passes make of it; this module stays as it is."""
        from rlx.passes.pipelines import run_to

        lowered = self.module.clone()
        run_to(lowered, "mir")
        return MirModule.from_ir(lowered)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HirModule) and str(self) == str(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # a module can change

    def __str__(self) -> str:
        return str(self.module)


@dataclass
class MirModule:
    """A graph; `ir` is the text of the module that it is the view of, if it is one."""

    graph: Graph
    ir: str | None = None

    @classmethod
    def from_ir(cls, module: ModuleOp | str) -> MirModule:
        """Return the view of a module of MIR. Raises RlxError where there is no program."""
        from rlx.passes.lir_views import mir_view

        module = _parse(module) if isinstance(module, str) else module
        return cls(mir_view(module), str(module))

    @property
    def name(self) -> str:
        return self.graph.name

    def as_graph(self) -> Graph:
        return self.graph

    def into_graph(self) -> Graph:
        """Return a copy of the graph, for the caller to change."""
        return self.graph.copy()

    def lower(self, alignment: int = 64) -> LirModule:
        """Plan it: IR by the pass plan-lir, which aligns to 64 bytes, a graph by `plan_graph`."""
        if self.ir is None:
            from rlx.passes.plan_graph import plan_graph

            return LirModule(self, plan_graph(self.graph, alignment))
        from xdsl.context import Context

        from rlx.passes.plan_lir import PlanLirPass

        module = _parse(self.ir)
        PlanLirPass().apply(Context(), module)
        return LirModule.from_ir(module)


class LirModule:
    """
    A program with its plan.

    `LirModule(mir, plan)` takes a plan as it is given, a hand-made one too; `from_ir` reads one
    from IR. `buffers` is the plan.
    """

    def __init__(
        self, mir: MirModule | Graph, buffers: LirBufferPlan, ir: str | None = None
    ) -> None:
        self.mir = MirModule(mir) if isinstance(mir, Graph) else mir
        self.buffers = buffers
        self.ir = ir

    @classmethod
    def from_ir(cls, module: ModuleOp | str) -> LirModule:
        """
        Return the view of a planned module: one with a `lir.program` or a `graph.program`.

        Raises RlxError where there is neither.
        """
        from rlx.dialects.graph import ProgramOp
        from rlx.passes.graph_ir import read_program
        from rlx.passes.lir_views import lir_view

        module = _parse(module) if isinstance(module, str) else module
        program = next((op for op in module.ops if isinstance(op, ProgramOp)), None)
        if program is not None:
            return cls(*read_program(program))
        return cls(*lir_view(module), str(module))

    def to_ir(self) -> str:
        """Return its text, which `from_ir` reads; RlxError for a graph that SSA can't hold."""
        if self.ir is not None:
            return self.ir
        from rlx.passes.graph_ir import write_program

        return str(write_program(self.mir.graph, self.buffers))

    @property
    def name(self) -> str:
        return self.mir.name

    @property
    def plan(self) -> LirBufferPlan:
        return self.buffers

    @property
    def arena_size(self) -> int:
        """Return the bytes of the arena."""
        return self.buffers.arena_size

    @property
    def dynamic_symbols(self) -> list[int]:
        return self.buffers.dynamic_symbols

    def fingerprint(self) -> LirFingerprint:
        return LirFingerprint.of(self)

    def as_graph(self) -> Graph:
        return self.mir.graph

    def into_graph(self) -> Graph:
        """Return a copy of the graph, for the caller to change."""
        return self.mir.into_graph()

    def has_dynamic_dims(self) -> bool:
        """Return whether the size of anything depends on a symbol."""
        return bool(self.buffers.dynamic_symbols) or self.mir.graph.has_dynamic_dims()

    def is_fully_static(self) -> bool:
        return not self.has_dynamic_dims()

    def to_json(self) -> str:
        """Return the module as JSON, a view of IR as its text; `from_json` gives an equal one."""
        if self.ir is not None:
            return json.dumps({"ir": self.ir})
        return json.dumps(self._facts())

    @classmethod
    def from_json(cls, text: str) -> LirModule:
        """Read what `to_json` wrote; KeyError, ValueError or RlxError on anything else."""
        data: dict[str, Any] = json.loads(text)
        if "ir" in data:
            return cls.from_ir(data["ir"])
        mir, plan = json.dumps(data["mir"]), json.dumps(data["plan"])
        return cls(MirModule(Graph.from_json(mir)), LirBufferPlan.from_json(plan))

    def _facts(self) -> dict[str, object]:
        """Return all that makes this module what it is."""
        mir = json.loads(self.mir.graph.to_json())
        return {"mir": mir, "plan": json.loads(self.buffers.to_json())}

    def canonical(self) -> bytes:
        """Return the bytes that equal modules share and others don't."""
        facts = {**self._facts(), "ir": self.ir}
        return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LirModule) and self.canonical() == other.canonical()

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # a plan can change


@dataclass(frozen=True, slots=True)
class LirFingerprint:
    """
    An unsigned 64-bit hash of a planned module, the same in every process and version of Python.

    It covers all of the module: names, operations with their attributes and constants, shapes and
    operands, outputs, and all of the plan, with every offset and the order of the schedule.
    """

    value: int

    @classmethod
    def of(cls, module: LirModule) -> LirFingerprint:
        digest = blake2b(module.canonical(), digest_size=8).digest()
        return cls(int.from_bytes(digest, "little"))

    def __int__(self) -> int:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:016x}"


Stage = Literal["hir", "mir", "lir"]


class GraphModule:
    """A program at whatever level it is: `stage` says which."""

    def __init__(self, program: HirModule | MirModule | LirModule) -> None:
        self._program = program

    @classmethod
    def define(cls, name: str) -> GraphModule:
        """Return an empty program of HIR."""
        return cls(HirModule.define(name))

    @classmethod
    def from_hir(cls, module: HirModule) -> GraphModule:
        return cls(module)

    @classmethod
    def from_graph(cls, graph: Graph) -> GraphModule:
        return cls(MirModule(graph))

    @classmethod
    def from_mir(cls, module: MirModule) -> GraphModule:
        return cls(module)

    @classmethod
    def from_lir(cls, module: LirModule) -> GraphModule:
        return cls(module)

    @classmethod
    def from_ir(cls, module: ModuleOp | str) -> GraphModule:
        """Take a module of IR at whatever level it is."""
        from rlx.dialects.graph import ProgramOp
        from rlx.dialects.levels import stage_of

        module = _parse(module) if isinstance(module, str) else module
        if any(isinstance(op, ProgramOp) for op in module.ops) or stage_of(module) == "lir":
            return cls(LirModule.from_ir(module))
        return cls(HirModule(module) if stage_of(module) == "hir" else MirModule.from_ir(module))

    @property
    def name(self) -> str:
        return self._program.name

    def stage(self) -> Stage:
        match self._program:
            case HirModule():
                return "hir"
            case MirModule():
                return "mir"
            case LirModule():
                return "lir"

    def hir(self) -> HirModule:
        """Return the program. Raises RlxError at another level."""
        if not isinstance(self._program, HirModule):
            raise self._not("hir")
        return self._program

    def mir(self) -> MirModule:
        """Return the program. Raises RlxError at another level."""
        if not isinstance(self._program, MirModule):
            raise self._not("mir")
        return self._program

    def lir(self) -> LirModule:
        """Return the program. Raises RlxError at another level."""
        if not isinstance(self._program, LirModule):
            raise self._not("lir")
        return self._program

    def lower(self) -> GraphModule:
        """Return the program one level down. Raises RlxError for LIR, the last."""
        if isinstance(self._program, LirModule):
            raise RlxError(f"program '{self.name}' is lir already, the last level")
        return GraphModule(self._program.lower())

    def _not(self, wanted: Stage) -> RlxError:
        return RlxError(
            f"program '{self.name}': expected it at the level {wanted}, it is {self.stage()}"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GraphModule) and self._program == other._program

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # a program can change
