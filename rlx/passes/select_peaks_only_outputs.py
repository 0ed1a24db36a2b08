"""
Where the host wants the peaks of a spectrum, the spectrum need not be read back.

A spectrum is what a `signal.welch_peaks` of @main reads, under whatever shape. A program that
gives it away leaves the peaks to the host, which reads all of it for a few numbers; with peaks
as an output, the device runs one launch more, by a round trip to the host. The rules:

- On the CPU nothing changes: its results are in the host's memory as they are.
- Where a program gives both, the spectrum is no output any more. No gate is asked: the peaks are
  paid for already.
- Where it gives the spectrum alone, the gate of the target compares the contract's profiles of the
  program with the one output and with the other, at the bounds of symbolic sizes. What no output
  needs counts in neither. If the gate finds that it pays, the peaks take the place of the first
  output that was the spectrum, and its name; other such outputs are gone. Of several peaks
  of one spectrum these are the first.
- Where it gives neither, or the peaks alone, there is nothing to do.
- An output that the next step takes as an input (`rlx.carry`) stays what it is.

Operations that nothing needs afterwards are for `dce` to erase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, OpResult, SSAValue
from xdsl.passes import ModulePass

from rlx.contract.benefit import GraphIoProfile, IoFusionGate, fusion_benefit, profile_graph_io
from rlx.contract.bind import bind_graph
from rlx.contract.graph import Graph
from rlx.contract.symbols import DimBinding
from rlx.dialects import lir, mir
from rlx.dialects.common import DimTable
from rlx.dialects.signal import WelchPeaksOp
from rlx.passes.fuse_common import describe, gate_named
from rlx.passes.fusion_cost import binding
from rlx.passes.fusion_report import FusionEntry, FusionLog
from rlx.passes.lir_views import mir_view, symbol_numbers
from rlx.passes.liveness import returned
from rlx.passes.program import Program


def _whole(value: SSAValue) -> SSAValue:
    """Return the value of which another is the same elements under another shape."""
    while isinstance(value.owner, mir.ReshapeOp):
        value = value.owner.input
    return value


@dataclass
class _Outputs:
    """The results of @main, and what the program costs with others."""

    module: ModuleOp
    main: FuncOp

    def __post_init__(self) -> None:
        program = Program(self.module)
        self.values = returned(self.main)
        self.names = program.io_names()[1]
        self.carried = {source for _, source in program.pairs(lir.CARRY)}
        table = DimTable.of(self.module)
        numbers, sizes = symbol_numbers(table), binding(table)
        pairs = DimBinding.from_pairs((numbers[name], size) for name, size in sizes.items())
        self._graph = bind_graph(mir_view(self.module), pairs)

    def places(self, value: SSAValue) -> list[int]:
        """Return which results are a value, under whatever shape."""
        return [i for i, v in enumerate(self.values) if _whole(v) is value]

    def profile(self, values: Sequence[SSAValue]) -> GraphIoProfile:
        """Return the contract's profile of what the program needs for some results."""
        # As a reshape, the profile would not count it.
        outputs = [self._id(_whole(value)) for value in values]
        needed = set(outputs)
        for node in reversed(self._graph.nodes):
            if node.id in needed:
                needed.update(node.inputs)
        live = (node for node in self._graph.nodes if node.id in needed)
        return profile_graph_io(Graph(self._graph.name, live, outputs))

    def _id(self, value: SSAValue) -> int:
        """Return the node of a value; see `mir_view`."""
        block = self.main.body.block
        if isinstance(value, BlockArgument):
            return value.index
        assert isinstance(value, OpResult)
        return len(block.args) + block.get_operation_index(value.op)

    def set(self, results: Sequence[tuple[int, SSAValue]]) -> None:
        """Let @main return values in the places, with the names, of some of its results."""
        kept, values = [i for i, _ in results], [value for _, value in results]
        last = self.main.body.block.last_op
        assert last is not None
        last.operands = values
        inputs = self.main.function_type.inputs.data
        self.main.properties["function_type"] = FunctionType.from_lists(
            inputs, [value.type for value in values]
        )
        if self.main.res_attrs is not None:
            attributes = self.main.res_attrs.data
            self.main.properties["res_attrs"] = ArrayAttr([attributes[i] for i in kept])
        self.values = values
        self.names = [self.names[i] for i in kept if i < len(self.names)]


def _reason(
    target: str, gate: IoFusionGate, both: bool, before: GraphIoProfile, after: GraphIoProfile
) -> str:
    """Return why the outputs stay, nothing where they change."""
    if target == "cpu":
        return "what a CPU computes is in the host's memory"
    if both or gate.should_fuse(before, after):
        return ""
    return f"the target's gate asks for at least {gate.min_gain_ns:g} ns"


def _select(outputs: _Outputs, op: WelchPeaksOp, target: str, log: FusionLog) -> None:
    """Decide on the outputs that are the spectrum of some peaks; record it."""
    names = dict(enumerate(outputs.names))
    spectrum = [i for i in outputs.places(_whole(op.input)) if names.get(i) not in outputs.carried]
    if not spectrum:
        return
    both = bool(outputs.places(op.result))
    replaced = {} if both else {spectrum[0]: op.result}
    results = [
        (i, replaced.get(i, value))
        for i, value in enumerate(outputs.values)
        if i not in spectrum or i in replaced
    ]
    gate = gate_named(target)
    before, after = (outputs.profile(v) for v in (outputs.values, [v for _, v in results]))
    reason = _reason(target, gate, both, before, after)
    described = ", ".join(f"output {names.get(i, i)}" for i in spectrum)
    entry = FusionEntry(
        rule=SelectPeaksOnlyOutputsPass.name,
        function="main",
        op=described,
        kernel=describe([op]),
        launches_before=before.kernel_launches,
        launches_after=after.kernel_launches,
        bytes_before=before.device_traffic_bytes,
        bytes_after=after.device_traffic_bytes,
        score_ns=gate.score_ns(fusion_benefit(before, after)),
        reason=reason,
        syncs_before=before.sync_points,
        syncs_after=after.sync_points,
        host_bytes_before=before.host_output_bytes,
        host_bytes_after=after.host_output_bytes,
    )
    log.add(op, entry)
    if not reason:
        outputs.set(results)


@dataclass(frozen=True)
class SelectPeaksOnlyOutputsPass(ModulePass):
    """
    Give the peaks of a spectrum instead of the spectrum, where the target's gate finds it pays.

    %p = signal.welch_peaks %s k 16 segments 2; func.return %s, %p --> func.return %p

    `target` names the gate: cpu (which changes nothing), metal, mlx, cuda, rocm, wgpu or tpu.
    `report` leaves `rlx.fusion_report` on the module.
    """

    name = "select-peaks-only-outputs"
    target: str = "cpu"
    report: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        gate_named(self.target)
        log = FusionLog()
        for main in op.ops:
            if isinstance(main, FuncOp) and main.sym_name.data == "main" and main.body.blocks:
                self._apply(op, main, log)
        if self.report:
            log.write(op)

    def _apply(self, module: ModuleOp, main: FuncOp, log: FusionLog) -> None:
        peaks = [op for op in main.body.block.ops if isinstance(op, WelchPeaksOp)]
        if not peaks:
            return
        outputs = _Outputs(module, main)
        # Peaks that are outputs already come first: with them a spectrum needs no gate.
        for op in sorted(peaks, key=lambda op: not outputs.places(op.result)):
            _select(outputs, op, self.target, log)
