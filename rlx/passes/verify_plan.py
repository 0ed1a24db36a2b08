"""
The check of a planned program: do its slots, its launches and its barriers hold together?

What each launch reads and writes is taken from the IR; `plan_check` finds bytes that are lost;
every order of threads that the barriers allow is looked at, launch by launch, with loops rolled
out. With the planner it shares a tensor's size, and what a kernel's body may overwrite (`outline`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from rlx.dialects import lir, mir
from rlx.dialects.common import DimTable, PhaseKind
from rlx.passes import plan_check
from rlx.passes.buffers import size_of
from rlx.passes.diagnostics import IrError
from rlx.passes.outline import in_place
from rlx.passes.plan_access import Access, Plan, Threads, events, launches, root_of
from rlx.passes.program import Program
from rlx.passes.segments import member_bytes


def check_planned(module: ModuleOp) -> list[str]:
    """
    Return what is wrong with the plan of a valid module, in words; nothing where it is sound.

    Raises IrError where there is no plan, or a launch of something that is not a buffer.
    """
    program = next((op for op in module.ops if isinstance(op, lir.ProgramOp)), None)
    if program is None:
        raise IrError(module, "expected a planned module with a lir.program: run plan-lir first")
    kernels = {k.sym_name.data: k for k in module.ops if isinstance(k, lir.KernelOp)}
    plan = Plan(module, program, DimTable.of(module), kernels)
    problems = [
        *_check_launches(plan),
        *_check_arena(plan),
        *_check_barriers(plan),
        *_check_packing(plan),
        *_check_segments(plan),
    ]
    return list(dict.fromkeys(problems))


# Launches


def _check_launches(plan: Plan) -> Iterator[str]:
    """No launch writes what it reads, an input, or what another job made."""
    ops = list(launches([plan.program]))
    kept = {root_of(v) for op in ops if op.job == lir.Job.PROLOGUE for v in op.outs}
    for op in ops:
        kernel = plan.kernel(op)
        name = f"@{kernel.sym_name.data}"
        ins = [plan.bytes_of(v, 0) for v in op.ins]
        outs = [plan.bytes_of(v, 0) for v in op.outs]
        pairs = in_place(kernel.body.block)
        for o, out in enumerate(outs):
            for i, read in enumerate(ins):
                shares = (i, o) in pairs and (read.start, read.end) == (out.start, out.end)
                if read.meets(out) and not shares:
                    yield f"not in place: {name} reads {read} and writes {out}"
            for other in outs[o + 1 :]:
                if other.meets(out):
                    yield f"written twice: {name} writes {out} and {other}"
        if op.scratch is not None:
            scratch = plan.bytes_of(op.scratch, 0)
            for other in (*ins, *outs):
                if other.meets(scratch):
                    yield f"scratch in use: {name} has the scratch {scratch} and uses {other}"
        for value in op.outs:
            written = plan.bytes_of(value, 0)
            root = root_of(value)
            if isinstance(root.owner, lir.InputOp):
                yield f"input written: {name} writes {written}"
            if _is_zeroed(root):
                yield f"zeroed slot written: {name} writes {written}, which only scratch may use"
            if op.job == lir.Job.STEP and root in kept:
                yield f"prologue result written: {name} writes {written} at every step"


def _is_zeroed(value: SSAValue) -> bool:
    return isinstance(value.owner, lir.SlotOp) and value.owner.zeroed is not None


# Arena


def _check_arena(plan: Plan) -> list[str]:
    """Every read of the arena, and of what the caller binds, sees the bytes written for it."""
    ops = list(plan.program.body.block.ops)
    top = plan.program.arena_size.value.data
    slots: list[plan_check.PlannedSlot] = []
    views: dict[int, plan_check.PlannedView] = {}
    inputs: list[int] = []
    outputs: list[int] = []
    zeroed: list[int] = []
    problems: list[str] = []
    alignment = plan.program.alignment.value.data
    # What the caller binds gets places behind the arena, which nothing else has.
    end = top
    for op in (o for outer in ops for o in outer.walk()):
        match op:
            case lir.SlotOp():
                id = plan.ids[op.result]
                start, size = op.offset.value.data, op.size.value.data
                slots.append(plan_check.PlannedSlot(id, start, size))
                zeroed += [id] if op.zeroed is not None else []
                if start + size > top:
                    problems.append(f"out of arena: %{id} ends at {start + size} of {top}")
            case lir.InputOp() | lir.OutputOp():
                id = plan.ids[op.result]
                start, size = -(-end // alignment) * alignment, plan.size(op.result)
                slots.append(plan_check.PlannedSlot(id, start, size))
                (inputs if isinstance(op, lir.InputOp) else outputs).append(id)
                end = start + size
            case lir.ViewOp() if op.root in plan.ids:
                offset, size = op.byte_offset.value.data, plan.size(op.result)
                root = plan.ids[op.root]
                views[plan.ids[op.result]] = plan_check.PlannedView(root, offset, size)
            case _:
                pass
    placed = {s.id for s in slots} | views.keys()
    prologue = tuple(_steps(plan, ops, placed, lir.Job.PROLOGUE))
    step = tuple(_steps(plan, ops, placed, lir.Job.STEP))
    read = {id for access in plan_check.steps_of(step) for id in access.reads}
    made = {id for access in plan_check.steps_of(prologue) for id in access.writes}
    # What is made in a branch may be of that branch alone.
    certain = [node for node in prologue if not isinstance(node, plan_check.Branch)]
    lasting = {id for access in plan_check.steps_of(certain) for id in access.writes}
    # Two steps: the second finds what the first has left.
    accesses = [*prologue, *([plan_check.Loop(2, step)] if step else [])]
    found = plan_check.check_plan(
        accesses,
        slots,
        max(end, top),
        views=views,
        outputs=[*outputs, *sorted(lasting | (made & read))],
        whole_run=zeroed,
        inputs=inputs,
        alignment=alignment,
    )
    return problems + [_with_names(plan, problem) for problem in found]


def _with_names(plan: Plan, problem: str) -> str:
    """Return a problem with the names of buffers for their numbers."""
    names = {str(id): plan.bytes_of(v, None) for v, id in plan.ids.items() if _is_placed(v)}

    def name(match: re.Match[str]) -> str:
        return str(names[match[1]]) if match[1] in names else match[0]

    problem = re.sub(r"(\d+) at \[\d+, \d+\)", name, problem)
    return re.sub(r"(?<= with )(\d+)$", lambda m: names[m[1]].name, problem)


def _is_placed(value: SSAValue) -> bool:
    return isinstance(value.owner, lir.SlotOp | lir.ViewOp | lir.InputOp | lir.OutputOp)


def _steps(
    plan: Plan, ops: Iterable[Operation], placed: set[int], job: lir.Job
) -> Iterator[plan_check.Node]:
    """Give the launches of a job as the checker takes them, loops as loops."""

    def part(block: Block) -> tuple[plan_check.Node, ...]:
        return tuple(_steps(plan, block.ops, placed, job))

    for op in ops:
        if isinstance(op, lir.LaunchOp) and op.job == job:
            yield _step(plan, op, placed)
        elif isinstance(op, lir.LoopOp):
            body = part(op.body.block)
            if body:
                yield plan_check.Loop(op.last.value.data - op.first.value.data, body)
        elif isinstance(op, lir.IfOp) and _runs(op, job):
            yield _condition(plan, op, placed)
            yield plan_check.Branch(part(op.then.block), part(op.otherwise.block))
        elif isinstance(op, lir.WhileOp) and _runs(op, job):
            test = (*part(op.test.block), _condition(plan, op, placed))
            body = part(op.body.block)
            yield from test
            yield plan_check.Branch((plan_check.Loop(2, (*body, *test)),), ())


def _runs(op: Operation, job: lir.Job) -> bool:
    """Return whether a job runs launches of an operation."""
    return any(o.job == job for o in launches([op]))


def _condition(plan: Plan, op: lir.IfOp | lir.WhileOp, placed: set[int]) -> plan_check.Step:
    id = plan.ids[op.condition]
    return plan_check.Step((id,) if id in placed else (), name=f"the condition of {op.name}")


def _step(plan: Plan, op: lir.LaunchOp, placed: set[int]) -> plan_check.Step:
    kernel = plan.kernel(op)
    ins, outs = ([plan.ids[v] for v in values] for values in (op.ins, op.outs))
    reads = [i for i in ins if i in placed]
    writes = [o for o in outs if o in placed]
    if op.scratch is not None:
        writes.append(plan.ids[op.scratch])
        reads += [plan.ids[op.scratch]] if _is_zeroed(op.scratch) else []
    pairs = tuple((ins[i], outs[o]) for i, o in in_place(kernel.body.block))
    return plan_check.Step(tuple(reads), tuple(writes), pairs, f"@{kernel.sym_name.data}")


# Barriers


def _hand_on(plan: Plan) -> Access | None:
    """Return what the first thread does between two steps of one call, if the program carries."""
    pairs = dict(Program(plan.module).pairs(lir.CARRY))
    if not pairs:
        return None
    ops = list(plan.program.body.block.ops)
    reads = [o for o in ops if isinstance(o, lir.OutputOp) and o.io_name.data in pairs.values()]
    writes = [o for o in ops if isinstance(o, lir.InputOp) and o.io_name.data in pairs]
    return Access(
        "the hand-over to the next step",
        lir.Job.STEP,
        [plan.bytes_of(o.result, None) for o in reads],
        [plan.bytes_of(o.result, None) for o in writes],
        alone=True,
    )


def _check_barriers(plan: Plan) -> Iterator[str]:
    """Between two barriers no launch touches what another one writes."""
    for job in lir.Job:
        threads = Threads(plan, job)
        threads.run(plan.program.body.block.ops, None)
        if job == lir.Job.STEP and (last := _hand_on(plan)) is not None:
            threads.add(last)
        for event, earlier, (mine, theirs) in threads.conflicts:
            yield (
                f"missing barrier: {event.name} touches {theirs}, {earlier.name} touches {mine}, "
                "and no barrier is between them"
            )


# Weights and states


def _check_packing(plan: Plan) -> Iterator[str]:
    """Every packed weight that a launch reads has been packed, and sources are read by no other."""
    ops = plan.program.body.block.ops
    packed: dict[str, list[range]] = {}
    for op in (o for o in launches([plan.program]) if o.job == lir.Job.PACK):
        loop = op.parent_op()
        for ref in (v.owner for v in op.outs):
            if isinstance(ref, lir.RefOp):
                layers = range(1)
                if ref.layer is not None and isinstance(loop, lir.LoopOp):
                    layers = range(loop.first.value.data, loop.last.value.data)
                packed.setdefault(ref.symbol.root_reference.data, []).append(layers)
    weights = {op.sym_name.data for op in plan.module.ops if isinstance(op, lir.WeightOp)}
    for op in launches([plan.program]):
        packs = isinstance(plan.kernel(op).body.block.first_op, mir.PackOp)
        name = f"@{plan.kernel(op).sym_name.data}"
        if op.job == lir.Job.PACK and not packs:
            yield f"unpacked weight: {name} reads a weight's source, which only packing may"
        if packs and op.phase.data is not PhaseKind.PROLOGUE:
            yield f"late packing: {name} runs in the {op.phase.data}, expected the prologue"
    for job in (lir.Job.PROLOGUE, lir.Job.STEP):
        for event in events(plan, ops, job):
            for used in event.reads:
                symbol, layer = used.space
                if symbol in weights and not any(layer in r for r in packed.get(symbol, ())):
                    yield f"never packed: {event.name} reads {used}"
            for used in event.writes:
                if used.space[0] in weights:
                    yield f"weight written: {event.name} writes {used}"


def _check_segments(plan: Plan) -> Iterator[str]:
    """Members of weights, and of states, are apart from each other and inside their segment."""
    weights = [op for op in plan.module.ops if isinstance(op, lir.WeightOp)]
    states = [op for op in plan.module.ops if isinstance(op, lir.StateOp)]
    yield from _check_segment(plan, "weight", weights, plan.program.weights_size.value.data)
    yield from _check_segment(plan, "state", states, plan.program.state_size.value.data)
    source = 0
    for op in weights:
        if op.source.value.data != source:
            yield (
                f"bad source: the sources of weight @{op.sym_name.data} start at {source}, "
                f"got {op.source.value.data}"
            )
        source += op.last.value.data - op.first.value.data


def _check_segment(
    plan: Plan, what: str, ops: Sequence[lir.WeightOp | lir.StateOp], segment: int
) -> Iterator[str]:
    placed: list[tuple[int, int, str]] = []
    alignment = plan.program.alignment.value.data
    for op in ops:
        size = _member_bytes(op, plan.table)
        offset, stride = op.offset.value.data, op.stride.value.data
        count = op.last.value.data - op.first.value.data
        name = f"{what} @{op.sym_name.data}"
        end = offset + (count - 1) * stride + size
        if offset % alignment or (count > 1 and stride % alignment):
            yield f"misaligned: {name} at {offset}, stride {stride}, expected multiples of 64"
        if count > 1 and stride < size:
            yield f"member overlap: {name} has members of {size} bytes and a stride of {stride}"
        if end > segment:
            yield f"out of segment: {name} at [{offset}, {end}), the segment has {segment} bytes"
        placed.append((offset, end, name))
    placed.sort()
    for (_, end, name), (start, _, other) in pairwise(placed):
        if start < end:
            yield f"segment overlap: {name} ends at {end}, {other} starts at {start}"


def _member_bytes(op: lir.WeightOp | lir.StateOp, table: DimTable) -> int:
    return size_of(op.type, table) if isinstance(op, lir.StateOp) else member_bytes(op, op.type)


@dataclass(frozen=True)
class VerifyPlanPass(ModulePass):
    """
    Check a planned module: slots, launches, barriers, segments; it stays as it is.

    Raises IrError with all that is wrong, a line for each.
    """

    name = "verify-plan"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        problems = check_planned(op)
        if problems:
            program = next(o for o in op.ops if isinstance(o, lir.ProgramOp))
            raise IrError(program, "\n  ".join(["verify-plan:", *problems]))
