"""
What the fusion passes share: launches, their order, and how operations become one.

A launch is a `mir.kernel` or an operation that stands alone. Three questions come before a
fusion. Can one launch stand where several stood (`order`)? Does the rule allow it (each pass has a
function that returns the reason when it does not, which asks the kernel family)? Does the gate of
the target find that it pays (`fusion_cost` has the launches and bytes)?

Launches join in the block where they stand, be it a function's, a branch's or a loop's body.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.rewriter import InsertPoint
from xdsl.traits import is_side_effect_free

from rlx.contract.benefit import IoFusionGate, fusion_benefit
from rlx.dialects import mir
from rlx.dialects.common import DimTable, PhaseAttr, PhaseKind
from rlx.errors import RlxError
from rlx.passes.fusion_cost import Launch, binding, profile
from rlx.passes.fusion_report import FusionEntry, FusionLog
from rlx.passes.program import function_of
from rlx.passes.rewriting import rewrite

MAX_OPERATIONS = 64
"""
The most operations that launches may be together.

One more launch among so many costs little, and each attempt to fuse looks at all of them.
"""

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


def dots(launch: Operation) -> list[mir.DotOp]:
    return [op for op in parts(launch) if isinstance(op, mir.DotOp)]


def users(value: SSAValue) -> list[Operation]:
    """Return the operations that use a value, by its own name or as a kernel's result."""
    return list(_each_user(value))


def _each_user(value: SSAValue) -> Iterator[Operation]:
    for use in value.uses:
        kernel = use.operation.parent_op()
        if isinstance(use.operation, mir.YieldOp) and isinstance(kernel, mir.KernelOp):
            yield from _each_user(kernel.results[use.index])
        else:
            yield use.operation


def outputs(ops: Sequence[Operation], launch: Iterable[Operation]) -> list[SSAValue]:
    """Return the results of operations that others than those of their launch use: it yields."""
    inside = set(launch)
    results = (r for op in ops for r in op.results)
    return [r for r in results if any(user not in inside for user in _each_user(r))]


def launch(op: Operation) -> Launch:
    """Return a launch as it stands."""
    return Launch(parts(op), outputs(parts(op), parts(op)))


def in_order(ops: Iterable[Operation]) -> list[Operation]:
    """Return operations in their order, those of a block together."""
    wanted = dict.fromkeys(ops)
    blocks = dict.fromkeys(op.parent for op in wanted)
    return [op for block in blocks if block is not None for op in block.ops if op in wanted]


@dataclass(frozen=True)
class Join:
    """Launches of a block, in their order, that become one kernel, which gets copies of others."""

    members: Sequence[Operation]
    copied: Sequence[Operation] = ()
    """Operations of no effect outside of kernels, each before what uses it."""

    @cached_property
    def own(self) -> list[Operation]:
        """The operations that move into the kernel, in its order."""
        return _arranged([op for member in self.members for op in parts(member)])

    @cached_property
    def launch(self) -> Launch:
        """The launch as it would be; what is copied stands for its copies."""
        inside = [*self.own, *left_over(self.own, self.copied)]
        return Launch(list(_with_copied(self.own, self.copied)), outputs(self.own, inside))


def left_over(launch: Iterable[Operation], copied: Sequence[Operation]) -> list[Operation]:
    """Return what is copied into launches and then has no user left; each after its users."""
    inside, found = set(launch), list[Operation]()
    for op in reversed(copied):
        if all(user in inside for result in op.results for user in _each_user(result)):
            inside.add(op)
            found.append(op)
    return found


def _with_copied(ops: Sequence[Operation], copied: Sequence[Operation]) -> Iterator[Operation]:
    """Yield operations, and each of those to be copied before the first that uses it."""
    left = dict.fromkeys(copied)

    def needed(op: Operation) -> Iterator[Operation]:
        for value in op.operands:
            owner = value.owner
            if owner in left:
                assert isinstance(owner, Operation)
                del left[owner]
                yield from needed(owner)
                yield owner

    for op in ops:
        yield from needed(op)
        yield op


def _arranged(ops: Sequence[Operation]) -> list[Operation]:
    """Return a kernel's operations in order; where it has matmuls: prologue, matmuls, epilogue."""
    if not any(isinstance(op, mir.MatmulOp) for op in ops):
        return list(ops)
    multiplied = {op.input.owner for op in ops if isinstance(op, mir.MatmulOp)}

    def place(op: Operation) -> int:
        return 0 if op in multiplied else 1 if isinstance(op, mir.MatmulOp) else 2

    return sorted(ops, key=place)


# Order


def _span(members: Sequence[Operation]) -> list[Operation]:
    """Return the operations from the first member to the last."""
    span = [members[0]]
    while span[-1] is not members[-1]:
        following = span[-1].next_op
        assert following is not None
        span.append(following)
    return span


def _captures(op: Operation) -> Sequence[SSAValue]:
    return mir.captures(op) if op.regions else op.operands


