"""
What the fusion passes share: launches, the bytes they move, and how operations become one.

A launch is a `mir.kernel` or an operation that stands alone. Three questions come before a
fusion. Can one launch stand where several stood (`order`)? Does the rule allow it (each pass has a
function that returns the reason when it does not)? Does the gate of the target find that it pays?

Only operations that multiply the same rows share a kernel: a kernel is at most one rms_norm, then
matmuls of one input, then the epilogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from xdsl.dialects.builtin import FixedBitwidthType, ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.rewriter import InsertPoint
from xdsl.traits import is_side_effect_free

from rlx.contract.benefit import GraphIoProfile, IoFusionGate, fusion_benefit
from rlx.contract.quant import GGML_TYPES_BY_NAME
from rlx.contract.symbols import PAST_SEQ, SYMBOL_NAMES
from rlx.dialects import mir
from rlx.dialects.common import DimTable, dims_of, element_of, format_of
from rlx.errors import RlxError
from rlx.passes.fusion_report import FusionEntry, FusionLog
from rlx.passes.program import function_of
from rlx.passes.rewriting import rewrite

# Launches


def launch_of(op: Operation) -> Operation:
    """Return the kernel that an operation is part of, else the operation itself."""
    parent = op.parent_op()
    return parent if isinstance(parent, mir.KernelOp) else op


def parts(launch: Operation) -> list[Operation]:
    """Return the operations of a launch."""
    return list(launch.ops) if isinstance(launch, mir.KernelOp) else [launch]


def matmuls(launch: Operation) -> list[mir.MatmulOp]:
    return [op for op in parts(launch) if isinstance(op, mir.MatmulOp)]


def source(value: SSAValue) -> SSAValue:
    """Return the value that a kernel yields as `value`, else the value itself."""
    kernel = value.owner
    if not isinstance(kernel, mir.KernelOp):
        return value
    return kernel.yielded.arguments[kernel.results.index(value)]


def users(value: SSAValue) -> list[Operation]:
    """Return the operations that use a value, by its own name or as a kernel's result."""
    found: list[Operation] = []
    for use in value.uses:
        kernel = use.operation.parent_op()
        if isinstance(use.operation, mir.YieldOp) and isinstance(kernel, mir.KernelOp):
            found += users(kernel.results[use.index])
        else:
            found.append(use.operation)
    return found


def outputs(ops: Sequence[Operation]) -> list[SSAValue]:
    """Return the results of operations that others use: what a launch of them yields."""
    results = (r for op in ops for r in op.results)
    return [r for r in results if any(user not in ops for user in users(r))]


def in_order(ops: Iterable[Operation]) -> list[Operation]:
    """Return operations of one block in their order."""
    wanted = set(ops)
    blocks = {op.parent for op in wanted}
    return [op for block in blocks if block is not None for op in block.ops if op in wanted]


# Bytes


