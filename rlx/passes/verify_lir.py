"""The checks of a plan that need more than one operation: launches, members, slots and views."""

from __future__ import annotations

from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import lir, mir
from rlx.dialects.common import PhaseKind, dims_of, format_of, spell
from rlx.dialects.ops import StateRole
from rlx.lowering.kernels import scratch_of
from rlx.passes.buffers import element_bytes, size_of
from rlx.passes.plan_access import launches, root_of
from rlx.passes.program import Program, fail, spell_all
from rlx.passes.verify_dims import elements


def check_lir(program: Program, op: Operation) -> None:
    """Raise IrError where an operation of a plan does not fit what it refers to."""
    match op:
        case lir.LaunchOp():
            _check_launch(program, op)
        case lir.RefOp() | lir.SourceOp():
            _check_member(program, op)
        case lir.SlotOp():
            _check_slot(program, op)
        case lir.ViewOp():
            _check_view(program, op)
        case lir.IfOp() | lir.WhileOp():
            _check_condition(op)
        case lir.ProgramOp():
            _check_segments(program, op)
        case _:
            pass


def _bytes(program: Program, op: Operation, type_: Attribute) -> int:
    """Return a tensor's bytes at the upper bounds of its dimensions."""
    try:
        return size_of(type_, program.table)
    except VerifyException as e:
        fail(op, str(e))


def _check_launch(program: Program, op: lir.LaunchOp) -> None:
    kernel = program.lookup(op, op.kernel, lir.KernelOp)
    for verb, wanted, given in (
        ("reads", tuple(kernel.body.block.arg_types), op.ins.types),
        ("writes", tuple(kernel.yielded.operand_types), op.outs.types),
    ):
        if wanted != tuple(given):
            name = kernel.sym_name.data
            fail(op, f"@{name} {verb} {spell_all(wanted)}, got {spell_all(given)}")
    _check_scratch(program, op, kernel)
    _check_states(program, op, kernel)
    packs = isinstance(kernel.body.block.first_op, mir.PackOp)
    if packs != (op.job is lir.Job.PACK):
        fail(op, "expected a weight's source as the input of a kernel that packs, and of no other")
    if packs and op.phase.data is not PhaseKind.PROLOGUE:
        fail(op, f"packing runs in the prologue, got {op.phase.data}")


def _check_condition(op: lir.IfOp | lir.WhileOp) -> None:
    """A condition is a buffer that its job has; what it decides is of one job."""
    root = root_of(op.condition).owner
    if not isinstance(root, lir.SlotOp | lir.InputOp | lir.OutputOp):
        fail(op, "expected a buffer as the condition")
    jobs = {launch.job for launch in launches([op])}
    if lir.Job.PACK in jobs:
        fail(op, "packing depends on nothing: expected it outside of branches and loops")
    if len(jobs) > 1:
        fail(op, "expected launches of one job, got some of the prologue and some of the step")
    if lir.Job.PROLOGUE in jobs and not isinstance(root, lir.SlotOp):
        fail(op, "the prologue runs before inputs and outputs are bound: expected a slot")


def _check_states(program: Program, op: lir.LaunchOp, kernel: lir.KernelOp) -> None:
    """What a kernel takes for keys, or for values, is a state of that role and of its head_dim."""
    for inner in kernel.body.block.ops:
        used: list[tuple[SSAValue, StateRole]] = []
        if isinstance(inner, mir.AppendOp):
            used = [(inner.state, inner.role.data)]
        elif isinstance(inner, mir.AttentionOp):
            used = [(inner.keys, StateRole.KEYS), (inner.values, StateRole.VALUES)]
        for value, role in used:
            assert isinstance(inner, mir.AppendOp | mir.AttentionOp)
            state = _state_behind(program, op, value)
            head_dim = inner.head_dim.value.data
            if state is None:
                fail(op, f"{inner.name} in @{kernel.sym_name.data}: expected a state as its {role}")
            if (state.role.data, state.head_dim.value.data) != (role, head_dim):
                fail(
                    op,
                    f"{inner.name} in @{kernel.sym_name.data}: expected a state of {role} with "
                    f"head_dim {head_dim}, @{state.sym_name.data} is one of {state.role.data} with "
                    f"head_dim {state.head_dim.value.data}",
                )


def _state_behind(program: Program, op: lir.LaunchOp, value: SSAValue) -> lir.StateOp | None:
    """Return the state that a value in a launch's kernel is, or is a view of."""
    while not isinstance(value, BlockArgument):
        owner = value.owner
        if isinstance(owner, mir.FirstRowsOp):
            value = owner.input
        elif isinstance(owner, mir.AppendOp):
            value = owner.state
        else:
            return None
    ref = op.ins[value.index].owner
    if not isinstance(ref, lir.RefOp):
        return None
    found = program.symbols.get(ref.symbol.root_reference.data)
    return found if isinstance(found, lir.StateOp) else None


def _check_scratch(program: Program, op: lir.LaunchOp, kernel: lir.KernelOp) -> None:
    """A launch has scratch where its kernel needs it, large enough, and zeroed if need be."""
    need = scratch_of(kernel, program.table)
    if (need is None) != (op.scratch is None):
        wanted = "no scratch" if need is None else f"scratch {spell(need.type)}"
        fail(op, f"@{kernel.sym_name.data} needs {wanted}")
    if need is None or op.scratch is None:
        return
    slot = op.scratch.owner
    if not isinstance(slot, lir.SlotOp):
        fail(op, "expected a slot as scratch")
    size = _bytes(program, op, need.type)
    if slot.size.value.data < size or (need.zeroed and slot.zeroed is None):
        zeroed = " zeroed" if need.zeroed else ""
        fail(
            op,
            f"@{kernel.sym_name.data} needs{zeroed} scratch of {size} bytes, "
            f"got {slot.size.value.data}",
        )