def _producers(op: Operation, copied: AbstractSet[Operation]) -> set[Operation | Block]:
    """Return what an operation needs, and through what is copied for it."""
    owners = {v.owner for v in _captures(op)}
    found = owners - copied
    for owner in owners & copied:
        assert isinstance(owner, Operation)
        found |= _producers(owner, copied)
    return found


def _dependents(members: Sequence[Operation], span: AbstractSet[Operation]) -> set[Operation]:
    """Return the operations of a span that need one of its members, and aren't one."""
    block, found, work = members[0].parent, set(members), list(members)
    while work:
        for result in work.pop().results:
            for use in result.uses:
                user = use.operation
                while user.parent is not block:
                    around = user.parent_op()
                    assert around is not None
                    user = around
                if user in span and user not in found:
                    found.add(user)
                    work.append(user)
    return found.difference(members)


def order(members: Sequence[Operation], copied: Iterable[Operation] = ()) -> list[Operation] | str:
    """
    Return the operations between the members that come after one launch of them all.

    As few as possible, so that it stands at the last member; where that would swap two operations
    with effects on state, as many as possible, so that it stands at the first. Where neither works,
    the reason is returned. Members get copies of what is `copied`.
    """
    span, copies = dict.fromkeys(_span(members)), frozenset(copied)
    # What uses a member comes after the launch; a member that needs such an operation closes a
    # cycle.
    after = _dependents(members, span.keys())
    if after and any(not after.isdisjoint(_producers(op, copies)) for op in members):
        return "an operation between them needs the one and feeds the other"
    at_last = [op for op in span if op in after]
    # All others stay in the order that they have.
    if not _effects([*members, *at_last]):
        return at_last
    needed = _needed(members, span.keys(), copies)
    inside, effects = set(members), _effects(span)
    at_first = [op for op in span if op not in inside and op not in needed]
    for late in (at_last, at_first):
        moved = inside.union(late)
        arranged = [*(op for op in span if op not in moved), *members, *late]
        if [op for op in arranged if op in effects] == [*effects]:
            return late
    return "it would change the order of reads and writes of state"


def _needed(
    members: Sequence[Operation], span: AbstractSet[Operation], copied: AbstractSet[Operation]
) -> set[Operation]:
    """Return the operations of a span that its members need; they get copies of some."""
    found, work = set[Operation](), list(members)
    none = frozenset[Operation]()
    while work:
        op = work.pop()
        for producer in _producers(op, copied if op in members else none):
            if producer in span and producer not in found and producer not in members:
                assert isinstance(producer, Operation)
                found.add(producer)
                work.append(producer)
    return found


def _effects(ops: Iterable[Operation]) -> dict[Operation, None]:
    """Return the operations that read or write state, or may, in their order."""
    return dict.fromkeys(
        op
        for op in ops
        if not _is_effect_free(op)
        or any(isinstance(v.owner, mir.LoadStateOp | mir.AppendOp) for v in _captures(op))
    )


_FREE = frozenset(mir.PRIMITIVES)


def _is_effect_free(op: Operation) -> bool:
    # To look at the traits of all that a large kernel holds takes long.
    return all(type(part) in _FREE for part in parts(op)) or is_side_effect_free(op)


def _state_of(op: mir.AppendOp) -> Attribute | SSAValue:
    load = op.state.owner
    return load.state if isinstance(load, mir.LoadStateOp) else op.state


def cannot_group(members: Sequence[Operation], copied: Sequence[Operation] = ()) -> str | None:
    """Return why launches in their order can't be one, whatever they compute; None if they can."""
    if sum(len(parts(m)) for m in members) + len(copied) > MAX_OPERATIONS:
        return f"they are more than {MAX_OPERATIONS} operations"
    if len({op.parent for op in members}) > 1:
        return "they stand in different blocks"
    if len({op.attributes.get(mir.PHASE) for op in members}) > 1:
        return "they run in different phases"
    # Threads of one launch don't wait for each other: two writes could come in either order.
    states = [_state_of(op) for m in members for op in parts(m) if isinstance(op, mir.AppendOp)]
    if len(set(states)) < len(states):
        return "they append to one state"
    late = order(members, copied)
    return late if isinstance(late, str) else None


def group(join: Join, rewriter: PatternRewriter) -> mir.KernelOp:
    """
    Make one kernel of launches in their order, which `cannot_group` has nothing against.

    a; b; c --> mir.kernel { a; b; c; mir.yield (what others use) }
    """
    members = join.members
    late = order(members, join.copied)
    block = members[0].parent
    assert not isinstance(late, str)
    assert block is not None
    last = members[-1]
    for op in late:
        op.detach()
        block.insert_op_after(op, last)
        last = op
    inner, yielded = join.launch.ops, join.launch.yielded
    body = Block()
    kernel = mir.KernelOp(body, [value.type for value in yielded])
    if (phase := members[0].attributes.get(mir.PHASE)) is not None:
        kernel.attributes[mir.PHASE] = phase
    rewriter.insert(kernel, InsertPoint.before(members[-1]))
    old = [member for member in members if isinstance(member, mir.KernelOp)]
    for member in old:
        for result, value in zip(member.results, member.yielded.arguments, strict=True):
            rewriter.replace_all_uses_with(result, value)
        rewriter.erase(member.yielded)
    _fill(body, inner, frozenset(join.copied))
    for member in old:
        rewriter.erase(member)
    body.add_op(mir.YieldOp(*yielded))
    for value, result in zip(yielded, kernel.results, strict=True):
        result.name_hint = value.name_hint
        rewriter.replace_uses_with_if(value, result, lambda use: use.operation.parent is not body)
    for op in reversed(join.copied):
        if not any(True for r in op.results for _ in r.uses):
            rewriter.erase(op)
    return kernel