def binding(table: DimTable) -> dict[str, int]:
    """Return the sizes to count with: every dimension at its bound, the past half full."""
    past = table.dims.get(SYMBOL_NAMES[PAST_SEQ])
    return table.bind({past.name: past.high // 2} if past else {})


def nbytes(type_: Attribute, sizes: Mapping[str, int]) -> int:
    """Return the bytes of a tensor; a packed weight has those of its format's blocks."""
    elements = prod(d if isinstance(d, int) else sizes[d] for d in dims_of(type_))
    element = element_of(type_)
    if isinstance(element, FixedBitwidthType):
        return elements * element.size
    block = GGML_TYPES_BY_NAME[format_of(type_)]
    return elements // block.elements * block.nbytes


def _bytes_read(op: Operation, index: int, sizes: Mapping[str, int]) -> int:
    """Return what an operation reads of an operand: of RoPE's tables the rows' positions only."""
    if isinstance(op, mir.AppendOp) and op.operands[index] is op.state:
        return 0
    whole = nbytes(op.operands[index].type, sizes)
    if isinstance(op, mir.RopeOp) and index > 0:
        rows, positions = (
            d if isinstance(d, int) else sizes[d]
            for d in (dims_of(op.input.type)[0], dims_of(op.cos.type)[0])
        )
        return whole * min(rows, positions) // max(positions, 1)
    return whole


def traffic(ops: Sequence[Operation], sizes: Mapping[str, int]) -> int:
    """
    Return the bytes that one launch of operations moves.

    Each value from outside is read once and each result that others use is written once. An
    append writes its rows, whether or not the view that it gives is used.
    """
    inside = {r for op in ops for r in op.results}
    reads: dict[SSAValue, int] = {}
    for op in ops:
        for index, value in enumerate(map(source, op.operands)):
            if value not in inside:
                reads[value] = max(reads.get(value, 0), _bytes_read(op, index, sizes))
    writes = [r for r in outputs(ops) if not isinstance(r.owner, mir.AppendOp)]
    writes += [op.input for op in ops if isinstance(op, mir.AppendOp)]
    return sum(reads.values()) + sum(nbytes(w.type, sizes) for w in writes)


def profile(launches: Sequence[Sequence[Operation]], sizes: Mapping[str, int]) -> GraphIoProfile:
    """Return the contract's profile of launches, each given by its operations."""
    return GraphIoProfile(
        kernel_launches=len(launches),
        device_traffic_bytes=sum(traffic(ops, sizes) for ops in launches),
    )


# Order


def _span(members: Sequence[Operation]) -> list[Operation]:
    """Return the operations from the first member to the last."""
    span = [members[0]]
    while span[-1] is not members[-1]:
        following = span[-1].next_op
        assert following is not None
        span.append(following)
    return span


def order(members: Sequence[Operation]) -> list[Operation] | str:
    """
    Return the operations between the members that one launch of them all must come after.

    Those that the list leaves out come after the launch: as few as possible, so that it stands at
    the last member; where that would swap two operations with effects on state, as many as
    possible, so that it stands at the first. Where neither works, the reason is returned.
    """
    span = _span(members)
    others = [op for op in span if op not in members]
    producers = {op: {v.owner for v in mir.captures(op)} for op in span}
    # What uses a member comes after the launch; a member that needs such an operation closes a
    # cycle. What a member needs comes before.
    after: set[Operation | Block] = set()
    for op in span:
        if op in members and producers[op] & after:
            return "an operation between them needs the one and feeds the other"
        if op not in members and producers[op] & {*members, *after}:
            after.add(op)
    needed: set[Operation] = set()
    for op in reversed(span):
        if op in members or op in needed:
            needed |= {p for p in producers[op] if p in others and isinstance(p, Operation)}
    at_last = [op for op in others if op not in after]
    at_first = [op for op in others if op in needed]
    for before in (at_last, at_first):
        arranged = [*before, *members, *(op for op in others if op not in before)]
        if _effects(arranged) == _effects(span):
            return before
    return "it would change the order of reads and writes of state"


def _effects(ops: Sequence[Operation]) -> list[Operation]:
    """Return the operations that read or write state, or may."""
    return [
        op
        for op in ops
        if not is_side_effect_free(op)
        or any(isinstance(v.owner, mir.LoadStateOp | mir.AppendOp) for v in mir.captures(op))
    ]


def _state_of(op: mir.AppendOp) -> Attribute | SSAValue:
    load = op.state.owner
    return load.state if isinstance(load, mir.LoadStateOp) else op.state


def cannot_group(members: Sequence[Operation]) -> str | None:
    """Return why launches in their order can't be one, whatever they compute; None if they can."""
    if len({op.parent for op in members}) > 1:
        return "they stand in different blocks"
    if len({op.attributes.get(mir.PHASE) for op in members}) > 1:
        return "they run in different phases"
    # Threads of one launch don't wait for each other: two writes could come in either order.
    states = [_state_of(op) for m in members for op in parts(m) if isinstance(op, mir.AppendOp)]
    if len(set(states)) < len(states):
        return "they append to one state"
    before = order(members)
    return before if isinstance(before, str) else None


def group(members: Sequence[Operation], rewriter: PatternRewriter) -> mir.KernelOp:
    """
    Make one kernel of launches in their order, which `cannot_group` has nothing against.

    a; b; c --> mir.kernel { a; b; c; mir.yield (what others use) }
    """
    before = order(members)
    block = members[0].parent
    assert not isinstance(before, str)
    assert block is not None
    for op in before:
        op.detach()
        block.insert_op_before(op, members[0])
    inner = sorted((op for member in members for op in parts(member)), key=_place)
    yielded = outputs(inner)
    body = Block()
    kernel = mir.KernelOp(body, [value.type for value in yielded])
    if (phase := members[0].attributes.get(mir.PHASE)) is not None:
        kernel.attributes[mir.PHASE] = phase
    rewriter.insert(kernel, InsertPoint.before(members[0]))
    old = [member for member in members if isinstance(member, mir.KernelOp)]
    for member in old:
        for result, value in zip(member.results, member.yielded.arguments, strict=True):
            rewriter.replace_all_uses_with(result, value)
        rewriter.erase(member.yielded)
    for op in inner:
        op.detach()
        op.attributes.pop(mir.PHASE, None)
        body.add_op(op)
    for member in old:
        rewriter.erase(member)
    body.add_op(mir.YieldOp(*yielded))
    for value, result in zip(yielded, kernel.results, strict=True):
        result.name_hint = value.name_hint
        rewriter.replace_uses_with_if(value, result, lambda use: use.operation.parent is not body)
    return kernel


def _place(op: Operation) -> int:
    """Return the part of a kernel that an operation belongs to: norm, matmuls, epilogue."""
    return 0 if isinstance(op, mir.RmsNormOp) else 1 if isinstance(op, mir.MatmulOp) else 2


# Decision


def gate_named(target: str) -> IoFusionGate:
    """Return the gate of a target; raises RlxError for an unknown one."""
    gate = IoFusionGate.presets.get(target)
    if gate is None:
        known = ", ".join(IoFusionGate.presets)
        raise RlxError(f"fusion: expected a target of {known}, got '{target}'")
    return gate


def _describe(op: Operation) -> str:
    """Return an operation as a reader of the report would write it: `unary silu %gate`."""
    text = op.name.removeprefix("mir.")
    if isinstance(op, mir.UnaryOp | mir.BinaryOp):
        text += f" {op.kind.data}"
    hint = op.results[0].name_hint if op.results else None
    return f"{text} %{hint}" if hint else text


def _describe_all(launches: Sequence[Operation]) -> str:
    return ", ".join(_describe(op) for launch in launches for op in parts(launch))


@dataclass
class Fusion:
    """One run of a fusion rule on a module: what it counts with, and what it has decided."""

    rule: str
    gate: IoFusionGate
    sizes: Mapping[str, int]
    log: FusionLog = field(default_factory=FusionLog)

    @staticmethod
    def of(rule: str, module: ModuleOp, target: str) -> Fusion:
        return Fusion(rule, gate_named(target), binding(DimTable.of(module)))

    def attempt(
        self,
        op: Operation,
        members: Sequence[Operation],
        reason: str | None,
        rewriter: PatternRewriter,
    ) -> None:
        """Make one kernel of `members` unless there is a reason not to; record it under `op`."""
        before = profile([parts(m) for m in members], self.sizes)
        after = profile([[p for m in members for p in parts(m)]], self.sizes)
        if reason is None and not self.gate.should_fuse(before, after):
            reason = f"the target's gate asks for at least {self.gate.min_gain_ns:g} ns"
        entry = FusionEntry(
            rule=self.rule,
            function=function_of(op),
            op=_describe_all([op]),
            kernel=_describe_all([m for m in members if m is not op]),
            launches_before=before.kernel_launches,
            launches_after=after.kernel_launches,
            bytes_before=before.device_traffic_bytes,
            bytes_after=after.device_traffic_bytes,
            score_ns=self.gate.score_ns(fusion_benefit(before, after)),
            reason=reason or "",
        )
        self.log.add(parts(op)[0], entry)
        if reason is None:
            group(members, rewriter)

    def run(self, pattern: RewritePattern, module: ModuleOp, report: bool) -> None:
        """Apply a pattern that calls `attempt` until nothing changes."""
        rewrite(module, [pattern])
        if report:
            self.log.write(module)