def _check_io(op: lir.ProgramOp) -> None:
    """Inputs, and outputs, are numbered from 0 on, and their names differ."""
    for kind in (lir.InputOp, lir.OutputOp):
        bound = [o for o in op.body.block.ops if isinstance(o, kind)]
        if sorted(o.index.value.data for o in bound) != list(range(len(bound))):
            given = ", ".join(str(o.index.value.data) for o in bound)
            fail(bound[0], f"expected the indices 0 to {len(bound) - 1}, once each, got {given}")
        if len({o.io_name.data for o in bound}) != len(bound):
            fail(bound[0], "two of them have one name")


def _check_member(program: Program, op: lir.RefOp | lir.SourceOp) -> None:
    """A reference's type is that of its declaration; its layer is one that there is."""
    name = op.symbol.root_reference.data
    found = program.symbols.get(name)
    if isinstance(op, lir.SourceOp):
        found = program.lookup(op, op.symbol, lir.WeightOp)
        # The weight is declared with its packed type; its file has the same, not yet packed, or
        # more digits.
        same = dims_of(op.result.type) == dims_of(found.type)
        same = same and format_of(op.result.type) == format_of(found.type)
        same = same or found.type in mir.PackOp.narrowed(op.result.type).values()
    else:
        if not isinstance(found, lir.StateOp):
            found = program.lookup(op, op.symbol, lir.WeightOp)
        same = op.result.type == found.type
    if not same:
        fail(op, f"@{name} is declared as {spell(found.type)}, got {spell(op.result.type)}")
    layers = range(found.first.value.data, found.last.value.data)
    if op.layer is None:
        # Outside a loop a state is that of layer 0.
        if len(layers) != 1 and not (isinstance(found, lir.StateOp) and layers.start == 0):
            fail(op, f"@{name} has {len(layers)} members: expected a layer")
        return
    assert isinstance(op.layer, BlockArgument)
    loop = op.layer.owner.parent_op()
    assert isinstance(loop, lir.LoopOp)
    first, last = loop.first.value.data, loop.last.value.data
    if first < layers.start or last > layers.stop:
        fail(
            op,
            f"@{name} has members for the layers {layers.start} to {layers.stop}, "
            f"the loop runs over {first} to {last}",
        )


def _check_slot(program: Program, op: lir.SlotOp) -> None:
    needed = _bytes(program, op, op.result.type)
    if op.size.value.data < needed:
        fail(
            op,
            f"expected {needed} bytes for {spell(op.result.type)} at the upper bounds of its "
            f"dimensions, got {op.size.value.data}",
        )


def _check_view(program: Program, op: lir.ViewOp) -> None:
    width = element_bytes(op.result.type)
    if op.byte_offset.value.data % width:
        fail(
            op,
            f"expected a multiple of {width} bytes, the size of an element of "
            f"{spell(op.result.type)}, got byte {op.byte_offset.value.data}",
        )
    _check_unbounded_view(program, op)
    size = _bytes(program, op, op.root.type)
    end = op.byte_offset.value.data + _bytes(program, op, op.result.type)
    if end > size:
        fail(
            op,
            f"{spell(op.result.type)} at byte {op.byte_offset.value.data} ends at {end}, beyond "
            f"the {size} bytes of {spell(op.root.type)}",
        )


def _check_unbounded_view(program: Program, op: lir.ViewOp) -> None:
    """A view without a bound has the elements of its root, or the first of these, at every size."""
    root, view, table = op.root.type, op.result.type, program.table
    if table.unbounded.isdisjoint((*dims_of(root), *dims_of(view))):
        return
    (have, names), (need, same) = (elements(dims_of(t), table.dims) for t in (root, view))
    fits = need * element_bytes(view) <= have * element_bytes(root)
    part = need == 0 or (names == same and fits)
    if op.byte_offset.value.data or not part:
        fail(
            op,
            f"expected the first elements of its root {spell(root)} at every size, got "
            f"{spell(view)} at byte {op.byte_offset.value.data}",
        )


def _check_segments(program: Program, op: lir.ProgramOp) -> None:
    """There is one program, and every member of a weight or a state is inside its segment."""
    _check_io(op)
    for found in program.symbols.values():
        if isinstance(found, lir.ProgramOp) and found is not op:
            fail(found, f"expected one program in a module, there is also @{op.sym_name.data}")
        if isinstance(found, lir.WeightOp):
            # The bytes of a packed weight are the affair of its format: check where it starts.
            _check_inside(found, 1, op.weights_size.value.data)
        if isinstance(found, lir.StateOp):
            _check_inside(found, _bytes(program, found, found.type), op.state_size.value.data)


def _check_inside(op: lir.WeightOp | lir.StateOp, member: int, segment: int) -> None:
    before = (op.last.value.data - op.first.value.data - 1) * op.stride.value.data
    end = op.offset.value.data + before + member
    if end > segment:
        fail(op, f"its last member reaches byte {end} of a segment of {segment} bytes")