def _fill(body: Block, inner: Sequence[Operation], copied: AbstractSet[Operation]) -> None:
    """Move operations into a kernel's body, and copies of those that are copied."""
    copies: dict[SSAValue, SSAValue] = {}
    for op in inner:
        new = op
        if op in copied:
            new = op.clone(dict(copies))
            copies.update(zip(op.results, new.results, strict=True))
        else:
            op.detach()
            for i, value in enumerate(op.operands):
                if value in copies:
                    op.operands[i] = copies[value]
        new.attributes.pop(mir.PHASE, None)
        body.add_op(new)


def _runs_once(op: Operation) -> bool:
    return op.attributes.get(mir.PHASE) == PhaseAttr(PhaseKind.PROLOGUE)


# Decision


def gate_named(target: str) -> IoFusionGate:
    """Return the gate of a target; raises RlxError for an unknown one."""
    gate = IoFusionGate.presets.get(target)
    if gate is None:
        known = ", ".join(IoFusionGate.presets)
        raise RlxError(f"fusion: expected a target of {known}, got '{target}'")
    return gate


def describe(ops: Iterable[Operation]) -> str:
    """Return operations as a reader of the report would write them: `unary silu %gate`."""
    return ", ".join(map(_describe, ops))


def _describe(op: Operation) -> str:
    text = op.name.removeprefix("mir.")
    if isinstance(op, mir.UnaryOp | mir.BinaryOp | mir.CompareOp | mir.ReduceOp):
        text += f" {op.kind.data}"
    hint = op.results[0].name_hint if op.results else None
    return f"{text} %{hint}" if hint else text


@dataclass
class Fusion:
    """One run of a fusion rule on a module: what it counts with, and what it has decided."""

    rule: str
    gate: IoFusionGate
    sizes: Mapping[str, int]
    report: bool = False
    log: FusionLog = field(default_factory=FusionLog)

    @staticmethod
    def of(rule: str, module: ModuleOp, target: str, report: bool) -> Fusion:
        """Prepare a run of a rule; `report` leaves what it decided on the module."""
        return Fusion(rule, gate_named(target), binding(DimTable.of(module)), report)

    def decide(
        self,
        op: Operation,
        others: Sequence[Operation],
        before: Sequence[Launch],
        after: Sequence[Launch],
        reason: str | None,
    ) -> bool:
        """Return whether to go from the launches before to those after; record it under `op`."""
        costs = [profile(launches, self.sizes) for launches in (before, after)]
        if reason is None and costs[0] == costs[1]:
            reason = "it saves neither a launch nor a byte"
        if reason is None and not self.gate.should_fuse(*costs):
            reason = f"the target's gate asks for at least {self.gate.min_gain_ns:g} ns"
        if not self.report:
            return reason is None
        entry = FusionEntry(
            rule=self.rule,
            function=function_of(op),
            op=describe(parts(op)),
            kernel=describe(others),
            launches_before=costs[0].kernel_launches,
            launches_after=costs[1].kernel_launches,
            bytes_before=costs[0].device_traffic_bytes,
            bytes_after=costs[1].device_traffic_bytes,
            score_ns=self.gate.score_ns(fusion_benefit(*costs)),
            reason=reason or "",
        )
        self.log.add(parts(op)[0], entry)
        return reason is None

    def attempt(
        self,
        op: Operation,
        joins: Sequence[Join],
        reason: str | None,
        rewriter: PatternRewriter,
    ) -> None:
        """Make kernels of launches unless there is a reason not to; record it under `op`."""
        if reason is not None and not self.report:
            return
        copied = list(dict.fromkeys(c for join in joins for c in join.copied))
        members = list(dict.fromkeys(m for join in joins for m in join.members))
        others = [p for m in (*members, *copied) if m is not op for p in parts(m)]
        after = [join.launch for join in joins]
        if reason is None and any(x.is_dead for x in after):
            reason = "nobody uses what they compute"
        # What is copied everywhere that it is used is gone; what is not costs what it did.
        gone = left_over([o for join in joins for o in join.own], copied)
        before = [launch(o) for o in (*members, *gone) if o in members or not _runs_once(o)]
        if self.decide(op, others, before, after, reason):
            for join in joins:
                group(join, rewriter)

    def run(self, patterns: Sequence[RewritePattern], module: ModuleOp, more: bool = False) -> None:
        """Apply patterns that decide until nothing changes; the last run writes the report."""
        rewrite(module, patterns)
        if self.report and not more:
            self.log.write(module)
